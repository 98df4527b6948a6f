"""Predictions of the theory in measured runs: the noise floor, the contraction and the speed-up."""

import jax
import numpy as np
import pytest

import fedjax_srp as srp
from fedjax_srp import theory


@pytest.mark.long
def test_noise_floor_falls_with_the_square_root_of_the_cohort():
    task = srp.data.linear_task(
        jax.random.key(0), num_clients=512, dim=30, rank=3, noise_std=1.0
    )
    algorithm = srp.algorithms.LinearFedRep(task, step_size=0.15, samples_per_round=25)
    keys = jax.random.split(jax.random.key(1), 6)
    policy = srp.participation.Doubling(initial=32, rounds_per_stage=120)
    histories = srp.simulate_seeds(
        algorithm, task, participation=policy, keys=keys, num_rounds=600, eval_every=600, evaluations=(),
        chunk_size=32, devices=1, progress=False,
    )  # fmt: skip
    distances = np.array([history.metrics["distance"] for history in histories]).reshape(
        6, 5, 120
    )
    floors = np.log(distances[:, :, 60:].mean(2))  # one per seed and stage
    slopes = np.polyfit(np.log(32 * 2.0 ** np.arange(5)), floors.T, 1)[0]
    error = slopes.std(ddof=1) / np.sqrt(len(slopes))
    assert abs(slopes.mean() + 0.5) < 4 * error + 0.01
    assert error < 0.03


@pytest.mark.long
def test_contraction_is_never_slower_than_the_theorem():
    """No noise, and batches large enough for its assumptions; m does not affect the cost of subspace sampling."""
    task = srp.data.linear_task(
        jax.random.key(2), num_clients=64, dim=40, rank=3, noise_std=0.0
    )
    singular = np.linalg.svd(np.asarray(task.heads) / 8, compute_uv=False)
    step_size = theory.max_step_size(singular[0])
    algorithm = srp.algorithms.LinearFedRep(
        task, step_size=step_size, samples_per_round=4000
    )
    run = {
        "num_rounds": 150,
        "eval_every": 150,
        "evaluations": (),
        "chunk_size": 64,
        "devices": 1,
        "progress": False,
    }
    distance = srp.simulate(algorithm, task, key=jax.random.key(3), **run).metrics[
        "distance"
    ]
    a = theory.contraction_rate(
        step_size, distance[0], singular[-1]
    )  # E0 from a distance that has already shrunk
    measured = distance[1:] / distance[:-1]
    assert (measured[distance[1:] > 1e-5] <= np.sqrt(1 - a)).all()
    assert distance[-1] < 0.1 * distance[0]


@pytest.mark.long
def test_doubling_is_faster_than_full_participation():
    """The time to 1.3 times the floor of full participation is shorter by a quarter."""
    task = srp.data.linear_task(
        jax.random.key(4), num_clients=256, dim=30, rank=3, noise_std=1.0
    )
    algorithm = srp.algorithms.LinearFedRep(task, step_size=0.1, samples_per_round=25)
    clock = srp.clocks.Dynamic(srp.clocks.Exponential(1.0))
    common = {
        "clock": clock, "keys": jax.random.split(jax.random.key(5), 6), "num_rounds": 240, "eval_every": 240,
        "evaluations": (), "chunk_size": 64, "devices": 1, "progress": False,
    }  # fmt: skip
    full = srp.simulate_seeds(algorithm, task, **common)
    policy = srp.participation.Doubling(initial=16, rounds_per_stage=30)
    doubling = srp.simulate_seeds(algorithm, task, participation=policy, **common)
    floor = np.mean([history.metrics["distance"][-40:].mean() for history in full])

    def times(histories):
        return np.array(
            [history.time_to(1.3 * floor, metric="distance") for history in histories]
        )

    slow, fast = times(full), times(doubling)
    assert np.isfinite(slow).all()
    assert np.isfinite(fast).all()
    ratios = fast / slow
    assert ratios.mean() + 4 * ratios.std(ddof=1) / np.sqrt(6) < 0.75
