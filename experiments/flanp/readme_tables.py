"""Tables of the README, from the committed results.

python experiments/flanp/readme_tables.py
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from experiments.flanp.worlds import CURVES
from experiments.pages import ends, joined, load_results, markdown, pm, wrapped, write

HERE = Path(__file__).parent
SIX = [
    "N = 50, s = 20",
    "s = 200",
    "s = 2,000",
    "N = 10, s = 100",
    "N = 100",
    "N = 1,000",
]
LABELS = {name: curve.label for name, curve in CURVES.items()}


def results(name: str) -> Any:
    """Load the results of a figure or table."""
    return load_results(f"flanp/results/{name}.json")


def paper_numbers(what: str) -> list[Any]:
    """Return the paper's numbers of tables 1 and 2: ratios for "paper", times for "paper_times"."""
    found = []
    for number in (1, 2):
        text = (HERE / f"results/table{number}.json").read_text("utf-8")
        found += json.loads(text)[what]
    return found


def scientific(value: float) -> str:
    """Format with three digits and an exponent."""
    return f"{value:.2e}".replace("e+0", "e")


TARGETS = {"0.0116": "to 0.0116", "0.02": "to 0.02", "tightening": "tightening"}


def times(number: int, key: str) -> str:
    """Table 1 or 2 beside the paper's numbers."""
    head = [key, "T_FLANP", "T_FedGATE", "ratio", "the paper's", "rounds"]
    head += ["by Propositions 2 and 3", "Theorem 2: at most"]
    rows = [[*head, "rounds of a stage: by theory", "longest but the last"]]
    kept = slice(3 * number - 3, 3 * number)
    papers = zip(
        paper_numbers("paper")[kept], paper_numbers("paper_times")[kept], strict=True
    )
    found = results(f"table{number}")["rules"]
    for (title, row), (ratio, pair) in zip(found.items(), papers, strict=True):
        rounds = [f"{np.mean(row[f'rounds_{m}']):.0f}" for m in ("FLANP", "FedGATE")]
        rows.append([
            title.split()[-1], pm(row["T_FLANP"], 0), pm(row["T_FedGATE"], 0), pm(row["ratio"], 3),
            f"{ratio} = {scientific(pair[0])} / {scientific(pair[1])}", ", ".join(rounds),
            pm(row["ratio_of_propositions"]), pm(row["theorem2_bound"]), f"{np.mean(row['stage_bound']):.0f}",
            f"{max(row['longest_stage']):.0f}",
        ])  # fmt: skip
    return markdown(rows)


def full_gradients() -> str:
    rows = [["full gradients, s", "T_FLANP", "T_FedGATE", "ratio"]]
    for title, row in results("table1")["full gradients"].items():
        cells = [pm(row["T_FLANP"], 0), pm(row["T_FedGATE"], 0), pm(row["ratio"], 3)]
        rows.append([title.split()[-1], *cells])
    return markdown(rows)


def fixed_ratios() -> str:
    rows = [["ratio of times", *SIX], ["the paper's", *paper_numbers("paper")]]
    for target, label in TARGETS.items():
        found = results("fixed_target").values()
        rows.append([label, *(pm(row[target]["ratio"]) for row in found)])
    return markdown(rows)


def fixed_times() -> str:
    both = lambda pair: ", ".join(map(scientific, pair))
    paper = paper_numbers("paper_times")
    rows = [["T_FLANP, T_FedGATE", *SIX], ["the paper's", *map(both, paper)]]
    clients = [50, 50, 50, 10, 100, 1000]
    over = []
    for (_, fedgate), n in zip(paper, clients, strict=True):
        over.append(scientific(fedgate / (1 / np.arange(1, n + 1)).sum()))
    rows.append(["the paper's T_FedGATE over H_N", *over])
    for target in ("0.0116", "tightening"):
        cells = []
        for row in results("fixed_target").values():
            times = (row[target][f"T_{method}"] for method in ("FLANP", "FedGATE"))
            cells.append(both(map(np.mean, times)))
        rows.append([TARGETS[target], *cells])
    return markdown(rows)


def variations() -> str:
    rows = [["ratio", "N = 10", "N = 100"]]
    found = results("table2")
    for name, of_variation in found.items():
        cells = []
        for title, row in list(of_variation.items())[:2]:
            is_same = name != "rules" and row == found["rules"][title]
            cells.append("as the rules" if is_same else pm(row["ratio"], 3))
        rows.append([name, *cells])
    return markdown([*rows, ["the paper's", *paper_numbers("paper")[3:5]]])


def equal_speeds() -> str:
    rows = [["time at equal speeds, FLANP over FedGATE", *SIX]]
    found = results("fixed_target").values()
    for target, label in TARGETS.items():
        rows.append([label, *(pm(row[target]["equal_speeds"]) for row in found)])
    rules = [row for n in (1, 2) for row in results(f"table{n}")["rules"].values()]
    over = (np.divide(row["rounds_FLANP"], row["rounds_FedGATE"]) for row in rules)
    rows.append(["batches, by the rules", *map(pm, over)])
    rows.append(["by equation 4", *(pm(row["propositions_equal"]) for row in found)])
    return markdown(rows)


def at_the_end() -> str:
    rows = [["", "speed-up at the end"]]
    for name in ("figure7", "figure8"):
        for panel in results(name):
            speed_up = panel["speed_up"]["fedgate"]["at_end"]
            rows.append([f"{name[-1]}: {panel['title']}", pm(speed_up)])
    return markdown(rows)


def theorems() -> str:
    double, single = (results("theorems")[name] for name in ("float64", "float32"))
    rows = [["n", "start over Proposition 1's bound", "largest", "gap after R rounds over V_ns", "largest",
             "largest in single precision", "R", "rounds to V_ns", "to the criterion", "most"]]  # fmt: skip
    for n, stage in double.items():
        starts = [value for value in stage["start_over_bound"] if value is not None]
        of_start = [pm(starts), f"{max(starts):.2f}"] if starts else ["", ""]
        gap, met = stage["gap_over_accuracy"], stage["rounds_to_criterion"]
        rows.append([
            n, *of_start, pm(gap, 3), f"{max(gap):.3f}", f"{max(single[n]['gap_over_accuracy']):.3f}",
            ends(stage["allowed_rounds"]), pm(stage["rounds_to_accuracy"], 1), pm(met, 1), f"{max(met):.0f}",
        ])  # fmt: skip
    return markdown(rows)


def figure2() -> str:
    rows = [["", "speed-up at most", "at the end"]]
    for rival, speed_up in results("figure2")[0]["speed_up"].items():
        cells = [pm(speed_up["at_most"]), pm(speed_up["at_end"])]
        rows.append([f"{LABELS[rival]} over FLANP", *cells])
    return markdown(rows)


def figure9() -> str:
    found = results("figure9")[0]["speed_up"]
    fedgate = found["fedgate"]["at_end"]
    rows = [["", "speed-up at the end"], ["FedGATE over FLANP", pm(fedgate)]]
    for method, start in (("tuned", "0.25"), ("heuristic", "0.5"), ("whole", "1")):
        own = found[method]["at_end"]
        name = f"FLANP by the heuristic from {start}"
        rows.append([f"{name} over FLANP", pm(own)])
        rows.append([f"FedGATE over {name}", pm(np.divide(fedgate, own))])
    return markdown(rows)


def losses(name: str, title: str) -> str:
    """Losses and accuracies that the methods of a figure reach, and FLANP's speed-ups."""
    rows = [[title, "FLANP's speed-up at most", "at the end", "lowest training loss", "last", "test accuracy %",
             "clients in the end"]]  # fmt: skip
    shown = set()
    for panel in results(name):
        for method in [method for method in panel if method in LABELS]:
            if method in shown:
                continue
            shown.add(method)
            row, ratios = panel[method], panel["speed_up"].get(method, {})
            of_ratios = [ratios.get(which) for which in ("at_most", "at_end")]
            cells = [pm(values) if values else "" for values in of_ratios]
            cells += [pm(row["lowest"], 3), pm(row["last"], 3)]
            cells.append(pm(100 * np.array(row["accuracy"]), 1))
            last = ", ".join(str(stages[-1][0]) for stages in row.get("stages", []))
            rows.append([LABELS[method], *cells, last])
    return markdown(rows)


def to_losses(
    title: str,
    levels: Sequence[str],
    wanted: Sequence[tuple[str, str, Sequence[tuple[str, str]]]],
) -> str:
    """Times of rivals over FLANP's, to fixed losses and at the end; `wanted`: file, samples of a client, pairs."""
    rows = [[f"{title}, to a loss of", *levels, "at the end"]]
    for name, samples, pairs in wanted:
        for rival, ours in pairs:
            panel = next(panel for panel in results(name) if rival in panel)
            row = [f"{LABELS[rival]} over {LABELS[ours]}, s = {samples}"]
            for level in levels:
                values = panel["at"][ours][rival][level]
                missing = values.count(None)
                reached = f"{len(values) - missing} of {len(values)} seeds"
                row.append(reached if missing else pm(values))
            over = "speed_up" if ours == "flanp" else f"speed_up_{ours}"
            end = panel[over][rival]["at_end"]
            rows.append([*row, pm(end) if end else ""])
    return markdown(rows)


def thresholds() -> str:
    (panel,) = results("figure4_full")
    # of the only stage: clients, threshold, lowest norm
    _, halves, lowest = zip(
        *(of_seed[0] for of_seed in panel["flanp"]["norms"]), strict=True
    )
    before = [
        sum(rounds for _, rounds, *_ in stages[:-1])
        for stages in panel["early"]["stages"]
    ]
    return wrapped(
        f"- The result depends on the first threshold. Half of the first gradient norm is {ends(halves, '.2f')} here, "
        f"and the norm of one client's loss never fell below {min(lowest):.2f}: FLANP trains one client for all "
        "rounds, its loss rises in the end, and it does not reach the lowest of these losses. From the "
        f"first norm itself all clients take part after {ends(before)} rounds, and FLANP ends at FedGATE's loss."
    )


def criterion() -> str:
    found = results("criterion_for_fedrep")
    fixed = np.array(found["10 rounds a stage"]["times"], float)
    rows = [["stages", "median time to 95 %", "to 99 %", "lowest and highest to 99 %", "accuracy %",
             "10 rounds a stage over it: to 95 %", "to 99 %"]]  # fmt: skip
    for name, stages in found.items():
        own = np.array(stages["times"], float)
        early, late = own.T
        cells = [f"{np.median(early):.2f}", f"{np.median(late):.1f}", ends(late, ".1f")]
        cells.append(pm(100 * np.array(stages["accuracy"]), 1))
        rows.append([name, *cells, *(ends(over, ".2f") for over in (fixed / own).T)])
    return markdown(rows)


MNIST = [("fednova", "flanp"), ("fednova", "gentle"), ("fednova", "early"), ("fednova_drawn", "flanp"),
         ("fedgate", "flanp")]  # fmt: skip
FEW = [("fednova", "flanp"), ("fednova", "gentle"), ("fedgate", "flanp")]
CIFAR = [
    ("fednova", "flanp"),
    ("fednova", "early"),
    ("fednova_drawn", "early"),
    ("fedgate", "early"),
]
SUBSETS = [(f"{kind}{k}", "flanp") for kind in ("random", "fastest") for k in (5, 25)]
PARTS: Mapping[str, Callable[[], str]] = {
    "tables": joined(partial(times, 1, "s"), partial(times, 2, "N")),
    "full_gradients": full_gradients,
    "fixed_target": joined(fixed_ratios, fixed_times),
    "variations": variations,
    "equal_speeds": equal_speeds,
    "at_the_end": at_the_end,
    "theorems": theorems,
    "figure2": figure2,
    "figure1_full": joined(
        partial(losses, "figure1_full", "figure 1, 500 rounds"),
        partial(to_losses, "figure 1", ("0.6", "0.5", "0.4", "0.36"),
                [("figure1_full", "1,200", [("fedgate", "flanp"), ("fedgate", "half")])]),
    ),
    "figure1": partial(losses, "figure1", "figure 1"),
    "figure3": joined(
        partial(losses, "figure3_full", "figure 3"),
        partial(to_losses, "figure 3", ("0.5", "0.4", "0.3", "0.2"),
                [("figure3_full", "3,000", MNIST), ("figure3", "200", FEW)]),
    ),
    "figure4": joined(
        partial(losses, "figure4_full", "figure 4"),
        partial(to_losses, "figure 4", ("2.1", "2.0", "1.9", "1.8"),
                [("figure4_full", "2,500", CIFAR), ("figure4", "100", CIFAR[:2])]),
        thresholds,
    ),
    "figure5": joined(
        partial(losses, "figure5_full", "figure 5"),
        partial(to_losses, "figure 5", ("0.5", "0.4", "0.3", "0.2"),
                [("figure5_full", "3,000", MNIST), ("figure5", "200", FEW)]),
    ),
    "figure6": joined(
        partial(losses, "figure6_full", "figure 6"),
        partial(to_losses, "figure 6", ("0.5", "0.4", "0.3", "0.2"),
                [("figure6_full", "1,200", SUBSETS)]),
    ),
    "figure6_few": partial(losses, "figure6", "figure 6, s = 80"),
    "figure9": figure9,
    "criterion": criterion,
}  # fmt: skip
PAGES = {HERE / "README.md": PARTS}

if __name__ == "__main__":
    write(PAGES)
