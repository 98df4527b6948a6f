"""`simulate` and `simulate_seeds`: the part of a simulation that runs on the host."""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
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
from fedjax_srp.driver.given import Start, root_key
from fedjax_srp.driver.outcome import (
    Results,
    check_not_ended,
    ended_after,
    flat_records,
    histories,
)
from fedjax_srp.driver.prepare import Prepared, Request, prepare
from fedjax_srp.driver.progress import Bar, progress_after
from fedjax_srp.driver.record import fingerprint, identify_runs
from fedjax_srp.driver.round_log import Records
from fedjax_srp.driver.settings import Settings, takes_settings
from fedjax_srp.driver.stored import StoredProgram
from fedjax_srp.parts.checks import checked, is_key, short
from fedjax_srp.parts.options import full_names
from fedjax_srp.parts.part import rebuilt, with_values
from fedjax_srp.results.bars import tqdm
from fedjax_srp.results.callbacks import ends
from fedjax_srp.results.history import History
from fedjax_srp.results.locks import held


@checked
@takes_settings()
def simulate(
    algorithm: FederatedAlgorithm | Method,
    data: FederatedSource,
    *,
    participation: ParticipationPolicy | str | None = None,
    clock: Clock | str | None = None,
    num_rounds: int,
    key: Key | None = None,
    seed: int | None = None,
    start: Start = "init",
    **settings: Any,
) -> History:
    """Simulate federated learning on simulated wall-clock time.

    The rounds up to an evaluation and the evaluation run as one compiled program. A growing cohort, another key and
    other numbers of rounds do not recompile it.

    Args:
        algorithm: the algorithm (`srp.algorithms`), or a `Method` (`srp.methods.get`) with its participation.
        data: `FederatedData`, a `LinearTask`, or any `FederatedSource`.
        participation: policy that selects the cohort (`srp.participation`), as an object or as a text such as "oort" or
            "Fastest(k=N // 2)"; default all clients.
        clock: time of a unit of local work of each client (`srp.clocks`), in time units, as an object or as a text such
            as "random", "Fixed(Exponential(1.0))" or "trace:FILE"; default Exp(1), drawn once per client.
        num_rounds: maximal number of communication rounds.
        key: root of all randomness, `jax.random.key(seed)`. Data order, straggler times, participation, training and
            evaluation have separate streams, so every method has the same stragglers under the same key.
        seed: instead of a key: that of `jax.random.key(seed)`.
        start: a server state to begin from, such as `history.server_state` of an earlier run; or, where that has a
            field `params`, these alone (a pretrained model). Clients' states are made from it, and phases of the start,
            such as the method of moments, are left out. "init": what the algorithm's `init` makes.
        **settings: fields of `Settings`, by keyword.

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
    chosen = Settings(num_rounds=num_rounds, **settings)
    request = Request(algorithm, data, participation, clock, chosen, start)
    return _simulate(request, root_key(key, seed))[0]


@checked
@takes_settings()
def simulate_seeds(
    algorithm: FederatedAlgorithm | Method,
    data: FederatedSource,
    *,
    keys: Key | None = None,
    seeds: Sequence[int] | None = None,
    values: Mapping[str, ArrayLike] | None = None,
    participation: ParticipationPolicy | str | None = None,
    clock: Clock | str | None = None,
    num_rounds: int,
    start: Start = "init",
    **settings: Any,
) -> list[History]:
    """`simulate` for several keys, in one vmapped program, or in several batches if memory is short.

    A batch ends when each of its seeds has reached `time_limit` or `target`. If there are several batches, each has its
    own folder in `checkpoint_dir` (a resumed run keeps its batches) and calls `callback`, which can end that batch.

    Args:
        algorithm: the algorithm, or a `Method` with its participation.
        data: as for `simulate`.
        keys: (num_seeds,) keys, `jax.random.split(key, num_seeds)`.
        seeds: instead of keys: seed s is `jax.random.key(s)`.
        values: name -> (num_seeds,) floats: hyper-parameters of the algorithm that differ between the runs, e.g.
            `{"learning_rate": [0.01, 0.1]}`, by short or full names.
        participation: policy that selects the cohort; default all clients.
        clock: time of a unit of local work of each client; default Exp(1), drawn once per client.
        num_rounds: maximal number of communication rounds.
        start: a server state or parameters to begin from, as for `simulate`.
        **settings: fields of `Settings`, by keyword.

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
    keys = _keys(keys, seeds)
    if keys.ndim != 1 or not keys.size:
        raise ValueError(
            f"keys has shape {keys.shape}, expected (num_seeds,); jax.random.split(key, num_seeds) makes them"
        )
    num_seeds = keys.size
    floats = {
        name: _floats(name, value, num_seeds) for name, value in (values or {}).items()
    }
    chosen = Settings(num_rounds=num_rounds, **settings)
    request = Request(
        algorithm, data, participation, clock, chosen, start, num_seeds, floats
    )
    at_once = seeds_at_once(request, num_seeds)
    _check_values(algorithm, floats)
    previous = None
    if chosen.checkpoint_dir is not None:
        previous = seeds_together(Path(chosen.checkpoint_dir), num_seeds)
    if previous is not None:
        if previous > at_once:
            raise ValueError(
                f"checkpoint_dir={str(chosen.checkpoint_dir)!r} holds a run of {previous} seeds at a time, and the "
                f"memory that is free now has room for {at_once}; free some, or give another folder"
            )
        at_once = previous
    elif at_once < num_seeds and chosen.progress:
        line = f"memory is short: {at_once} of {num_seeds} seeds at a time"
        tqdm.write(line, file=sys.stderr)
    runs = []
    for first in range(0, num_seeds, at_once):
        seeds = range(first, min(first + at_once, num_seeds))
        batch = _of_seeds(request, seeds)
        runs += _simulate(batch, keys[seeds.start : seeds.stop], seeds)
    return runs


def _keys(keys: Key | None, seeds: Sequence[int] | None) -> Key:
    """Return the given keys, or those of the seeds."""
    if keys is not None and seeds is None:
        return keys
    if keys is not None or seeds is None:
        raise ValueError(f"give keys or seeds, not both or none: seeds={short(seeds)}")
    if not len(seeds):
        raise ValueError("seeds=[] has no seed; give e.g. seeds=[0, 1, 2]")
    return jnp.stack([root_key(None, seed) for seed in seeds])


def _floats(name: str, value: Any, num_seeds: int) -> np.ndarray:
    """Return the values of a hyper-parameter, one for each seed."""
    is_numeric = not is_key(value) and np.asarray(value).dtype.kind in "iuf"
    if not is_numeric or np.shape(value) != (num_seeds,):
        raise ValueError(
            f"values[{name!r}]={short(value)}: give a number for each of {num_seeds} keys"
        )
    return np.asarray([float(number) for number in np.asarray(value)])


def _of_seeds(request: Request, seeds: range) -> Request:
    """Return the request for some of its seeds, with a folder of their own if they are not all."""
    values = {
        name: array[seeds.start : seeds.stop] for name, array in request.values.items()
    }
    settings = request.settings
    if settings.checkpoint_dir is not None and len(seeds) != request.num_seeds:
        folder = folder_of_seeds(Path(settings.checkpoint_dir), seeds.start, seeds.stop)
        settings = dataclasses.replace(settings, checkpoint_dir=folder)
    return request._replace(num_seeds=len(seeds), values=values, settings=settings)


def _check_values(
    algorithm: FederatedAlgorithm | Method, values: Mapping[str, np.ndarray]
) -> None:
    """Run the checks of the parts on the values of every run, since programs only trace them."""
    if isinstance(algorithm, Method):
        algorithm = algorithm.algorithm
    by_path = full_names(algorithm, values)
    for place, numbers in enumerate(zip(*by_path.values(), strict=True)):
        of_run = dict(zip(by_path, map(float, numbers), strict=True))
        try:
            rebuilt(with_values(algorithm, of_run))
        except ValueError as error:
            raise ValueError(f"values of run {place}: {error}") from error


def seeds_at_once(request: Request, num_seeds: int, sharers: int = 1) -> int:
    """Number of seeds in one program: all, or the largest of equal batches that fits the memory."""
    batches = {-(-num_seeds // number) for number in range(1, num_seeds + 1)}
    sizes = sorted(batches, reverse=True)

    def fits(size: int) -> bool:
        values = {name: array[:size] for name, array in request.values.items()}
        batch = request._replace(num_seeds=size, values=values)
        return memory.room(prepare(batch), sharers).fits

    largest = bisect.bisect_left(sizes, True, key=fits)
    return sizes[min(largest, len(sizes) - 1)]


def _simulate(request: Request, key: Key, seeds: range | None = None) -> list[History]:
    """Run a request, and return the history of each seed; `seeds` are their places among all of a batch."""
    run = prepare(request)
    has_old_models = (
        run.algorithm.asynchronous and run.algorithm.jobs_by in run.policy.jobs_by
    )
    if run.policy.asynchronous and not has_old_models:
        warnings.warn(
            f"policy {run.policy.name!r} with algorithm {run.algorithm.name!r}: a client does not train on the model "
            "with which its job began, but on that of the round in which it delivers (updates are never stale, which "
            "flatters an asynchronous server) or of another job; use fedbuff or fedasync with buffered, fedat with "
            "asynchronous_tiers, asyncsgd with queued, fedcompass with compass, or make the method asynchronous "
            "(docs/new_algorithm.md)",
            stacklevel=4,
        )
    settings = run.settings
    processes = {device.process_index for device in run.layout.devices}
    if settings.keep_clients and len(processes) > 1:
        raise ValueError(
            "keep_clients=True with devices of several processes: each holds the states of its own clients only; run "
            "in one process, or leave out keep_clients"
        )
    folder = contextlib.nullcontext()
    if settings.checkpoint_dir is not None:
        if len(processes) == 1 < jax.process_count():
            raise ValueError(
                f"checkpoint_dir with devices of one of {jax.process_count()} processes: a checkpoint waits for all "
                "of them; leave out checkpoint_dir, or devices"
            )
        folder = held(Path(settings.checkpoint_dir), "checkpoint_dir")
    silent = not (settings.progress and run.layout.shows_progress)
    with folder:
        memory.check(run, say=not silent)
        with Bar(run, silent) as bar:
            runs = _run(bar, run, key, seeds)
    if settings.throw:
        for history in runs:
            if history.diverged is not None:
                raise FloatingPointError(
                    f"{history.name} diverged in round {history.diverged}: the server state is no longer finite; "
                    "try a smaller learning rate"
                )
    return runs


def _run(bar: Bar, run: Prepared, root: Key, seeds: range | None) -> list[History]:
    """Run segment after segment until the last round or a limit."""
    begin = time.perf_counter()
    settings = run.settings
    compiled = run.program()
    if settings.states_dir is not None:
        compiled = StoredProgram(run)
    compiled.announce = bar.compiling
    compiled.longest = min(settings.eval_every, settings.num_rounds)
    root, data = run.placed(root)
    start = run.placed_start()
    hash_of_start = None
    if settings.checkpoint_dir is not None:
        hash_of_start = compiled.start_fingerprint(root, data, start)
    state, client_time = compiled.start(root, data, trains=True, begin=start)
    check_times(run.clock, "client", client_time)
    start_time = np.array(state.now, np.float64).reshape(-1)
    records = Records()
    records.start_time = start_time
    completed = 0

    checkpoints = None
    if settings.checkpoint_dir is not None:
        facts = fingerprint(run, root)
        facts["values"] = compiled.values()
        facts["program"] = {
            "start": hash_of_start,
            "rounds": compiled.segment_fingerprint(state, root, data),
        }
        checkpoints = Checkpoints(
            settings.checkpoint_dir, facts, settings.can_resume_after
        )
        snapshot = checkpoints.restore(state, settings.evaluated_rounds())
        if snapshot is not None:
            completed, state, records = snapshot
            records.start_time = start_time
            check_not_ended(records, run, completed)
            bar.resume_after(completed)

    def results_so_far(timings: Mapping[str, float]) -> Results:
        clients = state.clients if settings.keep_clients else None
        return Results(
            client_time, state.rounds_taken, state.server, clients, records, {**timings}
        )

    run_ids = []
    if settings.callback is not None:
        run_ids = identify_runs(run, root)
    rounds_run = 0
    run_seconds = 0.0
    is_ended = False
    while (
        not is_ended
        and completed < settings.num_rounds
        and ended_after(records, run) is None
    ):
        if settings.throw and records and not records["finite"].all():
            break
        length = settings.next_evaluation(completed) - completed
        if not rounds_run and settings.states_dir is None:
            memory.check_working(run, compiled.working_bytes(state, root, data))
        compiled_before = compiled.compile_seconds
        segment_begin = time.perf_counter()
        state, segment = compiled.segment(length, state, root, data)
        records.add(flat_records(segment, run))
        run_seconds += time.perf_counter() - segment_begin
        run_seconds -= compiled.compile_seconds - compiled_before
        check_cohorts(run.policy, segment.faults, completed + 1)
        check_times(run.clock, "round", records.last["compute_time"], completed + 1)
        completed += length
        rounds_run += length
        bar.update(length, records)
        try:  # before the checkpoint, so that a log lacks no round after a kill
            if settings.callback is not None:
                progress = progress_after(
                    run, root, results_so_far({}), length, seeds, run_ids
                )
                is_ended = ends(settings.callback, progress)
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
    return histories(run, root, results_so_far(timings))
