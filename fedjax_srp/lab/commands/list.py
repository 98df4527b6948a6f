"""`fedjax-srp list`: methods, data sets, models, clocks and policies, each with a line of description."""

from __future__ import annotations

import inspect
import itertools
import shutil
import sys
import textwrap
from types import SimpleNamespace
from typing import Any

from fedjax_srp import clocks, data, methods, models
from fedjax_srp.clocks.by_name import AVAILABILITIES, DISTRIBUTIONS

_MIN_WIDTH, _INDENT = (
    40,
    6,
)  # a last column narrower than this is moved below its line, with this indent


def width_of_stdout() -> int | None:
    """Return the columns of the terminal; None for a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def catalogue(data_dir: str | None = None, width: int | None = None) -> str:
    """List methods, data sets, models, clocks and policies.

    Args:
        data_dir: folder with prepared data sets.
        width: letters of a line at most.
    """
    shapes = SimpleNamespace(
        example_shape=(28, 28), num_classes=10
    )  # names do not depend on it
    rows = []
    for name in methods.names():
        recipe = methods.recipe(name)
        evaluations = methods.get(name, dataset=shapes).algorithm.evaluations
        rows.append(
            [
                name,
                methods.label(name),
                recipe.twin or "-",
                ", ".join(evaluations),
                recipe.source,
            ]
        )
    head = [
        "--method",
        "is called",
        "without doubling",
        "evaluations, default first",
        "source",
    ]
    parts = [_section("Methods", [head, *rows], width)]
    named = [
        [
            name,
            "ready" if data.is_ready(name, data_dir) else "-",
            _first_line(data.SOURCES.get(name)),
        ]
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
            width,
        )
    )
    layers = [[name, _first_line(models.FACTORIES[name])] for name in models.names()]
    parts.append(_section("Models (--model)", layers, width))
    own = clocks.CLOCKS.own()
    words = [
        ["fixed", "T_i ~ Exp(1), drawn once: SRPFL, section 5, fixed speeds"],
        [
            "random",
            "T_i ~ Exp(lambda_i) in every round, lambda_i ~ U[1/N, 1] once: SRPFL, random speeds",
        ],
        ["fixed:DISTRIBUTION", _first_line(clocks.Fixed)],
        ["dynamic:DISTRIBUTION", _first_line(clocks.Dynamic)],
        ["trace:FILE", _first_line(clocks.Trace)],
        *(
            [_call(cls.name, cls), _first_line(cls)]
            for cls in (clocks.Devices, clocks.Available, clocks.Failing)
        ),
        *([f"{name}(...)", _first_line(maker)] for name, maker in own.items()),
    ]
    parts.append(_section("Clocks (--clock)", words, width))
    distributions = [
        [_call(cls.name, cls), _first_line(cls)]
        for cls in (*DISTRIBUTIONS, *AVAILABILITIES)
    ]
    parts.append(_section("Distributions and availability", distributions, width))
    policies = [[name, _first_line(maker)] for name, maker in methods.POLICIES.items()]
    parts.append(
        _section(
            "Participation (--participation; a method brings its own)", policies, width
        )
    )
    return "\n\n".join(parts)


def _first_line(thing: Any) -> str:
    return (
        (inspect.getdoc(thing) or "").partition("\n")[0]
        if thing is not None
        else "a file in data_dir"
    )


def _call(name: str, maker: Any) -> str:
    return f"{name}({', '.join(inspect.signature(maker).parameters)})"


def _section(title: str, rows: list[list[str]], width: int | None) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    starts = [
        *itertools.accumulate((each + 2 for each in widths), initial=2)
    ]  # of columns, and the end of the last
    limit = starts[-1] if width is None else width
    num_inline = len(widths)  # columns in one line; the others go below
    if starts[-1] - 2 > limit and limit - starts[-2] < _MIN_WIDTH:
        num_inline = max(1, sum(end - 2 <= limit for end in starts[1:]))
    lines = []
    for row in rows:
        line = "  ".join(
            word.ljust(each) for word, each in zip(row[:num_inline], widths, strict=False)
        ).rstrip()
        lines.append(_wrapped(f"  {line}", limit, " " * starts[num_inline - 1]))
        if below := "; ".join(filter(None, row[num_inline:])):
            lines.append(_wrapped(" " * _INDENT + below, limit, " " * _INDENT))
    return "\n".join([_wrapped(title, limit, "  "), *lines])


def _wrapped(text: str, width: int, indent: str) -> str:
    return textwrap.fill(
        text,
        width,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
