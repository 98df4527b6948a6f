"""Options of `fedjax-srp run` and of grids, read from the signatures of functions and the fields of parts."""

from __future__ import annotations

import functools
import operator
import os
import runpy
import sys
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from fedjax_srp import data, methods, models
from fedjax_srp.driver.settings import Settings
from fedjax_srp.messages import Coded, Private
from fedjax_srp.parts.options import REQUIRED, Option, written

OWNERS = ("method", "participation", "model")  # parts of a run whose fields are options
# arguments of `methods.get` itself
_TAKEN_BY_GET = ("name", "dataset", "model", "participation", "shared")


def by_name(*options: Option) -> dict[str, Option]:
    """Return name -> option."""
    return {each.path: each for each in options}


_OF_GET, _OF_LOAD = written(methods.get), written(data.load)
METHOD = by_name(
    Option("method", str | None, None, "one of the methods that fedjax-srp list shows"),
    Option(
        "algorithm",
        str | None,
        None,
        "instead of a method: one of the algorithms that fedjax-srp list shows",
    ),
    Option(
        "participation",
        str | None,
        None,
        "participation policy, a name or a constructor such as Fastest(k=5); default that of the method",
    ),
)
MODEL = {"model": _OF_GET["model"]}
LOAD = Option(
    "load",
    tuple[str, ...],
    (),
    "Python files that are run first, to register your own methods, policies, models and clocks "
    "(srp.methods.register and register_participation, srp.models.register, srp.clocks.register)",
)
_DATASET = Option(
    "dataset",
    str,
    REQUIRED,
    "a data set that fedjax-srp list shows, or the path of a file or folder in one of the layouts that it shows",
)
_DIVISION = {
    name: each for name, each in _OF_LOAD.items() if name not in ("name", "seed")
}
DATA = {"dataset": _DATASET, **_DIVISION, "partition_seed": _OF_LOAD["seed"]}
SIMULATION = written(
    Settings, leave_out=("checkpoint_dir", "keep_clients", "states_dir", "throw", "name")
)
_CLOCK = (
    "time of each client for a unit of local work: fixed (T_i ~ Exp(1), drawn once), random or dynamic "
    "(T_i ~ Exp(lambda_i) in every round, lambda_i ~ U[1/N, 1] once), or a constructor of srp.clocks as in Python or "
    "in lower case, such as Fixed(LogNormal(1.0, sigma=0.5)), devices(compute, downlink, uplink), "
    "available(CLOCK, markov(on, off)) and failing(CLOCK, rate), where a distribution may replace a number and N is "
    "the number of clients; fixed:DISTRIBUTION and dynamic:DISTRIBUTION are short forms, ordered:CLOCK numbers clients "
    "by speed, the fastest first, and CLOCK + COST adds a communication cost to every time (for rounds that overlap); "
    "trace:FILE is a .csv or .npy with a row per round and a column per client, whose names may be the first line; or "
    "NAME or NAME(...) of srp.clocks.register"
)
REST = by_name(
    Option("clock", str, "fixed", _CLOCK),
    Option("seed", int, 0, "of everything random but the partition of the data"),
    Option(
        "communication",
        float,
        0.0,
        "cost of a communicating round in time units, for the summary and the figure",
    ),
    Option(
        "out",
        str | None,
        None,
        "folder of the run (default runs/<method>_<dataset>_seed<seed>)",
    ),
    Option(
        "checkpoint",
        bool,
        True,
        "save the state after every evaluation; the same command then continues from there, and with more --num-rounds "
        "or another --time-limit or --target the finished run too. Two or three copies of the states of server and "
        "clients while it runs, one or two when it is finished",
    ),
    Option(
        "models",
        bool,
        False,
        "put the final states of the server and of all clients into the folder",
    ),
    Option(
        "log",
        str | None,
        None,
        "file that gets a line of JSON for each round, appended while the run goes on",
    ),
    Option(
        "tensorboard",
        str | None,
        None,
        "folder for TensorBoard, which gets the numbers of each round",
    ),
    Option(
        "wandb",
        str | None,
        None,
        "project of Weights & Biases, which gets the numbers of each round",
    ),
    Option("overwrite", bool, False, "run again, and replace the result in the folder"),
)
# all others belong to an owner
FIXED = frozenset((*DATA, *METHOD, *MODEL, "load", *SIMULATION, *REST))


def option_name(owner: str, name: str) -> str:
    """Return the command-line name of an owner's option: with the owner, "method.alpha", if the name is taken.

    Args:
        owner: one of `OWNERS`.
        name: in `srp.methods.get`.
    """
    return f"{owner}.{name}" if name in FIXED else name


def options_read(given: Mapping[str, Any]) -> dict[str, str]:
    """Return the options that the method of a run reads: command-line name -> name in `srp.methods.get`.

    Args:
        given: the run's method or algorithm, participation and model, each a name or an object, among other options.
    """
    method = given.get("method", given.get("algorithm"))
    participation = given.get("participation")
    of_owner: dict[str, Collection[str]] = {}
    if isinstance(method, str):
        route = methods.routes(method, participation, given.get("model") or "mlp")
        of_owner["method"] = route.algorithm
        of_owner["participation"] = route.policy
        of_owner["model"] = route.model
    elif participation:  # an object has no options other than those of its policy
        of_owner["participation"] = methods.routes("fedavg", participation).policy
    read = {}
    for owner, names in of_owner.items():
        for name in names:
            read[option_name(owner, name)] = name
    return read


def with_policy_read(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with a participation that is a constructor's text as an object; a name stays a name.

    Args:
        given: options of a run; its number of clients is N in the text.
    """
    policy = given.get("participation")
    if policy is None:
        return dict(given)
    num_clients = getattr(given.get("data"), "num_clients", given.get("num_clients"))
    return {**given, "participation": methods.read_unless_name(policy, num_clients)}


def groups() -> dict[str, dict[str, Option]]:
    """Return heading -> its options, including those of registered methods, policies and models."""
    of_owner = _by_owner()
    return {
        "data": DATA,
        "method": {
            **METHOD,
            **of_owner["method"],
            **of_owner["participation"],
            "load": LOAD,
        },
        "model": {**MODEL, **of_owner["model"]},
        "simulation": {**SIMULATION, **REST},
    }


def groups_read(given: Mapping[str, Any]) -> dict[str, dict[str, Option]]:
    """Return heading -> its options that a method reads, those of its policy and model included.

    Args:
        given: the method or algorithm, and maybe participation and model, see `options_read`.
    """
    read = options_read(with_policy_read(given))
    chosen: dict[str, dict[str, Option]] = {}
    for owner, options in _by_owner().items():
        chosen[owner] = {name: each for name, each in options.items() if name in read}
    return {
        "method": {**METHOD, **chosen["method"], **chosen["participation"]},
        "model": {**MODEL, **chosen["model"]},
    }


def _by_owner() -> dict[str, dict[str, Option]]:
    """Return owner -> its options, with None for the part's default; shared options belong to their first owner."""
    makers = {owner: _makers(owner) for owner in OWNERS}
    # option -> owner -> names of its makers, and what each says of the option
    found: dict[str, dict[str, list[tuple[str, Option]]]] = {}
    for owner, of_owner in makers.items():
        for name, maker in of_owner.items():
            for inner, each in written(maker, leave_out=_TAKEN_BY_GET).items():
                if owner == "model" and name and inner not in models.options(name):
                    continue
                readers = found.setdefault(option_name(owner, inner), {})
                readers.setdefault(owner, []).append((name, each))
    options: dict[str, dict[str, Option]] = {owner: {} for owner in OWNERS}
    for called, same in found.items():
        kinds = []
        texts = []
        for owner, readers in same.items():
            kinds += [each.type for _, each in readers]
            texts.append(_help(readers, len(makers[owner])))
        first_owner = next(iter(same))
        option = Option(called, _union(kinds) | None, None, "; ".join(texts))
        options[first_owner][called] = option
    return options


def _union(kinds: Sequence[Any]) -> Any:
    """Return the union of types, with each choice of a `Literal` once."""
    choices: dict[Any, None] = {}
    others = []
    for kind in kinds:
        if get_origin(kind) is Literal:
            choices |= dict.fromkeys(get_args(kind))
        else:
            others.append(kind)
    if choices:
        others.append(Literal[*choices])
    return functools.reduce(operator.or_, others)


def _makers(owner: str) -> dict[str, Callable[..., Any]]:
    """Return name -> maker of such a part; "" for the maker of options that all have."""
    if owner == "participation":
        return methods.POLICIES
    if owner == "model":
        return {"": models.get, **models.FACTORIES}
    makers: dict[str, Callable[..., Any]] = {"": Coded, "private": Private}
    for name in (*methods.names(), *methods.algorithm_names()):
        factory = methods.recipe(name).factory
        makers[methods.name_of(factory)] = factory
    return makers


def _help(same: list[tuple[str, Option]], num_makers: int) -> str:
    """Join the help texts of an option; a text that most makers share stands without their names."""
    texts: dict[str, list[str]] = {}
    for name, each in same:
        # of a second optimizer
        default = "that of training" if each.is_optional else each.default
        words = [each.help.rstrip(".").replace("`", "")]
        if isinstance(default, tuple):
            default = " ".join(map(str, default))
        if default not in (None, REQUIRED):
            words.append(f"default {default}")
        readers = texts.setdefault("; ".join(filter(None, words)), [])
        if name and name not in readers:
            readers.append(name)
    parts = []
    for text, readers in texts.items():
        if 0 < len(readers) <= num_makers / 2:
            text = f"{', '.join(readers)}: {text}"
        parts.append(text)
    return "; ".join(parts)


def load(files: Sequence[str]) -> None:
    """Run Python files that register methods and the like; they can import modules in their folder."""
    for file in files:
        if not os.path.isfile(file):  # unlike `Path.is_file` it never raises
            raise ValueError(
                f"load={file!r}: no such file; give a Python file that registers methods"
            )
        if (folder := str(Path(file).resolve().parent)) not in sys.path:
            sys.path.append(folder)
        try:
            runpy.run_path(file, run_name=Path(file).stem)  # the module name in records
        except (Exception, SystemExit) as error:
            line = None
            for frame in traceback.extract_tb(error.__traceback__):
                if frame.filename == file:
                    line = frame.lineno
            if isinstance(error, SyntaxError):
                line = error.lineno
            words = [f"{type(error).__name__}:", *str(error).split()]
            message = " ".join(words).rstrip(":")
            raise ValueError(
                f"load={file!r}: line {line}: {message}; python {file!r} shows the traceback"
            ) from error
