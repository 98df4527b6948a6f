"""Every script of `experiments/` and `benchmarks/` runs at its smallest size, and writes valid results."""

import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import fedjax_srp as srp
from experiments import __main__ as everything
from experiments import scripts

ROOT = Path(__file__).parents[2]
EXPERIMENTS = ROOT / "experiments"
CALLS = {call.script: call for call in everything.plan("smoke")}
READERS = ("stragglers/answer_figure", "stragglers/answer_tables")  # of results


def not_json(constant):
    raise AssertionError(f"{constant} is not JSON")


def call(path, words, monkeypatch):
    monkeypatch.setattr(sys, "argv", [str(path), *words])
    runpy.run_path(str(path), run_name="__main__")


@pytest.mark.usefixtures("room_for_programs")
@pytest.mark.short("fedavg_representation/figure1")
@pytest.mark.parametrize("script", CALLS)
def test_scripts_run(script, monkeypatch, tmp_path):
    path = (EXPERIMENTS / script).with_suffix(".py")
    words = CALLS[script].words(tmp_path)
    for _ in range(2):  # at last those that keep their runs have loaded them
        call(path, words, monkeypatch)
    assert any(tmp_path.iterdir())
    results = {
        file.stem: json.loads(file.read_text(), parse_constant=not_json)
        for file in tmp_path.glob("*.json")
    }
    assert all(results.values())
    # The least-norm fit of m < d samples misses 1 - m/d of a head of length 1.
    if script == "fedrep/figure1":
        by_samples = results["figure1"]["results"]["Local only"]["final by samples"]
        assert by_samples["mean"][0] == pytest.approx(1 - 5 / 20, abs=0.05)
    if script == "fedavg_representation/figure1":
        assert results["figure1"]["results"]["D-GD, 1 local update"]["lowest"][-1] > 0.99


@pytest.mark.short("stragglers/answer_tables")
@pytest.mark.parametrize("script", READERS)
def test_scripts_that_read_results_run(script, monkeypatch, tmp_path, capsys):
    path = (EXPERIMENTS / script).with_suffix(".py")
    shutil.copytree(path.parent / "results", tmp_path, dirs_exist_ok=True)
    call(path, [str(tmp_path)], monkeypatch)
    if script == "stragglers/answer_tables":
        assert capsys.readouterr().out == (tmp_path / "grid_tables.md").read_text()


def test_a_written_table_keeps_the_rows_that_are_not_made_anew(tmp_path):
    file = tmp_path / "new" / "table.csv"
    rows = [{"method": "a", "round": n, "score": 0.5, "best": "7.10"} for n in (1, 2)]
    scripts.write_table(file, rows)
    other = {"method": "b", "round": 1, "score": 2 / 3, "best": ""}
    scripts.write_table(file, [other], ["method"], "%.3g")
    head, *first = file.read_text().splitlines()
    assert head == "method,round,score,best"
    assert first == ["a,1,0.5,7.10", "a,2,0.5,7.10", "b,1,0.667,"]
    scripts.write_table(file, [rows[1] | {"score": 0.25}], ["method"])
    assert file.read_text().splitlines()[1:] == ["b,1,0.667,", "a,2,0.25,7.10"]


@pytest.mark.parametrize("script", ["fedrep/figure1", "flanp/theorems"])
def test_scripts_that_only_measure_take_no_batch(script, monkeypatch, capsys):
    path = (EXPERIMENTS / script).with_suffix(".py")
    with pytest.raises(SystemExit):
        call(path, ["--scale", "smoke", "--batch", "2"], monkeypatch)
    assert "unrecognized arguments: --batch 2" in capsys.readouterr().err


def test_scripts_have_all_cores_before_they_compute(monkeypatch):
    """A script may load data before its grid: JAX takes no other number of devices then."""
    calls = []
    monkeypatch.setattr(srp, "use_all_cores", lambda: calls.append("cores"))
    monkeypatch.setattr(scripts.jax.config, "update", lambda *words: calls.append(words))
    parser = scripts.grid_parser(None, (), "runs")
    parser.parse_args(args=[])
    assert calls == ["cores"]
    for words in (["--workers", "2"], ["--launcher", "slurm"]):
        calls.clear()
        parser.parse_args(words)
        assert calls == [("jax_platforms", "cpu")]


def test_scripts_say_what_continues_after_ctrl_c(monkeypatch, capsys):
    lines = []
    monkeypatch.setattr(scripts.interrupt, "watch", lines.append)
    monkeypatch.setattr(sys, "argv", ["it.py"])
    scripts.measurement_parser(None, ("smoke", "cpu"), "runs").parse_args()
    scripts.parser(None, (), "runs").parse_args()
    continues = "; the same command continues from the last checkpoint"
    assert lines == [f"it.py: interrupted{continues}", "it.py: interrupted"]
    with pytest.raises(SystemExit):
        scripts.parser(None, ("smoke", "cpu"), "runs").parse_args(["--help"])
    assert "size of the runs; default: cpu" in capsys.readouterr().out


@pytest.mark.long
def test_ctrl_c_ends_a_script_with_one_line(tmp_path):
    script = EXPERIMENTS / "srpfl/figure3.py"
    words = [script, "--scale", "smoke", "--out", tmp_path, "--methods", "fedavg"]
    start = "import runpy, signal, sys; sys.argv = sys.argv[1:]; "
    start += "signal.signal(signal.SIGINT, signal.default_int_handler); "
    start += "runpy.run_path(sys.argv[0], run_name='__main__')"
    environment = os.environ | {"XLA_FLAGS": "", "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", start, *map(str, words)],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        while "to run" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        error = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert "Traceback" not in error
    assert error.endswith(
        "\nfigure3.py: interrupted; the same command continues from the last checkpoint\n"
    )


def area(side, seed, height=2):
    return {"area": side * height, "seed": seed}


def test_a_measurement_takes_arguments_from_the_command_line(tmp_path):
    own = {"height": {"type": int, "default": 3}, "side": {"type": int}}
    command = scripts.measurement_parser(None, (), str(tmp_path), "seed", **own)
    args = command.parse_args(["--seed", "4", "--side", "9"])
    found = scripts.measure_by(args, area, "side", axes={"side": [1, 2]})
    assert found == {1: [{"area": 3, "seed": 4}], 2: [{"area": 6, "seed": 4}]}
    options = {"height": 5, "side": 1}
    variants = scripts.cases("seed", [(7,), (8,)])
    each = scripts.measure_each(args, area, variants=variants, options=options)
    assert each == [{"area": 5, "seed": 7}, {"area": 5, "seed": 8}]


def test_every_script_has_a_call():
    scripts = set()
    for path in EXPERIMENTS.glob("*/*.py"):
        if "__main__" in path.read_text("utf-8") and path.stem != "readme_tables":
            scripts.add(str(path.relative_to(EXPERIMENTS).with_suffix("")))
    assert scripts == {*CALLS, *READERS}


def test_all_scripts_are_one_command_that_goes_on(tmp_path, capsys):
    words = ["--scale", "smoke", "--out", str(tmp_path)]
    everything.main([*words, "--dry-run"])
    minutes = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert len(minutes) == len(CALLS)
    known = [float(cost) for cost in minutes if cost != "?"]
    assert known == sorted(known)
    assert not any(tmp_path.iterdir())

    words += ["--only", "fedrep/figure1_ridge"]
    everything.main(words)
    assert "to run" in capsys.readouterr().out
    assert (tmp_path / "smoke/fedrep/figure1_ridge.json").exists()
    everything.main(words)
    assert "finished" in capsys.readouterr().out

    with pytest.raises(SystemExit):
        everything.main(["--only", "nothing"])
    assert "--only nothing: no script" in capsys.readouterr().err


BENCHMARKS = [
    "rounds --quick --skip-torch --out {out}",
    "waits --quick --repeats 2 --out {out}/w.json",
]


@pytest.mark.long
@pytest.mark.parametrize("words", BENCHMARKS)
def test_benchmarks_run(words, monkeypatch, tmp_path):
    name, *words = words.format(out=tmp_path).split()
    call(ROOT / "benchmarks" / f"{name}.py", words, monkeypatch)
    (found,) = tmp_path.glob("*.json")
    assert json.loads(found.read_text(), parse_constant=not_json)
