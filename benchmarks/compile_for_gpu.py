"""Costs of the rounds of a method on a GPU, from programs that are compiled for one: no GPU is needed.

    python benchmarks/compile_for_gpu.py [--methods NAME ...] [--models mlp lenet5] [--targets h100 h200]
        [--clients 1000] [--chunk 512 ...] [--devices 1 4] [--shard-data] [--graphs on off] [--out FILE.json]

Clients have 150 training and 50 test images, batches of 10: 28 x 28 for the MLP 784-512-256-64-10, 32 x 32 x 3 for
LeNet-5. For one round (of the first stage, if cohorts grow) and one evaluation of all clients it prints and writes, for
each device: kernels, decisions that wait for the host, bytes moved, operations of products, memory, and loops outside
of CUDA graphs, all from the compiled program; and milliseconds by a roofline model of these (see
`gpu_program/roofline.py`). `--graphs on` puts loops into CUDA graphs; without it the compiler does so with straight
code alone. A program that is compiled on a device may differ, because autotuning measures kernels there: the tiles of
products, and the choice between libraries, may change, and working memory with them.

It needs two more packages, of exactly the version of JAX: `jax-cuda12-plugin` and `jax-cuda12-pjrt` with JAX 0.10,
`jax-cuda13-plugin` and `jax-cuda13-pjrt` with JAX 0.11 (`pip install --no-deps`, about 0.5 GB, in a separate
environment). Nothing else of `jax[cuda12]` or `jax[cuda13]` is used: the compiler has its assembler and its device
functions built in, and loads no library of the device.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import jax
from gpu_program.build import PARTS, SHAPES, Case, compile_for, trace
from gpu_program.report import KEY, facts, line, row, table, write
from gpu_program.targets import TARGETS, devices

import fedjax_srp as srp

# The most informative first, since the whole list takes long.
FIRST = ("fedavg", "fedrep", "srpfl", "lg_fedavg", "hf_maml", "ditto", "scaffold")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [*FIRST, *(name for name in srp.methods.names() if name not in FIRST)]
    parser.add_argument("--methods", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--models", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS[1:]))
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--chunk", type=int, nargs="+", help="clients at once on a device; the package's default")
    parser.add_argument("--devices", type=int, nargs="+", choices=(1, 4), default=[1])
    parser.add_argument("--shard-data", action="store_true", help="each client's data on one device only")
    parser.add_argument("--graphs", nargs="+", choices=("on", "off"), default=["off", "on"], help="CUDA graphs")
    parser.add_argument("--momentum", type=float, default=0.0, help="of local training, where a method has it")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/benchmark/gpu-compiled.json"), help="other results in it are kept"
    )
    parser.add_argument("--table", type=Path, metavar="FILE", help="print the tables of the manual, and exit")
    args = parser.parse_args(arguments)
    if args.table:
        print(table(json.loads(args.table.read_text("utf-8"))), end="")
        return
    jax.config.update("jax_traceback_in_locations_limit", -1)  # loops are identified by their source lines
    results = {tuple(result[name] for name in KEY): result for result in _kept(args.out)}
    failed = 0
    cases = (
        (Case(method, model, args.clients, chunk, count, args.shard_data, args.momentum), target)
        for target in args.targets
        for model in args.models
        for count in args.devices
        for chunk in args.chunk or [None]
        for method in args.methods
    )
    try:
        found_devices = {(name, n): devices(TARGETS[name], n) for name in args.targets for n in args.devices}
    except ValueError as error:
        sys.exit(str(error))
    for case, name in cases:
        target = TARGETS[name]
        try:
            traces = trace(case, found_devices[name, case.devices], args.parts)
            for part, (traced, loops) in traces.programs.items():
                layout = traces.run.layout.for_evaluation() if part == "evaluation" else traces.run.layout
                for graphs in args.graphs:
                    found = compile_for(traced, loops, target, graphs == "on")
                    more = {"target": name, "part": part, "graphs": graphs == "on", "chunk_size": layout.chunk_size}
                    more["large_chunk"] = layout.large_chunk
                    result = row(case, found, **more)
                    results[tuple(result[field] for field in KEY)] = result
                    write(args.out, list(results.values()))
                    print(line(result), flush=True)
        except ValueError as error:
            failed += 1
            print(f"{case.method} {case.model} {name}: {error}", file=sys.stderr, flush=True)
    if failed:
        sys.exit(f"{failed} of the cases failed; the others are in {args.out}")


def _kept(out: Path) -> list[dict[str, Any]]:
    """Results of earlier calls; exits if they were made under other assumptions."""
    if not out.is_file():
        return []
    known = json.loads(out.read_text("utf-8"))
    differs = [name for name, value in json.loads(json.dumps(facts())).items() if known.get(name) != value]
    if differs:
        sys.exit(f"--out {out}: its results have a different {differs[0]}; give another file, or remove this one")
    return known["results"]


if __name__ == "__main__":
    main()
