"""Cases of a benchmark in child processes: a crash, a hang or a timeout affects only its own case.

A child gets a list of cases and appends a line to a file for each case that is done; the parent collects the results.
When a child ends early, its current case is reported with the reason, and a new child continues with the next. Cases
whose environment is read when a process starts get a separate child too.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

POLL = 0.1  # seconds
DONE = "done"
WRONG = "wrong"
FAILED = "failed"
CRASHED = "crashed"
SKIPPED = "skipped"
TIMED_OUT = "timed out"
LEFT_OUT = "left out"
ENDS = "ends_its_child"  # in a result: the next case needs a new process
AGAIN = 75  # exit status of a child that ended for that reason


class Case(NamedTuple):
    """Something to measure; all of it can be written as JSON."""

    name: str
    kind: str  # name of the child's function that measures it
    settings: dict[str, Any]  # its arguments
    environment: Mapping[str, str] = MappingProxyType(
        {}
    )  # set before the child starts; XLA_FLAGS are added to others
    child: str = ""  # consecutive cases with equal environment and label share a process
    needs: tuple[str, ...] = ()  # cases whose stored arrays it reads

    def as_json(self) -> dict[str, Any]:
        """The case after a round trip through JSON."""
        return json.loads(
            json.dumps(self._asdict() | {"environment": dict(self.environment)})
        )


Result = dict[str, Any]  # "status", with "result" if it is done, else "message"
OnResult = Callable[[str, Result], None]


class Limits(NamedTuple):
    """Limits in seconds."""

    all: float  # for all cases together
    case: float  # for each; the start of a child counts for its first


def to_do(cases: Sequence[Case], finished: set[str]) -> list[Case]:
    """Unfinished cases, and those that they need, whose arrays an earlier call did not keep."""
    wanted = [case for case in cases if case.name not in finished]
    needed = {name for case in wanted for name in case.needs}
    return [case for case in cases if case.name not in finished or case.name in needed]


def run(
    cases: Sequence[Case], command: Sequence[str], on_result: OnResult, limits: Limits
) -> None:
    """Runs the cases in children, in order.

    Args:
        cases: with names that differ.
        command: of a child; it is given a file of cases, a file for results and a folder for arrays.
        on_result: called with the name of a case and its result, as soon as it is known.
        limits: of time.
    """
    ends = time.monotonic() + limits.all
    waiting = list(cases)
    with tempfile.TemporaryDirectory() as folder:
        while waiting and time.monotonic() < ends:
            first = list(
                next(
                    itertools.groupby(
                        waiting, lambda case: (case.environment, case.child)
                    )
                )[1]
            )
            waiting = waiting[
                _child(first, command, Path(folder), on_result, ends, limits.case) :
            ]
    for case in waiting:
        on_result(
            case.name,
            {
                "status": LEFT_OUT,
                "message": f"the {limits.all:g} s for all cases were over",
            },
        )


def _child(
    cases: Sequence[Case],
    command: Sequence[str],
    folder: Path,
    on_result: OnResult,
    ends: float,
    case_seconds: float,
) -> int:
    """Runs a child over some cases until it ends; returns how many of them have a result."""
    case_file, result_file, errors = (
        folder / name for name in ("cases.json", "results.jsonl", "errors.txt")
    )
    case_file.write_text(json.dumps([case.as_json() for case in cases]))
    result_file.write_text("")
    environment = os.environ | cases[0].environment
    if "XLA_FLAGS" in cases[0].environment:
        environment["XLA_FLAGS"] = (
            f"{os.environ.get('XLA_FLAGS', '')} {cases[0].environment['XLA_FLAGS']}".strip()
        )
    reported = 0
    begin = time.monotonic()
    reason = ""
    with errors.open("w") as said:
        arguments = [*command, str(case_file), str(result_file), str(folder)]
        process = subprocess.Popen(arguments, env=environment, stdout=said, stderr=said)
        try:
            while True:
                ended = (
                    process.poll() is not None
                )  # before the file is read, so that no line is missed
                lines = result_file.read_text().split("\n")[:-1]
                for line in lines[reported:]:
                    on_result(cases[reported].name, json.loads(line))
                    reported = reported + 1
                    begin = time.monotonic()
                if ended or reported == len(cases):
                    break
                now = time.monotonic()
                if now > ends or now > begin + case_seconds:
                    reason = f"stopped after {now - begin:.0f} s"
                    break
                time.sleep(POLL)
            if reported == len(cases):
                process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            pass  # all results are known; the child only fails to exit
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if reported == len(cases) or (reported and process.returncode == AGAIN):
        return reported
    last_lines = errors.read_text(errors="replace").strip().splitlines()[-5:]
    status, message = (
        (TIMED_OUT, reason) if reason else (CRASHED, _ending(process.returncode))
    )
    on_result(
        cases[reported].name, {"status": status, "message": message, "output": last_lines}
    )
    return reported + 1


def _ending(code: int) -> str:
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"ended with exit status {code}"


def serve(measure: Callable[[Case, Path], Result]) -> None:
    """Main function of a child: measures the given cases, one after the other, and reports each.

    Args:
        measure: `(case, folder of arrays) -> result`; it should not raise.
    """
    case_file, result_file, folder = map(Path, sys.argv[1:])
    for fields in json.loads(case_file.read_text()):
        case = Case(**fields)
        found = measure(case, folder)
        with result_file.open("a") as file:
            file.write(json.dumps(found) + "\n")
        if found.get(ENDS):
            sys.exit(AGAIN)
