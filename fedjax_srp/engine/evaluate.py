"""Judging every client: which model, on which data, is named by the evaluation."""

from __future__ import annotations

from collections.abc import Sequence

from ..base import Array, ClientOutput, FederatedAlgorithm, FederatedSource, Key, RoundContext
from .round import SimulationState, all_clients, cohort_pass, stream
from .sharding import Layout


def evaluate(
    algorithm: FederatedAlgorithm,
    names: Sequence[str],
    data: FederatedSource,
    state: SimulationState,
    root: Key,
    plan: Layout,
) -> dict[str, tuple[Array, Array]]:
    """Every client's score under each named evaluation, after the rounds that `state` has behind it.

    `personalize` sees the client's training data only; what it returns is scored on the client's test data here.

    Returns:
        name -> (sum of scores, number of scores), each (owned,), in order of client id.
    """
    cohort = all_clients(plan.num_clients)
    context = RoundContext(state.round, cohort.stage, cohort.size, plan.num_clients, cohort.size)

    def judge(personalize):
        def client(key, client_state, client_data, context) -> ClientOutput:
            train, test = client_data
            score, count = data.score(personalize(key, state.server, client_state, train), test)
            return ClientOutput((), info={"score": score, "count": count})

        return client

    def fetch(client_id: Array):
        return data.train_client(client_id), data.test_client(client_id)

    key = stream(root, "evaluation", state.round)
    scores = {}
    for name in names:
        client = judge(algorithm.evaluations[name])
        records = cohort_pass(client, fetch, state.clients, cohort, context, key, plan, record=True).records
        scores[name] = records["score"], records["count"]
    return scores
