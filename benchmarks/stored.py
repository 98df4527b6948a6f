"""Rounds of 1,000 clients whose states lie in a file, beside rounds with all states in memory.

    python benchmarks/stored.py [--clients 10000 100000 1000000] [--in-memory 10000 100000] [--repeats 10]
                                [--out FILE.json]

FedRep with an MLP 64-32-255-10, so that a client keeps a head of 10,240 bytes: those of a million are 10 GB. The 20
examples of a client are drawn in the program when they are read. Every round draws 1,000 clients, and none is
evaluated, as in `million.py`. Sizes are timed in turn, five rounds at a time, in seconds and in CPU seconds of the
process. The resident memory of the process is taken after each turn, so that growth shows.
"""

from __future__ import annotations

import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import jax
from harness.command import parser, write
from harness.measure import in_turn, machine, peak_memory, summary
from million import CLASSES, COHORT, FEATURES, GIB, LENGTH, Drawn

import fedjax_srp as srp
from fedjax_srp.driver.prepare import Request, prepare
from fedjax_srp.driver.settings import Settings
from fedjax_srp.driver.stored import FILE, StoredProgram

HIDDEN = (32, 255)


class Federation:
    """Compiled rounds of a federation of this size; with a folder, its states lie in a file there."""

    def __init__(self, clients: int, folder: Path | None):
        model = srp.models.MLP((FEATURES,), CLASSES, HIDDEN)
        training = srp.Training(srp.SGD(0.05))
        algorithm = srp.algorithms.FedRep(model, training, head_epochs=5)
        settings = Settings(evaluations=(), states_dir=folder)
        policy = srp.participation.Uniform(COHORT)
        run = prepare(Request(algorithm, Drawn(clients), policy, settings=settings))
        self.folder = folder
        self.program = run.program() if folder is None else StoredProgram(run)
        self.root, self.data = run.placed(jax.random.key(0))
        self.state = self.program.start(self.root, self.data).state
        self.resident: list[float] = []
        self()

    def __call__(self) -> None:
        """Runs `LENGTH` rounds and waits."""
        self.state, segment = self.program.segment(
            LENGTH, self.state, self.root, self.data
        )
        jax.block_until_ready(segment)


def both_seconds(federation: Federation) -> Any:
    """Seconds and CPU seconds of a call; the resident memory after it is noted."""
    begin = time.perf_counter(), time.process_time()
    federation()
    elapsed = time.perf_counter() - begin[0], time.process_time() - begin[1]
    federation.resident.append(resident_memory())
    return elapsed


def resident_memory() -> float:
    """Bytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return float(pages * 4096)


def main() -> None:
    command = parser(__doc__, 10)
    command.add_argument(
        "--clients", type=int, nargs="+", default=[10_000, 100_000, 1_000_000]
    )
    command.add_argument("--in-memory", type=int, nargs="*", default=[10_000, 100_000])
    args = command.parse_args()
    srp.use_all_cores()
    found: dict[str, Any] = machine()
    found["resident_gib_before"] = resident_memory() / GIB
    runs = Path("runs")
    runs.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=runs) as folder:
        federations = {}
        for clients in args.clients:
            place = Path(folder) / str(clients)
            federations[f"file, {clients}"] = Federation(clients, place)
        of_files = run_in_turn(federations, args.repeats, found)
        found["file"] = of_files
    in_memory = {
        f"memory, {clients}": Federation(clients, None) for clients in args.in_memory
    }
    found["memory"] = run_in_turn(in_memory, args.repeats, found)
    found["peak_gib"] = peak_memory() / GIB
    write(args.out, found)


def run_in_turn(
    federations: dict[str, Federation], repeats: int, found: dict[str, Any]
) -> dict[str, Any]:
    """Times and memory of federations, which are timed in turn."""
    calls = {name: partial(both_seconds, each) for name, each in federations.items()}
    times: dict[str, Any] = in_turn(calls, repeats)
    results = {}
    for name, federation in federations.items():
        seconds, cpu = zip(*times[name], strict=True)
        result = {
            "seconds": summary([each / LENGTH for each in seconds]),
            "cpu_seconds": summary([each / LENGTH for each in cpu]),
            "resident_gib": [each / GIB for each in federation.resident],
        }
        if federation.folder is not None:
            file = (federation.folder / FILE).stat()
            result["file_gib"] = file.st_size / GIB
            result["on_disk_gib"] = file.st_blocks * 512 / GIB
        results[name] = result
        print(
            f"{name}: {result['seconds']['median']:.3g} s, {result['cpu_seconds']['median']:.3g} CPU s a round,",
            f"resident {result['resident_gib'][0]:.3g} to {result['resident_gib'][-1]:.3g} GiB",
            flush=True,
        )
    return results


if __name__ == "__main__":
    main()
