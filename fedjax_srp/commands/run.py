"""`fedjax-srp run`: one method on one data set, into one folder, continued after a kill."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import shutil
import zlib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax

from fedjax_srp import data, methods, stored, watch
from fedjax_srp._checks import unknown
from fedjax_srp.base import GRADIENT_NORM, FederatedSource
from fedjax_srp.commands import clock as clock_words
from fedjax_srp.commands.options import Option
from fedjax_srp.commands.run_options import DATA, OWNERS, SIMULATION, owned, read_by
from fedjax_srp.engine.checkpoint import snapshots
from fedjax_srp.engine.simulate import simulate
from fedjax_srp.history import History
from fedjax_srp.report import table
from fedjax_srp.report.run_folder import MODELS, writable
from fedjax_srp.stored import jsonable

NO_EFFECT = ("out", "progress", "checkpoint", "overwrite", "models", "log", "tensorboard")  # on the result
LIMITS = ("num_rounds", "time_limit", "target")  # may differ where a run is made longer
AFTERWARDS = "communication"  # what a finished run answers for any value
ASIDE = (AFTERWARDS, "data_dir")  # change no simulation; other machines have the same data elsewhere
_ARGUMENTS = "arguments.json"  # beside the checkpoints
OWN = {"method", "algorithm", "participation", "model", "load"}  # beside what is routed
_SEEDS = 2**32  # JAX keeps 32 bits of a seed


def check_given(arguments: Mapping[str, Any], given: Collection[str]) -> None:
    """Refuses options that were given and that the method does not read.

    Args:
        arguments: option -> value.
        given: the options that stand on the command line.

    Raises:
        ValueError: an option without effect, no method, or a method and an algorithm.
    """
    choice(arguments)
    if "redraw" in given and arguments["pool"] is None:
        raise ValueError("redraw: has no effect without a pool, when everybody is in it; leave it out, or give a pool")


def choice(arguments: Mapping[str, Any]) -> methods.Choice:
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
        return methods.choose(name, arguments["model"], arguments["participation"], **_of_method(arguments))
    except ValueError as error:
        raise ValueError(str(error).replace(", or pass it in `shared`", "")) from None


def _of_method(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The options of method, policy and model that are not left to these, by their short names."""
    read = _read(arguments)
    given = {word: arguments[word] for word in sorted(owned()) if arguments.get(word) is not None}
    for word in given:
        owner, dot, _ = word.partition(".")
        if word not in read and dot and owner in OWNERS:  # else `methods.choose` says so
            raise ValueError(f"{word}: has no effect on this run, whose {owner} has no such option; leave it out")
    return {read.get(word, word): value for word, value in given.items()}


def _read(arguments: Mapping[str, Any]) -> dict[str, str]:
    name = str(arguments["method"] or arguments["algorithm"])
    return read_by(name, arguments["participation"], arguments["model"])


def record(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What a run folder says of the options that made it: those of the method with their values, JSON-able.

    Raises:
        ValueError: an option that the method does not read, no method.
    """
    chosen = choice(arguments)
    words = {name: word for word, name in _read(arguments).items()}
    of_method = {words.get(name, name): value for name, value in chosen.record().items()}
    elsewhere = {*NO_EFFECT, *OWN, *owned()}
    what = {name: value for name, value in arguments.items() if name not in elsewhere}
    return jsonable({"command": "run", "method": chosen.name, **of_method, **what})


def floats(arguments: Mapping[str, Any]) -> dict[str, float]:
    """The options of the method that are arguments of its program: another value compiles nothing."""
    words = {name: word for word, name in _read(arguments).items()}
    return {words[name]: value for name, value in methods.traced(choice(arguments)).items()}


def simulated(record: Mapping[str, Any]) -> dict[str, Any]:
    """What of a record the simulation depends on."""
    return {name: value for name, value in record.items() if name not in ASIDE}


def run(
    arguments: Mapping[str, Any],
    say: Callable[[str], None] = print,
    load: Callable[[Mapping[str, Any]], FederatedSource] | None = None,
    callback: watch.Callback | None = None,
) -> Path:
    """Simulates, or continues, and returns the folder.

    With `overwrite` the folder keeps what it holds until the new run is finished.

    Args:
        arguments: option -> value, for every option of `groups`.
        say: prints one line.
        load: gives the data set of these arguments where the run is not finished; None for `load_data`.
        callback: as in `simulate`, beside the loggers that are asked for.

    Raises:
        ValueError: an argument out of range, a folder that holds another run, cannot be written to, or that another
            process is writing to.
        OSError: the disk is full.
    """
    chosen, what = choice(arguments), record(arguments)
    default = f"runs/{chosen.name.replace(' + ', '_')}_{Path(arguments['dataset']).stem}_seed{arguments['seed']}"
    folder = Path(arguments["out"] or default)
    with contextlib.ExitStack() as stack:

        def hold() -> _Found:
            """Takes the folder, and looks again: others may have run in it until now."""
            stack.enter_context(stored.held(writable(folder), "out"))
            return _found(folder, what, arguments)

        found = _found(folder, what, arguments)
        is_held = (found.asks_anew or not found.finished) and folder.is_dir()
        if is_held:
            found = hold()
        if found.finished:
            return _left_alone(folder, arguments, found.asks_anew, say)
        given = simulation(arguments, (load or load_data)(arguments))
        if not is_held:  # only now, so that what fails to start makes no folder
            found = hold()
            if found.finished:
                return _left_alone(folder, arguments, found.asks_anew, say)
        if arguments["checkpoint"]:
            if found.begun:
                say(f"continuing the run in {folder}")
            else:
                shutil.rmtree(found.place, ignore_errors=True)
            found.place.mkdir(exist_ok=True)
            stored.write_json(found.place / _ARGUMENTS, what)
        with_models = arguments["models"] or (found.begun and (folder / MODELS).is_dir())
        history = simulate(
            **given,
            checkpoint_dir=found.place if arguments["checkpoint"] else None,
            keep_clients=with_models,
            callback=_loggers(arguments, callback),
        )
        save(history, folder, arguments, with_models)
        _tidy(folder, found.place if arguments["checkpoint"] else None)
    say(outcome(history, arguments["target"], arguments["communication"]))
    kept = f", {_size(folder / 'checkpoint')} of it to make the run longer" if arguments["checkpoint"] else ""
    say(f"written to {folder}: {_size(folder)}{kept}")
    return folder


def _left_alone(folder: Path, arguments: Mapping[str, Any], asks_anew: bool, say: Callable[[str], None]) -> Path:
    """Says that a folder holds the finished run, and how that ended; its summary is written for another cost."""
    history, cost = History.load(folder), arguments["communication"]
    table.check_communication(cost)
    said = outcome(history, arguments["target"], cost)
    if asks_anew:  # of the history itself, whose models then stay in the folder
        object.__setattr__(history, "config", jsonable(_config(history, arguments)))
        history.save(folder, target=arguments["target"], communication=cost)
    anew, again = f"its summary and figure are those of communication={cost:g} now", "--overwrite runs it again"
    say(f"{folder} holds this run already, finished; {anew if asks_anew else again}")
    say(said)
    return folder


def save(history: History, folder: Path, arguments: Mapping[str, Any], models: bool) -> None:
    """Writes the folder of a run, with the options that made it."""
    history = dataclasses.replace(history, config=_config(history, arguments))
    history.save(folder, target=arguments["target"], communication=arguments["communication"], models=models)


def _config(history: History, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {**history.config, "seed": arguments["seed"], "arguments": record(arguments)}


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


def load_data(arguments: Mapping[str, Any]) -> FederatedSource:
    """The data set that is asked for.

    Raises:
        ValueError: an option of it out of range.
    """
    try:
        return data.load(arguments["dataset"], **_given(arguments, DATA), seed=arguments["partition_seed"])
    except ValueError as error:  # `load` has other names for two options
        named = {"name=": "dataset=", "seed=": "partition_seed="}
        raise ValueError(re.sub("^(name|seed)=", lambda match: named[match[0]], str(error))) from None


def simulation(arguments: Mapping[str, Any], dataset: FederatedSource) -> dict[str, Any]:
    """The arguments of `simulate`, all but the folder of checkpoints.

    Raises:
        ValueError: an argument out of range.
    """
    if not 0 <= arguments["seed"] < _SEEDS:
        raise ValueError(f"seed={arguments['seed']}: must lie between 0 and {_SEEDS - 1}")
    table.check_target(arguments["target"])
    table.check_communication(arguments["communication"])
    algorithm = methods.get(
        arguments["method"] or arguments["algorithm"],
        dataset=dataset,
        model=arguments["model"],
        participation=arguments["participation"],
        **_of_method(arguments),
    )
    if arguments["communication"] and algorithm.participation.asynchronous:
        raise ValueError(
            f"communication={arguments['communication']:g}: rounds of {choice(arguments).name!r} overlap, so a cost "
            "changes who arrives when; give it to the clock, e.g. --clock 'fixed:exponential(1) + 10'"
        )
    given = _given(arguments, SIMULATION)
    if given["evaluations"] == ("all",):
        given["evaluations"] = "all"
    return given | {
        "algorithm": algorithm,
        "data": dataset,
        "clock": clock_words.parse(arguments["clock"], dataset.num_clients),
        "key": jax.random.key(arguments["seed"]),
    }


def _given(arguments: Mapping[str, Any], options: list[Option]) -> dict[str, Any]:
    return {o.name: arguments[o.name] for o in options if o.name not in ("dataset", "partition_seed")}


def _loggers(arguments: Mapping[str, Any], callback: watch.Callback | None) -> watch.Callback:
    """What writes down the rounds while they are computed, and what else is to be told."""
    makers = {"log": watch.json_lines, "tensorboard": watch.tensorboard}
    loggers = [make(arguments[name]) for name, make in makers.items() if arguments[name] is not None]
    return watch.all_of(*loggers, *([] if callback is None else [callback]))


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
    asks_anew: bool = False  # it is finished, with a summary for another cost of communication


def _found(folder: Path, what: Mapping[str, Any], arguments: Mapping[str, Any]) -> _Found:
    """Looks for this run, finished or begun; refuses what another run left, and what would be lost."""
    if arguments["overwrite"]:
        place = folder / f"overwriting_{zlib.crc32(json.dumps(what).encode()):08x}"
        return _Found(place, begun=bool(snapshots(place)))
    place = folder / "checkpoint"
    finished, begun = (folder / "summary.json").is_file(), bool(snapshots(place))
    other = "give another --out, or --overwrite"
    try:
        known = made(folder) if finished else stored.read_json(place / _ARGUMENTS) if begun else what
    except stored.DamagedError as error:
        if begun:
            return _Found(place, begun=True)  # the checkpoints know whose they are
        raise ValueError(f"out={str(folder)!r}: {error}; {other}") from None
    for name in {**what, **known}:
        if name not in (*LIMITS, *ASIDE) and known.get(name) != what.get(name):
            raise ValueError(
                f"out={str(folder)!r}: holds another run, with {name}={known.get(name)!r} where this one has "
                f"{what.get(name)!r}; {other}"
            )
    if not finished:
        return _Found(place, begun=begun)
    longer = {name: known.get(name) for name in LIMITS if known.get(name) != what.get(name)}
    lacks_models = arguments["models"] and not (folder / MODELS).is_dir()
    if not longer and not lacks_models:
        is_anew = known.get(AFTERWARDS) != what.get(AFTERWARDS) and jax.process_count() == 1
        return _Found(place, finished=True, asks_anew=is_anew)
    if not (begun and arguments["checkpoint"]):
        has = ", ".join(f"{name}={value}" for name, value in longer.items()) or "no models"
        raise ValueError(f"out={str(folder)!r}: holds this run with {has}, and no checkpoint to go on from; {other}")
    return _Found(place, begun=True)


def made(folder: Path) -> dict[str, Any]:
    """The record of the options that made a finished run.

    Raises:
        DamagedError: it does not read.
    """
    try:
        return dict(json.loads((folder / "config.json").read_text("utf-8"))["config"].get("arguments", {}))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise stored.DamagedError("config.json does not read as that of a run") from None
