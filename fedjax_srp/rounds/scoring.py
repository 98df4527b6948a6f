"""Scores of every client under named evaluations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from fedjax_srp.base import (
    Array,
    ClientData,
    ClientOutput,
    ClientState,
    Cohort,
    FederatedAlgorithm,
    FederatedSource,
    Key,
    PyTree,
    RoundContext,
)
from fedjax_srp.contract.checks import score
from fedjax_srp.rounds.client_data import data_access_both
from fedjax_srp.rounds.round import (
    SimulationState,
    all_clients,
    as_float,
    cohort_pass,
    stream,
)
from fedjax_srp.rounds.sharding import Layout, gather

# (key, state, training data, test data of ONE client) -> scalars by name.
Judge = Callable[[Key, ClientState, ClientData, ClientData], Mapping[str, Array]]


def judge_clients(
    judge: Judge,
    data: FederatedSource,
    states: PyTree,
    round_index: Array,
    root: Key,
    layout: Layout,
    cohort: Cohort | None = None,
) -> dict[str, Array]:
    """Judge every client after `round_index` rounds, or some of them.

    Returns:
        name -> (owned,) on every device, see `gather`.
    """
    layout = layout.for_evaluation()
    everybody = all_clients(layout.num_clients)
    context = RoundContext(
        round_index, everybody.stage, everybody.size, layout.num_clients, everybody.size
    )
    cohort = everybody if cohort is None else cohort

    def client(
        key: Key, state: ClientState, client_data: Any, context: RoundContext
    ) -> ClientOutput:
        return ClientOutput((), info=judge(key, state, *client_data))

    def scalars(output: ClientOutput, client_data: Any) -> dict[str, Array]:
        return jax.tree.map(as_float, dict(output.info))

    key = stream(root, "evaluation", round_index)
    access = data_access_both(layout, data)
    judged = cohort_pass(client, access, states, cohort, context, key, layout, scalars)
    return judged.records


def score_clients(
    algorithm: FederatedAlgorithm,
    names: Sequence[str],
    data: FederatedSource,
    state: SimulationState,
    root: Key,
    layout: Layout,
    cohort: Cohort | None = None,
) -> dict[str, tuple[Array, Array]]:
    """Score every client at this state under each named evaluation; with a cohort, its clients alone.

    An evaluation sees the client's training data only; its predictions are scored on the client's test data here.

    Returns:
        name -> (sum of scores, number of scores), each (owned * num_devices,) on every device, in order of client id.
    """

    def scores(name: str) -> tuple[Array, Array]:
        where = f"algorithm {algorithm.name!r}: evaluation {name!r}"
        personalize = algorithm.evaluations[name]

        def judge(
            key: Key, client_state: Any, train: ClientData, test: ClientData
        ) -> dict[str, Array]:
            predict = personalize(key, state.server, client_state, train)
            total, count = score(where, data, predict, test)
            return {"score": total, "count": count}

        records = judge_clients(
            judge, data, state.clients, state.round, root, layout, cohort
        )
        return gather(layout, (records["score"], records["count"]))

    return {name: scores(name) for name in names}
