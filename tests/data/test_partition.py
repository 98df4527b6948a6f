"""Properties of all partitions, and of each one."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from reference.small import refused

from fedjax_srp.data import partition

settings = hypothesis.settings(max_examples=30, deadline=None, derandomize=True)


def labels(num_classes, per_class, seed):
    """Labels in random order with `per_class` to twice as many examples of every class."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(per_class, 2 * per_class + 1, num_classes)
    return rng.permutation(np.repeat(np.arange(num_classes), sizes))


def is_equal(one, other):
    pairs = zip(one.train + one.test, other.train + other.test, strict=True)
    return all(np.array_equal(rows, others) for rows, others in pairs)


def divided(function, train, test, num_clients, *options, **more):
    """Return a partition of labels or users, after checking that it is reproducible and valid."""
    split = function(train, test, num_clients, *options, **more)
    assert is_equal(split, function(train, test, num_clients, *options, **more))
    for rows, column in ((split.train, train), (split.test, test)):
        assert len(rows) == (num_clients or len(rows))
        assert all(len(client) > 0 for client in rows)
        everything = np.concatenate(rows)
        assert len(np.unique(everything)) == len(everything), "an example in two clients"
        assert 0 <= everything.min() <= everything.max() < len(column)
    return split


def class_counts(y, rows):
    return np.stack([np.bincount(y[client], minlength=y.max() + 1) for client in rows])


def holders(split, y_train, y_test, classes_per_client):
    """Return (clients, classes) bool, the classes of clients; check their number, sizes and tests."""
    train, test = class_counts(y_train, split.train), class_counts(y_test, split.test)
    held = train > 0
    np.testing.assert_array_equal(held, test > 0)
    assert (held.sum(axis=1) == classes_per_client).all()
    assert len(set(train[held])) == len(set(test[held])) == 1, (
        "as many of every class, for every client"
    )
    return held


@settings
@hypothesis.given(
    num_clients=st.integers(2, 40),
    num_classes=st.integers(5, 12),
    wanted=st.integers(1, 12),
    reserved=st.integers(0, 4),
    fraction=st.sampled_from([0.1, 0.2, 0.5]),
    seed=st.integers(0, 10**6),
)
def test_by_classes(num_clients, num_classes, wanted, reserved, fraction, seed):
    free = num_classes - reserved
    each = min(wanted, free)
    y_train = labels(num_classes, 80, seed)
    y_test = labels(num_classes, 80, seed + 1)
    options = {}
    if reserved:
        options = {"reserved_classes": reserved, "reserved_fraction": fraction}
    split = divided(
        partition.by_classes, y_train, y_test, num_clients, each, seed, **options
    )
    held = holders(split, y_train, y_test, each)
    assert np.ptp(held[:, :free].sum(axis=0)) <= 1 + bool(reserved), "equally often"
    if reserved:
        first = num_clients - int(np.ceil(fraction * num_clients - 1e-9))
        assert not held[:first, free:].any()
        assert (held[first:, free:].sum(axis=1) == min(reserved, each)).all()
        assert np.ptp(held[:, free:].sum(axis=0)) <= 1


def test_by_classes_uses_everything_where_it_divides():
    y_train, y_test = np.repeat(np.arange(10), 500), np.repeat(np.arange(10), 100)
    split = partition.by_classes(y_train, y_test, 100, 5)
    assert sum(map(len, split.train)) == 5000
    assert sum(map(len, split.test)) == 1000


@settings
@hypothesis.given(
    num_clients=st.integers(1, 40),
    num_classes=st.integers(1, 12),
    wanted=st.integers(1, 6),
    seed=st.integers(0, 10**6),
)
def test_shards(num_clients, num_classes, wanted, seed):
    y_train, y_test = labels(num_classes, 250, seed), labels(num_classes, 240, seed + 1)
    split = divided(partition.shards, y_train, y_test, num_clients, wanted, seed)
    held = class_counts(y_train, split.train)
    tested = class_counts(y_test, split.test)
    shard = held.sum(axis=1) // wanted
    assert len(set(held.sum(axis=1))) == len(set(tested.sum(axis=1))) == 1
    np.testing.assert_array_equal(held % shard[0], 0)
    np.testing.assert_array_equal(
        held // shard[0], tested / (tested.sum(axis=1)[0] / wanted)
    )
    assert np.ptp(held.sum(axis=0) // shard[0]) <= 1, "every class equally often"


def test_shards_are_dealt_regardless_of_their_classes():
    """1,000 clients with two of 2,000 shards, 200 of each of ten classes: 199 of 1,999 get the same class twice."""
    y = np.repeat(np.arange(10), 200)
    clients = partition.shards(y, y, 1000, 2, seed=1).train
    same = sum(len(np.unique(y[rows])) == 1 for rows in clients)
    expected = 1000 * 199 / 1999
    assert abs(same - expected) < 4 * np.sqrt(expected)


def test_by_classes_is_random_and_unbiased():
    """Every pair of classes meets in clients about equally often: 400 clients x 2 of 4 classes, 6 pairs."""
    y = np.repeat(np.arange(4), 400)
    split = partition.by_classes(y, y, 400, 2, seed=3)
    pairs = [tuple(np.unique(y[rows])) for rows in split.train]
    _, counts = np.unique(pairs, axis=0, return_counts=True)
    assert len(counts) == 6
    expected = 400 / 6
    assert np.abs(counts - expected).max() < 4 * np.sqrt(expected * 5 / 6)
    assert pairs[6:12] != pairs[:6], "no period, as a round-robin would have"
    assert not is_equal(split, partition.by_classes(y, y, 400, 2, seed=4))


def test_by_classes_leaves_out_classes_without_tests():
    y_train, y_test = np.repeat([0, 1, 2], 20), np.repeat([0, 2], 10)
    split = partition.by_classes(y_train, y_test, 5, 2)
    assert all(set(y_train[rows]) == {0, 2} for rows in split.train)


@settings
@hypothesis.given(
    num_clients=st.integers(1, 60),
    alpha=st.sampled_from([1e-9, 0.01, 0.3, 1.0, 100.0]),
    seed=st.integers(0, 10**6),
)
def test_dirichlet(num_clients, alpha, seed):
    y_train, y_test = labels(7, 60, seed), labels(7, 25, seed + 1)
    split = divided(partition.dirichlet, y_train, y_test, num_clients, alpha, seed)
    assert sum(map(len, split.train)) == len(y_train)
    assert sum(map(len, split.test)) == len(y_test)
    assert (class_counts(y_train, split.train) > 0)[
        class_counts(y_test, split.test) > 0
    ].all()


@settings
@hypothesis.given(
    num_clients=st.integers(1, 30),
    classes_per_client=st.integers(1, 5),
    examples=st.integers(2, 12),
    seed=st.integers(0, 10**6),
)
def test_consecutive(num_clients, classes_per_client, examples, seed):
    y_train, y_test = labels(5, 340, seed), labels(5, 60, seed + 1)
    each = classes_per_client
    split = divided(
        partition.consecutive, y_train, y_test, num_clients, each, examples, seed
    )
    num_test = max(1, round(examples / 10))
    held = holders(split, y_train, y_test, each)
    for client, classes in enumerate(held):
        own = {(client + step) % 5 for step in range(each)}
        assert set(np.flatnonzero(classes)) == own
    assert {len(rows) for rows in split.train} == {each * (examples - num_test)}
    assert {len(rows) for rows in split.test} == {each * num_test}


@pytest.mark.parametrize(
    ("examples", "fraction", "num_test"),
    [(17, 0.1, 2), (24, 0.1, 2), (10, 0.26, 3), (8, 0.5, 4)],
)
def test_the_test_set_of_a_block_is_a_rounded_fraction(examples, fraction, num_test):
    y = np.repeat(np.arange(3), 200)
    split = partition.consecutive(y, y, 3, 1, examples, test_fraction=fraction)
    assert [len(rows) for rows in split.test] == [num_test] * 3
    assert [len(rows) for rows in split.train] == [examples - num_test] * 3


def test_the_defaults_of_consecutive_are_those_of_the_paper():
    """Three classes per client, 50 images of each, 45 of them for training: 1,500 of a class serve 100 clients."""
    y_train, y_test = np.repeat(np.arange(10), 1350), np.repeat(np.arange(10), 150)
    split = partition.consecutive(y_train, y_test, 100)
    assert is_equal(
        split, partition.consecutive(y_train, y_test, 100, 3, 50, test_fraction=0.1)
    )


def test_the_number_of_clients_with_reserved_classes_is_rounded_up():
    y = np.repeat(np.arange(4), 100)
    for num_clients, fraction, number in ((11, 0.2, 3), (4, 1e-12, 1), (100, 0.07, 7)):
        split = partition.by_classes(
            y, y, num_clients, 1, reserved_classes=1, reserved_fraction=fraction
        )
        holders = [client for client, rows in enumerate(split.train) if 3 in y[rows]]
        assert holders == list(range(num_clients - number, num_clients))


@pytest.mark.parametrize("alpha", [0.2, 2.0])
def test_dirichlet_shares_have_the_second_moment_of_their_law(alpha):
    """E sum_k p_k^2 = (alpha + 1) / (K alpha + 1); 400 clients leave the shares of a class nearly unscaled."""
    num_classes, num_clients = 10, 400
    y = np.repeat(np.arange(num_classes), 20_000)
    split = partition.dirichlet(y, y[::2], num_clients, alpha)
    counts = class_counts(y, split.train)
    tested = class_counts(y[::2], split.test)
    np.testing.assert_allclose(tested, counts / 2, atol=1.01)  # the same shares
    squares = ((counts / counts.sum(axis=1, keepdims=True)) ** 2).sum(axis=1)
    law = (alpha + 1) / (num_classes * alpha + 1)
    assert abs(squares.mean() - law) < 4 * squares.std() / np.sqrt(num_clients)


def test_dirichlet_at_the_limit():
    """With as many test examples as clients, each gets exactly one, of a class that it trains on."""
    y_train, y_test = np.repeat(np.arange(3), 40), np.repeat(np.arange(3), 10)
    split = divided(partition.dirichlet, y_train, y_test, 30, 0.05, seed=1)
    for train, test in zip(split.train, split.test, strict=True):
        assert y_test[test[0]] in y_train[train]


@settings
@hypothesis.given(
    num_clients=st.integers(1, 50),
    sigma=st.sampled_from([0.0, 0.5, 2.0, 1000.0]),
    seed=st.integers(0, 10**6),
)
def test_lognormal_sizes(num_clients, sigma, seed):
    y_train, y_test = np.zeros(300, int), np.zeros(50, int)
    split = divided(partition.lognormal_sizes, y_train, y_test, num_clients, sigma, seed)
    assert sum(map(len, split.train)) == 300
    assert sum(map(len, split.test)) == 50


def test_lognormal_spread():
    y = np.zeros(200_000, int)
    clients = partition.lognormal_sizes(y, y, 400, 0.7).train
    log_sizes = np.log(list(map(len, clients)))
    assert abs(log_sizes.std() - 0.7) < 4 * 0.7 / np.sqrt(2 * 400)


def test_iid_sizes_are_equal_up_to_one():
    y = np.arange(103) % 4
    split = divided(partition.iid, y, y, 10, seed=5)
    assert {len(rows) for rows in split.train} == {10, 11}
    assert not is_equal(split, partition.iid(y, y, 10, seed=6))


@pytest.mark.parametrize(
    ("name", "options"), [("iid", (4,)), ("consecutive", (4, 1, 400))]
)
def test_examples_are_drawn_at_random(name, options):
    y = np.zeros(4000, int)
    split = getattr(partition, name)(y, y, *options)
    for rows in (*split.train, *split.test):
        assert abs(rows.mean() - 1999.5) < 5 * 4000 / np.sqrt(12 * len(rows))
    assert not np.isin(split.test[0], split.train[0]).all()


def test_natural():
    users_train = np.array(["b", "a", "a", "c", "b", "d", "f"])
    users_test = np.array(["a", "b", "e", "b", "d"])
    for given in (users_train, users_train.astype(object)):  # as a column of a table
        with pytest.warns(
            UserWarning,
            match="3 of 6 users are left out: 2 have no test examples and 1 have no train",
        ):
            split = divided(partition.natural, given, users_test, None)
        assert [rows.tolist() for rows in split.train] == [[1, 2], [0, 4], [5]]
        assert [rows.tolist() for rows in split.test] == [[0], [1, 3], [4]]


def test_natural_does_not_round_ids_of_two_types():
    ids = [2**53, 2**53 + 1]  # one float
    split = partition.natural(np.array(ids, np.int64), np.array(ids, np.uint64))
    assert [list(rows) for rows in (*split.train, *split.test)] == [[0], [1], [0], [1]]


def test_natural_chooses_users():
    users = np.repeat(np.arange(30), 3)
    split = divided(partition.natural, users, users, 10, seed=1)
    assert all(len(set(users[rows])) == 1 and len(rows) == 3 for rows in split.train)
    chosen = [users[rows[0]] for rows in split.train]
    assert chosen == sorted(chosen) != list(range(10))


@settings
@hypothesis.given(max_examples=st.integers(1, 60), seed=st.integers(0, 10**6))
def test_cap_keeps_proportions(max_examples, seed):
    y = labels(5, 20, seed)
    clients = partition.iid(y, y, 3, seed).train
    capped = partition.cap_examples(clients, y, max_examples, seed)
    for rows, kept in zip(clients, capped, strict=True):
        assert len(kept) == min(len(rows), max_examples)
        assert set(kept) <= set(rows)
        exact = np.bincount(y[rows], minlength=5) * len(kept) / len(rows)
        if max_examples >= 5:  # no class is lost, so one may have got an example more
            assert set(y[kept]) == set(y[rows])
        assert np.abs(np.bincount(y[kept], minlength=5) - exact).max() < 2


def test_cap_keeps_class_balance():
    y = np.repeat(np.arange(10), 500)
    split = partition.by_classes(y, y, 10, 5)
    for rows in partition.cap_examples(split.train, y, 150):
        assert set(np.bincount(y[rows])) <= {0, 30}
        assert len(rows) == 150
    unequal = np.repeat([0, 1, 2], [10, 20, 40])
    (kept,) = partition.cap_examples([np.arange(70)], unequal, 10)
    # 10 / 7, 20 / 7 and 40 / 7: the largest remainders go up
    assert np.bincount(unequal[kept]).tolist() == [1, 3, 6]


def test_every_class_is_left_out_equally_often_by_a_cap():
    """200 clients keep 5 of 10 classes: each class stays with about 100 of them, standard deviation sqrt(50)."""
    y = np.tile(np.arange(10), 200)
    capped = partition.cap_examples(list(np.arange(2000).reshape(200, 10)), y, 5)
    kept = np.bincount(y[np.concatenate(capped)], minlength=10)
    assert kept.sum() == 1000
    assert np.abs(kept - 100).max() < 5 * np.sqrt(50)


def test_a_class_may_be_lost_if_the_client_is_not_tested_on_it():
    before = partition.Partition([np.arange(2)], [np.arange(1)])
    y_train = np.array([0, 1])
    partition.check_tested_classes(before, [np.array([0])], y_train, np.array([0]), 1)


def test_training_indices_do_not_depend_on_test_labels():
    y = np.repeat(np.arange(10), 100)
    one = partition.by_classes(y, y, 10, 2)
    other = partition.by_classes(y, np.tile(y, 2), 10, 2)
    assert all(map(np.array_equal, one.train, other.train))


y = np.repeat(np.arange(10), 10)
PEOPLE = np.array([1, 2])
ERRORS = {
    "num_clients=101: there are 100 train examples": lambda: partition.iid(y, y, 101),
    "num_clients=60: there are 50 test examples": lambda: partition.dirichlet(
        y, y[:50], 60, 1.0
    ),
    "classes_per_client=11: only 10 classes": lambda: partition.by_classes(y, y, 5, 11),
    "num_clients=30: class . has 10 train examples for 15 shards of 1": lambda: (
        partition.by_classes(y, y, 30, 5)
    ),
    "num_clients=20: class . has 5 test examples for 10 shards": lambda: (
        partition.by_classes(y, y[::2], 20, 5)
    ),
    "class 0 has 10 train examples for 3 shards of 18 or more": lambda: (
        partition.consecutive(y, y, 10, 3, 20)
    ),
    "users_test: no user of 3, ... is among those": lambda: partition.natural(
        PEOPLE, np.array([3])
    ),
    "users_test: are text, users_train numbers": lambda: partition.natural(
        PEOPLE, ["2", "3"]
    ),
    "users_test: are bytes, users_train text": lambda: partition.natural(
        np.array(["ann"]), np.array([b"ann"])
    ),
    "num_clients=3: 2 users have both": lambda: partition.natural(PEOPLE, PEOPLE, 3),
    r"indices\[1\]: has index -1": lambda: partition.cap_examples(
        [[99], [0, -1, 5]], y, 2
    ),
    "reserved_classes=6 for the last 1 clients: leaves 4 of 10": lambda: (
        partition.by_classes(y, y, 5, 5, reserved_classes=6)
    ),
    "reserved_classes=1 for the last 5 clients: .* other 0 clients": lambda: (
        partition.by_classes(y, y, 5, 5, reserved_classes=1, reserved_fraction=0.9)
    ),
    "num_clients=3: too few examples for client .": lambda: partition.dirichlet(
        np.arange(3), np.zeros(3, int), 3, 1.0
    ),
}


@pytest.mark.parametrize("message", ERRORS)
def test_errors(message):
    with refused(f"{message}.*; (give|use|reserve|split) "):
        ERRORS[message]()


def test_numbers_out_of_range():
    for options in ({"num_clients": 0}, {"alpha": 0}, {"seed": -1}):
        arguments = {"num_clients": 5, "alpha": 1.0} | options
        with refused(f"{next(iter(options))}=.* must be"):
            partition.dirichlet(y, y, **arguments)


def test_dirichlet_repeats_until_the_smallest_client_has_enough():
    y_train, y_test = labels(4, 100, 0), labels(4, 40, 1)
    first = partition.dirichlet(y_train, y_test, 20, 0.3, seed=3)
    smallest = min(map(len, first.train))
    mean = len(y_train) // 20
    assert smallest < mean - 5
    again = partition.dirichlet(y_train, y_test, 20, 0.3, 3, min_examples=smallest)
    assert is_equal(first, again)
    enough = divided(
        partition.dirichlet, y_train, y_test, 20, 0.3, 3, min_examples=smallest + 3
    )
    assert min(map(len, enough.train)) >= smallest + 3
    with refused(rf"min_examples={mean + 1}: each of 1000 draws with alpha=0.3 .*; use"):
        partition.dirichlet(y_train, y_test, 20, 0.3, min_examples=mean + 1)
