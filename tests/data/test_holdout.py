"""Validation sets: a share of the training data is held out, and no test data are used."""

import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.small import KEY, clients_of, federation, model, refused

import fedjax_srp as srp
from fedjax_srp.data import FederatedData, holdout, holdout_clients, load

COUNTS = (2, 3, 5, 10, 99)


def rows(data: FederatedData, kind: str) -> list[list[int]]:
    indices, counts = (
        np.asarray(getattr(data, f"{kind}_{name}")) for name in ("indices", "counts")
    )
    return [own[:count].tolist() for own, count in zip(indices, counts, strict=True)]


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
def test_sizes(fraction, sizes):
    tuning = holdout(unequal(), fraction)
    np.testing.assert_array_equal(tuning.test_counts, sizes)
    np.testing.assert_array_equal(tuning.train_counts, np.array(COUNTS) - sizes)


def test_training_data_are_divided_and_test_data_are_left_out():
    data = unequal()
    tuning = holdout(data, 0.3, seed=1)
    for own, kept, held in zip(
        rows(data, "train"), rows(tuning, "train"), rows(tuning, "test"), strict=True
    ):
        assert not {*kept} & {*held}
        assert sorted(kept + held) == own
    known = {
        tuple(x) for x in np.asarray(data.x_test)
    }  # of floats, so nothing is in both by chance
    for client in range(data.num_clients):
        judged, trained = (
            tuning.test_client(jnp.int32(client)),
            data.train_client(jnp.int32(client)),
        )
        examples = {tuple(x) for x in np.asarray(judged.x)[: judged.count]}
        assert len(examples) == judged.count
        assert not examples & known
        labels = {
            tuple(x): y
            for x, y in zip(np.asarray(trained.x), np.asarray(trained.y), strict=True)
        }
        assert [
            labels[tuple(x)] for x in np.asarray(judged.x)[: judged.count]
        ] == judged.y[: judged.count].tolist()
    assert not [
        leaf
        for leaf in jax.tree.leaves(tuning)
        if leaf is data.x_test or leaf is data.y_test
    ]


def test_the_seed_decides_which_examples_are_held_out():
    data = unequal()
    held = [rows(holdout(data, 0.3, seed), "test") for seed in (0, 0, 1)]
    assert held[0] == held[1] != held[2]
    for some, more in zip(held[0], rows(holdout(data, 0.6), "test"), strict=True):
        assert {*some} <= {*more}
    first = federation(clients_of(COUNTS[:4], (4,) * 4))  # without the last client
    assert rows(holdout(first, 0.3), "test") == held[0][:4]


def test_every_example_is_equally_likely():
    data, num = unequal((10,) * 40), 60
    held = np.bincount(
        np.concatenate(
            [np.ravel(rows(holdout(data, 0.2, s), "test")) for s in range(num)]
        )
    )
    by_place = held.reshape(40, 10).sum(axis=0)  # of every ten, two are held out
    np.testing.assert_allclose(by_place, 480, atol=4 * np.sqrt(480 * 0.8))


def test_a_client_with_one_example_keeps_it_and_is_left_out_of_means():
    data = unequal((1, 6, 8, 1))
    with pytest.warns(
        UserWarning,
        match="validation: 2 of 4 clients have a single training example and hold out none",
    ):
        tuning = holdout(data)
    np.testing.assert_array_equal(tuning.train_counts, [1, 5, 6, 1])
    np.testing.assert_array_equal(tuning.test_counts, [0, 1, 2, 0])
    options = {
        "num_rounds": 2,
        "eval_every": 1,
        "key": KEY,
        "progress": False,
        "devices": 1,
    }
    history = srp.simulate(srp.algorithms.FedAvg(model()), tuning, **options)
    np.testing.assert_array_equal(
        np.isnan(history.accuracy[-1]), [True, False, False, True]
    )
    np.testing.assert_allclose(
        history.mean_accuracy, history.accuracy[:, 1:3] @ [1 / 3, 2 / 3], rtol=1e-6
    )
    scores = srp.evaluate(
        srp.algorithms.FedAvg(model()), tuning, history.server_state, key=KEY
    )
    np.testing.assert_array_equal(np.isnan(scores["global"]), [True, False, False, True])
    with refused("no client has two training examples, so none can be held out"):
        holdout(unequal((1, 1)))


def test_load_agrees_with_holdout():
    options = {"num_clients": 8, "classes_per_client": 3, "max_examples": 20, "seed": 5}
    data, tuning = load("digits", **options), load("digits", **options, validation=0.3)
    wanted = holdout(data, 0.3, seed=5)
    for ours, theirs in zip(
        jax.tree.leaves(tuning), jax.tree.leaves(wanted), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
    assert (tuning.name, tuning.num_classes, tuning.scale) == ("digits", 10, 1 / 16)
    assert tuning.options["validation"] == 0.3
    assert wanted.options == {
        "data": {"name": "digits"} | data.options,
        "fraction": 0.3,
        "seed": 5,
    }


@pytest.mark.parametrize(
    ("fraction", "bound"),
    [
        (0, "positive"),
        (1, "below 1"),
        (-0.2, "positive"),
        (20, "below 1"),
        (np.nan, "positive"),
    ],
)
def test_fractions_out_of_range_are_refused(fraction, bound):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for argument, call in {
            "fraction": lambda: holdout(unequal(), fraction),
            "validation": lambda: load("digits", 4, validation=fraction),
            "fraction ": lambda: holdout_clients(unequal(), fraction=fraction),
        }.items():
            message = f"{argument.strip()}={fraction} must be {bound}; give a number between 0 and 1, e.g. 0.2"
            with refused("^" + re.escape(message)):
                call()


def test_clients_are_held_out_with_their_examples():
    data = unequal()
    sizes = {0.1: 1, 0.5: 2, 0.55: 3, 0.99: 4}
    held_before: set[int] = set()
    for fraction, size in sizes.items():
        train, new = (
            holdout_clients(data, part, fraction, seed=3)
            for part in ("train", "held_out")
        )
        assert (train.num_clients, new.num_clients) == (len(COUNTS) - size, size)
        kept, held = (
            [COUNTS.index(count) for count in some.train_counts.tolist()]
            for some in (train, new)
        )
        assert sorted(kept + held) == [0, 1, 2, 3, 4]
        assert kept == sorted(kept)
        assert held_before <= {*held}  # a larger fraction holds out the same and more
        held_before = {*held}
        for some, ids in ((train, kept), (new, held)):
            for kind in ("train_client", "test_client"):
                for here, there in enumerate(ids):
                    one, other = (
                        getattr(some, kind)(jnp.int32(here)),
                        getattr(data, kind)(jnp.int32(there)),
                    )
                    jax.tree.map(np.testing.assert_array_equal, one, other)
    assert {name: new.options[name] for name in ("part", "fraction", "seed")} == {
        "part": "held_out",
        "fraction": 0.99,
        "seed": 3,
    }
    held = [
        holdout_clients(data, "held_out", 0.4, seed).train_counts.tolist()
        for seed in range(6)
    ]
    assert len(set(map(tuple, held))) > 1
    with refused("data: has a single client, so none can be held out"):
        holdout_clients(unequal((5,)))
