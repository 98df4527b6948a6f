"""The demo end to end, and the numbers in its table."""

import math

import numpy as np
import pandas as pd
import pytest
from reference.histories import made_history

from fedjax_srp import History
from fedjax_srp.lab.commands import demo
from fedjax_srp.lab.commands.report import COMMUNICATIONS
from fedjax_srp.lab.report import table

TINY = demo.OPTIONS | {
    "num_clients": 10,
    "hidden": (8,),
    "epochs": 1,
    "rounds_per_stage": 2,
}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Folder, text and histories of a quick demo in this process."""
    folder = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "OPTIONS", TINY)
        patch.setattr(demo, "QUICK_ROUNDS", 6)
        patch.setattr(demo, "cores", list)
        text = demo.run(str(folder), seeds=2, quick=True, progress=False)
    histories = {}
    for run in pd.read_csv(folder / "runs.csv").itertuples():
        (place,) = folder.glob(f"{run.method}_seed={run.seed}-*")
        histories.setdefault(run.method, []).append(History.load(place))
    return folder, text, histories


def test_everything_is_written_and_can_be_read(found):
    folder, text, histories = found
    assert (folder / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "table.txt").read_text("utf-8").strip() in text
    assert (folder / "table.csv").read_text().count("\n") == 1 + len(histories)
    assert (folder / "report.html").read_text("utf-8").startswith("<!DOCTYPE html>")
    assert list(histories) == list(demo.QUICK_METHODS)
    for runs in histories.values():
        for seed, run in enumerate(runs):
            assert run.config["key"] == [0, seed]
            assert run.config["schedule"]["num_rounds"] == 6


@pytest.mark.filterwarnings("ignore:.*is an upper bound")
def test_times_in_the_table_are_those_of_the_histories(found):
    folder, _, histories = found
    fedrep = np.mean([run.final_accuracy for run in histories["fedrep"]])
    rows = pd.read_csv(folder / "table.csv", index_col="method")
    (target,) = set(rows["target"])
    assert target == round(target, 3) == pytest.approx(0.95 * fedrep, abs=0.00051)
    for name, runs in histories.items():
        expected = {"final_accuracy": [run.final_accuracy for run in runs]}
        expected["worst_decile"] = [run.worst_decile[-1] for run in runs]
        for cost in COMMUNICATIONS:
            expected[f"time_{cost}"] = [run.time_to(target, cost) for run in runs]
        for column, values in expected.items():
            assert rows.loc[name, column] == pytest.approx(np.mean(values))
    for srpfl, fedrep in zip(*histories.values(), strict=True):
        np.testing.assert_array_equal(srpfl.client_time, fedrep.client_time)
    first, second = (run.client_time for run in histories["srpfl"])
    assert not np.array_equal(first, second)


def history(name, accuracy, times, num_seeds=None, host_seconds=6.0):
    """One client, one evaluation after every round."""
    config = {"machine": {"num_seeds": num_seeds}}
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
    target = table.common_target(histories)
    text = table.render(frame.reset_index(), target)
    assert "3.0 ± 1.4 (3.0x)" in text
    named = frame.rename(index={"fedrep": "a_b, x=1 %"}).reset_index()
    comments, _, body = table.latex(named, target, ["last"]).partition("\\begin")
    assert [line[:2] for line in comments.splitlines()] == ["% "] * comments.count("\n")
    assert "judged by: " in comments
    assert comments.endswith("% last\n")
    lines = body.splitlines()
    assert lines[0] == "{tabular}{lrrrrr}"
    assert lines[2].startswith(r"method & accuracy \% & ")
    rows = [line.split(" & ") for line in (lines[2], *lines[4:6])]
    assert [len(cells) for cells in rows] == [6, 6, 6]
    assert rows[1][4] == r"3.0 $\pm$ 1.4 (3.0x)"
    assert rows[2][0] == r"a\_b, x=1 \%"
    assert lines[5].endswith(r" \\")


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
