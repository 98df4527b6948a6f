"""Data of the report page: every run's rounds and scores.

The page recomputes curves and times from `compute_time` and `communicated` of each round, and from scores of each
evaluation (the mean, the worst and the slowest tenth), all floats bit for bit. Of the clients it has the last
evaluation: each score up to `MAX_POINTS` clients, and quantiles.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_srp.history import History
from fedjax_srp.methods import label
from fedjax_srp.report import drawing, repeats, shares, stage_map, table
from fedjax_srp.storage import jsonable

MAX_POINTS = 300  # clients of a run, up to which each is a dot
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
    """Return the data of the page as text: JSON, deflated, in base64. Numbers that JSON cannot say are words in it."""
    content = {"comparisons": [_comparison(each) for each in comparisons], "quantiles": QUANTILES}
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
        "notes": list(rows.notes),
        "shares": list(shares.HEADER),
        "num_clients": rows.histories[names[0]][0].num_clients,
        "rows": [
            {
                "name": label(name),
                "color": styles[name].color,
                "dash": _DASHES[styles[name].linestyle],
                "twin": names.index(rows.twins[name]) if rows.twins.get(name) in rows.histories else None,
                "options": {"method": label(runs[0].name)} | rows.options[name],
                "takes_cost": runs[0].takes_communication,
                "judged_on": runs[0].judged_on,
                "shares": shares.texts(shares.shares(runs, comparison.target.accuracy)),
                **{f"{what}_seconds": table.seconds(runs, what) for what in ("compile", "host")},
                "distributions": _distributions(runs),
                "runs": [_run(run) for run in rows.runs[name]],
            }
            for name, runs in rows.histories.items()
        ],
    }


def _run(run: repeats.Run) -> dict[str, Any]:
    history = run.history
    few = history.num_clients <= MAX_POINTS
    seen = history.test_count > 0
    shares = stage_map.shares(history)
    return {
        "folder": str(run.folder),
        "seed": run.called,
        "config": history.config,
        "environment": history.environment,
        "diverged": history.diverged,
        "default": history.evaluation,
        **{name: getattr(history, name) for name in _ARRAYS},
        "map": None if shares is None else {"shape": shares.shape, "shares": shares.ravel()},
        "test_points": float(np.median(history.test_count[seen])) if seen.any() else 0.0,
        "evaluations": {
            name: {
                "mean": history.mean_scores(name),
                "worst": history.worst_scores(name),
                "slowest": history.slowest_scores(name),
                "quartiles": history.speed_quartiles(name),
                "clients": history.scores(name)[-1][seen] if few else None,
            }
            for name in history.accuracies
        },
    }


def _distributions(runs: Sequence[History]) -> dict[str, Any]:
    """Return evaluation -> quantiles over the clients of all runs with test points, after the last round."""
    found = {}
    for name in runs[0].accuracies:
        if all(name in run.accuracies for run in runs):
            scores = np.concatenate([run.scores(name)[-1][run.test_count > 0] for run in runs])
            found[name] = np.quantile(scores, QUANTILES) if scores.size else np.full(len(QUANTILES), np.nan)
    return found
