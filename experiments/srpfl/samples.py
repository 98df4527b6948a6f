"""Samples that a client of SRPFL needs, by N and d (section 1, point 2; Theorem 4.5).

    python experiments/srpfl/samples.py --scale smoke|cpu|full [--out DIR] [--seed N]

The introduction says that m = O(d / N + log N) samples a client suffice; Theorem 4.5 has max(log N, d / n0) for the n0
clients of the first stage. k=2, noise 1, fresh samples in every round, step size 1 / (8 sigma_max^2), as the theorem
has it, for the n clients that take part: n = 16 is the first stage of `linear_speedup.py`, n = N the last. B starts at
a distance of 1/2, which costs no samples here; Algorithm 2 starts with the method of moments.

With noise the distance falls to a floor: the mean of the last 20 rounds. For every d and n the table has the floors by
m, and the number of trials in which every round keeps inequality (9), with n0 = 16.
"""

from __future__ import annotations

import functools

import jax
import numpy as np

import fedjax_srp as srp
from experiments import batches, curves, scripts
from fedjax_srp import theory

RANK, NOISE, STEP, INITIAL, LAST = 2, 1.0, 0.125, 16, 20
LEVELS = (0.5, 0.15)  # floors; the first is where the runs start
MORE = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)  # samples beyond k
GRID = (
    (25, 16),
    *((d, n) for d in (100, 400) for n in (16, 64, 256)),
    (100, 1024),
    (25, 1024),
)
SCALES = {  # (d, n), rounds, trials
    "smoke": (((25, 16),), 40, 2),
    "cpu": (GRID, 200, 5),
    "full": ((*GRID, (25, 64), (25, 256), (400, 1024), (100, 4096)), 500, 20),
}


def measure(dim: int, clients: int, rounds: int, trials: int, seed: int) -> dict:
    """Return floors by m, and in how many trials every round keeps (9)."""
    keys = [jax.random.fold_in(jax.random.key(seed), trial) for trial in range(trials)]
    tasks = [srp.data.linear_task(key, clients, dim, RANK, NOISE) for key in keys]
    counts = [RANK + more for more in MORE if more <= max(8, 7.5 * dim / clients)]
    distance = batches.distances(tasks, counts, STEP, rounds)
    kept = np.zeros(len(counts), int)
    for task, runs in zip(tasks, distance, strict=True):
        low, high = batches.head_values(task)
        a = theory.contraction_rate(STEP / high**2, batches.START, low)
        before = np.concatenate(
            [np.full((len(counts), 1), batches.START), runs[:, :-1]], axis=1
        )
        kept += (
            runs <= np.vectorize(theory.contraction)(before, a, clients / INITIAL)
        ).all(axis=1)
    floors = distance[:, :, -LAST:].mean(axis=2)
    spread = {
        "mean": floors.mean(axis=0),
        "lowest": floors.min(axis=0),
        "highest": floors.max(axis=0),
    }
    rows = {name: [curves.rounded(x) for x in row] for name, row in spread.items()}
    lowest = {
        f"floor below {level:g}": batches.smallest(counts, spread["highest"] < level)
        for level in LEVELS
    }
    lowest["within (9)"] = batches.smallest(counts, kept == trials)
    found = {
        "d": dim,
        "n": clients,
        "m": counts,
        "trials within (9)": kept.tolist(),
        "floor": rows,
    }
    return found | {"smallest m": lowest}


def main() -> None:
    args = scripts.parser(__doc__, SCALES, "runs/srpfl_samples", "seed").parse_args()
    sizes, rounds, trials = SCALES[args.scale]
    of_all = functools.partial(measure, rounds=rounds, trials=trials, seed=args.seed)
    results = scripts.measure_each(args, "samples", sizes, of_all, seed=args.seed)
    facts = {
        "trials": trials,
        "rounds": rounds,
        "start": batches.START,
        "results": results,
    }
    curves.save(args, "samples", facts)


if __name__ == "__main__":
    main()
