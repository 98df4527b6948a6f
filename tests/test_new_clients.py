"""New clients: held out by number and by name, and the worst tenth of them while they adapt."""

import numpy as np
import pytest
from reference.small import KEY, clients_of, federation, model, refusal

import fedjax_srp as srp

DATA = federation(clients_of([4] * 12, [3] * 12))
NAMED = srp.data.from_arrays(
    np.ones((3, 2), np.float32),
    np.arange(3),
    np.ones((3, 2), np.float32) + 1,
    np.arange(3),
    train_indices=[[0], [1], [2]],
    test_indices=[[0], [1], [2]],
    client_names=["ann", "bob", "cy"],
)
hold = srp.data.holdout_clients


def rows(data):
    return {tuple(indices) for indices in np.asarray(data.train_indices).tolist()}


def test_a_number_is_held_out_and_a_larger_one_holds_out_more():
    held = [hold(DATA, "held_out", number=number) for number in (1, 5, 11)]
    assert [data.num_clients for data in held] == [1, 5, 11]
    assert rows(held[0]) < rows(held[1]) < rows(held[2])
    kept = hold(DATA, "train", number=5)
    assert rows(kept) | rows(held[1]) == rows(DATA)
    assert kept.num_clients == 7
    assert rows(hold(DATA, "held_out", fraction=5 / 12)) == rows(held[1])
    assert hold(DATA, "held_out").num_clients == 2  # a fifth


def test_clients_are_held_out_by_id_and_by_name():
    assert hold(NAMED, "held_out", clients=["cy", 0]).client_names == ("ann", "cy")
    assert hold(NAMED, "train", clients=["cy", 0]).client_names == ("bob",)
    by_id = hold(DATA, "held_out", clients=np.array([7, 2]))
    np.testing.assert_array_equal(
        by_id.train_indices, np.asarray(DATA.train_indices)[[2, 7]]
    )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"number": 3}, "number=3"),
        ({"number": 1, "fraction": 0.5}, "fraction and number: give one"),
        ({"clients": []}, "clients"),
        ({"clients": [0, 1, 2]}, "leave at least one"),
        ({"clients": [3]}, "clients[0]=3"),
        ({"clients": [True]}, "clients[0]"),
        ({"clients": ["bobby"]}, "did you mean bob?"),
        ({"clients": "cy"}, "clients"),
    ],
)
def test_others_are_refused(given, words):
    assert words in refusal(hold, NAMED, "train", **given)


def test_adaptation_has_the_worst_tenth():
    params = model().init(KEY)
    adapted = srp.adapt(model(), DATA, params, key=KEY, epochs=2, num_samples=[1, 4])
    assert adapted.worst_tenth.shape == (2, 3)
    np.testing.assert_allclose(adapted.worst_tenth, adapted.scores.min(axis=2))
    task = srp.data.linear_task(KEY, num_clients=25, dim=5, rank=2, noise_std=0.5)
    algorithm = srp.algorithms.LinearFedRep(task, 0.1, 5, start="random")
    server = srp.Simulation(algorithm, task).init(KEY).server
    of_task = srp.adapt(task, task, server, key=KEY, num_samples=[3])
    largest = np.sort(of_task.scores, axis=2)[..., -2:]  # errors of 2 of 25 clients
    np.testing.assert_allclose(of_task.worst_tenth, largest.mean(axis=2), rtol=1e-6)
