"""Tables of `README.md` and `linear_speedup.md`, from the committed results.

python experiments/srpfl/readme_tables.py
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import fedjax_srp as srp
from experiments.claims_srpfl import (
    AS_PLOTTED,
    COSTS_A_ROUND,
    figure,
    percent,
)
from experiments.curves import spread
from experiments.pages import (
    csv,
    joined,
    load_results,
    markdown,
    pm,
    span,
    wrapped,
    write,
)
from experiments.srpfl import cause_tables, thousands
from experiments.srpfl.linear_speedup import time_ratios
from experiments.srpfl.readings import COSTS as COSTS_READ
from experiments.srpfl.readings import SHARES as SHARES_READ

HERE = Path(__file__).parent
QUARTERS = ("fastest_quarter", "second_quarter", "third_quarter", "slowest_quarter")
DATA = ("digits", "mnist", "cifar10")
COSTS = (0, 10, 100)
FINAL, WORST = "final_accuracy", "worst_decile"
FACTORS = (2, 1.3, 1.1)  # of FedRep's floor, in the files of the linear speed-up


def label(method: str) -> str:
    """Return a method's name in the tables."""
    return {"flanp_fedavg": "FLANP (FedAvg)", "flanp_fedavg_ft": "FLANP-FT"}.get(
        method
    ) or srp.methods.label(method)


def format_number(value: float) -> str:
    """Format with one decimal below 100."""
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def accuracies() -> str:
    titles = ("digits", "MNIST", "CIFAR-10")
    head = [""]
    for title in titles:
        head += [f"{title} %", "worst", "quarters"]
    rows = [head]
    frames = [figure(3, data) for data in DATA]
    for method in frames[0].index:
        row = [label(method)]
        for one in (frame.loc[method] for frame in frames):
            quarters = "/".join(f"{100 * one[quarter]:.1f}" for quarter in QUARTERS)
            row += [percent(one, FINAL), percent(one, WORST), quarters]
        rows.append(row)
    return markdown(rows)


def format_time(row: pd.Series, cost: int, bounds: bool) -> str:
    """Format the time to a target, with the factor over the twin."""
    time = row[f"time_{cost}"]
    if not np.isfinite(time):
        return "never" if row["reached"] == 0 else f"{row['reached']} of {row['runs']}"
    if row["reached_at_once"]:
        return f"≤ {format_number(time)}"
    factor = row[f"speed_up_{cost}"]
    if not np.isfinite(factor):
        return format_number(time)
    text = f"{factor:.1f}"
    if bounds:
        low, high = (row[f"{which}_speed_up_{cost}"] for which in ("least", "most"))
        text = f"{low:.1f} to {high:.1f}"
    return f"{format_number(time)} ({text}x)"


def times(cost: int) -> str:
    titles = ("digits", "MNIST", "CIFAR-10")
    rows = [[f"C = {cost}", *(h for title in titles for h in (f"{title}: 95 %", "99 %"))]]
    for method in figure(3, "digits").index:
        row = [label(method)]
        for data in DATA:
            for fraction in (95, 99):
                one = figure(3, data, fraction).loc[method]
                row.append(format_time(one, cost, bounds=data != "digits"))
        rows.append(row)
    return markdown(rows)


def by_cost(costs: Sequence[float]) -> list[str]:
    """Return the heads of columns by target and cost."""
    return [f"{f} %: C = 0" if c == 0 else f"{c}" for f in (95, 99) for c in costs]


def factors() -> str:
    rows = [["figure", "", *by_cost(COSTS_A_ROUND)]]
    for name in range(3, 7):
        frames = [figure(name, "digits", fraction) for fraction in (95, 99)]
        for method in frames[0].index[frames[0]["twin"].notna()]:
            row = [name, label(method)]
            for frame in frames:
                of_costs = [frame.loc[method, f"speed_up_{c}"] for c in COSTS_A_ROUND]
                row += ["-" if np.isnan(value) else f"{value:.1f}" for value in of_costs]
            rows.append(row)
    return markdown(rows)


def as_plotted() -> str:
    """Lowest and highest factors on images, at the costs a round of the authors' plotting script."""
    head = ["figure", "data", ""]
    rows = [[*head, *(f"{f} %: C = {c}" for f in (95, 99) for c in AS_PLOTTED)]]
    for data, title, number in (
        ("mnist", "MNIST-150", 3),
        ("cifar10", "CIFAR-10, 50 images", 3),
        ("mnist480", "MNIST-480", 3),
        ("mnist480", "MNIST-480", 5),
        ("mnist480", "MNIST-480", 6),
    ):
        for method in ("srpfl", "flanp_fedavg_ft"):
            row = [number, title, label(method)]
            for fraction, cost in itertools.product((95, 99), AS_PLOTTED):
                one = figure(number, data, fraction).loc[method]
                low, high = (one[f"{end}_speed_up_{cost}"] for end in ("least", "most"))
                known = np.isfinite(one["speed_up_10"]) and not one["reached_at_once"]
                row.append(f"{low:.2g} to {high:.2g}" if known else "-")
            rows.append(row)
    return markdown(rows)


def pools() -> str:
    rows = [["figure", "", "seeds", "%", "worst", *by_cost(COSTS)]]
    for name in (3, 5, 6):
        frames = [figure(name, "mnist480", fraction) for fraction in (95, 99)]
        for method, one in frames[0].iterrows():
            row = [name, label(str(method)), one["runs"]]
            row += [percent(one, FINAL), percent(one, WORST)]
            for frame, cost in itertools.product(frames, COSTS):
                row.append(format_time(frame.loc[method], cost, bounds=True))
            rows.append(row)
    return markdown(rows)


def code_at_size(data: str, *figures: int) -> str:
    """Figures at the size of a column of the paper, by the paper's text and with the options of the authors' code.

    Times without communication, to the targets of each file.
    """
    names = ("%", "worst tenth", "time to 95 %", "99 %", "seeds")
    settings = {"text": "", "code": "_code"}
    rows = [["figure", "", *(f"{of}: {name}" for of in settings for name in names)]]
    for number in figures:
        for method in figure(number, f"{data}_code").index:
            row = [number, label(str(method))]
            for setting in settings.values():
                frames = [figure(number, data + setting, f) for f in (95, 99)]
                if method not in frames[0].index:
                    row += [""] * len(names)
                    continue
                ones = [frame.loc[method] for frame in frames]
                row += [percent(ones[0], FINAL), percent(ones[0], WORST)]
                # without the factor
                row += [format_time(one, 0, True).partition(" (")[0] for one in ones]
                row.append(ones[0]["runs"])
            rows.append(row)
    return markdown(rows)


def of_seeds(frame: pd.DataFrame, column: str, method: str) -> np.ndarray:
    """Return the numbers of a method's seeds, from a column that lists them."""
    return np.array(str(frame.loc[method, column]).split(), float)


def code_by_seed() -> str:
    """FLANP-FT and FedAvg-FT against SRPFL with the options of the authors' code, seed by seed."""
    head = ["figure", "against SRPFL", "points below"]
    rows = [[*head, "times as long to 95 %", "to 99 %"]]
    for number in (5, 3):
        frames = [figure(number, "mnist480_code", fraction) for fraction in (95, 99)]
        for method in ("flanp_fedavg_ft", "fedavg_ft"):
            if method not in frames[0].index:
                continue
            srpfl, other = (of_seeds(frames[0], "finals", m) for m in ("srpfl", method))
            cells = [" / ".join(f"{100 * each:.1f}" for each in srpfl - other)]
            for frame in frames:
                ratios = of_seeds(frame, "times", method) / of_seeds(
                    frame, "times", "srpfl"
                )
                texts = (f"{r:.3g}" if np.isfinite(r) else "never" for r in ratios)
                cells.append(" / ".join(texts))
            rows.append([number, label(method), *cells])
    return markdown(rows)


def judgements() -> str:
    times = ["time to 95 %", "99 %"]
    head = ["figure", "", "`fine_tune` %", "slowest quarter", "worst", *times]
    rows = [[*head, "own part %", "worst", *times]]
    columns = {False: (FINAL, "slowest_quarter", WORST), True: (FINAL, WORST)}
    for name in range(3, 7):
        for method in figure(name, "digits", own=True).index:
            row = [name, label(method)]
            for own, shown in columns.items():
                ones = [figure(name, "digits", f, own).loc[method] for f in (95, 99)]
                row += [percent(ones[0], column) for column in shown]
                for one in ones:
                    time, bracket, factor = format_time(one, 0, False).partition(" (")
                    if np.isfinite(one["time_0"]):
                        time += f" ± {format_number(one['time_0_std'])}"
                    row.append(time + bracket + factor)
            rows.append(row)
    return markdown(rows)


def round_lengths() -> str:
    rows = (figure(name, "digits").loc["fedrep"] for name in range(3, 7))
    lengths = [row["time_0"] / ((row["time_10"] - row["time_0"]) / 10) for row in rows]
    return wrapped(
        "In all pictures of figures 3 to 6 but the first, horizontal lines are the two targets, and the axis begins at "
        f"95 % of the lowest final accuracy. A round of FedRep takes {lengths[0]:.1f} time units in figure 3, "
        f"{lengths[1]:.0f} in figure 4, {lengths[2]:.1f} in figure 5 and {lengths[3]:.0f} in figure 6 (means until 95 "
        "% on digits): a cost of C = 10 is more than two rounds in figure 3 and a quarter of one in figure 4."
    )


def asynchronous() -> str:
    found = load_results("srpfl/results/asynchronous.json")
    head = [""]
    for cost in found:
        head += [f"C = {cost}: time", "final %", "slowest quarter %", "rounds"]
    rows = [head]
    for name in found["0"]:
        row = [name]
        for methods in found.values():
            seeds = pd.DataFrame(methods[name]).astype(float)
            time = seeds["time_to_0.92"]
            row.append(f"{format_number(time.mean())} ± {format_number(time.std())}")
            row += [pm(100 * seeds[what], 1) for what in ("accuracy", "slowest_quarter")]
            row.append(f"{seeds['rounds'].mean():,.0f}")
        rows.append(row)
    return markdown(rows)


def with_errors(found: np.ndarray) -> list[str]:
    """Format the mean of each row ± its standard error."""
    errors = found.std(axis=1, ddof=1) / np.sqrt(found.shape[1])
    return [
        f"{mean:.3f} ± {error:.3f}"
        for mean, error in zip(found.mean(axis=1), errors, strict=True)
    ]


def linear(start: str) -> str:
    rows = [["N", "n0", "distance after round 1", "time of the start", "FedRep's floor",
             "time to 1.3 x floor: FedRep", "SRPFL",
             "FedRep's rounds", *(f"{'ratio ' * (f == 2)}to {f} x" for f in FACTORS),
             *(f"{'times log N: ' * (f == 2)}to {f} x" for f in FACTORS)]]  # fmt: skip
    for result in load_results(f"srpfl/results/linear_speedup_{start}.json"):
        n, found = result["num_clients"], time_ratios(result)
        fedrep, ours = (
            np.mean(result["times"][method][1]) for method in ("fedrep", "srpfl")
        )
        begins = np.mean(result["start"])
        rows.append([
            n, result["initial"], f"{result['first_distance']:.3f}", f"{begins:.1f}",
            f"{np.mean(result['floors']):.4f}", f"{fedrep:.0f}", f"{ours:.0f}",
            f"{(fedrep - begins) / (1 / np.arange(1, n + 1)).sum():.0f}",
            *with_errors(found),
            *(f"{mean:.2f}" for mean in found.mean(axis=1) * np.log(n)),
        ])  # fmt: skip
    return markdown(rows)


def lemma() -> str:
    rows = [["N", "n0", "stages", *(f"to {f} x" for f in FACTORS)]]
    plain = {
        result["num_clients"]: result
        for result in load_results("srpfl/results/linear_speedup_moments.json")
    }
    for by_lemma in load_results("srpfl/results/linear_speedup_moments_lemma.json"):
        num_clients = by_lemma["num_clients"]
        planned = f"Lemma B.1: {', '.join(map(str, by_lemma['rounds_per_stage']))}"
        results = {"30 rounds each": plain[num_clients], planned: by_lemma}
        for stages, result in results.items():
            cells = with_errors(time_ratios(result))
            rows.append([num_clients, result["initial"], stages, *cells])
    return markdown(rows)


def stage_lengths() -> str:
    """Mean and standard deviation over tasks and repeats, by start, number of clients and length of stages."""
    rows = [["start", "N", "rounds a stage", *(f"to {factor} x" for factor in FACTORS)]]
    for start in ("moments", "random"):
        frame = csv(f"srpfl/results/stage_lengths_{start}.csv")
        frame = frame.assign(ratio=frame["srpfl"] / frame["fedrep"])
        for at, group in frame.groupby(["num_clients", "length"]):
            ratios = dict(list(group.groupby("factor")["ratio"]))
            rows.append([start, *at, *(pm(ratios[factor], 3) for factor in FACTORS)])
    return markdown(rows)


def samples() -> str:
    """Smallest batches by d, N and n, and the floor with six samples a client."""
    words = {
        "floor below 0.5": "to contract",
        "floor below 0.15": "for a floor below 0.15",
        "within (9)": "within (9)",
    }
    head = ["d", "N", "n", "d / n", "log N"]
    head += [f"smallest m {word}" for word in words.values()]
    rows = [[*head, "floor at m = 6"]]
    for row in load_results("srpfl/results/samples.json"):
        d, n = row["d"], row["n"]
        title = f"n0 = {n}" if n == row["n0"] else "all"
        found = (row["smallest m"][name] or f"over {row['m'][-1]}" for name in words)
        cells = [d, row["N"], title, f"{d / n:.2g}", f"{np.log(row['N']):.1f}", *found]
        rows.append([*cells, span(row["floor"], row["m"].index(6))])
    return markdown(rows)


def contraction() -> str:
    """Rounds to three distances, the measured factor a round beside the theorem's, and the floor."""
    targets = ("0.2", "0.02", "0.002")
    head = ["noise", "n", "m", *(f"rounds to {t}" for t in targets)]
    rows = [[*head, "factor a round", "sqrt(1 - a)", "at the end"]]
    for row in load_results("srpfl/results/contraction.json"):
        cells = [f"{row['noise']:g}", row["n"], row["m"]]
        for target in targets:
            reached = row.get(f"rounds to {target}")
            cells.append(span(reached, form=".3g") if reached else "not reached")
        cells += [span(row[name], form=".3f") for name in ("factor", "theorem's factor")]
        rows.append([*cells, span(row["end"])])
    return markdown(rows)


CASES_READ = [
    f"C = {cost:g}, {share:.0%}" for cost in COSTS_READ for share in SHARES_READ
]


def times_read(name: str) -> np.ndarray:
    """Return the times of a reading, (costs and shares, seeds)."""
    times = np.array(load_results("srpfl/results/readings.json")[name]["times"])
    return times.reshape(-1, times.shape[-1])


def readings() -> str:
    """Return accuracies and times of every reading."""
    rows = [["", "final %", *CASES_READ]]
    for name, row in load_results("srpfl/results/readings.json").items():
        each = [row["accuracy"], *times_read(name)]
        rows.append([name, *(span(spread(values), form=".3g") for values in each)])
    return markdown(rows)


def readings_factors() -> str:
    """Return SRPFL's speed-up over FedRep of the same reading, seed by seed."""
    rows = [["work of a round", "evaluation", *CASES_READ]]
    for work in ("5 x (10 + 1)", "1 x (10 + 5)"):
        for evaluation in ("fine_tune", "own_head"):
            reading = f"{work}: {evaluation}"
            factors = times_read(f"FedRep, {reading}") / times_read(f"SRPFL, {reading}")
            cells = [span(spread(of_case), form=".2g") for of_case in factors]
            rows.append([work, f"`{evaluation}`", *cells])
    return markdown(rows)


AT_SIZE = (  # figure, file of a column as large as the paper's, that column, setting, device
    (3, "mnist480", "EMNIST", "text", "a core"),
    (3, "mnist480_code", "EMNIST", "code", "an H200"),
    (3, "mnist480_code_cpu", "EMNIST", "code", "a core"),
    (3, "mnist150", "FEMNIST", "text", "a core"),
    (3, "mnist150_code", "FEMNIST", "code", "a core"),
    (5, "mnist480", "EMNIST", "text", "a core"),
    (5, "mnist480_code", "EMNIST", "code", "a core"),
    (5, "cifar10_full", "CIFAR-10", "text", "a core"),
    (6, "mnist480", "EMNIST", "text", "a core"),
)
# methods that are evaluated on the training of another one
SHARES_TRAINING = {"fedavg_ft": "fedavg", "flanp_fedavg_ft": "flanp_fedavg"}
TRAININGS = 7  # of nine curves
REPEATS = 4  # in the paper


def costs_at_size() -> str:
    """Minutes of a seed's trainings in columns of the paper's size, and of the paper's nine curves with four seeds."""
    header = ["figure", "column of the paper", "setting", "on", "minutes a seed"]
    rows = [[*header, "together", "nine curves, four seeds: hours"]]
    for number, name, column, setting, device in AT_SIZE:
        frame = csv(f"srpfl/results/figure{number}_{name}.csv")
        minutes: dict[str, float] = {}
        for _, row in frame.drop_duplicates("method").iterrows():
            training = SHARES_TRAINING.get(row["method"], row["method"])
            minutes[training] = row["host_seconds"] / row["runs"] / 60
        parts = [f"{label(method)} {m:.1f}" for method, m in minutes.items()]
        total = sum(minutes.values())
        hours = f"{REPEATS * total / 60:.1f}" if len(minutes) == TRAININGS else ""
        cells = [number, column, setting, device, ", ".join(parts)]
        rows.append([*cells, f"{total:.0f}" if total >= 10 else f"{total:.1f}", hours])
    return markdown(rows)


def thousands_table(make: Callable[[Any], str]) -> str:
    """Return a table of the runs with thousands of clients."""
    return make(load_results("srpfl/results/thousands.json"))


PAGES: Mapping[Path, Mapping[str, Callable[[], str]]] = {
    HERE / "README.md": {
        "accuracies": accuracies,
        "times": joined(*(partial(times, cost) for cost in COSTS)),
        "round_lengths": round_lengths,
        "factors": factors,
        "as_plotted": as_plotted,
    "pools": pools,
        "judgements": judgements,
        "causes": partial(cause_tables.causes, HERE / "results"),
        "code_at_size": partial(code_at_size, "mnist480", 5, 3),
        "code_at_femnist": partial(code_at_size, "mnist150", 3),
        "code_by_seed": code_by_seed,
        "sweep": partial(cause_tables.sweep, HERE / "results"),
        "asynchronous": asynchronous,
        "readings": readings,
        "readings_factors": readings_factors,
        "costs_at_size": costs_at_size,
        "thousands": partial(thousands_table, thousands.table),
        "thousands_ratios": partial(thousands_table, thousands.ratios),
    },
    HERE / "linear_speedup.md": {
        "random": partial(linear, "random"), "moments": partial(linear, "moments"), "lemma": lemma,
        "lengths": stage_lengths, "contraction": contraction, "samples": samples,
    },
}  # fmt: skip

if __name__ == "__main__":
    write(PAGES)
