"""Rounds and evaluations, and their scaling, timed in turn with rivals: `make bench`.

python benchmarks/rounds.py [--quick] [--skip-torch] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import itertools
import math
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
from harness import files
from harness.loop import JitLoop
from harness.measure import (
    Rounds,
    arrays,
    in_turn,
    limits,
    machine,
    paired,
    peak_memory,
    seconds,
    synthetic,
)

import fedjax_srp as srp
from fedjax_srp import algorithms, methods, models, participation
from fedjax_srp.base import FederatedAlgorithm
from fedjax_srp.data import FederatedData, linear_task

REPEATED_SEEDS = 4
CLIENTS_COMPILED = 100  # enough for the defaults of every policy


class Sizes(NamedTuple):
    """Sizes of the measurements."""

    clients: int
    examples: int
    hidden: tuple[int, ...]
    convolution: tuple[int, int, tuple[int, int]]  # clients, examples, channels
    linear: tuple[int, int]  # clients, dimension
    cohorts: tuple[int, ...]  # of as many clients as the largest
    chunks: tuple[int, ...]
    methods: tuple[str, ...]  # whose programs are compiled
    federations: tuple[int, ...]  # a tenth of the first takes part
    matrix: int
    repeats: int


FULL = Sizes(
    clients=100,
    examples=150,
    hidden=(512, 256, 64),
    convolution=(20, 100, (64, 64)),
    linear=(1000, 100),
    cohorts=(10, 20, 100, 320, 1000),
    chunks=(1, 2, 4, 8, 16),
    methods=tuple(methods.names()),
    federations=(100, 1000, 10_000),
    matrix=2048,
    repeats=5,
)
QUICK = Sizes(
    clients=6,
    examples=20,
    hidden=(16,),
    convolution=(2, 10, (4, 4)),
    linear=(20, 10),
    cohorts=(2, 8),
    chunks=(1, 2),
    methods=("fedavg",),
    federations=(20, 40),
    matrix=256,
    repeats=2,
)


class Report(NamedTuple):
    """Results, JSON-able; every measurement is also printed."""

    results: dict[str, Any]

    def compare(
        self,
        name: str,
        ours: Callable[[], float],
        rival: str,
        theirs: Callable[[], float],
    ) -> None:
        """Measures two contenders in turn, after each has run once."""
        for contender in (ours, theirs):
            contender()
        found = paired(ours, theirs, self.results["repeats"])
        self.results["pairs"].append({"name": name, "against": rival, **found})
        our_time = _time(found["ours"])
        their_time = _time(found["rival"])
        ratio = found["rival_over_ours"]
        print(f"{name:44s} {our_time}   {rival}: {their_time}, {ratio:.2f}x")

    def record_compile_time(self, name: str, run: Rounds) -> None:
        """Records the compile time of a program."""
        self.results["compile_seconds"][name] = run.compile_seconds
        print(f"{name:44s} compiled in {run.compile_seconds:.1f} s")

    def record_curve(self, name: str, values: Mapping[Any, float]) -> None:
        """Records numbers by size."""
        self.results["curves"][name] = {
            str(size): value for size, value in values.items()
        }
        print(
            f"{name:44s} "
            + ", ".join(f"{size}: {value:.4g}" for size, value in values.items())
        )

    def measure_curve(self, name: str, runs: dict[int, Callable[[], float]]) -> None:
        """Measures seconds by size, in turn."""
        times = in_turn(
            {str(size): run for size, run in runs.items()}, self.results["repeats"]
        )
        self.record_curve(
            name, {size: statistics.median(values) for size, values in times.items()}
        )


def _time(value: float) -> str:
    if value < 1:
        return f"{1e3 * value:8.3g} ms"
    return f"{value:8.3g} s "


def measure(sizes: Sizes, torch: bool = True) -> dict[str, Any]:
    """Measures everything.

    Args:
        sizes: `FULL` or `QUICK`.
        torch: the PyTorch rival too, where it is installed.

    Returns:
        A JSON-able dict: `machine`, `limits`, `compile_seconds`, `pairs`, `curves`, `memory`.
    """
    results = {
        "machine": machine(),
        "repeats": sizes.repeats,
        "limits": limits(sizes.matrix),
    }
    results |= {"compile_seconds": {}, "pairs": [], "curves": {}, "memory": {}}
    report = Report(results)
    _training(report, sizes, torch)
    _others(report, sizes, torch)
    _scaling(report, sizes)
    _compiling(report, sizes)
    results["memory"]["peak_bytes"] = peak_memory()
    return results


def _training(report: Report, sizes: Sizes, torch: bool) -> None:
    """Rounds of the MLP and their evaluation, against a jitted loop, PyTorch and the machine's limits."""
    data = synthetic(sizes.clients, sizes.examples)
    model = models.MLP(data.example_shape, 10, sizes.hidden)
    fedavg = algorithms.FedAvg(model)
    fedrep = algorithms.FedRep(model, srp.Training(srp.SGD(0.01, momentum=0.5)))
    runs = {"FedAvg round": Rounds(fedavg, data), "FedRep round": Rounds(fedrep, data)}
    evaluated = Rounds(fedrep, data, evaluations=("fine_tune",))
    srpfl = Rounds(fedrep, data, participation.Doubling(max(1, sizes.clients // 10), 10))
    for name, run in (
        runs | {"FedRep round with evaluation": evaluated, "SRPFL round": srpfl}
    ).items():
        report.record_compile_time(name, run)
    timed: dict[str, Callable[[], float]] = {
        name: functools.partial(seconds, run) for name, run in runs.items()
    }
    timed["FedRep evaluation, 10 epochs of the head"] = functools.partial(
        seconds, evaluated.evaluate
    )

    for name, algorithm in (("FedAvg round", fedavg), ("FedRep round", fedrep)):
        loop = JitLoop(algorithm, data)
        report.compare(
            name,
            timed[name],
            "jitted loop over clients",
            functools.partial(seconds, loop),
        )
    if torch:
        _against_torch(
            report,
            timed,
            data,
            lambda t: t.mlp(math.prod(data.example_shape), sizes.hidden),
        )
    widths = math.prod(data.example_shape), *sizes.hidden, 10
    weights = [a * b for a, b in itertools.pairwise(widths)]
    # Forward pass, gradient of the weights, gradient of the inputs; the first layer has no gradient of the inputs.
    needed = 2 * (3 * sum(weights) - weights[0]) * sizes.clients * sizes.examples
    # A step reads the weights forwards and backwards and writes them.
    moved = 3 * 4 * sum(weights) * sizes.clients * math.ceil(sizes.examples / 10)
    for what, least in (
        (
            "its arithmetic at the matrix peak",
            needed / report.results["limits"]["matrix_flops"],
        ),
        (
            "its weights through memory",
            moved / report.results["limits"]["memory_bytes_per_second"],
        ),
    ):
        report.compare(
            "FedAvg round", timed["FedAvg round"], what, lambda least=least: least
        )
    for name, algorithm in (("FedAvg", fedavg), ("FedRep", fedrep)):
        batch = Rounds(algorithm, data, num_seeds=REPEATED_SEEDS)
        one = runs[f"{name} round"]
        looped = lambda one=one: sum(seconds(one) for _ in range(REPEATED_SEEDS))
        name = f"{name}, {REPEATED_SEEDS} seeds vmapped"
        report.compare(
            name, functools.partial(seconds, batch), "looped over seeds", looped
        )
    if jax.device_count() > 1:
        sharded = Rounds(fedrep, data, shard_data=True)
        single = Rounds(fedrep, data, devices=1)
        report.compare(
            "FedRep round",
            timed["FedRep round"],
            "data sharded",
            functools.partial(seconds, sharded),
        )
        report.compare(
            "FedRep round",
            timed["FedRep round"],
            "on one device",
            functools.partial(seconds, single),
        )


def _against_torch(
    report: Report,
    timed: dict[str, Callable[[], float]],
    data: FederatedData,
    model: Callable[[Any], Any],
) -> None:
    """Rounds and evaluation against the PyTorch loop, and against one that computes a head's inputs once a round.

    Args:
        report: of the benchmark.
        timed: ours: FedAvg round, FedRep round and, where there is one, the evaluation.
        data: of both.
        model: function from the module `torch_loop` to the model.
    """
    if importlib.util.find_spec("torch") is None:
        return
    from harness import torch_loop

    examples = arrays(data)
    for cache, rival in (
        (False, "PyTorch loop"),
        (True, "PyTorch loop, features cached"),
    ):
        loop = torch_loop.TorchLoop(model(torch_loop), examples, cache=cache)
        theirs = loop.fedavg_round, loop.fedrep_round, loop.fine_tuned_evaluation
        pairs = list(zip(timed.items(), theirs, strict=False))
        for (name, ours), other in pairs[cache:]:  # FedAvg has nothing to cache
            report.compare(name, ours, rival, functools.partial(seconds, other))


def _others(report: Report, sizes: Sizes, torch: bool) -> None:
    """Rounds of a convolutional model and of the linear model."""
    clients, examples, channels = sizes.convolution
    images = synthetic(clients, examples, tests=10, shape=(32, 32, 3))
    lenet = models.LeNet5(images.example_shape, 10, channels)
    task = linear_task(jax.random.key(0), *sizes.linear, rank=5, noise_std=1.0)
    linear = algorithms.LinearFedRep(
        task, step_size=0.1, samples_per_round=50, start="random"
    )
    cases: tuple[tuple[str, FederatedAlgorithm, Any, int], ...] = (
        (f"LeNet FedAvg round, {clients} clients", algorithms.FedAvg(lenet), images, 1),
        (f"LeNet FedRep round, {clients} clients", algorithms.FedRep(lenet), images, 1),
        (f"linear FedRep round, {sizes.linear[0]} clients", linear, task, 10),
    )
    timed: dict[str, Callable[[], float]] = {}
    for name, algorithm, data, length in cases:
        run = Rounds(algorithm, data, length=length)
        loop = JitLoop(algorithm, data)
        report.record_compile_time(name, run)
        timed[name] = lambda run=run: seconds(run) / run.length
        report.compare(
            name,
            timed[name],
            "jitted loop over clients",
            functools.partial(seconds, loop),
        )
    if torch:
        convolutional = {name: timed[name] for name, *_ in cases[:2]}
        _against_torch(report, convolutional, images, lambda t: t.lenet5(channels))


def _compiling(report: Report, sizes: Sizes) -> None:
    """Compile times of every method with default settings: start, segment and evaluation."""
    for model, shape in (("mlp", (28, 28)), ("lenet5", (32, 32, 3))):
        data = synthetic(CLIENTS_COMPILED, examples=10, tests=5, shape=shape)
        for name in sizes.methods:
            method = methods.get(name, dataset=data, model=model)
            evaluations = tuple(method.algorithm.evaluations)[:1]
            report.record_compile_time(
                f"{name}, {model}",
                Rounds(
                    method.algorithm, data, method.participation, evaluations=evaluations
                ),
            )


def _scaling(report: Report, sizes: Sizes) -> None:
    """Time of a round by size of cohort and federation, and memory by size of the chunk."""

    def fedrep(data: FederatedData) -> FederatedAlgorithm:
        model = models.MLP(data.example_shape, 10, sizes.hidden)
        return algorithms.FedRep(model, srp.Training(srp.SGD(0.01, momentum=0.5)))

    def each(run: Rounds, count: int) -> Callable[[], float]:
        return lambda: seconds(run) / run.length / count

    largest = max(sizes.cohorts)
    data = synthetic(largest, sizes.examples, tests=1)
    algorithm = fedrep(data)
    lengths = {n: max(1, min(largest // n, 8)) for n in sizes.cohorts}
    runs = {
        n: Rounds(algorithm, data, participation.Fastest(n), lengths[n])
        for n in sizes.cohorts
    }
    report.measure_curve(
        "seconds per participant, by cohort n",
        {n: each(run, n) for n, run in runs.items()},
    )
    report.record_curve(
        "working bytes, by cohort n", {n: run.working_bytes for n, run in runs.items()}
    )
    of_chunk = {
        c: Rounds(algorithm, data, chunk_size=c).working_bytes for c in sizes.chunks
    }
    report.record_curve("working bytes, by chunk", of_chunk)
    del runs, data
    cohort = max(1, sizes.federations[0] // 10)
    rounds = {}
    for num_clients in sizes.federations:
        data = synthetic(num_clients, sizes.examples, tests=1)
        rounds[num_clients] = Rounds(fedrep(data), data, participation.Fastest(cohort), 4)
    report.measure_curve(
        f"seconds per round of {cohort} clients, by N",
        {n: each(run, 1) for n, run in rounds.items()},
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs/benchmark"),
        help="folder for table, figure and numbers",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="toy sizes, some seconds, to check that it runs",
    )
    parser.add_argument(
        "--skip-torch",
        action="store_true",
        help="without PyTorch, even if it is installed",
    )
    args = parser.parse_args(arguments)
    results = measure(QUICK if args.quick else FULL, torch=not args.skip_torch)
    folder = files.write(results, args.out)
    print(f"\n{files.table(results)}\n\nwritten to {folder}")


if __name__ == "__main__":
    srp.use_all_cores()
    main()
