"""Figures 3 to 6 of the SRPFL paper: runs that are never done twice, and times of another clock."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "experiments" / "srpfl"
spec = importlib.util.spec_from_file_location("srpfl_paper", FOLDER / "paper.py")
assert spec is not None
assert spec.loader is not None
paper = importlib.util.module_from_spec(spec)
sys.modules["srpfl_paper"] = paper  # dataclasses and pickles look their module up
spec.loader.exec_module(paper)

SETTING = paper.SETTINGS["smoke"]["digits"]._replace(num_rounds=2, eval_every=1, seeds=1)


def study(figure, out, setting=SETTING):
    lines = []
    return paper.Study(paper.FIGURES[figure], setting, out, None, lines.append), lines


@pytest.mark.parametrize("figure", [3, 5])
def test_one_training_run_serves_both_clocks(figure, tmp_path):
    fixed, _ = study(figure, tmp_path / "shared")
    fixed.train("fedavg", 1, together=False)
    other, lines = study(figure + 1, tmp_path / "shared")
    other.train("fedavg", 1, together=False)
    assert not lines  # nothing was trained anew
    (retimed,) = other.histories(["fedavg"], 1)["fedavg"]
    alone, _ = study(figure + 1, tmp_path / "alone")
    alone.train("fedavg", 1, together=False)
    (real,) = alone.histories(["fedavg"], 1)["fedavg"]
    np.testing.assert_array_equal(retimed.compute_time, real.compute_time)
    np.testing.assert_array_equal(retimed.client_time, real.client_time)
    np.testing.assert_allclose(retimed.accuracy, real.accuracy, atol=0.1)  # sums in another order
    (before,) = fixed.histories(["fedavg"], 1)["fedavg"]
    assert (before.compute_time != retimed.compute_time).all()


def test_times_of_a_method_that_looks_at_speed_are_its_own(tmp_path):
    one, _ = study(3, tmp_path)
    one.train("flanp_fedavg", 1, together=False)
    assert (tmp_path / "everybody/fixed_clock/flanp_fedavg/seed_0/summary.json").is_file()
    (history,) = one.histories(["flanp_fedavg"], 1)["flanp_fedavg"]
    with pytest.raises(ValueError, match="participation 'doubling' looks at the clients' speed"):
        paper.under_clock(history, one.method("flanp_fedavg"), one.data, one.clock, 0)


def test_a_run_gives_both_curves_and_is_not_done_twice(tmp_path):
    one, lines = study(3, tmp_path)
    one.train("fedavg", 2, together=True)
    assert len(lines) == 2
    curves = one.histories(["fedavg", "fedavg_ft"], 2)
    assert [h.evaluation for h in curves["fedavg"]] == ["global", "global"]
    assert [h.evaluation for h in curves["fedavg_ft"]] == ["fine_tune", "fine_tune"]
    assert [h.name for h in curves["fedavg_ft"]] == ["fedavg_ft", "fedavg_ft"]
    again, more = study(3, tmp_path)
    again.train("fedavg", 2, together=False)
    assert not more
    changed, _ = study(3, tmp_path, SETTING._replace(num_rounds=3))
    with pytest.raises(SystemExit, match="holds a run with other num_rounds; give another --out"):
        changed.train("fedavg", 2, together=False)


def test_figure_and_tables(tmp_path):
    one, _ = study(3, tmp_path)
    names = ["flanp_fedavg", "flanp_fedavg_ft"]
    one.train("flanp_fedavg", 1, together=False)
    text = paper.report({SETTING.title: one.histories(names, 1)}, 3, tmp_path / "results")
    assert {p.name for p in (tmp_path / "results").iterdir()} == {"figure3.png", "figure3_digits.csv", "figure3.txt"}
    assert "FLANP-FT" in text
    assert "slowest quarter" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--scale", "smoke", "--datasets", "mnits"], "--datasets mnits: --scale smoke has digits"),
        (["--methods", "fedpro"], "invalid choice: 'fedpro'"),
    ],
)
def test_wrong_words_are_named(arguments, words, capsys):
    with pytest.raises(SystemExit) as error:
        paper.main(3, arguments)
    assert error.value.code == 2
    assert words in capsys.readouterr().err


def test_every_curve_of_the_paper_is_there_and_every_training_is_a_method():
    assert len(paper.CURVES) == 9
    assert all(curve.training in paper.methods.names() for curve in paper.CURVES.values())
    assert {name for scale in paper.SETTINGS.values() for name in scale} >= {"cifar10", "cifar100", "emnist", "femnist"}
