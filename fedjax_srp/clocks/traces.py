"""Readers of measured devices: speeds, bandwidths and availability.

They read files of FLASH (Yang et al., 2021), FLHetBench (Zhang et al., 2024), FedScale
(Lai et al., 2022) as JSON, and your own CSV files. Layouts are recognized by content, not
by the file's name.
"""

from __future__ import annotations

import contextlib
import csv
import json
import lzma
import math
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_srp.clocks.availability import Intervals
from fedjax_srp.parts.checks import ArgumentError, check_integer, checked, short
from fedjax_srp.parts.files import open_file

_FLASH = {"downlink": "down_u", "uplink": "up_u"}
_CONVERT = "import json, pickle; json.dump({str(k): v for k, v in pickle.load(open(IN, 'rb')).items()}, open(OUT, 'w'))"


class DeviceTraces(NamedTuple):
    """Measured devices, all arrays in the same order; None for values that a file lacks."""

    compute: (
        np.ndarray | None
    )  # (n,) speeds: units of the measured work per second, or a score
    downlink: np.ndarray | None  # (n,) bytes per second
    uplink: np.ndarray | None  # (n,) bytes per second

    def assign(self, num_clients: int, seed: int) -> DeviceTraces:
        """Draw a device for each client, each device once before any is drawn again; its
        values stay together.

        Args:
            num_clients: of the federation.
            seed: of the draw; equal seeds draw equal devices.
        """
        return _assign(self, num_clients, seed)


class AvailabilityTraces(NamedTuple):
    """Intervals in which devices are available, in seconds from the beginning of each
    trace; traces repeat.
    """

    starts: (
        np.ndarray
    )  # (n, k) beginnings of intervals, in order; intervals (0, 0) fill shorter rows
    ends: np.ndarray  # (n, k) ends of intervals
    period: np.ndarray  # (n,) lengths of the traces

    @property
    def share(self) -> np.ndarray:
        """(n,) share of its trace in which each device is available."""
        return (self.ends - self.starts).sum(axis=1) / self.period

    def assign(self, num_clients: int, seed: int) -> AvailabilityTraces:
        """Draw a device for each client, as `DeviceTraces.assign`."""
        return _assign(self, num_clients, seed)

    def intervals(self) -> Intervals:
        """The intervals for a clock, `Available(clock, traces.intervals())`, repeated to
        the longest trace.
        """
        longest = float(self.period.max())
        rows = []
        for starts, ends, period in zip(*self, strict=True):
            begin = period * np.arange(math.ceil(longest / period))
            known = starts < ends
            pairs = [(begin[:, None] + times[known]).ravel() for times in (starts, ends)]
            rows.append(
                [(a, min(b, longest)) for a, b in zip(*pairs, strict=True) if a < longest]
            )
        width = max(1, *map(len, rows))
        filled = np.array([row + [(0.0, 0.0)] * (width - len(row)) for row in rows])
        return Intervals(filled[..., 0], filled[..., 1], longest)


@checked
def read_times(
    path: str | os.PathLike, client_names: Sequence[str] | None = None
) -> np.ndarray:
    """Read a table of times for `Trace`, (rounds, num_clients), from a .csv or .npy.

    The first line of a .csv may have the clients' names, also after a #, as
    `numpy.savetxt(header=)` writes it. Columns are then matched by name, and other
    columns left out; without a header column i is client i's.

    Args:
        path: of the file, with a row per round and a column per client.
        client_names: of the data, `data.client_names`; None if they have none.

    Raises:
        ValueError: no table of numbers; a client without a column; names of columns, and
            data without names.
    """
    if client_names is not None and not all(
        isinstance(name, str) for name in client_names
    ):
        raise ValueError(
            f"client_names={short(client_names)}: are not all texts; give data.client_names"
        )
    file = os.fspath(path)
    if not os.path.isfile(file):  # unlike `Path.is_file` it never raises
        remedy = "give a .csv or .npy with a row per round, a column per client"
        raise ArgumentError("path", Path(file), "is no file", remedy)
    try:
        if file.endswith(".npy"):
            names: list[str] = []
            table = np.load(file, allow_pickle=False)
        else:
            text = Path(file).read_text(encoding="utf-8-sig")
            names, lines = _header(text.splitlines())
            with warnings.catch_warnings(
                action="error", category=UserWarning
            ):  # of an empty file
                table = np.loadtxt(lines, delimiter=",", ndmin=2)
    except (
        Exception
    ) as error:  # of many types, also tokenize.TokenError for a damaged header
        reason = " ".join(str(error).split())
        problem = f"is not a table of numbers ({reason})"
        raise ArgumentError(
            "path", Path(file), problem, "write it with numpy.savetxt"
        ) from None
    if not names or len(names) != table.shape[-1]:
        _warn_of_order(file, client_names)
        return table
    if client_names is None:
        raise ArgumentError(
            "path",
            Path(file),
            f"has columns with names ({names[0]!r}, ...) and the data have none",
            "give the data client_names, or take the first line away, so that column i is client i's",
        )
    column = {name: i for i, name in enumerate(names)}
    missing = [name for name in client_names if name not in column]
    if missing or len(column) < len(names):
        problem = "has two columns of the same name"
        if missing:
            problem = f"has no column for client {missing[0]!r}"
        raise ArgumentError(
            "path",
            Path(file),
            problem,
            "give each client a column with its name, or take the first line away, so that "
            "column i is client i's, in the order of data.client_names",
        )
    return table[:, [column[name] for name in client_names]]


def _header(lines: list[str]) -> tuple[list[str], list[str]]:
    """Return the names of the columns, none if the first line is no header, and the other
    lines.
    """
    if not lines:
        return [], lines
    entries = [
        entry.strip().strip('"') for entry in lines[0].removeprefix("#").split(",")
    ]
    is_header = all(entries) and any(
        math.isnan(_number(entry)) and entry.lower() != "nan" for entry in entries
    )
    if not is_header:
        return [], lines
    is_width = len(lines) > 1 and len(lines[1].split(",")) == len(entries)
    if lines[0].startswith("#") and not is_width:  # a remark
        return [], lines[1:]
    return (entries, lines[1:]) if is_width else ([], lines)


def _warn_of_order(file: str, client_names: Sequence[str] | None) -> None:
    """Warn if clients are not in the order that people count in, f0, f1, f10, f2, and
    columns have no names.
    """
    if client_names is None:
        return
    counted = sorted(
        client_names,
        key=lambda name: re.sub(r"\d+", lambda number: number[0].zfill(20), name),
    )
    if counted != list(client_names):
        warnings.warn(
            f"path={file!r}: the columns have no names, so they are the times of {', '.join(client_names[:4])}, ... in "
            "this order (data.client_names); write the names into the first line to match them",
            stacklevel=3,
        )


@checked
def read_devices(
    path: str | os.PathLike,
    compute: str | None = None,
    downlink: str | None = None,
    uplink: str | None = None,
) -> DeviceTraces:
    """Read speeds and bandwidths.

    FLASH's `speed_distri.json` has bandwidths (mean KB/s); FLHetBench's
    `training_latency.json` has milliseconds of a training step, and its samples of
    MobiPerf have bandwidths (mean of `tcp_speed_results`, kbit/s, both directions);
    FedScale's capacities as JSON have milliseconds per example and kbit/s; columns of
    your own CSV with a header are read unchanged. Devices with no speed or a speed of 0
    failed in the measurement and are left out. Work that took t milliseconds has the
    speed 1000 / t: multiply it by the operations of that work for `Devices(compute=)`.

    Args:
        path: of the file, compressed with xz if it ends in .xz.
        compute: the column, or entry, of the speed, such as "CPU_F_AI_Score". None:
            `compute`, or for FLHetBench's latencies "ResNet Latency".
        downlink: the column of a CSV; None: `downlink`, if there is one.
        uplink: likewise.

    Raises:
        ValueError: a pickle, another layout, or an invalid number.
    """
    with _rows_of(path) as (rows, is_csv):
        return _devices(
            rows, is_csv, {"compute": compute, "downlink": downlink, "uplink": uplink}
        )


def _devices(
    rows: list[Mapping[str, Any]], is_csv: bool, named: Mapping[str, str | None]
) -> DeviceTraces:
    for column in named.values():
        known = column is None or any(column in row for row in rows)
        _require(
            known, f"has no column {short(column)}; it has {', '.join(list(rows[0])[:6])}"
        )
    if is_csv:
        found = _columns(rows, named)
    elif _all_have(rows, "tcp_speed_results"):
        link = [_mean(row["tcp_speed_results"]) * 125 for row in rows]
        found = {"downlink": link, "uplink": link}
    elif _all_have(rows, "Phone Model"):
        measured = [row.get(named["compute"] or "ResNet Latency") or 0 for row in rows]
        found = {"compute": [_per_second(time) for time in measured if time]}
    elif _all_have(rows, "down_u"):
        found = {
            name: [1024 * _number(row.get(key)) for row in rows]
            for name, key in _FLASH.items()
        }
    elif _all_have(rows, "computation"):
        link = [125 * _number(row.get("communication")) for row in rows]
        found = {
            "compute": [_per_second(row["computation"]) for row in rows],
            "downlink": link,
            "uplink": link,
        }
    else:
        found = _columns(rows, named)
    return _checked_devices(found)


@checked
def read_availability(
    path: str | os.PathLike, trace: str | None = None
) -> AvailabilityTraces:
    """Read the availability of devices.

    The file has timers of FLASH or FLHetBench (`trace_start`, `trace_end` and
    `ready_time` or `available`, [[from, to], ...] in seconds), by device or as a list, of
    which those with a false `isSuccess` are left out; FedScale's behaviour as JSON
    (`active`, `inactive`, `finish_time`); or it is a CSV, with columns device, start, end
    and, if traces are longer, period, or with columns device, t_start_s, state (available
    are AVL and AVL_TRAIN) and, if devices have several traces, trace.

    Args:
        path: of the file, compressed with xz if it ends in .xz.
        trace: the trace to read, in a CSV with such a column.

    Raises:
        ValueError: a pickle, another layout, or intervals that overlap or leave the
            trace.
    """
    with _rows_of(path) as (rows, is_csv):
        return _availability(rows, is_csv, trace)


def _availability(
    rows: list[Mapping[str, Any]], is_csv: bool, trace: str | None
) -> AvailabilityTraces:
    traces = (
        list(dict.fromkeys(row["trace"] for row in rows))
        if is_csv and _all_have(rows, "trace")
        else []
    )
    _require(
        traces or trace is None,
        f"has no column trace for trace={short(trace)}; leave the argument out",
    )
    if len(traces) > 1 or trace is not None:
        _require(
            trace in traces,
            f"has no trace {short(trace)}; name one of {', '.join(traces)}",
        )
        rows = [row for row in rows if row["trace"] == trace]
    if is_csv and _all_have(rows, "device", "start", "end"):
        return _checked_intervals(*_intervals_of_table(rows))
    if is_csv and _all_have(rows, "device", "t_start_s", "state"):
        return _checked_intervals(*_intervals_of_states(rows))
    intervals, periods = [], []
    for row in rows:
        if row.get("isSuccess") is False:
            continue
        if "active" in row and "inactive" in row:
            active, inactive = row["active"], row["inactive"]
            known = isinstance(active, list) and isinstance(inactive, list)
            if known and len(active) != len(inactive):
                raise ValueError(
                    f"a device has {len(active)} times active and {len(inactive)} inactive; give pairs"
                )
            pairs: Any = list(zip(active, inactive, strict=True)) if known else active
            begin, end = 0, row.get("finish_time")
        else:
            pairs = row.get("available", row.get("ready_time"))
            begin, end = row.get("trace_start"), row.get("trace_end")
        has = ", ".join(list(row)[:6])
        _require(
            None not in (pairs, begin, end),
            f"a device has {has}; see read_availability for the layouts",
        )
        whole = isinstance(pairs, list) and all(
            isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs
        )
        _require(
            whole,
            f"intervals of a device are {short(pairs)}; give [[from, to], ...] in seconds",
        )
        intervals.append(
            [(_number(a) - _number(begin), _number(b) - _number(begin)) for a, b in pairs]
        )
        periods.append(_number(end) - _number(begin))
    return _checked_intervals(intervals, periods)


# ---- content
# ------------------------------------------------------------------------------------------------------
@contextlib.contextmanager
def _rows_of(path: str | os.PathLike) -> Iterator[tuple[list[Mapping[str, Any]], bool]]:
    """The devices of JSON, or the lines of a CSV, and True for a CSV; errors name the
    file.
    """
    try:
        content, is_csv = _content(Path(path))
        rows = list(content.values()) if isinstance(content, dict) else content
        _require(
            rows, "has no devices; give a list or a dict of them, or a CSV with a header"
        )
        for row in rows:
            _require(
                isinstance(row, Mapping),
                f"{short(row)} is not a device; each device is a JSON object",
            )
        yield rows, is_csv
    except ValueError as error:
        raise ValueError(f"path={os.fspath(path)!r}: {error}") from None


def _all_have(rows: list[Mapping[str, Any]], *keys: str) -> bool:
    return all(key in row for row in rows for key in keys)


def _require(holds: Any, message: str) -> None:
    if not holds:
        raise ValueError(message)


def _content(file: Path) -> tuple[Any, bool]:
    try:
        with open_file(file) as opened:
            raw = opened.read()
        raw = lzma.decompress(raw) if file.suffix == ".xz" else raw
    except (OSError, lzma.LZMAError) as error:
        raise ValueError(
            f"cannot be read ({error}); give a .json or .csv file, or one compressed with xz"
        ) from None
    convert = f'if you trust it, convert it first: python -c "{_CONVERT}"'
    _require(
        raw[:1] != b"\x80",
        f"is a pickle, and reading one executes its code, so it is refused; {convert}",
    )
    try:
        text = raw.decode("utf-8-sig")  # spreadsheets write a byte order mark
        if text.lstrip()[:1] in ("[", "{"):
            return json.loads(text), False
        header, *rows = filter(None, csv.reader(text.splitlines(), strict=True))
        names = [name.strip() for name in header]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"two columns are called {twice[0]!r}")
        return [dict(zip(names, row, strict=True)) for row in rows], True
    except (ValueError, csv.Error, RecursionError) as error:
        reason = " ".join(str(error).split())[:80]
        raise ValueError(
            f"is damaged ({reason}); give a whole .json or .csv file"
        ) from None


def _number(value: Any) -> float:
    """Convert a value to a number; nan, which later checks refuse, if it is none."""
    try:
        return math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return math.nan


def _per_second(milliseconds: Any) -> float:
    time = _number(milliseconds)
    return 1000 / time if time else math.nan


def _mean(values: Any) -> float:
    return (
        float(np.mean([*map(_number, values)]))
        if isinstance(values, list) and values
        else math.nan
    )


def _columns(
    rows: list[Mapping[str, Any]], named: Mapping[str, str | None]
) -> dict[str, list[float]]:
    wanted = {
        name: column or name
        for name, column in named.items()
        if any((column or name) in row for row in rows)
    }
    if (
        speed := next(iter(wanted.values()), None)
    ) is not None:  # a device without it failed in the measurement
        rows = [
            row
            for row in rows
            if str(row.get(speed, "")).strip() and _number(row.get(speed)) != 0
        ]
    return {
        name: [_number(row.get(column)) for row in rows]
        for name, column in wanted.items()
    }


def _intervals_of_table(
    rows: list[Mapping[str, Any]],
) -> tuple[list[list[tuple[float, float]]], list[float]]:
    intervals: dict[str, list[tuple[float, float]]] = {row["device"]: [] for row in rows}
    periods = dict.fromkeys(intervals, 0.0)
    for row in rows:
        device, end = row["device"], _number(row["end"])
        intervals[device].append((_number(row["start"]), end))
        periods[device] = max(periods[device], _number(row.get("period", end)))
    return list(intervals.values()), list(periods.values())


def _intervals_of_states(
    rows: list[Mapping[str, Any]],
) -> tuple[list[list[tuple[float, float]]], list[float]]:
    intervals: dict[str, list[tuple[float, float]]] = {row["device"]: [] for row in rows}
    periods, begun = dict.fromkeys(intervals, 0.0), {}
    for row in rows:
        device, at = row["device"], _number(row["t_start_s"])
        periods[device] = at
        if row["state"] in ("AVL", "AVL_TRAIN"):
            begun.setdefault(device, at)
        elif device in begun:
            intervals[device].append((begun.pop(device), at))
    for (
        device,
        at,
    ) in begun.items():  # an open interval lasts until the last line of its device
        intervals[device].append((at, periods[device]))
    return list(intervals.values()), list(periods.values())


def _checked_devices(found: Mapping[str, Sequence[float]]) -> DeviceTraces:
    is_there = any(len(values) for values in found.values())
    _require(is_there, "has no speeds; name the column: read_devices(path, compute=...)")
    arrays = {name: np.asarray(values, float) for name, values in found.items()}
    for name, values in arrays.items():
        for bad in np.flatnonzero(~(np.isfinite(values) & (values > 0)))[:1]:
            raise ValueError(
                f"{name} of device {bad} is {values[bad]}; speeds are finite and positive"
            )
    return DeviceTraces(*(arrays.get(name) for name in DeviceTraces._fields))


def _checked_intervals(
    intervals: list[list[tuple[float, float]]], periods: list[float]
) -> AvailabilityTraces:
    _require(intervals, "has no measured device; give traces that succeeded")
    width = max(1, *map(len, intervals))
    starts, ends = np.zeros((2, len(intervals), width))
    for device, (pairs, period) in enumerate(zip(intervals, periods, strict=True)):
        ordered = np.asarray(sorted(pairs), float).reshape(-1, 2)
        flat = ordered.ravel()
        fits = (
            period > 0
            and np.isfinite(flat).all()
            and (np.diff(flat, prepend=0.0, append=period) >= 0).all()
        )
        _require(
            fits,
            f"intervals of device {device} overlap, or leave its trace of {period:g} s; mend or drop it",
        )
        starts[device, : len(ordered)], ends[device, : len(ordered)] = ordered.T
    return AvailabilityTraces(starts, ends, np.asarray(periods, float))


def _assign(traces: Any, num_clients: int, seed: int) -> Any:
    check_integer("num_clients", num_clients, 1)
    check_integer("seed", seed, 0)
    size = next(len(values) for values in traces if values is not None)
    rng = np.random.default_rng(seed)
    rounds = [rng.permutation(size) for _ in range(-(-num_clients // size))]
    devices = np.concatenate(rounds)[:num_clients]
    return type(traces)(
        *(None if values is None else values[devices] for values in traces)
    )
