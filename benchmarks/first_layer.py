"""Rounds with and without the first dense layer in the span of each client's examples.

    python benchmarks/first_layer.py [--clients 20] [--repeats 7] [--cases REGEX] [--out FILE.json]

The engine decides by `layer_in_span` of `algorithms/local.py`. Here both ways are compiled and run in turn: seconds a
round, medians and quartiles, ratios of pairs, and compile time, together with the engine's decision.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
from harness.command import parser, write
from harness.measure import Rounds, in_turn, machine, ratios, seconds, summary, synthetic

import fedjax_srp as srp
from fedjax_srp.algorithms import local
from fedjax_srp.driver import programs
from fedjax_srp.models.dense import Inputs

Decision = Any  # as `layer_in_span`


class Case(NamedTuple):
    """Clients and their training."""

    method: str
    examples: int
    epochs: int = 1
    batch_size: int = 10
    shape: tuple[int, ...] = (28, 28)
    hidden: tuple[int, ...] = (512, 256, 64)

    @property
    def name(self) -> str:
        """Name of the case in results."""
        widths = "-".join(map(str, self.hidden))
        inputs = "x".join(map(str, self.shape))
        epochs = f"{self.epochs} epoch{'s' * (self.epochs > 1)}"
        sizes = f"{self.examples} examples of {inputs}, {epochs} of batches of {self.batch_size}"
        return f"{self.method}, MLP {widths}, {sizes}"


CASES = (
    *(
        Case(method, m, epochs)
        for m in (60, 150, 300, 480)
        for epochs in (1, 5)
        for method in ("fedavg", "fedrep")
    ),
    Case("fedavg", 150, hidden=(200, 200)),
    Case("fedavg", 300, 5, hidden=(200, 200)),
    *(Case("fedavg", m, batch_size=size) for m in (150, 300) for size in (2, 50)),
    *(Case("fedavg", 500, epochs, shape=(32, 32, 3)) for epochs in (1, 5)),
)


def never(*_: Any) -> None:
    """No layer in a span."""


def always(
    loss: local.Loss, params: Any, examples: Any, training: local.LocalTraining
) -> str | None:
    """Every first dense layer that can be in a span."""
    if not isinstance(loss, local.ModelLoss) or isinstance(examples.x, Inputs):
        return None
    layer = loss.model.first_dense
    if layer is None or local.kernel_of(layer, params) is None:
        return None
    return layer


def compiled(case: Case, num_clients: int, decide: Decision) -> Rounds:
    """Rounds of all clients, traced and compiled with a decision."""
    data = synthetic(num_clients, case.examples, tests=1, shape=case.shape)
    model = srp.models.MLP(case.shape, 10, case.hidden)
    training = srp.Training(batch_size=case.batch_size, epochs=case.epochs)
    algorithm = {"fedavg": srp.algorithms.FedAvg, "fedrep": srp.algorithms.FedRep}[
        case.method
    ](model, training)
    return DecidedRounds(decide, algorithm, data)


@functools.cache
def _functions(decide: Decision) -> Any:
    """The driver's cache of compiled functions, one for each decision, which is no part of their keys."""
    return functools.cache(programs._jitted.__wrapped__)


@contextlib.contextmanager
def deciding(decide: Decision) -> Iterator[None]:
    """Programs are traced, and looked up, with a decision about the first layer."""
    decided = local.layer_in_span
    functions = programs._jitted
    local.layer_in_span = decide
    programs._jitted = _functions(decide)
    try:
        yield
    finally:
        local.layer_in_span = decided
        programs._jitted = functions


class DecidedRounds(Rounds):
    """Rounds with a decision about the first layer."""

    def __init__(self, decide: Decision, *args: Any, **options: Any):
        self.decide = decide
        with deciding(decide):
            super().__init__(*args, **options)

    def __call__(self) -> None:
        with deciding(self.decide):
            super().__call__()

    def evaluate(self) -> dict[str, tuple[jax.Array, jax.Array]]:
        with deciding(self.decide):
            return super().evaluate()


def measured(case: Case, num_clients: int, repeats: int) -> dict[str, Any]:
    """Seconds a round both ways, and the engine's decision."""
    chosen = []
    rule = local.layer_in_span

    def watched(
        loss: local.Loss, params: Any, examples: Any, training: local.LocalTraining
    ) -> str | None:
        if (layer := always(loss, params, examples, training)) is not None:
            chosen.append(rule(loss, params, examples, training))
        return layer

    ways = {
        "plain": compiled(case, num_clients, never),
        "span": compiled(case, num_clients, watched),
    }
    for rounds in ways.values():
        rounds()
    times = in_turn(
        {way: functools.partial(seconds, rounds) for way, rounds in ways.items()}, repeats
    )
    return {
        "case": case._asdict(),
        "seconds": {way: summary(each) for way, each in times.items()},
        "plain_over_span": summary(ratios(times, "plain", "span")),
        "compile_seconds": {way: rounds.compile_seconds for way, rounds in ways.items()},
        "chosen": any(chosen),
    }


def main() -> None:
    command = parser(__doc__, 7)
    command.add_argument("--clients", type=int, default=20)
    command.add_argument(
        "--cases",
        type=re.compile,
        default=re.compile(""),
        help="regular expression of names of cases",
    )
    args = command.parse_args()
    srp.use_all_cores()
    results: dict[str, Any] = {"machine": machine(), "clients": args.clients, "cases": {}}
    for case in (case for case in CASES if args.cases.search(case.name)):
        found = results["cases"][case.name] = measured(case, args.clients, args.repeats)
        ratio = found["plain_over_span"]
        choice = "span" if found["chosen"] else "plain"
        print(
            f"{case.name}: {ratio['median']:.2f} ({ratio['quartiles']}) times as fast, chosen: {choice}",
            flush=True,
        )
        write(args.out, results)


if __name__ == "__main__":
    main()
