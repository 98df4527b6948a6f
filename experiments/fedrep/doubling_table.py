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

import itertools
from typing import Any

import numpy as np

import fedjax_srp as srp
from experiments import curves, pages, scripts
from fedjax_srp.lab.report import table as report
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


OPTIONS = {
    "dataset": "digits",
    "classes_per_client": 3,
    "learning_rate": 0.05,
    "momentum": 0.5,
    "eval_every": 1,
}
SCALES: dict[str, tuple[dict[str, Any], int, tuple[str, ...]]] = {  # seeds, methods
    "cpu": (
        {
            "num_clients": 50,
            "initial": 5,
            "num_rounds": 100,
            "epochs": 5,
            "hidden": (64, 32),
        },
        4,
        tuple(METHODS),
    ),
    "smoke": (
        {
            "num_clients": 10,
            "initial": 2,
            "num_rounds": 12,
            "epochs": 1,
            "hidden": (8, 8),
        },
        2,
        ("fedper",),
    ),
}


def compare(full: History, doubling: History, evaluation: str) -> dict[str, Any]:
    """Compare the two runs of one seed; a time is inf if the target was not reached."""
    runs = {"everybody": full, "doubling": doubling}
    judged = {policy: run.judged_by(evaluation) for policy, run in runs.items()}
    found: dict[str, Any] = {}
    for what, group in {"accuracy": "mean", "worst_tenth": "worst_tenth"}.items():
        for policy, run in judged.items():
            last = run.group_scores(group)[-10:]
            found[f"{what}_{policy}"] = float(last.mean())
    for fraction, cost in itertools.product(FRACTIONS, COSTS):
        target = fraction * found["accuracy_everybody"]
        times = {
            policy: report.time_to(run, target, cost) for policy, run in judged.items()
        }
        factor = times["everybody"] / times["doubling"]
        found[f"{fraction:g} C={cost:g}"] = times | {"factor": factor}
    return found


def format_factor(factor: float) -> str:
    """Format a factor; "never" if doubling did not reach the target."""
    if factor == 0:
        return "never"
    return f"{factor:.2f}" if factor >= 0.01 else f"{factor:.1g}"


def table(results: dict[str, dict[str, list[dict[str, Any]]]]) -> str:
    """Format the table in Markdown: factors are medians over the seeds, with the lowest and highest."""
    places = [(f, c) for f in FRACTIONS for c in COSTS]
    head = ["method", "judged by", "everybody %", "doubling %"]
    head += ["worst tenth: everybody %", "doubling %", "change"]
    rows = [[*head, *(f"{100 * f:g} %, C = {c:g}" for f, c in places)]]
    for name, by_evaluation in results.items():
        label = srp.methods.label("fedavg_ft" if name == "fedavg" else name)
        for evaluation, seeds in by_evaluation.items():
            values = []
            for what in ("accuracy", "worst_tenth"):
                for policy in ("everybody", "doubling"):
                    of_seeds = [100 * float(seed[f"{what}_{policy}"]) for seed in seeds]
                    values.append(np.array(of_seeds))
            values.append(values[3] - values[2])
            cells = [pages.pm(of_seeds, 1) for of_seeds in values]
            for f, c in places:
                factors = [float(seed[f"{f:g} C={c:g}"]["factor"]) for seed in seeds]
                low, middle, high = (
                    format_factor(float(of(factors)))
                    for of in (np.min, np.median, np.max)
                )
                cells.append(f"{middle} ({low} to {high})")
            rows.append([label, f"`{evaluation}`", *cells])
    return pages.markdown(rows)


def main() -> None:
    parser = scripts.grid_parser(
        __doc__,
        SCALES,
        "runs/fedrep_doubling",
        "seeds",
        methods={
            "nargs": "+",
            "choices": METHODS,
            "metavar": "NAME",
            "help": "default: those of the scale",
        },
        rounds_per_stage={"type": int, "default": STAGE},
    )
    args = parser.parse_args()
    options, num_seeds, names = SCALES[args.scale]
    names = args.methods or names
    if args.seeds is not None:
        num_seeds = args.seeds
    if num_seeds < 2:
        parser.error(f"--seeds {num_seeds}: must be at least 2, for a spread")
    if args.rounds_per_stage < 1:
        parser.error(f"--rounds-per-stage {args.rounds_per_stage}: must be at least 1")
    variants = {}
    for name in names:
        variants[name] = {"method": name, "evaluations": METHODS[name]}
        if name == "fedrep":  # as in its paper: ten epochs of the head, then these
            variants[name] |= {"epochs": 1, "representation_epochs": options["epochs"]}
    axes = {"participation": ["full", "doubling"], "seed": range(num_seeds)}
    options = OPTIONS | options | {"rounds_per_stage": args.rounds_per_stage}
    runs = scripts.run_grid(
        args, variants=variants, axes=axes, options=options
    ).histories_by("variant", "participation")
    results: dict[str, Any] = {}
    for name in names:
        pairs = list(zip(runs[name, "full"], runs[name, "doubling"], strict=True))
        results[name] = {e: [compare(*pair, e) for pair in pairs] for e in METHODS[name]}
    results = curves.rounded(results)
    print(table(results))
    suffix = "" if args.rounds_per_stage == STAGE else f"_{args.rounds_per_stage}"
    facts = {"num_seeds": num_seeds, "rounds_per_stage": args.rounds_per_stage}
    curves.save(args, f"doubling_table{suffix}", facts | {"results": results})


if __name__ == "__main__":
    main()
