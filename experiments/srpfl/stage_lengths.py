"""Lengths of SRPFL's stages: linear tasks as in `linear_speedup.py`, from 16 clients, all stages but the last equal.

    python experiments/srpfl/stage_lengths.py --scale smoke|cpu [--init moments|random] [--results DIR]

A target is a multiple of FedRep's noise floor. A ratio is SRPFL's time to it over FedRep's, repeat by repeat, with the
same clocks. There are several tasks for each number of clients. Writes `stage_lengths_INIT.csv`, a row for each number
of clients, length, task, repeat and target; a time is inf if a run never reached the target.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import fedjax_srp as srp
from experiments.srpfl.linear_speedup import (
    EXTRA_ROUNDS,
    FACTORS,
    FEDREP_ROUNDS,
    contest,
    floors_of,
    scripts,
    times_to_floors,
)

INITIAL = 16  # fewer than the n0 of SRPFL's appendix A
LENGTHS = (1, 3, 10, 30, 100)
COLUMNS = ("length", "task", "repeat", "factor", "srpfl", "fedrep")
SCALES = {  # N, tasks, repeats, lengths
    "smoke": ((32,), 1, {"repeats": 1, "lengths": (1, 3)}),
    "cpu": ((128, 512), 3, {"repeats": 2, "lengths": LENGTHS}),
}


def measure(
    num_clients: int, task_seed: int, repeats: int, init: str, lengths: Sequence[int]
) -> list[dict]:
    """Return times of both methods on one task, a row for each length of stages, repeat and target."""
    _, run = contest(num_clients, repeats, task_seed, init)
    rounds = FEDREP_ROUNDS + EXTRA_ROUNDS[init]
    fedrep = run(srp.participation.Full(), rounds)
    floors = floors_of(fedrep)
    stages = (num_clients // INITIAL).bit_length() - 1
    theirs = times_to_floors(fedrep, floors)
    rows = []
    for length in lengths:
        policy = srp.participation.Doubling(INITIAL, [length] * stages)
        ours = times_to_floors(run(policy, length * stages + rounds), floors)
        for repeat, (i, factor) in itertools.product(range(repeats), enumerate(FACTORS)):
            facts = {"length": length, "task": task_seed, "repeat": repeat}
            times = {"srpfl": ours[i, repeat], "fedrep": theirs[i, repeat]}
            rows.append(facts | {"factor": factor} | times)
    return rows


def main() -> None:
    args = scripts.measurement_parser(
        __doc__,
        SCALES,
        "runs/stage_lengths",
        "seed",
        init={"choices": EXTRA_ROUNDS, "default": "moments"},
    ).parse_args()
    sizes, tasks, options = SCALES[args.scale]
    axes = {"num_clients": sizes, "task_seed": range(args.seed, args.seed + tasks)}
    found = scripts.measure(args, measure, axes=axes, options=options).table
    frame = found[["num_clients", *COLUMNS]]
    file = scripts.results_folder(args) / f"stage_lengths_{args.init}.csv"
    frame.to_csv(file, index=False, float_format="%.5g")
    ratios = frame.assign(ratio=frame["srpfl"] / frame["fedrep"])
    by_length = ratios.groupby(["num_clients", "length", "factor"])["ratio"]
    print(by_length.agg(["mean", "std"]).unstack("factor"))


if __name__ == "__main__":
    main()
