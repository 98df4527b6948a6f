"""Result of a grid: histories by name, long tables of all of them, and the best of them judged anew."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedjax_srp import storage
from fedjax_srp._checks import check_choice, check_known, checked
from fedjax_srp.grids.execute import Failure, How, execute
from fedjax_srp.grids.points import Own, Point, rerun_of
from fedjax_srp.history import History
from fedjax_srp.storage import writable

if TYPE_CHECKING:
    import pandas as pd

_LARGER = ("final_accuracy", "worst_decile")  # better where scores are accuracies
_NUMBERS = (
    *(*_LARGER, "simulated_time", "time_to_target", "num_rounds"),
    *("diverged", "total_bytes_up", "total_bytes_down"),
)
_SUMMARY = ("evaluation", "judged_on", "score", *_NUMBERS)


@dataclass(frozen=True, repr=False)
class Grid:
    """The runs of a grid.

    Attributes:
        folder: of the grid; each run has its folder in it.
        folders: name of the run -> its folder, finished runs alone, in the order of the axes.
        values: name of the run -> the options by which it differs, those of its variant too, of all runs.
        failures: runs that could not be made, with an error of one line each; of `dry_run`, short runs of programs.
        seconds: how long the rest would take, where that was asked for (`dry_run`) and no short run failed; None
            otherwise.
        points: name of the run -> what was asked for.
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
        """Name of the run -> its history, finished runs alone."""
        return {name: History.load(folder) for name, folder in self.folders.items()}

    def to_frame(self, communication: float | None = None) -> pd.DataFrame:
        """A long table: a row a run and round, `History.to_frame` with the options that differ in front.

        Args:
            communication: cost per communicating round, in time units; None for that of each run.

        Raises:
            ValueError: a cost on top of rounds that overlap.
        """
        return self._long(lambda history: history.to_frame(_own(history, "communication", communication)))

    def clients_frame(self) -> pd.DataFrame:
        """As `to_frame`, a row a run, evaluation, round and client: `History.clients_frame`."""
        return self._long(lambda history: history.clients_frame())

    def summary(self, target: float | None = None, communication: float | None = None) -> pd.DataFrame:
        """A row a run: the options that differ, and the run in a few numbers.

        Args:
            target: mean accuracy to time, see `History.summary`; None for that of each run.
            communication: cost per communicating round, in time units; None for that of each run.
        """
        import pandas as pd

        rows = []
        for name, history in self.histories.items():
            numbers = history.summary(_own(history, "target", target), _own(history, "communication", communication))
            rows.append(self._front(name) | {column: numbers[column] for column in _SUMMARY})
        return pd.DataFrame(rows)

    def save(self, communication: float | None = None) -> list[Path]:
        """Writes the tables into the folder: `runs.csv` and `rounds.parquet`, or `rounds.csv` without pyarrow.

        Args:
            communication: cost per communicating round, in time units; None for that of each run.

        Returns:
            The files; none where nothing is finished.
        """
        if not self.folders:
            return []
        runs = self.folder / "runs.csv"
        rounds, frame = self.folder / "rounds.csv", self.to_frame(communication)
        write_rounds = storage.as_csv(frame)
        if importlib.util.find_spec("pyarrow") is not None:
            rounds, write_rounds = rounds.with_suffix(".parquet"), functools.partial(frame.to_parquet, index=False)
        storage.replace({runs: storage.as_csv(self.summary(communication=communication)), rounds: write_rounds})
        return [runs, rounds]

    @checked
    def best(self, by: str = "final_accuracy", judged_on: Literal["validation", "test"] = "validation") -> list[str]:
        """Returns the names of the runs of the best setting, one for each seed: what `rerun` takes.

        Runs that differ in nothing but the seed are one setting, judged by their mean.

        Args:
            by: a number of `summary`. The largest accuracy is the best, and the smallest of everything else.
            judged_on: "validation" where the runs were judged by a share of the training data (the option
                `validation`); "test" chooses by the very data that judge, which flatters the choice.

        Raises:
            ValueError: no such number, no finished run, or a run that was judged by other data.
        """
        check_choice("by", by, _NUMBERS)
        settings: dict[str, list[str]] = {}
        for name in self.folders:
            run = self.points[name].run
            split = "test" if run.data["validation"] is None else "validation"
            if split != judged_on:
                other = "give validation=0.2 under options" if judged_on == "validation" else "leave out validation"
                raise ValueError(f"judged_on={judged_on!r}: {name} was judged by {split} data; {other}")
            made = {option: value for option, value in run.record.items() if option != "seed"}
            settings.setdefault(json.dumps(made, sort_keys=True), []).append(name)
        if not settings:
            raise ValueError("best: no run of the grid is finished")
        rows = self.summary().set_index("run")
        means = {setting: rows.loc[names, by].astype(float).mean() for setting, names in settings.items()}
        known = {setting: mean for setting, mean in means.items() if mean == mean}
        if not known:
            raise ValueError(f"best: {by} is not a number in any run")
        is_larger_better = by in _LARGER and set(rows["score"]) == {"accuracy"}
        return settings[(max if is_larger_better else min)(known, key=known.__getitem__)]

    def rerun(self, names: Sequence[str], out: str | os.PathLike | None = None, **how: Any) -> Grid:
        """Runs some of its runs again, on all of their training data and judged by their test data.

        Args:
            names: of runs that were judged by a share of the training data; `best` returns some.
            out: folder of the new grid; default "test" in that of this one.
            **how: workers, batch, retries, launcher, slurm, dry_run and progress, as of `grid`.

        Returns:
            A grid of these runs, under the same names.

        Raises:
            ValueError: a name that is none, a run that was judged by its test data already.

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
        anew = [rerun_of(self.points[name]) for name in names]
        return carried_out(anew, writable(self.folder / "test" if out is None else out), How(**how))

    def _front(self, name: str) -> dict[str, object]:
        return {"run": name} | {axis: cells[name] for axis, cells in self._columns.items()}

    @functools.cached_property
    def _columns(self) -> dict[str, dict[str, object]]:
        """Axis -> name of the run -> its value, None where the run does not read it; text where types differ."""
        axes = dict.fromkeys(axis for values in self.values.values() for axis in values)
        return {axis: _of_one_type({n: _cell(own.get(axis)) for n, own in self.values.items()}) for axis in axes}

    def _long(self, table: Callable[[History], pd.DataFrame]) -> pd.DataFrame:
        import pandas as pd

        def frames() -> Iterator[pd.DataFrame]:
            for name, history in self.histories.items():
                frame = table(history)
                front = pd.DataFrame({column: [value] * len(frame) for column, value in self._front(name).items()})
                yield pd.concat([front, frame], axis=1)

        return pd.concat(frames(), ignore_index=True) if self.folders else pd.DataFrame()


def carried_out(points: Sequence[Point], folder: Path, how: How) -> Grid:
    """Return the result of points that are run into a folder; errors as of `execute`."""
    members, failures, seconds = execute(points, folder, how)
    named = {member.point.name: member for member in members}
    values = {name: _plain(member.point.values | member.point.of_variant) for name, member in named.items()}
    finished = {name: member.folder for name, member in named.items() if member.is_finished()}
    return Grid(folder, finished, values, failures, seconds, {name: member.point for name, member in named.items()})


def _plain(values: dict[str, object]) -> dict[str, object]:
    """Values with the names of objects in their place."""
    return {name: value.name if isinstance(value, Own) else value for name, value in values.items()}


def _own(history: History, option: str, given: float | None) -> Any:
    """What is given, else what the run was asked for."""
    own = {"communication": 0.0, "target": None} | history.config.get("arguments", {})
    return own[option] if given is None else given


def _of_one_type(cells: dict[str, object]) -> dict[str, object]:
    types = {type(cell) for cell in cells.values() if cell is not None}
    if len(types) < 2 or types == {int, float}:
        return cells
    return {name: cell if cell is None else str(cell) for name, cell in cells.items()}


def _cell(value: object) -> object:
    """Several values as one text, as the name of a run has them."""
    return "+".join(map(str, value)) if isinstance(value, tuple) else value
