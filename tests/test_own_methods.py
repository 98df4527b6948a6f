"""Methods and policies of a user: registration by one function and one row, and their options."""

import functools
import sys

import jax
import numpy as np
import pytest
from command_line import RUN, main
from method_helpers import SHAPES, record
from reference.small import refused

import fedjax_srp as srp
from fedjax_srp import History
from fedjax_srp.lab.report import drawing
from fedjax_srp.lab.runs import options as run_options
from fedjax_srp.parts import part as parts


@srp.part
class Counted(srp.algorithms.FedAvg):
    """FedAvg of a user."""


def counted(model, pace: float = 0.5, local_epochs: int = 1):
    """Method of a user: FedAvg with step size `pace`."""
    return Counted(model, srp.Training(srp.SGD(pace), epochs=local_epochs))


@srp.part
class Judged(Counted):
    """FedAvg of a user, with an evaluation of its own and one that replaces FedAvg's."""

    @srp.evaluation
    def fine_tune(self, key, server, state, examples):
        """The global model, not trained."""
        return self.global_model(key, server, state, examples)

    @srp.evaluation
    def own(self, key, server, state, examples):
        """The global model under another name."""
        return self.global_model(key, server, state, examples)


def test_an_evaluation_that_a_subclass_of_fedavg_adds_is_the_default():
    model = srp.models.MLP((8, 8), 10, hidden=(4,))
    assert next(iter(Judged(model).evaluations)) == "own"
    assert next(iter(Judged(model, evaluation="fine_tune").evaluations)) == "fine_tune"
    assert next(iter(Counted(model).evaluations)) == "global"
    neighbours = srp.algorithms.KNNPer(model, evaluation="global")
    assert next(iter(neighbours.evaluations)) == "global"


def test_a_function_may_have_options_with_names_of_sgd():
    seen = []

    def mine(model, learning_rate: float = 0.5, momentum: float = 0.25):
        seen.append((learning_rate, momentum))
        return srp.algorithms.FedAvg(model)

    srp.methods.register("mine", mine)
    method = srp.methods.get("mine", dataset=SHAPES, learning_rate=0.1)
    assert seen == [(0.1, 0.25)]
    made = {"training.optimizer.learning_rate": 0.01}  # by the function
    assert parts.values_of(method.algorithm) == made


def test_one_function_and_one_row_add_a_method(tmp_path, capsys):
    row = {"participation": "doubling", "label": "Counted", "color": "#123456"}
    srp.methods.register("counted", counted, **row, twin="fedavg", source="nobody")
    data = srp.data.load("digits", num_clients=10, classes_per_client=3, max_examples=10)
    given = {"pace": 0.25, "initial": 5, "rounds_per_stage": 1}
    method = srp.methods.get("counted", dataset=data, hidden=(4,), **given)
    options = {"num_rounds": 2, "eval_every": 1, "progress": False, "devices": 1}
    history = srp.simulate(method, data, key=jax.random.key(3), **options)
    assert history.cohort_size.tolist() == [5, 10]
    words = f"{RUN} --max-examples 10 --hidden 4 --num-rounds 2 --eval-every 1 --seed 3 --method counted --pace 0.25"
    words += " --initial 5 --rounds-per-stage 1 --devices 1 --no-progress"
    assert main(*words.split(), "--out", tmp_path / "run") == 0
    found = History.load(tmp_path / "run")
    np.testing.assert_array_equal(found.accuracy, history.accuracy)
    assert found.config["words"]["pace"] == 0.25
    assert main("list") == 0
    text = capsys.readouterr().out
    assert "Counted" in text
    assert "nobody" in text
    assert drawing.styles(["counted"])["counted"] == drawing.Style("#123456", "-")
    assert srp.methods.label("counted") == "Counted"
    with refused("option 'paze' of method 'counted' .*did you mean pace"):
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


@srp.part
class Slowest(srp.participation.Fastest):
    """Policy that selects the slowest clients."""

    k: float = 0.5  # policies of the package give this name to a number of clients
    m: parts.Count = 2


def slowest(m: int = 2, k: float = 0.5):
    return Slowest(k=k, m=m)


@pytest.mark.parametrize(
    "maker", [slowest, Slowest, functools.partial(slowest), functools.partial(Slowest)]
)
def test_users_policies_have_names_and_options(maker):
    srp.methods.register_participation("slowest", maker)
    given = {"participation": "slowest", "m": 3, "k": 0.25}
    method = srp.methods.get("fedrep", dataset=SHAPES, **given)
    assert (method.name, method.participation) == ("fedrep + slowest", Slowest(0.25, m=3))
    recorded = record("fedrep", **given)
    assert (recorded["m"], recorded["k"]) == (3, 0.25)
    again = srp.methods.get("fedavg", dataset=SHAPES, **given).participation
    assert jax.tree.structure(again) == jax.tree.structure(method.participation)
    srp.methods.register("mine", counted, participation="slowest", options={"m": 4})
    assert srp.methods.get("mine", dataset=SHAPES).participation == Slowest(m=4)
    with refused("m: has no effect on method 'fedavg', only on .*'slowest'"):
        srp.methods.get("fedavg", dataset=SHAPES, m=3)
