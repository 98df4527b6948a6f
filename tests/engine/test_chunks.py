"""Rounds in chunks and on devices: results do not depend on the layout, and nothing is moved or copied needlessly."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.small import (
    Run,
    algorithm_of,
    assert_close,
    assert_same_bits,
    numbers,
    scripted,
)
from test_round import CLOCK, DATA, POLICY, ROUNDS, VALUES

from fedjax_srp import ClientOutput


@pytest.mark.parametrize(
    ("devices", "chunk_size", "large_chunk", "of_size"),
    [
        (
            1,
            2,
            6,
            {2: 2, 3: 6, 5: 6, 7: 8, 8: 8, 9: 12, 10: 12},
        ),  # the large one while it is half full
        (2, 1, 0, {3: 4, 5: 6, 7: 8}),
        (2, 2, 0, {3: 4, 5: 8, 7: 8}),
    ],
)
def test_a_round_runs_the_chunks_of_its_cohort(devices, chunk_size, large_chunk, of_size):
    """Number of slots, with padding, by the size of the cohort, in a cohort of 12."""
    served = []

    def client(key, broadcast, state, value, context):
        jax.debug.callback(lambda _: served.append(1), value)
        return ClientOutput(value)

    algorithm, data = algorithm_of(client), numbers(*np.arange(12, dtype=np.float32))
    policy = scripted([np.arange(12)] * len(of_size), [*of_size])
    run = Run(
        algorithm,
        data,
        policy,
        devices=devices,
        chunk_size=chunk_size,
        large_chunk=large_chunk,
    )
    for slots in of_size.values():
        served.clear()
        run.rounds()
        jax.effects_barrier()
        assert len(served) == slots


# Bits that arithmetic would lose; XLA for CPUs changes the nans of bfloat16.
BITS = {
    "float32": np.array(
        [0x80000000, 0x7FC12345, 0xFF800000, 1, 0x3F800000, 0x7F800001], np.uint32
    ).view(np.float32),
    "bfloat16": jnp.array([-0.0, 1e-30, 3.0, -jnp.inf], jnp.bfloat16),
    "int8": jnp.arange(-3, 4, dtype=jnp.int8),
}


def late(key, broadcast, state, value, context):
    """Read the old state after the new one is computed, and report both."""
    work = context.work.astype(value.dtype)
    new = {
        "sum": state["sum"] + work * value,
        "key": jax.random.fold_in(state["key"], context.work),
        "steps": state["steps"] + context.work,
        "odd": state["odd"] ^ (context.work % 2 == 1),
        "bits": jax.tree.map(lambda leaf: leaf[::-1], state["bits"]),
    }
    message = jnp.stack(
        [
            new["sum"] - state["sum"],
            jax.random.normal(key),
            jax.random.normal(state["key"]),
        ]
    )
    return ClientOutput(
        message,
        new,
        weight=jnp.abs(value),
        info={"before": state["sum"], "rises": value > 0},
    )


@pytest.mark.short("3-2-0", "2-1-3")
@pytest.mark.parametrize(
    ("devices", "chunk_size", "large_chunk"),
    [
        (2, 1, 0),
        (2, 2, 0),
        (2, 4, 0),
        (3, 1, 0),
        (3, 2, 0),
        (4, 1, 0),
        (1, 1, 7),
        (1, 2, 4),
        (2, 1, 3),
        (3, 1, 2),
    ],
)
def test_states_of_clients_do_not_depend_on_the_serving_device(
    devices, chunk_size, large_chunk
):
    """Cohorts of 3, 5 and 7 of seven clients: some served by their owner, some by others, some slots padded.

    Large chunks serve all, some or none of a cohort.
    """
    algorithm = algorithm_of(
        late,
        init=lambda key, data: jnp.zeros(3),
        init_client=lambda key, server, value: {
            "sum": 0 * value,
            "key": key,
            "steps": jnp.int32(0),
            "odd": jnp.bool_(False),
            "bits": BITS,
        },
        evaluations={
            "sum": lambda key, server, state, value: (
                lambda test: state["sum"] + jax.random.normal(key)
            )
        },
    )
    alone, many = (
        Run(
            algorithm,
            DATA,
            POLICY,
            CLOCK,
            devices=n,
            chunk_size=chunk_size,
            evaluations="all",
            large_chunk=large,
        )
        for n, large in ((1, 0), (devices, large_chunk))
    )
    sums, steps, bits = (
        np.zeros(len(VALUES), np.float32),
        np.zeros(len(VALUES), np.int32),
        jax.random.key_data,
    )
    for ids, work in ROUNDS:
        ours, expected = many.rounds(), alone.rounds()
        assert_same_bits(
            *(
                jax.tree.map(lambda leaf: leaf[: len(VALUES)], run.scores)
                for run in (ours, expected)
            )
        )
        assert_close(ours.rounds, expected.rounds, 1e-6)
        found, expected = many.host_state(), alone.host_state()
        assert_close(found.server, expected.server, 1e-6)
        assert_same_bits(bits(found.clients["key"]), bits(expected.clients["key"]))
        sums[ids] += VALUES[ids] * work
        steps[ids] += work.astype(np.int32)
        assert_same_bits(found.clients["bits"], expected.clients["bits"])
        np.testing.assert_array_equal(found.clients["sum"], sums)
        np.testing.assert_array_equal(found.clients["steps"], steps)
        np.testing.assert_array_equal(found.clients["odd"], steps % 2 == 1)
