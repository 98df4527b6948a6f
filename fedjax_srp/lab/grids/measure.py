"""`measure`: a function at all combinations of values, kept, resumed and launched as the runs of a grid are."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import os
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedjax_srp.lab.grids.batches import SHARED
from fedjax_srp.lab.grids.cases import Case, as_plain
from fedjax_srp.lab.grids.execute import (
    Failure,
    LauncherName,
    Number,
    launched,
    print_failures,
    run_units,
)
from fedjax_srp.lab.grids.points import (
    VARIANT,
    NamedObject,
    Spec,
    at_scale,
    combinations,
    folder_name,
    name_of,
    unwrapped,
    without_names,
)
from fedjax_srp.lab.grids.slurm import describe_jobs
from fedjax_srp.parts.checks import checked, printable, short
from fedjax_srp.results import atomic, csv_files
from fedjax_srp.results.atomic import writable

if TYPE_CHECKING:
    import pandas as pd

_PLACES = {"data_dir"}  # arguments that say where data are, not which
_NUMBERS = {"inf": float("inf"), "-inf": -float("inf"), "nan": float("nan")}


@dataclass(frozen=True, repr=False)
class Measurements:
    """The cases of a measurement.

    Attributes:
        folder: of the measurement; each case has its folder in it.
        cases: name -> case, in the order of the axes.
        failures: cases that failed, with an error of one line each.
        seconds: for `dry_run`, of the cases that are left, by the mean of the finished ones; None otherwise.
    """

    folder: Path
    cases: dict[str, Case]
    failures: list[Failure] = field(default_factory=list)
    seconds: float | None = None

    def __repr__(self) -> str:
        text = f"{len(self.results)} of {len(self.cases)} cases measured"
        return f"Measurements({str(self.folder)!r}: {text})"

    @functools.cached_property
    def results(self) -> dict[str, Any]:
        """Name of a finished case -> what the function returned, as JSON has it."""
        finished = {n: case for n, case in self.cases.items() if case.is_finished()}
        return {name: case.kept()["found"] for name, case in finished.items()}

    @functools.cached_property
    def table(self) -> pd.DataFrame:
        """A row for each finished case, or for each dict in the list that its call returned.

        Columns: the case and its id, the values by which cases differ, and the numbers that were returned (`result`, if
        that is no dict). A value that has the name of a number is `option_<name>`.
        """
        import pandas as pd

        rows = []
        for name, found in self.results.items():
            each = found if isinstance(found, list) else [found]
            if not each or not all(isinstance(row, dict) for row in each):
                each = [{"result": found}]
            case = self.cases[name]
            for row in each:
                first: dict[str, Any] = {"case": name, "id": case.id}
                for option, value in case.values.items():
                    first[f"option_{option}" if option in row else option] = value
                numbers = {n: _number(value) for n, value in row.items()}
                rows.append(first | numbers)
        return pd.DataFrame(rows)

    def save(self) -> list[Path]:
        """Write `measurements.csv`, the table, into the folder; nothing if no case is finished."""
        if not self.results:
            return []
        file = self.folder / "measurements.csv"
        atomic.replace({file: csv_files.as_csv(self.table)})
        return [file]


def _number(value: Any) -> Any:
    return _NUMBERS.get(value, value) if isinstance(value, str) else value


@checked
def measure(
    function: Callable[..., Any],
    *,
    axes: Mapping[str, Sequence[Any] | Mapping[str, Any]],
    options: Mapping[str, Any] | None = None,
    variants: Mapping[str, Mapping[str, Any]] | None = None,
    exclude: Sequence[Mapping[str, Any]] = (),
    out: str | os.PathLike,
    workers: Number = 0,
    retries: Number = 0,
    launcher: LauncherName = "local",
    slurm: Mapping[str, Any] | None = None,
    dry_run: bool = False,
    progress: bool = True,
) -> Measurements:
    """Call a function with every combination of values, and keep each result in a folder of its own.

    For measurements that are no runs, such as a closed form, a search for a step or a time. Measured cases are not
    measured again, failed ones by the next call. A case is known by the function's name and its arguments, objects by
    their names, not by the function's code: after a change give another `out`. As in grids, `data_dir` under options is
    no part of it.

    Args:
        function: its arguments are the axes and options; it returns JSON: a dict of numbers, or a list of them for
            several rows of the table. For `workers` it must be one that can be sent.
        axes: argument -> its values, JSON, or a dict that names objects.
        options: other arguments, the same in every case: JSON, and a path as `data_dir`.
        variants: name -> arguments that go together: one more axis, called "variant".
        exclude: rules; a case with all values of a rule is left out, a list matches any of its values. A rule that
            matches no case is refused.
        out: folder of the measurement.
        workers: processes on this machine, each with its share of the cores or a GPU; 0 measures everything here.
        retries: number of times that a failed case is tried again.
        launcher: "slurm" submits a job for each case, see `grid`.
        slurm: parameters of submitit.
        dry_run: measure nothing, and estimate the time of the cases that are left (`Measurements.seconds`).
        progress: show a progress bar.

    Raises:
        ValueError: an argument that the function lacks, or a value that is not JSON.

    Example:
        >>> import tempfile, fedjax_srp as srp
        >>> def square(side: float, times: int) -> dict:
        ...     return {"area": side**2 * times}
        >>> found = srp.measure(
        ...     square, axes={"side": [1.0, 3.0]}, options={"times": 2}, out=tempfile.mkdtemp(), progress=False
        ... )
        >>> found.table[["side", "area"]].to_dict("list")
        {'side': [1.0, 3.0], 'area': [2.0, 18.0]}
    """
    tables = {"options": options or {}, "axes": axes, "variants": variants or {}}
    folder = writable(out)
    spec = at_scale(tables | {"exclude": list(exclude)}, None, "measure")
    cases = cases_of(function, spec, folder)
    unfinished = [case for case in cases if not case.is_finished()]
    text = f"{folder}: {len(cases)} cases, {len(unfinished)} to measure"
    if dry_run and launcher == "slurm":
        text += f"\n{describe_jobs(len(unfinished), slurm or {})}"
    if progress:
        print(printable(text, kept="\n"), file=sys.stderr)
    failures: list[Failure] = []
    seconds = None
    if dry_run:
        seconds = _expected(cases, len(unfinished), max(workers, 1))
    else:
        is_silent = not progress or not unfinished
        given = (folder, workers, launcher, slurm, is_silent, "cases")
        with launched(unfinished, len(cases), *given) as runner:
            run_units(unfinished, runner, retries, failures)
    print_failures(failures)
    found = Measurements(folder, {case.name: case for case in cases}, failures, seconds)
    if not dry_run:
        found.save()
    return found


def _expected(cases: Sequence[Case], num_left: int, workers: int) -> float | None:
    known = [case.kept()["seconds"] for case in cases if case.is_finished()]
    if not known:
        return None
    return statistics.fmean(known) * num_left / workers


def cases_of(function: Callable[..., Any], spec: Spec, out: Path) -> list[Case]:
    """Return the cases of a measurement, checked before anything is measured."""
    called = getattr(function, "__name__", "<lambda>")
    if called == "<lambda>":
        raise ValueError(
            f"function={short(function)}: has no name, by which its results are known; give a `def`"
        )
    cases: dict[str, Case] = {}
    names: set[str] = set()
    for values, given in combinations(spec):
        arguments = {name: unwrapped(each) for name, each in given.items()}
        try:
            inspect.signature(function).bind(**arguments)
        except TypeError as error:
            raise ValueError(
                f"axes: {called}: {error}; axes and options are its arguments"
            ) from None
        given = without_names(given, _PLACES & spec.options.keys())
        names_of = {n: v.name for n, v in given.items() if isinstance(v, NamedObject)}
        plain, named = _as_json(given)
        shown = plain | names_of
        record: dict[str, Any] = {"function": called, "arguments": plain}
        if named:
            record["named"] = named
        text = json.dumps(record, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        if digest in cases:
            raise ValueError(f"axes: {name_of(values)} is twice in them; remove one")
        name = name_of(values) or called
        if name in names:
            raise ValueError(
                f"axes: {name} is twice in them, as values are written alike; remove one, or name them, "
                "axes={...: {name: value}}"
            )
        names.add(name)
        set_here = {n: each for n, each in shown.items() if n not in spec.options}
        of_variant = {n: each for n, each in values.items() if n == VARIANT}
        cases[digest] = Case(
            name=name,
            id=digest,
            values=of_variant | set_here,
            record=record,
            function=function,
            arguments=arguments,
            folder=out / folder_name(name, digest),
            shared=out / SHARED / digest,
        )
    return list(cases.values())


def _as_json(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return arguments as JSON, a named object that is none by its name; and the names of the others."""
    plain = {}
    named = {}
    for name, each in given.items():
        remedy = f"name it, axes={{{name!r}: {{name: object}}}}"
        try:
            plain[name] = as_plain(f"axes: {name}", unwrapped(each), remedy)
        except ValueError:
            if not isinstance(each, NamedObject):
                raise
            plain[name] = each.name
            continue
        if isinstance(each, NamedObject):
            named[name] = each.name
    return plain, named
