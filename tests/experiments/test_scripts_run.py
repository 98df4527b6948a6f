"""Every script of `experiments/` and `benchmarks/` runs at its smallest size, and writes valid results."""

import json
import runpy
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SMOKE = "--scale smoke --out {out}"
OWN_WORDS = {
    "fedavg_representation/steps": f"{SMOKE} --devices 1",
    "fedrep/table1": f"{SMOKE} --methods fedavg --devices 1 --results {{out}}",
    "personalization/table": f"{SMOKE} --methods fedavg --seeds 0 --results {{out}}",
    "srpfl/causes": f"{SMOKE} --seeds 1 --settings code",
    "srpfl/sweep": f"{SMOKE} --seeds 1 --classes 2 --images 10",
    **{f"srpfl/figure{number}": f"{SMOKE} --methods fedavg" for number in range(3, 7)},
    "stragglers/answers": f"{SMOKE} --personalizations FedAvg --results {{out}}",
    "stragglers/answer_figure": "{out}",
    "stragglers/answer_tables": "{out}",
}
CALLED = ROOT.glob("experiments/*/*.py")
CALLED = [
    path
    for path in CALLED
    if "__main__" in path.read_text("utf-8") and path.stem != "readme_tables"
]
SCRIPTS = sorted(
    str(path.relative_to(ROOT / "experiments").with_suffix("")) for path in CALLED
)


def not_json(constant):
    raise AssertionError(f"{constant} is not JSON")


def call(path, words, monkeypatch):
    monkeypatch.setattr(sys, "argv", [str(path), *words])
    runpy.run_path(str(path), run_name="__main__")


@pytest.mark.short("fedavg_representation/figure1", "stragglers/answer_tables")
@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_run(script, monkeypatch, tmp_path, capsys):
    path = (ROOT / "experiments" / script).with_suffix(".py")
    if script.startswith("stragglers/answer_"):  # reads results
        shutil.copytree(path.parent / "results", tmp_path, dirs_exist_ok=True)
    words = OWN_WORDS.get(script, SMOKE).format(out=tmp_path).split()
    for _ in range(2):  # at last those that keep their runs have loaded them
        call(path, words, monkeypatch)
    assert any(tmp_path.iterdir())
    results = {
        file.stem: json.loads(file.read_text(), parse_constant=not_json)
        for file in tmp_path.glob("*.json")
    }
    assert all(results.values())
    if script == "stragglers/answer_tables":
        assert capsys.readouterr().out == 2 * (tmp_path / "grid_tables.md").read_text()
    # The least-norm fit of m < d samples misses 1 - m/d of a head of length 1.
    if script == "fedrep/figure1":
        by_samples = results["figure1"]["results"]["Local only"]["final by samples"]
        assert by_samples["mean"][0] == pytest.approx(1 - 5 / 20, abs=0.05)
    if script == "fedavg_representation/figure1":
        assert results["figure1"]["results"]["D-GD, 1 local update"]["lowest"][-1] > 0.99


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
