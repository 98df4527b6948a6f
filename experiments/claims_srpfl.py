"""Claims of SRPFL's paper, and the functions that read their numbers from the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from experiments import claims_srpfl_theory
from experiments.claim import (
    FAILS,
    HOLDS,
    IN_PART,
    NOT_FOUND,
    NOT_RUN,
    OTHER,
    PAPER,
    Claim,
    plural,
)
from experiments.pages import csv, load_results, pm, span
from experiments.srpfl.linear_speedup import time_ratios


def figure(
    number: int, dataset: str, fraction: int = 95, own: bool = False
) -> pd.DataFrame:
    """Return the table of a figure, by method, for a target of 95 or 99 % of FedRep's accuracy."""
    frame = csv(f"srpfl/results/figure{number}_{dataset}.csv")
    target = frame["target"].min() if fraction == 95 else frame["target"].max()
    kept = np.isclose(frame["target"], target, rtol=1e-9) & (
        frame["evaluation"].str.startswith("own") == own
    )
    frame = frame[kept].set_index("method")
    for cost in AS_PLOTTED:
        add_cost(frame, cost)
    return frame


# The stored plotting script of the authors adds C once for each recorded row, 17 in 150 rounds. If it drew the panels,
# their C = 10 and 100 are these costs a round.
AS_PLOTTED = (1.13, 11.3)


def add_cost(frame: pd.DataFrame, cost: float) -> None:
    """Add the columns of another cost of a round.

    C is added once a round, so a time is linear in it: mean rounds are the slope between C = 0 and 10.
    """
    for column in ("time", "after"):
        rounds = (frame[f"{column}_10"] - frame[f"{column}_0"]) / 10
        frame[f"{column}_{cost}"] = frame[f"{column}_0"] + cost * rounds
    time = frame[f"time_{cost}"]
    after = frame[f"after_{cost}"]
    twin = frame["twin"]
    frame[f"speed_up_{cost}"] = twin.map(time) / time
    frame[f"least_speed_up_{cost}"] = twin.map(after) / time
    frame[f"most_speed_up_{cost}"] = twin.map(time) / after


def speed_up(
    number: int,
    method: str,
    fraction: int,
    cost: float = 0,
    own: bool = False,
    dataset: str = "digits",
) -> str:
    """Format the speed-up of a method over its twin, a ratio of mean times; '-' if a seed missed the target."""
    value = figure(number, dataset, fraction, own).loc[method, f"speed_up_{cost}"]
    return f"{value:.1f}" if np.isfinite(value) else "-"


def speed_up_bounds(
    dataset: str,
    method: str,
    fraction: int,
    cost: float = 0,
    number: int = 3,
    own: bool = False,
) -> str:
    """Format the lowest and highest speed-up consistent with evaluations after only some rounds."""
    row = figure(number, dataset, fraction, own).loc[method]
    return f"{row[f'least_speed_up_{cost}']:.1f} to {row[f'most_speed_up_{cost}']:.1f}"


def accuracy(
    dataset: str, method: str, column: str = "final_accuracy", number: int = 3
) -> str:
    """Format accuracy in %, with the standard deviation over seeds if there are several."""
    return percent(figure(number, dataset).loc[method], column)


def percent(row: pd.Series, column: str) -> str:
    """Format the mean, with the standard deviation over seeds if there are several."""
    deviation = f" ± {100 * row[f'{column}_std']:.1f}" if row["runs"] > 1 else ""
    return f"{100 * row[column]:.1f}{deviation}"


def faster() -> str:
    return (
        f"SRPFL over FedRep, C = 0: digits to 95 % {speed_up(3, 'srpfl', 95)} times, to 99 % "
        f"{speed_up(3, 'srpfl', 99)}; with the clients' own heads {speed_up(3, 'srpfl', 95, own=True)} to 95 %; MNIST "
        f"to 99 % {speed_up_bounds('mnist', 'srpfl', 99)}, CIFAR-10 to 95 % "
        f"{speed_up_bounds('cifar10', 'srpfl', 95)} (1 seed, never to 99 %). "
        f"LG-SRPFL over LG-FedAvg, digits: {speed_up(3, 'lg_srpfl', 95)} to 95 %, not every seed to 99 %"
    )


def others() -> str:
    parts = []
    for title, name in (
        ("digits", "digits"),
        ("MNIST", "mnist"),
        ("CIFAR-10 (1 seed)", "cifar10"),
    ):
        final = figure(3, name)["final_accuracy"]
        below = int((final < final["srpfl"]).sum())
        parts.append(
            f"{title} above {below} of {len(final) - 1} others: SRPFL {accuracy(name, 'srpfl')}, FedAvg-FT "
            f"{accuracy(name, 'fedavg_ft')}, FedAvg {accuracy(name, 'fedavg')}, LG-FedAvg "
            f"{accuracy(name, 'lg_fedavg')}, HF-MAML {accuracy(name, 'hf_maml')}"
        )
    return "final accuracy in %, " + "; ".join(parts)


def flanp_ft_text() -> str:
    finals = "; ".join(
        f"{title} {accuracy(name, 'srpfl')} and {accuracy(name, 'flanp_fedavg_ft')}"
        for title, name in (
            ("digits", "digits"),
            ("MNIST", "mnist"),
            ("CIFAR-10 (1 seed)", "cifar10"),
        )
    )
    times = "; ".join(
        f"to {fraction} % " + " and ".join(
            f"{rows.loc[method, 'time_0']:.1f} ± {rows.loc[method, 'time_0_std']:.1f}"
            for method in ("srpfl", "flanp_fedavg_ft")
        )
        for fraction, rows in ((fraction, figure(3, "digits", fraction)) for fraction in (95, 99))
    )  # fmt: skip
    return f"final accuracy in % of SRPFL and FLANP-FT: {finals}; times on digits at C = 0 {times}"


def mnist_480(number: int) -> str:
    """Numbers of a figure with as many images a client as in the paper's column of EMNIST."""

    def both(cost: float, own: bool = False) -> str:
        return " and ".join(
            speed_up_bounds("mnist480", "srpfl", fraction, cost, number, own)
            for fraction in (95, 99)
        )

    labels = {
        "srpfl": "SRPFL", "fedrep": "FedRep", "flanp_fedavg_ft": "FLANP-FT", "fedavg_ft": "FedAvg-FT",
        "lg_srpfl": "LG-SRPFL", "lg_fedavg": "LG-FedAvg", "hf_maml": "HF-MAML",
    }  # fmt: skip
    ran = [method for method in labels if method in figure(number, "mnist480").index]
    final = ", ".join(
        f"{labels[method]} {accuracy('mnist480', method, number=number)}"
        for method in ran
    )
    times = (
        ", ".join(f"C = {cost} {both(cost)}" for cost in COSTS_A_ROUND)
        + f" (1.13 and 11.3: {PLOTTED})"
    )
    found = (
        f"SRPFL over FedRep, to 95 and 99 %: {times}; with own heads at C = 0 {both(0, own=True)}; final accuracy in "
        f"%: {final}"
    )
    if number == 3:
        return found
    gains = (
        speed_up_bounds("mnist480", "flanp_fedavg", fraction, 0, number)
        for fraction in (95, 99)
    )
    return f"{found}; FLANP (FedAvg) over FedAvg at C = 0 {' and '.join(gains)}"


def causes_accuracies(setting: str) -> str:
    """Final accuracies of SRPFL and FLANP-FT in a setting of `causes.py`, with the number of seeds."""
    rows = csv("srpfl/results/causes.csv")
    last = rows[(rows["setting"] == setting) & (rows["round"] == rows["round"].max())]
    last = last[last["evaluation"] == "fine_tune"]
    cells = []
    counts = []
    for method in ("srpfl", "flanp_fedavg"):
        values = last[last["method"] == method]["accuracy"].to_numpy()
        cells.append(pm(values, 1))
        counts.append(plural(len(values), "seed"))
    return f"{cells[0]} and {cells[1]} ({' and '.join(dict.fromkeys(counts))})"


def flanp_ft_code() -> str:
    names = [
        "text",
        "code",
        "double softmax",
        "PyTorch's start",
        "momentum",
        "double softmax and start",
    ]
    names += [
        "code without double softmax",
        "code without PyTorch's start",
        "weight decay",
        *WITHOUT_BOTH,
    ]
    rows = csv("srpfl/results/causes.csv")
    ran = set(rows.loc[rows["method"] == "srpfl", "setting"])
    return "accuracy in % of SRPFL and FLANP-FT after 50 rounds: " + "; ".join(
        f"{name} {causes_accuracies(name)}" for name in names if name in ran
    )


# An older setting: the code's first four options, an optimizer for each repetition and initial heads for newcomers.
WITHOUT_BOTH = (
    "code without both",
    "code without both and double softmax",
    "code without both and PyTorch's start",
)


def flanp_ft_at_size(
    data: str, figures: Mapping[int, str], settings: Sequence[str] = ("text", "code")
) -> str:
    """SRPFL and FLANP-FT in figures at the size of a column of the paper, by text and by code."""
    methods, found = ("srpfl", "flanp_fedavg_ft"), []
    for number, title in figures.items():
        for setting in settings:
            name = data if setting == "text" else f"{data}_code"
            scores, targets = (
                " and ".join(accuracy(name, method, number=number) for method in methods),
                [],
            )
            for rows in (figure(number, name, fraction) for fraction in (95, 99)):
                times = " and ".join(
                    f"{one['time_0']:.3g}"
                    if np.isfinite(one["time_0"])
                    else f"reached by {one['reached'] or 'none'}"
                    for one in (rows.loc[method] for method in methods)
                )
                targets.append(f"to {100 * rows.loc['srpfl', 'target']:.3g} % {times}")
            seeds = plural(figure(number, name).loc["srpfl", "runs"], "seed")
            found.append(f"{title}, {setting} {scores}, {', '.join(targets)} ({seeds})")
    return (
        "accuracy in % of SRPFL and FLANP-FT after 150 rounds, and times at C = 0: "
        + "; ".join(found)
    )


def sweep() -> str:
    """Smallest and largest mean lead of FLANP-FT over the cells of the sweep."""
    rows = csv("srpfl/results/sweep.csv")
    last = rows[
        (rows["round"] == rows["round"].max()) & (rows["evaluation"] == "fine_tune")
    ]
    cells = last.pivot(
        index=["images", "classes", "seed"], columns="method", values="accuracy"
    )
    by_seed = (cells["flanp_fedavg"] - cells["srpfl"]).groupby(["images", "classes"])
    lead, always = by_seed.mean(), by_seed.min() > 0
    ahead = f"FLANP-FT is ahead in {always.sum()} of {len(lead)} cells with every seed"
    ends = [
        f"{lead[end]:.1f} points with {end[0]} images of {end[1]} classes"
        for end in (lead.idxmin(), lead.idxmax())
    ]
    return f"{ahead}, by {ends[0]} to {ends[1]}"


PLOTTED = "C = 10 and 100 of the panels if the stored plotting script drew them"
COSTS_A_ROUND = (0, AS_PLOTTED[0], 10, AS_PLOTTED[1], 100)


def costs() -> str:
    """Speed-ups to both targets by the cost of a round."""

    def of(number: int, method: str) -> str:
        lists = []
        for fraction in (95, 99):
            row = figure(number, "digits", fraction).loc[method]
            lists.append(
                ", ".join(f"{row[f'speed_up_{cost}']:.3g}" for cost in COSTS_A_ROUND)
            )
        return " and ".join(lists)

    return (
        f"SRPFL over FedRep on digits at C = {', '.join(map(str, COSTS_A_ROUND))} a round, to 95 and 99 %: "
        f"{of(3, 'srpfl')} with fixed speeds, {of(4, 'srpfl')} with random ones; FLANP-FT over FedAvg-FT "
        f"{of(3, 'flanp_fedavg_ft')} with fixed ones; 1.13 and 11.3 are {PLOTTED}"
    )


def random_speeds() -> str:
    return (
        "SRPFL over FedRep to 95 and 99 %, with random speeds and with fixed ones: "
        + "; ".join(
            f"C = {cost} " + " against ".join(
                f"{speed_up(number, 'srpfl', 95, cost)} and {speed_up(number, 'srpfl', 99, cost)}" for number in (4, 3)
            )
            for cost in COSTS_A_ROUND
        )
        + f" (1.13 and 11.3 are {PLOTTED})"
        + f"; FLANP-FT is ahead of SRPFL in both, {accuracy('digits', 'flanp_fedavg_ft', number=4)} and "
        f"{accuracy('digits', 'srpfl', number=4)} % in the end with random ones"
    )  # fmt: skip


def partial_participation() -> str:
    return "over the twin without doubling at C = 0, to 95 and 99 %: " + "; ".join(
        f"{speeds} speeds, {label} {speed_up(number, method, 95)} and {speed_up(number, method, 99)}, with own {part} "
        f"{speed_up(number, method, 95, own=True)} and {speed_up(number, method, 99, own=True)}"
        for number, speeds in ((5, "fixed"), (6, "random"))
        for method, label, part in (
            ("srpfl", "SRPFL", "heads"),
            ("lg_srpfl", "LG-SRPFL", "layers"),
        )
    )


def no_penalty() -> str:
    parts = [
        f"{title} {accuracy(name, 'srpfl')} and {accuracy(name, 'fedrep')}, slowest quarter "
        f"{accuracy(name, 'srpfl', 'slowest_quarter')} and {accuracy(name, 'fedrep', 'slowest_quarter')}, worst tenth "
        f"{accuracy(name, 'srpfl', 'worst_decile')} and {accuracy(name, 'fedrep', 'worst_decile')}"
        for title, name in (
            ("digits", "digits"),
            ("MNIST", "mnist"),
            ("CIFAR-10 (1 seed)", "cifar10"),
        )
    ]
    return "final accuracy in % of SRPFL and FedRep: " + "; ".join(parts)


def logarithmic() -> str:
    """Ratio of times to 1.3 times the floor, and its product with log N, at the ends of each start."""
    parts = []
    for start in ("random", "moments"):
        rows = [
            row
            for row in load_results(f"srpfl/results/linear_speedup_{start}.json")
            if row["num_clients"] >= 128
        ]
        charged = ", its time charged" if start == "moments" else ""
        parts.append(f"{start} start{charged}, n0 of appendix A, {first_to_last(rows)}")
    by_lemma = load_results("srpfl/results/linear_speedup_moments_lemma.json")
    clients = " and ".join(
        f"{row['num_clients']:,} with n0 = {row['initial']}" for row in by_lemma
    )
    parts.append(
        f"with the lemma's stages, N = {clients}: {' and '.join(pm(time_ratios(row)[1], 3) for row in by_lemma)}"
    )
    return "SRPFL's time over FedRep's to 1.3 times the floor, " + "; ".join(parts)


def first_to_last(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format the ratios of times of the first and the last row, and their products with log N."""
    kept = [rows[0], rows[-1]]
    at_1_3 = [time_ratios(row)[1] for row in kept]
    clients = " to ".join(f"{row['num_clients']:,}" for row in kept)
    text = " to ".join(pm(ratio, 3) for ratio in at_1_3)
    products = (
        f"{ratio.mean() * np.log(row['num_clients']):.2f}"
        for ratio, row in zip(at_1_3, kept, strict=True)
    )
    return f"N = {clients}: {text}, times log N {' to '.join(products)}"


def closer_targets() -> str:
    """Ratio of times to three targets, at N = 1,024."""
    parts = []
    for start in ("random", "moments"):
        found = load_results(f"srpfl/results/linear_speedup_{start}.json")
        row = next(row for row in found if row["num_clients"] == 1024)
        listed = ", ".join(pm(ratio, 3) for ratio in time_ratios(row))
        parts.append(f"{start} start with n0 = {row['initial']}: {listed}")
    return (
        "SRPFL's time over FedRep's to 2, 1.3 and 1.1 times the floor, N = 1,024: "
        + "; ".join(parts)
    )


def sample_complexity() -> str:
    """Smallest batches in the first stage by d and N, with the n0 of appendix A, and with all clients."""
    rows = load_results("srpfl/results/samples.json")
    parts = []
    for title, name in (
        ("a floor below 0.15", "floor below 0.15"),
        ("inequality (9)", "within (9)"),
    ):
        cells = []
        for d in (100, 400):
            first = [row for row in rows if row["d"] == d and row["n"] == row["n0"]]
            cells.append(
                f"d = {d}: {', '.join(str(row['smallest m'][name]) for row in first)}"
            )
        parts.append(f"for {title} {'; '.join(cells)}")
    sizes = ", ".join(f"{row['N']:,}" for row in first)
    largest = max(
        row["smallest m"]["floor below 0.15"] for row in rows if row["n"] == row["N"]
    )
    return (
        f"smallest m in every trial, in a first stage with n0 = 2 d / (log(N) sigma_max) and N = {sizes}, "
        f"{'; '.join(parts)}; with all clients {largest} at most for the same floor"
    )


def contraction() -> str:
    """Rounds a tenth of the distance takes without noise, the factor a round, and the floors with noise."""
    parts = []
    for row in load_results("srpfl/results/contraction.json"):
        if row["m"] != 64:
            continue
        if not row["noise"]:
            rounds = ", ".join(
                f"{row[f'rounds to {target}']['mean']:.0f}"
                for target in ("0.2", "0.02", "0.002")
            )
            factors = f"factor a round {span(row['factor'], form='.3f')}, sqrt(1 - a) {row[THEOREM]['mean']:.3f}"
            parts.append(
                f"n = {row['n']:,}, rounds to 0.2, 0.02 and 0.002: {rounds}; {factors}"
            )
        else:
            parts.append(
                f"with noise 1 and n = {row['n']:,} it ends at {span(row['end'])}"
            )
    return "m = 64; " + "; ".join(parts)


THEOREM = "theorem's factor"


def heterogeneity() -> str:
    """Accuracies of FLANP (FedAvg) by classes a client, with and without fine-tuning."""
    rows = csv("srpfl/results/sweep.csv")
    last = rows[
        (rows["round"] == rows["round"].max()) & (rows["method"] == "flanp_fedavg")
    ]
    parts = []
    for images, of_images in last.groupby("images"):
        scores = of_images.groupby(["evaluation", "classes"])["accuracy"]
        few, many = (
            pm(scores.get_group(("global", classes)).to_list(), 1) for classes in (2, 10)
        )
        parts.append(f"{few} and {many} with {images} images")
    return "accuracy in % of FLANP (FedAvg) with 2 and 10 classes a client: " + ", ".join(
        parts
    )


LINEAR = tuple(
    f"linear_speedup_{start}.json" for start in ("random", "moments", "moments_lemma")
)
FIGURES_3 = ("figure3_digits.csv", "figure3_mnist.csv", "figure3_cifar10.csv")
STAND_INS = (
    f"{OTHER}: digits (50 clients, 4 seeds), MNIST with 150 images instead of EMNIST (3 seeds), "
    "CIFAR-10 with 50 images instead of 500 and 60 rounds"
)
SRPFL = [
    Claim(
        "Applying SRPFL to personalized FL solvers significantly enhance their efficiency and robustness",
        "section 5, point 1; figure 3", IN_PART, faster, f"{STAND_INS}; text", FIGURES_3, "figure3.py",
    ),
    Claim(
        "SRPFL coupled with FedRep exhibits superior performance compared to many state-of-the-art FL methods",
        "section 5, point 2; figure 3", IN_PART, others, f"{STAND_INS}; text", FIGURES_3, "figure3.py",
    ),
    Claim(
        "vastly outperforms the fine-tuning variant of the previously proposed FLANP, especially in regimes with high "
        "data heterogeneity",
        "section 5, point 3; figure 3", NOT_FOUND, flanp_ft_text, f"{STAND_INS}; text", FIGURES_3, "figure3.py",
    ),
    Claim(
        "(the same, with the options of the authors' code)", "section 5, point 3", HOLDS, flanp_ft_code,
        f"{OTHER}: MNIST, 50 clients with 3 classes and 60 images; code, and each of its options alone",
        ("causes.csv",), "causes.py",
    ),
    Claim(
        "(the same at the size of the column of EMNIST)", "section 5, point 3; figures 3 and 5",
        IN_PART, partial(flanp_ft_at_size, "mnist480", {3: "everybody", 5: "a pool of 20"}),
        f"{OTHER}: MNIST's digits instead of EMNIST's, otherwise its size (100 clients, 480 images, 150 rounds); code",
        tuple(f"figure{n}_mnist480{code}.csv" for n in (5, 3) for code in ("", "_code")),
        "figure5.py --scale code --datasets mnist480",
    ),
    Claim(
        "(the same at the size of the column of FEMNIST)", "section 5, point 3; figure 3",
        IN_PART, partial(flanp_ft_at_size, "mnist150", {3: "everybody"}),
        f"{OTHER}: MNIST's digits instead of FEMNIST's letters, otherwise its size (100 clients with 3 consecutive "
        "classes, 150 images, 150 rounds); code: holds in time, in accuracy with one seed of two",
        ("figure3_mnist150.csv", "figure3_mnist150_code.csv"), "figure3.py --scale code --datasets mnist150",
    ),
    Claim(
        "(the same on CIFAR-10, a fifth of the clients drawn in each round)", "section 5, point 3; figure 5", FAILS,
        partial(flanp_ft_at_size, "cifar10_full", {5: "a pool of 20"}, ["text"]),
        f"{PAPER} size, evaluated every tenth round; text; 1 seed of 4",
        ("figure5_cifar10_full.csv",), "figure5.py --scale full --datasets cifar10",
    ),
    Claim(
        "(the same over data heterogeneity, 2 to 10 classes and 20 to 200 images a client)", "section 5, point 3",
        NOT_FOUND, sweep, f"{OTHER}: MNIST, 50 clients, 50 rounds, 2 seeds; text", ("sweep.csv",), "sweep.py",
    ),
    Claim(
        "high communication cost hurts the adaptive participation schemes disproportionately",
        "section 5; figures 3 and 4", HOLDS, costs, f"{OTHER}: digits, 4 seeds; text",
        ("figure3_digits.csv", "figure4_digits.csv"), "figure4.py --datasets digits",
    ),
    Claim(
        "[with random speeds] The experimental results remain qualitatively unchanged",
        "section 5; figure 4", IN_PART, random_speeds, f"{OTHER}: digits, 4 seeds; text",
        ("figure4_digits.csv",), "figure4.py --datasets digits",
    ),
    Claim(
        "significantly boosts the performance of different subroutines [...] both in full and in partial participation "
        "settings",
        "section 1; figures 5 and 6", IN_PART, partial_participation,
        f"{OTHER}: digits, a pool of 10 of 50, 4 seeds; text",
        ("figure5_digits.csv", "figure6_digits.csv"), "figure5.py --datasets digits",
    ),
    *(
        Claim(
            f"({what} {speeds} speeds)", f"section 5; figure {number}",
            IN_PART, partial(mnist_480, number),
            f"{OTHER}: MNIST's digits instead of EMNIST's, otherwise its size (100 clients, 480 images, 150 rounds), "
            f"{plural(figure(number, 'mnist480')['runs'].max(), 'seed')}; text",
            (f"figure{number}_mnist480.csv",),
            f"figure{number}.py --scale gpu --datasets mnist",
        )
        for number, what, speeds in (
            (3, "the same with images, everybody,", "fixed"),
            (5, "the same in partial participation, with images,", "fixed"),
            (6, "the same in partial participation, with images,", "random"),
        )
    ),
    Claim(
        "our method achieves speedup without any penalty in terms of accuracy",
        "section 1", IN_PART, no_penalty, f"{STAND_INS}; text", FIGURES_3, "figure3.py",
    ),
    Claim(
        "outperforms its straggler-prone variant by a factor of log(N)",
        "section 4.1, Theorem 4.6", IN_PART, logarithmic,
        f"{OTHER}: stages of 30 rounds instead of the lemma's, target a multiple of the measured floor, 5 repeats; the "
        "n0 of appendix A; from a moments start, whose wait for all clients is charged, the ratio falls about as "
        "1 / log N from N = 1,024 on to 1.3 times the floor, more slowly to twice, and not to 1.1 times",
        LINEAR, "linear_speedup.py --init random",
    ),
    Claim(
        "as ĉ approaches 1 [...] one should expect the speedup achieved in early stages by SRPFL, eventually to become "
        "obsolete",
        "section 4.1", IN_PART, closer_targets,
        f"{OTHER}: stages of 30 rounds; 1.1 times the floor is the nearest target, 5 repeats; the speed-up shrinks and "
        "stays",
        LINEAR[:2], "linear_speedup.py --init random",
    ),
    Claim(
        "[FLANP's and FedAvg's] efficiency deteriorates in data-heterogeneous settings", "section 5, baselines",
        IN_PART, heterogeneity,
        f"{OTHER}: MNIST, 50 clients, 50 rounds, 2 seeds; text; FLANP without fine-tuning, in accuracy, not in time; "
        "FedAvg itself was not run",
        ("sweep.csv",), "sweep.py",
    ),
    Claim(
        "the rate of convergence to the optimal representation is exponentially fast", "section 4.1, Theorem 4.5",
        HOLDS, contraction,
        f"{PAPER} theory, d = 100, k = 2, a start at 0.5 given, 10 trials; without noise, with it down to a floor",
        ("contraction.json",), "contraction.py",
    ),
    Claim(
        "state of the art sample complexity per client m = O((d/N + log(N)))", "section 1, point 2; Theorem 4.5",
        HOLDS, sample_complexity,
        f"{PAPER} theory, k = 2, a start at 0.5 given, 5 trials; with the n0 of appendix A the first stage needs about "
        "log N for a floor, whatever d", ("samples.json",), "samples.py",
    ),
    *claims_srpfl_theory.rows(
        simulated=f"{PAPER} theory, d = 100, k = 5, m = 25, moments start (charged), pools of 256 (of 1,024 clients, "
        "or of all), n0 = 32, stages of 30 rounds, 10 trials",
        digits=f"{OTHER}: digits, 50 clients, 3 seeds; text; a halved gradient is a heuristic for the criterion",
    ),
    Claim(
        "(figures 3 to 6 on EMNIST, FEMNIST and CIFAR-100, and 3, 4 and 6 on CIFAR-10 with 500 images)",
        "section 5, appendix C", NOT_RUN,
        "about 7 hours of a core for EMNIST in a figure with everybody; CIFAR-100 needs an accelerator",
        f"{PAPER} size", (), "figure3.py --scale full",
    ),
]  # fmt: skip
