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

import itertools
import math
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

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
OPTIONS = {
    "method": "fedrep",
    "dataset": "digits",
    "hidden": (32,),
    "learning_rate": 0.05,
    "head_epochs": 8,
    "representation_epochs": 4,
    "eval_every": 1,
    "evaluations": "fine_tune",
}


def cohort_sizes(num_clients: int, length: int, rounds: int) -> np.ndarray:
    """Return the participants of each round for a length of stages; 0: all clients in every round."""
    stages = [num_clients // 8 * 2**r for r in range(3)]
    return np.concatenate([np.repeat(stages, length), np.full(rounds, num_clients)])


def variants(scale: Scale) -> dict[str, dict[str, Any]]:
    """Return the federations' sizes with each length of stages, and with all clients in every round."""
    found = {}
    for num_clients, length in itertools.product(scale.clients, (0, *scale.lengths)):
        doubling = participation.Doubling(num_clients // 8, length or 1)
        found[f"{num_clients} clients, {length or None}"] = {
            "num_clients": num_clients,
            "participation": doubling if length else participation.Full(),
            "num_rounds": len(cohort_sizes(num_clients, length, scale.rounds)),
        }
    return found


def rounds_of(grid: Any, num_rounds: int) -> pd.DataFrame:
    """Return a row for each federation, length of stages, seed and round."""
    parts = []
    for name, run in grid.histories.items():
        values = grid.values[name]
        text = values["variant"].partition(", ")[2]
        length = 0 if text == "None" else int(text)
        cohorts = cohort_sizes(run.num_clients, length, num_rounds)
        assert (run.cohort_size == cohorts).all()  # the rules count on them
        part = {
            "clients": run.num_clients,
            "classes": values["classes_per_client"],
            "length": length,
            "seed": values["seed"],
            "round": run.eval_round,
            "size": run.cohort_size,
            "accuracy": run.mean_accuracy,
        }
        parts.append(pd.DataFrame(part))
    return pd.concat(parts, ignore_index=True)


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
        runs = dict(list(group.groupby(["length", "seed"])))
        full = group[group["length"] == 0]
        final = full[full["round"] == full["round"].max()]["accuracy"].mean()
        for (length, seed), share in itertools.product(runs, TARGETS):
            if length:
                where = {"clients": clients, "classes": classes, "length": length}
                where |= {"seed": seed, "share": share, "target": share * final}
                where["fedrep"] = rounds_to(runs[0, seed], share * final)
                where["srpfl"] = rounds_to(runs[length, seed], share * final)
                rows.append(where)
    return pd.DataFrame(rows)


RULES = {"factor": (np.divide, np.multiply), "stages": (np.subtract, np.add)}
KINDS = ["share", "length"]


def is_fitted(frame: pd.DataFrame) -> pd.Series:
    """Return True for the rows of federations on which the rules were fitted."""
    pairs = pd.MultiIndex.from_frame(frame[["clients", "classes"]])
    return pd.Series(pairs.isin(FITTED), frame.index)


def speed_ups(found: pd.DataFrame, scale: Scale) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return measured and predicted speed-ups, and the fitted number of each rule for each share and length.

    Each round costs the time of its cohort's slowest client and C. By the rules SRPFL needs FedRep's rounds times a
    factor, or a number of rounds more; factor and number are medians over the fitted federations.
    """
    found = found[np.isfinite(found["fedrep"]) & np.isfinite(found["srpfl"])].copy()
    for name, (compare, apply) in RULES.items():
        needed = compare(found["srpfl"], found["fedrep"]).where(is_fitted(found))
        found[name] = needed.groupby([found[kind] for kind in KINDS]).transform("median")
        found[f"rounds_{name}"] = apply(found["fedrep"], found[name])
    times = {
        at: order_statistics(*at) for at in itertools.product({*found["clients"]}, SIGMAS)
    }
    rows = []
    for row in found.to_dict("records"):
        cohort = cohort_sizes(row["clients"], row["length"], 10 * scale.rounds)
        for sigma, cost in itertools.product(SIGMAS, COSTS):
            of_clients = times[row["clients"], sigma] + cost
            elapsed = np.concatenate([[0.0], np.cumsum(of_clients[cohort - 1])])
            fedrep = row["fedrep"] * of_clients[-1]
            point = row | {"sigma": sigma, "cost": cost}
            point["speed_up"] = fedrep / elapsed[int(row["srpfl"])]
            for name in RULES:
                at = np.interp(row[f"rounds_{name}"], np.arange(len(elapsed)), elapsed)
                point[f"by_{name}"] = fedrep / at
            rows.append(point)
    return pd.DataFrame(rows), found.groupby(KINDS)[[*RULES]].first().reset_index()


def rule_errors(points: pd.DataFrame) -> pd.DataFrame:
    """Return errors of the rules on fitted and held-out federations: factors, and shares on the wrong side of 1."""
    points = points.assign(held_out=~is_fitted(points))
    points["clear"] = ~points["speed_up"].between(0.8, 1.25)
    rows = []
    for name in RULES:
        points["error"] = np.log(points[f"by_{name}"] / points["speed_up"]).abs()
        points["wrong"] = (points[f"by_{name}"] > 1) != (points["speed_up"] > 1)
        for at, group in points.groupby(["held_out", *KINDS]):
            where = dict(zip(("held_out", *KINDS), at, strict=True))
            row = {
                "rule": name,
                **where,
                "points": len(group),
                "typical_factor": math.exp(group["error"].median()),
                "worst_factor": math.exp(group["error"].max()),
                "wrong_side": group["wrong"].mean(),
                "wrong_side_where_clear": group["wrong"][group["clear"]].mean(),
            }
            rows.append(row)
    return pd.DataFrame(rows)


def summarize(points: pd.DataFrame) -> pd.DataFrame:
    """Return median speed-ups over seeds."""
    keys = ["clients", "classes", *KINDS, "sigma", "cost"]
    values = ["speed_up", *(f"by_{name}" for name in RULES)]
    return points.groupby(keys)[values].median().reset_index()


def draw(points: pd.DataFrame) -> Figure:
    """Draw measured speed-ups, medians over federations and seeds, a panel for each length and share."""
    kinds = [*points.groupby(KINDS)]
    figure, axes = curves.panels(len(kinds), width=3.4, height=3.4)
    image = None
    for ax, ((share, length), group) in zip(axes, kinds, strict=True):
        ax.grid(visible=False)
        table = group.groupby(["sigma", "cost"])["speed_up"].median().unstack()
        scale = {"cmap": "RdBu", "vmin": -3, "vmax": 3}
        image = ax.imshow(np.log2(table), origin="lower", aspect="auto", **scale)
        style = {"ha": "center", "va": "center", "fontsize": 8}
        for (y, x), value in np.ndenumerate(table.to_numpy()):
            color = "w" if abs(np.log2(value)) > 2 else "k"
            ax.text(x, y, f"{value:.2g}", color=color, **style)
        ax.set_xticks(range(table.shape[1]), [f"{c:g}" for c in table.columns])
        ax.set_yticks(range(table.shape[0]), [f"{s:g}" for s in table.index])
        ax.set_xlabel("cost C of a round, in mean times")
        ax.set_title(f"to {100 * share:g} % of FedRep, stages of {length}", fontsize=9)
    axes[0].set_ylabel("sigma of log-normal times")
    figure.colorbar(image, ax=axes, label="log2 of the speed-up")
    return figure


def main() -> None:
    args = scripts.grid_parser(__doc__, SCALES, "runs/stragglers/map").parse_args()
    scale = SCALES[args.scale]
    args.out /= args.scale
    results = scripts.results_folder(args)
    axes = {"classes_per_client": scale.classes, "seed": range(scale.seeds)}
    grid = scripts.run_grid(args, variants=variants(scale), axes=axes, options=OPTIONS)
    frame = rounds_of(grid, scale.rounds)
    points, factor = speed_ups(rounds_needed(frame), scale)
    errors = rule_errors(points)
    for name, table, form in (
        ("map_rounds", frame, "%.8f"),
        ("map", summarize(points), "%.4g"),
        ("map_errors", errors, "%.3f"),
    ):
        table.to_csv(results / f"{name}.csv", index=False, float_format=form)
    print(factor.to_string(index=False), errors.to_string(index=False), sep="\n")
    curves.save_picture(draw(points), results / "map.png", dpi=130)


if __name__ == "__main__":
    main()
