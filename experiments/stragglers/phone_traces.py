"""Clocks of phones from measured traces: speeds and networks, and sessions in which phones are available."""

from pathlib import Path
from typing import Any

import jax
import numpy as np

import fedjax_srp as srp


def phones(
    folder: Path, num_clients: int, seed: int, model_ratio: float
) -> srp.clocks.Devices:
    """Draw phones with AI-Benchmark's float scores and measured networks for the clients.

    The median phone does 2e9 operations a second. All speeds are divided by `model_ratio`, because the models here
    stand for models with that many times as many operations and parameters.
    """
    devices = srp.clocks.read_devices(
        folder / "trace_flash_ai_benchmark_phones.csv", compute="CPU_F_AI_Score"
    )
    links = srp.clocks.read_devices(
        folder / "trace_flash_network_speed.csv", downlink="down_mean", uplink="up_mean"
    )
    links = links.assign(num_clients, seed)
    compute = 2e9 / np.median(devices.compute) * devices.assign(num_clients, seed).compute
    return srp.clocks.Devices(
        compute / model_ratio,
        1024 * links.downlink / model_ratio,
        1024 * links.uplink / model_ratio,
    )


@jax.jit
def seconds_of_clients(simulation: srp.Simulation) -> jax.Array:
    """Return the seconds of a round of each client, under `clocks.Devices`."""
    devices = simulation.init(jax.random.key(0)).clock
    return devices.unit + devices.once


def sessions(folder: Path, num_clients: int, seeds: int) -> list[srp.clocks.Intervals]:
    """Draw intervals of FLASH's phones that are idle, charging and on wifi, for the clients of each seed."""
    traces = srp.clocks.read_availability(folder / "trace_availability_flash710.json.xz")
    found = [traces.assign(num_clients, seed).intervals() for seed in range(seeds)]
    width = max(np.shape(each.starts)[1] for each in found)

    def padded(times: Any) -> np.ndarray:
        return np.pad(times, ((0, 0), (0, width - np.shape(times)[1])))

    return [
        srp.clocks.Intervals(padded(each.starts), padded(each.ends), each.period)
        for each in found
    ]
