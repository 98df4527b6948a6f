"""`FederatedData`: flat arrays of examples, and each client's indices into them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fedjax_srp.base import Array, Examples, Predict


def register(cls: type[Any], *static: str) -> None:
    """Register a dataclass of data as a pytree: `static` fields are not leaves, transformations drop `options`."""
    leaves = [field.name for field in dataclasses.fields(cls) if field.name not in (*static, "options")]
    jax.tree_util.register_dataclass(cls, leaves, list(static), drop_fields=["options"])


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class FederatedData:
    """Labelled examples of all clients, a pytree to pass to jitted functions.

    Flat arrays hold each example once; a client is a row of indices into them. Rows of unequal clients are padded: from
    `train_counts[i]` on, row i of `train_indices` holds valid but meaningless indices. Images may stay uint8 on the
    device: a model gets `x.astype(float) * scale + offset`, computed when examples are gathered.

    Build it with `from_arrays` or `load`, which check their arguments; the class does not.

    Attributes:
        x_train: (n_train, ...) inputs.
        y_train: (n_train,) int32 class numbers.
        x_test: (n_test, ...) inputs.
        y_test: (n_test,) int32.
        train_indices: (num_clients, max_train) int32, rows of `x_train`.
        train_counts: (num_clients,) int32, at least 1.
        test_indices: (num_clients, max_test) int32, rows of `x_test`.
        test_counts: (num_clients,) int32, at least 1, or 0 for a client without held-out examples (`holdout`).
        scale: () float or an array that broadcasts over an example (one factor per channel); None leaves inputs
            unchanged (tokens stay integers).
        offset: like `scale`; None if `scale` is.
        name: of the data set in results.
        num_classes: labels are 0..num_classes-1.
        options: arguments of `load`, for the record of a run; None if unknown. Transformations drop them.
    """

    x_train: Array
    y_train: Array
    x_test: Array
    y_test: Array
    train_indices: Array
    train_counts: Array
    test_indices: Array
    test_counts: Array
    scale: Array | None
    offset: Array | None
    name: str
    num_classes: int
    options: Mapping[str, Any] | None = None

    @property
    def num_clients(self) -> int:
        """Number of clients."""
        return self.train_indices.shape[0]

    @property
    def example_shape(self) -> tuple[int, ...]:
        """Shape of one input, without the batch axis."""
        return self.x_train.shape[1:]

    @property
    def test_count(self) -> np.ndarray:
        """Numbers of test examples, (num_clients,) on the host: the weights of an average over clients."""
        return np.asarray(self.test_counts)

    def train_client(self, client_id: Array) -> Examples:
        """Return the training examples of a client, whose id () int32 may be traced; rows >= `count` are padding."""
        return self._gather(self.x_train, self.y_train, self.train_indices, self.train_counts, client_id)

    def test_client(self, client_id: Array) -> Examples:
        """Return the test examples of a client."""
        return self._gather(self.x_test, self.y_test, self.test_indices, self.test_counts, client_id)

    def score(self, predict: Predict, test: Examples) -> tuple[Array, Array]:
        """Return the numbers of correct predictions and of test examples of a client, both () float.

        The prediction is the class of the largest output, of (max_test, num_classes). Outputs with a nan are always
        wrong (argmax would return the class of the nan).
        """
        outputs = predict(test.x)
        if outputs.ndim != 2 or outputs.shape[0] != test.y.shape[0] or outputs.shape[1] < self.num_classes:
            raise ValueError(
                f"predict returned outputs of shape {outputs.shape} for {test.y.shape[0]} examples of "
                f"{self.num_classes} classes; return one row per example and one column per class"
            )
        is_correct = (jnp.argmax(outputs, axis=-1).astype(test.y.dtype) == test.y) & ~jnp.isnan(outputs).any(axis=-1)
        is_real = jnp.arange(test.y.shape[0], dtype=test.count.dtype) < test.count
        dtype = jnp.result_type(float)
        return jnp.sum(is_correct & is_real, dtype=dtype), test.count.astype(dtype)

    def _gather(self, x: Array, y: Array, indices: Array, counts: Array, client_id: Array) -> Examples:
        rows = _take(indices, client_id)  # (max_examples,)
        return Examples(self.model_input(_take(x, rows)), _take(y, rows), _take(counts, client_id))

    def stored(self) -> FederatedData:
        """Return the data without scale and offset, so that uint8 images stay uint8."""
        return dataclasses.replace(self, scale=None, offset=None)

    def model_input(self, x: Array) -> Array:
        """Apply scale and offset to stored inputs (rows, ...)."""
        if self.scale is None or self.offset is None:
            return x
        x = x.astype(self.scale.dtype)
        return x * jnp.broadcast_to(self.scale, x.shape) + jnp.broadcast_to(self.offset, x.shape)

    def __repr__(self) -> str:
        if not all(hasattr(leaf, "shape") for leaf in jax.tree.leaves(self)):  # a tree of axes or shardings
            return f"FederatedData({self.name!r}, {jax.tree.leaves(self)})"
        parts = [
            f"{self.name!r}",
            f"{self.num_clients} clients",
            f"{self.num_classes} classes",
            f"inputs {self.example_shape} {self.x_train.dtype}",
            f"train examples {_summary(self.train_counts)}",
            f"test examples {_summary(self.test_counts)}",
        ]
        return f"FederatedData({', '.join(parts)})"


register(FederatedData, "name", "num_classes")


def _take(array: Array, ids: Array) -> Array:
    """Gather rows by ids that are not negative; an id past the end (padding of a chunk) reads the last row."""
    return array.at[ids].get(mode="clip", wrap_negative_indices=False)


def _summary(counts: Array) -> str:
    """Describe the examples per client by min/median/max, unknown while tracing."""
    if not isinstance(counts, jax.Array | np.ndarray) or isinstance(counts, Tracer):
        return "per client unknown"
    counts_host = np.asarray(counts)
    return f"per client {counts_host.min()}/{np.median(counts_host):g}/{counts_host.max()} (min/median/max)"
