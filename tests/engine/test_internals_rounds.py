"""Layouts, chunks and owners of clients on devices, and what compiled rounds move and copy."""

import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.small import (
    KEY,
    NUM_FEATURES,
    algorithm_of,
    assert_same_bits,
    clients_of,
    federation,
    model,
    prepared,
)
from test_owned import ALGORITHMS
from test_owned import DATA as OWNED

import fedjax_srp as srp
from fedjax_srp import ClientOutput
from fedjax_srp.algorithms import local
from fedjax_srp.driver import programs as program
from fedjax_srp.rounds.client_data import OwnedData, place_data
from fedjax_srp.rounds.sharding import AXIS, Layout, default_chunks, lay_out


def test_layouts():
    layout = lay_out(4, 3, 7)  # no chunk beyond the clients
    assert (layout.num_devices, layout.owned, layout.chunk_size, layout.window) == (
        4,
        2,
        2,
        8,
    )
    assert layout.mesh.axis_names == (AXIS,)
    assert lay_out(jax.devices()[2:3], None, 7).devices == (jax.devices()[2],)
    assert lay_out(None, None, 7).num_devices == 4
    judged = lay_out(1, None, 10_000, 10_000_000, 100)  # an evaluation sends no messages
    assert judged.chunk_size == 1 < judged.for_evaluation().chunk_size


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


def test_accelerators_have_large_chunks_by_default():
    mebibyte, gibibyte = 2**20, 2**30
    asked = {
        # Judged in 30 windows of 334, of which the last has room for 20 more.
        (gibibyte, 4 * mebibyte, 3 * mebibyte, 10_000): (154, 0, 334),
        (gibibyte, 2 * mebibyte, 3 * mebibyte, 10_000): (154, 3 * 154, 334),
        (gibibyte, 4 * mebibyte, 3 * mebibyte, 100): (100, 0, 100),
    }
    for given, chunks in asked.items():
        assert default_chunks("gpu", *given) == chunks
    assert default_chunks("cpu", mebibyte, 100, 100, 1_000) == (16, 0, 16)
    layout = Layout(
        (SimpleNamespace(platform="gpu"),), 156, 10_000, 512, large_chunk=3 * 156
    )
    assert [part.chunk_size for part in layout.by_chunk_size] == [3 * 156, 156]
    assert [part.chunk_size for part in layout.for_evaluation().by_chunk_size] == [512]


@pytest.mark.short("2")
@pytest.mark.parametrize("devices", [2, 3])
def test_a_device_holds_the_examples_of_its_own_clients(devices):
    layout = lay_out(devices, 1, OWNED.num_clients)
    placed = place_data(layout, OWNED, shard_data=True)
    assert isinstance(placed, OwnedData)
    assert placed.num_clients == 7
    for name in ("x_train", "x_test"):
        assert getattr(placed.own, name).dtype == jnp.uint8

    shards = placed.own.x_train.addressable_shards
    owners = np.arange(7) % devices
    most = max(np.bincount(owners, np.asarray(OWNED.train_counts)))
    assert [shard.data.shape for shard in shards] == [(most, NUM_FEATURES)] * devices


def text_of_rounds(algorithm, data, **options):
    """Return the text of the compiled rounds of a run of all clients."""
    run = prepared(algorithm, data, evaluations=(), **options)
    root, placed = run.placed(KEY)
    made = run.program()
    made.segment(1, made.start(root, placed).state, root, placed)
    (text,) = [
        compiled.as_text()
        for function, compiled in made.compiled.items()
        if function.name == "rounds"
    ]
    return text


def test_images_move_as_bytes():
    options = {"devices": 4, "chunk_size": 2, "shard_data": True}
    text = text_of_rounds(ALGORITHMS["fedavg"], OWNED, **options)
    most = max(OWNED.train_counts)
    moved = [line for line in text.splitlines() if "reduce-scatter(" in line]
    inputs = [line for line in moved if f"{most},{NUM_FEATURES}]" in line]
    assert inputs
    assert all(" u8[" in line for line in inputs)


def test_an_iteration_does_not_copy_states_that_it_does_not_train(monkeypatch):
    """FedMTL reads the old state last; with its defaults XLA for CPUs copies all states first."""
    monkeypatch.setattr(local, "SEQUENTIAL_BYTES", 0)
    rows = 11
    data = federation(clients_of((3,) * rows, (1,) * rows))
    algorithm = srp.algorithms.FedMTL(model(hidden=(5,)), srp.Training(batch_size=2))
    text = text_of_rounds(algorithm, data, devices=1, chunk_size=1)
    of_a_table = rf"= f32\[{rows},[\d,]+\]\S* "
    assert re.search(of_a_table, text)
    assert not re.findall(of_a_table + r"copy\(", text)
