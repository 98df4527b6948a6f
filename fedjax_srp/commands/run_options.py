"""The options of `fedjax-srp run`: of the data, the method, the model and the simulation, read off the functions."""

from __future__ import annotations

import functools
import itertools
import operator
import runpy
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedjax_srp import data, methods, models
from fedjax_srp.commands import clock as clock_words
from fedjax_srp.commands.options import REQUIRED, Option, options_of
from fedjax_srp.engine.simulate import simulate


def _routed(functions: list[tuple[str, Callable[..., Any]]]) -> list[Option]:
    """What functions take, each option once; None leaves it to the function, whose name stands in the help."""
    found: dict[str, list[tuple[str, Option]]] = {}
    for name, function in functions:
        for option in options_of(function, leave_out=(*_NO_OPTIONS, *methods.OBJECTS)):
            found.setdefault(option.name, []).append((name, option))
    options = []
    for same in found.values():
        kind = functools.reduce(operator.or_, [option.type for _, option in same])
        options.append(same[0][1]._replace(type=kind | None, default=None, help=_help(same)))
    return options


def _help(same: list[tuple[str, Option]]) -> str:
    """What an option means to those who read it; "" stands for all."""
    texts: dict[str, list[str]] = {}
    for name, option in same:
        default = "" if option.default in (None, REQUIRED) else f"; default {option.default}"
        readers = texts.setdefault(option.help.rstrip(".").replace("`", "") + default, [])
        if name and name not in readers:
            readers.append(name)
    return "; ".join(f"{', '.join(readers)}: {text}" if readers else text for text, readers in texts.items())


def method_options() -> list[Option]:
    """Of every method that is registered now, and of every policy."""
    (participation,) = (o for o in options_of(methods.get) if o.name == "participation")
    factories = [methods.recipe(name).factory for name in (*methods.names(), *methods.algorithm_names())]
    return [
        Option("method", str | None, None, "one of the methods that fedjax-srp list shows"),
        Option("algorithm", str | None, None, "instead of a method: one of the algorithms that fedjax-srp list shows"),
        participation._replace(type=str | None, default=None, help="who takes part; default that of the method"),
        *_routed(
            [
                ("", methods.optimizers),
                *((methods.name_of(factory), factory) for factory in factories),
                *methods.POLICIES.items(),
            ]
        ),
        _LOAD,
    ]


def model_options() -> list[Option]:
    """Of the models by name, and which of them."""
    (model,) = (o for o in options_of(methods.get) if o.name == "model")
    factories = [
        (name, functools.partial(made, None, None)) for name, made in models.FACTORIES.items()
    ]  # shape, classes
    return [model, *_routed([("", models.get), *factories])]


# Arguments that are no options: positions, what the data fix, what only Python can say.
_NO_OPTIONS = ("name", "dataset", "model", "input_shape", "example_shape", "num_classes", "cut", "dtype")
_LOAD = Option(
    "load",
    tuple[str, ...],
    (),
    "Python files that are run first, to register methods, policies, models and clocks of your own "
    "(srp.methods.register and register_participation, srp.models.register, srp.clocks.register)",
)
DATA = [
    Option(
        "dataset", str, REQUIRED, "a data set that fedjax-srp list shows, the path of an .npz file, or a LEAF folder"
    ),
    *options_of(data.load, leave_out=("name", "seed")),
    next(o for o in options_of(data.load) if o.name == "seed")._replace(name="partition_seed"),
]
SIMULATION = options_of(
    simulate,
    leave_out=(
        *("algorithm", "data", "participation", "clock", "key", "checkpoint_dir", "keep_clients", "callback"),
        *("throw", "name"),
    ),
    defaults={"num_rounds": 150},  # as in the SRPFL authors' code
)
_REST = [
    Option("clock", str, "fixed", clock_words.HELP),
    Option("seed", int, 0, "of everything random but the partition of the data"),
    Option("communication", float, 0.0, "cost of a communicating round in time units, for the summary and the figure"),
    Option("out", str | None, None, "folder of the run (default runs/<method>_<dataset>_seed<seed>)"),
    Option(
        "checkpoint",
        bool,
        True,
        "save the state after every evaluation; the same command then continues from there, and with more --num-rounds "
        "or another --time-limit or --target the finished run too. Two or three copies of the states of server and "
        "clients while it runs, one or two when it is finished",
    ),
    Option("models", bool, False, "put the final states of the server and of all clients into the folder"),
    Option("log", str | None, None, "file that gets a line of JSON for each round, appended while the run goes on"),
    Option("tensorboard", str | None, None, "folder for TensorBoard, which gets the numbers of each round"),
    Option("overwrite", bool, False, "run again, and put the result in the place of what the folder holds"),
]


def groups() -> dict[str, list[Option]]:
    """The options by heading, as the registry of methods stands.

    Raises:
        ValueError: two of them have one name, which a method of one's own can bring about.
    """
    found = {
        "data": DATA,
        "method": method_options(),
        "model": model_options(),
        "simulation": [*SIMULATION, *_REST],
    }
    owners: dict[str, str] = {}
    for heading, options in found.items():
        for option in options:
            if owners.setdefault(option.name, heading) != heading:
                raise ValueError(
                    f"{option.name}: an option of {owners[option.name]} and of {heading}; rename the argument of the "
                    "factory that was registered last"
                )
    return found


def prepare(words: Sequence[str]) -> None:
    """Runs the files of --load, before options are read.

    Raises:
        ValueError: no such file.
    """
    for place, word in enumerate(words):
        if word.partition("=")[0] != "--load":
            continue
        files = [word.partition("=")[2]] if "=" in word else itertools.takewhile(_is_value, words[place + 1 :])
        load(list(files))


def load(files: Sequence[str]) -> None:
    """Runs Python files that register methods; they find modules that lie beside them.

    Raises:
        ValueError: no such file, or one that fails.
    """
    for file in files:
        if not Path(file).is_file():
            raise ValueError(f"load={file!r}: no such file; give a Python file that registers methods")
        if (beside := str(Path(file).resolve().parent)) not in sys.path:
            sys.path.append(beside)  # what it imports may lie beside it
        try:
            runpy.run_path(file)
        except (Exception, SystemExit) as error:
            lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
            line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
            said = " ".join([f"{type(error).__name__}:", *str(error).split()]).rstrip(":")
            raise ValueError(f"load={file!r}: line {line}: {said}; python {file} shows all of it") from error


def _is_value(word: str) -> bool:
    return not word.startswith("-")
