"""What cores are worth: rounds on one core, on two, in two processes, and beside other runs, and a model for 16 cores.

    python benchmarks/cores.py [--repeats 5] [--clients 100] [--out FILE.json]

FedAvg and FedRep with an MLP 512-256-64, clients of 150 random images. On one device XLA spreads some operations over
all cores it may use, so the time of one core needs a process that is bound to it. Two processes of one run use
`jax.distributed` on this machine, with all data in both, and with `shard_data=True`; two and four runs beside each
other are processes that know nothing of each other, as those of a grid. All wait while others are measured, in turn.
Linux only.

The model: a round takes s + w n / D on D cores, for n clients. Both numbers come from one core, from rounds with all
clients and with half of them, so two cores are a check. What two cores take beyond it, and what a run loses beside
another, is taken as a share that stays; what a second process costs comes again with each doubling of processes.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
from harness.command import Child, parser, serve, write
from harness.measure import Rounds, machine, ratios, synthetic

import fedjax_srp as srp

MANY = 16  # cores of the table
ROUNDS = 3  # of a measurement


def child(
    cores: list[int], processes: int, index: int, port: int, shards: bool, clients: int
) -> None:
    """Run rounds of each method on some cores, when asked to."""
    os.sched_setaffinity(0, cores)
    if processes == 1:
        srp.use_all_cores()
    else:
        jax.config.update("jax_num_cpu_devices", 1)
        jax.distributed.initialize(f"127.0.0.1:{port}", processes, index)
    data = synthetic(clients)
    model = srp.models.MLP(data.example_shape, 10, (512, 256, 64))
    runs = {
        "FedAvg": Rounds(srp.algorithms.FedAvg(model), data, shard_data=shards),
        "FedRep": Rounds(srp.algorithms.FedRep(model), data, shard_data=shards),
    }
    serve({name: partial(several, run) for name, run in runs.items()})


def several(run: Callable[[], None]) -> None:
    """Run the rounds of a measurement."""
    for _ in range(ROUNDS):
        run()


class Contender:
    """Processes that run at the same time, one for each set of cores; of one run, or each of its own."""

    def __init__(
        self,
        clients: int,
        sets_of_cores: list[list[int]],
        one_run: bool = False,
        shards: bool = False,
    ):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        processes = 1
        if one_run:
            processes = len(sets_of_cores)
        common = {
            "processes": processes,
            "port": port,
            "shards": shards,
            "clients": clients,
        }
        self.pool = ThreadPoolExecutor(len(sets_of_cores))

        def start(index: int) -> Child:
            how = common | {"cores": sets_of_cores[index], "index": index}
            return Child([sys.executable, __file__, "--child", json.dumps(how)])

        self.children = list(self.pool.map(start, range(len(sets_of_cores))))

    def seconds(self, method: str) -> float:
        """Seconds of a round, of the slowest process."""
        taken = self.pool.map(lambda child: child.seconds(method)[0], self.children)
        return max(taken) / ROUNDS

    def close(self) -> None:
        """End the processes."""
        list(self.pool.map(Child.close, self.children))
        self.pool.shutdown()


def model(clients: int, times: Mapping[str, float]) -> dict[str, Any]:
    """Seconds of the model, its check on two cores, and speed-ups over one core that it expects of 16."""
    half = clients // 2
    each = (times["one_core"] - times["one_core_half"]) / (clients - half)
    once = times["one_core"] - clients * each

    def predicted(cores: int) -> float:
        return once + each * -(-clients // cores)

    def speed_up(seconds: float) -> float:
        return times["one_core"] / seconds

    beyond = times["2_cores"] / predicted(2)
    many = predicted(MANY) * beyond
    doublings = MANY.bit_length() - 1
    slower = times["two_runs"] / times["one_core"]
    return {
        "seconds_once": once,
        "seconds_a_client": each,
        "two_cores_predicted": predicted(2),
        "two_cores_over_predicted": beyond,
        "two_processes_over_predicted": times["two_processes"] / predicted(2),
        "expected_of_16": {
            "one process": speed_up(many),
            "a process a core, one run": speed_up(
                many + doublings * (times["two_processes"] - times["2_cores"])
            ),
            "a process a core, a run each": MANY / slower,
            "8 processes of two cores, a run each": MANY / 2 * speed_up(times["2_cores"]),
        },
    }


def main() -> None:
    command = parser(__doc__, 5)
    command.add_argument(
        "--child", type=json.loads, metavar="JSON", help="measure in this process"
    )
    command.add_argument("--clients", type=int, default=100)
    args = command.parse_args()
    if args.child:
        child(**args.child)
        return
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        command.error("this process may use one core; give it two")
    each = [[core] for core in cores]
    start = partial(Contender, args.clients)
    contenders = {
        "one_core": start(each[:1]),
        "one_core_half": Contender(args.clients // 2, each[:1]),
        "2_cores": start([cores]),
        "two_processes": start(each, one_run=True),
        "two_processes_sharded": start(each, one_run=True, shards=True),
        "two_runs": start(each),
        "four_runs": start([*each, *each]),
    }
    results: dict[str, Any] = {}
    for method in ("FedAvg", "FedRep"):
        times: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(1 + args.repeats):
            for name, contender in contenders.items():
                times[name].append(contender.seconds(method))
        for taken in times.values():
            del taken[0]
        found = {name: statistics.median(taken) for name, taken in times.items()}
        results[method] = {f"seconds_{name}": value for name, value in found.items()}
        results[method] |= {
            f"speed_up_{name}": statistics.median(ratios(times, "one_core", name))
            for name in times
            if name != "one_core_half"
        }
        for name, number in (("two_runs", 2), ("four_runs", 4)):
            results[method][f"speed_up_{name}"] *= number
        results[method]["model"] = model(args.clients, found)
        print(method, json.dumps(results[method], indent=1), flush=True)
    for contender in contenders.values():
        contender.close()
    facts = machine() | {"cores": len(cores), "clients": args.clients}
    write(args.out, facts | {"repeats": args.repeats, "rounds": results})


if __name__ == "__main__":
    main()
