"""Samples that a client of FedRep needs, by d, n and k (section 1, benefit I; Theorem 1; equation 11).

    python experiments/fedrep/samples.py --scale smoke|cpu|full [--results DIR] [--seed N]

The paper says that a client needs O(log n + d / n) samples in a round, for constant k, and log(1 / eps) times as many
in all, where a client alone needs O(d). As in the theorem: no noise, m fresh samples of every client in every round,
all n clients, heads of length sqrt(k). B starts at a distance of 1/2 (E0 = 3/4), which costs no samples here; the paper
gets its start by the method of moments.

Our copy has lost the formulas of Theorem 1. Its bound (10) is that of SRPFL's Theorem 4.5 without the term of the
noise, (1 - a)^(t / 2) of the first distance with a = eta E0 sigma_min^2 / 2, and the step size is 1 / (4 sigma_max^2),
twice the largest of that theorem.

For every d, n and k the table has the smallest m from which every round of every trial keeps the bound, and the samples
m T that bring the median trial to a distance of 0.01, for the best m: at this step, and at four times this step.
"""

from __future__ import annotations

import numpy as np

import fedjax_srp as srp
from experiments import batches, curves, scripts

STEPS, TARGET = (0.25, 1.0), 0.01
ROUNDING = 1e-4  # below it single precision may break the bound
MORE = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # samples beyond k
SIZES = (
    *((d, n, 2) for d in (20, 100, 500) for n in (10, 100)),
    (100, 1000, 2),
    (100, 100, 5),
    (100, 100, 10),
)
SCALES = {  # (d, n, k), rounds, trials
    "smoke": (((20, 10, 2),), {"rounds": 20, "trials": 2}),
    "cpu": (SIZES, {"rounds": 150, "trials": 10}),
    "full": (
        (*SIZES, (20, 1000, 2), (500, 1000, 2)),
        {"rounds": 500, "trials": 50},
    ),
}


def bound(task, step: float, rounds: int) -> np.ndarray:
    """Return the right side of (10) after each round."""
    low, high = batches.head_values(task)
    rate = 1 - step / high**2 * (1 - batches.START**2) * low**2 / 2
    return np.maximum(batches.START * rate ** (np.arange(1, rounds + 1) / 2), ROUNDING)


def measure(
    dim: int, clients: int, rank: int, rounds: int, trials: int, seed: int
) -> dict:
    """Return for every m the trials that keep the bound, and the rounds to the target."""
    keys = scripts.trial_keys(seed, trials)
    tasks = [srp.data.linear_task(key, clients, dim, rank) for key in keys]
    counts = [
        rank + more
        for more in MORE
        if more <= max(4, 80 / clients, rank * dim / clients, rank**2 / 3)
    ]
    found: dict = {"d": dim, "n": clients, "k": rank, "m": counts}
    for step in STEPS:
        distance = batches.distances(tasks, counts, step, rounds)
        if step == STEPS[0]:
            bounds = np.stack([bound(task, step, rounds) for task in tasks])[:, None]
            kept = (distance <= bounds).all(axis=2).sum(axis=0).tolist()
            found["trials within the bound"] = kept
            found["smallest m within the bound"] = batches.smallest(
                counts, [count == trials for count in kept]
            )
        reached = distance <= TARGET
        needed = np.where(reached.any(axis=2), reached.argmax(axis=2) + 1.0, np.inf)
        spread = curves.spread(needed, middle="median")
        found[f"rounds at step {step:g}"] = curves.rounded(spread)
        best = int(np.argmin(counts * spread["median"]))
        fewest = {name: counts[best] * row[best] for name, row in spread.items()}
        found[f"fewest samples at step {step:g}"] = {
            "m": counts[best],
            **curves.rounded(fewest),
        }
    return found


def main() -> None:
    args = scripts.measurement_parser(
        __doc__, SCALES, "runs/fedrep_samples", "seed"
    ).parse_args()
    sizes, options = SCALES[args.scale]
    variants = scripts.cases("dim clients rank", sizes)
    results = scripts.measure_each(args, measure, variants=variants, options=options)
    curves.save(args, "samples", options | {"target": TARGET, "results": results})


if __name__ == "__main__":
    main()
