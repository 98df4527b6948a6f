"""`FederatedData`: flat arrays of examples, and each client's indices into them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fedjax_srp.base import Array, Examples, Predict
from fedjax_srp.parts.pytrees import register, take

STATIC = ("name", "num_classes")


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class FederatedData:
    """Labelled examples of all clients, a pytree to pass to jitted functions.

    Flat arrays hold each example once; a client is a row of indices into them. Rows of
    unequal clients are padded: from `train_counts[i]` on, row i of `train_indices` holds
    valid but meaningless indices. Images may stay uint8 on the device: a model gets
    `x.astype(float) * scale + offset`, computed when examples are gathered.

    Build it with `from_arrays` or `load`, which check their arguments; the class does
    not. A subclass may override `score` and declare `score_name` and `smaller_is_better`.
    It adds no fields, and is registered with JAX here.

    Attributes:
        x_train: (n_train, ...) inputs.
        y_train: (n_train,) int32 class numbers.
        x_test: (n_test, ...) inputs.
        y_test: (n_test,) int32.
        train_indices: (num_clients, max_train) int32, rows of `x_train`.
        train_counts: (num_clients,) int32, at least 1.
        test_indices: (num_clients, max_test) int32, rows of `x_test`.
        test_counts: (num_clients,) int32, at least 1, or 0 for a client without held-out
            examples (`holdout`).
        scale: () float or an array that broadcasts over an example (one factor per
            channel); None leaves inputs unchanged (tokens stay integers).
        offset: like `scale`; None if `scale` is.
        name: of the data set in results.
        num_classes: labels are 0..num_classes-1.
        options: arguments of `load`, for the record of a run; None if unknown.
            Transformations drop them.
        client_names: the user of each client, as text, where the clients are users of the
            data set; else None. Transformations drop them.
        class_names: the label of class 0, 1, ... in the file, as text, where a reader
            numbered the labels; else None. Transformations drop them.
    """

    remedy: ClassVar[str] = "give srp.data.load(name, ...), or srp.data.from_arrays(...)"

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
    client_names: tuple[str, ...] | None = None
    class_names: tuple[str, ...] | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        register(cls, *STATIC)

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
        """Return the training examples of a client, whose id () int32 may be traced.

        Rows >= `count` are padding.
        """
        return self._gather(
            self.x_train, self.y_train, self.train_indices, self.train_counts, client_id
        )

    def test_client(self, client_id: Array) -> Examples:
        """Return the test examples of a client."""
        return self._gather(
            self.x_test, self.y_test, self.test_indices, self.test_counts, client_id
        )

    def score(self, predict: Predict, test: Examples) -> tuple[Array, Array]:
        """Return the numbers of correct predictions and of labels of a client, both () float.

        The prediction is the class of the largest output, of (..., num_classes). Outputs
        with a nan are always wrong (argmax would return the class of the nan).
        """
        outputs = predict(test.x)
        if outputs.shape[:-1] != test.y.shape or outputs.shape[-1] < self.num_classes:
            raise ValueError(
                f"predict returned outputs of shape {outputs.shape} for labels of shape "
                f"{test.y.shape} and {self.num_classes} classes; return one row per "
                "label and one column per class"
            )
        is_equal = jnp.argmax(outputs, axis=-1).astype(test.y.dtype) == test.y
        is_correct = is_equal & ~jnp.isnan(outputs).any(axis=-1)
        is_label = self._is_label(test)
        return jnp.sum(is_correct & is_label, dtype=float), jnp.sum(is_label, dtype=float)

    def _is_label(self, test: Examples) -> Array:
        """Return False for the labels of padding."""
        return test.valid

    def _gather(
        self, x: Array, y: Array, indices: Array, counts: Array, client_id: Array
    ) -> Examples:
        rows = take(indices, client_id)  # (max_examples,)
        return Examples(
            self.model_input(take(x, rows)), take(y, rows), take(counts, client_id)
        )

    def stored(self) -> FederatedData:
        """Return the data without scale and offset, so that uint8 images stay uint8."""
        return dataclasses.replace(self, scale=None, offset=None)

    def model_input(self, x: Array) -> Array:
        """Apply scale and offset to stored inputs (rows, ...)."""
        if self.scale is None or self.offset is None:
            return x
        x = x.astype(self.scale.dtype)
        scale = jnp.broadcast_to(self.scale, x.shape)
        return x * scale + jnp.broadcast_to(self.offset, x.shape)

    def __repr__(self) -> str:
        leaves = jax.tree.leaves(self)
        for leaf in leaves:  # while tracing; a tree of axes or shardings
            if isinstance(leaf, Tracer) or not isinstance(leaf, np.ndarray | jax.Array):
                return f"FederatedData({self.name!r}, {leaves})"
        return (
            f"FederatedData({self.name!r}, {self.num_clients} clients, "
            f"{self.num_classes} classes, inputs {self.example_shape} "
            f"{self.x_train.dtype}, train examples {_summary(self.train_counts)}, test "
            f"examples {_summary(self.test_counts)})"
        )


register(FederatedData, *STATIC)


def _summary(counts: Array) -> str:
    """Describe the examples per client."""
    numbers = f"{np.min(counts)}/{np.median(counts):g}/{np.max(counts)}"
    return f"per client {numbers} (min/median/max)"
