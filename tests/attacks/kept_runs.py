"""Attacks on runs with checkpoints: bits flipped, Ctrl-C while a program starts and runs.

    python tests/attacks/kept_runs.py [--flips 60] [--interrupts 35] > FILE.json

Counts runs that end with a difference to an undisturbed run, with a traceback, or late. `kept_runs.json` has the
results, on 2 CPU cores; `killed_grid.py` kills runs.
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

TESTS = Path(__file__).parents[1]
WORDS = [
    "run",
    "--method",
    "srpfl",
    "--dataset",
    "digits",
    "--num-clients",
    "10",
    "--classes-per-client",
    "3",
]
WORDS += [
    "--max-examples",
    "10",
    "--hidden",
    "8",
    "--head-epochs",
    "1",
    "--fine-tune-epochs",
    "1",
    "--initial",
    "5",
]
WORDS += ["--num-rounds", "100000", "--eval-every", "1", "--seed", "3", "--no-progress"]
PROGRAM = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
PROGRAM += "from fedjax_srp.lab.commands.cli import main; print('ready', flush=True); sys.exit(main())"


def start(out):
    """Start the command line in a new process; return once it has imported the package."""
    command = [sys.executable, "-c", PROGRAM, *WORDS, "--out", os.fspath(out)]
    process = subprocess.Popen(
        command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.readline()
    return process


def flips(number, folder, rng):
    """Flip bits, one at a time, in the checkpoints of an interrupted run: each is refused, or does not matter.

    The run is that of the tests of checkpoints, interrupted when it has two snapshots.
    """
    sys.path[:0] = [os.fspath(TESTS), os.fspath(TESTS / "engine")]
    import checkpoint_job as job

    from fedjax_srp.driver.checkpoint import Checkpoints

    expected, finish = tables(job.run()), Checkpoints.finish
    Checkpoints.finish = lambda self: None
    job.run(folder / "checkpoints", num_rounds=4)
    Checkpoints.finish = finish
    found = {"flips": 0, "refused": 0, "equal": 0, "silent_differences": 0}
    for _ in range(number):
        copy = Path(
            shutil.copytree(folder / "checkpoints", Path(tempfile.mkdtemp()) / "copy")
        )
        files = [
            path
            for path in sorted(copy.rglob("*"))
            if path.is_file() and path.stat().st_size
        ]
        (path,) = rng.choices(files, [path.stat().st_size for path in files])
        content = bytearray(path.read_bytes())
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(content)
        try:
            outcome = (
                "equal" if tables(job.run(copy)) == expected else "silent_differences"
            )
        except ValueError as error:
            outcome = "silent_differences" if "\n" in str(error) else "refused"
        found["flips"] += 1
        found[outcome] += 1
        shutil.rmtree(copy.parent)
    return found


def tables(history):
    """The bytes of a history's arrays."""
    import jax
    import numpy as np

    rounds = history.stage, history.cohort_size, history.compute_time, history.eval_round
    leaves = [
        *rounds,
        *history.accuracies.values(),
        *jax.tree.leaves(history.server_state),
    ]
    return [np.asarray(leaf).tobytes() for leaf in leaves]


def interrupts(number, folder, rng):
    """Press Ctrl-C at random moments: exit code 130 and one line, soon."""
    found = {"interrupts": 0, "seconds_at_most": 0.0, "wrong": []}
    for i in range(number):
        process = start(folder / f"interrupted_{i}")
        time.sleep(rng.uniform(0, 15))
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=120)
        found["seconds_at_most"] = max(
            found["seconds_at_most"], round(time.monotonic() - begin, 2)
        )
        found["interrupts"] += 1
        if process.returncode != 130 or len(error.strip().splitlines()) != 1:
            found["wrong"].append([process.returncode, error[-300:]])
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("flips", 60), ("interrupts", 35), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    found, rng = {"seed": given.seed}, random.Random(given.seed)
    if given.flips:
        sys.path.insert(0, os.fspath(TESTS))
        import conftest  # noqa: F401 - the devices of the tests

    with tempfile.TemporaryDirectory() as folder:
        for attack in (flips, interrupts):
            if number := getattr(given, attack.__name__):
                found |= attack(number, Path(folder), rng)
                print(json.dumps(found), file=sys.stderr, flush=True)
    print(json.dumps(found, indent=1))
    return int(any(found.get(name) for name in ("silent_differences", "wrong")))


if __name__ == "__main__":
    sys.exit(main())
