"""Data of the report page: rounds and scores of every run.

The page recomputes curves and times, bit for bit, from `compute_time` and `communicated` of each round and from the
scores of each evaluation: the mean, the worst tenth and the slowest tenth. For single clients it has the quantiles of
the last evaluation, and every score if there are at most `MAX_POINTS` clients.
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
from fedjax_srp.results.history import History
from fedjax_srp.results.sealed_folders import jsonable

MAX_POINTS = 300  # runs with more clients have quantiles only, and no dot for each client
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
    """Return the data of the page as deflated JSON in base64; numbers that are not finite are strings."""
    content = {
        "comparisons": [_comparison(each) for each in comparisons],
        "quantiles": QUANTILES,
    }
    text = json.dumps(jsonable(content), allow_nan=False)
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def _comparison(comparison: Comparison) -> dict[str, Any]:
    rows = comparison.rows
    names = list(rows.histories)
    styles = drawing.styles(names)
    return {
        "title": comparison.title,
        "target": comparison.target.accuracy,
        "reason": comparison.target.reason,
        "communications": list(comparison.communications),
        "notes": [f"{note[0].upper()}{note[1:]}." for note in rows.notes],
        "shares": list(shares.HEADER),
        "num_clients": rows.histories[names[0]][0].num_clients,
        "rows": [
            {
                "name": label(name),
                "color": styles[name].color,
                "dash": _DASHES[styles[name].linestyle],
                "twin": names.index(rows.twins[name]) if name in rows.twins else None,
                "options": {"method": label(runs[0].name)} | rows.options[name],
                "takes_cost": runs[0].takes_communication,
                "judged_on": runs[0].judged_on,
                "shares": shares.texts(shares.shares(runs, comparison.target.accuracy)),
                **{
                    f"{what}_seconds": table.seconds(runs, what)
                    for what in ("compile", "host")
                },
                "distributions": _distributions(runs),
                "runs": [_run(run) for run in rows.runs[name]],
            }
            for name, runs in rows.histories.items()
        ],
    }


def _run(run: repeats.Run) -> dict[str, Any]:
    history = run.history
    has_dots = history.num_clients <= MAX_POINTS
    is_tested = history.test_count > 0
    shares = stage_map.shares(history)
    return {
        "folder": str(run.folder),
        "seed": run.called,
        "config": history.config,
        "environment": history.environment,
        "diverged": history.diverged,
        "default": history.evaluation,
        **{name: getattr(history, name) for name in _ARRAYS},
        "map": None
        if shares is None
        else {"shape": shares.shape, "shares": shares.ravel()},
        "test_points": float(np.median(history.test_count[is_tested]))
        if is_tested.any()
        else 0.0,
        "evaluations": {
            name: {
                "mean": history.mean_scores(name),
                "worst": history.worst_scores(name),
                "slowest": history.slowest_scores(name),
                "quartiles": history.speed_quartiles(name),
                "clients": history.scores(name)[-1][is_tested] if has_dots else None,
            }
            for name in history.accuracies
        },
    }


def _distributions(runs: Sequence[History]) -> dict[str, Any]:
    """Return evaluation -> quantiles of the last scores over the clients with test points of all runs."""
    found = {}
    for name in runs[0].accuracies:
        if all(name in run.accuracies for run in runs):
            scores = np.concatenate(
                [run.scores(name)[-1][run.test_count > 0] for run in runs]
            )
            found[name] = (
                np.quantile(scores, QUANTILES)
                if scores.size
                else np.full(len(QUANTILES), np.nan)
            )
    return found
