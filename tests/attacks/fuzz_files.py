"""Random wrong data files: truncated, of another type, with nan, empty, or with Python objects.

    .venv/bin/python tests/attacks/fuzz_files.py [NUMBER] [SEED]

loads NUMBER of them (100) and prints the outcomes. The expected answer is a federation with the examples
of the file, or a ValueError of one line; anything else is a finding, with which this script exits with 1.
"""

from __future__ import annotations

import io
import json
import pickle
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path

import numpy as np

import fedjax_srp as srp
from fedjax_srp.clocks.by_name import read_clock
from fedjax_srp.parts.checks import is_ours

PER_CLASS, CLASSES = 6, 3
DTYPES = ("f2", "f8", "i1", "i8", "u8", "?", "c8", "U3", "S2", "M8[s]", "O")


def columns(rng):
    """Columns of a valid data set: images of 4 x 4 with labels and writers, for training and the same for tests."""
    y = np.tile(np.arange(CLASSES), PER_CLASS)
    x = rng.normal(size=(len(y), 4, 4)).astype(np.float32)
    users = np.repeat(["f1", "f2"], len(y) // 2)
    train = {"x_train": x, "y_train": y, "user_train": users}
    test = {"x_test": x + np.float32(0.5), "y_test": y.copy(), "user_test": users.copy()}
    return train | test


def damaged_bytes(rng, data):
    """The bytes of a file with a bit flipped, truncated, or with bytes inserted."""
    place = int(rng.integers(len(data)))
    match rng.integers(4):
        case 0:
            return data[:place]
        case 1:
            return (
                data[:place]
                + bytes([data[place] ^ (1 << int(rng.integers(8)))])
                + data[place + 1 :]
            )
        case 2:
            return data[:place] + rng.bytes(20) + data[place:]
    return b""


DAMAGES = {
    "dtype": lambda value, rng: _as(value, str(rng.choice(DTYPES))),
    "nan": lambda value, rng: np.where(
        np.arange(value.size).reshape(value.shape) == 3, np.nan, 1.0
    ),
    "inf": lambda value, rng: np.full(value.shape, np.inf),
    "empty": lambda value, rng: value[:0],
    "no axis": lambda value, rng: np.float32(3),
    "empty axis": lambda value, rng: np.zeros((len(value), 0), value.dtype),
    "other length": lambda value, rng: value[:-1],
    "more axes": lambda value, rng: np.stack([value, value]),
    "huge number": lambda value, rng: np.full(value.shape, 2**62),
    "negative": lambda value, rng: np.full(value.shape, -1),
}


def changed(rng, arrays):
    """A random damage to one of the columns: its name, and all columns."""
    name, what = str(rng.choice(sorted(arrays))), str(rng.choice([*DAMAGES, "missing"]))
    others = {other: kept for other, kept in arrays.items() if other != name}
    return what, others if what == "missing" else {
        **others,
        name: DAMAGES[what](arrays[name], rng),
    }


def _as(value, dtype):
    try:
        return value.astype(dtype)
    except ValueError:
        return np.full(value.shape, "1").astype(dtype)


class _Runs:
    """A pickle that would run code."""

    ran = False

    def __reduce__(self):
        return setattr, (_Runs, "ran", True)


def npz(rng, folder):
    """An .npz file: one column changed, or its bytes."""
    what, arrays = changed(rng, columns(rng))
    path = folder / "data.npz"
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    data = stream.getvalue()
    match int(rng.integers(8)):
        case 0 | 1 | 2:
            np.savez(stream := io.BytesIO(), **columns(rng))
            what, data = "bytes", damaged_bytes(rng, stream.getvalue())
        case 3:
            what, data = "pickle", pickle.dumps(_Runs())
        case 4:
            header = b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': False, 'shape': (9999999999999,), }"
            what, data = "huge header", header.ljust(127) + b"\n"
    path.write_bytes(data)
    return f"npz, {what}", path, lambda: srp.data.load(path, num_clients=2)


def leaf(rng, folder):
    """A LEAF folder: one file's contents changed, or its bytes."""
    arrays, root = columns(rng), folder / "leaf"
    files = {}
    for kind in ("train", "test"):
        of_user = {u: np.flatnonzero(arrays[f"user_{kind}"] == u) for u in ("f1", "f2")}
        data = {
            u: {
                "x": arrays[f"x_{kind}"][rows].reshape(len(rows), -1).tolist(),
                "y": arrays[f"y_{kind}"][rows].tolist(),
            }
            for u, rows in of_user.items()
        }
        files[kind] = {
            "users": list(data),
            "num_samples": [len(d["y"]) for d in data.values()],
            "user_data": data,
        }
    broken, user = files["train"], files["train"]["user_data"]["f1"]
    places = {
        "key": (broken, str(rng.choice(list(broken)))),
        "user": (broken["user_data"], "f1"),
        "inputs": (user, "x"),
        "labels": (user, "y"),
        "an input": (user["x"], 2),
        "a label": (user["y"], 2),
        "top": (files, "train"),
        "bytes": ({}, "nothing"),
    }
    values = (
        None,
        3,
        "text",
        [],
        {},
        [[]],
        [None],
        float("nan"),
        10**30,
        [10**400],
        True,
        [["a"]],
    )
    what = str(rng.choice([*places]))
    holder, place = places[what]
    holder[place] = values[rng.integers(len(values))]
    for kind, content in files.items():
        path = root / kind / "all_data.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        data = json.dumps(content).encode()
        path.write_bytes(
            damaged_bytes(rng, data) if what == "bytes" and kind == "train" else data
        )
    return f"leaf, {what}", root, lambda: srp.data.load(root)


def in_memory(rng, folder):
    """Arrays handed over in Python: one argument changed."""
    del folder
    what, arrays = changed(
        rng, {name: value for name, value in columns(rng).items() if "user" not in name}
    )
    given = {
        name: arrays.get(name) for name in ("x_train", "y_train", "x_test", "y_test")
    }
    rows = np.arange(CLASSES * PER_CLASS)
    indices = {
        "train_indices": [rows[:9], rows[9:]],
        "test_indices": [rows[:9], rows[9:]],
    }
    return f"arrays, {what}", None, lambda: srp.data.from_arrays(**given, **indices)


def table(rng, folder):
    """A trace of times as text or .npy."""
    times = rng.exponential(size=(5, 2))
    path = folder / str(rng.choice(["times.csv", "times.npy", "times.txt"]))
    if path.suffix == ".npy":
        tables = [
            times,
            times.astype(object),
            times[:0],
            -times,
            times * np.nan,
            times[..., None],
        ]
        what, data = "npy", np.array(tables[rng.integers(5)])
        np.save(path, data, allow_pickle=True)
    else:
        texts = [
            "1,2\n3,x",
            "1,2\n3",
            "",
            "nan,1",
            "inf,1",
            "-1,2",
            "1e400,1",
            "\x00\xff",
            "1;2",
            "1,2,3",
        ]
        what, text = "text", texts[rng.integers(len(texts))]
        path.write_text(text)
    if rng.integers(3) == 0:
        path.write_bytes(damaged_bytes(rng, path.read_bytes() or b"0"))
    return f"trace, {what}", path, lambda: _clock(path)


def _clock(path):
    import jax
    import jax.numpy as jnp

    clock = read_clock(f"trace:{path}", 2)
    return clock.sample(
        jax.random.key(0), clock.init(jax.random.key(0), 2), jnp.zeros(())
    )[0]


MAKERS = (npz, leaf, in_memory, table)


def check_same(found):
    """Check that a federation has finite examples of existing classes, and a trace finite times >= 0."""
    if isinstance(found, srp.ClientTimes):
        times = np.asarray(found.realised)
        assert (np.isfinite(times) & (times >= 0)).all()
        return
    for kind in ("train", "test"):
        x, y = (np.asarray(getattr(found, f"{name}_{kind}")) for name in "xy")
        assert np.isfinite(x.astype(float)).all()
        assert x.size
        assert len(x) == len(y)
        assert ((y >= 0) & (y < found.num_classes)).all()


def attack(rng, folder, maker):
    """Load one random file; return (kind, outcome, finding or None)."""
    kind, _, load = maker(rng, folder)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            found = load()
    except ValueError as error:
        lines = str(error)
        is_one_line = "\n" not in lines and is_ours(error)
        finding = (
            None
            if is_one_line
            else f"{type(error).__name__} from elsewhere: {lines[:200]}"
        )
        return kind, "refused", finding
    except Exception as error:
        return kind, "failed", f"{type(error).__name__}: {str(error)[:200]}"
    try:
        check_same(found)
    except AssertionError as error:
        return kind, "accepted", f"accepted with wrong contents: {error}"
    return kind, "accepted", "a pickle ran" if _Runs.ran else None


def attacks(number, seed):
    """Attack with `number` files, of all kinds in turn."""
    for trial in range(number):
        rng = np.random.default_rng([seed, trial])
        with tempfile.TemporaryDirectory() as folder:
            yield trial, *attack(rng, Path(folder), MAKERS[trial % len(MAKERS)])


def main(attacks, number, seed=0):
    """Print the outcomes of attacks, (trial, kind, outcome, finding or None) each; return the exit code."""
    counts, findings = Counter(), []
    for trial, kind, outcome, finding in attacks(number, seed):
        counts[outcome] += 1
        if finding:
            findings.append(f"{trial} {kind}: {finding}")
    print(
        "\n".join(
            [f"{number} attacks, {dict(counts)}, {len(findings)} findings", *findings]
        )
    )
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(attacks, *map(int, sys.argv[1:] or [100])))
