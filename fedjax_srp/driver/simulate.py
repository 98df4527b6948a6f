"""`simulate` and `simulate_seeds`: the part of a simulation that runs on the host."""

from __future__ import annotations

import bisect
import contextlib
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike

from fedjax_srp.base import (
    Clock,
    FederatedAlgorithm,
    FederatedSource,
    Key,
    Method,
    ParticipationPolicy,
)
from fedjax_srp.contract.checks import check_cohorts, check_times
from fedjax_srp.driver import memory
from fedjax_srp.driver.checkpoint import Checkpoints, folder_of_seeds, seeds_together
from fedjax_srp.driver.given import Start
from fedjax_srp.driver.outcome import (
    Limits,
    Results,
    check_limits,
    ended_after,
    flat_records,
    histories,
)
from fedjax_srp.driver.prepare import Prepared, Request, prepare
from fedjax_srp.driver.progress import Bar, Watch, progress_after
from fedjax_srp.driver.record import fingerprint, identify_runs
from fedjax_srp.driver.round_log import Records
from fedjax_srp.parts.checks import checked, is_key, short
from fedjax_srp.parts.options import full_names
from fedjax_srp.parts.part import rebuilt, with_values
from fedjax_srp.results import sealed_folders as storage
from fedjax_srp.results.bars import tqdm
from fedjax_srp.results.callbacks import Callback, ends
from fedjax_srp.results.history import History
from fedjax_srp.rounds.sharding import Devices


@checked
def simulate(
    algorithm: FederatedAlgorithm | Method,
    data: FederatedSource,
    *,
    participation: ParticipationPolicy | None = None,
    clock: Clock | None = None,
    num_rounds: int,
    key: Key,
    eval_every: int = 10,
    eval_first: int = 0,
    eval_last: int = 0,
    chunk_size: int | None = None,
    time_limit: float | None = None,
    target: float | None = None,
    progress: bool = True,
    checkpoint_dir: str | os.PathLike | None = None,
    keep_clients: bool = False,
    evaluations: str | Sequence[str] | None = None,
    devices: Devices = None,
    shard_data: bool = False,
    record_loss: bool = False,
    start: Start = "init",
    callback: Callback | None = None,
    throw: bool = False,
    name: str | None = None,
) -> History:
    """Simulate federated learning on simulated wall-clock time.

    The rounds up to an evaluation and the evaluation run as one compiled program. A growing cohort, another key and
    other numbers of rounds do not recompile it.

    Args:
        algorithm: the algorithm (`srp.algorithms`), or a `Method` (`srp.methods.get`) with its participation.
        data: `FederatedData`, a `LinearTask`, or any `FederatedSource`.
        participation: policy that selects the cohort (`srp.participation`); default all clients.
        clock: time of a unit of local work of each client (`srp.clocks`), in time units; default Exp(1), drawn once per
            client.
        num_rounds: maximal number of communication rounds.
        key: root of all randomness, `jax.random.key(seed)`. Data order, straggler times, participation, training and
            evaluation have separate streams, so every method has the same stragglers under the same key.
        eval_every: rounds between evaluations; the last round is always evaluated.
        eval_first: also evaluate after each of the first `eval_first` rounds, so that early times are not upper bounds.
        eval_last: also evaluate after each of the last `eval_last` rounds, for means over them. An extended run resumes
            from before them.
        chunk_size: clients that train at once on each device; None for a measured default. More need more memory.
        time_limit: stop after the first evaluation at or beyond this simulated time (communication not counted).
        target: stop after the first evaluation whose mean score reaches this, an accuracy from below and an error from
            above.
        progress: show a progress bar, in the first process.
        checkpoint_dir: save the run after every segment and resume from there when called again, also with more rounds
            or other limits; the result equals that of an uninterrupted run, bit for bit. The folder holds two or three
            copies of all states, one or two at the end. Only one process can use it at a time.
        keep_clients: keep the states of all clients at the end, `history.client_states`.
        evaluations: names of the algorithm's evaluations, the default one first; None for the algorithm's default,
            "all" for every one, () for none.
        devices: devices to spread the clients over, or how many; None for all, those of every process.
        shard_data: keep every client's examples on one device and move them to the device that trains the client, for
            `FederatedData` that do not fit every device. Results are the same, bit for bit.
        record_loss: record the training loss of each round as `history.metrics["training_loss"]`: the loss of the batch
            before each local step, averaged over a client's steps and then over the cohort.
        start: a server state to begin from, such as `history.server_state` of an earlier run; or, where that has a
            field `params`, these alone (a pretrained model). Clients' states are made from it, and phases of the start,
            such as the method of moments, are left out. "init": what the algorithm's `init` makes.
        callback: called with a `srp.watch.Progress` after every new evaluation; returning True ends the run.
            `srp.watch` has callbacks that log.
        throw: raise `FloatingPointError` at the next evaluation if the run diverges; otherwise it goes on, and
            `history.diverged` has the round.
        name: of the run in tables and figures; default that of the method.

    Returns:
        A `History` of NumPy arrays.

    Raises:
        ValueError: an argument out of range, or a run that cannot fit the memory, with the remedy.
        FloatingPointError: the run diverged and `throw` is set.

    Example:
        >>> import jax, fedjax_srp as srp
        >>> data = srp.data.load("digits", num_clients=20, classes_per_client=4)
        >>> method = srp.methods.get("srpfl", dataset=data, hidden=(32,), initial=5, rounds_per_stage=2)
        >>> history = srp.simulate(method, data, num_rounds=4, eval_every=2, key=jax.random.key(0), progress=False)
        >>> history.cohort_size.tolist()
        [5, 5, 10, 10]
    """
    request = Request(
        algorithm,
        data,
        participation,
        clock,
        evaluations,
        chunk_size,
        devices,
        shard_data,
        name,
    )
    request = request._replace(record_loss=record_loss, start=start)
    limits = Limits(num_rounds, eval_every, time_limit, target, eval_first, eval_last)
    watch = Watch(progress, callback, throw)
    return _simulate(request, key, limits, watch, checkpoint_dir, keep_clients)[0]


@checked
def simulate_seeds(
    algorithm: FederatedAlgorithm | Method,
    data: FederatedSource,
    *,
    keys: Key,
    values: Mapping[str, ArrayLike] | None = None,
    participation: ParticipationPolicy | None = None,
    clock: Clock | None = None,
    num_rounds: int,
    eval_every: int = 10,
    eval_first: int = 0,
    eval_last: int = 0,
    chunk_size: int | None = None,
    time_limit: float | None = None,
    target: float | None = None,
    progress: bool = True,
    checkpoint_dir: str | os.PathLike | None = None,
    keep_clients: bool = False,
    evaluations: str | Sequence[str] | None = None,
    devices: Devices = None,
    shard_data: bool = False,
    record_loss: bool = False,
    start: Start = "init",
    callback: Callback | None = None,
    throw: bool = False,
    name: str | None = None,
) -> list[History]:
    """`simulate` for several keys, in one vmapped program, or in several batches if memory is short.

    Arguments are those of `simulate`, except for two. `keys` are (num_seeds,) keys, `jax.random.split(key, num_seeds)`.
    `values`, name -> (num_seeds,) floats, are hyper-parameters of the algorithm that differ between the runs, e.g.
    `{"learning_rate": [0.01, 0.1]}`, by short or full names.

    A batch ends when each of its seeds has reached `time_limit` or `target`. If there are several batches, each has its
    own folder in `checkpoint_dir` (a resumed run keeps its batches) and calls `callback`, which can end that batch.

    Returns:
        One `History` per key, in their order.

    Raises:
        ValueError: as `simulate`; `keys` is not an array of keys, `values` has not one number for each of them, or the
            memory is too small for the batches of the resumed run.
        FloatingPointError: a run diverged and `throw` is set.

    Example:
        >>> import jax, fedjax_srp as srp
        >>> data = srp.data.load("digits", num_clients=20, classes_per_client=4)
        >>> method = srp.methods.get("fedavg", dataset=data, hidden=(32,))
        >>> keys = jax.random.split(jax.random.key(0), 3)
        >>> len(srp.simulate_seeds(method, data, num_rounds=2, keys=keys, progress=False))
        3
    """
    if keys.ndim != 1 or not keys.size:
        raise ValueError(
            f"keys has shape {keys.shape}, expected (num_seeds,); jax.random.split(key, num_seeds) makes them"
        )
    for value_name, value in (values or {}).items():
        if (
            is_key(value)
            or np.shape(value) != keys.shape
            or np.asarray(value).dtype.kind not in "iuf"
        ):
            raise ValueError(
                f"values[{value_name!r}]={short(value)}: give a number for each of {keys.size} keys"
            )
    arrays = {
        name: np.asarray([float(v) for v in np.asarray(value)])
        for name, value in (values or {}).items()
    }
    request = Request(
        algorithm,
        data,
        participation,
        clock,
        evaluations,
        chunk_size,
        devices,
        shard_data,
        name,
    )
    request = request._replace(
        num_seeds=keys.size, values=arrays, record_loss=record_loss, start=start
    )
    at_once = seeds_at_once(request, keys.size)
    _check_values(algorithm, arrays)
    previous = (
        None
        if checkpoint_dir is None
        else seeds_together(Path(checkpoint_dir), keys.size)
    )
    if previous is not None and previous > at_once:
        raise ValueError(
            f"checkpoint_dir={str(checkpoint_dir)!r} holds a run of {previous} seeds at a time, and the memory that "
            f"is free now has room for {at_once}; free some, or give another folder"
        )
    if previous is None and at_once < keys.size and progress:
        tqdm.write(
            f"memory is short: {at_once} of {keys.size} seeds at a time", file=sys.stderr
        )
    at_once = at_once if previous is None else previous
    limits, runs = (
        Limits(num_rounds, eval_every, time_limit, target, eval_first, eval_last),
        [],
    )
    for first in range(0, keys.size, at_once):
        batch, folder = keys[first : first + at_once], checkpoint_dir
        if folder is not None and at_once < keys.size:
            folder = folder_of_seeds(Path(folder), first, first + batch.size)
        of_batch = {
            name: value[first : first + at_once] for name, value in arrays.items()
        }
        part = request._replace(num_seeds=batch.size, values=of_batch)
        watch = Watch(progress, callback, throw, range(first, first + batch.size))
        runs += _simulate(part, batch, limits, watch, folder, keep_clients)
    return runs


def _check_values(
    algorithm: FederatedAlgorithm | Method, values: Mapping[str, Any]
) -> None:
    """Run the checks of the parts on the values of every run, since programs only trace them."""
    algorithm = algorithm.algorithm if isinstance(algorithm, Method) else algorithm
    by_path = full_names(algorithm, values)
    for place, of_run in enumerate(zip(*by_path.values(), strict=True)):
        given = {name: float(value) for name, value in zip(by_path, of_run, strict=True)}
        try:
            rebuilt(with_values(algorithm, given))
        except ValueError as error:
            raise ValueError(f"values of run {place}: {error}") from error


def seeds_at_once(request: Request, num_seeds: int, sharers: int = 1) -> int:
    """Number of seeds in one program: all, or the largest of equal batches that fits the memory."""
    sizes = sorted(
        {-(-num_seeds // num_batches) for num_batches in range(1, num_seeds + 1)},
        reverse=True,
    )

    def fits(size: int) -> bool:
        first = {name: value[:size] for name, value in (request.values or {}).items()}
        return memory.room(
            prepare(request._replace(num_seeds=size, values=first)), sharers
        ).fits

    return sizes[min(bisect.bisect_left(sizes, True, key=fits), len(sizes) - 1)]


def _simulate(
    request: Request,
    key: Key,
    limits: Limits,
    watch: Watch,
    checkpoint_dir: str | os.PathLike | None,
    keep_clients: bool,
) -> list[History]:
    limits.check()
    run = prepare(request)
    limits.check_fit(run)
    processes = {device.process_index for device in run.layout.devices}
    if keep_clients and len(processes) > 1:
        raise ValueError(
            "keep_clients=True with devices of several processes: each holds the states of its own clients only; run "
            "in one process, or leave out keep_clients"
        )
    if checkpoint_dir is not None and len(processes) == 1 < jax.process_count():
        raise ValueError(
            f"checkpoint_dir with devices of one of {jax.process_count()} processes: a checkpoint waits for all of "
            "them; leave out checkpoint_dir, or devices"
        )
    silent = not (watch.progress and run.layout.shows_progress)
    folder = (
        contextlib.nullcontext()
        if checkpoint_dir is None
        else storage.held(Path(checkpoint_dir), "checkpoint_dir")
    )
    with folder:
        memory.check(run, say=not silent)
        with Bar(run, limits.num_rounds, silent) as bar:
            runs = _run(bar, run, key, limits, watch, checkpoint_dir, keep_clients)
    diverged = [history for history in runs if history.diverged is not None]
    if watch.throw and diverged:
        raise FloatingPointError(
            f"{diverged[0].name} diverged in round {diverged[0].diverged}: the server state is no longer finite; "
            "try a smaller learning rate"
        )
    return runs


def _run(
    bar: Bar,
    run: Prepared,
    root: Key,
    limits: Limits,
    watch: Watch,
    checkpoint_dir: str | os.PathLike | None,
    keep_clients: bool,
) -> list[History]:
    begin = time.perf_counter()
    compiled = run.program()
    compiled.announce, compiled.longest = (
        bar.compiling,
        min(limits.eval_every, limits.num_rounds),
    )
    root, data = run.placed(root)
    start = run.placed_start()
    hash_of_start = (
        None if checkpoint_dir is None else compiled.start_fingerprint(root, data, start)
    )
    state, client_time = compiled.start(root, data, trains=True, begin=start)
    check_times(run.clock, "client", client_time)
    records, completed = Records(), 0

    checkpoints = None
    if checkpoint_dir is not None:
        facts = fingerprint(run, root, limits._asdict()) | {
            "start": hash_of_start,
            "values": compiled.values(),
        }
        facts["program"] = compiled.segment_fingerprint(state, root, data)
        checkpoints = Checkpoints(checkpoint_dir, facts, limits.can_resume_after)
        if (snapshot := checkpoints.restore(state, limits.evaluations())) is not None:
            completed, state, records = snapshot
            check_limits(records, run, limits, completed, checkpoint_dir)
            bar.resume_after(completed)

    def results_so_far(timings: Mapping[str, float]) -> Results:
        kept = state.clients if keep_clients else None
        return Results(
            client_time, state.rounds_taken, state.server, kept, records, {**timings}
        )

    run_ids = [] if watch.callback is None else identify_runs(run, root)
    rounds_run, run_seconds, is_ended = 0, 0.0, False
    while (
        not is_ended
        and completed < limits.num_rounds
        and ended_after(records, run, limits) is None
    ):
        if watch.throw and records and not records["finite"].all():
            break
        length = limits.next_evaluation(completed) - completed
        if not rounds_run:
            memory.check_working(run, compiled.working_bytes(state, root, data))
        compile_before, segment_begin = compiled.compile_seconds, time.perf_counter()
        state, segment = compiled.segment(length, state, root, data)
        records.add(
            flat_records(
                segment, run.layout.num_clients, batched=run.num_seeds is not None
            )
        )
        run_seconds += (
            time.perf_counter()
            - segment_begin
            - (compiled.compile_seconds - compile_before)
        )
        check_cohorts(run.policy, segment.faults, completed + 1)
        check_times(run.clock, "round", records.last["compute_time"], completed + 1)
        completed, rounds_run = completed + length, rounds_run + length
        bar.update(length, records)
        try:  # before the checkpoint, so that a log lacks no round after a kill
            if watch.callback is not None:
                is_ended = ends(
                    watch.callback,
                    progress_after(
                        run,
                        limits,
                        root,
                        results_so_far({}),
                        length,
                        watch.seeds,
                        run_ids,
                    ),
                )
        finally:
            if checkpoints is not None:
                checkpoints.save(completed, state, records.last)
    if checkpoints is not None:
        checkpoints.finish()

    timings = {
        "host_seconds": time.perf_counter() - begin,
        "compile_seconds": compiled.compile_seconds,
        "seconds_per_round": run_seconds / rounds_run if rounds_run else float("nan"),
    }
    return histories(run, limits, root, results_so_far(timings))
