"""One unit of a grid, run in this process: a point as `fedjax-srp run` does it, or a batch as one program."""

from __future__ import annotations

import contextlib
import functools
import itertools
import traceback
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fedjax_srp import storage
from fedjax_srp._checks import is_ours
from fedjax_srp.base import FederatedSource
from fedjax_srp.engine.prepare import check_evaluations
from fedjax_srp.engine.simulate import simulate, simulate_seeds
from fedjax_srp.grids.units import Member, Unit, batch_of
from fedjax_srp.history import History
from fedjax_srp.runs import folder as run_folder
from fedjax_srp.runs import judged, words
from fedjax_srp.runs.loggers import apart, loggers
from fedjax_srp.runs.run import as_recorded, load_data
from fedjax_srp.watch import Progress, all_of

Tell = Callable[[int], None]  # how many rounds the points of a unit have completed, all together
ERROR = "error.txt"  # in the folder that a unit's points share
_LINE = 300  # letters of an error


class Cost(NamedTuple):
    """Seconds that a short run of a unit took."""

    compile: float
    per_round: float  # of all trainings together, evaluations included


class Done(NamedTuple):
    """A unit has ended."""

    error: str | None  # in one line
    is_elsewhere: bool = False  # another process is running it
    result: Any = None


class Datasets:
    """Loads data; keeps the last ones, which neighbours in a grid share."""

    def __init__(self) -> None:
        self._known: tuple[Any, FederatedSource] | None = None

    def __call__(self, given: Mapping[str, Any]) -> FederatedSource:
        """Return the data of a run; errors as of `load_data`."""
        if self._known is None or self._known[0] != given:
            self._known = None  # its memory first
            self._known = given, load_data(given)
        return self._known[1]


class Worker:
    """Runs units one after the other; keeps data and programs between them."""

    def __init__(self) -> None:
        self._datasets, self._load = Datasets(), functools.cache(lambda file: words.load([file]))

    def perform(self, task: str, unit: Unit, tell: Tell) -> Done:
        """Do a task, "run" or "measure"; an error is one line, with a traceback in the unit's folder if it is a bug."""
        run = unit.members[0].point.run
        try:
            with as_recorded(run.record):
                for file in run.load:
                    self._load(file)
                return Done(None, result=self.run(unit, tell) if task == "run" else self.measure(unit))
        except Exception as error:
            full = storage.as_full_disk(error, unit.shared)
            line = " ".join(str(error if full is None else full.strerror).split())
            if full is None and not is_ours(error):
                line = f"{type(error).__name__}: {line}"
                with contextlib.suppress(OSError):
                    unit.shared.mkdir(parents=True, exist_ok=True)
                    text = traceback.format_exc()
                    storage.replace({unit.shared / ERROR: lambda path: path.write_text(text, "utf-8")})
                    line = f"{line[:_LINE]}; see {unit.shared / ERROR}"
            return Done(line, isinstance(error, storage.HeldError))

    def run(self, unit: Unit, tell: Tell) -> None:
        """Run what is not finished of a unit, from a checkpoint if there is one, and mend summaries of other costs."""
        if len(unit.members) == 1:
            self._run_one(unit.members[0], tell)
            return
        with storage.held(unit.shared, "out"):
            if not unit.is_finished():
                self._run_batch(unit, tell)
            for member in unit.members:
                if not member.is_summarized():
                    self._run_one(member, tell)

    def measure(self, unit: Unit) -> Cost:
        """Run a unit up to its first evaluation, and keep nothing of it."""
        run = unit.members[0].point.run
        num_rounds = min(run.eval_every, run.num_rounds)
        history = self._simulated(unit, num_rounds=num_rounds, eval_first=0)[0]
        return Cost(history.compile_seconds, history.seconds_per_round)

    def _simulated(self, unit: Unit, **options: Any) -> list[History]:
        """The histories of a unit's points, together; each training once, judged in all ways that are asked for."""
        runs = [member.point.run for member in unit.members]
        given = [run.simulation(self._datasets(run.data)) for run in runs]
        judges = [check_evaluations(each["algorithm"].algorithm, each["evaluations"]) for each in given]
        asked = given[0] | {"evaluations": [*dict.fromkeys(itertools.chain(*judges))], "progress": False, **options}
        if len(unit.trainings()) == 1:
            found = [simulate(**asked)]
        else:
            del asked["key"]
            found = simulate_seeds(**asked, **batch_of([member.point for member in unit.members])._asdict())
        trained = dict(zip(unit.trainings(), found, strict=True))
        return [
            judged.as_method(trained[run.training], each["algorithm"], of_run)
            for run, each, of_run in zip(runs, given, judges, strict=True)
        ]

    def _run_one(self, member: Member, tell: Tell) -> None:
        with loggers(member.point.run, member.folder, among_others=True) as found:
            run_folder.execute(
                member.point.run,
                member.folder,
                overwrite=member.begins_anew(),
                say=lambda line: None,
                load=self._datasets,
                callback=all_of(_telling(tell), *found),
            )

    def _run_batch(self, unit: Unit, tell: Tell) -> None:
        run = unit.members[0].point.run
        place = unit.shared / "checkpoint" if run.checkpoint else None
        with contextlib.ExitStack() as stack:
            of_member = [stack.enter_context(loggers(m.point.run, m.folder, among_others=True)) for m in unit.members]
            callback = all_of(_telling(tell), apart([all_of(*found) for found in of_member]))
            histories = self._simulated(unit, checkpoint_dir=place, keep_clients=run.models, callback=callback)
        for member, history in zip(unit.members, histories, strict=True):
            with storage.held(member.folder, "out"):
                if not member.is_finished():
                    run_folder.save(history, member.folder, member.point.run, run.models)


def _telling(tell: Tell) -> Callable[[Progress], None]:
    """A callback that tells the rounds of all points; where memory is short, several programs run one by one."""
    done: dict[int, int] = {}

    def call(progress: Progress) -> None:
        seeds = progress.seeds or range(1)
        done[seeds.start] = progress.round * len(seeds)
        tell(sum(done.values()))

    return call
