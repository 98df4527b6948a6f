"""SRPFL's Lemmas B.1 to B.3, Theorem 4.6 by its own recursion and as printed, and Remarks 3.1 and 3.2.

    python experiments/srpfl/lemmas.py --scale smoke|cpu [--results DIR] [--seed N]

Lemma B.1: the shortest expected time under inequality (9), read as an equality, by trying all numbers of rounds in
every stage but the last with 64 clients from n0 = 1; beside it the lemma's stages, `srp.theory.schedule`.
Lemmas B.2 and B.3 and Theorem 4.6: expected times by the recursion beside the printed bounds, for all a, c-hat, C and N
of a grid. Times are Exp(1), so that C = c.
Remarks: linear tasks as in `linear_speedup.py`, of 1,024 clients in pools of 256 that are drawn in every stage or in
every round; and the time of a round of the n clients who answer first beside the mean of the n-th
smallest of N exponential times.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import jax
import numpy as np

import fedjax_srp as srp
from experiments import curves, scripts
from experiments.srpfl.linear_speedup import (
    DIM,
    FEDREP_ROUNDS,
    FLOOR_ROUNDS,
    NOISE,
    RANK,
    SAMPLES,
    STAGE,
    STEP,
)
from fedjax_srp import theory

STAGES_OF = 64  # clients, for which all stages are tried
FACTORS = (2.0, 1.3, 1.1)  # of FedRep's floor


class Scale(NamedTuple):
    """What is tried, and how often."""

    rates: tuple[float, ...]  # a
    targets: tuple[float, ...]  # c-hat
    costs: tuple[float, ...]  # C
    exponents: tuple[int, ...]  # log2 N
    most_rounds: int  # of a stage whose rounds are tried
    clients: int  # M
    pool: int  # N
    initial: int  # n0
    trials: int


SCALES = {
    "smoke": Scale((0.1,), (1.1,), (0.0,), (6, 8), 40, 64, 16, 4, 2),
    "cpu": Scale(
        rates=(0.02, 0.05, 0.1, 0.25),
        targets=(1.01, 1.1, 1.4),
        costs=(0.0, 1.0, 10.0, 100.0),
        exponents=tuple(range(6, 25)),
        most_rounds=360,
        clients=1024,
        pool=256,
        initial=32,
        trials=10,
    ),
}


def grid(scale: Scale) -> list[tuple[float, float, float]]:
    """Return all (a, c-hat, C)."""
    return list(itertools.product(scale.rates, scale.targets, scale.costs))


# Lemma B.1


def shortest_time(a: float, chat: float, cost: float, most: int) -> float:
    """Return the shortest expected time from distance 1 to the target, of all numbers of rounds in the stages.

    The distance after t rounds of a stage is x + (d - x) s^t with the stage's fixed point x and s = sqrt(1 - a). Stages
    whose fixed point is 1 or more only lose time, and get no rounds.
    """
    eps = theory.target_distance(a, STAGES_OF, 1, chat)
    sizes = [2**r for r in range(STAGES_OF.bit_length())]
    points = [theory.fixed_point(a, n) for n in sizes]
    prices = [theory.order_statistic_mean(n, STAGES_OF) + cost for n in sizes]
    useful = [r for r, point in enumerate(points[:-1]) if point < 1]
    powers = np.sqrt(1 - a) ** np.arange(most + 1)
    distance = np.ones(1)
    spent = np.zeros(1)
    best = np.inf
    for r in useful:
        # more rounds than reach the target are no use
        distance = points[r] + (distance[:, None] - points[r]) * powers
        spent = spent[:, None] + prices[r] * np.arange(most + 1)
        distance, spent = _pareto(distance.ravel(), spent.ravel())
    left = np.maximum(distance, eps) - points[-1]
    rounds = np.ceil(2 * np.log(left / (eps - points[-1])) / -np.log1p(-a) - 1e-9)
    best = np.min(spent + prices[-1] * rounds)
    return float(best)


def _pareto(distance: np.ndarray, spent: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Keep the choices that no other beats in distance and time: a nearer start of a stage never ends later."""
    order = np.lexsort((distance, spent))
    distance = distance[order]
    nearest = np.minimum.accumulate(distance)
    is_best = np.concatenate([[True], distance[1:] < nearest[:-1]])
    return distance[is_best], spent[order][is_best]


def stages_row(a: float, chat: float, cost: float, most: int) -> dict[str, Any]:
    """Return the lemma's time over the shortest one."""
    plan = theory.schedule(a, STAGES_OF, 1, chat, cost)
    shortest = shortest_time(a, chat, cost, most)
    return {
        "a": a,
        "chat": chat,
        "C": cost,
        "rounds": plan.rounds_per_stage,
        "over shortest": curves.rounded(plan.time / shortest),
    }


# Lemmas B.2 and B.3, Theorem 4.6


def bounds_row(a: float, chat: float, cost: float, num_clients: int) -> dict[str, Any]:
    """Return the times by the recursion and the printed bounds."""
    srpfl = theory.schedule(a, num_clients, 1, chat, cost).time
    fedrep = theory.fedrep_time(a, num_clients, 1, chat, cost)
    return {
        "a": a,
        "chat": chat,
        "C": cost,
        "N": num_clients,
        "srpfl": srpfl,
        "srpfl bound": theory.srpfl_time_bound(a, num_clients, chat, cost),
        "fedrep": fedrep,
        "fedrep bound": theory.fedrep_time_bound(a, num_clients, chat),
        "ratio": srpfl / fedrep,
        "ratio bound": theory.speedup_bound(num_clients, chat, cost),
    }


def bounds(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Count the rows that keep the printed bounds, and collect what the ratio does as N grows."""
    facts: dict[str, Any] = {"rows": len(rows)}
    for name, time, bound in (
        ("B.2", "srpfl", "srpfl bound"),
        ("B.3", "fedrep bound", "fedrep"),
        ("4.6", "ratio", "ratio bound"),
    ):
        worst = max(rows, key=lambda row: row[time] / row[bound])
        facts[name] = {
            "kept": sum(row[time] <= row[bound] for row in rows),
            "worst": curves.rounded(worst[time] / worst[bound]),
            "worst at": {key: worst[key] for key in ("a", "chat", "C", "N")},
        }
    facts["4.6"]["bound below 1"] = sum(row["ratio bound"] < 1 for row in rows)
    curves_of: dict[str, list[list[float]]] = {}
    for row in rows:
        if row["a"] == min(row["a"] for row in rows):
            name = f"chat={row['chat']:g}, C={row['C']:g}"
            point = [row["N"], *map(curves.rounded, (row["ratio"], row["ratio bound"]))]
            curves_of.setdefault(name, []).append(point)
    facts["ratios"] = curves_of
    return facts


# Remarks 3.1 and 3.2


def pools(scale: Scale, seed: int) -> dict[str, Any]:
    """Return times of SRPFL over FedRep's by how often the pool is drawn; that of FedRep in every round."""
    keys = jax.random.split(jax.random.key(seed), scale.trials)
    task = srp.data.linear_task(jax.random.key(seed), scale.clients, DIM, RANK, NOISE)
    stages = [STAGE] * (scale.pool // scale.initial - 1).bit_length()
    fedrep = _run(task, srp.participation.Uniform(scale.pool), keys)
    floors = [run.metrics["distance"][-FLOOR_ROUNDS:].mean() for run in fedrep]
    found = {}
    for redraw in ("stage", "round"):
        policy = srp.participation.Doubling(
            scale.initial, stages, pool=scale.pool, redraw=redraw
        )
        srpfl = _run(task, policy, keys)
        ratios = []
        for factor in FACTORS:
            times = [
                [
                    run.time_to(factor * floor, metric="distance")
                    for run, floor in zip(runs, floors, strict=True)
                ]
                for runs in (srpfl, fedrep)
            ]
            ratios.append([curves.rounded(ratio) for ratio in np.divide(*times)])
        found[redraw] = ratios
    return {
        "rounds": FEDREP_ROUNDS,
        "stages": stages,
        "floors": [curves.rounded(floor) for floor in floors],
        "factors": FACTORS,
        "ratios": found,
    }


def _run(
    task: srp.data.LinearTask, policy: srp.ParticipationPolicy, keys: Any
) -> list[srp.History]:
    algorithm = srp.algorithms.LinearFedRep(
        task,
        step_size=STEP,
        samples_per_round=SAMPLES,
        start="moments",
        charge_start=True,
    )
    return srp.simulate_seeds(
        algorithm,
        task,
        keys=keys,
        participation=policy,
        clock=srp.clocks.Dynamic(srp.clocks.Exponential(1.0)),
        num_rounds=FEDREP_ROUNDS,
        eval_every=FEDREP_ROUNDS,
        evaluations=(),
        progress=False,
        chunk_size=64,
    )


def first_answers(scale: Scale, seed: int) -> list[dict[str, Any]]:
    """Return the mean time of a round in each stage beside its expectation, and their difference in standard errors.

    The policy knows no speeds: it ranks the pool by the times of the round, as answers come in.
    """
    sizes = [scale.initial * 2**r for r in range(6) if scale.initial * 2**r <= scale.pool]
    task = srp.data.linear_task(jax.random.key(seed), scale.pool, DIM, RANK, NOISE)
    policy = srp.participation.Doubling(scale.initial, [STAGE] * (len(sizes) - 1))
    keys = jax.random.split(jax.random.key(seed + 1), scale.trials)
    times = np.stack([run.compute_time for run in _run(task, policy, keys)])
    rows = []
    for r, size in enumerate(sizes):
        end = None if r == len(sizes) - 1 else (r + 1) * STAGE
        of_stage = times[:, r * STAGE : end].ravel()
        expected = theory.order_statistic_mean(size, scale.pool)
        error = of_stage.std(ddof=1) / np.sqrt(of_stage.size)
        rows.append(
            {
                "n": size,
                "rounds": of_stage.size,
                "mean": curves.rounded(of_stage.mean()),
                "expected": curves.rounded(expected),
                "standard errors": curves.rounded((of_stage.mean() - expected) / error),
            }
        )
    return rows


def main(arguments: list[str] | None = None) -> None:
    parser = scripts.parser(__doc__, SCALES, "runs/srpfl_lemmas", "seed")
    args = parser.parse_args(arguments)
    scale = SCALES[args.scale]
    stages = [stages_row(*case, scale.most_rounds) for case in grid(scale)]
    times = [
        bounds_row(*case, 2**exponent)
        for case in grid(scale)
        for exponent in scale.exponents
    ]
    facts = {
        "B.1": stages,
        "bounds": bounds(times),
        "Remark 3.1": pools(scale, args.seed),
        "Remark 3.2": first_answers(scale, args.seed),
    }
    curves.save(args, "lemmas", {"results": facts})


if __name__ == "__main__":
    main()
