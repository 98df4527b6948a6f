"""Clients over devices: owners of clients' states, and the transfer of states to the devices that train.

The whole simulation runs inside one `shard_map` over a mesh axis named `clients`. Client states are sharded by owner
(client i is on device i mod D); everything else is replicated, and every device computes the same. The work of a round
is spread by POSITION in the cohort, position p on device p mod D, so that a small cohort keeps every device busy.
Positions are assigned so that each device serves its own clients first (`owners_first`); `take` and `put` move the
states of the others. The devices may belong to several processes: the same program runs in each, and `place`
distributes arrays that every process holds.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fedjax_srp.base import Array, PyTree
from fedjax_srp.parts.checks import check_integer, is_key, short
from fedjax_srp.parts.pytrees import take as take_rows

AXIS = "clients"
Devices = Annotated[
    Sequence[Any] | int | None,
    "give some of jax.devices(), how many of them, or None for all",
]
CPU_CHUNK_BYTES = 2 * 2**20  # of a chunk: a core's cache
CHUNK_BYTES = 8 * 2**30  # of a chunk on an accelerator
CHUNK_SHARE = 1 / 8  # of an accelerator's memory, for a chunk at most


class Layout(NamedTuple):
    """Placement of clients on devices, and the chunks of each."""

    devices: tuple[Any, ...]  # of jax.Device
    chunk_size: int  # clients that train at once per device
    num_clients: int
    evaluation_chunk: int  # clients per device that are evaluated at once
    large_chunk: int = 0  # multiple of chunk_size, used while half as many clients of a cohort are left; 0: none

    @property
    def num_devices(self) -> int:
        """D, the length of the mesh axis."""
        return len(self.devices)

    @property
    def platform(self) -> str:
        """Platform of the devices: "cpu", "gpu" or "tpu"."""
        return self.devices[0].platform

    @property
    def owned(self) -> int:
        """Number of clients per device (the last of some devices may be padding)."""
        return -(-self.num_clients // self.num_devices)

    def owner(self, client_ids: Array) -> Array:
        """The devices that keep the states of clients.

        Clients with neighbouring ids are on different devices, and so are the fastest clients of a clock that numbers
        clients by speed.
        """
        return client_ids % self.num_devices

    def row(self, client_ids: Array) -> Array:
        """Rows of clients among those of their owners."""
        return client_ids // self.num_devices

    def by_id(self, by_owner: Any) -> Any:
        """An array (owned * num_devices, ...) in order of client id, padding last."""
        return self._swapped(by_owner, self.num_devices, self.owned)

    def by_owner(self, by_id: Any) -> Any:
        """Undo `by_id`."""
        return self._swapped(by_id, self.owned, self.num_devices)

    @staticmethod
    def _swapped(array: Any, *shape: int) -> Any:
        return array.reshape(*shape, *array.shape[1:]).swapaxes(0, 1).reshape(array.shape)

    @property
    def window(self) -> int:
        """Number of cohort positions that all devices serve at once, a chunk each."""
        return self.num_devices * self.chunk_size

    @property
    def mesh(self) -> Mesh:
        """One axis, `clients`."""
        return Mesh(np.array(self.devices), (AXIS,), axis_types=(AxisType.Auto,))

    @property
    def by_chunk_size(self) -> tuple[Layout, ...]:
        """A layout for each chunk size, the large one first."""
        small = self._replace(large_chunk=0)
        if self.large_chunk == 0:
            return (small,)
        return small._replace(chunk_size=self.large_chunk), small

    def for_evaluation(self) -> Layout:
        """The same devices with the evaluation's chunk."""
        return self._replace(chunk_size=self.evaluation_chunk, large_chunk=0)

    def sharding(self, by_client: bool = False, leading_axes: int = 0) -> NamedSharding:
        """Sharding by client after `leading_axes` unsharded axes, or replication."""
        spec = P(*[None] * leading_axes, AXIS) if by_client else P()
        return NamedSharding(self.mesh, spec)

    def shapes(
        self, tree: PyTree, by_client: bool = False, leading_axes: int = 0
    ) -> PyTree:
        """Shapes and placement of arrays on these devices, to compile for them; the devices need not exist."""
        sharding = self.sharding(by_client, leading_axes)

        def shape(leaf: Any) -> jax.ShapeDtypeStruct:
            weak = getattr(leaf, "weak_type", False)
            return jax.ShapeDtypeStruct(
                leaf.shape, leaf.dtype, sharding=sharding, weak_type=weak
            )

        return jax.tree.map(shape, tree)

    @property
    def shows_progress(self) -> bool:
        """True in the one process that shows progress."""
        return jax.process_index() == min(device.process_index for device in self.devices)


def lay_out(
    devices: Devices,
    chunk_size: int | None,
    num_clients: int,
    client_bytes: int = 0,  # of a client while it trains, for the default chunk
    judged_bytes: int = 0,  # of a client while it is evaluated
) -> Layout:
    """Check and complete the user's choice of devices and chunks."""
    devices = checked_devices(devices)
    each = -(-num_clients // len(devices))
    if chunk_size is not None:
        chunk = min(check_integer("chunk_size", chunk_size, 1), each)
        return Layout(devices, chunk, num_clients, chunk)
    budget = chunk_budget(devices)
    chunk, large, judged = default_chunks(
        devices[0].platform, budget, client_bytes, judged_bytes, each
    )
    return Layout(devices, chunk, num_clients, judged, large)


def checked_devices(devices: Devices) -> tuple[Any, ...]:
    """Check and complete the user's choice of devices."""
    if devices is None:
        devices = jax.devices()
    elif not isinstance(devices, Sequence | np.ndarray):
        available = jax.devices()
        wanted = check_integer("devices", devices, 1)
        if wanted > len(available):
            raise ValueError(
                f"devices={wanted} but {len(available)} are available; srp.use_all_cores() adds CPU cores"
            )
        devices = available[:wanted]
    are_devices = all(isinstance(device, jax.Device) for device in devices)
    if not are_devices or len(devices) == 0 or len({*devices}) < len(devices):
        raise ValueError(
            f"devices={short(devices)}: give some of jax.devices(), each once, how many of them, or None for all"
        )
    processes = {device.process_index for device in devices}
    if processes != {jax.process_index()} and len(processes) < jax.process_count():
        raise ValueError(
            f"devices belong to {len(processes)} of {jax.process_count()} processes: give None for the devices of all "
            "processes, or jax.local_devices() for a run of this process alone"
        )
    return tuple(devices)


def chunk_budget(devices: Sequence[Any]) -> int:
    """Bytes that the clients of a default chunk may take on a device; processes must have devices of equal memory.

    On an H200 a FedRep round of 1,000 clients was 1.3 times as fast in one chunk, of 4 to 8 GiB by this estimate, as in
    chunks of 384 and 128 (benchmarks/README.md).
    """
    if devices[0].platform == "cpu":
        return CPU_CHUNK_BYTES
    process = jax.process_index()
    local = next(device for device in devices if device.process_index == process)
    try:
        memory = (local.memory_stats() or {}).get("bytes_limit", math.inf)
    except jax.errors.JaxRuntimeError:  # a device that is only compiled for
        memory = math.inf
    return int(min(CHUNK_BYTES, CHUNK_SHARE * memory))


def default_chunks(
    platform: str, budget: int, client_bytes: int, judged_bytes: int, each: int
) -> tuple[int, int, int]:
    """Clients at once per device: in training, in training while many are left (0: no large chunk), in evaluation.

    A chunk is always computed whole, so it is small compared with the federation: a cohort of 10 must not cost as much
    as 1,000. It hides the overhead of small operations (16 clients on a CPU, 128 elsewhere), if the budget allows.
    Large chunks are for accelerators. Chunks divide the federation evenly there, and evaluations, which judge every
    client, use as few as the budget allows.
    """

    def at_once(of_client: int, at_most: int) -> int:
        return max(1, min(budget // max(of_client, 1), at_most, each))

    if platform == "cpu":
        few = max(16, each // 64)
        return at_once(client_bytes, few), 0, at_once(judged_bytes, few)
    chunk = _equal_chunk(each, at_once(client_bytes, max(128, each // 64)))
    large = at_once(client_bytes, chunk * -(-each // chunk)) // chunk * chunk
    judged = _equal_chunk(each, at_once(judged_bytes, each))
    if large <= chunk:
        large = 0
    return chunk, large, judged


def _equal_chunk(clients: int, chunk: int) -> int:
    """The smallest chunk that serves all clients in as many steps as `chunk`."""
    return -(-clients // -(-clients // chunk))


def device_index(layout: Layout) -> Array:
    """() int32: this device's position on the mesh axis."""
    if layout.num_devices == 1:
        return jnp.int32(0)
    return jax.lax.axis_index(AXIS)


def total(layout: Layout, tree: PyTree) -> PyTree:
    """Sum over the devices."""
    if layout.num_devices == 1:
        return tree
    return jax.lax.psum(tree, AXIS)


def as_bits(leaf: Array) -> Array:
    """A leaf as unsigned integers, so that -0.0 and the payload of a nan survive a sum."""
    if is_key(leaf):
        return as_bits(jax.random.key_data(leaf))
    if leaf.dtype == jnp.bool_:
        return leaf.astype(jnp.uint8)
    return jax.lax.bitcast_convert_type(leaf, jnp.dtype(f"uint{8 * leaf.dtype.itemsize}"))


def map_bits(move: Callable[[Array], Array], tree: PyTree) -> PyTree:
    """Apply a function that moves entries to the bits of every leaf."""

    def moved(leaf: Array) -> Array:
        bits = move(as_bits(leaf))
        if is_key(leaf):
            return jax.random.wrap_key_data(bits, impl=jax.random.key_impl(leaf))
        if leaf.dtype == jnp.bool_:
            return bits.astype(jnp.bool_)
        return jax.lax.bitcast_convert_type(bits, leaf.dtype)

    return jax.tree.map(moved, tree)


class Held(NamedTuple):
    """States of some of a device's clients: those of a round, where a file has the others (`driver.stored`)."""

    rows: PyTree  # leaves (held, ...)
    row_of: Array  # (owned,) int32: the row of each client; `held` for those whose states are not here


class Window(NamedTuple):
    """Cohort positions that all devices together serve at once; the same on every device."""

    client_ids: Array  # (window,) int32, position-major by device (`window_positions`)
    active: Array  # (window,) bool: not padding
    away: Array  # () bool: True if some clients are not served by their owner


def owners_first(
    layout: Layout, client_ids: Array, size: Array, *more: Array
) -> tuple[Array, ...]:
    """Order a cohort so that devices serve their own clients first, as long as each device has one.

    Returns:
        () int32, the number of leading positions that are served by their client's owner; `client_ids` and `more`,
        (pool,) each, reordered, with participants in front.
    """
    if layout.num_devices == 1:
        return size, client_ids, *more
    takes_part = jnp.arange(client_ids.shape[0], dtype=jnp.int32) < size
    owner = layout.owner(client_ids)
    num_devices = layout.num_devices
    # Padding belongs to no device.
    device = jnp.where(takes_part, owner, num_devices)
    of_device = jax.nn.one_hot(device, num_devices, dtype=bool)
    so_far = jnp.cumsum(of_device, 0, dtype=jnp.int32)
    # Among the participants of its owner.
    rank = jnp.sum(jnp.where(of_device, so_far - 1, 0), 1, dtype=jnp.int32)
    each = so_far[-1].min()
    num_at_home = num_devices * each
    at_home = of_device.any(1) & (rank < each)
    others = num_at_home + jnp.cumsum(~at_home, dtype=jnp.int32) - 1
    place = jnp.where(at_home, num_devices * rank + owner, others)
    ordered = [
        jnp.zeros_like(a).at[place].set(a, wrap_negative_indices=False)
        for a in (client_ids, *more)
    ]
    return num_at_home, *ordered


def take(layout: Layout, states: PyTree, window: Window) -> PyTree:
    """Fetch states: rows (chunk_size, ...) for this device's positions, from shards with leaves (owned, ...)."""
    return collect(layout, functools.partial(_rows, states), window)


def _rows(states: PyTree, rows: Array) -> PyTree:
    """The states of clients, by their rows among those of their owner."""
    if isinstance(states, Held):
        return _rows(states.rows, states.row_of[rows])
    return jax.tree.map(lambda leaf: take_rows(leaf, rows), states)


def collect(layout: Layout, read: Callable[[Array], PyTree], window: Window) -> PyTree:
    """Like `take`, for the result of `read` on rows of this device, whose leaves have one entry per row."""
    if layout.num_devices == 1:
        return read(window.client_ids)

    def exchange(bits: Array) -> Array:
        return jax.lax.psum_scatter(bits, AXIS, tiled=True)

    is_mine = layout.owner(window.client_ids) == device_index(layout)
    return jax.lax.cond(
        window.away,
        lambda rows: map_bits(_from_owners(is_mine, exchange), read(rows)),
        lambda rows: read(my_chunk(layout, rows)),
        jnp.where(is_mine, layout.row(window.client_ids), 0),
    )


def _from_owners(
    is_mine: Array, exchange: Callable[[Array], Array]
) -> Callable[[Array], Array]:
    """A sum over devices of the bits of rows of clients: each device adds its own rows and zeros."""

    def add(bits: Array) -> Array:
        keep = jnp.expand_dims(is_mine, tuple(range(1, bits.ndim)))
        return exchange(jnp.where(keep, bits, bits.dtype.type(0)))

    return add


def everywhere(layout: Layout, states: PyTree, client_ids: Array) -> PyTree:
    """Rows (len(client_ids), ...) of clients on every device, from shards with leaves (owned, ...)."""
    if layout.num_devices == 1:
        return _rows(states, client_ids)
    is_mine = layout.owner(client_ids) == device_index(layout)
    rows = jnp.where(is_mine, layout.row(client_ids), 0)
    add = _from_owners(is_mine, lambda bits: jax.lax.psum(bits, AXIS))
    return map_bits(add, _rows(states, rows))


def put(layout: Layout, states: PyTree, window: Window, rows: PyTree) -> PyTree:
    """Write back the rows (chunk_size, ...) of this device's active positions; other states stay unchanged."""
    is_mine = layout.owner(window.client_ids) == device_index(layout)
    # Out of range is dropped.
    target = jnp.where(
        is_mine & window.active, layout.row(window.client_ids), layout.owned
    )

    def exchange(bits: Array) -> Array:
        return jax.lax.all_gather(bits, AXIS, tiled=True)

    def in_window(bits: Array) -> Array:
        others = jnp.zeros((layout.window, *bits.shape[1:]), bits.dtype)
        first = device_index(layout) * layout.chunk_size
        return jax.lax.dynamic_update_slice_in_dim(
            others, bits, first, 0, allow_negative_indices=False
        )

    if layout.num_devices > 1:
        rows = jax.lax.cond(
            window.away,
            functools.partial(map_bits, exchange),
            functools.partial(map_bits, in_window),
            rows,
        )
    write = lambda leaf, new: leaf.at[target].set(
        new, mode="drop", wrap_negative_indices=False
    )
    if not isinstance(states, Held):
        return jax.tree.map(write, states, rows)
    nowhere = jax.tree.leaves(states.rows)[0].shape[0]
    target = states.row_of.at[target].get(mode="fill", fill_value=nowhere)
    return states._replace(rows=jax.tree.map(write, states.rows, rows))


def gather(layout: Layout, tree: PyTree) -> PyTree:
    """Leaves (owned * num_devices, ...) in order of client id on every device, from the (owned, ...) of each."""
    if layout.num_devices == 1:
        return tree
    by_owner = lambda leaf: jax.lax.all_gather(leaf, AXIS, tiled=True)
    return jax.tree.map(lambda leaf: layout.by_id(by_owner(leaf)), tree)


def window_positions(layout: Layout) -> Array:
    """(window,) int32 offsets into the cohort: device 0's chunk first, and device d serves d, d + D, d + 2D, ..."""
    offsets = jnp.arange(layout.window, dtype=jnp.int32)
    return offsets.reshape(layout.chunk_size, layout.num_devices).T.reshape(-1)


def my_chunk(layout: Layout, window: Array) -> Array:
    """This device's (chunk_size, ...) part of an array over the window."""
    if layout.num_devices == 1:
        return window
    first = device_index(layout) * layout.chunk_size
    return jax.lax.dynamic_slice_in_dim(
        window, first, layout.chunk_size, allow_negative_indices=False
    )


def spread(
    function: Callable[..., Any],
    layout: Layout,
    in_by_client: PyTree,
    out_by_client: PyTree,
) -> Callable[..., Any]:
    """`shard_map` over the clients axis, nothing on a single device; True marks arguments sharded by client."""
    if layout.num_devices == 1:
        return function
    spec = lambda by_client: P(AXIS) if by_client else P()
    return jax.shard_map(
        function,
        mesh=layout.mesh,
        in_specs=jax.tree.map(spec, in_by_client),
        out_specs=jax.tree.map(spec, out_by_client),
        check_vma=False,
    )


def place(layout: Layout, tree: PyTree) -> PyTree:
    """Put arrays on every device of the layout; several processes must all call it, with the same arrays."""
    sharding = layout.sharding()
    if sharding.is_fully_addressable:
        return jax.device_put(tree, sharding)

    def put_globally(leaf: Any) -> Array:
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            return leaf  # made by an earlier run
        if is_key(leaf):
            bits = np.asarray(jax.random.key_data(leaf))
            if (multihost_utils.process_allgather(bits) != bits).any():
                raise ValueError(
                    "key differs between the processes; give each the same jax.random.key(seed)"
                )
        return _from_host(leaf, sharding, lambda host: host)

    return jax.tree.map(put_globally, tree)


def place_clients(layout: Layout, tree: PyTree) -> PyTree:
    """Put the host's arrays (num_clients, ...) on the owners of the clients, as leaves (owned * num_devices, ...).

    Padding repeats the last client.
    """
    sharding = layout.sharding(by_client=True)

    def padded(host: np.ndarray) -> np.ndarray:
        padding = layout.owned * layout.num_devices - len(host)
        if padding > 0:
            host = np.concatenate([host, np.repeat(host[-1:], padding, 0)])
        return layout.by_owner(host)

    return jax.tree.map(lambda leaf: _from_host(leaf, sharding, padded), tree)


def _from_host(
    leaf: Any, sharding: NamedSharding, arranged: Callable[[np.ndarray], np.ndarray]
) -> Array:
    """Put an array of the host, or keys, on the devices of this process."""
    if is_key(leaf):
        bits = _from_host(jax.random.key_data(leaf), sharding, arranged)
        return jax.random.wrap_key_data(bits, impl=jax.random.key_impl(leaf))
    host = arranged(np.asarray(leaf))
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])
