"""Samples that a client of SRPFL needs, by N and d (section 1, point 2; Theorem 4.5).

    python experiments/srpfl/samples.py --scale smoke|cpu|full [--results DIR] [--seed N]

The introduction says that m = O(d / N + log N) samples a client suffice; Theorem 4.5 has max(log N, d / n0) for the
n0 clients of the first stage, and appendix A n0 = 2 d / (log(N) sigma_max), with which d / n0 is log(N) sigma_max / 2.
k=2, noise 1, fresh samples in every round, step size 1 / (8 sigma_max^2), as the theorem has it, for the n clients that
take part. For every d and N there is the first stage, with n = n0 (of the smallest sigma_max of the trials, so that it
is enough for all), the same clients in every round, and for some the last stage, with n = N. B starts at a distance of
1/2, which costs no samples here; Algorithm 2 starts with the method of moments.

With noise the distance falls to a floor: the mean of the last 20 rounds. For every d, N and n the table has the floors
by m, and the number of trials in which every round keeps inequality (9).
"""

from __future__ import annotations

import jax
import numpy as np

import fedjax_srp as srp
from experiments import batches, curves, scripts
from fedjax_srp import theory

RANK, NOISE, STEP, LAST = 2, 1.0, 0.125, 20
LEVELS = (0.5, 0.15)  # floors; the first is where the runs start
MORE = (*range(1, 9), 10, 12, 14, 16, 18, 20, 24, 32, 48, 64, 96, 128)  # samples beyond k
FIRST = (
    *((25, n) for n in (256, 4096)),
    *((d, n) for d in (100, 400) for n in (256, 4096, 65536, 2**20)),
)
ALL = ((25, 256), (100, 256), (400, 256))
GRID = (*((d, n, True) for d, n in FIRST), *((d, n, False) for d, n in ALL))
SCALES = {  # (d, N, True for the first stage or False for the last), rounds, trials
    "smoke": (((25, 64, True), (25, 64, False)), {"rounds": 40, "trials": 2}),
    "cpu": (GRID, {"rounds": 200, "trials": 5}),
    "full": (
        (*GRID, *((d, 4096, False) for d in (25, 100, 400)), (100, 16384, False)),
        {"rounds": 500, "trials": 20},
    ),
}


def measure(
    dim: int, num_clients: int, first_stage: bool, rounds: int, trials: int, seed: int
) -> dict:
    """Return floors by m, and in how many trials every round keeps (9)."""
    keys = scripts.trial_keys(seed, trials)
    initial = first_cohort(keys, dim, num_clients)
    taking_part = initial if first_stage else num_clients
    tasks = [srp.data.linear_task(key, taking_part, dim, RANK, NOISE) for key in keys]
    counts = [RANK + more for more in MORE if more <= max(8, 7.5 * dim / taking_part)]
    distance = batches.distances(tasks, counts, STEP, rounds)
    kept = np.zeros(len(counts), int)
    for task, runs in zip(tasks, distance, strict=True):
        low, high = batches.head_values(task)
        a = theory.contraction_rate(STEP / high**2, batches.START, low)
        before = np.concatenate(
            [np.full((len(counts), 1), batches.START), runs[:, :-1]], axis=1
        )
        kept += (
            runs <= np.vectorize(theory.contraction)(before, a, taking_part / initial)
        ).all(axis=1)
    floors = distance[:, :, -LAST:].mean(axis=2)
    spread = curves.spread(floors)
    lowest = {
        f"floor below {level:g}": batches.smallest(counts, spread["highest"] < level)
        for level in LEVELS
    }
    lowest["within (9)"] = batches.smallest(counts, kept == trials)
    sizes = {"d": dim, "N": num_clients, "n0": initial, "n": taking_part}
    return sizes | {
        "m": counts,
        "trials within (9)": kept.tolist(),
        "floor": curves.rounded(spread),
        "smallest m": lowest,
    }


def first_cohort(keys: list[jax.Array], dim: int, num_clients: int) -> int:
    """Return n0 of appendix A for the heads of all clients, the largest of the trials."""
    cohorts = []
    for key in keys:
        task = srp.data.linear_task(key, num_clients, dim, RANK, NOISE)
        cohorts.append(
            theory.initial_clients(dim, num_clients, batches.head_values(task)[1])
        )
    return max(cohorts)


def main() -> None:
    args = scripts.measurement_parser(
        __doc__, SCALES, "runs/srpfl_samples", "seed"
    ).parse_args()
    sizes, options = SCALES[args.scale]
    variants = scripts.cases("dim num_clients first_stage", sizes)
    results = scripts.measure_each(args, measure, variants=variants, options=options)
    curves.save(args, "samples", options | {"start": batches.START, "results": results})


if __name__ == "__main__":
    main()
