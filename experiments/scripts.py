"""Shared code of the scripts: command line, expected errors, and runs that are kept in folders."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import shutil
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

import fedjax_srp as srp
from fedjax_srp.parts.checks import is_ours
from fedjax_srp.results import atomic
from fedjax_srp.results import folder as run_folder
from fedjax_srp.results.history import History

OPTIONS: dict[str, dict[str, Any]] = {
    "seed": {"type": int, "default": 0},
    "seeds": {"type": int, "help": "number of seeds; default: that of the scale"},
    "devices": {"type": int, "help": "default: all cores"},
    "data-dir": {"type": Path, "help": "folder with prepared data sets"},
    "results": {"type": Path, "help": "folder of figures and tables; default: --out"},
    "workers": {"type": int, "default": 0, "help": "processes; default: this one"},
    "launcher": {"choices": ("local", "slurm"), "default": "local"},
    "dry-run": {
        "action": "store_true",
        "help": "print the plan and its time, run nothing",
    },
}
GRID = ("workers", "launcher", "dry-run")  # options of scripts that run a grid


def parser(
    doc: str | None, scales: Iterable[str], out: str, *options: str
) -> argparse.ArgumentParser:
    """Return a parser with --scale, --out and these of `OPTIONS`."""
    found = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if scales:
        found.add_argument("--scale", choices=scales, default="cpu")
    found.add_argument(
        "--out", type=Path, default=Path(out), help=f"folder of the runs; default: {out}"
    )
    for option in dict.fromkeys(("results", *options)):
        found.add_argument(f"--{option}", **OPTIONS[option])
    return found


def results_folder(args: argparse.Namespace) -> Path:
    """Return the folder of figures and tables, which exists."""
    folder = args.results or args.out
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def use_cores(args: argparse.Namespace) -> None:
    """Make every core a device, unless --devices is 1."""
    if args.devices != 1:
        srp.use_all_cores()


@contextlib.contextmanager
def reported_by(command: argparse.ArgumentParser) -> Iterator[None]:
    """Report an error that the package or a script raised on purpose as one of the command line."""
    try:
        yield
    except (ValueError, FileNotFoundError) as error:
        file = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
        if not (is_ours(error) or file.is_relative_to(Path(__file__).parent)):
            raise
        command.error(str(error))


def run_grid(args: argparse.Namespace, name: str, **spec: Any) -> Any:
    """Return the finished grid `name` in --out; with --dry-run print its plan and end the script.

    Raises:
        ValueError: some runs failed.
    """
    options = {"workers": args.workers, "launcher": args.launcher}
    found = srp.grid(**spec, **options, out=args.out / name, dry_run=args.dry_run)
    if found.failures:
        raise ValueError(f"{args.out / name}: {'; '.join(map(str, found.failures))}")
    if args.dry_run:
        raise SystemExit(f"{name}: {len(found.values)} runs, {found.seconds:.0f} s")
    return found


def histories(grid: Any, *axes: str) -> dict[tuple[Any, ...], list[History]]:
    """Return the runs of a grid by their values on these axes, those of equal values in order."""
    found: dict[tuple[Any, ...], list[History]] = {}
    for name, history in grid.histories.items():
        values = grid.values[name]
        found.setdefault(tuple(values[axis] for axis in axes), []).append(history)
    return found


def simulate_each(
    algorithm: srp.FederatedAlgorithm, tasks: Iterable[Any], **options: Any
) -> list[History]:
    """Simulate an algorithm on each task, the i-th with key i, on one device."""
    options |= {"progress": False, "devices": 1}
    return [
        srp.simulate(algorithm, task, key=jax.random.key(i), **options)
        for i, task in enumerate(tasks)
    ]


def trial_keys(seed: int, trials: int) -> list[jax.Array]:
    """Return a key for every trial."""
    return [jax.random.fold_in(jax.random.key(seed), trial) for trial in range(trials)]


def is_finished(folder: Path, facts: Mapping[str, Any]) -> bool:
    """Return True if a folder holds the run that these facts determine.

    Raises:
        ValueError: the folder holds another run.
    """
    if not run_folder.is_finished(folder):
        return False
    known = run_folder.read_config(folder).get("script") or {}
    if changed := [name for name, value in facts.items() if known.get(name) != value]:
        raise ValueError(
            f"{folder} holds a run with other {', '.join(changed)}; give another folder, or delete it"
        )
    return True


def measure_each(
    args: argparse.Namespace,
    name: str,
    cases: Sequence[tuple],
    measure: Callable[..., Any],
    **facts: Any,
) -> list[Any]:
    """Measure all cases, as JSON has them; after a kill, the cases measured with the same facts are not repeated.

    They stand in a file in --out until the last is measured.
    """
    file = args.out / f"{name}_unfinished.json"
    known = json.loads(json.dumps({"scale": args.scale, "cases": cases, **facts}))
    kept = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    found = kept["found"] if kept.get("known") == known else []
    args.out.mkdir(parents=True, exist_ok=True)
    for case in cases[len(found) :]:
        found.append(json.loads(json.dumps(measure(*case), allow_nan=False)))
        print(f"{name}: {len(found)} of {len(cases)}", flush=True)
        text = json.dumps({"known": known, "found": found}, allow_nan=False)
        atomic.replace({file: lambda path, text=text: path.write_text(text, "utf-8")})
    file.unlink(missing_ok=True)
    return found


def store(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write an .npz file whole: after a kill there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.replace({path: lambda part: np.savez_compressed(part, **arrays)})


def keep(
    history: History, folder: Path, facts: Mapping[str, Any], **options: Any
) -> None:
    """Save a finished run with the facts that determine it, and remove its checkpoints."""
    config = {**history.config, "script": facts}
    dataclasses.replace(history, config=config).save(folder, **options)
    shutil.rmtree(folder / "checkpoint", ignore_errors=True)
