"""Times of kernels from a trace of `jax.profiler`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax


def top_kernels(folder: Path, most: int = 25) -> dict[str, Any]:
    """Kernels by their total time, the longest first.

    On a GPU these are the events of its streams; on a CPU the operations on the runtime's threads, where a loop counts
    in addition to the operations in it.

    Args:
        folder: of `jax.profiler.trace`.
        most: number of kernels to name.

    Returns:
        A JSON-able dict: `kernels` (`name`, `calls`, `seconds`), `num_kernels`, `kernel_seconds`, of all of them.

    Raises:
        ValueError: a folder without a trace, or a trace without kernels.
    """
    files = sorted(folder.rglob("*.xplane.pb"))
    if not files:
        raise ValueError(
            f"{folder} holds no trace; give the folder of jax.profiler.trace"
        )
    calls: dict[str, int] = {}
    times: dict[str, float] = {}
    for name, seconds in _events(jax.profiler.ProfileData.from_file(str(files[-1]))):
        calls[name] = calls.get(name, 0) + 1
        times[name] = times.get(name, 0.0) + seconds
    if not times:
        raise ValueError(
            f"{files[-1].name} holds no kernels; trace a call that runs on a device"
        )
    longest = sorted(times, key=lambda name: -times[name])[:most]
    return {
        "kernels": [
            {"name": name, "calls": calls[name], "seconds": times[name]}
            for name in longest
        ],
        "num_kernels": sum(calls.values()),
        "kernel_seconds": sum(times.values()),
    }


def _events(trace: Any) -> Iterator[tuple[str, float]]:
    """Names and seconds of the operations on devices."""
    planes = list(trace.planes)
    accelerators = [plane for plane in planes if plane.name.startswith("/device:")]
    wanted = "Stream" if accelerators else "tf_XLA"
    for plane in accelerators or [
        plane for plane in planes if plane.name.startswith("/host:CPU")
    ]:
        for line in plane.lines:
            if line.name.startswith(wanted):
                for event in line.events:
                    if not event.name.startswith(("ThreadpoolListener", "end: ")):
                        yield event.name, event.duration_ns / 1e9
