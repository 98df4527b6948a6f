"""Rows of files, and the one way from these to the arrays that are divided among clients.

A reader is a function of a path that finds rows, by client or in columns, and gives them
to `raw_arrays`. There labels become class numbers, and what they were is kept in
`class_names`; images get their channels at the end; users become numbers or texts.
"""

from __future__ import annotations

import contextlib
import csv
import pickle
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedjax_srp.data._counts import share_of
from fedjax_srp.data.arrays import (
    MAX_CLASSES,
    as_array,
    check_labels,
    has_channels_first,
)
from fedjax_srp.data.raw import LoadError, RawArrays
from fedjax_srp.parts.checks import short
from fedjax_srp.parts.files import MALFORMED

TEST_FRACTION = 0.2  # of a user's rows, where the files have no test rows
_DAMAGE = (
    OSError,
    EOFError,
    csv.Error,
    zlib.error,
    zipfile.BadZipFile,
    pickle.UnpicklingError,
    RuntimeError,  # an encrypted archive; NotImplementedError of an unknown compression
)
_SEVERAL = (
    "give one label a row; of several labels, train on one column, y[:, k], or write a "
    "data class of your own"
)


class Rows(NamedTuple):
    """Examples as files have them, one a row."""

    x: np.ndarray  # (n, ...)
    y: np.ndarray  # (n,) integers or texts, (n, 1), or (n, classes) one-hot
    users: np.ndarray | None = None  # (n,) integers or texts


class LayoutError(ValueError):
    """A sound file whose content is refused: one line without the file's name, with the remedy."""


@contextlib.contextmanager
def reading(
    name: Path, file: Path, layout: str, argument: str = "name"
) -> Iterator[None]:
    """Make errors of the block one line that names the file; `name` is the path that the user gave."""
    where = ""
    if file != name:
        inside = file.relative_to(name) if file.is_relative_to(name) else file
        where = f": {inside.as_posix()}"
    try:
        yield
    except LoadError:  # of a block inside this one
        raise
    except LayoutError as error:
        raise LoadError(argument, str(name), f"{where}: {error}") from None
    except FileNotFoundError as error:
        problem = f"{where} is missing; copy it again, or give another path"
        raise LoadError(argument, str(name), problem) from error
    except (*_DAMAGE, *MALFORMED, MemoryError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, LookupError):
            reason = repr(error)
        raise LoadError(
            argument,
            str(name),
            f"{where} is damaged or is not in {layout} ({reason}); copy or write it again",
        ) from error


def dict_of_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a dict.

    Keys that occur twice, or with a NUL, which NumPy may drop, raise a ValueError.
    """
    counts = Counter(key for key, _ in pairs)
    for key, count in counts.items():
        if count > 1 or "\0" in key:
            raise ValueError(f"the key {key!r} occurs twice, or contains a NUL")
    return dict(pairs)


def sort_key(name: str) -> tuple[bool, int, str]:
    """Return a key by which 2 comes before 10, and numbers before other names."""
    is_number = _is_number(name)
    return not is_number, int(name) if is_number else 0, name


def _is_number(name: str) -> bool:
    return (
        name.isascii() and name.isdecimal() and len(name) < 19 and str(int(name)) == name
    )


def of_clients(clients: Mapping[str, tuple[ArrayLike, ArrayLike]], kind: str) -> Rows:
    """Put the rows of all clients end to end; clients without rows are left out, with a warning.

    Args:
        clients: inputs and labels by the client's name.
        kind: "train" or "test", for messages.
    """
    inputs: list[np.ndarray] = []
    labels: list[np.ndarray] = []
    names: list[str] = []
    empty: list[str] = []
    for name in sorted(clients, key=sort_key):
        if "\0" in name:
            raise LayoutError(f"the client {name!r} has a NUL in its name; rename it")
        x = as_array(f"x of client {name!r}", clients[name][0])
        y = as_array(f"y of client {name!r}", clients[name][1])
        if not x.ndim or not y.ndim or len(x) != len(y):
            raise LayoutError(
                f"client {name!r} has inputs of shape {x.shape} and labels of shape "
                f"{y.shape}; give one label a row"
            )
        if not len(x):
            empty.append(name)
            continue
        if inputs and _form(x) != _form(inputs[0]):
            raise LayoutError(
                f"client {name!r} has {kind} examples of shape {x.shape[1:]} {x.dtype}, and "
                f"client {names[0]!r} of {inputs[0].shape[1:]} {inputs[0].dtype}; give all "
                "the same shape and kind"
            )
        if y.dtype.kind in "iu":
            y = y.astype(np.int64)
        if labels and _form(y) != _form(labels[0]):
            raise LayoutError(
                f"client {name!r} has labels of shape {y.shape} {y.dtype}, and client "
                f"{names[0]!r} of {labels[0].shape} {labels[0].dtype}; give one kind"
            )
        inputs.append(x)
        labels.append(y)
        names.append(name)
    if not names:
        raise LayoutError(f"no client has {kind} examples; give one or more some rows")
    if empty:
        warnings.warn(
            f"clients {short(empty)} have no {kind} examples and are left out there",
            stacklevel=6,
        )
    owners: np.ndarray = np.array(names)
    if all(map(_is_number, clients)):
        owners = owners.astype(np.int64)
    users = np.repeat(owners, [len(x) for x in inputs])
    return Rows(np.concatenate(inputs), np.concatenate(labels), users)


def _form(x: np.ndarray) -> tuple[tuple[int, ...], str]:
    """Return what the examples of all clients have in common: shape and kind, of which bytes are one."""
    kind = "text" if x.dtype.kind in "OUS" else "numbers"
    return x.shape[1:], "bytes" if x.dtype == np.uint8 else kind


def raw_arrays(
    train: Rows,
    test: Rows | None,
    num_classes: int | None = None,
    has_channels_last: bool = False,
) -> RawArrays:
    """Return the arrays of rows, with labels numbered 0, 1, ... and channels at the end.

    Args:
        train: rows for training; all rows where `test` is None.
        test: rows for tests.
        num_classes: where the files say it; then integers are class numbers.
        has_channels_last: the channels are at the end already, whatever the shape.
    """
    is_split = test is not None
    if test is None:
        test = Rows(
            train.x[:0], train.y[:0], None if train.users is None else train.users[:0]
        )
    users_train = train.users
    users_test = test.users
    kinds = {users.dtype.kind for users in (users_train, users_test) if users is not None}
    if len(kinds) > 1:  # 0 and 1 in training, 1 and ann in tests
        users_train = np.asarray(users_train).astype(str)
        users_test = np.asarray(users_test).astype(str)
    y_train, y_test, class_names = numbered(train.y, test.y, num_classes)
    if class_names is not None:
        num_classes = len(class_names)
    x_train = train.x
    x_test = test.x
    if not has_channels_last:
        x_train = channels_last(x_train)
        x_test = channels_last(x_test)
    return RawArrays(
        x_train,
        y_train,
        x_test,
        y_test,
        users_train,
        users_test,
        class_names=class_names,
        is_split=is_split,
        num_classes=num_classes,
    )


def split_off_tests(
    raw: RawArrays, fraction: float | None = None, seed: int = 0
) -> RawArrays:
    """Hold out a share of each user's rows for tests, or of each class where there are no users."""
    if raw.is_split:
        if fraction is not None:
            raise ValueError(
                f"test_fraction={fraction}: the data have test examples of their own; leave "
                "it out, or use validation= to hold out training examples"
            )
        return raw
    groups = raw.y_train if raw.users_train is None else raw.users_train
    is_test = draw_test_rows(
        groups, TEST_FRACTION if fraction is None else fraction, seed
    )
    if not is_test.any():
        whose = "class" if raw.users_train is None else "user"
        raise ValueError(
            f"test_fraction: no {whose} has two examples, so none can be held out for tests; "
            "give more examples, or a file with test examples of its own"
        )
    users = raw.users_train
    return raw._replace(
        x_train=raw.x_train[~is_test],
        y_train=raw.y_train[~is_test],
        users_train=None if users is None else users[~is_test],
        x_test=raw.x_train[is_test],
        y_test=raw.y_train[is_test],
        users_test=None if users is None else users[is_test],
        is_split=True,
    )


def draw_test_rows(groups: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """Draw a random share of each group, at least one row of two or more, as (n,) bool."""
    rng = np.random.default_rng([zlib.crc32(b"from_huggingface"), seed])
    is_test = np.zeros(len(groups), bool)
    for group in np.unique(groups):
        rows = rng.permutation(np.flatnonzero(groups == group))
        is_test[rows[: share_of(len(rows), fraction)]] = True
    return is_test


def channels_last(x: np.ndarray) -> np.ndarray:
    """Move the channels of images to the end, with a warning, if their shape says that they are first."""
    if not has_channels_first(x.shape[1:]):
        return x
    moved = np.moveaxis(x, 1, -1)
    warnings.warn(
        f"examples of shape {x.shape[1:]} are taken for images with their channels first "
        f"and become {moved.shape[1:]}; where they are no images, write them with "
        "srp.data.from_arrays and srp.data.save",
        stacklevel=5,
    )
    return np.ascontiguousarray(moved)


def numbered(
    y_train: ArrayLike,
    y_test: ArrayLike,
    num_classes: int | None = None,
    keeps_numbers: bool = False,
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...] | None]:
    """Return the labels as numbers 0, 1, ... of classes in ascending order, and what each class was called.

    Labels are integers, also (n, 1), in floats or in texts; texts; flags; or one-hot rows.

    Args:
        y_train: labels for training.
        y_test: labels for tests, of the same kind.
        num_classes: where it is known; then integers from 0 are class numbers already.
        keeps_numbers: so they are where one of them is 0.

    Returns:
        (n_train,) and (n_test,) integers, and the names of all classes, None if the labels
        are what they were.
    """
    train, num_train = _flat("y_train", y_train)
    test, num_test = _flat("y_test", y_test)
    if not test.size:
        test = train[:0]
    if (train.dtype.kind == "U") != (test.dtype.kind == "U"):
        raise LayoutError(
            "y_test: labels are numbers in one of training and test and text in the "
            "other; give both the same kind"
        )
    width = num_train or num_test
    if width and len(test) and num_train != num_test:
        raise LayoutError(
            f"y_test: one-hot rows have {num_train} entries in y_train and {num_test} in "
            "y_test; give both the same classes"
        )
    classes = np.arange(width) if width else np.union1d(train, test)
    kind = np.asarray(y_train).dtype.kind
    is_kept = np.array_equal(classes, np.arange(len(classes)))
    if kind in "iuf" and classes.size and 0 <= classes[0] <= classes[-1] < MAX_CLASSES:
        is_kept |= num_classes is not None or (keeps_numbers and classes[0] == 0)
    if is_kept:
        if kind in "iu" and np.ndim(y_train) == 1:
            return train, test, None
        largest = int(classes[-1]) if classes.size else -1
        return train, test, tuple(map(str, range(max(largest + 1, num_classes or 0))))
    if num_classes not in (None, len(classes)):
        raise LayoutError(
            f"num_classes is {num_classes}, but there are {len(classes)} labels, "
            f"{short(classes.tolist())}; leave num_classes out, or number them from 0"
        )
    names = tuple(map(str, classes.tolist()))
    return np.searchsorted(classes, train), np.searchsorted(classes, test), names


def _flat(name: str, y: ArrayLike) -> tuple[np.ndarray, int]:
    """Return (n,) integers or texts, and the length of one-hot rows, 0 for others."""
    labels = as_array(name, y)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    labels = _of_one_kind(name, labels)
    if labels.dtype.kind == "f":
        labels = _whole(name, labels)
    if labels.ndim == 2 and labels.dtype.kind in "iu" and labels.shape[1] > 1:
        is_one_hot = ((labels == 0) | (labels == 1)).all(1) & (labels.sum(1) == 1)
        if not is_one_hot.all():
            row = int(np.argmin(is_one_hot))
            raise LayoutError(
                f"{name}[{row}]: {short(labels[row].tolist())} is not one-hot; {_SEVERAL}"
            )
        return labels.argmax(1), labels.shape[1]
    if labels.ndim != 1:
        raise LayoutError(f"{name}: labels have shape {labels.shape}; {_SEVERAL}")
    if labels.dtype.kind == "U":
        with contextlib.suppress(ValueError):
            numbers = [int(label) for label in labels]
            if all(map(_is_plain_integer, labels)):
                labels = np.array(numbers, np.int64)
    return labels, 0


def _is_plain_integer(text: str) -> bool:
    return _is_number(text.removeprefix("-"))


def _of_one_kind(name: str, labels: np.ndarray) -> np.ndarray:
    """Return integers, floats or texts; refuse missing labels and a mix."""
    if labels.dtype.kind == "b":
        return _of_flags(labels)
    if labels.dtype.kind in "iuf":
        return labels
    entries = labels.ravel().tolist()
    for row, entry in enumerate(entries):
        if entry is None or (isinstance(entry, float) and np.isnan(entry)):
            raise LayoutError(
                f"{name}[{row}]: the label is missing; leave the row out, or name a class"
            )
        if isinstance(entry, bytes):
            entries[row] = entry.decode(errors="replace")
        if isinstance(entry, np.generic):
            entries[row] = entry.item()
    kinds = {type(entry).__name__ for entry in entries}
    if kinds <= {"str"}:
        texts = np.array(entries, str)
        if any("\0" in text for text in entries):
            raise LayoutError(f"{name}: a label has a NUL; remove it")
        return texts.reshape(labels.shape)
    if kinds == {"bool"}:
        return _of_flags(labels)
    if kinds <= {"int", "bool"} or kinds <= {"int", "float"}:
        return np.array(entries).reshape(labels.shape)
    raise LayoutError(
        f"{name}: labels are of types {', '.join(sorted(kinds))}; give integers or texts"
    )


def _of_flags(labels: np.ndarray) -> np.ndarray:
    """Return flags as texts, and those of several columns, which may be one-hot, as integers."""
    return labels.astype(bool).astype(int if labels.ndim > 1 else str)


def _whole(name: str, labels: np.ndarray) -> np.ndarray:
    """Return floats that are whole numbers as integers."""
    is_bad = ~np.isfinite(labels) | (labels != np.rint(labels)) | (np.abs(labels) > 2**53)
    if is_bad.any():
        place = tuple(np.argwhere(is_bad)[0].tolist())
        problem = "is not a class; give integers or texts"
        if np.isnan(labels[place]):
            problem = "is missing; leave the row out, or name a class"
        raise LayoutError(
            f"{name}[{place[0]}]: the label {labels[place]} {problem} (targets that are no "
            "classes need a data class of your own)"
        )
    return labels.astype(np.int64)


def check_columns(raw: RawArrays) -> None:
    """Check that labels and users belong to the inputs, and warn of classes that only tests have."""
    for kind in ("train", "test"):
        x = as_array(f"x_{kind}", getattr(raw, f"x_{kind}"))
        y = as_array(f"y_{kind}", getattr(raw, f"y_{kind}"))
        users = getattr(raw, f"users_{kind}")
        labels = check_labels(f"y_{kind}", y, f"x_{kind}", len(np.atleast_1d(x)))
        largest = labels.max(initial=-1)
        if raw.class_names is not None and largest >= len(raw.class_names):
            raise ValueError(
                f"class_names: has {len(raw.class_names)} names, and y_{kind} the label "
                f"{largest}; give a name for each class"
            )
        if users is None:
            continue
        users = as_array(f"users_{kind}", users)
        if users.dtype.kind == "f" and np.isnan(users).any():
            row = int(np.argwhere(np.isnan(users))[0, 0])
            raise ValueError(
                f"users_{kind}[{row}]: the user is missing; leave the row out, or name one"
            )
        if raw.user_names is not None and not _are_numbered(users, len(raw.user_names)):
            raise ValueError(
                f"user_names: users_{kind} are not 0..{len(raw.user_names) - 1}; give the "
                "name of each user"
            )
        if users.shape != y.shape:
            raise ValueError(
                f"users_{kind}: has shape {users.shape}, y_{kind} {y.shape}; give one "
                "user per example"
            )
    _warn_of_untrained(raw)


def _are_numbered(users: np.ndarray, num_users: int) -> bool:
    return users.dtype.kind in "iu" and bool(np.all((users >= 0) & (users < num_users)))


def _warn_of_untrained(raw: RawArrays) -> None:
    """Warn of test examples whose class has no training example."""
    unknown = np.setdiff1d(raw.y_test, raw.y_train)
    if not len(unknown) or not len(raw.y_train):
        return
    number = np.count_nonzero(np.isin(raw.y_test, unknown))
    names: Sequence[Any] = unknown.tolist()
    if raw.class_names is not None:
        names = [raw.class_names[label] for label in unknown]
    warnings.warn(
        f"y_test: {number} of {len(raw.y_test)} test examples are of classes without a "
        f"training example ({short(names)}), which models cannot learn; leave them out, "
        "e.g. load(..., classes=[...])",
        stacklevel=5,
    )
