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
    Runs,
    curves,
    mean_std,
    parser,
    run_panels,
    write_results,
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
    if (
        variation
        and scale != "full"
        and not (changed.get("full_batch") and table.varied == "samples")
    ):
        worlds = worlds[:2]  # the last one takes as long as the others together
    if "initial" in changed:
        worlds = [
            world | {"initial": max(1, world["num_clients"] // 10)} for world in worlds
        ]
    else:
        worlds = [world | changed for world in worlds]
    rounds = 30 if scale == "smoke" else 120
    return [
        Panel(f"{variation or 'rules'}: {table.varied} {world[table.varied]}", "linear", world, ("flanp", "fedgate"),
              rounds, seeds=SEEDS[scale]) for world in worlds
    ]  # fmt: skip


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


def theory_times(
    world: World, client_time: np.ndarray, gap: float
) -> tuple[float, float]:
    """Return the times of Propositions 2 and 3 for the speeds of a run and its gap at the start."""
    mu, smoothness = world.data.curvature
    times = np.sort(client_time) / world.local_steps
    c, samples = (
        world.constants["accuracy_constant"],
        world.constants["samples_per_client"],
    )
    noise = (
        world.local_steps * c / (1.5 * samples)
    )  # the sigma_g^2 for which tau is Theorem 1's
    kappa = smoothness / mu
    return (
        theory.flanp_time(times, world.initial, kappa, samples, noise, c),
        theory.fedgate_time(times, kappa, samples, noise, c, gap),
    )


def table_row(runs: Runs) -> dict[str, Any]:
    """Return the values of `COLUMNS`, seed by seed."""
    found: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    pairs = zip(
        runs.worlds, runs.histories["flanp"], runs.histories["fedgate"], strict=True
    )
    for seed, (world, flanp, fedgate) in enumerate(pairs):
        (time, rounds), (other, other_rounds) = completion(flanp), completion(fedgate)
        gap = gap_at_start(world, seed)
        of_flanp, of_fedgate = theory_times(world, fedgate.client_time, gap)
        num_clients, samples = (
            world.data.num_clients,
            world.constants["samples_per_client"],
        )
        bound = theory.flanp_ratio_bound(
            num_clients, samples, world.constants["accuracy_constant"], gap
        )
        longest = max((stage.num_rounds for stage in flanp.stages()[:-1]), default=0)
        kappa = world.data.curvature.smoothness / world.data.curvature.mu
        values = (time, other, time / other, rounds, other_rounds, longest, theory.flanp_stage_rounds(kappa),
                  of_flanp, of_fedgate, of_flanp / of_fedgate, bound)  # fmt: skip
        for name, value in zip(COLUMNS, values, strict=True):
            found[name].append(curves.rounded(value))
    return found


COLUMNS = (
    "T_FLANP", "T_FedGATE", "ratio", "rounds_FLANP", "rounds_FedGATE", "longest_stage", "stage_bound",
    "proposition2", "proposition3", "ratio_of_propositions", "theorem2_bound",
)  # fmt: skip


def main(name: str, arguments: list[str] | None = None) -> None:
    table, command = TABLES[name], parser(__doc__)
    command.add_argument(
        "--vary", nargs="*", choices=VARIATIONS, default=[], help="these variations too"
    )
    args = command.parse_args(arguments)
    panels = [
        panel
        for variation in (None, *args.vary)
        for panel in row_panels(table, args.scale, variation)
    ]
    found: dict[str, dict[str, Any]] = {}
    for runs in run_panels(args, command, panels):
        variation, _, title = runs.panel.title.partition(": ")
        found.setdefault(variation, {})[title] = table_row(runs)
    for variation, rows in found.items():
        print(variation)
        for (title, values), printed in zip(rows.items(), table.paper, strict=False):
            print(
                f"  {title:18s} T_FLANP {mean_std(values['T_FLANP']):>16s}"
                f"  T_FedGATE {mean_std(values['T_FedGATE']):>16s}  ratio {mean_std(values['ratio']):>14s}"
                f" (paper {printed})  propositions {mean_std(values['ratio_of_propositions']):>14s}"
                f"  Theorem 2 <= {mean_std(values['theorem2_bound'])}"
            )
    write_results(args, name, found, paper=table.paper, paper_times=table.paper_times)
