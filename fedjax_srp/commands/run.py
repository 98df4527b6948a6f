"""`fedjax-srp run`: one method on one data set, into one folder, continued after a kill."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import zlib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import jax

from fedjax_srp import data, methods, models
from fedjax_srp.commands import clock as clock_words
from fedjax_srp.commands.options import REQUIRED, Option, options_of
from fedjax_srp.engine.simulate import simulate
from fedjax_srp.history import History, jsonable
from fedjax_srp.report import table
from fedjax_srp.report.run_folder import writable

_NO_EFFECT = ("out", "progress", "checkpoint", "overwrite")  # on the result
_SEEDS = 2**32  # JAX keeps 32 bits of a seed


def _model_options() -> list[Option]:
    """What the models take beyond their shapes; None leaves it to the model."""
    options: dict[str, Option] = {}
    for name in models.names():
        fixed_by_data = ("input_shape", "example_shape", "num_classes", "cut", "dtype", "head_layers")
        for option in options_of(getattr(models, name), leave_out=fixed_by_data):
            known = options.get(option.name)
            help_text = f"{known.help}; {name}: {option.help}" if known else f"model {name}: {option.help}"
            options[option.name] = option._replace(type=option.type | None, default=None, help=help_text)
    return list(options.values())


_MODEL = _model_options()
_METHOD = [
    Option("method", str, REQUIRED, "one of the methods that fedjax-srp list shows"),
    *options_of(methods.get, leave_out=("name", "dataset", "optimizer")),
]
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
GROUPS: dict[str, list[Option]] = {
    "data": _DATA,
    "method": _METHOD,
    "model": _MODEL,
    "simulation": [*_SIMULATION, *_REST],
}


def check_given(arguments: Mapping[str, Any], given: Collection[str]) -> None:
    """Refuses options that were given and that the method does not read.

    Args:
        arguments: option -> value.
        given: the options that stand on the command line.

    Raises:
        ValueError: an option without effect.
    """
    name = arguments["method"]
    for option in methods.without_effect(name):
        if option in given:
            readers = [other for other in methods.names() if option not in methods.without_effect(other)]
            raise ValueError(
                f"{option}: has no effect on method {name!r}, only on {', '.join(readers)}; leave it out, or choose "
                "one of them"
            )
    if "redraw" in given and arguments["pool"] is None:
        raise ValueError("redraw: has no effect without a pool, when everybody is in it; leave it out, or give a pool")


def run(arguments: Mapping[str, Any], say: Callable[[str], None] = print) -> Path:
    """Simulates, or continues, and returns the folder.

    With `overwrite` the folder keeps what it holds until the new run is finished.

    Args:
        arguments: option -> value, for every option of `GROUPS`.
        say: prints one line.

    Raises:
        ValueError: an argument out of range, a folder that holds another run or cannot be written to.
    """
    what = {name: value for name, value in arguments.items() if name not in _NO_EFFECT}
    what = jsonable({"command": "run", **what})
    default = f"runs/{arguments['method']}_{Path(arguments['dataset']).stem}_seed{arguments['seed']}"
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
        others = ("method", "dataset", "partition_seed")
        return {o.name: arguments[o.name] for o in options if o.name not in others}

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
    model = {name: value for name, value in given(_MODEL).items() if value is not None}
    simulation = given(_SIMULATION)
    if simulation["evaluations"] == ("all",):
        simulation["evaluations"] = "all"
    return simulation | {
        "algorithm": methods.get(arguments["method"], dataset=dataset, **given(_METHOD), **model),
        "data": dataset,
        "clock": clock_words.parse(arguments["clock"], dataset.num_clients),
        "key": jax.random.key(arguments["seed"]),
    }


def outcome(history: History, target: float | None, communication: float) -> str:
    """A finished run in a few words."""
    summary = history.summary(target, communication)
    words = [f"{table.label(history.name)}: {history.num_rounds} rounds"]
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
