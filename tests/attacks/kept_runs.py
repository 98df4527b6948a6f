"""Attacks on runs with checkpoints: kills at random moments, bits flipped, Ctrl-C while a program starts and runs.

    python tests/attacks/kept_runs.py [--kills 40] [--flips 60] [--interrupts 35] > FILE.json

Counts runs that end with a difference to an undisturbed run, with a traceback, or late. `kept_runs.json` has the
results, on 2 CPU cores.
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
ROUNDS = 40
FILES = ("history.csv", "clients.csv")
WORDS = ["run", "--method", "srpfl", "--dataset", "digits", "--num-clients", "10", "--classes-per-client", "3"]
WORDS += ["--max-examples", "10", "--hidden", "8", "--head-epochs", "1", "--fine-tune-epochs", "1", "--initial", "5"]
WORDS += ["--num-rounds", str(ROUNDS), "--eval-every", "1", "--seed", "3", "--no-progress", "--models"]
PROGRAM = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
PROGRAM += "from fedjax_srp.commands.cli import main; print('ready', flush=True); sys.exit(main())"


def start(out, *words, cache=None):
    """Start the command line in a new process; return once it has imported the package."""
    environment = os.environ | ({"JAX_COMPILATION_CACHE_DIR": os.fspath(cache)} if cache else {})
    command = [sys.executable, "-c", PROGRAM, *WORDS, "--out", os.fspath(out), *words]
    pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen(command, env=environment, text=True, **pipes)
    process.stdout.readline()
    return process


def contents(folder):
    """The bytes of the tables and of the states."""
    from fedjax_srp import History, storage

    history = History.load(folder)
    states = storage.named((history.server_state, history.client_states))
    tables = [(folder / name).read_bytes() for name in FILES]
    return tables + [(name, str(leaf.dtype), leaf.tobytes()) for name, leaf in states.items()]


def kills(number, folder, rng):
    """Kill runs at random moments, continue them until they finish, and compare them with an undisturbed run."""
    cache, begin = folder / "cache", time.monotonic()
    assert start(folder / "whole", cache=cache).wait() == 0
    longest, expected = time.monotonic() - begin, contents(folder / "whole")
    found = {"kills": 0, "runs": 0, "differences": 0, "failures": []}
    is_killed = True
    while is_killed or found["kills"] < number:
        process = start(folder / "run", cache=cache)
        try:
            _, error = process.communicate(timeout=rng.uniform(0, longest) if found["kills"] < number else None)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            found["kills"] += 1
            is_killed = True
            continue
        is_killed = False
        if process.returncode:
            found["failures"].append(error[-300:])
            shutil.rmtree(folder / "run")
            continue
        longest = min(longest, 0.5 * longest + 1)  # the first one compiled
        found["runs"] += 1
        print(json.dumps(found), file=sys.stderr, flush=True)
        found["differences"] += contents(folder / "run") != expected
        shutil.rmtree(folder / "run")
    return found


def flips(number, folder, rng):
    """Flip bits, one at a time, in the checkpoints of an interrupted run: each is refused, or does not matter.

    The run is that of the tests of checkpoints, interrupted when it has two snapshots.
    """
    sys.path[:0] = [os.fspath(TESTS), os.fspath(TESTS / "engine")]
    import checkpoint_job as job

    from fedjax_srp.engine.checkpoint import Checkpoints

    expected, finish = tables(job.run()), Checkpoints.finish
    Checkpoints.finish = lambda self: None
    job.run(folder / "checkpoints", num_rounds=4)
    Checkpoints.finish = finish
    found = {"flips": 0, "refused": 0, "equal": 0, "silent_differences": 0}
    for _ in range(number):
        copy = Path(shutil.copytree(folder / "checkpoints", Path(tempfile.mkdtemp()) / "copy"))
        files = [path for path in sorted(copy.rglob("*")) if path.is_file() and path.stat().st_size]
        (path,) = rng.choices(files, [path.stat().st_size for path in files])
        content = bytearray(path.read_bytes())
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(content)
        try:
            outcome = "equal" if tables(job.run(copy)) == expected else "silent_differences"
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
    leaves = [*rounds, *history.accuracies.values(), *jax.tree.leaves(history.server_state)]
    return [np.asarray(leaf).tobytes() for leaf in leaves]


def interrupts(number, folder, rng):
    """Press Ctrl-C at random moments: exit code 130 and one line, soon."""
    found = {"interrupts": 0, "seconds_at_most": 0.0, "wrong": []}
    for i in range(number):
        process = start(folder / f"interrupted_{i}", "--num-rounds", "100000")
        time.sleep(rng.uniform(0, 15))
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=120)
        found["seconds_at_most"] = max(found["seconds_at_most"], round(time.monotonic() - begin, 2))
        found["interrupts"] += 1
        if process.returncode != 130 or len(error.strip().splitlines()) != 1:
            found["wrong"].append([process.returncode, error[-300:]])
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("kills", 40), ("flips", 60), ("interrupts", 35), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    found, rng = {"seed": given.seed}, random.Random(given.seed)
    if given.flips:
        sys.path.insert(0, os.fspath(TESTS))
        import conftest  # noqa: F401 - the devices of the tests

    with tempfile.TemporaryDirectory() as folder:
        for attack in (flips, kills, interrupts):
            if number := getattr(given, attack.__name__):
                found |= attack(number, Path(folder), rng)
                print(json.dumps(found), file=sys.stderr, flush=True)
    print(json.dumps(found, indent=1))
    return int(any(found.get(name) for name in ("differences", "silent_differences", "failures", "wrong")))


if __name__ == "__main__":
    sys.exit(main())
