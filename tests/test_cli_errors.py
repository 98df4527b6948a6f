"""Command line: usage errors, which are one line with exit code 2; foreign files, which are kept."""

import shlex

import numpy as np
import pytest
from command_line import DATA, HISTORY, RUN, TINY, WITH, assert_refusal, contents, main
from reference import histories

from fedjax_srp import History
from fedjax_srp.lab.commands import cli
from fedjax_srp.lab.runs import folder as run_folder
from fedjax_srp.results import csv_files


@pytest.mark.parametrize(
    "file",
    ["checkpoint/model.pt", "checkpoint/1/arrays/x", "checkpoint", "models/net.py", "config.json", "history.csv"],
)  # fmt: skip
def test_foreign_files_are_refused_and_kept(file, tmp_path, capsys):
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text("{}")
    before = contents(tmp_path)
    may_be_overwritten = file in ("config.json", "history.csv")
    for further in ([], ["--no-checkpoint"], ["--overwrite"][may_be_overwritten:]):
        assert main(*TINY, *WITH, *further, "--models", "--out", tmp_path) == 2
        assert_refusal(capsys.readouterr().err, file.partition("/")[0])
        assert contents(tmp_path) == before


@pytest.mark.usefixtures("no_rounds")
@pytest.mark.parametrize("file", ["config.json", "history.csv"])
def test_foreign_tables_are_overwritten_on_demand(file, tmp_path):
    (tmp_path / file).write_text("{}")
    (tmp_path / "overwriting_notes").mkdir()  # called as a checkpoint of --overwrite
    (tmp_path / "overwriting_notes" / "one").write_text("precious")
    assert main(*TINY, *WITH, "--overwrite", "--out", tmp_path) == 0
    assert (tmp_path / "overwriting_notes" / "one").read_text() == "precious"
    assert History.load(tmp_path).num_rounds
    assert main(*TINY, *WITH, "--out", tmp_path) == 0


def test_a_full_disk_is_one_line(tmp_path, monkeypatch, capsys):
    def full(*args, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(csv_files, "as_csv", full)
    monkeypatch.setattr(run_folder, "simulate", lambda **options: HISTORY)
    assert main(*TINY, "--out", tmp_path) == 2
    said = f"No space left on device: '{tmp_path}'; what was written before"
    assert_refusal(capsys.readouterr().err, said)


ERRORS = {
    f"{RUN} --method srpfl --hidden 32,16": "--hidden 32,16: values are separated by spaces, --hidden 32 16",
    f"{RUN} --clock 'dynamic:exponential(1)' --num-rounds ten": "--num-rounds",
    f"{RUN} --method srpfl --num-rounds": "--num-rounds",
    f"{RUN} --method srpfl --lr 0.1": "did you mean --learning-rate?",
    f"{RUN} --method srpfl --num-round 3": "unknown argument --num-round (did you mean --num-rounds?);",
    f"{RUN} --method srpfl --redraw nevr": "--redraw='nevr'",
    "rnu": "unknown command 'rnu' (did you mean run?)",
    f"{RUN} --method srpfll": "unknown method 'srpfll' (did you mean srpfl",
    "run --method srpfl --dataset digit": "dataset='digit': no such data set (did you mean digits?)",
    "run --method srpfl --dataset no.npz": "dataset='no.npz': no such file",
    "run --method srpfl --dataset digits": "num_clients=None",
    f"{RUN} --method srpfl --pool 11": "pool=11 is larger than num_clients=10",
    f"{RUN} --method srpfl --clock fixd": "did you mean fixed?",
    f"{RUN} --method srpfl --communication -1": "communication=-1.0",
    f"{RUN} --method fedavg --initial=10": "initial: has no effect on method 'fedavg', only on participation",
    f"{RUN} --method fedavg --head_epochs 5": "head_epochs: has no effect on method 'fedavg', only ",
    f"{RUN} --method srpfl --seed {10**23}": f"seed={10**23}: must lie between",
    f"{RUN} --method srpfl --validation 20": "error: validation=20.0 must be below 1",
    f"{RUN} --method srpfl --partition-seed -1": "error: partition_seed=-1 must be",
    RUN: "--method",
    "report": "FOLDER",
    "report nowhere": "there is no such folder",
    "report . --target 90": "target=90.0: accuracies lie between 0 and 1",
    f"report {__file__}": "is a file; give a folder",
    "run --load no.py --method mine --dataset digits": "load='no.py': no such file",
    "demo --seeds 0": "seeds=0",
}


FILES = {
    "line 1: SyntaxError": "def f(:",
    "line 3: SystemExit: no GPU": "import sys\n\nsys.exit('no\\nGPU')",
    "line 2: TypeError: no": "def f():\n    raise TypeError('no')\n\n\nf()\n",
}


@pytest.mark.parametrize("message", FILES)
@pytest.mark.parametrize("command", ["run --method fedavg", "report ."])
def test_errors_of_loaded_files_are_one_line(message, command, tmp_path, capsys):
    (tmp_path / "mine.py").write_text(FILES[message])
    assert main(*command.split(), "--load", tmp_path / "mine.py") == 2
    assert_refusal(capsys.readouterr().err, message)


@pytest.mark.parametrize(
    "command", ERRORS, ids=lambda command: command.replace(RUN, "run")
)
def test_usage_errors_are_one_line(command, tmp_path, capsys):
    out = () if command.startswith(("rnu", "report")) else ("--out", tmp_path / "run")
    assert main(*shlex.split(command), *out) == 2
    assert_refusal(capsys.readouterr().err, ERRORS[command])
    assert not list(tmp_path.glob("run/*.json"))


PATHS = {"long": "x" * 300, "long folder": f"a/{'x' * 300}/b", "nul": "a\0b"}
TAKE_PATHS = {
    "run --out": (*TINY, "--out"),
    "run --dataset": ("run", "--method", "fedavg", "--num-clients", 5, "--dataset"),
    "run --data-dir": (*TINY, "--dataset", "mnist", "--data-dir"),
    "run --load": (*TINY, "--load"),
    "run --log": (*TINY, "--log"),
    "run --clock": (*TINY, "--clock"),
    "report": ("report",),
    "report --out": ("report", ".", "--out"),
    "grid": ("grid",),
    "demo --out": ("demo", "--quick", "--out"),
    "list --data-dir": ("list", "--data-dir"),
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("words", TAKE_PATHS)
def test_errors_of_invalid_paths_are_one_line(words, path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_folder, "simulate", lambda **options: HISTORY)
    if words.startswith("report"):
        histories.without_figures(monkeypatch)
        histories.made_history([0.5], [1.0]).save("finished")
    prefix = "trace:" if words == "run --clock" else ""
    code = main(*TAKE_PATHS[words], prefix + PATHS[path])
    error = capsys.readouterr().err
    if words == "list --data-dir" and not error:
        assert code == 0  # it lists nothing of a folder that there is not
        return
    assert code == 2
    assert_refusal(error, PATHS[path][:40].replace("\0", "\\x00"))
    argument = words.rpartition(" ")[2].removeprefix("--").replace("-", "_")
    argument = {"report": "folder", "grid": "file"}.get(argument, argument)
    assert f"{argument}=" in error


def test_a_failed_start_does_not_claim_the_folder(tmp_path, capsys):
    for size in (0, -1):
        words = ("run", "--method", "srpfl", *DATA, "--chunk-size", size)
        assert main(*words, "--out", tmp_path) == 2
        assert_refusal(capsys.readouterr().err, f"chunk_size={size}")
    assert main("report", tmp_path) == 2
    assert "no finished run" in capsys.readouterr().err  # nothing is called started


def test_a_folder_that_cannot_be_written_to_is_found_before_the_run(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "run"):
        assert main(*TINY, "--out", out) == 2
        assert f"out='{out}'" in capsys.readouterr().err


def test_a_bug_keeps_its_traceback(monkeypatch):
    def bug(**arguments):
        np.zeros(2).reshape(3)

    monkeypatch.setitem(cli.COMMANDS, "list", cli.COMMANDS["list"]._replace(run=bug))
    with pytest.raises(ValueError, match="reshape"):
        main("list")


def test_list_knows_loaded_parts(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(
        "import fedjax_srp as srp\n"
        "def mine(time: float = 2.0):\n"
        '    """Two times."""\n'
        "    return srp.clocks.Fixed(srp.clocks.Constant(time))\n"
        "srp.clocks.register('mine', mine)\n"
    )
    assert main("list", "--load", tmp_path / "mine.py") == 0
    assert "mine(...)" in capsys.readouterr().out
