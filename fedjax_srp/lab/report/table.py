"""Methods compared in one table: final accuracy, its worst tenth, simulated time to a common target, host time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np

from fedjax_srp.lab.report.fairness import shares
from fedjax_srp.methods import RECIPES, label
from fedjax_srp.parts.checks import as_annotated, printable
from fedjax_srp.parts.part import AtLeast
from fedjax_srp.results.history import History
from fedjax_srp.results.measures import last

if TYPE_CHECKING:
    import pandas as pd

QUARTERS = ("fastest_quarter", "second_quarter", "third_quarter", "slowest_quarter")

Cost = Annotated[float, AtLeast(0), "give a cost in time units, 0 for free rounds"]
Repeats = Mapping[str, Sequence[History]]  # method -> its runs, one a seed


class Target(NamedTuple):
    """Target accuracy of all methods, and its origin."""

    accuracy: float
    reason: str


def check_target(target: float | None) -> None:
    """Raise a ValueError for a target that is not an accuracy."""
    if target is not None and not 0 < target <= 1:
        raise ValueError(
            f"target={target}: accuracies lie between 0 and 1; give 0.9 for 90 %"
        )


def check_communications(costs: Sequence[float]) -> None:
    """Raise a ValueError unless there is at least one cost, and all are valid."""
    if not as_annotated("communications", costs, tuple[Cost, ...]):
        raise ValueError("communications is empty: give at least one cost, e.g. 0")


def common_target(histories: Repeats, fraction: float = 0.95) -> Target:
    """Return a fraction of FedRep's final accuracy, mean over its runs; without FedRep, of the best method's.

    It is rounded to 0.1 %, as accuracies are shown. With several rows of FedRep, the best is taken; of rows equal at
    0.1 %, the first.
    """
    final = {
        name: float(np.mean([run.final_accuracy for run in runs]))
        for name, runs in histories.items()
    }
    references = [
        name for name, runs in histories.items() if "fedrep" in (name, runs[0].name)
    ] or list(final)
    best = max(
        references,
        key=lambda name: (
            round(final[name], 3) if math.isfinite(final[name]) else -math.inf
        ),
    )
    percent = f"{100 * fraction:g} % of the final accuracy of {named(best)}"
    reason = percent if len(histories[best]) == 1 else f"{percent} (mean over runs)"
    return Target(round(fraction * final[best], 3), reason)


def comparison(
    histories: Repeats,
    target: float,
    communications: Sequence[float] = (0, 10, 100),
    twins: Mapping[str, str] | None = None,
) -> pd.DataFrame:
    """Return a table with one row per method.

    Columns: `method`; `evaluation` of its runs; `judged_on`, "test" or "validation" data; `twin`, the same algorithm
    without doubling; `runs` and `diverged`, numbers of runs; `clock_communication`, the clock's own communication time
    per round, besides a cost C (nan if unknown); `final_accuracy`, `worst_decile` and, by expected speed of the
    clients, `fastest_quarter`, `second_quarter`, `third_quarter`, `slowest_quarter`, means over the runs, and their
    sample standard deviations `..._std` (nan for one run); `target`; `reached`, the number of runs that reached it;
    `reached_at_once`, the number that reached it by their first evaluation, so that their time is an upper bound;
    `slowest_tenth`, `gini`, `never`, `wasted_time`, `staleness` and `bytes_to_target` of `shares.shares`; for every
    communication cost C `time_C` (mean; inf unless every run reached the target), `time_C_std` and `speed_up_C`, the
    twin's mean time over the method's (nan if either is missing, infinite or a bound); `compile_seconds` and
    `host_seconds`, which include them, of the simulator for all runs together. Methods that share one training, as
    FedAvg and FedAvg-FT may, each have all of its seconds.

    Args:
        histories: method -> its runs.
        target: mean accuracy, see `common_target`; nan, which is never reached, without accuracies.
        communications: costs per communicating round, in time units.
        twins: method -> its twin; None for those of `srp.methods`.
    """
    import pandas as pd

    costs = {exact(cost): cost for cost in communications}
    if twins is None:
        twins = {
            name: recipe.twin
            for name, recipe in RECIPES.items()
            if recipe.twin is not None
        }
    rows: dict[str, dict[str, Any]] = {}
    for name, runs in histories.items():
        row: dict[str, Any] = {"method": name}
        for column in ("evaluation", "judged_on"):
            row[column] = "/".join(
                dict.fromkeys(getattr(run, column) or "" for run in runs)
            )
        row |= {"twin": twins.get(name, ""), "runs": len(runs)}
        row["diverged"] = sum(run.diverged is not None for run in runs)
        row["clock_communication"] = _clock_communication(runs)
        row["final_accuracy"], row["final_accuracy_std"] = _spread(
            [run.final_accuracy for run in runs]
        )
        row["worst_decile"], row["worst_decile_std"] = _spread(
            [last(run.worst_decile) for run in runs]
        )
        quarters = np.array([run.speed_quartiles() for run in runs])
        for quarter, values in zip(QUARTERS, quarters.T, strict=True):
            row[quarter], row[f"{quarter}_std"] = _spread(values.tolist())
        row["target"] = target
        row["reached"] = sum(math.isfinite(time_to(run, target)) for run in runs)
        row["reached_at_once"] = sum(_reaches_at_once(run, target) for run in runs)
        row |= shares(runs, target)
        for column, cost in costs.items():
            row[f"time_{column}"], row[f"time_{column}_std"] = _spread(
                [time_to(run, target, cost) for run in runs]
            )
            row[f"speed_up_{column}"] = math.nan
        row |= {f"{what}_seconds": seconds(runs, what) for what in ("compile", "host")}
        rows[name] = row
    for row in rows.values():
        twin_row = rows.get(row["twin"], {"reached_at_once": 0})
        for column in costs:
            own, twin = row[f"time_{column}"], twin_row.get(f"time_{column}", math.inf)
            known = not (row["reached_at_once"] or twin_row["reached_at_once"])
            if known and math.isfinite(own) and math.isfinite(twin) and own > 0:
                row[f"speed_up_{column}"] = twin / own
    return pd.DataFrame(list(rows.values()))


def render(frame: pd.DataFrame, target: Target) -> str:
    """Return the table of `comparison` as text, with notes that explain its numbers."""
    costs = [
        name.removeprefix("speed_up_")
        for name in frame.columns
        if name.startswith("speed_up_")
    ]
    runs = sorted(set(frame["runs"]))
    times = [f"time at C = {cost}" for cost in costs]
    lines = [
        [
            "method",
            "accuracy %",
            "worst tenth %",
            "quarters %, fastest first",
            *times,
            "compiling s",
            "running s",
        ]
    ]
    rows = frame.to_dict("records")
    for row in rows:
        accuracy = [
            _percent(row[name], row[f"{name}_std"])
            for name in ("final_accuracy", "worst_decile")
        ]
        quarters = "/".join(_percent(row[name]) for name in QUARTERS)
        times = [_time(row, cost) for cost in costs]
        compiling, everything = row["compile_seconds"], row["host_seconds"]
        host = [
            f"{each:.1f}" if math.isfinite(each) else "-"
            for each in (compiling, everything - compiling)
        ]
        lines.append([named(row["method"]), *accuracy, quarters, *times, *host])
    spread = (
        f"mean ± sample standard deviation over {'/'.join(map(str, runs))} seeds"
        if runs[-1] > 1
        else "one seed"
    )
    names = frame["method"].map(named)
    without_options = names.str.partition(", ")[0]
    if len({*zip(without_options, frame["evaluation"], strict=True)}) == len(
        {*without_options}
    ):
        names = without_options
    judged = names.groupby(frame["evaluation"], sort=False).agg(
        lambda of_one: ", ".join(dict.fromkeys(of_one))
    )
    judged.index = judged.index.map(printable)
    by = "; ".join(f"{evaluation} ({names})" for evaluation, names in judged.items())
    notes = [
        f"judged by: {by if len(judged) > 1 else judged.index[0]}",
        f"accuracy: of every client on its own {'/'.join(dict.fromkeys(frame['judged_on']))} data, after the last "
        f"round; {spread}",
        "worst tenth: of the tenth of the clients that fare worst; quarters: of the clients by expected speed",
        f"time: simulated time until the mean accuracy reaches {shown(target)}, {target.reason};",
        "      C is the cost of a round's communication; both in time units",
        "compiling s, running s: seconds that the simulator took, all seeds together",
    ]
    if any("-" in line[-2 - len(costs) : -2] for line in lines[1:]):
        notes.append(
            "-: rounds overlap, and a cost belongs in the clock (srp.clocks.Fixed(..., communication=C)), or times "
            "include communication already (srp.clocks.Devices)"
        )
    if clocked := [row for row in rows if row["clock_communication"] > 0]:
        each = ", ".join(
            f"{named(row['method'])} {row['clock_communication']:g}" for row in clocked
        )
        notes.append(
            f"C comes on top of the communication that a clock has already: {each}"
        )
    notes += [
        f"{named(r['method'])}: {r['diverged']} of {r['runs']} runs diverged"
        for r in rows
        if r["diverged"]
    ]
    if sum(frame["reached_at_once"]):
        notes.append(
            "≤: reached by the first evaluation, maybe sooner; evaluate more often to compare such times"
        )
    if frame[[f"speed_up_{cost}" for cost in costs]].notna().to_numpy().any():
        notes.append(
            "(4.0x): reached in a quarter of the time of the same algorithm without doubling; below 1x is slower"
        )
    return "\n".join([*_aligned(lines), "", *notes])


def named(method: str) -> str:
    """Return the label of a method for a terminal, without control characters."""
    return printable(label(method))


def printable_cells(frame: pd.DataFrame) -> pd.DataFrame:
    """Replace the control characters in the names and strings of a table, see `printable`."""
    frame = frame.rename(columns=printable)
    for name in frame.select_dtypes(exclude=["number", "bool"]):
        frame[name] = frame[name].map(
            lambda value: printable(value) if isinstance(value, str) else value
        )
    return frame


def _clock_communication(runs: Sequence[History]) -> float:
    """Return the communication time that the clock adds to a round; nan unless it is a known number."""
    options = runs[0].config.get("clock_options")
    while (
        options and "clock" in options
    ):  # a clock within another, as in `clocks.Failing`
        options = options["clock"]
    cost = math.nan if options is None else options.get("communication", 0.0)
    return float(cost) if isinstance(cost, int | float) else math.nan


def seconds(runs: Sequence[History], what: str) -> float:
    """Return "compile" or "host" seconds of the simulator for all runs; each run of a batch has those of the batch."""
    return sum(
        getattr(run, f"{what}_seconds") / (run.config.get("num_seeds") or 1)
        for run in runs
    )


def _spread(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and sample standard deviation, which is nan for one value or a mean that is not finite."""
    array = np.asarray(values, np.float64)
    mean = float(array.mean()) if len(array) else math.nan
    return mean, float(array.std(ddof=1)) if len(array) > 1 and math.isfinite(
        mean
    ) else math.nan


def time_to(run: History, target: float, cost: float = 0.0) -> float:
    """Return the simulated time to a target; nan if the cost cannot be added, inf if the target is nan."""
    if cost and not run.takes_communication:
        return math.nan
    return math.inf if math.isnan(target) else run.time_to(target, cost)


def shown(target: Target) -> str:
    """Return a target in percent, with one decimal unless it was given more precisely."""
    percent = 100 * target.accuracy
    if math.isnan(percent):
        return "an unknown target"
    return (
        f"{percent:.1f} %"
        if math.isclose(percent, round(percent, 1))
        else f"{percent:g} %"
    )


def exact(cost: float) -> str:
    """Return a cost in its shortest exact form."""
    return f"{cost:g}" if float(f"{cost:g}") == cost else repr(float(cost))


def _reaches_at_once(run: History, target: float) -> bool:
    return len(run.eval_round) > 0 and bool(
        time_to(run, target) <= run.eval_elapsed()[0] < math.inf
    )


def _percent(mean: float, std: float = math.nan) -> str:
    if not math.isfinite(mean):
        return "-"
    return f"{100 * mean:.1f}" + (f" ± {100 * std:.1f}" if math.isfinite(std) else "")


def _time(row: Mapping[str, Any], cost: str) -> str:
    mean, std, speed_up = (
        row[f"time_{cost}"],
        row[f"time_{cost}_std"],
        row[f"speed_up_{cost}"],
    )
    if math.isnan(mean):
        return "-"
    if not math.isfinite(mean):
        return (
            f"{row['reached']} of {row['runs']} seeds"
            if row["reached"]
            else "not reached"
        )
    digits = (
        0
        if mean >= 100
        else 1
        if mean >= 1 or not mean
        else 1 - math.floor(math.log10(mean))
    )  # two digits
    text = "≤ " * bool(row["reached_at_once"]) + f"{mean:.{digits}f}"
    text += f" ± {std:.{digits}f}" if math.isfinite(std) else ""
    if not math.isfinite(speed_up):
        return text
    return f"{text} ({speed_up:.1f}x)" if speed_up >= 0.1 else f"{text} ({speed_up:.2f}x)"


def _aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """Format rows of cells as lines: the last two columns, seconds, right-aligned, all others left-aligned."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    sides = [str.ljust] * (len(widths) - 2) + [str.rjust] * 2
    texts = [
        "  ".join(map(lambda side, word, width: side(word, width), sides, row, widths))
        for row in lines
    ]
    return [texts[0], "-" * len(texts[0]), *texts[1:]]
