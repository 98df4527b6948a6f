"""SRPFL with stages of fixed length and with stages that end by FLANP's criterion: time to FedRep's accuracy.

    python experiments/flanp/criterion_for_fedrep.py --scale smoke|cpu|full [--results DIR]

scikit-learn's digits on 50 clients with 3 classes, SRPFL's setting of experiments/srpfl (MLP 64-32, step 0.05, n0 = 5,
5 local epochs, fixed exponential speeds); each seed has its own division of the data and speeds. The criterion is the
heuristic: a stage ends when the gradient of the participants' mean loss in the representation, each under its own head,
falls to half of its first norm. The threshold shrinks from stage to stage, by 1/2 (the paper's) or by 1/sqrt(2) (as
c / (n s) would). Targets are 95 and 99 % of FedRep's final accuracy with the same seed.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

import fedjax_srp as srp
from experiments import curves, scripts
from fedjax_srp.lab.report import table

SCALES = {"smoke": (2, 6), "cpu": (3, 100), "full": (10, 150)}  # seeds, rounds
OPTIONS = scripts.DIGITS | {"method": "fedrep", "eval_every": 1}
INITIAL = 5
CRITERION = srp.participation.StatisticalAccuracy(INITIAL, first_threshold=0.5)
FEDREP = "FedRep, no stages"
STAGES = {
    FEDREP: srp.participation.Full(),
    "5 rounds a stage": srp.participation.Doubling(INITIAL, 5),
    "10 rounds a stage": srp.participation.Doubling(INITIAL, 10),
    "20 rounds a stage": srp.participation.Doubling(INITIAL, 20),
    "criterion, shrinks by 1/2": CRITERION,
    "criterion, by 1/sqrt(2)": dataclasses.replace(CRITERION, shrinkage=0.5**0.5),
}
COLORS = (
    curves.ORANGE,
    curves.BLUE,
    curves.GREY,
    curves.YELLOW,
    curves.GREEN,
    curves.PINK,
)
FRACTIONS = (0.95, 0.99)


def row_of(run: srp.History, fedrep: srp.History) -> dict[str, Any]:
    """Return a seed's times to the targets, rounds of every stage and accuracy."""
    goals = [fraction * fedrep.final_accuracy for fraction in FRACTIONS]
    return {
        "times": [curves.rounded(table.time_to(run, goal)) for goal in goals],
        "rounds": [stage.num_rounds for stage in run.stages()],
        "accuracy": curves.rounded(run.final_accuracy),
    }


def draw(results: dict[str, dict[str, Any]]) -> Figure:
    """Draw a panel for each target and a row for each kind of stages."""
    figure, axes = curves.panels(len(FRACTIONS), width=5.2, height=3.4, sharey=True)
    rng = np.random.default_rng(0)
    for place, (ax, fraction) in enumerate(zip(axes, FRACTIONS, strict=True)):
        for row, (found, color) in enumerate(zip(results.values(), COLORS, strict=True)):
            times = np.array(found["times"], float)[:, place]
            seen = times[np.isfinite(times)]
            heights = row + rng.uniform(-0.15, 0.15, len(seen))
            ax.plot(seen, heights, "o", color=color, markersize=4, alpha=0.7)
            if len(seen) == len(times):
                bar = [row - 0.3, row + 0.3]
                ax.plot([np.median(times)] * 2, bar, color=color, linewidth=2.5)
            else:
                ax.text(0.99, row, f"{len(seen)} of {len(times)} reached it", ha="right", va="center", fontsize=7,
                        transform=ax.get_yaxis_transform())  # fmt: skip
        ax.set(
            xscale="log",
            xlabel="simulated time (time units)",
            title=f"to {100 * fraction:g} % of FedRep's accuracy",
        )
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.set_yticks(range(len(STAGES)), list(STAGES))
    axes[0].invert_yaxis()
    figure.suptitle("SRPFL on digits: a point for each seed, bar: median", fontsize=11)
    return figure


def main() -> None:
    args = scripts.grid_parser(__doc__, SCALES, "runs/flanp", "seed").parse_args()
    num_seeds, num_rounds = SCALES[args.scale]
    seeds = scripts.seeds_of(args, num_seeds)
    found = scripts.run_grid(
        args,
        axes={"participation": STAGES, "seed": seeds},
        where=scripts.own_partitions(seeds),
        options=OPTIONS | {"num_rounds": num_rounds},
    ).histories_by("participation")
    results = {}
    for name, runs in found.items():
        rows = [row_of(*pair) for pair in zip(runs, found[FEDREP], strict=True)]
        results[name] = curves.columns(rows)
    curves.save(args, "criterion_for_fedrep", {"results": results}, draw(results))


if __name__ == "__main__":
    main()
