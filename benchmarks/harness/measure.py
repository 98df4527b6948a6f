"""Compiled rounds to time, and comparisons of times: in turn, by medians and by ratios of pairs."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_srp._version import __version__
from fedjax_srp.base import (
    Array,
    FederatedAlgorithm,
    FederatedSource,
    ParticipationPolicy,
)
from fedjax_srp.data import FederatedData, from_arrays
from fedjax_srp.driver.prepare import Request, prepare
from fedjax_srp.driver.settings import Settings
from fedjax_srp.parts.checks import check_integer
from fedjax_srp.rounds.sharding import lay_out, spread


def synthetic(
    num_clients: int,
    examples: int = 150,
    tests: int = 50,
    shape: tuple[int, ...] = (28, 28),
    num_classes: int = 10,
) -> FederatedData:
    """Random uint8 images, divided evenly among the clients; speed does not depend on their contents."""
    rng = np.random.default_rng(0)

    def split(per_client: int):
        x = rng.integers(0, 256, (num_clients * per_client, *shape), dtype=np.uint8)
        return (
            x,
            rng.integers(0, num_classes, len(x)),
            np.arange(len(x)).reshape(num_clients, per_client),
        )

    x, y, train = split(examples)
    x_test, y_test, test = split(tests)
    indices: dict[str, Any] = {"train_indices": train, "test_indices": test}
    return from_arrays(x, y, x_test, y_test, **indices, num_classes=num_classes)


def arrays(data: FederatedData) -> list[np.ndarray]:
    """Inputs (clients, examples, ...) and labels (clients, examples) for training and tests, as given to models."""
    ids = jnp.arange(data.num_clients, dtype=jnp.int32)
    splits = [
        jax.device_get(jax.vmap(client)(ids))
        for client in (data.train_client, data.test_client)
    ]
    return [np.array(part) for split in splits for part in (split.x, split.y)]


class Rounds:
    """Compiled rounds of one method; a call runs `length` of them and the evaluations, and waits.

    `judged_at_once` clients are evaluated at once on each device, None for the engine's choice. The others are
    `Settings`; by default nothing is evaluated.

    Attributes:
        rounds: records of the last call's rounds, leaves (length,).
        compile_seconds: of start and segment.
        working_bytes: of a segment on each device, without data and states, by the compiler.
    """

    def __init__(
        self,
        algorithm: FederatedAlgorithm,
        data: FederatedSource,
        participation: ParticipationPolicy | None = None,
        length: int = 1,
        judged_at_once: int | None = None,
        num_seeds: int | None = None,
        **settings: Any,
    ):
        chosen = Settings(**{"evaluations": ()} | settings)
        request = Request(algorithm, data, participation, settings=chosen)
        run = prepare(request._replace(num_seeds=num_seeds))
        layout = run.layout
        if judged_at_once is not None:
            check_integer("judged_at_once", judged_at_once, 1)
            most = -(-layout.num_clients // layout.num_devices)
            layout = layout._replace(evaluation_chunk=min(judged_at_once, most))
        run = run._replace(layout=layout)
        self.program = run.program()
        self.length = length
        self.layout = run.layout
        key = jax.random.key(0)
        if run.num_seeds is not None:
            key = jax.random.split(key, run.num_seeds)
        self.root, self.data = run.placed(key)
        self.state = self.program.start(self.root, self.data).state
        self()
        self.compile_seconds = self.program.compile_seconds
        self.working_bytes = self.program.working_bytes(self.state, self.root, self.data)

    def __call__(self) -> None:
        """Runs `length` rounds and waits."""
        self.state, segment = self.program.segment(
            self.length, self.state, self.root, self.data
        )
        self.rounds = jax.block_until_ready(segment).rounds

    def evaluate(self) -> dict[str, tuple[Array, Array]]:
        """Evaluates every client with the server's state, and waits; sums and numbers of scores by evaluation."""
        return jax.block_until_ready(
            self.program.scores(self.state.server, self.root, self.data)
        )


class JudgedRounds(Rounds):
    """Rounds without evaluations, and an evaluation that is called by itself."""

    def __init__(
        self,
        algorithm: FederatedAlgorithm,
        data: FederatedSource,
        evaluation: str,
        participation: ParticipationPolicy | None = None,
    ):
        super().__init__(algorithm, data, participation)
        self.evaluation = evaluation
        settings = Settings(evaluations=(evaluation,))
        request = Request(algorithm, data, participation, settings=settings)
        self.judge = prepare(request).program()

    def accuracy(self) -> float:
        """The mean over test examples."""
        found = self.judge.scores(
            self.state.server, self.root, self.data, self.state.clients
        )
        right, number = jax.device_get(found[self.evaluation])
        return float(right.sum() / number.sum())


def seconds(function: Callable[[], object]) -> float:
    """Seconds of a call."""
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def cpu_seconds(function: Callable[[], object], times: int = 1) -> float:
    """CPU seconds of the process for a call, the mean over `times` calls; other processes disturb them little."""
    begin = time.process_time()
    for _ in range(times):
        function()
    return (time.process_time() - begin) / times


def in_turn(
    contenders: dict[str, Callable[[], float]], repeats: int, pause: float = 0.25
) -> dict[str, list[float]]:
    """Measurements of every contender, `repeats` times one after the other, with a pause before each.

    The threads of a library wait for work actively, and so use the cores, for some time after their last task.
    """
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, measure in contenders.items():
            time.sleep(pause)
            times[name].append(measure())
    return times


def summary(times: list[float]) -> dict[str, Any]:
    """Median and quartiles of measurements, and all of them."""
    quartiles = [*times] * 3
    if len(times) > 1:
        quartiles = statistics.quantiles(times, n=4, method="inclusive")
    return {
        "median": statistics.median(times),
        "quartiles": [quartiles[0], quartiles[2]],
        "each": times,
    }


def ratios(times: dict[str, list[float]], name: str, base: str) -> list[float]:
    """Measurements of one contender over those of another, pair by pair."""
    return [one / other for one, other in zip(times[name], times[base], strict=True)]


def paired(
    ours: Callable[[], float], rival: Callable[[], float], repeats: int
) -> dict[str, float]:
    """Medians of two measurements in turn, and the median of the ratios of pairs."""
    times = in_turn({"ours": ours, "rival": rival}, repeats)
    medians = {name: statistics.median(values) for name, values in times.items()}
    return medians | {
        "rival_over_ours": statistics.median(ratios(times, "rival", "ours"))
    }


def limits(size: int, at_least: float = 0.1) -> dict[str, float]:
    """Rates of all devices together: float32 matrix products (FLOP/s, in XLA's default precision) and memory (B/s).

    Args:
        size: of the square matrices; the array for the memory has 16 * size^2 elements and should exceed the cache.
        at_least: seconds that a measurement lasts; the best of five counts.
    """
    layout = lay_out(None, 1, jax.device_count())

    def multiply(a: Array, times: Array) -> Array:
        return jax.lax.fori_loop(0, times, lambda _, b: a[0] @ b, a[0])[None]

    def add(a: Array, times: Array) -> Array:
        return jax.lax.fori_loop(0, times, lambda i, b: b + i.astype(b.dtype), a)

    def rate(function: Callable[[Array, Array], Array], shape: tuple[int, ...]) -> float:
        """Repetitions a second on every device."""
        # Random bits, and a scale at which repeated products neither grow nor vanish.
        numbers = (
            jax.random.normal(
                jax.random.key(0), (layout.num_devices, *shape), jnp.float32
            )
            / size**0.5
        )
        array = jax.device_put(numbers, layout.sharding(by_client=True))
        compiled = jax.jit(spread(function, layout, (True, False), True))
        run = lambda times: seconds(
            lambda: jax.block_until_ready(compiled(array, jnp.int32(times)))
        )
        run(1)
        times = 8  # the array is copied into the loop once
        while run(times) < at_least:
            times *= 2
        return times / min(run(times) for _ in range(5))

    flops = 2 * size**3 * layout.num_devices * rate(multiply, (size, size))
    moved = 2 * 4 * 16 * size**2 * layout.num_devices * rate(add, (16 * size**2,))
    return {"matrix_flops": flops, "memory_bytes_per_second": moved}


def peak_memory() -> int:
    """Peak bytes so far: of the process on a CPU, of the first device elsewhere."""
    stats = jax.local_devices()[0].memory_stats() or {}
    unit = 1 if sys.platform == "darwin" else 1024
    return stats.get(
        "peak_bytes_in_use", unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    )


def machine() -> dict[str, Any]:
    """Facts about this machine: device, driver (None without NVIDIA's tool), cores, versions."""
    device = jax.devices()[0]
    driver = None
    if device.platform == "gpu" and shutil.which("nvidia-smi"):
        asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        driver = (
            subprocess.run(
                asked, capture_output=True, text=True, check=False
            ).stdout.strip()
            or None
        )
    return {
        "device": device.device_kind,
        "platform": device.platform,
        "num_devices": jax.device_count(),
        "device_memory": (device.memory_stats() or {}).get("bytes_limit"),
        "driver": driver,
        "runtime": device.client.platform_version,
        "cores": os.cpu_count(),
        "processor": platform.machine(),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "fedjax_srp": __version__,
    }
