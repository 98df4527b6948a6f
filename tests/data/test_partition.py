"""Properties of all partitions, and of each one."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from reference.small import refused

from fedjax_srp.data import partition


def randomly(**largest):
    """Call a test with random integers from 1 to these, and a random seed; of lists, with an entry."""
    given = {"seed": st.integers(0, 10**6)}
    for name, bound in largest.items():
        is_list = isinstance(bound, list)
        given[name] = st.sampled_from(bound) if is_list else st.integers(1, bound)
    settings = hypothesis.settings(max_examples=30, deadline=None, derandomize=True)
    return lambda test: settings(hypothesis.given(**given)(test))


def labels(num_classes, per_class, seed):
    """Labels in random order with `per_class` to twice as many examples of every class, for training and test."""
    rng = np.random.default_rng(seed)
    classes = np.arange(num_classes)
    sizes = rng.integers(per_class, 2 * per_class + 1, (2, num_classes))
    return [rng.permutation(np.repeat(classes, own)) for own in sizes]


def is_equal(one, other):
    pairs = zip(one.train + one.test, other.train + other.test, strict=True)
    return all(np.array_equal(rows, others) for rows, others in pairs)


def divided(function, train, test, num_clients, *options, **more):
    """Return a partition of labels or users, after checking that it is reproducible and valid."""
    split = function(train, test, num_clients, *options, **more)
    assert is_equal(split, function(train, test, num_clients, *options, **more))
    for rows, column in ((split.train, train), (split.test, test)):
        assert len(rows) == (num_clients or len(rows))
        assert all(map(len, rows))
        everything = np.concatenate(rows)
        assert len(np.unique(everything)) == len(everything), "an example in two clients"
        assert 0 <= everything.min() <= everything.max() < len(column)
    return split


def class_counts(y, rows):
    """Return the number of examples of each class, (clients, classes)."""
    return np.stack([np.bincount(y[client], minlength=y.max() + 1) for client in rows])


def holders(split, y_train, y_test, classes_per_client):
    """Return (clients, classes) bool, the classes of clients; check their number, sizes and tests."""
    train = class_counts(y_train, split.train)
    test = class_counts(y_test, split.test)
    held = train > 0
    assert_array_equal(held, test > 0)
    assert (held.sum(axis=1) == classes_per_client).all()
    for counts in (train, test):  # as many of every class, for every client
        assert len(set(counts[held])) == 1
    return held


@randomly(num_clients=40, num_classes=12, wanted=12)
def test_by_classes(num_clients, num_classes, wanted, seed):
    each = min(wanted, num_classes)
    y = labels(num_classes, 80, seed)
    split = divided(partition.by_classes, *y, num_clients, each, seed)
    assert np.ptp(holders(split, *y, each).sum(axis=0)) <= 1, "every class equally often"


@randomly(num_clients=39, wanted=7, reserved=4, fraction=[0.1, 0.2, 0.5])
def test_reserved_classes(num_clients, wanted, reserved, fraction, seed):
    free = 8 - reserved
    each = min(wanted, free)
    y = labels(8, 80, seed)
    options = {"reserved_classes": reserved, "reserved_fraction": fraction}
    split = divided(partition.by_classes, *y, num_clients + 1, each, seed, **options)
    held = holders(split, *y, each)
    is_last = np.arange(num_clients, -1, -1) < fraction * (num_clients + 1) - 1e-9
    own = held[:, free:].sum(axis=1)
    assert_array_equal(own, np.where(is_last, min(reserved, each), 0))
    assert np.ptp(held[:, free:].sum(axis=0)) <= 1
    assert np.ptp(held[:, :free].sum(axis=0)) <= 2


def test_the_number_of_clients_with_reserved_classes_is_rounded_up():
    """100 * 0.07 is above 7 by rounding alone."""
    y = np.repeat(np.arange(4), 100)
    for num_clients, fraction, number in ((11, 0.2, 3), (4, 1e-12, 1), (100, 0.07, 7)):
        options = {"reserved_classes": 1, "reserved_fraction": fraction}
        split = partition.by_classes(y, y, num_clients, 1, **options)
        holders = np.flatnonzero(class_counts(y, split.train)[:, 3])
        assert_array_equal(holders, np.arange(num_clients)[-number:])


def test_by_classes_uses_everything_where_it_divides():
    y = np.repeat(np.arange(10), 500)
    split = partition.by_classes(y, y[::5], 100, 5)
    assert [sum(map(len, clients)) for clients in split] == [5000, 1000]


@randomly(num_clients=40, num_classes=12, wanted=6)
def test_shards(num_clients, num_classes, wanted, seed):
    y_train, y_test = labels(num_classes, 250, seed)
    split = divided(partition.shards, y_train, y_test, num_clients, wanted, seed)
    shards = []
    for y, rows in ((y_train, split.train), (y_test, split.test)):
        counts = class_counts(y, rows)
        size = counts.sum(axis=1) // wanted
        assert len(set(size)) == 1
        assert_array_equal(counts % size[0], 0)
        shards.append(counts // size[0])
    assert_array_equal(*shards)
    assert np.ptp(shards[0].sum(axis=0)) <= 1, "every class equally often"


def test_shards_are_dealt_regardless_of_their_classes():
    """1,000 clients with two of 2,000 shards, 200 of each of ten classes: 199 of 1,999 get the same class twice."""
    y = np.repeat(np.arange(10), 200)
    held = class_counts(y, partition.shards(y, y, 1000, 2, seed=1).train) > 0
    expected = 1000 * 199 / 1999
    assert abs(sum(held.sum(axis=1) == 1) - expected) < 4 * np.sqrt(expected)


def test_by_classes_is_random_and_unbiased():
    """Every pair of classes meets in clients about equally often: 400 clients x 2 of 4 classes, 6 pairs."""
    y = np.repeat(np.arange(4), 400)
    split = partition.by_classes(y, y, 400, 2, seed=3)
    pairs = [tuple(np.unique(y[rows])) for rows in split.train]
    _, counts = np.unique(pairs, axis=0, return_counts=True)
    assert len(counts) == 6
    assert_allclose(counts, 400 / 6, atol=4 * np.sqrt(400 / 6 * 5 / 6))
    assert np.mean(np.equal(pairs[6:], pairs[:-6])) < 0.7, "no period"
    assert not is_equal(split, partition.by_classes(y, y, 400, 2, seed=4))


def test_by_classes_leaves_out_classes_without_tests():
    y_train = np.repeat([0, 1, 2], 20)
    split = partition.by_classes(y_train, np.repeat([0, 2], 10), 5, 2)
    assert not class_counts(y_train, split.train)[:, 1].any()


@randomly(num_clients=60, alpha=[1e-9, 0.01, 0.3, 1.0, 100.0])
def test_dirichlet(num_clients, alpha, seed):
    y = labels(7, 60, seed)
    split = divided(partition.dirichlet, *y, num_clients, alpha, seed)
    assert [sum(map(len, clients)) for clients in split] == [*map(len, y)]
    is_tested = class_counts(y[1], split.test) > 0
    assert (class_counts(y[0], split.train)[is_tested] > 0).all()


@pytest.mark.parametrize("alpha", [0.2, 2.0])
def test_dirichlet_shares_have_the_second_moment_of_their_law(alpha):
    """E sum_k p_k^2 = (alpha + 1) / (K alpha + 1); 400 clients leave the shares of a class nearly unscaled."""
    y = np.repeat(np.arange(10), 20_000)
    split = partition.dirichlet(y, y[::2], 400, alpha)
    counts = class_counts(y, split.train)
    tested = class_counts(y[::2], split.test)
    assert_allclose(tested, counts / 2, atol=1.01)  # the same shares
    squares = ((counts / counts.sum(axis=1, keepdims=True)) ** 2).sum(axis=1)
    law = (alpha + 1) / (10 * alpha + 1)
    assert abs(squares.mean() - law) < 4 * squares.std() / 20


def test_dirichlet_at_the_limit():
    """With as many test examples as clients, each gets exactly one, of a class that it trains on."""
    y = np.repeat(np.arange(3), 40)
    split = divided(partition.dirichlet, y, y[::4], 30, 0.05, seed=1)
    is_tested = class_counts(y[::4], split.test) > 0
    assert (class_counts(y, split.train)[is_tested] > 0).all()


def test_dirichlet_repeats_until_the_smallest_client_has_enough():
    y = labels(4, 100, 0)
    first = partition.dirichlet(*y, 20, 0.3, seed=3)
    smallest = min(map(len, first.train))
    mean = len(y[0]) // 20
    assert smallest < mean - 5
    again = partition.dirichlet(*y, 20, 0.3, 3, min_examples=smallest)
    assert is_equal(first, again)
    least = smallest + 3
    enough = divided(partition.dirichlet, *y, 20, 0.3, seed=3, min_examples=least)
    assert min(map(len, enough.train)) >= least
    with refused(rf"min_examples={mean + 1}: each of 1000 draws with alpha=0.3 .*; use"):
        partition.dirichlet(*y, 20, 0.3, min_examples=mean + 1)


@randomly(num_clients=30, each=5, examples=11)
def test_consecutive(num_clients, each, examples, seed):
    y = labels(5, 360, seed)
    split = divided(partition.consecutive, *y, num_clients, each, examples + 1, seed)
    num_test = max(1, round((examples + 1) / 10))
    held = holders(split, *y, each)
    steps = np.arange(5) - np.arange(num_clients)[:, None]
    assert_array_equal(held, steps % 5 < each)
    assert {len(rows) for rows in split.train} == {each * (examples + 1 - num_test)}
    assert {len(rows) for rows in split.test} == {each * num_test}


@pytest.mark.parametrize(
    ("options", "num_train", "num_test"),
    [
        ({"classes_per_client": 1, "examples_per_class": 17}, 15, 2),
        ({"classes_per_client": 1, "examples_per_class": 24}, 22, 2),
        (
            {"classes_per_client": 1, "examples_per_class": 10, "test_fraction": 0.26},
            7,
            3,
        ),
        ({}, 3 * 45, 3 * 5),  # as in the paper: 50 of each of three classes
    ],
)
def test_the_test_set_of_a_block_is_a_rounded_fraction(options, num_train, num_test):
    y = np.repeat(np.arange(10), 200)
    split = partition.consecutive(y, y, 3, **options)
    assert [len(rows) for rows in split.train] == [num_train] * 3
    assert [len(rows) for rows in split.test] == [num_test] * 3


@randomly(num_clients=50, sigma=[0.0, 0.5, 2.0, 1000.0])
def test_lognormal_sizes(num_clients, sigma, seed):
    y = np.zeros(300, int)
    split = divided(partition.lognormal_sizes, y, y[:50], num_clients, sigma, seed)
    assert [sum(map(len, clients)) for clients in split] == [300, 50]


def test_lognormal_spread():
    y = np.zeros(200_000, int)
    sizes = list(map(len, partition.lognormal_sizes(y, y, 400, 0.7).train))
    assert abs(np.log(sizes).std() - 0.7) < 4 * 0.7 / np.sqrt(2 * 400)


def test_iid_sizes_are_equal_up_to_one():
    y = np.arange(103) % 4
    split = divided(partition.iid, y, y, 10, seed=5)
    assert {len(rows) for rows in split.train} == {10, 11}
    assert not is_equal(split, partition.iid(y, y, 10, seed=6))


@pytest.mark.parametrize(
    ("function", "options"),
    [(partition.iid, (4,)), (partition.consecutive, (4, 1, 400))],
)
def test_examples_are_drawn_at_random(function, options):
    y = np.zeros(4000, int)
    split = function(y, y, *options)
    for rows in (*split.train, *split.test):
        assert abs(rows.mean() - 1999.5) < 5 * 4000 / np.sqrt(12 * len(rows))
    assert not np.isin(split.test[0], split.train[0]).all()


@pytest.mark.parametrize("dtype", ["U1", object])  # a column of a table is of objects
def test_natural(dtype):
    users_train = np.array(["b", "a", "a", "c", "b", "d", "f"], dtype)
    users_test = np.array(["a", "b", "e", "b", "d"])
    with pytest.warns(
        UserWarning,
        match="3 of 6 users are left out: 2 have no test examples and 1 have no train",
    ):
        split = divided(partition.natural, users_train, users_test, None)
    assert [rows.tolist() for rows in split.train] == [[1, 2], [0, 4], [5]]
    assert [rows.tolist() for rows in split.test] == [[0], [1, 3], [4]]


def test_natural_does_not_round_ids_of_two_types():
    ids = [2**53, 2**53 + 1]  # one float
    split = partition.natural(np.array(ids, np.int64), np.array(ids, np.uint64))
    assert [rows.tolist() for rows in (*split.train, *split.test)] == [[0], [1]] * 2


def test_natural_chooses_users():
    users = np.repeat(np.arange(30), 3)
    split = divided(partition.natural, users, users, 10, seed=1)
    chosen = users[np.array(split.train)]
    assert_array_equal(chosen, np.repeat(np.unique(chosen), 3).reshape(10, 3))
    assert chosen.max() > 9


@randomly(most=60)
def test_cap_keeps_proportions(most, seed):
    y, _ = labels(5, 20, seed)
    clients = partition.iid(y, y, 3, seed).train
    kept = partition.cap_examples(clients, y, most, seed)
    before = class_counts(y, clients)
    after = class_counts(y, kept)
    assert_array_equal(after.sum(axis=1), np.minimum(before.sum(axis=1), most))
    for rows, capped in zip(clients, kept, strict=True):
        assert set(capped) <= set(rows)
    if most >= 5:  # no class is lost, so one may have got an example more
        assert_array_equal(after > 0, before > 0)
    exact = before * (after.sum(axis=1) / before.sum(axis=1))[:, None]
    assert np.abs(after - exact).max() < 2


def test_cap_keeps_class_balance():
    y = np.repeat(np.arange(10), 500)
    split = partition.by_classes(y, y, 10, 5)
    capped = [partition.cap_examples(split.train, y, 150, seed) for seed in (0, 1)]
    assert set(np.ravel(class_counts(y, capped[0]))) == {0, 30}
    assert not np.array_equal(*capped), "which examples stay is random"
    unequal = np.repeat([0, 1, 2], [10, 20, 40])
    (kept,) = partition.cap_examples([np.arange(70)], unequal, 10)
    # 10 / 7, 20 / 7 and 40 / 7: the largest remainders go up
    assert np.bincount(unequal[kept]).tolist() == [1, 3, 6]


def test_every_class_is_left_out_equally_often_by_a_cap():
    """200 clients keep 5 of 10 classes: each class stays with about 100 of them, standard deviation sqrt(50)."""
    y = np.tile(np.arange(10), 200)
    capped = partition.cap_examples(list(np.arange(2000).reshape(200, 10)), y, 5)
    kept = class_counts(y, capped).sum(axis=0)
    assert kept.sum() == 1000
    assert_allclose(kept, 100, atol=5 * np.sqrt(50))


def test_a_class_may_be_lost_if_the_client_is_not_tested_on_it():
    before = partition.Partition([np.arange(2)], [np.arange(1)])
    y = np.arange(2)
    partition.check_tested_classes(before, [np.array([0])], y, y, 1)


def test_training_indices_do_not_depend_on_test_labels():
    y = np.repeat(np.arange(10), 100)
    one = partition.by_classes(y, y, 10, 2)
    other = partition.by_classes(y, np.tile(y, 2), 10, 2)
    assert_array_equal(one.train, other.train)


y = np.repeat(np.arange(10), 10)
PEOPLE = np.array([1, 2])
ERRORS = {
    "num_clients=101: there are 100 train examples": lambda: partition.iid(y, y, 101),
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
    r"indices\[1\]: has index -1": lambda: partition.cap_examples([[99], [0, -1]], y, 2),
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


@pytest.mark.parametrize("argument", ["num_clients", "alpha", "seed"])
def test_numbers_out_of_range(argument):
    with refused(f"{argument}=-1 must be"):
        partition.dirichlet(y, y, **{"num_clients": 5, "alpha": 1.0, argument: -1})


def test_lognormal_classes_as_in_the_femnist_of_fedrep():
    """150 clients, 3 of 10 classes, 148 examples on average, at least 50: sizes log-normal above that."""
    y = np.repeat(np.arange(10), 4000)
    y_test = np.repeat(np.arange(10), 400)
    split = divided(
        partition.lognormal_classes,
        y,
        y_test,
        150,
        3,
        0.6,
        seed=2,
        mean_examples=148,
        min_examples=50,
    )
    sizes = np.array(list(map(len, split.train)))
    assert abs(sizes.mean() - 148) < 1
    assert sizes.min() == 51  # the same number of three classes
    logs = np.sort(np.log(sizes))
    upper = logs[-75:] - np.median(logs)  # half of a normal distribution
    assert abs(np.sqrt((upper**2).mean()) - 0.6) < 4 * 0.6 / np.sqrt(2 * 75)
    for train, test in zip(split.train, split.test, strict=True):
        labels, counts = np.unique(y[train], return_counts=True)
        assert len(labels) == 3
        assert len({*counts.tolist()}) == 1
        tested, numbers = np.unique(y_test[test], return_counts=True)
        assert (tested == labels).all()
        np.testing.assert_array_equal(numbers, np.maximum(1, counts // 10))


def test_lognormal_classes_fill_the_scarcest_class_and_refuse_more():
    y = np.repeat([0, 1, 2], [300, 90, 300])
    split = divided(partition.lognormal_classes, y, y, 6, 2, 0.3, seed=1)
    used = np.bincount(y[np.concatenate(split.train)])
    assert 84 <= used[1] <= 90
    split = divided(partition.lognormal_classes, y, y, 3, 2, 2.0, seed=1, min_examples=49)
    assert min(map(len, split.train)) == 50
    for options, words in (
        ({"mean_examples": 100}, "mean_examples=100"),
        (
            {"mean_examples": 20, "min_examples": 21},
            "mean_examples=20: is less than min_examples=21; choose a larger",
        ),
        ({"min_examples": 200}, "min_examples=200"),
    ):
        with refused(words):
            partition.lognormal_classes(y, y, 6, 2, 0.3, 1, **options)
