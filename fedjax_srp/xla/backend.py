"""Kind of device for which a program is traced and compiled, since fast code differs between CPUs and accelerators."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import jax

_NUM_DEVICES = "jax_num_cpu_devices"
_started_before_fork = False
# in a forked process: JAX ran in the one that it was forked from
_is_forked_from_jax = False
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


def check_not_forked() -> None:
    """Raise a ValueError in a process that was forked after JAX had started: JAX would wait for threads for ever."""
    if _is_forked_from_jax:
        raise ValueError(
            "this process was forked from one in which JAX had started, and lacks its threads: start "
            "processes with multiprocessing.get_context('spawn'), or fork before anything is computed"
        )


def _before_fork() -> None:
    global _started_before_fork
    _started_before_fork = _has_started()


def _after_fork() -> None:
    global _is_forked_from_jax
    _is_forked_from_jax = _started_before_fork


def _has_started() -> bool:
    """Return True if JAX has computed anything: it then refuses another number of CPU devices."""
    kept = getattr(jax.config, _NUM_DEVICES)
    try:
        jax.config.update(_NUM_DEVICES, kept + 1)
    except RuntimeError:
        return True
    jax.config.update(_NUM_DEVICES, kept)
    return False


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork)


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
