"""A disk that fails at every call: whatever fails, the folder of a run has the old result or the new one.

    .venv/bin/python tests/attacks/failing_disk.py [--runs] > FILE.json

saves histories over each other and lets every call that changes the disk (open for writing, write, fsync, mkdir,
rename, unlink, rmdir) fail: once, from then on as on a full disk, or as in a process that is killed there. Files are
also cut at many sizes, by the system itself, so that calls of the library that writes arrays fail too. A second pass
reads the folder before every call, as another process would. With `--runs`, `fedjax-srp run` extends and overwrites a
run in the same way. Counts the trials, and prints those that end with neither result, with an error of several lines,
or with a folder that the next save cannot use; exit code 1 if there are any.
"""

from __future__ import annotations

import argparse
import builtins
import contextlib
import dataclasses
import errno
import io
import json
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import numpy as np

from fedjax_srp.results.history import History

CALLS = (
    "mkdir",
    "rename",
    "replace",
    "unlink",
    "remove",
    "rmdir",
    "fsync",
    "ftruncate",
    "write",
)
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


DRAWN = mock.patch(
    "fedjax_srp.results.folder.image", return_value=b"a figure"
)  # drawing takes a second


class Killed(BaseException):
    """The process ends here: nothing after it has an effect on the disk."""


class Disk:
    """Counts the calls of this process that change the disk, and acts before each.

    Args:
        act: gets the number of the call, from 1; what it raises is what the call raises.
    """

    def __init__(self, act: Callable[[int], None]):
        self._act, self._is_acting = act, False
        self.count = 0

    def _call(self, function: Callable, is_change: Callable[..., bool]) -> Callable:
        def called(*args, **kwargs):
            if not self._is_acting and is_change(*args, **kwargs):
                self.count, self._is_acting = self.count + 1, True
                try:
                    self._act(self.count)
                finally:
                    self._is_acting = False
            return function(*args, **kwargs)

        return called

    @contextlib.contextmanager
    def watched(self) -> Iterator[Disk]:
        """Watch the calls in the block."""

        def opens(file, mode="r", *args, **kwargs):
            return not isinstance(file, int) and any(letter in mode for letter in "wax+")

        changes = {name: lambda *args, **kwargs: True for name in CALLS}
        changes["open"] = lambda path, flags, *args, **kwargs: bool(flags & WRITING)
        with contextlib.ExitStack() as stack:
            for name, is_change in changes.items():
                stack.enter_context(
                    mock.patch.object(os, name, self._call(getattr(os, name), is_change))
                )
            opened = self._call(io.open, opens)
            for module in (io, builtins):
                stack.enter_context(mock.patch.object(module, "open", opened))
            yield self


def once(at: int, number: int) -> Callable[[int], None]:
    """Return the action of a disk whose call `at` fails with this error number."""

    def act(count: int) -> None:
        if count == at:
            raise OSError(number, os.strerror(number))

    return act


def full_from(at: int) -> Callable[[int], None]:
    """Return the action of a disk that is full from call `at` on."""

    def act(count: int) -> None:
        if count >= at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return act


def killed_at(at: int) -> Callable[[int], None]:
    """Return the action of a disk whose process is killed before call `at`."""

    def act(count: int) -> None:
        if count >= at:
            raise Killed

    return act


FAILURES = {
    "once": lambda at: once(at, errno.EIO),
    "full": full_from,
    "killed": killed_at,
}


def made(
    name: str, num_rounds: int = 4, figure: bool = True, models: bool = True
) -> History:
    """Return a history of three clients."""
    rng = np.random.default_rng(num_rounds + len(name))
    evaluated = (
        {"eval_round": [0, num_rounds], "accuracies": {"global": rng.random((2, 3))}}
        if figure
        else {}
    )
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
        server_state={"weights": rng.random((30, 30))} if models else None,
        environment={"versions": {}},
        config={"num_rounds": num_rounds},
        **evaluated,
    )


def same(left: History, right: History, with_models: bool) -> bool:
    """Return True if both have equal tables and states; `left` was loaded."""
    if left.name != right.name or not np.array_equal(
        left.compute_time, right.compute_time
    ):
        return False
    if not np.array_equal(left.mean_accuracy, right.mean_accuracy):
        return False
    if not with_models:
        return left.server_state is None
    return left.server_state is not None and np.array_equal(
        left.server_state["weights"], right.server_state["weights"]
    )


@dataclasses.dataclass
class Scenario:
    """A save over an earlier one.

    Attributes:
        old: None for an empty folder.
        options: of the new save.
        old_options: of the old one.
    """

    old: History | None
    new: History
    options: dict = dataclasses.field(default_factory=dict)
    old_options: dict = dataclasses.field(default_factory=dict)

    def prepare(self, folder: Path) -> None:
        """Write the old result."""
        if self.old is not None:
            with DRAWN:
                self.old.save(folder, **self.old_options)

    def save(self, folder: Path) -> None:
        """Write the new result."""
        with DRAWN:
            self.new.save(folder, **self.options)

    def found(self, folder: Path) -> str:
        """Return "old" or "new", or what the folder has instead."""
        try:
            loaded = History.load(folder)
            if same(loaded, self.new, self.options.get("models", False)):
                return "new"
            if self.old is not None and same(
                loaded, self.old, self.old_options.get("models", False)
            ):
                return "old"
            return "a mixture"
        except FileNotFoundError as error:
            return "old" if self.old is None else f"{error}"
        except ValueError as error:
            return f"{error}"


SCENARIOS = {
    "first": Scenario(None, made("fedavg"), {"models": True}),
    "extended": Scenario(made("fedavg"), made("fedavg", num_rounds=6)),
    "models": Scenario(made("fedavg"), made("fedavg"), {"models": True}),
    "other": Scenario(
        made("fedavg"),
        made("fedrep", 5),
        {"models": True, "overwrite": True},
        {"models": True, "communication": 3.0},
    ),
    "less": Scenario(
        made("fedavg"),
        made("fedrep", 5, figure=False),
        {"overwrite": True},
        {"models": True},
    ),
}


def leftovers(folder: Path) -> list[str]:
    """Return the hidden files of a folder."""
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


def trial(scenario: Scenario, failure: Callable[[int], None]) -> tuple[str, int]:
    """Save on a failing disk; return what is wrong afterwards, "" for nothing, and the number of calls."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "run")
        scenario.prepare(folder)
        text, disk = None, Disk(failure)
        with disk.watched():
            try:
                scenario.save(folder)
            except Killed:
                text = ""
            except (OSError, ValueError) as error:
                text = str(error)
        return _judged(scenario, folder, text), disk.count


def _judged(scenario: Scenario, folder: Path, text: str | None) -> str:
    found = scenario.found(folder)
    if found not in ("old", "new"):
        return found
    if text is None and found == "old":
        return "it failed without an error"
    if text is not None and "\n" in text:
        return f"an error of several lines: {text}"
    scenario.save(folder)
    if scenario.found(folder) != "new":
        return "the next save did not replace it"
    if leftovers(folder):
        return f"leftovers: {leftovers(folder)}"
    return ""


def seen(scenario: Scenario) -> tuple[set[str], int]:
    """Return what readers find before every call of a save, and their number."""
    states = set()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "run")
        scenario.prepare(folder)
        with Disk(lambda count: states.add(scenario.found(folder))).watched() as disk:
            scenario.save(folder)
        states.add(scenario.found(folder))
    return states, disk.count


def failures(scenario: Scenario, kind: str, step: int = 1) -> Iterator[tuple[int, str]]:
    """Let every `step`-th call of a save fail; yield the number of the call and what is wrong afterwards."""
    at, count = 1, 1
    while at <= count:
        problem, calls = trial(scenario, FAILURES[kind](at))
        count = calls if at == 1 else max(count, calls)
        if kind != "once" and at == 1:
            count = seen(scenario)[1]
        yield at, problem
        at += step


def cut(scenario: Scenario, size: int) -> str:
    """Save while no file may be larger than `size` bytes; return what is wrong afterwards."""
    import resource

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "run")
        scenario.prepare(folder)
        text, limits = None, resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
        try:
            scenario.save(folder)
        except (OSError, ValueError) as error:
            text = str(error)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        return _judged(scenario, folder, text)


def attacks(step: int = 1) -> Iterator[tuple[str, str, int, str]]:
    """Yield scenario, kind of failure, its place and what is wrong afterwards."""
    for name, scenario in SCENARIOS.items():
        states, count = seen(scenario)
        yield name, "readers", count, "" if states <= {"old", "new"} else f"{states}"
        for kind in FAILURES:
            for at, problem in failures(scenario, kind, step):
                yield name, kind, at, problem
        for size in range(0, 60_000, 1_500 * step):
            yield name, "cut", size, cut(scenario, size)


WORDS = [
    "run",
    "--method",
    "fedavg",
    "--dataset",
    "digits",
    "--num-clients",
    "5",
    "--max-examples",
    "10",
]
WORDS += ["--hidden", "4", "--eval-every", "1", "--no-progress", "--models"]
RUNS = {  # words of the old run, and of the new one
    "run extended": (["--num-rounds", "1"], ["--num-rounds", "2"]),
    "run overwritten": (
        ["--num-rounds", "1"],
        ["--num-rounds", "1", "--seed", "1", "--overwrite"],
    ),
    "run of another cost": (
        ["--num-rounds", "1"],
        ["--num-rounds", "1", "--communication", "3"],
    ),
    "run again": ([], ["--num-rounds", "1"]),
}


def attacks_on_runs(step: int = 1) -> Iterator[tuple[str, str, int, str]]:
    """Yield as `attacks`, of the command line; here a rerun of the same command must end with the new result."""
    from fedjax_srp.lab.commands.cli import main

    def run(words, folder) -> tuple[int, str]:
        said = io.StringIO()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
            return main(
                [*WORDS, *words, "--out", os.fspath(folder)], set_up_cores=False
            ), said.getvalue()

    def table(folder) -> bytes | None:
        return (
            History.load(folder).to_frame().to_csv().encode() if folder.exists() else None
        )

    for name, (before, after) in RUNS.items():
        with tempfile.TemporaryDirectory() as place:
            old, new = Path(place, "old"), Path(place, "new")
            if before:
                assert run(before, old)[0] == 0
                shutil.copytree(old, new)
            with Disk(lambda count: None).watched() as disk:
                assert run(after, new)[0] == 0
            expected = (table(old), table(new))
            for kind, fail in FAILURES.items():
                for at in range(1, disk.count + 1, step):
                    folder = Path(place, f"{kind}{at}")
                    if before:
                        shutil.copytree(old, folder)
                    text = ""
                    with Disk(fail(at)).watched(), contextlib.suppress(Killed):
                        text = run(after, folder)[1]
                    problem = (
                        ""
                        if text.count("\n") < 2
                        else f"an error of several lines: {text}"
                    )
                    try:
                        if before and table(folder) not in expected:
                            problem = "neither result"
                        code, said = run(after, folder)
                        if code or table(folder) != expected[1]:
                            problem = f"the next run did not end with its result: {said}"
                    except Exception as error:
                        problem = f"{error!r}"
                    shutil.rmtree(folder)
                    yield name, kind, at, problem


def run_attacks() -> int:
    """Run the command line of this script."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--runs", action="store_true", help="attack the command line instead"
    )
    parser.add_argument(
        "--step", type=int, default=1, help="fail only every so many calls"
    )
    args = parser.parse_args()
    counts: dict[str, int] = {}
    problems = []
    for name, kind, at, problem in (attacks_on_runs if args.runs else attacks)(args.step):
        counts[f"{name}, {kind}"] = counts.get(f"{name}, {kind}", 0) + 1
        if problem:
            problems.append([name, kind, at, problem])
            print(*problems[-1], file=sys.stderr, flush=True)
    print(json.dumps({"trials": counts, "problems": problems}, indent=2))
    return int(bool(problems))


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sys.exit(run_attacks())
