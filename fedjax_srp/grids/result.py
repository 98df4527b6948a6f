"""What a grid leaves behind: histories by name, and long tables of all of them."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedjax_srp import stored
from fedjax_srp.grids.schedule import Failure
from fedjax_srp.grids.units import Member
from fedjax_srp.history import History

if TYPE_CHECKING:
    import pandas as pd

_SUMMARY = (
    *("evaluation", "score", "final_accuracy", "worst_decile", "simulated_time", "time_to_target", "num_rounds"),
    *("diverged", "total_bytes_up", "total_bytes_down"),
)


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
    """

    folder: Path
    folders: dict[str, Path]
    values: dict[str, dict[str, object]]
    failures: list[Failure] = field(default_factory=list)
    seconds: float | None = None

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
        as_csv = {"index": False, "lineterminator": "\n"}
        write_rounds = functools.partial(frame.to_csv, **as_csv)
        if importlib.util.find_spec("pyarrow") is not None:
            rounds, write_rounds = rounds.with_suffix(".parquet"), functools.partial(frame.to_parquet, index=False)
        write_runs = functools.partial(self.summary(communication=communication).to_csv, **as_csv)
        stored.replace({runs: write_runs, rounds: write_rounds})
        return [runs, rounds]

    def _front(self, name: str) -> dict[str, object]:
        """The columns in front, one for every axis and every option of a variant."""
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


def of(folder: Path, members: Sequence[Member], failures: Sequence[Failure], seconds: float | None) -> Grid:
    """The result of a grid, as its folder stands."""
    finished = {m.point.name: m.folder for m in members if m.is_finished()}
    return Grid(
        folder, finished, {m.point.name: m.point.values | m.point.of_variant for m in members}, list(failures), seconds
    )


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
