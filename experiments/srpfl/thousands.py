"""Speed-up of doubling on images as the number of clients grows: 64 to 2,048 clients of MNIST.

    python experiments/srpfl/thousands.py [--scale cpu|smoke] [--data-dir DIR] [--results experiments/srpfl/results]
    python experiments/srpfl/thousands.py --redraw --results experiments/srpfl/results

The runs stand in `thousands.toml`: FedRep, SRPFL and FedAvg-FT, clients with 20 images of 4 classes, phones' speeds.
Not in the paper, whose Theorem 4.6 says for linear models that SRPFL's time over FedRep's falls as 1 / log N.

Two clocks: the phones of the runs, log-normal speeds and networks, drawn with the seed; and Exp(1) as in the theorem,
for which a round of the n fastest of N clients is charged its mean time H_N - H_(N-n). The order of the clients by
speed is independent of their data, so that the rounds of one clock are a fair draw of those of the other.

Two targets: an accuracy that is the same for every N, and a share of FedRep's final accuracy with N clients. A time is
that of the first evaluation, after every second round, at the target. `thousands.json` has the curves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import fedjax_srp as srp
from experiments import curves, scripts
from experiments.pages import markdown, pm
from fedjax_srp import theory
from fedjax_srp.results.history import History

FILE = Path(__file__).with_name("thousands.toml")
SCALES = ("cpu", "smoke")
METHODS = {"fedrep": curves.ORANGE, "srpfl": curves.BLUE, "fedavg_ft": curves.PINK}
ACCURACY = {"cpu": 0.85, "smoke": 0.1}  # the same for every number of clients
SHARE = 0.99  # of FedRep's final accuracy
CLOCKS = {"phones": "phones", "exponential": "Exp(1)"}


def curve_of(run: History) -> dict[str, Any]:
    """Return a run's accuracies, and when they were measured under both clocks."""
    num_clients = run.num_clients
    mean_times = [
        theory.order_statistic_mean(int(size), num_clients) for size in run.cohort_size
    ]
    of_rounds = np.cumsum(mean_times)
    return {
        "rounds": run.eval_round.tolist(),
        "accuracy": np.round(run.mean_accuracy, 5).tolist(),
        "phones": curves.rounded(run.eval_elapsed()),
        "exponential": curves.rounded(of_rounds[run.eval_round - 1]),
        "host_seconds": round(run.host_seconds, 1),
    }


def time_to(run: Mapping[str, Any], target: float, clock: str) -> float:
    """Return the time of the first evaluation at the target; inf if there is none."""
    reached = np.flatnonzero(np.asarray(run["accuracy"]) >= target)
    return float(run[clock][reached[0]]) if reached.size else math.inf


def times(found: Mapping[str, Any], kind: str, method: str, clock: str) -> np.ndarray:
    """Return the (clients, seeds) times of a method to a kind of target."""
    rows = []
    for runs in found["runs"].values():
        row = []
        for fedrep, run in zip(runs["fedrep"], runs[method], strict=True):
            target = found["accuracy"]
            if kind == "share":
                target = SHARE * fedrep["accuracy"][-1]
            row.append(time_to(run, target, clock))
        rows.append(row)
    return np.array(rows)


def shown(of_seeds: np.ndarray) -> str:
    """Format the mean over seeds, or how many of them have a time."""
    finite = np.isfinite(of_seeds)
    if not finite.all():
        return f"{finite.sum()} of {len(of_seeds)}"
    return pm(of_seeds.tolist(), 1)


def ratio_of(found: Mapping[str, Any], kind: str, clock: str) -> np.ndarray:
    """Return the (clients, seeds) times of FedRep over those of SRPFL; inf if one of them is missing."""
    fedrep = times(found, kind, "fedrep", clock)
    srpfl = times(found, kind, "srpfl", clock)
    both = np.isfinite(fedrep) & np.isfinite(srpfl)
    ratio = np.full(fedrep.shape, math.inf)
    return np.divide(fedrep, srpfl, out=ratio, where=both)


def table(found: Mapping[str, Any]) -> str:
    """Return the table of times to both targets, under both clocks, and of the seconds of this machine."""
    accuracy = f"{100 * found['accuracy']:g} %"
    share = f"{100 * SHARE:g} % of FedRep's end"
    header = ["N", "", "final %"]
    for kind in (accuracy, share):
        header += [f"{kind}: {clock}" for clock in CLOCKS.values()]
    header.append("seconds of the simulator")
    rows = [header]
    for place, (num_clients, runs) in enumerate(found["runs"].items()):
        for method in METHODS:
            finals = [100 * run["accuracy"][-1] for run in runs[method]]
            row = [f"{int(num_clients):,}", srp.methods.label(method), pm(finals, 1)]
            for kind in ("accuracy", "share"):
                row += [
                    shown(times(found, kind, method, clock)[place]) for clock in CLOCKS
                ]
            seconds = [run["host_seconds"] for run in runs[method]]
            row.append(f"{min(seconds):.0f} to {max(seconds):.0f}")
            rows.append(row)
    return markdown(rows)


def ratios(found: Mapping[str, Any]) -> str:
    """Return the table of FedRep's time over SRPFL's."""
    clients = [*found["runs"]]
    rows = [["target", "clock", *(f"N = {int(n):,}" for n in clients)]]
    names = {
        "accuracy": f"{100 * found['accuracy']:g} %",
        "share": f"{100 * SHARE:g} % of FedRep's end",
    }
    for kind, name in names.items():
        for clock, title in CLOCKS.items():
            ratio = ratio_of(found, kind, clock)
            rows.append([name, title, *(shown(of_seeds) for of_seeds in ratio)])
    return markdown(rows)


def draw(found: Mapping[str, Any]) -> Figure:
    """Draw both methods' times under both clocks, and the speed-up, over the number of clients."""
    figure, axes = curves.panels(3, width=3.9, height=3.6)
    clients = np.array([int(n) for n in found["runs"]])
    for ax, (clock, title) in zip(axes, CLOCKS.items(), strict=False):
        for method, color in METHODS.items():
            label = srp.methods.label(method)
            for kind, style in (("accuracy", "-"), ("share", "--")):
                measured = times(found, kind, method, clock)
                name = label if kind == "accuracy" else None
                ax.plot(
                    clients,
                    measured.mean(axis=1),
                    f"o{style}",
                    color=color,
                    label=name,
                    markersize=4,
                )
        unit = "simulated seconds" if clock == "phones" else "time units"
        ax.set(title=title, ylabel=f"{unit} to the target", yscale="log")
    right = axes[2]
    for color, (clock, title) in zip(
        (curves.GREEN, curves.GREY), CLOCKS.items(), strict=True
    ):
        for kind, style in (("accuracy", "-"), ("share", "--")):
            ratio = ratio_of(found, kind, clock)
            curves.draw_trials(
                right, clients, ratio.T, color, linestyle=style, marker="o", markersize=4,
                label=title if kind == "accuracy" else None,
            )  # fmt: skip
    right.set(title="FedRep's time over SRPFL's", ylabel="speed-up", yscale="log")
    right.set_yticks([1, 3, 10, 30, 100, 300], ["1", "3", "10", "30", "100", "300"])
    right.minorticks_off()
    for ax in axes:
        ax.set_xscale("log", base=2)
        ax.set_xticks(clients, [f"{n:,}" for n in clients])
        ax.set_xlabel("clients N")
    title = (
        f"solid: to {100 * found['accuracy']:g} %, dashed: to {100 * SHARE:g} % of FedRep's final accuracy with N "
        "clients; bands: lowest to highest seed"
    )
    curves.legend(figure, axes, 5, title)
    return figure


def main() -> None:
    args = scripts.grid_parser(
        __doc__,
        SCALES,
        "runs/thousands",
        "data-dir",
        redraw={"action": "store_true", "help": "draw thousands.json of --results again"},
    ).parse_args()
    if args.redraw:
        stored = curves.stored(args, "thousands")
        args.scale = stored["scale"]
        found = stored["results"]
    else:
        grid = scripts.run_grid(args, FILE)
        runs: dict[str, dict[str, list[Any]]] = {}
        for (num_clients, method), histories in sorted(
            grid.histories_by("num_clients", "method").items(),
            key=lambda item: item[0][0],
        ):
            of_seeds = [curve_of(history) for history in histories]
            runs.setdefault(str(num_clients), {})[method] = of_seeds
        found = {"accuracy": ACCURACY[args.scale], "runs": runs}
    curves.save(args, "thousands", {"results": found}, draw(found))
    print(table(found), ratios(found), sep="\n\n")


if __name__ == "__main__":
    main()
