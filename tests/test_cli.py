"""Command line: files, resumed runs, and usage errors, which are one line with exit code 2."""

import contextlib
import dataclasses
import inspect
import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from typing import get_args

import jax
import numpy as np
import pytest
from reference.small import assert_same_bits

import fedjax_srp as srp
from fedjax_srp import storage
from fedjax_srp.bars import tqdm
from fedjax_srp.commands import cli
from fedjax_srp.engine.checkpoint import Checkpoints
from fedjax_srp.history import History
from fedjax_srp.runs import clocks as clock
from fedjax_srp.runs import folder as run_folder
from fedjax_srp.runs import words as run_words
from fedjax_srp.runs.run import Run

TINY = shlex.split(
    "run --method srpfl --dataset digits --num-clients 10 --classes-per-client 3 --max-examples 10 --hidden 8 "
    "--head-epochs 1 --fine-tune-epochs 1 --initial 5 --rounds-per-stage 2 --num-rounds 4 --eval-every 2 --no-progress "
    "--devices 1"
)


WITH = ("--target", 0.99, "--communication", 10, "--seed", 3)
CLIENTS = {"num_clients": 10, "classes_per_client": 3, "max_examples": 10}


def simulated(data, options=(), **run):
    tiny = {"hidden": (8,), "head_epochs": 1, "fine_tune_epochs": 1, "initial": 5, "rounds_per_stage": 2}
    method = srp.methods.get("srpfl", dataset=data, **tiny, **dict(options))
    given = {"num_rounds": 4, "eval_every": 2, "key": jax.random.key(3), "progress": False, "devices": 1}
    return srp.simulate(method, data, **given | run)


def main(*words):
    return cli.main([str(word) for word in words], set_up_cores=False)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli") / "run"
    log = folder.with_suffix(".jsonl")
    assert main(*TINY, "--out", folder, *WITH, "--log", log) == 0
    return folder


@pytest.mark.short("10")
@pytest.mark.parametrize("length", [10, 10**6])  # within a buffer, and beyond it
def test_a_closed_pipe_is_no_error(length):
    """As in `fedjax-srp list | head`."""
    read, write = os.pipe()
    os.close(read)
    code = f"from fedjax_srp.commands import cli, list; list.catalogue = lambda **_: 'x' * {length}; "
    words = [sys.executable, "-c", code + "raise SystemExit(cli.main(['list']))"]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(words, stdout=write, stderr=subprocess.PIPE, text=True, check=False, env=buffered)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_run_is_what_simulate_computes(finished):
    expected, history = simulated(srp.data.load("digits", **CLIENTS), target=0.99), History.load(finished)
    np.testing.assert_array_equal(history.accuracy, expected.accuracy)
    np.testing.assert_array_equal(history.compute_time, expected.compute_time)
    assert history.cohort_size.tolist() == [5, 5, 10, 10]


def test_a_log_has_the_rounds(finished):
    rows = [json.loads(line) for line in finished.with_suffix(".jsonl").read_text().splitlines()]
    history = History.load(finished)
    assert [row["elapsed"] for row in rows] == history.elapsed().tolist()
    assert [row["accuracy_fine_tune"] for row in rows if "accuracy_fine_tune" in row] == history.mean_accuracy.tolist()


def test_the_folder_records_all_options(finished):
    names = "accuracy.png checkpoint clients.csv config.json history.csv summary.json"
    assert sorted(path.name for path in finished.iterdir()) == names.split()
    arguments = json.loads((finished / "config.json").read_text())["config"]["arguments"]
    named = {option for group in run_words.groups().values() for option in group}
    assert {"out", "progress", "checkpoint", "overwrite", "models", "log", "tensorboard"} <= named - set(arguments)
    assert arguments["seed"] == 3
    assert arguments["method"] == "srpfl"
    read = {name for name in srp.methods.option_names("srpfl") if name != "head_layers" and "." not in name}
    assert read <= set(arguments)  # those with a default too
    assert arguments["learning_rate"] == 0.01
    assert "inner_step_size" not in arguments
    assert arguments["hidden"] == [8]
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
    words = (*TINY, "--out", folder, "--seed", 3, "--target", 0.99, "--models", "--communication")
    assert main(*words, 10) == 0
    before = contents(folder)
    assert any(name.startswith("models") for name in before)
    assert main(*words, -1) == 2
    assert "communication=-1.0" in capsys.readouterr().err
    assert contents(folder) == before
    assert main(*words, 3) == 0
    assert "summary and figure are now those of communication=3" in capsys.readouterr().out
    after = contents(folder)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"summary.json", "config.json", "accuracy.png"}
    assert after.keys() == before.keys()
    summary, history = json.loads((folder / "summary.json").read_text()), History.load(folder)
    assert (summary["communication"], summary["simulated_time"]) == (3, history.elapsed(3)[-1])
    assert history.config["arguments"]["communication"] == 3
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


def test_a_run_judged_by_validation_data_is_another_run(finished, tmp_path, capsys):
    words = (*TINY, *WITH, "--validation", 0.2, "--out")
    assert main(*words, finished) == 2
    assert "holds another run, with validation=None where this one has 0.2; give another" in capsys.readouterr().err
    assert main(*words, tmp_path / "tuning") == 0
    history, plain = History.load(tmp_path / "tuning"), History.load(finished)
    assert history.config["arguments"]["validation"] == history.config["dataset_options"]["validation"] == 0.2
    assert history.config["data_checksum"] != plain.config["data_checksum"]
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


def test_a_killed_run_continues_to_the_same_bytes(finished, tmp_path, monkeypatch, capsys):
    words = (*TINY, *WITH, "--out", tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", killed_while_running)
        assert main(*words) == 130
    assert "interrupted" in capsys.readouterr().err
    assert main(*words) == 0
    assert "continuing" in capsys.readouterr().out
    for name in ("history.csv", "clients.csv"):
        assert (tmp_path / "run" / name).read_bytes() == (finished / name).read_bytes()
    assert [path.name for path in (tmp_path / "run" / "checkpoint").iterdir() if path.is_dir()] == ["4"]


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_overwrite_replaces_the_old_result_when_the_new_one_is_finished(finished, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    (folder / "notes.txt").write_text("mine")
    (folder / "checkpoint" / "2").mkdir(parents=True)
    (folder / "checkpoint" / "2" / "state").write_text("hours of work")
    before = contents(folder)
    words = (*TINY, "--out", folder, "--seed", 4, "--overwrite")
    assert main(*words, "--chunk-size", 0) == 2  # found by simulate
    assert main(*words, "--clock", "fixd") == 2
    assert {name: text for name, text in contents(folder).items() if "overwriting" not in name} == before

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", killed_while_running)
        assert main(*words) == 130
    assert contents(folder).items() >= before.items()
    capsys.readouterr()
    assert main(*words) == 0
    assert "continuing" in capsys.readouterr().out
    assert {path.name for path in folder.iterdir()} == {path.name for path in finished.iterdir()} | {"notes.txt"}
    assert History.load(folder).config["seed"] == 4


def test_a_finished_run_is_made_longer(finished, tmp_path, capsys):
    folder, whole = tmp_path / "run", tmp_path / "whole"
    shutil.copytree(finished, folder)
    assert main(*TINY, *WITH, "--out", folder, "--num-rounds", 7, "--no-checkpoint") == 2
    assert "holds this run with num_rounds=4, and no checkpoint to resume from" in capsys.readouterr().err
    assert main(*TINY, *WITH, "--out", folder, "--num-rounds", 7, "--models") == 0
    assert "continuing" in capsys.readouterr().out
    assert main(*TINY, *WITH, "--out", whole, "--num-rounds", 7, "--models", "--no-checkpoint") == 0
    assert not (whole / "checkpoint").exists()
    assert [path.name for path in sorted((folder / "checkpoint").iterdir()) if path.is_dir()] == ["6", "7"]
    for name in ("history.csv", "clients.csv"):
        assert (folder / name).read_bytes() == (whole / name).read_bytes()
    longer, expected = History.load(folder), History.load(whole)
    assert_same_bits(longer.server_state, expected.server_state)
    assert_same_bits(longer.client_states, expected.client_states)
    assert longer.client_states["head"]["out"]["kernel"].shape == (10, 8, 10)

    before = contents(folder)
    for words, message in (
        (("--num-rounds", 5), "num_rounds=5: checkpoint_dir="),
        (("--num-rounds", 7, "--target", 0.01), "holds 7 rounds of this run, it would end after 2; give the limits"),
        (
            ("--num-rounds", 7, "--seed", 4),
            "another run, with seed=3 where this one has 4; give another --out, or",
        ),
    ):
        assert main(*TINY, *WITH, "--out", folder, *words) == 2
        assert message in capsys.readouterr().err
    (whole / "config.json").write_text("{")
    assert main(*TINY, *WITH, "--out", whole, "--num-rounds", 7) == 2
    assert "config.json is not that of a run; give another --out, or --overwrite" in capsys.readouterr().err
    finished_before = {name: text for name, text in before.items() if "arguments.json" not in name}
    assert contents(folder).items() >= finished_before.items()


def test_models_of_a_finished_run_come_from_its_checkpoint(finished, tmp_path, capsys):
    folder = shutil.copytree(finished, tmp_path / "run")
    assert main(*TINY, *WITH, "--out", folder, "--models") == 0
    assert History.load(folder).server_state is not None
    assert (folder / "history.csv").read_bytes() == (finished / "history.csv").read_bytes()
    shutil.rmtree(folder / "checkpoint")
    shutil.rmtree(folder / "models")
    assert main(*TINY, *WITH, "--out", folder, "--models") == 2
    assert "holds this run with no models, and no checkpoint to resume from" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("checkpoint/model.pt", "its checkpoint was not written by fedjax_srp; give another --out"),
        ("checkpoint/2023/photo", "its checkpoint was not written by fedjax_srp; give another --out"),
        ("checkpoint/.git/HEAD", "its checkpoint was not written by fedjax_srp; give another --out"),
        ("checkpoint/arguments.json", "its checkpoint was not written by fedjax_srp; give another --out"),
        ("checkpoint/1/arrays/x", "its checkpoint was not written by fedjax_srp; give another --out"),
        ("checkpoint", "its checkpoint was not written by fedjax_srp; give another --out"),  # as TensorFlow's
        ("models/net.py", "its models was not written by fedjax_srp; give another --out"),
        ("config.json", "config.json is not that of a run; give another --out, or --overwrite"),
        ("history.csv", "its history.csv was not written by fedjax_srp; give another --out, or --overwrite"),
        ("clients.csv", "its clients.csv was not written by fedjax_srp; give another --out, or --overwrite"),
    ],
)
def test_foreign_files_are_refused_and_kept(file, message, tmp_path, capsys):
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text("{}")
    before = contents(tmp_path)
    for further in ([], ["--no-checkpoint"], ["--overwrite"]):
        if further != ["--overwrite"] or "--overwrite" not in message:
            assert main(*TINY, *WITH, *further, "--models", "--out", tmp_path) == 2
            assert message in capsys.readouterr().err
            assert contents(tmp_path) == before


@pytest.mark.parametrize("file", ["config.json", "history.csv"])
def test_foreign_tables_are_overwritten_on_demand(file, tmp_path):
    (tmp_path / file).write_text("{}")
    (tmp_path / "overwriting_notes").mkdir()  # called as a checkpoint of --overwrite
    (tmp_path / "overwriting_notes" / "one").write_text("precious")
    assert main(*TINY, *WITH, "--overwrite", "--out", tmp_path) == 0
    assert (tmp_path / "overwriting_notes" / "one").read_text() == "precious"
    assert History.load(tmp_path).num_rounds
    assert main(*TINY, *WITH, "--out", tmp_path) == 0


def test_a_folder_in_use_is_refused(finished, tmp_path, capsys):
    with storage.held(tmp_path, "out"):
        assert main(*TINY, "--out", tmp_path) == 2
    assert f"out='{tmp_path}': process {os.getpid()} on " in capsys.readouterr().err


def test_a_folder_that_another_process_creates_meanwhile_is_not_changed(finished, tmp_path, monkeypatch, capsys):
    load = run_folder.load_data

    def while_loading(other_process):
        monkeypatch.setattr(run_folder, "load_data", lambda given: (other_process(), load(given))[1])

    with contextlib.ExitStack() as other:

        def begins():
            other.enter_context(storage.held(tmp_path / "begun", "out"))
            (tmp_path / "begun" / "checkpoint" / "2").mkdir(parents=True)
            (tmp_path / "begun" / "checkpoint" / "2" / "state").write_text("hours of work")

        while_loading(begins)
        assert main(*TINY, *WITH, "--out", tmp_path / "begun") == 2
        assert f"process {os.getpid()} on " in capsys.readouterr().err
        assert (tmp_path / "begun" / "checkpoint" / "2" / "state").read_text() == "hours of work"

    while_loading(lambda: shutil.copytree(finished, tmp_path / "ended"))
    assert main(*TINY, *WITH, "--out", tmp_path / "ended") == 0
    assert "holds this run already, finished" in capsys.readouterr().out
    assert contents(tmp_path / "ended") == contents(finished)


def test_a_full_disk_is_one_line(tmp_path, monkeypatch, capsys):
    def full(*args, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pandas.DataFrame.to_csv", full)
    monkeypatch.setattr(run_folder, "simulate", lambda **options: HISTORY)
    assert main(*TINY, "--out", tmp_path) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"fedjax-srp: error: No space left on device: '{tmp_path}'; what was written before")
    assert error.count("\n") == 1
    monkeypatch.setattr(run_folder, "simulate", full)  # says no place, so none is named
    assert main(*TINY, "--out", tmp_path) == 2
    assert capsys.readouterr().err.startswith("fedjax-srp: error: No space left on device; what was written before")


HISTORY = History("srpfl", [1], [0], [5], [1.0], [True], [True], np.ones(10))


@pytest.mark.parametrize("where", ["running", "swallowed", "compiled"])
def test_ctrl_c_ends_the_program_in_a_second_with_one_line(where):
    """Also if a library swallows the interrupt, or while Python waits for compiled code."""
    code = "import hashlib, os, signal, sys, time; from fedjax_srp.commands import interrupt; "
    code += "signal.signal(signal.SIGINT, signal.default_int_handler); interrupt.watch('it ends'); "
    code += "print(flush=True); sys.stdin.readline()\n"
    code += {
        "running": "time.sleep(99)",
        "swallowed": "while True:\n try: time.sleep(99)\n except KeyboardInterrupt: pass",
        "compiled": "hashlib.pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)",  # lets other threads run, and takes minutes
    }[where]
    environment = os.environ | {"XLA_FLAGS": ""}
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([sys.executable, "-c", code], env=environment, text=True, **streams) as process:
        process.stdout.readline()
        process.stdin.write("\n")
        process.stdin.flush()
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=30)
    assert process.returncode == 130
    assert error == "\nit ends\n"


@pytest.mark.long
def test_fine_tuning_has_options_of_its_own(tmp_path, capsys):
    words = (*TINY, "--num-rounds", 2, "--no-checkpoint", "--learning-rate", 0.2, "--out", tmp_path / "run")
    words += ("--fine-tune-optimizer.momentum", 0.5, "--head-optimizer.learning-rate=0.3")
    assert main(*words) == 0
    history = History.load(tmp_path / "run")
    given = {"fine_tune_optimizer.momentum": 0.5, "head_optimizer.learning_rate": 0.3}
    arguments = history.config["arguments"]
    assert {name: value for name, value in arguments.items() if "." in name} == given
    data = srp.data.load("digits", **CLIENTS)
    expected = simulated(data, {"learning_rate": 0.2, **given}, num_rounds=2, key=jax.random.key(0))
    assert expected.method.algorithm.fine_tune_optimizer == srp.SGD(0.2, 0.5)
    np.testing.assert_array_equal(history.accuracy, expected.accuracy)
    assert main(*words) == 0
    assert "holds this run already, finished" in capsys.readouterr().out
    assert main(*words, "--fine-tune-optimizer.momentum", 0.9) == 2
    assert "with fine_tune_optimizer.momentum=0.5 where this one has 0.9" in capsys.readouterr().err
    assert main(*words, "--fine-tune-momentum", 0.9) == 2
    assert "unknown argument --fine-tune-momentum" in capsys.readouterr().err


CLASH = """
from __future__ import annotations
from typing import Annotated
import fedjax_srp as srp


@srp.part
class Mine(srp.algorithms.FedAvg):
    name = "mine"
    alpha: Annotated[float, srp.AtLeast(0)] = 0.5
    checkpoint: bool = False


@srp.part
class Few(srp.participation.Uniform):
    seed: int = 3
    alpha: Annotated[float, srp.AtLeast(0)] = 0.1


def small(input_shape, num_classes, target: int = 4):
    return srp.models.MLP(input_shape, num_classes, hidden=(target,))


srp.methods.register("mine", Mine)
srp.methods.register_participation("few", Few)
srp.models.register("small", small)
"""


@pytest.fixture
def clash(tmp_path):
    """File for --load: parts whose fields have the names of options of the data and of the simulation."""
    (tmp_path / "clash.py").write_text(CLASH)
    words = ("run", "--load", tmp_path / "clash.py", *DATA, "--max-examples", 8, "--num-rounds", 1, "--no-progress")
    return (*words, "--devices", 1)


@pytest.mark.long
def test_an_option_whose_name_is_taken_is_written_with_its_part(clash, tmp_path, capsys):
    out = tmp_path / "run"
    own = ("--method.alpha", 0.25, "--method.checkpoint", "--k", 2, "--participation.seed", 5, "--model.target", 6)
    words = (*clash, "--method", "mine", "--participation", "few", "--model", "small", "--seed", 4, "--out", out)
    assert main(*words, *own) == 2  # both parts have an alpha, and one value would go to both
    assert "alpha: read by its algorithm and by participation 'few'" in capsys.readouterr().err
    words = (*clash, "--method", "mine", "--model", "small", "--seed", 4, "--out", out)
    own = ("--method.alpha", 0.25, "--method.checkpoint", "--model.target", 6, "--target", 0.99)
    assert main(*words, *own) == 0, capsys.readouterr().err
    history = History.load(out)
    options, arguments = history.config["options"], history.config["arguments"]
    assert (options["alpha"], options["checkpoint"], options["hidden"]) == (0.25, True, [6])
    assert (history.config["seed"], history.config["target"]) == (4, 0.99)
    written = {"alpha": None, "method.alpha": 0.25, "method.checkpoint": True, "model.target": 6, "target": 0.99}
    assert {name: arguments[name] for name in written} == written
    capsys.readouterr()
    assert main(*words, *own) == 0
    assert "holds this run already, finished" in capsys.readouterr().out
    assert main(*words, *own, "--method.alpha", 0.5) == 2
    assert "holds another run, with method.alpha=0.25 where this one has 0.5" in capsys.readouterr().err
    assert main(*clash, "--help") == 0
    assert {"--method.checkpoint,", "--participation.alpha", "--checkpoint,"} <= {*capsys.readouterr().out.split()}


def test_an_option_of_a_policy_whose_name_is_taken(clash, tmp_path, capsys):
    words = (*clash, "--method", "fedavg", "--hidden", 4, "--participation", "few", "--k", 2, "--out", tmp_path / "run")
    assert main(*words, "--participation.seed", 5, "--participation.alpha", 0.2) == 0, capsys.readouterr().err
    config = History.load(tmp_path / "run").config
    assert {name: config["options"][name] for name in ("k", "seed", "alpha")} == {"k": 2, "seed": 5, "alpha": 0.2}
    assert (config["seed"], config["dataset_options"]["alpha"]) == (0, None)
    assert config["method"]["participation"]["part"] == "clash.Few"  # as `import clash` knows it


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("fedavg --method.alpha 1", "method.alpha: has no effect on this run"),
        ("fedavg --participation.seed 1", "participation.seed: has no effect on this run"),
        ("mine --model.target 1", "model.target: has no effect on this run"),
        ("mine --method.alpha -1", "alpha=-1.0 must be at least 0"),
        ("mine --method.alhpa 1", "--method.alhpa; did you mean --method.alpha or"),
    ],
)
def test_errors_of_such_options_are_one_line(words, message, clash, tmp_path, capsys):
    assert main(*clash, "--method", *words.split(), "--out", tmp_path / "run") == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


DATA = ("--dataset", "digits", "--num-clients", 10, "--classes-per-client", 3)
RUN = f"run {' '.join(map(str, DATA))}"
ERRORS = {
    f"{RUN} --method srpfl --hidden 32,16": "--hidden 32,16: values are separated by spaces, --hidden 32 16",
    "report runs --communications 0,10": "--communications 0,10: values are separated by spaces, ",
    f"{RUN} --clock 'dynamic:exponential(uniform(0.02, 1))' --num-rounds ten": "--num-rounds: invalid literal",
    "rnu": "unknown command 'rnu' (did you mean run?)",
    f"{RUN} --method srpfll": "unknown method 'srpfll' (did you mean srpfl",
    "run --method srpfl --dataset digit": "dataset='digit': no such data set (did you mean digits?)",
    "run --method srpfl --dataset no.npz": "dataset='no.npz': no such file",
    "run --method srpfl --dataset digits": "num_clients=None",
    f"{RUN} --method srpfl --num-round 3": "unknown argument --num-round; did you mean --num-rounds?",
    f"{RUN} --method srpfl --num-rounds 0": "num_rounds=0",
    f"{RUN} --method srpfl --chunk-size 0": "chunk_size=0",
    f"{RUN} --method srpfl --initial 9 --pool 8": "initial=9 is larger than pool=8",
    f"{RUN} --method srpfl --pool 11": "pool=11 is larger than num_clients=10",
    f"{RUN} --method srpfl --clock 'fixed:exponential(0)'": "rate=0 must be positive",
    f"{RUN} --method srpfl --clock fixd": "unknown clock 'fixd' (did you mean fixed?)",
    f"{RUN} --method srpfl --communication -1": "communication=-1.0",
    f"{RUN} --method srpfl --redraw never": "'never'",
    f"{RUN} --method fedavg --model lstm": "model='lstm' for data set 'digits': ",
    f"{RUN} --method fedavg --learning-rate -1": "learning_rate=-1.0 must be positive",
    f"{RUN} --method fedavg --initial=10": "initial: has no effect on method 'fedavg', only on participation",
    f"{RUN} --method fedavg --head_epochs 5": "head_epochs: has no effect on method 'fedavg', only ",
    f"{RUN} --method srpfl --redraw stage": "redraw: has no effect without a pool",
    f"{RUN} --method srpfl --seed {10**23}": f"seed={10**23}: must lie between 0 and 4294967295",
    f"{RUN} --method srpfl --seed -1": "seed=-1: must lie between 0 and 4294967295",
    f"{RUN} --method srpfl --validation 20": "error: validation=20.0 must be below 1",
    f"{RUN} --method srpfl --partition-seed -1": "error: partition_seed=-1 must be",
    RUN: "--method",
    "report": "FOLDER",
    "report nowhere": "there is no such folder",
    f"report {__file__}": "is a file; give a folder",
    "run --load no.py --method mine --dataset digits": "load='no.py': no such file; give a Python file that registers",
    "demo --seeds 0": "seeds=0",
}


FILES = {
    "syntax": ("def f(:", "line 1: SyntaxError"),
    "import": ("import fedjax_srp\nimport no_such_room", "line 2: ModuleNotFoundError: No module named 'no_such_room'"),
    "exit": ("import sys\n\nsys.exit()", "line 3: SystemExit; python "),
    "exit with words": ("import sys\n\nsys.exit('no\\nGPU')", "line 3: SystemExit: no GPU; python "),
    "call": ("def f():\n    raise TypeError('no')\n\n\nf()\n", "line 2: TypeError: no"),
    "name": ("import fedjax_srp as srp\n\nsrp.methods.register('x', y)", "line 3: NameError: name 'y' is not defined"),
}


@pytest.mark.parametrize("case", FILES)
@pytest.mark.parametrize("command", ["run --method fedavg", "report ."])
def test_errors_of_loaded_files_are_one_line(case, command, tmp_path, capsys):
    text, message = FILES[case]
    (tmp_path / "mine.py").write_text(text)
    assert main(*command.split(), "--load", tmp_path / "mine.py") == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("command", ERRORS, ids=lambda command: command.replace(RUN, "run"))
def test_usage_errors_are_one_line(command, tmp_path, capsys):
    out = () if command.startswith(("rnu", "report")) else ("--out", tmp_path / "run")
    assert main(*shlex.split(command), *out) == 2
    error = capsys.readouterr().err
    assert ERRORS[command] in error
    assert error.startswith("fedjax-srp: error: ")
    assert error.count("\n") == 1
    assert not list(tmp_path.glob("run/*.json"))


def write_npz(path, x, num_classes=3):
    y = np.arange(len(x)) % num_classes
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y)
    return path


SHAPES = {"numbers": ((7,), np.float32), "pixels": ((16, 16), np.uint8), "tokens": ((7,), np.int32)}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    arrays = {name: rng.integers(0, 9, (60, *shape)).astype(dtype) for name, (shape, dtype) in SHAPES.items()}
    (folder / "times.csv").write_text("1,2,3,4,5,6\n6,5,4,3,2,1\n")
    return {name: write_npz(folder / f"{name}.npz", x) for name, x in arrays.items()} | {"times": folder / "times.csv"}


@pytest.mark.parametrize(
    ("name", "model", "message"),
    [
        ("numbers", "lstm", "model 'lstm' takes integer tokens, data set 'numbers' has float32 inputs; choose model="),
        ("tokens", "mlp", "model 'mlp' takes floats, data set 'tokens' has int32 inputs; choose model='lstm'"),
    ],
)
def test_a_model_for_other_inputs_is_a_usage_error(name, model, message, files, tmp_path, capsys):
    words = ("run", "--method", "fedavg", "--dataset", files[name], "--num-clients", 6, "--model", model)
    assert main(*words, "--out", tmp_path, "--no-progress") == 2
    assert message in capsys.readouterr().err


@pytest.mark.short("lg_srpfl-*")
@pytest.mark.parametrize(
    ("method", "name", "options", "cohorts"),
    [
        ("lg_srpfl", "numbers", "--clock random --pool 5 --redraw stage --model mlp --hidden 4 4", [2, 4, 5]),
        ("flanp_fedavg_ft", "pixels", "--clock ordered:fixed --model lenet5 --channels 2 8 --hidden 4 4", [2, 4, 6]),
        ("hf_maml", "tokens", "--clock dynamic:exponential(2) --pool 4 --model lstm --features 4 --dense 4", [4] * 3),
        ("fedrep", "pixels", "--clock trace:TIMES --hidden 4 --augment crop_flip --initialization torch", [6] * 3),
    ],
)
def test_methods_clocks_pools_and_models_go_together(method, name, options, cohorts, files, tmp_path):
    words = ["run", "--method", method, "--dataset", files[name], "--num-clients", 6, "--out", tmp_path]
    words += [*options.replace("TIMES", str(files["times"])).split(), "--num-rounds", 3, "--eval-every", 3]
    doubling = ("--initial", 2, "--rounds-per-stage", 1) if cohorts[0] == 2 else ()
    assert main(*words, *doubling, "--fine-tune-epochs", 1, "--no-progress", "--devices", 1) == 0
    history = History.load(tmp_path)
    assert history.name == method
    assert history.config["options"]["fine_tune_epochs"] == 1
    assert history.cohort_size.tolist() == cohorts
    assert history.diverged is None
    assert np.isfinite(history.final_accuracy)


def test_a_failed_start_does_not_claim_the_folder(tmp_path, capsys):
    assert main("run", "--method", "srpfl", *DATA, "--chunk-size", 0, "--out", tmp_path) == 2
    assert main("run", "--method", "srpfl", *DATA, "--chunk-size", -1, "--out", tmp_path) == 2
    assert "chunk_size=-1" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_to_is_found_before_the_run(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "run"):
        assert main(*TINY, "--out", out) == 2
        assert f"out='{out}'" in capsys.readouterr().err


def test_a_bug_keeps_its_traceback(monkeypatch):
    def bug(arguments):
        np.zeros(2).reshape(3)

    monkeypatch.setitem(cli.COMMANDS, "list", cli.COMMANDS["list"]._replace(run=bug))
    with pytest.raises(ValueError, match="reshape"):
        main("list")


def test_defaults_come_from_the_functions():
    known = {name: option for group in run_words.groups().values() for name, option in group.items()}
    of_run = {field.name: field.default for field in dataclasses.fields(Run)}
    for function in (srp.data.load, srp.simulate):
        for name, parameter in inspect.signature(function).parameters.items():
            if name in known and name not in ("seed", "clock", "num_rounds", "algorithm", "participation"):
                assert known[name].default == parameter.default, name
                assert known[name].help, name
                assert of_run.get(name, parameter.default) == parameter.default, name
    assert of_run.keys() >= run_words.SIMULATION.keys() - {"progress"}
    assert all(option.help for option in known.values())
    for route in map(srp.methods.routes, srp.methods.names()):
        for name, option in {**route.algorithm, **route.policy}.items():
            assert option.is_part or known[name].default is None  # left to the part
            default = " ".join(map(str, option.default)) if isinstance(option.default, tuple) else option.default
            assert default is None or option.is_part or f"default {default}" in known[name].help
    names = [name for group in run_words.groups().values() for name in group]
    assert len(names) == len(set(names))
    choices = [get_args(kind) for option in known.values() for kind in get_args(option.type)]
    assert all(len(each) == len(set(each)) for each in choices)  # of methods that share some
    assert ("global", "fine_tune", "fine_tune_all", "neighbours") in choices


EXPONENTIAL, DEVICES = srp.clocks.Exponential(1.0), srp.clocks.Devices(1e9, srp.clocks.LogNormal(1e6, 1.0), 1e6)
COME_AND_GO = srp.clocks.Available(DEVICES, srp.clocks.DayNight(24.0, 0.5))
CLOCKS = {  # for four clients
    "fixed:constant(3)": srp.clocks.Fixed(srp.clocks.Constant(3.0)),
    "fixed:uniform(low=N, high=N)": srp.clocks.Fixed(srp.clocks.Uniform(4.0, 4.0)),
    "dynamic:exponential(1/(2*N))": srp.clocks.Dynamic(srp.clocks.Exponential(0.125)),
    "dynamic:exponential(constant(0.5))": srp.clocks.Dynamic(srp.clocks.Exponential(srp.clocks.Constant(0.5))),
    "random": srp.clocks.Dynamic(srp.clocks.Exponential(srp.clocks.Uniform(0.25, 1.0))),  # SRPFL, section 5
    "available(fixed(exponential(1)), markov(9, off=5))": srp.clocks.Available(
        srp.clocks.Fixed(EXPONENTIAL), srp.clocks.Markov(9.0, 5.0)
    ),
    "failing(dynamic(exponential(1)), rate=1/N)": srp.clocks.Failing(srp.clocks.Dynamic(EXPONENTIAL), 0.25),
    "devices(1e9, lognormal(1e6, 1), 1e6)": DEVICES,
    "failing(available(devices(1e9, lognormal(1e6, 1), 1e6), daynight(24, 0.5)), 0.1)": srp.clocks.Failing(
        COME_AND_GO, 0.1
    ),
}


@pytest.mark.parametrize("text", CLOCKS)
def test_clocks_are_parsed(text):
    assert clock.parse(text, 4) == CLOCKS[text]


@pytest.mark.long
def test_a_run_of_devices_that_come_and_go(tmp_path):
    words = f"{RUN} --max-examples 10 --method fedavg --hidden 4 --num-rounds 2 --no-progress".split()
    assert main(*words, "--clock", "available(devices(1e6, 1e4, 1e4), markov(10, 5))", "--out", tmp_path) == 0


def test_usage_errors_are_equal_in_a_terminal_without_unicode():
    command = [sys.executable, "-m", "fedjax_srp", *map(str, TINY), "--seed", "1.5"]
    said = [
        subprocess.run(command, env={**os.environ, "PYTHONIOENCODING": kind}, capture_output=True, check=False).stderr
        for kind in ("ascii", "utf-8")
    ]
    assert said[0] == said[1]
    assert said[0].startswith(b"fedjax-srp: error: --seed: invalid literal for int()")


HEADER = b"{'descr': ('<f8', "  # whose brackets end nowhere


@pytest.mark.filterwarnings("ignore")  # as outside of pytest, where they are no errors
@pytest.mark.parametrize(
    ("file", "content"),
    [("times.npy", b"\x93NUMPY\x01\x00" + len(HEADER).to_bytes(2, "little") + HEADER), ("times.csv", b"")],
)
def test_a_trace_that_is_damaged_or_empty_is_refused_in_one_line(file, content, tmp_path):
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ValueError, match=rf"^clock='trace:.*{file}': not a table of numbers .*numpy.savetxt$"):
        clock.parse(f"trace:{tmp_path / file}", 2)


def test_a_trace_is_read_from_a_file(tmp_path):
    (tmp_path / "times.csv").write_text("1,2\n3,4\n")
    np.save(tmp_path / "times.npy", np.array([[1.0, 2.0], [3.0, 4.0]]))
    for name in ("times.csv", "times.npy"):
        assert clock.parse(f"trace:{tmp_path / name}", 2) == srp.clocks.Trace(np.array([[1.0, 2.0], [3.0, 4.0]]))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *[(text, "clock=.*give fixed, random") for text in ("fixed:", "fixed:open('x')", "fixed:constant(M)")],
        ("fixed:constant(1/0)", "clock=.*give fixed, random"),
        ("fixed:3", "distribution=3 must be a Distribution; give one of srp.clocks"),
        ("available", r"clock='available': not understood \(missing .*\); give available\(...\), see"),
        ("failing(fixed(constant(1)), rate=0.1, rate=0.2)", r"not understood \(rate is given twice\); give"),
        ("fixed:exponential(rate=1, rate=2)", r"not understood \(rate is given twice\); give"),
        ("fixed:exponential(1, **N)", r"not understood \('\*\*N' is unknown\); give"),
        ("failing(3, 0.1)", "clock=3 must be a Clock"),
        ("availabel(1)", r"unknown clock 'availabel\(1\)' \(did you mean available\?\)"),
    ],
)
def test_invalid_clocks_are_refused(text, message):
    with pytest.raises(ValueError, match=message):
        clock.parse(text, 4)


def test_list_knows_everything(capsys):
    assert main("list") == 0
    text = capsys.readouterr().out
    names = [*srp.methods.names(), *srp.data.names(), *srp.models.names(), *srp.methods.POLICIES, "own_head"]
    for name in names:
        assert name in text
    for row in srp.methods.RECIPES.values():
        assert row.source in text


def test_list_shows_the_data_sets_of_a_folder(tmp_path, capsys):
    np.savez(tmp_path / "mine.npz", x_train=np.zeros(1))
    assert main("list", "--data-dir", tmp_path) == 0
    lines = [line.split()[:2] for line in capsys.readouterr().out.splitlines() if line]
    found = [line for line in lines if line[0] in ("mine", "digits", "mnist")]
    assert found == [["digits", "ready"], ["mine", "ready"], ["mnist", "-"]]


@pytest.mark.parametrize("width", [60, 80, 120, 160, 400])
def test_list_fits_the_terminal_and_says_the_same(width, capsys, monkeypatch):
    main("list")
    whole = capsys.readouterr().out
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))
    main("list")
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= width
    assert (text == whole) == (width >= max(map(len, whole.splitlines())))
    assert sorted(text.replace(";", "").split()) == sorted(whole.replace(";", "").split())


@pytest.mark.parametrize("path", ["x" * 300, "a/" + "x" * 300 + "/b", "a\0b"], ids=["long", "long folder", "nul"])
@pytest.mark.parametrize(
    "words",
    [
        (*TINY, "--out"),
        ("run", "--method", "fedavg", "--num-clients", 5, "--dataset"),
        (*TINY, "--data-dir"),
        (*TINY, "--load"),
        (*TINY, "--clock", "trace:"),
        (*TINY, "--log"),
        (*TINY, "--tensorboard"),
        ("report",),
        ("report", ".", "--out"),
        ("report", ".", "--load"),
        ("grid",),
        ("demo", "--quick", "--out"),
        ("list", "--data-dir"),
    ],
    ids=lambda words: " ".join(map(str, (words[0], words[-1]))),
)
def test_errors_of_invalid_paths_are_one_line(words, path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_folder, "simulate", lambda **options: HISTORY)
    *before, last = words
    given = (*before, f"{last}{path}") if last == "trace:" else (*words, path)
    code = main(*given)
    error = capsys.readouterr().err
    assert code == (0 if not error else 2)
    assert error.count("\n") == (0 if not error else 1)


def test_ctrl_c_while_the_program_is_imported_is_one_line(tmp_path):
    """From the first line of the package on; C extensions turn the exception into an ImportError."""
    signalled = "import os, signal\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\n"
    signalled += "except KeyboardInterrupt:\n    raise ImportError('of C') from None\n"
    program = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    program += "from fedjax_srp.__main__ import main; sys.exit(main())"
    for name in ("jax", "tyro"):
        (tmp_path / f"{name}.py").write_text(signalled)
        environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
        words = [sys.executable, "-c", program, "list"]
        done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
        assert (done.returncode, done.stderr) == (130, "\nfedjax-srp: interrupted\n")
        (tmp_path / f"{name}.py").unlink()


@pytest.mark.short("list")
@pytest.mark.parametrize("words", ["list", "--help", "run --nothing"])
def test_closed_streams_are_no_error(words):
    command = f"{shlex.quote(sys.executable)} -m fedjax_srp {words} >&-"
    done = subprocess.run(["bash", "-c", command], stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == (2 if words == "run --nothing" else 0)
    assert done.stderr.count("\n") == (1 if done.returncode else 0), done.stderr


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("file", "lines"), [(io.StringIO, range(8, 13)), (Terminal, range(590, 610))])
def test_a_bar_in_a_file_is_written_once_a_minute(file, lines):
    written = file()
    bar = tqdm(total=600, file=written)
    start = bar.start_t
    for second in range(600):
        bar._time = lambda second=second: start + second
        bar.update()
    bar.close()
    assert written.getvalue().count("%|") in lines
    assert "100%" in written.getvalue()


def test_compiling_is_left_out_of_the_rate():
    """Ten of a hundred steps in 90 s, 80 of them compiling: the rest takes 90 s, not 810."""
    written = io.StringIO()
    bar = tqdm(total=100, file=written, bar_format="{elapsed}<{remaining}")
    bar._time = lambda: bar.start_t + 90
    bar.waited += 80
    bar.update(10)
    assert written.getvalue().endswith("01:30<01:30")
    bar.close()


def test_version_and_help(capsys):
    assert main("--version") == 0
    assert capsys.readouterr().out == f"fedjax-srp {srp.__version__}\n"
    assert main() == 0
    for command in cli.COMMANDS:
        assert main(command, "--help") == 0
        assert cli.COMMANDS[command].about[:20] in capsys.readouterr().out


def test_report_reads_the_runs(finished, tmp_path, capsys):
    assert main("report", finished, "--out", tmp_path, "--target", 0.1, "--communications", 0, 5) == 0
    text = capsys.readouterr().out
    assert "SRPFL" in text
    assert "time at C = 5" in text
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("accuracy.pdf", "accuracy.png", "report.html", "table.csv", "table.txt")
    ]


def test_the_installed_program_uses_every_core_and_stops_at_ctrl_c(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    # What runs in the background of a shell is started with SIGINT ignored; a user's program is not.
    code = "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code += "runpy.run_module('fedjax_srp.commands.cli', run_name='__main__')"
    command = f"{RUN} --method fedavg --hidden 4 --num-rounds 1000000 --eval-every 2 --no-progress"
    words = [sys.executable, "-c", code, *command.split(), "--out", str(tmp_path)]
    process = subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 120
        while not any(path.name.isdigit() for path in tmp_path.glob("checkpoint/*")):
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert error.strip().splitlines()[-1].startswith("fedjax-srp: interrupted")
    snapshot = max((path for path in tmp_path.glob("checkpoint/*") if path.name.isdigit()), key=lambda p: int(p.name))
    fingerprint = storage.read_json(snapshot / storage.SEAL)["facts"]["fingerprint"]
    assert fingerprint["num_devices"] == min(len(os.sched_getaffinity(0)), 10)
