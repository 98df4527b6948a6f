"""Layouts: the assignment of clients to devices and chunks."""

import os
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_srp as srp
from fedjax_srp.rounds.sharding import AXIS, lay_out, owners_first
from fedjax_srp.xla import cores


@pytest.mark.parametrize(
    ("devices", "num_clients", "size"),
    [(1, 9, 4), (2, 9, 9), (2, 9, 4), (3, 20, 11), (4, 16, 16)],
)
def test_devices_serve_their_own_clients_first(devices, num_clients, size):
    """First, in turn, as many own clients of each device as the device with the fewest has; then the others."""
    layout, seen = lay_out(devices, 1, num_clients), set()
    for seed in range(5):
        ids = np.random.default_rng(seed).permutation(num_clients).astype(np.int32)
        at_home, dealt, tens = map(
            np.asarray, owners_first(layout, ids, jnp.int32(size), jnp.asarray(10 * ids))
        )
        np.testing.assert_array_equal(tens, 10 * dealt)
        assert sorted(dealt[:size]) == sorted(ids[:size])
        owners = ids[:size] % devices
        assert at_home == devices * min(np.bincount(owners, minlength=devices))
        np.testing.assert_array_equal(
            dealt[:at_home] % devices, np.arange(at_home) % devices
        )
        for device in range(devices):
            np.testing.assert_array_equal(
                dealt[device:at_home:devices],
                ids[:size][owners == device][: at_home // devices],
            )
        np.testing.assert_array_equal(
            dealt[at_home:], [i for i in ids if i not in dealt[:at_home]]
        )
        seen.add(int(at_home))
    assert devices == 1 or size == num_clients or len(seen) > 1


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
    small, large = (lay_out(1, None, 10_000, held) for held in (100, 10_000_000))
    assert small.chunk_size > large.chunk_size == 1
    judged = lay_out(1, None, 10_000, 10_000_000, 100)  # an evaluation sends no messages
    assert (judged.chunk_size, judged.for_evaluation().chunk_size) == (
        1,
        small.chunk_size,
    )
    assert judged.for_evaluation().window == small.window
    assert (
        lay_out(1, 3, 10_000, 10_000_000, 100).for_evaluation().chunk_size == 3
    )  # as given


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("--xla_a=1", "--xla_a=1 --xla_cpu_multi_thread_eigen=false"),
        (
            "--xla_cpu_multi_thread_eigen=true",
            "--xla_cpu_multi_thread_eigen=true",
        ),  # your own choice
    ],
)
def test_devices_of_all_cores_have_one_thread_each(monkeypatch, given, expected):
    numbers, config = (
        [],
        SimpleNamespace(
            jax_num_cpu_devices=-1, update=lambda name, number: numbers.append(number)
        ),
    )
    monkeypatch.setattr(cores, "jax", SimpleNamespace(config=config))
    monkeypatch.setenv("XLA_FLAGS", given)
    assert srp.use_all_cores(3) == 3
    assert (numbers, os.environ["XLA_FLAGS"]) == ([3], expected)
    with pytest.raises(ValueError, match="num_devices=-1 must be at least 1"):
        srp.use_all_cores(-1)
