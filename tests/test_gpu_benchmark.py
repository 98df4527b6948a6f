"""`benchmarks/gpu.py` at toy sizes on the CPU: crashes, time limits and wrong results affect one case each."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from harness import profile

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
import children
import gpu
import gpu_cases
import gpu_compare
import gpu_methods
import gpu_parts
from children import Case, Limits

CHILD = """
import json, os, sys, time
case_file, result_file, folder = sys.argv[1:]
for case in json.load(open(case_file)):
    if case["kind"] == "abort":
        print("the last words", file=sys.stderr, flush=True)
        os.abort()
    if case["kind"] == "exit":
        sys.exit(3)
    if case["kind"] == "hang":
        time.sleep(60)
    found = {name: os.environ.get(name) for name in ("COLOUR", "XLA_FLAGS")} | {"child": os.getpid()}
    with open(result_file, "a") as file:
        status = "failed" if case["kind"] == "lost" else "done"
        file.write(json.dumps({"status": status, "result": found}) + "\\n")
    if case["kind"] == "lost":
        sys.exit(75)
"""


@pytest.fixture
def command(tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--of_the_user")
    (tmp_path / "child.py").write_text(CHILD)
    return [sys.executable, str(tmp_path / "child.py")]


def run(cases, command, seconds=30, case_seconds=30):
    results, limits = {}, Limits(seconds, case_seconds)
    children.run(
        cases, command, lambda name, found: results.update({name: found}), limits
    )
    return results


def test_a_crash_affects_one_case(command):
    kinds = {"a": "ok", "b": "abort", "c": "ok", "d": "exit", "e": "ok", "f": "abort"}
    results = run([Case(name, kind, {}) for name, kind in kinds.items()], command)
    assert {name: found["status"] for name, found in results.items()} == {
        "a": "done", "b": "crashed", "c": "done", "d": "crashed", "e": "done", "f": "crashed",
    }  # fmt: skip
    assert results["b"]["message"] == "killed by SIGABRT"
    assert results["b"]["output"] == ["the last words"]
    assert results["d"]["message"] == "ended with exit status 3"
    assert list(results) == sorted(kinds)


def test_cases_after_a_failed_device_run_in_a_new_process(command):
    kinds = {"a": "ok", "b": "lost", "c": "ok", "d": "lost"}
    results = run([Case(name, kind, {}) for name, kind in kinds.items()], command)
    assert {name: found["status"] for name, found in results.items()} == {
        "a": "done", "b": "failed", "c": "done", "d": "failed",
    }  # fmt: skip
    assert results["a"]["result"] != results["c"]["result"]  # their processes


def test_a_hanging_case_is_stopped_and_cases_without_time_are_reported(command):
    cases = [Case("a", "ok", {}), Case("b", "hang", {}), Case("c", "ok", {})]
    results = run(cases, command, case_seconds=0.5)
    assert [results[name]["status"] for name in "abc"] == ["done", "timed out", "done"]
    results = run([Case("b", "hang", {}), Case("c", "ok", {})], command, seconds=0.5)
    assert [results[name]["status"] for name in "bc"] == ["timed out", "left out"]


def test_cases_with_equal_environments_share_a_process(command):
    blue = {"COLOUR": "blue", "XLA_FLAGS": "--of_the_case"}
    cases = [
        Case("a", "ok", {}, blue),
        Case("b", "ok", {}, blue),
        Case("c", "ok", {}),
        Case("d", "ok", {}, {}, "own"),
    ]
    found = {name: result["result"] for name, result in run(cases, command).items()}
    assert [found[name]["COLOUR"] for name in "abcd"] == ["blue", "blue", None, None]
    assert [found[name]["XLA_FLAGS"] for name in "bc"] == [
        "--of_the_user --of_the_case",
        "--of_the_user",
    ]
    assert found["a"]["child"] == found["b"]["child"]
    assert len({found[name]["child"] for name in "acd"}) == 3


MACHINE = {"device": "H", "platform": "gpu", "driver": "1", "jax": "0", "python": "3"}
LIMITS = Limits(1, 1)


def test_a_killed_part_is_continued(tmp_path):
    out, started = tmp_path / "results" / "part.json", []
    cases = [
        Case("machine", "about", {}),
        *(Case(name, "rounds", {"size": 1}) for name in "abc"),
    ]
    cases += [Case("d", "rounds", {"size": 1}, needs=("a",))]

    def start(asked, tell, limits, stop=None, machine=MACHINE):
        for case in asked:
            if case.name == stop:
                raise KeyboardInterrupt
            started.append(case.name)
            tell(
                case.name,
                {
                    "status": "done",
                    "result": machine if case.kind == "about" else {"x": 1},
                },
            )

    def measure(cases=cases, about={"part": "1"}, **fields):  # noqa: B006
        started.clear()
        begin = lambda *arguments: start(*arguments, **fields)
        return gpu.measure(cases, about, out, LIMITS, begin, lambda line: None)

    with pytest.raises(KeyboardInterrupt):
        measure(stop="c")
    kept = json.loads(out.read_text())
    assert [*kept["cases"]] == ["machine", "a", "b"]
    assert kept["part"] == "1"
    assert kept["machine"] == MACHINE
    measure()
    assert started == ["machine", "a", "c", "d"]  # d needs the arrays of a
    measure()
    assert started == ["machine"]
    measure([*cases[:3], cases[3]._replace(settings={"size": 2}), cases[4]])
    assert started == ["machine", "c"]
    with pytest.raises(
        ValueError,
        match="measured with device 'H', here it is 'other'; give another --out",
    ):
        measure(machine=MACHINE | {"device": "other"})
    with pytest.raises(ValueError, match="holds results with part '1', not '2'"):
        measure(about={"part": "2"})


def test_results_of_one_file_come_from_one_version(tmp_path, monkeypatch):
    helper = tmp_path / "benchmarks/harness/measure.py"
    helper.parent.mkdir(parents=True)
    monkeypatch.setattr(gpu, "HERE", tmp_path / "benchmarks")
    sources = [helper.write_text(text) and gpu.source() for text in ("1", "2")]
    assert sources[0] != sources[1]


def test_chosen_cases_include_their_needs():
    cases, asked = gpu_parts.cases("1", quick=True), []
    start = lambda cases, tell, limits: asked.extend(case.name for case in cases)
    gpu.measure(cases, {}, None, LIMITS, start, only="fedavg.*512.*span|segments")
    chosen = [name for name in asked if "span" in name or "segments" in name]
    assert chosen == ["fedavg, chunk 512, span", "four segments"]
    assert set(asked) - set(chosen) == {"machine"} | {
        name for case in cases if case.name in chosen for name in case.needs
    }
    references = [
        case.settings["world"]["algorithm"]
        for case in cases
        if case.name in asked and case.child == "cpu"
    ]
    assert references == ["fedavg", "fedrep"]


def test_a_machine_without_a_gpu_is_refused(tmp_path):
    cases = gpu_parts.cases("1")
    (found,) = in_process(cases[:1], tmp_path).values()
    assert found["status"] == "failed"
    tells = lambda cases, tell, limits: tell("machine", found)
    with pytest.raises(
        ValueError,
        match="machine: RuntimeError: JAX found no GPU, only cpu; --quick runs on any device",
    ):
        gpu.measure(cases, {}, None, LIMITS, tells)


def test_an_invalid_expression_for_cases_is_refused(capsys):
    with pytest.raises(SystemExit):
        gpu.main(["--part", "1", "--quick", "--cases", "("])
    assert "--cases '(' is no regular expression" in capsys.readouterr().err


@pytest.mark.parametrize("part", gpu_parts.PARTS)
@pytest.mark.parametrize("quick", [False, True])
def test_every_case_is_compared_with_the_cpu_before_it_is_timed(part, quick):
    cases = gpu_parts.cases(part, quick)
    names = [case.name for case in cases]
    assert len(set(names)) == len(names)
    timed = [
        case
        for case in cases
        if case.kind not in ("about", "bandwidth", "reference", "methods")
    ]
    assert len(timed) >= 4 or part == "6"  # which compares without timing
    for case in cases:
        assert case.kind in gpu_cases.KINDS
    for case in timed:
        references = [
            other
            for other in cases
            if other.name in case.needs and other.kind == "reference"
        ]
        assert [other.settings["world"] for other in references] == [
            case.settings["world"]
        ]
        assert all(names.index(name) < names.index(case.name) for name in case.needs)
        assert references[0].environment["JAX_PLATFORMS"] == "cpu"


def test_a_method_is_compared_on_both_devices(monkeypatch):
    found = gpu_methods.on_both("fedavg")
    assert found["apart"] == 0
    assert "wrong" not in found
    monkeypatch.setattr(
        gpu_methods,
        "trained_arrays",
        lambda server, *_: {"['server']": np.random.default_rng().random(3)},
    )
    assert "from the CPU" in gpu_methods.on_both("fedavg")["wrong"]


def in_process(cases, folder):
    return {
        case.name: gpu_cases.measure(Case(**case.as_json()), folder) for case in cases
    }


def some_cases(cases, wanted):
    """Return the wanted cases and those that they need."""
    names = {*wanted} | {
        name for case in cases if case.name in wanted for name in case.needs
    }
    return [case for case in cases if case.name in names]


@pytest.fixture(scope="module")
def dry(tmp_path_factory):
    """Run some cases of part 1 and those that they need; return cases, results and the folder of arrays."""
    folder = tmp_path_factory.mktemp("arrays")
    wanted = "machine", "limits", "fedavg, chunk 512"
    cases = some_cases(gpu_parts.cases("1", quick=True), wanted)
    return cases, in_process(cases, folder), folder


def test_a_dry_run_measures(dry):
    results = dry[1]
    assert [found for found in results.values() if found["status"] != "done"] == []
    plain = results["fedavg, chunk 512"]["result"]
    assert plain["apart"] <= 1e-5
    assert plain["chunk_size"] == gpu_parts.MOST["chunk"]
    assert len(plain["seconds"]["each"]) == gpu_parts.MOST["repeats"]
    low, high = plain["seconds"]["quartiles"]
    assert 0 < low <= plain["seconds"]["median"] <= high
    parameters = 784 * 8 + 8 + 2 * (8 * 8 + 8) + 8 * 10 + 10
    assert (
        plain["least_bytes"] == 6 * 2 * 3 * 4 * parameters
    )  # clients, steps, passes, bytes
    shown = gpu.line("fedavg", results["fedavg, chunk 512"])
    assert f"done, seconds {plain['seconds']['median']:.3g}, apart " in shown


def test_a_wrong_result_is_reported_and_a_hopeless_one_is_not_timed(dry, tmp_path):
    cases, _, folder = dry
    case = next(case for case in cases if case.name == "fedavg, chunk 512")
    arrays = gpu_compare.stored(folder, case.needs[0], "")
    name = "end ['server'].params.head['out']['bias']"
    bound = gpu_compare.BOUNDS["default"]
    moved = float(np.linalg.norm(arrays[name] - arrays[name.replace("end", "begin")]))
    near, far = 3 * bound.of_move * moved, 30 * bound.of_move * moved
    assert near < gpu_compare.HOPELESS * bound.absolute
    for shift, is_timed in ((near, True), (far, False)):
        shifted = arrays[name] + np.float32(shift) * (np.arange(arrays[name].size) == 0)
        gpu_compare.store(
            tmp_path, case.needs[0], arrays | {name: shifted.astype(np.float32)}
        )
        (found,) = in_process([case], tmp_path).values()
        assert found["status"] == "wrong"
        assert found["result"]["apart"] == pytest.approx(shift, rel=0.01)
        assert f"{shift:.2g} from the CPU" in found["message"]
        assert ("seconds" in found["result"]) == is_timed
        assert found["message"].endswith("; not timed") != is_timed
    (found,) = in_process([case], tmp_path / "empty").values()
    assert found["status"] == "failed"
    assert "stored no arrays" in found["message"]


def test_differences_by_hand():
    begin = {
        "['server'].w": np.zeros(2),
        "['clients'].v": np.zeros(1),
        "['server'].fixed": np.array([2.0]),
    }
    cpu = {
        "['server'].w": np.array([3.0, 4.0]),
        "['clients'].v": np.array([1.0]),
        "['server'].fixed": np.array([2.0]),
    }
    gpu_ = cpu | {"['server'].w": np.array([3.0, 4.5]), "['clients'].v": np.array([1.9])}
    distance, where = gpu_compare.difference(gpu_, cpu, begin)
    assert distance == pytest.approx(
        (0.5, 0.9)
    )  # largest number of the server's, 0.5 / 5 and 0.9 / 1 of the moves
    assert where == "['clients'].v"
    assert gpu_compare.difference(cpu, cpu, begin)[0] == (0, 0)
    fixed = cpu | {"['server'].fixed": np.array([2.5])}
    assert gpu_compare.difference(fixed, cpu, begin)[0] == pytest.approx((0.5, 0.25))
    broken = cpu | {"['server'].w": np.array([np.nan, 4.0])}
    with pytest.raises(
        gpu_compare.WrongError, match="at most 1 and 1 are right; not timed"
    ) as error:
        gpu_compare.check_difference(
            *gpu_compare.difference(broken, cpu, begin),
            gpu_compare.Distance(1, 1),
            "the CPU",
        )
    assert error.value.found["apart"] == "inf"  # valid JSON
    with pytest.raises(ValueError, match="arrays of other names"):
        gpu_compare.difference({}, cpu, begin)


def test_kernels_are_the_events_of_streams():
    event = lambda name, ns: SimpleNamespace(name=name, duration_ns=ns)
    line = lambda name, *events: SimpleNamespace(name=name, events=events)
    streams = line(
        "Stream #13", event("gemm", 3e3), event("add", 1e3), event("gemm", 2e3)
    )
    device = SimpleNamespace(
        name="/device:GPU:0",
        lines=[streams, line("XLA Modules", event("jit_segment", 9e3))],
    )
    host = SimpleNamespace(
        name="/host:CPU",
        lines=[line("tf_XLAEigen/1", event("dot", 5e3), event("end: dot", 1e3))],
    )
    assert [*profile._events(SimpleNamespace(planes=[host, device]))] == [
        ("gemm", 3e-6),
        ("add", 1e-6),
        ("gemm", 2e-6),
    ]
    assert [*profile._events(SimpleNamespace(planes=[host]))] == [("dot", 5e-6)]


@pytest.mark.long
def test_evaluations_in_larger_chunks_have_the_scores_of_the_cpu(tmp_path):
    name = "evaluation, N = 10000, 156 at once"
    found = in_process(some_cases(gpu_parts.cases("2", quick=True), [name]), tmp_path)[
        name
    ]
    assert found["status"] == "done", found
    judged = found["result"]
    assert judged["evaluation_chunk"] == 3
    assert judged["scores_apart"] <= judged["scores_apart_at_most"]
    assert 0 < judged["mean_score"] < 0.5  # labels are random


@pytest.mark.long
@pytest.mark.parametrize("part", [*gpu_parts.PARTS, "figures"])
def test_a_dry_run_of_every_part(part, tmp_path, monkeypatch, capsys):
    """Run the cases in child processes, as on a GPU."""
    for name in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    figures = gpu_parts.figures
    monkeypatch.setattr(
        gpu_parts, "figures", lambda *arguments: figures(*arguments)[:2]
    )  # the first of four
    out, unlimited = tmp_path / "part.json", ["--seconds", "1e6", "--case-seconds", "1e6"]
    arguments = [
        "--part",
        part,
        "--quick",
        "--out",
        str(out),
        *unlimited,
        "--runs",
        str(tmp_path / "runs"),
    ]
    assert gpu.main(arguments) == 0, capsys.readouterr().out
    results = json.loads(out.read_text())
    assert results["machine"]["platform"] == jax.default_backend()
    assert {found["status"] for found in results["cases"].values()} <= {"done", "skipped"}
    if part == "figures":
        assert "figure3_digits.png" in results["cases"]["figure 3"]["result"]["files"]
    else:
        assert [*results["cases"]] == [
            case.name for case in gpu_parts.cases(part, quick=True)
        ]
