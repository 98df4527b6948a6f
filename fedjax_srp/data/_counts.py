"""Numbers of examples per client and class, as matrices (clients, classes), and their random assignment."""

from __future__ import annotations

import numpy as np


def share_of(count: int, fraction: float) -> int:
    """Return a fraction of `count`, rounded, but at least one and at most all but one."""
    return min(max(1, round(fraction * count)), count - 1)


def apportion(total: int, weights: np.ndarray) -> np.ndarray:
    """Split `total` into integers proportional to weights (largest remainders), all positive if total >= len(weights).

    Weights (n,) are not negative and have a positive sum; the result is (n,) int64.
    """
    exact = total * (weights / np.sum(weights))
    parts = np.floor(exact).astype(np.int64)
    # ascending -remainder: ties to the first
    largest = np.argsort(parts - exact, kind="stable")
    parts[largest[: total - parts.sum()]] += 1
    if total >= len(parts):
        for empty in np.flatnonzero(parts == 0):
            parts[np.argmax(parts)] -= 1
            parts[empty] = 1
    return parts


def assign_classes(
    rng: np.random.Generator, num_clients: int, classes_per_client: int, num_classes: int
) -> np.ndarray:
    """Draw each client's classes: (clients, classes) bool, `classes_per_client` per row, equal column sums up to one.

    Clients in turn draw classes without replacement, with probability proportional to
    r_k, the number of times that class k is still to be assigned. If r_k equals the
    number of clients left, class k is forced: each of them gets it. Assigning forced
    classes first always succeeds: from r_k <= clients left and sum_k r_k = C * clients
    left, at most C classes are forced and at least C have r_k > 0.
    """
    least, rest = divmod(num_clients * classes_per_client, num_classes)
    remaining = np.full(num_classes, least)
    remaining[rng.permutation(num_classes)[:rest]] += 1
    is_owner = np.zeros((num_clients, num_classes), dtype=bool)
    for num_done, client in enumerate(rng.permutation(num_clients)):
        is_forced = remaining == num_clients - num_done
        num_drawn = classes_per_client - np.count_nonzero(is_forced)
        is_owner[client, is_forced] = True
        if num_drawn:
            weights = np.where(is_forced, 0, remaining)
            shares = weights / weights.sum()
            drawn = rng.choice(num_classes, num_drawn, replace=False, p=shares)
            is_owner[client, drawn] = True
        remaining -= is_owner[client]
    return is_owner


def reserve_classes(
    rng: np.random.Generator,
    num_clients: int,
    classes_per_client: int,
    num_classes: int,
    num_last: int,
    num_free: int,
) -> np.ndarray:
    """Draw classes like `assign_classes`, but give the classes from num_free on to the last clients only."""
    num_reserved = num_classes - num_free
    # reserved classes of each of the last clients
    num_own = min(classes_per_client, num_reserved)
    is_owner = np.zeros((num_clients, num_classes), dtype=bool)
    is_owner[:-num_last, :num_free] = assign_classes(
        rng, num_clients - num_last, classes_per_client, num_free
    )
    is_owner[-num_last:, :num_free] = assign_classes(
        rng, num_last, classes_per_client - num_own, num_free
    )
    is_owner[-num_last:, num_free:] = assign_classes(rng, num_last, num_own, num_reserved)
    return is_owner


def classes_in_both_splits(
    y_train: np.ndarray, y_test: np.ndarray, classes_per_client: int
) -> np.ndarray:
    """Return the classes that have train and test examples, ascending."""
    classes = np.intersect1d(y_train, y_test)
    if classes_per_client > len(classes):
        raise ValueError(
            f"classes_per_client={classes_per_client}: only {len(classes)} classes have "
            f"train and test examples; use at most {len(classes)}"
        )
    return classes


def class_sizes(labels: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return the number of examples of each class."""
    labels = np.asarray(labels)
    return np.array([np.count_nonzero(labels == label) for label in classes])


def shard_size(
    kind: str,
    labels: np.ndarray,
    classes: np.ndarray,
    shards: np.ndarray,
    wanted: int | None,
) -> int:
    """Return the wanted or largest size for which every class can fill all of its `shards`, (clients, classes)."""
    num_shards = shards.sum(axis=0)
    least = wanted or 1
    sizes = class_sizes(labels, classes)
    per_shard = np.where(num_shards > 0, sizes // np.maximum(num_shards, 1), len(labels))
    scarce = np.argmin(per_shard)
    if per_shard[scarce] < least:
        raise ValueError(
            f"num_clients={len(shards)}: class {classes[scarce]} has {sizes[scarce]} "
            f"{kind} examples for {num_shards[scarce]} shards of {least} or more; use "
            "fewer clients, or fewer classes, shards or examples per client"
        )
    return wanted or int(per_shard[scarce])


def counts_from_shares(
    shares: np.ndarray, sizes_train: np.ndarray, sizes_test: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return numbers of train and test examples for shares whose columns sum to 1, all (clients, classes)."""
    ends = np.rint(np.cumsum(shares, axis=0) * sizes_train).astype(np.int64)
    ends[-1] = sizes_train
    train = np.diff(ends, axis=0, prepend=0)
    for client in np.flatnonzero(train.sum(axis=1) == 0):
        donor = np.argmax(train.sum(axis=1))
        label = np.argmax(np.where(train[donor] > 0, shares[client], -1.0))
        _move(train, donor, client, label)
    # Scale train positions to the test pool: a client without train examples of a class gets no test examples of it.
    ends_test = np.cumsum(train, axis=0) * sizes_test // sizes_train
    test = np.diff(ends_test, axis=0, prepend=0)
    for client in np.flatnonzero(test.sum(axis=1) == 0):
        is_donor = test.sum(axis=1) >= 2
        has_spare = (train[client] > 0) & (test[is_donor].max(axis=0) > 0)
        if has_spare.any():
            label = np.argmax(np.where(has_spare, train[client], -1))
            donor = np.argmax(np.where(is_donor, test[:, label], -1))
            _move(test, donor, client, label)
            continue
        # No client can spare a test example of this client's classes: move examples of another class to it.
        candidates = np.where(is_donor[:, None] & (test > 0), train, -1)
        donor, label = np.unravel_index(np.argmax(candidates), train.shape)
        if train[donor, label] < 2:
            raise ValueError(
                f"num_clients={len(train)}: too few examples for client {client} to "
                "train and be tested on one class; use fewer clients or a larger alpha"
            )
        _move(test, donor, client, label)
        _move(train, donor, client, label)
    return train, test


def _move(
    counts: np.ndarray, donor: int | np.intp, client: int | np.intp, label: int | np.intp
) -> None:
    counts[donor, label] -= 1
    counts[client, label] += 1


def draw_examples(
    rng: np.random.Generator, labels: np.ndarray, classes: np.ndarray, counts: np.ndarray
) -> list[np.ndarray]:
    """Draw each client's examples: `counts[i, k]` of class `classes[k]` for client i, none twice."""
    labels = np.asarray(labels)
    clients = np.arange(len(counts))
    rows = []
    owners = []
    for label, column in zip(classes, counts.T, strict=True):
        rows.append(rng.permutation(np.flatnonzero(labels == label))[: column.sum()])
        owners.append(np.repeat(clients, column))
    by_owner = np.argsort(np.concatenate(owners), kind="stable")
    return split(np.concatenate(rows)[by_owner], counts.sum(axis=1))


def split(rows: np.ndarray, sizes: np.ndarray) -> list[np.ndarray]:
    """Cut rows into consecutive parts of these sizes, each sorted."""
    return [np.sort(part) for part in np.split(rows, np.cumsum(sizes)[:-1])]
