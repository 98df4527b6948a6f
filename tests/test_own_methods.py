"""Methods and policies of a user: registration by one function and one row, and their options."""

import functools
import sys
from typing import Annotated

import jax
import numpy as np
import pytest
from method_helpers import SHAPES, record

import fedjax_srp as srp
from fedjax_srp.lab.commands import cli
from fedjax_srp.lab.report import drawing
from fedjax_srp.lab.runs import options as run_options
from fedjax_srp.parts import part as parts
from fedjax_srp.results.history import History


@srp.part
class Counted(srp.algorithms.FedAvg):
    """FedAvg of a user."""


def counted(model, pace: float = 0.5, local_epochs: int = 1):
    """Method of a user: FedAvg with step size `pace`."""
    return Counted(model, srp.Training(srp.SGD(pace), epochs=local_epochs))


def test_a_function_may_have_options_with_names_of_sgd():
    seen = []

    def mine(
        model, learning_rate: float = 0.5, momentum: float = 0.25, weight_decay: int = 3
    ):
        seen.append((learning_rate, momentum, weight_decay))
        return srp.algorithms.FedAvg(model)

    srp.methods.register("mine", mine)
    options = {"learning_rate": 0.1, "weight_decay": 4}
    method = srp.methods.get("mine", dataset=SHAPES, **options)
    assert seen == [(0.1, 0.25, 4)]
    assert parts.values_of(method.algorithm) == {
        "training.optimizer.learning_rate": 0.01
    }  # what the function made


def test_a_field_may_have_the_name_of_one_of_sgd():

    @srp.part
    class Mine(srp.algorithms.FedAvg):
        learning_rate: Annotated[float, srp.AtLeast(0)] = 1.0

    given = {"learning_rate": 0.5, "training.optimizer.learning_rate": 0.1}
    made = srp.methods.get(Mine, dataset=SHAPES, hidden=(4,), **given).algorithm
    assert (made.learning_rate, made.training.optimizer) == (0.5, srp.SGD(0.1))


def test_one_function_and_one_row_add_a_method(tmp_path, capsys):
    row = {
        "participation": "doubling",
        "label": "Counted",
        "color": "#123456",
        "twin": "fedavg",
        "source": "nobody",
    }
    srp.methods.register("counted", counted, **row)
    data = srp.data.load("digits", num_clients=10, classes_per_client=3, max_examples=10)
    method = srp.methods.get(
        "counted", dataset=data, hidden=(4,), pace=0.25, initial=5, rounds_per_stage=1
    )
    history = srp.simulate(
        method,
        data,
        num_rounds=2,
        eval_every=1,
        key=jax.random.key(3),
        progress=False,
        devices=1,
    )
    assert history.cohort_size.tolist() == [5, 10]
    words = "--dataset digits --num-clients 10 --classes-per-client 3 --max-examples 10 --hidden 4 --num-rounds 2"
    words += " --eval-every 1 --seed 3 --method counted --pace 0.25 --initial 5 --rounds-per-stage 1 --devices 1"
    assert (
        cli.main(
            ["run", *words.split(), "--no-progress", "--out", str(tmp_path / "run")],
            set_up_cores=False,
        )
        == 0
    )
    found = History.load(tmp_path / "run")
    np.testing.assert_array_equal(found.accuracy, history.accuracy)
    assert found.config["words"]["pace"] == 0.25
    assert cli.main(["list"], set_up_cores=False) == 0
    text = capsys.readouterr().out
    assert "Counted" in text
    assert "nobody" in text
    assert drawing.styles(["counted"])["counted"] == drawing.Style("#123456", "-")
    assert srp.methods.label("counted") == "Counted"
    with pytest.raises(
        ValueError,
        match=r"option 'paze' of method 'counted' or its model \(did you mean pace",
    ):
        srp.methods.get("counted", dataset=data, paze=1.0)


def test_a_loaded_file_imports_modules_in_its_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "beside_the_loaded.py").write_text("NAME = 'lies_beside'\n")
    (tmp_path / "mine.py").write_text(
        "import fedjax_srp as srp\n"
        "from beside_the_loaded import NAME\n"
        "srp.methods.register(NAME, lambda model: srp.algorithms.FedAvg(model), label='mine')\n"
    )
    run_options.load([str(tmp_path / "mine.py")])
    assert "lies_beside" in srp.methods.names()
    assert sys.path[-1] == str(tmp_path)  # behind all others


def test_a_factory_that_returns_nothing_is_named():
    def forgetful(model):
        """Mine."""
        srp.algorithms.FedAvg(model)

    srp.methods.register("forgetful", forgetful)
    data = srp.data.load("digits", num_clients=5, classes_per_client=3)
    with pytest.raises(ValueError, match="algorithm=None must be a FederatedAlgorithm"):
        srp.methods.get("forgetful", dataset=data)


@srp.part
class Slowest(srp.participation.Fastest):
    """Policy that selects the slowest clients."""

    k: float = 0.5  # policies of the package give this name to a number of clients
    m: parts.Count = 2

    def select(self, key, state, times):
        return srp.participation.Fastest(self.m).select(
            key, state, times._replace(realised=-times.realised)
        )


def slowest(m: int = 2, k: float = 0.5):
    return Slowest(k=k, m=m)


@pytest.mark.parametrize(
    "maker", [slowest, Slowest, functools.partial(slowest), functools.partial(Slowest)]
)
def test_users_policies_have_names_and_options(maker):
    srp.methods.register_participation("slowest", maker)
    method = srp.methods.get(
        "fedrep", dataset=SHAPES, participation="slowest", m=3, k=0.25
    )
    assert (method.name, method.participation.name) == ("fedrep + slowest", "slowest")
    assert (method.participation.m, method.participation.k) == (3, 0.25)
    recorded = record("fedrep", participation="slowest", m=3, k=0.25)
    assert (recorded["m"], recorded["k"]) == (3, 0.25)
    again = srp.methods.get(
        "fedavg", dataset=SHAPES, participation="slowest", k=0.25, m=3
    )
    assert again.participation == method.participation  # one program
    assert jax.tree.structure(again.participation) == jax.tree.structure(
        method.participation
    )
    srp.methods.register("mine", counted, participation="slowest", options={"m": 4})
    assert srp.methods.get("mine", dataset=SHAPES).participation == Slowest(m=4)
    with pytest.raises(
        ValueError,
        match=r"m: has no effect on method 'fedavg', only on .*participation 'slowest'",
    ):
        srp.methods.get("fedavg", dataset=SHAPES, m=3)


def test_an_argument_of_a_policy_is_not_one_of_sgd():
    srp.methods.register_participation(
        "turns", lambda momentum=0.9: srp.participation.Full()
    )
    with pytest.raises(
        ValueError,
        match=r"momentum: read by its algorithm and by participation 'turns'; rename your",
    ):
        srp.methods.get("fedrep", dataset=SHAPES, participation="turns", momentum=0.5)
