"""One XLA device per CPU core, each with single-threaded kernels."""

from __future__ import annotations

import os

import jax

from fedjax_srp.parts.checks import checked
from fedjax_srp.parts.part import Count

# In a process that waits for a core, or a notebook that is stopped, one device may be minutes behind another. XLA would
# report that after 20 seconds, and end the process after 40.
_WAIT_SECONDS = 7 * 24 * 3600
_FLAGS = {
    "--xla_cpu_multi_thread_eigen": "false",
    "--xla_cpu_collective_call_warn_stuck_timeout_seconds": str(_WAIT_SECONDS),
    "--xla_cpu_collective_call_terminate_timeout_seconds": str(_WAIT_SECONDS),
}


@checked
def use_all_cores(num_devices: Count | None = None) -> int:
    """Make every CPU core a separate device; `simulate` then spreads the clients over them.

    The steps of one client's training are too small to parallelize well, so one client per core is faster than one
    client on all cores. GPUs are not affected.

    It writes `XLA_FLAGS` too, where it keeps what is there: kernels with one thread, and devices that wait for each
    other for a week, since XLA aborts a process in which one is 40 seconds behind another.

    Args:
        num_devices: number of devices; default the number of cores that this process may use.

    Returns:
        The number of CPU devices.

    Raises:
        RuntimeError: JAX has already run something; call this first.

    Example:
        >>> import fedjax_srp as srp
        >>> srp.use_all_cores()  # doctest: +SKIP
        2
    """
    if num_devices is None:
        num_devices = len(cores())
    given = os.environ.get("XLA_FLAGS", "")
    missing = [f"{flag}={value}" for flag, value in _FLAGS.items() if flag not in given]
    configured = getattr(jax.config, "jax_num_cpu_devices")  # noqa: B009 (untyped in jax)
    if configured == num_devices and not missing:
        return num_devices
    try:
        jax.config.update("jax_num_cpu_devices", num_devices)
    except RuntimeError:
        raise RuntimeError(
            "use_all_cores() came after the first JAX computation; call it right after the imports "
            "(in a notebook: restart the kernel)"
        ) from None
    os.environ["XLA_FLAGS"] = " ".join([given, *missing]).strip()
    return num_devices


def cores() -> list[int]:
    """Return the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))
