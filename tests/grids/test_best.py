"""The best setting of a grid, chosen on validation data, and its runs again, judged by test data."""

import dataclasses

import numpy as np
import pytest
from reference.small import refused
from test_objects import DATA, MODEL, OPTIONS, Recalled

import fedjax_srp as srp
from fedjax_srp.driver.record import data_checksum


@pytest.mark.usefixtures("no_rounds")
def test_the_best_has_the_largest_score_unless_scores_are_errors(tmp_path):
    fields = {field.name: getattr(DATA, field.name) for field in dataclasses.fields(DATA)}
    losses = srp.data.training_loss(DATA, MODEL.loss)
    options = OPTIONS | {
        "hidden": [4],
        "method": "fedavg",
        "target": 2.0,
    }  # of scores that are no accuracies
    for data, goal in ((Recalled(**fields), max), (losses, min)):
        found = srp.grid(
            axes={"learning_rate": [0.001, 0.5]}, options=options | {"data": data}, out=tmp_path / data.score_name,
            progress=False,
        )  # fmt: skip
        scores = {
            name: history.final_accuracy for name, history in found.histories.items()
        }
        assert found.best(judged_on="test") == [goal(scores, key=scores.__getitem__)]
    axes = {
        "data": {"recall": Recalled(**fields), "loss": losses},
        "learning_rate": [0.001, 0.5],
    }
    both = srp.grid(axes=axes, options=options, out=tmp_path / "both", progress=False)
    scores = {name: history.final_accuracy for name, history in both.histories.items()}
    *recalls, low, high = scores
    expected = [
        max(recalls, key=scores.__getitem__),
        min(low, high, key=scores.__getitem__),
    ]
    assert both.best(judged_on="test", per="data") == expected
    with refused(
        "best: the scores of some runs are errors, of others not; give per, the data"
    ):
        both.best(judged_on="test")
    with refused("target=2.0: accuracies lie between 0 and 1; give 0.9 for 90 %"):
        srp.grid(options=options | {"data": DATA}, out=tmp_path, progress=False)


@pytest.mark.usefixtures("no_rounds")
def test_reruns_that_are_one_run_without_validation_are_refused(tmp_path):
    options = OPTIONS | {"method": "fedavg", "hidden": [4], "data": DATA}
    found = srp.grid(
        axes={"validation": [0.25, 0.5]}, options=options, out=tmp_path, progress=False
    )
    with refused(
        "validation=0.25 and validation=0.5 are the same run without validation; name one of them"
    ):
        found.rerun(list(found.folders), progress=False)
    with refused("validation=20.0 must be below 1"):
        srp.grid(options=options | {"validation": 20.0}, out=tmp_path, progress=False)


@pytest.mark.usefixtures("no_rounds")
def test_the_best_is_chosen_on_validation_and_judged_on_test(tmp_path, monkeypatch):
    axes = {"learning_rate": [0.001, 0.5], "seed": [0, 1]}
    options = OPTIONS | {"method": "fedavg", "hidden": [4], "data": DATA, "batch_size": 4}
    validation = {"validation": 0.25, "partition_seed": 3}
    tuning = srp.grid(
        axes=axes, options=options | validation, out=tmp_path, batch=4, progress=False
    )
    best = tuning.best()
    means = tuning.summary().groupby("learning_rate")["final_accuracy"].mean()
    assert best == [f"learning_rate={means.idxmax():g}, seed={seed}" for seed in (0, 1)]
    found = tuning.rerun(best, batch=2, progress=False)
    assert list(found.folders) == best
    failed = {name: folder for name, folder in tuning.folders.items() if name != best[0]}
    assert set(dataclasses.replace(tuning, folders=failed).best()).isdisjoint(best)
    for name in best:
        chosen, judged = tuning.histories[name], found.histories[name]
        assert judged.test_count.tolist() == np.asarray(DATA.test_counts).tolist()
        assert chosen.test_count.tolist() == [2] * 6  # of 8 training examples
        held_out = data_checksum(srp.data.holdout(DATA, 0.25, seed=3))
        assert (
            chosen.config["data"]["checksum"]
            == held_out
            != judged.config["data"]["checksum"]
        )
        assert judged.config["data"]["checksum"] == data_checksum(DATA)
        assert judged.config["method"] == chosen.config["method"]
        assert (
            judged.config["key"]
            == chosen.config["key"]
            == [0, tuning.values[name]["seed"]]
        )
    with pytest.raises(
        ValueError, match=r"judged by test data; give validation=0\.2 under options"
    ):
        found.best()
    assert sorted(found.best(judged_on="test")) == sorted(best)
    with pytest.raises(ValueError, match="already judged by test data"):
        found.rerun(best)
    with pytest.raises(ValueError, match="unknown run 'nothing'"):
        tuning.rerun(["nothing"])
    with refused("workers=-1 must be at least 0"):
        tuning.rerun(best, workers=-1)
    for unknown in ("beauty", "diverged"):
        with pytest.raises(ValueError, match=f"by='{unknown}' is unknown"):
            tuning.best(by=unknown)
    both = [
        f"learning_rate={rate:g}, seed={seed}" for rate in (0.001, 0.5) for seed in (0, 1)
    ]
    assert tuning.best(per="learning_rate") == both
    with pytest.raises(
        ValueError, match=r"per='method' is unknown; choose from learning_rate$"
    ):
        tuning.best(per="method")
    timed = tuning.summary().assign(simulated_time=lambda rows: rows["learning_rate"])
    monkeypatch.setattr(type(tuning), "_summary", lambda *_: timed)
    small, large = (
        [f"learning_rate={rate:g}, seed={seed}" for seed in (0, 1)]
        for rate in (0.001, 0.5)
    )
    assert list(timed["run"]) == small + large
    assert tuning.best(by="simulated_time") == small
    timed["time_to_target"] = [np.inf, 1.0, 5.0, 6.0]
    assert tuning.best(by="time_to_target") == large
    timed["time_to_target"] = np.inf
    with refused("best: no setting has a number as time_to_target in each of its runs"):
        tuning.best(by="time_to_target")
    for accuracies in (
        [0.9, 0.1, 0.6, 0.6],
        [np.nan, 0.9, 0.6, 0.6],
    ):  # by the mean; a run that diverged is not hidden
        timed["final_accuracy"] = accuracies
        assert tuning.best() == large
