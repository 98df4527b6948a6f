"""Results of a simulation: records of its rounds, facts that identify it, and histories."""

from __future__ import annotations

import contextlib
import json
import operator
import weakref
import zlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_srp.base import Array, FederatedSource, Key, PyTree, member_of, name_of_data
from fedjax_srp.driver.given import checksum
from fedjax_srp.driver.prepare import Prepared
from fedjax_srp.driver.programs import Segment, as_numbers
from fedjax_srp.driver.round_log import Arrays, Records
from fedjax_srp.parts.checks import is_key
from fedjax_srp.parts.description import CODE, describe, describe_data
from fedjax_srp.results.history import History
from fedjax_srp.results.json_files import jsonable


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


def ended_after(records: Arrays, run: Prepared) -> int | None:
    """Number of rounds at the first evaluation that reaches a limit for every seed; None if there is none yet."""
    if not records:
        return None
    time_limit = run.settings.time_limit
    target = run.settings.target
    rounds = records["eval_round"][0]
    has_ended = np.zeros(records["eval_round"].shape, bool)
    if time_limit is not None:
        elapsed = np.cumsum(records["compute_time"], 1, np.float64)
        has_ended |= elapsed[:, rounds - 1] >= time_limit
    if target is not None:
        scores = records[f"means/{run.evaluations[0]}"]
        reached = scores >= target
        if smaller_is_better(run.data):
            reached = scores <= target
        has_ended |= np.logical_or.accumulate(reached, 1)
    all_ended = has_ended.all(0)
    return int(rounds[np.argmax(all_ended)]) if all_ended.any() else None


def check_not_ended(records: Arrays, run: Prepared, completed: int) -> None:
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


def facts(run: Prepared) -> dict[str, Any]:
    """Facts about a run, for `History.config`."""
    start = {} if run.start is None else {"start_checksum": checksum(run.start)}
    return start | {
        "name": run.name,
        "algorithm": run.algorithm.name,
        "participation": run.policy.name,
        "clock": run.clock.name,
        "dataset": name_of_data(run.data),
        "num_clients": run.layout.num_clients,
        "options": jsonable(run.options()),
        "method": jsonable(run.description()),
        "clock_options": jsonable({"name": run.clock.name} | describe(run.clock)),
        "dataset_options": jsonable(member_of(run.data, "options")),
        "data_checksum": data_checksum(run.data),
        "unknown": list(run.unknown),
        "eval_every": run.settings.eval_every,
        "eval_first": run.settings.eval_first,
        "eval_last": run.settings.eval_last,
        "evaluations": list(run.evaluations),
        "device": run.layout.devices[0].device_kind,
        "num_devices": run.layout.num_devices,
        "chunk_size": run.layout.chunk_size,  # the default follows from the devices
        "large_chunk": run.layout.large_chunk,
        "shard_data": run.settings.shard_data,
        "record_loss": run.settings.record_loss,
    }


_checksums: weakref.WeakKeyDictionary[Any, tuple[list[Any], str]] = (
    weakref.WeakKeyDictionary()
)  # data -> its leaves


def data_checksum(data: FederatedSource) -> str:
    """Checksum of data, eight hexadecimal digits: of their arrays, and of their description if it has a user's code."""
    arrays, description = (
        _checksum_of_arrays(data),
        json.dumps(jsonable(describe_data(data)), sort_keys=True),
    )
    return (
        f"{zlib.crc32(description.encode(), int(arrays, 16)):08x}"
        if f'"{CODE}"' in description
        else arrays
    )


def _checksum_of_arrays(data: FederatedSource) -> str:
    """Checksum of the data's arrays, or of this process's shards of them."""
    total, leaves = 0, jax.tree.leaves(data)
    with contextlib.suppress(TypeError):  # not hashable, or no weak references
        known, found = _checksums.get(
            data, ([], "")
        )  # a user's class may call others equal, or have got other arrays
        if found and len(known) == len(leaves) and all(map(operator.is_, known, leaves)):
            return found
    for leaf in leaves:
        for part in (
            [leaf]
            if getattr(leaf, "is_fully_addressable", True)
            else [s.data for s in leaf.addressable_shards]
        ):
            total = zlib.crc32(_bits(part).reshape(-1).view(np.uint8).data, total)
    if all(isinstance(leaf, jax.Array) for leaf in leaves):
        with contextlib.suppress(TypeError):
            _checksums[data] = leaves, f"{total:08x}"
    return f"{total:08x}"


def _bits(leaf: Array) -> np.ndarray:
    return np.ascontiguousarray(as_numbers(leaf))


def fingerprint(run: Prepared, root: Key) -> dict[str, Any]:
    """Facts that a resumed run must share: all but the number of rounds, the limits, and the folder of its data."""
    found = facts(run) | {"key": _bits(root).tolist(), "jax": jax.__version__}
    options = found["dataset_options"] or {}  # the data have a checksum
    return found | {
        "dataset_options": {
            name: value for name, value in options.items() if name != "data_dir"
        }
    }


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


def histories(run: Prepared, root: Key, results: Results) -> list[History]:
    """One history per seed."""
    num_seeds, records, evaluations = run.num_seeds, results.records, run.evaluations
    keys = np.asarray(jax.random.key_data(root)).reshape(num_seeds or 1, -1)
    client_time, rounds_taken = (
        np.asarray(of_clients).reshape(num_seeds or 1, -1)
        for of_clients in (results.client_time, results.rounds_taken)
    )
    config = facts(run) | {
        "num_rounds": run.settings.num_rounds,
        "time_limit": run.settings.time_limit,
        "target": run.settings.target,
        "num_seeds": num_seeds,
    }
    up, down = run.sizes.messages
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
            config=config
            | {
                "key": keys[s].tolist(),
                "options": jsonable(run.options(s)),
                "method": jsonable(run.description(s)),
            },
            **results.timings,
        )

    return [history(s) for s in range(num_seeds or 1)]
