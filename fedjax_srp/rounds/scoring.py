"""Scores of every client under named evaluations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedjax_srp.base import (
    Array,
    ClientData,
    ClientOutput,
    ClientState,
    FederatedAlgorithm,
    FederatedSource,
    Key,
    PyTree,
    RoundContext,
)
from fedjax_srp.contract.checks import score
from fedjax_srp.rounds.client_data import data_access_both
from fedjax_srp.rounds.round import SimulationState, all_clients, cohort_pass, stream
from fedjax_srp.rounds.sharding import Layout, gather


def judge_clients(
    judge: Callable[[Key, ClientState, ClientData, ClientData], Mapping[str, Array]],
    data: FederatedSource,
    states: PyTree,
    round_index: Array,
    root: Key,
    layout: Layout,
) -> PyTree:
    """Judge every client after `round_index` rounds: `(key, state, training data, test data) -> scalars by name`.

    Returns:
        name -> (owned,) on every device, see `gather`.
    """
    layout = layout.for_evaluation()
    cohort = all_clients(layout.num_clients)
    context = RoundContext(
        round_index, cohort.stage, cohort.size, layout.num_clients, cohort.size
    )

    def client(
        key: Key, state: ClientState, client_data: Any, context: RoundContext
    ) -> ClientOutput:
        del context
        return ClientOutput((), info=judge(key, state, *client_data))

    key, both = stream(root, "evaluation", round_index), data_access_both(layout, data)
    return cohort_pass(
        client, both, states, cohort, context, key, layout, record=True
    ).records


def score_clients(
    algorithm: FederatedAlgorithm,
    names: Sequence[str],
    data: FederatedSource,
    state: SimulationState,
    root: Key,
    layout: Layout,
) -> dict[str, tuple[Array, Array]]:
    """Score every client at this state under each named evaluation.

    An evaluation sees the client's training data only; its predictions are scored on the client's test data here.

    Returns:
        name -> (sum of scores, number of scores), each (owned * num_devices,) on every device, in order of client id.
    """

    def scores(name: str) -> tuple[Array, Array]:
        where, personalize = (
            f"algorithm {algorithm.name!r}: evaluation {name!r}",
            algorithm.evaluations[name],
        )

        def judge(
            key: Key, client_state: Any, train: ClientData, test: ClientData
        ) -> dict[str, Array]:
            total, count = score(
                where, data, personalize(key, state.server, client_state, train), test
            )
            return {"score": total, "count": count}

        records = judge_clients(judge, data, state.clients, state.round, root, layout)
        return gather(layout, (records["score"], records["count"]))

    return {name: scores(name) for name in names}
