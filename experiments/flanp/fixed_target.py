"""Tables 1 and 2 of the FLANP paper with a fixed target, and with clients of equal speed.

python experiments/flanp/fixed_target.py --scale smoke|cpu|full

Exact gradients and tau = 100. FLANP's stages end by the criterion. There are two kinds of target, read off the same
runs: |w - w*| <= eps, for two eps that do not depend on N and s and were fitted to the paper's tables; and the
statistical accuracy of all samples, which tightens with N s, as in `time_ratios.py`.

The tau exact local steps of a client on a quadratic are one affine map, so a round is a few products of matrices here,
in double precision; a test compares the rounds with those of `srp.simulate`.

At equal speeds a round takes as long with one client as with all of them (section 4.2), so the ratio of times is the
ratio of rounds: the clients' data do not depend on their speeds, and FedGATE's rounds do not depend on the clock.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_srp as srp
from experiments.flanp.panels import curves, parser, scripts, write_results
from experiments.flanp.time_ratios import TABLES, gap_at_start, initial_weights
from experiments.flanp.worlds import World, linear
from fedjax_srp import theory

TARGETS = (0.02, 0.0116)
LOCAL_STEPS = 100
SEEDS = {"smoke": 2, "cpu": 20, "full": 20}


class Trajectory(NamedTuple):
    """Arrays over rounds: time at the end, |w - w*|, and 1 if all clients took part and met the criterion."""

    elapsed: np.ndarray
    distance: np.ndarray
    completed: np.ndarray


def simulate_exact(
    world: World, seed: int, initial: int, local_steps: int, num_rounds: int
) -> Trajectory:
    """Simulate FLANP from `initial` clients; FedGATE is the case of all clients."""
    x, y = np.asarray(world.data.x, np.float64), np.asarray(world.data.y, np.float64)
    key, clock = jax.random.key(seed), world.clock(local_steps)
    state = clock.init(srp.named_key(srp.named_key(key, "clock"), "init"), len(x))
    times, _ = clock.sample(key, state, jnp.zeros(()))
    order = np.argsort(np.asarray(times.realised), kind="stable")
    times, x, y = np.asarray(times.realised, np.float64)[order], x[order], y[order]
    hessians, targets = (
        np.einsum("isd,ise->ide", x, x) / x.shape[1],
        np.einsum("isd,is->id", x, y) / x.shape[1],
    )
    (mu, smoothness), num_clients = world.data.curvature, len(x)
    minimiser = np.linalg.solve(hessians.mean(0), targets.mean(0))
    # tau steps of w_i <- w_i - eta (H_i w_i - b_i - delta_i): w_i = A_i w + B_i (b_i + delta_i)
    step = 1 / (2 * smoothness * local_steps)
    values, vectors = np.linalg.eigh(hessians)
    shrunk = (1 - step * values) ** local_steps
    summed = np.where(
        step * values > 1e-12,
        (1 - shrunk) / np.maximum(values, 1e-12),
        step * local_steps,
    )
    powers, sums = (
        (vectors * of[:, None, :]) @ vectors.transpose(0, 2, 1) for of in (shrunk, summed)
    )

    w, n, elapsed, found = (
        np.asarray(initial_weights(world, seed), np.float64),
        initial,
        0.0,
        [],
    )
    tracking = np.zeros_like(targets)
    for _ in range(num_rounds):
        own = powers[:n] @ w + np.einsum(
            "ide,ie->id", sums[:n], targets[:n] + tracking[:n]
        )
        moves = (w - own) / step
        tracking[:n] += (moves - moves.mean(0)) / local_steps
        w, elapsed = w - step * moves.mean(0), elapsed + times[n - 1]
        gradient = hessians[:n].mean(0) @ w - targets[:n].mean(0)
        met = gradient @ gradient <= 2 * mu * world.constants["accuracy_constant"] / (
            n * world.constants["samples_per_client"]
        )
        found.append((elapsed, np.linalg.norm(w - minimiser), met and n == num_clients))
        if met and n < num_clients:
            n, tracking = min(2 * n, num_clients), np.zeros_like(targets)
    return Trajectory(*map(np.array, zip(*found, strict=True)))


def measure(seeds: int, **size: int) -> dict[str, Any]:
    """Return for each target the values of `COLUMNS` of the seeds that reached it with both methods."""
    found: dict[str, Any] = {
        name: {column: [] for column in COLUMNS}
        for name in (*map(str, TARGETS), "tightening")
    }
    found["propositions_equal"] = []
    for seed in range(seeds):
        world = linear(seed, None, **size, full_batch=True)
        runs = [
            simulate_exact(world, seed, n, LOCAL_STEPS, 400)
            for n in (world.initial, world.data.num_clients)
        ]
        for name in (*map(str, TARGETS), "tightening"):
            reached = [
                run.completed if name == "tightening" else run.distance <= float(name)
                for run in runs
            ]
            if not all(of.any() for of in reached):
                continue
            n, m = (int(np.argmax(of)) + 1 for of in reached)
            ours, theirs = runs[0].elapsed[n - 1], runs[1].elapsed[m - 1]
            for column, value in zip(
                COLUMNS, (ours, theirs, ours / theirs, n, m, n / m), strict=True
            ):
                found[name][column].append(curves.rounded(value))
        found["propositions_equal"].append(curves.rounded(theory_ratio(world, seed)))
    return found


COLUMNS = (
    "T_FLANP",
    "T_FedGATE",
    "ratio",
    "rounds_FLANP",
    "rounds_FedGATE",
    "equal_speeds",
)


def theory_ratio(world: World, seed: int) -> float:
    """Ratio of the two expressions of equation 4 (Propositions 2 and 3) at equal speeds."""
    samples, c = (
        world.constants["samples_per_client"],
        world.constants["accuracy_constant"],
    )
    ones, gap = np.ones(world.data.num_clients), gap_at_start(world, seed)
    return theory.flanp_time(ones, 1, 1, samples, 1, c) / theory.fedgate_time(
        ones, 1, samples, 1, c, gap
    )


def main(arguments: list[str] | None = None) -> None:
    command = parser(__doc__, scripts.measurement_parser)
    args = command.parse_args(arguments)
    sizes = [size for table in TABLES.values() for size in table.worlds]
    if args.scale == "smoke":
        sizes = [{"num_clients": 4, "samples": 30, "dim": 3}]
    variants = {
        f"N = {size['num_clients']}, s = {size['samples']}": size for size in sizes
    }
    options = {"seeds": args.seeds or SEEDS[args.scale]}
    rows = scripts.measure_each(args, measure, variants=variants, options=options)
    found = dict(zip(variants, rows, strict=True))
    curves.print_results(found)
    write_results(args, "fixed_target", found)


if __name__ == "__main__":
    main()
