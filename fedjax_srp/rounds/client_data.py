"""Examples sharded by client, for data that do not fit every device.

Device d keeps the examples of clients d, d + D, d + 2 D, ..., as a `FederatedData` of these clients. Examples of
clients that train on another device move there as stored (images as uint8), and then become the model's input.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_srp.base import Array, ClientData, Examples, FederatedSource, Predict, PyTree
from fedjax_srp.contract.messages import num_bytes
from fedjax_srp.data.federated import FederatedData
from fedjax_srp.rounds.sharding import Layout, Window, collect, place, place_clients

SPLITS = ("train", "test")


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class OwnedData:
    """`FederatedData` sharded by client; inside `shard_map`, `own` has this device's clients.

    Attributes:
        own: leaves by client, or by example, with a leading axis over devices; rows count from a device's first
            example. `scale` and `offset` are on every device.
        num_clients: in the whole federation.
    """

    own: FederatedData
    num_clients: int

    is_sharded: ClassVar[bool] = True  # see `train_client`

    @property
    def example_shape(self) -> tuple[int, ...]:
        """Shape of one input, as models take it without the batch axis."""
        return self.own.example_shape

    @property
    def num_classes(self) -> int:
        """Labels are 0..num_classes-1."""
        return self.own.num_classes

    def train_client(self, client_id: Array) -> Examples:
        """Raise a ValueError, since a device has only the examples of its own clients."""
        raise ValueError(
            "shard_data=True: `init` and `metrics` of the algorithm read the examples of clients, and no device has "
            "them all; leave out shard_data"
        )

    test_client = train_client

    def score(self, predict: Predict, test: Examples) -> tuple[Array, Array]:
        """See `FederatedData.score`."""
        return self.own.score(predict, test)


jax.tree_util.register_dataclass(
    OwnedData, data_fields=["own"], meta_fields=["num_clients"]
)


def place_data(layout: Layout, data: FederatedSource, shard_data: bool) -> Any:
    """Put data on the devices: all of it on each, or with `shard_data` the examples of a client on its owner."""
    if not shard_data or layout.num_devices == 1:
        return place(layout, data)
    if not isinstance(data, FederatedData):
        raise ValueError(
            f"shard_data=True with data of type {type(data).__name__}: only FederatedData is sharded by client; leave "
            "out shard_data, then every device holds the data"
        )
    fields = {"scale": place(layout, data.scale), "offset": place(layout, data.offset)}
    for split in SPLITS:
        fields |= _split_by_owner(layout, data, split)
    return OwnedData(dataclasses.replace(data, **fields), data.num_clients)


def _split_by_owner(layout: Layout, data: FederatedData, split: str) -> dict[str, Any]:
    """Examples, labels, indices and counts of one split, client by client in the order of their owners."""
    names = _names(split)
    x, y, indices, counts = (np.asarray(getattr(data, name)) for name in names)
    is_real = np.arange(indices.shape[1]) < counts[:, None]
    local_rows = np.zeros_like(indices)
    examples_of: list[np.ndarray] = []  # of each device, in the order of its rows
    for device in range(layout.num_devices):
        clients = slice(device, None, layout.num_devices)
        examples = indices[clients][is_real[clients]]
        local_rows[clients][is_real[clients]] = np.arange(len(examples))
        examples_of.append(examples)
    size = max(1, *map(len, examples_of))

    def by_owner(values: np.ndarray) -> Array:
        """(size * num_devices, ...): the examples of each device of this process, and zeros."""

        def part(index: Any) -> np.ndarray:
            rows = np.zeros((size, *values.shape[1:]), values.dtype)
            examples = examples_of[(index[0].start or 0) // size]
            # mode="raise" makes a copy.
            np.take(values, examples, 0, rows[: len(examples)], mode="clip")
            return rows

        return jax.make_array_from_callback(
            (size * layout.num_devices, *values.shape[1:]),
            layout.sharding(by_client=True),
            part,
            dtype=values.dtype,
        )

    by_client = place_clients(layout, (local_rows, counts))
    return dict(zip(names, (by_owner(x), by_owner(y), *by_client), strict=True))


def _names(split: str) -> tuple[str, ...]:
    return f"x_{split}", f"y_{split}", f"{split}_indices", f"{split}_counts"


def moved_bytes(data: FederatedSource, shard_data: bool) -> int:
    """Bytes of a client's training and test examples that move between devices; 0 if none do."""
    if not shard_data or not isinstance(data, FederatedData):
        return 0

    def stored(data: FederatedData) -> tuple[Examples, Examples]:
        client = jnp.int32(0)
        return data.stored().train_client(client), data.stored().test_client(client)

    return num_bytes(jax.eval_shape(stored, data))


def is_by_client(data: PyTree) -> PyTree:
    """Flags for `spread`: True for the leaves of placed data that are sharded by client."""
    if not isinstance(data, OwnedData):
        return False
    flags: dict[str, Any] = {}
    for name in ("scale", "offset"):
        flags[name] = jax.tree.map(lambda _: False, getattr(data.own, name))
    for split in SPLITS:
        flags |= dict.fromkeys(_names(split), True)
    return dataclasses.replace(data, own=dataclasses.replace(data.own, **flags))


def owned_client(layout: Layout, data: Any, client_id: Array) -> ClientData:
    """Training data of a client that this device owns."""
    if not isinstance(data, OwnedData):
        return data.train_client(client_id)
    return data.own.train_client(layout.row(client_id))


class DataAccess(NamedTuple):
    """Access to clients' data: `move` those of a window between devices, then `read` each client from its row."""

    move: Callable[[Window], PyTree]  # -> leaves (chunk_size, ...)
    read: Callable[[Array, PyTree], ClientData]  # () id and its moved row -> data


def data_access(layout: Layout, data: Any, split: str) -> DataAccess:
    """Access to the "train" or "test" data of clients, in the device's shard of `place_data`'s result."""
    name = f"{split}_client"
    if not isinstance(data, OwnedData):
        # Nothing moves, and shared arrays are not copied for each client.
        read_client = getattr(data, name)
        return DataAccess(lambda window: (), lambda client_id, _: read_client(client_id))
    stored = jax.vmap(getattr(data.own.stored(), name))

    def move(window: Window) -> Examples:
        return collect(layout, stored, window)

    def read(client_id: Array, examples: Examples) -> Examples:
        return examples._replace(x=data.own.model_input(examples.x))

    return DataAccess(move, read)


def data_access_both(layout: Layout, data: Any) -> DataAccess:
    """Access to training and test data of clients, as pairs."""
    both = [data_access(layout, data, split) for split in SPLITS]

    def move(window: Window) -> list[PyTree]:
        return [access.move(window) for access in both]

    def read(client_id: Array, moved: list[PyTree]) -> tuple[ClientData, ...]:
        pairs = zip(both, moved, strict=True)
        return tuple(access.read(client_id, examples) for access, examples in pairs)

    return DataAccess(move, read)
