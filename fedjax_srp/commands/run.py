"""`fedjax-srp run`: one method on one data set, into one folder, continued after a kill."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import operator
import re
import runpy
import shutil
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from fedjax_srp import data, methods, models
from fedjax_srp._checks import unknown
from fedjax_srp.commands import clock as clock_words
from fedjax_srp.commands.options import REQUIRED, Option, options_of
from fedjax_srp.engine.simulate import simulate
from fedjax_srp.history import History, jsonable
from fedjax_srp.report import table
from fedjax_srp.report.run_folder import writable

_NO_EFFECT = ("out", "progress", "checkpoint", "overwrite")  # on the result
_OWN = {"method", "algorithm", "participation", "model", "load"}  # beside what is routed
_SEEDS = 2**32  # JAX keeps 32 bits of a seed


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


def _method_options() -> list[Option]:
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


def _model_options() -> list[Option]:
    (model,) = (o for o in options_of(methods.get) if o.name == "model")
    factories = [(name, getattr(models, name)) for name in models.names()]
    return [model, *_routed([("", models.get), *factories])]


# Arguments that are no options: positions, what the data fix, what only Python can say.
_NO_OPTIONS = ("name", "dataset", "model", "input_shape", "example_shape", "num_classes", "cut", "dtype")
_LOAD = Option(
    "load",
    tuple[str, ...],
    (),
    "Python files that are run first, to register methods of your own (srp.methods.register)",
)
_DATA = [
    Option(
        "dataset", str, REQUIRED, "a data set that fedjax-srp list shows, the path of an .npz file, or a LEAF folder"
    ),
    *options_of(data.load, leave_out=("name", "seed")),
    next(o for o in options_of(data.load) if o.name == "seed")._replace(name="partition_seed"),
]
_SIMULATION = options_of(
    simulate,
    leave_out=("algorithm", "data", "participation", "clock", "key", "checkpoint_dir", "throw", "name"),
    defaults={"num_rounds": 150},  # as in the SRPFL authors' code
)
_REST = [
    Option("clock", str, "fixed", clock_words.HELP),
    Option("seed", int, 0, "of everything random but the partition of the data"),
    Option("communication", float, 0.0, "cost of a communicating round in time units, for the summary and the figure"),
    Option("out", str | None, None, "folder of the run (default runs/<method>_<dataset>_seed<seed>)"),
    Option(
        "checkpoint", bool, True, "save the state after every evaluation; the same command then continues from there"
    ),
    Option("overwrite", bool, False, "run again, and put the result in the place of what the folder holds"),
]


def groups() -> dict[str, list[Option]]:
    """The options by heading, as the registry of methods stands."""
    return {
        "data": _DATA,
        "method": _method_options(),
        "model": _model_options(),
        "simulation": [*_SIMULATION, *_REST],
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
        for file in files:
            if not Path(file).is_file():
                raise ValueError(f"load={file!r}: no such file; give a Python file that registers methods")
            runpy.run_path(file)


def _is_value(word: str) -> bool:
    return not word.startswith("-")


def check_given(arguments: Mapping[str, Any], given: Collection[str]) -> None:
    """Refuses options that were given and that the method does not read.

    Args:
        arguments: option -> value.
        given: the options that stand on the command line.

    Raises:
        ValueError: an option without effect, no method, or a method and an algorithm.
    """
    _choice(arguments)
    if "redraw" in given and arguments["pool"] is None:
        raise ValueError("redraw: has no effect without a pool, when everybody is in it; leave it out, or give a pool")


def _routed_values(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The options of method, policy and model that are not left to these."""
    named = {o.name for o in (*_method_options(), *_model_options())} - _OWN
    return {name: arguments[name] for name in sorted(named) if arguments.get(name) is not None}


def _choice(arguments: Mapping[str, Any]) -> methods.Choice:
    """The method that is asked for, with all its options.

    Raises:
        ValueError: as above.
    """
    if (arguments["method"] is None) == (arguments["algorithm"] is None):
        raise ValueError("give either --method or --algorithm; fedjax-srp list shows both")
    if arguments["algorithm"] is not None and arguments["algorithm"] not in methods.algorithm_names():
        raise unknown("algorithm", arguments["algorithm"], methods.algorithm_names())
    name = str(arguments["method"] or arguments["algorithm"])
    try:
        return methods.choose(name, arguments["model"], arguments["participation"], **_routed_values(arguments))
    except ValueError as error:
        raise ValueError(str(error).replace(", or pass it in `shared`", "")) from None


def run(arguments: Mapping[str, Any], say: Callable[[str], None] = print) -> Path:
    """Simulates, or continues, and returns the folder.

    With `overwrite` the folder keeps what it holds until the new run is finished.

    Args:
        arguments: option -> value, for every option of `groups`.
        say: prints one line.

    Raises:
        ValueError: an argument out of range, a folder that holds another run or cannot be written to.
    """
    choice = _choice(arguments)
    routed = {o.name for o in (*_method_options(), *_model_options())}
    what = {name: value for name, value in arguments.items() if name not in (*_NO_EFFECT, *routed)}
    what = jsonable({"command": "run", "method": choice.name, **choice.record(), **what})
    default = f"runs/{choice.name.replace(' + ', '_')}_{Path(arguments['dataset']).stem}_seed{arguments['seed']}"
    folder = Path(arguments["out"] or default)
    if arguments["overwrite"]:
        place = folder / f"overwriting_{zlib.crc32(json.dumps(what).encode()):08x}"
        finished, begun = False, _has_snapshots(place)
    else:
        place = folder / "checkpoint"
        finished, begun = _found(folder, what)
    if finished:
        say(f"{folder} holds this run already, finished; --overwrite runs it again")
        say(outcome(History.load(folder), arguments["target"], arguments["communication"]))
        return folder
    simulation = _simulation(arguments)
    if arguments["communication"] and simulation["algorithm"].participation.asynchronous:
        raise ValueError(
            f"communication={arguments['communication']:g}: rounds of {choice.name!r} overlap, so a cost changes who "
            "arrives when; give it to the clock, e.g. --clock 'fixed:exponential(1) + 10'"
        )
    writable(folder)
    if arguments["checkpoint"]:
        if begun:
            say(f"continuing the run in {folder}")
        else:
            shutil.rmtree(place, ignore_errors=True)
        place.mkdir(exist_ok=True)
        (place / "arguments.json").write_text(json.dumps(what, indent=1), "utf-8")
    history = simulate(**simulation, checkpoint_dir=place if arguments["checkpoint"] else None)
    history = dataclasses.replace(history, config={**history.config, "seed": arguments["seed"], "arguments": what})
    history.save(folder, target=arguments["target"], communication=arguments["communication"])
    for left in (folder / "checkpoint", *folder.glob("overwriting_*")):
        shutil.rmtree(left, ignore_errors=True)
    say(outcome(history, arguments["target"], arguments["communication"]))
    say(f"written to {folder}")
    return folder


def _simulation(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `simulate`, all but the folder of checkpoints."""

    def given(options: list[Option]) -> dict[str, Any]:
        return {o.name: arguments[o.name] for o in options if o.name not in ("dataset", "partition_seed")}

    if not 0 <= arguments["seed"] < _SEEDS:
        raise ValueError(f"seed={arguments['seed']}: must lie between 0 and {_SEEDS - 1}")
    table.check_target(arguments["target"])
    if arguments["communication"] < 0:
        raise ValueError(f"communication={arguments['communication']}: must be at least 0, in time units")
    try:
        dataset = data.load(arguments["dataset"], **given(_DATA), seed=arguments["partition_seed"])
    except ValueError as error:  # `load` has other names for two options
        named = {"name=": "dataset=", "seed=": "partition_seed="}
        raise ValueError(re.sub("^(name|seed)=", lambda match: named[match[0]], str(error))) from None
    simulation = given(_SIMULATION)
    if simulation["evaluations"] == ("all",):
        simulation["evaluations"] = "all"
    return simulation | {
        "algorithm": methods.get(
            arguments["method"] or arguments["algorithm"],
            dataset=dataset,
            model=arguments["model"],
            participation=arguments["participation"],
            **_routed_values(arguments),
        ),
        "data": dataset,
        "clock": clock_words.parse(arguments["clock"], dataset.num_clients),
        "key": jax.random.key(arguments["seed"]),
    }


def outcome(history: History, target: float | None, communication: float) -> str:
    """A finished run in a few words."""
    summary = history.summary(target, communication)
    words = [f"{methods.label(history.name)}: {history.num_rounds} rounds"]
    words.append(f"simulated time {summary['simulated_time']:.4g} at communication cost {communication:g}")
    if summary["final_accuracy"] is not None:
        words.append(f"final accuracy {100 * summary['final_accuracy']:.2f} % ({history.evaluation})")
        words.append(f"worst tenth of the clients {100 * summary['worst_decile']:.2f} %")
    if target is not None:
        time = summary["time_to_target"]
        words.append(f"{100 * target:g} % {'not reached' if time == float('inf') else f'reached at time {time:.4g}'}")
    if history.diverged is not None:
        words.append(f"DIVERGED in round {history.diverged}, try a smaller --learning-rate")
    return ", ".join(words) + f" ({history.host_seconds:.1f} s on this machine)"


def _found(folder: Path, what: Mapping[str, Any]) -> tuple[bool, bool]:
    """Whether the folder holds this run finished, or begun; refuses what another run left."""
    finished, checkpoints = (folder / "summary.json").is_file(), folder / "checkpoint"
    if not finished and not _has_snapshots(checkpoints):
        return False, False
    place = folder / "config.json" if finished else checkpoints / "arguments.json"
    try:
        known = json.loads(place.read_text("utf-8"))
    except (OSError, json.JSONDecodeError):
        return False, False
    known = known.get("config", {}).get("arguments", {}) if finished else known
    for name in {**what, **known}:
        if known.get(name) != what.get(name):
            raise ValueError(
                f"out={str(folder)!r}: holds another run, with {name}={known.get(name)!r} where this one has "
                f"{what.get(name)!r}; give another --out, or --overwrite"
            )
    return finished, not finished


def _has_snapshots(checkpoints: Path) -> bool:
    return any(path.name.isdigit() for path in checkpoints.glob("*"))
