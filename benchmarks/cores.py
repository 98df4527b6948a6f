"""Speed-up over cores: the same rounds on one core, on all of them, and in two processes of one core each, in turn.

    python benchmarks/cores.py [--repeats 5] [--out FILE.json]

FedAvg and FedRep with an MLP 512-256-64, 100 clients of 150 random images. On one device XLA spreads some operations
over all cores it may use, so the time of one core needs a process that is bound to it. The two processes use
`jax.distributed` on this machine, with all data in both, and with `shard_data=True`. Linux only.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys

import jax
from harness.command import parser, write
from harness.measure import Rounds, ratios, seconds, synthetic

import fedjax_srp as srp


def child(
    cores: list[int], processes: int, index: int, port: int, shards: bool, clients: int
) -> None:
    """Print the least seconds of a round of each method, on some cores."""
    os.sched_setaffinity(0, cores)
    if processes == 1:
        srp.use_all_cores()
    else:
        jax.config.update("jax_num_cpu_devices", 1)
        jax.distributed.initialize(f"127.0.0.1:{port}", processes, index)
    data = synthetic(clients)
    model = srp.models.MLP(data.example_shape, 10, (512, 256, 64))
    algorithms = {
        "FedAvg": srp.algorithms.FedAvg(model),
        "FedRep": srp.algorithms.FedRep(model),
    }
    runs = {
        name: Rounds(algorithm, data, shard_data=shards)
        for name, algorithm in algorithms.items()
    }
    print(
        json.dumps(
            {name: min(seconds(run) for _ in range(10)) for name, run in runs.items()}
        )
    )


def measured(
    sets_of_cores: list[list[int]], shards: bool = False, clients: int = 100
) -> dict[str, float]:
    """Least seconds of a round of each method, with a process for each set of cores."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    common = {
        "processes": len(sets_of_cores),
        "port": port,
        "shards": shards,
        "clients": clients,
    }
    children = [
        subprocess.Popen(
            [
                sys.executable,
                __file__,
                "--child",
                json.dumps(common | {"cores": cores, "index": index}),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        for index, cores in enumerate(sets_of_cores)
    ]
    said = [process.communicate()[0] for process in children]
    if any(process.returncode for process in children):
        raise SystemExit("a process failed; its message is above")
    return json.loads(said[0].splitlines()[-1])  # after the lines of Gloo


def main() -> None:
    command = parser(__doc__, 5)
    command.add_argument(
        "--child", type=json.loads, metavar="JSON", help="measure in this process"
    )
    args = command.parse_args()
    if args.child:
        child(**args.child)
        return
    all_cores = sorted(os.sched_getaffinity(0))
    each = [[core] for core in all_cores[:2]]
    contenders = {
        "one_core": ([all_cores[:1]], False),
        f"{len(all_cores)}_cores": ([all_cores], False),
        "two_processes": (each, False),
        "two_processes_sharded": (each, True),
    }
    found: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
    for _ in range(args.repeats):
        for name, how in contenders.items():
            found[name].append(measured(*how))
    results: dict[str, dict[str, float]] = {}
    for method in found["one_core"][0]:
        times = {name: [run[method] for run in runs] for name, runs in found.items()}
        results[method] = {
            f"seconds_{name}": statistics.median(taken) for name, taken in times.items()
        }
        results[method] |= {
            f"speed_up_{name}": statistics.median(ratios(times, "one_core", name))
            for name in times
        }
        print(
            method,
            "  ".join(f"{name} {value:.4g}" for name, value in results[method].items()),
            flush=True,
        )
    write(args.out, {"cores": len(all_cores), "repeats": args.repeats, "rounds": results})


if __name__ == "__main__":
    main()
