"""Arithmetic of `experiments/stragglers` on made-up runs, without training."""

import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from experiments.stragglers import answer_rows, answer_tables, answers, doubling_map

RESULTS = Path(__file__).parents[2] / "experiments" / "stragglers" / "results"


def test_clocks_have_mean_1():
    for name, values in answers.drawn_clocks().items():
        assert values.mean() == pytest.approx(1), name
    assert answers.drawn_clocks()["exponential"].std() == pytest.approx(1, abs=0.02)


def test_order_statistics_agree_with_the_distribution():
    means = doubling_map.order_statistics(8, 0.5)
    assert means.mean() == pytest.approx(1, abs=4 * 0.53 / math.sqrt(8000))
    assert (np.diff(means) > 0).all()
    np.testing.assert_allclose(doubling_map.order_statistics(8, 0.0), 1)


def test_the_rule_of_added_rounds_is_exact_where_it_holds():
    """SRPFL needs 5 rounds more in every federation, so the rule is exact; at equal speeds doubling loses."""
    scale = doubling_map.SCALES["cpu"]
    rows = [
        {
            "clients": n,
            "classes": c,
            "length": 3,
            "seed": 0,
            "share": 0.95,
            "fedrep": r,
            "srpfl": r + 5,
        }
        for n, c, r in [(16, 2, 4), (16, 5, 9), (64, 2, 6), (64, 5, 8), (32, 3, 7)]
    ]
    points, fitted = doubling_map.speed_ups(pd.DataFrame(rows), scale)
    assert fitted["stages"].item() == 5
    np.testing.assert_allclose(points["by_stages"], points["speed_up"])
    assert (points[points["sigma"] == 0]["speed_up"] < 1).all()
    report = doubling_map.rule_errors(points).set_index(["rule", "held_out"])
    assert report.loc[("stages", True), "typical_factor"].item() == pytest.approx(1)
    assert report.loc[("factor", True), "typical_factor"].item() > 1
    one = points.query("clients == 32 and sigma == 0.5 and cost == 1.0").iloc[0]
    times = doubling_map.order_statistics(32, 0.5)
    ours = 3 * (times[3] + times[7] + times[15] + 3) + 3 * (
        times[31] + 1
    )  # stages of 4, 8 and 16, then everybody
    assert one["speed_up"] == pytest.approx(7 * (times[31] + 1) / ours)


def test_the_map_follows_from_its_rounds():
    """Also where a target is an accuracy itself: 0.99 of the mean of 463, 467 and 470 of 480 images is 462 of 480."""
    points, _ = doubling_map.speed_ups(
        doubling_map.rounds_needed(pd.read_csv(RESULTS / "map_rounds.csv")),
        doubling_map.SCALES["cpu"],
    )
    for made, name, precision in (
        (doubling_map.summarize(points), "map.csv", {"rtol": 1e-3}),
        (doubling_map.rule_errors(points), "map_errors.csv", {"atol": 1e-3}),
    ):
        pd.testing.assert_frame_equal(
            made, pd.read_csv(RESULTS / name), check_dtype=False, **precision
        )
    frame = pd.DataFrame({"round": [1, 2], "accuracy": [461 / 480, 462 / 480]})
    assert (
        doubling_map.rounds_to(frame, 0.99 * np.mean([463, 467, 470]) / 480 + 1e-16) == 2
    )


def test_a_target_that_is_an_accuracy_is_reached():
    arrays = {
        "scores/global": np.float32([[[0.8], [0.9]]]), "time": np.ones((1, 2)), "size": np.ones((1, 2), int),
        "wasted": np.zeros((1, 2)), "client_time": np.ones((1, 1)), "rounds_taken": np.full((1, 1), 2),
    }  # fmt: skip
    history = answer_rows.history_of(
        arrays, 0, "global", SimpleNamespace(test_counts=[10]), False
    )
    assert history.time_to(0.9) == 2


def test_the_file_of_all_tables_is_up_to_date(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["answer_tables.py", str(RESULTS)])
    answer_tables.main()
    assert capsys.readouterr().out == (RESULTS / "grid_tables.md").read_text()
