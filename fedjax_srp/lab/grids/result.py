"""Result of a grid: histories by name, tables of all runs, and the choice of the best ones."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import json
import math
import os
import statistics
import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedjax_srp.base import FederatedSource
from fedjax_srp.lab.grids.execute import Failure, execute
from fedjax_srp.lab.grids.points import NamedObject, Point, rerun_of
from fedjax_srp.lab.report.fairness import mean_and_std
from fedjax_srp.parts.checks import check_choice, check_known, checked
from fedjax_srp.results import atomic, csv_files, measures
from fedjax_srp.results.atomic import writable
from fedjax_srp.results.folder import COST, read_summary
from fedjax_srp.results.history import History
from fedjax_srp.results.records import WORDS, without

if TYPE_CHECKING:
    import pandas as pd

_LARGER_IS_BETTER = ("final_accuracy", "worst_decile")  # unless scores are errors
_SMALLER_IS_BETTER = (
    "simulated_time",
    "time_to_target",
    "num_rounds",
    "total_bytes_up",
    "total_bytes_down",
)
_SUMMARY = (
    "evaluation",
    "judged_on",
    "score",
    *_LARGER_IS_BETTER,
    *_SMALLER_IS_BETTER,
    "reached_at_once",
    "diverged",
)


@dataclass(frozen=True, repr=False)
class Grid:
    """The runs of a grid.

    Attributes:
        folder: of the grid; each run has its folder in it.
        folders: name of a finished run -> its folder, in the order of the axes.
        values: name of a run -> the options by which it differs, including those of its variant.
        failures: runs that failed, with an error of one line each; for `dry_run`, failed short runs.
        seconds: estimated by `dry_run` for the unfinished runs; None otherwise, or if a short run failed.
        points: name of a run -> its specification.
    """

    folder: Path
    folders: dict[str, Path]
    values: dict[str, dict[str, object]]
    failures: list[Failure] = field(default_factory=list)
    seconds: float | None = None
    points: dict[str, Point] = field(default_factory=dict)

    def __repr__(self) -> str:
        text = f"{len(self.folders)} of {len(self.values)} runs finished"
        if self.failures:
            text += f", {len(self.failures)} failed"
        return f"Grid({str(self.folder)!r}: {text})"

    @functools.cached_property
    def histories(self) -> dict[str, History]:
        """Name of a finished run -> its history."""
        return {name: History.load(folder) for name, folder in self.folders.items()}

    def data(self, name: str) -> FederatedSource:
        """Load the data of a run, for `srp.evaluate`, `srp.retime` and the like; the last ones are kept."""
        check_known("run", [name], self.points)
        return self.points[name].run.dataset

    def to_frame(self, communication: float | None = None) -> pd.DataFrame:
        """Return a table with a row per run and round: the options that differ, and `History.to_frame`.

        An option that has the name of a column, such as a metric, is `option_<name>`.

        Args:
            communication: cost per communicating round, in time units; None for that of each run.

        Raises:
            ValueError: a cost on top of rounds that overlap.
        """

        return self._long(
            lambda name, run: run.to_frame(self._given(name, COST, communication))
        )

    def _given(self, name: str, number: str, value: float | None) -> Any:
        """Return a number of a summary that is given, or else that of a run's own."""
        return read_summary(self.folders[name])[number] if value is None else value

    def clients_frame(self) -> pd.DataFrame:
        """Return a table with a row per run, evaluation, round and client: `History.clients_frame`."""
        return self._long(lambda _, history: history.clients_frame())

    def summary(
        self, target: float | None = None, communication: float | None = None
    ) -> pd.DataFrame:
        """Return a table with a row per run and evaluation: the options that differ, and numbers of `History.summary`.

        The first row of a run has its default evaluation. The column `id` is a hash of the record, what was asked for:
        the same run has it in every grid in which the same limits are on an axis or set by its variant or a rule.

        An option that has the name of a column, such as `num_rounds`, is `option_<name>`. Where `reached_at_once` is
        True, the first evaluation had reached the target, so that `time_to_target` is an upper bound; a warning says
        how many there are.

        Args:
            target: mean accuracy to time, see `History.summary`; None for that of each run.
            communication: cost per communicating round, in time units; None for that of each run.
        """
        rows = self._summary(target, communication)
        self._warn_of_bounds(rows, stacklevel=3)
        return rows

    def _warn_of_bounds(self, rows: pd.DataFrame, stacklevel: int) -> None:
        """Warn the caller of a public method if times to a target are upper bounds."""
        bounds = rows[rows["reached_at_once"].eq(True)] if len(rows) else rows
        if len(bounds):
            runs = {*bounds["run"]}
            first_round = max(int(self.histories[run].eval_round[0]) for run in runs)
            warnings.warn(
                f"time_to_target of {len(runs)} of {len(self.folders)} runs is an upper bound (column "
                "reached_at_once): their first evaluation has reached the target; "
                f"{measures.remedy_of_bound(first_round)}",
                stacklevel=stacklevel,
            )

    def _summary(self, target: float | None, communication: float | None) -> pd.DataFrame:
        import pandas as pd

        rows = []
        for name, history in self.histories.items():
            goal = self._given(name, "target", target)
            cost = self._given(name, COST, communication)
            first = self._first_columns(name, _SUMMARY)
            judgements = [history.judged_by(each) for each in history.accuracies]
            for judged in judgements or [history]:
                numbers = judged.summary(goal, cost)
                rows.append(first | {column: numbers[column] for column in _SUMMARY})
        return pd.DataFrame(rows)

    def _numbers(
        self,
        by: str,
        target: float | None,
        communication: float | None,
        stacklevel: int,  # of a warning
    ) -> dict[str, float]:
        """Return run -> a number of its summary, by its default evaluation."""
        rows = self._summary(target, communication)
        if not len(rows):
            return {}
        if by == "time_to_target":
            self._warn_of_bounds(rows, stacklevel)
        rows = rows.drop_duplicates("run")
        return dict(zip(rows["run"], rows[by].astype(float), strict=True))

    def histories_by(self, *axes: str) -> dict[Any, list[History]]:
        """Group the histories of finished runs, such as the seeds of each method, for `srp.plots`.

        Args:
            *axes: options that differ, or "variant".

        Returns:
            Value, or values of several axes as a tuple -> histories, in the order of the grid.
        """
        groups: dict[Any, list[History]] = {}
        for axis in axes:
            check_choice("axes", axis, self._columns)
        for name, history in self.histories.items():
            values = tuple(self._columns[axis][name] for axis in axes)
            group = values[0] if len(values) == 1 else values
            groups.setdefault(group, []).append(history)
        return groups

    def save(self, communication: float | None = None) -> list[Path]:
        """Write the tables into the folder, as the grid did with the cost of each run.

        They are `runs.csv`, and `rounds.parquet`, or `rounds.csv` without pyarrow.

        Args:
            communication: cost per communicating round, in time units; None for that of each run.

        Returns:
            The files; none if no run is finished.
        """
        if not self.folders:
            return []
        summary = self._summary(None, communication)
        frame = self.to_frame(communication)
        runs = self.folder / "runs.csv"
        rounds = self.folder / "rounds.csv"
        write_rounds = csv_files.as_csv(frame)
        if importlib.util.find_spec("pyarrow") is not None:
            rounds = self.folder / "rounds.parquet"
            frame = csv_files.printable_cells(frame)
            write_rounds = functools.partial(frame.to_parquet, index=False)
        atomic.replace({runs: csv_files.as_csv(summary), rounds: write_rounds})
        return [runs, rounds]

    @checked
    def best(
        self,
        by: str = "final_accuracy",
        judged_on: Literal["validation", "test"] = "validation",
        per: str | Sequence[str] = (),
        target: float | None = None,
        communication: float | None = None,
    ) -> list[str]:
        """Return the names of the runs of the best setting, one for each seed, for `rerun`.

        Runs that differ only in the seed are one setting, compared by their mean. A setting with a run that failed or
        lacks this number, such as the accuracy of one that diverged or the time to a target that it did not reach, is
        left out. A warning names a value that is the smallest or largest of three or more tried.

        Args:
            by: a score, time, number of rounds or bytes of `summary`. The largest score is the best, unless scores are
                errors, and the smallest of everything else.
            judged_on: "validation" if the runs were judged by a share of the training data (the option `validation`);
                "test" chooses by the test data, so the accuracy of the choice is too optimistic.
            per: an axis, or several: the best setting for each of their values, such as "method" for a learning rate of
                each method.
            target: mean accuracy to time, for `by="time_to_target"`; None for that of each run.
            communication: cost per communicating round, in time units; None for that of each run.

        Raises:
            ValueError: an unknown number or axis, no finished run, a run that was judged by other data, or scores of
                which some are errors and others not.
        """
        check_choice("by", by, (*_LARGER_IS_BETTER, *_SMALLER_IS_BETTER))
        axes = [per] if isinstance(per, str) else per
        for axis in axes:
            check_choice("per", axis, [name for name in self._columns if name != "seed"])
        for point in self.points.values():
            _check_judged_on(judged_on, point)
        groups: dict[str, list[list[str]]] = {}  # values of `per` -> runs of its settings
        for names in self._settings:
            group = ", ".join(str(self._columns[axis][names[0]]) for axis in axes)
            groups.setdefault(group, []).append(names)
        if not self.folders:
            raise ValueError("best: no run of the grid is finished")
        numbers = self._numbers(by, target, communication, stacklevel=5)
        best: list[str] = []
        for group, settings in groups.items():
            means: dict[tuple[str, ...], float] = {}
            for names in settings:
                mean = statistics.fmean(numbers.get(name, math.nan) for name in names)
                if math.isfinite(mean):
                    means[tuple(names)] = mean
            where = f" of {group}" if group else ""
            if not means:
                problem = (
                    f"best: no setting{where} has a number as {by} in each of its runs"
                )
                if by == "time_to_target":
                    problem += (
                        f"; target={target}: give one that a setting reaches in all"
                    )
                raise ValueError(problem)
            choose = min
            if by in _LARGER_IS_BETTER:
                choose = self._choice_of_scores([names[0] for names in means], where)
            chosen = choose(means, key=means.__getitem__)
            tried = list(itertools.chain.from_iterable(settings))
            self._warn_at_ends(chosen[0], tried, axes, where)
            best += chosen
        return best

    def sweep(
        self,
        by: str = "final_accuracy",
        target: float | None = None,
        communication: float | None = None,
    ) -> pd.DataFrame:
        """Return a table with a row for each setting: the options that differ, without the seed, and means over seeds.

        Columns: the options; `runs`, their number; `by`, the mean (nan if a run failed or lacks the number); `by_std`,
        the sample standard deviation. Its `pivot` makes a table of two axes.

        Args:
            by: as for `best`.
            target: as for `best`.
            communication: as for `best`.
        """
        import pandas as pd

        check_choice("by", by, (*_LARGER_IS_BETTER, *_SMALLER_IS_BETTER))
        numbers = self._numbers(by, target, communication, stacklevel=4)
        settings = []
        for names in self._settings:
            row = self._first_columns(names[0], ("runs", by, f"{by}_std"))
            for of_run in ("run", "id", "seed"):
                row.pop(of_run, None)
            of_seeds = [numbers.get(name, math.nan) for name in names]
            settings.append(row | {"runs": len(names)} | mean_and_std(by, of_seeds))
        return pd.DataFrame(settings)

    @functools.cached_property
    def _settings(self) -> list[list[str]]:
        """The names of the runs of each setting, which differ only in the seed."""
        settings: dict[str, list[str]] = {}
        for name, point in self.points.items():
            asked = without(point.run.record, "key", WORDS)
            setting = json.dumps([asked, point.run.communication], sort_keys=True)
            settings.setdefault(setting, []).append(name)
        return list(settings.values())

    def _warn_at_ends(
        self, chosen: str, tried: Sequence[str], axes: Sequence[str], where: str
    ) -> None:
        """Warn if the best setting has the smallest or the largest of the values that were tried."""
        ends = []
        for option, cells in self._columns.items():
            if option in (*axes, "seed", "partition_seed"):
                continue
            values: set[Any] = {cells[name] for name in tried if cells[name] is not None}
            is_numeric = all(type(value) in (int, float) for value in values)
            if len(values) < 3 or not is_numeric:
                continue
            for end, word in ((min, "smallest"), (max, "largest")):
                if cells[chosen] == end(values):
                    ends.append(f"{option}={cells[chosen]}, the {word} of {len(values)}")
        if ends:
            warnings.warn(
                f"best{where}: {' and '.join(ends)} values tried; the best one may lie beyond, extend the axis",
                stacklevel=4,
            )

    def _choice_of_scores(self, names: Sequence[str], where: str) -> Callable[..., Any]:
        """Return `max`, or `min` if the scores of these runs are errors."""
        are_errors = {self.histories[name].smaller_is_better for name in names}
        if len(are_errors) > 1:
            raise ValueError(
                f"best: the scores of some runs{where} are errors, of others not; give per, "
                "the data"
            )
        return min if any(are_errors) else max

    def rerun(
        self, names: Sequence[str], out: str | os.PathLike | None = None, **options: Any
    ) -> Grid:
        """Run some of its runs again, on all of their training data and judged by their test data.

        Args:
            names: of runs that were judged by a share of the training data, such as those of `best`.
            out: folder of the new grid; default "test" in the folder of this one.
            **options: workers, batch, retries, launcher, slurm, dry_run and progress, as of `grid`.

        Returns:
            A grid of these runs, under the same names.

        Raises:
            ValueError: an unknown name, a run that was judged by its test data already, or two runs that differ only in
                their validation.

        Example:
            >>> import tempfile, fedjax_srp as srp
            >>> tuning = srp.grid(
            ...     axes={"learning_rate": [0.01, 0.1], "seed": [0, 1]},
            ...     options={"method": "fedavg", "dataset": "digits", "num_clients": 10, "num_rounds": 2,
            ...              "hidden": [8], "validation": 0.2},
            ...     out=tempfile.mkdtemp(), progress=False,
            ... )
            >>> list(tuning.rerun(tuning.best(), progress=False).folders)
            ['learning_rate=0.1, seed=0', 'learning_rate=0.1, seed=1']
        """
        check_known("run", names, self.points)
        chosen: dict[str, Point] = {}
        for name in dict.fromkeys(names):
            point = rerun_of(self.points[name])
            same = chosen.setdefault(point.id, point)
            if same is not point:
                raise ValueError(
                    f"{same.name} and {point.name} are the same run without validation; "
                    "name one of them"
                )
        folder = writable(self.folder / "test" if out is None else out)
        return run_grid(list(chosen.values()), folder, **options)

    def _first_columns(self, name: str, others: Collection[str]) -> dict[str, object]:
        """Return a run's name and options, for a table that has other columns too."""
        cells: dict[str, object] = {"run": name, "id": self.points[name].id}
        for option, values in self._columns.items():
            column = f"option_{option}" if option in others else option
            cells[column] = values[name]
        return cells

    @functools.cached_property
    def _columns(self) -> dict[str, dict[str, object]]:
        """Option -> name of a run -> its value; texts if their types differ.

        A value is None if the run does not read the option.
        """
        columns: dict[str, dict[str, object]] = {}
        for values in self.values.values():
            for option in values:
                columns[option] = {}
        for option, cells in columns.items():
            for name, values in self.values.items():
                value = values.get(option)
                if isinstance(value, tuple):
                    value = "+".join(map(str, value))
                cells[name] = value
            types = {type(cell) for cell in cells.values() if cell is not None}
            if len(types) > 1 and types != {int, float}:
                for name, cell in cells.items():
                    if cell is not None:
                        cells[name] = str(cell)
        return columns

    def _long(self, frame_of: Callable[[str, History], pd.DataFrame]) -> pd.DataFrame:
        """Concatenate a table of each run, with its name and options in front."""
        import pandas as pd

        frames = {name: frame_of(name, run) for name, run in self.histories.items()}
        columns = {column for frame in frames.values() for column in frame}
        for name, frame in frames.items():
            cells = self._first_columns(name, columns)
            for place, (column, value) in enumerate(cells.items()):
                frame.insert(place, column, [value] * len(frame))
        if not frames:
            return pd.DataFrame()
        return pd.concat(frames.values(), ignore_index=True)


def run_grid(points: Sequence[Point], folder: Path, **options: Any) -> Grid:
    """Run points into a folder, write its tables and return the result.

    Options and errors are those of `execute`.
    """
    members, failures, seconds = execute(points, folder, **options)
    grid = Grid(folder, {}, {}, failures, seconds)
    for member in members:
        point = member.point
        grid.points[point.name] = point
        grid.values[point.name] = _with_names(point.values | point.of_variant)
        if member.is_finished():
            grid.folders[point.name] = member.folder
    if not options.get("dry_run"):
        grid.save()
    return grid


def _check_judged_on(judged_on: str, point: Point) -> None:
    split = "test"
    remedy = "give validation=0.2 under options"
    if point.run.data["validation"] is not None:
        split = "validation"
        remedy = "leave out validation"
    if split != judged_on:
        raise ValueError(
            f"judged_on={judged_on!r}: {point.name} was judged by {split} data; {remedy}"
        )


def _with_names(value: Any) -> Any:
    """Return the name of an object, also of those in a table or of several that are one run."""
    if isinstance(value, NamedObject):
        return value.name
    if isinstance(value, dict):
        return {key: _with_names(each) for key, each in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_with_names, value))
    return value
