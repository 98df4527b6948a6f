"""What `fedjax-srp benchmark` measures."""

from __future__ import annotations

import functools
import importlib.util
import os
import platform
import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from .. import __version__, algorithms, models, participation
from ..base import FederatedAlgorithm
from ..data import FederatedData, linear_task
from .loop import JitLoop
from .measure import Rounds, in_turn, limits, paired, peak_memory, seconds, synthetic

REPEATED_SEEDS = 4


class Sizes(NamedTuple):
    """How much is measured."""

    clients: int
    examples: int
    hidden: tuple[int, ...]
    convolution: tuple[int, int, tuple[int, int]]  # clients, examples, channels
    linear: tuple[int, int]  # clients, dimension
    cohorts: tuple[int, ...]  # of as many clients as the largest
    cohort_examples: int
    federations: tuple[int, ...]  # a tenth of the first takes part
    matrix: int
    repeats: int


FULL = Sizes(
    clients=100,
    examples=150,
    hidden=(512, 256, 64),
    convolution=(20, 100, (64, 64)),
    linear=(1000, 100),
    cohorts=(10, 32, 100, 320, 1000),
    cohort_examples=50,
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
    cohort_examples=10,
    federations=(20, 40),
    matrix=256,
    repeats=2,
)


class Report(NamedTuple):
    """What was found; `results` is JSON-able."""

    results: dict[str, Any]
    say: Callable[[str], None]

    def against(self, name: str, ours: Callable[[], float], rival: str, theirs: Callable[[], float]) -> None:
        """Measures two in turn, after each has run once."""
        for contender in (ours, theirs):
            contender()
        found = paired(ours, theirs, self.results["repeats"])
        self.results["pairs"].append({"name": name, "against": rival, **found})
        self.say(
            f"{name:44s} {_time(found['ours'])}   {rival}: {_time(found['rival'])}, {found['rival_over_ours']:.2f}x"
        )

    def compiled(self, name: str, run: Rounds) -> None:
        """Notes the time a program took to compile."""
        self.results["compile_seconds"][name] = run.compile_seconds
        self.say(f"{name:44s} compiled in {run.compile_seconds:.1f} s")

    def curve(self, name: str, runs: dict[int, Callable[[], float]]) -> None:
        """Measures a family in turn: seconds by size."""
        times = in_turn({str(size): run for size, run in runs.items()}, self.results["repeats"])
        self.results["curves"][name] = {size: statistics.median(values) for size, values in times.items()}
        shown = ", ".join(f"{size}: {_time(value).strip()}" for size, value in self.results["curves"][name].items())
        self.say(f"{name:44s} {shown}")


def _time(value: float) -> str:
    return f"{1e3 * value:8.3g} ms" if value < 1 else f"{value:8.3g} s "


def measure(sizes: Sizes, torch: bool = True, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Measures everything.

    Args:
        sizes: `FULL` or `QUICK`.
        torch: the PyTorch rival too, where it is installed.
        say: prints one line.

    Returns:
        A JSON-able dict: `machine`, `limits`, `compile_seconds`, `pairs`, `curves`, `memory`.
    """
    results = {"machine": _machine(), "repeats": sizes.repeats, "limits": limits(sizes.matrix)}
    results |= {"compile_seconds": {}, "pairs": [], "curves": {}, "memory": {}}
    report = Report(results, say)
    peak, moved = results["limits"]["matrix_flops"], results["limits"]["memory_bytes_per_second"]
    say(f"limits: matrix products {peak / 1e9:.4g} GFLOP/s, memory {moved / 1e9:.4g} GB/s")
    _training(report, sizes, torch)
    _others(report, sizes)
    _scaling(report, sizes)
    results["memory"]["peak_bytes"] = peak_memory()
    say(f"peak memory {peak_memory() / 2**30:.2f} GiB")
    return results


def _machine() -> dict[str, Any]:
    return {
        "device": jax.devices()[0].device_kind,
        "platform": jax.devices()[0].platform,
        "num_devices": jax.device_count(),
        "cores": os.cpu_count(),
        "processor": platform.machine(),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "fedjax_srp": __version__,
    }


def _training(report: Report, sizes: Sizes, torch: bool) -> None:
    """Rounds of the MLP and their evaluation, against a jitted loop, PyTorch and the arithmetic."""
    data = synthetic(sizes.clients, sizes.examples)
    model = models.mlp(data.example_shape, 10, sizes.hidden)
    fedavg = algorithms.fedavg(model)
    fedrep = algorithms.fedrep(model, algorithms.sgd(0.01, momentum=0.5))
    runs = {"FedAvg round": Rounds(fedavg, data), "FedRep round": Rounds(fedrep, data)}
    judged = Rounds(fedrep, data, evaluations=("fine_tune",))
    srpfl = Rounds(fedrep, data, participation.doubling(max(1, sizes.clients // 10), 10))
    for name, run in (runs | {"FedRep round with evaluation": judged, "SRPFL round": srpfl}).items():
        report.compiled(name, run)
    plain = runs["FedRep round"]
    timed: dict[str, Callable[[], float]] = {name: functools.partial(seconds, run) for name, run in runs.items()}
    timed["FedRep evaluation, 10 epochs of the head"] = lambda: max(seconds(judged) - seconds(plain), 1e-9)

    for name, algorithm in (("FedAvg round", fedavg), ("FedRep round", fedrep)):
        loop = JitLoop(algorithm, data)
        report.against(name, timed[name], "jitted loop over clients", functools.partial(seconds, loop))
    if torch and importlib.util.find_spec("torch") is not None:
        rival = _torch(data, sizes.hidden)
        theirs = rival.fedavg_round, rival.fedrep_round, rival.fine_tuned_evaluation
        for (name, ours), other in zip(timed.items(), theirs, strict=True):
            report.against(name, ours, "PyTorch loop", functools.partial(seconds, other))
    weights = sum(a * b for a, b in zip((784, *sizes.hidden), (*sizes.hidden, 10), strict=True))
    needed = 6 * weights * sizes.clients * sizes.examples / report.results["limits"]["matrix_flops"]
    report.against("FedAvg round", timed["FedAvg round"], "its arithmetic at the matrix peak", lambda: needed)
    for name, algorithm in (("FedAvg", fedavg), ("FedRep", fedrep)):
        batch, one = Rounds(algorithm, data, num_seeds=REPEATED_SEEDS), runs[f"{name} round"]
        looped = lambda one=one: sum(seconds(one) for _ in range(REPEATED_SEEDS))  # noqa: E731
        name = f"{name}, {REPEATED_SEEDS} seeds vmapped"
        report.against(name, functools.partial(seconds, batch), "looped over seeds", looped)
    if jax.device_count() > 1:
        sharded, single = Rounds(fedrep, data, shard_data=True), Rounds(fedrep, data, devices=1)
        report.against("FedRep round", timed["FedRep round"], "data sharded", functools.partial(seconds, sharded))
        report.against("FedRep round", timed["FedRep round"], "on one device", functools.partial(seconds, single))


def _torch(data: FederatedData, hidden: tuple[int, ...]) -> Any:
    from .torch_loop import TorchLoop

    def arrays(client):
        split = jax.device_get(jax.vmap(client)(np.arange(data.num_clients, dtype=np.int32)))
        return np.array(split.x, np.float32).reshape(*split.x.shape[:2], -1), split.y

    return TorchLoop(*arrays(data.train_client), *arrays(data.test_client), hidden)


def _others(report: Report, sizes: Sizes) -> None:
    """A convolutional model and the linear world."""
    clients, examples, channels = sizes.convolution
    images = synthetic(clients, examples, tests=10, shape=(32, 32, 3))
    lenet = algorithms.fedavg(models.lenet5(images.example_shape, 10, channels))
    task = linear_task(jax.random.key(0), *sizes.linear, rank=5, noise_std=1.0)
    linear = algorithms.linear_fedrep(task, 0.1, 50, init="random")
    cases: tuple[tuple[str, FederatedAlgorithm, Any, int], ...] = (
        (f"LeNet FedAvg round, {clients} clients", lenet, images, 1),
        (f"linear FedRep round, {sizes.linear[0]} clients", linear, task, 10),
    )
    for name, algorithm, data, length in cases:
        run, loop = Rounds(algorithm, data, length=length), JitLoop(algorithm, data)
        report.compiled(name, run)
        ours = lambda run=run: seconds(run) / run.length  # noqa: E731
        report.against(name, ours, "jitted loop over clients", functools.partial(seconds, loop))


def _scaling(report: Report, sizes: Sizes) -> None:
    """How a round follows the cohort and the federation, and its memory the chunk."""

    def fedrep(data: FederatedData) -> FederatedAlgorithm:
        model = models.mlp(data.example_shape, 10, sizes.hidden)
        return algorithms.fedrep(model, algorithms.sgd(0.01, momentum=0.5))

    def each(run: Rounds, count: int) -> Callable[[], float]:
        return lambda: seconds(run) / run.length / count

    data, largest = synthetic(max(sizes.cohorts), sizes.cohort_examples, tests=1), max(sizes.cohorts)
    algorithm = fedrep(data)
    lengths = {n: max(1, min(largest // n, 8)) for n in sizes.cohorts}
    runs = {n: Rounds(algorithm, data, participation.fastest(n), lengths[n]) for n in sizes.cohorts}
    report.curve("seconds per participant, by cohort n", {n: each(run, n) for n, run in runs.items()})
    del runs, data
    cohort, rounds = max(1, sizes.federations[0] // 10), {}
    for num_clients in sizes.federations:
        data = synthetic(num_clients, sizes.examples, tests=1)
        rounds[num_clients] = Rounds(fedrep(data), data, participation.fastest(cohort), 4)
    report.curve(f"seconds per round of {cohort} clients, by N", {n: each(run, 1) for n, run in rounds.items()})
