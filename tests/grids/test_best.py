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
    axes = {
        "data": {
            "recall": Recalled(**fields),
            "loss": srp.data.training_loss(DATA, MODEL.loss),
        },
        "learning_rate": [0.001, 0.5],
    }
    options = OPTIONS | {"hidden": [4], "method": "fedavg", "target": 2.0}
    both = srp.grid(axes=axes, options=options, out=tmp_path, progress=False)
    scores = {name: history.final_accuracy for name, history in both.histories.items()}
    *recalls, low, high = scores
    best = [max(recalls, key=scores.get), min(low, high, key=scores.get)]
    assert both.best(judged_on="test", per="data") == best
    with refused("best: the scores of some runs are errors, of others not; give per"):
        both.best(judged_on="test")
    with refused("target=2.0: accuracies lie between 0 and 1"):
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


@pytest.fixture
def tuning(tmp_path):
    """Two rates, two seeds, judged on validation data."""
    axes = {"learning_rate": [0.001, 0.5], "seed": [0, 1]}
    options = OPTIONS | {"method": "fedavg", "hidden": [4], "data": DATA}
    options |= {"validation": 0.25, "partition_seed": 3}
    return srp.grid(axes=axes, options=options, out=tmp_path, batch=4, progress=False)


@pytest.mark.usefixtures("no_rounds")
def test_the_best_is_chosen_on_validation_and_judged_on_test(tuning):
    best = tuning.best()
    means = tuning.summary().groupby("learning_rate")["final_accuracy"].mean()
    assert best == [f"learning_rate={means.idxmax():g}, seed={seed}" for seed in (0, 1)]
    found = tuning.rerun(best, batch=2, progress=False)
    assert list(found.folders) == best
    held_out = data_checksum(srp.data.holdout(DATA, 0.25, seed=3))
    for name in best:
        chosen, judged = tuning.histories[name], found.histories[name]
        assert judged.test_count.tolist() == np.asarray(DATA.test_counts).tolist()
        assert chosen.test_count.tolist() == [2] * 6  # of 8 training examples
        assert chosen.config["data"]["checksum"] == held_out
        assert judged.config["data"]["checksum"] == data_checksum(DATA) != held_out
        for same in ("method", "key"):
            assert judged.config[same] == chosen.config[same]
    with refused("judged by test data; give validation=0.2 under options"):
        found.best()
    assert sorted(found.best(judged_on="test")) == sorted(best)
    with refused("already judged by test data"):
        found.rerun(best)
    with refused("unknown run 'nothing'"):
        tuning.rerun(["nothing"])


@pytest.mark.usefixtures("no_rounds")
def test_the_best_by_any_number_has_it_in_each_of_its_runs(tuning, monkeypatch):
    small, large = (
        [f"learning_rate={rate:g}, seed={seed}" for seed in (0, 1)]
        for rate in (0.001, 0.5)
    )
    assert tuning.best(per="learning_rate") == small + large
    failed = dict(list(tuning.folders.items())[1:])
    assert dataclasses.replace(tuning, folders=failed).best() == large
    with refused("by='beauty' is unknown"):
        tuning.best(by="beauty")
    with refused("per='method' is unknown; choose from learning_rate$"):
        tuning.best(per="method")
    score_at_end = tuning.summary()["final_accuracy"].min()
    goal = {"by": "time_to_target", "target": score_at_end / 2}
    bounds = "time_to_target of 4 of 4 runs"
    with pytest.warns(UserWarning, match=bounds) as caught:
        best = tuning.best(**goal, communication=1.0)
    assert best in (small, large)
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match=bounds) as caught:
        times = tuning.sweep(**goal)
    assert caught[0].filename == __file__
    assert times["time_to_target"].notna().all()
    with refused("time_to_target in each of its runs; target=None: give one"):
        tuning.best(by="time_to_target")
    rows = tuning.summary()
    rows["simulated_time"] = rows["learning_rate"]
    monkeypatch.setattr(type(tuning), "_summary", lambda *_: rows)
    assert tuning.best(by="simulated_time") == small
    rows["time_to_target"] = [np.inf, 1.0, 5.0, 6.0]
    assert tuning.best(by="time_to_target") == large
    rows["time_to_target"] = np.inf
    with refused("best: no setting has a number as time_to_target in each.*give one"):
        tuning.best(by="time_to_target")
    # By the mean; a run that diverged is not hidden.
    for accuracies in ([0.9, 0.1, 0.6, 0.6], [np.nan, 0.9, 0.6, 0.6]):
        rows["final_accuracy"] = accuracies
        assert tuning.best() == large
