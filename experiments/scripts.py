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
from fedjax_srp.lab.commands.grid import estimate
from fedjax_srp.parts.checks import is_ours
from fedjax_srp.results import atomic
from fedjax_srp.results import folder as run_folder
from fedjax_srp.results.history import History

OPTIONS: dict[str, dict[str, Any]] = {
    "seed": {"type": int, "default": 0},
    "seeds": {"type": int, "help": "number of seeds; default: that of the scale"},
    "devices": {"type": int, "help": "default: all cores"},
    "data-dir": {"type": Path, "help": "folder with prepared data sets"},
    "results": {
        "type": Path,
        "help": "folder of figures and tables; default: that of the runs",
    },
}


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
    for option in options:
        found.add_argument(f"--{option}", **OPTIONS[option])
    return found


def grid_parser(
    doc: str | None, scales: Iterable[str], out: str, *options: str
) -> argparse.ArgumentParser:
    """Return a parser as `parser` does, with the options of `run_grid`."""
    found = parser(doc, scales, out, *options)
    found.add_argument(
        "--workers",
        type=int,
        default=0,
        help="processes, each with its share of the cores or a GPU; default: everything in this one",
    )
    found.add_argument(
        "--batch",
        type=int,
        help="most runs in one program; default: 1 on CPUs, else as many as memory allows",
    )
    found.add_argument(
        "--retries", type=int, default=0, help="how often a failed run is tried again"
    )
    found.add_argument("--launcher", choices=("local", "slurm"), default="local")
    found.add_argument(
        "--dry-run",
        action="store_true",
        help="print the plan, and about how long it takes",
    )
    return found


def run_grid(args: argparse.Namespace, file: Path | None = None, **given: Any) -> Any:
    """Run a grid with the options of `grid_parser`, and return it; None after --dry-run.

    Args:
        args: parsed; --data-dir is an option of every run.
        file: of the grid.
        **given: arguments of `srp.grid`, laid over the file.

    Raises:
        ValueError: the grid has errors, or runs have failed.
    """
    if getattr(args, "data_dir", None) is not None:
        given["options"] = {**given.get("options", {}), "data_dir": str(args.data_dir)}
    batch = args.batch
    if args.workers or args.launcher != "local":
        # this process only plans and draws; GPUs are for the workers
        jax.config.update("jax_platforms", "cpu")
    else:
        srp.use_all_cores()
    if batch is None and jax.default_backend() == "cpu":
        batch = 1  # as the committed results were made
    found = srp.grid(
        file,
        scale=getattr(args, "scale", None),
        out=args.out,
        workers=args.workers,
        batch=batch,
        retries=args.retries,
        launcher=args.launcher,
        dry_run=args.dry_run,
        **given,
    )
    if args.dry_run:
        print(estimate(found))
        return None
    if found.failures:
        raise ValueError(
            f"{len(found.failures)} runs failed; the same command tries them again"
        )
    return found


def measure(args: argparse.Namespace, function: Callable[..., Any], **given: Any) -> Any:
    """Measure a function with the options of `grid_parser`, below the folder of the runs; None after --dry-run.

    Args:
        args: parsed.
        function: of the axes, variants and options.
        **given: arguments of `srp.measure`.

    Raises:
        ValueError: the measurement has errors, or cases have failed.
    """
    found = srp.measure(
        function,
        out=args.out / function.__name__,
        workers=args.workers,
        retries=args.retries,
        launcher=args.launcher,
        dry_run=args.dry_run,
        **given,
    )
    if args.dry_run:
        print(f"about {found.seconds} seconds, by the cases that are finished")
        return None
    if found.failures:
        raise ValueError(
            f"{len(found.failures)} cases failed; the same command tries them again"
        )
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


def simulate_each(
    algorithm: srp.FederatedAlgorithm, tasks: Iterable[Any], **options: Any
) -> list[History]:
    """Simulate an algorithm on each task, the i-th with key i, on one device."""
    options |= {"progress": False, "devices": 1}
    return [
        srp.simulate(algorithm, task, key=jax.random.key(i), **options)
        for i, task in enumerate(tasks)
    ]


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
