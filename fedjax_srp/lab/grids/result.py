"""Result of a grid: histories by name, tables of all runs, and the choice of the best ones."""

from __future__ import annotations

import functools
import importlib.util
import json
import math
import os
import statistics
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedjax_srp.lab.grids.execute import Failure, execute
from fedjax_srp.lab.grids.points import NamedObject, Point, rerun_of
from fedjax_srp.lab.report import table
from fedjax_srp.parts.checks import check_choice, check_known, checked
from fedjax_srp.results import atomic, csv_files
from fedjax_srp.results.atomic import writable
from fedjax_srp.results.history import History

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
        failed = f", {len(self.failures)} failed" if self.failures else ""
        return f"Grid({str(self.folder)!r}: {len(self.folders)} of {len(self.values)} runs finished{failed})"

    @functools.cached_property
    def histories(self) -> dict[str, History]:
        """Name of a finished run -> its history."""
        return {name: History.load(folder) for name, folder in self.folders.items()}

    def to_frame(self, communication: float | None = None) -> pd.DataFrame:
        """Return a table with a row per run and round: the options that differ, and `History.to_frame`.

        An option that has the name of a column, such as a metric, is `option_<name>`.

        Args:
            communication: cost per communicating round, in time units; None for that of each run.

        Raises:
            ValueError: a cost on top of rounds that overlap.
        """
        return self._long(
            lambda history: history.to_frame(
                _or_recorded(communication, history, "communication")
            )
        )

    def clients_frame(self) -> pd.DataFrame:
        """Return a table with a row per run, evaluation, round and client: `History.clients_frame`."""
        return self._long(lambda history: history.clients_frame())

    def summary(
        self, target: float | None = None, communication: float | None = None
    ) -> pd.DataFrame:
        """Return a table with a row per run: the options that differ, and numbers of `History.summary`.

        An option that has the name of a column, such as `num_rounds`, is `option_<name>`.

        Args:
            target: mean accuracy to time, see `History.summary`; None for that of each run.
            communication: cost per communicating round, in time units; None for that of each run.
        """
        import pandas as pd

        rows = []
        for name, history in self.histories.items():
            cost = _or_recorded(communication, history, "communication")
            numbers = history.summary(_or_recorded(target, history, "target"), cost)
            rows.append(
                self._first_columns(name, _SUMMARY)
                | {column: numbers[column] for column in _SUMMARY}
            )
        return pd.DataFrame(rows)

    def save(self, communication: float | None = None) -> list[Path]:
        """Write the tables into the folder: `runs.csv` and `rounds.parquet`, or `rounds.csv` without pyarrow.

        Args:
            communication: cost per communicating round, in time units; None for that of each run.

        Returns:
            The files; none if no run is finished.
        """
        if not self.folders:
            return []
        runs = self.folder / "runs.csv"
        rounds = self.folder / "rounds.csv"
        frame = table.printable_cells(self.to_frame(communication))
        summary = table.printable_cells(self.summary(communication=communication))
        write_rounds = csv_files.as_csv(frame)
        if importlib.util.find_spec("pyarrow") is not None:
            rounds, write_rounds = (
                rounds.with_suffix(".parquet"),
                functools.partial(frame.to_parquet, index=False),
            )
        atomic.replace({runs: csv_files.as_csv(summary), rounds: write_rounds})
        return [runs, rounds]

    @checked
    def best(
        self,
        by: str = "final_accuracy",
        judged_on: Literal["validation", "test"] = "validation",
        per: str | Sequence[str] = (),
    ) -> list[str]:
        """Return the names of the runs of the best setting, one for each seed, for `rerun`.

        Runs that differ only in the seed are one setting, compared by their mean. A setting with a run that failed or
        lacks this number, such as the accuracy of one that diverged or the time to a target that it did not reach, is
        left out.

        Args:
            by: a score, time, number of rounds or bytes of `summary`. The largest score is the best, unless scores are
                errors, and the smallest of everything else.
            judged_on: "validation" if the runs were judged by a share of the training data (the option `validation`);
                "test" chooses by the test data, so the accuracy of the choice is too optimistic.
            per: an axis, or several: the best setting for each of their values, such as "method" for a learning rate of
                each method.

        Raises:
            ValueError: an unknown number or axis, no finished run, a run that was judged by other data, or scores of
                which some are errors and others not.
        """
        check_choice("by", by, (*_LARGER_IS_BETTER, *_SMALLER_IS_BETTER))
        axes = [name for name in self._columns if name != "seed"]
        of_axes = [
            self._columns[check_choice("per", axis, axes)]
            for axis in ([per] if isinstance(per, str) else per)
        ]
        settings: dict[tuple[tuple[object, ...], str], list[str]] = {}
        for name, point in self.points.items():
            run = point.run
            split = "test" if run.data["validation"] is None else "validation"
            if split != judged_on:
                other = (
                    "give validation=0.2 under options"
                    if judged_on == "validation"
                    else "leave out validation"
                )
                raise ValueError(
                    f"judged_on={judged_on!r}: {name} was judged by {split} data; {other}"
                )
            setting = {
                option: value for option, value in run.record.items() if option != "seed"
            }
            group = tuple(cells[name] for cells in of_axes)
            settings.setdefault((group, json.dumps(setting, sort_keys=True)), []).append(
                name
            )
        if not self.folders:
            raise ValueError("best: no run of the grid is finished")
        rows = self.summary()
        number_of = dict.fromkeys(self.points, math.nan) | dict(
            zip(rows["run"], rows[by].astype(float), strict=True)
        )
        means = {
            setting: statistics.fmean(number_of[name] for name in names)
            for setting, names in settings.items()
        }
        found: list[str] = []
        for group in dict.fromkeys(group for group, _ in settings):
            known = {
                each: mean
                for each, mean in means.items()
                if each[0] == group and math.isfinite(mean)
            }
            where = f" of {', '.join(map(str, group))}" if group else ""
            if not known:
                raise ValueError(
                    f"best: no setting{where} has a number as {by} in each of its runs"
                )
            have_errors = {
                self.histories[settings[each][0]].smaller_is_better for each in known
            }
            if by in _LARGER_IS_BETTER and len(have_errors) > 1:
                raise ValueError(
                    f"best: the scores of some runs{where} are errors, of others not; give per, the data"
                )
            choose = max if by in _LARGER_IS_BETTER and not any(have_errors) else min
            found += settings[choose(known, key=known.__getitem__)]
        return found

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
        for point in map(rerun_of, (self.points[name] for name in dict.fromkeys(names))):
            if (same := chosen.setdefault(point.id, point)) is not point:
                raise ValueError(
                    f"{same.name} and {point.name} are the same run without validation; name one of them"
                )
        return run_grid(
            [*chosen.values()],
            writable(self.folder / "test" if out is None else out),
            **options,
        )

    def _first_columns(self, name: str, others: Collection[str]) -> dict[str, object]:
        """Return a run's name and options, for a table that has other columns too."""
        options = {
            f"option_{o}" if o in others else o: cells[name]
            for o, cells in self._columns.items()
        }
        return {"run": name} | options

    @functools.cached_property
    def _columns(self) -> dict[str, dict[str, object]]:
        """Option -> name of a run -> its value, None if the run does not read it; texts if types differ."""
        axes = dict.fromkeys(axis for values in self.values.values() for axis in values)
        return {
            axis: _of_one_type(
                {n: _cell(each.get(axis)) for n, each in self.values.items()}
            )
            for axis in axes
        }

    def _long(self, table: Callable[[History], pd.DataFrame]) -> pd.DataFrame:
        import pandas as pd

        frames = {name: table(history) for name, history in self.histories.items()}
        taken = {column for frame in frames.values() for column in frame}
        tables = []
        for name, frame in frames.items():
            columns = self._first_columns(name, taken)
            front = pd.DataFrame(
                {column: [value] * len(frame) for column, value in columns.items()}
            )
            tables.append(pd.concat([front, frame], axis=1))
        return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def run_grid(points: Sequence[Point], folder: Path, **options: Any) -> Grid:
    """Run points into a folder and return the result; options and errors as of `execute`."""
    members, failures, seconds = execute(points, folder, **options)
    named = {member.point.name: member for member in members}
    values = {
        name: _with_names(member.point.values | member.point.of_variant)
        for name, member in named.items()
    }
    finished = {
        name: member.folder for name, member in named.items() if member.is_finished()
    }
    return Grid(
        folder,
        finished,
        values,
        failures,
        seconds,
        {name: member.point for name, member in named.items()},
    )


def _with_names(value: Any) -> Any:
    """Return the name of an object, also of those in a table or of several that are one run."""
    if isinstance(value, NamedObject):
        return value.name
    if isinstance(value, dict):
        return {key: _with_names(each) for key, each in value.items()}
    return tuple(map(_with_names, value)) if isinstance(value, tuple) else value


def _or_recorded(given: float | None, history: History, option: str) -> Any:
    return history.config["arguments"][option] if given is None else given


def _of_one_type(cells: dict[str, object]) -> dict[str, object]:
    types = {type(cell) for cell in cells.values() if cell is not None}
    if len(types) < 2 or types == {int, float}:
        return cells
    return {name: cell if cell is None else str(cell) for name, cell in cells.items()}


def _cell(value: object) -> object:
    return "+".join(map(str, value)) if isinstance(value, tuple) else value
