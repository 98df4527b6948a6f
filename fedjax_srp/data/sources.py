"""Data sets by name or file, partitioned: `load`, and the registry it looks names up in."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_srp._checks import nearest
from fedjax_srp.data import partition as partitions
from fedjax_srp.data.arrays import from_arrays
from fedjax_srp.data.federated import FederatedData
from fedjax_srp.data.partition import Partition

__all__ = ["NORMALISATION", "PARTITIONS", "SOURCES", "RawArrays", "from_arrays", "load", "names"]


class RawArrays(NamedTuple):
    """A data set before it is partitioned."""

    x_train: np.ndarray  # (n_train, ...) uint8 pixels, or what the model takes
    y_train: np.ndarray  # (n_train,) integers
    x_test: np.ndarray
    y_test: np.ndarray
    users_train: np.ndarray | None = None  # (n_train,) whose example it is, for natural partitions
    users_test: np.ndarray | None = None
    num_classes: int | None = None  # None: the largest label + 1
    scale: np.ndarray | float | None = None  # None: from NORMALISATION, else 1/255 for uint8
    offset: np.ndarray | float | None = None


def _digits(data_dir: Path | None) -> RawArrays:
    """The 1,797 handwritten digits of scikit-learn, 8 x 8, values 0..16; of every class 3 in 10 are for testing."""
    del data_dir
    from sklearn.datasets import load_digits  # half a second, only for those who ask

    digits: Any = load_digits()
    x, y = digits.images.astype(np.uint8), digits.target
    rank = np.zeros_like(y)  # position of an example among those of its class
    for label in np.unique(y):
        rank[y == label] = np.arange(np.count_nonzero(y == label))
    is_test = rank * 3 % 10 < 3  # positions 0, 4, 7 of every ten
    return RawArrays(x[~is_test], y[~is_test], x[is_test], y[is_test], num_classes=10, scale=1 / 16)


# A source: data_dir (None: where it keeps its files by default) -> arrays. Its errors are one line with the remedy.
SOURCES: dict[str, Callable[[Path | None], RawArrays]] = {"digits": _digits}

# Mean and standard deviation of pixels / 255, per channel, by exact name. A data set that is not here is divided by 255
# only (FEMNIST is meant to be).
_MNIST = ((0.1307,), (0.3081,))
NORMALISATION: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "mnist": _MNIST,
    "emnist/balanced": _MNIST,
    "emnist/byclass": _MNIST,
    "emnist/bymerge": _MNIST,
    "emnist/digits": _MNIST,
    "emnist/letters": _MNIST,
    "emnist/mnist": _MNIST,
    "cifar10": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "cifar100": ((0.507, 0.487, 0.441), (0.267, 0.256, 0.276)),
}


def _natural(raw: RawArrays, num_clients: int | None, _: None, seed: int) -> Partition:
    if raw.users_train is None or raw.users_test is None:
        raise ValueError("partition='natural': the data set does not say whose examples are whose; use another one")
    return partitions.natural(raw.users_train, raw.users_test, num_clients, seed)


class _Division(NamedTuple):
    """A way of dividing: the argument of `load` that belongs to it alone, and what to call."""

    argument: str | None
    divide: Callable[[RawArrays, Any, Any, int], Partition]  # (arrays, num_clients, value of the argument, seed)


PARTITIONS: dict[str, _Division] = {
    "classes": _Division(
        "classes_per_client", lambda raw, *args: partitions.by_classes(raw.y_train, raw.y_test, *args)
    ),
    "dirichlet": _Division("alpha", lambda raw, *args: partitions.dirichlet(raw.y_train, raw.y_test, *args)),
    "lognormal": _Division("sigma", lambda raw, *args: partitions.lognormal_sizes(raw.y_train, raw.y_test, *args)),
    "natural": _Division(None, _natural),
    "iid": _Division(None, lambda raw, num, _, seed: partitions.iid(raw.y_train, raw.y_test, num, seed)),
}


def names(data_dir: str | Path | None = None) -> list[str]:
    """Names that `load` knows: the registry, and the .npz files below `data_dir` without their suffix."""
    folder = None if data_dir is None else Path(data_dir)
    files = [] if folder is None else [file.relative_to(folder).with_suffix("").as_posix() for file in _npz(folder)]
    return sorted({*SOURCES, *files})


def load(
    name: str | Path,
    num_clients: int | None = None,
    *,
    classes_per_client: int | None = None,
    partition: str | None = None,
    alpha: float | None = None,
    sigma: float | None = None,
    max_examples: int | None = None,
    seed: int = 0,
    data_dir: str | Path | None = None,
) -> FederatedData:
    """A data set divided among clients.

    Args:
        name: one of `names(data_dir)`, or a path that ends in .npz: arrays x_train, y_train, x_test, y_test, and
            writer_train and writer_test (or user_train and user_test) where examples belong to people. A file
            `<data_dir>/<name>.npz` comes before a built-in source of that name.
        num_clients: M; may be left out for the natural partition, which then keeps all users.
        classes_per_client: distinct classes of every client, for partition "classes".
        partition: "classes", "dirichlet", "lognormal", "natural" or "iid", see `fedjax_srp.data.partition`. Default:
            the one whose argument is given (classes_per_client, alpha, sigma), else "natural" if the data set names
            users, else "iid".
        alpha: Dirichlet concentration, for partition "dirichlet".
        sigma: spread of the logarithm of client sizes, for partition "lognormal".
        max_examples: at most so many training examples per client, classes in proportion; None for all.
        seed: of the partition. What is for training and what for testing never depends on it.
        data_dir: folder with prepared data sets.

    Returns:
        The data. uint8 pixels stay uint8 and are normalised as they are gathered: with the constants of `NORMALISATION`
        where it has the name (of a file: its stem), else to 0..1.

    Raises:
        ValueError: in one line with argument, value and remedy.

    Example:
        >>> load("digits", num_clients=20, classes_per_client=5).num_clients
        20
    """
    name, raw = _read(str(name), None if data_dir is None else Path(data_dir))
    given = {"classes_per_client": classes_per_client, "alpha": alpha, "sigma": sigma}
    given = {argument: value for argument, value in given.items() if value is not None}
    kind = _choose_partition(
        partition, set(given), has_users=raw.users_train is not None and raw.users_test is not None
    )
    if num_clients is None and kind != "natural":
        raise ValueError(f"num_clients=None: partition {kind!r} needs a number of clients, e.g. num_clients=10")
    if max_examples is not None and max_examples < given.get("classes_per_client", 1):
        raise ValueError(
            f"max_examples={max_examples}: must be at least 1, and at least one per class; "
            f"use {given.get('classes_per_client', 1)} or more"
        )
    argument, divide = PARTITIONS[kind]
    train, test = divide(raw, num_clients, given.get(argument or ""), seed)
    if max_examples is not None:
        train = partitions.cap_examples(train, raw.y_train, max_examples, seed)
    scale, offset = raw.scale, raw.offset
    if scale is None and offset is None and raw.x_train.dtype == np.uint8 and name in NORMALISATION:
        mean, std = (np.array(values) for values in NORMALISATION[name])
        scale, offset = _per_channel(1 / (255 * std)), _per_channel(-mean / std)  # (x / 255 - mean) / std
    return from_arrays(
        raw.x_train, raw.y_train, raw.x_test, raw.y_test, train_indices=train, test_indices=test,
        num_classes=raw.num_classes, scale=scale, offset=offset, name=name,
    )  # fmt: skip


def _per_channel(values: np.ndarray) -> np.ndarray:
    """One number for grey images, whether or not they have a channel axis; else one per channel, the last axis."""
    return values[0] if len(values) == 1 else values


def _read(name: str, data_dir: Path | None) -> tuple[str, RawArrays]:
    """The data set called `name`, and its name in results."""
    if name.endswith(".npz"):
        return Path(name).stem, _read_npz(Path(name))
    if data_dir is not None and (data_dir / f"{name}.npz").is_file():
        return name, _read_npz(data_dir / f"{name}.npz")
    known = names(data_dir)
    if name not in SOURCES:
        raise ValueError(
            f"name={name!r}: no such data set{nearest(name, known)}; use one of {', '.join(known)}, "
            "a path to an .npz file, or data_dir=the folder that has it"
        )
    return name, SOURCES[name](data_dir)


def _read_npz(path: Path) -> RawArrays:
    """Arrays of an .npz file; nothing in it is executed."""
    if not path.is_file():
        hint = nearest(path.name, [file.name for file in _npz(path.parent)])
        raise ValueError(f"name={str(path)!r}: no such file{hint}; give the path of an .npz file")
    try:
        with np.load(path, allow_pickle=False) as file:
            columns = {
                key: file[key] for key in file.files if key.removesuffix("_test").removesuffix("_train") in _COLUMNS
            }
    except (
        OSError,
        EOFError,
        ValueError,
        AttributeError,
        TypeError,
        zipfile.BadZipFile,
        pickle.UnpicklingError,
    ) as error:
        raise ValueError(
            f"name={str(path)!r}: not an .npz file of plain arrays ({error}); write it with np.savez"
        ) from error
    missing = [key for key in ("x_train", "y_train", "x_test", "y_test") if key not in columns]
    if missing:
        raise ValueError(
            f"name={str(path)!r}: lacks {', '.join(missing)}; found {', '.join(columns) or 'none of them'}"
        )
    users: dict[str, np.ndarray] = {}
    for kind in ("train", "test"):
        for column in (f"writer_{kind}", f"user_{kind}"):
            if column in columns:
                users[kind] = columns[column]
                if users[kind].shape != columns[f"y_{kind}"].shape:
                    raise ValueError(
                        f"name={str(path)!r}: {column} has shape {users[kind].shape} and y_{kind} "
                        f"{columns[f'y_{kind}'].shape}; give one user per example"
                    )
    return RawArrays(
        columns["x_train"],
        columns["y_train"],
        columns["x_test"],
        columns["y_test"],
        users.get("train"),
        users.get("test"),
    )


_COLUMNS = ("x", "y", "writer", "user")


def _choose_partition(partition: str | None, given: set[str], has_users: bool) -> str:
    """The partition asked for, or the one that the given arguments belong to."""
    if partition is not None and partition not in PARTITIONS:
        raise ValueError(
            f"partition={partition!r}: no such partition{nearest(partition, PARTITIONS)}; "
            f"use one of {', '.join(PARTITIONS)}"
        )
    owners = [kind for kind, division in PARTITIONS.items() if division.argument in given]
    if partition is None:
        partition = owners[0] if owners else "natural" if has_users else "iid"
    for kind in owners:
        if kind != partition:
            raise ValueError(
                f"{PARTITIONS[kind].argument}: belongs to partition {kind!r} and the partition is {partition!r}; "
                "leave one of them out"
            )
    needed = PARTITIONS[partition].argument
    if needed is not None and needed not in given:
        raise ValueError(f"{needed}=None: partition {partition!r} needs it; give {needed}")
    return partition


def _npz(folder: Path) -> list[Path]:
    """Archives in a folder and one folder below (emnist/digits.npz)."""
    return sorted([*folder.glob("*.npz"), *folder.glob("*/*.npz")])
