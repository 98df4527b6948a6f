"""Kind of device for which a program is traced and compiled, since fast code differs between CPUs and accelerators."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import jax

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


def compiler_options(platform: str) -> dict[str, Any]:
    """Return XLA's options for programs on a kind of device, beside `XLA_FLAGS`."""
    if platform != "cpu":
        return {}
    # Else XLA copies a client's weights in every step, and in some rounds all clients' states.
    return {"xla_cpu_copy_insertion_use_region_analysis": True}


def options_for_one_run(platform: str) -> dict[str, Any]:
    """Return further options of XLA for a program that runs once: on a CPU it compiles in a third of the time."""
    level = "xla_backend_optimization_level"
    if platform != "cpu" or level in os.environ.get("XLA_FLAGS", ""):
        return {}
    return {level: 1}
