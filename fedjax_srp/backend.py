"""Which kind of device a program is traced for: fast ways to compute differ between CPUs and accelerators."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

import jax

_platform: ContextVar[str | None] = ContextVar("platform", default=None)


def platform() -> str:
    """Kind of the devices ("cpu", "gpu", "tpu") of the simulation that is traced; JAX's default outside of one."""
    return _platform.get() or jax.default_backend()


@contextlib.contextmanager
def traced_for(name: str) -> Iterator[None]:
    """Makes `platform()` answer `name`."""
    token = _platform.set(name)
    try:
        yield
    finally:
        _platform.reset(token)
