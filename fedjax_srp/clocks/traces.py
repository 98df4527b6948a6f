"""Readers of measured devices: speeds, bandwidths and availability.

They read files of FLASH (Yang et al., 2021), FLHetBench (Zhang et al., 2024), FedScale
(Lai et al., 2022) as JSON, and your own CSV files. Layouts are recognized by content, not
by the file's name.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import lzma
import math
import os
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_srp.clocks.availability import Intervals
from fedjax_srp.clocks.named_clients import places_of
from fedjax_srp.parts.checks import (
    ArgumentError,
    check_choice,
    check_integer,
    check_known,
    check_path,
    checked,
    short,
)
from fedjax_srp.parts.files import open_file

_FLASH = {"downlink": "down_u", "uplink": "up_u"}
# Units of columns: what a number in them is multiplied by; times are inverted first.
_TIMES = {"s": 1.0, "ms": 1000.0}
_SPEEDS = {"1/s": 1.0}
_LINKS = {
    "B/s": 1.0,
    "kB/s": 1e3,
    "MB/s": 1e6,
    "bit/s": 1 / 8,
    "kbit/s": 1e3 / 8,
    "Mbit/s": 1e6 / 8,
    "Gbit/s": 1e9 / 8,
}
UNITS = {"compute": _SPEEDS | _TIMES, "downlink": _LINKS, "uplink": _LINKS}
# Words in the name of a column -> the units that it may have.
# Upper case is looked for first: MBps is no Mbps.
_SAID: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), ("s",)),
    **dict.fromkeys(("ms", "msec", "millisecond", "milliseconds"), ("ms",)),
    **dict.fromkeys(("latency", "duration", "time"), ("s", "ms")),
    **dict.fromkeys(("Bps", "byte", "bytes"), ("B/s",)),
    **dict.fromkeys(("KBps", "kBps", "kb", "kbyte", "kbytes"), ("kB/s",)),
    **dict.fromkeys(("kilobyte", "kilobytes"), ("kB/s",)),
    **dict.fromkeys(("MBps", "mb", "mbyte", "mbytes"), ("MB/s",)),
    **dict.fromkeys(("megabyte", "megabytes"), ("MB/s",)),
    "GBps": (),
    **dict.fromkeys(("bit", "bits", "bps"), ("bit/s",)),
    **dict.fromkeys(("Kb", "kbit", "kbits", "kbps", "kilobit", "kilobits"), ("kbit/s",)),
    **dict.fromkeys(("Mb", "mbit", "mbits", "mbps", "megabit", "megabits"), ("Mbit/s",)),
    **dict.fromkeys(("Gb", "gbit", "gbits", "gbps", "gigabit", "gigabits"), ("Gbit/s",)),
}
# Words of units that are not read.
_PERIODS = (
    *("us", "usec", "microsecond", "microseconds"),
    *("ns", "nsec", "nanosecond", "nanoseconds"),
    *("mins", "minute", "minutes", "hour", "hours"),
)
_SIZES = (
    *("GBps", "gb", "gbyte", "gbytes", "gigabyte", "gigabytes"),
    *("kib", "mib", "gib", "kibps", "mibps", "gibps"),
)
_NOT_READ = {
    "compute": (*_PERIODS, "mflops", "gflops", "tflops", "mhz", "ghz"),
    "downlink": _SIZES,
    "uplink": _SIZES,
}
# After "per"; rates are per second.
_NOT_PER = (*_PERIODS, "ms", "msec", "millisecond", "min", "h")
_LARGEST_UNPACKED = 1 << 31  # bytes of a file in xz
_MOST_INTERVALS = 10**8  # of all devices together, with what fills shorter rows
# The states of a table -> whether a device in it can train.
_STATES = {"AVL": True, "AVL_TRAIN": True, "AVL_EVAL": False, "UN_AVL": False}
# device -> its intervals, and the length of its trace
_ByDevice = dict[str, tuple[list[tuple[float, float]], float]]
_CONVERT = "import json, pickle; json.dump({str(k): v for k, v in pickle.load(open(IN, 'rb')).items()}, open(OUT, 'w'))"


class DeviceTraces(NamedTuple):
    """Measured devices, all arrays in one order; None for values that a file lacks."""

    # (n,) speeds: units of the measured work per second, or a score
    compute: np.ndarray | None
    downlink: np.ndarray | None  # (n,) bytes per second
    uplink: np.ndarray | None  # (n,) bytes per second
    names: np.ndarray | None = None  # (n,) texts: whose devices they are

    def of(self, client_names: Sequence[str] | None) -> DeviceTraces:
        """Return the clients' own devices, matched by name, in the order of the clients.

        Args:
            client_names: of the data, `data.client_names`.

        Raises:
            ValueError: devices or data without names, or a client without a device.
        """
        return _of(self, client_names, "read them with read_devices(..., client=COLUMN)")

    def assign(self, num_clients: int, seed: int) -> DeviceTraces:
        """Draw a device for each client; the values of a device stay together.

        Each device is drawn once before any is drawn again.

        Args:
            num_clients: of the federation.
            seed: of the draw; equal seeds draw equal devices.
        """
        return _assign(self, num_clients, seed)


class AvailabilityTraces(NamedTuple):
    """Intervals in which devices are available.

    In seconds from the beginning of each trace; traces repeat.
    """

    # (n, k) beginnings of intervals, in order; intervals (0, 0) fill shorter rows
    starts: np.ndarray
    ends: np.ndarray  # (n, k) ends of intervals
    period: np.ndarray  # (n,) lengths of the traces
    names: np.ndarray | None = None  # (n,) texts, the column "device" of a CSV

    @property
    def share(self) -> np.ndarray:
        """(n,) share of its trace in which each device is available."""
        return (self.ends - self.starts).sum(axis=1) / self.period

    def of(self, client_names: Sequence[str] | None) -> AvailabilityTraces:
        """Return the clients' own devices, matched by name, as `DeviceTraces.of`."""
        return _of(self, client_names, "read them from a CSV with a column device")

    def assign(self, num_clients: int, seed: int) -> AvailabilityTraces:
        """Draw a device for each client, as `DeviceTraces.assign`."""
        return _assign(self, num_clients, seed)

    def intervals(self) -> Intervals:
        """The intervals for a clock, repeated up to the end of the longest trace.

        Example: `Available(clock, traces.intervals())`.
        """
        longest = float(self.period.max())
        of_each = np.maximum((self.starts < self.ends).sum(axis=1), 1)
        widest = (np.ceil(longest / self.period) * of_each).max()
        num_intervals = widest * len(self.period)  # shorter rows are filled
        if num_intervals > _MOST_INTERVALS:
            raise ArgumentError(
                "period",
                float(self.period.min()),
                f"is repeated up to the longest trace, {longest:g} s: {num_intervals:g} intervals",
                "leave such short traces out",
            )
        rows = []
        for starts, ends, period in zip(self.starts, self.ends, self.period, strict=True):
            is_interval = starts < ends
            repeats = period * np.arange(math.ceil(longest / period))[:, None]
            starts = (repeats + starts[is_interval]).ravel()
            ends = (repeats + ends[is_interval]).ravel()
            begins = starts < longest
            rows.append((starts[begins], np.minimum(ends[begins], longest)))
        width = max(1, *(len(starts) for starts, _ in rows))
        table = np.zeros((2, len(rows), width))
        for i, row in enumerate(rows):
            table[:, i, : len(row[0])] = row
        return Intervals(table[0], table[1], longest)


@checked
def read_times(
    path: str | os.PathLike, client_names: Sequence[str] | None = None
) -> np.ndarray:
    """Read a table of times for `Trace`, (rounds, num_clients), from a .csv or .npy.

    The first line of a .csv may have the clients' names, also after a #, as
    `numpy.savetxt(header=)` writes it. Columns are then matched by name, and other
    columns left out; without a header column i is client i's. Names may be numbers: a
    first line with the names of all clients is a header.

    Args:
        path: of the file, with a row per round and a column per client.
        client_names: of the data, `data.client_names`; None if they have none.

    Raises:
        ValueError: no table of numbers; a client without a column; names of columns, and
            data without names.
    """
    for name in () if client_names is None else client_names:
        if not isinstance(name, str):
            raise ValueError(
                f"client_names={short(client_names)}: are not all texts; "
                "give data.client_names"
            )
    file = os.fspath(path)
    if not os.path.isfile(file):  # unlike `Path.is_file` it never raises
        remedy = "give a .csv or .npy with a row per round, a column per client"
        raise ArgumentError("path", Path(file), "is no file", remedy)
    try:
        with open_file(Path(file)) as stored:
            content = stored.read()
        if file.endswith(".npy"):
            names: list[str] = []
            table = np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
            if table.ndim not in (1, 2) or table.dtype.kind not in "biuf":
                raise ValueError(f"{table.dtype} of shape {table.shape}")
            table = np.atleast_2d(table)  # a time of each client is a row
        else:
            text = content.decode("utf-8-sig")
            names, lines = _header(file, text.splitlines(), client_names)
            with warnings.catch_warnings(action="error", category=UserWarning):
                # NumPy warns of an empty file.
                table = np.loadtxt(lines, delimiter=",", ndmin=2)
    except ArgumentError:
        raise
    except Exception as error:
        # Of many types, also tokenize.TokenError for a damaged header.
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


def _header(
    file: str, lines: list[str], client_names: Sequence[str] | None
) -> tuple[list[str], list[str]]:
    """Return the names of the columns in the first line, and the other lines.

    If the first line is no header, there are no names, and it is one of the lines.
    """
    if not lines:
        return [], lines
    first = lines[0].removeprefix("#")
    entries = [entry.strip().strip('"') for entry in first.split(",")]
    if not all(entries):
        return [], lines
    if not any(_is_text(entry) for entry in entries):
        if _are_names(file, entries, client_names):
            return entries, lines[1:]
        return [], lines
    if len(lines) > 1 and len(lines[1].split(",")) == len(entries):
        return entries, lines[1:]
    if lines[0].startswith("#"):  # a remark
        return [], lines[1:]
    return [], lines


def _are_names(file: str, numbers: list[str], client_names: Sequence[str] | None) -> bool:
    """True if the numbers in a first line are the clients' names, and not times.

    Raises:
        ArgumentError: the line could be either.
    """
    names = set(client_names or ())
    if names and names.issubset(numbers):
        return True
    shared = names.intersection(numbers)
    is_name_missing = len(set(numbers)) == len(numbers) and 2 * len(shared) > len(names)
    numberings = ([str(i + start) for i in range(len(numbers))] for start in (0, 1))
    is_numbering = len(numbers) > 3 and numbers in numberings
    if is_name_missing or is_numbering:
        what = "the numbers of the columns"
        if is_name_missing:
            what = f"names of {len(shared)} of the {len(names)} clients"
        raise ArgumentError(
            "path",
            Path(file),
            f"begins with {short(','.join(numbers))}, which may be {what}, or times",
            "write the names of all clients, or leave the line out, or write times as 2.0",
        )
    return False


def _is_text(entry: str) -> bool:
    return math.isnan(_number(entry)) and entry.lower() != "nan"


def _warn_of_order(file: str, client_names: Sequence[str] | None) -> None:
    """Warn if columns have no names, and clients are not ordered by their numbers.

    Names sorted as texts are in the order f0, f1, f10, f2.
    """
    if client_names is None:
        return

    def with_long_numbers(name: str) -> str:
        return re.sub(r"\d+", lambda number: number[0].zfill(20), name)

    if sorted(client_names, key=with_long_numbers) != list(client_names):
        first = ", ".join(client_names[:4])
        warnings.warn(
            f"path={file!r}: the columns have no names, so they are the times of "
            f"{first}, ... in this order (data.client_names); write the names into the "
            "first line to match them",
            stacklevel=3,
        )


@checked
def read_devices(
    path: str | os.PathLike,
    compute: str | None = None,
    downlink: str | None = None,
    uplink: str | None = None,
    units: Mapping[str, str] | None = None,
    client: str | None = None,
) -> DeviceTraces:
    """Read speeds and bandwidths.

    FLASH's `speed_distri.json` has bandwidths (mean KB/s); FLHetBench's
    `training_latency.json` has milliseconds of a training step, and its samples of
    MobiPerf have bandwidths (mean of `tcp_speed_results`, kbit/s, both directions);
    FedScale's capacities as JSON have milliseconds per example and kbit/s; columns of
    your own CSV with a header have the units that you say. Devices with no speed or a speed of 0
    failed in the measurement and are left out. Work that took t milliseconds has the
    speed 1000 / t: multiply it by the operations of that work for `Devices(compute=)`.

    Args:
        path: of the file, compressed with xz if it ends in .xz.
        compute: the column, or entry, of the speed, such as "CPU_F_AI_Score". None:
            `compute`, or for FLHetBench's latencies "ResNet Latency".
        downlink: the column of a CSV; None: `downlink`, if there is one.
        uplink: likewise.
        units: of your own columns, such as `{"compute": "s", "downlink": "Mbit/s"}`:
            "1/s", "s" or "ms" of a piece of work for `compute` (a batch: give the result
            to `Devices(..., per="batch")`), "B/s", "kB/s", "MB/s", "bit/s", "kbit/s",
            "Mbit/s" or "Gbit/s" for links. Default "1/s" and "B/s". A column whose name
            says another unit (`seconds_per_batch`, `down_mbit`) is refused.
        client: your own column with the names of the clients, for `DeviceTraces.of`.

    Raises:
        ValueError: a pickle, another layout, an unknown unit, one that contradicts the
            name of its column, an invalid number, or a client with two devices.
    """
    units = {} if units is None else units
    check_known("column", tuple(units), UNITS, of="units")
    for name, unit in units.items():
        check_choice(f"units[{name!r}]", unit, list(UNITS[name]))
    columns = {"compute": compute, "downlink": downlink, "uplink": uplink}
    with _rows_of(path) as (rows, is_csv):
        return _devices(rows, is_csv, columns, units, client)


def _devices(
    rows: list[Mapping[str, Any]],
    is_csv: bool,
    columns: Mapping[str, str | None],
    units: Mapping[str, str],
    client: str | None,
) -> DeviceTraces:
    for column in (*columns.values(), client):
        if column is None or any(column in row for row in rows):
            continue
        has = ", ".join(list(rows[0])[:6])
        raise ValueError(f"has no column {short(column)}; it has {has}")
    known = ("tcp_speed_results", "Phone Model", "down_u", "computation")
    is_own = is_csv or not any(_all_have(rows, key) for key in known)
    _require(is_own or not units, "has units of its own; leave out units")
    _require(is_own or client is None, "is no table of your own; leave out client")
    if is_own:
        rows = _measured_rows(rows, columns)
        values = _columns(rows, columns, units)
    elif _all_have(rows, "tcp_speed_results"):  # FLHetBench's samples of MobiPerf
        link = [_mean(row["tcp_speed_results"]) * 125 for row in rows]
        values = {"downlink": link, "uplink": link}
    elif _all_have(rows, "Phone Model"):  # FLHetBench's latencies
        latency = columns["compute"] or "ResNet Latency"
        times = [row.get(latency) or 0 for row in rows]
        values = {"compute": [_per_second(time) for time in times if time]}
    elif _all_have(rows, "down_u"):  # FLASH
        values = {}
        for name, key in _FLASH.items():
            values[name] = [1024 * _number(row.get(key)) for row in rows]
    else:  # FedScale
        link = [125 * _number(row.get("communication")) for row in rows]
        speeds = [_per_second(row["computation"]) for row in rows]
        values = {"compute": speeds, "downlink": link, "uplink": link}
    devices = _checked_devices(values)
    if client is None:
        return devices
    names = [str(row.get(client, "")).strip() for row in rows]
    for name, number in Counter(names).items():
        _require(name, f"a device has no name in column {client!r}")
        _require(number == 1, f"client {name!r} has two devices; keep one")
    return devices._replace(names=np.array(names))


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
    are AVL and AVL_TRAIN, and not UN_AVL and AVL_EVAL) and, if devices have several
    traces, trace. The last line of a device ends its trace.

    Args:
        path: of the file, compressed with xz if it ends in .xz.
        trace: the trace to read, in a CSV with such a column.

    Raises:
        ValueError: a pickle, another layout, another state, or intervals that overlap or
            leave the trace.
    """
    with _rows_of(path) as (rows, is_csv):
        return _availability(rows, is_csv, trace)


def _availability(
    rows: list[Mapping[str, Any]], is_csv: bool, trace: str | None
) -> AvailabilityTraces:
    traces = []
    if is_csv and _all_have(rows, "trace"):
        traces = list(dict.fromkeys(row["trace"] for row in rows))
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
        named = _intervals_of_table(rows)
    elif is_csv and _all_have(rows, "device", "t_start_s", "state"):
        named = _intervals_of_states(rows)
    else:
        named = {}
    if named:
        intervals, periods = map(list, zip(*named.values(), strict=True))
        found = _checked_intervals(intervals, periods, [*named])
        return found._replace(names=np.array([*named]))
    intervals = []
    periods = []
    for row in rows:
        if row.get("isSuccess") is False:
            continue
        if "active" in row and "inactive" in row:  # FedScale
            pairs = _pairs_of_times(row["active"], row["inactive"])
            begin = 0
            end = row.get("finish_time")
        else:  # FLASH, FLHetBench
            pairs = row.get("available", row.get("ready_time"))
            begin = row.get("trace_start")
            end = row.get("trace_end")
        if pairs is None or begin is None or end is None:
            has = ", ".join(list(row)[:6])
            raise ValueError(f"a device has {has}; see read_availability for the layouts")
        if not isinstance(pairs, list) or not all(map(_is_pair, pairs)):
            raise ValueError(
                f"intervals of a device are {short(pairs)}; "
                "give [[from, to], ...] in seconds"
            )
        first = _number(begin)
        intervals.append([(_number(a) - first, _number(b) - first) for a, b in pairs])
        periods.append(_number(end) - first)
    return _checked_intervals(intervals, periods, range(len(intervals)))


def _is_pair(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2


def _pairs_of_times(active: Any, inactive: Any) -> Any:
    """Return pairs of times; `active` itself, which later checks refuse, if not lists."""
    if not isinstance(active, list) or not isinstance(inactive, list):
        return active
    if len(active) != len(inactive):
        raise ValueError(
            f"a device has {len(active)} times active and {len(inactive)} inactive; "
            "give pairs"
        )
    return list(zip(active, inactive, strict=True))


# ---- content -------------------------------------------------------------------------


@contextlib.contextmanager
def _rows_of(path: str | os.PathLike) -> Iterator[tuple[list[Mapping[str, Any]], bool]]:
    """The devices in a file, and True for a CSV; errors name the file."""
    check_path("path", path)
    try:
        rows, is_csv = _content(Path(path))
        if isinstance(rows, dict):
            rows = list(rows.values())
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
        with open_file(file) as stream:
            raw = stream.read()
        if file.suffix == ".xz":
            with lzma.open(io.BytesIO(raw)) as unpacked:
                raw = unpacked.read(_LARGEST_UNPACKED + 1)
            _require(
                len(raw) <= _LARGEST_UNPACKED,
                f"unpacks to more than {_LARGEST_UNPACKED} bytes; leave devices out",
            )
    except (OSError, lzma.LZMAError) as error:
        raise ValueError(
            f"cannot be read ({error}); give a .json or .csv file, "
            "or one compressed with xz"
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
        return _rows_of_csv(text), True
    except (ValueError, csv.Error, RecursionError) as error:
        reason = " ".join(str(error).split())[:80]
        raise ValueError(
            f"is damaged ({reason}); give a whole .json or .csv file"
        ) from None


def _rows_of_csv(text: str) -> list[Mapping[str, str]]:
    reader = csv.reader(text.splitlines(), strict=True)
    names: list[str] = []
    rows = []
    for line in reader:
        entries = [entry.strip() for entry in line]
        if not names:
            names = entries
            continue
        if not entries:
            continue
        if len(entries) != len(names):
            raise ValueError(
                f"line {reader.line_num} has {len(entries)} entries for {len(names)} columns"
            )
        rows.append(dict(zip(names, entries, strict=True)))
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two columns are called {name!r}")
    return rows


def _number(value: Any) -> float:
    """Convert a value to a number; nan, which later checks refuse, if it is none."""
    if isinstance(value, bool):
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def _per_second(milliseconds: Any) -> float:
    time = _number(milliseconds)
    if not time:
        return math.nan
    return 1000 / time


def _mean(values: Any) -> float:
    if not isinstance(values, list) or not values:
        return math.nan
    return float(np.mean([_number(value) for value in values]))


def _present(
    rows: list[Mapping[str, Any]], columns: Mapping[str, str | None]
) -> dict[str, str]:
    """Return the columns that the rows have, each by the name of its measure."""
    present = {}
    for name, column in columns.items():
        column = column or name
        if any(column in row for row in rows):
            present[name] = column
    return present


def _measured_rows(
    rows: list[Mapping[str, Any]], columns: Mapping[str, str | None]
) -> list[Mapping[str, Any]]:
    """Leave out the devices that failed in the measurement."""
    speed = next(iter(_present(rows, columns).values()), None)
    return [row for row in rows if speed is None or _is_measured(row.get(speed, ""))]


def _columns(
    rows: list[Mapping[str, Any]],
    columns: Mapping[str, str | None],
    units: Mapping[str, str],
) -> dict[str, list[float]]:
    values = {}
    for name, column in _present(rows, columns).items():
        unit = units.get(name) or next(iter(UNITS[name]))
        _check_unit(name, column, unit)
        numbers = [_number(row.get(column)) for row in rows]
        if unit in _TIMES:
            numbers = [1 / number if number else math.nan for number in numbers]
        values[name] = [UNITS[name][unit] * number for number in numbers]
    return values


def _check_unit(name: str, column: str, unit: str) -> None:
    """Raise a ValueError if the name of a column says another unit than it is read in."""
    words = re.findall("[a-zA-Z]+", re.sub("([a-z]{2})([A-Z])", r"\1 \2", column))
    for before, word in zip(["", *words], words, strict=False):
        known = _SAID.get(word, _SAID.get(word.lower(), ()))
        said = [each for each in known if each in UNITS[name]]
        if before.lower() == "per":
            said = []
            contradicts = word.lower() in _NOT_PER
        elif said:
            contradicts = unit not in said
        else:
            contradicts = bool({word, word.lower()} & {*_NOT_READ[name]})
        if not contradicts:
            continue
        remedy = f"convert it to {unit}, and rename the column"
        if said:
            remedy = f"give units={{{name!r}: {said[0]!r}}}, or rename the column"
        raise ValueError(
            f"column {column!r} of {name} is read in {unit}, and its name says "
            f"{' or '.join(said) or word}; {remedy}"
        )


def _is_measured(speed: Any) -> bool:
    """False for a device that failed in the measurement."""
    return bool(str(speed).strip()) and _number(speed) != 0


def _intervals_of_table(rows: list[Mapping[str, Any]]) -> _ByDevice:
    intervals: dict[str, list[tuple[float, float]]] = {row["device"]: [] for row in rows}
    periods = dict.fromkeys(intervals, 0.0)
    for row in rows:
        device = row["device"]
        end = _seconds(row, "end")
        period = _seconds(row, "period") if "period" in row else end
        intervals[device].append((_seconds(row, "start"), end))
        periods[device] = max(periods[device], period)
    return {device: (intervals[device], periods[device]) for device in intervals}


def _intervals_of_states(rows: list[Mapping[str, Any]]) -> _ByDevice:
    intervals: dict[str, list[tuple[float, float]]] = {row["device"]: [] for row in rows}
    periods = dict.fromkeys(intervals, 0.0)
    open_since = {}
    for row in rows:
        device = row["device"]
        time = _seconds(row, "t_start_s")
        if time < periods[device]:
            raise ValueError(
                f"device {device!r} has t_start_s {time:g} after {periods[device]:g}; sort "
                "the lines by time"
            )
        periods[device] = time
        state = row["state"]
        if state not in _STATES:
            raise ValueError(
                f"device {device!r} has the state {state!r} at {time:g} s; write AVL or "
                "AVL_TRAIN where it is available, and UN_AVL or AVL_EVAL where it is not"
            )
        if _STATES[state]:
            open_since.setdefault(device, time)
        elif device in open_since:
            intervals[device].append((open_since.pop(device), time))
    # An open interval lasts until the last line of its device.
    for device, start in open_since.items():
        intervals[device].append((start, periods[device]))
    return {device: (intervals[device], periods[device]) for device in intervals}


def _seconds(row: Mapping[str, Any], column: str) -> float:
    """The time in a column of a table, or a ValueError that names the device."""
    time = _number(row[column])
    if not math.isfinite(time):
        raise ValueError(
            f"device {row['device']!r} has {column} {short(row[column])}; give seconds"
        )
    return time


def _checked_devices(columns: Mapping[str, Sequence[float]]) -> DeviceTraces:
    _require(
        any(columns.values()),
        "has no speeds; name the column: read_devices(path, compute=...)",
    )
    devices = DeviceTraces(None, None, None)
    for name, values in columns.items():
        speeds = np.asarray(values, float)
        for device, speed in enumerate(speeds):
            if not np.isfinite(speed) or speed <= 0:
                raise ValueError(
                    f"{name} of device {device} is {speed}; speeds are finite and positive"
                )
        devices = devices._replace(**{name: speeds})
    return devices


def _checked_intervals(
    intervals: list[list[tuple[float, float]]],
    periods: list[float],
    names: Sequence[str | int],
) -> AvailabilityTraces:
    _require(intervals, "has no measured device; give traces that succeeded")
    width = max(1, *map(len, intervals))
    starts = np.zeros((len(intervals), width))
    ends = np.zeros((len(intervals), width))
    for device, (pairs, period) in enumerate(zip(intervals, periods, strict=True)):
        ordered = np.asarray(sorted(pairs), float).reshape(-1, 2)
        times = ordered.ravel()
        if period == 0:
            raise ValueError(
                f"the trace of device {names[device]!r} is 0 s long; end it with a later time"
            )
        is_finite = period > 0 and np.isfinite(times).all()
        if not is_finite or (np.diff(times, prepend=0.0, append=period) < 0).any():
            raise ValueError(
                f"intervals of device {names[device]!r} overlap, or leave its trace of "
                f"{period:g} s; mend or drop it"
            )
        _require(names[device] != "", "a device has no name in column 'device'")
        starts[device, : len(ordered)] = ordered[:, 0]
        ends[device, : len(ordered)] = ordered[:, 1]
    return AvailabilityTraces(starts, ends, np.asarray(periods, float))


def _assign(traces: Any, num_clients: int, seed: int) -> Any:
    check_integer("num_clients", num_clients, 1)
    check_integer("seed", seed, 0)
    size = next(len(values) for values in traces if values is not None)
    rng = np.random.default_rng(seed)
    rounds = [rng.permutation(size) for _ in range(-(-num_clients // size))]
    return _taken(traces, np.concatenate(rounds)[:num_clients])


def _of(traces: Any, client_names: Sequence[str] | None, remedy: str) -> Any:
    if traces.names is None:
        raise ArgumentError("names", None, "has no names of devices", remedy)
    remedy = "give each client of data.client_names a measured device"
    places = places_of("names", traces.names, list(traces.names), client_names, remedy)
    return _taken(traces, places)


def _taken(traces: Any, devices: Any) -> Any:
    """Return the traces of these devices, in their order."""
    columns = []
    for values in traces:
        if values is not None:
            values = values[devices]
        columns.append(values)
    return type(traces)(*columns)
