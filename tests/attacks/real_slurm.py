"""Attacks on a grid on a real Slurm: its jobs are cancelled, queued again and stopped by their time limit.

    python tests/attacks/real_slurm.py [--partition NAME] [ATTACK ...] > FILE.json

Attacks are cancelled, requeued, drained (for an administrator of Slurm) and limited: a time limit shorter than the run,
which takes a quarter of an hour. Counts runs that differ, byte for byte, from those of an undisturbed grid on the same
Slurm. `real_slurm.json` has the results of a Slurm of one node without accounting.
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
timeout_min = {minutes}
slurm_signal_delay_s = 30
slurm_max_num_timeout = 20
"""
SHORT = {"num_rounds": 40, "eval_every": 1, "axes": AXES}
LONG = {"num_rounds": 4000, "eval_every": 20, "axes": 'method = ["srpfl"]'}
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


# attack -> the grid, the minutes of its jobs, and what happens to them one after the other
ATTACKS = {
    "cancelled": (SHORT, 10, [cancel, cancel]),
    "requeued": (SHORT, 10, [requeue]),
    "drained": (SHORT, 10, [drain]),
    "limited": (LONG, 2, []),
}


def run(folder, name, grid, minutes, moments, partition):
    """Run a grid under attacks; return its exit code, seconds, output and how often its jobs began."""
    table = SLURM.format(minutes=minutes)
    if partition is not None:
        table += f'slurm_partition = "{partition}"'
    file = folder / f"{name}.toml"
    file.write_text(GRID.format(**grid) + table)
    begin = time.monotonic()
    process = start(file, folder / name, folder / "cache", *WORDS)
    for attack in moments:
        job = wait_for_job(process)
        if job is not None:
            attack(*job)
    printed, _ = process.communicate()
    logs = (folder / name).glob(".together/slurm/*/*_log.out")
    return {
        "exit_code": process.returncode,
        "seconds": round(time.monotonic() - begin),
        "starts_of_jobs": sum(log.read_text().count("Starting with") for log in logs),
        "printed": printed.decode()[-1000:].replace(str(folder), ""),
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--partition")
    parser.add_argument("attacks", nargs="*", default=list(ATTACKS))
    given = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory(dir=Path.home()) as name:  # that the nodes share
        folder = Path(name)
        for attack in given.attacks:
            grid, minutes, moments = ATTACKS[attack]
            undisturbed = f"undisturbed {grid['num_rounds']} rounds"
            if undisturbed not in found:
                found[undisturbed] = run(
                    folder, undisturbed, grid, 60, [], given.partition
                )
            found[attack] = run(folder, attack, grid, minutes, moments, given.partition)
            expected = contents(folder / undisturbed)
            actual = contents(folder / attack)
            different = [name for name in expected if actual.get(name) != expected[name]]
            found[attack] |= {"runs": len(expected), "differences": len(different)}
            print(attack, found[attack], file=sys.stderr, flush=True)
    print(json.dumps(found, indent=1))
    return int(any(one["exit_code"] or one.get("differences") for one in found.values()))


if __name__ == "__main__":
    sys.exit(main())
