"""Which kind of device a program is traced and compiled for: fast ways differ between CPUs and accelerators."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import jax

# All that a round consists of, loops whose number of trips only the device knows among it.
_INTO_GRAPHS = (
    "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,DYNAMIC_SLICE_FUSION,CONVOLUTION,CONDITIONAL,WHILE"  # XLA's names
)
_graphs = False

_platform: ContextVar[str | None] = ContextVar("platform", default=None)


def platform() -> str:
    """Kind of the devices ("cpu", "gpu", "tpu") of the simulation that is traced; JAX's default outside of one."""
    return _platform.get() or jax.default_backend()


@contextlib.contextmanager
def traced_for(name: str) -> Iterator[None]:
    """Make `platform()` answer `name`."""
    token = _platform.set(name)
    try:
        yield
    finally:
        _platform.reset(token)


def use_cuda_graphs(on: bool = True) -> None:
    """Whether simulations that are compiled from now on put their loops into CUDA graphs; they do not by default.

    A round trains in loops whose number of trips only the device knows. Outside of a graph the host reads it back in
    every trip. Compiled for an H100 all loops of a round then lie in graphs; it has never run on one, and graphs are
    known that crash (openxla/xla#35760). It changes nothing on CPUs, and a run may be resumed with the other setting.

    Args:
        on: False goes back to XLA's own choice.
    """
    global _graphs
    _graphs = bool(on)


def compiler_options(platform: str) -> dict[str, Any]:
    """What XLA is told for programs on a kind of device, beside what `XLA_FLAGS` says."""
    if platform == "cpu":  # or it copies a client's weights in every step, and in some rounds the states of all clients
        return {"xla_cpu_copy_insertion_use_region_analysis": True}
    if platform != "gpu" or not _graphs:
        return {}
    return {"xla_gpu_enable_command_buffer": _INTO_GRAPHS, "xla_gpu_graph_min_graph_size": 1}
