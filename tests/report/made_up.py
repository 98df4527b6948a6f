"""Synthetic histories."""

import numpy as np
from reference.histories import made_history


def made(name, seed, rounds, clients, every=1, own=False, **fields):
    """A synthetic history: accuracies rise, cohorts of doubling methods double, clients differ in speed."""
    random = np.random.default_rng([len(name), ord(name[0]), seed])
    client_time = random.exponential(size=clients).astype(np.float32)
    stage = (
        np.minimum(np.arange(rounds) // 20, 5)
        if "srpfl" in name or "flanp" in name
        else np.zeros(rounds, int)
    )
    sizes = (
        np.minimum(clients, (clients // 2**5 + 1) * 2**stage)
        if stage.any()
        else np.full(rounds, clients)
    )
    evaluated = np.arange(every, rounds + 1, every)
    rise = 1 - np.exp(
        -evaluated[:, None]
        / random.uniform(5, max(6, rounds / 2))
        * random.uniform(0.8, 1.2, clients)
    )
    counts = random.integers(5, 60, clients)
    accuracies = {"fine_tune": np.round(0.95 * rise * counts) / counts}
    if own:
        accuracies["own_head"] = np.round(0.8 * rise * counts) / counts
    config = {
        "method": {"name": name, "algorithm": {"learning_rate": 0.1}},
        "data": {"name": "digits", "num_clients": clients, "checksum": "1a2b3c4d"},
        "key": [0, seed],
    }
    all_fields = {
        "name": name,
        "stage": stage,
        "cohort_size": sizes,
        "communicated": random.uniform(size=rounds) < 0.9,
    }
    all_fields |= {
        "client_time": client_time,
        "eval_round": evaluated,
        "accuracies": accuracies,
        "test_count": counts,
    }
    all_fields |= {
        "compile_seconds": random.uniform(0, 1),
        "host_seconds": random.uniform(1, 50),
        "config": config,
    }
    times = fields.pop("compute_time", np.sort(client_time)[sizes - 1])
    return made_history(
        (), times, **all_fields | {"asynchronous": name == "fedbuff"} | fields
    )
