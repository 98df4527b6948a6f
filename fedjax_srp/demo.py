"""The main job in about a minute: the SRPFL paper's methods but HF-MAML on data that comes with scikit-learn."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from . import clocks, data, drawing, methods, plots
from .engine.simulate import simulate_seeds
from .history import History
from .report import table

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

COMMUNICATIONS = (0, 10, 100)  # figure 3 of the SRPFL paper


class Plan(NamedTuple):
    """What a demo simulates."""

    methods: Sequence[str]
    num_rounds: int
    eval_every: int
    federation: dict[str, Any]  # of `data.load`
    hyperparameters: dict[str, Any]  # of `methods.get`, the same for every method


FULL = Plan(
    methods=(
        "srpfl",
        "fedrep",
        "lg_srpfl",
        "lg_fedavg",
        "flanp_fedavg",
        "fedavg",
        "flanp_fedavg_ft",
        "fedavg_ft",
    ),
    num_rounds=100,
    eval_every=2,
    federation={"num_clients": 50, "classes_per_client": 3},
    hyperparameters={
        "hidden": (64, 32),
        "learning_rate": 0.05,
        "local_epochs": 5,
        "initial": 5,
        "rounds_per_stage": 10,
    },
)
QUICK = FULL._replace(methods=("srpfl", "fedrep"), num_rounds=50)


class Demo(NamedTuple):
    """What a demo found, all of it in its folder too."""

    histories: dict[str, list[History]]  # method -> one a seed
    frame: pd.DataFrame  # see `report.table.comparison`
    target: table.Target
    text: str
    figure: Figure


def run(out: str | os.PathLike, seeds: int = 3, plan: Plan = FULL, progress: bool = True) -> Demo:
    """Simulates every method of the plan, all seeds at once, and writes table, figure and run folders.

    Clients' times are Exp(1), drawn once a seed; every method meets the same clients, times and batches. The division
    of the digits among clients is the same for all seeds.

    Args:
        out: folder to write to: `table.txt`, `table.csv`, `accuracy.png` and a run folder `<method>/seed_<seed>`.
        seeds: how many; seed s is `jax.random.key(s)`, as in `fedjax-srp run --seed s`.
        plan: `FULL` or `QUICK`.
        progress: show a progress bar.

    Raises:
        ValueError: no seeds, or a folder that cannot be written to.
    """
    from tqdm.auto import tqdm

    if seeds < 1:
        raise ValueError(f"seeds={seeds}: must be at least 1; 3 shows the spread")
    folder = writable(out)
    dataset = data.load("digits", **plan.federation)
    keys = jax.vmap(jax.random.key)(jnp.arange(seeds))
    histories: dict[str, list[History]] = {}
    shape = "{desc} {percentage:3.0f}%|{bar}| {n_fmt} of {total_fmt} methods, {elapsed}"
    with tqdm(plan.methods, bar_format=shape, disable=not progress, ncols=80) as bar:
        for name in bar:
            bar.set_description(f"{table.label(name):<9}")
            histories[name] = simulate_seeds(
                methods.get(name, dataset=dataset, **plan.hyperparameters),
                dataset,
                clock=clocks.fixed(clocks.exponential(1.0)),
                num_rounds=plan.num_rounds,
                eval_every=plan.eval_every,
                keys=keys,
                progress=False,
            )
    target = table.common_target(histories)
    frame = table.comparison(histories, target.accuracy, COMMUNICATIONS)
    text = table.render(frame, target)
    arguments = {"command": "demo", "seeds": seeds, **plan._asdict()}
    for name, runs in histories.items():
        for seed, history in enumerate(runs):
            config = {**history.config, "seed": seed, "arguments": arguments}
            dataclasses.replace(history, config=config).save(folder / name / f"seed_{seed}", target=target.accuracy)
    drawn = figure(histories, target, title=f"digits, {dataset.num_clients} clients")
    drawn.savefig(folder / "accuracy.png", dpi=150)
    frame.to_csv(folder / "table.csv", index=False)
    (folder / "table.txt").write_text(text + "\n", "utf-8")
    return Demo(histories, frame, target, text, drawn)


def figure(
    histories: table.Repeats, target: table.Target, communications: Sequence[float] = COMMUNICATIONS, title: str = ""
) -> Figure:
    """Accuracy over simulated time, a panel a communication cost, the target dotted.

    A panel ends a little after the last run has reached the target, or with the longest run where one never does.
    """
    import matplotlib as mpl
    import matplotlib.figure

    with mpl.rc_context(drawing.RC):
        drawn = matplotlib.figure.Figure(figsize=(3.6 * len(communications), 4.5), layout="constrained")
        panels = drawn.subplots(1, len(communications), sharey=True, squeeze=False)[0]
        for ax, cost in zip(panels, communications, strict=True):
            plots.accuracy_over_time(histories, cost, ax=ax)
            ax.get_legend().remove()
            ax.axhline(target.accuracy, color="#555555", linewidth=1.0, linestyle=":")
            ax.set_title(f"communication cost {cost:g}")
            ax.set_ylabel("")
            times = [run.time_to(target.accuracy, cost) for runs in histories.values() for run in runs]
            if all(map(math.isfinite, times)):
                ax.set_xlim(0, 1.25 * max(times))
            ax.set_xlabel("simulated time (time units)")
        panels[0].set_ylabel("mean test accuracy")
        ends = [run.final_accuracy for runs in histories.values() for run in runs]
        lowest = min(filter(math.isfinite, ends), default=1.0)  # no curve stays below the panel
        panels[0].set_ylim(max(0.0, min(target.accuracy - 0.4, lowest - 0.1)), 1.0)
        counts = "/".join(map(str, sorted({len(runs) for runs in histories.values()})))
        notes = [title] if title else []
        notes += [f"lines: mean of {counts} seeds, bands: lowest to highest"] if counts != "1" else []
        notes.append(f"dotted: target of {100 * target.accuracy:.1f} %")
        drawn.legend(
            panels[0].get_legend_handles_labels()[0],
            [f"{table.label(name)} ({runs[0].evaluation})" for name, runs in histories.items()],
            loc="outside lower center",
            ncols=min(4, -(-len(histories) // 2)),
            title="; ".join(notes),
            frameon=False,
        )
    return drawn


def writable(out: str | os.PathLike) -> Path:
    """The folder, made where missing.

    Raises:
        ValueError: nothing can be written there.
    """
    folder = Path(out)
    probe = folder / ".writable"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ValueError(
            f"out={os.fspath(out)!r}: {error.strerror or error}; give a folder that can be written to"
        ) from None
    return folder
