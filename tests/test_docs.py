"""The tables of methods say what the registry has, and the example in the manual runs."""

import re
from pathlib import Path

import jax
import numpy as np

import fedjax_srp as srp
from fedjax_srp.commands import cli

ROOT = Path(__file__).parent.parent


def test_the_table_of_methods_is_the_registry():
    rows = re.findall(
        r"^\| `(\w+)` \| `(\w+)` \| `(\w+)` \|.*\|$", (ROOT / "docs/methods.md").read_text(), re.MULTILINE
    )
    data = srp.data.load("digits", num_clients=20, classes_per_client=4)
    built = [(name, srp.methods.get(name, dataset=data, hidden=(8,))) for name in srp.methods.names()]
    assert rows == [(name, method.algorithm.name, method.participation.name) for name, method in built]


def test_every_algorithm_and_method_is_named_in_the_docs():
    text = (ROOT / "docs/methods.md").read_text()
    readme = (ROOT / "README.md").read_text()
    for name in srp.algorithms.__all__:
        assert name == "sgd" or f"`{name}`" in text
    for name in srp.methods.names():
        assert f"`{name}`" in readme


def test_the_example_of_an_algorithm_runs_and_is_fedavg_without_its_proximal_term():
    code = re.search(r"```python\n(.*?)```", (ROOT / "docs/new_algorithm.md").read_text(), re.DOTALL)
    assert code is not None
    example: dict = {}
    exec(code[1], example)
    data = srp.data.load("digits", num_clients=20, classes_per_client=4)
    model = srp.models.mlp((8, 8), 10, hidden=(8,))

    def accuracy(algorithm):
        options = {"num_rounds": 3, "eval_every": 1, "key": jax.random.key(0), "progress": False}
        return srp.simulate(algorithm, data, **options).accuracy

    fedavg = accuracy(srp.algorithms.fedavg(model, srp.algorithms.sgd(0.1)))
    np.testing.assert_array_equal(accuracy(example["fedprox"](model, 0.0, srp.algorithms.sgd(0.1))), fedavg)
    assert (accuracy(example["fedprox"](model, 10.0, srp.algorithms.sgd(0.1))) != fedavg).any()


def test_the_readmes_runs_run(tmp_path, capsys):
    """Every `fedjax-srp run` as it stands, but for its length, its model and its folder."""
    text = (ROOT / "README.md").read_text().replace("\\\n", " ").replace("$rate", "0.01").replace("$seed", "1")
    runs = re.findall(r"fedjax-srp run (--method.*)$", text, re.MULTILINE)
    assert len(runs) == 2
    for number, words in enumerate(runs):
        small = ["--num-rounds", "1", "--hidden", "8", "--head-epochs", "1", "--fine-tune-epochs", "1", "--no-progress"]
        out = ["--out", str(tmp_path / str(number))]
        assert cli.main(["run", *words.split(), *small, *out], set_up_cores=False) == 0, capsys.readouterr().err
