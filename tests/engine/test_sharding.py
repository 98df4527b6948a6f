"""States over devices: fetched and written back bit for bit, whatever their type, and evenly spread work."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.small import assert_same_bits

from fedjax_srp.engine.sharding import (
    AXIS,
    Window,
    device_index,
    lay_out,
    my_chunk,
    owners_first,
    put,
    spread,
    take,
    total,
    window_positions,
)

NUM_CLIENTS = 7


def states():
    """Leaves of many types, with bits that arithmetic would lose."""
    bits = np.array([0x80000000, 0x7FC12345, 0xFF800000, 0x00000001, 0x3F800000, 0x7F800001, 0xFFFFFFFF], np.uint32)
    floats = np.stack([bits, bits[::-1]], axis=1).view(np.float32)
    return {
        "float32": jnp.asarray(floats),
        "bfloat16": jnp.array([-0.0, 1e-30, 3.0, -jnp.inf, 0.5, -1e30, 7.0], jnp.bfloat16),  # XLA:CPU quiets its nans
        "int8": jnp.arange(-3, 4, dtype=jnp.int8),
        "bool": jnp.arange(7) % 3 == 0,
        "key": jax.random.split(jax.random.key(0), 7),
        "matrix": jnp.arange(7 * 6, dtype=jnp.int32).reshape(7, 2, 3),
    }


def plain(tree):
    """Keys and odd floats as the integers they are made of."""

    def leaf_bits(leaf):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return np.asarray(jax.random.key_data(leaf))
        return np.asarray(leaf).view(np.uint16) if leaf.dtype == jnp.bfloat16 else np.asarray(leaf)

    return jax.tree.map(leaf_bits, tree)


def padded(layout, tree):
    missing = layout.owned * layout.num_devices - NUM_CLIENTS
    return jax.tree.map(lambda leaf: layout.by_owner(jnp.concatenate([leaf, leaf[:missing]])), tree)


SOME = np.array([5, 0, 6, 3, 1, 2, 4], np.int32)


@pytest.mark.short("2-2-*", "4-2-*")
@pytest.mark.parametrize(
    ("devices", "chunk_size", "ids", "away"),
    [
        *[(devices, chunk, SOME, True) for devices, chunk in [(1, 4), (2, 2), (4, 1), (4, 2)]],
        (2, 2, np.array([4, 3, 0, 5], np.int32), False),  # even and odd ones in turn
        (4, 1, np.array([4, 5, 2, 3], np.int32), False),
    ],
)
def test_take_and_put_move_bits_of_the_clients_asked_for(devices, chunk_size, ids, away):
    layout = lay_out(devices, chunk_size, NUM_CLIENTS)
    ids = np.resize(ids, layout.window)
    active = np.arange(layout.window) < min(3, layout.window)
    positions = np.asarray(window_positions(layout))
    old, new = states(), jax.tree.map(lambda leaf: leaf[::-1], states())

    @functools.partial(spread, layout=layout, in_by_client=(True, False, False), out_by_client=(True, True))
    def exchange(shard, window, replacement):
        rows = take(layout, shard, window)
        mine = my_chunk(layout, window.client_ids)
        return rows, put(layout, shard, window, jax.tree.map(lambda leaf: leaf[mine], replacement))

    shard = jax.device_put(padded(layout, old), layout.sharding(by_client=True))
    window = Window(ids[positions], active[positions], np.bool_(away))
    rows, written = jax.jit(exchange)(shard, *jax.device_put((window, new), layout.sharding()))
    assert_same_bits(plain(rows), plain(jax.tree.map(lambda leaf: leaf[ids[positions]], old)))
    taking_part = np.isin(np.arange(NUM_CLIENTS), ids[active])
    expected = jax.tree.map(
        lambda o, n: np.where(taking_part.reshape(-1, *(1,) * (o.ndim - 1)), n, o), plain(old), plain(new)
    )
    assert_same_bits(jax.tree.map(lambda leaf: layout.by_id(leaf)[:NUM_CLIENTS], plain(written)), expected)


@pytest.mark.parametrize(
    ("devices", "num_clients", "size"), [(1, 9, 4), (2, 9, 9), (2, 9, 4), (3, 20, 11), (4, 16, 16)]
)
def test_devices_serve_their_own_clients_first(devices, num_clients, size):
    """Everybody once, as many at home as the device with the fewest has, in turn; the others behind, as they came."""
    layout, seen = lay_out(devices, 1, num_clients), set()
    for seed in range(5):
        ids = np.random.default_rng(seed).permutation(num_clients).astype(np.int32)
        at_home, dealt, tens = map(np.asarray, owners_first(layout, ids, jnp.int32(size), jnp.asarray(10 * ids)))
        np.testing.assert_array_equal(tens, 10 * dealt)
        assert sorted(dealt[:size]) == sorted(ids[:size])
        owners = ids[:size] % devices
        assert at_home == devices * min(np.bincount(owners, minlength=devices))
        np.testing.assert_array_equal(dealt[:at_home] % devices, np.arange(at_home) % devices)
        for device in range(devices):
            np.testing.assert_array_equal(
                dealt[device:at_home:devices], ids[:size][owners == device][: at_home // devices]
            )
        np.testing.assert_array_equal(dealt[at_home:], [i for i in ids if i not in dealt[:at_home]])
        seen.add(int(at_home))
    assert devices == 1 or size == num_clients or len(seen) > 1


@pytest.mark.parametrize(("devices", "chunk_size"), [(1, 3), (2, 2), (4, 2)])
def test_position_p_is_served_by_device_p_modulo_the_number_of_devices(devices, chunk_size):
    layout = lay_out(devices, chunk_size, 20)

    @functools.partial(spread, layout=layout, in_by_client=(False,), out_by_client=(True, True))
    def serve(window):
        mine = my_chunk(layout, window)
        return mine, jnp.broadcast_to(device_index(layout), mine.shape)

    served, by = jax.jit(serve)(jax.device_put(window_positions(layout), layout.sharding()))
    assert sorted(np.asarray(served)) == list(range(layout.window))
    np.testing.assert_array_equal(by, np.asarray(served) % devices)


def test_total_is_the_sum_over_devices():
    layout = lay_out(4, 1, NUM_CLIENTS)
    sums = spread(
        lambda x: total(layout, {"x": x * device_index(layout).astype(x.dtype)}), layout, (False,), {"x": False}
    )
    assert float(jax.jit(sums)(jax.device_put(jnp.float32(2.0), layout.sharding()))["x"]) == 2.0 * (0 + 1 + 2 + 3)


def test_layouts():
    layout = lay_out(4, 3, NUM_CLIENTS)
    assert (layout.num_devices, layout.owned, layout.chunk_size, layout.window) == (
        4,
        2,
        2,
        8,
    )  # no chunk beyond the clients
    assert layout.mesh.axis_names == (AXIS,)
    assert lay_out(jax.devices()[2:3], None, NUM_CLIENTS).devices == (jax.devices()[2],)
    assert lay_out(None, None, NUM_CLIENTS).num_devices == 4
    small, large = (lay_out(1, None, 10_000, held) for held in (100, 10_000_000))
    assert small.chunk_size > large.chunk_size == 1
    judged = lay_out(1, None, 10_000, 10_000_000, 100)  # who is evaluated sends no message
    assert (judged.chunk_size, judged.for_evaluation().chunk_size) == (1, small.chunk_size)
    assert judged.for_evaluation().window == small.window
    assert lay_out(1, 3, 10_000, 10_000_000, 100).for_evaluation().chunk_size == 3  # as asked for
