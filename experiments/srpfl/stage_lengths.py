"""Lengths of SRPFL's stages: linear tasks as in `linear_speedup.py`, all stages but the last equally long.

    python experiments/srpfl/stage_lengths.py --scale smoke|cpu [--init moments|random] [--out DIR]

A target is a multiple of FedRep's noise floor. A ratio is SRPFL's time to it over FedRep's, repeat by repeat, with the
same clocks. There are several tasks for each number of clients. Writes `stage_lengths_INIT.csv`, a row for each number
of clients, length, task, repeat and target; a time is inf if a run never reached the target.
"""

from __future__ import annotations

import jax
import pandas as pd
from linear_speedup import (
    DIM,
    EXTRA_ROUNDS,
    FACTORS,
    FEDREP_ROUNDS,
    FLOOR_ROUNDS,
    INITIAL,
    NOISE,
    RANK,
    SAMPLES,
    STEP,
    scripts,
)  # fmt: skip

import fedjax_srp as srp

LENGTHS = (1, 3, 10, 30, 100)
SCALES = {"smoke": ((32,), 1, 1, (1, 3)), "cpu": ((128, 512), 3, 2, LENGTHS)}  # N, tasks, repeats, lengths


def measure(num_clients: int, task_seed: int, repeats: int, init: str, lengths: tuple[int, ...]) -> list[dict]:
    """Measure times of both methods on one task."""
    task = srp.data.linear_task(jax.random.key(task_seed), num_clients, DIM, RANK, NOISE)
    algorithm = srp.algorithms.LinearFedRep(task, step_size=STEP, samples_per_round=SAMPLES, start=init)
    keys = jax.random.split(jax.random.fold_in(jax.random.key(task_seed), num_clients), repeats)

    def run(policy: srp.ParticipationPolicy, rounds: int) -> list[srp.History]:
        return srp.simulate_seeds(
            algorithm, task, keys=keys, participation=policy, clock=srp.clocks.Dynamic(srp.clocks.Exponential(1.0)),
            num_rounds=rounds, eval_every=rounds, evaluations=(), progress=False, chunk_size=min(1024, num_clients),
        )  # fmt: skip

    rounds = FEDREP_ROUNDS + EXTRA_ROUNDS[init]
    fedrep = run(srp.participation.Full(), rounds)
    floors = [history.metrics["distance"][-FLOOR_ROUNDS:].mean() for history in fedrep]
    stages = (num_clients // INITIAL).bit_length() - 1
    rows = []
    for length in lengths:
        srpfl = run(srp.participation.Doubling(INITIAL, [length] * stages), length * stages + rounds)
        for repeat, (ours, theirs, floor) in enumerate(zip(srpfl, fedrep, floors, strict=True)):
            rows += [
                {
                    "num_clients": num_clients, "length": length, "task": task_seed, "repeat": repeat, "factor": factor,
                    "srpfl": ours.time_to(factor * floor, metric="distance"),
                    "fedrep": theirs.time_to(factor * floor, metric="distance"),
                }
                for factor in FACTORS
            ]  # fmt: skip
    return rows


def main(arguments: list[str] | None = None) -> None:
    parser = scripts.parser(__doc__, SCALES, "runs/stage_lengths", "seed")
    parser.add_argument("--init", choices=EXTRA_ROUNDS, default="moments")
    args = parser.parse_args(arguments)
    args.out.mkdir(parents=True, exist_ok=True)
    sizes, tasks, repeats, lengths = SCALES[args.scale]
    rows = []
    for num_clients in sizes:
        for task in range(tasks):
            rows += measure(num_clients, args.seed + task, repeats, args.init, lengths)
            frame = pd.DataFrame(rows)
            frame.to_csv(args.out / f"stage_lengths_{args.init}.csv", index=False, float_format="%.5g")
    frame["ratio"] = frame["srpfl"] / frame["fedrep"]
    print(frame.pivot_table(index=["num_clients", "length"], columns="factor", values="ratio", aggfunc=["mean", "std"]))


if __name__ == "__main__":
    main()
