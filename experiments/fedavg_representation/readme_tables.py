"""Tables of the README, from the committed results.

python experiments/fedavg_representation/readme_tables.py
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from experiments.fedavg_representation import steps
from experiments.pages import csv, load_results, markdown, span, write

HERE = Path(__file__).parent
LINEAR = {"FedAvg": "FedAvg, 2 local updates", "D-GD": "D-GD, 1 local update"}


def results(name: str) -> Any:
    """Load the results of a figure."""
    return load_results(f"fedavg_representation/results/{name}.json")


def linear() -> str:
    """Figures 1 and 3: values at the end."""
    rows = [
        [
            "after 250 rounds",
            "distance",
            "gradient norm",
            "error of a new client before fine-tuning",
        ]
    ]
    for title, name in LINEAR.items():
        norm, before = (
            results("figure3")[f"{name}, {what}"] for what in ("gradient norm", "before")
        )
        rows.append(
            [
                title,
                span(results("figure1")[name], -1, ".3g"),
                span(norm, -1),
                f"{before['mean'][0]:.2f}",
            ]
        )
    return markdown(rows)


def fine_tuned() -> str:
    """Figure 3, right."""
    curves = {
        f"{title}, fine-tuned": results("figure3")[f"{name}, fine-tuned"]
        for title, name in LINEAR.items()
    }
    curves["own samples alone"] = results("figure3")["own samples alone"]
    first = next(iter(curves.values()))
    rows = [["samples n of the new client", *(f"{x:.0f}" for x in first["x"])]]
    rows += [
        [title, *(span(curve, n, "#.3g") for n in range(len(curve["x"])))]
        for title, curve in curves.items()
    ]
    return markdown(rows)


def worst_truths() -> str:
    """Proposition 1."""
    rows = [["last distance over the first", *LINEAR, "D-GD, lowest of any round"]]
    for title, found in results("proposition1").items():
        cells = (span(found[name], form=".3g") for name in LINEAR.values())
        rows.append([title, *cells, f"{found[LINEAR['D-GD']]['of any round']:.4f}"])
    return markdown(rows)


def new_clients(name: str, title: str) -> str:
    """Figure 5: a random start has no C of its own."""
    rows: list[list[str]] = []
    for panel, by_classes in results(name).items():
        for place, (classes, starts) in enumerate(by_classes.items()):
            for start, curve in starts.items():
                own = "global" in curve
                if own or place == 0:
                    cells = (
                        f"{m:.1f} ± {s:.1f}"
                        for m, s in zip(curve["mean"], curve["std"], strict=True)
                    )
                    shown = span(curve["global"], form=".1f") if own else "-"
                    rows.append(
                        [
                            panel,
                            classes.removeprefix("C=") if own else "-",
                            start,
                            *cells,
                            shown,
                        ]
                    )
    samples = next(iter(next(iter(results(name)["new data set"].values())).values()))["x"]
    return markdown(
        [[title, "C", "start", *(f"{x:.0f}" for x in samples), "global"], *rows]
    )


def layers() -> str:
    """Figure 2."""
    found = results("figure2")
    first, *others = next(iter(found.values()))["x"]
    rows = [["start", f"CKA of {first}", *others, "accuracy after fine-tuning"]]
    for start, layer in found.items():
        cells = (span(layer, place, ".3f") for place in range(len(layer["x"])))
        rows.append([start, *cells, span(layer["accuracy"], form=".1f")])
    return markdown(rows)


def cosines() -> str:
    """Figure 4."""
    forms = {
        "same class": ".3f",
        "different classes": ".3f",
        "difference": ".3f",
        "global": ".1f",
    }
    rows = [["model", *forms]]
    for model, found in results("figure4").items():
        cells = (
            span(found[what], form=form) if what in found else "-"
            for what, form in forms.items()
        )
        rows.append([model, *cells])
    return markdown(rows)


def larger_batches() -> str:
    """Table of steps of D-SGD with larger batches, with a column for their size."""
    tables = {
        n: steps.table(csv(f"fedavg_representation/results/steps_batch_{n}.csv")).split(
            "\n"
        )
        for n in (50, 100)
    }
    (head, line, *_), *_ = tables.values()
    rows = [
        f"| {size} {row}" for size, (_, _, *of_size) in tables.items() for row in of_size
    ]
    return "\n".join([f"| batch {head}", f"| --- {line}", *rows])


PARTS: Mapping[str, Callable[[], str]] = {
    "linear": linear,
    "fine_tuned": fine_tuned,
    "proposition1": worst_truths,
    "figure5": partial(new_clients, "figure5", "new clients"),
    "brightness": partial(new_clients, "figure5_brightness_0.5", "half as bright"),
    "step": partial(new_clients, "figure5_step_0.2", "step 0.2"),
    "steps": lambda: steps.table(csv("fedavg_representation/results/steps.csv")),
    "steps_batches": larger_batches,
    "steps_cnn": lambda: steps.table(csv("fedavg_representation/results/steps_cnn.csv")),
    "figure2": layers,
    "figure4": cosines,
}
PAGES = {HERE / "README.md": PARTS}

if __name__ == "__main__":
    write(PAGES)
