"""A published method that a user writes in a few lines, with public names only."""

import ast
import inspect
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from own.dynamic import Dynamic
from reference.small import NUM_CLASSES, NUM_FEATURES, assert_close, clients_of, federation
from test_code_map import code_lines

import fedjax_srp as srp
from fedjax_srp.commands import cli
from fedjax_srp.history import History

KEY = jax.random.key(5)
BUDGET = 40  # code lines
COUNTS = (4, 9, 6, 12, 7)
CLIENTS = clients_of(COUNTS, (3,) * len(COUNTS))
DATA = federation(CLIENTS)
SOFTMAX = srp.models.MLP((NUM_FEATURES,), NUM_CLASSES, hidden=())  # one layer, called "out"


def test_it_is_short_and_uses_public_names_only():
    text = Path(inspect.getfile(Dynamic)).read_text()
    assert 10 < code_lines(text) <= BUDGET
    tree = ast.parse(text)
    imported = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    own = [line for line in imported if "fedjax_srp" in line]
    assert own == ["import fedjax_srp as srp", "from fedjax_srp.algorithms import local"]
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    assert {node.attr for node in attributes if ast.unparse(node.value) == "srp"} <= {*srp.__all__}
    assert {node.attr for node in attributes if node.attr.startswith("_")} <= {"_replace"}


WORDS = (
    "--learning-rate 0.05 --epochs 2 --initial 2 --hidden 4 --num-rounds 2 --devices 1 --no-progress "
    "--dataset digits --num-clients 6 --classes-per-client 3 --max-examples 10"
)


def test_it_runs_from_the_command_line(tmp_path):
    name, file, folder = Dynamic.name, tmp_path / "mine.py", tmp_path / "run"
    text = Path(inspect.getfile(Dynamic)).read_text()
    registered = f"srp.methods.register('{name}', {Dynamic.__name__}, label='Mine', participation='doubling')"
    file.write_text(f"{text}\n\n{registered}\n")
    arguments = ["run", "--load", file, "--method", name, "--method.alpha", 0.1, *WORDS.split(), "--out", folder]
    assert cli.main([*map(str, arguments)], set_up_cores=False) == 0
    history = History.load(folder)
    assert history.name == name
    assert history.cohort_size.tolist() == [2, 2]
    expected = {"learning_rate": 0.05, "epochs": 2, "alpha": 0.1}
    assert {option: history.config["options"][option] for option in expected} == expected


@pytest.mark.long
def test_its_float_may_change_without_compiling_and_differ_between_seeds():
    keys, options = jnp.stack([KEY, KEY]), {"num_rounds": 2, "eval_every": 2, "devices": 1, "progress": False}
    both = srp.simulate_seeds(Dynamic(SOFTMAX), DATA, keys=keys, values={"alpha": [0.01, 0.5]}, **options)
    for history, alpha in zip(both, (0.01, 0.5), strict=True):
        alone = srp.simulate(Dynamic(SOFTMAX, alpha=alpha), DATA, key=KEY, **options)
        assert_close(alone.server_state, history.server_state, 1e-5)
    assert alone.compile_seconds == 0  # 0.01 has compiled it
    with pytest.raises(ValueError, match=r"alpha=0\.0 must be positive; give a small number"):
        Dynamic(SOFTMAX, alpha=0.0)


@pytest.mark.short("full")
@pytest.mark.parametrize("policy", [srp.participation.Full(), srp.participation.Fastest(2)], ids=["full", "some"])
def test_it_agrees_with_the_method_of_the_package(policy):
    """With equal keys, `local_sgd` draws equal batches."""
    options = {"num_rounds": 3, "eval_every": 3, "participation": policy, "key": KEY, "progress": False}
    training = srp.Training(srp.SGD(0.2), batch_size=4, epochs=2)
    own, of_package = (
        srp.simulate(algorithm, DATA, keep_clients=True, **options)
        for algorithm in (Dynamic(SOFTMAX, training, alpha=0.3), srp.algorithms.FedDyn(SOFTMAX, training, penalty=0.3))
    )
    assert_close(own.server_state.params, of_package.server_state.params, 1e-6)
    assert_close(own.client_states, of_package.client_states.h, 1e-6)
