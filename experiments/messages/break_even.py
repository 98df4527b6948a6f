"""FedRep with everybody and with doubling cohorts under codes of messages: time to a target for every cost of a round.

    python experiments/messages/break_even.py --scale smoke|cpu|full [--results DIR]

Digits on 50 clients with 3 classes, MLP 64-32, fixed Exp(1) speeds, n0 = 5, as in experiments/srpfl. The division of
the data is one; a seed draws speeds, first model and batches. A round costs C, which is the time of an uncoded message:
with a code the round costs the share of C that its bytes are. So a run is stored by its time without C and its number
of rounds until the target, from which follow the times for every C, and the C beyond which doubling is slower.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import fedjax_srp as srp
from experiments import curves, scripts

SCALES = {"smoke": (1, 3), "cpu": (3, 80), "full": (10, 150)}  # seeds, rounds
POLICIES = {"everybody": "full", "doubling": "doubling"}
CODES: dict[str, dict[str, str]] = {
    "none": {},
    "8 bits": {"up": "Quantized(8)"},
    "4 bits": {"up": "Quantized(4)"},
    "signs, error feedback": {"up": "ErrorFeedback(Sign)"},
    "largest 5 %": {"up": "TopK(0.05)"},
    "largest 1 %": {"up": "TopK(0.01)"},
    "largest 1 %, error feedback": {"up": "ErrorFeedback(TopK(0.01))"},
    "8 bits, both ways": {"up": "Quantized(8)", "down": "Quantized(8)"},
    "largest 5 %, both ways": {"up": "TopK(0.05)", "down": "TopK(0.05)"},
}
TARGET = 0.916


def reached(history: srp.History, target: float) -> dict[str, Any]:
    """Return time and rounds until the target, inf and 0 if it was not reached; final accuracy."""
    index = history.reached(target)
    time = np.inf if index is None else history.eval_elapsed()[index]
    return {
        "time": curves.rounded(float(time)),
        "rounds": 0 if index is None else int(history.eval_round[index]),
        "accuracy": curves.rounded(history.final_accuracy),
    }


def measured(runs: Mapping[Any, list[srp.History]]) -> dict[str, dict[str, Any]]:
    """Return each code's bytes, and for each policy and seed time and rounds to the target, and the final accuracy.

    Args:
        runs: (code, participation) -> the runs of all seeds.
    """
    found: dict[str, dict[str, Any]] = {}
    for name in CODES:
        found[name] = {}
        for policy, participation in POLICIES.items():
            histories = runs[name, participation]
            found[name][policy] = [reached(history, TARGET) for history in histories]
            found[name]["bytes up"] = histories[0].bytes_up
            found[name]["bytes down"] = histories[0].bytes_down
    return found


def share(results: Mapping[str, Any], name: str, directions: str) -> float:
    """Return the bytes of a code over those of uncoded messages, of uploads or of both directions."""
    counted = ("bytes up",) if directions == "up" else ("bytes up", "bytes down")
    coded = sum(results[name][each] for each in counted)
    return coded / sum(results["none"][each] for each in counted)


def times(runs: list[dict[str, Any]], cost: float) -> np.ndarray:
    """Return the time of each seed to the target if a round costs this."""
    return np.array([float(run["time"]) + cost * run["rounds"] for run in runs])


def tie_of(times: np.ndarray, rounds: np.ndarray) -> float:
    """Return the cost of a round at which everybody and doubling need equal time; nan if one misses the target.

    It is inf if doubling needs no more rounds.
    """
    if not np.isfinite(times).all():
        return np.nan
    more_rounds = rounds[1] - rounds[0]
    return float((times[0] - times[1]) / more_rounds) if more_rounds > 0 else np.inf


def break_even(results: Mapping[str, Any], name: str, part: float) -> float:
    """Return the C beyond which doubling's mean time is longer, where a coded round costs this part of C."""
    of_policies = [results[name][policy] for policy in POLICIES]
    mean_times = np.array([times(runs, 0.0).mean() for runs in of_policies])
    rounds = np.array([np.mean([r["rounds"] for r in runs]) for runs in of_policies])
    return tie_of(mean_times, rounds) / part


LATENCIES = {0.0: curves.BLUE, 0.01: curves.GREEN, 0.1: curves.ORANGE}


def draw(results: dict[str, dict[str, Any]]) -> Figure:
    """Draw the break-even C over the compression of the charged bytes, for shares of C that are latency."""
    figure, axes = curves.panels(2, width=5.0, sharey=True)
    titles = {"up": "C counts uploads", "both": "C counts both directions"}
    for ax, (directions, title) in zip(axes, titles.items(), strict=True):
        for latency, color in LATENCIES.items():
            points = []
            for name in results:
                part = share(results, name, directions)
                value = break_even(results, name, latency + (1 - latency) * part)
                if np.isfinite(value) and value > 0:
                    points.append((1 / part, value))
            if points:
                points.sort()
                label = f"{100 * latency:g} % of C is latency"
                ax.plot(*zip(*points, strict=True), "o", color=color, label=label)
        ax.set(xlabel="compression: uncoded over coded bytes", title=title)
        if ax.lines:  # there are ties
            ax.loglog()
    axes[0].set_ylabel("C at which doubling and everybody tie")
    figure.suptitle("FedRep on digits, a point for each code", fontsize=11)
    if axes[0].lines:
        axes[0].legend(frameon=False, fontsize=8)
    return figure


def main() -> None:
    args = scripts.grid_parser(__doc__, SCALES, "runs/messages", "seed").parse_args()
    num_seeds, num_rounds = SCALES[args.scale]
    runs = scripts.run_grid(
        args,
        variants=CODES,
        axes={
            "participation": [*POLICIES.values()],
            "seed": scripts.seeds_of(args, num_seeds),
        },
        options=scripts.DIGITS
        | {"method": "fedrep", "initial": 5, "num_rounds": num_rounds, "eval_every": 1},
    ).histories_by("variant", "participation")
    results = measured(runs)
    curves.save(args, "break_even", {"results": results}, draw(results))


if __name__ == "__main__":
    main()
