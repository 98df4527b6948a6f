"""Tables 1 and 2 of the FLANP paper: ratios of times to the statistical accuracy of all samples.

A run reaches the target after the first round with all clients whose |grad L_N(w)|^2 is at most 2 mu c / (N s):
FLANP's last stage and FedGATE's only one end by the same criterion. The columns of theory are Propositions 2 and 3 for
the T_i of each run (`srp.theory.flanp_time`, `fedgate_time`) and, for expected times, Theorem 2's bound.

`--vary` runs the first two worlds with one option changed, to explain the difference from the paper's ratios.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import numpy as np

import fedjax_srp as srp
from experiments.flanp.panels import (
    Panel,
    curves,
    parser,
    run_panels,
)
from experiments.flanp.worlds import World
from fedjax_srp import theory

VARIATIONS: dict[str, dict[str, Any]] = {
    "full gradients": {"full_batch": True},
    "n0 = N / 10": {"initial": None},
    "noise 3": {"noise_std": 3.0},
    "noise 10": {"noise_std": 10.0},
}


class Table(NamedTuple):
    """Worlds that differ in one number; the paper's ratios, and its times T_FLANP and T_FedGATE."""

    varied: str  # name of the option that differs
    worlds: tuple[dict[str, Any], ...]
    paper: tuple[float, ...]
    paper_times: tuple[tuple[float, float], ...]


TABLES = {
    "table1": Table(
        "samples",
        tuple({"num_clients": 50, "samples": s} for s in (20, 200, 2000)),
        (0.74, 0.43, 0.35),
        ((4.51e4, 6.07e4), (2.27e4, 5.21e4), (1.82e4, 5.21e4)),
    ),
    "table2": Table(
        "num_clients",
        tuple({"num_clients": n, "samples": 100} for n in (10, 100, 1000)),
        (0.73, 0.44, 0.26),
        ((1.73e4, 2.37e4), (1.95e4, 4.40e4), (1.59e4, 6.07e4)),
    ),
}
SEEDS = {"smoke": 2, "cpu": 5, "full": 20}


def row_panels(table: Table, scale: str, variation: str | None = None) -> list[Panel]:
    """Return a panel for each row of a table."""
    worlds = list(table.worlds)
    if scale == "smoke":
        worlds = [{"num_clients": 4, "samples": 30, "dim": 3}]
    changed = VARIATIONS[variation] if variation else {}
    is_whole = changed.get("full_batch") and table.varied == "samples"
    if variation and scale != "full" and not is_whole:
        worlds = worlds[:2]  # the last one takes as long as the others together
    panels = []
    for world in worlds:
        own = world | changed
        if "initial" in changed:
            own["initial"] = max(1, world["num_clients"] // 10)
        panels.append(
            Panel(
                f"{variation or 'rules'}: {table.varied} {world[table.varied]}",
                "linear",
                own,
                ("flanp", "fedgate"),
                30 if scale == "smoke" else 120,
                seeds=SEEDS[scale],
            )
        )
    return panels


def completion(history: srp.History) -> tuple[float, int | None]:
    """Return simulated time and round at which the last stage ended; inf and None if it did not."""
    last = history.stages()[-1]
    if not (last.completed_round and last.cohort_size == history.num_clients):
        return math.inf, None
    return float(history.elapsed()[last.completed_round - 1]), last.completed_round


def initial_weights(world: World, seed: int) -> jax.Array:
    """Return the weights from which all runs of a seed start; histories begin after round 1."""
    key = srp.named_key(srp.named_key(jax.random.key(seed), "server"), "init")
    server = world.algorithm("fedgate", world.local_steps).init(key, world.data)
    return server.params.head["out"]["kernel"][:, 0]


def gap_at_start(world: World, seed: int) -> float:
    """Delta0 = L_N(w_0) - L_N(w*) of the initial weights."""
    return float(world.data.gap(initial_weights(world, seed)))


def row_of_seed(
    world: World, seed: int, flanp: srp.History, fedgate: srp.History
) -> dict[str, Any]:
    """Return times and rounds of a seed, and what Propositions 2 and 3 and Theorem 2 say of them."""
    time, rounds = completion(flanp)
    other, other_rounds = completion(fedgate)
    gap = gap_at_start(world, seed)
    mu, smoothness = world.data.curvature
    kappa = smoothness / mu
    client_times = np.sort(fedgate.client_time) / world.local_steps
    c = world.constants["accuracy_constant"]
    samples = world.constants["samples_per_client"]
    # the sigma_g^2 for which tau is Theorem 1's
    noise = world.local_steps * c / (1.5 * samples)
    of_flanp = theory.flanp_time(client_times, world.initial, kappa, samples, noise, c)
    of_fedgate = theory.fedgate_time(client_times, kappa, samples, noise, c, gap)
    num_clients = world.data.num_clients
    return {
        "T_FLANP": time,
        "T_FedGATE": other,
        "ratio": time / other,
        "rounds_FLANP": rounds,
        "rounds_FedGATE": other_rounds,
        "longest_stage": max((s.num_rounds for s in flanp.stages()[:-1]), default=0),
        "stage_bound": theory.flanp_stage_rounds(kappa),
        "proposition2": of_flanp,
        "proposition3": of_fedgate,
        "ratio_of_propositions": of_flanp / of_fedgate,
        "theorem2_bound": theory.flanp_ratio_bound(num_clients, samples, c, gap),
    }


def main(name: str) -> None:
    table = TABLES[name]
    vary = {
        "nargs": "*",
        "choices": VARIATIONS,
        "default": [],
        "help": "these variations too",
    }
    args = parser(__doc__, vary=vary).parse_args()
    panels = []
    for variation in (None, *args.vary):
        panels += row_panels(table, args.scale, variation)
    found: dict[str, dict[str, Any]] = {}
    for runs in run_panels(args, panels):
        variation, _, title = runs.panel.title.partition(": ")
        pairs = zip(*runs.histories.values(), strict=True)
        rows = [
            row_of_seed(world, seed, *pair)
            for seed, (world, pair) in enumerate(zip(runs.worlds, pairs, strict=True))
        ]
        found.setdefault(variation, {})[title] = curves.rounded(curves.columns(rows))
    facts = {"paper": table.paper, "paper_times": table.paper_times}
    curves.save(args, name, facts | {"results": found})
