"""Lengths of SRPFL's stages: linear tasks as in `linear_speedup.py`, from 16 clients, all stages but the last equal.

    python experiments/srpfl/stage_lengths.py --scale smoke|cpu [--init moments|random] [--results DIR]

A target is a multiple of FedRep's noise floor. A ratio is SRPFL's time to it over FedRep's, repeat by repeat, with the
same clocks. There are several tasks for each number of clients. Writes `stage_lengths_INIT.csv`, a row for each number
of clients, length, task, repeat and target; a time is inf if a run never reached the target.
"""

from __future__ import annotations

import pandas as pd

import fedjax_srp as srp
from experiments.srpfl.linear_speedup import (
    EXTRA_ROUNDS,
    FACTORS,
    FEDREP_ROUNDS,
    contest,
    floors_of,
    scripts,
)

INITIAL = 16  # fewer than the n0 of SRPFL's appendix A
LENGTHS = (1, 3, 10, 30, 100)
SCALES = {
    "smoke": ((32,), 1, 1, (1, 3)),
    "cpu": ((128, 512), 3, 2, LENGTHS),
}  # N, tasks, repeats, lengths


def measure(
    num_clients: int, task_seed: int, repeats: int, init: str, lengths: tuple[int, ...]
) -> list[dict]:
    """Measure times of both methods on one task."""
    _, run = contest(num_clients, repeats, task_seed, init)
    rounds = FEDREP_ROUNDS + EXTRA_ROUNDS[init]
    fedrep = run(srp.participation.Full(), rounds)
    floors = floors_of(fedrep)
    stages = (num_clients // INITIAL).bit_length() - 1
    rows = []
    for length in lengths:
        srpfl = run(
            srp.participation.Doubling(INITIAL, [length] * stages),
            length * stages + rounds,
        )
        for repeat, (ours, theirs, floor) in enumerate(
            zip(srpfl, fedrep, floors, strict=True)
        ):
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
    parser = scripts.measurement_parser(__doc__, SCALES, "runs/stage_lengths", "seed")
    parser.add_argument("--init", choices=EXTRA_ROUNDS, default="moments")
    args = parser.parse_args(arguments)
    sizes, tasks, repeats, lengths = SCALES[args.scale]
    task_seeds = range(args.seed, args.seed + tasks)
    found = scripts.measure_each(
        args,
        measure,
        axes={"num_clients": sizes, "task_seed": task_seeds},
        options={"repeats": repeats, "init": args.init, "lengths": lengths},
    )
    frame = pd.DataFrame([row for rows in found for row in rows])
    frame = frame.astype({"srpfl": float, "fedrep": float})
    frame.to_csv(
        scripts.results_folder(args) / f"stage_lengths_{args.init}.csv",
        index=False,
        float_format="%.5g",
    )
    frame["ratio"] = frame["srpfl"] / frame["fedrep"]
    print(
        frame.pivot_table(
            index=["num_clients", "length"],
            columns="factor",
            values="ratio",
            aggfunc=["mean", "std"],
        )
    )


if __name__ == "__main__":
    main()
