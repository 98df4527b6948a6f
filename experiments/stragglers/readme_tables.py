"""Tables of the README, from `results/grid_*.csv` and `results/map_errors.csv`.

python experiments/stragglers/readme_tables.py
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.pages import ends, markdown, write
from experiments.stragglers import answer_tables
from experiments.stragglers.answer_rows import MAIN_EVALUATION, PHONE_SLOWDOWN

HERE = Path(__file__).parent
MOST = "full, doubling, fastest, over-selection, deadline, TiFL, Oort, partial work"
DRAWN = ("exponential", "lognormal", "uniform")


def grid(dataset: str, judge: str | None = None) -> pd.DataFrame:
    """Load the runs on a data set, with one evaluation, by default the main one of each method."""
    frame = pd.read_csv(HERE / "results" / f"grid_{dataset}.csv")
    return frame[
        frame["judge"] == (judge or frame["personalization"].map(MAIN_EVALUATION))
    ]


def select(frame: pd.DataFrame, **matching: Any) -> pd.DataFrame:
    """Select the rows with these values."""
    for column, value in matching.items():
        frame = frame[frame[column] == value]
    return frame


def mean_time(frame: pd.DataFrame, answer: str, cost: float = 0.0, **at: Any) -> float:
    """Return the mean time to the target over seeds; inf if a seed did not reach it."""
    times = select(frame, answer=answer, cost=cost, **at)["time"]
    assert len(times), (answer, cost, at)
    return float(times.fillna(np.inf).mean())


def mean_times(frame: pd.DataFrame, answers: str, cost: float = 0.0, **at: Any) -> str:
    """Format mean times of several answers; "1 of 3" if only some seeds reached the target."""
    return ", ".join(
        f"{answer} {time_or_share(frame, answer, cost, **at)}"
        for answer in answers.split(", ")
    )


def time_or_share(frame: pd.DataFrame, answer: str, cost: float = 0.0, **at: Any) -> str:
    """Format the mean time of an answer; "1 of 3" if only some seeds reached the target."""
    value = mean_time(frame, answer, cost, **at)
    reached = np.isfinite(select(frame, answer=answer, cost=cost, **at)["time"])
    return (
        answer_tables.format_number(value)
        if np.isfinite(value)
        else f"{reached.sum()} of {len(reached)}"
    )


def speed_up_range(
    frame: pd.DataFrame, answer: str, than: str, cost: float = 0.0, **at: Any
) -> str:
    """Format the speed-up of an answer over another to the target, lowest and highest over clocks and classes."""
    ratios = []
    for clock in at.pop("clocks", DRAWN):
        for classes in sorted({*frame["classes"]}):
            one, other = (
                mean_time(frame, name, cost, clock=clock, classes=classes, **at)
                for name in (answer, than)
            )
            ratios.append(other / one if np.isfinite(one) else 0.0)
    return ends(ratios, ".2g")


def final_accuracy(frame: pd.DataFrame, answer: str, **at: Any) -> str:
    """Format the mean accuracy at the end of the runs."""
    return f"{100 * select(frame, answer=answer, cost=0.0, **at)['final'].mean():.1f} %"


def final_accuracies(frame: pd.DataFrame, answers: str, **at: Any) -> str:
    """Format the accuracies of several answers at the end of the runs in %, with standard deviations over seeds."""
    finals = {
        name: 100 * select(frame, answer=name, cost=0.0, **at)["final"]
        for name in answers.split(", ")
    }
    return ", ".join(
        f"{name} {values.mean():.1f} ± {values.std():.1f}"
        for name, values in finals.items()
    )


def never_selected(frame: pd.DataFrame, answers: str, **at: Any) -> str:
    """Format the mean share of clients that never took part, for several answers."""
    shares = {
        name: select(frame, answer=name, cost=0.0, **at)["never"].mean()
        for name in answers.split(", ")
    }
    return ", ".join(f"{name} {100 * share:.0f} %" for name, share in shares.items())


def claims() -> str:
    """Table of claims with the verdict on this task and the numbers behind it."""
    digits = grid("digits")
    by_name = {name: select(digits, personalization=name) for name in MAIN_EVALUATION}
    rep, avg, ditto = by_name["FedRep"], by_name["FedAvg"], by_name["Ditto"]
    size, exp5 = "digits, 3 seeds", {"clock": "exponential", "classes": 5}

    def over(
        answer: str,
        than: str,
        cost: float = 0.0,
        names: tuple[str, ...] = tuple(MAIN_EVALUATION),
    ) -> str:
        return ", ".join(
            f"{name} {speed_up_range(by_name[name], answer, than, cost)}"
            for name in names
        )

    def by_cost(frame: pd.DataFrame, answers: str, **at: Any) -> str:
        return "; ".join(
            f"C = {cost:g}: {mean_times(frame, answers, cost, **at)}"
            for cost in (0.0, 1.0, 10.0)
        )

    def narrower(*others: str, cost: float = 0.0, **at: Any) -> str:
        names = (
            *others,
            *(f"{name}, partial work" for name in ("HeteroFL", "FedRolex", "FjORD")),
        )
        return ", ".join(
            f"{name.split(',')[0]} {time_or_share(avg, name, cost, **at)}"
            for name in names
        )

    of_50 = speed_up_range(avg, "FedBuff", "FedBuff, k at work")
    of_10 = [
        speed_up_range(avg, "FedBuff, k at work", "uniform", cost) for cost in (0.0, 10.0)
    ]
    rest = "Oort, TiFL, over-selection, deadline"
    two = {"clock": "exponential", "classes": 2}
    ends_at = select(rep, cost=0.0, **two).groupby("answer")[["final", "never"]].mean()
    rows = [
        (
            "Doubling reaches the target sooner than waiting for all clients if rounds cost nothing",
            "in part",
            f"{over('doubling', 'full')} times as fast, over clocks and classes",
            f"{size}, C = 0, three drawn clocks",
        ),
        (
            "A high cost of a round removes this gain",
            "in part",
            f"at a cost of 10 mean times {over('doubling', 'full', 10.0)} times as fast",
            size,
        ),
        (
            "SRPFL beats Oort, TiFL, over-selection and deadlines",
            "in part",
            f"FedRep, 5 classes, Exp(1): {by_cost(rep, f'doubling, {rest}', **exp5)}. Ditto, 2 classes, C = 0: "
            f"{mean_times(ditto, f'doubling, {rest}', **two)}",
            size,
        ),
        (
            "Doubling beats FedBuff",
            "fails in most cases",
            "both with FedAvg, for which FedBuff was made, after fine-tuning, Exp(1), 5 classes: "
            f"{by_cost(avg, 'doubling, FedBuff', **exp5)}; 2 classes: {by_cost(avg, 'doubling, FedBuff', **two)}",
            f"{size}; FedBuff evaluated every 5 steps",
        ),
        (
            "FedBuff as published is faster than rounds of as many clients",
            "in part",
            f"FedAvg, 10 clients at work against 10 at random: {of_10[0]} times as fast at C = 0, {of_10[1]} at C = "
            f"10, over clocks and classes. With all 50 at work {of_50} times as fast as with 10 at C = 0",
            f"{size}, after fine-tuning",
        ),
        (
            "A server that steps at every arrival (FedAsync) is faster than one with a buffer of 10",
            "in part",
            f"FedAvg, Exp(1), 5 classes: {by_cost(avg, 'FedAsync, FedBuff', **exp5)}; 2 classes: "
            f"{by_cost(avg, 'FedAsync, FedBuff', **two)}",
            f"{size}; FedAsync's options at their defaults, not tuned",
        ),
        (
            "FedAT helps against stragglers",
            "fails here",
            f"FedAvg, Exp(1), C = 0, 2 classes: {mean_times(avg, 'FedAT', **two)}; 5 classes: "
            f"{mean_times(avg, 'FedAT', **exp5)} seeds reach the target, and its 100 steps end at "
            f"{final_accuracy(avg, 'FedAT', **exp5)}",
            f"{size}; lambda of 0.4 not tuned",
        ),
        (
            "A narrower model is as good as fewer epochs",
            "in part",
            "; ".join(
                f"{classes} classes, Exp(1), C = {cost:g}: "
                + narrower(
                    "partial work", cost=cost, classes=classes, clock="exponential"
                )
                for classes in (2, 5)
                for cost in (0.0, 10.0)
            ),
            f"{size}, FedAvg after fine-tuning",
        ),
        (
            "The fastest k clients are enough",
            "in part",
            f"FedRep, Exp(1), 5 classes, C = 0: {mean_times(rep, 'fastest, doubling, full', **exp5)}; with 2 classes "
            f"`fastest` ends at {final_accuracy(rep, 'fastest', **two)} against {final_accuracy(rep, 'full', **two)}; "
            f"but {100 * ends_at.loc['fastest', 'never']:.0f} % of the clients never take part, and Ditto's own models "
            f"end at {final_accuracy(ditto, 'fastest', **two)}",
            size,
        ),
        (
            "Oort and TiFL are faster than random clients where speeds are skewed",
            "holds in most cases",
            "FedRep, 5 classes, C = 0: "
            + "; ".join(
                f"{c}: {mean_times(rep, 'Oort, TiFL, uniform', clock=c, classes=5)}"
                for c in DRAWN
            ),
            size,
        ),
        (
            "Partial work is a safe answer",
            "in part",
            f"{over('partial work', 'full')} times as fast as `full` at C = 0, "
            f"{over('partial work', 'full', 10.0)} at C = 10; with phones, FedRep, 5 classes: "
            f"{mean_times(rep, 'partial work, full', clock='phones', classes=5)}",
            size,
        ),
        (
            "On phones the order of the answers is the same",
            "in part",
            f"FedRep, 5 classes, seconds: {mean_times(rep, MOST, clock='phones', classes=5)}",
            f"{size}, 333 phones' speeds, 19 networks",
        ),
        (
            "On phones that come and go the order of the answers is the same",
            "fails here",
            f"FedRep, 5 classes, seconds: {mean_times(rep, MOST, clock='phones come and go', classes=5)}; share of "
            f"clients never seen: {never_selected(rep, 'full, doubling, Oort', clock='phones come and go', classes=5)}",
            f"{size}, sessions of 710 volunteers' phones, a round {PHONE_SLOWDOWN} times as long as above",
        ),
    ]
    seconds = [
        narrower("full", "partial work", "doubling", clock=clock, classes=5)
        for clock in ("phones", "phones come and go")
    ]
    rows.append(
        (
            "Narrower models save time on phones",
            "holds in most cases",
            f"FedAvg, 5 classes, seconds: {seconds[0]}; phones that come and go: {seconds[1]}",
            f"{size}, after fine-tuning; FjORD is behind HeteroFL in all of these",
        )
    )
    judges = {"the global model": grid("digits", "global"), "after fine-tuning": avg}
    remembered = [
        f"{classes} classes, {judge}: "
        + show(select(frame, personalization="FedAvg"), clock=clock, classes=classes)
        for clock, show in (
            (
                "phones come and go",
                lambda frame, **at: final_accuracies(
                    frame, "uniform, MIFA, FedVARP", **at
                ),
            ),
            (
                "phones come and go",
                lambda frame, **at: mean_times(frame, "uniform, MIFA, FedVARP", **at),
            ),
            (
                "exponential",
                lambda frame, **at: mean_times(frame, "uniform, MIFA, FedVARP", **at),
            ),
        )
        for classes in (2, 5)
        for judge, frame in judges.items()
    ]
    rows.append(
        (
            "The memory of absent clients' updates (MIFA, FedVARP) helps 10 clients at random",
            "in part",
            f"FedAvg on phones that come and go, final accuracy in %: {'; '.join(remembered[:4])}. Seconds to the "
            f"target: {'; '.join(remembered[4:8])}. Exp(1), C = 0, time to the target: {'; '.join(remembered[8:])}",
            f"{size}; the global model ends higher, the fine-tuned one does not",
        )
    )
    both = select(grid("mnist"), personalization="FedAvg", clock="exponential")
    of_buffer = "; ".join(
        f"{classes} classes: " + by_cost(both, "doubling, FedBuff, full", classes=classes)
        for classes in (2, 5)
    )
    rows.append(
        (
            "On MNIST with the SRPFL paper's MLP doubling beats FedBuff",
            "fails in most cases",
            f"FedAvg after fine-tuning, {of_buffer}",
            "MNIST, 50 clients of 60 images, Exp(1), 2 seeds; FedBuff evaluated every 5 steps",
        )
    )
    mnist = select(grid("mnist"), personalization="FedRep", clock="exponential")
    rows.append(
        (
            "On MNIST with the SRPFL paper's MLP the order of FedRep's answers is the same",
            "in part",
            "; ".join(
                f"{classes} classes, C = {cost:g}: {mean_times(mnist, MOST, cost, classes=classes)}"
                for classes in (2, 5)
                for cost in (0.0, 10.0)
            ),
            "MNIST, 50 clients of 60 images, Exp(1), 2 seeds",
        )
    )
    return markdown([("claim", "verdict", "found", "size"), *rows])


def times_table(name: str, classes: int, dataset: str = "digits") -> Callable[[], str]:
    """Return the writer of the times of a personalization."""
    return lambda: answer_tables.times(
        select(grid(dataset), personalization=name), classes
    )


def work_table(
    name: str, clock: str, classes: int = 2, dataset: str = "digits"
) -> Callable[[], str]:
    """Return the writer of the distribution of work of a personalization."""
    return lambda: answer_tables.work(
        select(grid(dataset), personalization=name), classes, clock
    )


def rules() -> str:
    """Table of the errors of the rules for doubling on held-out settings."""
    frame = pd.read_csv(HERE / "results/map_errors.csv").query("held_out")
    rows = [
        [
            "rule",
            "target",
            "stages",
            "off by (median)",
            "worst",
            "wrong side of 1",
            "where the speed-up is above 1.25 or below 0.8",
        ]
    ]
    for rule, name in (("stages", "R + d"), ("factor", "R times a factor")):
        for row in frame[frame["rule"] == rule].to_dict("records"):
            factors = f"{row['typical_factor']:.2f}", f"{row['worst_factor']:.1f}"
            sides = (
                f"{100 * row[column]:.0f} %"
                for column in ("wrong_side", "wrong_side_where_clear")
            )
            rows.append(
                [name, f"{100 * row['share']:.0f} %", row["length"], *factors, *sides]
            )
    return markdown(rows)


PARTS: Mapping[str, Callable[[], str]] = {
    "claims": claims,
    "first": lambda: answer_tables.winners(grid("digits")),
    "fedrep": times_table("FedRep", 5),
    "fedrep_work": work_table("FedRep", "exponential"),
    "ditto": times_table("Ditto", 2),
    "ditto_work": work_table("Ditto", "exponential"),
    "come_and_go": work_table("FedRep", "phones come and go", 5),
    "rules": rules,
    "mnist": times_table("FedRep", 5, "mnist"),
}
PAGES = {HERE / "README.md": PARTS}

if __name__ == "__main__":
    write(PAGES)
