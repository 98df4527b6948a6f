"""Data of the report page: rounds and scores of every run.

The page recomputes curves and times, bit for bit, from `compute_time` and `communicated` of each
round and from the scores of each evaluation: the mean, those of the worst tenth and the slowest
tenth of the clients, and of each quarter by speed. For
single clients it has the quantiles of the last evaluation, and every score if there are at most
`MAX_POINTS` clients.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_srp.lab.report import drawing, repeats, table
from fedjax_srp.lab.report import fairness as shares
from fedjax_srp.lab.report import participation_map as stage_map
from fedjax_srp.methods import label
from fedjax_srp.parts.checks import printable_within
from fedjax_srp.results.history import History
from fedjax_srp.results.json_files import jsonable
from fedjax_srp.results.measures import QUARTERS, Of

MAX_POINTS = 300  # runs with more clients have quantiles only, and no dot for each client
# group of clients in the page's data and address -> in `History.group_scores`
GROUP_OF: dict[str, Of] = {
    "mean": "mean",
    "worst": "worst_tenth",
    "slowest": "slowest_tenth",
    **{quarter: quarter for quarter in QUARTERS},
}
QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
_ARRAYS = ("compute_time", "communicated", "stage", "cohort_size", "eval_round")
_DASHES = {"-": "solid", "--": "dashed", ":": "dotted"}


class Comparison(NamedTuple):
    """Runs of one table: of one data set and number of clients."""

    title: str
    rows: repeats.Rows
    target: table.Target
    communications: Sequence[float]


def packed(comparisons: Sequence[Comparison]) -> str:
    """Return the page's data as deflated JSON in base64; nan and infinities are strings.

    Names without control characters.
    """
    content = {
        "comparisons": [_comparison(each) for each in comparisons],
        "quantiles": QUANTILES,
    }
    text = json.dumps(printable_within(jsonable(content)), allow_nan=False)
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def _comparison(comparison: Comparison) -> dict[str, Any]:
    rows = comparison.rows
    names = list(rows.histories)
    first = rows.histories[names[0]][0]
    styles = drawing.styles(names)
    return {
        "title": comparison.title,
        "target": comparison.target.accuracy,
        "reason": comparison.target.reason,
        "communications": list(comparison.communications),
        "notes": [f"{note[0].upper()}{note[1:]}." for note in rows.notes],
        "shares": list(shares.HEADER),
        "num_clients": first.num_clients,
        "group_sizes": {short: first.group_size(of) for short, of in GROUP_OF.items()},
        "rows": [_row(name, comparison, styles[name]) for name in names],
    }


def _row(name: str, comparison: Comparison, style: drawing.Style) -> dict[str, Any]:
    rows = comparison.rows
    runs = rows.histories[name]
    twin = None
    if name in rows.twins:
        twin = list(rows.histories).index(rows.twins[name])
    return {
        "name": label(name),
        "color": style.color,
        "dash": _DASHES[style.linestyle],
        "twin": twin,
        "options": {"method": label(runs[0].name)} | rows.options[name],
        "takes_cost": runs[0].takes_communication,
        "judged_on": runs[0].judged_on,
        "shares": shares.texts(shares.shares(runs, comparison.target.accuracy)),
        "compile_seconds": table.seconds(runs, "compile"),
        "host_seconds": table.seconds(runs, "host"),
        "distributions": _distributions(runs),
        "runs": [_run(run) for run in rows.runs[name]],
    }


def _run(run: repeats.Run) -> dict[str, Any]:
    history = run.history
    test_counts = history.test_count[history.test_count > 0]
    participation = stage_map.shares(history)
    image = None
    if participation is not None:
        image = {"shape": participation.shape, "shares": participation.ravel()}
    return {
        "folder": str(run.folder),
        "seed": run.called,
        "config": history.config,
        "environment": history.environment,
        "diverged": history.diverged,
        "default": history.evaluation,
        **{name: getattr(history, name) for name in _ARRAYS},
        "map": image,
        "start": history.start._asdict(),
        "test_points": float(np.median(test_counts)) if test_counts.size else 0.0,
        "evaluations": {name: _evaluation(history, name) for name in history.accuracies},
    }


def _evaluation(history: History, name: str) -> dict[str, Any]:
    clients = None
    if history.num_clients <= MAX_POINTS:
        clients = _last_scores(history, name)
    return {
        **{short: history.group_scores(of, name) for short, of in GROUP_OF.items()},
        "quartiles": history.speed_quartiles(name),
        "clients": clients,
    }


def _last_scores(history: History, name: str) -> np.ndarray:
    """Return the scores of the last evaluation, of clients with test points."""
    return history.scores(name)[-1][history.test_count > 0]


def _distributions(runs: Sequence[History]) -> dict[str, Any]:
    """Return evaluation -> quantiles of the last scores over the clients of all runs."""
    distributions = {}
    for name in runs[0].accuracies:
        if all(name in run.accuracies for run in runs):
            scores = np.concatenate([_last_scores(run, name) for run in runs])
            distributions[name] = np.full(len(QUANTILES), np.nan)
            if scores.size:
                distributions[name] = np.quantile(scores, QUANTILES)
    return distributions
