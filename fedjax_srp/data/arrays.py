"""`from_arrays`: `FederatedData` from arrays and a partition, and checks of arrays on the host."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from fedjax_srp.data import overlap
from fedjax_srp.data.federated import FederatedData
from fedjax_srp.parts.checks import checked, is_real, short
from fedjax_srp.parts.part import AtLeast, AtMost

MAX_CLASSES = 2**20
MIN_PIXELS = 64  # of the smallest images, 8 x 8
CHANNELS = (1, 3, 4)  # of grey, colour, and colour with opacity
MAX_DARK = 64  # pixels below are no bytes, or an image is dark


@checked
def from_arrays(
    x_train: ArrayLike,
    y_train: ArrayLike,
    x_test: ArrayLike,
    y_test: ArrayLike,
    *,
    train_indices: Sequence[ArrayLike] | Mapping[str, ArrayLike],
    test_indices: Sequence[ArrayLike] | Mapping[str, ArrayLike],
    num_classes: Annotated[int, AtLeast(1), AtMost(MAX_CLASSES)] | None = None,
    scale: ArrayLike | None = None,
    offset: ArrayLike | None = None,
    name: str = "arrays",
    client_names: Sequence[str] | None = None,
    class_names: Sequence[str] | None = None,
) -> FederatedData:
    """Build federated data from arrays of examples and each client's indices into them.

    Floats keep their dtype (float64 if x64 is on). Integers reach the model unchanged
    (tokens), except for uint8: pixels, which are divided by 255. `scale` and `offset`
    change this.

    Args:
        x_train: (n_train, ...) inputs.
        y_train: (n_train,) integer class numbers from 0.
        x_test: (n_test, ...) inputs of the same shape and dtype. It may be `x_train`
            itself or a view of it; then `train_indices` and `test_indices` must be
            disjoint.
        y_test: (n_test,) class numbers.
        train_indices: each client's rows of `x_train`, at least one; a list, or a dict by
            client names.
        test_indices: each client's rows of `x_test`, at least one; a dict of the same
            names for a dict.
        num_classes: default: the largest label + 1.
        scale: number or array that broadcasts over an example (per channel), not 0; the
            model gets x * scale + offset. Default 1/255 for uint8 and 1 for others, with
            a warning where they look like pixels of another scale.
        offset: like `scale`. Default 0.
        name: of the data set in results.
        client_names: a text for each client, each once, in the order of `train_indices`;
            for traces with named columns.
        class_names: a text for each class, in the order of the labels.

    Returns:
        The data, on the default device; the arguments are copied.

    Raises:
        ValueError: among others, a test example that is a training example in memory, or
            test examples that all equal training examples. A warning counts those that
            equal one more often than training examples equal each other, and training
            examples that clients share.

    Example:
        >>> x, y = np.arange(12.0).reshape(6, 2), np.array([0, 1, 0, 1, 0, 1])
        >>> from_arrays(x, y, x, y, train_indices=[[0, 1], [2]], test_indices=[[3], [4, 5]])
        FederatedData('arrays', 2 clients, 2 classes, inputs (2,) float32, train examples per client 1/1.5/2 \
(min/median/max), test examples per client 1/1.5/2 (min/median/max))
    """
    is_one_pool = x_test is x_train
    array_train = array_test = as_array("x_train", x_train)
    inputs_train = inputs_test = _inputs("x_train", array_train)
    if not is_one_pool:
        array_test = as_array("x_test", x_test)
        inputs_test = _inputs("x_test", array_test)
    is_one_shape = inputs_train.shape[1:] == inputs_test.shape[1:]
    if not is_one_shape or inputs_train.dtype != inputs_test.dtype:
        raise ValueError(
            f"x_test: examples are {inputs_test.shape[1:]} {inputs_test.dtype}, those of "
            f"x_train are {inputs_train.shape[1:]} {inputs_train.dtype}; give both the "
            "same shape and type"
        )
    labels_train = check_labels("y_train", y_train, "x_train", len(inputs_train))
    labels_test = check_labels("y_test", y_test, "x_test", len(inputs_test))
    num_classes = _count_classes(labels_train, labels_test, num_classes)
    if isinstance(train_indices, Mapping) or isinstance(test_indices, Mapping):
        client_names, train_indices, test_indices = _by_name(
            train_indices, test_indices, client_names
        )
    train_indices = list(train_indices)  # also of a generator
    test_indices = list(test_indices)
    if len(train_indices) != len(test_indices) or not len(train_indices):
        raise ValueError(
            f"train_indices lists {len(train_indices)} clients and test_indices "
            f"{len(test_indices)}; give both one array of row numbers for each client, "
            "and at least one"
        )
    rows_train = _check_clients("train_indices", train_indices, len(inputs_train))
    rows_test = _check_clients("test_indices", test_indices, len(inputs_test))
    all_test = np.concatenate(rows_test)
    overlap.check_memory(array_train, array_test, np.concatenate(rows_train), all_test)
    if scale is None and offset is None:
        _warn_of_pixels(inputs_train)
    if scale is None and inputs_train.dtype == np.uint8:
        scale = 1 / 255
    device_scale, device_offset = _scale_and_offset(scale, offset, inputs_train)
    overlap.check_values(inputs_train, inputs_test, rows_train, all_test)
    if client_names is not None:
        client_names = _check_names(client_names, len(rows_train))
    if class_names is not None:
        class_names = _check_class_names(class_names, num_classes)
    _warn_of_channels(inputs_train.shape[1:])
    padded_train, counts_train = pad(rows_train)
    padded_test, counts_test = pad(rows_test)
    device_train = _on_device(inputs_train)
    return FederatedData(
        x_train=device_train,
        y_train=_on_device(labels_train),
        x_test=device_train if is_one_pool else _on_device(inputs_test),
        y_test=_on_device(labels_test),
        train_indices=padded_train,
        train_counts=counts_train,
        test_indices=padded_test,
        test_counts=counts_test,
        scale=device_scale,
        offset=device_offset,
        name=name,
        num_classes=num_classes,
        client_names=client_names,
        class_names=class_names,
    )


def _count_classes(train: np.ndarray, test: np.ndarray, given: int | None) -> int:
    """Return the number of classes, which is that of the largest label unless it is given."""
    labels = np.concatenate([train, test])
    largest = int(labels.max(initial=-1))
    if given is not None:
        if largest >= given:
            raise ValueError(
                f"num_classes={given}: there is a label {largest}, but labels must be "
                f"0..num_classes-1; use num_classes={largest + 1}, or renumber the labels"
            )
        return given
    num_classes = largest + 1
    missing = np.setdiff1d(np.arange(num_classes), labels)
    if len(missing):
        warnings.warn(
            f"labels: {num_classes - len(missing)} of {num_classes} classes have examples "
            f"(class {missing[0]} has none), but models get {num_classes} outputs; number "
            "the classes without gaps, as load(..., classes=[...]) does, or give "
            "num_classes",
            stacklevel=4,
        )
    return num_classes


def _warn_of_channels(shape: tuple[int, ...]) -> None:
    if has_channels_first(shape):
        warnings.warn(
            f"x_train: examples of shape {shape} look like images with their channels "
            "first, but models take them last; give np.moveaxis(x, 1, -1) if they are",
            stacklevel=4,
        )


def has_channels_first(shape: tuple[int, ...]) -> bool:
    """Return True for (1, H, W), (3, H, W) and (4, H, W) of 8 x 8 or more.

    Signals of shape (1, steps, channels) look alike.
    """
    if len(shape) != 3:
        return False
    return shape[0] in CHANNELS and shape[2] not in CHANNELS and min(shape[1:]) >= 8


def _by_name(
    train_indices: Any, test_indices: Any, client_names: Sequence[str] | None
) -> tuple[list[str], list[ArrayLike], list[ArrayLike]]:
    """Return the names of dicts of clients, and the rows of both in the order of the training clients."""
    if not isinstance(train_indices, Mapping) or not isinstance(test_indices, Mapping):
        argument = (
            "train_indices" if isinstance(train_indices, Mapping) else "test_indices"
        )
        raise ValueError(
            f"{argument}: only this is a dict of clients; give dicts of the same names for "
            "train_indices and test_indices"
        )
    if client_names is not None:
        raise ValueError(
            "client_names: are the keys of train_indices already; leave client_names out"
        )
    different = sorted(map(str, set(train_indices) ^ set(test_indices)))
    if different:
        raise ValueError(
            f"test_indices: {short(different)} are in one of train_indices and "
            "test_indices only; give both the same clients"
        )
    names = list(map(str, train_indices))
    test = [test_indices[name] for name in train_indices]
    return names, list(train_indices.values()), test


def _check_names(client_names: Sequence[str], num_clients: int) -> tuple[str, ...]:
    """Return the names of all clients, or raise a ValueError of one line."""
    names = tuple(client_names)
    for name in names:
        if not isinstance(name, str):
            raise ValueError(
                f"client_names: {short(name)} is not a text; give list(map(str, names))"
            )
    problem = ""
    if len(names) != num_clients:
        problem = f"has {len(names)} names for {num_clients} clients"
    for name, number in Counter(names).items():
        if number > 1:
            problem = f"{name!r} is there twice"
            break
    if problem:
        raise ValueError(
            f"client_names: {problem}; give one for each client of train_indices, each "
            "once"
        )
    return names


def _check_class_names(class_names: Sequence[str], num_classes: int) -> tuple[str, ...]:
    """Return the names of all classes, or raise a ValueError of one line."""
    names = tuple(class_names)
    if len(names) != num_classes or not all(isinstance(name, str) for name in names):
        raise ValueError(
            f"class_names={short(names)}: give a text for each of {num_classes} classes"
        )
    return names


def _inputs(name: str, examples: np.ndarray) -> np.ndarray:
    """Convert examples to their dtype on the device, in which all numbers are finite."""
    if not is_real(examples.dtype) or examples.ndim == 0 or 0 in examples.shape[1:]:
        raise ValueError(
            f"{name}: is {examples.dtype} of shape {examples.shape}; give floats or "
            "integers, one example per row, with at least one number each"
        )
    with np.errstate(over="ignore"):
        dtype = jax.dtypes.canonicalize_dtype(examples.dtype)
        array = examples.astype(dtype, copy=False)
    if jnp.issubdtype(dtype, jnp.floating):
        problem = "not finite as"
        is_lost = ~np.isfinite(array)
    else:
        problem = "too large for"
        is_lost = array != examples
    if is_lost.any():
        place = tuple(np.argwhere(is_lost)[0].tolist())
        remedy = "repair the example, or leave it out"
        if np.isfinite(examples[place]):
            remedy = "repair the example, or turn on jax_enable_x64"
        raise ValueError(
            f"{name}{list(place)}: {examples[place]} is {problem} {array.dtype}; {remedy}"
        )
    return array


def as_array(name: str, value: ArrayLike) -> np.ndarray:
    """Return `value` as a NumPy array in this machine's byte order, or raise a ValueError of one line."""
    if isinstance(value, Mapping):
        raise ValueError(
            f"{name}: is a dict of {short(list(value))}; put its arrays end to end, "
            "np.concatenate(list(d.values())), and give each client the numbers of its "
            "rows"
        )
    rows = value if isinstance(value, list | tuple) else []
    if np.ma.isMaskedArray(value) or any(map(_is_masked, rows)):
        raise ValueError(
            f"{name}: is not a plain array (it has a mask, which would be lost: leave "
            "masked examples out, or fill them); give one with an example per row"
        )
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:  # keys, rows of unequal length
        reason = _ragged(rows) or " ".join(str(error).split())
        raise ValueError(
            f"{name}: is not a plain array ({reason}); give one with an example per row"
        ) from None
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _is_masked(row: Any) -> bool:
    return np.ma.isMaskedArray(row) or row is np.ma.masked


def _ragged(rows: Sequence[Any]) -> str:
    """Name the first row whose length differs from that of row 0, or return ""."""
    lengths = [len(row) if hasattr(row, "__len__") else None for row in rows]
    for i, length in enumerate(lengths):
        if length != lengths[0]:
            return (
                f"row {i} has {_numbers(length)} and row 0 {_numbers(lengths[0])}: pad or "
                "cut them to one length"
            )
    return ""


def _numbers(length: int | None) -> str:
    return "a single value" if length is None else f"length {length}"


def check_labels(
    name: str, value: ArrayLike, inputs_name: str, num_examples: int
) -> np.ndarray:
    """Return (n,) int32 class numbers, or raise a ValueError of one line."""
    labels = as_array(name, value)
    if labels.shape != (num_examples,) or not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(
            f"{name}: is {labels.dtype} of shape {labels.shape}; give one integer class "
            f"number for each of the {num_examples} examples of {inputs_name}, e.g. "
            "y.astype(int), y[:, 0] of a single column, y.argmax(-1) of one-hot rows, or "
            "np.unique(y, return_inverse=True)[1] of names; targets that are no classes need a data "
            "class of your own"
        )
    is_outside = (labels < 0) | (labels >= MAX_CLASSES)
    if is_outside.any():
        first = np.argmax(is_outside)
        raise ValueError(
            f"{name}[{first}]: label {labels[first]} is outside 0..{MAX_CLASSES - 1}; "
            "number the classes from 0"
        )
    return labels.astype(np.int32)


def check_rows(name: str, indices: ArrayLike, num_examples: int) -> np.ndarray:
    """Return the row numbers of one client, or raise a ValueError of one line."""
    rows = as_array(name, indices)
    problem = ""
    if rows.ndim != 1 or (rows.size and not np.issubdtype(rows.dtype, np.integer)):
        problem = f"is {rows.dtype} of shape {rows.shape}"
    else:
        outside = rows[(rows < 0) | (rows >= num_examples)]
        if outside.size:
            problem = f"has index {outside[0]}"
    if problem:
        raise ValueError(
            f"{name}: {problem}; give row numbers in 0..{num_examples - 1} "
            "(np.flatnonzero converts a boolean mask)"
        )
    return rows.astype(np.int32)


def _check_clients(
    name: str, indices: Sequence[ArrayLike], num_examples: int
) -> list[np.ndarray]:
    """Return every client's rows, or raise a ValueError if one is out of range or used twice, or a client has none."""
    clients = []
    for client, rows in enumerate(indices):
        clients.append(check_rows(f"{name}[{client}]", rows, num_examples))
        if not len(clients[-1]):
            raise ValueError(
                f"{name}: client {client} has no {name.removesuffix('_indices')} examples; "
                "give it one or leave it out"
            )
    together = np.concatenate(clients)
    rows, number = np.unique(together, return_counts=True)
    if (number > 1).any():
        example = rows[np.argmax(number > 1)]
        owners = np.repeat(np.arange(len(clients)), list(map(len, clients)))
        first, second, *_ = owners[together == example]
        problem = f"belongs to clients {first} and {second}"
        if first == second:
            problem = f"is listed twice for client {first}"
        raise ValueError(
            f"{name}: example {example} {problem}; give each example to one client, once"
        )
    return clients


def _warn_of_pixels(x: np.ndarray) -> None:
    """Warn of images whose scale depends on their type: floats of 0..255, and uint8 that are no bytes.

    An image has 64 numbers or more; integers other than uint8 count as pixels if an
    example has two axes or more. Tables of fewer columns and tokens pass.
    """
    is_float = jnp.issubdtype(x.dtype, jnp.floating)
    is_pixels = is_float or x.dtype == np.uint8 or x.ndim > 2
    if not is_pixels or x[:1].size < MIN_PIXELS:
        return
    if not 1 < x.max() < 256 or x.min() < 0:
        return
    largest = int(x.max())
    if x.dtype == np.uint8:
        if largest < MAX_DARK:
            warnings.warn(
                "x_train: uint8 inputs are divided by 255, but the largest is "
                f"{largest}, so models get at most {largest / 255:.2g}; give "
                f"scale=1/{largest}, or scale=1/255 if the images are dark (an .npz file "
                "has it as an entry)",
                stacklevel=5,
            )
        return
    for block in np.array_split(x, range(4096, len(x), 4096)):
        if (block != np.rint(block)).any():
            return
    warnings.warn(
        f"x_train: {x.dtype} inputs are whole numbers 0..{largest} and reach models "
        "unchanged, while uint8 pixels are divided by 255; give "
        f"scale=1/{largest if largest < MAX_DARK else 255} for 0..1, or scale=1.0 to keep "
        "them (an .npz file has it as an entry)",
        stacklevel=5,
    )


def _scale_and_offset(
    scale: ArrayLike | None, offset: ArrayLike | None, inputs: np.ndarray
) -> tuple[jax.Array, jax.Array] | tuple[None, None]:
    """Return scale and offset in the dtype of the model's input, or twice None for unchanged inputs."""
    if scale is None and offset is None:
        return None, None
    dtype = inputs.dtype
    if not jnp.issubdtype(dtype, jnp.floating):
        dtype = jnp.result_type(float)
    factor = _per_example("scale", 1.0 if scale is None else scale, dtype, inputs)
    shift = _per_example("offset", 0.0 if offset is None else offset, dtype, inputs)
    return _on_device(factor), _on_device(shift)


def _per_example(
    name: str, value: ArrayLike, dtype: Any, inputs: np.ndarray
) -> np.ndarray:
    """Return numbers in a dtype that broadcast over an example; a scale is not 0."""
    array = as_array(name, value)
    shape = inputs.shape[1:]
    is_valid = is_real(array.dtype)
    if is_valid:
        try:
            is_valid = np.broadcast_shapes(array.shape, shape) == shape
        except ValueError:
            is_valid = False
        with np.errstate(over="ignore", under="ignore"):
            array = array.astype(dtype)
        is_valid &= bool(np.isfinite(array).all() and (name != "scale" or array.all()))
    if not is_valid:
        condition = ", not 0," if name == "scale" else ""
        raise ValueError(
            f"{name}={short(value)}: must be finite as {np.dtype(dtype)}{condition} and "
            f"broadcast over examples of shape {shape}; give one number, or one per "
            "channel"
        )
    return array


def _on_device(array: np.ndarray) -> jax.Array:
    """Copy an array to the device; `jnp.array` would compile a program for each shape."""
    # a device that shares the host's memory may keep what it is given
    return jax.device_put(np.array(array, jax.dtypes.canonicalize_dtype(array.dtype)))


def pad(clients: list[np.ndarray]) -> tuple[jax.Array, jax.Array]:
    """Stack rows of clients: (M, longest) indices, padded with the valid row 0, and (M,) lengths."""
    counts = np.array([len(rows) for rows in clients], dtype=np.int32)
    padded = np.zeros((len(clients), counts.max()), dtype=np.int32)
    padded[np.arange(padded.shape[1]) < counts[:, None]] = np.concatenate(clients)
    return _on_device(padded), _on_device(counts)
