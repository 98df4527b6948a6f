"""Tables of the README and of the manual's page on messages, from the committed results.

python experiments/messages/readme_tables.py
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from experiments.messages.break_even import POLICIES, TARGET, break_even, share, times
from experiments.messages.privacy import TARGET as PRIVATE_TARGET
from experiments.pages import load_results, markdown, pm, wrapped, write

HERE = Path(__file__).parent
COSTS = (0, 1, 10, 100)


def results() -> dict[str, Any]:
    """Load the results of the study."""
    return load_results("messages/results/break_even.json")


def cell(name: str, cost: float, directions: str) -> str:
    """Format the mean times of everybody and of doubling at a cost."""
    found = results()
    charged = cost * share(found, name, directions)
    means = [reached_times(times(found[name][policy], charged)) for policy in POLICIES]
    return " / ".join(means)


def reached_times(of_seeds: np.ndarray) -> str:
    """Format the mean time of the seeds that reached the target, and how many did if some did not."""
    is_reached = np.isfinite(of_seeds)
    if not is_reached.any():
        return "none"
    text = f"{of_seeds[is_reached].mean():,.1f}"
    if not is_reached.all():
        text += f" ({is_reached.sum()} of {len(of_seeds)})"
    return text


def table(directions: str) -> str:
    """Times to the target for each code and cost, where C counts these bytes."""
    found = results()
    head = ["code", "bytes up", "bytes down", *(f"C = {cost}" for cost in COSTS)]
    head += ["ties at C", "final %"]
    rows = [head]
    for name, of_code in found.items():
        accuracies = [
            f"{100 * np.mean([run['accuracy'] for run in of_code[policy]]):.1f}"
            for policy in POLICIES
        ]
        tie = break_even(found, name, share(found, name, directions))
        row = [name, f"{of_code['bytes up']:,}", f"{of_code['bytes down']:,}"]
        row += [cell(name, cost, directions) for cost in COSTS]
        rows.append([*row, f"{tie:.3g}", " / ".join(accuracies)])
    return markdown(rows)


def latencies() -> str:
    """The C of a tie if a part of it is latency."""
    found = results()
    shares = (0.0, 0.01, 0.1, 0.5)
    rows = [["code", *(f"{100 * each:g} % latency" for each in shares)]]
    for name in found:
        part = share(found, name, "up")
        ties = [break_even(found, name, each + (1 - each) * part) for each in shares]
        rows.append([name, *(f"{tie:.3g}" for tie in ties)])
    return markdown(rows)


def rounds() -> str:
    """Rounds to the target of each code, as mean and standard deviation over the seeds."""
    found = results()
    rows = [["code", *POLICIES]]
    for name, of_code in found.items():
        counts = [[run["rounds"] for run in of_code[policy]] for policy in POLICIES]
        rows.append([name, *(pm(of_policy, 1) for of_policy in counts)])
    return markdown(rows)


def sentence() -> str:
    """The study's result in a sentence, with numbers of its file."""
    found = results()
    ties = {name: break_even(found, name, share(found, name, "up")) for name in found}
    best = max(ties, key=lambda name: ties[name] if np.isfinite(ties[name]) else 0.0)
    seeds = len(found["none"]["everybody"])
    return wrapped(
        f"On digits, where an uncoded upload takes C and downloads take nothing, doubling and everybody need the same "
        f"mean time to {100 * TARGET:g} % at C = {ties['none']:.3g} without a code, and at most at C = "
        f"{ties[best]:.3g}, with the code *{best}* ({seeds} seeds)."
    )


def privacy() -> str:
    """Accuracy, time to the target and epsilon of each private run, and of the run that is not private."""
    found = load_results("messages/results/privacy.json")
    head = ["run", "z", "final %", f"time to {100 * PRIVATE_TARGET:g} %", "epsilon"]
    rows = [[*head, "without amplification"]]
    for name, of_run in found.items():
        for noise, measured in of_run.items():
            accuracy = pm([100 * each for each in measured["accuracy"]], 1)
            epsilon = str(measured.get("epsilon", ""))
            without = str(measured.get("without amplification", ""))
            time = reached_times(np.array(measured["time"], float))
            rows.append([name, noise, accuracy, time, epsilon, without])
    return markdown(rows)


PARTS = {
    "uploads": partial(table, "up"),
    "both": partial(table, "both"),
    "rounds": rounds,
    "latencies": latencies,
    "privacy": privacy,
}
OF_MANUAL = {"tie": sentence, "uploads": PARTS["uploads"]}
PAGES = {
    HERE / "README.md": PARTS,
    HERE.parents[1] / "docs/messages.md": OF_MANUAL,
}

if __name__ == "__main__":
    write(PAGES)
