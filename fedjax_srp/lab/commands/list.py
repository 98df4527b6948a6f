"""`fedjax-srp list`: methods, data sets, models, clocks, policies and codecs, a line of description each."""

from __future__ import annotations

import inspect
import shutil
import sys
import textwrap
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from fedjax_srp import clocks, data, messages, methods, models
from fedjax_srp.clocks.by_name import AVAILABILITIES, CLASSES, DISTRIBUTIONS
from fedjax_srp.lab.report.table import aligned
from fedjax_srp.lab.runs import options as run_options

_SHORT_FORMS = {
    "fixed": "fixed:DISTRIBUTION",
    "dynamic": "dynamic:DISTRIBUTION",
    "trace": "trace:FILE",
}


def catalogue(data_dir: str | None = None, load: Sequence[str] = ()) -> str:
    """List methods, data sets, models, clocks, policies and codecs, in lines that fit the terminal.

    Args:
        data_dir: folder with prepared data sets.
        load: Python files that are run first, with parts of yours.
    """
    run_options.load(load)
    # names of evaluations do not depend on it
    shapes = SimpleNamespace(example_shape=(28, 28), num_classes=10)
    recipes = [
        [
            "--method",
            "is called",
            "without doubling",
            "evaluations, default first",
            "source",
        ]
    ]
    for name in methods.names():
        recipe = methods.recipe(name)
        evaluations = methods.get(name, dataset=shapes).algorithm.evaluations
        twin = recipe.twin or "-"
        label = methods.label(name)
        recipes.append([name, label, twin, ", ".join(evaluations), recipe.source])
    sets = []
    for name in data.names(data_dir):
        ready = "ready" if data.is_ready(name, data_dir) else "-"
        about = "a file in data_dir"
        if name in data.SOURCES:
            about = _first_line(data.SOURCES[name])
        sets.append([name, ready, about])
    for layout in data.LAYOUTS.values():
        path, _, content = layout.about.partition(": ")
        sets.append([path, "", content])
    layers = [[name, _first_line(models.FACTORIES[name])] for name in models.names()]
    words = [
        ["fixed", "T_i ~ Exp(1), drawn once: SRPFL, section 5, fixed speeds"],
        [
            "random",
            "T_i ~ Exp(lambda_i) in every round, lambda_i ~ U[1/N, 1] once: SRPFL, random speeds",
        ],
    ]
    words += map(_called, CLASSES)
    for name, maker in clocks.CLOCKS.own().items():
        words.append([f"{name}(...)", _first_line(maker)])
    distributions = [_called(cls) for cls in (*DISTRIBUTIONS, *AVAILABILITIES)]
    policies = [[name, _first_line(maker)] for name, maker in methods.POLICIES.items()]
    codecs = [[name, _first_line(maker)] for name, maker in messages.CODECS.items()]
    ready = f"ready: here, or in {data.data_folder(data_dir)}"
    sections = [
        _section("Methods", recipes),
        _section(f"Data sets (--dataset); {ready}", sets),
        _section("Models (--model)", layers),
        _section("Clocks (--clock)", words),
        _section("Distributions and availability", distributions),
        _section("Participation (--participation; a method brings its own)", policies),
        _section("Codes of messages (--up, --down), such as TopK(0.01)", codecs),
    ]
    return "\n\n".join(sections)


def _called(cls: Any) -> list[str]:
    parameters = ", ".join(inspect.signature(cls).parameters)
    text = _SHORT_FORMS.get(cls.name, f"{cls.name}({parameters})")
    return [text, _first_line(cls)]


def _first_line(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0]


def _section(title: str, rows: list[list[str]]) -> str:
    """Align the columns, and wrap lines that do not fit the terminal."""
    lines = [title, *(f"  {line}" for line in aligned(rows))]
    columns = shutil.get_terminal_size().columns
    if sys.stdout.isatty() and max(map(len, lines)) > columns:
        wrapper = textwrap.TextWrapper(
            columns, subsequent_indent=" " * 6, break_on_hyphens=False
        )
        lines = map(wrapper.fill, lines)
    return "\n".join(lines)
