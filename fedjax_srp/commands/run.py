"""`fedjax-srp run`: one method on one data set, into one folder, continued after a kill."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from fedjax_srp import data, methods, models
from fedjax_srp.commands import clock as clock_words
from fedjax_srp.commands.options import REQUIRED, Option, options_of
from fedjax_srp.demo import writable
from fedjax_srp.engine.simulate import simulate
from fedjax_srp.history import History, jsonable
from fedjax_srp.report import table

_NO_EFFECT = ("out", "progress", "checkpoint", "overwrite")  # on the result


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
    Option("dataset", str, REQUIRED, "a data set that fedjax-srp list shows, or the path of an .npz file"),
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
    Option("overwrite", bool, False, "delete what the folder holds and start again"),
]
GROUPS: dict[str, list[Option]] = {
    "data": _DATA,
    "method": _METHOD,
    "model": _MODEL,
    "simulation": [*_SIMULATION, *_REST],
}


def run(arguments: Mapping[str, Any], say: Callable[[str], None] = print) -> Path:
    """Simulates, or continues, and returns the folder.

    Args:
        arguments: option -> value, for every option of `GROUPS`.
        say: prints one line.

    Raises:
        ValueError: an argument out of range, a folder that holds another run or cannot be written to.
    """
    what = {name: value for name, value in arguments.items() if name not in _NO_EFFECT}
    what = jsonable({"command": "run", **what})
    methods.recipe(arguments["method"])
    default = f"runs/{arguments['method']}_{Path(arguments['dataset']).stem}_seed{arguments['seed']}"
    folder = Path(arguments["out"] or default)
    if arguments["overwrite"]:
        _clear(folder)
    finished, begun = _found(folder, what)
    if finished:
        say(f"{folder} holds this run already, finished; --overwrite runs it again")
        say(outcome(History.load(folder), arguments["target"], arguments["communication"]))
        return folder

    def given(options: list[Option], **more: Any) -> dict[str, Any]:
        return {
            o.name: arguments[o.name] for o in options if o.name not in ("method", "dataset", "partition_seed")
        } | more

    if arguments["communication"] < 0:
        raise ValueError(f"communication={arguments['communication']}: must be at least 0, in time units")
    try:
        dataset = data.load(arguments["dataset"], **given(_DATA, seed=arguments["partition_seed"]))
    except ValueError as error:  # `load` calls it name
        raise ValueError(re.sub("^name=", "dataset=", str(error))) from None
    model = {name: value for name, value in given(_MODEL).items() if value is not None}
    method = methods.get(arguments["method"], dataset=dataset, **given(_METHOD), **model)
    simulation = given(_SIMULATION)
    if isinstance(simulation["evaluations"], tuple) and simulation["evaluations"] == ("all",):
        simulation["evaluations"] = "all"
    clock = clock_words.parse(arguments["clock"], dataset.num_clients)

    writable(folder)
    checkpoints = folder / "checkpoint" if arguments["checkpoint"] else None
    if begun and checkpoints is not None:
        say(f"continuing the run in {folder}")
    else:
        shutil.rmtree(folder / "checkpoint", ignore_errors=True)
    if checkpoints is not None:
        checkpoints.mkdir(exist_ok=True)
        (checkpoints / "arguments.json").write_text(json.dumps(what, indent=1), "utf-8")
    history = simulate(
        method, dataset, clock=clock, key=jax.random.key(arguments["seed"]), checkpoint_dir=checkpoints, **simulation
    )
    history = dataclasses.replace(history, config={**history.config, "seed": arguments["seed"], "arguments": what})
    history.save(folder, target=arguments["target"], communication=arguments["communication"])
    shutil.rmtree(folder / "checkpoint", ignore_errors=True)
    say(outcome(history, arguments["target"], arguments["communication"]))
    say(f"written to {folder}")
    return folder


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
    if not finished and not any(path.name.isdigit() for path in checkpoints.glob("*")):
        return False, False  # nothing was saved
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


def _clear(folder: Path) -> None:
    """Removes what a run writes, and nothing else."""
    for name in ("config.json", "summary.json", "history.csv", "clients.csv", "accuracy.png"):
        if folder.is_dir():
            (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / "checkpoint", ignore_errors=True)
