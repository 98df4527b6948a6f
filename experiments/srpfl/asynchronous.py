"""Asynchronous FedBuff compared with SRPFL, FLANP (FedAvg) and methods that wait for all clients, on one clock.

    python experiments/srpfl/asynchronous.py [--scale cpu|smoke] [--results DIR] [--seeds 3]

Digits, 50 clients with 3 classes each, fixed speeds T_i ~ Exp(1), as in the demo. Every method runs until the same
simulated time. A communication cost C lengthens every round of methods that wait. FedBuff's rounds overlap, so for
FedBuff it lengthens every job of a client instead (`communication=` of the clock).

The table has, for each method and C, means over the seeds at the end: accuracy of all clients, of the slowest quarter
and of the worst tenth, and the time of the evaluation at which the mean accuracy first reached two targets. FedAvg,
FLANP (FedAvg) and FedBuff are evaluated with their global model and after fine-tuning its last layer, SRPFL and FedRep
with a fine-tuned head.
"""

from __future__ import annotations

import itertools
import json
import math
from typing import Any, NamedTuple

import numpy as np

import fedjax_srp as srp
from experiments import curves, scripts
from fedjax_srp.lab.report import table
from fedjax_srp.results.history import History

COSTS = (0.0, 10.0)
TARGETS = (0.85, 0.92)


class Scale(NamedTuple):
    """Size and length of the runs."""

    horizons: dict[float, float]  # simulated time, by communication cost
    seeds: int
    options: dict[str, Any]
    left_out: tuple[str, ...] = ()  # methods or curves


SCALES = {
    "cpu": Scale({0.0: 150.0, 10.0: 600.0}, 3, scripts.DIGITS),
    "smoke": Scale(
        {0.0: 6.0, 10.0: 30.0},
        1,
        scripts.DIGITS | {"num_clients": 12, "epochs": 1},
        ("fedrep", "srpfl", "flanp_fedavg", "FedBuff, k = 5", "FedBuff-FT, k = 5"),
    ),
}
# curve: method, its options, rounds between evaluations, evaluation
CURVES: dict[str, tuple[str, dict[str, Any], int, str]] = {
    "FedRep": ("fedrep", {}, 1, "fine_tune"),
    "SRPFL": ("srpfl", {"initial": 5}, 2, "fine_tune"),
    "FedAvg": ("fedavg", {}, 1, "global"),
    "FLANP (FedAvg)": ("flanp_fedavg", {"initial": 5}, 2, "global"),
    "FedBuff, k = 5": ("fedbuff", {"k": 5}, 20, "global"),
    "FedBuff, k = 10": ("fedbuff", {"k": 10}, 10, "global"),
    "FedAvg-FT": ("fedavg", {}, 1, "fine_tune"),
    "FLANP-FT": ("flanp_fedavg", {"initial": 5}, 2, "fine_tune"),
    "FedBuff-FT, k = 5": ("fedbuff", {"k": 5}, 20, "fine_tune"),
    "FedBuff-FT, k = 10": ("fedbuff", {"k": 10}, 10, "fine_tune"),
}
EVALUATIONS = ("global", "fine_tune")  # one row of panels each
STYLES = {  # colour and line of a curve, for both evaluations
    "FedRep": (curves.BLUE, "--"),
    "SRPFL": (curves.BLUE, "-"),
    "FedAvg": (curves.GREEN, "--"),
    "FLANP (FedAvg)": (curves.GREEN, "-"),
    "FedBuff, k = 5": (curves.YELLOW, "-"),
    "FedBuff, k = 10": (curves.ORANGE, "-"),
}


def variant_of(curve: str, cost: float) -> str:
    """Return the name of a curve's run, which serves both evaluations of a method."""
    name, own, *_ = CURVES[curve]
    return f"{name} {own.get('k', '')}, C = {cost:g}"


def variants(scale: Scale) -> dict[str, dict[str, Any]]:
    """Return the runs of all curves until their horizons."""
    found = {}
    for cost, curve in itertools.product(COSTS, shown_curves(scale)):
        name, own, eval_every, _ = CURVES[curve]
        overlaps = name == "fedbuff"
        judges = [e for of, _, _, e in CURVES.values() if of == name]
        horizon = scale.horizons[cost]
        # `time_limit` does not count communication, so methods that wait have a limit of rounds instead.
        most = 10**5 if overlaps or not cost else math.ceil(horizon / cost)
        of_clock = cost if overlaps else 0.0
        found[variant_of(curve, cost)] = {
            "method": name,
            **own,
            "clock": srp.clocks.Fixed(
                srp.clocks.Exponential(1.0), communication=of_clock
            ),
            "num_rounds": most,
            "time_limit": horizon,
            "eval_every": eval_every,
            "evaluations": list(dict.fromkeys(judges)),
        }
    return found


def shown_curves(scale: Scale) -> list[str]:
    """Return the curves of a scale."""
    return [c for c, (name, *_) in CURVES.items() if not {name, c} & {*scale.left_out}]


def measure(
    history: History, evaluation: str, cost: float, horizon: float
) -> dict[str, float]:
    """Measure a run at its last evaluation before the horizon."""
    charged = 0.0 if history.asynchronous else cost
    times = history.eval_elapsed(charged)
    last = max(0, int((times <= horizon).sum()) - 1)
    slowest = np.argsort(history.client_time)[-max(1, history.num_clients // 4) :]
    result = {
        "accuracy": history.mean_scores(evaluation)[last],
        "slowest_quarter": history.scores(evaluation)[last, slowest].mean(),
        "worst_tenth": history.worst_scores(evaluation)[last],
    }
    judged = history.judged_by(evaluation)
    for target in TARGETS:
        time = table.time_to(judged, target, charged)
        result[f"time_to_{target:g}"] = time if time <= horizon else math.inf
        # the time is an upper bound then
        result[f"at_once_{target:g}"] = history.reached(target, evaluation) == 0
    result["rounds"] = history.eval_round[last]
    if history.asynchronous:
        result["staleness"] = history.metrics["staleness"][: int(result["rounds"])].mean()
    return {name: float(value) for name, value in result.items()}


def draw(
    ax, curve: str, histories: list[History], evaluation: str, cost: float, horizon: float
) -> None:
    """Draw the mean of a curve and a band from lowest to highest seed, where all seeds have been evaluated."""
    label = "FLANP (FedAvg)" if curve == "FLANP-FT" else curve.replace("-FT", "")
    times = [h.eval_elapsed(0.0 if h.asynchronous else cost) for h in histories]
    grid = np.geomspace(min(horizon, max(t[0] for t in times)), horizon, 200)
    values = [
        np.interp(grid, t, h.mean_scores(evaluation))
        for t, h in zip(times, histories, strict=True)
    ]
    color, style = STYLES[label]
    curves.draw_trials(ax, grid, values, color, alpha=0.12, linestyle=style, label=label)


def main() -> None:
    args = scripts.grid_parser(
        __doc__, SCALES, "runs/srpfl", "seed", "seeds"
    ).parse_args()
    scale = SCALES[args.scale]
    seeds = scripts.seeds_of(args, scale.seeds)
    runs = scripts.run_grid(
        args, variants=variants(scale), axes={"seed": seeds}, options=scale.options
    ).histories_by("variant")
    figure, axes = curves.panels(
        len(COSTS),
        width=5.4,
        height=7.4,
        rows=len(EVALUATIONS),
        sharey=True,
        sharex="col",
    )
    results: dict[str, dict[str, Any]] = {f"{cost:g}": {} for cost in COSTS}
    for (column, cost), curve in itertools.product(enumerate(COSTS), shown_curves(scale)):
        evaluation = CURVES[curve][-1]
        setting = (evaluation, cost, scale.horizons[cost])
        histories = runs[variant_of(curve, cost)]
        measured = [measure(history, *setting) for history in histories]
        results[f"{cost:g}"][curve] = measured
        row = EVALUATIONS.index(evaluation)
        draw(axes[row, column], curve, histories, *setting)
    for (row, evaluation), (column, cost) in itertools.product(
        enumerate(EVALUATIONS), enumerate(COSTS)
    ):
        ax = axes[row, column]
        ax.set(title=f"{evaluation}, C = {cost:g}", ylim=(0.3, 1.0), xscale="log")
        ax.xaxis.set_major_formatter("{x:g}")
        ax.xaxis.set_minor_formatter("")
        ax.set_xlabel("simulated time (time units)" if row else "")
        ax.set_ylabel("" if column else "mean test accuracy")
    curves.legend(figure, axes, 3)
    facts = {
        "num_seeds": len(seeds),
        "horizons": {f"{cost:g}": scale.horizons[cost] for cost in COSTS},
        "results": json.loads(json.dumps(results), parse_constant=str),  # inf as text
    }
    curves.save(args, "asynchronous", facts, figure)


if __name__ == "__main__":
    main()
