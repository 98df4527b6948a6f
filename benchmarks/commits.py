"""Seconds of a round at two commits, and what reports cost, in turn: `python benchmarks/commits.py OTHER [--pairs 15]`.

OTHER is a checkout of another commit. A process for each compiles the cases and then runs them on request, one process
at a time, so that both meet the same disturbances. `hears losses` is `full` with a policy that gets the clients'
training losses and ignores them; its rival is `full` of this checkout.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np

ROUNDS = 20
HERE = Path(__file__).resolve().parents[1]
CASES = ("full", "doubling", "buffered")
HEARS = "hears losses"


def serve() -> None:
    """Main function of a child: compiles all cases, then runs each requested one and prints its seconds."""
    import jax

    import fedjax_srp as srp

    data = srp.data.load("digits", num_clients=50, classes_per_client=3)
    model = srp.models.MLP((8, 8), num_classes=10, hidden=(64, 32))
    training = srp.Training(srp.SGD(0.05), epochs=5)
    cases = {
        "full": (srp.algorithms.FedAvg(model, training), srp.participation.Full()),
        "doubling": (srp.algorithms.FedRep(model), srp.participation.Doubling(5, 4)),
        "buffered": (srp.algorithms.FedBuff(model, training), srp.participation.Buffered(10)),
    }
    if hasattr(srp.RoundInfo, "reports"):

        @srp.part
        class Hearing(srp.participation.Full):
            """All clients, who report their training loss."""

            needs = ("training_loss",)

        cases[HEARS] = (cases["full"][0], Hearing())
    run = {}
    for name, (algorithm, policy) in cases.items():
        simulation = srp.Simulation(algorithm, data, participation=policy)
        state = jax.jit(simulation.init)(jax.random.key(0))

        @jax.jit
        def rounds(state, simulation=simulation):
            return jax.lax.scan(lambda state, _: (simulation.step(state)[0], None), state, length=ROUNDS)[0]

        jax.block_until_ready(rounds(state))
        run[name] = (rounds, state)
    print(json.dumps(list(run)), flush=True)
    for line in sys.stdin:
        rounds, state = run[line.strip()]
        begin = time.perf_counter()
        jax.block_until_ready(rounds(state))
        print(time.perf_counter() - begin, flush=True)


def commit(checkout: Path) -> str:
    """Short hash of the commit of a checkout."""
    done = subprocess.run(["git", "-C", checkout, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return done.stdout.strip()


class Child:
    """A process on one checkout."""

    def __init__(self, checkout: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve"],
            env=os.environ | {"PYTHONPATH": str(checkout)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.requests, self.answers = self.process.stdin, self.process.stdout
        self.cases = json.loads(self.answers.readline())

    def seconds(self, case: str) -> float:
        """Seconds of `ROUNDS` rounds."""
        print(case, file=self.requests, flush=True)
        return float(self.answers.readline())


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, nargs="?")
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.serve:
        return serve()
    if args.other is None:
        parser.error("give the checkout of another commit")
    ours, other = Child(HERE), Child(args.other)
    results = {}
    for case in (*CASES, HEARS):
        pairs = []
        for place in range(args.pairs):
            both = [(ours, case), (ours, "full") if case == HEARS else (other, case)]
            seconds = [child.seconds(name) for child, name in (both if place % 2 else both[::-1])]
            pairs.append(seconds if place % 2 else seconds[::-1])
        ratios = np.array(pairs)[:, 0] / np.array(pairs)[:, 1]
        low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
        results[case] = {"milliseconds_a_round": 1e3 * float(np.median(pairs, axis=0)[0]) / ROUNDS}
        results[case] |= {"ratio": round(middle, 4), "quartiles": [round(low, 4), round(high, 4)]}
        print(f"{case}: {middle:.3f} ({low:.3f} to {high:.3f}) times as long", flush=True)
    if args.out:
        found = {"commits": [*map(commit, (HERE, args.other))], "cores": os.cpu_count(), "jax": version("jax")}
        found |= {"pairs": args.pairs, "rounds": ROUNDS, "cases": results}
        args.out.write_text(json.dumps(found, indent=1) + "\n")
    return None


if __name__ == "__main__":
    main()
