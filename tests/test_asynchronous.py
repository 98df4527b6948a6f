"""Asynchronous rounds overlap: a communication cost cannot be added afterwards and belongs in the clock."""

import math

import jax
import pytest
from command_line import RUN, assert_refusal, main
from reference.small import refused

import fedjax_srp as srp
from fedjax_srp import History
from fedjax_srp.lab.report import panels, table

DATA = srp.data.load("digits", num_clients=8, classes_per_client=3, max_examples=10)


@pytest.fixture(scope="module")
def runs():
    """FedBuff and FedAvg, four rounds each."""
    shared = {"hidden": (4,), "k": 2}
    methods = [
        srp.methods.get(name, dataset=DATA, shared=shared)
        for name in ("fedbuff", "fedavg")
    ]
    options = {
        "num_rounds": 4,
        "eval_every": 2,
        "key": jax.random.key(0),
        "progress": False,
        "devices": 1,
    }
    return [srp.simulate(method, DATA, **options) for method in methods]


def test_a_cost_is_refused_afterwards_and_a_folder_remembers(runs, tmp_path):
    fedbuff, fedavg = runs
    assert (fedbuff.asynchronous, fedavg.asynchronous) == (True, False)
    assert fedbuff.elapsed()[-1] > 0
    assert fedavg.elapsed(10.0)[-1] == pytest.approx(fedavg.elapsed()[-1] + 40)
    fedbuff.save(tmp_path)
    for history in (fedbuff, History.load(tmp_path)):
        with refused("communication=10: .*overlap.* give it to the clock"):
            history.elapsed(10.0)
        with refused("communication=10: .*overlap"):
            history.time_to(0.5, communication=10.0)


def test_tables_and_figures_leave_refused_costs_out(runs):
    histories = {history.name: [history] for history in runs}
    target = table.Target(0.01, "as asked")
    frame = table.comparison(histories, 0.01, (0, 10)).set_index("method")
    assert math.isnan(frame.loc["fedbuff", "time_10"])
    assert math.isfinite(frame.loc["fedbuff", "time_0"])
    assert math.isfinite(frame.loc["fedavg", "time_10"])
    assert "rounds overlap" in table.render(frame.reset_index(), target)
    free, charged = panels.figure(histories, target, (0, 10)).axes
    curves = lambda ax: sum(not line.get_label().startswith("_") for line in ax.lines)
    assert (curves(free), curves(charged)) == (2, 1)


def test_the_command_line_refuses_a_cost_before_the_run(tmp_path, capsys):
    out = tmp_path / "run"
    assert (
        main(*RUN.split(), "--method", "fedbuff", "--communication", 10, "--out", out)
        == 2
    )
    assert_refusal(
        capsys.readouterr().err, "communication=10: rounds of 'fedbuff' overlap"
    )
    assert not out.exists()
