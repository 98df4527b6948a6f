"""`fedjax-srp run`: one method on one data set, into one folder, continued after a kill."""

from __future__ import annotations

import contextlib
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
from typing import Any, NamedTuple

import jax

from fedjax_srp import data, methods, models, stored, watch
from fedjax_srp._checks import unknown
from fedjax_srp.base import GRADIENT_NORM
from fedjax_srp.commands import clock as clock_words
from fedjax_srp.commands.options import REQUIRED, Option, options_of
from fedjax_srp.engine.checkpoint import snapshots
from fedjax_srp.engine.simulate import simulate
from fedjax_srp.history import History
from fedjax_srp.report import table
from fedjax_srp.report.run_folder import MODELS, writable
from fedjax_srp.stored import jsonable

_NO_EFFECT = ("out", "progress", "checkpoint", "overwrite", "models", "log", "tensorboard")  # on the result
_LIMITS = ("num_rounds", "time_limit", "target")  # may differ where a run is made longer
_ARGUMENTS = "arguments.json"  # beside the checkpoints
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
        "data": _DATA,
        "method": _method_options(),
        "model": _model_options(),
        "simulation": [*_SIMULATION, *_REST],
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
        ValueError: an argument out of range, a folder that holds another run, cannot be written to, or that another
            process is writing to.
        OSError: the disk is full.
    """
    choice = _choice(arguments)
    routed = {o.name for o in (*_method_options(), *_model_options())}
    what = {name: value for name, value in arguments.items() if name not in (*_NO_EFFECT, *routed)}
    what = jsonable({"command": "run", "method": choice.name, **choice.record(), **what})
    default = f"runs/{choice.name.replace(' + ', '_')}_{Path(arguments['dataset']).stem}_seed{arguments['seed']}"
    folder = Path(arguments["out"] or default)
    with contextlib.ExitStack() as stack:
        if not _found(folder, what, arguments).finished and folder.is_dir():
            stack.enter_context(stored.held(writable(folder), "out"))
        found = _found(folder, what, arguments)  # as it stays, now that it is held
        if found.finished:
            say(f"{folder} holds this run already, finished; --overwrite runs it again")
            say(outcome(History.load(folder), arguments["target"], arguments["communication"]))
            return folder
        simulation = _simulation(arguments)
        if arguments["communication"] and simulation["algorithm"].participation.asynchronous:
            raise ValueError(
                f"communication={arguments['communication']:g}: rounds of {choice.name!r} overlap, so a cost changes "
                "who arrives when; give it to the clock, e.g. --clock 'fixed:exponential(1) + 10'"
            )
        if not folder.is_dir():
            stack.enter_context(stored.held(writable(folder), "out"))
        if arguments["checkpoint"]:
            if found.begun:
                say(f"continuing the run in {folder}")
            else:
                shutil.rmtree(found.place, ignore_errors=True)
            found.place.mkdir(exist_ok=True)
            stored.write_json(found.place / _ARGUMENTS, what)
        with_models = arguments["models"] or (found.begun and (folder / MODELS).is_dir())
        history = simulate(
            **simulation,
            checkpoint_dir=found.place if arguments["checkpoint"] else None,
            keep_clients=with_models,
            callback=_loggers(arguments),
        )
        history = dataclasses.replace(history, config={**history.config, "seed": arguments["seed"], "arguments": what})
        history.save(folder, target=arguments["target"], communication=arguments["communication"], models=with_models)
        _tidy(folder, found.place if arguments["checkpoint"] else None)
    say(outcome(history, arguments["target"], arguments["communication"]))
    kept = f", {_size(folder / 'checkpoint')} of it to make the run longer" if arguments["checkpoint"] else ""
    say(f"written to {folder}: {_size(folder)}{kept}")
    return folder


def _tidy(folder: Path, place: Path | None) -> None:
    """Leaves the checkpoint of the finished run and no other; none for None."""
    checkpoints = folder / "checkpoint"
    if place != checkpoints:
        stored.remove(checkpoints)
        if place is not None:
            place.rename(checkpoints)
    for left in folder.glob("overwriting_*"):
        shutil.rmtree(left, ignore_errors=True)
    stored.clear(folder)


def _size(folder: Path) -> str:
    """In words."""
    size = stored.size(folder)
    return f"{size / 1e6:.1f} MB" if size < 1e9 else f"{size / 1e9:.1f} GB"


def _simulation(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `simulate`, all but the folder of checkpoints."""

    def given(options: list[Option]) -> dict[str, Any]:
        return {o.name: arguments[o.name] for o in options if o.name not in ("dataset", "partition_seed")}

    if not 0 <= arguments["seed"] < _SEEDS:
        raise ValueError(f"seed={arguments['seed']}: must lie between 0 and {_SEEDS - 1}")
    table.check_target(arguments["target"])
    table.check_communication(arguments["communication"])
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


def _loggers(arguments: Mapping[str, Any]) -> watch.Callback:
    """What writes down the rounds while they are computed."""
    makers = {"log": watch.json_lines, "tensorboard": watch.tensorboard}
    return watch.all_of(*(make(arguments[name]) for name, make in makers.items() if arguments[name] is not None))


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
    if summary["stages"] and summary["stages"][-1]["completed"] is False:
        last, metrics = summary["stages"][-1], summary["final_metrics"]
        words.append(
            f"stage {last['stage']} ({last['cohort_size']} clients) NOT COMPLETED in {last['num_rounds']} rounds"
        )
        if "grad_norm_threshold" in metrics:
            words.append(f"gradient norm {metrics[GRADIENT_NORM]:.3g} above {metrics['grad_norm_threshold']:.3g}")
    if history.diverged is not None:
        words.append(f"DIVERGED in round {history.diverged}, try a smaller --learning-rate")
    return ", ".join(words) + f" ({history.host_seconds:.1f} s on this machine)"


class _Found(NamedTuple):
    """What a folder holds of a run."""

    place: Path  # of its checkpoints
    finished: bool = False
    begun: bool = False  # there is a checkpoint to go on from


def _found(folder: Path, what: Mapping[str, Any], arguments: Mapping[str, Any]) -> _Found:
    """Looks for this run, finished or begun; refuses what another run left, and what would be lost."""
    if arguments["overwrite"]:
        place = folder / f"overwriting_{zlib.crc32(json.dumps(what).encode()):08x}"
        return _Found(place, begun=bool(snapshots(place)))
    place = folder / "checkpoint"
    finished, begun = (folder / "summary.json").is_file(), bool(snapshots(place))
    other = "give another --out, or --overwrite"
    try:
        known = _config(folder) if finished else stored.read_json(place / _ARGUMENTS) if begun else what
    except stored.DamagedError as error:
        if begun:
            return _Found(place, begun=True)  # the checkpoints know whose they are
        raise ValueError(f"out={str(folder)!r}: {error}; {other}") from None
    for name in {**what, **known}:
        if name not in _LIMITS and known.get(name) != what.get(name):
            raise ValueError(
                f"out={str(folder)!r}: holds another run, with {name}={known.get(name)!r} where this one has "
                f"{what.get(name)!r}; {other}"
            )
    if not finished:
        return _Found(place, begun=begun)
    longer = {name: known.get(name) for name in _LIMITS if known.get(name) != what.get(name)}
    lacks_models = arguments["models"] and not (folder / MODELS).is_dir()
    if not longer and not lacks_models:
        return _Found(place, finished=True)
    if not (begun and arguments["checkpoint"]):
        has = ", ".join(f"{name}={value}" for name, value in longer.items()) or "no models"
        raise ValueError(f"out={str(folder)!r}: holds this run with {has}, and no checkpoint to go on from; {other}")
    return _Found(place, begun=True)


def _config(folder: Path) -> dict[str, Any]:
    """The arguments of a finished run."""
    try:
        return dict(json.loads((folder / "config.json").read_text("utf-8"))["config"].get("arguments", {}))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise stored.DamagedError("config.json does not read as that of a run") from None
