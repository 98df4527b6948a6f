"""What `table1.py --summarize` makes of finished runs: a file of results, and the tables of the README it becomes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rivals import AVERAGED, INFERRED, PAPER, ROWS, Column, Row

from fedjax_srp.history import History

AFTER = "after_training.json"  # in a run's folder: evaluation -> accuracy of every client
FAR = 3.0  # points from the paper's number that ask for an explanation
# (column, row) -> what an ablation found about a difference of more than FAR points.
EXPLAINED: dict[tuple[str, str], str] = {
    ("cifar10_100x2", "FedAvg"): "43.0 as in the authors' code",
    ("cifar10_100x2", "FedProx"): "43.1 as in the authors' code; the last 3.2 are unexplained",
    ("cifar10_100x2", "FedProx+FT"): "87.6 with crops and flips",
    ("cifar10_100x2", "PerFedAvg"): "84.0 as in the authors' code",
    ("cifar10_100x2", "L2GD"): "its coin, below",
    ("cifar10_100x5", "Local only"): "61.5 with their shards; 71.1 as in the authors' code, for 100 epochs",
    ("cifar10_100x5", "FedAvg"): "53.5 as in the authors' code",
    ("cifar10_100x5", "FedAvg+FT"): "74.1 with crops and flips; 78.1 as in the authors' code",
    ("cifar10_100x5", "FedProx+FT"): "73.9 with crops and flips; 77.7 as in the authors' code",
    ("cifar10_100x5", "FedProx"): "53.3 as in the authors' code",
    ("cifar10_100x5", "Fed-MTL"): "61.4 with their shards",
    ("cifar10_100x5", "APFL"): "71.2 with a share of 0.25",
    ("cifar10_100x5", "LG-Fed"): "65.0 as in the authors' code",
    ("cifar10_100x5", "L2GD"): "58.1 with their shards",
    **{
        ("cifar100_100x5_once", label): "unexplained; the text's 5 epochs have not been run"
        for label in ("FedAvg", "Ditto")
    },
    ("cifar100_100x5_once", "Local only"): "69.4 with the text's 5 epochs",
    ("cifar100_100x5_once", "FedPer"): "72.4 with the text's 5 epochs",
    ("cifar100_100x5_once", "FedRep"): "73.6 with the text's 5 epochs",
    ("cifar100_100x5", "Local only"): "unexplained; 63.7 with 1 epoch",
    ("cifar100_100x5", "FedPer"): "unexplained; 69.2 with 1 epoch",
    ("cifar100_100x5", "FedRep"): "unexplained; 72.4 with 1 epoch",
}


def clients_scores(folder: Path, history: History, row: Row) -> tuple[np.ndarray, np.ndarray]:
    """(evaluations, clients) accuracies that a row of the paper's table averages, and the clients' test points.

    Raises:
        ValueError: the run was not evaluated after each of its last rounds.
    """
    if row.after:
        scores = json.loads((folder / AFTER).read_text("utf-8"))[row.evaluation]
        return np.asarray(scores, float)[None], history.test_count
    last = np.arange(history.num_rounds - AVERAGED, history.num_rounds) + 1
    if not np.array_equal(history.eval_round[-AVERAGED:], last):
        raise ValueError(f"{folder}: was not evaluated after each of its last {AVERAGED} rounds; run it again")
    return history.scores(row.evaluation)[-AVERAGED:], history.test_count


def measured(folder: Path, row: Row) -> dict[str, Any]:
    """One run in numbers, in percent; `by_round` has every evaluation, `diverged` the round, of a run that did."""
    history = History.load(folder)
    scores, count = clients_scores(folder, history, row)
    tested = count > 0
    scores, count = 100 * scores[:, tested], count[tested]
    worst = np.sort(scores, axis=1)[:, : max(1, scores.shape[1] // 10)]
    by_round = scores @ count / count.sum()
    spread = by_round.std() if len(by_round) > 1 else 0.0
    found = {"accuracy": by_round.mean(), "worst_tenth": worst.mean(), "std_of_rounds": spread}
    rounded: dict[str, Any] = {name: round(float(value), 3) for name, value in found.items()}
    if history.diverged is not None:
        rounded["diverged"] = int(history.diverged)
    if not row.after:
        means = zip(history.eval_round, history.mean_scores(row.evaluation), strict=True)
        rounded["by_round"] = {str(at): round(100 * float(mean), 2) for at, mean in means}
    return rounded


def collect(columns: Mapping[str, Column], out: Path) -> dict[str, Any]:
    """Every finished run below a folder: column -> row -> seed -> numbers."""
    found: dict[str, Any] = {}
    for name in columns:
        for label, row in ROWS.items():
            for folder in sorted((out / name / row.training).glob("seed_*")):
                if (folder / "summary.json").is_file():
                    seed = folder.name.removeprefix("seed_")
                    found.setdefault(name, {}).setdefault(label, {})[seed] = measured(folder, row)
    return found


def numbers(seeds: Mapping[str, Mapping[str, float]], what: str = "accuracy") -> tuple[float, str]:
    """The mean over seeds, and how it is written; nan where a run diverged."""
    if any("diverged" in of_seed for of_seed in seeds.values()):
        return np.nan, "diverged"
    values = np.array([of_seed[what] for of_seed in seeds.values()])
    if len(values) == 1:
        return values[0], f"{values[0]:.1f}"
    return values.mean(), f"{values.mean():.1f} ± {values.std(ddof=1):.1f} ({len(values)})"


def papers(label: str, column: Column) -> float | None:
    """The paper's number, where it survived."""
    return None if column.place is None else PAPER[label][column.place]


def main_table(found: Mapping[str, Any], columns: Mapping[str, Column]) -> list[list[str]]:
    """Ours beside the paper's, a row a method."""
    head = ["method"]
    for name in found:
        head += [columns[name].title] + (["paper"] if columns[name].place is not None else [])
    rows = [head]
    for label in ROWS:
        row = [label]
        for name, of_column in found.items():
            row.append(numbers(of_column[label])[1] if label in of_column else "")
            if columns[name].place is not None:
                theirs = papers(label, columns[name])
                row.append("lost" if theirs is None else f"{theirs:.1f}" + "*" * (label in INFERRED))
        rows.append(row)
    return rows


def worst_table(found: Mapping[str, Any], columns: Mapping[str, Column]) -> list[list[str]]:
    """The worst tenth of the clients."""
    rows = [["worst tenth of the clients", *(columns[name].title for name in found)]]
    for label in ROWS:
        cells = [numbers(found[name][label], "worst_tenth")[1] if label in found[name] else "" for name in found]
        rows.append([label, *cells])
    return rows


def order_table(found: Mapping[str, Any], columns: Mapping[str, Column]) -> list[list[str]]:
    """How well our order of the methods agrees with the paper's, without the rows whose places are inferred."""
    rows = [["column", "methods compared", "rank correlation", "mean difference, ours less the paper's", "largest"]]
    for name, of_column in found.items():
        theirs = {label: papers(label, columns[name]) for label in of_column if label not in INFERRED}
        pairs = [(numbers(of_column[label])[0], value) for label, value in theirs.items() if value is not None]
        frame = pd.DataFrame(pairs, columns=["ours", "paper"]).dropna()  # without those that diverged
        if len(frame) < 3:
            continue
        ranks, difference = frame.rank(), frame["ours"] - frame["paper"]
        largest = difference[difference.abs().idxmax()]
        cells = f"{ranks['ours'].corr(ranks['paper']):.2f}", f"{difference.mean():+.1f}", f"{largest:+.1f}"
        rows.append([columns[name].title, str(len(frame)), *cells])
    return rows


def far_table(found: Mapping[str, Any], columns: Mapping[str, Column]) -> list[list[str]]:
    """The cells that are further from the paper's than `FAR` points."""
    rows = [["column", "method", "ours", "paper", "difference", "why"]]
    for name, of_column in found.items():
        for label, seeds in of_column.items():
            ours, theirs = numbers(seeds)[0], papers(label, columns[name])
            if theirs is not None and abs(ours - theirs) > FAR:
                why = EXPLAINED.get((name, label), "unexplained")
                paper = f"{theirs:.1f}" + "*" * (label in INFERRED)
                rows.append([columns[name].title, label, f"{ours:.1f}", paper, f"{ours - theirs:+.1f}", why])
    return rows


def markdown(rows: list[list[str]]) -> str:
    """A table in Markdown; nothing for a head alone."""
    if len(rows) == 1:
        return ""
    head, *body = rows
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *body)) + "\n\n"


def tables(found: Mapping[str, Any], columns: Mapping[str, Column]) -> str:
    """The generated part of the README."""
    if not found:
        return "No run has finished yet."
    made = (main_table, order_table, far_table, worst_table)
    return "".join(markdown(table(found, columns)) for table in made).rstrip()


def ablation(found: Mapping[str, Any], columns: Mapping[str, Column]) -> str:
    """What changes with what the protocol leaves open: the methods that were run in more than one way.

    A table for each column of the paper that was run in several ways.
    """
    made = []
    for place in dict.fromkeys(columns[name].place for name in found):
        ways = {columns[name].title: of for name, of in found.items() if columns[name].place == place}
        base = next(column for column in columns.values() if column.place == place)
        rows = [["method", *ways, "paper"]]
        for label in ROWS:
            cells = [numbers(of_way[label])[1] if label in of_way else "" for of_way in ways.values()]
            if sum(map(bool, cells)) > 1:
                theirs = papers(label, base)
                rows.append([label, *cells, "lost" if theirs is None else f"{theirs:.1f}" + "*" * (label in INFERRED)])
        made.append(markdown(rows))
    return "".join(made).rstrip()


def summarize(columns: Mapping[str, Column], out: Path, file: Path) -> int:
    """Puts the finished runs below a folder into a file of results; runs that it has from elsewhere stay.

    Returns:
        How many numbers the folder gave: a row and seed each.
    """
    known = json.loads(file.read_text("utf-8"))["runs"] if file.is_file() else {}
    found = collect(columns, out)
    runs: dict[str, Any] = {}
    for name in dict.fromkeys([*columns, *known]):
        for label in ROWS:
            seeds = known.get(name, {}).get(label, {}) | found.get(name, {}).get(label, {})
            if seeds:
                runs.setdefault(name, {})[label] = {seed: seeds[seed] for seed in sorted(seeds, key=int)}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"runs": runs}, indent=1) + "\n", "utf-8")
    return sum(len(seeds) for of_column in found.values() for seeds in of_column.values())
