"""Command line, results and child processes of the benchmarks; a child may run another version of the package."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any


def parser(doc: str | None, repeats: int | None = None) -> argparse.ArgumentParser:
    """Return a parser with `--out` and, where there is a default for them, `--repeats`."""
    found = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument("--out", type=Path, help="file of the results")
    if repeats is not None:
        found.add_argument(
            "--repeats", type=int, default=repeats, help="of every measurement"
        )
    return found


def write(out: Path | None, results: Mapping[str, Any]) -> None:
    """Write results, with four digits of every number, where a file for them is given."""
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        rounded = json.loads(
            json.dumps(results), parse_float=lambda text: float(f"{float(text):.4g}")
        )
        out.write_text(json.dumps(rounded, indent=1) + "\n", "utf-8")


class Child:
    """A process that does a piece of work for each line of its input; what it prints besides is ignored."""

    def __init__(self, command: Sequence[str], **environment: str):
        self.name = " ".join(command[:2])
        self.process = subprocess.Popen(
            command,
            env=os.environ | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._wait_for("ready")

    def seconds(self, line: str) -> tuple[float, ...]:
        """Return the seconds of a piece of work, and what else the child measures."""
        print(line, file=self.process.stdin, flush=True)
        return self._wait_for("turn")

    def _wait_for(self, word: str) -> tuple[float, ...]:
        for line in self.process.stdout or ():
            first, *numbers = line.split() or [""]
            if first == word:
                return tuple(map(float, numbers))
        raise SystemExit(f"{self.name} ended; its message is above")

    def close(self) -> None:
        """End the process."""
        self.process.communicate()


def serve(functions: Mapping[str, Callable[[], object]]) -> None:
    """Main function of a child: call the function that each line names, and print the seconds of the call."""
    print("ready", flush=True)
    for line in sys.stdin:
        begin = time.perf_counter()
        functions[line.strip()]()
        print("turn", time.perf_counter() - begin, flush=True)
