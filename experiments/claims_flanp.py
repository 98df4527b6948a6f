"""Claims of FLANP's paper, and the functions that read their numbers from the results."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from experiments.claim import FAILS, HOLDS, IN_PART, OTHER, PAPER, Claim
from experiments.pages import load_results, pm


def ratios_at(
    name: str, ours: str, rival: str, losses: Sequence[str], panel: int = 0
) -> str:
    found = load_results(f"flanp/results/{name}.json")[panel]["at"][ours][rival]
    return ", ".join(f"{pm(found[loss])} at {loss}" for loss in losses)


def flanp_speed_ups(name: str, rival: str) -> dict[str, list[float]]:
    return load_results(f"flanp/results/{name}.json")[0]["speed_up"][rival]


def over_fedgate(name: str) -> str:
    found = flanp_speed_ups(name, "fedgate")
    return f"{pm(found['at_most'])} at most, {pm(found['at_end'])} at the end"


def by_the_heuristic() -> str:
    """Time of FLANP by the heuristic over that of FLANP, by the first threshold."""
    starts = (("tuned", "0.25"), ("heuristic", "0.5"), ("whole", "1"))
    over = (
        f"{pm(flanp_speed_ups('figure9', method)['at_end'])} from {start}"
        for method, start in starts
    )
    fedgate = pm(flanp_speed_ups("figure9", "fedgate")["at_end"])
    return (
        "time by the heuristic over FLANP's, at the end, by the share of the first norm at which it starts: "
        f"{', '.join(over)}; FedGATE {fedgate}"
    )


def over_fednova_on_mnist() -> str:
    """Speed-ups of figure 3 over FedNova, as in figures 1 and 2 and at losses."""
    found = flanp_speed_ups("figure3_full", "fednova")
    return (
        f"{pm(found['at_most'])} at most, {pm(found['at_end'])} at the end; to losses "
        f"{ratios_at('figure3_full', 'flanp', 'fednova', ('0.5', '0.4', '0.3', '0.2'))}; with the threshold by which "
        f"all 20 clients take part in the end {ratios_at('figure3_full', 'gentle', 'fednova', ('0.5', '0.2'))}"
    )


def theorem_2() -> str:
    """Ratio and bound of six rows, and the ratio times log(N s)."""
    ratios = [np.mean(row) for row in table_columns("ratio")]
    bounds = [np.mean(row) for row in table_columns("theorem2_bound")]
    cells = (
        f"{ratio:.2f} and {bound:.2f}"
        for ratio, bound in zip(ratios, bounds, strict=True)
    )
    products = (
        f"{ratio * np.log(n * s):.2f}"
        for ratio, (n, s) in zip(ratios, TABLE_SIZES, strict=True)
    )
    empty = sum(bound > 1 for bound in bounds)
    return (
        f"ratio and bound of six rows: {', '.join(cells)}, so {empty} bounds say nothing; ratio times log(N s), which "
        f"would stay or fall: {', '.join(products)}"
    )


TABLE_SIZES = [
    (50, 20),
    (50, 200),
    (50, 2000),
    (10, 100),
    (100, 100),
    (1000, 100),
]  # N, s of the rows of both tables


def theorem_maximum(column: str) -> float:
    rows = load_results("flanp/results/theorems.json")["float64"].values()
    return max(value for row in rows for value in row[column] if value is not None)


def table_columns(column: str) -> list[list[float]]:
    rules = [
        load_results(f"flanp/results/table{number}.json")["rules"] for number in (1, 2)
    ]
    return [row[column] for table in rules for row in table.values()]


def table_ratios() -> str:
    fitted = [
        row["0.0116"]["ratio"]
        for row in load_results("flanp/results/fixed_target.json").values()
    ]
    formatted = lambda rows: ", ".join(pm(row) for row in rows)
    return f"by the rules {formatted(table_columns('ratio'))}; to a fitted, fixed target {formatted(fitted)} (20 seeds)"


def equal_speeds() -> str:
    rows = load_results("flanp/results/fixed_target.json").values()
    values = [
        np.mean(row[target]["equal_speeds"])
        for row in rows
        for target in ("0.0116", "0.02", "tightening")
    ]
    return f"FLANP takes {min(values):.2f} to {max(values):.2f} times as long in the mean of a row"


def equation_4() -> str:
    """Expected times of equation 4 over the measured ones."""
    parts = []
    for method, formula in (("FLANP", "proposition2"), ("FedGATE", "proposition3")):
        pairs = zip(table_columns(formula), table_columns(f"T_{method}"), strict=True)
        over = [np.mean(np.divide(*pair)) for pair in pairs]
        parts.append(f"{method} {min(over):.0f} to {max(over):.0f} times")
    return f"the expressions are larger than the measured times, means of six rows: {', '.join(parts)}"


def equal_speeds_by_equation_4() -> str:
    values = [
        np.mean(row["propositions_equal"])
        for row in load_results("flanp/results/fixed_target.json").values()
    ]
    return (
        f"by equation 4 FLANP takes {min(values):.2f} to {max(values):.2f} times as long "
        "at equal speeds; the row above"
    )


def initial_rounds() -> str:
    short, long = (
        load_results(f"flanp/results/{name}.json")[0]
        for name in ("figure1", "figure1_full")
    )
    last = lambda panel: ", ".join(
        f"{label} {pm(panel[key]['last'], 3)}" for label, key in BOTH
    )
    return f"training loss after 150 rounds: {last(short)}; after 500: {last(long)}"


def wall_clock_of_figure_1() -> str:
    of_150 = flanp_speed_ups("figure1", "fedavg")["at_end"]
    of_500 = flanp_speed_ups("figure1_full", "fedgate")["at_end"]
    return f"at the end of 150 rounds {pm(of_150)} times as fast as FedAvg, of 500 {pm(of_500)} times as FedGATE"


def exponential_speeds() -> str:
    losses, rivals = (
        ("0.4", "0.2"),
        {"fedgate": "FedGATE", "fedavg": "FedAvg", "fednova": "FedNova"},
    )
    over = lambda ours: [
        f"{label} {ratios_at('figure5_full', ours, rival, losses)}"
        for rival, label in rivals.items()
    ]
    few = {
        rival: flanp_speed_ups("figure5", rival)["at_end"]
        for rival in ("fedgate", "fednova")
    }
    return (
        f"FLANP's speed-up to losses over {'; '.join(over('flanp'))}; with the threshold by which all 20 clients take "
        f"part over {over('gentle')[-1]}; with s = 200 at the end FedGATE {pm(few['fedgate'])}, FedNova "
        f"{pm(few['fednova'])}"
    )


def k_fastest_at_the_end() -> str:
    parts = []
    for name, s in (("figure6_full", "1,200"), ("figure6", "80")):
        found = load_results(f"flanp/results/{name}.json")[1]["speed_up"]
        parts.append(
            f"s = {s}: "
            + ", ".join(
                f"{k} fastest {pm(found[f'fastest{k}']['at_end'])}" for k in (5, 25)
            )
        )
    found = f"FLANP's speed-up to 1.05 times the lowest loss that both reach: {'; '.join(parts)}"
    return f"{found}; last losses: the row above"


BOTH = (("FLANP", "flanp"), ("FedGATE", "fedgate"))


def saturation() -> str:
    full, small = (
        load_results(f"flanp/results/{name}.json")[1]
        for name in ("figure6_full", "figure6")
    )
    last = lambda panel: ", ".join(
        f"{label} {pm(panel[key]['last'], 3)}" for label, key in FASTEST
    )
    panels = (480, "1,200", full), (120, "80", small)
    parts = [
        f"{rounds} rounds with s = {s}: {last(panel)}" for rounds, s, panel in panels
    ]
    lowest = ", ".join(
        f"{label} {pm(full[key]['lowest'], 3)}" for label, key in FASTEST[:2]
    )
    return (
        f"training loss after {', after '.join(parts)}; lowest with s = 1,200: {lowest}"
    )


FASTEST = (("5 fastest", "fastest5"), ("25 fastest", "fastest25"), ("FLANP", "flanp"))


def random_clients() -> str:
    drawn = load_results("flanp/results/figure6_full.json")[0]["at"]["flanp"]
    means = [np.mean(ratios) for rivals in drawn.values() for ratios in rivals.values()]
    few = load_results("flanp/results/figure6.json")[0]["speed_up"]
    at_end = " and ".join(pm(few[f"random{k}"]["at_end"]) for k in (5, 25))
    return (
        f"k random clients take {min(means):.2f} to {max(means):.2f} times as long, means to losses of 0.5 to 0.2; "
        f"with s = 80 {at_end} times at the end (5 and 25 clients)"
    )


def largest_cohort() -> str:
    """The most clients that FLANP ever had in figure 6."""
    sizes = set()
    for name in ("figure6_full", "figure6"):
        stages_of_seeds = load_results(f"flanp/results/{name}.json")[0]["flanp"]["stages"]
        sizes.add(max(stages[-1][0] for stages in stages_of_seeds))
    return (
        f"FLANP never had more than {' and '.join(map(str, sorted(sizes)))} of 50 clients"
    )


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
        "(there the squared gradients, of the loss of all and of each client's own, are at most (6) and (7))",
        "Lemma 1", HOLDS,
        lambda: f"at most {theorem_maximum('start_gradient_over_bound'):.2f} and "
        f"{theorem_maximum('own_gradients_over_bound'):.2f} of the bounds, 10 seeds",
        f"{OTHER}: N = 64, s = 100 (the paper gives none)", ("theorems.json",), "theorems.py",
    ),
    Claim(
        "(E[T_FLANP] / E[T_FedGATE] is at most O(1 / log(Ns)))", "Theorem 2", HOLDS, theorem_2,
        f"{SIX_ROWS}; as a bound, proven for powers of two, which no N here is; three points a table cannot tell the "
        "rate", ("table1.json", "table2.json"), "table1.py",
    ),
    Claim(
        "provable speedups even for homogeneous federated clients with identical speeds", "section 4.2", FAILS,
        equal_speeds, f"{PAPER} N and s; three targets, 20 seeds", ("fixed_target.json",), "fixed_target.py",
    ),
    Claim(
        "the overall runtime of FLANP with FedGATE is strictly smaller than the vanilla FedGATE", "section 4.2", FAILS,
        equal_speeds_by_equation_4, f"{PAPER} N and s, 20 seeds; it holds in the means of tables 1 and 2",
        ("fixed_target.json",), "fixed_target.py",
    ),
    Claim(
        "these expected delays are precisely characterized as follows", "equation 4; Propositions 2 and 3", IN_PART,
        equation_4, f"{SIX_ROWS}; true as upper bounds", ("table1.json", "table2.json"), "table1.py",
    ),
    Claim(
        "speedup gains of up to 2.1x compared to FedGATE", "section 5.1; figure 1", HOLDS,
        partial(over_fedgate, "figure1_full"),
        f"{PAPER} N and s, 500 rounds; 2 seeds; more by the yardstick of figures 2 and 3, \"at most\"",
        ("figure1_full.json",), "figure1.py --scale full --seeds 2",
    ),
    Claim(
        "FLANP is slightly outperformed by FedGATE at the initial rounds", "section 5.1; figure 1", HOLDS,
        initial_rounds, f"{PAPER} N and s; 2 seeds", ("figure1.json", "figure1_full.json"), "figure1.py --scale full",
    ),
    Claim(
        "With respect to wall-clock time however, FLANP outperforms both FedAvg and FedGATE", "section 5.1; figure 1",
        HOLDS, wall_clock_of_figure_1, f"{PAPER} N and s; FedAvg for 150 rounds, FedGATE for 500; 2 seeds",
        ("figure1.json", "figure1_full.json"), "figure1.py --scale full",
    ),
    Claim(
        "speed up the training time by 10x compared to non-adaptive FedGATE", "section 5.1; figure 2", FAILS,
        partial(over_fedgate, "figure2"),
        f"{PAPER} N and s; dimension and noise ours, 5 seeds", ("figure2.json",), "figure2.py",
    ),
    Claim(
        "accelerates the training by up to 3x [...] compared to FedNova", "section 5.1; figure 3, MNIST", IN_PART,
        over_fednova_on_mnist,
        f"{PAPER} N, s and steps; tau, batches and FedNova's tau_i ours, 3 seeds; early in training only",
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
        "(FLANP is faster than FedGATE, FedAvg and FedNova with exponential speeds)", "section 5.2; figure 5", IN_PART,
        exponential_speeds,
        f"{PAPER} N, s and steps; tau, batches and FedNova's tau_i ours, 3 seeds; s = 200 is not; the text has no "
        "factor",
        ("figure5_full.json", "figure5.json"), "figure5.py --scale full",
    ),
    Claim(
        "FLANP is significantly faster than FedGATE with partial node participation", "section 5.3; figure 6a", HOLDS,
        random_clients, f"{PAPER} N and s, 3 seeds; s = 80 is not", ("figure6_full.json", "figure6.json"),
        "figure6.py --scale full",
    ),
    Claim(
        "partial participation methods with k fastest nodes [...] suffer from higher training error saturation",
        "section 5.3; figure 6b", IN_PART, saturation,
        f"{PAPER} N and s; s = 80 is not; 3 seeds; with s = 1,200 the 5 fastest saturate, the 25 not in 480 rounds; "
        f"{largest_cohort()}",
        ("figure6_full.json", "figure6.json"), "figure6.py --scale full",
    ),
    Claim(
        "methods with k fastest nodes begin to outperform FLANP towards the end of the training",
        "section 5.3; figure 6b", FAILS, k_fastest_at_the_end,
        f"{PAPER} N and s, 480 rounds; s = 80 is not, 120 rounds; 3 seeds; {largest_cohort()}",
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
        "the performance of such heuristic methods is indeed close to FLANP", "section 5.4; figure 9", HOLDS,
        by_the_heuristic,
        f"{PAPER} kind of data; N = 50, s = 200 and constants ours, 5 seeds; with a start tuned on these runs, as the "
        "paper tunes it, and not without", ("figure9.json",), "figure9.py",
    ),
]  # fmt: skip
