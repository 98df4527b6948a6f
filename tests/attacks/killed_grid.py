"""Attacks on a grid: its process, or one of its workers, is killed at random moments until the grid is finished.

    python tests/attacks/killed_grid.py [--one-run] [--kills 20] [--seed 0] [--longest SECONDS] > FILE.json

The grid has 18 runs, three methods with two rates and three seeds each, in two batches: FedAvg and FedAvg-FT are one
training. With `--one-run` it has a single one, which the process of the grid executes as `fedjax-srp run` does. Counts
runs that differ, byte for byte, from those of an undisturbed grid. `killed_grid.json` has the results, on 2 CPU cores.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FILES = ("history.csv", "clients.csv")
GRID = """
[options]
dataset = "digits"
num_clients = 10
classes_per_client = 3
max_examples = 10
hidden = [8]
head_epochs = 1
fine_tune_epochs = 1
initial = 5
num_rounds = {num_rounds}
eval_every = {eval_every}

[axes]
{axes}
"""
AXES = 'method = ["srpfl", "fedavg", "fedavg_ft"]\nlearning_rate = [0.05, 0.1]\nseed = [0, 1, 2]'
WORDS = ("--workers", "2", "--batch", "6", "--retries", "100")
ONE_RUN = {"axes": 'method = ["srpfl"]', "words": ("--workers", "0")}
PROGRAM = "import sys; from fedjax_srp.lab.commands.cli import main; sys.exit(main())"


def start(file, out, cache, *words):
    """Start the command line in a new process; workers share a cache of compiled programs."""
    environment = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": os.fspath(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
    }
    command = [
        sys.executable,
        "-c",
        PROGRAM,
        "grid",
        os.fspath(file),
        "--out",
        os.fspath(out),
        "--no-progress",
    ]
    return subprocess.Popen(
        [*command, *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def contents(out):
    """Run folder -> the bytes of its tables."""
    folders = sorted(path.parent for path in out.glob("*/summary.json"))
    return {
        folder.name: [(folder / name).read_bytes() for name in FILES]
        for folder in folders
    }


def workers_of(process):
    """The ids of the workers that a process has started."""
    try:
        children = (
            Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        )
    except OSError:
        return []
    return [int(child) for child in children if is_worker(child)]


def is_worker(child):
    """Return True if a process is running and is a worker, not a helper of multiprocessing."""
    try:
        return "spawn_main" in Path(f"/proc/{child}/cmdline").read_text()
    except OSError:
        return False


def kill(process, rng, only_a_worker):
    """Kill the grid or one of its workers; return the number of workers that outlive the grid by more than 30 s."""
    workers = workers_of(process)
    if only_a_worker and workers:
        os.kill(rng.choice(workers), signal.SIGKILL)
        return 0
    process.kill()
    deadline = time.monotonic() + 30
    while any(map(is_worker, workers)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return sum(map(is_worker, workers))


def attack(
    number, folder, rng, num_rounds=20, eval_every=1, axes=AXES, words=WORDS, longest=None
):
    """Kill `number` times, over as many grids as it takes, and compare each with an undisturbed grid."""
    file, cache = folder / "grid.toml", folder / "cache"
    file.write_text(GRID.format(num_rounds=num_rounds, eval_every=eval_every, axes=axes))
    seconds = []
    for out in ("warm", "whole"):  # the first one compiles
        begin = time.monotonic()
        process = start(file, folder / out, cache, *words)
        printed, _ = process.communicate()
        assert process.returncode == 0, printed.decode()
        seconds.append(time.monotonic() - begin)
    expected = contents(folder / "whole")
    found = {
        "runs_of_a_grid": len(expected),
        "kills": 0,
        "of_workers": 0,
        "grids": 0,
        "restarts": 0,
    }
    found |= {"outlived": 0, "differences": 0, "failures": []}
    assert contents(folder / "warm") == expected
    while found["kills"] < number:
        out, is_finished = folder / f"grid_{found['grids']}", False
        while not is_finished:
            process = start(file, out, cache, *words)
            while found["kills"] < number and process.poll() is None:
                try:
                    process.wait(
                        rng.uniform(0, seconds[1] if longest is None else longest)
                    )
                except subprocess.TimeoutExpired:
                    only_a_worker = rng.random() < 0.5 and bool(workers_of(process))
                    found["outlived"] += kill(process, rng, only_a_worker)
                    found["kills"] += 1
                    found["of_workers"] += only_a_worker
            printed, _ = process.communicate()
            is_finished = process.returncode == 0
            found["restarts"] += not is_finished
            if process.returncode not in (0, -signal.SIGKILL):
                found["failures"].append(printed.decode()[-500:])
                is_finished = True
            print(json.dumps(found), file=sys.stderr, flush=True)
        found["grids"] += 1
        actual = contents(out)
        found["differences"] += sum(
            actual.get(name) != tables for name, tables in expected.items()
        )
        shutil.rmtree(out)
    return found


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--one-run", action="store_true", help="a grid of one run, without workers"
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--longest",
        type=float,
        help="seconds until a kill; default those of a whole grid",
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        options = {"longest": given.longest} | (ONE_RUN if given.one_run else {})
        found = {"seed": given.seed} | attack(
            given.kills, Path(folder), random.Random(given.seed), **options
        )
    print(json.dumps(found, indent=1))
    return int(bool(found["differences"] or found["outlived"] or found["failures"]))


if __name__ == "__main__":
    sys.exit(main())
