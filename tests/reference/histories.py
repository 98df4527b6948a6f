"""Made-up histories."""

from types import SimpleNamespace

import numpy as np

from fedjax_srp.driver import outcome, simulate
from fedjax_srp.driver.round_log import Records
from fedjax_srp.results.history import History


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
    monkeypatch.setattr("fedjax_srp.lab.report.panels.figure", lambda *_: figure)


def without_rounds(monkeypatch):
    """Give runs random scores instead of rounds, whose programs take most of the time; all else is as in a run."""
    rng = np.random.default_rng(0)

    def run(bar, run, root, places):
        ends = [0, *run.settings.evaluated_rounds()]
        seeds, clients = run.num_seeds or 1, run.layout.num_clients
        ones = np.ones((seeds, run.settings.num_rounds), int)
        records = dict.fromkeys(
            ("cohort_size", "compute_time", "communicated", "finite"), ones
        )
        records |= {
            "round": ones.cumsum(1) - 1,
            "stage": 0 * ones,
            "eval_round": np.tile(ends[1:], (seeds, 1)),
        }
        counts = np.broadcast_to(
            getattr(run.data, "test_counts", 1), (seeds, len(ends) - 1, clients)
        )
        for evaluation in run.evaluations:
            sums = rng.random(counts.shape) * counts
            records |= {
                f"scores/{evaluation}/sum": sums,
                f"scores/{evaluation}/count": counts,
            }
        times = np.ones((seeds, clients))
        found = Records([records])
        found.start_time = np.zeros(seeds)
        return outcome.histories(
            run, root, outcome.Results(times, times, (), None, found, {})
        )

    monkeypatch.setattr(simulate, "_run", run)
