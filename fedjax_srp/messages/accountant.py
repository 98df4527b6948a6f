"""Accountant of private runs: epsilon of noised sums, by the library dp-accounting."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_srp.base import Clock, ParticipationPolicy, RoundInfo, WorkCosts
from fedjax_srp.participation import Uniform
from fedjax_srp.parts.checks import ArgumentError, as_annotated
from fedjax_srp.parts.libraries import PRIVACY, needed_by
from fedjax_srp.parts.part import Above, Below, Count

ADJACENCY = "one client's data are replaced"
AMPLIFIED = (
    "uniform cohorts of a fixed size, sampled without replacement and kept secret "
    "(Wang, Balle and Kasiviswanathan, 2019, Theorem 27)"
)
COMPOSED = (
    "WITHOUT amplification by sampling, for a client that takes part in every round"
)


class PrivacyLoss(NamedTuple):
    """Differential privacy of the server's states of a run, for clients; it prints as a paragraph."""

    epsilon: float  # the number that holds for the run
    delta: float
    without_amplification: float  # epsilon if a client takes part in every round
    is_amplified: bool
    adjacency: str
    basis: str  # of epsilon: a theorem, or that there is none
    uncovered: tuple[str, ...]  # reports and metrics, which leave clients without noise

    def __str__(self) -> str:
        lines = f"epsilon = {self.epsilon:.4g} at delta = {self.delta:g}, {self.basis}; neighbours: {self.adjacency}."
        if self.is_amplified:
            lines += f" Without amplification it is {self.without_amplification:.4g}."
        if self.uncovered:
            lines += f" Not covered: {', '.join(self.uncovered)}, which leave clients without noise,"
            lines += " and the cohorts that follow from them."
        return lines


Delta = Annotated[float, Above(0), Below(1), "give less than 1 / num_clients, e.g. 1e-5"]


def privacy_loss(
    noise_multiplier: float,
    participation: ParticipationPolicy,
    num_clients: int,
    num_rounds: int,
    delta: float,
    clock: Clock | None,
    keeps_state: bool,
) -> PrivacyLoss:
    """Compute epsilon; arguments as for `Private.epsilon`, and whether clients remember earlier rounds.

    The theorem's rounds depend on what earlier ones released. A client's state depends on who was drawn, too.
    """
    num_clients = as_annotated("num_clients", num_clients, Count, is_field=False)
    num_rounds = as_annotated("num_rounds", num_rounds, Count, is_field=False)
    delta = as_annotated("delta", delta, Delta, is_field=False)
    if not isinstance(participation, ParticipationPolicy):
        problem = "must be a policy"
        raise ArgumentError(
            "participation", participation, problem, ParticipationPolicy.remedy
        )
    if clock is not None and not isinstance(clock, Clock):
        raise ArgumentError("clock", clock, "must be a clock, or None", Clock.remedy)
    if participation.asynchronous:
        raise ArgumentError(
            "participation",
            participation,
            "rounds overlap, and Private refuses asynchronous ones",
            remedy="give e.g. srp.participation.Uniform(10)",
        )
    cohort_size = num_clients
    # a subclass, or a policy around it, may have other cohorts
    if type(participation) is Uniform:
        if participation.k > num_clients:
            raise ArgumentError(
                "participation",
                participation,
                f"draws more than num_clients={num_clients} clients",
                remedy=f"give at most Uniform({num_clients})",
            )
        if not keeps_state and not _come_and_go(clock, num_clients):
            cohort_size = participation.k
    without = _epsilon(noise_multiplier, num_clients, num_clients, num_rounds, delta)
    epsilon = without
    if cohort_size < num_clients:
        sampled = _epsilon(noise_multiplier, cohort_size, num_clients, num_rounds, delta)
        # with little noise the theorem's bound is the looser one
        epsilon = min(sampled, without)
    is_amplified = epsilon < without
    uncovered = [f"the reports {name!r}" for name in participation.needs]
    metrics = _metrics_read(participation, num_clients)
    uncovered += [f"the metric {name!r}" for name in metrics]
    return PrivacyLoss(
        epsilon=epsilon,
        delta=delta,
        without_amplification=without,
        is_amplified=is_amplified,
        adjacency=ADJACENCY,
        basis=AMPLIFIED if is_amplified else COMPOSED,
        uncovered=tuple(uncovered),
    )


def _epsilon(
    noise_multiplier: float,
    cohort_size: int,
    num_clients: int,
    num_rounds: int,
    delta: float,
) -> float:
    """Epsilon of Gaussian sums over uniform cohorts; all clients are a cohort without amplification."""
    with needed_by("epsilon", PRIVACY):
        import dp_accounting  # pyright: ignore[reportMissingImports]
        from dp_accounting import rdp  # pyright: ignore[reportMissingImports]
    if noise_multiplier == 0:
        return math.inf
    # Replacing a client moves the sum by 2 C, and its noise is z C.
    event = dp_accounting.GaussianDpEvent(noise_multiplier / 2)
    if cohort_size < num_clients:
        event = dp_accounting.SampledWithoutReplacementDpEvent(
            num_clients, cohort_size, event
        )
    accountant = rdp.RdpAccountant(
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE
    )
    accountant.compose(event, num_rounds)
    return float(accountant.get_epsilon(delta))


class _Metrics(Mapping[str, jax.Array]):
    """Metrics of a round of any name, which knows those that were read."""

    def __init__(self) -> None:
        self.read: dict[str, None] = {}

    def __getitem__(self, name: str) -> jax.Array:
        self.read[name] = None
        return jnp.zeros(())

    def __iter__(self) -> Iterator[str]:
        return iter(self.read)

    def __len__(self) -> int:
        return len(self.read)


def _metrics_read(participation: ParticipationPolicy, num_clients: int) -> list[str]:
    """Return the metrics of rounds that the state of a policy is updated with."""
    metrics = _Metrics()
    number = jnp.int32(0)
    number_of_each = jnp.zeros(num_clients)

    def update(key: jax.Array) -> None:
        info = RoundInfo(
            round=number,
            stage=number,
            cohort_size=number,
            compute_time=jnp.zeros(()),
            communicated=jnp.asarray(True),
            global_grad_norm=jnp.zeros(()),
            finite=jnp.asarray(True),
            metrics=metrics,
            reports=dict.fromkeys(participation.needs, number_of_each),
        )
        participation.update(participation.init(key, num_clients), info)

    jax.eval_shape(update, jax.random.key(0))
    return list(metrics.read)


def _come_and_go(clock: Clock | None, num_clients: int) -> bool:
    """Return True for a clock under which clients can be away, so that a draw is not of all."""
    if clock is None:
        return False
    if clock.needs_costs:
        of_none = jnp.zeros(num_clients)
        clock = clock.fit(WorkCosts(of_none, of_none, jnp.zeros(()), jnp.zeros(())))

    def times(key: jax.Array) -> object:
        state = clock.init(key, num_clients)
        return clock.sample(key, state, jnp.zeros(()))[0].available

    return jax.eval_shape(times, jax.random.key(0)) is not None
