"""Held-out data: a share of each client's training examples for tuning, or some of the clients for adaptation."""

from __future__ import annotations

import dataclasses
import warnings
import zlib
from typing import Annotated, Any, Literal

import numpy as np

from fedjax_srp.data._counts import share_of
from fedjax_srp.data.arrays import pad
from fedjax_srp.data.federated import FederatedData
from fedjax_srp.data.partition import Fraction
from fedjax_srp.parts.description import records_arguments
from fedjax_srp.parts.part import AtLeast


@records_arguments
def holdout(
    data: FederatedData, fraction: Fraction = 0.2, seed: Annotated[int, AtLeast(0)] = 0
) -> FederatedData:
    """Test clients on a random share of their own training examples, and train them on the rest.

    This is for tuning: the test data of `data` are not used. `load(..., validation=0.2)`,
    `fedjax-srp run --validation 0.2` and the option `validation` of a grid do this on
    loading.

    Args:
        data: as from `load` or `from_arrays`.
        fraction: of each client's training examples, between 0 and 1; the number is
            rounded, with at least one example held out and at least one kept. Classes
            play no role.
        seed: of the draw. A client's held-out examples depend only on the seed, its id
            and its count, and a larger fraction holds out the same examples and more.

    Returns:
        The data, whose `x_test` is `x_train` itself. A client with a single training
        example keeps it, has no test examples, and is left out of means; a warning gives
        the number of such clients.

    Example:
        >>> import fedjax_srp as srp
        >>> data = srp.data.load("digits", num_clients=20, classes_per_client=5)
        >>> tuning = srp.data.holdout(data)
        >>> int(data.train_counts[0]), int(tuning.train_counts[0]), int(tuning.test_counts[0])
        (60, 48, 12)
    """
    counts = np.asarray(data.train_counts)
    sizes = np.array([share_of(count, fraction) for count in counts.tolist()])
    if not sizes.any():
        raise ValueError(
            "data: no client has two training examples, so none can be held out; give "
            "clients more data"
        )
    num_single = np.count_nonzero(sizes == 0)
    if num_single:
        warnings.warn(
            f"validation: {num_single} of {len(counts)} clients have a single training "
            "example and hold out none; means leave these clients out",
            stacklevel=4,
        )
    kept = []
    held = []
    for client, (rows, count, size) in enumerate(
        zip(np.asarray(data.train_indices), counts, sizes, strict=True)
    ):
        rng = np.random.default_rng([zlib.crc32(b"holdout"), seed, client])
        is_held = np.zeros(count, bool)
        is_held[rng.permutation(count)[:size]] = True
        kept.append(rows[:count][~is_held])
        held.append(rows[:count][is_held])
    train_indices, train_counts = pad(kept)
    test_indices, test_counts = pad(held)
    return dataclasses.replace(
        data,
        x_test=data.x_train,
        y_test=data.y_train,
        train_indices=train_indices,
        train_counts=train_counts,
        test_indices=test_indices,
        test_counts=test_counts,
    )


@records_arguments
def holdout_clients(
    data: FederatedData,
    part: Literal["train", "held_out"] = "train",
    fraction: Fraction = 0.2,
    seed: Annotated[int, AtLeast(0)] = 0,
) -> FederatedData:
    """Return the federation without a random share of its clients, or only those: new clients for `srp.adapt`.

    Args:
        data: as from `load` or `from_arrays`.
        part: "train" for the clients to train on, "held_out" for the others; clients keep
            their order, and their training and test examples.
        fraction: of the clients to hold out; the number is rounded, with at least one
            client in each part.
        seed: of the draw. A larger fraction holds out the same clients and more.

    Example:
        >>> import fedjax_srp as srp
        >>> data = srp.data.load("digits", num_clients=20, classes_per_client=5)
        >>> train, new = (srp.data.holdout_clients(data, part) for part in ("train", "held_out"))
        >>> train.num_clients, new.num_clients
        (16, 4)
    """
    size = share_of(data.num_clients, fraction)
    if size < 1:
        raise ValueError(
            "data: has a single client, so none can be held out; load more clients"
        )
    rng = np.random.default_rng([zlib.crc32(b"holdout_clients"), seed])
    held, kept = np.split(rng.permutation(data.num_clients), [size])
    clients = np.sort(held if part == "held_out" else kept)
    fields = ("train_indices", "train_counts", "test_indices", "test_counts")
    parts: dict[str, Any] = {name: getattr(data, name)[clients] for name in fields}
    if data.client_names is not None:
        parts["client_names"] = tuple(data.client_names[client] for client in clients)
    return dataclasses.replace(data, **parts)
