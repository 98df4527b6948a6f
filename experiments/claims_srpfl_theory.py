"""Claims of SRPFL's appendix B and of its remarks, which `srpfl/lemmas.py` checks."""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments.claim import FAILS, HOLDS, IN_PART, NOT_FOUND, PAPER, Claim
from experiments.pages import load_results, pm
from fedjax_srp import theory

GRID = f"{PAPER} theory: inequality (9) as an equality, Exp(1), n0 = 1"


def lemmas() -> dict[str, Any]:
    """Return the results of `srpfl/lemmas.py`."""
    return load_results("srpfl/results/lemmas.json")


def stages() -> str:
    """Time of the lemma's stages over the shortest, by cost."""
    rows = lemmas()["B.1"]
    parts = []
    for cost in dict.fromkeys(row["C"] for row in rows):
        ratios = [row["over shortest"] for row in rows if row["C"] == cost]
        parts.append(f"C = {cost:g}: {np.mean(ratios):.3f}, at most {max(ratios):.3f}")
    return (
        "expected time with the lemma's stages over the shortest of all stages, N = 64, mean over a and ĉ: "
        + "; ".join(parts)
    )


def kept(name: str) -> str:
    """How many settings keep a printed bound, and the one that keeps it least."""
    found = lemmas()["bounds"]
    of_bound = found[name]
    where = ", ".join(
        f"{key} = {value:,g}" for key, value in of_bound["worst at"].items()
    )
    where = where.replace("chat", "ĉ")
    return (
        f"kept in {of_bound['kept']} of {found['rows']} settings of a, ĉ, C and N; at its worst "
        f"{of_bound['worst']:.3g} times the bound ({where})"
    )


def upper_bound() -> str:
    """Lemma B.2 on the grid, and a setting beyond it that does not keep the bound."""
    where = {"a": 0.02, "num_clients": 16, "chat": 1.0001}
    cost = 100.0
    time = theory.schedule(**where, initial=1, communication=cost).time
    bound = theory.srpfl_time_bound(**where, c=cost)
    return f"{kept('B.2')}; beyond them N = 16, ĉ = 1.0001, C = 100, a = 0.02 does not: {time:,.0f} beside {bound:,.0f}"


def recursion() -> str:
    """Ratio of the times, and its product with log N, at the smallest and the largest N."""
    parts = []
    for name, points in lemmas()["bounds"]["ratios"].items():
        if not name.startswith("chat=1.1,"):
            continue
        first, last = points[0], points[-1]
        products = [ratio * np.log(clients) for clients, ratio, _ in points]
        cost = name.rpartition("=")[2]
        parts.append(
            f"C = {cost}: {first[1]:.3f} at N = {first[0]:,} to {last[1]:.3f} at N = {last[0]:,}, times log N "
            f"{min(products):.2f} to {max(products):.2f}"
        )
    return "SRPFL's expected time over FedRep's, ĉ = 1.1, a = 0.02, " + "; ".join(parts)


def printed_speed_up() -> str:
    """How often the printed bound of Theorem 4.6 says anything."""
    found = lemmas()["bounds"]
    return f"{kept('4.6')}; it is below 1, and so says anything, in {found['4.6']['bound below 1']} of them"


def new_pools() -> str:
    """SRPFL's time over FedRep's for pools by stage and by round."""
    found = lemmas()["Remark 3.1"]
    parts = []
    for place, factor in enumerate(found["factors"]):
        ratios = {
            redraw: pm([float(value) for value in values[place]], 3)
            for redraw, values in found["ratios"].items()
        }
        parts.append(
            f"to {factor:g} times the floor {ratios['stage']} and {ratios['round']}"
        )
    return (
        "SRPFL's time over FedRep's with a new pool in every stage and in every round: "
        + ", ".join(parts)
    )


def first_answers() -> str:
    """Mean time of a round beside the mean of an order statistic."""
    parts = [
        f"n = {row['n']}: {row['mean']:.4g} and {row['expected']:.4g} ({row['standard errors']:+.1f})"
        for row in lemmas()["Remark 3.2"]
    ]
    return (
        "mean time of a round that ends with the n-th answer, and mean of the n-th smallest of 256 times (difference "
        "in standard errors): " + ", ".join(parts)
    )


def criterion() -> str:
    """Times to 95 and 99 % of FedRep's accuracy with stages of fixed length and with FLANP's criterion."""
    found = load_results("flanp/results/criterion_for_fedrep.json")
    parts = []
    for name, row in found.items():
        times = np.asarray(row["times"], float).T
        parts.append(f"{name} {times[0].mean():.1f} and {times[1].mean():.1f}")
    return "mean time to 95 and 99 % of FedRep's accuracy: " + ", ".join(parts)


def rows(simulated: str, digits: str) -> list[Claim]:
    """Return the rows; the sizes of the simulated ones are given."""
    lemma_files = ("lemmas.json",)
    return [
        Claim(
            "the maximum distance for which the optimal number of nodes for SRPFL is n0 2^i",
            "Lemma B.1", HOLDS, stages,
            f"{GRID}, all numbers of rounds tried for N = 64, 12 settings a cost; each step of the rule is best per "
            "unit of time, and the sum is close to the shortest, not equal", lemma_files, "lemmas.py",
        ),
        Claim(
            "(the expected wall-clock time of SRPFL is at most the printed bound)", "Lemma B.2, equation 209", IN_PART,
            upper_bound, GRID, lemma_files, "lemmas.py",
        ),
        Claim(
            "the expected 'Wall Clock Time' for FedRep is lower bounded as follows", "Lemma B.3, equation 240", FAILS,
            lambda: kept("B.3").replace("times the bound", "times FedRep's time"), GRID, lemma_files, "lemmas.py",
        ),
        Claim(
            "(the ratio of the times falls like 1 / log N, by the paper's own recursion)", "Theorem 4.6", IN_PART,
            recursion, f"{GRID}; with C = 0 it does; with a cost the product with log N still grows at these N",
            lemma_files, "lemmas.py",
        ),
        Claim(
            "(the ratio is at most the printed bound)", "Theorem 4.6, equation 248", IN_PART, printed_speed_up, GRID,
            lemma_files, "lemmas.py",
        ),
        Claim(
            "our analysis remains unaffected even if a new set of nodes is sampled at every round", "Remark 3.1",
            HOLDS, new_pools, simulated, lemma_files, "lemmas.py",
        ),
        Claim(
            "the knowledge of clients' computational power is not required to figure out the n0 fastest nodes",
            "Remark 3.2", HOLDS, first_answers, simulated, lemma_files, "lemmas.py",
        ),
        Claim(
            "[FLANP's is] a suboptimal criterion which tracks the norm of the gradient", "Remark 3.3 (iv)", NOT_FOUND,
            criterion, digits, ("../../flanp/results/criterion_for_fedrep.json",),
            "../flanp/criterion_for_fedrep.py",
        ),
    ]  # fmt: skip
