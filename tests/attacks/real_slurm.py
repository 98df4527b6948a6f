"""Attacks on a grid on a real Slurm: its jobs are cancelled, queued again and stopped by their time limit.

    python tests/attacks/real_slurm.py [--partition NAME] [--minutes] > FILE.json

Counts runs that differ, byte for byte, from those of an undisturbed grid on the same Slurm. `--minutes` adds an attack
of a few minutes: a time limit that is shorter than the run. The node is drained only where the caller is an
administrator of Slurm. `real_slurm.json` has the results of a Slurm of one node.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from killed_grid import GRID, contents, start

AXES = 'method = ["srpfl"]\nseed = [0, 1, 2]'
SLURM = """
[slurm]
cpus_per_task = 1
timeout_min = {timeout_min}
{partition}
"""
WORDS = ("--launcher", "slurm", "--batch", "1", "--retries", "3")


def slurm(*words):
    """Run a command of Slurm, which may come too late for a job, and return what it prints."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.stdout


def wait_for_job(process):
    """Return the id and the node of a job that began a little ago; None if the grid ended without one."""
    while process.poll() is None:
        time.sleep(0.2)
        running = slurm("squeue", "--me", "-h", "-t", "RUNNING", "-o", "%i %N")
        if running:
            time.sleep(5)  # until it is in the middle of something
            return running.splitlines()[0].split()
    return None


def cancel(job, node):
    """Cancel a job."""
    slurm("scancel", job)


def requeue(job, node):
    """Put a running job back into the queue."""
    slurm("scontrol", "requeue", job)


def drain(job, node):
    """Drain the node of a job, cancel it there, and give the node back a little later."""
    slurm("scontrol", "update", f"nodename={node}", "state=drain", "reason=attack")
    slurm("scancel", job)
    time.sleep(10)
    slurm("scontrol", "update", f"nodename={node}", "state=resume")


def run(file, out, cache, attacks=()):
    """Run a grid under attacks, one after the other; return its exit code, seconds and output."""
    begin = time.monotonic()
    process = start(file, out, cache, *WORDS)
    for attack in attacks:
        job = wait_for_job(process)
        if job is not None:
            attack(*job)
    printed, _ = process.communicate()
    return {
        "exit_code": process.returncode,
        "seconds": round(time.monotonic() - begin),
        "printed": printed.decode()[-1000:],
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--partition")
    parser.add_argument("--minutes", action="store_true")
    given = parser.parse_args()
    partition = ""
    if given.partition is not None:
        partition = f'slurm_partition = "{given.partition}"'
    attacks = {"undisturbed": [], "cancelled": [cancel, cancel], "requeued": [requeue]}
    attacks["drained"] = [drain]
    found = {}
    with tempfile.TemporaryDirectory(dir=Path.home()) as name:  # that the nodes share
        folder = Path(name)
        file = folder / "grid.toml"
        cache = folder / "cache"
        table = SLURM.format(timeout_min=10, partition=partition)
        file.write_text(GRID.format(num_rounds=40, eval_every=1, axes=AXES) + table)
        for attack, moments in attacks.items():
            found[attack] = run(file, folder / attack, cache, moments)
            print(attack, found[attack], file=sys.stderr, flush=True)
            found[attack]["differences"] = differences(folder, attack)
        if given.minutes:
            table = SLURM.format(timeout_min=1, partition=partition)
            rounds = {"num_rounds": 20000, "eval_every": 100}
            axes = 'method = ["srpfl"]'
            file.write_text(GRID.format(**rounds, axes=axes) + table)
            found["limited"] = run(file, folder / "limited", cache)
            print(found["limited"], file=sys.stderr, flush=True)
    print(json.dumps(found, indent=1))
    return int(any(one["exit_code"] or one.get("differences") for one in found.values()))


def differences(folder, attack):
    """Count the runs that differ from those of the undisturbed grid."""
    expected = contents(folder / "undisturbed")
    actual = contents(folder / attack)
    return sum(actual.get(name) != tables for name, tables in expected.items())


if __name__ == "__main__":
    sys.exit(main())
