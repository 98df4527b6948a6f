"""The benchmark runs and writes its results; speed is not tested."""

import json
import os
import sys
from pathlib import Path

import jax
import pytest
from harness import files
from harness.loop import JitLoop
from harness.measure import Rounds, arrays, paired, synthetic
from reference.small import assert_close

import fedjax_srp as srp

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
import cores
import rounds
import waits


def test_every_method_has_a_cohort_for_the_number_of_compiled_clients():
    data = synthetic(rounds.CLIENTS_COMPILED, examples=10, tests=5)
    for name in rounds.FULL.methods:
        policy = srp.methods.get(name, dataset=data).participation
        jax.eval_shape(
            lambda policy=policy: policy.init(jax.random.key(0), rounds.CLIENTS_COMPILED)
        )


@pytest.mark.long
def test_quick_benchmark_measures_everything_and_writes_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(rounds, "QUICK", rounds.QUICK._replace(repeats=1))
    rounds.main(["--quick", "--skip-torch", "--out", str(tmp_path)])
    results = json.loads((tmp_path / "benchmark.json").read_text())
    assert {pair["name"] for pair in results["pairs"]} >= {
        "FedAvg round",
        "FedRep round",
        "FedAvg, 4 seeds vmapped",
        "LeNet FedAvg round, 2 clients",
        "linear FedRep round, 20 clients",
    }
    rivals = {pair["against"] for pair in results["pairs"]}
    assert rivals >= {
        "jitted loop over clients",
        "its arithmetic at the matrix peak",
        "its weights through memory",
        "looped over seeds",
        "data sharded",
    }
    assert {name: list(curve) for name, curve in results["curves"].items()} == {
        "seconds per participant, by cohort n": ["2", "8"],
        "working bytes, by cohort n": ["2", "8"],
        "working bytes, by chunk": ["1", "2"],
        "seconds per round of 2 clients, by N": ["20", "40"],
    }
    by_cohort, by_chunk = (
        results["curves"][f"working bytes, by {what}"] for what in ("cohort n", "chunk")
    )
    assert by_cohort["8"] < 1.2 * by_cohort["2"]
    assert by_chunk["2"] > by_chunk["1"]
    compile_seconds = dict(results["compile_seconds"])
    assert compile_seconds.pop("SRPFL round") == 0  # FedRep's program
    for value in (
        *results["limits"].values(),
        *compile_seconds.values(),
        *results["memory"].values(),
    ):
        assert value > 0
    table = (tmp_path / "benchmark.txt").read_text()
    assert table == files.table(results) + "\n"
    assert table.strip() in capsys.readouterr().out
    assert (tmp_path / "benchmark.png").stat().st_size > 1000


def test_bars_begin_at_the_ratio_1():
    results = json.loads(
        (Path(__file__).parents[1] / "benchmarks/results/cpu-2-cores.json").read_text()
    )
    bars = files.figure(results).axes[0].patches
    ratios = [pair["rival_over_ours"] for pair in results["pairs"][::-1]]
    assert min(ratios) < 1 < max(ratios)
    assert [bar.get_x() for bar in bars] == [1.0] * len(ratios)
    assert [bar.get_x() + bar.get_width() for bar in bars] == pytest.approx(ratios)


def test_pairs_are_measured_alternately():
    values = iter([1.0, 4.0, 2.0, 2.0, 1.0, 3.0])
    found = paired(lambda: next(values), lambda: next(values), 3)
    assert found == {"ours": 1.0, "rival": 3.0, "rival_over_ours": 3.0}


@pytest.mark.short("FedRep")
@pytest.mark.parametrize("cls", [srp.algorithms.FedAvg, srp.algorithms.FedRep])
def test_the_jitted_loop_computes_what_the_engine_computes(cls):
    data = synthetic(3, examples=12, tests=1)  # fewer clients than devices
    algorithm = cls(srp.models.MLP(data.example_shape, 10, (8,)))
    loop, run = JitLoop(algorithm, data), Rounds(algorithm, data, devices=2)
    while run.state.round < loop.round:
        run()
    for i in range(3):
        assert_close(
            loop.states[i],
            jax.tree.map(lambda leaf, i=i: run.layout.by_id(leaf)[i], run.state.clients),
            1e-5,
        )
    assert_close(loop.server, run.state.server, 1e-5)


def test_the_pytorch_loop_that_caches_features_computes_the_same():
    torch = pytest.importorskip("torch")
    from harness import torch_loop

    examples = arrays(synthetic(2, examples=12, tests=3))
    found = []
    for cache in (False, True):
        torch.manual_seed(0)
        loop = torch_loop.TorchLoop(torch_loop.mlp(28 * 28, (8,)), examples, cache=cache)
        loop.fedrep_round()
        found.append([p.detach().numpy() for p in loop.model.parameters()])
        assert all(p.requires_grad for p in loop.body)
    assert_close(*found, 1e-5)


@pytest.mark.long
def test_rounds_are_compared_with_rounds_that_exchange_and_copy(
    tmp_path, monkeypatch, capsys
):
    made = []

    def one_case(*sizes):
        make = cases(*sizes)["FedRep, MLP, evaluation"]
        return {"evaluation": lambda: made.append(make()) or made[-1]}

    cases = waits.cases
    monkeypatch.setattr(waits, "cases", one_case)
    waits.main(["--quick", "--repeats", "2", "--out", str(tmp_path / "waits.json")])
    told = [bool(run.program.spec.compiler) for run in made]
    assert told == [True, True, False]
    assert len({run.program.spec for run in made}) == 3
    found = json.loads((tmp_path / "waits.json").read_text())["results"]["evaluation"]
    for variant in (waits.EXCHANGED, waits.BY_DEFAULT):
        median, low, high = found[variant]
        assert 0 < low <= median <= high
    assert "evaluation" in capsys.readouterr().out


@pytest.mark.long
def test_a_process_is_measured_on_one_core(monkeypatch):
    """As `python benchmarks/cores.py` in any folder."""
    monkeypatch.delenv("JAX_NUM_CPU_DEVICES", raising=False)
    found = cores.measured([[min(os.sched_getaffinity(0))]], clients=2)
    assert found.keys() == {"FedAvg", "FedRep"}
    assert min(found.values()) > 0


def test_the_committed_results_have_every_case():
    known = json.loads(
        (Path(waits.__file__).parent / "results/waits-2-cores.json").read_text()
    )
    assert list(waits.cases(6, 20, (8, 4))) == list(known["results"])
