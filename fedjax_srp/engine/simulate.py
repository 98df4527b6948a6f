"""`simulate` and `simulate_seeds`: the host's side of a simulation."""

from __future__ import annotations

import inspect
import os
import time
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from tqdm.auto import tqdm

from .._checks import check_integer, unknown
from ..base import Array, Clock, FederatedAlgorithm, FederatedSource, Key, Method, ParticipationPolicy
from ..clocks import exponential, fixed
from ..history import History
from ..participation import full
from .checkpoint import Checkpoints, Records
from .program import Segment, Start, Traffic, program, traffic
from .sharding import Layout, layout

_EVERYBODY, _CLOCK = full(), fixed(exponential(1.0))  # made once: programs are found again by their very parts


def simulate(
    algorithm: FederatedAlgorithm | Method,
    data: FederatedSource,
    *,
    participation: ParticipationPolicy | None = None,
    clock: Clock | None = None,
    num_rounds: int,
    key: Key,
    eval_every: int = 10,
    chunk_size: int | None = None,
    time_limit: float | None = None,
    target: float | None = None,
    progress: bool = True,
    checkpoint_dir: str | os.PathLike | None = None,
    evaluations: str | Sequence[str] | None = None,
    devices: Sequence[Any] | int | None = None,
    throw: bool = False,
    name: str | None = None,
) -> History:
    """Simulates federated learning on simulated wall-clock time.

    Whole segments of `eval_every` rounds and the evaluation after them run as one compiled program; a cohort that grows
    from stage to stage does not compile anew, and neither does another key.

    Args:
        algorithm: what clients and server compute (`srp.algorithms`), or a `Method` (`srp.methods.get`), which brings
            its participation along.
        data: `FederatedData`, a `LinearTask`, or any `FederatedSource`.
        participation: who takes part in a round (`srp.participation`); default everybody.
        clock: how long a unit of local work takes each client (`srp.clocks`), in time units; default Exp(1), drawn
            once per client.
        num_rounds: communication rounds at most.
        key: root of all randomness, `jax.random.key(seed)`. Data order, straggler times, participation, training and
            evaluation have streams of their own, so every method meets the same stragglers under the same key.
        eval_every: rounds between evaluations; the last round is always evaluated.
        chunk_size: clients that train at once on each device; None for a measured default. Memory follows it.
        time_limit: stop after the first evaluation at or beyond this simulated time (communication not counted).
        target: stop after the first evaluation whose mean accuracy reaches this.
        progress: show a progress bar.
        checkpoint_dir: save the run after every segment and continue from there when called again.
        evaluations: names of the algorithm's evaluations, the default one first; None for the algorithm's default,
            "all" for every one, () for none.
        devices: devices to spread the clients over, or how many; None for all.
        throw: raise `FloatingPointError` at the end if the run diverged; otherwise `history.diverged` says when.
        name: of the run in tables and figures; default that of the method.

    Returns:
        A `History` of NumPy arrays.

    Raises:
        ValueError: an argument out of range, named with its value and the remedy.
        FloatingPointError: the run diverged and `throw` is set.

    Example:
        >>> import jax, fedjax_srp as srp
        >>> data = srp.data.load("digits", num_clients=20, classes_per_client=4)
        >>> method = srp.methods.get("srpfl", dataset=data, hidden=(32,), initial=5, rounds_per_stage=2)
        >>> history = srp.simulate(method, data, num_rounds=4, eval_every=2, key=jax.random.key(0), progress=False)
        >>> history.cohort_size.tolist()
        [5, 5, 10, 10]
    """
    return _simulate(None, **locals())[0]


def simulate_seeds(
    algorithm: FederatedAlgorithm | Method, data: FederatedSource, *, keys: Key, **options: Any
) -> list[History]:
    """`simulate` for a batch of keys, in one vmapped program.

    Args:
        algorithm: as in `simulate`.
        data: as in `simulate`, shared by the seeds.
        keys: (num_seeds,) keys, `jax.random.split(jax.random.key(seed), num_seeds)`.
        **options: every other argument of `simulate`. `time_limit` and `target` end the batch when every seed has
            reached them.

    Returns:
        One `History` per key, in their order.

    Raises:
        ValueError: an argument out of range, named with its value and the remedy.
        FloatingPointError: a run diverged and `throw` is set.

    Example:
        >>> import jax, fedjax_srp as srp
        >>> data = srp.data.load("digits", num_clients=20, classes_per_client=4)
        >>> method = srp.methods.get("fedavg", dataset=data, hidden=(32,))
        >>> keys = jax.random.split(jax.random.key(0), 3)
        >>> len(srp.simulate_seeds(method, data, num_rounds=2, keys=keys, progress=False))
        3
    """
    _check_key("keys", keys)
    if keys.ndim != 1 or not keys.size:
        raise ValueError(
            f"keys has shape {keys.shape}, expected (num_seeds,); jax.random.split(key, num_seeds) makes them"
        )
    bound = inspect.signature(simulate).bind(algorithm, data, key=keys, **options)
    bound.apply_defaults()
    return _simulate(keys.size, **bound.arguments)


def _simulate(
    num_seeds: int | None,
    *,
    data: FederatedSource,
    key: Key,
    num_rounds: int,
    eval_every: int,
    time_limit: float | None,
    target: float | None,
    progress: bool,
    checkpoint_dir: str | os.PathLike | None,
    throw: bool,
    **what: Any,
) -> list[History]:
    _check_key("key", key)
    if num_seeds is None and key.shape != ():
        raise ValueError(f"key has shape {key.shape}, simulate takes one key; simulate_seeds takes several")
    for argument, value in (("num_rounds", num_rounds), ("eval_every", eval_every)):
        check_integer(argument, value, 1)
    if time_limit is not None and not time_limit > 0:
        raise ValueError(f"time_limit={time_limit} must be positive, in time units (None sets no limit)")
    limits = _Limits(num_rounds, eval_every, time_limit, target)
    histories = _run(_check(num_seeds, data=data, **what), data, key, num_seeds, limits, progress, checkpoint_dir)
    diverged = [history for history in histories if history.diverged is not None]
    if throw and diverged:
        raise FloatingPointError(
            f"{diverged[0].name} diverged in round {diverged[0].diverged}: the server state is no longer finite; "
            "try a smaller learning rate"
        )
    return histories


class _Arguments(NamedTuple):
    name: str
    algorithm: FederatedAlgorithm
    policy: ParticipationPolicy
    clock: Clock
    evaluations: tuple[str, ...]
    plan: Layout
    sizes: Traffic


class _Limits(NamedTuple):
    num_rounds: int
    eval_every: int
    time_limit: float | None
    target: float | None


def _check_key(argument: str, key: Any) -> None:
    if not (isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)):
        kind = f"of type {key.dtype}" if isinstance(key, jax.Array) else repr(key)
        raise ValueError(f"{argument} is {kind}, not a typed key; use jax.random.key(seed)")


def _check(num_seeds, algorithm, data, participation, clock, chunk_size, evaluations, devices, name) -> _Arguments:
    if isinstance(algorithm, Method):
        if participation is not None:
            raise ValueError(
                f"method {algorithm.name!r} brings its participation; pass method.algorithm to choose another"
            )
        name = algorithm.name if name is None else name
        algorithm, participation = algorithm.algorithm, algorithm.participation
    if evaluations is None:
        evaluations = tuple(algorithm.evaluations)[:1]
    elif isinstance(evaluations, str):
        evaluations = tuple(algorithm.evaluations) if evaluations == "all" else (evaluations,)
    for evaluation in evaluations:
        if evaluation not in algorithm.evaluations:
            raise unknown(f"evaluation of {algorithm.name}", evaluation, algorithm.evaluations)
    policy = _EVERYBODY if participation is None else participation
    if name is None:
        name = algorithm.name if policy.name == "full" else f"{algorithm.name} + {policy.name}"
    clock = _CLOCK if clock is None else clock
    sizes = traffic(algorithm, policy, data)
    plan = layout(devices, chunk_size, data.num_clients, sizes.held * (num_seeds or 1))
    return _Arguments(name, algorithm, policy, clock, tuple(evaluations), plan, sizes)


def _run(
    arguments: _Arguments, data, root: Key, num_seeds: int | None, limits: _Limits, progress, checkpoint_dir
) -> list[History]:
    begin = time.perf_counter()
    plan = arguments.plan
    compiled = program(arguments.algorithm, arguments.policy, arguments.clock, arguments.evaluations, plan, num_seeds)
    compiled_before = compiled.compile_seconds
    root = jax.device_put(root, plan.sharding())
    data = jax.device_put(data, plan.sharding())
    start = compiled.start(root, data)
    state, records, completed = start.state, {}, 0

    checkpoints = None
    if checkpoint_dir is not None:
        facts = _fingerprint(arguments, data, root, limits)
        facts["program"] = compiled.fingerprint(limits.eval_every, state, root, data)
        checkpoints = Checkpoints(checkpoint_dir, facts)
        if (snapshot := checkpoints.restore(state)) is not None:
            completed, state, records = snapshot

    rounds_run, run_seconds = 0, 0.0
    total = max(limits.num_rounds, completed)
    with tqdm(total=total, initial=completed, desc=arguments.name, unit="round", disable=not progress) as bar:
        while completed < limits.num_rounds and not _reached(records, arguments, limits):
            length = min(limits.eval_every, limits.num_rounds - completed)
            compile_before, segment_begin = compiled.compile_seconds, time.perf_counter()
            state, segment = compiled.segment(length, state, root, data)
            records = _append(records, jax.device_get(segment), plan.num_clients, batched=num_seeds is not None)
            run_seconds += time.perf_counter() - segment_begin - (compiled.compile_seconds - compile_before)
            completed, rounds_run = completed + length, rounds_run + length
            if checkpoints is not None:
                checkpoints.save(completed, state, records)
            bar.set_postfix(_live(records, arguments), refresh=False)
            bar.update(length)
    if checkpoints is not None:
        checkpoints.close()

    timings = {
        "host_seconds": time.perf_counter() - begin,
        "compile_seconds": compiled.compile_seconds - compiled_before,
        "seconds_per_round": run_seconds / rounds_run if rounds_run else float("nan"),
    }
    return _histories(arguments, limits, data, root, start, records, timings, num_seeds)


def _append(records: Records, segment: Segment, num_clients: int, batched: bool) -> Records:
    """Adds a segment to the flat record: leaves (num_seeds, R) and (num_seeds, E, num_clients)."""
    lead = (lambda a: a) if batched else (lambda a: a[None])
    new = {name: lead(np.asarray(value)) for name, value in segment.rounds._asdict().items() if name != "metrics"}
    new |= {f"metrics/{name}": lead(np.asarray(value)) for name, value in segment.rounds.metrics.items()}
    new["eval_round"] = new["round"][:, -1:] + 1
    for evaluation, parts in segment.scores.items():
        for part, value in zip(("sum", "count"), parts, strict=True):
            new[f"scores/{evaluation}/{part}"] = lead(np.asarray(value, np.float64))[:, None, :num_clients]
    return {name: np.concatenate([records[name], value], 1) if records else value for name, value in new.items()}


def _mean_scores(records: Records, evaluation: str) -> np.ndarray:
    """(num_seeds, E): over clients, weighted by test points."""
    return records[f"scores/{evaluation}/sum"].sum(-1) / records[f"scores/{evaluation}/count"].sum(-1)


def _reached(records: Records, arguments: _Arguments, limits: _Limits) -> bool:
    if not records:
        return False
    if limits.time_limit is not None and (records["compute_time"].sum(1) >= limits.time_limit).all():
        return True
    if limits.target is None or not arguments.evaluations:
        return False
    return bool((_mean_scores(records, arguments.evaluations[0]) >= limits.target).any(1).all())


def _live(records: Records, arguments: _Arguments) -> dict[str, str]:
    """What the progress bar shows."""
    shown = {"n": f"{records['cohort_size'][0, -1]}", "time": f"{records['compute_time'].sum(1).mean():.4g}"}
    if arguments.evaluations:
        shown["accuracy"] = f"{_mean_scores(records, arguments.evaluations[0])[:, -1].mean():.3f}"
    return shown


def _facts(arguments: _Arguments, data, limits: _Limits) -> dict[str, Any]:
    return {
        "name": arguments.name,
        "algorithm": arguments.algorithm.name,
        "participation": arguments.policy.name,
        "clock": arguments.clock.name,
        "dataset": getattr(data, "name", type(data).__name__),
        "num_clients": arguments.plan.num_clients,
        "eval_every": limits.eval_every,
        "evaluations": list(arguments.evaluations),
        "chunk_size": arguments.plan.chunk_size,
        "num_devices": arguments.plan.num_devices,
        "device": arguments.plan.devices[0].device_kind,
    }


def _fingerprint(arguments: _Arguments, data, root: Key, limits: _Limits) -> dict[str, Any]:
    """What a continued run must share: everything but the number of rounds and the limits."""

    def bits(leaf: Array) -> np.ndarray:
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return np.ascontiguousarray(jax.random.key_data(leaf) if is_key else leaf)

    checksum = 0
    for leaf in jax.tree.leaves(data):
        checksum = zlib.crc32(bits(leaf).reshape(-1).view(np.uint8).data, checksum)
    facts = {"key": bits(root).tolist(), "data_checksum": checksum, "jax": jax.__version__}
    return _facts(arguments, data, limits) | facts


def _histories(arguments, limits, data, root, start: Start, records, timings, num_seeds) -> list[History]:
    keys = np.asarray(jax.random.key_data(root)).reshape(num_seeds or 1, -1)
    client_time = np.asarray(start.client_time).reshape(num_seeds or 1, -1)
    config = _facts(arguments, data, limits) | {
        "num_rounds": limits.num_rounds,
        "time_limit": limits.time_limit,
        "target": limits.target,
        "num_seeds": num_seeds,
    }
    up, down = arguments.sizes.up, arguments.sizes.down

    def history(s: int) -> History:
        counts = {e: records[f"scores/{e}/count"][s, -1] for e in arguments.evaluations}
        return History(
            name=arguments.name,
            round=records["round"][s] + 1,
            stage=records["stage"][s],
            cohort_size=records["cohort_size"][s],
            compute_time=records["compute_time"][s],
            communicated=records["communicated"][s] & (up + down > 0),
            finite=records["finite"][s],
            metrics={n.removeprefix("metrics/"): v[s] for n, v in records.items() if n.startswith("metrics/")},
            eval_round=records["eval_round"][s] if arguments.evaluations else np.zeros(0, np.int32),
            accuracies={
                e: records[f"scores/{e}/sum"][s] / records[f"scores/{e}/count"][s] for e in arguments.evaluations
            },
            test_count=counts[arguments.evaluations[0]] if counts else np.zeros(arguments.plan.num_clients, np.int32),
            client_time=client_time[s],
            bytes_up=up,
            bytes_down=down,
            config=config | {"key": keys[s].tolist()},
            **timings,
        )

    return [history(s) for s in range(num_seeds or 1)]
