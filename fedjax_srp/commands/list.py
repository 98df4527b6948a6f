"""`fedjax-srp list`: what there is, each with a line of what it is."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

from fedjax_srp import clocks, data, methods, models, participation


def catalogue(data_dir: str | None = None) -> str:
    """Methods, data sets, models, clocks and policies as text."""
    shapes = SimpleNamespace(example_shape=(28, 28), num_classes=10)  # any: names do not depend on it
    rows = []
    for name in methods.names():
        recipe = methods.recipe(name)
        evaluations = methods.get(name, dataset=shapes).algorithm.evaluations
        rows.append([name, methods.label(name), recipe.twin or "-", ", ".join(evaluations), recipe.source])
    head = ["--method", "is called", "without doubling", "evaluations, default first", "source"]
    parts = [_section("Methods", [head, *rows])]
    named = [
        [name, "ready" if data.is_ready(name, data_dir) else "-", _first_line(data.SOURCES.get(name))]
        for name in data.names(data_dir)
    ]
    parts.append(
        _section(
            f"Data sets (--dataset); ready: here, or in {data.data_folder(data_dir)}",
            [
                *named,
                ["FILE.npz", "", "x_train, y_train, x_test, y_test"],
                ["FOLDER", "", "LEAF's train/*.json and test/*.json"],
            ],
        )
    )
    parts.append(_section("Models (--model)", [[name, _first_line(getattr(models, name))] for name in models.names()]))
    words = [
        ["fixed", "T_i ~ Exp(1), drawn once: SRPFL, section 5, fixed speeds"],
        ["random", "T_i ~ Exp(lambda_i) in every round, lambda_i ~ U[1/N, 1] once: SRPFL, random speeds"],
        ["fixed:DISTRIBUTION", _first_line(clocks.fixed)],
        ["dynamic:DISTRIBUTION", _first_line(clocks.dynamic)],
        ["trace:FILE", _first_line(clocks.trace)],
    ]
    parts.append(_section("Clocks (--clock)", words))
    distributions = [[_call(getattr(clocks, name)), _first_line(getattr(clocks, name))] for name in _DISTRIBUTIONS]
    parts.append(_section("Distributions", distributions))
    policies = [[name, _first_line(getattr(participation, name))] for name in participation.__all__]
    parts.append(_section("Participation (--participation; a method brings its own)", policies))
    return "\n\n".join(parts)


_DISTRIBUTIONS = ("exponential", "uniform", "constant")


def _first_line(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0] if thing is not None else "a file in data_dir"


def _call(function: Any) -> str:
    return f"{function.__name__}({', '.join(inspect.signature(function).parameters)})"


def _section(title: str, rows: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([title, *(f"  {line}" for line in lines)])
