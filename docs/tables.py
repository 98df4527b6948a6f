"""The tables of the manual that the registry knows better: `make tables` writes them, a test compares.

A page has `<!-- begin NAME -->` and `<!-- end NAME -->` around a table that is made here.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_srp as srp
from fedjax_srp.algorithms.hetlora import RankAlgorithm
from fedjax_srp.base import Examples, FederatedAlgorithm, RoundContext, Uncharged
from fedjax_srp.driver.prepare import Request, prepare
from fedjax_srp.driver.settings import Settings

HERE = Path(__file__).parent
LAYERS = ("fc1", "fc2", "fc3", "out")  # of the MLP that stands in for every model
SHAPES = SimpleNamespace(
    name="shapes", example_shape=(5,), num_classes=3, num_clients=100
)


def layers_of(tree: Any) -> tuple[str, ...]:
    """Names of the layers that a tree has parameters of."""
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(tree)]
    return tuple(
        layer for layer in LAYERS if any(f"['{layer}']" in path for path in paths)
    )


def charged(tree: Any) -> Any:
    """A tree without what no real client would send."""
    return jax.tree.map(
        lambda node: () if isinstance(node, Uncharged) else node,
        tree,
        is_leaf=lambda node: isinstance(node, Uncharged),
    )


def in_words(layers: tuple[str, ...], head_layers: int) -> str:
    """Which part of the model these layers are."""
    head = "last layer" if head_layers == 1 else f"last {head_layers} layers"
    known = {
        LAYERS: "everything",
        (): "",
        LAYERS[-head_layers:]: head,
        LAYERS[:-head_layers]: f"all but the {head}",
    }
    return known[layers]


def parts(algorithm: FederatedAlgorithm) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Layers that participants send, and layers that a client keeps."""
    one = jnp.int32(1)
    examples, context = (
        Examples(jnp.zeros((2, 5)), jnp.zeros(2, jnp.int32), one),
        RoundContext(one, one, one, 100, one, client_id=one),
    )

    def exchange(key: Any) -> Any:
        server = algorithm.init(key, SHAPES)
        state = algorithm.init_client(key, server, examples)
        down = algorithm.phases[0].download(server, state, context)
        return charged(
            algorithm.phases[0].client(key, down, state, examples, context).message
        ), state

    sent, kept = jax.eval_shape(exchange, jax.random.key(0))
    return layers_of(sent), layers_of(kept)


def methods() -> list[list[str]]:
    """One row a method."""
    rows = [
        [
            "method",
            "called",
            "algorithm",
            "participation",
            "sent",
            "kept by the client",
            "judged by",
            "twin",
            "source",
        ]
    ]
    for name in srp.methods.names():
        row, method = (
            srp.methods.recipe(name),
            srp.methods.get(name, dataset=SHAPES, hidden=(4, 4, 4)),
        )
        sent, kept = (
            in_words(layers, row.head_layers) for layers in parts(method.algorithm)
        )
        if isinstance(method.algorithm, RankAlgorithm):
            sent = "low-rank matrices"
        default = next(iter(method.algorithm.evaluations))
        codes = [
            f"`{word}`"
            for word in (name, method.algorithm.name, method.participation.name, default)
        ]
        twin = f"`{row.twin}`" if row.twin else ""
        rows.append(
            [codes[0], row.label, *codes[1:3], sent, kept, codes[3], twin, row.source]
        )
    return rows


COUNT: Counter[str] = (
    Counter()
)  # examples that went through either side of a `CountedModel`


@srp.part
class CountedModel(srp.models.MLP):
    """A model that counts the examples that go through it."""

    def represent(self, representation: Any, x: Any, key: Any = None) -> Any:
        """As its base, counted."""
        COUNT["represent"] += x.shape[0]
        return super().represent(representation, x, key)

    def classify(self, head: Any, features: Any, key: Any = None) -> Any:
        """As its base, counted."""
        COUNT["classify"] += features.shape[0]
        return super().classify(head, features, key)

    def loss(self, logits: Any, y: Any) -> Any:
        """As its base, counted."""
        COUNT["loss"] += y.shape[0]
        return super().loss(logits, y)


def passes(algorithm: FederatedAlgorithm) -> str:
    """What a participant trains in a round, in passes over its examples, counted while it trains."""
    examples, one = (
        Examples(jnp.zeros((10, 5)), jnp.zeros(10, jnp.int32), jnp.int32(10)),
        jnp.int32(1),
    )
    context = RoundContext(one, one, one, 100, one, client_id=one)
    with jax.disable_jit():
        for seed in range(40):  # L2GD tosses a coin whether the round trains
            server = algorithm.init(jax.random.key(seed), SHAPES)
            state = algorithm.init_client(jax.random.key(1), server, examples)
            down = algorithm.phases[0].download(server, state, context)
            COUNT.clear()
            algorithm.phases[0].client(jax.random.key(2), down, state, examples, context)
            if COUNT:
                break
    whole = min(COUNT["represent"], COUNT["classify"])
    head, body = COUNT["classify"] - whole, COUNT["represent"] - whole
    if "represent" not in COUNT:  # layer by layer
        whole = COUNT["loss"]
    passes = {" of the head": head, "": whole, " of the representation": body}
    return " + ".join(f"{count // 10}{of}" for of, count in passes.items() if count)


def costs() -> list[list[str]]:
    """What a round costs a participant, one row an algorithm that has a method."""
    rows = [
        [
            "algorithm",
            "sent, kB",
            "received, kB",
            "kept, kB",
            "trained: passes over its examples",
            "file",
        ]
    ]
    zeros, labels = np.zeros((4, 28, 28), np.float32), np.zeros(4, np.int32)
    data = srp.data.from_arrays(
        zeros,
        labels,
        zeros + 1,
        labels,
        train_indices=[[0, 1], [2, 3]],
        test_indices=[[0, 1], [2, 3]],
        num_classes=10,
    )
    for name in dict.fromkeys(
        srp.methods.get(n, dataset=SHAPES, hidden=(4, 4, 4)).algorithm.name
        for n in srp.methods.names()
    ):
        method = srp.methods.get(name, dataset=data, participation="full")
        sizes = prepare(Request(method, data, settings=Settings(evaluations=()))).sizes
        counted = CountedModel((5,), 3, (4, 4, 4)).cut_above(
            srp.methods.recipe(name).head_layers
        )
        algorithm = srp.methods.get(
            name, dataset=SHAPES, model=counted, participation="full"
        ).algorithm
        up, down = sizes.messages
        kilobytes = [f"{size / 1000:.0f}" for size in (up, down, sizes.client.state)]
        rows.append(
            [f"`{name}`", *kilobytes, passes(algorithm), f"`algorithms/{name}.py`"]
        )
    return rows


def evaluations() -> list[list[str]]:
    """One row for each evaluation that judges another model, with its algorithms; bold where it is their default."""
    model = srp.models.MLP((5,), 3, (4, 4))
    task = srp.data.linear_task(jax.random.key(0), 4, dim=6, rank=2)
    linear = {
        "linear_fedrep": srp.algorithms.LinearFedRep(
            task, step_size=0.1, samples_per_round=4, head=1, start="random"
        ),
        "linear_fedavg": srp.algorithms.LinearFedAvg(task, step_size=0.1),
    }
    classes = {
        cls.name: cls
        for cls in (getattr(srp.algorithms, name) for name in srp.algorithms.__all__)
    }
    judged: dict[tuple[str, str], list[str]] = {}
    for name in sorted(classes):
        algorithm = linear.get(name) or classes[name](model)
        for place, (evaluation, function) in enumerate(algorithm.evaluations.items()):
            what = (inspect.getdoc(function) or "").replace("\n", " ")
            judged.setdefault((evaluation, what), []).append(
                f"**`{name}`**" if place == 0 else f"`{name}`"
            )
    rows = [
        [f"`{evaluation}`", what, ", ".join(names)]
        for (evaluation, what), names in judged.items()
    ]
    first = list(
        dict.fromkeys(row[0] for row in sorted(rows, key=lambda row: -row[2].count("`")))
    )
    return [
        ["evaluation", "judges", "algorithms"],
        *sorted(rows, key=lambda row: first.index(row[0])),
    ]


TABLES = {
    "methods.md": {"methods": methods, "costs": costs},
    "concepts.md": {"evaluations": evaluations},
}


def markdown(rows: list[list[str]]) -> str:
    """A table in Markdown."""
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in lines)


def page(name: str, tables: Collection[str] | None = None) -> str:
    """The text of a page with its tables, or some of them, as the registry has them."""
    text = (HERE / name).read_text("utf-8")
    for table, make in TABLES[name].items():
        if tables is not None and table not in tables:
            continue
        begin, end = f"<!-- begin {table} -->", f"<!-- end {table} -->"
        made = f"{begin}\n{markdown(make())}\n{end}"
        text = re.sub(
            f"{begin}.*?{end}", lambda _, made=made: made, text, flags=re.DOTALL
        )
    return text


if __name__ == "__main__":
    for name in TABLES:
        (HERE / name).write_text(page(name), "utf-8")
