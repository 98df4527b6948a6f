"""Tables 1 and 2 of the FLANP paper with a target that stays where it is, and with clients of equal speed.

python experiments/flanp/fixed_target.py --scale smoke|cpu|full

Exact gradients, tau = 100. FLANP's stages end by the criterion. Both methods are timed to |w - w*| <= eps, for two eps
that do not depend on N and s and were fitted to the paper's tables, and, on the same runs, to the statistical accuracy
of all samples, which tightens with N s, as in `time_ratios.py`.

At equal speeds a round takes as long with one client as with all of them (section 4.2), and the ratio of times is that
of rounds: the clients' data do not depend on their speeds, and FedGATE's rounds not on the clock.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from panels import Panel, Runs, all_runs, compact, curves, parser, spread
from time_ratios import TABLES, arrival, gap_at_start
from worlds import World

import fedjax_srp as srp
from fedjax_srp import theory

TARGETS = (0.02, 0.0116)
SEEDS, ROUNDS = {"smoke": 2, "cpu": 20, "full": 20}, {"smoke": 30, "cpu": 160, "full": 160}


def panels(scale: str) -> list[Panel]:
    """One for each row of tables 1 and 2."""
    worlds = [world for table in TABLES.values() for world in table.worlds]
    if scale == "smoke":
        worlds = [{"num_clients": 4, "samples": 30, "dim": 3}]
    exact = {"full_batch": True, "exact_steps": 10 if scale == "smoke" else 100}
    return [
        Panel(f"N = {world['num_clients']}, s = {world['samples']}", "linear", world | exact, ("flanp", "fedgate"),
              ROUNDS[scale], seeds=SEEDS[scale]) for world in worlds
    ]  # fmt: skip


def rounds_to(history: srp.History, target: float | None) -> int | None:
    """The first round after which |w - w*| is at most the target; None: after which all clients meet the criterion."""
    if target is None:
        return arrival(history)[1]
    reached = history.metrics["distance"] <= target
    return int(history.round[np.argmax(reached)]) if reached.any() else None


def row(runs: Runs) -> dict[str, Any]:
    """Target -> times and rounds of both methods, and the ratios of times and rounds, of the seeds that reached it."""
    found: dict[str, Any] = {}
    for name, target in (*((str(eps), eps) for eps in TARGETS), ("tightening", None)):
        columns: dict[str, list[float]] = {column: [] for column in COLUMNS}
        for flanp, fedgate in zip(runs.histories["flanp"], runs.histories["fedgate"], strict=True):
            both = [(history, rounds_to(history, target)) for history in (flanp, fedgate)]
            if any(number is None for _, number in both):
                continue
            (ours, theirs), (n, m) = ([float(h.elapsed()[k - 1]) for h, k in both], [k for _, k in both])
            for column, value in zip(COLUMNS, (ours, theirs, ours / theirs, n, m, n / m), strict=True):
                columns[column].append(curves.short(value))
        found[name] = columns
    found["propositions_equal"] = [curves.short(by_theory(world, seed)) for seed, world in enumerate(runs.worlds)]
    return found


def by_theory(world: World, seed: int) -> float:
    """Propositions 2 and 3 at equal speeds: the ratio of the two expressions of equation 4."""
    ones, samples, c = np.ones(world.data.num_clients), *(world.constants[name] for name in CONSTANTS)
    gap = gap_at_start(world, seed)
    return theory.flanp_time(ones, 1, 1, samples, 1, c) / theory.fedgate_time(ones, 1, samples, 1, c, gap)


CONSTANTS = ("samples_per_client", "accuracy_constant")


COLUMNS = ("T_FLANP", "T_FedGATE", "ratio", "rounds_FLANP", "rounds_FedGATE", "equal_speeds")


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    command = parser(__doc__ or "")
    args = command.parse_args(arguments)
    found = {runs.panel.title: row(runs) for runs in all_runs(args, command, panels(args.scale))}
    for title, rows in found.items():
        print(f"{title}: equal speeds by Propositions 2 and 3: {spread(rows['propositions_equal'])}")
        for target, columns in [(name, of) for name, of in rows.items() if isinstance(of, dict)]:
            seeds = len(columns["ratio"])
            said = ", ".join(f"{name} {spread(values)}" for name, values in columns.items() if seeds)
            print(f"{title}: to {target}: {said} ({seeds} seeds)")
    results = args.results or args.out
    results.mkdir(parents=True, exist_ok=True)
    (results / "fixed_target.json").write_text(compact({"scale": args.scale, "results": found}))
    print(f"wrote {results / 'fixed_target.json'}")


if __name__ == "__main__":
    main()
