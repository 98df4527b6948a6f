"""The tables of methods say what the registry has."""

import re
from pathlib import Path

import fedjax_srp as srp

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
