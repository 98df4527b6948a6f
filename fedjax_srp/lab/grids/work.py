"""Execution of a unit of a grid in this process: a point, or a batch as one program."""

from __future__ import annotations

import contextlib
import copyreg
import dataclasses
import functools
import inspect
import pickle
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_srp.clocks.by_name import CLOCKS
from fedjax_srp.driver.prepare import check_evaluations
from fedjax_srp.driver.simulate import simulate, simulate_seeds
from fedjax_srp.lab.grids.batches import Member, Unit, batch_of
from fedjax_srp.lab.grids.cases import Case
from fedjax_srp.lab.runs import options as run_options
from fedjax_srp.lab.runs import shared_training
from fedjax_srp.lab.runs.folder import execute, save
from fedjax_srp.lab.runs.loggers import loggers, split_by_seed
from fedjax_srp.lab.runs.run import Run, recorded_jax_settings
from fedjax_srp.methods import POLICIES, RECIPES
from fedjax_srp.models import FACTORIES
from fedjax_srp.parts.checks import is_ours, short
from fedjax_srp.parts.libraries import LAB, needed_by
from fedjax_srp.parts.options import without_partial
from fedjax_srp.parts.registry import Registry
from fedjax_srp.results import atomic, errors
from fedjax_srp.results.callbacks import Progress, all_of
from fedjax_srp.results.folder import CHECKPOINT
from fedjax_srp.results.history import History
from fedjax_srp.results.locks import FolderLockedError, held

_REGISTRIES: tuple[Registry[Any], ...] = (RECIPES, POLICIES, FACTORIES, CLOCKS)
# gets the completed rounds of all trainings of a unit together
RoundsCallback = Callable[[int], None]
ERROR = "error.txt"  # in `Unit.shared`
_MAX_ERROR_LENGTH = 300


Work = Unit | Case


class Cost(NamedTuple):
    """Seconds of a short run of a unit."""

    compile: float
    per_round: float  # of all trainings together, evaluations included


class TaskResult(NamedTuple):
    """Result of a task on a unit."""

    error: str | None  # in one line
    is_held_elsewhere: bool = False  # another process is running the unit
    value: Any = None


# a class that is sent by value would come with another object in its place
copyreg.pickle(type(dataclasses.MISSING), lambda _: "MISSING")


def packed(units: Sequence[Work]) -> bytes:
    """Return units as bytes, for `unpacked` in another process.

    Classes and functions of a script or a notebook are sent as they are, and so is what the runs
    name of all that this process has registered.

    Raises:
        ValueError: a value cannot be sent.
    """
    with needed_by("workers", LAB):
        import cloudpickle

    runs = [run for unit in units for run in unit.runs]
    try:
        return cloudpickle.dumps(({unit.id: unit for unit in units}, _registered(runs)))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        reason = short(" ".join(str(error).split()))
        raise ValueError(
            f"workers: a value of this grid cannot be sent to a process ({reason}); give "
            "workers=0, or define it in a Python file that is imported, or registered by load"
        ) from None


def unpacked(units: bytes) -> dict[str, Work]:
    """Return id -> unit of `packed`, and register the names that came with them."""
    unit_of, entries = pickle.loads(units)
    for registry, own in zip(_REGISTRIES, entries, strict=True):
        registry.update(own)
    return unit_of


def _registered(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return the own entries of each registry that runs name, but those of files that they load."""
    named = " ".join(str(run.record) for run in runs)
    for run in runs:
        if run.choice is not None:
            named += f" {run.choice.route.participation}"  # also of the row
    loaded = {Path(file).stem for run in runs for file in run.load}
    entries = []
    for registry in _REGISTRIES:
        own = {}
        for name, entry in registry.own().items():
            maker = without_partial(inspect.unwrap(getattr(entry, "factory", entry)))
            if name in named and maker.__module__ not in loaded:
                own[name] = entry
        entries.append(own)
    return entries


class Worker:
    """Runs units one after the other; data and compiled programs are kept in between."""

    def __init__(self) -> None:
        self._load = functools.cache(lambda file: run_options.load([file]))

    def perform(self, task: str, unit: Work, on_rounds: RoundsCallback) -> TaskResult:
        """Do a task, "run" or "measure"; errors become one line."""
        try:
            if isinstance(unit, Case):
                unit.measure()
                return TaskResult(None)
            run = unit.runs[0]
            with recorded_jax_settings(run.record):
                for file in run.load:
                    self._load(file)
                if task == "measure":
                    return TaskResult(None, value=self.measure(unit))
                self.run(unit, on_rounds)
                return TaskResult(None)
        except FolderLockedError as error:
            return TaskResult(str(error), not error.by_this_process)
        except Exception as error:
            return TaskResult(_error_line(error, unit))

    def run(self, unit: Unit, on_rounds: RoundsCallback) -> None:
        """Run or resume the unfinished points of a unit, and update outdated summaries."""
        if len(unit.members) == 1:
            self._run_one(unit.members[0], on_rounds)
            return
        with held(unit.shared, "out"):
            if not unit.is_finished():
                self._run_batch(unit, on_rounds)
            for member in unit.members:
                if not member.has_current_summary():
                    self._run_one(member, on_rounds)

    def measure(self, unit: Unit) -> Cost:
        """Run a unit up to its first evaluation, without writing files."""
        run = unit.members[0].point.run
        num_rounds = min(run.settings.eval_every, run.settings.num_rounds)
        histories = self._simulate(unit, num_rounds=num_rounds, eval_first=0, eval_last=0)
        return Cost(histories[0].compile_seconds, histories[0].seconds_per_round)

    def _simulate(self, unit: Unit, **options: Any) -> list[History]:
        """Simulate each training of a unit once, and return a history per point.

        A training is judged by the evaluations of all its points.
        """
        requests = [run.simulation() for run in unit.runs]
        evaluations = []
        together: dict[str, None] = {}
        for request in requests:
            algorithm = request["algorithm"].algorithm
            names = check_evaluations(algorithm, request["evaluations"])
            evaluations.append(names)
            together |= dict.fromkeys(names)
        common = requests[0] | {"evaluations": list(together), "progress": False}
        common |= options
        if len(unit.trainings()) == 1:
            histories = [simulate(**common)]
        else:
            del common["key"]
            batch = batch_of([member.point for member in unit.members])
            histories = simulate_seeds(**common, **batch._asdict())
        history_of = dict(zip(unit.trainings(), histories, strict=True))
        of_points = []
        for run, request, names in zip(unit.runs, requests, evaluations, strict=True):
            history = history_of[run.training]
            of_points.append(
                shared_training.as_method(history, request["algorithm"], names)
            )
        return of_points

    def _run_one(self, member: Member, on_rounds: RoundsCallback) -> None:
        run = member.point.run
        overwrite = member.must_restart()
        with loggers(run, member.folder, in_grid=True, overwrite=overwrite) as callbacks:
            execute(
                run,
                member.folder,
                overwrite=overwrite,
                say=lambda line: None,
                callback=all_of(_progress_callback(on_rounds), *callbacks),
            )

    def _run_batch(self, unit: Unit, on_rounds: RoundsCallback) -> None:
        run = unit.members[0].point.run
        with contextlib.ExitStack() as stack:
            callbacks = []
            for member in unit.members:
                logging = loggers(member.point.run, member.folder, in_grid=True)
                callbacks.append(all_of(*stack.enter_context(logging)))
            histories = self._simulate(
                unit,
                checkpoint_dir=unit.shared / CHECKPOINT if run.checkpoint else None,
                keep_clients=run.models,
                callback=all_of(_progress_callback(on_rounds), split_by_seed(callbacks)),
            )
        for member, history in zip(unit.members, histories, strict=True):
            with held(member.folder, "out"):
                if not member.is_finished():
                    save(history, member.folder, member.point.run, run.models)


def _error_line(error: Exception, unit: Work) -> str:
    """Return an error in one line; a bug leaves its traceback in the unit's folder."""
    of_system = errors.as_system_error(error, unit.shared)
    if of_system is not None:
        return str(of_system.strerror)
    line = " ".join(str(error).split())
    if is_ours(error):
        return line
    line = f"{type(error).__name__}: {line}"
    text = traceback.format_exc()
    file = unit.shared / ERROR
    with contextlib.suppress(OSError):
        unit.shared.mkdir(parents=True, exist_ok=True)
        atomic.replace({file: lambda path: path.write_text(text, "utf-8")})
        line = f"{line[:_MAX_ERROR_LENGTH]}; see {file}"
    return line


def _progress_callback(on_rounds: RoundsCallback) -> Callable[[Progress], None]:
    """Return a callback that reports the rounds of all trainings.

    They may run in several programs, one after the other.
    """
    completed: dict[int, int] = {}  # first seed of a program -> rounds of its trainings

    def call(progress: Progress) -> None:
        seeds = progress.seeds or range(1)
        completed[seeds.start] = progress.round * len(seeds)
        on_rounds(sum(completed.values()))

    return call
