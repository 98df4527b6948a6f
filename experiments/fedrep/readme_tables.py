"""Tables of the README, from the committed results.

python experiments/fedrep/readme_tables.py
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from experiments.fedrep import doubling_table, rivals_table
from experiments.fedrep.rivals import COLUMNS
from experiments.pages import load_results, markdown, pm, span, wrapped, write

HERE = Path(__file__).parent


def results(name: str) -> Any:
    """Load the results of a figure or table."""
    return load_results(f"fedrep/results/{name}.json")


def runs(name: str) -> Any:
    """Load the numbers of table 1 or its variations: column -> row -> seed."""
    return json.loads((HERE / f"results/{name}.json").read_text("utf-8"))["runs"]


def errors() -> str:
    """Figure 1: final errors by samples."""
    found = {
        "Local only": "Local only",
        "FedSGD": "FedSGD, head refitted",
        "FedRep": "FedRep",
    }
    curves = {
        title: results("figure1")[name]["final by samples"]
        for name, title in found.items()
    }
    curves["FedRep, random start"] = results("figure1_random")["FedRep"][
        "final by samples"
    ]
    with_ridge = results("figure1_ridge")
    rows = [["samples m", *curves, "Local only, ridge 1e-5"]]
    for place, samples in enumerate(curves["FedRep"]["x"]):
        cells = [span(curve, place, "#.3g") for curve in curves.values()]
        alone = np.array(with_ridge[f"{samples:.0f}"])
        of_ridge = {"mean": alone.mean(), "lowest": alone.min(), "highest": alone.max()}
        rows.append([f"{samples:.0f}", *cells, span(of_ridge, form="#.3g")])
    return markdown(rows)


def first_round(curve: Mapping[str, Any], level: float) -> str:
    """Format the first drawn round whose mean is at or below a level."""
    reached = (
        x for x, mean in zip(curve["x"], curve["mean"], strict=True) if mean <= level
    )
    return f"{next(reached, np.nan):.0f}".replace("nan", "-")


def distances(name: str = "figure3") -> str:
    """Figure 3: final distances, the order of the methods trial by trial, and rounds to levels of the mean."""
    rows = [["start", "n", "FedRep", "10GD-GD", "GD-GD", "trials with FedRep < 10GD-GD", "10GD-GD < GD-GD",
             "FedRep at 0.1, 0.03, 0.01 by round", "GD-GD at 0.1"]]  # fmt: skip
    for start in ("descent", "random"):
        for n in (10, 100, 1000):
            methods = ("FedRep", "10GD-GD", "GD-GD")
            curves = [
                results(name)[f"n={n}, {method}, {start} start"] for method in methods
            ]
            final = [np.array(curve["final"]) for curve in curves]
            ends = [
                span(
                    {"mean": f.mean(), "lowest": f.min(), "highest": f.max()}, form="#.2g"
                )
                for f in final
            ]
            ahead = [
                f"{(final[place] < final[place + 1]).sum()} of {len(final[0])}"
                for place in (0, 1)
            ]
            rounds = ", ".join(
                first_round(curves[0], level) for level in (0.1, 0.03, 0.01)
            )
            rows.append([start, n, *ends, *ahead, rounds, first_round(curves[2], 0.1)])
    return markdown(rows)


def new_clients_linear() -> str:
    """Figure 4."""
    found = results("figure4")
    rows = [["samples", *(f"{x:.0f}" for x in found["FedRep"]["x"])]]
    for name, curve in found.items():
        label = name if name == "Local only" else f"{name}'s representation"
        rows.append(
            [label, *(span(curve, place, "#.3g") for place in range(len(curve["x"])))]
        )
    return markdown(rows)


def samples() -> str:
    """Samples a client needs, by d, n and k."""
    titles = {
        "0.25": "samples in all to 0.01, the theorem's step",
        "1": "four times that step",
    }
    rows = [
        [
            "d",
            "n",
            "k",
            "d / n",
            "log n",
            "smallest m within (10)",
            *titles.values(),
            "alone",
        ]
    ]
    for row in sorted(results("samples"), key=lambda row: (row["k"], row["d"], row["n"])):
        d, n = row["d"], row["n"]
        cells = []
        for step in titles:
            fewest = row[f"fewest samples at step {step}"]
            median, low, high = (
                float(fewest[name]) for name in ("median", "lowest", "highest")
            )
            found = f"{median:.0f} ({low:.0f} to {high:.0f}), m = {fewest['m']}"
            cells.append(found if np.isfinite(median) else "not reached")
        rows.append(
            [
                d,
                n,
                row["k"],
                f"{d / n:g}",
                f"{np.log(n):.1f}",
                row["smallest m within the bound"],
                *cells,
                d,
            ]
        )
    return markdown(rows)


def round_averages() -> str:
    """Paragraph on the spread over rounds behind the averages of table 1."""
    table, found = runs("table1"), [*runs("table1").items(), *runs("ablation").items()]
    spread = [
        run["std_of_rounds"]
        for name, rows in found
        if "cifar10_" in name
        for run in rows.get("FedAvg", {}).values()
    ]
    coins = {
        seed: run["by_round"] for seed, run in table["cifar10_100x2"]["L2GD"].items()
    }
    return wrapped(
        f"- Over the last ten rounds on CIFAR-10 FedAvg has a standard deviation of {min(spread):.1f} to "
        f"{max(spread):.1f}. L2GD depends on its coin: one round in ten trains, all others move the models towards "
        "their mean, so that a model is judged by how long ago it was trained. In seed 3 the accuracy is "
        f"{coins['3']['70']:.1f} after round 70 and falls to {coins['3']['100']:.1f} after round 100, in seed 0 it is "
        f"at {coins['0']['60']:.1f} until round 60. So it has four seeds with (100, 2)."
    )


def by_epochs(curves: Mapping[str, Any]) -> str:
    """Figure 5: a row for each curve, a column for each number of epochs."""

    def cell(curve: Mapping[str, Any], number: float) -> str:
        if number not in curve["x"]:
            return ""
        place = curve["x"].index(number)
        if curve["mean"][place] == "nan":
            return "diverged"
        is_one = curve["lowest"] == curve["highest"]
        return f"{curve['mean'][place]:.1f}" if is_one else span(curve, place, ".1f")

    epochs = sorted({e for curve in curves.values() for e in curve["x"]})
    rows = [["local epochs", *(f"{e:.0f}" for e in epochs)]]
    rows += [
        [label, *(cell(curve, number) for number in epochs)]
        for label, curve in curves.items()
    ]
    return markdown(rows)


def smaller_step() -> dict[str, float]:
    """Return figure 5's accuracy in % with 15 epochs of the head and a step of 0.03, by round."""
    text = (HERE / "results/figure5_cifar10_step.json").read_text("utf-8")
    return json.loads(text)["most epochs, first seed, by round"]["FedRep, own heads"]


def by_round() -> str:
    """Figure 5 with a smaller step, every tenth round."""
    shown = {at: value for at, value in smaller_step().items() if int(at) % 10 == 0}
    accuracies = (f"{value:.1f}" for value in shown.values())
    return markdown([["round", *shown], ["15 epochs, step 0.03", *accuracies]])


def searched_option(row: Mapping[str, Any]) -> str | None:
    """Return the name of the option that was searched beside the step, if there is one."""
    names = row["settings"][0].keys() - {"step", "validation", "test"}
    return names.pop() if names else None


def with_published_value(row: Mapping[str, Any]) -> list[Any]:
    """Return the settings of a row that have table 1's value of the option, one for each step."""
    option = searched_option(row)
    settings = row["settings"]
    published = settings[0].get(option)
    return [each for each in settings if each.get(option) == published]


def chosen_and_published(row: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the setting that a search chose for a row of table 1, and the one of table 1."""
    steps = {each["step"]: each for each in with_published_value(row)}
    return row["settings"][row["chosen"]], steps[0.01]


def part_of_step(row: Mapping[str, Any]) -> float:
    """Return the part of the gain in validation accuracy that the best step has with table 1's value."""
    chosen, published = (
        np.mean(each["validation"]) for each in chosen_and_published(row)
    )
    by_step = [
        np.mean([float(value) for value in each["validation"]])
        for each in with_published_value(row)
    ]
    return float((np.nanmax(by_step) - published) / (chosen - published))


def best_step(row: Mapping[str, Any]) -> float:
    """Return the step with the highest validation accuracy, whatever the other option."""
    means = {}
    for each in row["settings"]:
        found = [float(value) for value in each["validation"]]
        means[each["step"]] = max(
            means.get(each["step"], -1), np.nan_to_num(np.mean(found), nan=-1)
        )
    return max(means, key=means.__getitem__)


def searched() -> str:
    """Search of steps and penalties: a row for each of table 1."""
    found = results("search_cpu") | results("search_l2gd")
    rows = [
        [
            "method",
            "option",
            "values tried",
            "chosen: value",
            "step",
            "validation %",
            "of its gain by the step alone",
            "test %",
            "test %, table 1's step and value",
            "difference",
        ]
    ]
    for label, row in found.items():
        chosen, published = chosen_and_published(row)
        cells = ["", "", ""]
        option = searched_option(row)
        if option is not None:
            tried = dict.fromkeys(each[option] for each in row["settings"])
            values = ", ".join(f"{value:g}" for value in sorted(tried))
            cells = [f"`{option}`", values, f"{chosen[option]:g}"]
        gains = np.subtract(chosen["test"], published["test"])
        rows.append(
            [
                label,
                *cells,
                f"{chosen['step']:g}",
                pm(chosen["validation"], 1),
                f"{100 * part_of_step(row):.0f} %",
                pm(chosen["test"], 1),
                pm(published["test"], 1),
                f"{gains.mean():+.1f}",
            ]
        )
    return markdown(rows)


def new_clients(panels: Mapping[str, Any]) -> str:
    """Figure 6: a row for each method, after 1, 5 and all epochs of every panel."""
    first = next(iter(panels.values()))
    axis = [int(x) for x in next(iter(first.values()))["x"]]
    shown = [epochs for epochs in (1, 5, axis[-1]) if epochs <= axis[-1]]
    rows = [
        [
            "representation of",
            *(f"{panel}, {e} epoch{'s' * (e > 1)}" for panel in panels for e in shown),
        ]
    ]
    rows += [
        [
            n,
            *(
                span(panel[n], axis.index(e), ".1f")
                for panel in panels.values()
                for e in shown
            ),
        ]
        for n in first
    ]
    return markdown(rows)


CONTROLS = {
    "digits": "digits",
    "ten_letters": "3 of 10 letters a client",
    "letter_classes": "3 of 52 letters a client",
    "letters": "all letters of 99 writers",
}


def controls() -> str:
    """Figure 6's controls: a row for each representation, with heads of 30 epochs and converged ones."""
    rows = [["new clients", "representation of", "heads of 30 epochs", "converged heads"]]
    for name, title in CONTROLS.items():
        if not (HERE / "results" / f"figure6_controls_{name}.json").exists():
            continue
        for representation, of_heads in results(f"figure6_controls_{name}").items():
            label = {"fedrep": "FedRep", "fedavg": "FedAvg"}.get(representation, "none")
            shown = [pm(of_heads[heads], 1) for heads in ("epochs", "converged")]
            rows.append([title, label, *shown])
    return markdown(rows)


PARTS: Mapping[str, Callable[[], str]] = {
    "figure1": errors,
    "figure3": distances,
    "figure3_notebook": partial(distances, "figure3_notebook"),
    "figure4": new_clients_linear,
    "samples": samples,
    "table1": lambda: rivals_table.tables(runs("table1")),
    "differences": lambda: markdown(
        rivals_table.far_table(runs("ablation"), COLUMNS["ablation"])
    ),
    "ablation": lambda: rivals_table.ablation(runs("ablation"), COLUMNS["ablation"]),
    "of_rounds": round_averages,
    "search": searched,
    "figure5": lambda: by_epochs(results("figure5")),
    "figure5_cifar10": lambda: by_epochs(results("figure5_cifar10")),
    "figure5_cifar10_step": by_round,
    "figure6": lambda: new_clients(results("figure6")),
    "figure6_femnist": lambda: new_clients(results("figure6_femnist")),
    "figure6_letters": lambda: new_clients(results("figure6_letters")),
    "figure6_letter_classes": lambda: new_clients(results("figure6_letter_classes")),
    "figure6_controls": controls,
    "doubling": lambda: doubling_table.table(results("doubling_table")),
    "doubling_3": lambda: doubling_table.table(results("doubling_table_3")),
}
PAGES = {HERE / "README.md": PARTS}

if __name__ == "__main__":
    write(PAGES)
