"""Speed-up of doubling: SRPFL against FedRep over spread of speeds, cost of a round, clients and classes.

    python experiments/stragglers/doubling_map.py [--scale smoke|cpu] [--results experiments/stragglers/results]

Times are independent of the data, so doubling selects clients in a random order whatever the distribution of times:
each federation trains once, and its rounds are timed under every distribution and cost. A round of n of N clients takes
T_(n) + C, where T_(n) is the n-th smallest of N times. `map_rounds.csv` has the accuracy after each round, `map.csv`
the measured speed-up, FedRep's time to the target over SRPFL's, beside the prediction of two rules. The rules are given
the distribution, C, N, the stages and the rounds that FedRep needs; the rounds that SRPFL needs were fitted on some
federations. `map_errors.csv` has the errors of the rules on these federations and on the others.
"""

from __future__ import annotations

import argparse
import itertools
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from experiments import curves, scripts
from fedjax_srp import participation

COSTS = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0)  # in mean times of a client
SIGMAS = (0.0, 0.25, 0.5, 1.0, 1.5)  # of log-normal times, mean 1
TARGETS = (0.95, 0.99)  # of FedRep's final accuracy
TIE = 1e-6  # accuracies this close are equal
DRAWS = 1000
FITTED = (
    (16, 2),
    (16, 5),
    (64, 2),
    (64, 5),
)  # clients and classes; the rules are tested on the others


class Scale(NamedTuple):
    """Size and length of the runs."""

    clients: tuple[int, ...]
    classes: tuple[int, ...]
    lengths: tuple[int, ...]  # of a stage, in rounds
    seeds: int
    rounds: int  # with all clients


SCALES = {
    "smoke": Scale((8, 16), (2, 5), (1,), 1, 3),
    "cpu": Scale((16, 32, 64), (2, 3, 5), (3, 10), 3, 40),
}


def cohort_sizes(num_clients: int, length: int | None, rounds: int) -> np.ndarray:
    """Return the participants of each round for a length of stages; None: all clients in every round."""
    if length is None:
        return np.full(rounds, num_clients)
    stages = [num_clients // 8 * 2**r for r in range(3)]
    return np.concatenate([np.repeat(stages, length), np.full(rounds, num_clients)])


def train(args: argparse.Namespace, scale: Scale) -> list[dict]:
    """Run all federations; return a row for each federation, length of stages, seed and round."""
    sizes = [*itertools.product(scale.clients, (None, *scale.lengths))]
    variants = {}
    for num_clients, length in sizes:
        doubling = participation.Doubling(num_clients // 8, length or 1)
        variants[f"{num_clients} clients, {length}"] = {
            "num_clients": num_clients,
            "participation": participation.Full() if length is None else doubling,
            "num_rounds": len(cohort_sizes(num_clients, length, scale.rounds)),
        }
    options = {
        "method": "fedrep",
        "dataset": "digits",
        "hidden": (32,),
        "learning_rate": 0.05,
        "head_epochs": 8,
        "representation_epochs": 4,
        "eval_every": 1,
        "evaluations": "fine_tune",
    }
    axes = {"classes_per_client": scale.classes, "seed": range(scale.seeds)}
    grid = scripts.run_grid(args, variants=variants, axes=axes, options=options)
    runs = grid.histories_by("variant", *axes)
    rows = []
    for num_clients, length in sizes:
        cohort = cohort_sizes(num_clients, length, scale.rounds)
        for classes, seed in itertools.product(*axes.values()):
            (run,) = runs[f"{num_clients} clients, {length}", classes, seed]
            assert (run.cohort_size == cohort).all()
            key = {
                "clients": num_clients,
                "classes": classes,
                "length": length or 0,
                "seed": seed,
            }
            rows += [
                key | {"round": r, "size": n, "accuracy": a}
                for r, n, a in zip(run.eval_round, cohort, run.mean_accuracy, strict=True)
            ]
    return rows


def order_statistics(num_clients: int, sigma: float) -> np.ndarray:
    """Estimate E[T_(n)], (num_clients,), of log-normal times with mean 1, by sampling."""
    normal = np.random.default_rng(0).normal(size=(DRAWS, num_clients))
    return np.sort(np.exp(sigma * normal - sigma**2 / 2), axis=1).mean(axis=0)


def rounds_to(frame: pd.DataFrame, target: float) -> float:
    """Return the first round at a target; inf if there is none.

    A share of a mean of accuracies may be an accuracy itself: 0.9625 is 462 of 480 test images. So equality counts,
    whatever the rounding.
    """
    reached = frame[frame["accuracy"] >= target - TIE]["round"]
    return float(reached.iloc[0]) if len(reached) else math.inf


def rounds_needed(frame: pd.DataFrame) -> pd.DataFrame:
    """Return rounds to each target of both methods, by federation, length of stages and seed."""
    rows = []
    for (clients, classes), group in frame.groupby(["clients", "classes"]):
        full = group[group["length"] == 0]
        final = full[full["round"] == full["round"].max()]["accuracy"].mean()
        lengths, seeds = sorted({*group["length"]} - {0}), sorted({*group["seed"]})
        for length, seed, share in itertools.product(lengths, seeds, TARGETS):
            ours = group[(group["length"] == length) & (group["seed"] == seed)]
            theirs = full[full["seed"] == seed]
            rows.append(
                {
                    "clients": clients,
                    "classes": classes,
                    "length": length,
                    "seed": seed,
                    "share": share,
                }
                | {"target": share * final, "fedrep": rounds_to(theirs, share * final)}
                | {"srpfl": rounds_to(ours, share * final)}
            )
    return pd.DataFrame(rows)


RULES = {"factor": (np.divide, np.multiply), "stages": (np.subtract, np.add)}


def speed_ups(found: pd.DataFrame, scale: Scale) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return measured and predicted speed-ups, and the fitted number of each rule for each share and length.

    Each round costs the time of its cohort's slowest client and C. By the rules SRPFL needs FedRep's rounds times a
    factor, or a number of rounds more; factor and number are medians over the fitted federations.
    """
    found = found[np.isfinite(found["fedrep"]) & np.isfinite(found["srpfl"])].copy()
    is_fitted = np.array(
        [at in FITTED for at in zip(found["clients"], found["classes"], strict=True)]
    )
    kinds = ["share", "length"]
    for name, (compare, apply) in RULES.items():
        found[name] = compare(found["srpfl"], found["fedrep"])
        fitted = found[is_fitted].groupby(kinds)[name].median()
        found[name] = [
            fitted[at] for at in zip(found["share"], found["length"], strict=True)
        ]
        found[f"rounds_{name}"] = apply(found["fedrep"], found[name])
    times = {
        at: order_statistics(*at) for at in itertools.product({*found["clients"]}, SIGMAS)
    }
    rows = []
    for row in found.to_dict("records"):
        cohort = cohort_sizes(row["clients"], row["length"], 10 * scale.rounds)
        for sigma, cost in itertools.product(SIGMAS, COSTS):
            round_times = times[row["clients"], sigma][cohort - 1] + cost
            elapsed = np.concatenate([[0.0], np.cumsum(round_times)])
            fedrep = row["fedrep"] * (times[row["clients"], sigma][-1] + cost)
            rules = {
                f"by_{n}": fedrep
                / np.interp(row[f"rounds_{n}"], np.arange(len(elapsed)), elapsed)
                for n in RULES
            }
            rows.append(
                row
                | {
                    "sigma": sigma,
                    "cost": cost,
                    "speed_up": fedrep / elapsed[int(row["srpfl"])],
                }
                | rules
            )
    return pd.DataFrame(rows), found.groupby(kinds)[[*RULES]].first().reset_index()


def rule_errors(points: pd.DataFrame) -> pd.DataFrame:
    """Return errors of the rules on fitted and held-out federations: factors, and shares on the wrong side of 1."""
    points = points.assign(
        held_out=[
            at not in FITTED
            for at in zip(points["clients"], points["classes"], strict=True)
        ]
    )
    clear = (points["speed_up"] > 1.25) | (points["speed_up"] < 0.8)
    rows = []
    for name in RULES:
        error = np.log(points[f"by_{name}"] / points["speed_up"]).abs()
        wrong = (points[f"by_{name}"] > 1) != (points["speed_up"] > 1)
        for (held_out, share, length), group in points.groupby(
            ["held_out", "share", "length"]
        ):
            at = group.index
            rows.append(
                {
                    "rule": name,
                    "held_out": held_out,
                    "share": share,
                    "length": length,
                    "points": len(at),
                }
                | {
                    "typical_factor": math.exp(error[at].median()),
                    "worst_factor": math.exp(error[at].max()),
                }
                | {
                    "wrong_side": wrong[at].mean(),
                    "wrong_side_where_clear": wrong[at][clear[at]].mean(),
                }
            )
    return pd.DataFrame(rows)


def summarize(points: pd.DataFrame) -> pd.DataFrame:
    """Return median speed-ups over seeds."""
    keys = ["clients", "classes", "share", "length", "sigma", "cost"]
    return (
        points.groupby(keys)[["speed_up", *(f"by_{name}" for name in RULES)]]
        .median()
        .reset_index()
    )


def draw(points: pd.DataFrame, path: Path) -> None:
    """Draw measured speed-ups, medians over federations and seeds, a panel for each length and share."""
    kinds = [*points.groupby(["share", "length"])]
    figure, axes = curves.panels(len(kinds), width=3.4, height=3.4)
    image = None
    for ax, ((share, length), group) in zip(axes, kinds, strict=True):
        ax.grid(visible=False)
        table = group.pivot_table(
            index="sigma", columns="cost", values="speed_up", aggfunc="median"
        )
        image = ax.imshow(
            np.log2(table), cmap="RdBu", vmin=-3, vmax=3, origin="lower", aspect="auto"
        )
        for (y, x), value in np.ndenumerate(table.to_numpy()):
            color = "w" if abs(np.log2(value)) > 2 else "k"
            ax.text(
                x, y, f"{value:.2g}", ha="center", va="center", fontsize=8, color=color
            )
        ax.set_xticks(range(table.shape[1]), [f"{c:g}" for c in table.columns])
        ax.set_yticks(range(table.shape[0]), [f"{s:g}" for s in table.index])
        ax.set_xlabel("cost C of a round, in mean times")
        ax.set_title(f"to {100 * share:g} % of FedRep, stages of {length}", fontsize=9)
    axes[0].set_ylabel("sigma of log-normal times")
    figure.colorbar(image, ax=axes, label="log2 of the speed-up")
    curves.save_picture(figure, path, dpi=130)


def main(arguments: list[str] | None = None) -> None:
    parser = scripts.grid_parser(__doc__, SCALES, "runs/stragglers/map")
    args = parser.parse_args(arguments)
    scale = SCALES[args.scale]
    args.out /= args.scale
    results = scripts.results_folder(args)
    with scripts.reported():
        rows = train(args, scale)
    frame = pd.DataFrame(rows)
    frame.to_csv(results / "map_rounds.csv", index=False, float_format="%.8f")
    points, factor = speed_ups(rounds_needed(frame), scale)
    summarize(points).to_csv(results / "map.csv", index=False, float_format="%.4g")
    print(factor.to_string(index=False))
    report = rule_errors(points)
    report.to_csv(results / "map_errors.csv", index=False, float_format="%.3f")
    print(report.to_string(index=False))
    draw(points, results / "map.png")


if __name__ == "__main__":
    main()
