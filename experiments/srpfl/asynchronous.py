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

import argparse
import itertools
import json
import math
from typing import Any, NamedTuple

import numpy as np

import fedjax_srp as srp
from experiments import curves, scripts
from fedjax_srp.results.history import History

COSTS = (0.0, 10.0)
TARGETS = (0.85, 0.92)


class Scale(NamedTuple):
    """Size and length of the runs."""

    horizons: dict[float, float]  # simulated time, by communication cost
    num_clients: int
    local_epochs: int
    seeds: int
    left_out: tuple[str, ...] = ()  # methods or curves


SCALES = {
    "cpu": Scale({0.0: 150.0, 10.0: 600.0}, 50, 5, 3),
    "smoke": Scale(
        {0.0: 6.0, 10.0: 30.0},
        12,
        1,
        1,
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


def run(
    args: argparse.Namespace, scale: Scale, seeds: range
) -> dict[str, list[srp.History]]:
    """Run all curves until their horizons; return the seeds of each variant."""
    variants = {}
    for cost, curve in itertools.product(COSTS, shown_curves(scale)):
        name, own, eval_every, _ = CURVES[curve]
        overlaps = name == "fedbuff"
        judges = [e for of, _, _, e in CURVES.values() if of == name]
        horizon = scale.horizons[cost]
        # `time_limit` does not count communication, so methods that wait have a limit of rounds instead.
        most = 10**5 if overlaps or not cost else math.ceil(horizon / cost)
        variants[variant_of(curve, cost)] = {
            "method": name,
            **own,
            "clock": srp.clocks.Fixed(
                srp.clocks.Exponential(1.0), communication=cost if overlaps else 0.0
            ),
            "num_rounds": most,
            "time_limit": horizon,
            "eval_every": eval_every,
            "evaluations": list(dict.fromkeys(judges)),
        }
    options = {
        "dataset": "digits",
        "num_clients": scale.num_clients,
        "classes_per_client": 3,
        "hidden": (64, 32),
        "learning_rate": 0.05,
        "epochs": scale.local_epochs,
    }
    found = scripts.run_grid(
        args, variants=variants, axes={"seed": seeds}, options=options
    )
    return found.histories_by("variant")


def shown_curves(scale: Scale) -> list[str]:
    """Return the curves of a scale."""
    return [c for c, (name, *_) in CURVES.items() if not {name, c} & {*scale.left_out}]


def measure(
    history: History, evaluation: str, cost: float, horizon: float
) -> dict[str, float]:
    """Measure a run at its last evaluation before the horizon."""
    charged = 0.0 if history.asynchronous else cost
    times, scores = history.eval_elapsed(charged), history.scores(evaluation)
    last = int(np.flatnonzero(times <= horizon)[-1]) if (times <= horizon).any() else 0
    slowest = np.argsort(history.client_time)[-max(1, history.num_clients // 4) :]
    result = {
        "accuracy": history.mean_scores(evaluation)[last],
        "slowest_quarter": scores[last, slowest].mean(),
    }
    result["worst_tenth"] = history.worst_scores(evaluation)[last]
    for target in TARGETS:
        place = history.reached(target, evaluation)
        time = math.inf if place is None else times[place]
        result[f"time_to_{target:g}"] = time if time <= horizon else math.inf
        result[f"at_once_{target:g}"] = place == 0  # the time is an upper bound then
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


def table(results: dict[str, Any]) -> str:
    """Format means over the seeds; a time is in brackets if some seeds did not reach the target."""
    lines = []
    for cost, of_cost in results["results"].items():
        lines.append(f"C = {cost}, until time {results['horizons'][cost]:g}")
        head = [
            "method",
            "accuracy %",
            "slowest quarter %",
            "worst tenth %",
            *(f"time to {100 * t:g} %" for t in TARGETS),
        ]
        rows = [[*head, "rounds", "staleness"]]
        for curve, runs in of_cost.items():
            spread = lambda name, runs=runs: [100 * r[name] for r in runs]
            cells = [
                f"{np.mean(spread(n)):.1f} ± {np.std(spread(n), ddof=min(1, len(runs) - 1)):.1f}"
                for n in ("accuracy", "slowest_quarter", "worst_tenth")
            ]
            for target in TARGETS:
                times = [float(r[f"time_to_{target:g}"]) for r in runs]
                reached = [t for t in times if math.isfinite(t)]
                mean = f"{np.mean(reached):.1f}" if reached else "not reached"
                cells.append(
                    mean
                    if len(reached) in (0, len(runs))
                    else f"({mean}, {len(reached)} of {len(runs)})"
                )
            cells.append(f"{np.mean([r['rounds'] for r in runs]):.0f}")
            cells.append(
                f"{np.mean([r['staleness'] for r in runs]):.1f}"
                if "staleness" in runs[0]
                else ""
            )
            rows.append([curve, *cells])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines += [
            "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ] + [""]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = scripts.grid_parser(__doc__, SCALES, "runs/srpfl", "seed", "seeds")
    args = parser.parse_args(arguments)
    scale = SCALES[args.scale]
    num_seeds = args.seeds or scale.seeds
    with scripts.reported():
        runs = run(args, scale, range(args.seed, args.seed + num_seeds))
    figure, axes = curves.panels(
        len(COSTS),
        width=5.4,
        height=7.4,
        rows=len(EVALUATIONS),
        sharey=True,
        sharex="col",
    )
    by_cost: dict[str, dict[str, Any]] = {}
    for column, cost in enumerate(COSTS):
        horizon = scale.horizons[cost]
        for curve in shown_curves(scale):
            evaluation = CURVES[curve][-1]
            histories = runs[variant_of(curve, cost)]
            by_cost.setdefault(f"{cost:g}", {})[curve] = [
                measure(h, evaluation, cost, horizon) for h in histories
            ]
            draw(
                axes[EVALUATIONS.index(evaluation), column],
                curve,
                histories,
                evaluation,
                cost,
                horizon,
            )
        for ax, evaluation in zip(axes[:, column], EVALUATIONS, strict=True):
            ax.set(title=f"{evaluation}, C = {cost:g}", ylim=(0.3, 1.0), xscale="log")
            ax.xaxis.set_major_formatter("{x:g}")
            ax.xaxis.set_minor_formatter("")
        axes[-1, column].set_xlabel("simulated time (time units)")
    for ax in axes[:, 0]:
        ax.set_ylabel("mean test accuracy")
    curves.legend(figure, axes, 3)
    results = {
        "num_seeds": num_seeds,
        "horizons": {f"{c:g}": scale.horizons[c] for c in COSTS},
        "results": by_cost,
    }
    text = table(results)
    print(text)
    (scripts.results_folder(args) / "asynchronous.txt").write_text(text + "\n", "utf-8")
    plain = json.loads(json.dumps(results), parse_constant=str)  # inf as a string
    curves.save(args, "asynchronous", plain, figure)


if __name__ == "__main__":
    main()
