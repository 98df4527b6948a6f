"""The tables of the manual that the registry knows better: `make tables` writes them, a test compares.

A page has `<!-- begin NAME -->` and `<!-- end NAME -->` around a table that is made here.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp

import fedjax_srp as srp
from fedjax_srp.base import Examples, FederatedAlgorithm, RoundContext, Uncharged
from fedjax_srp.parts import plain

HERE = Path(__file__).parent
LAYERS = ("fc1", "fc2", "fc3", "out")  # of the MLP that stands in for every model
SHAPES = SimpleNamespace(name="shapes", example_shape=(5,), num_classes=3, num_clients=100)


def layers_of(tree: Any) -> tuple[str, ...]:
    """Names of the layers that a tree has parameters of."""
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(tree)]
    return tuple(layer for layer in LAYERS if any(f"['{layer}']" in path for path in paths))


def charged(tree: Any) -> Any:
    """A tree without what no real client would send."""
    return jax.tree.map(
        lambda node: () if isinstance(node, Uncharged) else node, tree, is_leaf=lambda node: isinstance(node, Uncharged)
    )


def in_words(layers: tuple[str, ...], head_layers: int) -> str:
    """Which part of the model these layers are."""
    head = "last layer" if head_layers == 1 else f"last {head_layers} layers"
    known = {LAYERS: "everything", (): "", LAYERS[-head_layers:]: head, LAYERS[:-head_layers]: f"all but the {head}"}
    return known[layers]


def parts(algorithm: FederatedAlgorithm) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Layers that participants send, and layers that a client keeps."""
    one = jnp.int32(1)
    examples, context = Examples(jnp.zeros((2, 5)), jnp.zeros(2, jnp.int32), one), RoundContext(one, one, one, 100, one)

    def exchange(key: Any) -> Any:
        server = algorithm.init(key, SHAPES)
        state, down = algorithm.init_client(key, server, examples), algorithm.round.broadcast(server, context)
        return charged(algorithm.round.client(key, down, state, examples, context).message), state

    sent, kept = jax.eval_shape(exchange, jax.random.key(0))
    return layers_of(sent), layers_of(kept)


def methods() -> list[list[str]]:
    """One row a method."""
    rows = [
        ["method", "called", "algorithm", "participation", "sent", "kept by the client", "judged by", "twin", "source"]
    ]
    for name in srp.methods.names():
        row, method = srp.methods.recipe(name), srp.methods.get(name, dataset=SHAPES, hidden=(4, 4, 4))
        sent, kept = (in_words(layers, row.head_layers) for layers in parts(method.algorithm))
        default = next(iter(method.algorithm.evaluations))
        codes = [f"`{word}`" for word in (name, method.algorithm.name, method.participation.name, default)]
        twin = f"`{row.twin}`" if row.twin else ""
        rows.append([codes[0], row.label, *codes[1:3], sent, kept, codes[3], twin, row.source])
    return rows


def evaluations() -> list[list[str]]:
    """One row an evaluation of an algorithm, the default one first."""
    model = srp.models.mlp((5,), 3, (4, 4))
    task = srp.data.linear_task(jax.random.key(0), 4, dim=6, rank=2)
    linear = {
        "linear_fedrep": srp.algorithms.linear_fedrep(task, 0.1, 4, head=1, init="random"),
        "linear_fedavg": srp.algorithms.linear_fedavg(task, 0.1),
    }
    rows = [["algorithm", "evaluation", "judges"]]
    for name in srp.algorithms.__all__:
        if name not in srp.methods.algorithm_names() and name not in linear:
            continue
        algorithm = linear.get(name) or getattr(srp.algorithms, name)(model)
        for place, (evaluation, function) in enumerate(algorithm.evaluations.items()):
            what = (inspect.getdoc(plain(function)) or "").replace("\n", " ")
            rows.append([f"`{name}`", f"`{evaluation}`" + (" (default)" if place == 0 else ""), what])
    return rows


TABLES = {"methods.md": {"methods": methods}, "concepts.md": {"evaluations": evaluations}}


def markdown(rows: list[list[str]]) -> str:
    """A table in Markdown."""
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in lines)


def page(name: str) -> str:
    """The text of a page with its tables as the registry has them."""
    text = (HERE / name).read_text("utf-8")
    for table, make in TABLES[name].items():
        begin, end = f"<!-- begin {table} -->", f"<!-- end {table} -->"
        made = f"{begin}\n{markdown(make())}\n{end}"
        text = re.sub(f"{begin}.*?{end}", lambda _, made=made: made, text, flags=re.DOTALL)
    return text


if __name__ == "__main__":
    for name in TABLES:
        (HERE / name).write_text(page(name), "utf-8")
