"""Methods compared in one table: accuracies, simulated time to a common target, host time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np

from fedjax_srp.lab.report.fairness import mean_and_std, shares
from fedjax_srp.methods import RECIPES, label
from fedjax_srp.parts.checks import as_annotated, printable
from fedjax_srp.parts.part import AtLeast
from fedjax_srp.results.history import History
from fedjax_srp.results.measures import Of, last
from fedjax_srp.results.records import MACHINE

if TYPE_CHECKING:
    import pandas as pd

_IN_LATEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"±": r"$\pm$", "≤": r"$\le$", "<": "$<$", ">": "$>$", "|": "$|$"}
)
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
    """Return a fraction of FedRep's mean final accuracy; without FedRep, of the best method's.

    It is rounded to 0.1 %, as accuracies are shown. With several rows of FedRep, the best is taken;
    of rows equal at 0.1 %, the first. Rows with a diverged run count only where there is no other.
    """
    finite = {
        name: runs
        for name, runs in histories.items()
        if all(run.diverged is None for run in runs)
    }
    candidates = finite or histories
    final = {}
    references = []
    for name, runs in candidates.items():
        final[name] = float(np.mean([run.final_accuracy for run in runs]))
        if "fedrep" in (name, runs[0].name):
            references.append(name)

    def rank(name: str) -> float:
        return round(final[name], 3) if math.isfinite(final[name]) else -math.inf

    best = max(references or candidates, key=rank)
    reason = f"{100 * fraction:g} % of the final accuracy of {named(best)}"
    if len(candidates[best]) > 1:
        reason += " (mean over runs)"
    return Target(round(fraction * final[best], 3), reason)


def comparison(
    histories: Repeats,
    target: float,
    communications: Sequence[float] = (0, 10, 100),
    twins: Mapping[str, str] | None = None,
) -> pd.DataFrame:
    """Return a table with one row per method.

    Columns: `method`; `evaluation` of its runs; `judged_on`, "test" or "validation" data; `twin`,
    the same algorithm without doubling; `runs` and `diverged`, numbers of runs;
    `clock_communication`, the clock's own communication time per round, besides a cost C (nan if
    unknown); `final_accuracy`, `worst_decile` and, by expected speed of the clients,
    `fastest_quarter`, `second_quarter`, `third_quarter`, `slowest_quarter`, means over the runs,
    and their sample standard deviations `..._std` (nan for one run), `worst_decile_clients`, the
    number of clients in that tenth; `target`; `reached`, the
    number of runs that reached it; `slowest_tenth`, `gini`, `never`, `wasted_time`, `staleness`,
    `bytes_to_target`, `slowest_tenth_std`, `slowest_tenth_clients` and `reached_at_once` of
    `fairness.shares`; `first_evaluation`, the round of the first one (the latest of the runs, 0
    without evaluations);
    for every communication cost C `time_C` (mean; inf unless every run reached
    the target), `time_C_std` and `speed_up_C`,
    the twin's mean time over the method's (nan if either is missing, infinite or a bound);
    `compile_seconds` and `host_seconds`, which include them, of the simulator for all runs
    together. Methods that share one training, as FedAvg and FedAvg-FT may, each have all of its
    seconds.

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
        row: dict[str, Any] = {
            "method": name,
            "evaluation": "/".join(dict.fromkeys(run.evaluation or "" for run in runs)),
            "judged_on": "/".join(dict.fromkeys(run.judged_on or "" for run in runs)),
            "twin": twins.get(name, ""),
            "runs": len(runs),
            "diverged": sum(run.diverged is not None for run in runs),
            "clock_communication": _clock_communication(runs),
        }
        row |= mean_and_std("final_accuracy", [run.final_accuracy for run in runs])
        row |= mean_and_std("worst_decile", [last(run.worst_decile) for run in runs])
        row["worst_decile_clients"] = runs[0].group_size("worst_tenth")
        quarters = np.array([run.speed_quartiles() for run in runs])
        for quarter, values in zip(QUARTERS, quarters.T, strict=True):
            row |= mean_and_std(quarter, values.tolist())
        row["target"] = target
        row["reached"] = sum(math.isfinite(time_to(run, target)) for run in runs)
        row |= shares(runs, target)
        first_rounds = [int(run.eval_round[0]) for run in runs if len(run.eval_round)]
        row["first_evaluation"] = max(first_rounds, default=0)
        for column, cost in costs.items():
            row |= mean_and_std(
                f"time_{column}", [time_to(run, target, cost) for run in runs]
            )
            row[f"speed_up_{column}"] = math.nan
        row["compile_seconds"] = seconds(runs, "compile")
        row["host_seconds"] = seconds(runs, "host")
        rows[name] = row
    for row in rows.values():
        twin = rows.get(row["twin"])
        if twin is None or row["reached_at_once"] or twin["reached_at_once"]:
            continue
        for column in costs:
            time = row[f"time_{column}"]
            twins_time = twin[f"time_{column}"]
            if math.isfinite(time) and math.isfinite(twins_time) and time > 0:
                row[f"speed_up_{column}"] = twins_time / time
    return pd.DataFrame(list(rows.values()))


def render(frame: pd.DataFrame, target: Target) -> str:
    """Return the table of `comparison` as text, with notes that explain its numbers."""
    lines = ruled(aligned(_lines(frame), num_right=2))  # seconds
    return "\n".join([*lines, "", *_notes(frame, target)])


def latex(frame: pd.DataFrame, target: Target, more_notes: Sequence[str] = ()) -> str:
    """Return the table of `comparison` for a paper, without the simulator's seconds.

    The notes are comments, and its lines need the LaTeX package booktabs.
    """
    header, *rows = [cells[:-2] for cells in _lines(frame)]
    comments = ["\\usepackage{booktabs}", *_notes(frame, target), *more_notes]
    return "\n".join(
        [
            *(f"% {printable(comment)}" for comment in comments),
            f"\\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}",
            "\\toprule",
            _latex_row(header),
            "\\midrule",
            *map(_latex_row, rows),
            "\\bottomrule",
            "\\end{tabular}",
            "",
        ]
    )


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(cell.translate(_IN_LATEX) for cell in cells) + " \\\\"


def _lines(frame: pd.DataFrame) -> list[list[str]]:
    """Return the cells of the header, and of each row."""
    costs = _costs(frame)
    header = ["method", "accuracy %", "worst tenth %", "quarters %, fastest first"]
    header += [f"time at C = {cost}" for cost in costs]
    header += ["compiling s", "running s"]
    return [header, *(_cells(row, costs) for row in frame.to_dict("records"))]


def _costs(frame: pd.DataFrame) -> list[str]:
    return [
        name.removeprefix("speed_up_")
        for name in frame.columns
        if name.startswith("speed_up_")
    ]


def _cells(row: Mapping[str, Any], costs: Sequence[str]) -> list[str]:
    compiling = row["compile_seconds"]
    return [
        named(row["method"]),
        _percent(row["final_accuracy"], row["final_accuracy_std"]),
        _percent(row["worst_decile"], row["worst_decile_std"]),
        "/".join(_percent(row[name]) for name in QUARTERS),
        *(time_text(row, cost) for cost in costs),
        _seconds(compiling),
        _seconds(row["host_seconds"] - compiling),
    ]


def _notes(frame: pd.DataFrame, target: Target) -> list[str]:
    costs = _costs(frame)
    rows = frame.to_dict("records")
    runs = sorted(set(frame["runs"]))
    spread = "one seed"
    if runs[-1] > 1:
        spread = f"mean ± sample standard deviation over {'/'.join(map(str, runs))} seeds"
    judged_on = "/".join(dict.fromkeys(frame["judged_on"]))
    sizes = "/".join(f"{size:g}" for size in dict.fromkeys(frame["worst_decile_clients"]))
    worst = "1 client" if sizes == "1" else f"{sizes} clients"
    notes = [
        f"judged by: {_evaluations(frame)}",
        f"accuracy: of every client on its own {judged_on} data, after the last round; {spread}",
        f"worst tenth: of the tenth of the clients that fare worst ({worst}); "
        "quarters: of the clients by expected speed",
        f"time: simulated time until the mean accuracy reaches {shown(target)}, {target.reason};",
        "      C is the cost of a round's communication; both in time units",
        "compiling s, running s: seconds that the simulator took, all seeds together",
    ]
    if frame[[f"time_{cost}" for cost in costs]].isna().to_numpy().any():
        notes.append(
            "-: rounds overlap, and a cost belongs in the clock "
            "(srp.clocks.Fixed(..., communication=C)), or times include communication already "
            "(srp.clocks.Devices)"
        )
    clocked = [row for row in rows if row["clock_communication"] > 0]
    if clocked:
        costs_of = [
            f"{named(row['method'])} {row['clock_communication']:g}" for row in clocked
        ]
        notes.append(
            f"C comes on top of the communication that a clock has already: {', '.join(costs_of)}"
        )
    for row in rows:
        if row["diverged"]:
            name = named(row["method"])
            notes.append(f"{name}: {row['diverged']} of {row['runs']} runs diverged")
    at_once = [row["first_evaluation"] for row in rows if row["reached_at_once"]]
    if at_once:
        note = "≤: reached by the first evaluation, maybe sooner"
        if max(at_once) > 1:
            note += "; evaluate each early round, or give a higher target, to compare such times"
        notes.append(note)
    if frame[[f"speed_up_{cost}" for cost in costs]].notna().to_numpy().any():
        notes.append(
            "(4.0x): reached in a quarter of the time of the same algorithm without doubling; "
            "below 1x is slower"
        )
    return notes


def _evaluations(frame: pd.DataFrame) -> str:
    """Name the evaluation of all methods, or each with its methods."""
    names = frame["method"].map(named)
    without_options = names.str.partition(", ")[0]
    pairs = set(zip(without_options, frame["evaluation"], strict=True))
    if len(pairs) == len(set(without_options)):  # options change no evaluation
        names = without_options
    methods_of: dict[str, dict[str, None]] = {}
    for evaluation, name in zip(frame["evaluation"], names, strict=True):
        methods_of.setdefault(evaluation, {})[name] = None
    if len(methods_of) == 1:
        return next(iter(methods_of))
    return "; ".join(
        f"{name} ({', '.join(methods)})" for name, methods in methods_of.items()
    )


def named(method: str) -> str:
    """Return the label of a method for a terminal, without control characters."""
    return printable(label(method))


def _clock_communication(runs: Sequence[History]) -> float:
    """Return the communication time that the clock adds to a round; nan unless it is known."""
    clock = runs[0].config.get("clock")
    # a clock within another, as in `clocks.Failing`; a user's field of this name may be something else
    while isinstance(clock, Mapping) and "clock" in clock:
        clock = clock["clock"]
    if not isinstance(clock, Mapping) or not clock:
        return math.nan
    cost = clock.get("communication", 0.0)
    if not isinstance(cost, int | float):
        return math.nan
    return float(cost)


def seconds(runs: Sequence[History], what: str) -> float:
    """Return "compile" or "host" seconds of the simulator for all runs.

    Each run of a batch has recorded those of the whole batch.
    """
    total = 0.0
    for run in runs:
        machine = run.config.get(MACHINE) or {}
        num_seeds = machine.get("num_seeds") or 1
        total += getattr(run, f"{what}_seconds") / num_seeds
    return total


def time_to(run: History, target: float, cost: float = 0.0, of: Of = "mean") -> float:
    """Return the time to a target; nan if the cost cannot be added, inf if the target is nan."""
    if cost and not run.takes_communication:
        return math.nan
    if math.isnan(target):
        return math.inf
    index = run.reached(target, of=of)
    return math.inf if index is None else float(run.eval_elapsed(cost)[index])


def shown(target: Target) -> str:
    """Return a target in percent, with one decimal unless it was given more precisely."""
    percent = 100 * target.accuracy
    if math.isnan(percent):
        return "an unknown target"
    if math.isclose(percent, round(percent, 1)):
        return f"{percent:.1f} %"
    return f"{percent:g} %"


def exact(cost: float) -> str:
    """Return a cost in its shortest exact form."""
    text = f"{cost:g}"
    if float(text) == cost:
        return text
    return repr(float(cost))


def _percent(mean: float, std: float = math.nan) -> str:
    if not math.isfinite(mean):
        return "-"
    text = f"{100 * mean:.1f}"
    if math.isfinite(std):
        text += f" ± {100 * std:.1f}"
    return text


def _seconds(value: float) -> str:
    return f"{value:.1f}" if math.isfinite(value) else "-"


def time_text(row: Mapping[str, Any], cost: str) -> str:
    """Format a row's time at a cost, with its spread, its mark as a bound and its speed-up."""
    mean = row[f"time_{cost}"]
    std = row[f"time_{cost}_std"]
    speed_up = row.get(f"speed_up_{cost}", math.nan)
    if math.isnan(mean):
        return "-"
    if not math.isfinite(mean):
        if not row["reached"]:
            return "not reached"
        return f"{row['reached']} of {row['runs']} seeds"
    digits = 1
    if mean >= 100:
        digits = 0
    elif 0 < mean < 1:  # two digits after zeros
        digits -= math.floor(math.log10(mean))
    text = f"{mean:.{digits}f}"
    if row["reached_at_once"]:
        text = f"≤ {text}"
    if math.isfinite(std):
        text += f" ± {std:.{digits}f}"
    if math.isfinite(speed_up):
        digits = 1 if speed_up >= 0.1 else 2
        text += f" ({speed_up:.{digits}f}x)"
    return text


def aligned(rows: Sequence[Sequence[str]], num_right: int = 0) -> list[str]:
    """Return rows of cells as lines; the last `num_right` columns are right-aligned."""
    sides = "<" * (len(rows[0]) - num_right) + ">" * num_right
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    form = "  ".join(f"{{:{side}{n}}}" for side, n in zip(sides, widths, strict=True))
    return [form.format(*cells).rstrip() for cells in rows]


def ruled(lines: Sequence[str]) -> list[str]:
    """Return the lines of a table with a rule below the first one."""
    return [lines[0], "-" * len(lines[0]), *lines[1:]]
