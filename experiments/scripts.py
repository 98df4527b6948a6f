"""Shared code of the scripts: command line, expected errors, and runs that are kept in folders."""

from __future__ import annotations

import argparse
import contextlib
import functools
import inspect
import io
import itertools
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import pandas as pd
from typing_extensions import override

import fedjax_srp as srp
from fedjax_srp.lab.commands import interrupt
from fedjax_srp.parts.checks import is_ours
from fedjax_srp.results import atomic
from fedjax_srp.results.history import History

OPTIONS: dict[str, dict[str, Any]] = {
    "seed": {"type": int, "default": 0},
    "seeds": {"type": int, "help": "number of seeds; default: that of the scale"},
    "data-dir": {"type": Path, "help": "folder with prepared data sets"},
    "results": {"type": Path, "help": "folder of figures and tables; default: --out"},
    "workers": {
        "type": int,
        "default": 0,
        "help": "processes, each with its share of the cores or a GPU; default: everything in this one",
    },
    "batch": {
        "type": int,
        "help": "most runs in one program; default: 1 on CPUs, else as many as memory allows",
    },
    "retries": {
        "type": int,
        "default": 0,
        "help": "how often a failed run is tried again",
    },
    "launcher": {"choices": ("local", "slurm"), "default": "local"},
    "dry-run": {
        "action": "store_true",
        "help": "print the plan, and about how long it takes",
    },
}
MEASUREMENT = ("workers", "retries", "launcher", "dry-run")
GRID = (*MEASUREMENT, "batch")
DIGITS: dict[str, Any] = {  # of the column digits of SRPFL's figures
    "dataset": "digits",
    "num_clients": 50,
    "classes_per_client": 3,
    "hidden": (64, 32),
    "learning_rate": 0.05,
    "epochs": 5,
}


def parser(
    doc: str | None, scales: Iterable[str], out: str, *options: str, **own: dict[str, Any]
) -> argparse.ArgumentParser:
    """Return a parser with --scale, --out, these of `OPTIONS` and the script's own, which are named as its function's
    arguments are. Parsing gives JAX all cores, or, where workers compute, leaves the GPUs to them.
    """
    found = _Parser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    if scales:
        found.add_argument(
            "--scale",
            choices=scales,
            default="cpu",
            help="size of the runs; default: cpu",
        )
    found.add_argument(
        "--out", type=Path, default=Path(out), help=f"folder of the runs; default: {out}"
    )
    for option in dict.fromkeys(("results", *options)):
        found.add_argument(f"--{option}", **OPTIONS[option])
    for name, option in own.items():
        found.add_argument(f"--{name.replace('_', '-')}", **option)
    return found


class _Parser(argparse.ArgumentParser):
    """Parser that sets up JAX's devices as the options say, which works only before the script computes anything.

    Once it has parsed the words of this process, Ctrl-C ends the script with one line.
    """

    @override
    def parse_args(self, args: Iterable[str] | None = None, namespace: Any = None) -> Any:
        parsed = super().parse_args(args, namespace)
        options = vars(parsed)
        if args is None:
            line = f"{self.prog}: interrupted"
            if "launcher" in options:  # it keeps what is finished
                line += "; the same command continues from the last checkpoint"
            interrupt.watch(line)
        if options.get("workers") or options.get("launcher", "local") != "local":
            # this process only plans and draws; GPUs are for the workers
            jax.config.update("jax_platforms", "cpu")
        else:
            srp.use_all_cores()
        return parsed


def results_folder(args: argparse.Namespace) -> Path:
    """Return the folder of figures and tables, which exists."""
    folder = args.results or args.out
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextlib.contextmanager
def reported() -> Iterator[None]:
    """Report an error that the package or a script raised on purpose as one of the command line."""
    try:
        yield
    except (ValueError, FileNotFoundError) as error:
        file = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
        if not (is_ours(error) or file.is_relative_to(Path(__file__).parent)):
            raise
        print(f"{Path(sys.argv[0]).name}: error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def grid_parser(
    doc: str | None, scales: Iterable[str], out: str, *options: str, **own: dict[str, Any]
) -> argparse.ArgumentParser:
    """Return a parser as `parser` does, with the options of `run_grid` and `measure`."""
    return parser(doc, scales, out, *options, *GRID, **own)


def measurement_parser(
    doc: str | None, scales: Iterable[str], out: str, *options: str, **own: dict[str, Any]
) -> argparse.ArgumentParser:
    """Return a parser as `parser` does, with the options of `measure`."""
    return parser(doc, scales, out, *options, *MEASUREMENT, **own)


@reported()
def run_grid(args: argparse.Namespace, file: Path | None = None, **given: Any) -> Any:
    """Run a grid with the options of `grid_parser`, and return it; --dry-run and errors end the script.

    Args:
        args: parsed; --data-dir is an option of every run.
        file: of the grid.
        **given: arguments of `srp.grid`, laid over the file.
    """
    if getattr(args, "data_dir", None) is not None:
        given["options"] = {**given.get("options", {}), "data_dir": str(args.data_dir)}
    if file is not None or "scales" in given:
        given["scale"] = args.scale
    batch = args.batch
    if batch is None and jax.default_backend() == "cpu":
        batch = 1  # as the committed results were made
    options = _launched(args) | {"out": args.out, "batch": batch}
    return _finished(args, srp.grid(file, **given, **options))


@reported()
def measure(args: argparse.Namespace, function: Callable[..., Any], **given: Any) -> Any:
    """Measure a function with the options of `measurement_parser`, below the folder of the runs.

    Its arguments that the command line has, such as `seed` and `data_dir`, are taken from there, unless they are given.
    --dry-run and errors end the script.

    Args:
        args: parsed.
        function: to measure.
        **given: arguments of `srp.measure`: axes, variants and options.
    """
    axes = given.setdefault("axes", {})
    varied = {*axes, *itertools.chain(*given.get("variants", {}).values())}
    taken = inspect.signature(function).parameters.keys() - varied
    named = {name: value for name, value in vars(args).items() if name in taken}
    options = named | given.pop("options", {})
    out = args.out / function.__name__
    found = srp.measure(function, out=out, options=options, **given, **_launched(args))
    return _finished(args, found)


def measure_each(
    args: argparse.Namespace, function: Callable[..., Any], **given: Any
) -> list[Any]:
    """Return what a function found in each case of `measure`, as JSON has it."""
    return list(measure(args, function, **given).results.values())


def measure_by(
    args: argparse.Namespace, function: Callable[..., Any], *axes: str, **given: Any
) -> dict[Any, list[Any]]:
    """Return value, or values of several axes as a tuple -> what a function found there, in the order of the cases."""
    found = measure(args, function, **given)
    groups: dict[Any, list[Any]] = {}
    for name, result in found.results.items():
        values = tuple(found.cases[name].values[axis] for axis in axes)
        group = values[0] if len(values) == 1 else values
        groups.setdefault(group, []).append(result)
    return groups


def seeds_of(args: argparse.Namespace, num_seeds: int) -> range:
    """Return --seed and the seeds after it: --seeds of them, or the number of the scale."""
    return range(args.seed, args.seed + (vars(args).get("seeds") or num_seeds))


def own_partitions(seeds: Iterable[int]) -> list[dict[str, Any]]:
    """Return rules of a grid by which each seed divides the data anew."""
    return [{"seed": seed, "set": {"partition_seed": seed}} for seed in seeds]


def cases(names: str, rows: Iterable[Sequence[Any]]) -> dict[str, dict[str, Any]]:
    """Return variants of a measurement, one for each row of values of these arguments."""
    variants = {}
    for row in rows:
        values = dict(zip(names.split(), row, strict=True))
        variants[", ".join(f"{name}={value}" for name, value in values.items())] = values
    return variants


def _launched(args: argparse.Namespace) -> dict[str, Any]:
    names = [option.replace("-", "_") for option in MEASUREMENT]
    return {name: vars(args)[name] for name in names}


def _finished(args: argparse.Namespace, found: Any) -> Any:
    if args.dry_run:
        cost = ""
        if found.seconds is not None:
            cost = f", about {found.seconds:.0f} s"
        elif args.launcher == "slurm":
            cost = ", not estimated: jobs wait in a queue"
        print(f"{found}{cost}")
        raise SystemExit(0)
    if found.failures:
        raise ValueError(
            f"{found}: {len(found.failures)} failed; the same command tries them again"
        )
    return found


def write_table(
    file: Path,
    rows: Iterable[Mapping[str, Any]],
    keys: Sequence[str] = (),
    float_format: str | None = None,
) -> None:
    """Write rows to a CSV file; with `keys` it keeps its own rows, but those with the values of new ones there."""
    new = pd.DataFrame(rows).to_csv(index=False, float_format=float_format)
    frame = pd.read_csv(io.StringIO(new), dtype=str, keep_default_na=False)
    if keys and file.exists():
        old = pd.read_csv(file, dtype=str, keep_default_na=False)
        replaced = pd.MultiIndex.from_frame(frame[[*keys]])
        is_kept = ~pd.MultiIndex.from_frame(old[[*keys]]).isin(replaced)
        frame = pd.concat([old[is_kept], frame], ignore_index=True)
    file.parent.mkdir(parents=True, exist_ok=True)
    atomic.replace({file: functools.partial(frame.to_csv, index=False)})


def in_double_precision(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function compute in double precision."""

    @functools.wraps(function)
    def precise(*args: Any, **options: Any) -> Any:
        with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
            return function(*args, **options)

    return precise


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
