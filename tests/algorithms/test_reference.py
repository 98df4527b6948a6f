"""Every algorithm against its NumPy reference, written from the paper: three rounds in float64, on equal batches."""

import inspect

import numpy as np
import pytest
from cases import CASES, get
from reference import knn_per
from reference.small import ALGORITHMS, NUM_CLASSES, built, clients_of
from setting import (
    BATCH,
    EPOCHS,
    HEAVY,
    PLAIN,
    SMALL,
    SPREAD,
    TEST_COUNTS,
    TUNING,
    UNEQUAL,
    Setting,
    by_layer,
    flat,
    of_client,
    optimizer,
    split_model,
)

import fedjax_srp as srp

pytestmark = pytest.mark.usefixtures("float64")

# Momentum, decay and means by examples, in chunks on one device; or plain SGD and uniform means on two devices.
SHAPES = {"heavy": (HEAVY, {"chunk_size": 3}), "plain": (PLAIN, SPREAD)}


def test_every_algorithm_on_examples_has_a_reference():
    elsewhere = {
        "asyncsgd",
        "depthfl",
        "fedasync",
        "fedat",
        "fedbn",
        "fedbuff",
        "fedcompass",
        "fedrolex",
        "fjord",
        "flexlora",
        "heterofl",
        "hetlora",
        "knn_per",
        "sliding_window",
    }  # other files
    linear = {name for name in ALGORITHMS if name.startswith("linear_")}
    assert {name.partition("-")[0] for name in CASES} == set(
        ALGORITHMS
    ) - elsewhere - linear


def close(found, expected, rtol):
    """Compare all numbers of two trees, relative to the largest one."""
    found, expected = flat(found), flat(expected)
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(
        found, expected, rtol=0, atol=rtol * np.abs(expected).max()
    )


def check(name, shape):
    case, (sgd, layout) = CASES[name], SHAPES[shape]
    weighted, sgd = (
        "client_weighting" in inspect.signature(case.run).parameters,
        case.sgd or sgd,
    )
    weighting = (
        {"client_weighting": "num_examples" if sgd is HEAVY else "uniform"}
        if weighted
        else {}
    )
    options = {
        "batch_size": BATCH,
        "fine_tune_epochs": TUNING,
        "optimizer": optimizer(sgd),
        "steps": case.steps,
    }
    options |= {
        "epochs": None if case.steps else EPOCHS,
        "weighting": weighting.get("client_weighting", "uniform"),
    }
    if case.tuner:
        options["fine_tune_optimizer"] = optimizer(case.tuner)
    algorithm = built(
        ALGORITHMS[name.partition("-")[0]],
        split_model(case.cut),
        **options | case.options,
    )
    clients = clients_of(case.counts, TEST_COUNTS, dtype=np.float64)
    setting = Setting(
        algorithm, case.schedule.policy, clients, tuned=case.tuned, **layout | case.layout
    )
    steps = setting.steps(case.steps) if case.steps else setting.epochs(case.schedule)
    numbers = {"sgd": sgd, **weighting, **case.numbers, **case.drawn(setting)}
    states = list(
        case.run(setting.params, setting.clients, case.schedule.cohorts, steps, **numbers)
    )
    assert len(states) == 3
    for t, state in enumerate(states):
        found = setting.states[t]
        for part, places in (
            (found.server, case.server),
            (setting.rounds[t], case.rounds),
        ):
            for place, of_reference in places.items():
                close(get(part, place), get(state, of_reference), case.rtol)
        for place, of_reference in case.clients.items():
            for i, expected in enumerate(get(state, of_reference)):
                close(of_client(get(found.clients, place), i), expected, case.rtol)
        assert setting.accuracies[t].keys() == case.judged.keys()
        for evaluation, judge in case.judged.items():
            for i, client in enumerate(setting.clients if judge else []):
                tuning = lambda purpose, t=t, i=i: setting.tuning(
                    t + 1, i, purpose, TUNING
                )
                assert setting.accuracies[t][evaluation][i] == judge(
                    state, i, client, tuning, case.tuner or sgd
                ), (t, evaluation, i)


def cases():
    """Yield all cases; `make test` runs the first of each algorithm, the others are long."""
    seen = set()
    for name, case in CASES.items():
        for shape in case.shapes:
            yield pytest.param(
                name, shape, marks=[pytest.mark.long] * (name.partition("-")[0] in seen)
            )
            seen.add(name.partition("-")[0])


@pytest.mark.parametrize(("name", "shape"), [*cases()])
def test_three_rounds(name, shape):
    check(name, shape)


@pytest.mark.parametrize(
    ("k", "share"),
    [
        (3, 0.6),
        *(
            pytest.param(*given, marks=pytest.mark.long)
            for given in ((100, 1.0), (2, 0.0))
        ),
    ],
)
def test_knn_per(k, share):
    options = {
        "batch_size": BATCH,
        "optimizer": srp.SGD(0.2),
        "num_neighbours": k,
        "own_share": share,
    }
    algorithm = built(srp.algorithms.KNNPer, split_model(), **options)
    setting = Setting(algorithm, UNEQUAL.policy, SMALL(), chunk_size=3, tuned=False)
    for state, accuracies in zip(setting.states, setting.accuracies, strict=True):
        params = by_layer(split_model(), *state.server.params)
        for i, client in enumerate(setting.clients):
            expected = knn_per.probabilities(
                params, client, client.x_test, NUM_CLASSES, k, share
            )
            right = expected.argmax(axis=1) == client.y_test
            assert accuracies["neighbours"][i] == np.mean(right)
