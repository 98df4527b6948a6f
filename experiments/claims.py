"""Page with every claim of the four papers, written from the committed results.

    python experiments/claims.py

Writes `experiments/README.md` and the manual's picture of the verdicts. A `Claim` has the paper's words and their place
in it, a verdict, a function that reads the numbers from files below `experiments/`, the size and setting of the runs,
and the files and the script that made them. Numbers are read from files, but verdicts are judgements by people: when a
result changes, check its verdict.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from curves import save_picture
from matplotlib.figure import Figure
from pages import csv, load_results, markdown, pm, span

HERE = Path(__file__).parent
HOLDS, IN_PART, FAILS, NOT_RUN = VERDICTS = "holds", "in part", "fails", "not run"
PAPER, OTHER = "the paper's", "not the paper's"  # first words of `Claim.size`


class Claim(NamedTuple):
    """One row of the page."""

    quote: str
    place: str
    verdict: str
    found: Callable[[], str] | str
    size: str  # begins with PAPER or OTHER, then the setting where the text and the code of a paper differ
    files: tuple[str, ...] = ()  # in the `results` of the paper's folder
    command: str = ""  # script in the paper's folder, with options


def plural(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"


# SRPFL


def figure(number: int, dataset: str, fraction: int = 95, own: bool = False) -> pd.DataFrame:
    """Return the table of a figure, by method, for a target of 95 or 99 % of FedRep's accuracy."""
    frame = csv(f"srpfl/results/figure{number}_{dataset}.csv")
    target = frame["target"].min() if fraction == 95 else frame["target"].max()
    kept = np.isclose(frame["target"], target, rtol=1e-9) & (frame["evaluation"].str.startswith("own") == own)
    return frame[kept].set_index("method")


def speed_up(number: int, method: str, fraction: int, cost: int = 0, own: bool = False, dataset: str = "digits") -> str:
    """Format the speed-up of a method over its twin, a ratio of mean times; '-' if a seed missed the target."""
    value = figure(number, dataset, fraction, own).loc[method, f"speed_up_{cost}"]
    return f"{value:.1f}" if np.isfinite(value) else "-"


def speed_up_bounds(dataset: str, method: str, fraction: int, cost: int = 0, number: int = 3, own: bool = False) -> str:
    """Format the lowest and highest speed-up consistent with evaluations after only some rounds."""
    row = figure(number, dataset, fraction, own).loc[method]
    return f"{row[f'least_speed_up_{cost}']:.1f} to {row[f'most_speed_up_{cost}']:.1f}"


def accuracy(dataset: str, method: str, column: str = "final_accuracy", number: int = 3) -> str:
    """Format accuracy in %, with the standard deviation over seeds if there are several."""
    row = figure(number, dataset).loc[method]
    mean, deviation = 100 * row[column], 100 * row[f"{column}_std"]
    return f"{mean:.1f}" + (f" ± {deviation:.1f}" if row["runs"] > 1 else "")


def faster() -> str:
    return (
        f"SRPFL over FedRep, C = 0: digits to 95 % {speed_up(3, 'srpfl', 95)} times, to 99 % "
        f"{speed_up(3, 'srpfl', 99)}; with the clients' own heads {speed_up(3, 'srpfl', 95, own=True)} to 95 %; MNIST "
        f"to 99 % {speed_up_bounds('mnist', 'srpfl', 99)}, CIFAR-10 to 95 % "
        f"{speed_up_bounds('cifar10', 'srpfl', 95)} (1 seed, never to 99 %). "
        f"LG-SRPFL over LG-FedAvg, digits: {speed_up(3, 'lg_srpfl', 95)} to 95 %, not every seed to 99 %"
    )


def others() -> str:
    parts = [
        f"{title}: SRPFL {accuracy(name, 'srpfl')}, FedAvg-FT {accuracy(name, 'fedavg_ft')}, LG-FedAvg "
        f"{accuracy(name, 'lg_fedavg')}, HF-MAML {accuracy(name, 'hf_maml')}"
        for title, name in (("digits", "digits"), ("MNIST", "mnist"), ("CIFAR-10", "cifar10"))
    ]
    return "final accuracy in %, " + "; ".join(parts)


def flanp_ft_text() -> str:
    return "final accuracy in % of SRPFL and FLANP-FT: " + "; ".join(
        f"{title} {accuracy(name, 'srpfl')} and {accuracy(name, 'flanp_fedavg_ft')}"
        for title, name in (("digits", "digits"), ("MNIST", "mnist"), ("CIFAR-10 (1 seed)", "cifar10"))
    )


def mnist_480(number: int) -> str:
    """Numbers of a figure with as many images a client as in the paper's column of EMNIST."""

    def both(cost: int, own: bool = False) -> str:
        return " and ".join(speed_up_bounds("mnist480", "srpfl", fraction, cost, number, own) for fraction in (95, 99))

    labels = {"srpfl": "SRPFL", "fedrep": "FedRep", "flanp_fedavg_ft": "FLANP-FT", "fedavg_ft": "FedAvg-FT"}
    ran = [method for method in labels if method in figure(number, "mnist480").index]
    final = ", ".join(f"{labels[method]} {accuracy('mnist480', method, number=number)}" for method in ran)
    times = ", ".join(f"C = {cost} {both(cost)}" for cost in (0, 10, 100))
    found = (
        f"SRPFL over FedRep, to 95 and 99 %: {times}; with own heads at C = 0 {both(0, own=True)}; final accuracy in "
        f"%: {final}"
    )
    return found if number == 3 else f"{found}; {other_methods(number)}"


def other_methods(number: int) -> str:
    """Numbers of the methods that have one seed only."""
    gains = " and ".join(speed_up_bounds("mnist480_all", "flanp_fedavg", fraction, 0, number) for fraction in (95, 99))
    labels = {"lg_srpfl": "LG-SRPFL", "lg_fedavg": "LG-FedAvg", "hf_maml": "HF-MAML"}
    final = ", ".join(f"{label} {accuracy('mnist480_all', name, number=number)}" for name, label in labels.items())
    return f"1 seed of the others: {final}; FLANP (FedAvg) over FedAvg at C = 0 {gains}"


def causes_accuracies(setting: str) -> str:
    """Final accuracies of SRPFL and FLANP-FT in a setting of `causes.py`, with the number of seeds."""
    rows = csv("srpfl/results/causes.csv")
    last = rows[(rows["setting"] == setting) & (rows["round"] == rows["round"].max())]
    last = last[last["evaluation"] == "fine_tune"]
    cells = []
    for method in ("srpfl", "flanp_fedavg"):
        values = last[last["method"] == method]["accuracy"].to_numpy()
        cells.append(pm(values, 1))
    return f"{cells[0]} and {cells[1]} ({plural(last['seed'].nunique(), 'seed')})"


def flanp_ft_code() -> str:
    names = ["text", "code", "double softmax", "PyTorch's start", "momentum", "double softmax and start"]
    names += ["code without double softmax", "code without PyTorch's start", "weight decay"]
    have = set(csv("srpfl/results/causes.csv")["setting"])
    return "accuracy in % of SRPFL and FLANP-FT after 50 rounds: " + "; ".join(
        f"{name} {causes_accuracies(name)}" for name in names if name in have
    )


def sweep() -> str:
    """Smallest and largest mean lead of FLANP-FT over the cells of the sweep."""
    rows = csv("srpfl/results/sweep.csv")
    last = rows[(rows["round"] == rows["round"].max()) & (rows["evaluation"] == "fine_tune")]
    cells = last.pivot(index=["images", "classes", "seed"], columns="method", values="accuracy")
    by_seed = (cells["flanp_fedavg"] - cells["srpfl"]).groupby(["images", "classes"])
    lead, always = by_seed.mean(), by_seed.min() > 0
    ahead = f"FLANP-FT is ahead in {always.sum()} of {len(lead)} cells with every seed"
    ends = [
        f"{lead[end]:.1f} points with {end[0]} images of {end[1]} classes" for end in (lead.idxmin(), lead.idxmax())
    ]
    return f"{ahead}, by {ends[0]} to {ends[1]}"


def costs() -> str:
    return (
        f"SRPFL over FedRep on digits at C = 0, 10, 100, to 95 %: "
        f"{', '.join(speed_up(3, 'srpfl', 95, cost) for cost in (0, 10, 100))} with fixed speeds, "
        f"{', '.join(speed_up(4, 'srpfl', 95, cost) for cost in (0, 10, 100))} with random ones; FLANP-FT "
        f"{', '.join(speed_up(3, 'flanp_fedavg_ft', 95, cost) for cost in (0, 10, 100))} with fixed ones"
    )


def random_speeds() -> str:
    return (
        f"SRPFL over FedRep at C = 0, to 95 and 99 %: {speed_up(4, 'srpfl', 95)} and {speed_up(4, 'srpfl', 99)}; "
        f"FLANP-FT over FedAvg-FT {speed_up(4, 'flanp_fedavg_ft', 95)} and {speed_up(4, 'flanp_fedavg_ft', 99)}"
    )


def partial_participation() -> str:
    return "SRPFL over FedRep at C = 0, to 95 and 99 %: " + "; ".join(
        f"{speeds} speeds {speed_up(number, 'srpfl', 95)} and {speed_up(number, 'srpfl', 99)}, with own heads to 95 % "
        f"{speed_up(number, 'srpfl', 95, own=True)}"
        for number, speeds in ((5, "fixed"), (6, "random"))
    )


def no_penalty() -> str:
    parts = [
        f"{title} {accuracy(name, 'srpfl')} and {accuracy(name, 'fedrep')}, worst tenth "
        f"{accuracy(name, 'srpfl', 'worst_decile')} and {accuracy(name, 'fedrep', 'worst_decile')}"
        for title, name in (("digits", "digits"), ("MNIST", "mnist"), ("CIFAR-10 (1 seed)", "cifar10"))
    ]
    return "final accuracy in % of SRPFL and FedRep: " + "; ".join(parts)


def logarithmic() -> str:
    """Ratio of times, and its product with log N, at the smallest and largest N, to 1.3 times the floor."""
    parts = []
    for start in ("random", "moments"):
        found = load_results(f"srpfl/results/linear_speedup_{start}.json")
        kept = [next(row for row in found if row["num_clients"] == 128), found[-1]]
        ratios = [np.divide(row["times"]["srpfl"][1], row["times"]["fedrep"][1]) for row in kept]
        text = " to ".join(f"{ratio.mean():.3f} ± {ratio.std(ddof=1):.3f}" for ratio in ratios)
        products = [ratio.mean() * np.log(row["num_clients"]) for ratio, row in zip(ratios, kept, strict=True)]
        text = f"{text}, times log N {products[0]:.2f} to {products[1]:.2f}"
        parts.append(f"{start} start, N = 128 to {found[-1]['num_clients']:,}: {text}")
    return "SRPFL's time over FedRep's to 1.3 times the floor, " + "; ".join(parts)


FIGURES_3 = ("figure3_digits.csv", "figure3_mnist.csv", "figure3_cifar10.csv")
STAND_INS = (
    f"{OTHER}: digits (50 clients, 4 seeds), MNIST with 150 images instead of EMNIST (3 seeds), "
    "CIFAR-10 with 50 images instead of 500"
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
        "section 5, point 3; figure 3", FAILS, flanp_ft_text, f"{STAND_INS}; text", FIGURES_3, "figure3.py",
    ),
    Claim(
        "(the same, with the options of the authors' code)", "section 5, point 3", HOLDS, flanp_ft_code,
        f"{OTHER}: MNIST, 50 clients with 3 classes and 60 images; code, and each of its options alone",
        ("causes.csv",), "causes.py",
    ),
    Claim(
        "(the same over data heterogeneity, 2 to 10 classes and 20 to 200 images a client)", "section 5, point 3",
        FAILS, sweep, f"{OTHER}: MNIST, 50 clients, 50 rounds, 2 seeds; text", ("sweep.csv",), "sweep.py",
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
        "section 1; figures 5 and 6", IN_PART, partial_participation, f"{OTHER}: digits, a pool of 10 of 50; text",
        ("figure5_digits.csv", "figure6_digits.csv"), "figure5.py --datasets digits",
    ),
    *(
        Claim(
            f"({what} {speeds} speeds)", f"section 5; figure {number}",
            IN_PART, partial(mnist_480, number),
            f"{OTHER}: MNIST's digits instead of EMNIST's, otherwise its size (100 clients, 480 images, 150 rounds), "
            f"{plural(figure(number, 'mnist480')['runs'].max(), 'seed')}; text",
            (f"figure{number}_mnist480.csv", *([f"figure{number}_mnist480_all.csv"] if number > 3 else [])),
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
        f"{OTHER}: stages of 30 rounds instead of the lemma's, target a multiple of the measured floor, 5 repeats",
        ("linear_speedup_random.json", "linear_speedup_moments.json"), "linear_speedup.py --init random",
    ),
    Claim(
        "(figures 3 to 6 on EMNIST, FEMNIST and CIFAR-100, and on CIFAR-10 with 500 images)",
        "section 5, appendix C", NOT_RUN,
        "about 7 hours of a core for EMNIST in a figure with everybody; CIFAR-100 needs an accelerator",
        f"{PAPER} size", (), "figure3.py --scale full",
    ),
]  # fmt: skip


# FLANP


def ratios_at(name: str, ours: str, rival: str, losses: Sequence[str], panel: int = 0) -> str:
    found = load_results(f"flanp/results/{name}.json")[panel]["at"][ours][rival]
    return ", ".join(f"{pm(found[loss])} at {loss}" for loss in losses)


def flanp_speed_ups(name: str, rival: str) -> dict[str, list[float]]:
    return load_results(f"flanp/results/{name}.json")[0]["speed_up"][rival]


def over_fedgate(name: str) -> str:
    found = flanp_speed_ups(name, "fedgate")
    return f"{pm(found['at_most'])} at most, {pm(found['at_end'])} at the end"


def theorem_maximum(column: str) -> float:
    rows = load_results("flanp/results/theorems.json")["float64"].values()
    return max(value for row in rows for value in row[column] if value is not None)


def table_columns(column: str) -> list[list[float]]:
    rules = [load_results(f"flanp/results/table{number}.json")["rules"] for number in (1, 2)]
    return [row[column] for table in rules for row in table.values()]


def table_ratios() -> str:
    fitted = [row["0.0116"]["ratio"] for row in load_results("flanp/results/fixed_target.json").values()]
    formatted = lambda rows: ", ".join(pm(row) for row in rows)  # noqa: E731
    return f"by the rules {formatted(table_columns('ratio'))}; to a fitted, fixed target {formatted(fitted)} (20 seeds)"


def equal_speeds() -> str:
    rows = load_results("flanp/results/fixed_target.json").values()
    values = [np.mean(row[target]["equal_speeds"]) for row in rows for target in ("0.0116", "0.02", "tightening")]
    return f"FLANP takes {min(values):.2f} to {max(values):.2f} times as long in the mean of a row"


def saturation() -> str:
    full, small = (load_results(f"flanp/results/{name}.json")[1] for name in ("figure6_full", "figure6"))
    parts = [
        f"s = {s}: {', '.join(f'{label} {pm(panel[key][which], 3)}' for label, key in FASTEST)}"
        for s, panel, which in (("1,200", full, "lowest"), ("80", small, "last"))
    ]
    return f"training loss after 120 rounds, {'; '.join(parts)}"


FASTEST = (("5 fastest", "fastest5"), ("25 fastest", "fastest25"), ("FLANP", "flanp"))


def random_clients() -> str:
    drawn = load_results("flanp/results/figure6_full.json")[0]["at"]["flanp"]
    means = [np.mean(ratios) for rivals in drawn.values() for ratios in rivals.values()]
    return f"k random clients take {min(means):.2f} to {max(means):.2f} times as long, means to losses of 0.5 to 0.2"


SEEDS_OF_6 = "3 and 2 seeds"
SIX_ROWS = f"{PAPER} N and s; dimension, noise, n0 and constants by rules, 5 seeds"
FLANP = [
    Claim(
        "nodes reach the statistical accuracy of L_n after R_n = 12 kappa ln(6) rounds of communication", "Theorem 1",
        HOLDS,
        lambda: f"gap at most {theorem_maximum('gap_over_accuracy'):.2f} of the accuracy, 7 stages, 10 seeds",
        f"{OTHER}: N = 64, s = 100 (the paper gives none)", ("theorems.json",), "theorems.py",
    ),
    Claim(
        "(a stage starts at most 2 (n - m) / n (V_(n-m)s + V_ms) + V_ms above its minimum)", "Proposition 1", HOLDS,
        lambda: f"at most {theorem_maximum('start_over_bound'):.2f} of the bound, 10 seeds",
        f"{OTHER}: N = 64, s = 100 (the paper gives none)", ("theorems.json",), "theorems.py",
    ),
    Claim(
        "(E[T_FLANP] / E[T_FedGATE] is at most O(1 / log(Ns)))", "Theorem 2", HOLDS,
        lambda: "ratio and bound of six rows: "
        + ", ".join(
            f"{np.mean(a):.2f} and {np.mean(b):.2f}"
            for a, b in zip(table_columns("ratio"), table_columns("theorem2_bound"), strict=True)
        ),
        SIX_ROWS, ("table1.json", "table2.json"), "table1.py",
    ),
    Claim(
        "provable speedups even for homogeneous federated clients with identical speeds", "section 4.2", FAILS,
        equal_speeds, f"{PAPER} N and s; three targets, 20 seeds", ("fixed_target.json",), "fixed_target.py",
    ),
    Claim(
        "speedup gains of up to 2.1x compared to FedGATE", "section 5.1; figure 1", HOLDS,
        partial(over_fedgate, "figure1_full"),
        f"{PAPER} N and s, 500 rounds; 2 seeds", ("figure1_full.json",), "figure1.py --scale full --seeds 2",
    ),
    Claim(
        "speed up the training time by 10x compared to non-adaptive FedGATE", "section 5.1; figure 2", FAILS,
        partial(over_fedgate, "figure2"),
        f"{PAPER} N and s; dimension and noise ours, 5 seeds", ("figure2.json",), "figure2.py",
    ),
    Claim(
        "accelerates the training by up to 3x [...] compared to FedNova", "section 5.1; figure 3, MNIST", HOLDS,
        lambda: f"{ratios_at('figure3_full', 'flanp', 'fednova', ('0.5', '0.4', '0.3', '0.2'))}; early in training",
        f"{PAPER} N, s and steps; tau, batches and FedNova's tau_i ours, 3 seeds",
        ("figure3_full.json",), "figure3.py --scale full",
    ),
    Claim(
        "accelerates the training by up to [...] 4x compared to FedNova", "section 5.1; figure 4, CIFAR-10", IN_PART,
        lambda: f"FedNova that waits for half: {ratios_at('figure4_full', 'early', 'fednova', ('2.1', '1.8'))}; with "
        f"random steps: {ratios_at('figure4_full', 'early', 'fednova_drawn', ('2.1', '1.8'))}",
        f"{PAPER} N, s and steps; first threshold at the first norm; the paper does not say which FedNova; 3 seeds",
        ("figure4_full.json",), "figure4.py --scale full",
    ),
    Claim(
        "FLANP is significantly faster than FedGATE with partial node participation", "section 5.3; figure 6a", HOLDS,
        random_clients, f"{PAPER} N and s, 3 seeds", ("figure6_full.json",), "figure6.py --scale full",
    ),
    Claim(
        "partial participation methods with k fastest nodes [...] suffer from higher training error saturation",
        "section 5.3; figure 6b", IN_PART, saturation,
        f"{PAPER} N; s = 1,200 is the paper's, where 120 rounds are too few, and s = 80 is not; {SEEDS_OF_6}",
        ("figure6_full.json", "figure6.json"), "figure6.py --scale full",
    ),
    Claim(
        "increasing either the number of clients [...] or the number of data samples per node results in faster "
        "training time",
        "section 5.4; tables 1 and 2", HOLDS, lambda: "ratio, s = 20, 200, 2,000 and N = 10, 100, 1,000: "
        + ", ".join(pm(row) for row in table_columns("ratio")),
        SIX_ROWS, ("table1.json", "table2.json"), "table2.py",
    ),
    Claim(
        "(ratios of times of 0.74, 0.43, 0.35 and 0.73, 0.44, 0.26)", "section 5.4; tables 1 and 2", IN_PART,
        table_ratios, f"{PAPER} N and s; the paper does not say what it measures; eps and tau were fitted",
        ("table1.json", "table2.json", "fixed_target.json"), "fixed_target.py",
    ),
    Claim(
        "the performance of such heuristic methods is indeed close to FLANP", "section 5.4; figure 9", FAILS,
        lambda: f"FLANP is {pm(flanp_speed_ups('figure9', 'heuristic')['at_end'])} times as fast at the end",
        f"{PAPER} kind of data; N = 50, s = 200 and constants ours, 5 seeds", ("figure9.json",), "figure9.py",
    ),
]  # fmt: skip


# FedRep

CIFAR = ("cifar10_100x2", "cifar10_100x5")


def table1_accuracy(column: str, method: str, file: str = "table1.json") -> str:
    """Format an accuracy of table 1 in %, with the standard deviation over seeds if there are several."""
    runs = json.loads((HERE / "fedrep/results" / file).read_text())["runs"][column][method]
    values = [run["accuracy"] for run in runs.values()]
    return pm(values, 1)


def accuracies_by_column(*methods: str, columns: Sequence[str] = CIFAR) -> str:
    """Format the accuracies of some methods, column by column."""
    titles = {"cifar10_100x2": "(100, 2)", "cifar10_100x5": "(100, 5)", "cifar100_100x5_once": "CIFAR-100 (100, 5)"}
    return "; ".join(f"{titles[c]}: " + ", ".join(f"{m} {table1_accuracy(c, m)}" for m in methods) for c in columns)


def variates() -> str:
    """FedAvg against SCAFFOLD, as in SCAFFOLD's paper and as in the code of FedRep's authors."""
    of_code = " and ".join(table1_accuracy(f"{column}_variates", "SCAFFOLD", "ablation.json") for column in CIFAR)
    return f"{accuracies_by_column('FedAvg', 'SCAFFOLD')}; SCAFFOLD as in the authors' code {of_code}"


def final_distances() -> str:
    found = load_results("fedrep/results/figure3.json")
    return "distance after 200 rounds, n = 10, 100, 1,000: " + "; ".join(
        f"{name} "
        + ", ".join(f"{np.mean(found[f'n={n}, {name}, descent start']['final']):.2g}" for n in (10, 100, 1000))
        for name in ("FedRep", "10GD-GD", "GD-GD")
    )


def trials_in_order() -> str:
    found, parts = load_results("fedrep/results/figure3.json"), []
    for n in (10, 100, 1000):
        final = [np.array(found[f"n={n}, {m}, descent start"]["final"]) for m in ("FedRep", "10GD-GD", "GD-GD")]
        parts.append(f"{int((final[0] < final[1]).sum())} and {int((final[1] < final[2]).sum())} of 10 at n = {n:,}")
    return "trials with FedRep ahead of 10GD-GD, and 10GD-GD of GD-GD: " + "; ".join(parts)


def from_random_starts() -> str:
    (low, middle, high) = load_results("fedrep/results/figure1_random.json")["FedRep"]["final of every trial"]
    failed = [sum(value > 1e-3 for value in trials) for trials in (low, middle, high)]
    return "trials of 10 that do not get below an error of 1e-3, m = 5, 10, 20: " + ", ".join(map(str, failed))


def new_clients_linear() -> str:
    found = load_results("fedrep/results/figure4.json")
    at_two = {name: span(row, row["x"].index(2.0)) for name, row in found.items()}
    return "median error with 2 samples: " + ", ".join(f"{name} {value}" for name, value in at_two.items())


def head_epochs() -> str:
    found = load_results("fedrep/results/figure5.json")
    ends = {name: f"{span(row, 0, '.3g')} to {span(row, -1, '.3g')}" for name, row in found.items()}
    return "accuracy in % with 1 and 20 local epochs: " + "; ".join(f"{name} {value}" for name, value in ends.items())


def new_clients_images() -> str:
    parts = []
    for name, title in (("figure6", "digits, 5 trials"), ("figure6_femnist", "FEMNIST, 2 trials")):
        found = load_results(f"fedrep/results/{name}.json")["all samples"]
        parts.append(f"{title}: " + ", ".join(f"{m} {span(found[m], 30, '.3g')}" for m in ("FedRep", "FedAvg")))
    return "accuracy in % after 30 epochs on all samples, " + "; ".join(parts)


SYNTHETIC = f"{PAPER} sizes; steps ours, B orthonormal in every round, 10 trials"
TABLE_1 = f"{PAPER} size, 1 epoch of the representation, 1 or 2 seeds of 5; text"
FEDREP = [
    Claim(
        "(FedRep's error is small in all cases, the others' is not)", "figure 1", HOLDS,
        lambda: "error at m = 5: " + ", ".join(
            f"{name} {span(row['final by samples'], 0)}"
            for name, row in load_results("fedrep/results/figure1.json").items()
        ),
        SYNTHETIC, ("figure1.json",), "figure1.py",
    ),
    Claim(
        "by increasing the number of nodes, clients converge to the true representation faster",
        "section 5.1; figure 3", IN_PART, final_distances, f"{SYNTHETIC}; three of the paper's four n",
        ("figure3.json",), "figure3.py",
    ),
    Claim(
        "FedRep [...] has the fastest rate compared to GD-GD and 10GD-GD", "section 5.1; figure 3, MNIST", HOLDS,
        trials_in_order, f"{SYNTHETIC}; not for n = 10", ("figure3.json",), "figure3.py",
    ),
    Claim(
        "the same convergence trajectories regardless of whether its iterates were initialized with random [...]",
        "appendix A.1", IN_PART, from_random_starts, SYNTHETIC, ("figure1_random.json",), "figure1.py --init random",
    ),
    Claim(
        "the representation learned by FedRep allows an accurate model to be found for the new client",
        "section 5.1; figure 4", HOLDS, new_clients_linear, SYNTHETIC, ("figure4.json",), "figure4.py",
    ),
    Claim(
        "In all cases, FedRep is either the top-performing method or is very close", "section 5.2; table 1", FAILS,
        lambda: accuracies_by_column("FedRep", "FedPer", "FedAvg+FT"), TABLE_1, ("table1.json",), "table1.py",
    ),
    Claim(
        "the fine-tuning methods perform very well, especially FedAvg+FT", "section 5.2; table 1", HOLDS,
        lambda: accuracies_by_column("FedAvg+FT", "FedProx+FT", "Ditto"), TABLE_1, ("table1.json",), "table1.py",
    ),
    Claim(
        "The superior performance of FedAvg relative [to] SCAFFOLD", "section 5.2; table 1", IN_PART, variates,
        f"{TABLE_1}; fails for SCAFFOLD as in its own paper, holds with the variates of the authors' code (2 seeds)",
        ("table1.json", "ablation.json"), "table1.py --methods scaffold",
    ),
    Claim(
        "(columns of CIFAR-10 with 1,000 clients, CIFAR-100 (100, 20), Sent140 and FEMNIST)", "table 1", NOT_RUN,
        "5 to 14 hours of a core for CIFAR-10; Sent140 was not available", f"{PAPER} size", (), "table1.py --columns",
    ),
    Claim(
        "FedRep is never hurt by more local computation on the heads", "section 5.2; figure 5", HOLDS, head_epochs,
        f"{OTHER}: digits instead of CIFAR-10, 5 seeds", ("figure5.json",), "figure5.py",
    ),
    Claim(
        "For FedAvg, we observe running more local updates does not necessarily improve the performance",
        "section 5.2; figure 5", IN_PART, "its accuracy rises without fine-tuning and falls with it; the row above",
        f"{OTHER}: digits instead of CIFAR-10, 5 seeds", ("figure5.json",), "figure5.py",
    ),
    Claim(
        "FedRep has significantly better performance than these baselines [on new clients]", "section 5.2; figure 6",
        FAILS, new_clients_images, f"{OTHER}: digits; FEMNIST with new writers instead of new classes",
        ("figure6.json", "figure6_femnist.json"), "figure6.py",
    ),
]  # fmt: skip


# FedAvg as a representation learner


def final_values(name: str) -> str:
    """Format the last values of the curves of a figure."""
    found = load_results(f"fedavg_representation/results/{name}.json")
    return ", ".join(f"{method} {span(row, -1)}" for method, row in found.items())


def gradients() -> str:
    found = load_results("fedavg_representation/results/figure3.json")
    return "gradient norm after 250 rounds: " + ", ".join(
        f"{name} {span(found[f'{name}, gradient norm'], -1)}" for name in LINEAR
    )


def fine_tuned() -> str:
    found = load_results("fedavg_representation/results/figure3.json")
    return "error with 25 and 300 samples: " + "; ".join(
        f"{name} {span(found[f'{name}, fine-tuned'], 0)} and {span(found[f'{name}, fine-tuned'], -1)}"
        for name in LINEAR
    )


LINEAR = ("FedAvg, 2 local updates", "D-GD, 1 local update")
TAUS = ("D-SGD (tau = 1)", "FedAvg, tau = 10", "FedAvg, tau = 50")


def layers() -> str:
    found = load_results("fedavg_representation/results/figure2.json")
    return "CKA of the first layer: " + ", ".join(f"{name} {span(found[name], 0, '.3g')}" for name in TAUS)


def cosines() -> str:
    found = load_results("fedavg_representation/results/figure4.json")
    return "cosine within and between classes: " + "; ".join(
        f"{name} {span(found[name]['same class'], form='.3f')} and {span(found[name]['different classes'], form='.3f')}"
        for name in TAUS
    )


def figure_5(panel: str) -> Callable[[], str]:
    """Return a reader of accuracies with 20 and 500 samples, at equal steps and at each method's best step."""

    def read() -> str:
        found = load_results("fedavg_representation/results/figure5.json")[panel]["C=4"]
        equal = "; ".join(
            f"{name} {found[name]['mean'][0]:.1f} ± {found[name]['std'][0]:.1f} and {found[name]['mean'][-1]:.1f} ± "
            f"{found[name]['std'][-1]:.1f}" for name in TAUS
        )  # fmt: skip
        return f"accuracy in % with 20 and 500 samples, C = 4, equal steps: {equal}{best_steps(panel)}"

    return read


def best_steps(panel: str) -> str:
    """Accuracies at the step size with the lowest training loss of each method; empty before the search."""
    if not (HERE / "fedavg_representation/results/steps.csv").is_file():
        return ""
    rows = csv("fedavg_representation/results/steps.csv")
    rows, parts = rows[rows["panel"] == panel], []
    for tau, group in rows.groupby("tau"):
        step = group.groupby("step")["training_loss"].mean().idxmin()
        kept = group[group["step"] == step]
        few, many = (kept[kept["samples"] == n]["accuracy"].to_list() for n in (20, 500))
        parts.append(f"tau = {tau} (step {step:g}) {pm(few, 1)} and {pm(many, 1)}")
    return f"; steps by training loss ({plural(rows['trial'].nunique(), 'trial')}): " + "; ".join(parts)


SMALL = f"{OTHER}: an MLP, FEMNIST's letters instead of CIFAR-100, T tau = 10,000 of 125,000, 3 trials"
REPRESENTATION = [
    Claim(
        "FedAvg linearly converges to the ground-truth representation, while D-GD [...] fails to learn it", "figure 1",
        HOLDS, lambda: f"distance after 250 rounds: {final_values('figure1')}", f"{PAPER} size, 10 trials",
        ("figure1.json",), "figure1.py",
    ),
    Claim(
        "D-GD linearly converges to stationary point of (7), while FedAvg does not converge to one at all",
        "section 5.1; figure 3 left", HOLDS, gradients, f"{PAPER} size, 10 trials", ("figure3.json",), "figure3.py",
    ),
    Claim(
        "it does not generalize as well as FedAvg to new clients", "section 5.1; figure 3 right", HOLDS, fine_tuned,
        f"{PAPER} size, 10 trials", ("figure3.json",), "figure3.py",
    ),
    Claim(
        "the early layers of FedAvg's pre-trained model [...] change much less than those of D-SGD",
        "section 1; figure 2", IN_PART, layers, f"{SMALL}; MNIST instead of CIFAR-10; equal steps",
        ("figure2.json",), "figure2.py",
    ),
    Claim(
        "FedAvg indeed learns features with high intra-class similarity and low inter-class similarity",
        "section 5.2; figure 4", HOLDS, cosines, f"{OTHER}: an MLP on MNIST, T tau = 4,000, 3 trials; equal steps",
        ("figure4.json",), "figure4.py",
    ),
    Claim(
        "all of the features learned by D-SGD are dissimilar, regardless of whether two images belong to the same "
        "class",
        "section 5.2; figure 4", FAILS, "the row above", f"{OTHER}: as the row above", ("figure4.json",), "figure4.py",
    ),
    Claim(
        "FedAvg significantly outperforms D-SGD [on new classes]", "section 5.2; figure 5 left", IN_PART,
        figure_5("new classes"), f"{SMALL}; equal steps, or each method's best by training loss",
        ("figure5.json", "steps.csv"), "steps.py",
    ),
    Claim(
        "FedAvg significantly outperforms D-SGD [on a new data set]", "section 5.2; figure 5 right", IN_PART,
        figure_5("new data set"), f"{SMALL}; MNIST instead of CIFAR-10; equal steps, or the best",
        ("figure5.json", "steps.csv"), "steps.py",
    ),
    Claim(
        "(figures 2, 4 and 5 with the CNN on CIFAR-100 and CIFAR-10)", "section 5.2", NOT_RUN,
        "125,000 local steps a model", f"{PAPER} size", (), "figure5.py --scale full",
    ),
]  # fmt: skip

PAPERS = {
    "srpfl": ("SRPFL", SRPFL),
    "flanp": ("FLANP", FLANP),
    "fedrep": ("FedRep", FEDREP),
    "fedavg_representation": ("FedAvg as a representation learner", REPRESENTATION),
}
INTRODUCTION = """# Every claim of the four papers

Written by `python experiments/claims.py` from the files in `experiments/*/results`; do not edit. A row is a claim;
quotation marks enclose the paper's own words. Verdicts:

- *holds*, *fails*: at the size and in the setting of the row, which says whether they are the paper's;
- *in part*: for some of the data, targets or readings, see the folder's README;
- *not run*: there is a script and no result.

Numbers are means ± standard deviations over seeds, or means with the lowest and the highest trial in brackets. "Text"
and "code": the setting of the paper's text, or that of its authors' code where the two differ
([Methods](../docs/methods.md)).
"""


def page() -> str:
    counts, sections = [["paper", *VERDICTS]], []
    for folder, (title, claims) in PAPERS.items():
        verdicts = Counter(claim.verdict for claim in claims)
        counts.append([title, *(verdicts[verdict] for verdict in VERDICTS)])
        rows = [["claim", "where", "verdict", "found", "size and setting", "results", "script"]]
        made = markdown(rows + [claim_row(claim, folder) for claim in claims])
        sections.append(f"## {title}\n\n[Settings, variations and figures]({folder}/README.md).\n\n{made}")
    return "\n\n".join([INTRODUCTION.rstrip(), markdown(counts), *sections]) + "\n"


def claim_row(claim: Claim, folder: str) -> list[str]:
    """Return the cells of a claim."""
    quote = claim.quote if claim.quote.startswith("(") else f'"{claim.quote}"'
    found = claim.found if isinstance(claim.found, str) else claim.found()
    files = ", ".join(f"[{name}]({folder}/results/{name})" for name in claim.files) or "none"
    return [quote, claim.place, claim.verdict, found, claim.size, files, f"`{folder}/{claim.command}`"]


COLORS = {HOLDS: "#0072B2", IN_PART: "#56B4E9", FAILS: "#D55E00", NOT_RUN: "#CCCCCC"}


def draw(path: Path) -> None:
    """Draw a bar for each paper with the numbers of its verdicts."""
    figure = Figure(figsize=(7, 2.4), layout="constrained")
    ax = figure.subplots()
    names = [title for title, _ in reversed(PAPERS.values())]
    left = np.zeros(len(names))
    for verdict, color in COLORS.items():
        counts = np.array([sum(c.verdict == verdict for c in claims) for _, claims in reversed(PAPERS.values())])
        dark = verdict in (HOLDS, FAILS)
        bars = ax.barh(names, counts, left=left, color=color, label=verdict, height=0.7)
        labels = [str(count) if count else "" for count in counts]
        ax.bar_label(bars, labels, label_type="center", color="w" if dark else "k", fontsize=9)
        left += counts
    ax.set_xlabel("claims")
    ax.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=len(VERDICTS), frameon=False)
    save_picture(figure, path, dpi=110)


if __name__ == "__main__":
    (HERE / "README.md").write_text(page(), "utf-8")
    draw(HERE.parent / "docs/_static/claims.png")
    print(f"wrote {HERE / 'README.md'}")
