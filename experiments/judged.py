"""Rows of tables of methods: a training, and the evaluation by which its clients are judged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

import fedjax_srp as srp


class Row(NamedTuple):
    """A row of a table: a training and the evaluation of its clients."""

    training: str  # name in `srp.methods`
    evaluation: str
    after: bool = False  # evaluated once, after training


def trainings(rows: Mapping[str, Row]) -> tuple[str, ...]:
    """Return the trainings, each once."""
    return tuple(dict.fromkeys(row.training for row in rows.values()))


def rows_of(rows: Mapping[str, Row], training: str) -> dict[str, Row]:
    """Return the rows that a training serves."""
    return {name: row for name, row in rows.items() if row.training == training}


def during(rows: Mapping[str, Row]) -> tuple[str, ...]:
    """Return the evaluations of a training in its rounds, the default one first."""
    found = tuple(row.evaluation for row in rows.values() if not row.after)
    return found or ("global",)


def scores_after(
    rows: Mapping[str, Row],
    method: srp.Method,
    data: Any,
    history: srp.History,
    seed: int,
) -> dict[str, np.ndarray]:
    """Return the scores of clients after a training, by the evaluations of its other rows."""
    wanted = [row.evaluation for row in rows.values() if row.after]
    if not wanted:
        return {}
    key = jax.random.fold_in(jax.random.key(seed), history.num_rounds)
    state = history.server_state
    return srp.evaluate(method, data, state, key=key, evaluations=wanted)
