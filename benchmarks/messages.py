"""Rounds of FedAvg's MLP under codecs, against the round without one.

    python benchmarks/messages.py [--repeats 15] [--out FILE.json]

The federation is that of `rounds.py`: 100 clients of 150 images, 28 x 28, layers of 512, 256 and 64, of whom 20 clients
are in memory here, an epoch in batches of 10 with momentum. A codec's work does not depend on the epochs: with five of
them it weighs a fifth.

Times are CPU seconds of the process, with one device and one thread, codecs in turn, and ratios are medians over pairs
with quartiles: other processes disturb little, though caches and clock rates are shared.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import numpy as np
from harness.command import parser, write
from harness.measure import Rounds, cpu_seconds, in_turn, machine, ratios, synthetic

import fedjax_srp as srp
from fedjax_srp import algorithms, models

PLAIN = "none"
CODES = {
    PLAIN: None,
    "half": "half",
    "sign under error feedback": "ErrorFeedback(Sign())",
    "8 bits": "Quantized(8)",
    "4 bits, buckets of 512": "Quantized(4, bucket=512)",
    "largest 1 %": "TopK(0.01)",
    "largest 1 % under error feedback": "ErrorFeedback(TopK(0.01))",
    "largest 10 %": "TopK(0.1)",
    "random 10 %": "RandomK(0.1)",
    "rank 4": "LowRank(4)",
}


def main() -> None:
    args = parser(__doc__, 15).parse_args()
    data = synthetic(20, 150, tests=2)
    model = models.MLP((28, 28), num_classes=10, hidden=(512, 256, 64))
    training = srp.Training(srp.SGD(0.01, momentum=0.5))
    fedavg = algorithms.FedAvg(model, training)
    contenders: dict[str, Any] = {}
    for name, code in CODES.items():
        algorithm: Any = fedavg
        if code is not None:
            algorithm = srp.messages.Coded(fedavg, up=code)
        rounds = Rounds(algorithm, data, srp.participation.Full(), devices=1)
        contenders[name] = partial(cpu_seconds, rounds)
    found = in_turn(contenders, args.repeats, 0.0)
    results: dict[str, Any] = {
        "machine": machine(),
        "repeats": args.repeats,
        "results": {},
    }
    for name in CODES:
        of_pairs = ratios(found, name, PLAIN)
        low, median, high = np.quantile(of_pairs, (0.25, 0.5, 0.75)).tolist()
        results["results"][name] = {
            "code": CODES[name],
            "milliseconds": 1000 * float(np.median(found[name])),
            "ratio": median,
            "quartiles": [low, high],
        }
        print(f"{name:36s} {median:.2f} ({low:.2f} to {high:.2f})", flush=True)
    write(args.out, results)


if __name__ == "__main__":
    main()
