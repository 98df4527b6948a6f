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
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_srp as srp
from experiments import curves, scripts
from fedjax_srp.linear import draw_batch, principal_angle_distance

DIM, RANK, SAMPLES = 20, 2, 10
NOISE = 0.5  # of new clients
DESIGNS = ("gaussian", "rademacher", "uniform")


class Scale(NamedTuple):
    """Sizes of the three parts."""

    clients: tuple[int, ...]  # of the start by moments
    shapes: tuple[tuple[int, int], ...]  # (d, k) for new clients
    spreads: tuple[float, ...]  # h
    trials: int


SCALES = {
    "smoke": Scale((64, 256), ((10, 2),), (0.0, 1.0), 2),
    "cpu": Scale(
        tuple(4**power for power in range(3, 7)),
        ((20, 2), (80, 2), (80, 4), (80, 8)),
        (0.0, 0.5, 1.0, 2.0),
        3,
    ),
}


def starts(scale: Scale, seed: int) -> list[dict[str, Any]]:
    """Return the first distances by design and place of B*, and their slope over the samples."""
    found: dict[tuple[str, str], list[list[float]]] = {}
    for design in DESIGNS:
        for num_clients in scale.clients:
            for place, distances in first_distances(
                num_clients, seed, design, scale.trials
            ).items():
                found.setdefault((design, place), []).append(distances)
    samples = SAMPLES * np.array(scale.clients)
    rows = []
    for (design, place), of_sizes in found.items():
        means = np.mean(of_sizes, axis=1)
        slope = np.polyfit(np.log(samples), np.log(means), 1)[0]
        row = {"design": design, "B*": place, "samples": samples.tolist()}
        row["distance"] = [[curves.rounded(each) for each in size] for size in of_sizes]
        row["slope"] = curves.rounded(slope)
        rows.append(row)
    return rows


def first_distances(
    num_clients: int, seed: int, design: Any, trials: int
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


def new_clients(scale: Scale, seed: int, clients: int = 200) -> list[dict[str, Any]]:
    """Return the samples that a new client needs with and without the representation, by d and k."""
    rows = []
    for dim, rank in scale.shapes:
        task = srp.data.linear_task(jax.random.key(seed), 2 * clients, dim, rank, NOISE)
        old, new = (
            dataclasses.replace(task, heads=heads) for heads in np.split(task.heads, 2)
        )
        algorithm = srp.algorithms.LinearFedRep(old, step_size=0.3, samples_per_round=50)
        history = srp.simulate(
            algorithm,
            old,
            num_rounds=300,
            eval_every=300,
            evaluations=(),
            key=jax.random.key(seed),
            progress=False,
            devices=1,
        )
        counts = list(range(rank + 1, 8 * rank + 1))
        adapted = srp.adapt(
            new, new, history.server_state, key=jax.random.key(seed), num_samples=counts
        )
        errors = np.asarray(adapted.scores)[:, -1].mean(axis=-1)
        alone = errors_alone(new, range(2 * dim, 4 * dim + 1, max(1, dim // 20)))
        rows.append(
            {
                "d": dim,
                "k": rank,
                "distance": curves.rounded(history.metrics["distance"][-1]),
                "with B": first_below(dict(zip(counts, errors, strict=True))),
                "alone": first_below(alone),
                "error with 3 k + 1": curves.rounded(errors[counts.index(3 * rank + 1)]),
            }
        )
    return rows


def first_below(errors: dict[int, float]) -> int | None:
    """Return the smallest number of samples from which on the error is below half the noise's variance."""
    found = None
    for samples in sorted(errors, reverse=True):
        if errors[samples] > NOISE**2 / 2:
            break
        found = samples
    return found


def errors_alone(task: Any, counts: Sequence[int]) -> dict[int, float]:
    """Return the mean squared error of least squares in all inputs, by number of samples."""
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

    return {samples: float(mean_error(samples)) for samples in counts}


def one_model(scale: Scale, seed: int) -> list[dict[str, Any]]:
    """Return the errors of one model and of FedRep by the heterogeneity of the heads."""
    rows = []
    for spread in scale.spreads:
        found: dict[str, list[float]] = {"one model": [], "variance": [], "FedRep": []}
        for trial in range(scale.trials):
            task = srp.data.linear_task(
                jax.random.key(seed + trial), 40, DIM, RANK, heads="gaussian"
            )
            task = dataclasses.replace(task, heads=1.0 + spread * task.heads)
            heads = np.asarray(task.heads)
            found["variance"].append(np.sum((heads - heads.mean(0)) ** 2, axis=1).mean())
            for name, algorithm in {
                "one model": srp.algorithms.LinearFedAvg(task, 0.1, local_steps=1),
                "FedRep": srp.algorithms.LinearFedRep(
                    task, 0.1, samples_per_round=10, sampling="full", start="random"
                ),
            }.items():
                history = srp.simulate(
                    algorithm,
                    task,
                    num_rounds=400,
                    eval_every=400,
                    evaluations="global" if name == "one model" else "fit_head",
                    key=jax.random.key(seed + trial),
                    progress=False,
                    devices=1,
                )
                found[name].append(history.final_accuracy)
        row = {
            name: [curves.rounded(value) for value in values]
            for name, values in found.items()
        }
        rows.append({"h": spread, **row})
    return rows


def main(arguments: list[str] | None = None) -> None:
    parser = scripts.parser(__doc__, SCALES, "runs/fedrep_linear_claims", "seed")
    args = parser.parse_args(arguments)
    scale = SCALES[args.scale]
    facts = {
        "one model": one_model(scale, args.seed),
        "new clients": new_clients(scale, args.seed),
        "starts": starts(scale, args.seed),
    }
    curves.save(args, "linear_claims", {"results": facts})


if __name__ == "__main__":
    main()
