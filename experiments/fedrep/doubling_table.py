"""Gain of each personalisation method by doubling: all clients in every round against doubling.

    python experiments/fedrep/doubling_table.py [--scale cpu|smoke] [--results experiments/fedrep/results] [--seeds 4]
        [--methods NAME ...] [--rounds-per-stage 10]

Digits, 50 clients with 3 classes each, fixed speeds T_i ~ Exp(1); doubling starts with the 5 fastest and doubles every
10 rounds (--rounds-per-stage), until all clients take part. No paper has this table: SRPFL's paper doubles only FedRep,
LG-FedAvg and FedAvg.

The two runs of a method and seed share the target, a fraction of the final accuracy of the run with all clients (mean
of its last ten evaluations), so no target favours another method. Accuracy is the mean over ALL clients, evaluated
after every round: clients that doubling has not reached yet count with their initial models. Times are on the SRPFL
clock: the slowest participant of every round, plus C. L2GD's rounds in which no client sends, and those after them in
which the server already knows the mean, pay no C, so a run with all clients may pay none at all.

A factor is the time with all clients over the time with doubling: above 1, doubling is faster. `doubling_table.json`
(`doubling_table_N.json` for stages of N instead of 10 rounds) has every seed.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

import fedjax_srp as srp
from experiments import curves, pages, scripts
from fedjax_srp.results.history import History

COSTS = (0.0, 10.0, 100.0)
FRACTIONS = (0.95, 0.99)
STAGE = 10  # rounds
# method -> evaluations, that of FedRep's table 1 first
METHODS = {
    "fedavg": ("fine_tune",),
    "per_fedavg": ("fine_tune_all",),
    "fedper": ("own_head", "fine_tune"),
    "fedrep": ("own_head", "fine_tune"),
    "lg_fedavg": ("own_representation", "fine_tune"),
    "ditto": ("own_model",),
    "apfl": ("own_model",),
    "l2gd": ("own_model",),
}


class Scale(NamedTuple):
    """Size and length of the runs."""

    num_clients: int
    num_rounds: int
    local_epochs: int
    hidden: tuple[int, ...]
    seeds: int
    methods: tuple[str, ...]


SCALES = {
    "cpu": Scale(50, 100, 5, (64, 32), 4, tuple(METHODS)),
    "smoke": Scale(10, 12, 1, (8, 8), 2, ("fedper",)),
}


def run(args: Any, scale: Scale, seeds: int) -> dict[Any, list[History]]:
    """Run all methods, with all clients and with doubling, evaluated after every round; return the seeds of each."""
    # As in FedRep's paper: ten epochs of the head, then as many of the representation as other methods train.
    fedrep = {"epochs": 1, "representation_epochs": scale.local_epochs}
    variants = {
        name: {"method": name, "evaluations": METHODS[name]}
        | (fedrep if name == "fedrep" else {})
        for name in args.methods or scale.methods
    }
    options = {
        "dataset": "digits",
        "num_clients": scale.num_clients,
        "classes_per_client": 3,
        "hidden": scale.hidden,
        "learning_rate": 0.05,
        "momentum": 0.5,
        "epochs": scale.local_epochs,
        "initial": max(2, scale.num_clients // 10),
        "rounds_per_stage": args.rounds_per_stage,
        "num_rounds": scale.num_rounds,
        "eval_every": 1,
    }
    axes = {"participation": ["full", "doubling"], "seed": range(seeds)}
    found = scripts.run_grid(args, variants=variants, axes=axes, options=options)
    return found.histories_by("variant", "participation")


def compare(everybody: History, doubling: History, evaluation: str) -> dict[str, Any]:
    """Compare the two runs of one seed; a time is inf if the target was not reached."""
    final = {"everybody": everybody, "doubling": doubling}
    found: dict[str, Any] = {
        f"accuracy_{who}": float(history.mean_scores(evaluation)[-10:].mean())
        for who, history in final.items()
    }
    found |= {
        f"worst_tenth_{who}": float(history.worst_scores(evaluation)[-10:].mean())
        for who, history in final.items()
    }
    for fraction in FRACTIONS:
        target = fraction * found["accuracy_everybody"]
        for cost in COSTS:
            times = {
                policy: _time_to(h, target, cost, evaluation)
                for policy, h in final.items()
            }
            found[f"{fraction:g} C={cost:g}"] = times | {
                "factor": times["everybody"] / times["doubling"]
            }
    return found


def _time_to(history: History, target: float, cost: float, evaluation: str) -> float:
    """Return the time to a target; evaluations follow every round, so a bound is that of the first one."""
    place = history.reached(target, evaluation)
    return math.inf if place is None else float(history.eval_elapsed(cost)[place])


def format_factors(factors: list[float]) -> str:
    """Format the median of the factors with their range; "never" if doubling did not reach the target."""

    def format_factor(factor: float) -> str:
        return (
            "never"
            if factor == 0
            else f"{factor:.2f}"
            if factor >= 0.01
            else f"{factor:.1g}"
        )

    low, middle, high = (
        format_factor(float(of(factors))) for of in (np.min, np.median, np.max)
    )
    return f"{middle} ({low} to {high})"


def table(results: dict[str, dict[str, list[dict[str, Any]]]]) -> str:
    """Format the table in Markdown: factors are medians over the seeds, with the lowest and highest."""
    head = [
        "method",
        "judged by",
        "everybody %",
        "doubling %",
        "worst tenth: everybody %",
        "doubling %",
    ]
    head += ["change"]
    head += [
        f"{100 * fraction:g} %, C = {cost:g}" for fraction in FRACTIONS for cost in COSTS
    ]
    rows = [head]
    for name, by_evaluation in results.items():
        for evaluation, seeds in by_evaluation.items():
            label = srp.methods.label("fedavg_ft" if name == "fedavg" else name)
            values = {
                f"{what}_{who}": np.array(
                    [100 * float(seed[f"{what}_{who}"]) for seed in seeds]
                )
                for what in ("accuracy", "worst_tenth")
                for who in ("everybody", "doubling")
            }
            values["change"] = (
                values["worst_tenth_doubling"] - values["worst_tenth_everybody"]
            )
            cells = [pages.pm(of_seeds, 1) for of_seeds in values.values()]
            factors = {
                place: [float(seed[place]["factor"]) for seed in seeds]
                for place in seeds[0]
                if place.startswith("0.")
            }
            rows.append(
                [label, f"`{evaluation}`", *cells, *map(format_factors, factors.values())]
            )
    return pages.markdown(rows)


def main(arguments: list[str] | None = None) -> None:
    parser = scripts.grid_parser(__doc__, SCALES, "runs/fedrep_doubling", "seeds")
    parser.add_argument(
        "--methods",
        nargs="+",
        choices=METHODS,
        metavar="NAME",
        help="default: those of the scale",
    )
    parser.add_argument("--rounds-per-stage", type=int, default=STAGE)
    args = parser.parse_args(arguments)
    scale = SCALES[args.scale]
    num_seeds = scale.seeds if args.seeds is None else args.seeds
    if num_seeds < 2:
        parser.error(f"--seeds {num_seeds}: must be at least 2, for a spread")
    if args.rounds_per_stage < 1:
        parser.error(f"--rounds-per-stage {args.rounds_per_stage}: must be at least 1")
    with scripts.reported():
        runs = run(args, scale, num_seeds)
    results: dict[str, Any] = {}
    for name in args.methods or scale.methods:
        pairs = list(zip(runs[name, "full"], runs[name, "doubling"], strict=True))
        results[name] = {e: [compare(*pair, e) for pair in pairs] for e in METHODS[name]}
    print(table(curves.rounded(results)))
    suffix = "" if args.rounds_per_stage == STAGE else f"_{args.rounds_per_stage}"
    facts = {"num_seeds": num_seeds, "rounds_per_stage": args.rounds_per_stage}
    facts["results"] = curves.rounded(results)
    curves.save(args, f"doubling_table{suffix}", facts)


if __name__ == "__main__":
    main()
