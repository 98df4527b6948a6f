"""Bytes that the loops of a round read and write on a GPU, from a program compiled for one: no GPU is needed.

    python benchmarks/compile_for_gpu.py [--method fedavg] [--model mlp | lenet5] [--target h100 | h200]
        [--part round | evaluation] [--clients 1000] [--chunk 512] [--examples 150] [--momentum 0.5] [--seeds 3]
        [--precision highest] [--hlo FILE]

Prints the compiler's memory analysis and, for every loop of the optimised program, the kernels of one iteration in the
order in which they run, with the bytes that each reads and writes. Loops inside it are listed by themselves. The MLP is
784-512-256-64-10 on 28 x 28 images, LeNet-5 has images of 32 x 32 x 3, batches are of 10. With large and small chunks
every loop is there twice.

Bytes are those of operands and results. What stays in a cache between two kernels counts as moved. In a fusion, a
gather or a slice counts only the elements that it picks, and a scatter or an update in place only those that it
changes. On a real device XLA tries kernels before it chooses, so its program may differ.

It needs two more packages, of exactly the version of JAX: `jax-cuda12-plugin` and `jax-cuda12-pjrt` with JAX 0.10, or
`cuda13` in place of `cuda12` with JAX 0.11 (`pip install --no-deps`, about 0.5 GB, in a separate environment).
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")

import jax
import numpy as np
from harness.measure import synthetic
from jax.experimental import topologies

import fedjax_srp as srp
from fedjax_srp.data import FederatedData
from fedjax_srp.driver.prepare import Request, prepare
from fedjax_srp.driver.settings import Settings

SHAPES = {"mlp": (28, 28), "lenet5": (32, 32, 3)}
TARGETS = {  # name of the device, bytes a second between it and its memory, bytes of memory (data sheets, SXM boards)
    "h100": ("NVIDIA H100 80GB HBM3", 3_352_320_000_000, 84_942_979_072),
    "h200": ("NVIDIA H200", 4_800_000_000_000, 150_754_820_096),
}
FREE = (
    "parameter",
    "constant",
    "tuple",
    "get-tuple-element",
    "bitcast",
    "while",
)  # move nothing themselves
PASSED_ON = (
    "bitcast",
    "convert",
    "copy",
    "reshape",
    "transpose",
)  # an element needs one element of the operand
SLICES = ("gather", "dynamic-slice", "slice")
UPDATES = {
    "dynamic-update-slice": 1,
    "scatter": -1,
}  # position of the operand with the new elements
LINE = re.compile(r"^\s+(ROOT )?%([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\(([^)]*)(.*)$")


class Instruction(NamedTuple):
    """A line of a computation."""

    is_result: bool
    op: str
    sizes: list[int]  # bytes of the result; several where it is a tuple
    operands: list[str]  # names; the number of a parameter
    attributes: str  # the text after the operands


class Kernel(NamedTuple):
    """A kernel and the bytes that it reads and writes."""

    name: str
    source: str  # the operation of JAX
    read: int
    written: int


Computation = dict[str, Instruction]  # by name, in the order in which they run
Program = dict[str, Computation]  # the first one that runs is called ENTRY


def parse(text: str) -> Program:
    """Read an optimised program, `compiled.as_text()`."""
    program: Program = {}
    current: Computation = {}
    for line in text.splitlines():
        if head := re.match(r"(ENTRY )?%(\S+) \(.*\{\s*$", line):
            current = {}
            program["ENTRY" if head[1] else head[2]] = current
        elif match := LINE.match(line):
            is_result, name, shapes, op, operands, attributes = match.groups()
            sizes = [
                num_bytes(*shape)
                for shape in re.findall(r"\b(pred|[a-z]+\d\w*)\[([\d,]*)\]", shapes)
            ]
            names = re.findall(r"(?<=%)[\w.\-]+|^\d+$", operands)
            current[name] = Instruction(bool(is_result), op, sizes, names, attributes)
    return program


def num_bytes(dtype: str, dims: str) -> int:
    """Return the bytes of an array, from its type and its dimensions as HLO writes them."""
    if dtype == "pred":
        bits = 8
    else:
        bits = int(re.sub(r"^[a-z]+(\d+).*", r"\1", dtype))
    size = math.prod(int(dim) for dim in dims.split(",") if dim)
    return math.ceil(bits * size / 8)


def loops(
    program: Program, name: str = "ENTRY", depth: int = 0
) -> Iterator[tuple[str, int, list[Kernel]]]:
    """Yield a computation, its depth and its kernels, and then the same of every loop inside it."""
    within = program[name]
    yield (
        name,
        depth,
        [kernel(program, within, one) for one in within if within[one].op not in FREE],
    )
    for instruction in within.values():
        if instruction.op == "while" and (
            body := re.search(r"body=%([\w.\-]+)", instruction.attributes)
        ):
            yield from loops(program, body[1], depth + 1)


def kernel(program: Program, within: Computation, name: str) -> Kernel:
    """Count what a kernel reads and writes."""
    _, op, sizes, operands, attributes = within[name]
    read = [float(sum(within[operand].sizes)) for operand in operands]
    if op == "custom-call" and len(sizes) > 1:
        sizes = sizes[:-1]  # the last is working memory
    written = sum(sizes)
    if op == "fusion" and (called := re.search(r"calls=%([\w.\-]+)", attributes)):
        inner = program[called[1]]
        for parameter in (one for one in inner if inner[one].op == "parameter"):
            read[int(inner[parameter].operands[0])] *= share(inner, parameter)
        written = updated(inner, next(one for one in inner if inner[one].is_result))
    source = ""
    if found := re.search(r'op_name="(?:[^"]*/)?([^"/]*/[^"/]*)"', attributes):
        source = found[1]
    return Kernel(name, source, round(sum(read)), written)


def share(inner: Computation, name: str) -> float:
    """Return the fraction of a value that its fusion reads."""
    if inner[name].is_result:
        return 1.0
    total = 0.0
    for user, (_, op, sizes, operands, _) in inner.items():
        if name in operands and op in PASSED_ON:
            total += share(inner, user)
        elif name in operands[:1] and op in SLICES:
            total += sum(sizes) / sum(inner[name].sizes)
        elif name in operands[:1] and op in UPDATES:
            if op == "scatter":  # it may add to what is there
                total += updated(inner, user) / sum(inner[name].sizes)
        elif name in operands:
            return 1.0
    return min(1.0, total)


def updated(inner: Computation, name: str) -> int:
    """Return the bytes that a fusion with this result writes."""
    _, op, sizes, operands, _ = inner[name]
    if op in UPDATES:
        return sum(inner[operands[UPDATES[op]]].sizes)
    if op in ("bitcast", "tuple"):
        return sum(updated(inner, one) for one in operands)
    return sum(sizes)


def listing(program: Program) -> Iterator[str]:
    """Yield the lines of a table; kernels that move less than half a percent of their loop's bytes share one."""
    for name, depth, kernels in loops(program):
        total = sum(one.read + one.written for one in kernels)
        large = [one for one in kernels if one.read + one.written > total / 200]
        small = [one for one in kernels if one not in large]
        rest = Kernel(
            f"{len(small)} smaller",
            "",
            sum(k.read for k in small),
            sum(k.written for k in small),
        )
        place = "outside of loops"
        if depth:
            place = f"loop {name}, depth {depth}, one iteration"
        yield f"\n{place}: {len(kernels)} kernels, {total / 1e6:,.1f} MB\n   MB read    written  kernel"
        if small:
            large.append(rest)
        for one in large:
            yield f"{one.read / 1e6:10,.2f} {one.written / 1e6:10,.2f}  {one.name:40} {one.source}".rstrip()


def device(target: str) -> Any:
    """Return a device to compile for, from a `GpuTargetConfigProto` as text."""
    name, bandwidth, memory = TARGETS[target]
    cuda = "cuda13"
    toolkit = "13.0.0"
    more = f"collective_memory_granularity: {2 * 2**20}"
    if jax.__version_info__ < (0, 11):
        cuda = "cuda12"
        toolkit = "12.9.0"
        more = ""
    described = f"""gpu_device_info {{
  name: "{name}" platform_version: "Compute Capability 9.0a" {more}
  runtime_version: "{toolkit}" compile_time_toolkit_version: "{toolkit}" dnn_version: "9.28.0"
  cuda_compute_capability {{ major: 9 feature_extension: ACCELERATED_FEATURES }}
  core_count: 132 fpus_per_core: 128 clock_rate_ghz: 1.98 device_address_bits: 64
  memory_bandwidth: {bandwidth} l2_cache_size: {50 * 2**20} device_memory_size: {memory}
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  block_dim_limit_x: {2**31 - 1} block_dim_limit_y: {2**16 - 1} block_dim_limit_z: {2**16 - 1}
  registers_per_core_limit: {2**16} registers_per_block_limit: {2**16} shared_memory_per_core: {228 * 2**10}
  shared_memory_per_block: {48 * 2**10} shared_memory_per_block_optin: {227 * 2**10}
}}
platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 28 patch: 0 }} device_description_str: "{name}"
"""
    try:
        options: dict[str, Any] = {"target_config": described, "topology": "1x1x1"}
        return topologies.get_topology_desc(
            platform="cuda", topology_name="", **options
        ).devices[0]
    except (RuntimeError, NotImplementedError) as error:
        packages = " ".join(
            f"jax-{cuda}-{part}=={jax.__version__}" for part in ("plugin", "pjrt")
        )
        sys.exit(
            f"no compiler for CUDA ({str(error).splitlines()[0]}); pip install --no-deps {packages}"
        )


def federation(
    shape: tuple[int, ...], clients: int, examples: int
) -> tuple[FederatedData, FederatedData]:
    """Return a federation whose examples are shapes only, and a small one with real examples."""
    small = synthetic(clients, 1, 1, shape)
    parts: dict[str, Any] = {}
    for split, count in (("train", examples), ("test", -(-examples // 3))):
        for name in (f"x_{split}", f"y_{split}"):
            one = getattr(small, name)
            parts[name] = jax.ShapeDtypeStruct(
                (clients * count, *one.shape[1:]), one.dtype
            )
        parts[f"{split}_indices"] = np.arange(clients * count, dtype=np.int32).reshape(
            clients, count
        )
        parts[f"{split}_counts"] = np.full(clients, count, np.int32)
    return dataclasses.replace(small, **parts), small


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--method", choices=srp.methods.names(), default="fedavg", metavar="NAME"
    )
    parser.add_argument("--model", choices=SHAPES, default="mlp")
    parser.add_argument("--target", choices=TARGETS, default="h200")
    parser.add_argument("--part", choices=("round", "evaluation"), default="round")
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument(
        "--chunk", type=int, help="clients at once; the package's default"
    )
    parser.add_argument(
        "--examples",
        type=int,
        default=150,
        help="of a client, and a third as many for tests",
    )
    parser.add_argument(
        "--momentum", type=float, help="of local training, where a method has it"
    )
    parser.add_argument(
        "--seeds", type=int, help="runs at once; one run without an axis of seeds"
    )
    parser.add_argument(
        "--precision",
        default="default",
        help="of matrix products: jax.default_matmul_precision",
    )
    parser.add_argument(
        "--hlo", type=Path, metavar="FILE", help="keep the text of the program"
    )
    args = parser.parse_args(arguments)
    data, small = federation(SHAPES[args.model], args.clients, args.examples)
    shared = {"momentum": args.momentum}
    if args.model == "mlp":
        shared["hidden"] = (512, 256, 64)
    method = srp.methods.get(args.method, dataset=small, model=args.model, shared=shared)
    is_round = args.part == "round"
    settings = Settings(
        chunk_size=args.chunk,
        devices=[device(args.target)],
        evaluations=() if is_round else None,
    )
    request = Request(method, data, settings=settings, num_seeds=args.seeds)
    with jax.default_matmul_precision(args.precision):
        run = prepare(request)
        compiled: Any = run.traced(is_round).lower().compile()
    text = compiled.as_text()
    memory = compiled.memory_analysis()
    if args.hlo:
        args.hlo.write_text(text)
    layout = run.layout
    if not is_round:
        layout = layout.for_evaluation()
    chunks = " and ".join(f"{part.chunk_size:,}" for part in layout.by_chunk_size)
    print(
        f"{args.part} of {args.method}, {args.model}, {args.clients:,} clients in chunks of {chunks}, {args.target}"
    )
    temporary = memory.temp_size_in_bytes / 1e6
    peak = memory.peak_memory_in_bytes / 1e6
    print(f"memory: {temporary:,.1f} MB temporary, {peak:,.1f} MB at the peak")
    print("\n".join(listing(parse(text))))


if __name__ == "__main__":
    main()
