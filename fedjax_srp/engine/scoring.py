"""Scores of every client under named evaluations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fedjax_srp.base import Array, ClientOutput, FederatedAlgorithm, FederatedSource, Key, Personalize, RoundContext
from fedjax_srp.engine.contract import score
from fedjax_srp.engine.owned import data_access_both
from fedjax_srp.engine.round import SimulationState, all_clients, cohort_pass, stream
from fedjax_srp.engine.sharding import Layout, gather


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
    layout = layout.for_evaluation()
    cohort = all_clients(layout.num_clients)
    context = RoundContext(state.round, cohort.stage, cohort.size, layout.num_clients, cohort.size)

    def judge(name: str, personalize: Personalize) -> Callable[..., ClientOutput]:
        where = f"algorithm {algorithm.name!r}: evaluation {name!r}"

        def client(key: Key, client_state: Any, client_data: Any, context: RoundContext) -> ClientOutput:
            del context
            train, test = client_data
            predict = personalize(key, state.server, client_state, train)
            total, count = score(where, data, predict, test)
            return ClientOutput((), info={"score": total, "count": count})

        return client

    key, both = stream(root, "evaluation", state.round), data_access_both(layout, data)
    scores = {}
    for name in names:
        client = judge(name, algorithm.evaluations[name])
        records = cohort_pass(client, both, state.clients, cohort, context, key, layout, record=True).records
        scores[name] = gather(layout, (records["score"], records["count"]))
    return scores
