"""Speed-up over cores: the same rounds on one core, on all of them, and in two processes of one core each, in turn.

    python benchmarks/cores.py [--repeats 5] [--out FILE.json]

FedAvg and FedRep with an MLP 512-256-64, 100 clients of 150 random images. On one device XLA spreads some operations
over all cores it may use, so the time of one core needs a process that is bound to it. The two processes use
`jax.distributed` on this machine, with all data in both, and with `shard_data=True`. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
from pathlib import Path

ROUNDS = """
import json, os, sys
os.sched_setaffinity(0, {cores})
import jax
if {processes} > 1:
    jax.config.update("jax_num_cpu_devices", 1)
    jax.distributed.initialize("127.0.0.1:{port}", {processes}, {index})
import fedjax_srp as srp
from harness.measure import Rounds, seconds, synthetic
if {processes} == 1:
    srp.use_all_cores()
data = synthetic(100)
model = srp.models.MLP(data.example_shape, 10, (512, 256, 64))
algorithms = {{"FedAvg": srp.algorithms.FedAvg(model), "FedRep": srp.algorithms.FedRep(model)}}
runs = {{name: Rounds(algorithm, data, shard_data={shards}) for name, algorithm in algorithms.items()}}
print(json.dumps({{name: min(seconds(run) for _ in range(10)) for name, run in runs.items()}}))
"""


def measured(sets_of_cores: list[set[int]], shards: bool = False) -> dict[str, float]:
    """Least seconds of a round of each method, with a process for each set of cores."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    children = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                ROUNDS.format(cores=cores, processes=len(sets_of_cores), index=index, port=port, shards=shards),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        for index, cores in enumerate(sets_of_cores)
    ]
    said = [child.communicate()[0] for child in children]
    if any(child.returncode for child in children):
        raise SystemExit("a process failed; its message is above")
    return json.loads(said[0].splitlines()[-1])  # after the lines of Gloo


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    all_cores = sorted(os.sched_getaffinity(0))
    each = [{core} for core in all_cores[:2]]
    contenders = {
        "one_core": ([{all_cores[0]}], False),
        f"{len(all_cores)}_cores": ([{*all_cores}], False),
        "two_processes": (each, False),
        "two_processes_sharded": (each, True),
    }
    found: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
    for _ in range(args.repeats):
        for name, how in contenders.items():
            found[name].append(measured(*how))
    results: dict[str, dict[str, float]] = {}
    for method in found["one_core"][0]:
        rows = {name: [run[method] for run in runs] for name, runs in found.items()}
        results[method] = {f"seconds_{name}": statistics.median(times) for name, times in rows.items()}
        for name, times in rows.items():
            ratios = [a / b for a, b in zip(rows["one_core"], times, strict=True)]
            results[method][f"speed_up_{name}"] = statistics.median(ratios)
        print(method, "  ".join(f"{name} {value:.4g}" for name, value in results[method].items()), flush=True)
    if args.out:
        text = json.dumps({"cores": len(all_cores), "repeats": args.repeats, "rounds": results}, indent=1)
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
