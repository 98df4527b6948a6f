"""Seconds of a round at two commits, and what reports cost, in turn.

    python benchmarks/commits.py OTHER [--repeats 15] [--out FILE.json]

OTHER is a checkout of another commit. A process for each compiles the cases and then runs them on request, one process
at a time, so that both meet the same disturbances. `hears losses` is `full` with a policy that gets the clients'
training losses and ignores them; its rival is `full` of this checkout.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np
from harness.command import Child, parser, serve, write

ROUNDS = 20
HERE = Path(__file__).resolve().parents[1]
CASES = ("full", "doubling", "buffered")
HEARS = "hears losses"


def compiled() -> dict[str, partial]:
    """Compiled rounds of all cases, of the package that is on the path."""
    import jax

    import fedjax_srp as srp

    @srp.part
    class Hearing(srp.participation.Full):
        """All clients, who report their training loss; an earlier package does not ask for it."""

        needs = ("training_loss",)

    data = srp.data.load("digits", num_clients=50, classes_per_client=3)
    model = srp.models.MLP((8, 8), num_classes=10, hidden=(64, 32))
    training = srp.Training(srp.SGD(0.05), epochs=5)
    fedavg = srp.algorithms.FedAvg(model, training)
    cases = {
        "full": (fedavg, srp.participation.Full()),
        "doubling": (srp.algorithms.FedRep(model), srp.participation.Doubling(5, 4)),
        "buffered": (
            srp.algorithms.FedBuff(model, training),
            srp.participation.Buffered(10),
        ),
        HEARS: (fedavg, Hearing()),
    }
    runs = {}
    for name, (algorithm, policy) in cases.items():
        simulation = srp.Simulation(algorithm, data, participation=policy)
        state = jax.jit(simulation.init)(jax.random.key(0))

        @jax.jit
        def rounds(state, simulation=simulation):
            return jax.lax.scan(
                lambda state, _: (simulation.step(state)[0], None), state, length=ROUNDS
            )[0]

        runs[name] = partial(
            lambda rounds, state: jax.block_until_ready(rounds(state)), rounds, state
        )
        runs[name]()
    return runs


def commit(checkout: Path) -> str:
    """Short hash of the commit of a checkout."""
    done = subprocess.run(
        ["git", "-C", checkout, "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


def main() -> None:
    """The command line."""
    command = parser(__doc__, 15)
    command.add_argument("other", type=Path, nargs="?")
    command.add_argument("--serve", action="store_true")
    args = command.parse_args()
    if args.serve:
        return serve(compiled())
    if args.other is None:
        command.error("give the checkout of another commit")
    ours, other = (
        Child([sys.executable, __file__, "--serve"], PYTHONPATH=str(of))
        for of in (HERE, args.other)
    )
    cases = {}
    for case in (*CASES, HEARS):
        rival = partial(other.seconds, case)
        if case == HEARS:
            rival = partial(ours.seconds, "full")
        both = [partial(ours.seconds, case), rival]
        pairs = []
        for repeat in range(args.repeats):
            # In turn the one first, then the other.
            if repeat % 2:
                seconds = [measure()[0] for measure in both]
            else:
                seconds = [measure()[0] for measure in both[::-1]][::-1]
            pairs.append(seconds)
        own, theirs = np.transpose(pairs)
        low, middle, high = map(float, np.quantile(own / theirs, (0.25, 0.5, 0.75)))
        cases[case] = {"milliseconds_a_round": 1e3 * float(np.median(own)) / ROUNDS}
        cases[case] |= {"ratio": middle, "quartiles": [low, high]}
        print(f"{case}: {middle:.3f} ({low:.3f} to {high:.3f}) times as long", flush=True)
    facts = {
        "commits": [*map(commit, (HERE, args.other))],
        "cores": os.cpu_count(),
        "jax": version("jax"),
    }
    write(args.out, facts | {"repeats": args.repeats, "rounds": ROUNDS, "cases": cases})
    return None


if __name__ == "__main__":
    main()
