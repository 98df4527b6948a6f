"""`simulate` and `simulate_seeds`: the host's side of a simulation."""

from __future__ import annotations

import bisect
import inspect
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from tqdm.auto import tqdm

from fedjax_srp._checks import check_integer, unknown
from fedjax_srp.base import Clock, FederatedAlgorithm, FederatedSource, Key, Method, ParticipationPolicy
from fedjax_srp.clocks import exponential, fixed
from fedjax_srp.engine import memory
from fedjax_srp.engine.checkpoint import Checkpoints, Records
from fedjax_srp.engine.outcome import (
    Arguments,
    Limits,
    append,
    fingerprint,
    histories,
    mean_scores,
    score_name,
    smaller_is_better,
)
from fedjax_srp.engine.owned import place_data
from fedjax_srp.engine.program import program, traffic
from fedjax_srp.engine.sharding import layout, place
from fedjax_srp.history import History
from fedjax_srp.participation import full

EVERYBODY, CLOCK = full(), fixed(exponential(1.0))  # made once: programs are found again by their very parts


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
    shard_data: bool = False,
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
        target: stop after the first evaluation whose mean score reaches this, an accuracy from below and an error from
            above.
        progress: show a progress bar; where there are several processes, the first one does.
        checkpoint_dir: save the run after every segment and continue from there when called again.
        evaluations: names of the algorithm's evaluations, the default one first; None for the algorithm's default,
            "all" for every one, () for none.
        devices: devices to spread the clients over, or how many; None for all, those of every process.
        shard_data: keep every client's examples on one device and move them to where the client trains, for
            `FederatedData` that does not fit every device. Results stay the same, bit for bit.
        throw: raise `FloatingPointError` at the end if the run diverged; otherwise `history.diverged` says when.
        name: of the run in tables and figures; default that of the method.

    Returns:
        A `History` of NumPy arrays.

    Raises:
        ValueError: an argument out of range, or a run that cannot fit the memory, named with value and remedy.
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
    """`simulate` for a batch of keys, in one vmapped program, or in several batches where memory is short.

    Args:
        algorithm: as in `simulate`.
        data: as in `simulate`, shared by the seeds.
        keys: (num_seeds,) keys, `jax.random.split(jax.random.key(seed), num_seeds)`.
        **options: every other argument of `simulate`. `time_limit` and `target` end a batch when every seed of it has
            reached them; each of several batches has its own folder in `checkpoint_dir`.

    Returns:
        One `History` per key, in their order.

    Raises:
        ValueError: as `simulate`, or `keys` is no batch of keys.
        FloatingPointError: a run diverged and `throw` is set.

    Example:
        >>> import jax, fedjax_srp as srp
        >>> data = srp.data.load("digits", num_clients=20, classes_per_client=4)
        >>> method = srp.methods.get("fedavg", dataset=data, hidden=(32,))
        >>> keys = jax.random.split(jax.random.key(0), 3)
        >>> len(srp.simulate_seeds(method, data, num_rounds=2, keys=keys, progress=False))
        3
    """
    check_key("keys", keys)
    if keys.ndim != 1 or not keys.size:
        raise ValueError(
            f"keys has shape {keys.shape}, expected (num_seeds,); jax.random.split(key, num_seeds) makes them"
        )
    bound = inspect.signature(simulate).bind(algorithm, data, key=keys, **options)
    bound.apply_defaults()
    options = bound.arguments
    at_once, folder = _seeds_at_once(keys.size, **options), options["checkpoint_dir"]
    if at_once < keys.size and options["progress"]:
        tqdm.write(f"memory is short: {at_once} of {keys.size} seeds at a time", file=sys.stderr)
    runs: list[History] = []
    for first in range(0, keys.size, at_once):
        batch = keys[first : first + at_once]
        if folder is not None and at_once < keys.size:
            options["checkpoint_dir"] = Path(folder) / f"seeds_{first}_to_{first + batch.size}"
        runs += _simulate(batch.size, **options | {"key": batch, "throw": False})
    return _thrown(runs, options["throw"])


def _seeds_at_once(num_seeds: int, *, data: FederatedSource, **options: Any) -> int:
    """How many seeds one program holds: all, or batches of equal size that fit the memory."""
    what = {name: options[name] for name in inspect.signature(_check).parameters if name in options}
    sizes = sorted({-(-num_seeds // num_batches) for num_batches in range(1, num_seeds + 1)}, reverse=True)
    fits = lambda size: memory.room(_check(size, data=data, **what), data, size).fits  # noqa: E731
    return sizes[min(bisect.bisect_left(sizes, True, key=fits), len(sizes) - 1)]


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
    check_key("key", key)
    if num_seeds is None and key.shape != ():
        raise ValueError(f"key has shape {key.shape}, simulate takes one key; simulate_seeds takes several")
    for argument, value in (("num_rounds", num_rounds), ("eval_every", eval_every)):
        check_integer(argument, value, 1)
    if time_limit is not None and not time_limit > 0:
        raise ValueError(f"time_limit={time_limit} must be positive, in time units (None sets no limit)")
    limits = Limits(num_rounds, eval_every, time_limit, target)
    arguments = _check(num_seeds, data=data, checkpointed=checkpoint_dir is not None, **what)
    runs = _run(arguments, data, key, num_seeds, limits, progress, checkpoint_dir)
    return _thrown(runs, throw)


def _thrown(runs: list[History], throw: bool) -> list[History]:
    """The runs, or an error if one of them diverged and `throw` is set."""
    diverged = [history for history in runs if history.diverged is not None]
    if throw and diverged:
        raise FloatingPointError(
            f"{diverged[0].name} diverged in round {diverged[0].diverged}: the server state is no longer finite; "
            "try a smaller learning rate"
        )
    return runs


def check_key(argument: str, key: Any) -> None:
    """Refuses what is no typed key."""
    if not (isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)):
        kind = f"of type {key.dtype}" if isinstance(key, jax.Array) else repr(key)
        raise ValueError(f"{argument} is {kind}, not a typed key; use jax.random.key(seed)")


def check_evaluations(algorithm: FederatedAlgorithm, evaluations: str | Sequence[str] | None) -> tuple[str, ...]:
    """Names of evaluations: None for the default one, "all" for every one; unknown ones are refused."""
    if evaluations is None:
        return tuple(algorithm.evaluations)[:1]
    if isinstance(evaluations, str):
        evaluations = tuple(algorithm.evaluations) if evaluations == "all" else (evaluations,)
    for evaluation in evaluations:
        if evaluation not in algorithm.evaluations:
            raise unknown(f"evaluation of {algorithm.name}", evaluation, algorithm.evaluations)
    return tuple(evaluations)


def _check(
    num_seeds,
    algorithm,
    data,
    participation,
    clock,
    chunk_size,
    evaluations,
    devices,
    shard_data,
    name,
    checkpointed=False,
) -> Arguments:
    if isinstance(algorithm, Method):
        if participation is not None:
            raise ValueError(
                f"method {algorithm.name!r} brings its participation; pass method.algorithm to choose another"
            )
        name = algorithm.name if name is None else name
        algorithm, participation = algorithm.algorithm, algorithm.participation
    evaluations = check_evaluations(algorithm, evaluations)
    policy = EVERYBODY if participation is None else participation
    if name is None:
        name = algorithm.name if policy.name == "full" else f"{algorithm.name} + {policy.name}"
    clock = CLOCK if clock is None else clock
    sizes = traffic(algorithm, policy, data)
    plan = layout(devices, chunk_size, data.num_clients, *sizes.of_seeds(num_seeds))
    if checkpointed and 1 == len({device.process_index for device in plan.devices}) < jax.process_count():
        raise ValueError(
            f"checkpoint_dir with devices of one of {jax.process_count()} processes: a checkpoint waits for all of "
            "them; leave out checkpoint_dir, or devices"
        )
    return Arguments(name, algorithm, policy, clock, evaluations, plan, sizes, shard_data)


def _run(
    arguments: Arguments, source, root: Key, num_seeds: int | None, limits: Limits, progress, checkpoint_dir
) -> list[History]:
    begin = time.perf_counter()
    plan = arguments.plan
    silent = not (progress and plan.speaks)
    memory.check(arguments, source, num_seeds, say=not silent)
    compiled = program(arguments.algorithm, arguments.policy, arguments.clock, arguments.evaluations, plan, num_seeds)
    compiled_before = compiled.compile_seconds
    root = place(plan, root)
    data = place_data(plan, source, arguments.shard_data)
    hash_of_start = None if checkpoint_dir is None else compiled.start_fingerprint(root, data)
    start = compiled.start(root, data)
    state, records, completed = start.state, {}, 0

    checkpoints = None
    if checkpoint_dir is not None:
        facts = fingerprint(arguments, source, root, limits) | {"start": hash_of_start}
        facts["program"] = compiled.segment_fingerprint(limits.eval_every, state, root, data)
        checkpoints = Checkpoints(checkpoint_dir, facts)
        if (snapshot := checkpoints.restore(state)) is not None:
            completed, state, records = snapshot

    rounds_run, run_seconds = 0, 0.0
    total = max(limits.num_rounds, completed)
    with tqdm(total=total, initial=completed, desc=arguments.name, unit="round", disable=silent) as bar:
        while completed < limits.num_rounds and not _reached(records, arguments, limits, smaller_is_better(source)):
            # Evaluations stay on their grid, even where the run that is continued ended between two of them.
            length = min(limits.eval_every - completed % limits.eval_every, limits.num_rounds - completed)
            if not rounds_run:
                memory.check_working(arguments, compiled.working_bytes(length, state, root, data))
            compile_before, segment_begin = compiled.compile_seconds, time.perf_counter()
            state, segment = compiled.segment(length, state, root, data)
            records = append(records, jax.device_get(segment), plan.num_clients, batched=num_seeds is not None)
            run_seconds += time.perf_counter() - segment_begin - (compiled.compile_seconds - compile_before)
            completed, rounds_run = completed + length, rounds_run + length
            if checkpoints is not None:
                checkpoints.save(completed, state, records)
            bar.set_postfix(_live(records, arguments, score_name(source)), refresh=False)
            bar.update(length)
    if checkpoints is not None:
        checkpoints.close()

    timings = {
        "host_seconds": time.perf_counter() - begin,
        "compile_seconds": compiled.compile_seconds - compiled_before,
        "seconds_per_round": run_seconds / rounds_run if rounds_run else float("nan"),
    }
    return histories(arguments, limits, source, root, start, state.server, records, timings, num_seeds)


def _reached(records: Records, arguments: Arguments, limits: Limits, smaller_is_better: bool) -> bool:
    if not records:
        return False
    if limits.time_limit is not None and (records["compute_time"].sum(1) >= limits.time_limit).all():
        return True
    if limits.target is None or not arguments.evaluations:
        return False
    scores = mean_scores(records, arguments.evaluations[0])
    return bool((scores <= limits.target if smaller_is_better else scores >= limits.target).any(1).all())


def _live(records: Records, arguments: Arguments, score: str) -> dict[str, str]:
    """What the progress bar shows."""
    shown = {"n": f"{records['cohort_size'][0, -1]}", "time": f"{records['compute_time'].sum(1).mean():.4g}"}
    if arguments.evaluations:
        shown[score] = f"{mean_scores(records, arguments.evaluations[0])[:, -1].mean():.3g}"
    return shown
