"""Scores of clients during adaptation: before the first epoch of training and after every epoch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from fedjax_srp.base import Array, ClientData, ClientOutput, FederatedSource, Key, PyTree, RoundContext
from fedjax_srp.engine.contract import score
from fedjax_srp.engine.owned import data_access_both
from fedjax_srp.engine.round import all_clients, cohort_pass, stream
from fedjax_srp.engine.sharding import Layout, gather

Carry = Any


class ClientAdaptation(NamedTuple):
    """The adaptation of one client, epoch by epoch."""

    start: Carry  # before the first epoch
    epoch: Callable[[Carry, Array], Carry]  # (carry, number of the epoch, from 0) -> carry
    judged: Callable[[Carry], PyTree]  # the part of a carry that predictions need
    predict: Callable[[PyTree, Array], Array]  # (that part, inputs) -> outputs


class AdaptationPlan(Protocol):
    """A hashable description of an adaptation."""

    @property
    def num_epochs(self) -> int:
        """Number of calls of `ClientAdaptation.epoch`."""
        ...

    @property
    def together(self) -> bool:
        """True: keep the models of all epochs and score them together, to share common computations; False: score epoch
        by epoch and keep one model per client."""
        ...

    def begin(self, key: Key, server: PyTree, data: ClientData, count: Array, /) -> ClientAdaptation:
        """Return the steps of one client; `data` is its TRAINING data, `count` a number of samples, () int32."""
        ...


def score_epochs(
    plan: AdaptationPlan, data: FederatedSource, server: PyTree, counts: Array, root: Key, layout: Layout
) -> tuple[Array, Array]:
    """Score every client: sums of scores, (counts, clients, num_epochs + 1), and numbers of scores, (counts, clients).

    Clients are in order of their id, (owned * num_devices) of them on every device; `root` and a client's id make the
    key that `begin` gets, as in an evaluation before the first round.
    """
    layout = layout.for_evaluation()
    cohort = all_clients(layout.num_clients)
    context = RoundContext(jnp.int32(0), cohort.stage, cohort.size, layout.num_clients, cohort.size)

    def client(samples: Array, key: Key, train: ClientData, test: ClientData) -> ClientOutput:
        steps = plan.begin(key, server, train, samples)

        def scored(judged: PyTree) -> tuple[Array, Array]:
            return score("adapt", data, lambda x: steps.predict(judged, x), test)

        def epoch(carry: Carry, e: Array) -> tuple[Carry, PyTree]:
            carry = steps.epoch(carry, e)
            judged = steps.judged(carry)
            return carry, judged if plan.together else scored(judged)[0]

        before = steps.judged(steps.start)
        first, count = scored(before)
        _, later = jax.lax.scan(epoch, steps.start, jnp.arange(plan.num_epochs, dtype=jnp.int32))
        if plan.together and plan.num_epochs:
            later = jax.vmap(lambda judged: scored(judged)[0], axis_size=plan.num_epochs)(later)
        totals = [first, *(later[e] for e in range(plan.num_epochs))]
        return ClientOutput((), info={"count": count} | {str(e): total for e, total in enumerate(totals)})

    key, both = stream(root, "evaluation", jnp.int32(0)), data_access_both(layout, data)

    def with_samples(samples: Array) -> tuple[Array, Array]:
        def one(key: Key, client_state: Any, client_data: Any, context: RoundContext) -> ClientOutput:
            return client(samples, key, *client_data)

        records = cohort_pass(one, both, (), cohort, context, key, layout, record=True).records
        totals = jnp.stack([records[str(e)] for e in range(plan.num_epochs + 1)], axis=1)
        return gather(layout, (totals, records["count"]))

    return jax.lax.map(with_samples, counts)
