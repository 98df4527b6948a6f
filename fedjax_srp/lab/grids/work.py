"""Execution of a unit of a grid in this process: a point as by `fedjax-srp run`, or a batch as one program."""

from __future__ import annotations

import contextlib
import functools
import itertools
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

from fedjax_srp.driver.prepare import check_evaluations
from fedjax_srp.driver.simulate import simulate, simulate_seeds
from fedjax_srp.lab.grids.batches import Member, Unit, batch_of
from fedjax_srp.lab.runs import options as run_options
from fedjax_srp.lab.runs import shared_training as judged
from fedjax_srp.lab.runs.folder import execute, save
from fedjax_srp.lab.runs.loggers import loggers, split_by_seed
from fedjax_srp.lab.runs.run import load_data, recorded_jax_settings
from fedjax_srp.parts.checks import is_ours
from fedjax_srp.results import sealed_folders as storage
from fedjax_srp.results.callbacks import Progress, all_of
from fedjax_srp.results.history import History

RoundsCallback = Callable[
    [int], None
]  # gets the completed rounds of all trainings of a unit together
ERROR = "error.txt"  # in `Unit.shared`
_MAX_ERROR_LENGTH = 300


class Cost(NamedTuple):
    """Seconds of a short run of a unit."""

    compile: float
    per_round: float  # of all trainings together, evaluations included


class TaskResult(NamedTuple):
    """Result of a task on a unit."""

    error: str | None  # in one line
    is_held_elsewhere: bool = False  # another process is running the unit
    value: Any = None


class Worker:
    """Runs units one after the other; data and compiled programs are kept in between."""

    def __init__(self) -> None:
        self._load = functools.cache(lambda file: run_options.load([file]))

    def perform(self, task: str, unit: Unit, on_rounds: RoundsCallback) -> TaskResult:
        """Do a task, "run" or "measure"; errors become one line, with a traceback in the unit's folder for bugs."""
        run = unit.members[0].point.run
        try:
            with recorded_jax_settings(run.record):
                for file in run.load:
                    self._load(file)
                return TaskResult(
                    None,
                    value=self.run(unit, on_rounds)
                    if task == "run"
                    else self.measure(unit),
                )
        except Exception as error:
            of_system = storage.as_system_error(error, unit.shared)
            line = " ".join(
                str(error if of_system is None else of_system.strerror).split()
            )
            if of_system is None and not is_ours(error):
                line = f"{type(error).__name__}: {line}"
                with contextlib.suppress(OSError):
                    unit.shared.mkdir(parents=True, exist_ok=True)
                    text = traceback.format_exc()
                    storage.replace(
                        {unit.shared / ERROR: lambda path: path.write_text(text, "utf-8")}
                    )
                    line = f"{line[:_MAX_ERROR_LENGTH]}; see {unit.shared / ERROR}"
            is_held_elsewhere = (
                isinstance(error, storage.FolderLockedError) and not error.by_this_process
            )
            return TaskResult(line, is_held_elsewhere)

    def run(self, unit: Unit, on_rounds: RoundsCallback) -> None:
        """Run or resume the unfinished points of a unit, and update the summaries of another communication cost."""
        if len(unit.members) == 1:
            self._run_one(unit.members[0], on_rounds)
            return
        with storage.held(unit.shared, "out"):
            if not unit.is_finished():
                self._run_batch(unit, on_rounds)
            for member in unit.members:
                if not member.has_current_summary():
                    self._run_one(member, on_rounds)

    def measure(self, unit: Unit) -> Cost:
        """Run a unit up to its first evaluation, without writing files."""
        run = unit.members[0].point.run
        num_rounds = min(run.eval_every, run.num_rounds)
        history = self._simulate(unit, num_rounds=num_rounds, eval_first=0, eval_last=0)[
            0
        ]
        return Cost(history.compile_seconds, history.seconds_per_round)

    def _simulate(self, unit: Unit, **options: Any) -> list[History]:
        """Simulate each training of a unit once, with all requested evaluations; return a history per point."""
        runs = [member.point.run for member in unit.members]
        given = [run.simulation(load_data(run.data)) for run in runs]
        evaluations = [
            check_evaluations(each["algorithm"].algorithm, each["evaluations"])
            for each in given
        ]
        together = [*dict.fromkeys(itertools.chain(*evaluations))]
        common = given[0] | {"evaluations": together, "progress": False, **options}
        if len(unit.trainings()) == 1:
            histories = [simulate(**common)]
        else:
            del common["key"]
            histories = simulate_seeds(
                **common, **batch_of([member.point for member in unit.members])._asdict()
            )
        trained = dict(zip(unit.trainings(), histories, strict=True))
        return [
            judged.as_method(trained[run.training], each["algorithm"], of_run)
            for run, each, of_run in zip(runs, given, evaluations, strict=True)
        ]

    def _run_one(self, member: Member, on_rounds: RoundsCallback) -> None:
        overwrite = member.must_restart()
        with loggers(
            member.point.run, member.folder, in_grid=True, overwrite=overwrite
        ) as callbacks:
            execute(
                member.point.run,
                member.folder,
                overwrite=overwrite,
                say=lambda line: None,
                callback=all_of(_progress_callback(on_rounds), *callbacks),
            )

    def _run_batch(self, unit: Unit, on_rounds: RoundsCallback) -> None:
        run = unit.members[0].point.run
        checkpoints = unit.shared / "checkpoint" if run.checkpoint else None
        with contextlib.ExitStack() as stack:
            entered = [
                stack.enter_context(loggers(m.point.run, m.folder, in_grid=True))
                for m in unit.members
            ]
            callback = all_of(
                _progress_callback(on_rounds),
                split_by_seed([all_of(*each) for each in entered]),
            )
            histories = self._simulate(
                unit,
                checkpoint_dir=checkpoints,
                keep_clients=run.models,
                callback=callback,
            )
        for member, history in zip(unit.members, histories, strict=True):
            with storage.held(member.folder, "out"):
                if not member.is_finished():
                    save(history, member.folder, member.point.run, run.models)


def _progress_callback(on_rounds: RoundsCallback) -> Callable[[Progress], None]:
    """Return a callback that reports the rounds of all trainings, which may run in several programs in turn."""
    completed: dict[int, int] = {}  # first seed of a program -> rounds of its trainings

    def call(progress: Progress) -> None:
        seeds = progress.seeds or range(1)
        completed[seeds.start] = progress.round * len(seeds)
        on_rounds(sum(completed.values()))

    return call
