"""Summary of the finished runs of `table1.py`: a file of results, and its tables."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import fedjax_srp as srp
from experiments.fedrep.rivals import (
    AVERAGED,
    COLUMNS,
    INFERRED,
    PAPER,
    ROWS,
    Column,
)
from experiments.judged import Row, rows_of, scores_after
from experiments.pages import markdown, pm

LARGE_DIFFERENCE = 3.0  # points from the paper's number that need an explanation
GLOBAL_MODELS = [
    "FedAvg",
    "FedProx",
]  # evaluated without fine-tuning, far below all others in every column


def measure(
    history: srp.History, row: Row, after: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """Measure a run in percent; `by_round` has every evaluation, `diverged` the round at which a run diverged."""
    if row.after:
        scores = after[row.evaluation][None]
    else:
        scores = history.scores(row.evaluation)[-AVERAGED:]
    tested = history.test_count > 0
    scores, count = 100 * scores[:, tested], history.test_count[tested]
    worst = np.sort(scores, axis=1)[:, : max(1, scores.shape[1] // 10)]
    by_round = scores @ count / count.sum()
    found: dict[str, Any] = {
        "accuracy": round(float(by_round.mean()), 3),
        "worst_tenth": round(float(worst.mean()), 3),
        "std_of_rounds": round(float(by_round.std()), 3),
    }
    if history.diverged is not None:
        found["diverged"] = int(history.diverged)
    if not row.after:
        means = zip(history.eval_round, history.mean_scores(row.evaluation), strict=True)
        found["by_round"] = {str(at): round(100 * float(mean), 2) for at, mean in means}
    return found


def collect(grid: Any) -> dict[str, Any]:
    """Measure every run of the grid of `table1.py`: column -> row -> seed -> numbers."""
    found: dict[str, Any] = {}
    for name, history in grid.histories.items():
        seed = grid.values[name]["seed"]
        column, _, training = grid.values[name]["variant"].partition("/")
        rows = rows_of(ROWS, training)
        after = scores_after(rows, history.method, grid.data(name), history, seed)
        for label, row in rows.items():
            of_row = found.setdefault(column, {}).setdefault(label, {})
            of_row[str(seed)] = measure(history, row, after)
    return found


def mean_of(seeds: Mapping[str, Mapping[str, float]]) -> float:
    """Return the mean accuracy over seeds; nan if a run diverged."""
    if any("diverged" in run for run in seeds.values()):
        return np.nan
    return float(np.mean([run["accuracy"] for run in seeds.values()]))


def shown(of_column: Mapping[str, Any], label: str, what: str = "accuracy") -> str:
    """Format the mean over seeds of a row; empty if it was not run."""
    seeds = of_column.get(label, {})
    if any("diverged" in run for run in seeds.values()):
        return "diverged"
    values = [run[what] for run in seeds.values()]
    number = f" ({len(values)})" if len(values) > 1 else ""
    return pm(values, 1) + number if values else ""


def paper_value(label: str, column: Column) -> float | None:
    """Return the paper's number; None if it is lost."""
    return None if column.place is None else PAPER[label][column.place]


def paper_text(label: str, column: Column) -> str:
    """Format the paper's number, with a star where its place is inferred."""
    value = paper_value(label, column)
    return "lost" if value is None else f"{value:.1f}" + "*" * (label in INFERRED)


def main_table(found: Mapping[str, Any], columns: Mapping[str, Column]) -> list[Any]:
    """Table of our numbers beside the paper's, a row for each method."""
    rows = [["method"], *([label] for label in ROWS)]
    for name, of_column in found.items():
        column = columns[name]
        cells = [[column.title], *([shown(of_column, label)] for label in ROWS)]
        if column.place is not None:
            texts = ["paper", *(paper_text(label, column) for label in ROWS)]
            cells = [[*own, text] for own, text in zip(cells, texts, strict=True)]
        rows = [[*row, *own] for row, own in zip(rows, cells, strict=True)]
    return rows


def worst_table(found: Mapping[str, Any], columns: Mapping[str, Column]) -> list[Any]:
    """Table of the worst tenth of the clients."""
    rows = [["worst tenth of the clients", *(columns[name].title for name in found)]]
    for label in ROWS:
        cells = [shown(of_column, label, "worst_tenth") for of_column in found.values()]
        rows.append([label, *cells])
    return rows


def order_table(found: Mapping[str, Any], columns: Mapping[str, Column]) -> list[Any]:
    """Table of rank correlations with the paper, without the rows whose places are inferred."""
    rows = [[
        "column", "methods compared", "rank correlation", "without FedAvg and FedProx",
        "mean difference, ours less the paper's", "largest",
    ]]  # fmt: skip
    for name, of_column in found.items():
        kept = [label for label in of_column if label not in INFERRED]
        ours = pd.Series({label: mean_of(of_column[label]) for label in kept})
        paper = pd.Series({label: paper_value(label, columns[name]) for label in kept})
        frame = pd.DataFrame({"ours": ours, "paper": paper.astype(float)}).dropna()
        if len(frame) < 3:
            continue
        difference = frame["ours"] - frame["paper"]
        largest = difference[difference.abs().idxmax()]
        personal = frame.drop(index=GLOBAL_MODELS, errors="ignore")
        correlations = (f"{rank_correlation(each):.2f}" for each in (frame, personal))
        row = [columns[name].title, str(len(frame)), *correlations]
        rows.append([*row, f"{difference.mean():+.1f}", f"{largest:+.1f}"])
    return rows


def rank_correlation(frame: pd.DataFrame) -> float:
    """Rank correlation of our numbers with the paper's; nan for a single row."""
    ranks = frame.rank()
    return ranks["ours"].corr(ranks["paper"])


def group_by_paper_column(
    found: Mapping[str, Any], columns: Mapping[str, Column]
) -> list[list[str]]:
    """Group our columns by column of the paper: table 1's first, then its variations."""
    places = dict.fromkeys(columns[name].place for name in found)
    return [[name for name in found if columns[name].place == place] for place in places]


def far_table(found: Mapping[str, Any], columns: Mapping[str, Column]) -> list[Any]:
    """Table of the cells that differ from the paper by more than `LARGE_DIFFERENCE`, with the authors' options.

    The difference left is that of one setting, the code with all its options, even where a single option came nearer;
    cells are empty if that setting has not been run.
    """
    head = ["column", "method", "ours", "paper", "difference", "as the authors' code"]
    rows = [[*head, "difference left", "alone"]]
    for base, *variants in group_by_paper_column(found, columns):
        for label, seeds in found[base].items():
            ours, theirs = mean_of(seeds), paper_value(label, columns[base])
            if theirs is None or abs(ours - theirs) <= LARGE_DIFFERENCE:
                continue
            cells = ["", ""]
            alone = []
            for variant in variants:
                of_variant = found[variant]
                if variant == f"{base}_authors" and label in of_variant:
                    value = mean_of(of_variant[label])
                    cells = [f"{value:.1f}", f"{value - theirs:+.1f}"]
                elif label in of_variant:
                    title = columns[variant].title
                    alone.append(f"{title} {shown(of_variant, label)}")
            row = [columns[base].title, label, f"{ours:.1f}"]
            row += [paper_text(label, columns[base]), f"{ours - theirs:+.1f}"]
            rows.append([*row, *cells, "; ".join(alone)])
    return rows


def tables(found: Mapping[str, Any]) -> str:
    """Table 1, followed by the comparisons with the paper."""
    if not found:
        return "No run has finished yet."
    columns = {
        name: column for of_scale in COLUMNS.values() for name, column in of_scale.items()
    }
    made = (table(found, columns) for table in (main_table, order_table, worst_table))
    return "\n\n".join(markdown(rows) for rows in made if len(rows) > 1)


def ablation(found: Mapping[str, Any], columns: Mapping[str, Column]) -> str:
    """Tables of the methods that were run with several choices of options, one for each column of the paper."""
    tables = []
    for names in group_by_paper_column(found, columns):
        rows = [["method", *(columns[name].title for name in names), "paper"]]
        for label in ROWS:
            cells = [shown(found[name], label) for name in names]
            if sum(map(bool, cells)) > 1:
                rows.append([label, *cells, paper_text(label, columns[names[0]])])
        if len(rows) > 1:
            tables.append(markdown(rows))
    return "\n\n".join(tables)


def merge(found: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Add the numbers of `collect` to a file of results, which keeps its other runs; return all."""
    known = json.loads(file.read_text("utf-8"))["runs"] if file.is_file() else {}
    of_all_scales = itertools.chain.from_iterable(COLUMNS.values())
    runs: dict[str, Any] = {}
    for name, label in itertools.product(dict.fromkeys(of_all_scales), ROWS):
        seeds = known.get(name, {}).get(label, {}) | found.get(name, {}).get(label, {})
        if seeds:
            ordered = {seed: seeds[seed] for seed in sorted(seeds, key=int)}
            runs.setdefault(name, {})[label] = ordered
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"runs": runs}, indent=1) + "\n", "utf-8")
    return runs
