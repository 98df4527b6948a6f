"""Memory of the process over the rounds of a large federation: it should be constant, for any size of cohort.

    python benchmarks/memory.py [--clients 10000] [--examples 150] [--cohorts 100 200] [--rounds 200] [--out FILE.json]

FedRep with an MLP 512-256-64 on clients with random images of 28 x 28. For every cohort size: memory of the process
after 10 rounds and after all, working memory of a segment on each device by the compiler, and the median of the seconds
of a round. The peak is that of the process so far.
"""

from __future__ import annotations

import statistics
from pathlib import Path

from harness.command import parser, write
from harness.measure import Rounds, machine, peak_memory, seconds, synthetic

import fedjax_srp as srp

GIB = 2**30


def resident_gib() -> float:
    """Memory of the process now, in GiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / GIB


def main() -> None:
    command = parser(__doc__)
    command.add_argument("--clients", type=int, default=10_000)
    command.add_argument("--examples", type=int, default=150, help="of a client")
    command.add_argument("--cohorts", type=int, nargs="+", default=[100, 200])
    command.add_argument("--rounds", type=int, default=200)
    args = command.parse_args()
    srp.use_all_cores()
    data = synthetic(args.clients, args.examples, tests=1)
    model = srp.models.MLP(data.example_shape, 10, (512, 256, 64))
    algorithm = srp.algorithms.FedRep(model, srp.Training(srp.SGD(0.01, momentum=0.5)))
    results = []
    for cohort in args.cohorts:
        run = Rounds(algorithm, data, srp.participation.Fastest(cohort), length=5)
        found = {
            "cohort": cohort,
            "working_gib": run.working_bytes / GIB,
            "chunk_size": run.layout.chunk_size,
        }
        times = []
        for _ in range(2, max(2, args.rounds // run.length) + 1):
            times.append(seconds(run) / run.length)
            if "gib_after_10_rounds" not in found:
                found["gib_after_10_rounds"] = resident_gib()
        found |= {
            "rounds": int(run.state.round),
            "gib_at_the_end": resident_gib(),
            "peak_gib": peak_memory() / GIB,
        }
        found["seconds_a_round"] = statistics.median(times)
        results.append(found)
        print(
            "  ".join(f"{name} {value:.4g}" for name, value in found.items()), flush=True
        )
    write(
        args.out,
        machine()
        | {"clients": args.clients, "examples": args.examples, "results": results},
    )


if __name__ == "__main__":
    main()
