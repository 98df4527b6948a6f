"""Dependence: the inputs that a traced function reads for each of its outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
from jax.extend.core import Jaxpr
from jax.interpreters.partial_eval import dce_jaxpr

from fedjax_srp.base import PyTree


class Dependence(NamedTuple):
    """A traced function, and the shapes of its result."""

    program: Jaxpr
    result: PyTree

    def reads(self, output: int) -> frozenset[int]:
        """Return the inputs of a leaf of the result, as positions among the leaves of the arguments.

        An input that is read may cancel; one that is not has no effect.
        """
        is_wanted = [output == each for each in range(len(self.program.outvars))]
        _, is_read = dce_jaxpr(self.program, is_wanted)
        return frozenset(i for i, read in enumerate(is_read) if read)


def dependence(function: Callable[..., PyTree], *args: PyTree) -> Dependence:
    """Trace a function."""
    traced, result = jax.make_jaxpr(function, return_shape=True)(*args)
    return Dependence(traced.jaxpr, result)
