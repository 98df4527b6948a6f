"""Made-up histories."""

from types import SimpleNamespace

import numpy as np

from fedjax_srp.history import History


def made_history(scores, compute_time, evaluation="fine_tune", clients=1, **fields):
    """History in which every client has these scores, one per round or per `eval_round`; `fields` override others."""
    rounds = len(compute_time)
    made = {
        "name": "fedrep",
        "round": np.arange(1, rounds + 1),
        "stage": np.zeros(rounds),
        "cohort_size": np.ones(rounds),
        "compute_time": np.asarray(compute_time, float),
        "communicated": np.ones(rounds, bool),
        "finite": np.ones(rounds, bool),
        "client_time": np.ones(clients),
        "eval_round": np.arange(1, rounds + 1),
        "accuracies": {evaluation: np.tile(np.array(scores, float)[:, None], clients)},
        "test_count": np.ones(clients, int),
    }
    return History(**made | fields)


def without_figures(monkeypatch):
    """Write runs and reports without their figures, which take most of the time."""
    figure = SimpleNamespace(savefig=lambda *_, **__: None)
    monkeypatch.setattr(History, "plot", lambda *_: figure)
    monkeypatch.setattr("fedjax_srp.commands.report.figure", lambda *_: figure)
