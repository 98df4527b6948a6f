"""`from_huggingface`: data sets of Hugging Face's `datasets`, and partitions of `flwr-datasets`, as `FederatedData`.

Neither library is imported; objects with the same methods work too. Nothing is
downloaded.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedjax_srp.data import text
from fedjax_srp.data.arrays import as_array, check_labels
from fedjax_srp.data.federated import FederatedData
from fedjax_srp.data.partition import Fraction
from fedjax_srp.data.raw import RawArrays
from fedjax_srp.data.rows import draw_test_rows
from fedjax_srp.data.sources import divided
from fedjax_srp.parts.checks import check_integer, checked, short
from fedjax_srp.parts.part import Count


@checked
def from_huggingface(
    dataset: Any,
    num_clients: Count | None = None,
    *,
    test: Any = None,
    x: str = "image",
    y: str = "label",
    user: str | None = None,
    test_fraction: Fraction = 0.2,
    partition: str | None = None,
    seed: int = 0,
    name: str = "huggingface",
    scale: ArrayLike | None = None,
    offset: ArrayLike | None = None,
    **division: Any,
) -> FederatedData:
    """Build federated data from a data set of Hugging Face, or from a partitioner of flwr-datasets.

    Args:
        dataset: a `datasets.Dataset`, from memory or `datasets.load_from_disk`; a
            `DatasetDict` with a split "train" and optionally "test"; or a partitioner
            with its data set (`load_partition(i)`, `num_partitions`), whose partitions
            become clients, named by its `partition_id_to_natural_id` if it has one.
        num_clients: as in `load`; optional with `user` or a partitioner.
        test: the test split, of the same kind as `dataset`; for a partitioner, another
            one with the same partitions, paired by `partition_id_to_natural_id`, or by
            number where neither has it.
        x: column of inputs: images, numbers in rows of equal length, or texts, which
            become tokens as in `load`.
        y: column of labels, integers from 0.
        user: column of users, numbers or texts, for the natural partition; not for a
            partitioner.
        test_fraction: without a test split, the share of each user's examples, or else of
            each class, to test on; drawn at random and rounded, but at least one example
            of two or more.
        partition: a name of a partition, as in `load`.
        seed: of partition and test split.
        name: of the data set in results.
        scale: as in `from_arrays`.
        offset: likewise.
        **division: arguments of the partition as in `load`: `classes_per_client`,
            `alpha`, `shards_per_client`, ...

    Returns:
        The data; uint8 images are divided by 255 when they are gathered.

    Raises:
        ValueError: a missing column, rows of unequal shape, a partition with a missing
            argument.

    Example:
        >>> import numpy as np, fedjax_srp as srp
        >>> rows = {"image": np.zeros((40, 8, 8), np.uint8), "label": np.arange(40) % 4}  # Dataset.from_dict(...)
        >>> srp.data.from_huggingface({"train": rows}, 4, alpha=1.0).num_clients
        4
    """
    check_integer("seed", seed, 0, maximum=None)
    if isinstance(dataset, Mapping) and "train" in dataset:
        if test is None:
            test = dataset.get("test")
        dataset = dataset["train"]
    if test is not None and _is_partitioner(test) != _is_partitioner(dataset):
        raise ValueError(
            "test: dataset and test must be of one kind; give a partitioner for both or "
            "for neither"
        )
    if test is not None and test is dataset:
        raise ValueError(
            "test: is the same object as dataset, so clients would be tested on what "
            "they train on; leave test out to hold out a test_fraction, or give the "
            "test split"
        )
    if user is not None and _is_partitioner(dataset):
        raise ValueError(
            f"user={short(user)}: the partitions of dataset are the clients; leave it out"
        )
    names = None
    columns: list[Any] = _columns(dataset, "dataset", x, y, user)
    columns_test: list[Any]
    if test is None:
        _, labels, users = columns
        check_labels(f"column {y!r}", labels, f"column {x!r}", len(labels))
        is_test = draw_test_rows(labels if users is None else users, test_fraction, seed)
        columns_test = [None if array is None else array[is_test] for array in columns]
        columns = [None if array is None else array[~is_test] for array in columns]
    else:
        columns_test = _columns(test, "test", x, y, user)
    if _is_partitioner(dataset):
        names = _natural_ids(dataset, "dataset")
        if test is not None:
            columns_test[2] = _owners_in_training(dataset, test, columns_test[2])
    x_train, y_train, users_train = columns
    x_test, y_test, users_test = columns_test
    if x_train.dtype.kind == x_test.dtype.kind == "U":
        vocabulary = text.vocabulary(x_train)
        x_train = text.tokens(x_train, vocabulary)
        x_test = text.tokens(x_test, vocabulary)
    raw = RawArrays(
        x_train, y_train, x_test, y_test, users_train, users_test, user_names=names
    )
    return divided(
        raw, num_clients, partition, seed, division, name=name, scale=scale, offset=offset
    )


def _is_partitioner(dataset: Any) -> bool:
    return hasattr(dataset, "load_partition") and hasattr(dataset, "num_partitions")


def _natural_ids(partitioner: Any, argument: str) -> np.ndarray | None:
    """Return the name of each partition, (n,) texts, or None.

    The partitions are loaded, which makes the names.
    """
    names = getattr(partitioner, "partition_id_to_natural_id", None)
    if not names:
        return None
    ids = range(partitioner.num_partitions)
    if not isinstance(names, Mapping) or set(names) != set(ids):
        raise ValueError(
            f"{argument}: partition_id_to_natural_id={short(names)} does not name "
            f"partitions 0..{len(ids) - 1}; give a partitioner that does"
        )
    return np.array([str(names[i]) for i in ids])


def _owners_in_training(dataset: Any, test: Any, owners: np.ndarray) -> np.ndarray:
    """Return the partition of `dataset` of each test row, from that of `test`: the one of equal natural id."""
    names = _natural_ids(dataset, "dataset")
    names_test = _natural_ids(test, "test")
    if names is None and names_test is None:
        if dataset.num_partitions != test.num_partitions:
            raise ValueError(
                f"test: has {test.num_partitions} partitions and dataset "
                f"{dataset.num_partitions}, which cannot be paired by number; give "
                "partitioners with the same partitions"
            )
        return owners
    if names is None or names_test is None:
        argument = "dataset" if names_test is None else "test"
        raise ValueError(
            f"test: only {argument} has partition_id_to_natural_id, so partitions cannot "
            "be paired by name; give a partitioner by natural ids for both, e.g. "
            "flwr-datasets' NaturalIdPartitioner"
        )
    names = names.tolist()
    names_test = names_test.tolist()
    missing = sorted(set(names_test) - set(names)) or sorted(set(names) - set(names_test))
    if missing or len(set(names)) != len(names_test):
        raise ValueError(
            f"test: {len(missing)} natural ids ({short(missing)}) are in one of dataset "
            "and test only; give both partitioners the same people"
        )
    place = {name: i for i, name in enumerate(names)}
    return np.array([place[name] for name in names_test])[owners]


def _num_rows(dataset: Any) -> int:
    """Return the number of rows; a dict of columns has the length of a column."""
    if not isinstance(dataset, Mapping):
        return len(dataset)
    columns = [column for column in dataset.values() if hasattr(column, "__len__")]
    return max(map(len, columns), default=0)


def _columns(dataset: Any, argument: str, x: str, y: str, user: str | None) -> list[Any]:
    """Return inputs, labels and users (None if unknown) of a data set, or of all partitions of a partitioner."""
    if _is_partitioner(dataset):
        return _columns_of_partitions(dataset, argument, x, y)
    names = getattr(dataset, "column_names", None)
    if not names and isinstance(dataset, Mapping):
        names = list(dataset)
    if not names or isinstance(names, Mapping) or _num_rows(dataset) == 0:
        raise ValueError(
            f"{argument}={short(type(dataset))} is not a data set, or has no rows; give "
            "a datasets.Dataset, a DatasetDict with a split 'train', or a partitioner of "
            "flwr-datasets"
        )
    for role, column in (("x", x), ("y", y), ("user", user)):
        if column is not None and not (isinstance(column, str) and column in names):
            raise ValueError(
                f"{role}={short(column)} is not a column of {argument}; choose from "
                f"{', '.join(map(str, names))}"
            )
    users = None
    with _without_ghostscript():
        inputs = _stack(x, dataset[x])
        labels = _stack(y, dataset[y])
    if user is not None:
        users = _check_users(user, list(dataset[user]))
    return [inputs, labels, users]


def _columns_of_partitions(
    partitioner: Any, argument: str, x: str, y: str
) -> list[np.ndarray]:
    """Return inputs, labels and the number of the partition of each row."""
    empty = []
    owners = []
    inputs = []
    labels = []
    for i in range(partitioner.num_partitions):
        part = partitioner.load_partition(i)
        num_rows = _num_rows(part)
        if not num_rows:
            empty.append(i)
            continue
        owners.extend([i] * num_rows)
        inputs_of_part, labels_of_part, _ = _columns(part, argument, x, y, None)
        inputs.append(inputs_of_part)
        labels.append(labels_of_part)
    if not owners:
        raise ValueError(
            f"{argument}: all {len(empty)} partitions are empty; give a partitioner with "
            "rows"
        )
    if empty:
        warnings.warn(
            f"{argument}: partitions {short(empty)} are empty and left out; the clients "
            "are the others",
            stacklevel=5,
        )
    return [np.concatenate(inputs), np.concatenate(labels), np.array(owners)]


@contextlib.contextmanager
def _without_ghostscript() -> Iterator[None]:
    """Keep Pillow from starting Ghostscript, a program, for an image in EPS.

    It then raises an OSError.
    """
    from PIL import EpsImagePlugin

    plugin: Any = EpsImagePlugin
    program = plugin.gs_binary
    plugin.gs_binary = False
    try:
        yield
    except OSError as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"dataset has an image that cannot be read ({reason}); write images as PNG "
            "or JPEG"
        ) from None
    finally:
        plugin.gs_binary = program


def _check_users(column: str, values: list[Any]) -> np.ndarray:
    """Return (n,) users, all integers or all texts.

    NumPy would drop a NUL at the end of a text.
    """
    kinds = set()
    for value in values:
        if isinstance(value, str):
            kinds.add("str")
            if "\0" in value:
                raise ValueError(
                    f"user={column!r} has {value!r}, which contains a NUL; remove it"
                )
        elif isinstance(value, int | np.integer) and not isinstance(value, bool):
            kinds.add("int")
        else:
            kinds.add(type(value).__name__)
    if kinds not in ({"str"}, {"int"}):
        raise ValueError(
            f"user={column!r} has values of type {', '.join(sorted(kinds))}; give texts, "
            "or integers"
        )
    return np.array(values)


def _stack(column: str, values: Any) -> np.ndarray:
    rows = []
    modes = set()
    for value in values:
        rows.append(as_array(f"column {column!r}", value))
        mode = getattr(value, "mode", "")  # of an image of PIL; a method of tensors
        modes.add(mode if isinstance(mode, str) else "")
    # numbers with other meanings; those of P count entries of a palette
    if len(modes) > 1 or modes & {"P", "PA"}:
        raise ValueError(
            f"column {column!r} has images of modes {', '.join(sorted(modes))}; convert "
            "all to L or RGB with Dataset.map first"
        )
    shapes = sorted({row.shape for row in rows})
    if len(shapes) != 1:
        raise ValueError(
            f"column {column!r} has rows of shapes {short(shapes)}; give them one shape "
            "with Dataset.map first"
        )
    return np.stack(rows)
