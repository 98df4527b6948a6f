"""Your own arrays and your own partition as `FederatedData`, checked before anything reaches the device."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from fedjax_srp._checks import check_integer, checked, short
from fedjax_srp.data.federated import FederatedData


@checked
def from_arrays(
    x_train: ArrayLike,
    y_train: ArrayLike,
    x_test: ArrayLike,
    y_test: ArrayLike,
    *,
    train_indices: Sequence[ArrayLike],
    test_indices: Sequence[ArrayLike],
    num_classes: int | None = None,
    scale: ArrayLike | None = None,
    offset: ArrayLike | None = None,
    name: str = "arrays",
) -> FederatedData:
    """Federated data from arrays of examples and the indices of every client's own.

    Floats keep their dtype (float64 where x64 is on). Integers are handed to the model unchanged (tokens), except that
    uint8 are taken for pixels and divided by 255; give `scale` or `offset` to change either.

    Args:
        x_train: (n_train, ...) inputs.
        y_train: (n_train,) integer class numbers from 0.
        x_test: (n_test, ...) inputs of the same shape and dtype. May be `x_train` itself, then `train_indices` and
            `test_indices` must be disjoint.
        y_test: (n_test,) class numbers.
        train_indices: for every client the rows of `x_train` it owns, at least one.
        test_indices: for every client the rows of `x_test`, at least one.
        num_classes: default: the largest label + 1.
        scale: number or array that broadcasts over an example (per channel); the model gets x * scale + offset.
            Default 1/255 for uint8 and 1 for others.
        offset: like `scale`. Default 0.
        name: what the data set is called in results.

    Returns:
        The data, on the default device. Copies are made: changing the arguments afterwards changes nothing.

    Raises:
        ValueError: in one line with argument, value and remedy: inputs that are not finite numbers or differ in shape
            or length, labels that are no class numbers, indices out of range, used twice or missing for a client.

    Example:
        >>> x, y = np.arange(12.0).reshape(6, 2), np.array([0, 1, 0, 1, 0, 1])
        >>> from_arrays(x, y, x, y, train_indices=[[0, 1], [2]], test_indices=[[3], [4, 5]])
        FederatedData('arrays', 2 clients, 2 classes, inputs (2,) float32, train examples per client 1/1.5/2 \
(min/median/max), test examples per client 1/1.5/2 (min/median/max))
    """
    is_one_pool = x_train is x_test
    inputs_train, inputs_test = _inputs("x_train", x_train), _inputs("x_test", x_test)
    if inputs_train.shape[1:] != inputs_test.shape[1:] or inputs_train.dtype != inputs_test.dtype:
        raise ValueError(
            f"x_test: examples are {inputs_test.shape[1:]} {inputs_test.dtype}, those of x_train are "
            f"{inputs_train.shape[1:]} {inputs_train.dtype}; prepare both in the same way"
        )
    labels_train = check_labels("y_train", y_train, "x_train", len(inputs_train))
    labels_test = check_labels("y_test", y_test, "x_test", len(inputs_test))
    largest = max(int(labels.max(initial=-1)) for labels in (labels_train, labels_test))
    if num_classes is None:
        num_classes = largest + 1
        _warn_of_gaps(np.union1d(labels_train, labels_test), num_classes)
    num_classes = check_integer("num_classes", num_classes, 1)
    if largest >= num_classes:
        raise ValueError(
            f"num_classes={num_classes}: there is a label {largest}; "
            f"labels are 0..num_classes-1, use num_classes={largest + 1} or relabel"
        )
    if len(train_indices) != len(test_indices):
        raise ValueError(
            f"test_indices: lists {len(test_indices)} clients and train_indices {len(train_indices)}; "
            "give both one entry per client"
        )
    if not len(train_indices):
        raise ValueError("train_indices: lists no clients; give one array of indices per client")
    rows_train = _clients("train_indices", train_indices, len(inputs_train))
    rows_test = _clients("test_indices", test_indices, len(inputs_test))
    if is_one_pool:
        shared = np.intersect1d(np.concatenate(rows_train), np.concatenate(rows_test))
        if len(shared):
            raise ValueError(
                f"test_indices: example {shared[0]} is in train_indices too, and x_test is x_train; "
                "test on examples that nobody trains on"
            )
    if scale is None and inputs_train.dtype == np.uint8:
        scale = 1 / 255
    device_scale, device_offset = _affine(scale, offset, inputs_train)
    padded_train, counts_train = pad(rows_train)
    padded_test, counts_test = pad(rows_test)
    device_train = jnp.array(inputs_train)
    return FederatedData(
        x_train=device_train,
        y_train=jnp.array(labels_train),
        x_test=device_train if is_one_pool else jnp.array(inputs_test),
        y_test=jnp.array(labels_test),
        train_indices=padded_train,
        train_counts=counts_train,
        test_indices=padded_test,
        test_counts=counts_test,
        scale=device_scale,
        offset=device_offset,
        name=name,
        num_classes=num_classes,
    )


def _inputs(name: str, value: ArrayLike) -> np.ndarray:
    """Examples in the dtype they have on the device, all finite there."""
    given = as_array(name, value)
    if not (jnp.issubdtype(given.dtype, jnp.floating) or jnp.issubdtype(given.dtype, jnp.integer)):
        raise ValueError(
            f"{name}: dtype is {given.dtype}; inputs are floats or integers, e.g. {name}.astype('float32')"
        )
    if given.ndim == 0:
        raise ValueError(f"{name}: is a single number; give an array with one example per row")
    if 0 in given.shape[1:]:
        raise ValueError(
            f"{name}: examples of shape {given.shape[1:]} hold no number; give an array without an empty axis"
        )
    with np.errstate(over="ignore"):
        array = given.astype(jax.dtypes.canonicalize_dtype(given.dtype), copy=False)
    if jnp.issubdtype(array.dtype, jnp.floating):
        is_lost, problem = ~np.isfinite(array), f"not finite as {array.dtype}; remove or repair the example"
    elif array.dtype != given.dtype:
        is_lost, problem = (
            array != given,
            f"too large for {array.dtype}; use smaller integers or turn on jax_enable_x64",
        )
    else:
        return array
    if is_lost.any():
        where = tuple(int(i) for i in np.argwhere(is_lost)[0])
        raise ValueError(f"{name}[{', '.join(map(str, where))}]: {given[where]} is {problem}")
    return array


def as_array(name: str, value: ArrayLike) -> np.ndarray:
    """`value` as NumPy has it, or a ValueError of one line where it has none."""
    try:
        return np.asarray(value)
    except (TypeError, ValueError) as error:  # keys, rows of unequal length
        reason = " ".join(str(error).split())
        raise ValueError(f"{name}: is no array ({reason}); give one with an example per row") from None


def check_labels(name: str, value: ArrayLike, inputs_name: str, num_examples: int) -> np.ndarray:
    """(n,) int32 class numbers, or a ValueError of one line."""
    labels = as_array(name, value)
    if labels.shape != (num_examples,):
        raise ValueError(
            f"{name}: shape is {labels.shape} but {inputs_name} has {num_examples} examples; "
            "give one class number per example (one-hot rows: argmax(-1))"
        )
    if not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"{name}: dtype is {labels.dtype}; labels are integers, e.g. {name}.astype('int32')")
    if len(labels) and labels.min() < 0:
        first = np.argmax(labels < 0)
        raise ValueError(f"{name}[{first}]: label {labels[first]} is negative; number the classes from 0")
    if len(labels) and labels.max() > np.iinfo(np.int32).max:
        raise ValueError(f"{name}: label {labels.max()} does not fit int32; number the classes from 0 without gaps")
    return labels.astype(np.int32)


def _warn_of_gaps(classes: np.ndarray, num_classes: int) -> None:
    if len(classes) < num_classes:
        missing = np.argmax(np.append(classes, -1) != np.arange(len(classes) + 1))
        warnings.warn(
            f"labels: {len(classes)} of {num_classes} classes have examples, {missing} for one has none, "
            f"and models get {num_classes} outputs; number the classes without gaps, as load(..., classes=[...]) does, "
            "or give num_classes",
            stacklevel=4,
        )


def _clients(name: str, indices: Sequence[ArrayLike], num_examples: int) -> list[np.ndarray]:
    """Rows of every client: at least one each, in range, and nobody's twice."""
    clients = []
    for client, given in enumerate(indices):
        rows = as_array(f"{name}[{client}]", given)
        if rows.size == 0:
            kind = name.removesuffix("_indices")
            raise ValueError(f"{name}[{client}]: client {client} has no {kind} examples; give it one or leave it out")
        if rows.ndim != 1 or not np.issubdtype(rows.dtype, np.integer):
            raise ValueError(
                f"{name}[{client}]: is {rows.dtype} of shape {rows.shape}; "
                "give a list of row numbers (boolean mask: np.flatnonzero)"
            )
        is_outside = (rows < 0) | (rows >= num_examples)
        if is_outside.any():
            raise ValueError(
                f"{name}[{client}]: index {rows[is_outside][0]} is out of range for {num_examples} examples; "
                f"indices are 0..{num_examples - 1}"
            )
        clients.append(rows.astype(np.int32))
    rows = np.concatenate(clients)
    owners = np.repeat(np.arange(len(clients)), [len(client) for client in clients])
    order = np.argsort(rows, kind="stable")
    twice = np.flatnonzero(np.diff(rows[order]) == 0)
    if len(twice):
        first, second = owners[order[twice[0]]], owners[order[twice[0] + 1]]
        whose = f"belongs to clients {first} and {second}" if first != second else f"is listed twice for client {first}"
        raise ValueError(f"{name}: example {rows[order[twice[0]]]} {whose}; give each example to one client, once")
    return clients


def _affine(
    scale: ArrayLike | None, offset: ArrayLike | None, inputs: np.ndarray
) -> tuple[jax.Array, jax.Array] | tuple[None, None]:
    """Scale and offset in the dtype of the model's input, or nothing where inputs stay as they are."""
    if scale is None and offset is None:
        return None, None
    dtype = inputs.dtype if jnp.issubdtype(inputs.dtype, jnp.floating) else jnp.result_type(float)
    arrays = []
    for name, value in (("scale", 1.0 if scale is None else scale), ("offset", 0.0 if offset is None else offset)):
        array = as_array(name, value)
        if not (jnp.issubdtype(array.dtype, jnp.floating) or jnp.issubdtype(array.dtype, jnp.integer)):
            raise ValueError(f"{name}={short(value)}: must be of real numbers; give one number, or one per channel")
        try:
            fits = np.broadcast_shapes(array.shape, inputs.shape[1:]) == inputs.shape[1:]
        except ValueError:
            fits = False
        if not fits:
            raise ValueError(
                f"{name}: shape {array.shape} does not broadcast over examples of shape {inputs.shape[1:]}; "
                "give one number, or one per channel"
            )
        with np.errstate(over="ignore"):
            in_program = array.astype(dtype)
        if not np.isfinite(in_program).all():
            raise ValueError(f"{name}={short(value)}: must be finite as {in_program.dtype}; give a smaller number")
        arrays.append(jnp.array(in_program))
    return arrays[0], arrays[1]


def pad(clients: list[np.ndarray]) -> tuple[jax.Array, jax.Array]:
    """(M, longest) indices padded with row 0, which is valid and never counted, and (M,) lengths."""
    counts = np.array([len(rows) for rows in clients], dtype=np.int32)
    padded = np.zeros((len(clients), counts.max()), dtype=np.int32)
    padded[np.arange(padded.shape[1]) < counts[:, None]] = np.concatenate(clients)
    return jnp.array(padded), jnp.array(counts)
