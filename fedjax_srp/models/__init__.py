"""Models, each split at a named layer into a representation and a head."""

from .mlp import mlp
from .split import Layer, SplitModel, SplitParams, cross_entropy, split

__all__ = ["Layer", "SplitModel", "SplitParams", "cross_entropy", "mlp", "split"]
