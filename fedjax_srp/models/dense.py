"""Dense layers whose weights are changed in one pass where steps are small.

The gradient of a weight matrix (inputs, features) over a batch of b examples is a sum of b outer products. As a product
of matrices XLA writes it to memory and reads it again for the step; as a sum of outer products it becomes a part of the
step's own loop over the weights. On a CPU that pays for matrices beyond the reach of the first caches and for few
examples (docs/performance.md).
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from fedjax_srp.backend import platform
from fedjax_srp.base import Array

MOST_EXAMPLES = 10  # with 16 the product of matrices is faster
LEAST_BYTES = 2**20


class Dense(nn.Dense):
    """A dense layer that takes examples of any shape."""

    dot_general: Any = lambda x, kernel, *_, **__: product(x, kernel)  # flax asks for dimensions and precision too

    def __call__(self, inputs: Array) -> Array:
        """(batch, ...) -> (batch, features)."""
        return super().__call__(inputs.reshape(inputs.shape[0], -1))


def product(x: Array, kernel: Array) -> Array:
    """The product of matrices, with the faster of two ways to its gradient.

    Args:
        x: (batch, inputs).
        kernel: (inputs, features).

    Returns:
        (batch, features).
    """
    is_large = kernel.size * kernel.dtype.itemsize >= LEAST_BYTES
    return _by_examples(x, kernel) if platform() == "cpu" and is_large and len(x) <= MOST_EXAMPLES else x @ kernel


@jax.custom_jvp
def _by_examples(x: Array, kernel: Array) -> Array:
    return x @ kernel


def _by_examples_jvp(primals: tuple[Array, Array], tangents: tuple[Any, Any]) -> tuple[Array, Array]:
    """Linear in each kernel entry: what JAX transposes to a sum of outer products."""
    (x, kernel), (x_dot, kernel_dot) = primals, tangents
    out = x @ kernel
    out_dot = jnp.zeros_like(out)
    if not isinstance(kernel_dot, SymbolicZero):
        out_dot += jnp.stack([(row[:, None] * kernel_dot).sum(axis=0) for row in x])
    if not isinstance(x_dot, SymbolicZero):
        out_dot += x_dot @ kernel
    return out, out_dot


_by_examples.defjvp(_by_examples_jvp, symbolic_zeros=True)
