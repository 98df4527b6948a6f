"""Descriptions, for the compiler, of the devices to compile for; none of them has to be present.

The numbers are those of the data sheets (SXM boards), in the compiler's own text format.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import jax
from jax.experimental import topologies

# Peak products per clock and unit of arithmetic, by the compiler's number of a type: 8 bits, 16 bits, float32, ...
SCALAR = {4: (64, 1), 8: (64, 1), 10: (128, 2), 11: (128, 1), 12: (64, 1), 16: (128, 2)}
MATRIX = dict.fromkeys((2, 6, 19, 20, 23, 24, 25, 28, 29, 33, 35, 36), 1024) | {10: 512, 11: 256, 16: 512}
MATRIX_CLOCK = 1.83  # GHz, when all units for products are busy


class Target(NamedTuple):
    """A kind of device."""

    name: str
    bandwidth: float  # bytes a second between device and its memory
    memory: int  # bytes
    memory_clock: int  # kHz
    link: float  # bytes a second that a device gets from the others
    product_rate: float  # operations a second that float32 products reach as TF32, reasoned: a quarter of the peak
    cores: int = 132
    clock: float = 1.98  # GHz
    cache: int = 50 * 2**20  # bytes of the second level


TARGETS = {
    "h100": Target("NVIDIA H100 80GB HBM3", 3.35232e12, 84_942_979_072, 2_619_000, 450e9, 120e12),
    "h200": Target("NVIDIA H200", 4.8e12, 150_754_820_096, 3_201_000, 450e9, 120e12),
}
PLUGINS = {"0.10": "cuda12", "0.11": "cuda13"}  # of the versions of JAX


def wanted_plugin() -> str:
    """The two packages of `jax[cuda]` that compile; its libraries for running on a device are not needed."""
    cuda = PLUGINS.get(jax.__version__.rpartition(".")[0], "cuda13")
    return " ".join(f"jax-{cuda}-{part}=={jax.__version__}" for part in ("plugin", "pjrt"))


def devices(target: Target, count: int) -> list[Any]:
    """`count` devices of a kind on one host, to compile for.

    Raises:
        ValueError: JAX's plugin for CUDA is not installed.
    """
    if os.environ.get("JAX_SKIP_CUDA_CONSTRAINTS_CHECK") != "1":
        raise ValueError("set JAX_SKIP_CUDA_CONSTRAINTS_CHECK=1 before JAX is imported: there is no device to check")
    described = describe(target)
    try:
        topology = topologies.get_topology_desc(
            platform="cuda", topology_name="", target_config=described, topology=f"1x1x{count}"
        )
    except (RuntimeError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"no compiler for CUDA ({reason}): pip install --no-deps {wanted_plugin()}, in an environment of its own"
        ) from None
    return list(topology.devices)


def describe(target: Target) -> str:
    """The `GpuTargetConfigProto` of a target as text."""
    newer = not jax.__version__.startswith("0.10.")
    toolkit = "13.0.0" if newer else "12.9.0"
    device = f"""
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: {48 * 2**10}
  shared_memory_per_core: {228 * 2**10}
  shared_memory_per_block_optin: {227 * 2**10}
  threads_per_core_limit: 2048
  core_count: {target.cores}
  fpus_per_core: 128
  block_dim_limit_x: {2**31 - 1}
  block_dim_limit_y: {2**16 - 1}
  block_dim_limit_z: {2**16 - 1}
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
  registers_per_core_limit: {2**16}
  registers_per_block_limit: {2**16}
  memory_bandwidth: {int(target.bandwidth)}
  l2_cache_size: {target.cache}
  clock_rate_ghz: {target.clock}
  device_memory_size: {target.memory}
  device_address_bits: 64
  pcie_bandwidth: {32 * 2**30}
  ecc_enabled: true
  cuda_compute_capability {{ major: 9 feature_extension: ACCELERATED_FEATURES }}
  scalar_unit_description {{ {_rates(SCALAR, target.clock)} }}
  matrix_unit_description {{ {_rates({kind: (4, ops) for kind, ops in MATRIX.items()}, MATRIX_CLOCK)} }}
  device_interconnect_info {{ active_links: 18 }}
  {f"collective_memory_granularity: {2 * 2**20}" if newer else ""}
  device_vendor: "NVIDIA Corporation"
  platform_version: "Compute Capability 9.0a"
  name: "{target.name}"
  model_str: "sm_9.0a, {target.memory} B, {target.cores} cores, {target.memory_clock} kHz memory, {target.cache} B L2"
  driver_version: "13.0.0"
  runtime_version: "{toolkit}"
  compile_time_toolkit_version: "{toolkit}"
  dnn_version: "9.28.0"
  cub_version: "3.1.2"
"""
    return f"""gpu_device_info {{{device}}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 28 patch: 0 }}
device_description_str: "{target.name}"
"""


def _rates(units: dict[int, tuple[int, int]], clock: float) -> str:
    return " ".join(
        f"rate_infos {{ key: {kind} value {{ clock_rate_ghz: {clock} units_per_core: {count} ops_per_clock: {ops} }} }}"
        for kind, (count, ops) in units.items()
    )
