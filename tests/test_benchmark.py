"""The benchmark runs, says what it found and writes it; how fast is not a test."""

import json

import jax
import pytest
from reference.small import assert_close

import fedjax_srp as srp
from fedjax_srp import cli
from fedjax_srp.benchmark import report, suite
from fedjax_srp.benchmark.loop import JitLoop
from fedjax_srp.benchmark.measure import Rounds, paired, synthetic

TINY = suite.QUICK._replace(repeats=1)


def test_quick_benchmark_measures_everything_and_writes_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(suite, "QUICK", TINY)
    assert cli.main(["benchmark", "--quick", "--no-torch", "--out", str(tmp_path)], set_up_cores=False) == 0
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
        "looped over seeds",
        "data sharded",
    }
    assert [list(curve) for curve in results["curves"].values()] == [["2", "8"], ["20", "40"]]
    for value in (*results["limits"].values(), *results["compile_seconds"].values(), *results["memory"].values()):
        assert value > 0
    table = (tmp_path / "benchmark.txt").read_text()
    assert table == report.table(results) + "\n"
    assert table.strip() in capsys.readouterr().out
    assert (tmp_path / "benchmark.png").stat().st_size > 1000


def test_pairs_are_measured_in_turn():
    values = iter([1.0, 4.0, 2.0, 2.0, 1.0, 3.0])
    found = paired(lambda: next(values), lambda: next(values), 3)
    assert found == {"ours": 1.0, "rival": 3.0, "rival_over_ours": 3.0}


@pytest.mark.parametrize("name", ["fedavg", "fedrep"])
def test_the_jitted_loop_computes_what_the_engine_computes(name):
    data = synthetic(3, examples=12, tests=1)
    algorithm = getattr(srp.algorithms, name)(srp.models.mlp(data.example_shape, 10, (8,)))
    loop, run = JitLoop(algorithm, data), Rounds(algorithm, data, devices=2)
    while run.state.round < loop.round:
        run()
    for i in range(3):
        assert_close(loop.states[i], jax.tree.map(lambda leaf, i=i: leaf[i], run.state.clients), 1e-5)
    assert_close(loop.server, run.state.server, 1e-5)
