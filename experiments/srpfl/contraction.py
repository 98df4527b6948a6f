"""Rate at which SRPFL's representation converges (Theorem 4.5: "exponentially fast").

    python experiments/srpfl/contraction.py --scale smoke|cpu|full [--results DIR] [--seed N]

Rounds with n clients and m fresh samples each, d=100, k=2, step size 1 / (8 sigma_max^2) as the theorem has it, from a
distance of 1/2. Exponential means equally many rounds for every factor that the distance falls by, until noise stops
it: for every noise, n and m the table has the rounds to three distances, each a tenth of the one before, and the
distance at the end. The theorem's factor a round is sqrt(1 - a), beside its second term; the measured one is the
geometric mean down to the last of the three distances that every trial reaches.
"""

from __future__ import annotations

import numpy as np

import fedjax_srp as srp
from experiments import batches, curves, scripts
from fedjax_srp import theory

DIM, RANK, STEP, LAST = 100, 2, 0.125, 20
TARGETS = (0.2, 0.02, 0.002)
CASES = ((0.0, 64), (0.0, 1024), (1.0, 64), (1.0, 1024))
SCALES = {  # (noise, n), m, rounds, trials
    "smoke": (((0.0, 16),), (16, 32), {"rounds": 40, "trials": 2}),
    "cpu": (CASES, (16, 64, 256), {"rounds": 200, "trials": 10}),
    "full": (
        (*CASES, (1.0, 16384)),
        (16, 64, 256, 1024),
        {"rounds": 500, "trials": 20},
    ),
}


def measure(
    noise: float,
    clients: int,
    counts: tuple[int, ...],
    rounds: int,
    trials: int,
    seed: int,
) -> list[dict]:
    """Return a row for every number of samples m."""
    keys = scripts.trial_keys(seed, trials)
    tasks = [srp.data.linear_task(key, clients, DIM, RANK, noise) for key in keys]
    found = batches.distances(tasks, counts, STEP, rounds)
    lowest = []
    for task in tasks:
        low, high = batches.head_values(task)
        lowest.append(
            np.sqrt(1 - theory.contraction_rate(STEP / high**2, batches.START, low))
        )
    rows = []
    for place, m in enumerate(counts):
        runs = found[:, place]
        row = {"theorem's factor": curves.spread(lowest)}
        row["end"] = curves.spread(runs[:, -LAST:].mean(axis=1))
        for target in TARGETS:
            if (runs.min(axis=1) <= target).all():
                first = (runs <= target).argmax(axis=1)
                row[f"rounds to {target:g}"] = curves.spread(first + 1)
                reached = runs[np.arange(trials), first]
                factors = (reached / batches.START) ** (1 / (first + 1))
                row["factor"] = curves.spread(factors)
        facts = {"noise": noise, "n": clients, "m": m}
        rows.append(facts | curves.rounded(row))
    return rows


def main() -> None:
    args = scripts.measurement_parser(
        __doc__, SCALES, "runs/srpfl_contraction", "seed"
    ).parse_args()
    sizes, counts, options = SCALES[args.scale]
    found = scripts.measure_each(
        args,
        measure,
        variants=scripts.cases("noise clients", sizes),
        options=options | {"counts": counts},
    )
    facts = {"d": DIM, "k": RANK, "start": batches.START} | options
    rows = [row for of_case in found for row in of_case]
    curves.save(args, "contraction", facts | {"results": rows})


if __name__ == "__main__":
    main()
