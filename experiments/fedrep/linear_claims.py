"""Claims of FedRep on linear tasks: the start by moments, new clients, one model for all.

    python experiments/fedrep/linear_claims.py --scale smoke|cpu [--out DIR] [--seed N]

Theorem 2 (appendix B.4): the method of moments comes closer to the truth like one over the square root of all samples
m n. Here it is the distance of the first B, d=20, k=2, noise 1, m=10 samples a client, for more and more clients; for
Gaussian inputs, and for independent signs and uniform numbers, as Assumption 1 allows (sub-Gaussian), with a random B*
and with one whose columns lie along axes. The slope is that of log distance over log(m n).

Section 1 (II) and 4.2: a new client needs O(k) samples for its head, O(d) without a representation. Of 200 new clients
whose head is fitted under a B that 200 others trained (noise 0.5), the smallest m from which on the mean squared error
of the parameters is below half of the noise's variance; and the same for least squares in all d inputs. In theory
(Gaussian inputs, B = B*) it is 3 k + 1, and 3 d + 1.

Section 2.1: one model for all has an error that grows with the heterogeneity of the heads, FedRep's formulation none.
Heads are w + h g_i with g_i ~ N(0, I) and no noise: errors of distributed gradient descent on one model, beside
mean ||B*(w_i* - mean w*)||^2, and of FedRep with heads fitted to 10 samples.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_srp as srp
from experiments import curves, scripts
from experiments.batches import smallest
from fedjax_srp.linear import draw_batch, principal_angle_distance

DIM, RANK, SAMPLES = 20, 2, 10
NOISE = 0.5  # of new clients
NEW = 200  # clients
DESIGNS = ("gaussian", "rademacher", "uniform")
SCALES = {  # clients of the start by moments, (d, k) for new clients, h, trials
    "smoke": ((64, 256), ((10, 2),), (0.0, 1.0), 2),
    "cpu": (
        (64, 256, 1024, 4096),
        ((20, 2), (80, 2), (80, 4), (80, 8)),
        (0.0, 0.5, 1.0, 2.0),
        3,
    ),
}


def first_distances(
    design: Any, num_clients: int, trials: int, seed: int
) -> dict[str, list[float]]:
    """Return the distance of the first B of each trial, for a random B* and for one along axes."""

    @jax.jit
    def distance(task: srp.data.LinearTask, key: jax.Array) -> jax.Array:
        algorithm = srp.algorithms.LinearFedRep(
            task, step_size=0.1, samples_per_round=SAMPLES, sampling="full"
        )
        chunk_size = min(1024, num_clients)
        simulation = srp.Simulation(algorithm, task, chunk_size=chunk_size)
        first = simulation.init(key).server.representation
        return principal_angle_distance(first, task.representation)

    found: dict[str, list[float]] = {"random": [], "axes": []}
    for trial in range(trials):
        key = jax.random.key(seed + trial)
        task = srp.data.linear_task(key, num_clients, DIM, RANK, 1.0, design=design)
        along = dataclasses.replace(task, representation=jnp.eye(DIM, RANK))
        found["random"].append(float(distance(task, key)))
        found["axes"].append(float(distance(along, key)))
    return found


def starts(
    clients: Sequence[int], found: Sequence[dict[str, list[float]]]
) -> list[dict[str, Any]]:
    """Return the first distances by design and place of B*, and their slope over the samples."""
    samples = SAMPLES * np.array(clients)
    rows = []
    for design, of_design in zip(
        DESIGNS, np.split(np.array(found), len(DESIGNS)), strict=True
    ):
        for place in ("random", "axes"):
            distances = [of_size[place] for of_size in of_design]
            means = np.mean(distances, axis=1)
            row = {"design": design, "B*": place, "samples": samples.tolist()}
            row["distance"] = curves.rounded(distances)
            slope = np.polyfit(np.log(samples), np.log(means), 1)[0]
            row["slope"] = curves.rounded(slope)
            rows.append(row)
    return rows


def samples_of_new_clients(dim: int, rank: int, seed: int) -> dict[str, Any]:
    """Return the samples that a new client needs with and without the representation."""
    key = jax.random.key(seed)
    task = srp.data.linear_task(key, 2 * NEW, dim, rank, NOISE)
    old, new = (
        dataclasses.replace(task, heads=heads) for heads in np.split(task.heads, 2)
    )
    algorithm = srp.algorithms.LinearFedRep(old, step_size=0.3, samples_per_round=50)
    options = {"evaluations": (), "progress": False, "devices": 1}
    history = srp.simulate(
        algorithm, old, num_rounds=300, eval_every=300, key=key, **options
    )
    counts = list(range(rank + 1, 8 * rank + 1))
    adapted = srp.adapt(new, new, history.server_state, key=key, num_samples=counts)
    errors = np.asarray(adapted.scores)[:, -1].mean(axis=-1)
    counts_alone = range(2 * dim, 4 * dim + 1, max(1, dim // 20))
    alone = errors_alone(new, counts_alone)
    limit = NOISE**2 / 2
    return {
        "d": dim,
        "k": rank,
        "distance": curves.rounded(history.metrics["distance"][-1]),
        "with B": smallest(counts, (errors <= limit).tolist()),
        "alone": smallest(counts_alone, (alone <= limit).tolist()),
        "error with 3 k + 1": curves.rounded(errors[counts.index(3 * rank + 1)]),
    }


def errors_alone(task: Any, counts: Sequence[int]) -> np.ndarray:
    """Return the mean squared error of least squares in all inputs for each number of samples."""
    most = max(counts)

    @jax.jit
    def mean_error(samples: jax.Array) -> jax.Array:
        def error(client_id: jax.Array) -> jax.Array:
            client = task.train_client(client_id)
            x, y = draw_batch(client.key, client, most)
            x = jnp.where(jnp.arange(most)[:, None] < samples, x, 0.0)
            theta = jnp.linalg.solve(x.T @ x, x.T @ y)
            return jnp.sum((theta - client.representation @ client.head) ** 2)

        ids = jnp.arange(task.num_clients, dtype=jnp.int32)
        return jax.vmap(error)(ids).mean()

    return np.array([mean_error(samples) for samples in counts])


def errors_by_spread(h: float, trials: int, seed: int) -> dict[str, Any]:
    """Return the errors of one model and of FedRep for a heterogeneity of the heads."""
    found: dict[str, list[float]] = {"one model": [], "variance": [], "FedRep": []}
    for trial in range(trials):
        key = jax.random.key(seed + trial)
        task = srp.data.linear_task(key, 40, DIM, RANK, heads="gaussian")
        task = dataclasses.replace(task, heads=1.0 + h * task.heads)
        heads = np.asarray(task.heads)
        variance = np.sum((heads - heads.mean(0)) ** 2, axis=1).mean()
        found["variance"].append(float(variance))
        one_model = srp.algorithms.LinearFedAvg(task, 0.1, local_steps=1)
        fedrep = srp.algorithms.LinearFedRep(
            task, 0.1, samples_per_round=10, sampling="full", start="random"
        )
        for name, algorithm, evaluation in (
            ("one model", one_model, "global"),
            ("FedRep", fedrep, "fit_head"),
        ):
            options = {"evaluations": evaluation, "progress": False, "devices": 1}
            history = srp.simulate(
                algorithm, task, num_rounds=400, eval_every=400, key=key, **options
            )
            found[name].append(history.final_accuracy)
    return {"h": h, **curves.rounded(found)}


def main() -> None:
    args = scripts.measurement_parser(
        __doc__, SCALES, "runs/fedrep_linear_claims", "seed"
    ).parse_args()
    clients, shapes, spreads, trials = SCALES[args.scale]
    options = {"trials": trials}
    of_spreads = scripts.measure_each(
        args, errors_by_spread, axes={"h": spreads}, options=options
    )
    of_new = scripts.measure_each(
        args, samples_of_new_clients, variants=scripts.cases("dim rank", shapes)
    )
    of_starts = scripts.measure_each(
        args,
        first_distances,
        axes={"design": DESIGNS, "num_clients": clients},
        options=options,
    )
    results = {
        "one model": of_spreads,
        "new clients": of_new,
        "starts": starts(clients, of_starts),
    }
    curves.save(args, "linear_claims", {"results": results})


if __name__ == "__main__":
    main()
