"""Command line: the folder of a run; finished, killed, longer and overwritten runs; other processes."""

import contextlib
import json
import os
import shutil

import numpy as np
import pytest
from command_line import (
    CLIENTS,
    TINY,
    WITH,
    assert_refusal,
    contents,
    main,
    simulated,
)
from reference.small import assert_same_bits

import fedjax_srp as srp
from fedjax_srp.driver.checkpoint import Checkpoints
from fedjax_srp.lab.runs import folder as run_folder
from fedjax_srp.lab.runs import run as runs
from fedjax_srp.results import json_files, records
from fedjax_srp.results.history import History
from fedjax_srp.results.locks import held


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli") / "run"
    log = folder.with_suffix(".jsonl")
    assert main(*TINY, "--out", folder, *WITH, "--log", log) == 0
    return folder


def test_a_run_is_what_simulate_computes(finished):
    expected, history = (
        simulated(srp.data.load("digits", **CLIENTS), target=0.99),
        History.load(finished),
    )
    np.testing.assert_array_equal(history.accuracy, expected.accuracy)
    np.testing.assert_array_equal(history.compute_time, expected.compute_time)
    assert history.cohort_size.tolist() == [5, 5, 10, 10]


def test_a_log_has_the_rounds(finished):
    rows = [
        json.loads(line)
        for line in finished.with_suffix(".jsonl").read_text().splitlines()
    ]
    history = History.load(finished)
    assert [row["elapsed"] for row in rows] == history.elapsed().tolist()
    assert [
        row["accuracy_fine_tune"] for row in rows if "accuracy_fine_tune" in row
    ] == history.mean_accuracy.tolist()


def test_the_folder_records_all_options(finished):
    names = "accuracy.png checkpoint clients.csv config.json history.csv summary.json"
    assert sorted(path.name for path in finished.iterdir()) == names.split()
    config = json.loads((finished / "config.json").read_text())["config"]
    assert config["key"] == [0, 3]
    assert config["method"]["name"] == "srpfl"
    algorithm = config["method"]["algorithm"]
    assert algorithm["training"]["optimizer"]["learning_rate"] == 0.01  # a default
    assert algorithm["model"]["hidden"] == config["model"]["hidden"] == [8]
    assert config["data"]["options"]["name"] == "digits"
    assert config["clock"]["part"] == "fedjax_srp.clocks.fixed.Fixed"
    summary = json.loads((finished / "summary.json").read_text())
    assert summary["communication"] == 10
    assert summary["time_to_target"] == "inf"


def test_a_finished_run_is_reported_and_not_changed(finished, capsys):
    before = (finished / "summary.json").stat().st_mtime_ns
    words = (*TINY, "--out", finished, *WITH)
    assert main(*words) == 0
    assert "finished" in capsys.readouterr().out
    assert (finished / "summary.json").stat().st_mtime_ns == before


@pytest.mark.long
def test_a_finished_run_gets_a_summary_for_another_cost(finished, tmp_path, capsys):
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    before = contents(folder)
    words = (
        *TINY,
        "--out",
        folder,
        "--seed",
        3,
        "--target",
        0.99,
        "--models",
        "--communication",
    )
    assert main(*words, 10) == 0
    before = contents(folder)
    assert any(name.startswith("models") for name in before)
    assert main(*words, -1) == 2
    assert "communication must be finite and >= 0, got -1.0" in capsys.readouterr().err
    assert contents(folder) == before
    assert main(*words, 3) == 0
    assert (
        "summary and figure are now those of communication=3" in capsys.readouterr().out
    )
    after = contents(folder)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"summary.json", "accuracy.png"}
    assert after.keys() == before.keys()
    summary, history = (
        json.loads((folder / "summary.json").read_text()),
        History.load(folder),
    )
    assert (summary["communication"], summary["simulated_time"]) == (
        3,
        history.elapsed(3)[-1],
    )
    assert main(*words, 10) == 0  # and back
    assert {name for name in before if before[name] != contents(folder)[name]} == set()


def test_data_may_lie_elsewhere_on_another_machine(finished, tmp_path, capsys):
    folder = shutil.copytree(finished, tmp_path / "run")
    words = (*TINY, *WITH, "--data-dir", tmp_path / "elsewhere", "--out", folder)
    assert main(*words) == 0
    assert "holds this run already, finished" in capsys.readouterr().out
    assert main(*words, "--num-rounds", 7) == 0
    assert "continuing" in capsys.readouterr().out
    assert History.load(folder).num_rounds == 7


def test_a_finished_run_is_recognised_under_another_version(
    finished, monkeypatch, capsys
):
    before = contents(finished)
    monkeypatch.setattr(records, "__version__", "99.9")
    assert main(*TINY, *WITH, "--out", finished) == 0
    printed = capsys.readouterr().out
    assert "holds this run already, finished" in printed
    assert f"made with fedjax_srp {srp.__version__}, this is 99.9" in printed
    assert contents(finished) == before


def test_a_run_judged_by_validation_data_is_another_run(finished, tmp_path, capsys):
    words = (*TINY, *WITH, "--validation", 0.2, "--out")
    assert main(*words, finished) == 2
    assert (
        "holds another run, with data.options.validation=None where this one has 0.2; give"
        in capsys.readouterr().err
    )
    assert main(*words, tmp_path / "tuning") == 0
    history, plain = History.load(tmp_path / "tuning"), History.load(finished)
    assert history.config["data"]["options"]["validation"] == 0.2
    assert history.config["data"]["checksum"] != plain.config["data"]["checksum"]
    assert history.test_count.tolist() == [2] * 10  # of ten training examples
    expected = simulated(srp.data.holdout(srp.data.load("digits", **CLIENTS), 0.2))
    np.testing.assert_array_equal(history.accuracy, expected.accuracy)
    for folder in (finished, tmp_path / "tuning"):
        shutil.copytree(folder, tmp_path / "both" / folder.name)
    assert main("report", tmp_path / "both") == 0
    note = "judged by training data that were held out, not by test data: SRPFL, validation=0.2\n"
    assert note in capsys.readouterr().out


SAVE = Checkpoints.save


def killed_while_running(self, num_rounds, *rest):
    SAVE(self, num_rounds, *rest)
    raise KeyboardInterrupt


def test_a_killed_run_continues_to_the_same_bytes(
    finished, tmp_path, monkeypatch, capsys
):
    words = (*TINY, *WITH, "--out", tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", killed_while_running)
        assert main(*words) == 130
    assert "interrupted" in capsys.readouterr().err
    assert main(*words) == 0
    assert "continuing" in capsys.readouterr().out
    for name in ("history.csv", "clients.csv"):
        assert (tmp_path / "run" / name).read_bytes() == (finished / name).read_bytes()
    assert [
        path.name for path in (tmp_path / "run" / "checkpoint").iterdir() if path.is_dir()
    ] == ["4"]


def test_overwrite_replaces_the_old_result_when_the_new_one_is_finished(
    finished, tmp_path, monkeypatch, capsys
):
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    (folder / "notes.txt").write_text("mine")
    (folder / "checkpoint" / "2").mkdir(parents=True)
    (folder / "checkpoint" / "2" / "state").write_text("hours of work")
    before = contents(folder)
    words = (*TINY, "--out", folder, "--seed", 4, "--overwrite")
    assert main(*words, "--chunk-size", 0) == 2  # found by simulate
    assert main(*words, "--clock", "fixd") == 2
    assert {
        name: text for name, text in contents(folder).items() if "overwriting" not in name
    } == before

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", killed_while_running)
        assert main(*words) == 130
    assert contents(folder).items() >= before.items()
    capsys.readouterr()
    assert main(*words) == 0
    assert "continuing" in capsys.readouterr().out
    assert {path.name for path in folder.iterdir()} == {
        path.name for path in finished.iterdir()
    } | {"notes.txt"}
    assert History.load(folder).config["key"] == [0, 4]
    asked = json_files.read_json(folder / "checkpoint" / "arguments.json")
    assert asked["key"] == [0, 4]


def test_a_finished_run_is_made_longer(finished, tmp_path, capsys):
    folder, whole = tmp_path / "run", tmp_path / "whole"
    shutil.copytree(finished, folder)
    assert main(*TINY, *WITH, "--out", folder, "--num-rounds", 7, "--no-checkpoint") == 2
    assert (
        "holds this run with num_rounds=4, and no checkpoint to resume from"
        in capsys.readouterr().err
    )
    assert main(*TINY, *WITH, "--out", folder, "--num-rounds", 7, "--models") == 0
    assert "continuing" in capsys.readouterr().out
    assert (
        main(
            *TINY, *WITH, "--out", whole, "--num-rounds", 7, "--models", "--no-checkpoint"
        )
        == 0
    )
    assert not (whole / "checkpoint").exists()
    assert [
        path.name for path in sorted((folder / "checkpoint").iterdir()) if path.is_dir()
    ] == ["6", "7"]
    for name in ("history.csv", "clients.csv"):
        assert (folder / name).read_bytes() == (whole / name).read_bytes()
    longer, expected = History.load(folder), History.load(whole)
    assert_same_bits(longer.server_state, expected.server_state)
    assert_same_bits(longer.client_states, expected.client_states)
    assert longer.client_states["head"]["out"]["kernel"].shape == (10, 8, 10)

    before = contents(folder)
    for words, message in (
        (("--num-rounds", 5), "num_rounds=5: checkpoint_dir="),
        (
            ("--num-rounds", 7, "--target", 0.01),
            "holds 7 rounds of this run, it would end after 2; give the limits",
        ),
        (
            ("--num-rounds", 7, "--seed", 4),
            "another run, with key=[0, 3] where this one has [0, 4]; give another --out, or",
        ),
    ):
        assert main(*TINY, *WITH, "--out", folder, *words) == 2
        assert message in capsys.readouterr().err
    (whole / "config.json").write_text("{")
    assert main(*TINY, *WITH, "--out", whole, "--num-rounds", 7) == 2
    assert (
        "config.json is not that of a run; give another --out, or --overwrite"
        in capsys.readouterr().err
    )
    assert contents(folder).items() >= before.items()


def test_models_of_a_finished_run_come_from_its_checkpoint(finished, tmp_path, capsys):
    folder = shutil.copytree(finished, tmp_path / "run")
    assert main(*TINY, *WITH, "--out", folder, "--models") == 0
    assert History.load(folder).server_state is not None
    assert (folder / "history.csv").read_bytes() == (
        finished / "history.csv"
    ).read_bytes()
    longer = (*TINY, *WITH, "--out", folder, "--num-rounds", 5)
    assert main(*longer) == 0  # which keeps models
    assert History.load(folder).num_rounds == 5
    assert History.load(folder).server_state is not None
    shutil.rmtree(folder / "checkpoint")
    shutil.rmtree(folder / "models")
    assert main(*longer, "--models") == 2
    assert (
        "holds this run with no models, and no checkpoint to resume from"
        in capsys.readouterr().err
    )


def test_a_folder_in_use_is_refused(finished, tmp_path, capsys):
    with held(tmp_path, "out"):
        assert main(*TINY, "--out", tmp_path) == 2
    assert f"out='{tmp_path}': process {os.getpid()} on " in capsys.readouterr().err


def test_a_folder_that_another_process_creates_meanwhile_is_not_changed(
    finished, tmp_path, monkeypatch, capsys
):
    load = runs.load_data

    def while_loading(other_process):
        def loaded(given):
            monkeypatch.setattr(runs, "load_data", load)
            other_process()
            return load(given)

        monkeypatch.setattr(runs, "load_data", loaded)

    with contextlib.ExitStack() as other:

        def begins():
            other.enter_context(held(tmp_path / "begun", "out"))
            (tmp_path / "begun" / "checkpoint" / "2").mkdir(parents=True)
            (tmp_path / "begun" / "checkpoint" / "2" / "state").write_text(
                "hours of work"
            )

        while_loading(begins)
        assert main(*TINY, *WITH, "--out", tmp_path / "begun") == 2
        assert f"process {os.getpid()} on " in capsys.readouterr().err
        assert (
            tmp_path / "begun" / "checkpoint" / "2" / "state"
        ).read_text() == "hours of work"

    while_loading(lambda: shutil.copytree(finished, tmp_path / "ended"))
    assert main(*TINY, *WITH, "--out", tmp_path / "ended") == 0
    assert "holds this run already, finished" in capsys.readouterr().out
    assert contents(tmp_path / "ended") == contents(finished)


def test_report_reads_the_runs(finished, tmp_path, capsys):
    assert (
        main(
            "report",
            finished,
            "--out",
            tmp_path,
            "--target",
            0.1,
            "--communications",
            0,
            5,
        )
        == 0
    )
    text = capsys.readouterr().out
    assert "SRPFL" in text
    assert "time at C = 5" in text
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("accuracy.pdf", "accuracy.png", "groups.csv", "report.html"),
        *("table.csv", "table.tex", "table.txt"),
    ]


def test_a_run_saved_from_python_is_that_of_the_command(finished, tmp_path, capsys):
    folder = shutil.copytree(finished, tmp_path / "run")
    history = simulated(srp.data.load("digits", **CLIENTS), target=0.99)
    history.save(folder)
    assert main(*TINY, *WITH, "--out", folder) == 0
    assert "holds this run already" in capsys.readouterr().out
    wider = ["9" if word == "8" else word for word in TINY]
    assert main(*wider, *WITH, "--out", folder) == 2
    assert_refusal(capsys.readouterr().err, "method.algorithm.model.hidden=[8]")


RECORDS = ({"method": 7}, {"method": {"algorithm": [1]}}, {"data": []}, {"schedule": "x"})


@pytest.mark.parametrize("record", RECORDS, ids=str)
def test_a_record_of_checkpoints_with_another_structure_is_a_damaged_one(
    record, finished, tmp_path, monkeypatch
):
    folder = shutil.copytree(finished, tmp_path / "run")
    for name in ("config.json", "summary.json"):
        (folder / name).unlink()
    json_files.write_json(folder / "checkpoint" / "arguments.json", record)
    monkeypatch.setattr(run_folder, "save", lambda *arguments: None)
    monkeypatch.setattr(run_folder, "outcome", lambda *arguments: "")
    assert main(*TINY, *WITH, "--out", folder) == 0
    asked = json_files.read_json(folder / "checkpoint" / "arguments.json")
    assert asked["key"] == [0, 3]


def test_what_a_failed_removal_left_among_the_checkpoints_goes_with_the_next_command(
    finished, tmp_path
):
    folder = shutil.copytree(finished, tmp_path / "run")
    hidden = folder / "checkpoint" / ".1.0123abcd.gone"
    hidden.mkdir()
    (hidden / "contents.json").write_text("")
    assert main(*TINY, *WITH, "--out", folder) == 0
    assert contents(folder) == contents(finished)
    assert not hidden.exists()
