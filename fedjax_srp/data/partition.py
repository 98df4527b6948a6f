"""Ways of dividing examples among clients: NumPy functions of labels, sizes and a seed that return index arrays.

Every function divides train and test examples together. No example goes to two clients, every client gets at least one
of each kind, and equal arguments give equal partitions. `y_train` (n_train,) and `y_test` (n_test,) are labels,
`num_clients` is M, and `seed` draws the classes and examples of each client. With the functions by class (`by_classes`,
`shards`, `consecutive` and `dirichlet`) a client is tested only on classes that it trains on; the others ignore
classes.

The functions by class first fill a matrix of counts (clients x classes, see `_counts`) and then assign the examples of
each class by a random permutation.
"""

from __future__ import annotations

import math
import warnings
import zlib
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import numpy as np

from fedjax_srp._checks import check_integer, checked
from fedjax_srp.data._counts import (
    apportion,
    assign_classes,
    classes_in_both_splits,
    counts_from_shares,
    draw_examples,
    reserve_classes,
    shard_size,
    split,
)
from fedjax_srp.data.arrays import check_rows
from fedjax_srp.parts import Above, AtLeast, Below, Count

DRAWS = 1000  # of Dirichlet proportions, until all clients have enough examples
Fraction = Annotated[float, Above(0), Below(1), "give a number between 0 and 1, e.g. 0.2"]


class Partition(NamedTuple):
    """Indices of every client's examples, ascending: num_clients arrays each."""

    train: list[np.ndarray]
    test: list[np.ndarray]


@checked
def by_classes(
    y_train: np.ndarray,
    y_test: np.ndarray,
    num_clients: Count,
    classes_per_client: Count,
    seed: int = 0,
    *,
    reserved_classes: Annotated[int, AtLeast(0)] = 0,
    reserved_fraction: Fraction | None = None,
) -> Partition:
    """Every client gets `classes_per_client` distinct classes and the same number of examples.

    Classes are cut into shards of one common size; a client gets one shard of each of its classes. Every class is used
    equally often, up to one if num_clients * classes_per_client is no multiple of the number of classes. The rest of
    larger classes is not used. Classes without train or test examples are left out.

    With `reserved_classes`, the last classes are held by the last clients only, who hold as many of them as they can
    and fill up with others; both kinds of classes are assigned equally often among their holders. Under a clock with
    `ordered=True` the last clients are the slowest (the rebuttal of SRPFL: classes reserved for the slowest 20 % of the
    clients).

    `reserved_classes` counts the largest labels; the last clients are a `reserved_fraction` of all, rounded up, None
    for 0.2.
    """
    y_train, y_test = np.asarray(y_train), np.asarray(y_test)
    classes = classes_in_both_splits(y_train, y_test, classes_per_client)
    rng_classes, rng_train, rng_test = _generators(seed, "classes", "train", "test")
    num_last = max(1, math.ceil(num_clients * (reserved_fraction or 0.2) - 1e-9))  # 0.07 * 100 is a little more than 7
    num_free, num_first = len(classes) - reserved_classes, num_clients - num_last
    if reserved_classes:
        if num_free < classes_per_client or num_first < 1:
            raise ValueError(
                f"reserved_classes={reserved_classes} for the last {num_last} clients: leaves {max(num_free, 0)} of "
                f"{len(classes)} classes for the other {num_first} clients, who hold {classes_per_client} each; "
                "reserve fewer classes, or for fewer clients"
            )
        is_owner = reserve_classes(rng_classes, num_clients, classes_per_client, len(classes), num_last, num_free)
    elif reserved_fraction is not None:
        raise ValueError(
            f"reserved_fraction={reserved_fraction}: no classes are reserved for these clients; give reserved_classes "
            "too, or leave it out"
        )
    else:
        is_owner = assign_classes(rng_classes, num_clients, classes_per_client, len(classes))
    counts = is_owner.astype(np.int64)
    return Partition(
        draw_examples(rng_train, y_train, classes, counts * shard_size("train", y_train, classes, is_owner)),
        draw_examples(rng_test, y_test, classes, counts * shard_size("test", y_test, classes, is_owner)),
    )


@checked
def shards(
    y_train: np.ndarray, y_test: np.ndarray, num_clients: Count, shards_per_client: Count, seed: int = 0
) -> Partition:
    """Every client gets `shards_per_client` shards of one class each, dealt at random: classes may come twice.

    The allocation of FedAvg's experiments (McMahan et al. 2017, section 3), and of the code of FedRep and SRPFL: with
    two of ten classes a tenth of the clients holds a single one. Shards are of one size, and cut as in `by_classes`:
    every class into equally many, up to one. The rest of larger classes is not used. A client is tested on as many
    shards of a class as it trains on.
    """
    y_train, y_test = np.asarray(y_train), np.asarray(y_test)
    classes = classes_in_both_splits(y_train, y_test, 1)
    rng_classes, rng_train, rng_test = _generators(seed, "classes", "train", "test")
    in_turn = np.resize(rng_classes.permutation(len(classes)), num_clients * shards_per_client)
    dealt = rng_classes.permutation(in_turn).reshape(num_clients, shards_per_client)
    counts = np.zeros((num_clients, len(classes)), np.int64)
    np.add.at(counts, (np.arange(num_clients)[:, None], dealt), 1)
    return Partition(
        draw_examples(rng_train, y_train, classes, counts * shard_size("train", y_train, classes, counts)),
        draw_examples(rng_test, y_test, classes, counts * shard_size("test", y_test, classes, counts)),
    )


@checked
def consecutive(
    y_train: np.ndarray,
    y_test: np.ndarray,
    num_clients: Count,
    classes_per_client: Count = 3,
    examples_per_class: Annotated[int, AtLeast(2)] = 50,
    seed: int = 0,
    *,
    test_fraction: Fraction = 0.1,
) -> Partition:
    """Client u gets the classes u, u + 1, ..., u + C - 1 (mod K), and a block of the same size of each.

    The allocation of FEMNIST in SRPFL's experiments: 10 classes, 3 per client, 50 images of each, 10 % of them for
    testing. Blocks are disjoint. (In the authors' code a wrong comparison gives all clients of a class the same images,
    some of which one client trains on and another is tested on.) Training examples come from `y_train` and test
    examples from `y_test`. Classes without either are left out before the others are numbered 0..K-1.
    `examples_per_class` is the size of a block, training and test examples together; `test_fraction` of it, rounded, at
    least one example, is for testing.
    """
    y_train, y_test = np.asarray(y_train), np.asarray(y_test)
    classes = classes_in_both_splits(y_train, y_test, classes_per_client)
    num_test = min(max(1, round(examples_per_class * test_fraction)), examples_per_class - 1)
    num_train = examples_per_class - num_test
    is_owner = np.zeros((num_clients, len(classes)), dtype=bool)
    for step in range(classes_per_client):
        is_owner[np.arange(num_clients), (np.arange(num_clients) + step) % len(classes)] = True
    rng_train, rng_test = _generators(seed, "train", "test")
    for kind, labels, wanted in (("train", y_train, num_train), ("test", y_test, num_test)):
        shard_size(kind, labels, classes, is_owner, least=wanted)
    return Partition(
        draw_examples(rng_train, y_train, classes, num_train * is_owner.astype(np.int64)),
        draw_examples(rng_test, y_test, classes, num_test * is_owner.astype(np.int64)),
    )


@checked
def dirichlet(
    y_train: np.ndarray,
    y_test: np.ndarray,
    num_clients: Count,
    alpha: Annotated[float, Above(0), Below(math.inf)],
    seed: int = 0,
    *,
    min_examples: Count = 1,
) -> Partition:
    """Class proportions p_i ~ Dirichlet(alpha) of every client, drawn once for train and test.

    Client i gets the share p_ik / sum_j p_jk of class k, so all training examples are used and sizes differ a little;
    the test examples of a class are cut at the same fractions as its training examples, so a client is tested only on
    classes that it trains on. An empty client gets an example from the largest one. Small alpha is heterogeneous, large
    is iid.

    Proportions are drawn anew until the smallest client has `min_examples` training examples, as the code of Li et al.
    2022 ("Federated learning on non-IID data silos") and PFLlib; after 1,000 draws this raises.
    """
    y_train, y_test = np.asarray(y_train), np.asarray(y_test)
    classes, sizes_train = np.unique(y_train, return_counts=True)
    sizes_test = np.array([np.count_nonzero(y_test == label) for label in classes])
    _check_enough(num_clients, sizes_train.sum(), sizes_test.sum())
    rng_proportions, rng_train, rng_test = _generators(seed, "proportions", "train", "test")
    smallest = 0
    for _ in range(DRAWS):
        proportions = rng_proportions.dirichlet(np.full(len(classes), float(alpha)), num_clients)
        proportions = np.maximum(
            np.nan_to_num(proportions), 1e-200
        )  # tiny alpha underflows; undrawn classes are shared
        train, test = counts_from_shares(proportions / proportions.sum(axis=0), sizes_train, sizes_test)
        if (smallest := train.sum(axis=1).min()) >= min_examples:
            break
    else:
        raise ValueError(
            f"min_examples={min_examples}: none of {DRAWS} draws of alpha={alpha} gave each of {num_clients} clients "
            f"so many, the last one gave {smallest}; use fewer, fewer clients or a larger alpha"
        )
    return Partition(draw_examples(rng_train, y_train, classes, train), draw_examples(rng_test, y_test, classes, test))


@checked
def lognormal_sizes(
    y_train: np.ndarray,
    y_test: np.ndarray,
    num_clients: Count,
    sigma: Annotated[float, AtLeast(0), Below(math.inf)],
    seed: int = 0,
) -> Partition:
    """Iid classes, unequal sizes: client i holds a share proportional to exp(sigma * z_i), z_i ~ N(0, 1).

    Shares are drawn once for train and test, all examples are used, and each client has at least one of each. Only the
    number of labels matters. With sigma = 0 sizes are equal up to one.
    """
    _check_enough(num_clients, len(y_train), len(y_test))
    rng_sizes, rng_train, rng_test = _generators(seed, "sizes", "train", "test")
    log_weights = float(sigma) * rng_sizes.standard_normal(num_clients)
    weights = np.exp(log_weights - log_weights.max())
    return Partition(
        split(rng_train.permutation(len(y_train)), apportion(len(y_train), weights)),
        split(rng_test.permutation(len(y_test)), apportion(len(y_test), weights)),
    )


@checked
def iid(y_train: np.ndarray, y_test: np.ndarray, num_clients: Count, seed: int = 0) -> Partition:
    """A random permutation cut into num_clients parts, equal up to one."""
    return lognormal_sizes(y_train, y_test, num_clients, 0.0, seed)


@checked
def natural(
    users_train: np.ndarray, users_test: np.ndarray, num_clients: Count | None = None, seed: int = 0
) -> Partition:
    """One client per user, in ascending order of user id; users without train or test examples are left out.

    A warning gives their number. User ids are numbers or strings; `num_clients` of the users are chosen at random,
    None keeps all.
    """
    users_train, users_test = np.asarray(users_train), np.asarray(users_test)
    users = np.intersect1d(users_train, users_test)
    if len(users) < (num_clients or 1):
        raise ValueError(
            f"num_clients={num_clients}: {len(users)} users have both train and test examples; use at most that many, "
            "or None for all, and give both columns the same ids"
        )
    _warn_of_left_out(users, users_train, users_test)
    if num_clients is not None:
        (rng,) = _generators(seed, "users")
        users = np.sort(rng.choice(users, num_clients, replace=False))
    return Partition(_group(users_train, users), _group(users_test, users))


@checked
def cap_examples(
    indices: Sequence[np.ndarray], labels: np.ndarray, max_examples: Count, seed: int = 0
) -> list[np.ndarray]:
    """At most `max_examples` examples per client, in the client's class proportions.

    A client of `by_classes` keeps equally many of each class (150 of five classes are 30 of each), and no client loses
    a class while max_examples is at least its number of classes. `indices` has an array for each client, e.g.
    `Partition.train`, `labels` (n,) all labels.
    """
    (rng,) = _generators(seed, "cap")
    labels = np.asarray(labels)
    capped = []
    for client, given in enumerate(indices):
        rows = check_rows(f"indices[{client}]", given, len(labels))
        if len(rows) <= max_examples:
            capped.append(rows)
            continue
        shuffled = rng.permutation(rows)
        classes, inverse, sizes = np.unique(labels[shuffled], return_inverse=True, return_counts=True)
        order = rng.permutation(len(classes))  # ties of apportion go to a random class
        quota = np.empty_like(sizes)
        quota[order] = apportion(max_examples, sizes[order])
        by_class = np.argsort(inverse, kind="stable")
        rank = np.arange(len(rows)) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # position within its class
        capped.append(np.sort(shuffled[by_class[rank < np.repeat(quota, sizes)]]))
    return capped


def check_tested_classes(
    before: Partition, capped: Sequence[np.ndarray], y_train: np.ndarray, y_test: np.ndarray, max_examples: int
) -> None:
    """Raise a ValueError of one line if a client is tested on a class that `cap_examples` removed."""
    owned = [np.unique(y_train[rows]) for rows in before.train]
    for client, (classes, kept, tested) in enumerate(zip(owned, capped, before.test, strict=True)):
        lost = np.setdiff1d(classes, y_train[kept])
        if np.isin(lost, y_test[tested]).any():
            raise ValueError(
                f"max_examples={max_examples}: leaves client {client} no example of a class that it is tested on; use "
                f"{max(map(len, owned))} or more, one for each of a client's classes"
            )


def _warn_of_left_out(users: np.ndarray, users_train: np.ndarray, users_test: np.ndarray) -> None:
    lack_test, lack_train = np.setdiff1d(users_train, users), np.setdiff1d(users_test, users)
    if left_out := len(lack_test) + len(lack_train):
        why = [f"{len(some)} have no {what} examples" for some, what in ((lack_test, "test"), (lack_train, "train"))]
        reasons = " and ".join(reason for reason in why if not reason.startswith("0 "))
        warnings.warn(
            f"natural: {left_out} of {len(users) + left_out} users are left out: {reasons}; {len(users)} remain",
            stacklevel=8,
        )


def _group(users: np.ndarray, chosen: np.ndarray) -> list[np.ndarray]:
    """Rows of every chosen user; `chosen` is ascending."""
    rows = np.flatnonzero(np.isin(users, chosen))
    owners = np.searchsorted(chosen, users[rows])
    return split(rows[np.argsort(owners, kind="stable")], np.bincount(owners, minlength=len(chosen)))


def _generators(seed: int, *purposes: str) -> list[np.random.Generator]:
    """A random stream for each purpose, independent of the draws of the others."""
    seed = check_integer("seed", seed, 0, maximum=None)
    return [np.random.default_rng([zlib.crc32(purpose.encode()), seed]) for purpose in purposes]


def _check_enough(num_clients: int, num_train: int, num_test: int) -> None:
    for kind, number in (("train", num_train), ("test", num_test)):
        if number < num_clients:
            raise ValueError(
                f"num_clients={num_clients}: there are {number} {kind} examples and every client needs one; "
                f"use at most {number} clients"
            )
