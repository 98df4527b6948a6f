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
from fedjax_srp.rounds.sharding import Layout, Window, collect, place

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
    parts = {"scale": place(layout, data.scale), "offset": place(layout, data.offset)}
    for split in SPLITS:
        parts |= _split_by_owner(layout, data, split)
    return OwnedData(dataclasses.replace(data, **parts), data.num_clients)


def _split_by_owner(layout: Layout, data: FederatedData, split: str) -> dict[str, Array]:
    """Examples, labels, indices and counts of one split, client by client in the order of their owners."""
    x, y, indices, counts = (np.asarray(getattr(data, name)) for name in _names(split))
    is_real = np.arange(indices.shape[1]) < counts[:, None]
    clients = lambda device: slice(device, None, layout.num_devices)
    rows = [indices[clients(d)][is_real[clients(d)]] for d in range(layout.num_devices)]
    length = max(1, *(len(r) for r in rows))

    def by_owner(
        fill: Callable[[int, np.ndarray], Any], size: int, like: np.ndarray
    ) -> Array:
        """(size * num_devices, ...); `fill` writes each part (size, ...) of this process."""

        def part(index: Any) -> np.ndarray:
            made = np.zeros((size, *like.shape[1:]), like.dtype)
            fill((index[0].start or 0) // size, made)
            return made

        shape = size * layout.num_devices, *like.shape[1:]
        return jax.make_array_from_callback(
            shape, layout.sharding(by_client=True), part, dtype=like.dtype
        )

    def examples_of(values: np.ndarray) -> Callable[[int, np.ndarray], Any]:
        return lambda d, out: np.take(
            values, rows[d], 0, out[: len(rows[d])], mode="clip"
        )  # "raise" makes a copy

    def local_rows(device: int, out: np.ndarray) -> None:
        mine = is_real[clients(device)]
        out[: len(mine)][mine] = np.arange(len(rows[device]))

    def counts_of(device: int, out: np.ndarray) -> None:
        mine = counts[clients(device)]
        out[: len(mine)] = mine

    parts = (
        by_owner(examples_of(x), length, x),
        by_owner(examples_of(y), length, y),
        by_owner(local_rows, layout.owned, indices),
        by_owner(counts_of, layout.owned, counts),
    )
    return dict(zip(_names(split), parts, strict=True))


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
    flags = {name: True for split in SPLITS for name in _names(split)}
    affine = {
        name: jax.tree.map(lambda _: False, getattr(data.own, name))
        for name in ("scale", "offset")
    }
    return dataclasses.replace(data, own=dataclasses.replace(data.own, **flags, **affine))


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
    if not isinstance(
        data, OwnedData
    ):  # nothing moves, and shared arrays are not copied for each client
        return DataAccess(
            lambda window: (), lambda client_id, _: getattr(data, name)(client_id)
        )
    stored = jax.vmap(getattr(data.own.stored(), name))
    return DataAccess(
        lambda window: collect(layout, stored, window),
        lambda client_id, examples: examples._replace(x=data.own.model_input(examples.x)),
    )


def data_access_both(layout: Layout, data: Any) -> DataAccess:
    """Access to training and test data of clients, as pairs."""
    train, test = data_access(layout, data, "train"), data_access(layout, data, "test")
    return DataAccess(
        lambda window: (train.move(window), test.move(window)),
        lambda client_id, moved: (
            train.read(client_id, moved[0]),
            test.read(client_id, moved[1]),
        ),
    )
