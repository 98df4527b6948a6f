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
from experiments.flanp.panels import curves, parser, scripts
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
    key = jax.random.key(seed)
    clock = world.clock(local_steps)
    num_clients = world.data.num_clients
    state = clock.init(srp.named_key(srp.named_key(key, "clock"), "init"), num_clients)
    realised = np.asarray(clock.sample(key, state, jnp.zeros(()))[0].realised, np.float64)
    order = np.argsort(realised, kind="stable")
    times = realised[order]
    x = np.asarray(world.data.x, np.float64)[order]
    y = np.asarray(world.data.y, np.float64)[order]
    hessians = np.einsum("isd,ise->ide", x, x) / x.shape[1]
    targets = np.einsum("isd,is->id", x, y) / x.shape[1]
    mu, smoothness = world.data.curvature
    minimiser = np.linalg.solve(hessians.mean(0), targets.mean(0))
    # tau steps of w_i <- w_i - eta (H_i w_i - b_i - delta_i): w_i = A_i w + B_i (b_i + delta_i)
    step = 1 / (2 * smoothness * local_steps)
    values, vectors = np.linalg.eigh(hessians)
    shrunk = (1 - step * values) ** local_steps
    of_flat = step * local_steps
    summed = (1 - shrunk) / np.maximum(values, 1e-12)
    summed = np.where(step * values > 1e-12, summed, of_flat)
    powers, sums = (
        (vectors * of[:, None, :]) @ vectors.transpose(0, 2, 1) for of in (shrunk, summed)
    )

    w = np.asarray(initial_weights(world, seed), np.float64)
    n = initial
    elapsed = 0.0
    found = []
    tracking = np.zeros_like(targets)
    c = world.constants["accuracy_constant"]
    for _ in range(num_rounds):
        shifted = targets[:n] + tracking[:n]
        own = powers[:n] @ w + np.einsum("ide,ie->id", sums[:n], shifted)
        moves = (w - own) / step
        tracking[:n] += (moves - moves.mean(0)) / local_steps
        w = w - step * moves.mean(0)
        elapsed += times[n - 1]
        gradient = hessians[:n].mean(0) @ w - targets[:n].mean(0)
        met = gradient @ gradient <= 2 * mu * c / (n * x.shape[1])
        found.append((elapsed, np.linalg.norm(w - minimiser), met and n == num_clients))
        if met and n < num_clients:
            n = min(2 * n, num_clients)
            tracking = np.zeros_like(targets)
    return Trajectory(*map(np.array, zip(*found, strict=True)))


def measure(seed: int, **size: int) -> dict[str, Any]:
    """Return times and rounds of both methods to each target, None if one did not reach it, and equation 4."""
    world = linear(seed, None, **size, full_batch=True)
    flanp, fedgate = (
        simulate_exact(world, seed, n, LOCAL_STEPS, 400)
        for n in (world.initial, world.data.num_clients)
    )
    found: dict[str, Any] = {"propositions_equal": theory_ratio(world, seed)}
    for target in (*TARGETS, "tightening"):
        places = []
        for run in (flanp, fedgate):
            is_tightening = target == "tightening"
            reached = run.completed if is_tightening else run.distance <= target
            places += np.flatnonzero(reached)[:1].tolist()
        found[str(target)] = None
        if len(places) == 2:
            ours, theirs = places
            time, other = flanp.elapsed[ours], fedgate.elapsed[theirs]
            found[str(target)] = {
                "T_FLANP": time,
                "T_FedGATE": other,
                "ratio": time / other,
                "rounds_FLANP": ours + 1,
                "rounds_FedGATE": theirs + 1,
                "equal_speeds": (ours + 1) / (theirs + 1),
            }
    return found


def theory_ratio(world: World, seed: int) -> float:
    """Ratio of the two expressions of equation 4 (Propositions 2 and 3) at equal speeds."""
    samples = world.constants["samples_per_client"]
    c = world.constants["accuracy_constant"]
    ones = np.ones(world.data.num_clients)
    flanp = theory.flanp_time(ones, 1, 1, samples, 1, c)
    return flanp / theory.fedgate_time(ones, 1, samples, 1, c, gap_at_start(world, seed))


def main() -> None:
    args = parser(__doc__, scripts.measurement_parser).parse_args()
    sizes = [size for table in TABLES.values() for size in table.worlds]
    if args.scale == "smoke":
        sizes = [{"num_clients": 4, "samples": 30, "dim": 3}]
    variants = {
        f"N = {size['num_clients']}, s = {size['samples']}": size for size in sizes
    }
    axes = {"seed": range(args.seeds or SEEDS[args.scale])}
    found = scripts.measure_by(args, measure, "variant", variants=variants, axes=axes)
    results = {}
    for name, rows in found.items():
        results[name] = {}
        for target in (*map(str, TARGETS), "tightening"):
            of_target = [row[target] for row in rows if row[target]]
            results[name][target] = curves.columns(of_target) if of_target else {}
        equal = [row["propositions_equal"] for row in rows]
        results[name]["propositions_equal"] = equal
    curves.save(args, "fixed_target", {"results": curves.rounded(results)})


if __name__ == "__main__":
    main()
