"""Time and memory of rounds of 1,000 clients in federations of up to a million clients.

    python benchmarks/million.py [--clients 10000 100000 1000000] [--repeats 15] [--out FILE.json]

FedRep with an MLP 64-32-16-10, so that a client keeps a head of 680 bytes. The 20 examples of a client are drawn in the
program when they are read: only the states of clients, their times and the choice of the cohort grow with their number.
Two policies: 1,000 at random, and the 1,000 fastest of all. No round is evaluated, as an evaluation covers all clients.

Sizes are timed in turn, five rounds at a time, in CPU seconds of the process, which other processes disturb little. The
peak is that of the process with all sizes at once.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from harness.command import parser, write
from harness.measure import Rounds, cpu_seconds, in_turn, machine, peak_memory, summary

import fedjax_srp as srp
from fedjax_srp.base import Array, Examples, Predict

EXAMPLES = 20
FEATURES = 64
CLASSES = 10
COHORT = 1000
LENGTH = 5
GIB = 2**30


@srp.part
class Drawn:
    """Clients whose examples are drawn from their id; each has its own order of classes."""

    clients: int

    @property
    def num_clients(self) -> int:
        """Number of all clients."""
        return self.clients

    def train_client(self, client_id: Array) -> Examples:
        """Examples of one client."""
        key = jax.random.fold_in(jax.random.key(0), client_id)
        x = jax.random.normal(key, (EXAMPLES, FEATURES))
        y = (jnp.argmax(x[:, :CLASSES], axis=1).astype(jnp.int32) + client_id) % CLASSES
        return Examples(x, y, jnp.int32(EXAMPLES))

    test_client = train_client

    def score(self, predict: Predict, test: Examples) -> tuple[Array, Array]:
        """Number of correct predictions, number of examples."""
        right = jnp.argmax(predict(test.x), axis=-1) == test.y
        return jnp.sum(right).astype(float), jnp.float32(EXAMPLES)


def rounds(clients: int, policy: srp.base.ParticipationPolicy) -> Rounds:
    """Compiled rounds of a federation of this size."""
    model = srp.models.MLP((FEATURES,), CLASSES, (32, 16))
    algorithm = srp.algorithms.FedRep(model, srp.Training(srp.SGD(0.05)), head_epochs=5)
    return Rounds(algorithm, Drawn(clients), policy, LENGTH)


def main() -> None:
    command = parser(__doc__, 15)
    command.add_argument(
        "--clients", type=int, nargs="+", default=[10_000, 100_000, 1_000_000]
    )
    args = command.parse_args()
    srp.use_all_cores()
    found = machine()
    for policy in (srp.participation.Uniform(COHORT), srp.participation.Fastest(COHORT)):
        runs = {str(clients): rounds(clients, policy) for clients in args.clients}
        times = in_turn(
            {name: partial(cpu_seconds, run) for name, run in runs.items()}, args.repeats
        )
        found[policy.name] = {
            name: summary([each / LENGTH for each in of]) for name, of in times.items()
        }
        for name, run in runs.items():
            more = {
                "working_gib": run.working_bytes / GIB,
                "compile_seconds": run.compile_seconds,
            }
            more["states_gib"] = (
                sum(leaf.nbytes for leaf in jax.tree.leaves(run.state.clients)) / GIB
            )
            found[policy.name][name] |= more
            print(
                policy.name,
                name,
                f"{found[policy.name][name]['median']:.3g} CPU s a round",
                more,
                flush=True,
            )
        del runs, run
    found["peak_gib"] = peak_memory() / GIB
    write(args.out, found)


if __name__ == "__main__":
    main()
