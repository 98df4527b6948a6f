"""The record of a run against sums by hand."""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np
import pytest
from reference.small import refused

import fedjax_srp as srp
from fedjax_srp.base import STAGE_COMPLETED
from fedjax_srp.results.history import History
from fedjax_srp.results.stages import Stage

COMPUTE = [1.0, 2.0, 4.0, 8.0]
COMMUNICATED = [True, False, True, True]


def small(**changes) -> History:
    """Four rounds, three clients, two evaluations of two kinds; dyadic numbers, so that sums are exact."""
    fields = {
        "name": "fedrep",
        "round": [1, 2, 3, 4],
        "stage": [0, 0, 1, 1],
        "cohort_size": [1, 1, 3, 3],
        "compute_time": COMPUTE,
        "communicated": COMMUNICATED,
        "finite": [True] * 4,
        "client_time": [2.0, 1.0, 3.0],
        "metrics": {"distance": [1.0, 0.5, 0.25, 0.125]},
        "eval_round": [2, 4],
        "accuracies": {
            "fine_tune": [[0.5, 0.25, 1.0], [0.75, 0.5, 1.0]],
            "global": [[0.0, 0.0, 0.5], [0.25, 0.0, 0.5]],
        },
        "test_count": [1, 2, 1],
        "bytes_up": 8,
        "bytes_down": 16,
        "seconds_per_round": 0.1,
        "compile_seconds": 0.2,
        "host_seconds": 0.3,
        "config": {"num_rounds": 4, "step_size": 0.1},
    }
    return History(**(fields | changes))


@pytest.mark.parametrize("communication", [0.0, 10, 0.5, 100.0])
def test_elapsed_is_the_sum_by_hand(communication):
    total, expected = 0.0, []
    for time, charged in zip(COMPUTE, COMMUNICATED, strict=True):
        total += time + (communication if charged else 0.0)
        expected.append(total)
    history = small()
    np.testing.assert_array_equal(history.elapsed(communication), expected)
    np.testing.assert_array_equal(
        history.eval_elapsed(communication), [expected[1], expected[3]]
    )


def test_stages_end_with_their_last_round_and_are_completed_by_the_first_that_meets_the_criterion():
    held = [False, True, False, True, True, False]
    run = small(
        round=range(1, 7),
        stage=[0, 0, 0, 1, 1, 1],
        cohort_size=[1, 1, 2, 3, 3, 3],
        compute_time=[1.0, 2.0, 4.0, 8.0, 16.0, 32.0],
        communicated=[True, False, True, True, False, False],
        finite=[True] * 6,
        metrics={STAGE_COMPLETED: held},
    )
    assert run.stages(10.0) == [
        Stage(0, 2, 1, 3, 0.0, 27.0, True, 2),
        Stage(1, 3, 4, 3, 27.0, 93.0, True, 4),
    ]
    never = dataclasses.replace(run, metrics={STAGE_COMPLETED: [False] * 6})
    assert [(stage.completed, stage.completed_round) for stage in never.stages()] == [
        (False, None)
    ] * 2
    without = dataclasses.replace(run, metrics={})
    assert [(stage.completed, stage.completed_round) for stage in without.stages()] == [
        (None, None)
    ] * 2


@pytest.mark.parametrize("communication", [0.0, 10.0])
def test_the_score_at_a_time_is_that_of_the_last_evaluation_before_it(communication):
    history = small()
    first, last = history.eval_elapsed(communication)
    end = history.elapsed(communication)[-1]
    assert (first, end) < (last, math.inf)
    at = lambda time: history.score_at(time, communication)
    assert (at(first), at(np.nextafter(last, 0)), at(last), at(end)) == (
        0.5,
        0.5,
        0.6875,
        0.6875,
    )
    assert math.isnan(at(np.nextafter(first, 0)))
    assert math.isnan(at(np.nextafter(end, np.inf)))
    assert history.score_at(last, communication, "global") == 0.1875
    for time, message in (
        (-1.0, "time must be finite and >= 0"),
        (math.inf, "time must be finite"),
    ):
        with pytest.raises(ValueError, match=message):
            at(time)


ERRORS = {
    "score_name": "squared error",
    "smaller_is_better": True,
    "test_count": [1, 1, 0],
} | {"accuracies": {"fit_head": [[4.0, 8.0, np.nan], [1.0, 3.0, np.nan]]}}
MEANS = {  # changes, mean weighted by test points, worst tenth
    "weighted": ({}, [0.5, 0.6875], [0.25, 0.5]),
    "errors": (ERRORS, [6.0, 2.0], [8.0, 3.0]),
    "a client without test points": (
        {
            "test_count": [1, 0, 1],
            "accuracies": {"global": [[0.5, np.nan, 1.0], [0.25, np.nan, 0.75]]},
        },
        [0.75, 0.5],
        [0.5, 0.25],
    ),
    "no test points": ({"test_count": [0, 0, 0]}, [np.nan] * 2, [np.nan] * 2),
    "nan": (
        {"accuracies": {"global": [[np.nan, 1.0, 1.0], [1.0, 1.0, 1.0]]}},
        [np.nan, 1.0],
        [np.nan, 1.0],
    ),
}


@pytest.mark.parametrize(("changes", "mean", "worst"), MEANS.values(), ids=MEANS)
def test_means_over_clients(changes, mean, worst):
    history = small(**changes)
    np.testing.assert_array_equal(history.mean_accuracy, mean)
    np.testing.assert_array_equal(history.worst_decile, worst)
    np.testing.assert_equal(history.final_accuracy, mean[-1])


ALMOST = np.array([[0, 3], [1, 31]]) / [1, 39]  # 32 of 40, but 1 + 31 / 39 * 39 < 32
OF_TWO = {
    "client_time": [1.0, 2.0],
    "test_count": [1, 39],
    "rounds_taken": [1, 1],
    "accuracies": {"it": ALMOST},
}
REACHED = [  # changes, arguments of `time_to`, time
    ({}, {"target": 0.5}, 3.0),  # exactly, after round 2
    ({}, {"target": 0.5, "communication": 10.0}, 13.0),
    ({}, {"target": np.float32(0.501)}, 15.0),  # nothing is interpolated
    ({}, {"target": 0.7}, math.inf),
    ({}, {"target": 0.15, "evaluation": "global"}, 15.0),
    (
        {"eval_round": [0, 4]},
        {"target": 0.5, "communication": 10.0},
        0.0,
    ),  # before training
    (MEANS["nan"][0], {"target": 0.0}, 15.0),
    (OF_TWO, {"target": 0.8}, 15.0),
    (ERRORS, {"target": 6.0}, 3.0),
    (ERRORS, {"target": 2.0}, 15.0),
    (ERRORS, {"target": 1.9}, math.inf),
    ({}, {"target": 0.5, "metric": "distance"}, 3.0),
    (
        {},
        {"target": 0.3, "metric": "distance", "communication": 10.0},
        27.0,
    ),  # the second round is silent
    ({}, {"target": 0.1, "metric": "distance"}, math.inf),
]


@pytest.mark.filterwarnings("ignore:time_to")  # `test_bounds.py`
@pytest.mark.parametrize(("changes", "arguments", "time"), REACHED)
def test_time_to_a_target(changes, arguments, time):
    assert small(**changes).time_to(**arguments) == time


@pytest.mark.parametrize(
    ("num_clients", "num_worst"), [(1, 1), (9, 1), (10, 1), (19, 1), (20, 2), (105, 10)]
)
def test_worst_decile(num_clients, num_worst):
    scores = np.random.default_rng(num_clients).permutation(num_clients) / 128.0
    history = small(
        client_time=np.ones(num_clients),
        test_count=np.ones(num_clients),
        accuracies={"global": [scores, scores + 1.0]},
    )
    expected = sum(range(num_worst)) / num_worst / 128.0
    np.testing.assert_allclose(
        history.worst_decile, [expected, expected + 1.0], rtol=1e-14
    )


@pytest.mark.filterwarnings("ignore:time_to")
@pytest.mark.parametrize("target", [90, 1.001, math.nan])
def test_a_target_that_no_accuracy_can_reach_is_refused(target):
    with pytest.raises(
        ValueError,
        match=rf"target={target}: no accuracy can reach it; give 0\.9 for 90 %",
    ):
        small().time_to(target)
    assert small().time_to(1.0) == math.inf
    assert (
        small(score_name="squared error", smaller_is_better=True).time_to(90) == 3.0
    )  # an error may be 90
    assert small(score_name="reward").time_to(90) == math.inf
    assert small().time_to(90, metric="distance") == 1.0


def test_speed_quartiles_follow_the_speed_not_the_id():
    times = [8.0, 1.0, 7.0, 2.0, 6.0, 3.0, 5.0, 4.0]
    scores = np.array(times) / 8
    history = small(
        client_time=times, test_count=[1] * 8, accuracies={"global": [scores * 0, scores]}
    )
    np.testing.assert_array_equal(
        history.speed_quartiles(), [1.5 / 8, 3.5 / 8, 5.5 / 8, 7.5 / 8]
    )
    weighted = dataclasses.replace(history, test_count=[1, 3, 1, 1, 1, 1, 1, 1])
    assert weighted.speed_quartiles()[0] == (3 * 1 + 2) / 4 / 8
    assert np.isnan(
        small().speed_quartiles()[3]
    )  # three clients leave the last quarter empty


def test_frames_hold_what_was_evaluated_and_nothing_else():
    history = small(rounds_taken=[4, 0, 2])
    frame = history.to_frame(communication=10.0)
    assert list(frame.columns) == [
        *(
            "round",
            "stage",
            "cohort_size",
            "compute_time",
            "communicated",
            "finite",
            "elapsed",
            "distance",
        ),
        *("accuracy_fine_tune", "accuracy_global"),
    ]
    np.testing.assert_array_equal(frame["elapsed"], history.elapsed(10.0))
    np.testing.assert_array_equal(
        frame["accuracy_fine_tune"], [np.nan, 0.5, np.nan, 0.6875]
    )
    before = small(eval_round=[0, 4]).to_frame()
    assert before["accuracy_fine_tune"].isna().tolist() == [True, True, True, False]
    clients = history.clients_frame()
    columns = "evaluation round client accuracy test_count expected_time"
    assert list(clients.columns) == [*columns.split(), "rounds_taken_in_all"]
    assert len(clients) == 2 * 2 * 3
    row = clients[
        (clients.evaluation == "global") & (clients["round"] == 4) & (clients.client == 2)
    ].iloc[0]
    assert (row.accuracy, row.test_count, row.expected_time) == (0.5, 1, 3.0)
    assert clients.rounds_taken_in_all.tolist() == [4, 0, 2] * 4


def test_clients_with_names_are_named_in_their_frame():
    named = small(client_names=["ann", "=bob", "c"])
    assert named.clients_frame().client_name.tolist() == ["ann", "=bob", "c"] * 4
    with refused("client_names=.*give a text for each of 3 clients"):
        small(client_names=["ann", "bob"])


def test_summary():
    summary = small().summary(target=0.6, communication=10.0)
    numbers = {
        "final_accuracy": 0.6875,
        "worst_decile": 0.5,
        "time_to_target": 45.0,
        "num_rounds": 4,
    }
    numbers |= {
        "evaluation": "fine_tune",
        "slowest_tenth": 1.0,
        "bytes_to_target": 168,
        "diverged": None,
    }
    assert numbers.items() <= summary.items()
    assert summary["total_bytes_up"] == 8 * (1 + 3 + 3)  # one round is silent
    assert summary["total_bytes_down"] == 16 * (1 + 3 + 3)
    assert summary["simulated_time"] == 15.0 + 3 * 10.0  # the same round
    assert small().summary()["simulated_time"] == 15.0
    assert [stage["ends"] for stage in summary["stages"]] == [13.0, 45.0]
    np.testing.assert_array_equal(summary["speed_quartiles"], [0.5, 0.75, 1.0, np.nan])
    assert summary["final_accuracies"] == {
        "fine_tune": 0.6875,
        "global": 0.1875,
    }  # over test examples: 0.25, 0, 0, 0.5
    assert small().summary()["time_to_target"] is None
    assert small().summary(target=1.0)["time_to_target"] == math.inf
    assert (
        small(finite=[True, False, True, False]).summary()["diverged"] == 2
    )  # the first one


def test_repr_is_one_short_line():
    assert (
        repr(small())
        == "History('fedrep': 4 rounds, 3 clients, 2 evaluations, final fine_tune accuracy 0.6875)"
    )
    assert repr(small(**ERRORS)).endswith("final fit_head squared error 2)")
    assert (
        repr(small(accuracies={}))
        == "History('fedrep': 4 rounds, 3 clients, 0 evaluations)"
    )


def test_arrays_are_read_only_numpy_copies():
    given = np.array(COMPUTE)
    history = small(compute_time=given, metrics={"loss": jnp.ones(4)})
    given[0] = 99.0
    assert history.compute_time[0] == 1.0
    assert type(history.metrics["loss"]) is np.ndarray
    with pytest.raises(ValueError, match="read-only"):
        history.metrics["loss"][0] = 0.0


def test_the_summary_records_the_split_of_the_evaluation():
    """Held-out clients are evaluated on their test data."""
    data = srp.data.load("digits", num_clients=6, classes_per_client=3)
    options = {
        "test": [None, {"validation": None}],
        "validation": [{"validation": 0.2}, srp.data.holdout(data).options],
    }
    for split, judged in (("test", data), ("validation", srp.data.holdout(data))):
        options[split] += [srp.data.holdout_clients(judged).options]
        options[split] += [srp.data.shift_features(judged, rotations=(0, 180)).options]
        for made in options[split]:
            assert small(config={"data": {"options": made}}).judged_on == split


def test_participation_is_the_gini_coefficient_and_the_share_of_zeros():
    rounds = np.array([4, 0, 2, 0, 6])
    found = small(
        client_time=[1.0] * 5, test_count=[1] * 5, accuracies={}, rounds_taken=rounds
    ).participation
    pairs = np.abs(rounds[:, None] - rounds).sum()
    assert found.gini == pytest.approx(pairs / (2 * 5 * rounds.sum()))
    assert found.never == 0.4
    assert small(rounds_taken=[3, 3, 3]).participation == (0.0, 0.0)
    assert np.isnan(small().participation).all()  # not recorded
    gini, never = small(cohort_size=[0] * 4).participation
    assert np.isnan(gini)
    assert never == 1.0


def test_the_slowest_tenth_is_by_expected_time():
    times = (
        np.random.default_rng(0).permutation(29).astype(float)
    )  # floor(29 / 10) clients
    counts = np.arange(1, 30)
    history = small(
        client_time=times, test_count=counts, accuracies={"it": [times / 100, times / 10]}
    )
    slow = [int(np.argmax(times == t)) for t in (27.0, 28.0)]
    expected = (27 * counts[slow[0]] + 28 * counts[slow[1]]) / counts[slow].sum()
    np.testing.assert_allclose(history.slowest_scores(), [expected / 100, expected / 10])


@pytest.mark.filterwarnings("ignore:bytes_to")
def test_bytes_to_a_target_are_those_of_participants_in_rounds_that_communicated():
    history = small()
    assert (
        history.bytes_to(0.5) == 24 * 1
    )  # after two rounds, of which one communicated, of one client
    assert history.bytes_to(0.6) == 24 * (1 + 3 + 3)
    assert history.bytes_to(0.9) == math.inf
    # narrower models send shares, and silent rounds nothing
    sizes = history.cohort_size * history.communicated
    share = np.where(sizes > 0, 0.5, np.nan)  # the mean over no client
    narrow = dataclasses.replace(
        history, metrics={**history.metrics, "message_share": share}
    )
    assert narrow.bytes_to(0.6) == 24 * (1 + 3 + 3) / 2
    narrow = small(metrics={"message_share": [0.3] * 4})
    assert narrow.bytes_to(0.6) == round(24 * (1 + 3 + 3) * 0.3)
