"""Results of a simulation: its limits, records of its rounds, and histories."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_srp.base import Array, Key, PyTree, member_of
from fedjax_srp.driver.prepare import Prepared
from fedjax_srp.driver.programs import Segment
from fedjax_srp.driver.record import facts
from fedjax_srp.driver.round_log import Arrays, Records
from fedjax_srp.parts.checks import check_integer, is_key
from fedjax_srp.results.history import History, jsonable


class Limits(NamedTuple):
    """Limits of a simulation, and its evaluations."""

    num_rounds: int
    eval_every: int
    time_limit: float | None
    target: float | None
    eval_first: int = 0
    eval_last: int = 0

    def check(self) -> None:
        """Raise a ValueError for a value out of range."""
        for argument, least in (
            ("num_rounds", 1),
            ("eval_every", 1),
            ("eval_first", 0),
            ("eval_last", 0),
        ):
            check_integer(argument, getattr(self, argument), least)
        if self.time_limit is not None and not self.time_limit > 0:
            raise ValueError(
                f"time_limit={self.time_limit} must be positive, in time units (None sets no limit)"
            )
        if self.target is not None and not math.isfinite(self.target):
            raise ValueError(
                f"target={self.target} must be finite, e.g. 0.9 for an accuracy of 90 % (None sets none)"
            )

    def check_fit(self, run: Prepared) -> None:
        """Raise a ValueError for a target that this run cannot reach."""
        if self.target is not None and not run.evaluations:
            raise ValueError(
                f"target={self.target}: nothing is evaluated, so no score reaches it; name an evaluation"
            )
        if (
            self.target is not None
            and score_name(run.data) == "accuracy"
            and not 0 < self.target <= 1
        ):
            raise ValueError(
                f"target={self.target}: accuracies lie between 0 and 1; give 0.9 for 90 %"
            )

    def next_evaluation(self, completed: int) -> int:
        """Number of rounds at the next evaluation, after `completed` rounds.

        The grid of evaluations has every `eval_every`-th round and every round up to `eval_first`, wherever a resumed
        run was interrupted. The last `eval_last` rounds, at least one, are evaluated too.
        """
        every = 1 if completed < self.eval_first else self.eval_every
        first_of_last = max(completed, self.num_rounds - self.eval_last) + 1
        return min(completed + every - completed % every, first_of_last, self.num_rounds)

    def evaluations(self) -> list[int]:
        """Numbers of rounds at all evaluations, if no limit ends the run early."""
        found = [self.next_evaluation(0)]
        while found[-1] < self.num_rounds:
            found.append(self.next_evaluation(found[-1]))
        return found

    def on_grid(self, completed: int) -> bool:
        """True if a longer run evaluates after this many rounds."""
        longer = self._replace(num_rounds=completed + 1, eval_last=0)
        return longer.next_evaluation(completed - 1) == completed

    def can_resume_after(self, completed: int) -> bool:
        """True if a longer run can resume after `completed` rounds: all evaluations so far are on its grid."""
        first_of_last = self.num_rounds - self.eval_last + 1
        return all(
            map(self.on_grid, range(min(completed, max(first_of_last, 1)), completed + 1))
        )


def flat_records(segment: Segment, num_clients: int, batched: bool) -> Arrays:
    """A segment as flat arrays (num_seeds, R), (num_seeds, E) and (num_seeds, E, num_clients), by name."""
    with_seeds = (lambda a: a) if batched else (lambda a: a[None])
    scalars = {
        n: value
        for n, value in segment.rounds._asdict().items()
        if n not in ("metrics", "reports")
    }
    new = {name: with_seeds(np.asarray(value)) for name, value in scalars.items()}
    new |= {
        f"metrics/{name}": with_seeds(_of_numpy(value))
        for name, value in segment.rounds.metrics.items()
    }
    new["eval_round"] = new["round"][:, -1:] + 1
    for evaluation, parts in segment.scores.items():
        for part, value in zip(("sum", "count"), parts, strict=True):
            new[f"scores/{evaluation}/{part}"] = with_seeds(
                np.asarray(value, np.float64)
            )[:, None, :num_clients]
        total, count = (
            new[f"scores/{evaluation}/{part}"].sum(-1) for part in ("sum", "count")
        )
        new[f"means/{evaluation}"] = ratio(
            total, count
        )  # over clients, weighted by test points
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


def ended_after(records: Records, run: Prepared, limits: Limits) -> int | None:
    """Number of rounds at the first evaluation that reaches a limit for every seed; None if there is none yet."""
    if not records:
        return None
    rounds = records["eval_round"][0]
    has_ended = np.zeros(records["eval_round"].shape, bool)
    if limits.time_limit is not None:
        has_ended |= (
            np.cumsum(records["compute_time"], 1, np.float64)[:, rounds - 1]
            >= limits.time_limit
        )
    if limits.target is not None:
        scores = records[f"means/{run.evaluations[0]}"]
        reached = (
            scores <= limits.target
            if smaller_is_better(run.data)
            else scores >= limits.target
        )
        has_ended |= np.logical_or.accumulate(reached, 1)
    all_ended = has_ended.all(0)
    return int(rounds[np.argmax(all_ended)]) if all_ended.any() else None


def check_limits(
    records: Records, run: Prepared, limits: Limits, completed: int, checkpoint_dir: Any
) -> None:
    """Raise a ValueError for limits that the run in a folder has already passed."""
    end = ended_after(records, run, limits)
    if end is not None and end < completed:
        given = {"time_limit": limits.time_limit, "target": limits.target}
        raise ValueError(
            f"{', '.join(f'{name}={value:g}' for name, value in given.items() if value is not None)}: "
            f"checkpoint_dir={str(checkpoint_dir)!r} holds {completed} rounds of this run, it would end after {end}; "
            "give the limits it had, or another folder"
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


def histories(
    run: Prepared, limits: Limits, root: Key, results: Results
) -> list[History]:
    """One history per seed."""
    num_seeds, records, evaluations = run.num_seeds, results.records, run.evaluations
    keys = np.asarray(jax.random.key_data(root)).reshape(num_seeds or 1, -1)
    client_time, rounds_taken = (
        np.asarray(of_clients).reshape(num_seeds or 1, -1)
        for of_clients in (results.client_time, results.rounds_taken)
    )
    config = facts(run, limits._asdict()) | {"num_seeds": num_seeds}
    up, down = run.sizes.up, run.sizes.down
    server, clients = on_host(results.server), on_host(results.clients)
    num_clients = run.layout.num_clients

    def history(s: int) -> History:
        counts = {e: records[f"scores/{e}/count"][s, -1] for e in evaluations}
        return History(
            name=run.name,
            round=records["round"][s] + 1,
            stage=records["stage"][s],
            cohort_size=records["cohort_size"][s],
            compute_time=records["compute_time"][s],
            communicated=records["communicated"][s] & (up + down > 0),
            finite=records["finite"][s],
            metrics={
                n.removeprefix("metrics/"): v[s]
                for n, v in records.items()
                if n.startswith("metrics/")
            },
            eval_round=records["eval_round"][s] if evaluations else np.zeros(0, np.int32),
            accuracies={
                e: ratio(*(records[f"scores/{e}/{part}"][s] for part in ("sum", "count")))
                for e in evaluations
            },
            test_count=counts[evaluations[0]]
            if counts
            else np.zeros(run.layout.num_clients, np.int32),
            client_time=client_time[s],
            rounds_taken=rounds_taken[s],
            asynchronous=run.policy.asynchronous,
            communication_included=run.clock.needs_costs,
            bytes_up=up,
            bytes_down=down,
            score_name=score_name(run.data),
            smaller_is_better=smaller_is_better(run.data),
            server_state=server
            if num_seeds is None
            else jax.tree.map(lambda leaf: leaf[s], server),
            client_states=jax.tree.map(
                lambda leaf: run.layout.by_id(leaf if num_seeds is None else leaf[s])[
                    :num_clients
                ],
                clients,
            ),
            config=config
            | {
                "key": keys[s].tolist(),
                "options": jsonable(run.options(s)),
                "method": jsonable(run.description(s)),
            },
            **results.timings,
        )

    return [history(s) for s in range(num_seeds or 1)]
