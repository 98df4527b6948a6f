"""What a child of `gpu.py` measures: cases of several kinds, each compared with the CPU before it is timed.

A `World` says what is computed, a `How` by what means. The CPU computes a world once (`reference`) and stores where its
rounds began and ended; a program that is to be timed runs the same rounds first. It is `wrong` where it is further
from the CPU than `gpu_compare.BOUNDS` allows, and not timed either where it is ten times as far. The calls that are
compared also warm the program up: the first call that is timed is the fourth.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import math
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import children
import jax
import numpy as np
from gpu_compare import BOUNDS, SCORES_APART, WrongError, apart, close, learnt, store, stored
from gpu_parts import WARM, How, World
from harness.loop import JitLoop
from harness.measure import (
    Rounds,
    arrays,
    in_turn,
    limits,
    machine,
    peak_memory,
    seconds,
    summary,
    synthetic,
)
from harness.profile import top_kernels

import fedjax_srp as srp


class SkippedError(Exception):
    """Something that the case needs is not there."""


def measure(case: children.Case, folder: Path) -> children.Result:
    """The result of a case, whatever happens in it."""
    begin = time.perf_counter()
    settings = dict(case.settings)
    if "world" in settings:
        world: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in settings["world"].items()}
        settings |= {"world": World(**world), "how": How(**settings["how"])}
    how = settings.get("how", How())
    try:
        srp.use_cuda_graphs(how.graphs)
        with jax.default_matmul_precision(how.precision):
            result = KINDS[case.kind](folder=folder, name=case.name, **settings)
        wrong = result.pop("wrong", [])
        found = {"status": children.WRONG if wrong else children.DONE, "result": result}
        found |= {"message": "; ".join(wrong)} if wrong else {}
    except WrongError as error:
        found = {"status": children.WRONG, "message": str(error), "result": error.found}
    except SkippedError as error:
        found = {"status": children.SKIPPED, "message": str(error)}
    except Exception as error:
        last = traceback.format_exc().strip().splitlines()[-8:]
        found = {"status": children.FAILED, "message": f"{type(error).__name__}: {error}"[:500], "output": last}
        if isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):
            found[children.ENDS] = True  # a device that failed once may fail all that follows in its process
    finally:
        srp.use_cuda_graphs(False)
    return found | {"wall_seconds": time.perf_counter() - begin}


@functools.lru_cache(maxsize=1)
def _data(clients: int, examples: int, tests: int, shape: tuple[int, ...]) -> Any:
    return synthetic(clients, examples, tests, shape)


class Made(NamedTuple):
    """What a world consists of."""

    algorithm: srp.FederatedAlgorithm
    data: Any
    policy: srp.ParticipationPolicy | None
    model: srp.models.SplitModel | None = None


@functools.lru_cache(maxsize=4)
def _made(world: World, convolution: str) -> Made:
    """The same parts for equal arguments, so that their programs are shared."""
    policy = None
    if world.initial is not None:
        policy = srp.participation.Doubling(world.initial, world.per_stage or 1)
    elif world.cohort is not None:
        policy = srp.participation.Fastest(world.cohort)
    if world.model == "linear":
        dim, rank = world.widths
        task = srp.data.linear_task(jax.random.key(0), world.clients, dim, rank, noise_std=1.0)
        return Made(
            srp.algorithms.LinearFedRep(task, step_size=0.1, samples_per_round=50, start="random"), task, policy
        )
    data = _data(world.clients, world.examples, world.tests, world.shape)
    if world.model == "mlp":
        model = srp.models.MLP(data.example_shape, 10, world.widths)
    else:
        convolve: Any = convolution
        model = srp.models.LeNet5(data.example_shape, 10, world.widths, convolution=convolve)
    algorithm = {"fedavg": srp.algorithms.FedAvg, "fedrep": srp.algorithms.FedRep}[world.algorithm]
    training = srp.Training(srp.SGD(0.01, momentum=world.momentum or None))
    return Made(algorithm(model, training), data, policy, model)


def _learnt(run: Rounds, state: Any) -> dict[str, np.ndarray]:
    """What a run has learnt by this state; its clients in order of id, on however many devices they lie."""
    return learnt(state.server, jax.tree.map(run.layout.by_id, state.clients), run.layout.num_clients)


def _rounds(world: World, how: How, devices: int | None = 1) -> Rounds:
    """Compiled rounds after their first call."""
    made = _made(world, how.convolution)
    return Rounds(
        made.algorithm,
        made.data,
        made.policy,
        world.length,
        ("fine_tune",) if world.judged else (),
        chunk_size=how.chunk,
        devices=devices,
        shard_data=devices is None and jax.device_count() > 1 and world.model != "linear",
        judged_at_once=how.judged_at_once,
    )


def _scores(run: Rounds, num_clients: int) -> np.ndarray:
    """(num_clients,) of the evaluation."""
    ((total, count),) = jax.device_get(run.judge()).values()
    return np.asarray(total, float)[:num_clients] / np.asarray(count, float)[:num_clients]


def reference(*, folder: Path, name: str, world: World, how: How) -> dict[str, Any]:
    """The CPU's rounds: where they begin and end, and the scores behind them, into a file."""
    run = _rounds(world, how, devices=None)
    start = run.program.start(run.root, run.data).state
    begin = _learnt(run, start)
    for _ in range(1, world.calls):
        run()
    end = _learnt(run, run.state)
    found = {f"begin {key}": value for key, value in begin.items()} | {f"end {key}": v for key, v in end.items()}
    if world.judged:
        found["scores "] = _scores(run, world.clients)
    store(folder, name, found)
    return {"rounds": int(run.state.round), "num_devices": run.layout.num_devices}


def _checked(folder: Path, state: dict[str, np.ndarray], world: World, how: How) -> dict[str, Any]:
    """How far a program is from the CPU; raises a `WrongError` where it is too far."""
    begin, end = (stored(folder, world.reference, prefix) for prefix in ("begin ", "end "))
    bound = BOUNDS["highest" if world.model == "linear" else how.precision]
    return close(*apart(state, end, begin), bound, "the CPU")


def _judged(folder: Path, run: Rounds, world: World, how: How) -> dict[str, Any]:
    """How far scores are from the CPU's, in the mean over the clients."""
    expected = stored(folder, world.reference, "scores ")[""]
    scores = _scores(run, world.clients)
    distance = float(np.mean(np.abs(scores - expected)))
    bound = max(SCORES_APART[how.precision], 2 / (world.clients * world.tests))
    found = {"scores_apart": distance, "scores_apart_at_most": bound, "mean_score": float(np.mean(scores))}
    if not distance <= bound:
        raise WrongError(f"scores are {distance:.2g} from the CPU's", found, distance / bound)
    return found


def _noted(found: dict[str, Any], check: Callable[[], dict[str, Any]]) -> None:
    """Adds what a check finds; what is not hopelessly wrong is noted as `wrong`, so that it is timed all the same."""
    try:
        found.update(check())
    except WrongError as error:
        if error.is_hopeless:
            raise
        found.update(error.found)
        found.setdefault("wrong", []).append(str(error))


def _warm(folder: Path, world: World, how: How) -> tuple[Rounds, dict[str, Any]]:
    """A program that was compared with the CPU and has been called `WARM` times."""
    run = _rounds(world, how)
    for _ in range(1, world.calls):
        run()
    found: dict[str, Any] = {}
    _noted(found, lambda: _checked(folder, _learnt(run, run.state), world, how))
    if world.judged:
        _noted(found, lambda: _judged(folder, run, world, how))
    for _ in range(world.calls, WARM):
        run()
    return run, found


def _about(run: Rounds) -> dict[str, Any]:
    """What a program is and takes."""
    return {
        "compile_seconds": run.program.compile_seconds,
        "compilation_cache": bool(jax.config.jax_compilation_cache_dir and jax.config.jax_enable_compilation_cache),
        **{field: value for field, value in run.layout._asdict().items() if field != "devices"},
        "working_bytes": run.working_bytes,
        "peak_bytes_of_the_child_so_far": peak_memory(),
    }


def least_bytes(world: World) -> float | None:
    """Bytes that a round's steps move at the least if no client's weights stay on the chip; None where nobody counted.

    A step reads the weights that it trains forwards and backwards and writes them; frozen ones are read.
    """
    model = _made(world, "xla").model
    if model is None or world.initial is not None:
        return None
    params = jax.eval_shape(model.init, jax.random.key(0))
    below, head = (
        sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(part))
        for part in (params.representation, params.head)
    )
    steps, participants = -(-world.examples // 10), world.cohort or world.clients
    if world.algorithm == "fedavg":
        return participants * steps * 3 * (below + head)
    return participants * (10 * steps * 3 * head + steps * (3 * below + head))


def rounds(
    *,
    folder: Path,
    name: str,
    world: World,
    how: How,
    repeats: int,
    keep: bool = False,
    equal_to: str | None = None,
) -> dict[str, Any]:
    """Seconds a round.

    `keep` stores the compared state, for a case that names this one in `equal_to` and is compared with it too.
    """
    run, found = _warm(folder, world, how)
    state = _learnt(run, run.state)
    if keep:
        store(folder, name, state)
    if equal_to is not None:
        other = stored(folder, equal_to, "")
        distance, where = apart(state, other, stored(folder, world.reference, "begin "))
        between: dict[str, Any] = {"wrong": found.pop("wrong", [])}
        _noted(between, lambda: close(distance, where, BOUNDS["highest"], repr(equal_to)))
        found |= {"equal_bits": max(distance) == 0, "apart_from_that": between["apart"], "wrong": between["wrong"]}
    times = [seconds(run) / world.length for _ in range(repeats)]
    return found | {"seconds": summary(times), "least_bytes": least_bytes(world), **_about(run)}


def evaluation(*, folder: Path, name: str, world: World, how: How, repeats: int) -> dict[str, Any]:
    """Seconds for an evaluation of all clients."""
    run, found = _warm(folder, world, how)
    for _ in range(1, WARM):  # it has been judged once
        run.judge()
    return found | {"seconds": summary([seconds(run.judge) for _ in range(repeats)]), **_about(run)}


def stages(*, folder: Path, name: str, world: World, how: How, repeats: int) -> dict[str, Any]:
    """Seconds a round by the size of the cohort, for one that grows, until the last size was timed so many times."""
    run, found = _warm(folder, world, how)
    by_cohort: dict[int, list[float]] = {}
    while len(by_cohort.get(world.clients, ())) < repeats:
        took = seconds(run)
        by_cohort.setdefault(int(run.rounds.cohort_size[-1]), []).append(took)
    return found | {"seconds_by_cohort": {str(n): summary(each) for n, each in by_cohort.items()}, **_about(run)}


def rival(*, folder: Path, name: str, world: World, how: How, repeats: int, against: str) -> dict[str, Any]:
    """Rounds, or the evaluation of a judged world, in turn with a loop over clients on the same device.

    The loop compiled with JAX is compared with the CPU as well; that in PyTorch draws other random numbers.
    """
    if against.startswith("torch") and importlib.util.find_spec("torch") is None:
        raise SkippedError("PyTorch is not installed")
    run, found = _warm(folder, world, how)
    made = _made(world, how.convolution)
    if against == "jitted loop":
        loop = JitLoop(made.algorithm, made.data)
        while loop.round < world.calls:
            loop()
        states = [loop.states[client] for client in range(world.clients)]
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *map(jax.device_get, states))
        checked: dict[str, Any] = {"wrong": found.pop("wrong", [])}
        _noted(checked, lambda: _checked(folder, learnt(loop.server, stacked, world.clients), world, how))
        found |= {"rival_apart": checked["apart"], "wrong": checked["wrong"]}
        theirs: Callable[[], Any] = loop
    else:
        from harness import torch_loop

        found["rival_precision"] = torch_loop.multiply_as(how.precision)
        net = torch_loop.mlp(math.prod(world.shape), world.widths)
        torch_rounds = torch_loop.TorchLoop(net, arrays(made.data), cache=against == "torch, features cached")
        named = f"{world.algorithm}_round" if not world.judged else "fine_tuned_evaluation"
        theirs = getattr(torch_rounds, named)
        found["rival_device"] = str(torch_rounds.device)
        for _ in range(WARM - 1):
            theirs()
    ours = run.judge if world.judged else run
    for _ in range(WARM - 1):
        ours()
    theirs()
    both = {"ours": functools.partial(seconds, ours), "rival": functools.partial(seconds, theirs)}
    times = in_turn(both, repeats)
    ratios = [other / own for own, other in zip(times["ours"], times["rival"], strict=True)]
    return (
        found
        | {"seconds": summary(times["ours"]), "rival_seconds": summary(times["rival"])}
        | {"rival_over_ours": summary(ratios), **_about(run)}
    )


def profile(*, folder: Path, name: str, world: World, how: How) -> dict[str, Any]:
    """The kernels of a call that take longest."""
    run, found = _warm(folder, world, how)
    with tempfile.TemporaryDirectory() as traced:
        begin = time.perf_counter()
        with jax.profiler.trace(traced):
            run()
        took = time.perf_counter() - begin
        return found | {"seconds_traced": took, **top_kernels(Path(traced)), **_about(run)}


def bandwidth(*, folder: Path, name: str, size: int, at_least: float) -> dict[str, Any]:
    """What one device reaches, all at work, in memory (B/s) and in matrix products (FLOP/s) of both precisions."""
    found = limits(size, at_least)
    with jax.default_matmul_precision("highest"):
        found["matrix_flops_highest"] = limits(size, at_least)["matrix_flops"]
    return {what: rate / jax.device_count() for what, rate in found.items()}


def about(*, folder: Path, name: str, needs_gpu: bool) -> dict[str, Any]:
    """What is measured on."""
    if needs_gpu and jax.default_backend() != "gpu":
        raise RuntimeError(f"JAX found no GPU, only {jax.devices()[0].platform}; --quick runs on any device")
    return machine()


def figure(*, folder: Path, name: str, number: int, scale: str, data_dir: str | None, out: str) -> dict[str, Any]:
    """A figure of SRPFL with all its runs; what is finished is not run again."""
    sys.path.append(str(Path(__file__).parents[1] / "experiments" / "srpfl"))
    import paper  # pyright: ignore[reportMissingImports]

    where = [] if data_dir is None else ["--data-dir", data_dir]
    if data_dir is not None and data_dir.endswith(".npz"):
        where, setting = [], paper.SETTINGS[scale]["mnist"]
        federation = setting.federation | {"name": str(Path(data_dir).resolve())}
        paper.SETTINGS[scale]["mnist"] = setting._replace(federation=federation)
    results = Path(out) / "results"
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            paper.main(number, ["--scale", scale, "--out", out, "--results", str(results), *where])
    except SystemExit:
        raise RuntimeError(said.getvalue().strip().splitlines()[-1]) from None
    return {"files": sorted(path.name for path in results.glob(f"figure{number}*"))}


KINDS: dict[str, Callable[..., dict[str, Any]]] = {
    function.__name__: function
    for function in (about, bandwidth, reference, rounds, evaluation, stages, rival, profile, figure)
}

if __name__ == "__main__":
    srp.use_all_cores()
    children.serve(measure)
