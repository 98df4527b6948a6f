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
    files = (HERE / f"results/table{number}.json" for number in (1, 2))
    return [
        value for file in files for value in json.loads(file.read_text("utf-8"))[what]
    ]


def scientific(value: float) -> str:
    """Format with three digits and an exponent."""
    return f"{value:.2e}".replace("e+0", "e")


def times(number: int, key: str) -> str:
    """Table 1 or 2 beside the paper's numbers."""
    head = [
        key,
        "T_FLANP",
        "T_FedGATE",
        "ratio",
        "the paper's",
        "rounds",
        "by Propositions 2 and 3",
    ]
    rows = [
        [
            *head,
            "Theorem 2: at most",
            "rounds of a stage: by theory",
            "longest but the last",
        ]
    ]
    kept = slice(3 * number - 3, 3 * number)
    paper = zip(
        paper_numbers("paper")[kept], paper_numbers("paper_times")[kept], strict=True
    )
    for (title, found), (ratio, pair) in zip(
        results(f"table{number}")["rules"].items(), paper, strict=True
    ):
        rounds = (
            f"{np.mean(found[f'rounds_{method}']):.0f}" for method in ("FLANP", "FedGATE")
        )
        rows.append([
            title.split()[-1], pm(found["T_FLANP"], 0), pm(found["T_FedGATE"], 0), pm(found["ratio"], 3),
            f"{ratio} = {scientific(pair[0])} / {scientific(pair[1])}", ", ".join(rounds),
            pm(found["ratio_of_propositions"]), pm(found["theorem2_bound"]), f"{np.mean(found['stage_bound']):.0f}",
            f"{max(found['longest_stage']):.0f}",
        ])  # fmt: skip
    return markdown(rows)


def full_gradients() -> str:
    found = results("table1")["full gradients"]
    rows = [
        [
            title.split()[-1],
            pm(row["T_FLANP"], 0),
            pm(row["T_FedGATE"], 0),
            pm(row["ratio"], 3),
        ]
        for title, row in found.items()
    ]
    return markdown([["full gradients, s", "T_FLANP", "T_FedGATE", "ratio"], *rows])


def fixed_ratios() -> str:
    found = results("fixed_target").values()
    rows = [["ratio of times", *SIX], ["the paper's", *paper_numbers("paper")]]
    for target in ("0.0116", "0.02", "tightening"):
        label = target if target == "tightening" else f"to {target}"
        rows.append([label, *(pm(row[target]["ratio"]) for row in found)])
    return markdown(rows)


def fixed_times() -> str:
    paper = paper_numbers("paper_times")
    rows = [
        ["T_FLANP, T_FedGATE", *SIX],
        ["the paper's", *(", ".join(map(scientific, pair)) for pair in paper)],
    ]
    clients = [50, 50, 50, 10, 100, 1000]
    over = [
        fedgate / (1 / np.arange(1, n + 1)).sum()
        for (_, fedgate), n in zip(paper, clients, strict=True)
    ]
    rows.append(["the paper's T_FedGATE over H_N", *map(scientific, over)])
    for target, label in (("0.0116", "to 0.0116"), ("tightening", "tightening")):
        cells = [
            ", ".join(
                scientific(np.mean(row[target][f"T_{method}"]))
                for method in ("FLANP", "FedGATE")
            )
            for row in results("fixed_target").values()
        ]
        rows.append([label, *cells])
    return markdown(rows)


def variations() -> str:
    found, rows = results("table2"), [["ratio", "N = 10", "N = 100"]]
    for name, row in found.items():
        same = [
            row == found["rules"][title] and name != "rules" for title, row in row.items()
        ]
        cells = [
            "as the rules" if s else pm(row["ratio"], 3)
            for s, row in zip(same, row.values(), strict=True)
        ]
        rows.append([name, *cells[:2]])
    return markdown([*rows, ["the paper's", *paper_numbers("paper")[3:5]]])


def equal_speeds() -> str:
    found = results("fixed_target").values()
    rows = [["time at equal speeds, FLANP over FedGATE", *SIX]]
    for target in ("0.0116", "0.02", "tightening"):
        label = target if target == "tightening" else f"to {target}"
        rows.append([label, *(pm(row[target]["equal_speeds"]) for row in found)])
    rules = [
        row for number in (1, 2) for row in results(f"table{number}")["rules"].values()
    ]
    by_rules = (
        pm(np.divide(row["rounds_FLANP"], row["rounds_FedGATE"])) for row in rules
    )
    by_theory = (pm(row["propositions_equal"]) for row in found)
    return markdown(
        [*rows, ["batches, by the rules", *by_rules], ["by equation 4", *by_theory]]
    )


def at_the_end() -> str:
    rows = [["", "speed-up at the end"]]
    for name in ("figure7", "figure8"):
        rows += [
            [f"{name[-1]}: {panel['title']}", pm(panel["speed_up"]["fedgate"]["at_end"])]
            for panel in results(name)
        ]
    return markdown(rows)


def theorems() -> str:
    double, single = (results("theorems")[name] for name in ("float64", "float32"))
    rows = [["n", "start over Proposition 1's bound", "largest", "gap after R rounds over V_ns", "largest",
             "largest in single precision", "R", "rounds to V_ns", "to the criterion", "most"]]  # fmt: skip
    for n, stage in double.items():
        starts = [value for value in stage["start_over_bound"] if value is not None]
        gap, met = stage["gap_over_accuracy"], stage["rounds_to_criterion"]
        rows.append([
            n, pm(starts) if starts else "", f"{max(starts):.2f}" if starts else "", pm(gap, 3), f"{max(gap):.3f}",
            f"{max(single[n]['gap_over_accuracy']):.3f}", ends(stage["allowed_rounds"]),
            pm(stage["rounds_to_accuracy"], 1), pm(met, 1), f"{max(met):.0f}",
        ])  # fmt: skip
    return markdown(rows)


def figure2() -> str:
    (panel,) = results("figure2")
    rows = [[f"{LABELS[rival]} over FLANP", pm(speed_up["at_most"]), pm(speed_up["at_end"])]
            for rival, speed_up in panel["speed_up"].items()]  # fmt: skip
    return markdown([["", "speed-up at most", "at the end"], *rows])


def figure9() -> str:
    found = results("figure9")[0]["speed_up"]
    fedgate = found["fedgate"]["at_end"]
    rows = [["", "speed-up at the end"], ["FedGATE over FLANP", pm(fedgate)]]
    for method, start in (("tuned", "0.25"), ("heuristic", "0.5"), ("whole", "1")):
        own = found[method]["at_end"]
        rows.append([f"FLANP by the heuristic from {start} over FLANP", pm(own)])
        rows.append(
            [
                f"FedGATE over FLANP by the heuristic from {start}",
                pm(np.divide(fedgate, own)),
            ]
        )
    return markdown(rows)


def losses(name: str, title: str) -> str:
    """Losses and accuracies that the methods of a figure reach, and FLANP's speed-ups."""
    rows = [[title, "FLANP's speed-up at most", "at the end", "lowest training loss", "last", "test accuracy %",
             "clients in the end"]]  # fmt: skip
    known = {
        method: panel
        for panel in reversed(results(name))
        for method in panel
        if method in LABELS
    }
    for method in [
        method for panel in results(name) for method in panel if known.pop(method, None)
    ]:
        panel = next(panel for panel in results(name) if method in panel)
        row, ratios = panel[method], panel["speed_up"].get(method, {})
        cells = [
            pm(ratios[which]) if ratios.get(which) else ""
            for which in ("at_most", "at_end")
        ]
        cells += [
            pm(row["lowest"], 3),
            pm(row["last"], 3),
            pm(100 * np.array(row["accuracy"]), 1),
        ]
        rows.append(
            [
                LABELS[method],
                *cells,
                ", ".join(str(seed[-1][0]) for seed in row.get("stages", [])),
            ]
        )
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
            cells = []
            for level in levels:
                values = panel["at"][ours][rival][level]
                reached = [value for value in values if value is not None]
                missing = len(reached) < len(values)
                cells.append(
                    f"{len(reached)} of {len(values)} seeds" if missing else pm(values)
                )
            end = panel["speed_up" if ours == "flanp" else f"speed_up_{ours}"][rival][
                "at_end"
            ]
            rows.append(
                [
                    f"{LABELS[rival]} over {LABELS[ours]}, s = {samples}",
                    *cells,
                    pm(end) if end else "",
                ]
            )
    return markdown(rows)


def thresholds() -> str:
    (panel,) = results("figure4_full")
    norms = [
        of_seed[0] for of_seed in panel["flanp"]["norms"]
    ]  # of the only stage: clients, threshold, lowest norm
    before = [
        sum(rounds for _, rounds, *_ in stages[:-1])
        for stages in panel["early"]["stages"]
    ]
    halves, lowest = (
        ends([norm[1] for norm in norms], ".2f"),
        min(norm[2] for norm in norms),
    )
    return wrapped(
        f"- The result depends on the first threshold. Half of the first gradient norm is {halves} here, and the norm "
        f"of one client's loss never fell below {lowest:.2f}: FLANP trains one client for all rounds, its "
        "loss rises in the end, and it does not reach the lowest of these losses. From the "
        f"first norm itself all clients take part after {ends(before)} rounds, and FLANP ends at FedGATE's loss."
    )


def criterion() -> str:
    found = results("criterion_for_fedrep")
    fixed = np.array(found["10 rounds a stage"]["times"], float)
    rows = [["stages", "median time to 95 %", "to 99 %", "lowest and highest to 99 %", "accuracy %",
             "10 rounds a stage over it: to 95 %", "to 99 %"]]  # fmt: skip
    for name, stages in found.items():
        early, late = np.array(stages["times"], float).T
        over = [
            ends(fixed[:, place] / own, ".2f") for place, own in enumerate((early, late))
        ]
        cells = f"{np.median(early):.2f}", f"{np.median(late):.1f}", ends(late, ".1f")
        rows.append([name, *cells, pm(100 * np.array(stages["accuracy"]), 1), *over])
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
