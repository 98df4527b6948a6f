"""FedRolex: weak clients train a window of units that moves from round to round."""

from __future__ import annotations

from typing_extensions import override

from fedjax_srp.algorithms._submodels import SubmodelAlgorithm
from fedjax_srp.base import Array, RoundContext
from fedjax_srp.parts.part import part


@part
class FedRolex(SubmodelAlgorithm):
    """FedRolex (Alam, Liu, Yan and Zhang, 2022, Algorithm 1): submodels are a rolling
    window of units.

    As `HeteroFL`, but the window of round t starts at unit t, modulo the width of the
    layer, so that all units are trained even if no client can train the whole model. As
    in the authors' code, outputs of units are scaled by 1 / r in training.

    Evaluations, all of the whole model: `global` (the default), `fine_tune`,
    `fine_tune_all`.

    Args:
        rates: of a client with 1, 2, ... units of work, the paper's five levels.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.MLP((8, 8), num_classes=10, hidden=(32,))
        >>> srp.algorithms.FedRolex(model, rates=(0.5,)).name
        'fedrolex'
    """

    @override
    def first_unit(self, context: RoundContext) -> Array:
        # S_t = {t, t + 1, ..., t + ceil(r K) - 1} mod K
        return context.round
