"""The demo end to end, and the numbers in its table."""

import math
import threading
import time

import numpy as np
import pandas as pd
import pytest
from reference.histories import made_history

import fedjax_srp as srp
from fedjax_srp import History
from fedjax_srp.lab.commands import demo
from fedjax_srp.lab.report import table
from fedjax_srp.results import json_files

TINY = demo.QUICK._replace(
    num_rounds=6,
    federation={"num_clients": 10, "classes_per_client": 3},
    hyperparameters=demo.QUICK.hyperparameters
    | {"hidden": (8,), "epochs": 1, "rounds_per_stage": 2},
)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    return folder, demo.run(folder, seeds=2, plan=TINY, progress=False)


def test_everything_is_written_and_can_be_read(found):
    folder, result = found
    assert (folder / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "table.txt").read_text("utf-8") == result.text + "\n"
    assert (folder / "table.csv").read_text().count("\n") == 1 + len(TINY.methods)
    assert (folder / "report.html").read_text("utf-8").startswith("<!DOCTYPE html>")
    for name, runs in result.histories.items():
        for seed, run in enumerate(runs):
            place = folder / name / f"seed_{seed}"
            loaded = History.load(place)
            np.testing.assert_array_equal(loaded.accuracy, run.accuracy)
            assert loaded.config["seed"] == seed
            assert list(loaded.accuracies) == ["fine_tune", "own_head"]
            assert loaded.config["arguments"]["num_rounds"] == TINY.num_rounds
            summary = json_files.read_json(place / "summary.json")
            assert summary["target"] == result.target.accuracy


def test_an_error_in_one_training_ends_the_other(tmp_path, monkeypatch):
    begun, ended = threading.Event(), []

    def simulate(method, *_, callback, **__):
        if method.name == "fedrep":
            assert begun.wait(60)
            raise ValueError("fedrep failed")
        begun.set()
        ended.append(any(callback(None) or time.sleep(0.01) for _ in range(6000)))
        return []

    monkeypatch.setattr(demo, "simulate_seeds", simulate)
    with pytest.raises(ValueError, match="fedrep failed"):
        demo.run(
            tmp_path,
            seeds=2,
            plan=TINY._replace(methods=("srpfl", "fedrep")),
            progress=False,
        )
    assert ended == [True]


def test_times_in_the_table_are_those_of_the_histories(found):
    folder, result = found
    target = result.target.accuracy
    fedrep = np.mean([run.final_accuracy for run in result.histories["fedrep"]])
    assert target == round(target, 3) == pytest.approx(0.95 * fedrep, abs=0.00051)
    rows = pd.read_csv(folder / "table.csv", index_col="method")
    for name, runs in result.histories.items():
        expected = {"final_accuracy": [run.final_accuracy for run in runs]}
        expected["worst_decile"] = [run.worst_decile[-1] for run in runs]
        for cost in demo.COMMUNICATIONS:
            expected[f"time_{cost}"] = [run.time_to(target, cost) for run in runs]
        for column, values in expected.items():
            assert rows.loc[name, column] == pytest.approx(np.mean(values))
    for srpfl, fedrep in zip(*result.histories.values(), strict=True):
        np.testing.assert_array_equal(srpfl.client_time, fedrep.client_time)
    first, second = (run.client_time for run in result.histories["srpfl"])
    assert not np.array_equal(first, second)


def history(name, accuracy, times, num_seeds=None, host_seconds=6.0):
    """One client, one evaluation after every round."""
    config = {"num_seeds": num_seeds}
    return made_history(
        accuracy, times, "global", name=name, host_seconds=host_seconds, config=config
    )


def test_speed_up_and_spread_by_hand():
    def runs(name, *times, seeds=None):
        return [history(name, [0.5, 0.9], each, seeds) for each in times]

    histories = {
        "srpfl": runs("srpfl", [1, 1], [3, 1], seeds=2),
        "fedrep": runs("fedrep", [5, 4], [5, 4]),
    }
    frame = table.comparison(histories, 0.8, (0, 10)).set_index("method")
    expected = {
        "time_0": 3,  # after 2 and 4
        "time_0_std": math.sqrt(2),
        "speed_up_0": 3,
        "time_10": 23,  # after 22 and 24
        "speed_up_10": 29 / 23,
        "host_seconds": 6,  # simulated together
    }
    assert frame.loc["srpfl", [*expected]].to_dict() == pytest.approx(expected)
    assert math.isnan(frame.loc["fedrep", "speed_up_0"])
    assert frame.loc["fedrep", "host_seconds"] == 12  # one after the other
    text = table.render(frame.reset_index(), table.common_target(histories))
    assert "3.0 ± 1.4 (3.0x)" in text


@pytest.mark.parametrize("early", ["srpfl", "fedrep"])
def test_a_time_that_is_only_an_upper_bound_has_no_speed_up(early):
    histories = {}
    for name in ("srpfl", "fedrep"):
        scores = [0.9, 0.9] if name == early else [0.5, 0.9]
        histories[name] = [history(name, scores, [2, 1])]
    frame = table.comparison(histories, 0.8, (0,)).set_index("method")
    is_early = {name: int(name == early) for name in histories}
    assert frame["reached_at_once"].to_dict() == is_early
    assert math.isnan(frame.loc["srpfl", "speed_up_0"])
    text = table.render(frame.reset_index(), table.Target(0.8, "as asked"))
    assert "≤ 2.0" in text
    assert "x)" not in text


@pytest.mark.usefixtures("no_rounds")
def test_fedavg_and_fedavg_ft_are_one_training(tmp_path, monkeypatch):
    calls = []

    def counted(*args, train=demo.simulate_seeds, **given):
        calls.append(given)
        return train(*args, **given)

    monkeypatch.setattr(demo, "simulate_seeds", counted)
    plan = TINY._replace(methods=("fedavg_ft", "fedavg"), num_rounds=2)
    found = demo.run(tmp_path, seeds=2, plan=plan, progress=False)
    assert len(calls) == 1
    data = srp.data.load("digits", **plan.federation)
    for name, runs in found.histories.items():
        method = srp.methods.get(name, dataset=data, shared=plan.hyperparameters)
        assert runs[0].method == method
        (evaluation,) = runs[0].accuracies
        assert evaluation == method.algorithm.evaluation
