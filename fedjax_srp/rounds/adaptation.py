"""Scores of clients during adaptation: before the first epoch of training and after every epoch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from fedjax_srp.base import Array, ClientData, FederatedSource, Key, PyTree
from fedjax_srp.contract.checks import score
from fedjax_srp.rounds.scoring import judge_clients
from fedjax_srp.rounds.sharding import Layout, gather


class Epoch(NamedTuple):
    """The state of an adaptation between epochs."""

    model: PyTree  # what predictions need
    training: PyTree  # what training needs besides


class ClientAdaptation(NamedTuple):
    """The adaptation of one client, epoch by epoch."""

    start: Epoch  # before the first epoch
    epoch: Callable[[Epoch, Array], Epoch]  # the second argument counts epochs from 0
    predict: Callable[[PyTree, Array], Array]  # (model, inputs) -> outputs


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

    def begin(
        self, key: Key, server: PyTree, data: ClientData, count: Array, /
    ) -> ClientAdaptation:
        """Return the steps of one client; `data` is its TRAINING data, `count` a number of samples, () int32."""
        ...


def score_epochs(
    plan: AdaptationPlan,
    data: FederatedSource,
    server: PyTree,
    counts: Array,
    root: Key,
    layout: Layout,
) -> tuple[Array, Array]:
    """Score every client: sums of scores, (counts, clients, num_epochs + 1), and numbers of scores, (counts, clients).

    Clients are in order of their id, (owned * num_devices) of them on every device; `root` and a client's id make the
    key that `begin` gets, as in an evaluation before the first round.
    """

    def with_samples(samples: Array) -> tuple[Array, Array]:
        def judge(
            key: Key, state: Any, train: ClientData, test: ClientData
        ) -> dict[str, Array]:
            steps = plan.begin(key, server, train, samples)

            def score_of(model: PyTree) -> tuple[Array, Array]:
                return score("adapt", data, lambda x: steps.predict(model, x), test)

            def epoch(before: Epoch, e: Array) -> tuple[Epoch, PyTree]:
                after = steps.epoch(before, e)
                if plan.together:
                    return after, after.model
                return after, score_of(after.model)[0]

            first, count = score_of(steps.start.model)
            epochs = jnp.arange(plan.num_epochs, dtype=jnp.int32)
            _, later = jax.lax.scan(epoch, steps.start, epochs)
            if plan.together and plan.num_epochs:
                score_all = jax.vmap(
                    lambda model: score_of(model)[0], axis_size=plan.num_epochs
                )
                later = score_all(later)
            scores = {"count": count, "0": first}
            for e in range(plan.num_epochs):
                scores[str(e + 1)] = later[e]
            return scores

        records = judge_clients(judge, data, (), jnp.int32(0), root, layout)
        totals = [records[str(e)] for e in range(plan.num_epochs + 1)]
        return gather(layout, (jnp.stack(totals, axis=1), records["count"]))

    return jax.lax.map(with_samples, counts)
