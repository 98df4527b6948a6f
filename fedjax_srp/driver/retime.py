"""`retime`: a run with the times of another clock, without training it again."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from typing_extensions import override

from fedjax_srp.base import (
    WASTED_TIME,
    ClientOutput,
    Clock,
    FederatedAlgorithm,
    FederatedSource,
)
from fedjax_srp.driver.record import check_same_data
from fedjax_srp.driver.simulate import simulate
from fedjax_srp.participation.full import Full
from fedjax_srp.participation.uniform import Uniform
from fedjax_srp.parts.checks import checked, short
from fedjax_srp.parts.description import rebuild
from fedjax_srp.parts.part import part
from fedjax_srp.results.history import History

# by class: a subclass may have other cohorts
_WITHOUT_SPEEDS = (Full, Uniform)


@part
class Idle(FederatedAlgorithm):
    """Algorithm whose clients do not train; its rounds take the time of the clock.

    A client's state is a checksum of the rounds in which it took part.
    """

    name = "idle"

    @override
    def init(self, key: Any, data: Any) -> tuple[()]:
        return ()

    @override
    def init_client(self, key: Any, server: Any, data: Any) -> jax.Array:
        return jnp.uint32(0)

    @override
    def client(
        self, key: Any, broadcast: Any, state: Any, data: Any, context: Any
    ) -> ClientOutput:
        number = context.round.astype(jnp.uint32) + jnp.uint32(1)
        return ClientOutput((), state=jnp.uint32(16777619) * state + number)

    @override
    def server(self, key: Any, server: Any, mean: Any, context: Any) -> tuple[()]:
        return server


@checked
def retime(history: History, data: FederatedSource, clock: Clock | str) -> History:
    """Return a run with the times of another clock, drawn by simulating clients that do nothing.

    Where everybody takes part (`Full`), or clients drawn at random (`Uniform`), cohorts do not depend on speeds:
    training is the same under every clock, but for the order of sums, and only the times differ. So one training
    serves every clock.

    Args:
        history: of `simulate`, or read by `History.load`.
        data: of the run.
        clock: an object, or a text as for `simulate`.

    Raises:
        ValueError: the run had another number of clients, cohorts depend on speeds, other clients may take part under
            one of the clocks, a time limit ended the run, its start is charged, or the clock's times depend on the work
            of a round.

    Example:
        >>> import fedjax_srp as srp
        >>> data = srp.data.load("digits", num_clients=10, classes_per_client=3)
        >>> method = srp.methods.get("fedavg", dataset=data, model="mlp", hidden=(8,))
        >>> slow = srp.clocks.Fixed(srp.clocks.Constant(2.0))
        >>> run = srp.simulate(method, data, num_rounds=2, seed=0, progress=False)
        >>> srp.retime(run, data, slow).compute_time.tolist()
        [2.0, 2.0]
    """
    record = history.config
    if not (record.get("method") and record.get("key") and record.get("schedule")):
        raise ValueError(
            f"history={short(history)}: has no record of its method; give one of simulate"
        )
    check_same_data(data, history, "the times may be those of other clients")
    policy = rebuild(record["method"]["participation"])
    if type(policy) not in _WITHOUT_SPEEDS:
        raise ValueError(
            f"history={short(history)}: its participation {policy.name!r} may depend on speeds; "
            "train it anew under this clock"
        )
    if record["schedule"].get("time_limit") is not None:
        raise ValueError(
            f"history={short(history)}: a time_limit ends it elsewhere under another clock; "
            "train it anew, or without a limit"
        )
    if history.start.passes:
        raise ValueError(
            f"history={short(history)}: the time of its start depends on the clock; train it anew, "
            "or with a free start"
        )

    def idle_run(clock: Any) -> History:
        return simulate(
            Idle(),
            data,
            participation=policy,
            clock=clock,
            num_rounds=history.num_rounds,
            eval_every=history.num_rounds,
            keep_clients=True,
            key=jax.random.wrap_key_data(jnp.asarray(record["key"], jnp.uint32)),
            progress=False,
        )

    times = idle_run(clock)
    if times.communication_included:
        raise ValueError(
            f"clock={short(clock)}: its times depend on the work of a round; train the run anew "
            "under this clock"
        )
    metrics = {n: each for n, each in history.metrics.items() if n != WASTED_TIME}
    same_cohorts = np.array_equal(times.cohort_size, history.cohort_size)
    same_cohorts &= np.array_equal(times.rounds_taken, history.rounds_taken)
    if same_cohorts and {WASTED_TIME} & {*history.metrics, *times.metrics}:
        # clients come, go or fail: the same numbers may be those of other rounds
        before = idle_run(rebuild(record["clock"]))
        is_run = np.allclose(before.compute_time, history.compute_time, rtol=1e-5)
        same_cohorts = is_run and np.array_equal(
            times.client_states, before.client_states
        )
    if not same_cohorts:
        raise ValueError(
            f"clock={short(clock)}: other clients may take part than in the run; train it "
            "anew under this clock"
        )
    return dataclasses.replace(
        history,
        compute_time=times.compute_time,
        client_time=times.client_time,
        metrics={**metrics, **times.metrics},
        communication_included=False,
        config={**record, "clock": times.config["clock"]},
    )
