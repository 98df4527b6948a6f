"""Asynchronous rounds overlap: a communication cost cannot be added afterwards and belongs in the clock."""

import math

import jax
import pytest

import fedjax_srp as srp
from fedjax_srp.lab.commands import cli
from fedjax_srp.lab.report import panels, table
from fedjax_srp.results.history import History

DATA = srp.data.load("digits", num_clients=8, classes_per_client=3, max_examples=10)
WORDS = "--dataset digits --num-clients 8 --classes-per-client 3 --max-examples 10 --hidden 4 --num-rounds 4"


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
        with pytest.raises(
            ValueError,
            match=r"communication=10: rounds of 'fedbuff' overlap, .* give it to the clock",
        ):
            history.elapsed(10.0)
        with pytest.raises(ValueError, match="overlap"):
            history.time_to(0.5, communication=10.0)


def test_tables_and_figures_leave_refused_costs_out(runs):
    histories = {history.name: [history] for history in runs}
    frame = table.comparison(histories, 0.01, (0, 10)).set_index("method")
    assert math.isnan(frame.loc["fedbuff", "time_10"])
    assert math.isfinite(frame.loc["fedbuff", "time_0"])
    assert math.isfinite(frame.loc["fedavg", "time_10"])
    text = table.render(frame.reset_index(), table.Target(0.01, "as asked"))
    assert "rounds overlap, and a cost belongs in the clock" in text
    free, charged = panels.figure(histories, table.Target(0.01, "as asked"), (0, 10)).axes
    curves = lambda ax: sum(not line.get_label().startswith("_") for line in ax.lines)
    assert (curves(free), curves(charged)) == (2, 1)
    waiting_only = {"fedavg": [runs[1]]}
    assert "overlap" not in table.render(
        table.comparison(waiting_only, 0.01, (0,)), table.Target(0.01, "as asked")
    )


@pytest.mark.long
def test_words_of_the_command_line(tmp_path, capsys):
    run = [
        "run",
        "--method",
        "fedbuff",
        "--k",
        "2",
        *WORDS.split(),
        "--no-progress",
        "--out",
        str(tmp_path / "run"),
    ]
    assert cli.main([*run, "--communication", "10"], set_up_cores=False) == 2
    assert "communication=10: rounds of 'fedbuff' overlap" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert cli.main([*run, "--clock", "fixed:exponential(1)+10"], set_up_cores=False) == 0
    assert (History.load(tmp_path / "run").client_time > 10).all()
