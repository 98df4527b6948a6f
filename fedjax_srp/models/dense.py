"""A dense layer, and its training in the span of a client's examples where it is a model's first.

SGD moves the kernel W of a first dense layer by X^T S: X (examples, inputs) are the client's examples, S (examples,
outputs) slopes of the loss at the layer's outputs. From W0 on, W is therefore c W0 + X^T R with a number c and R
(examples, outputs); momentum and weight decay are linear and change c and R alone. The layer's outputs are
c X W0 + (X X^T) R, so that once X W0 and X X^T are known no step touches an array as large as W. This is exact up to
rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jax.tree_util import DictKey

from fedjax_srp.base import Array, Examples, PyTree


@struct.dataclass
class Kernel:
    """c W0 + X^T R in the place of a kernel.

    Attributes:
        scale: (1, 1) c; of rank 2 as any kernel, since weight decay spares what is of rank 1.
        rows: (examples, outputs) R.
        moved: (examples, outputs) R too, in objectives whose gradient is taken with respect to it.
    """

    scale: Array
    rows: Array
    moved: Array | None = None


@struct.dataclass
class Inputs:
    """Examples as a first layer in their span needs them.

    Attributes:
        start: (batch, outputs) X W0 of these examples.
        gram: (batch, examples) their products with all of the client's examples.
        place: (batch,) int32, which of the client's examples they are.
    """

    start: Array
    gram: Array
    place: Array

    def __getitem__(self, rows: Array) -> Inputs:
        """Some of the examples."""
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
        if kernel.moved is not None:  # adds zero, whose cotangent is the slopes
            out += kernel.moved[inputs.place] - kernel.rows[inputs.place]
        return out + params["bias"][None] if self.use_bias else out

    @property
    def is_plain(self) -> bool:
        """True if it computes in the type of its parameters and inputs, as `jnp.matmul` does."""
        return not (self.dtype or self.precision or self.dot_general or self.dot_general_cls)


def _is_kernel(node: Any) -> bool:
    return isinstance(node, Kernel)


def _is_in(layer: str, path: Any) -> bool:
    return tuple(key for key in path if isinstance(key, DictKey)) == (DictKey(layer), DictKey("kernel"))


def kernel_of(layer: str, params: PyTree) -> Array | None:
    """The kernel of the named layer, (inputs, outputs); None if it is not among the parameters."""
    found = [leaf for path, leaf in jax.tree.leaves_with_path(params) if _is_in(layer, path)]
    return found[0] if found else None


def _rows(examples: Examples) -> Array:
    """(examples, inputs), zero for padding, which may hold anything."""
    valid = jnp.arange(examples.y.shape[0], dtype=jnp.int32) < examples.count
    return jnp.where(valid[:, None], examples.x.reshape(examples.y.shape[0], -1), 0)


def into_span(layer: str, params: PyTree, kernel: Array, examples: Examples) -> tuple[PyTree, Examples]:
    """Parameters with a `Kernel` for the named layer's, and examples with `Inputs`."""
    x = _rows(examples)
    within = Kernel(jnp.ones((1, 1), kernel.dtype), jnp.zeros((x.shape[0], kernel.shape[1]), kernel.dtype))
    # Padding is in the start, where nothing reads it, as in features: XLA computes X W0 once for both.
    start = examples.x.reshape(x.shape[0], -1) @ kernel
    inputs: Any = Inputs(start, x @ x.T, jnp.arange(x.shape[0], dtype=jnp.int32))
    params = jax.tree.map_with_path(lambda path, leaf: within if _is_in(layer, path) else leaf, params)
    return params, examples._replace(x=inputs)


def out_of_span(tree: PyTree, kernel: Array, examples: Examples) -> PyTree:
    """Parameters, or an optimizer's state, with the numbers that each `Kernel` stands for."""
    x = _rows(examples)
    of = lambda node: node.scale * kernel + x.T @ node.rows if _is_kernel(node) else node  # noqa: E731
    return jax.tree.map(of, tree, is_leaf=_is_kernel)


def gradient_in_span(objective: Callable[[PyTree, Array], Array], params: PyTree, weights: Array) -> PyTree:
    """The direction of ascent that is the gradient's in W: zero for c, the slopes for R."""

    def of_moved(moved: PyTree) -> Array:
        marked = lambda new, old: old.replace(moved=new.rows) if _is_kernel(old) else new  # noqa: E731
        return objective(jax.tree.map(marked, moved, params, is_leaf=_is_kernel), weights)

    return jax.grad(of_moved)(params)
