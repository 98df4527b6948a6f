"""Run the scripts of all experiments at a scale, the cheapest first.

    python -m experiments --scale smoke|cpu|gpu|full [--only WORD ...] [--dry-run]
        [--out DIR] [--data-dir DIR] [--traces DIR]

`calls.csv` has a row for each call, with its minutes of a core where they are known. The runs and results of a paper go
to DIR/SCALE/PAPER, so that calls share runs; what a call printed is in its log beside them. A call that has finished is
not made again, one that was interrupted or has failed goes on: to start over, delete its log. Calls that need data are
left out without `--data-dir` or `--traces`.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent


class Call(NamedTuple):
    """A call of a script."""

    scale: str
    minutes: str  # of a core; empty where not known
    script: str  # without .py
    options: str

    @property
    def folder(self) -> str:
        """Return the folder of its runs and results, below that of the scale."""
        return self.script.partition("/")[0]

    @property
    def name(self) -> str:
        """Return the name of its log."""
        words = f"{self.script.partition('/')[2]} {self.options}".strip()
        return re.sub(r"\W+", "_", words).strip("_")

    def needs(self, place: str) -> bool:
        """Return True if it reads a folder that the caller must name."""
        return f"{{{place}}}" in self.options

    def words(self, out: Path, **places: Path | None) -> list[str]:
        """Return the words of its command line."""
        options = shlex.split(self.options)
        return ["--out", str(out), *(word.format(out=out, **places) for word in options)]


def plan(scale: str) -> list[Call]:
    """Return the calls of a scale, the cheapest first, those of unknown cost last."""
    with (HERE / "calls.csv").open(newline="") as file:
        calls = [Call(**row) for row in csv.DictReader(file)]
    of_scale = [call for call in calls if call.scale == scale]
    return sorted(of_scale, key=lambda call: float(call.minutes or math.inf))


def run(call: Call, words: Sequence[str], log: Path) -> bool:
    """Make a call; return True if it succeeded. Its log gets its name when it is finished."""
    unfinished = log.with_suffix(".unfinished")
    log.parent.mkdir(parents=True, exist_ok=True)
    paths = [str(HERE.parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, str(HERE / f"{call.script}.py"), *words]
    with unfinished.open("w") as file:
        result = subprocess.run(
            command, stdout=file, stderr=subprocess.STDOUT, env=environment, check=False
        )
    if result.returncode:
        return False
    unfinished.replace(log)
    return True


def processor_minutes() -> float:
    """Return the minutes of a core that all calls have taken."""
    taken = os.times()
    return (taken.children_user + taken.children_system) / 60


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--scale",
        choices=("smoke", "cpu", "gpu", "full"),
        default="smoke",
        help="default: smoke",
    )
    parser.add_argument("--out", type=Path, default=Path("runs/experiments"))
    parser.add_argument("--data-dir", type=Path, help="folder with prepared data sets")
    parser.add_argument("--traces", type=Path, help="folder with traces of phones")
    parser.add_argument(
        "--only", nargs="+", metavar="WORD", default=[""], help="in the name of a script"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the plan")
    args = parser.parse_args(arguments)
    calls = [
        call for call in plan(args.scale) if any(w in call.script for w in args.only)
    ]
    if not calls:
        parser.error(
            f"--only {' '.join(args.only)}: no script of this scale; --dry-run lists them"
        )
    places = {"data": args.data_dir, "traces": args.traces}
    failed = []
    for call in calls:
        out = args.out / args.scale / call.folder
        log = out / "logs" / f"{call.name}.log"
        missing = [name for name in places if call.needs(name) and places[name] is None]
        state = "to run"
        if log.exists():
            state = "finished"
        elif missing:
            state = f"left out, needs the folder of {' and '.join(missing)}"
        cost = f"{call.minutes or '?':>5} min"
        print(f"{cost}  {call.script} {call.options}: {state}", flush=True)
        if args.dry_run or state != "to run":
            continue
        before = processor_minutes()
        if not run(call, call.words(out, **places), log):
            failed.append(call.script)
            print(f"{'':9}  failed, see {log.with_suffix('.unfinished')}", flush=True)
        print(f"{'':9}  {processor_minutes() - before:.1f} min", flush=True)
    if failed:
        parser.exit(1, f"{len(failed)} calls failed: {', '.join(failed)}\n")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # the script that runs has it too, and has ended
        print("\nexperiments: interrupted; the same command continues", file=sys.stderr)
        raise SystemExit(130) from None
