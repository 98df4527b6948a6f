"""Cases of a benchmark in child processes: what crashes, hangs or runs out of time costs its own case and no other.

A child gets a list of cases and reports each when it is done, by a line of a file; whoever started it writes the
results down as they come. When a child ends early, the case that it was at is reported with the reason, and a new child
goes on with the next. A child of its own is also what a case needs whose environment is read when a process starts.
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
DONE, WRONG, FAILED, CRASHED = "done", "wrong", "failed", "crashed"
SKIPPED, TIMED_OUT, LEFT_OUT = "skipped", "timed out", "left out"
ENDS = "ends_its_child"  # in a result: what follows needs a new process
AGAIN = 75  # exit status of a child that ended for that reason


class Case(NamedTuple):
    """Something to measure; all of it can be written as JSON."""

    name: str
    kind: str  # which function of the child measures it
    settings: dict[str, Any]  # its arguments
    environment: Mapping[str, str] = MappingProxyType({})  # set before the child starts; XLA_FLAGS are added to others
    child: str = ""  # consecutive cases with equal environment and label share a process
    needs: tuple[str, ...] = ()  # cases whose stored arrays it reads

    def as_json(self) -> dict[str, Any]:
        """What JSON makes of it."""
        return json.loads(json.dumps(self._asdict() | {"environment": dict(self.environment)}))


Result = dict[str, Any]  # "status", with "result" where it is done and "message" where it is not
Tell = Callable[[str, Result], None]


class Limits(NamedTuple):
    """Seconds."""

    all: float  # for all cases together
    case: float  # for each; the start of a child counts for its first


def to_do(cases: Sequence[Case], finished: set[str]) -> list[Case]:
    """The cases that are not finished, and those that they need, whose arrays an earlier call did not keep."""
    wanted = [case for case in cases if case.name not in finished]
    needed = {name for case in wanted for name in case.needs}
    return [case for case in cases if case.name not in finished or case.name in needed]


def run(cases: Sequence[Case], command: Sequence[str], tell: Tell, limits: Limits) -> None:
    """Runs the cases in children, in order.

    Args:
        cases: with names that differ.
        command: of a child; it is given a file of cases, a file for results and a folder for arrays.
        tell: called with the name of a case and its result, as soon as there is one.
        limits: of time.
    """
    ends = time.monotonic() + limits.all
    waiting = list(cases)
    with tempfile.TemporaryDirectory() as folder:
        while waiting and time.monotonic() < ends:
            first = list(next(itertools.groupby(waiting, lambda case: (case.environment, case.child)))[1])
            waiting = waiting[_child(first, command, Path(folder), tell, ends, limits.case) :]
    for case in waiting:
        tell(case.name, {"status": LEFT_OUT, "message": f"the {limits.all:g} s of the part were over"})


def _child(
    cases: Sequence[Case], command: Sequence[str], folder: Path, tell: Tell, ends: float, case_seconds: float
) -> int:
    """Runs a child over some cases until it ends; returns how many of them have a result."""
    asked, answers, errors = (folder / name for name in ("cases.json", "results.jsonl", "errors.txt"))
    asked.write_text(json.dumps([case.as_json() for case in cases]))
    answers.write_text("")
    environment = os.environ | cases[0].environment
    if "XLA_FLAGS" in cases[0].environment:
        environment["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {cases[0].environment['XLA_FLAGS']}".strip()
    told, begin, reason = 0, time.monotonic(), ""
    with errors.open("w") as said:
        arguments = [*command, str(asked), str(answers), str(folder)]
        process = subprocess.Popen(arguments, env=environment, stdout=said, stderr=said)
        try:
            while True:
                ended = process.poll() is not None  # asked before the file is read: nothing comes after it
                lines = answers.read_text().split("\n")[:-1]
                for line in lines[told:]:
                    tell(cases[told].name, json.loads(line))
                    told, begin = told + 1, time.monotonic()
                if ended or told == len(cases):
                    break
                now = time.monotonic()
                if now > ends or now > begin + case_seconds:
                    reason = f"stopped after {now - begin:.0f} s"
                    break
                time.sleep(POLL)
            if told == len(cases):
                process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            pass  # all is told; the child only fails to end
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if told == len(cases) or (told and process.returncode == AGAIN):
        return told
    said_last = errors.read_text(errors="replace").strip().splitlines()[-5:]
    status, message = (TIMED_OUT, reason) if reason else (CRASHED, _ending(process.returncode))
    tell(cases[told].name, {"status": status, "message": message, "output": said_last})
    return told + 1


def _ending(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}"


def serve(measure: Callable[[Case, Path], Result]) -> None:
    """What a child does: measures the cases it is given, one after the other, and reports each.

    Args:
        measure: `(case, folder of arrays) -> result`; it should not raise.
    """
    asked, answers, folder = map(Path, sys.argv[1:])
    for fields in json.loads(asked.read_text()):
        case = Case(**fields)
        found = measure(case, folder)
        with answers.open("a") as file:
            file.write(json.dumps(found) + "\n")
        if found.get(ENDS):
            sys.exit(AGAIN)
