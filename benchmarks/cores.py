"""Speed-up over cores: the same rounds in processes that may use one core, and all of them, in turn.

    python benchmarks/cores.py [--repeats 5] [--out FILE.json]

FedAvg and FedRep with an MLP 512-256-64, 100 clients of 150 random images. On one device XLA spreads some operations
over every core it may use, so only a process that is bound to one core shows what one core does. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

ROUNDS = """
import json, os, sys
os.sched_setaffinity(0, {cores})
import fedjax_srp as srp
from harness.measure import Rounds, seconds, synthetic
srp.use_all_cores()
data = synthetic(100)
model = srp.models.MLP(data.example_shape, 10, (512, 256, 64))
algorithms = {{"FedAvg": srp.algorithms.FedAvg(model), "FedRep": srp.algorithms.FedRep(model)}}
runs = {{name: Rounds(algorithm, data) for name, algorithm in algorithms.items()}}
print(json.dumps({{name: min(seconds(run) for _ in range(10)) for name, run in runs.items()}}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    everything = os.sched_getaffinity(0)
    one, every = {min(everything)}, everything
    found: dict[str, list[dict[str, float]]] = {"one": [], "every": []}
    for _ in range(args.repeats):
        for name, cores in (("one", one), ("every", every)):
            done = subprocess.run(
                [sys.executable, "-c", ROUNDS.format(cores=cores)], check=True, capture_output=True, text=True
            )
            found[name].append(json.loads(done.stdout))
    results = {}
    for method in found["one"][0]:
        pairs = [(a[method], b[method]) for a, b in zip(found["one"], found["every"], strict=True)]
        medians = [statistics.median(times) for times in zip(*pairs, strict=True)]
        results[method] = {
            "seconds_one_core": medians[0],
            f"seconds_{len(every)}_cores": medians[1],
            "speed_up": statistics.median(a / b for a, b in pairs),
        }
        print(method, "  ".join(f"{name} {value:.4g}" for name, value in results[method].items()))
    if args.out:
        args.out.write_text(
            json.dumps({"cores": len(every), "repeats": args.repeats, "rounds": results}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
