"""Tables of the README, from `results/table.csv`.

python experiments/personalization/readme_tables.py
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

import fedjax_srp as srp
from experiments import pages
from experiments.personalization.rows import ROWS

HERE = Path(__file__).parent
CLEAR = 3  # points, three standard errors of an accuracy
SIZE = (
    "not PFLlib's size: 100 of 2,250 training images a client in the mean, "
    "20 of 2,000 rounds, 10 times its step size"
)


class Result(NamedTuple):
    """Result of one row of the table in one training."""

    evaluation: str
    rounds: int
    best: str  # highest accuracy of all evaluations in %, as PFLlib reports it
    best_round: int
    last: str  # accuracy after the last round in %
    cpu_seconds: int  # of training, compilation and evaluation


class Point(NamedTuple):
    """A point of a row's curve: an evaluation."""

    round: int
    seconds: str  # simulated, under phones; empty without their traces
    megabytes: str  # sent and received by all clients until then
    mean: str  # accuracy over test images in %
    worst_tenth: str  # mean accuracy of the worst tenth of the clients in %


IDENTITY = ("scale", "method", "seed")  # of a row of the file
COLUMNS = (*IDENTITY, *Result._fields)
SENTENCES = {  # -> the method whose bar counts
    "methods with a model for each client are ahead of FedAvg's one model": "fedavg",
    "they are ahead of each client training alone": "local_only",
    "the newer ones are ahead of fine-tuning FedAvg's last layer": "fedavg_ft",
}


def rows_of_scale(scale: str) -> pd.DataFrame:
    """Return the rows of one scale."""
    frame = pages.csv("personalization/results/table.csv")
    return frame[frame["scale"] == scale]


def row(*cells: object) -> str:
    """Format a row of a table."""
    return f"| {' | '.join(map(str, cells))} |"


def accuracies(frame: pd.DataFrame) -> str:
    """Table of accuracies, highest after the last round first, and the number and cost of the trainings."""
    if frame.empty:
        return "Not run yet."
    head = ("method", "judged by", "best round", "last round", "the best was round")
    lines = [row(*head, "seeds"), "|" + "---|" * 6]
    of_methods = frame.groupby("method", sort=False)
    order = of_methods["last"].mean().sort_values(ascending=False, kind="stable")
    for name in order.index:
        seeds = of_methods.get_group(name)
        shown = [pages.pm(seeds[kind].to_list(), 1) for kind in ("best", "last")]
        if not seeds["best"].max():  # right on no image: the parameters are nan
            shown = ["diverged", "diverged"]
        at = ", ".join(map(str, seeds["best_round"]))
        evaluation = f"`{seeds['evaluation'].iloc[0]}`"
        at = "the last" if ROWS[name].after else at
        lines.append(row(srp.methods.label(name), evaluation, *shown, at, len(seeds)))
    trainings = frame.assign(training=[ROWS[name].training for name in frame["method"]])
    seconds = trainings.drop_duplicates(["training", "seed"], keep="last")["cpu_seconds"]
    summary = (
        f"{len(seconds)} trainings, {seconds.sum() / 60:.0f} minutes of processor time."
    )
    missing = [srp.methods.label(name) for name in ROWS if name not in order]
    if missing:
        summary += f" Not run yet: {', '.join(missing)}."
    return "\n".join([*lines, "", textwrap.fill(summary, 120)])


def clients_seconds(scale: str) -> pd.DataFrame:
    """Return seconds of a round for each seed's phones, and bytes of a client, by training."""
    frame = pages.csv("personalization/results/costs.csv")
    return frame[frame["scale"] == scale].set_index("method")


def reached(curve: pd.DataFrame, target: float) -> pd.Series | None:
    """Return the first point of a curve at the target; None if there is none."""
    points = curve[curve["mean"] >= target]
    return None if points.empty else points.iloc[0]


def bounded(point: pd.Series, points: pd.DataFrame, text: str) -> str:
    """Mark what a curve's first evaluation has as an upper bound."""
    if point["round"] == points["round"].iloc[0]:
        return f"≤ {text}"
    return text


def over_seeds(texts: list[str]) -> str:
    """Join what each seed has, once if all are equal."""
    return texts[0] if len({*texts}) == 1 else ", ".join(texts)


def times(scale: str, targets: tuple[int, int]) -> str:
    """Table of seconds under phones, bytes and the worst tenth, highest mean after the last round first."""
    frame = rows_of_scale(scale)
    curves = pages.csv("personalization/results/curves.csv")
    curves = curves[curves["scale"] == scale]
    if curves.empty:
        return "Not run yet."
    costs = clients_seconds(scale)
    low, high = targets
    head = ["method", "s a round", "MB up + down", f"s to {low} %", f"s to {high} %"]
    head += [f"GB to {high} %", "worst tenth %", "seeds with times"]
    lines = [row(*head), "|" + "---|" * len(head)]
    order = frame.groupby("method")["last"].mean()
    for name in order.sort_values(ascending=False, kind="stable").index:
        cells = ["not counted", "not counted"]
        training = ROWS[name].training
        if training in costs.index:
            cost = costs.loc[training]
            seconds = [float(each) for each in cost["seconds"].split()]
            cells[0] = " / ".join(f"{each:.0f}" for each in seconds)
            sent = (cost["bytes_up"] / 1e6, cost["bytes_down"] / 1e6)
            cells[1] = " + ".join(f"{each:.2f}" for each in sent)
        of_method = curves[curves["method"] == name]
        seeds = [points for _, points in of_method.groupby("seed")]
        if not seeds:
            lines.append(row(srp.methods.label(name), *cells, *["not kept"] * 4, 0))
            continue
        for target in targets:
            found = [reached(points, target) for points in seeds]
            shown = [
                "none"
                if point is None
                else "not counted"
                if np.isnan(point["seconds"])
                else bounded(point, points, f"{point['seconds']:,.0f}")
                for point, points in zip(found, seeds, strict=True)
            ]
            cells.append(over_seeds(shown))
        sent = [
            "none"
            if point is None
            else bounded(point, points, f"{point['megabytes'] / 1e3:.2f}")
            for point, points in ((reached(points, high), points) for points in seeds)
        ]
        cells.append(over_seeds(sent))
        worst = [float(points["worst_tenth"].iloc[-1]) for points in seeds]
        cells.append(pages.pm(worst, 1))
        lines.append(row(srp.methods.label(name), *cells, len(seeds)))
    return "\n".join(lines)


def parts_of_time() -> str:
    """Say what part of a round messages are, here and at PFLlib's size."""
    found = {}
    for scale in ("cpu", "full"):
        costs = clients_seconds(scale)
        for name in ("local_only", "fedavg", "fedrep", "ditto", "pfedme"):
            seconds = costs.loc[name, "seconds"].split()
            found[scale, name] = " / ".join(f"{float(each):,.0f}" for each in seconds)
    here, full = (
        {name: text for (scale, name), text in found.items() if scale == wanted}
        for wanted in ("cpu", "full")
    )
    return pages.wrapped(
        f"With the phones of seeds 0 / 1 a round of FedAvg takes {here['fedavg']} s, one of clients that send nothing "
        f"{here['local_only']} s, one of FedRep {here['fedrep']}, of Ditto {here['ditto']} and of pFedMe "
        f"{here['pfedme']} s. With all images, where nothing was trained, they take {full['fedavg']}, "
        f"{full['local_only']}, {full['fedrep']}, {full['ditto']} and {full['pfedme']} s."
    )


def verdict(better: int, of: int) -> str:
    """Return the verdict on a sentence about several methods."""
    return "holds" if better == of else "fails" if not better else "in part"


def findings(frame: pd.DataFrame) -> str:
    """Table of common statements about such comparisons, with verdict, numbers and size."""
    best, last = (
        frame.pivot(index="seed", columns="method", values=kind)
        for kind in ("best", "last")
    )
    if not {*SENTENCES.values()} <= {*last}:
        return "Not run yet."
    seeds = sorted(set(last.count()))
    size = f"{SIZE}, {' or '.join(map(str, seeds))} seed{'s' * (seeds[-1] > 1)}"
    lines = [row("sentence", "verdict", "found", "size"), "|---|---|---|---|"]
    judged = [name for name in last if ROWS[name].evaluation != "global"]
    for sentence, bar in SENTENCES.items():
        left_out = {"local_only"}
        if bar == "fedavg_ft":
            left_out |= {"fedavg_ft", "fedprox_ft", "scaffold_ft"}
        others = [name for name in judged if name not in left_out]
        leads = last[others].sub(last[bar], axis=0)
        ahead = leads.min() > 0
        clear = int((ahead & (leads.mean() >= CLEAR)).sum())
        order = last.mean()[ahead.index[ahead]].sort_values(ascending=False)
        labels = ", ".join(srp.methods.label(name) for name in order.index)
        level = f"{last[bar].mean():.1f} % after the last round, with every seed"
        found = f"{len(order)} of {len(others)} above its {level}"
        if 0 < len(order) < 6:
            found += f": {labels}"
        found += f"; {clear} by {CLEAR} points or more"
        lines.append(row(sentence, verdict(len(order), len(others)), found, size))
    gain = (best.mean() - last.mean())[[n for n in last if not ROWS[n].after]]
    most = f"most for {srp.methods.label(gain.idxmax())}: {gain.max():.1f}"
    found = f"{gain.mean():.1f} points in the mean over methods, {most}"
    sentence = (
        "the best of all rounds, chosen on the test data, is more than the last round"
    )
    lines.append(row(sentence, verdict((gain > 0).sum(), len(gain)), found, size))
    return "\n".join(lines)


PAGES: Mapping[Path, pages.Parts] = {
    HERE / "README.md": {
        "cpu": lambda: accuracies(rows_of_scale("cpu")),
        "findings": lambda: findings(rows_of_scale("cpu")),
        "times": lambda: times("cpu", (60, 70)),
        "rounds": parts_of_time,
        "full": lambda: accuracies(rows_of_scale("full")),
    },
}

if __name__ == "__main__":
    pages.write(PAGES)
