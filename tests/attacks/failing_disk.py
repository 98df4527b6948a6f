"""A disk that fails at every call: whatever fails, a folder has the old result or the new one.

    python tests/attacks/failing_disk.py FILE.json [--only "run*"] [--step 1] [--sites]

Saves histories over each other, runs `fedjax-srp run` and `grid` anew, longer, over others and for another cost, reads
what they wrote, and writes reports over each other. The commands run in this process, which compiles each program
once, and their words are parsed once. `failing_disk.c`, compiled with `cc` and preloaded into this process, sees every
call that changes the disk (open for writing, write, fsync, rename, mkdir, unlink, ...) also from libraries in C++. Each
call

* fails once with EIO ("once"), or fails as do all after it with ENOSPC ("full");
* is the one before which the process is killed, or amid which, with half of the bytes written ("kill");
* is the one before which power is lost: files that were not synced are empty ("power").

Where it says "read", each open and read fails once with EIO instead. Afterwards the folder must hold the old result or
the new one, the same command must end with the new one, or with one line, and no error may have several lines. A hang
ends the process with all stacks. The file gets the counts of each scenario when it is finished, and a scenario that it
has is not repeated; exit code 1 if anything was wrong. TMPDIR=/dev/shm makes it faster.
"""

from __future__ import annotations

import argparse
import atexit
import collections
import contextlib
import ctypes
import dataclasses
import errno
import faulthandler
import fnmatch
import functools
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from fedjax_srp.driver import memory
from fedjax_srp.lab.runs import options
from fedjax_srp.results import locks

SOURCE = Path(__file__).with_suffix(".c")
CHANGE, READ = 1, 2  # kinds of calls, as in the C file
LONGEST = 300  # seconds of a trial; longer is a hang
# What takes most of a trial's time and changes no file: drawing, the estimate of memory, and the table of all options.
INSTEAD = {
    "fedjax_srp.results.folder.image": lambda draw, name: b"a figure",
    "fedjax_srp.driver.memory.estimate": lambda run: memory.Memory(0, 0, 0, 0, 0),
    "fedjax_srp.lab.runs.options.groups": functools.cache(options.groups),
}


class Disk:
    """The preloaded library."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)
        self._library.calls_of_disk.restype = ctypes.c_long
        self._library.log_of_disk.restype = ctypes.c_char_p
        self.count = 0  # calls while it failed last
        self.log: list[str] = []  # their names and paths

    @contextlib.contextmanager
    def failing(
        self,
        folder: Path,
        kinds: int = CHANGE,
        first: int = 0,
        last: int = -1,
        error: int = 0,
        photos: str = "",
    ) -> Iterator[None]:
        """Let the calls `first` to `last` below a folder fail, or copy it before each call to folders in `photos`."""
        numbers = [ctypes.c_long(first), ctypes.c_long(last)]
        watch = self._library.watch_disk
        watch(os.fsencode(folder), kinds, *numbers, error, os.fsencode(photos))
        try:
            yield
        finally:
            self.count = self._library.calls_of_disk()
            self.log = os.fsdecode(self._library.log_of_disk()).splitlines()
            watch(b"", 0, *numbers, 0, b"")


@dataclasses.dataclass
class Said:
    """What a command said: its error, and all that went to the terminal's errors."""

    error: str | None  # None if it succeeded
    printed: str = ""

    @property
    def problem(self) -> str:
        """What is wrong with it; "" if nothing."""
        for text in (self.error or "", self.printed):
            for sign in ("Traceback", "never retrieved", "never awaited", "destroyed"):
                if sign in text:
                    return f"a traceback: {text[-2000:]}"
        lines = (self.error or "one").strip().splitlines()
        lines = [line for line in lines if not line.startswith("failed: ")]  # of a grid
        if len(lines) != 1:
            return f"an error of {len(lines)} lines: {self.error}"
        return ""


@contextlib.contextmanager
def captured() -> Iterator[Callable[[], str]]:
    """Give a function that returns what this process has written to the terminal's errors, also from C++."""
    with tempfile.TemporaryFile() as file:
        sys.stderr.flush()
        kept = os.dup(2)
        os.dup2(file.fileno(), 2)

        def printed() -> str:
            sys.stderr.flush()
            file.seek(0)
            return file.read().decode(errors="replace")

        try:
            yield printed
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)


@dataclasses.dataclass
class Scenario:
    """A command on a folder with an earlier result.

    Attributes:
        prepare: makes the old result in a folder.
        act: makes the new result; returns the error, None if there is none.
        contents: of the result in a folder, to be compared; None if there is no result.
        kinds: of the calls that fail.
    """

    prepare: Callable[[Path], object]
    act: Callable[[Path], str | None]
    contents: Callable[[Path], Any]
    kinds: int = CHANGE

    def said(self, folder: Path) -> Said:
        """Act, and return all that was said."""
        faulthandler.dump_traceback_later(LONGEST, exit=True, file=1)
        try:
            with captured() as printed:
                error = self.act(folder)
                return Said(error, printed())
        finally:
            faulthandler.cancel_dump_traceback_later()

    def found(self, folder: Path) -> Any:
        """Return the contents of a folder, or the error of reading it."""
        try:
            return self.contents(folder)
        except Exception as error:
            return f"{type(error).__name__}: {error}"


def attacks(
    scenario: Scenario, step: int = 1, sites: bool = False
) -> Iterator[tuple[str, str, str]]:
    """Let every `step`-th call fail; yield its place, the outcome, and what is wrong, "" for nothing.

    With `sites`, the first call of each name on each kind of file.
    """
    disk = Disk()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name).resolve()
        old, new = place / "old", place / "new"
        old.mkdir()
        scenario.prepare(old)
        shutil.copytree(old, new)
        photos = place / "photos"
        photos.mkdir()
        to = os.fspath(photos) if scenario.kinds == CHANGE else ""
        with disk.failing(new, scenario.kinds, photos=to):
            said = scenario.said(new)
        assert said.error is None, said
        last = disk.count + 50  # threads of libraries call more or less often
        numbers = range(1, last, step)
        if sites:
            first: dict[str, int] = {}
            for number, call in enumerate(disk.log, 1):
                first.setdefault(site(call, new), number)
            numbers = sorted(first.values())
        judge = _Judge(scenario, scenario.found(old), scenario.found(new))
        for kind in ("kill", "power"):
            taken = [*photos.glob(f"{kind}*")]
            if sites:
                taken = [photo for photo in taken if _number_of(photo) in numbers]
            for photo in _distinct(taken)[::step]:
                yield kind, *judge.after(photo, None)
        shutil.rmtree(photos)
        number_of = {"read": errno.EIO}
        if scenario.kinds == CHANGE:
            number_of = {"once": errno.EIO, "full": errno.ENOSPC}
        for kind, number in number_of.items():
            for at in numbers:
                folder = place / f"{kind}{at}"
                shutil.copytree(old, folder)
                last = sys.maxsize if kind == "full" else at
                with disk.failing(folder, scenario.kinds, at, last, number):
                    said = scenario.said(folder)
                if disk.count >= at:
                    yield kind, *judge.after(folder, said)
                shutil.rmtree(folder, ignore_errors=True)
                if disk.count < at:
                    break


def site(call: str, folder: Path) -> str:
    """Return the name of a call and the kind of its file: its path in a folder, the same for all files of arrays."""
    name, _, path = call.partition(" ")
    within = path.removeprefix(os.fspath(folder))
    within = re.sub(r"\w{8}(?=\.writing|\.gone)", "?", within)
    return f"{name} {re.sub('/arrays.*', '/arrays', within)}"


def _number_of(photo: Path) -> int:
    return int(re.sub("[a-z]", "", photo.name))


def _distinct(folders: Iterable[Path]) -> list[Path]:
    """Return one of all folders with equal content: many calls change nothing."""
    by_content = {}
    for folder in sorted(folders):
        by_content.setdefault(_content(folder), folder)
    return [*by_content.values()]


def _content(folder: Path) -> tuple[tuple[str, bytes | None], ...]:
    """Return names and bytes of all files in a folder; random names are one."""
    content = []
    for path in sorted(folder.rglob("*")):
        data = path.read_bytes() if path.is_file() else None
        name = re.sub(r"\w{8}(?=\.writing|\.gone)", "?", str(path.relative_to(folder)))
        content.append((name, data))
    return tuple(content)


@dataclasses.dataclass
class _Judge:
    scenario: Scenario
    old: Any
    new: Any
    # content of a folder -> ends of the outcome and problem of the same command in it
    known: dict[Any, tuple[str, str]] = dataclasses.field(default_factory=dict)

    def _outcome(self, found: Any) -> str:
        """Return "old" or "new", "both" for a grid with runs, or a report with files, of either, or "neither"."""
        if isinstance(found, str):  # the error of reading it
            return "neither"
        outcomes = set()
        new, old = _as_runs(self.new), _as_runs(self.old)
        found = _as_runs(found)
        for name in new:
            each = found.get(name)
            is_new = each == new[name]
            is_old = each == old.get(name)
            if not (is_new or is_old):
                return "neither"
            if is_new != is_old:
                outcomes.add("new" if is_new else "old")
        if not outcomes:  # the new result equals the old one
            return "new"
        return "both" if len(outcomes) > 1 else outcomes.pop()

    def after(self, folder: Path, said: Said | None) -> tuple[str, str]:
        """Return the outcome of a trial, and what is wrong with it; `said` is None if the process was killed."""
        found = self.scenario.found(folder)
        outcome = self._outcome(found)
        if outcome == "neither":
            return outcome, str(found)[:500]
        if said is not None and said.problem:
            return outcome, said.problem
        is_silent = said is not None and said.error is None
        if is_silent and outcome != "new":
            return outcome, "it failed without an error"
        if locks._held_here:
            return outcome, "a lock is held still"
        content = _content(folder)
        if content not in self.known:
            self.known[content] = self._again(folder)
        more, problem = self.known[content]
        return f"{outcome}{more}", problem

    def _again(self, folder: Path) -> tuple[str, str]:
        """Act again, and return what this adds to the outcome, and what is wrong."""
        for path in folder.rglob(".*"):
            os.utime(path, (0, 0))  # a younger one may be of a live process
        again = self.scenario.said(folder)
        if again.problem:
            return "", f"again: {again.problem}"
        if again.error is not None:
            return ", refused", ""
        if self._outcome(self.scenario.found(folder)) != "new":
            return "", "the same command did not end with its result"
        left = leftovers(folder)
        if left:
            return "", f"leftovers: {left}"
        return "", ""


def _as_runs(result: Any) -> dict[str, Any]:
    return result if isinstance(result, dict) else {"": result}


def leftovers(folder: Path) -> list[str]:
    """Return what a killed writer left in a folder."""
    hidden = [path for path in folder.rglob(".*") if path.name not in KEPT]
    return sorted(os.fspath(path.relative_to(folder)) for path in hidden)


# of a grid; and a lock, which counts as long as a process holds it, whether its file is there or not
KEPT = (".together", ".fedjax_srp.lock")


# Saves.


def made(name: str, num_rounds: int = 4, figure: bool = True) -> Any:
    """Return a history of three clients."""
    import numpy as np

    from fedjax_srp.results.history import History

    rng = np.random.default_rng(num_rounds + len(name))
    evaluated = {}
    if figure:
        evaluated["eval_round"] = [0, num_rounds]
        evaluated["accuracies"] = {"global": rng.random((2, 3))}
    return History(
        name=name,
        round=np.arange(1, num_rounds + 1),
        stage=np.zeros(num_rounds),
        cohort_size=np.full(num_rounds, 3),
        compute_time=rng.random(num_rounds),
        communicated=np.ones(num_rounds),
        finite=np.ones(num_rounds),
        client_time=rng.random(3),
        test_count=np.ones(3),
        rounds_taken=np.full(3, num_rounds),
        server_state={"weights": rng.random((30, 30))},
        environment={"versions": {}},
        config={"schedule": {"num_rounds": num_rounds}},
        **evaluated,
    )


def result_of(folder: Path) -> tuple[str | bytes, ...] | None:
    """Return the tables and models of a run as bytes; None without a result."""
    from fedjax_srp.results import folder as run_folder
    from fedjax_srp.results.history import History

    try:
        history = History.load(folder)
    except FileNotFoundError:
        return None
    import jax
    import numpy as np

    tables = [history.to_frame().to_csv(), history.clients_frame().to_csv()]
    leaves = [
        np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(history.server_state)
    ]
    cost = run_folder.read_summary(folder).get(run_folder.COST)
    return (history.name, json.dumps(cost), *tables, *leaves)


def saving(history: Any, **options: Any) -> Callable[[Path], str | None]:
    """Return the action that saves a history."""

    def act(folder: Path) -> str | None:
        try:
            history.save(folder, **options)
        except (OSError, ValueError) as error:
            return str(error)
        return None

    return act


def nothing(folder: Path) -> None:
    """Leave a folder empty."""


def saves() -> dict[str, Scenario]:
    """Return saves of histories over each other."""
    short, longer = made("fedavg"), made("fedavg", 6)
    other, less = made("fedrep", 5), made("fedrep", 5, figure=False)
    over = {"overwrite": True}
    with_models = saving(short, models=True)
    return {
        "save": Scenario(nothing, saving(short), result_of),
        "save with models": Scenario(nothing, with_models, result_of),
        "save longer": Scenario(saving(short), saving(longer), result_of),
        "save models over none": Scenario(saving(short), with_models, result_of),
        "save over models": Scenario(with_models, saving(less, **over), result_of),
        "save models over models": Scenario(
            with_models, saving(other, models=True, **over), result_of
        ),
        "load": Scenario(with_models, _loading, result_of, READ),
    }


def _loading(folder: Path) -> str | None:
    from fedjax_srp.results.history import History

    try:
        _ = History.load(folder).server_state
    except (OSError, ValueError) as error:
        return str(error)
    return None


# Commands.

WORDS = ["--method", "fedavg", "--dataset", "digits", "--num-clients", "5"]
WORDS += ["--max-examples", "10", "--hidden", "4", "--eval-every", "1", "--no-progress"]
GRID = """
[options]
dataset = "digits"
num_clients = 5
max_examples = 10
hidden = [4]
eval_every = 1
num_rounds = {num_rounds}
communication = {cost}

[axes]
method = ["fedavg"]
seed = [0, 1]
"""


def command(*words: str) -> Callable[[Path], str | None]:
    """Return the action that executes a command."""
    from fedjax_srp.lab.commands import cli

    @functools.cache
    def parsed() -> tuple[Any, dict[str, Any]]:
        """Parse the words, which takes longer than the run."""
        return cli._parse([*words, "--out", "?"])

    def act(folder: Path) -> str | None:
        said = io.StringIO()
        executed, arguments = parsed()
        arguments = arguments | {"out": os.fspath(folder)}
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
            stack.enter_context(contextlib.redirect_stderr(said))
            both = executed, arguments
            stack.enter_context(mock.patch.object(cli, "_parse", return_value=both))
            code = cli.main([*words, "--out", os.fspath(folder)], set_up_cores=False)
        return said.getvalue() if code else None

    return act


def run(*words: str) -> Callable[[Path], str | None]:
    """Return the action of a run."""
    return command("run", *WORDS, "--models", *words)


@functools.cache
def _inputs() -> Path:
    """Return a folder for what commands read, which is removed with this process."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    return Path(folder)


def grid(num_rounds: int, cost: float = 0.0) -> Callable[[Path], str | None]:
    """Return the action of a grid of two seeds, one program."""

    file = _inputs() / f"grid_{num_rounds}_{cost}.toml"
    file.write_text(GRID.format(num_rounds=num_rounds, cost=cost))
    words = ["--workers", "0", "--batch", "2", "--no-progress"]
    return command("grid", os.fspath(file), *words)


def results_of_grid(folder: Path) -> Any:
    """Return the results of the runs of a grid."""
    from fedjax_srp.results.folder import finished

    return {run.name: result_of(run) for run in finished(folder)}


def _report(folder: Path) -> str | None:
    with tempfile.TemporaryDirectory() as out:
        return command("report", os.fspath(folder))(Path(out))


def report_of(make_grid: Callable[[Path], str | None], name: str) -> Any:
    """Return the action that writes the report of a grid."""
    folder = _inputs() / name

    def act(out: Path) -> str | None:
        if not folder.exists():
            make_grid(folder)
        return command("report", os.fspath(folder))(out)

    return act


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the files of a report."""
    return {
        path.name: path.read_bytes() for path in folder.glob("[!.]*") if path.is_file()
    }


def commands() -> dict[str, Scenario]:
    """Return commands of runs and grids."""
    one, two = run("--num-rounds", "1"), run("--num-rounds", "2")
    other = run("--num-rounds", "1", "--seed", "1", "--overwrite")
    cost = run("--num-rounds", "1", "--communication", "3")
    return {
        "run": Scenario(nothing, one, result_of),
        "run extended": Scenario(one, two, result_of),
        "run overwritten": Scenario(one, other, result_of),
        "run of another cost": Scenario(one, cost, result_of),
        "run again": Scenario(one, one, result_of, READ),
        "run extended, reading": Scenario(one, two, result_of, READ),
        "grid": Scenario(nothing, grid(1), results_of_grid),
        "grid extended": Scenario(grid(1), grid(2), results_of_grid),
        "grid of another cost": Scenario(grid(1), grid(1, 3.0), results_of_grid),
        "grid again": Scenario(grid(1), grid(1), results_of_grid, READ),
        "report": Scenario(grid(1), _report, results_of_grid, READ),
        "report over another": Scenario(
            report_of(grid(1), "one"), report_of(grid(2), "two"), files_of
        ),
    }


def preloaded() -> bool:
    """Return True if the library is in this process."""
    return hasattr(ctypes.CDLL(None), "watch_disk")


def restart(words: list[str]) -> int:
    """Compile the library, and run this script with it in another process."""
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        print("skipped: it needs Linux and a C compiler, cc", file=sys.stderr)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "failing_disk.so")
        build = [compiler, "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"]
        subprocess.run(build, check=True)
        environment = os.environ | {"LD_PRELOAD": os.fspath(library)}
        done = subprocess.run([sys.executable, __file__, *words], env=environment)
    return done.returncode


def main(words: list[str]) -> int:
    """Run the command line of this script."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("file", type=Path, help="of the counts")
    parser.add_argument(
        "--only",
        nargs="+",
        default=["*"],
        help="patterns of the scenarios' names, in order",
    )
    parser.add_argument("--step", type=int, default=1, help="one of so many calls fails")
    parser.add_argument(
        "--sites",
        action="store_true",
        help="one call of each name and kind of file fails",
    )
    given = parser.parse_args(words)
    if not preloaded():
        return restart(words)
    os.environ.pop("LD_PRELOAD", None)  # not into the processes of others
    counts: dict[str, Any] = {}
    if given.file.exists():
        counts = json.loads(given.file.read_text())
    scenarios = saves() | commands()
    names: dict[str, None] = {}
    for pattern in given.only:
        names |= dict.fromkeys(fnmatch.filter(scenarios, pattern))
    for name in names:
        if name in counts:
            continue
        of_kind = collections.defaultdict(collections.Counter)
        for kind, outcome, problem in attacks(scenarios[name], given.step, given.sites):
            of_kind[kind][outcome] += 1
            if problem:
                of_kind[kind]["wrong"] += 1
                print(name, kind, of_kind[kind], problem, file=sys.stderr, flush=True)
        print(name, json.dumps(of_kind), file=sys.stderr, flush=True)
        counts[name] = of_kind
        rows = [f" {json.dumps(each)}: {json.dumps(counts[each])}" for each in counts]
        given.file.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    is_wrong = ["wrong" in kinds for of in counts.values() for kinds in of.values()]
    return int(any(is_wrong))


if __name__ == "__main__":
    with warnings.catch_warnings(), contextlib.ExitStack() as patches:
        warnings.simplefilter("ignore")
        warnings.filterwarnings("always", "coroutine", RuntimeWarning)
        for replaced, function in INSTEAD.items():
            patches.enter_context(mock.patch(replaced, function))
        sys.exit(main(sys.argv[1:]))
