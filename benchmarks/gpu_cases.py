"""Measurements in a child of `gpu.py`: cases of several kinds, each compared with the CPU before it is timed.

A `Workload` is the computation, `Options` are the settings that must not change its results. The CPU computes
a workload once (`reference`) and stores the states before and after its rounds; a program to be timed first runs the
same rounds. It is `wrong` if its difference from the CPU exceeds `gpu_compare.BOUNDS`, and not timed if it is ten times
as large. The calls that are compared also warm the program up: the fourth call is the first that is timed.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import math
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import children
import jax
import numpy as np
from first_layer import always, deciding, never
from gpu_compare import (
    BOUNDS,
    SCORES_APART,
    WrongError,
    check_difference,
    difference,
    store,
    stored,
    trained_arrays,
)
from gpu_methods import methods
from gpu_parts import WARM, Options, Workload
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
    """Something that the case needs is missing."""


def measure(case: children.Case, folder: Path) -> children.Result:
    """Measure a case; an error is a result too."""
    begin = time.perf_counter()
    settings = dict(case.settings)
    if "world" in settings:
        world: dict[str, Any] = {}
        for name, value in settings["world"].items():
            if isinstance(value, list):
                value = tuple(value)
            world[name] = value
        settings |= {"world": Workload(**world), "how": Options(**settings["how"])}
    how = settings.get("how", Options())
    try:
        with jax.default_matmul_precision(how.precision):
            result = KINDS[case.kind](folder=folder, name=case.name, **settings)
        wrong = result.pop("wrong", [])
        found = {"status": children.DONE, "result": result}
        if wrong:
            found |= {"status": children.WRONG, "message": "; ".join(wrong)}
    except WrongError as error:
        found = {"status": children.WRONG, "message": str(error), "result": error.found}
    except SkippedError as error:
        found = {"status": children.SKIPPED, "message": str(error)}
    except Exception as error:
        last = (
            traceback.format_exc()
            .replace(f"{Path(__file__).parents[1]}/", "")
            .strip()
            .splitlines()[-8:]
        )
        found = {
            "status": children.FAILED,
            "message": f"{type(error).__name__}: {error}"[:500],
            "output": last,
        }
        if isinstance(
            error, jax.errors.JaxRuntimeError
        ) and "RESOURCE_EXHAUSTED" not in str(error):
            found[children.ENDS] = (
                True  # a device that failed once may fail again in its process
            )
    return found | {"wall_seconds": time.perf_counter() - begin}


@functools.lru_cache(maxsize=1)
def _data(clients: int, examples: int, tests: int, shape: tuple[int, ...]) -> Any:
    return synthetic(clients, examples, tests, shape)


class Parts(NamedTuple):
    """Parts of a workload."""

    algorithm: srp.FederatedAlgorithm
    data: Any
    policy: srp.ParticipationPolicy | None
    model: srp.models.SplitModel | None = None


@functools.lru_cache(maxsize=4)
def _parts(world: Workload, convolution: str) -> Parts:
    """Parts of a workload; the same objects for equal arguments, so that programs are shared."""
    policy = None
    if world.initial is not None:
        policy = srp.participation.Doubling(world.initial, world.per_stage or 1)
    elif world.cohort is not None:
        policy = srp.participation.Fastest(world.cohort)
    if world.model == "linear":
        dim, rank = world.widths
        task = srp.data.linear_task(
            jax.random.key(0), world.clients, dim, rank, noise_std=1.0
        )
        return Parts(
            srp.algorithms.LinearFedRep(
                task, step_size=0.1, samples_per_round=50, start="random"
            ),
            task,
            policy,
        )
    data = _data(world.clients, world.examples, world.tests, world.shape)
    if world.model == "mlp":
        model = srp.models.MLP(data.example_shape, 10, world.widths)
    else:
        convolve: Any = convolution
        model = srp.models.LeNet5(
            data.example_shape, 10, world.widths, convolution=convolve
        )
    algorithm = {"fedavg": srp.algorithms.FedAvg, "fedrep": srp.algorithms.FedRep}[
        world.algorithm
    ]
    training = srp.Training(srp.SGD(0.01, momentum=world.momentum or None))
    return Parts(algorithm(model, training), data, policy, model)


def _state_arrays(run: Rounds, state: Any) -> dict[str, np.ndarray]:
    """Arrays of a state, with clients in order of id on any number of devices."""
    return trained_arrays(
        state.server,
        jax.tree.map(run.layout.by_id, state.clients),
        run.layout.num_clients,
    )


def _rounds(world: Workload, how: Options, devices: int | None = 1) -> Rounds:
    """Compiled rounds after their first call."""
    made = _parts(world, how.convolution)
    decision: Any = contextlib.nullcontext()
    if how.span is not None:
        decision = deciding(always if how.span else never)
    with decision:
        return Rounds(
            made.algorithm,
            made.data,
            made.policy,
            world.length,
            evaluations=("fine_tune",) if world.judged else (),
            chunk_size=how.chunk,
            devices=devices,
            shard_data=devices is None
            and jax.device_count() > 1
            and world.model != "linear",
            judged_at_once=how.judged_at_once,
        )


def _scores(run: Rounds, num_clients: int) -> np.ndarray:
    """Mean scores (num_clients,) of the evaluation."""
    ((total, count),) = jax.device_get(run.evaluate()).values()
    return np.asarray(total, float)[:num_clients] / np.asarray(count, float)[:num_clients]


def reference(
    *, folder: Path, name: str, world: Workload, how: Options
) -> dict[str, Any]:
    """Run rounds on the CPU, and write the states before and after them and the scores to a file."""
    run = _rounds(world, how, devices=None)
    start = run.program.start(run.root, run.data).state
    begin = _state_arrays(run, start)
    for _ in range(1, world.calls):
        run()
    end = _state_arrays(run, run.state)
    found = {f"begin {key}": value for key, value in begin.items()} | {
        f"end {key}": v for key, v in end.items()
    }
    if world.judged:
        found["scores "] = _scores(run, world.clients)
    store(folder, name, found)
    return {"rounds": int(run.state.round), "num_devices": run.layout.num_devices}


def _check_state(
    folder: Path, state: dict[str, np.ndarray], world: Workload, how: Options
) -> dict[str, Any]:
    """Difference of a program from the CPU; raises a `WrongError` if it is too large."""
    begin, end = (
        stored(folder, world.reference, prefix) for prefix in ("begin ", "end ")
    )
    precision = how.precision
    if world.model == "linear":
        precision = "highest"
    bound = BOUNDS[precision]
    return check_difference(*difference(state, end, begin), bound, "the CPU")


def _check_scores(
    folder: Path, run: Rounds, world: Workload, how: Options
) -> dict[str, Any]:
    """Difference of scores from the CPU's, in the mean over the clients."""
    expected = stored(folder, world.reference, "scores ")[""]
    scores = _scores(run, world.clients)
    distance = float(np.mean(np.abs(scores - expected)))
    bound = max(SCORES_APART[how.precision], 2 / (world.clients * world.tests))
    found = {
        "scores_apart": distance,
        "scores_apart_at_most": bound,
        "mean_score": float(np.mean(scores)),
    }
    if not distance <= bound:
        raise WrongError(
            f"scores are {distance:.2g} from the CPU's", found, distance / bound
        )
    return found


def _add_check(
    found: dict[str, Any], check: Callable[[], dict[str, Any]], **renamed: str
) -> None:
    """Add the results of a check, or some of them under other names.

    An error that is not hopeless is added as `wrong`, and the case is still timed.
    """
    try:
        facts = check()
    except WrongError as error:
        if error.is_hopeless:
            raise
        facts = error.found
        found.setdefault("wrong", []).append(str(error))
    found.update({name: facts[before] for name, before in renamed.items()} or facts)


def _warm(folder: Path, world: Workload, how: Options) -> tuple[Rounds, dict[str, Any]]:
    """A program after comparison with the CPU and `WARM` calls."""
    run = _rounds(world, how)
    for _ in range(1, world.calls):
        run()
    found: dict[str, Any] = {}
    _add_check(
        found, lambda: _check_state(folder, _state_arrays(run, run.state), world, how)
    )
    if world.judged:
        _add_check(found, lambda: _check_scores(folder, run, world, how))
    for _ in range(world.calls, WARM):
        run()
    return run, found


def _program_facts(run: Rounds) -> dict[str, Any]:
    """Compile time, layout and memory of a program."""
    return {
        "compile_seconds": run.program.compile_seconds,
        "compilation_cache": bool(
            jax.config.jax_compilation_cache_dir
            and jax.config.jax_enable_compilation_cache
        ),
        **{
            field: value
            for field, value in run.layout._asdict().items()
            if field != "devices"
        },
        "working_bytes": run.working_bytes,
        "peak_bytes_of_the_child_so_far": peak_memory(),
    }


def least_bytes(world: Workload) -> float | None:
    """Least bytes moved by a round's steps if no client's weights stay on the chip; None where this is not known.

    A step reads the weights that it trains forwards and backwards and writes them; frozen ones are read.
    """
    model = _parts(world, "xla").model
    if model is None or world.initial is not None:
        return None
    params = jax.eval_shape(model.init, jax.random.key(0))
    below, head = (
        sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(part))
        for part in (params.representation, params.head)
    )
    steps = -(-world.examples // 10)
    participants = world.cohort or world.clients
    if world.algorithm == "fedavg":
        return participants * steps * 3 * (below + head)
    return participants * (10 * steps * 3 * head + steps * (3 * below + head))


def rounds(
    *, folder: Path, name: str, world: Workload, how: Options, repeats: int
) -> dict[str, Any]:
    """Seconds a round."""
    run, found = _warm(folder, world, how)
    times = [seconds(run) / world.length for _ in range(repeats)]
    return found | {
        "seconds": summary(times),
        "least_bytes": least_bytes(world),
        **_program_facts(run),
    }


def evaluation(
    *, folder: Path, name: str, world: Workload, how: Options, repeats: int
) -> dict[str, Any]:
    """Seconds for an evaluation of all clients."""
    run, found = _warm(folder, world, how)
    for _ in range(1, WARM):  # after one evaluation in `_warm`
        run.evaluate()
    return found | {
        "seconds": summary([seconds(run.evaluate) for _ in range(repeats)]),
        **_program_facts(run),
    }


def stages(
    *, folder: Path, name: str, world: Workload, how: Options, repeats: int
) -> dict[str, Any]:
    """Seconds a round by the size of a growing cohort, until the last size was timed `repeats` times."""
    run, found = _warm(folder, world, how)
    by_cohort: dict[int, list[float]] = {}
    while len(by_cohort.get(world.clients, ())) < repeats:
        took = seconds(run)
        by_cohort.setdefault(int(run.rounds.cohort_size[-1]), []).append(took)
    by_name = {str(n): summary(each) for n, each in by_cohort.items()}
    return found | {"seconds_by_cohort": by_name, **_program_facts(run)}


def rival(
    *, folder: Path, name: str, world: Workload, how: Options, repeats: int, against: str
) -> dict[str, Any]:
    """Rounds, or the evaluation of a workload that has one, in turn with a loop over clients on the same device.

    The loop compiled with JAX is compared with the CPU as well; that in PyTorch draws other random numbers.
    """
    if against.startswith("torch") and importlib.util.find_spec("torch") is None:
        raise SkippedError("PyTorch is not installed")
    run, found = _warm(folder, world, how)
    made = _parts(world, how.convolution)
    if against == "jitted loop":
        loop = JitLoop(made.algorithm, made.data)
        while loop.round < world.calls:
            loop()
        states = [loop.states[client] for client in range(world.clients)]
        stacked = jax.tree.map(
            lambda *leaves: np.stack(leaves), *map(jax.device_get, states)
        )
        trained = trained_arrays(loop.server, stacked, world.clients)
        _add_check(
            found, lambda: _check_state(folder, trained, world, how), rival_apart="apart"
        )
        theirs: Callable[[], Any] = loop
    else:
        from harness import torch_loop

        found["rival_precision"] = torch_loop.multiply_as(how.precision)
        net = torch_loop.mlp(math.prod(world.shape), world.widths)
        torch_rounds = torch_loop.TorchLoop(
            net, arrays(made.data), cache=against == "torch, features cached"
        )
        method = f"{world.algorithm}_round"
        if world.judged:
            method = "fine_tuned_evaluation"
        theirs = getattr(torch_rounds, method)
        found["rival_device"] = str(torch_rounds.device)
        for _ in range(WARM - 1):
            theirs()
    ours = run.evaluate if world.judged else run
    for _ in range(WARM - 1):
        ours()
    theirs()
    both = {
        "ours": functools.partial(seconds, ours),
        "rival": functools.partial(seconds, theirs),
    }
    times = in_turn(both, repeats)
    ratios = [
        other / own for own, other in zip(times["ours"], times["rival"], strict=True)
    ]
    return (
        found
        | {"seconds": summary(times["ours"]), "rival_seconds": summary(times["rival"])}
        | {"rival_over_ours": summary(ratios), **_program_facts(run)}
    )


def profile(*, folder: Path, name: str, world: Workload, how: Options) -> dict[str, Any]:
    """The longest kernels of a call."""
    run, found = _warm(folder, world, how)
    with tempfile.TemporaryDirectory() as traced:
        begin = time.perf_counter()
        with jax.profiler.trace(traced):
            run()
        took = time.perf_counter() - begin
        return found | {
            "seconds_traced": took,
            **top_kernels(Path(traced)),
            **_program_facts(run),
        }


def bandwidth(*, folder: Path, name: str, size: int, at_least: float) -> dict[str, Any]:
    """Rates of one device while all work: memory (B/s) and matrix products (FLOP/s) in both precisions."""
    found = limits(size, at_least)
    with jax.default_matmul_precision("highest"):
        found["matrix_flops_highest"] = limits(size, at_least)["matrix_flops"]
    return {what: rate / jax.device_count() for what, rate in found.items()}


def about(*, folder: Path, name: str, needs_gpu: bool) -> dict[str, Any]:
    """Facts about the machine."""
    if needs_gpu and jax.default_backend() != "gpu":
        raise RuntimeError(
            f"JAX found no GPU, only {jax.devices()[0].platform}; --quick runs on any device"
        )
    return machine()


def figure(
    *, folder: Path, name: str, number: int, scale: str, data_dir: str | None, out: str
) -> dict[str, Any]:
    """A figure of SRPFL with all its runs; finished runs are not repeated."""
    from experiments.srpfl import paper

    where = [] if data_dir is None else ["--data-dir", data_dir]
    columns = None
    if data_dir is not None and data_dir.endswith(".npz"):
        where = []
        columns = {"mnist": {"dataset": str(Path(data_dir).resolve())}}
    results = Path(out) / "results"
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            paper.main(
                number,
                ["--scale", scale, "--out", out, "--results", str(results), *where],
                variants=columns,
            )
    except SystemExit:
        raise RuntimeError(said.getvalue().strip().splitlines()[-1]) from None
    return {"files": sorted(path.name for path in results.glob(f"figure{number}*"))}


KINDS: dict[str, Callable[..., dict[str, Any]]] = {
    function.__name__: function
    for function in (
        about,
        bandwidth,
        reference,
        rounds,
        evaluation,
        stages,
        rival,
        profile,
        methods,
        figure,
    )
}

if __name__ == "__main__":
    srp.use_all_cores()
    children.serve(measure)
