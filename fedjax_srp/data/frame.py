"""`from_frame`: a data frame of pandas whose columns are a user, a label and features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from fedjax_srp.data import text
from fedjax_srp.data.federated import FederatedData
from fedjax_srp.data.partition import Fraction
from fedjax_srp.data.rows import Rows, check_columns, raw_arrays, split_off_tests
from fedjax_srp.data.sources import divided
from fedjax_srp.parts.checks import check_integer, checked, nearest, short
from fedjax_srp.parts.part import Count

if TYPE_CHECKING:
    import pandas as pd


@checked
def from_frame(
    frame: pd.DataFrame,
    num_clients: Count | None = None,
    *,
    user: str | None = None,
    label: str = "label",
    features: str | Sequence[str] | None = None,
    split: str | None = None,
    test_fraction: Fraction | None = None,
    partition: str | None = None,
    seed: int = 0,
    name: str = "frame",
    scale: ArrayLike | None = None,
    offset: ArrayLike | None = None,
    **division: Any,
) -> FederatedData:
    """Build federated data from a data frame of pandas, an example a row.

    Args:
        frame: the table.
        num_clients: as in `load`; optional with `user`.
        user: column of users, integers or texts, each of whom is a client.
        label: column of labels, integers or texts; `data.class_names` has them where they
            were renumbered or converted.
        features: columns of numbers or flags, in this order; or one column of texts,
            which become tokens. None for all other columns.
        split: column of "train" and "test". None to hold out a share of each user's rows.
        test_fraction: this share, or that of each class without `user`. None for 0.2.
        partition: a name of a partition, as in `load`.
        seed: of partition and held-out rows.
        name: of the data set in results.
        scale: as in `from_arrays`.
        offset: likewise.
        **division: arguments of the partition as in `load`: `alpha`, ...

    Raises:
        ValueError: a column that is missing or of another kind, an empty cell.

    Example:
        >>> import pandas as pd
        >>> table = pd.DataFrame({"age": range(8), "clinic": list("AABBAABB"), "sick": ["no", "yes"] * 4})
        >>> data = from_frame(table, user="clinic", label="sick")
        >>> data.client_names, data.class_names
        (('A', 'B'), ('no', 'yes'))
    """
    check_integer("seed", seed, 0, maximum=None)
    columns = getattr(frame, "columns", None)
    if columns is None or not len(frame):
        raise ValueError(
            f"frame={short(type(frame))}: is no data frame, or has no rows; give a "
            "pandas.DataFrame, e.g. pd.read_csv(path)"
        )
    names = list(columns)
    if len(set(names)) != len(names):
        twice = next(column for column in names if names.count(column) > 1)
        raise ValueError(f"frame: has two columns {twice!r}; rename one")
    roles = {"user": user, "label": label, "split": split}
    for argument, column in roles.items():
        if column is not None:
            _check_column(argument, column, names)
    if features is None:
        features = [column for column in names if column not in roles.values()]
    chosen = [features] if isinstance(features, str) else list(features)
    for column in chosen:
        _check_column("features", column, names)
        if column in (user, label, split):
            raise ValueError(
                f"features: {column!r} is user, label or split too; leave it out"
            )
    if not chosen:
        raise ValueError("features: no column is left; give one or more")
    x = _features(frame, chosen)
    y = _cells(frame, "label", label)
    users = None if user is None else _users(frame, user)
    rows = Rows(x, y, users)
    if split is None:
        raw = split_off_tests(raw_arrays(rows, None), test_fraction, seed)
    else:
        if test_fraction is not None:
            raise ValueError(
                f"test_fraction={test_fraction}: column {split!r} says which rows are for "
                "tests; leave one of them out"
            )
        is_test = _is_test(frame, split)
        raw = raw_arrays(_take(rows, ~is_test), _take(rows, is_test))
    if raw.x_train.dtype.kind == "U":
        vocabulary = text.vocabulary(raw.x_train)
        raw = raw._replace(
            x_train=text.tokens(raw.x_train, vocabulary),
            x_test=text.tokens(raw.x_test, vocabulary),
        )
    check_columns(raw)
    return divided(
        raw, num_clients, partition, seed, division, name=name, scale=scale, offset=offset
    )


def _take(rows: Rows, is_chosen: np.ndarray) -> Rows:
    users = None if rows.users is None else rows.users[is_chosen]
    return Rows(rows.x[is_chosen], rows.y[is_chosen], users)


def _check_column(argument: str, column: Any, names: list[Any]) -> None:
    if column not in names:
        hint = nearest(str(column), list(map(str, names)))
        raise ValueError(
            f"{argument}={column!r}: is no column{hint}; choose from "
            f"{', '.join(map(str, names[:20]))}"
        )


def _cells(frame: pd.DataFrame, argument: str, column: Any) -> np.ndarray:
    """Return the cells of a column, none of them empty."""
    cells = frame[column]
    is_empty = cells.isna().to_numpy()
    if is_empty.any():
        raise ValueError(
            f"{argument}={column!r}: row {np.argmax(is_empty)} is empty "
            f"({np.count_nonzero(is_empty)} of {len(cells)} are); leave such rows out, "
            f"frame.dropna(subset=[{column!r}]), or fill them"
        )
    return cells.to_numpy()


def _features(frame: pd.DataFrame, columns: list[Any]) -> np.ndarray:
    """Return (n, columns) numbers, or (n,) texts of a single column."""
    values = []
    for column in columns:
        cells = _cells(frame, "features", column)
        is_text = all(isinstance(cell, str) for cell in cells)
        if is_text and len(columns) == 1:
            return np.array(list(cells), str)
        if cells.dtype.kind not in "biuf":
            wrong = next((cell for cell in cells if not _is_number(cell)), cells[0])
            raise ValueError(
                f"features={column!r}: has {short(wrong)} of type {cells.dtype}, no "
                "number; convert it, e.g. with pd.get_dummies, or name the columns to use, "
                "features=[...]"
            )
        values.append(cells.astype(float))
    return np.stack(values, axis=1)


def _is_number(cell: Any) -> bool:
    """True also for the text of a number, as a column has that pandas read as text."""
    try:
        float(cell)
    except (TypeError, ValueError):
        return False
    return True


def _users(frame: pd.DataFrame, column: Any) -> np.ndarray:
    """Return integers or texts, one kind alone."""
    cells = _cells(frame, "user", column)
    if cells.dtype.kind in "iu":
        return cells
    users = cells.tolist()
    kinds = sorted({type(each).__name__ for each in users})
    if kinds == ["float"] and all(float(each).is_integer() for each in users):
        return np.array(users).astype(np.int64)
    if kinds == ["int"]:
        return np.array(users)
    if kinds != ["str"] or any("\0" in each for each in users):
        raise ValueError(
            f"user={column!r}: has values of types {', '.join(kinds)}, or a NUL; give all "
            f"users as integers or all as text, frame[{column!r}].astype(str)"
        )
    return np.array(users, str)


def _is_test(frame: pd.DataFrame, column: Any) -> np.ndarray:
    cells = _cells(frame, "split", column)
    others = [cell for cell in cells.tolist() if cell not in ("train", "test")]
    if others:
        raise ValueError(
            f"split={column!r}: has {short(others[0])}; give train or test in every row"
        )
    return cells == "test"
