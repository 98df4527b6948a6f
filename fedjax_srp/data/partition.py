"""Partitions of examples among clients: NumPy functions of labels, sizes and a seed that return index arrays.

Every function divides train and test examples together. No example goes to two clients,
every client gets at least one of each kind, and equal arguments give equal partitions.
`y_train` (n_train,) and `y_test` (n_test,) are labels, `num_clients` is M, and `seed` is
that of all draws. Partitions by class (`by_classes`, `shards`, `consecutive`,
`lognormal_classes` and `dirichlet`) test a client only on classes that it trains on; the others ignore classes.

Partitions by class first fill a matrix of counts (clients x classes, see `_counts`) and
then assign the examples of each class by a random permutation.
"""

from __future__ import annotations

import math
import warnings
import zlib
from collections.abc import Callable, Sequence
from typing import Annotated, NamedTuple

import numpy as np

from fedjax_srp.data._counts import (
    apportion,
    assign_classes,
    class_sizes,
    classes_in_both_splits,
    counts_from_shares,
    draw_examples,
    reserve_classes,
    shard_size,
    share_of,
    split,
)
from fedjax_srp.data.arrays import check_rows
from fedjax_srp.parts.checks import check_integer, checked
from fedjax_srp.parts.part import Above, AtLeast, Below, Count

DRAWS = 1000  # most draws of Dirichlet proportions until all clients have enough examples
Fraction = Annotated[float, Above(0), Below(1), "give a number between 0 and 1, e.g. 0.2"]


class Partition(NamedTuple):
    """Indices of every client's examples, in lists of num_clients ascending arrays."""

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
    """Give every client `classes_per_client` distinct classes and the same number of examples.

    Classes are cut into shards of one size; a client gets one shard of each of its
    classes. Every class has the same number of clients, up to one if num_clients *
    classes_per_client is not a multiple of the number of classes. The surplus of larger
    classes is not used, nor are classes without train or test examples.

    The `reserved_classes` largest labels go to the last clients only: a
    `reserved_fraction` of all clients, rounded up; None means 0.2. These clients get as
    many reserved classes as they can hold, and others to fill up. Each of the two kinds
    of classes is assigned evenly. Under a clock with `ordered=True` the last clients are
    the slowest (the rebuttal of SRPFL: classes reserved for the slowest 20 % of the
    clients).
    """
    classes = classes_in_both_splits(y_train, y_test, classes_per_client)
    (rng_classes,) = _generators(seed, "classes")
    # 0.07 * 100 is a little more than 7
    num_last = max(1, math.ceil(num_clients * (reserved_fraction or 0.2) - 1e-9))
    num_first = num_clients - num_last
    num_free = len(classes) - reserved_classes
    if reserved_classes:
        if num_free < classes_per_client or num_first < 1:
            raise ValueError(
                f"reserved_classes={reserved_classes} for the last {num_last} clients: "
                f"leaves {max(num_free, 0)} of {len(classes)} classes for the other "
                f"{num_first} clients, who need {classes_per_client} each; reserve fewer "
                "classes, or reserve them for fewer clients"
            )
        is_owner = reserve_classes(
            rng_classes, num_clients, classes_per_client, len(classes), num_last, num_free
        )
    elif reserved_fraction is not None:
        raise ValueError(
            f"reserved_fraction={reserved_fraction}: no classes are reserved for these "
            "clients; give reserved_classes too, or leave reserved_fraction out"
        )
    else:
        is_owner = assign_classes(
            rng_classes, num_clients, classes_per_client, len(classes)
        )
    return _draw_shards(y_train, y_test, classes, is_owner, seed)


@checked
def shards(
    y_train: np.ndarray,
    y_test: np.ndarray,
    num_clients: Count,
    shards_per_client: Count,
    seed: int = 0,
) -> Partition:
    """Give every client `shards_per_client` random shards of one class each, possibly several of the same class.

    This is the allocation of FedAvg's experiments (McMahan et al. 2017, section 3), and
    of the code of FedRep and SRPFL: with two shards from ten classes, a tenth of the
    clients has a single class. Shards have one size, and every class is cut into the same
    number of them, up to one, as in `by_classes`. The surplus of larger classes is not
    used. A client is tested on as many shards of a class as it trains on.
    """
    classes = classes_in_both_splits(y_train, y_test, 1)
    (rng_classes,) = _generators(seed, "classes")
    num_shards = num_clients * shards_per_client
    class_of_shard = np.resize(rng_classes.permutation(len(classes)), num_shards)
    owners = np.repeat(np.arange(num_clients), shards_per_client)
    counts = np.zeros((num_clients, len(classes)), np.int64)
    np.add.at(counts, (owners, rng_classes.permutation(class_of_shard)), 1)
    return _draw_shards(y_train, y_test, classes, counts, seed)


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
    """Give client u blocks of the same size of the classes u, u + 1, ..., u + C - 1 (mod K).

    This is the allocation of FEMNIST in SRPFL's experiments: 10 classes, 3 per client, 50
    images of each, 10 % of them for testing. Blocks are disjoint. (In the authors' code a
    wrong comparison gives all clients of a class the same images, and some are training
    images of one client and test images of another.) Training examples come from
    `y_train` and test examples from `y_test`. Classes without either are left out before
    the others are numbered 0..K-1. `examples_per_class` is the size of a block, training
    and test examples together; `test_fraction` of it, rounded, but at least one example,
    is for testing.
    """
    classes = classes_in_both_splits(y_train, y_test, classes_per_client)
    num_test = share_of(examples_per_class, test_fraction)
    # from a client's first class
    steps = np.arange(len(classes)) - np.arange(num_clients)[:, None]
    is_owner = steps % len(classes) < classes_per_client
    sizes = (examples_per_class - num_test, num_test)
    return _draw_shards(y_train, y_test, classes, is_owner, seed, sizes)


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
    """Draw class proportions p_i ~ Dirichlet(alpha) of every client, once for train and test.

    Client i gets the share p_ik / sum_j p_jk of class k, so all training examples are
    used and sizes differ a little; the test examples of a class are cut at the same
    fractions as its training examples, so a client is tested only on classes that it
    trains on. A client without examples gets one from the largest client. With small
    alpha clients are heterogeneous, with large alpha iid.

    Proportions are redrawn until the smallest client has `min_examples` training
    examples, as in the code of Li et al. 2022 ("Federated learning on non-IID data
    silos") and in PFLlib; after 1,000 draws this raises a ValueError.
    """
    classes, sizes_train = np.unique(y_train, return_counts=True)
    sizes_test = class_sizes(y_test, classes)
    _check_enough(num_clients, sizes_train.sum(), sizes_test.sum())
    rng_proportions, rng_train, rng_test = _generators(
        seed, "proportions", "train", "test"
    )
    concentrations = np.full(len(classes), float(alpha))
    smallest = 0
    for _ in range(DRAWS):
        proportions = rng_proportions.dirichlet(concentrations, num_clients)
        # tiny alpha underflows to nan or 0
        proportions = np.maximum(np.nan_to_num(proportions), 1e-200)
        shares = proportions / proportions.sum(axis=0)
        train, test = counts_from_shares(shares, sizes_train, sizes_test)
        smallest = train.sum(axis=1).min()
        if smallest >= min_examples:
            break
    else:
        raise ValueError(
            f"min_examples={min_examples}: each of {DRAWS} draws with alpha={alpha} gave "
            f"some of {num_clients} clients fewer, the last draw {smallest}; use a "
            "smaller min_examples, fewer clients or a larger alpha"
        )
    return Partition(
        draw_examples(rng_train, y_train, classes, train),
        draw_examples(rng_test, y_test, classes, test),
    )


@checked
def lognormal_sizes(
    y_train: np.ndarray,
    y_test: np.ndarray,
    num_clients: Count,
    sigma: Annotated[float, AtLeast(0), Below(math.inf)],
    seed: int = 0,
) -> Partition:
    """Divide examples iid, but unequally: client i gets a share proportional to exp(sigma * z_i), z_i ~ N(0, 1).

    Shares are drawn once for train and test, all examples are used, and each client gets
    at least one of each kind. Labels are only counted. With sigma = 0 sizes are equal up
    to one.
    """
    _check_enough(num_clients, len(y_train), len(y_test))
    rng_sizes, rng_train, rng_test = _generators(seed, "sizes", "train", "test")
    weights = _lognormal_weights(rng_sizes, sigma, num_clients)
    return Partition(
        split(rng_train.permutation(len(y_train)), apportion(len(y_train), weights)),
        split(rng_test.permutation(len(y_test)), apportion(len(y_test), weights)),
    )


@checked
def lognormal_classes(
    y_train: np.ndarray,
    y_test: np.ndarray,
    num_clients: Count,
    classes_per_client: Count,
    sigma: Annotated[float, AtLeast(0), Below(math.inf)],
    seed: int = 0,
    *,
    mean_examples: Count | None = None,
    min_examples: Count | None = None,
) -> Partition:
    """Give every client `classes_per_client` distinct classes and a log-normal number of examples.

    This is the allocation of FEMNIST in FedRep's experiments: 150 clients, 3 of 10
    letters each, 148 training examples on average, at least 50. Classes are assigned as
    in `by_classes`. Client i has a size proportional to exp(sigma * z_i), z_i ~ N(0, 1),
    the same number of each of its classes, rounded, and at least one. Test examples are
    the same share of the data set's as training examples, rounded down, and at least one
    of each class.

    `mean_examples` is the mean number of training examples, up to rounding; None takes
    the most that the scarcest class allows. Clients below `min_examples` are raised to
    it, or to the next multiple of `classes_per_client`, and the others have less.
    """
    if mean_examples is not None and mean_examples < (min_examples or 0):
        raise ValueError(
            f"mean_examples={mean_examples}: is less than min_examples={min_examples}; "
            "choose a larger mean_examples or a smaller min_examples"
        )
    classes = classes_in_both_splits(y_train, y_test, classes_per_client)
    rng_classes, rng_sizes, rng_train, rng_test = _generators(
        seed, "classes", "sizes", "train", "test"
    )
    is_owner = assign_classes(rng_classes, num_clients, classes_per_client, len(classes))
    weights = _lognormal_weights(rng_sizes, sigma, num_clients)
    sizes_train = class_sizes(y_train, classes)
    sizes_test = class_sizes(y_test, classes)
    wanted = math.inf if mean_examples is None else mean_examples
    least = max(1, math.ceil((min_examples or 0) / classes_per_client))  # of each class

    def counts(largest: float) -> np.ndarray:
        """Return numbers of training examples where the largest client has `largest`."""
        sizes = largest * weights
        per_class = np.maximum(np.rint(sizes / classes_per_client), least)
        return is_owner * per_class.astype(np.int64)[:, None]

    def fits(largest: float) -> bool:
        given = counts(largest)
        return bool((given.sum(axis=0) <= sizes_train).all())

    def is_allowed(largest: float) -> bool:
        return fits(largest) and counts(largest).sum() <= wanted * num_clients

    if not fits(0.0):
        raise ValueError(
            f"num_clients={num_clients}: with {classes_per_client} classes and "
            f"min_examples={min_examples} each, a class has too few training examples; use "
            "fewer clients or smaller ones"
        )
    train = counts(_largest_allowed(is_allowed, float(len(y_train))))
    mean = train.sum() / num_clients
    if mean_examples is not None and abs(mean - mean_examples) > classes_per_client:
        raise ValueError(
            f"mean_examples={mean_examples}: the scarcest class and min_examples="
            f"{min_examples} allow means near {mean:.0f}; choose one of them, fewer "
            "clients or a smaller sigma"
        )
    test = np.maximum(train * sizes_test // sizes_train, is_owner)
    scarce = test.sum(axis=0) > sizes_test
    if scarce.any():
        raise ValueError(
            f"num_clients={num_clients}: class {classes[np.argmax(scarce)]} has too few test "
            "examples for one of each client that has it; use fewer clients, or fewer "
            "classes per client"
        )
    return Partition(
        draw_examples(rng_train, y_train, classes, train),
        draw_examples(rng_test, y_test, classes, test),
    )


def _lognormal_weights(
    rng: np.random.Generator, sigma: float, num_clients: int
) -> np.ndarray:
    """Draw sizes of clients, relative to the largest."""
    logarithms = float(sigma) * rng.standard_normal(num_clients)
    return np.exp(logarithms - logarithms.max())


def _largest_allowed(is_allowed: Callable[[float], bool], high: float) -> float:
    """Return the largest number between 0, which is allowed, and `high` that is, by bisection."""
    low = 0.0
    for _ in range(64):
        middle = (low + high) / 2
        if is_allowed(middle):
            low = middle
        else:
            high = middle
    return low


@checked
def iid(
    y_train: np.ndarray, y_test: np.ndarray, num_clients: Count, seed: int = 0
) -> Partition:
    """Cut a random permutation of the examples into num_clients parts, equal up to one."""
    return lognormal_sizes(y_train, y_test, num_clients, 0.0, seed)


@checked
def natural(
    users_train: np.ndarray,
    users_test: np.ndarray,
    num_clients: Count | None = None,
    seed: int = 0,
) -> Partition:
    """Make each user a client, in ascending order of user id.

    Users without train or test examples are left out.

    A warning gives the number of users left out. User ids are numbers or strings.
    `num_clients` users are drawn at random, None keeps all.
    """
    users_train = np.asarray(users_train)
    users_test = np.asarray(users_test)
    have_both = bool(len(users_train) and len(users_test))
    kind_train = _kind_of(users_train)
    kind_test = _kind_of(users_test)
    if have_both and kind_train != kind_test:
        raise ValueError(
            f"users_test: are {kind_test}, users_train {kind_train}, which are never "
            "equal; give both as numbers or as text (np.char.decode converts bytes)"
        )
    is_float = np.result_type(users_train, users_test).kind == "f"
    is_rounded = is_float and users_train.dtype != users_test.dtype
    if is_rounded and (_has_large(users_train) or _has_large(users_test)):
        users_test = users_test.astype(object)
    users = np.intersect1d(users_train, users_test)
    if not len(users) and have_both:
        raise ValueError(
            f"users_test: no user of {users_test[0]!s:.40}, ... is among those of "
            f"training, {users_train[0]!s:.40}, ...: the data are split by user, as by "
            "LEAF's preprocess.sh -t user; split each user's examples (LEAF's -t "
            "sample), or take other clients for tests: srp.data.holdout_clients and "
            "srp.adapt"
        )
    if len(users) < (num_clients or 1):
        raise ValueError(
            f"num_clients={num_clients}: {len(users)} users have both train and test "
            "examples; use at most that many, or leave it out for all"
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
    """Limit each client to `max_examples` random examples, in the client's class proportions.

    A client of `by_classes` keeps the same number of each class (150 examples of five
    classes are 30 of each). No client loses a class if max_examples is at least its
    number of classes. `indices` has an array for each client, e.g. `Partition.train`;
    `labels` (n,) are all labels.
    """
    (rng,) = _generators(seed, "cap")
    labels = np.asarray(labels)
    capped = []
    for client, indices_of_client in enumerate(indices):
        rows = check_rows(f"indices[{client}]", indices_of_client, len(labels))
        if len(rows) <= max_examples:
            capped.append(rows)
            continue
        shuffled = rng.permutation(rows)
        classes, inverse, sizes = np.unique(
            labels[shuffled], return_inverse=True, return_counts=True
        )
        order = rng.permutation(len(classes))  # `apportion` breaks ties by order
        quota = np.empty_like(sizes)
        quota[order] = apportion(max_examples, sizes[order])
        by_class = np.argsort(inverse, kind="stable")
        # position within its class
        rank = np.arange(len(rows)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        capped.append(np.sort(shuffled[by_class[rank < np.repeat(quota, sizes)]]))
    return capped


def check_tested_classes(
    before: Partition,
    capped: Sequence[np.ndarray],
    y_train: np.ndarray,
    y_test: np.ndarray,
    max_examples: int,
) -> None:
    """Raise a ValueError of one line if a client is tested on a class that `cap_examples` removed."""
    for client, rows in enumerate(before.train):
        lost = np.setdiff1d(y_train[rows], y_train[capped[client]])
        if np.isin(lost, y_test[before.test[client]]).any():
            num_classes = max(len(np.unique(y_train[rows])) for rows in before.train)
            raise ValueError(
                f"max_examples={max_examples}: removes all training examples of a class "
                f"that client {client} is tested on; use {num_classes} or more, one for "
                "each class of a client"
            )


def _kind_of(users: np.ndarray) -> str:
    kind = users.dtype.kind
    if kind == "S" or (kind == "O" and any(isinstance(user, bytes) for user in users)):
        return "bytes"
    return "text" if kind in "OU" else "numbers"


def _has_large(users: np.ndarray) -> bool:
    """Return True if there are numbers from which floats skip integers."""
    return bool(np.any(np.abs(users) >= 2**53))


def _warn_of_left_out(
    users: np.ndarray, users_train: np.ndarray, users_test: np.ndarray
) -> None:
    reasons = []
    num_left_out = 0
    for kind, others in (("test", users_train), ("train", users_test)):
        num_lacking = len(np.setdiff1d(others, users))
        num_left_out += num_lacking
        if num_lacking:
            reasons.append(f"{num_lacking} have no {kind} examples")
    if reasons:
        warnings.warn(
            f"natural: {num_left_out} of {len(users) + num_left_out} users are left out: "
            f"{' and '.join(reasons)}; {len(users)} remain",
            stacklevel=8,
        )


def _group(users: np.ndarray, chosen: np.ndarray) -> list[np.ndarray]:
    """Return the rows of each chosen user; `chosen` is ascending."""
    rows = np.flatnonzero(np.isin(users, chosen))
    owners = np.searchsorted(chosen, users[rows])
    by_owner = rows[np.argsort(owners, kind="stable")]
    return split(by_owner, np.bincount(owners, minlength=len(chosen)))


def _generators(seed: int, *purposes: str) -> list[np.random.Generator]:
    """Return independent random generators, one for each purpose."""
    seed = check_integer("seed", seed, 0, maximum=None)
    names = [zlib.crc32(purpose.encode()) for purpose in purposes]
    return [np.random.default_rng([name, seed]) for name in names]


def _draw_shards(
    y_train: np.ndarray,
    y_test: np.ndarray,
    classes: np.ndarray,
    shards: np.ndarray,
    seed: int,
    sizes: tuple[int | None, int | None] = (None, None),
) -> Partition:
    """Draw the examples of each client's `shards`, (clients, classes), of these sizes or of the largest possible."""
    rng_train, rng_test = _generators(seed, "train", "test")
    train = shards * shard_size("train", y_train, classes, shards, sizes[0])
    test = shards * shard_size("test", y_test, classes, shards, sizes[1])
    return Partition(
        draw_examples(rng_train, y_train, classes, train),
        draw_examples(rng_test, y_test, classes, test),
    )


def _check_enough(num_clients: int, num_train: int, num_test: int) -> None:
    for kind, number in (("train", num_train), ("test", num_test)):
        if number < num_clients:
            raise ValueError(
                f"num_clients={num_clients}: there are {number} {kind} examples and "
                f"every client needs one; use at most {number} clients"
            )
