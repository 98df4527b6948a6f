"""Validation sets: a share of the training data is held out, and no test data are used."""

import re

import numpy as np
import pytest
from clients import rows
from numpy.testing import assert_allclose, assert_array_equal
from reference.small import KEY, clients_of, federation, model, refused, simulate

import fedjax_srp as srp
from fedjax_srp.data import holdout, holdout_clients, load

COUNTS = (2, 3, 5, 10, 99)


def unequal(counts=COUNTS):
    return federation(clients_of(counts, (4,) * len(counts)))


@pytest.mark.parametrize(
    ("fraction", "sizes"),
    [
        (0.2, (1, 1, 1, 2, 20)),  # rounded, at least one
        (0.5, (1, 2, 2, 5, 50)),  # halves to the even number
        (0.99, (1, 2, 4, 9, 98)),  # at least one stays
        (1e-9, (1, 1, 1, 1, 1)),
    ],
)
def test_training_data_are_divided_and_test_data_are_left_out(fraction, sizes):
    data = unequal()
    tuning = holdout(data, fraction, seed=1)
    assert_array_equal(tuning.test_counts, sizes)
    kept = rows(tuning)
    held = rows(tuning, "test")
    for client, own in enumerate(rows(data)):
        assert sorted(kept[client] + held[client]) == own
    assert tuning.x_test is data.x_train
    assert tuning.y_test is data.y_train


def test_the_seed_decides_which_examples_are_held_out():
    data = unequal()
    held = [rows(holdout(data, 0.3, seed), "test") for seed in (0, 0, 1)]
    assert held[0] == held[1] != held[2]
    for some, more in zip(held[0], rows(holdout(data, 0.6), "test"), strict=True):
        assert {*some} <= {*more}
    # without the last client
    assert rows(holdout(unequal(COUNTS[:4]), 0.3), "test") == held[0][:4]


def test_every_example_is_equally_likely():
    data = unequal((10,) * 40)
    held = [rows(holdout(data, 0.2, seed), "test") for seed in range(60)]
    by_place = np.bincount(np.ravel(held) % 10)  # of every ten, two are held out
    assert_allclose(by_place, 480, atol=4 * np.sqrt(480 * 0.8))


def test_a_client_with_one_example_keeps_it_and_is_left_out_of_means():
    data = unequal((1, 6, 8, 1))
    with pytest.warns(UserWarning, match="2 of 4 clients have a single training"):
        tuning = holdout(data)
    assert_array_equal(tuning.train_counts, [1, 5, 6, 1])
    assert_array_equal(tuning.test_counts, [0, 1, 2, 0])
    algorithm = srp.algorithms.FedAvg(model())
    history = simulate(algorithm, tuning, eval_every=1)
    mean = history.accuracy[:, 1:3] @ [1 / 3, 2 / 3]
    assert_allclose(history.mean_accuracy, mean, rtol=1e-6)
    scores = srp.evaluate(algorithm, tuning, history.server_state, key=KEY)
    assert_array_equal(np.isnan(scores["global"]), [True, False, False, True])
    with refused("no client has two training examples, so none can be held out"):
        holdout(unequal((1, 1)))


def test_load_agrees_with_holdout():
    options = {"num_clients": 8, "classes_per_client": 3, "max_examples": 20, "seed": 5}
    data = load("digits", **options)
    tuning = load("digits", **options, validation=0.3)
    wanted = holdout(data, 0.3, seed=5)
    for kind in ("train", "test"):
        assert rows(tuning, kind) == rows(wanted, kind)
    assert (tuning.name, tuning.num_classes, tuning.scale) == ("digits", 10, 1 / 16)
    assert tuning.options["validation"] == 0.3
    origin = {"name": "digits"} | data.options
    assert wanted.options == {"data": origin, "fraction": 0.3, "seed": 5}


@pytest.mark.parametrize("fraction", [0, 1, np.nan])
def test_fractions_out_of_range_are_refused(fraction):
    message = f"fraction={fraction} must be .*; give a number between 0 and 1, e.g. 0.2"
    with refused("^" + message):
        holdout(unequal(), fraction)
    with refused("^" + message):
        holdout_clients(unequal(), fraction=fraction)
    with refused("^" + re.sub("fraction", "validation", message)):
        load("digits", 4, validation=fraction)


def test_clients_are_held_out_with_their_examples():
    data = unequal()
    held_before: set[int] = set()
    for fraction, size in {0.1: 1, 0.5: 2, 0.55: 3, 0.99: 4}.items():
        ids = []
        for part in ("train", "held_out"):
            some = holdout_clients(data, part, fraction, seed=3)
            own = [COUNTS.index(count) for count in some.train_counts.tolist()]
            for kind in ("train", "test"):
                assert rows(some, kind) == [rows(data, kind)[client] for client in own]
            ids.append(own)
        kept, held = ids
        assert len(held) == size
        assert kept == sorted({0, 1, 2, 3, 4} - {*held})
        assert held_before <= {*held}  # a larger fraction holds out the same and more
        held_before = {*held}
    chosen = {"part": "held_out", "fraction": 0.99, "seed": 3}
    assert chosen.items() <= some.options.items()
    others = [holdout_clients(data, "held_out", 0.4, seed) for seed in range(6)]
    assert len({tuple(other.train_counts.tolist()) for other in others}) > 1
    with refused("data: has a single client, so none can be held out"):
        holdout_clients(unequal((5,)))
