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

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

import fedjax_srp as srp
from experiments import curves, scripts
from experiments.srpfl.linear_speedup import (
    DIM,
    FACTORS,
    FEDREP_ROUNDS,
    NOISE,
    RANK,
    STAGE,
    fedrep_of,
    floors_of,
    options_of,
    times_to_floors,
)
from fedjax_srp import theory

STAGES_OF = 64  # clients, for which all stages are tried


SCALES: dict[str, dict[str, Any]] = {  # of the lemmas and of the remarks
    "smoke": {
        "lemmas": {
            "axes": {"a": (0.1,), "chat": (1.1,), "cost": (0.0,)},
            "options": {"exponents": (6, 8), "most_rounds": 40},
        },
        "remarks": {"clients": 64, "pool": 16, "initial": 4, "trials": 2},
    },
    "cpu": {
        "lemmas": {
            "axes": {
                "a": (0.02, 0.05, 0.1, 0.25),
                "chat": (1.01, 1.1, 1.4),
                "cost": (0.0, 1.0, 10.0, 100.0),
            },
            "options": {"exponents": tuple(range(6, 25)), "most_rounds": 360},
        },
        "remarks": {"clients": 1024, "pool": 256, "initial": 32, "trials": 10},
    },
}


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


def closed_forms(
    a: float, chat: float, cost: float, exponents: Sequence[int], most_rounds: int
) -> dict[str, Any]:
    """Return the lemma's time over the shortest one, and for each log2 N the times beside the printed bounds."""
    plan = theory.schedule(a, STAGES_OF, 1, chat, cost)
    shortest = shortest_time(a, chat, cost, most_rounds)
    where = {"a": a, "chat": chat, "C": cost}
    stages = where | {
        "rounds": plan.rounds_per_stage,
        "over shortest": curves.rounded(plan.time / shortest),
    }
    rows = []
    for num_clients in (2**exponent for exponent in exponents):
        srpfl = theory.schedule(a, num_clients, 1, chat, cost).time
        fedrep = theory.fedrep_time(a, num_clients, 1, chat, cost)
        times = {
            "N": num_clients,
            "srpfl": srpfl,
            "srpfl bound": theory.srpfl_time_bound(a, num_clients, chat, cost),
            "fedrep": fedrep,
            "fedrep bound": theory.fedrep_time_bound(a, num_clients, chat),
            "ratio": srpfl / fedrep,
            "ratio bound": theory.speedup_bound(num_clients, chat, cost),
        }
        rows.append(where | times)
    return {"stages": stages, "bounds": rows}


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


def pools(
    clients: int, pool: int, initial: int, trials: int, seed: int
) -> dict[str, Any]:
    """Return times of SRPFL over FedRep's by how often the pool is drawn; that of FedRep in every round."""
    keys = jax.random.split(jax.random.key(seed), trials)
    task = srp.data.linear_task(jax.random.key(seed), clients, DIM, RANK, NOISE)
    stages = [STAGE] * (pool // initial - 1).bit_length()
    fedrep = _run(task, srp.participation.Uniform(pool), keys)
    floors = floors_of(fedrep)
    found = {}
    for redraw in ("stage", "round"):
        policy = srp.participation.Doubling(initial, stages, pool=pool, redraw=redraw)
        srpfl = _run(task, policy, keys)
        times = (times_to_floors(runs, floors) for runs in (srpfl, fedrep))
        found[redraw] = curves.rounded(np.divide(*times))
    return {
        "rounds": FEDREP_ROUNDS,
        "stages": stages,
        "floors": curves.rounded(floors),
        "factors": FACTORS,
        "ratios": found,
    }


def _run(
    task: srp.data.LinearTask, policy: srp.ParticipationPolicy, keys: Any
) -> list[srp.History]:
    options = options_of(policy, FEDREP_ROUNDS) | {"chunk_size": 64}
    return srp.simulate_seeds(fedrep_of(task, "moments"), task, keys=keys, **options)


def first_answers(
    pool: int, initial: int, trials: int, seed: int
) -> list[dict[str, Any]]:
    """Return the mean time of a round in each stage beside its expectation, and their difference in standard errors.

    The policy knows no speeds: it ranks the pool by the times of the round, as answers come in.
    """
    sizes = [initial * 2**r for r in range(6) if initial * 2**r <= pool]
    task = srp.data.linear_task(jax.random.key(seed), pool, DIM, RANK, NOISE)
    policy = srp.participation.Doubling(initial, [STAGE] * (len(sizes) - 1))
    keys = jax.random.split(jax.random.key(seed + 1), trials)
    times = np.stack([run.compute_time for run in _run(task, policy, keys)])
    rows = []
    for r, size in enumerate(sizes):
        end = None if r == len(sizes) - 1 else (r + 1) * STAGE
        of_stage = times[:, r * STAGE : end].ravel()
        expected = theory.order_statistic_mean(size, pool)
        error = of_stage.std(ddof=1) / np.sqrt(of_stage.size)
        row = {
            "mean": of_stage.mean(),
            "expected": expected,
            "standard errors": (of_stage.mean() - expected) / error,
        }
        rows.append({"n": size, "rounds": of_stage.size, **curves.rounded(row)})
    return rows


def main() -> None:
    args = scripts.measurement_parser(
        __doc__, SCALES, "runs/srpfl_lemmas", "seed"
    ).parse_args()
    scale = SCALES[args.scale]
    remarks = scale["remarks"]
    of_pool = {name: remarks[name] for name in ("pool", "initial", "trials")}
    forms = scripts.measure_each(args, closed_forms, **scale["lemmas"])
    (of_pools,) = scripts.measure_each(args, pools, options=remarks)
    (answers,) = scripts.measure_each(args, first_answers, options=of_pool)
    facts = {
        "B.1": [found["stages"] for found in forms],
        "bounds": bounds([row for found in forms for row in found["bounds"]]),
        "Remark 3.1": of_pools,
        "Remark 3.2": answers,
    }
    curves.save(args, "lemmas", {"results": facts})


if __name__ == "__main__":
    main()
