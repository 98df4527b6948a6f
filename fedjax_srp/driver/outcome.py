"""Results of a simulation: records of its rounds, and histories."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_srp.base import Array, Key, PyTree, member_of
from fedjax_srp.driver.prepare import Prepared
from fedjax_srp.driver.programs import Segment
from fedjax_srp.driver.record import records
from fedjax_srp.driver.round_log import Arrays, Records
from fedjax_srp.parts.checks import is_key
from fedjax_srp.results.history import History
from fedjax_srp.results.measures import FREE_START, StartCost


def flat_records(segment: Segment, run: Prepared) -> Arrays:
    """A segment as flat arrays (num_seeds, R), (num_seeds, E) and (num_seeds, E, num_clients), by name."""

    def with_seeds(value: Any) -> np.ndarray:
        array = np.asarray(value)
        return array[None] if run.num_seeds is None else array

    new: dict[str, np.ndarray] = {}
    for name, value in segment.rounds._asdict().items():
        if name not in ("metrics", "reports"):
            new[name] = with_seeds(value)
    for name, value in segment.rounds.metrics.items():
        new[f"metrics/{name}"] = with_seeds(_of_numpy(value))
    new["eval_round"] = new["round"][:, -1:] + 1
    for evaluation, (totals, counts) in segment.scores.items():
        total = with_seeds(np.asarray(totals, np.float64))[:, None]
        count = with_seeds(np.asarray(counts, np.float64))[:, None]
        total = total[..., : run.layout.num_clients]
        count = count[..., : run.layout.num_clients]
        new[f"scores/{evaluation}/sum"] = total
        new[f"scores/{evaluation}/count"] = count
        # over clients, weighted by test points
        new[f"means/{evaluation}"] = ratio(total.sum(-1), count.sum(-1))
    return new


def _of_numpy(value: Any) -> np.ndarray:
    """An array of a type of NumPy, as files of NumPy have no other: bfloat16 becomes float32."""
    array = np.asarray(value)
    return array.astype(np.float32) if array.dtype.kind == "V" else array


def ratio(total: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Divide sums by numbers; nan for 0 / 0, as a client without test data has no score."""
    with np.errstate(invalid="ignore"):
        return total / count


def smaller_is_better(data: Any) -> bool:
    """True if the scores of the data are errors; by default they are accuracies."""
    return bool(member_of(data, "smaller_is_better"))


def score_name(data: Any) -> str:
    """Name of the data's scores."""
    return str(member_of(data, "score_name"))


def ended_after(records: Records, run: Prepared) -> int | None:
    """Number of rounds at the first evaluation that reaches a limit for every seed; None if there is none yet."""
    if not records:
        return None
    time_limit = run.settings.time_limit
    target = run.settings.target
    rounds = records["eval_round"][0]
    has_ended = np.zeros(records["eval_round"].shape, bool)
    if time_limit is not None:
        has_ended |= records.elapsed()[:, rounds - 1] >= time_limit
    if target is not None:
        scores = records[f"means/{run.evaluations[0]}"]
        reached = scores >= target
        if smaller_is_better(run.data):
            reached = scores <= target
        has_ended |= np.logical_or.accumulate(reached, 1)
    all_ended = has_ended.all(0)
    return int(rounds[np.argmax(all_ended)]) if all_ended.any() else None


def check_not_ended(records: Records, run: Prepared, completed: int) -> None:
    """Raise a ValueError for limits that the run in a folder has already passed."""
    end = ended_after(records, run)
    if end is not None and end < completed:
        settings = run.settings
        limits = {"time_limit": settings.time_limit, "target": settings.target}
        words = [
            f"{name}={value:g}" for name, value in limits.items() if value is not None
        ]
        raise ValueError(
            f"{', '.join(words)}: checkpoint_dir={str(settings.checkpoint_dir)!r} holds {completed} rounds of this "
            f"run, it would end after {end}; give the limits it had, or another folder"
        )


def on_host(tree: PyTree) -> PyTree:
    """Copies of a tree's arrays, since a run donates its state: NumPy's, but JAX's of typed keys."""
    return jax.tree.map(
        lambda leaf: jnp.copy(leaf) if is_key(leaf) else np.array(leaf), tree
    )


class Results(NamedTuple):
    """Results of a simulation so far."""

    client_time: Array  # as in `Start`
    rounds_taken: Array  # as in `SimulationState`
    server: PyTree
    clients: (
        PyTree | None
    )  # leaves (owned * num_devices, ...), after an axis of seeds if there is one
    records: Records
    timings: dict[str, Any]  # of the host, in seconds


def _start_cost(run: Prepared, time: float) -> StartCost:
    """Costs of the passes before the first round, which a run from a given state leaves out."""
    if run.start is not None:
        return FREE_START
    return StartCost(time, run.sizes.start_passes, *run.sizes.start)


def histories(run: Prepared, root: Key, results: Results) -> list[History]:
    """One history per seed."""
    num_seeds, rounds, evaluations = run.num_seeds, results.records, run.evaluations
    client_time, rounds_taken = (
        np.asarray(of_clients).reshape(num_seeds or 1, -1)
        for of_clients in (results.client_time, results.rounds_taken)
    )
    configs = records(run, root)
    up, down = run.sizes.messages
    server, clients = on_host(results.server), on_host(results.clients)
    num_clients = run.layout.num_clients

    def history(s: int) -> History:
        counts = {e: rounds[f"scores/{e}/count"][s, -1] for e in evaluations}
        return History(
            name=run.name,
            round=rounds["round"][s] + 1,
            stage=rounds["stage"][s],
            cohort_size=rounds["cohort_size"][s],
            compute_time=rounds["compute_time"][s],
            communicated=rounds["communicated"][s] & (up + down > 0),
            finite=rounds["finite"][s],
            metrics={
                n.removeprefix("metrics/"): v[s]
                for n, v in rounds.items()
                if n.startswith("metrics/")
            },
            eval_round=rounds["eval_round"][s] if evaluations else np.zeros(0, np.int32),
            accuracies={
                e: ratio(*(rounds[f"scores/{e}/{part}"][s] for part in ("sum", "count")))
                for e in evaluations
            },
            test_count=counts[evaluations[0]]
            if counts
            else np.zeros(run.layout.num_clients, np.int32),
            client_time=client_time[s],
            rounds_taken=rounds_taken[s],
            start=_start_cost(run, rounds.start_time[s].item()),
            asynchronous=run.policy.asynchronous,
            communication_included=run.clock.needs_costs,
            bytes_up=up,
            bytes_down=down,
            score_name=score_name(run.data),
            smaller_is_better=smaller_is_better(run.data),
            client_names=member_of(run.data, "client_names"),
            server_state=server
            if num_seeds is None
            else jax.tree.map(lambda leaf: leaf[s], server),
            client_states=jax.tree.map(
                lambda leaf: run.layout.by_id(leaf if num_seeds is None else leaf[s])[
                    :num_clients
                ],
                clients,
            ),
            config=configs[s],
            **results.timings,
        )

    return [history(s) for s in range(num_seeds or 1)]
