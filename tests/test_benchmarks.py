"""Benchmarks: a crash affects one case, results are compared before they are timed, and rivals compute the same."""

import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from harness.loop import JitLoop
from harness.measure import Rounds, synthetic
from reference.small import assert_close

import fedjax_srp as srp
from fedjax_srp.algorithms import local

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
import children
import first_layer
import gpu
import gpu_cases
import gpu_compare
import gpu_parts
from children import Case, Limits

FOLDER = Path(__file__).parents[1] / "benchmarks"
CHILD = """
import json, os, sys, time
case_file, result_file, folder = sys.argv[1:]
for case in json.load(open(case_file)):
    if case["kind"] == "abort":
        os.abort()
    if case["kind"] == "exit":
        sys.exit(3)
    if case["kind"] == "hang":
        time.sleep(60)
    with open(result_file, "a") as file:
        found = {"colour": os.environ.get("COLOUR"), "child": os.getpid()}
        file.write(json.dumps({"status": "failed" if case["kind"] == "lost" else "done", "result": found}) + "\\n")
    if case["kind"] == "lost":
        sys.exit(75)
"""


def run(kinds, folder, seconds=30, case_seconds=30, **environments):
    """Return the results of cases called a, b, ... of these kinds."""
    (folder / "child.py").write_text(CHILD)
    cases = [
        Case(name, kind, {}, environments.get(name, {}))
        for name, kind in zip("abcdef", kinds, strict=False)
    ]
    results = {}
    command = [sys.executable, str(folder / "child.py")]
    children.run(cases, command, results.__setitem__, Limits(seconds, case_seconds))
    return results


def statuses(results):
    return [results[name]["status"] for name in sorted(results)]


def test_a_crash_a_hang_and_a_lost_device_affect_one_case_each(tmp_path):
    kinds, blue = ["ok", "ok", "abort", "exit", "lost", "ok"], {"COLOUR": "blue"}
    results = run(kinds, tmp_path, a=blue, b=blue)
    assert statuses(results) == ["done", "done", "crashed", "crashed", "failed", "done"]
    found = {name: results[name]["result"] for name in "abef"}
    assert [case["colour"] for case in found.values()] == ["blue", "blue", None, None]
    assert found["a"]["child"] == found["b"]["child"]  # of equal environments
    assert found["e"]["child"] != found["f"]["child"]
    hanging = run(["ok", "hang", "ok"], tmp_path, case_seconds=3)
    assert statuses(hanging) == ["done", "timed out", "done"]
    hanging = run(["hang", "ok"], tmp_path, seconds=0.5)
    assert statuses(hanging) == ["timed out", "left out"]


def test_a_killed_part_is_continued(tmp_path):
    out, started = tmp_path / "part.json", []
    machine = dict.fromkeys(("platform", "driver", "jax", "python"), "x")
    cases = [Case("machine", "about", {})]
    cases += [Case(name, "rounds", {"size": 1}) for name in "abc"]
    cases += [Case("d", "rounds", {"size": 1}, needs=("a",))]

    def measure(cases=cases, stop=None, device="x"):
        def begin(asked, tell, limits):
            for case in asked:
                if case.name == stop:
                    raise KeyboardInterrupt
                started.append(case.name)
                found = machine | {"device": device} if case.kind == "about" else {"x": 1}
                tell(case.name, {"status": "done", "result": found})

        started.clear()
        say = lambda line: None
        return gpu.measure(cases, {"part": "1"}, out, Limits(1, 1), begin, say)

    with pytest.raises(KeyboardInterrupt):
        measure(stop="c")
    measure()
    assert started == ["machine", "a", "c", "d"]  # d needs the arrays of a
    measure([*cases[:3], cases[3]._replace(settings={"size": 2}), cases[4]])
    assert started == ["machine", "c"]
    with pytest.raises(ValueError, match=r"device .*; give another --out"):
        measure(device="other")


@pytest.mark.parametrize("part", gpu_parts.PARTS)
@pytest.mark.parametrize("quick", [False, True])
def test_every_case_is_compared_with_the_cpu_before_it_is_timed(part, quick):
    cases = gpu_parts.cases(part, quick)
    names = [case.name for case in cases]
    assert len(set(names)) == len(names)
    assert {case.kind for case in cases} <= gpu_cases.KINDS.keys()
    references = {case.name: case for case in cases if case.kind == "reference"}
    timed = {"about", "bandwidth", "reference", "methods"}
    for case in (case for case in cases if case.kind not in timed):
        (reference,) = (references[name] for name in case.needs if name in references)
        assert reference.settings["world"] == case.settings["world"]
        assert reference.environment["JAX_PLATFORMS"] == "cpu"
        assert all(names.index(name) < names.index(case.name) for name in case.needs)


def test_a_wrong_result_is_reported_and_a_hopeless_one_is_not_timed(tmp_path):
    def measure(case):
        return gpu_cases.measure(Case(**case.as_json()), tmp_path)

    cases = {case.name: case for case in gpu_parts.cases("1", quick=True)}
    case = cases["fedavg, chunk 512"]
    for needed in case.needs:
        assert measure(cases[needed])["status"] == "done"
    assert measure(case)["status"] == "done"
    arrays = gpu_compare.stored(tmp_path, case.needs[0], "")
    name = "end ['server'].params.head['out']['bias']"
    bound = gpu_compare.BOUNDS["default"]
    moved = float(np.linalg.norm(arrays[name] - arrays[name.replace("end", "begin")]))
    for factor, is_timed in ((3, True), (30, False)):
        shift = factor * bound.of_move * moved
        shifted = arrays[name] + np.float32(shift) * (np.arange(arrays[name].size) == 0)
        gpu_compare.store(
            tmp_path, case.needs[0], arrays | {name: shifted.astype(np.float32)}
        )
        found = measure(case)
        assert found["status"] == "wrong"
        assert found["result"]["apart"] == pytest.approx(shift, rel=0.01)
        assert ("seconds" in found["result"]) == is_timed


def test_rounds_keep_their_decision_about_the_first_layer(monkeypatch):
    rule = local.layer_in_span
    taken = []
    monkeypatch.setattr(local, "layer_in_span", lambda *args: taken.append(rule(*args)))
    data = synthetic(3, examples=12, tests=1)
    algorithm = srp.algorithms.FedAvg(srp.models.MLP(data.example_shape, 10, (8,)))
    decided = [
        first_layer.DecidedRounds(decision, algorithm, data)
        for decision in (first_layer.never, first_layer.always)
    ]
    for rounds in decided * 2:
        rounds()
    assert not taken
    plain, in_span = (rounds.working_bytes for rounds in decided)
    assert plain != in_span


@pytest.mark.short("FedRep")
@pytest.mark.parametrize("cls", [srp.algorithms.FedAvg, srp.algorithms.FedRep])
def test_the_jitted_loop_computes_what_the_engine_computes(cls):
    data = synthetic(3, examples=12, tests=1)  # fewer clients than devices
    algorithm = cls(srp.models.MLP(data.example_shape, 10, (8,)))
    loop = JitLoop(algorithm, data)
    engine = Rounds(algorithm, data, devices=2)
    while engine.state.round < loop.round:
        engine()
    assert_close(loop.server, engine.state.server, 1e-5)
    for i in range(3):
        states = jax.tree.map(
            lambda leaf, i=i: engine.layout.by_id(leaf)[i], engine.state.clients
        )
        assert_close(loop.states[i], states, 1e-5)


def claims():
    """Rows of the table of claims: command, and the cell with its files."""
    page = (FOLDER / "README.md").read_text("utf-8")
    table = page.split("## One command a claim")[1].split("\n## ")[0]
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| ")]
    return [(row[1], row[2]) for row in rows[2:]]


def test_every_claim_has_a_command_with_its_options_and_its_files():
    scripts = set()
    named = set()
    for command, files in claims():
        if "make bench" not in command:
            script, *words = re.findall(r"[\w./-]+\.py|--[\w-]+", command)
            scripts.add(Path(script).name)
            text = (FOLDER.parent / script).read_text("utf-8")
            assert f"python {script}" in text
            for option in words:
                assert option in text
        for pattern in re.findall(r"`([^`]+)`", files):
            found = {path.name for path in (FOLDER / "results").glob(pattern)}
            assert found, pattern
            named |= found
    page = (FOLDER / "README.md").read_text("utf-8")
    unnamed = {path.name for path in (FOLDER / "results").iterdir()} - named
    assert all(name in page or Path(name).suffix == ".png" for name in unnamed)
    measuring = {
        path.name
        for path in FOLDER.glob("*.py")
        if "= parser(__doc__" in path.read_text("utf-8")
    }
    assert {name for name in measuring - scripts if name not in page} == set()


@pytest.mark.long
def test_benchmarks_run_at_their_smallest_size(tmp_path):
    rng = np.random.default_rng(0)
    images = {
        f"{what}_{split}": values
        for split, number in (("train", 400), ("test", 40))
        for what, values in (
            ("x", rng.integers(0, 256, (number, 32, 32, 3), dtype=np.uint8)),
            ("y", np.arange(number) % 10),
        )
    }
    np.savez(tmp_path / "cifar10.npz", **images)
    small = "--clients 3 --images 4 --tests 20 --epochs 1 --rounds 2"
    for words in (
        ["short_runs.py", "--runs", "4", "8", "--workers", "1"],
        ["blazefl_rival.py", "--data-dir", str(tmp_path), *small.split()],
    ):
        out = tmp_path / f"{words[0]}.json"
        command = [sys.executable, str(FOLDER / words[0]), *words[1:], "--out", str(out)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert out.exists()
