"""A dense layer, and training of a model's first dense layer in the span of a client's examples.

SGD moves the kernel W of a first dense layer by X^T S: X (examples, inputs) are the client's
examples, S (examples, outputs) the gradient of the loss at the layer's outputs. Starting from W0, W
is therefore c W0 + X^T R with a number c and R (examples, outputs); momentum and weight decay are
linear and change only c and R. The layer's outputs are c X W0 + (X X^T) R, so once X W0 and X X^T
are known no step touches an array as large as W. This is exact up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax.tree_util import DictKey

from fedjax_srp.base import Array, Examples, PyTree


@struct.dataclass
class Kernel:
    """Kernel c W0 + X^T R, represented by c and R.

    Attributes:
        scale: (1, 1) c; of rank 2 like any kernel, since weight decay skips arrays of rank 1.
        rows: (examples, outputs) R; in gradients and updates (batch, outputs), the rows of the
            batch's examples.
        moved: (batch, outputs) zeros that are added to the outputs, the variable of
            `gradient_in_span`; None elsewhere.
    """

    scale: Array
    rows: Array
    moved: Array | None = None


@struct.dataclass
class Inputs:
    """Inputs of a first layer whose kernel is a `Kernel`.

    Attributes:
        start: (batch, outputs) X W0 of these examples.
        gram: (batch, examples) inner products with all of the client's examples.
    """

    start: Array
    gram: Array

    def __getitem__(self, rows: Array) -> Inputs:
        """The inputs of some examples."""
        return jax.tree.map(lambda leaf: leaf[rows], self)


class Dense(nn.Dense):
    """A dense layer that takes examples of any shape."""

    def __call__(self, inputs: Array | Inputs) -> Array:  # type: ignore[override]
        """(batch, ...) -> (batch, features)."""
        if not isinstance(inputs, Inputs):
            return super().__call__(inputs.reshape(inputs.shape[0], -1))
        params = self.variables["params"]
        kernel = params["kernel"]
        out = kernel.scale * inputs.start + inputs.gram @ kernel.rows
        if kernel.moved is not None:  # its gradient is that of the outputs
            out += kernel.moved
        if not self.use_bias:
            return out
        return out + params["bias"][None]

    @property
    def is_plain(self) -> bool:
        """True if it computes in the dtype of its parameters and inputs, as `jnp.matmul` does."""
        return not (
            self.dtype or self.precision or self.dot_general or self.dot_general_cls
        )


def _is_kernel(node: Any) -> bool:
    return isinstance(node, Kernel)


def _is_kernel_path(layer: str, path: Any) -> bool:
    names = [key.key for key in path if isinstance(key, DictKey)]
    return names == [layer, "kernel"]


def kernel_of(layer: str, params: PyTree) -> Array | None:
    """Return the kernel of a layer, (inputs, outputs); None if it is not among the parameters."""
    for path, leaf in jax.tree.leaves_with_path(params):
        if _is_kernel_path(layer, path):
            return leaf
    return None


def _rows(examples: Examples) -> Array:
    """X (examples, inputs), with zeros for padding, which may hold any values."""
    return jnp.where(
        examples.valid[:, None], examples.x.reshape(examples.y.shape[0], -1), 0
    )


def into_span(
    layer: str, params: PyTree, kernel: Array, examples: Examples
) -> tuple[PyTree, Examples]:
    """Return the parameters with a `Kernel` in the named layer, and the examples with `Inputs`."""
    x = _rows(examples)
    in_span = Kernel(
        scale=jnp.ones((1, 1), kernel.dtype),
        rows=jnp.zeros((x.shape[0], kernel.shape[1]), kernel.dtype),
    )
    # Nothing reads the padding in X W0, so it is not zeroed: XLA computes X W0 once for this and
    # for FedRep's features.
    start = examples.x.reshape(x.shape[0], -1) @ kernel
    inputs: Any = Inputs(start, gram=x @ x.T)

    def replaced(path: Any, leaf: Array) -> Any:
        return in_span if _is_kernel_path(layer, path) else leaf

    params = jax.tree.map_with_path(replaced, params)
    return params, examples._replace(x=inputs)


def out_of_span(tree: PyTree, kernel: Array, examples: Examples) -> PyTree:
    """Return parameters, or an optimizer's state, with an array for each `Kernel`."""
    x = _rows(examples)

    def as_array(node: Any) -> Array:
        if not _is_kernel(node):
            return node
        return node.scale * kernel + x.T @ node.rows

    return jax.tree.map(as_array, tree, is_leaf=_is_kernel)


def gradient_in_span(
    objective: Callable[[PyTree, Array], Array], params: PyTree, weights: Array
) -> PyTree:
    """Return the direction in c and R that moves W along its gradient.

    It is zero for c, and the gradient at the outputs for R.

    A `Kernel` of it has the rows of the batch alone; `of_all_rows` and `apply_updates` know the
    others.
    """

    def at_rest(node: Any) -> Any:
        if not _is_kernel(node):
            return node
        return node.replace(
            rows=jnp.zeros((*weights.shape, node.rows.shape[1]), node.rows.dtype)
        )

    def with_moved(new: Any, old: Any) -> Any:
        if not _is_kernel(old):
            return new
        return old.replace(moved=new.rows)

    def objective_of_moved(moved: PyTree) -> Array:
        return objective(
            jax.tree.map(with_moved, moved, params, is_leaf=_is_kernel), weights
        )

    variables = jax.tree.map(at_rest, params, is_leaf=_is_kernel)
    return jax.grad(objective_of_moved)(variables)


def of_all_rows(direction: PyTree, params: PyTree, index: Array) -> PyTree:
    """Add the other rows of R, zeros, to the direction for the examples at `index` (batch,)."""

    def of_kernel(new: Any, old: Any) -> Any:
        if not _is_kernel(old):
            return new
        return new.replace(rows=jnp.zeros_like(old.rows).at[index].add(new.rows))

    return jax.tree.map(of_kernel, direction, params, is_leaf=_is_kernel)


def apply_updates(params: PyTree, updates: PyTree, index: Array) -> PyTree:
    """Apply updates with the rows at `index` (batch,); no other row of R is read or written."""

    def of_kernel(old: Any, new: Any) -> Any:
        if not _is_kernel(old):
            return optax.apply_updates(old, new)
        rows = old.rows.at[index].add(new.rows.astype(old.rows.dtype))
        return old.replace(scale=optax.apply_updates(old.scale, new.scale), rows=rows)

    return jax.tree.map(of_kernel, params, updates, is_leaf=_is_kernel)
