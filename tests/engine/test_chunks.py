"""Rounds in chunks and on devices: results do not depend on the layout, and nothing is moved or copied needlessly."""

import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.small import (
    KEY,
    Run,
    algorithm_of,
    assert_close,
    assert_same_bits,
    clients_of,
    federation,
    model,
    numbers,
    scripted,
)
from test_round import CLOCK, DATA, POLICY, ROUNDS, VALUES

import fedjax_srp as srp
from fedjax_srp.algorithms import local
from fedjax_srp.base import ClientOutput
from fedjax_srp.driver import programs as program
from fedjax_srp.rounds.sharding import Layout, chunk_budget, default_chunks


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


@pytest.mark.short("True")
@pytest.mark.parametrize("shard_data", [False, True])
def test_clients_served_by_their_owner_are_not_exchanged(shard_data, monkeypatch):
    """Exchanges that lose all data do no harm if the devices own equally many participants; otherwise they do."""
    data = federation(clients_of((3,) * 8, (2,) * 8))
    algorithm = algorithm_of(
        lambda key, broadcast, state, examples, context: ClientOutput(
            (), state + jnp.sum(examples.x)
        ),
        init=lambda key, data: (),
        init_client=lambda key, server, examples: jnp.zeros(()),
        evaluations={},
    )
    options = {
        "num_rounds": 2,
        "devices": 2,
        "chunk_size": 3,
        "shard_data": shard_data,
        "progress": False,
    }

    def final(policy, **exchange):
        program._jitted.cache_clear()
        with monkeypatch.context() as patch:
            for name, made in exchange.items():
                patch.setattr(jax.lax, name, made)
            return srp.simulate(
                algorithm,
                data,
                participation=policy,
                keep_clients=True,
                key=KEY,
                **options,
            ).client_states

    lost = {
        "psum_scatter": lambda bits, axis, tiled: jnp.zeros_like(bits[: len(bits) // 2]),
        "all_gather": lambda bits, axis, tiled: jnp.zeros(
            (2 * len(bits), *bits.shape[1:]), bits.dtype
        ),
    }
    everybody, first = srp.participation.Full(), srp.participation.Fastest(4)
    options["clock"] = srp.clocks.Fixed(
        srp.clocks.Constant(np.arange(1.0, 9.0))
    )  # 0 to 3 are the fastest
    for policy in (everybody, first):
        assert_same_bits(final(policy, **lost), final(policy))
    options["clock"] = srp.clocks.Fixed(
        srp.clocks.Constant(np.arange(8.0) // 2 + 10 * (np.arange(8) % 2))
    )
    with pytest.raises(
        AssertionError
    ):  # the fastest are the even ones, all owned by one device
        assert_same_bits(final(first, **lost), final(first))


def test_chunks_take_an_eighth_of_the_memory_at_most():
    def budget(platform, **stats):
        own = SimpleNamespace(
            platform=platform, process_index=0, memory_stats=lambda: stats
        )
        return chunk_budget([SimpleNamespace(platform=platform, process_index=1), own])

    assert budget("cpu") == 2 * 2**20
    assert budget("gpu", bytes_limit=8 * 2**30) == 2**30
    assert budget("gpu", bytes_limit=80 * 2**30) == budget("gpu") == 8 * 2**30


def test_accelerators_have_large_chunks_by_default():
    mebibyte = 2**20
    sizes = 4 * mebibyte, 3 * mebibyte
    # Judged in 30 windows of 334, of which the last has room for 20 more.
    gibibyte = 1024 * mebibyte
    assert default_chunks("gpu", gibibyte, *sizes, 10_000) == (
        154,
        0,
        334,
    )  # 65 times, as 156 would be
    assert default_chunks("gpu", gibibyte, 2 * mebibyte, sizes[1], 10_000) == (
        154,
        3 * 154,
        334,
    )
    assert default_chunks("gpu", gibibyte, 2 * mebibyte, 0, 1_000) == (
        125,
        4 * 125,
        1_000,
    )
    assert default_chunks("gpu", 4 * gibibyte, 2 * mebibyte, 0, 1_000) == (
        125,
        1_000,
        1_000,
    )
    assert default_chunks("gpu", gibibyte, *sizes, 100) == (100, 0, 100)
    assert default_chunks("gpu", gibibyte, 14 * mebibyte, 0, 100) == (
        50,
        0,
        100,
    )  # there is memory for 73
    assert default_chunks("cpu", mebibyte, 100, 100, 1_000) == (16, 0, 16)
    layout = Layout(
        (SimpleNamespace(platform="gpu"),), 156, 10_000, 512, large_chunk=3 * 156
    )
    assert [part.chunk_size for part in layout.by_chunk_size] == [3 * 156, 156]
    assert [part.chunk_size for part in layout.for_evaluation().by_chunk_size] == [512]


ALONE = pytest.mark.skipif(
    jax.__version_info__ >= (0, 11), reason="XLA copies nothing by itself"
)


@pytest.mark.short("2-True")
@pytest.mark.parametrize(
    ("devices", "told"), [(1, True), (2, True), pytest.param(1, False, marks=ALONE)]
)
def test_an_iteration_does_not_copy_states_that_it_does_not_train(
    devices, told, monkeypatch
):
    """An algorithm reads the old state last; with its defaults XLA for CPUs copies the whole table first."""
    monkeypatch.setattr(local, "SEQUENTIAL_BYTES", 0)
    if not told:
        monkeypatch.setattr(program, "compiler_options", lambda platform: {})
    rows = 11  # of the table of a device's clients
    data = federation(clients_of((3,) * devices * rows, (1,) * devices * rows))
    algorithm = srp.algorithms.FedMTL(model(hidden=(5,)), srp.Training(batch_size=2))
    run = Run(algorithm, data, srp.participation.Full(), devices=devices, chunk_size=1)
    run.rounds()
    (segment,) = [
        compiled
        for function, compiled in run.program.compiled.items()
        if function.name == "rounds"
    ]
    copies = re.findall(rf"= f32\[{rows},[\d,]+\]\S* copy\(", segment.as_text())
    assert (not copies) == told
