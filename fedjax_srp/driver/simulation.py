"""A simulation as pure functions: `init`, `step` and `score`, for `jit`, `scan`, `vmap`, `while_loop` and `grad`."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_srp.base import (
    Array,
    ClientTimes,
    Clock,
    Cohort,
    FederatedAlgorithm,
    Key,
    Method,
    ParticipationPolicy,
    PyTree,
    RoundInfo,
)
from fedjax_srp.driver.given import Start, fitted_start
from fedjax_srp.driver.prepare import Prepared, Request, prepare
from fedjax_srp.driver.settings import Settings
from fedjax_srp.parts.checks import as_annotated
from fedjax_srp.parts.part import Leaf, part
from fedjax_srp.rounds.first_state import first_state
from fedjax_srp.rounds.round import SimulationState, one_round, select_cohort
from fedjax_srp.rounds.scoring import score_clients
from fedjax_srp.xla.loops import reversible


class State(NamedTuple):
    """The state between rounds, with the root key of all randomness."""

    key: Key
    server: PyTree
    clients: PyTree  # leaves (num_clients, ...), by client id
    policy: PyTree
    clock: PyTree
    round: Array  # () int32: rounds completed
    now: Array  # () float: simulated time so far
    ahead: Array  # () float: of the exact sum of times, by rounding of `now`
    rounds_taken: Array  # (num_clients,) int32: rounds that each client took part in


@part
class Simulation:
    """Federated learning as pure functions on one device; `simulate` is the host's loop around the same round.

    A simulation is a part: the floats of its algorithm, policy and clock, and the arrays of its data, are leaves. So it
    can be built inside a function of a rate, or passed to one, and `vmap` batches seeds and rates. The same key gives
    the same rounds as `simulate`.

    Args:
        algorithm: the algorithm, or a `Method` with its participation.
        data: as for `simulate`.
        participation: policy that selects the cohort; default all clients.
        clock: time of a unit of local work of each client; default Exp(1), drawn once per client.
        chunk_size: clients that train at once; None for a measured default.
        record_loss: `RoundInfo.metrics` has the training loss.
        reverse_mode: every loop runs to a static bound, so that `jax.grad` can differentiate rounds in reverse, at the
            cost of time and memory; `jax.jacfwd` works without it. A client has at most the policy's `max_work` units
            of work, default 1; more give nan.

    Raises:
        ValueError: a part that breaks its contract, or an argument out of range.
        FloatingPointError: under `jax_debug_nans`, since records have nan for unknown values; `simulate` turns it off
            for them.

    Example:
        >>> import jax, fedjax_srp as srp
        >>> data = srp.data.load("digits", num_clients=20, classes_per_client=4)
        >>> algorithm = srp.algorithms.FedAvg(srp.models.MLP((8, 8), 10, hidden=(8,)), srp.Training(srp.SGD(0.1)))
        >>> simulation = srp.Simulation(algorithm, data, participation=srp.participation.Doubling(5, 1))
        >>> state = jax.jit(simulation.init)(jax.random.key(0))
        >>> state, info = jax.lax.scan(lambda state, _: simulation.step(state), state, length=3)
        >>> info.cohort_size.tolist(), simulation.score(state).shape
        ([5, 10, 20], (20,))
    """

    algorithm: FederatedAlgorithm | Method
    data: Leaf[Any]
    participation: ParticipationPolicy | str | None = None
    clock: Clock | str | None = None
    chunk_size: int | None = None
    record_loss: bool = False
    reverse_mode: bool = False

    def __post_init__(self) -> None:
        self._prepared()

    def _prepared(self, evaluations: Any = ()) -> Prepared:
        """The checked request, on one device; checks are cached."""
        settings = Settings(
            evaluations=evaluations,
            chunk_size=self.chunk_size,
            record_loss=self.record_loss,
            devices=jax.devices()[:1],
        )
        return prepare(
            Request(self.algorithm, self.data, self.participation, self.clock, settings)
        )

    def _most_work(self, run: Prepared) -> int:
        return run.policy.max_work if self.reverse_mode else 0

    def init(self, key: Key, start: Start = "init") -> State:
        """The state before the first round.

        Args:
            key: root of all randomness, `jax.random.key(seed)`.
            start: a server state, or parameters, to begin from, as for `simulate`.

        Raises:
            ValueError: the start has other names, shapes or types than the algorithm's state.
        """
        run = self._prepared()
        begin = fitted_start(start, run.algorithm, self.data)
        with reversible(self._most_work(run)):
            first = first_state(
                run.algorithm,
                run.policy,
                run.fitted_clock,
                key,
                self.data,
                run.layout,
                begin,
            )
        return State(key, *first.state)

    def select(self, state: State) -> tuple[ClientTimes, Cohort]:
        """The clients' times in the next round and its cohort, as in `step`, without training anyone."""
        run = self._prepared()
        key, *rest = state
        selection = select_cohort(
            run.policy, run.fitted_clock, SimulationState(*rest), key
        )
        return selection.times, selection.cohort

    def step(self, state: State) -> tuple[State, RoundInfo]:
        """One round: the new state, and its record.

        Cohorts are not checked, as they are by `simulate` after a segment.
        """
        run = self._prepared()
        key, *rest = state
        before = SimulationState(*rest)
        with reversible(self._most_work(run)):
            after, (info, _) = one_round(
                run.algorithm,
                run.policy,
                run.fitted_clock,
                self.data,
                before,
                key,
                run.layout,
                run.settings.record_loss,
            )
        return State(key, *after), info

    def score(self, state: State, evaluation: str | None = None) -> Array:
        """Each client's score, (num_clients,) float, nan for clients without test data.

        Args:
            state: after any number of rounds.
            evaluation: one of the algorithm's; None for its default.

        Raises:
            ValueError: no such evaluation.
        """
        run = self._prepared(as_annotated("evaluation", evaluation, str | None))
        key, *rest = state
        if not run.evaluations:
            raise ValueError(
                f"algorithm {run.algorithm.name!r} has no evaluation to score its clients"
            )
        with reversible(self._most_work(run)):
            scores = score_clients(
                run.algorithm,
                run.evaluations,
                self.data,
                SimulationState(*rest),
                key,
                run.layout,
            )
        total, count = scores[run.evaluations[0]]
        return jnp.where(
            count > 0, total / jnp.where(count > 0, count, 1).astype(total.dtype), jnp.nan
        )
