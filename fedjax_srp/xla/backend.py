"""Kind of device for which a program is traced and compiled, since fast code differs between CPUs and accelerators."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import jax

# All commands of a round, including loops with a trip count known only on the device.
_INTO_GRAPHS = "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,DYNAMIC_SLICE_FUSION,CONVOLUTION,CONDITIONAL,WHILE"
_graphs = False

_platform: ContextVar[str | None] = ContextVar("platform", default=None)


def platform() -> str:
    """Return the kind of the devices ("cpu", "gpu", "tpu") of the traced simulation; outside of one, JAX's default."""
    return _platform.get() or jax.default_backend()


@contextlib.contextmanager
def traced_for(name: str) -> Iterator[None]:
    """Make `platform()` return `name`."""
    token = _platform.set(name)
    try:
        yield
    finally:
        _platform.reset(token)


def use_cuda_graphs(on: bool = True) -> None:
    """Put the loops of simulations compiled from now on into CUDA graphs, which is off by default.

    Only the device knows the trip counts of a round's training loops; without graphs the host reads them back in every
    iteration. On an H200 rounds of 1,000 clients were 1.01 to 1.15 times as fast with graphs. All methods have run with
    them there, but no convolution, linear task, batch of seeds or second GPU, and some graphs crash
    (openxla/xla#35760). CPUs are not affected, and a run may be resumed with the other setting.

    Args:
        on: False goes back to XLA's own choice.
    """
    global _graphs
    _graphs = bool(on)


def compiler_options(platform: str) -> dict[str, Any]:
    """Return XLA's options for programs on a kind of device, beside `XLA_FLAGS`."""
    if (
        platform == "cpu"
    ):  # else XLA copies a client's weights in every step, and in some rounds all clients' states
        return {"xla_cpu_copy_insertion_use_region_analysis": True}
    if platform != "gpu" or not _graphs:
        return {}
    return {
        "xla_gpu_enable_command_buffer": _INTO_GRAPHS,
        "xla_gpu_graph_min_graph_size": 1,
    }


def options_for_one_run(platform: str) -> dict[str, Any]:
    """Return further options of XLA for a program that runs once: on a CPU it compiles in a third of the time."""
    own_level = "xla_backend_optimization_level" in os.environ.get("XLA_FLAGS", "")
    return {} if platform != "cpu" or own_level else {"xla_backend_optimization_level": 1}
