"""Figures 3 to 6 of the SRPFL paper: the grid of `figure3.toml`, with a clock and a pool for each figure.

All figures keep their runs in one folder, so that a run that several figures need is trained once. Methods that differ
in their evaluation share a training (FedAvg and FedAvg-FT, FLANP and FLANP-FT). The cohorts of methods without doubling
do not depend on the clock: they are trained under the fixed one, and the figures with random speeds draw their times
anew (`srp.retime`).
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import fedjax_srp as srp
from experiments import scripts
from experiments.srpfl.paper_tables import report
from fedjax_srp import methods
from fedjax_srp.parts.checks import check_known
from fedjax_srp.results.history import History

FILE = Path(__file__).with_name("figure3.toml")
TABLES = tomllib.loads(FILE.read_text("utf-8"))
SCALES = tuple(TABLES["scales"])
METHODS = tuple(TABLES["axes"]["method"])
TITLES = {
    "mnist": "MNIST",
    "mnist480": "MNIST-480",
    "mnist150": "MNIST-150",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "emnist": "EMNIST",
    "femnist": "FEMNIST",
}


class Figure(NamedTuple):
    """A figure of the paper: its clock, and the part of the clients drawn in each round."""

    clock: str
    one_of: int  # clients
    title: str


FIGURES = {
    3: Figure("fixed", 1, "full participation, fixed speeds"),
    4: Figure("random", 1, "full participation, random speeds"),
    5: Figure("fixed", 5, "a fifth of the clients drawn per round, fixed speeds"),
    6: Figure("random", 5, "a fifth of the clients drawn per round, random speeds"),
}


def needs_clock(method: str) -> bool:
    """Return True if the cohorts of a method depend on speeds."""
    return methods.recipe(method).participation not in ("full", "uniform")


def numbers_of_clients(tables: Mapping[str, Any]) -> Iterator[int]:
    """Yield the numbers of clients that stand anywhere in a grid file."""
    for name, value in tables.items():
        if name == "num_clients":
            yield value
        elif isinstance(value, dict):
            yield from numbers_of_clients(value)


def layer(
    figure: Figure, names: Sequence[str] = METHODS, tables: Mapping[str, Any] = TABLES
) -> dict[str, Any]:
    """Return what a figure of these methods lays over the tables of `figure3.toml`, or of a copy."""
    clocks = ["fixed"]
    exclude = []
    where = []
    if figure.clock == "random":
        clocks = ["fixed", "random"]
        for clock, is_needed in (("fixed", True), ("random", False)):
            left_out = [name for name in names if needs_clock(name) == is_needed]
            if left_out:
                exclude.append({"method": left_out, "clock": clock})
    if figure.one_of > 1:
        for num_clients in sorted(set(numbers_of_clients(tables))):
            pool = max(2, round(num_clients / figure.one_of))
            where.append({"num_clients": num_clients, "set": {"pool": pool}})
    axes = {"method": list(names), "clock": clocks}
    return {"axes": axes, "exclude": exclude, "where": where}


def check_pools(tables: Mapping[str, Any], columns: Sequence[str]) -> None:
    """Raise a ValueError for a column whose number of clients, and so the pool, is not known."""
    for name in columns:
        options = {**tables.get("options", {}), **tables["variants"].get(name, {})}
        if "num_clients" not in options:
            raise ValueError(
                f"variants.{name}: num_clients is missing, of which a fifth is drawn in each round; give it"
            )


def title_of(column: str, scale: str) -> str:
    """Return the title of a data set at a scale, which names its files."""
    title = TITLES.get(column, column)
    if (scale, column) == ("gpu", "mnist"):
        title = TITLES["mnist480"]
    if column == "cifar10" and scale != "cpu":
        title += " full"
    return f"{title} code" if scale == "code" else title


def curves(found: Any, figure: Figure, scale: str) -> dict[str, dict[str, list[History]]]:
    """Return title -> method -> histories of the seeds, with the times of the figure's clock."""
    columns: dict[str, dict[str, list[History]]] = {}
    for name, history in found.histories.items():
        method = found.values[name]["method"]
        if figure.clock == "random" and not needs_clock(method):
            history = srp.retime(history, found.data(name), figure.clock)
        column = columns.setdefault(title_of(found.values[name]["variant"], scale), {})
        runs = column.setdefault(method, [])
        runs.append(dataclasses.replace(history, name=method))
    return columns


def main(
    figure: int,
    arguments: list[str] | None = None,
    variants: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    doc = (
        f"Figure {figure} of the SRPFL paper: {FIGURES[figure].title}; accuracy over simulated time.\n\n"
        "Scale full is the paper's size, code has also the options of its code; see figure3.toml."
    )
    parser = scripts.grid_parser(doc, SCALES, "runs/srpfl", "data-dir")
    parser.add_argument(
        "--datasets",
        nargs="+",
        metavar="NAME",
        help="default: every data set of the scale",
    )
    parser.add_argument("--methods", nargs="+", metavar="NAME")
    parser.add_argument(
        "--file",
        type=Path,
        default=FILE,
        help="a changed copy of figure3.toml; its `out` is the default of --out",
    )
    parser.set_defaults(out=None)
    parser.add_argument(
        "--seeds",
        type=int,
        metavar="N",
        help="0 to N - 1, but for those that the file excludes at this scale",
    )
    args = parser.parse_args(arguments)
    if args.seeds is not None and args.seeds < 1:
        parser.error(f"--seeds {args.seeds}: must be at least 1")
    try:
        tables = tomllib.loads(args.file.read_text("utf-8"))
        names = args.methods or tables["axes"]["method"]
    except (OSError, ValueError, KeyError) as error:
        parser.error(f"--file {args.file}: {error}; give a copy of figure3.toml")
    with scripts.reported():
        check_known("methods", names, methods.names())
        given = layer(FIGURES[figure], names, tables)
        if FIGURES[figure].one_of > 1:
            of_scale = tables.get("scales", {}).get(args.scale, {})
            axes = {**tables["axes"], **of_scale.get("axes", {})}
            check_pools(
                tables, args.datasets or axes.get("variant", [*tables["variants"]])
            )
        if args.datasets:
            given["axes"]["variant"] = args.datasets
        if args.seeds is not None:
            given["axes"]["seed"] = range(args.seeds)
        found = scripts.run_grid(args, args.file, variants=variants, **given)
        columns = curves(found, FIGURES[figure], args.scale)
    args.out = found.folder
    results = scripts.results_folder(args)
    print(report(columns, figure, FIGURES[figure].title, results))
    print(f"\nin {results}")
