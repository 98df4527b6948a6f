"""The table of a search, and the warning about a best value at the end of its axis."""

import warnings

import numpy as np
import pytest
from reference.histories import made_history
from small_grid import grid

from fedjax_srp.lab.grids.result import Grid
from fedjax_srp.results import json_files

RATES = (0.01, 0.1, 1.0)
FINAL = {  # by rate and seed
    "inside": {0.01: (0.5, 0.6), 0.1: (0.8, 0.9), 1.0: (0.2, 0.1)},
    "largest": {0.01: (0.5, 0.6), 0.1: (0.6, 0.7), 1.0: (0.9, 0.8)},
    "smallest": {0.01: (0.9, 0.8), 0.1: (0.6, 0.7), 1.0: (0.2, 0.1)},
}


@pytest.fixture
def search(tmp_path, monkeypatch):
    """A grid of two seeds and three rates that has run, with made-up accuracies."""
    axes = {"learning_rate": RATES, "seed": (0, 1)}
    planned = grid(
        tmp_path, axes, options={"method": "fedavg", "validation": 0.25}, dry_run=True
    )
    json_files.write_json(
        tmp_path / "summary.json", {"communication": 0.0, "target": None}
    )
    folders = dict.fromkeys(planned.points, tmp_path)
    found = Grid(tmp_path, folders, planned.values, points=planned.points)
    finals = {}

    def histories(self):
        made = {}
        for name, values in self.values.items():
            final = finals[values["learning_rate"]][values["seed"]]
            made[name] = made_history([final], [1.0], clients=2)
        return made

    monkeypatch.setattr(Grid, "histories", property(histories))

    def with_finals(case):
        finals.update(FINAL[case])
        return found

    return with_finals


@pytest.mark.usefixtures("no_rounds")
@pytest.mark.parametrize("case", ["largest", "smallest"])
def test_a_best_value_at_the_end_of_its_axis_is_warned_of(search, case):
    value = {"largest": 1.0, "smallest": 0.01}[case]
    message = f"learning_rate={value}, the {case} of 3 values tried"
    with pytest.warns(UserWarning, match=message) as caught:
        best = search(case).best()
    assert best == [f"learning_rate={value:g}, seed={seed}" for seed in (0, 1)]
    assert caught[0].filename == __file__


@pytest.mark.usefixtures("no_rounds")
def test_a_best_value_inside_or_on_an_axis_of_per_is_not(search):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        search("inside").best()
        assert len(search("largest").best(per="learning_rate")) == 6


@pytest.mark.usefixtures("no_rounds")
def test_the_table_of_a_sweep_has_a_row_for_each_setting(search):
    table = search("inside").sweep()
    assert table.columns.tolist() == [
        "learning_rate",
        "runs",
        "final_accuracy",
        "final_accuracy_std",
    ]
    assert table["learning_rate"].tolist() == list(RATES)
    assert table["runs"].tolist() == [2, 2, 2]
    np.testing.assert_allclose(table["final_accuracy"], [0.55, 0.85, 0.15])
    np.testing.assert_allclose(table["final_accuracy_std"], np.sqrt(0.005))
    with pytest.raises(ValueError, match="by='beauty' is unknown"):
        search("inside").sweep(by="beauty")
