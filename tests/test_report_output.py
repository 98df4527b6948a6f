"""Table, figure and files of a report."""

import dataclasses
import math
import shutil

import numpy as np
import pandas as pd
import pytest
from report.test_page_files import content
from test_report import CLOCK, DATA, made_by, rows, run

from fedjax_srp.lab.commands import cli
from fedjax_srp.lab.commands.report import report
from fedjax_srp.lab.report import panels, table
from fedjax_srp.lab.report.panels import figure
from fedjax_srp.results import csv_files


def test_files_of_an_earlier_report_are_removed_and_no_others(save, tmp_path):
    def written():
        return {path.name for path in tmp_path.iterdir() if path.is_file()}

    (tmp_path / "notes.csv").write_text("not of a report")
    (first,) = save(run(config=made_by(data={"name": "a"})))
    (other,) = save(run(config=made_by(data={"name": "b"})))
    report(str(tmp_path), None, (0,), None)
    assert len(written()) == 2 * len(panels.FILES) + 2
    shutil.rmtree(other)
    assert "removed" in report(str(tmp_path), None, (0,), None)
    assert written() >= {name.format("") for name in panels.FILES} | {
        "report.html",
        "notes.csv",
    }
    assert not [
        name for name in written() if "_a_" in name
    ]  # which have another name now
    save(run(config=made_by(data={"name": "c"})))
    shutil.copytree(
        first, tmp_path, dirs_exist_ok=True
    )  # a run with others below it: the figure is that of the run
    shutil.rmtree(first)
    (tmp_path / "accuracy.png").write_bytes(b"of the run")
    report(str(tmp_path), None, (0,), None)
    assert (tmp_path / "accuracy.png").read_bytes() == b"of the run"


def test_a_full_disk_leaves_the_report_unchanged(save, tmp_path, monkeypatch, capsys):
    save(run())
    report(str(tmp_path), None, (0,), None)
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    assert len(before) == 1 + len(panels.FILES)
    save(run(config=made_by(key=1)))

    def full(path):
        path.write_bytes(b"a part")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(csv_files, "as_csv", lambda table: full)
    assert cli.main(["report", str(tmp_path)], set_up_cores=False) == 2
    assert (
        f"error: No space left on device: '{tmp_path}'; what was written"
        in capsys.readouterr().err
    )
    assert {
        path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()
    } == before


def test_unknown_host_seconds_are_a_dash(save, tmp_path):
    save(run(host_seconds=math.nan))
    _, text = rows(tmp_path)
    assert text.splitlines()[4].endswith("  -")


ODD = {  # case -> runs, mean time to the target
    "repeats without a common time": (
        [{"times": 1.0}, {"times": 1000.0}],
        (3 + 3000) / 2,
    ),
    "all diverged": ([{"scores": [math.nan] * 3}], math.inf),
}


@pytest.mark.parametrize(("made", "time"), ODD.values(), ids=ODD)
def test_odd_runs_have_table_and_figure(made, time, save, tmp_path, monkeypatch):
    monkeypatch.setattr(panels, "figure", figure)
    save(*(run(config=made_by(key=key), **fields) for key, fields in enumerate(made)))
    found, text = rows(tmp_path, (0, 10, 1e6))
    assert float(found.loc["fedrep", "time_0"]) == time
    assert ("not reached" in text) == (time == math.inf)
    assert text.splitlines()[2] == (tmp_path / "table.txt").read_text().splitlines()[0]
    assert (tmp_path / "accuracy.png").read_bytes().startswith(b"\x89PNG")


def test_the_table_has_evaluations_divergence_and_the_communication_of_clocks(
    save, tmp_path
):
    own = {"own_head": np.full((3, 4), 0.5)}
    broken = run(
        scores=(0.3, 0.6, math.nan),
        finite=np.array([True, False, False]),
        config=made_by(key=1),
    )
    save(
        run(),
        broken,
        run(
            accuracies=own,
            config=made_by("ditto", evaluations=["own_head"]),
        ),
    )
    found, text = rows(tmp_path, (0, 10))
    assert found["evaluation"].to_dict() == {"fedrep": "fine_tune", "ditto": "own_head"}
    assert found["diverged"].to_dict() == {"fedrep": 1, "ditto": 0}
    assert "1 of 2 runs diverged" in text
    save(run(config=made_by("fedavg", clock=CLOCK | {"communication": 5.0})))
    found, _ = rows(tmp_path, (0, 10))
    (charged,) = (name for name in found.index if "fedavg" in name.lower())
    assert found["clock_communication"].astype(float).to_dict()[charged] == 5


def test_the_communication_of_a_clock_may_be_within_others_or_unknown():
    charged = CLOCK | {"communication": 5.0}
    failing = {
        "part": "failing",
        "clock": {"part": "available", "clock": charged},
        "rate": 0.1,
    }
    clocks = {"within": failing, "none": CLOCK, "unknown": None}
    histories = {name: [run(config=made_by(clock=of))] for name, of in clocks.items()}
    np.testing.assert_equal(
        table.comparison(histories, 0.8, (0,))["clock_communication"].tolist(),
        [5, 0, math.nan],
    )


def test_a_report_may_use_any_evaluation_that_all_runs_have(save, tmp_path):
    own = {"own_head": np.array([[0.1] * 4, [0.85] * 4, [0.95] * 4])}
    both = run().accuracies | own
    save(run(accuracies=both), run(accuracies=both, config=made_by(key=1)))
    save(run(accuracies={}, eval_round=[], config=made_by(key=5)))  # left out
    report(str(tmp_path), 0.8, (0,), None, "own_head")
    found = pd.read_csv(tmp_path / "table.csv").set_index("method")
    assert found.loc[
        "fedrep", ["evaluation", "runs", "time_0", "final_accuracy"]
    ].tolist() == ["own_head", 2, 2, 0.95]
    save(run(config=made_by("fedavg")))
    with pytest.raises(
        ValueError,
        match=r"evaluation='own_head': .*run3' has fine_tune; choose one that all runs have",
    ):
        report(str(tmp_path), 0.8, (0,), None, "own_head")


def test_a_report_by_another_evaluation_reads_no_models(save, tmp_path):
    one = run()
    both = {"fine_tune": one.accuracy, "own_head": 0.5 * one.accuracy}
    one = dataclasses.replace(one, accuracies=both, server_state={"weights": np.ones(3)})
    one.save(tmp_path / "a", models=True)
    (tmp_path / "a" / "models" / "contents.json").write_text("damaged")
    assert "judged by: own_head" in report(str(tmp_path), None, (0,), None, "own_head")


def test_panels_end_soon_after_the_target_unless_that_cuts_off_most_of_a_run():
    runs = {
        "fedrep": [run(scores=np.linspace(0.1, 0.9, 10))],
        "fedavg": [run(scores=np.linspace(0.1, 0.8, 20))],
    }

    def ends(target, histories=runs):
        drawn = panels.figure(histories, table.Target(target, "as asked"), (0, 10))
        drawn.draw_without_rendering()
        return [ax.get_xlim()[1] for ax in drawn.axes]

    at_target = [
        max(run.time_to(0.3, cost) for (run,) in runs.values()) for cost in (0, 10)
    ]
    assert ends(0.3) == [1.25 * time for time in at_target]
    assert all(end >= 20 for end in ends(0.85))  # one never reaches it
    one = {"fedrep": [run(scores=[0.5] + [0.6] * 9)]}
    assert all(
        end >= 10 for end in ends(0.4, one)
    )  # reached at time 1: all of 10 time units are shown
    assert ends(0.55, one) == [2.5, 27.5]


def test_costs_that_cannot_be_added_to_any_run_have_no_panel():
    overlapping = {"fedbuff": [run(asynchronous=True)]}
    target = table.Target(0.5, "as asked")
    for costs in ((10, 0), (10,)):
        (panel,) = panels.figure(overlapping, target, costs).axes
        assert "cost 0" in panel.get_title()
        assert len(panel.lines) > 1


def test_the_table_is_written_although_the_figure_fails(save, tmp_path, monkeypatch):
    save(run())
    monkeypatch.setattr(panels, "figure", lambda *_: 1 // 0)
    with pytest.warns(
        UserWarning,
        match=r"accuracy.png is left out, it cannot be drawn \(ZeroDivisionError",
    ):
        found, text = rows(tmp_path)
    assert len(found) == 1
    assert (
        "written to " + f"{tmp_path}: table.txt, table.csv, table.tex, groups.csv\n"
        in text
    )
    assert (tmp_path / "report.html").exists()
    assert not (tmp_path / "accuracy.png").exists()


def test_the_table_names_the_split_of_the_evaluation(save, tmp_path):
    save(
        run(
            config=made_by(
                data={"options": DATA | {"validation": 0.2}, "checksum": "5e6f7a8b"}
            )
        )
    )
    found, text = rows(tmp_path)
    assert found["judged_on"].tolist() == ["validation"]
    assert "validation data" in text
    assert content(tmp_path / "report.html")["comparisons"][0]["notes"]
    save(run())
    found, _ = rows(tmp_path)
    assert sorted(found["judged_on"]) == ["test", "validation"]


def test_links_to_run_folders_are_followed(save, tmp_path):
    folder = tmp_path / "compared" / "deep"
    folder.mkdir(parents=True)
    for path in save(run(), run(config=made_by("fedavg"))):
        (folder / path.name).symlink_to(path)
    (folder / "all").symlink_to(folder.parent)  # a circle
    assert sorted(rows(folder.parent)[0].index) == ["fedavg", "fedrep"]


def test_close_costs_have_distinct_columns_and_panels():
    histories = {"fedrep": [run()]}
    frame = table.comparison(histories, 0.9, (1e6, 1e6 + 1))
    assert frame["time_1e+06"].item() == 3 + 3e6
    assert frame["time_1000001.0"].item() == 3 + 3e6 + 3
    drawn = panels.figure(histories, table.Target(0.9, "as asked"), (1e6, 1e6 + 1))
    assert len({ax.get_title() for ax in drawn.axes}) == 2


@pytest.mark.parametrize("censored", ["srpfl", "fedrep"])
def test_a_censored_time_gives_no_speed_up(censored):
    reached, not_reached = (0.3, 0.9, 0.9), (0.3, 0.4, 0.5)
    histories = {
        name: [run(), run(scores=not_reached if name == censored else reached)]
        for name in ("srpfl", "fedrep")
    }
    frame = table.comparison(histories, 0.8, (0, 10))
    assert frame[["speed_up_0", "speed_up_10"]].isna().to_numpy().all()
    text = table.render(frame, table.Target(0.8, "as asked"))
    assert "1 of 2 seeds" in text
    assert "x)" not in text


TARGETS = [  # row -> final accuracies of its runs, target, the row that it is of
    ({"fedrep": [0.9123]}, 0.867, "FedRep"),  # 0.866685, rounded as it is printed
    ({"fedrep": [0.9, 0.7]}, 0.76, "FedRep (mean over runs)"),
    ({"fedavg": [0.90001], "fedbuff": [0.90002], "other": [0.8]}, 0.855, "FedAvg"),
    (
        {"SRPFL, x=1": [0.99], "FedRep, x=1": [0.8], "FedRep, x=2": [0.9]},
        0.855,
        "FedRep, x=2",
    ),
]


@pytest.mark.parametrize(("finals", "accuracy", "of"), TARGETS)
def test_the_common_target_is_of_the_best_row_of_fedrep_or_else_of_all(
    finals, accuracy, of
):
    histories = {
        row: [
            run(scores=(final,), name=row.partition(",")[0].lower()) for final in of_row
        ]
        for row, of_row in finals.items()
    }
    assert table.common_target(histories) == (
        accuracy,
        f"95 % of the final accuracy of {of}",
    )


def test_a_diverged_row_sets_no_common_target_beside_others():
    broken = run(scores=(0.0,), finite=np.zeros(1, bool))
    sound = run(scores=(0.8,), name="fedavg")
    assert table.common_target({"fedrep": [broken], "fedavg": [sound]}).accuracy == 0.76
    assert table.common_target({"fedrep": [broken]}).accuracy == 0


def test_only_an_evaluation_before_training_counts_as_reached_at_once():
    late = run(eval_round=[0, 1, 2])
    frame = table.comparison({"fedrep": [late]}, 0.6, (0,))
    assert (frame["reached_at_once"].item(), frame["time_0"].item()) == (0, 1)
    endless = table.comparison({"fedrep": [run(times=np.inf)]}, 0.99, (0,))
    assert (endless["reached_at_once"].item(), endless["time_0"].item()) == (0, math.inf)


def test_the_table_has_waste_staleness_and_participation():
    one = run(metrics={"wasted_time": [1.0, 2.0, 0.5], "staleness": [0.0, np.nan, 2.0]})
    one = dataclasses.replace(
        one, rounds_taken=[2] + [0] * (one.num_clients - 1), cohort_size=[1, 0, 1]
    )
    row = table.comparison({"fedbuff": [one]}, 0.9, (0,)).iloc[0]
    assert row["wasted_time"] == 3.5
    assert row["staleness"] == 1.0
    assert row["never"] == pytest.approx(1 - 1 / one.num_clients)
    assert row["gini"] == pytest.approx(1 - 1 / one.num_clients)
    assert row["slowest_tenth"] == one.slowest_scores()[-1]
    assert row["bytes_to_target"] == one.bytes_to(0.9)
    unknown = table.comparison({"fedavg": [run()]}, 0.99999, (0,)).iloc[0]
    assert np.isnan([unknown["wasted_time"], unknown["gini"]]).all()
    assert unknown["bytes_to_target"] == np.inf
