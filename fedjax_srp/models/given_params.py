"""Flax modules that take the parameters they are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
from typing_extensions import override


class GivenParams(nn.Module):
    """A module that takes given parameters as they are.

    Other modules of flax trace the initializer of every parameter in every call, to compare shapes.
    """

    @nn.nowrap
    @override
    def param(
        self, name: str, init_fn: Callable[..., Any], *init_args: Any, **options: Any
    ) -> Any:
        """The given parameter, else an initial one."""
        if self.has_variable("params", name):
            return nn.meta.unbox(self.get_variable("params", name))
        return super().param(name, init_fn, *init_args, **options)
