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
from experiments.pages import markdown

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
    spread = by_round.std() if len(by_round) > 1 else 0.0
    found = {
        "accuracy": by_round.mean(),
        "worst_tenth": worst.mean(),
        "std_of_rounds": spread,
    }
    rounded: dict[str, Any] = {
        name: round(float(value), 3) for name, value in found.items()
    }
    if history.diverged is not None:
        rounded["diverged"] = int(history.diverged)
    if not row.after:
        means = zip(history.eval_round, history.mean_scores(row.evaluation), strict=True)
        rounded["by_round"] = {str(at): round(100 * float(mean), 2) for at, mean in means}
    return rounded


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


def mean_and_text(
    seeds: Mapping[str, Mapping[str, float]], what: str = "accuracy"
) -> tuple[float, str]:
    """Return the mean over seeds, nan if a run diverged, and its text."""
    if any("diverged" in run for run in seeds.values()):
        return np.nan, "diverged"
    values = np.array([of_seed[what] for of_seed in seeds.values()])
    if len(values) == 1:
        return values[0], f"{values[0]:.1f}"
    return (
        values.mean(),
        f"{values.mean():.1f} ± {values.std(ddof=1):.1f} ({len(values)})",
    )


def paper_value(label: str, column: Column) -> float | None:
    """Return the paper's number; None if it is lost."""
    return None if column.place is None else PAPER[label][column.place]


def main_table(
    found: Mapping[str, Any], columns: Mapping[str, Column]
) -> list[list[str]]:
    """Table of our numbers beside the paper's, a row for each method."""
    head = ["method"]
    for name in found:
        head += [columns[name].title] + (
            ["paper"] if columns[name].place is not None else []
        )
    rows = [head]
    for label in ROWS:
        row = [label]
        for name, of_column in found.items():
            row.append(mean_and_text(of_column[label])[1] if label in of_column else "")
            if columns[name].place is not None:
                theirs = paper_value(label, columns[name])
                row.append(
                    "lost"
                    if theirs is None
                    else f"{theirs:.1f}" + "*" * (label in INFERRED)
                )
        rows.append(row)
    return rows


def worst_table(
    found: Mapping[str, Any], columns: Mapping[str, Column]
) -> list[list[str]]:
    """Table of the worst tenth of the clients."""
    rows = [["worst tenth of the clients", *(columns[name].title for name in found)]]
    for label in ROWS:
        cells = [
            mean_and_text(found[name][label], "worst_tenth")[1]
            if label in found[name]
            else ""
            for name in found
        ]
        rows.append([label, *cells])
    return rows


def order_table(
    found: Mapping[str, Any], columns: Mapping[str, Column]
) -> list[list[str]]:
    """Table of rank correlations with the paper, without the rows whose places are inferred."""
    rows = [[
        "column", "methods compared", "rank correlation", "without FedAvg and FedProx",
        "mean difference, ours less the paper's", "largest",
    ]]  # fmt: skip
    for name, of_column in found.items():
        theirs = {
            label: paper_value(label, columns[name])
            for label in of_column
            if label not in INFERRED
        }
        pairs = {
            n: (mean_and_text(of_column[n])[0], value)
            for n, value in theirs.items()
            if value is not None
        }
        frame = pd.DataFrame.from_dict(
            pairs, "index", columns=["ours", "paper"]
        ).dropna()  # runs that diverged
        if len(frame) < 3:
            continue
        difference = frame["ours"] - frame["paper"]
        largest = difference[difference.abs().idxmax()]
        cells = (
            f"{rank_correlation(frame):.2f}",
            f"{rank_correlation(frame.drop(index=GLOBAL_MODELS, errors='ignore')):.2f}",
        )
        rows.append(
            [
                columns[name].title,
                str(len(frame)),
                *cells,
                f"{difference.mean():+.1f}",
                f"{largest:+.1f}",
            ]
        )
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


def far_table(found: Mapping[str, Any], columns: Mapping[str, Column]) -> list[list[str]]:
    """Table of the cells that differ from the paper by more than `LARGE_DIFFERENCE`, with the authors' options.

    The difference left is that of one setting, the code with all its options, even where a single option came nearer;
    cells are empty if that setting has not been run.
    """
    head = [
        "column",
        "method",
        "ours",
        "paper",
        "difference",
        "as the authors' code",
        "difference left",
        "alone",
    ]
    rows = [head]
    for base, *variants in group_by_paper_column(found, columns):
        for label, seeds in found[base].items():
            ours, theirs = mean_and_text(seeds)[0], paper_value(label, columns[base])
            if theirs is None or abs(ours - theirs) <= LARGE_DIFFERENCE:
                continue
            ran = {
                variant: mean_and_text(found[variant][label])
                for variant in variants
                if label in found[variant]
            }
            value, _ = ran.pop(f"{base}_authors", (None, ""))
            cells = (
                ["", ""] if value is None else [f"{value:.1f}", f"{value - theirs:+.1f}"]
            )
            alone = "; ".join(
                f"{columns[way].title} {written}" for way, (_, written) in ran.items()
            )
            paper = f"{theirs:.1f}" + "*" * (label in INFERRED)
            rows.append(
                [
                    columns[base].title,
                    label,
                    f"{ours:.1f}",
                    paper,
                    f"{ours - theirs:+.1f}",
                    *cells,
                    alone,
                ]
            )
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
        variants = {columns[name].title: found[name] for name in names}
        base = columns[names[0]]
        rows = [["method", *variants, "paper"]]
        for label in ROWS:
            cells = [
                mean_and_text(variant[label])[1] if label in variant else ""
                for variant in variants.values()
            ]
            if sum(map(bool, cells)) > 1:
                theirs = paper_value(label, base)
                rows.append(
                    [
                        label,
                        *cells,
                        "lost"
                        if theirs is None
                        else f"{theirs:.1f}" + "*" * (label in INFERRED),
                    ]
                )
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
