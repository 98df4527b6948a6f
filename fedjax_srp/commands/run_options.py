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
from fedjax_srp.methods.options import MODEL_OPTIONS

OWNERS = ("method", "participation", "model")  # the parts of a method whose fields are options here
_TAKEN_BY_GET = ("name", "dataset", "model", "participation", "shared")  # names that `methods.get` cannot pass on

_PARTICIPATION, _MODEL = (
    next(o for o in options_of(methods.get) if o.name == name) for name in ("participation", "model")
)
METHOD = [
    Option("method", str | None, None, "one of the methods that fedjax-srp list shows"),
    Option("algorithm", str | None, None, "instead of a method: one of the algorithms that fedjax-srp list shows"),
    _PARTICIPATION._replace(type=str | None, default=None, help="who takes part; default that of the method"),
]
MODEL = [_MODEL]
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


_NOT_OWNED = frozenset(option.name for option in (*DATA, *METHOD, *MODEL, _LOAD, *SIMULATION, *_REST))


def word(owner: str, name: str) -> str:
    """How an option of a part is written here: `alpha` of a method is "method.alpha", since data have an `alpha` too.

    Args:
        owner: one of `OWNERS`.
        name: what `srp.methods.get` calls it.
    """
    return f"{owner}.{name}" if name in _NOT_OWNED else name


def read_by(method: str, participation: str | None, model: str) -> dict[str, str]:
    """How an option is written here -> what `srp.methods.get` calls it, of all that a method reads.

    Raises:
        ValueError: no such method, participation or model.
    """
    route = methods.routes(method, participation)
    of_owner = route.algorithm, route.policy, (*MODEL_OPTIONS, *models.options(model))
    return {word(owner, name): name for owner, names in zip(OWNERS, of_owner, strict=True) for name in names}


def owned() -> dict[str, Option]:
    """The options of all methods, policies and models that are registered now; None leaves one to the part."""
    return {name: option for of_owner in _by_owner().values() for name, option in of_owner.items()}


def _by_owner() -> dict[str, dict[str, Option]]:
    """Owner -> its options. One that several owners have stands with the first."""
    makers = {owner: _makers(owner) for owner in OWNERS}
    found: dict[str, dict[str, list[tuple[str, Option]]]] = {}
    for owner, of_owner in makers.items():
        for name, maker in of_owner.items():
            for option in _options(owner, name, maker):
                found.setdefault(word(owner, option.name), {}).setdefault(owner, []).append((name, option))
    options: dict[str, dict[str, Option]] = {owner: {} for owner in OWNERS}
    for written, same in found.items():
        kind = functools.reduce(operator.or_, [option.type for readers in same.values() for _, option in readers])
        text = "; ".join(_help(readers, len(makers[owner])) for owner, readers in same.items())
        options[next(iter(same))][written] = Option(written, kind | None, None, text)
    return options


def _makers(owner: str) -> dict[str, Callable[..., Any]]:
    """Name -> what makes such a part; "" for what serves all of them."""
    if owner == "method":
        factories = [methods.recipe(name).factory for name in (*methods.names(), *methods.algorithm_names())]
        return {methods.name_of(factory): factory for factory in factories}
    return methods.POLICIES if owner == "participation" else {"": models.get, **models.FACTORIES}


def _options(owner: str, name: str, maker: Callable[..., Any]) -> list[Option]:
    found, read = options_of(maker, leave_out=_TAKEN_BY_GET), None
    if owner == "model" and name:
        read = models.options(name)
    return [option for option in found if read is None or option.name in read]


def _help(same: list[tuple[str, Option]], how_many: int) -> str:
    """What an option means to those who read it; what it means to most of them stands without their names."""
    texts: dict[str, list[str]] = {}
    for name, option in same:
        default = "that of training" if "." in option.name else option.default  # dotted: of an optimizer beside it
        words = [option.help.rstrip(".").replace("`", "")]
        if default not in (None, REQUIRED):
            words.append(f"default {' '.join(map(str, default)) if isinstance(default, tuple) else default}")
        readers = texts.setdefault("; ".join(filter(None, words)), [])
        if name and name not in readers:
            readers.append(name)
    is_named = {text: 0 < len(readers) <= how_many / 2 for text, readers in texts.items()}
    return "; ".join(f"{', '.join(readers)}: {text}" if is_named[text] else text for text, readers in texts.items())


def groups() -> dict[str, list[Option]]:
    """The options by heading."""
    of_owner = _by_owner()
    return {
        "data": DATA,
        "method": [*METHOD, *of_owner["method"].values(), *of_owner["participation"].values(), _LOAD],
        "model": [*MODEL, *of_owner["model"].values()],
        "simulation": [*SIMULATION, *_REST],
    }


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
