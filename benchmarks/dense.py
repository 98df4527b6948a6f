"""What it saves to take the gradient of a dense layer as a sum of outer products: rounds of the MLP, in turn.

    python benchmarks/dense.py [--clients 40] [--repeats 15] [--out benchmarks/results/NAME.json]

MLP 784-512-256-64-10, clients of 150 random images. A row is the same method twice, with `models.dense.product` and
with the product of matrices alone; the ratio is the median over pairs. Batches of 16 and 32 are timed as if the sum
were taken there too: why it is not.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

import fedjax_srp as srp
from fedjax_srp.benchmark.measure import Rounds, machine, paired, seconds, synthetic
from fedjax_srp.models import dense

MOMENTUM = srp.algorithms.sgd(0.01, momentum=0.5)
ROWS: dict[str, tuple[Any, dict[str, Any]]] = {
    "FedAvg": (srp.algorithms.fedavg, {}),
    "FedAvg, momentum": (srp.algorithms.fedavg, {"optimizer": MOMENTUM}),
    "FedRep, momentum": (srp.algorithms.fedrep, {"optimizer": MOMENTUM}),
    "FedProx": (srp.algorithms.fedprox, {}),
    "SCAFFOLD": (srp.algorithms.scaffold, {}),
    **{f"FedAvg, batches of {size}": (srp.algorithms.fedavg, {"batch_size": size}) for size in (4, 16, 32)},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=40)
    parser.add_argument("--examples", type=int, default=150)
    parser.add_argument("--hidden", type=int, nargs="+", default=[512, 256, 64])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    srp.use_all_cores()
    data = synthetic(args.clients, args.examples)
    model = srp.models.mlp(data.example_shape, 10, args.hidden)
    results = {}
    for name, (factory, options) in ROWS.items():
        runs = []
        for most in (options.get("batch_size", 10), 0):
            dense.MOST_EXAMPLES = most
            runs.append(Rounds(factory(model, **options), data))
        ours, other = (partial(seconds, run) for run in runs)
        results[name] = paired(ours, other, args.repeats)
        print(f"{name:24s}", "  ".join(f"{key} {value:.4g}" for key, value in results[name].items()), flush=True)
        if args.out:
            args.out.write_text(json.dumps({"machine": machine(), "rounds": results}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
