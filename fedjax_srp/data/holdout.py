"""Held-out data: a share of each client's training examples for tuning, or some of the clients for adaptation."""

from __future__ import annotations

import dataclasses
import warnings
import zlib
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np

from fedjax_srp.data._counts import share_of
from fedjax_srp.data.arrays import pad
from fedjax_srp.data.federated import FederatedData
from fedjax_srp.data.partition import Fraction
from fedjax_srp.parts.checks import ArgumentError, check_integer, check_known
from fedjax_srp.parts.description import records_arguments
from fedjax_srp.parts.part import AtLeast, Count


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
    fraction: Fraction | None = None,
    seed: Annotated[int, AtLeast(0)] = 0,
    number: Count | None = None,
    clients: Sequence[int | str] | None = None,
) -> FederatedData:
    """Return the federation without some of its clients, or only those: new clients for `srp.adapt`.

    Give one of `fraction`, `number` and `clients`; without any, a fifth of the clients is held out.

    Args:
        data: as from `load` or `from_arrays`.
        part: "train" for the clients to train on, "held_out" for the others; clients keep
            their order, and their training and test examples.
        fraction: of the clients to hold out, drawn at random; the number is rounded, with
            at least one client in each part.
        seed: of the draw. A larger fraction or number holds out the same clients and
            more.
        number: of clients to hold out, drawn at random.
        clients: to hold out, their ids, or names of `data.client_names`.

    Example:
        >>> import fedjax_srp as srp
        >>> data = srp.data.load("digits", num_clients=20, classes_per_client=5)
        >>> train, new = (srp.data.holdout_clients(data, part) for part in ("train", "held_out"))
        >>> train.num_clients, new.num_clients
        (16, 4)
    """
    given = {"fraction": fraction, "number": number, "clients": clients}
    chosen = [name for name, value in given.items() if value is not None]
    if len(chosen) > 1:
        raise ValueError(f"{' and '.join(chosen)}: give one of them")
    if data.num_clients == 1:
        raise ValueError(
            "data: has a single client, so none can be held out; load more clients"
        )
    if clients is not None:
        held = _ids_of(data, clients)
    else:
        size = share_of(data.num_clients, 0.2 if fraction is None else fraction)
        if number is not None:
            size = check_integer("number", number, 1, data.num_clients - 1)
        rng = np.random.default_rng([zlib.crc32(b"holdout_clients"), seed])
        held = rng.permutation(data.num_clients)[:size]
    is_held = np.zeros(data.num_clients, bool)
    is_held[held] = True
    members = np.flatnonzero(is_held == (part == "held_out"))
    fields = ("train_indices", "train_counts", "test_indices", "test_counts")
    parts: dict[str, Any] = {name: getattr(data, name)[members] for name in fields}
    if data.client_names is not None:
        parts["client_names"] = tuple(data.client_names[client] for client in members)
    return dataclasses.replace(data, **parts)


def _ids_of(data: FederatedData, clients: Sequence[int | str]) -> list[int]:
    """The ids of clients that are given by ids or names; at least one, and not all."""
    names = list(data.client_names or ())
    ids = []
    for place, client in enumerate(clients):
        argument = f"clients[{place}]"
        if isinstance(client, str):
            check_known("client", [client], names, of="data.client_names")
            ids.append(names.index(client))
        else:
            ids.append(check_integer(argument, client, 0, data.num_clients - 1))
    if not 0 < len({*ids}) < data.num_clients:
        problem = f"has {len({*ids})} of {data.num_clients} clients"
        remedy = "leave at least one client in each part"
        raise ArgumentError("clients", clients, problem, remedy)
    return ids
