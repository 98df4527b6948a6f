"""FedPer: a shared representation and a personal head, trained together."""

from __future__ import annotations

import jax.numpy as jnp
from typing_extensions import override

from fedjax_srp.algorithms.fedrep import FedRepClientState, PersonalHead
from fedjax_srp.base import (
    ClientOutput,
    Examples,
    Key,
    PyTree,
    RoundContext,
    Uncharged,
)
from fedjax_srp.models.split import SplitParams
from fedjax_srp.parts.part import part


@part
class FedPer(PersonalHead):
    """FedPer (Arivazhagan et al., 2019, Algorithms 1 and 2): the representation below the
    model's cut (the base layers) is shared, the head above it (the personalization
    layers) is personal.

    FedRep with joint steps: every local step moves both head and representation, from the
    same point. The rest is as in `FedRep`, including the evaluations: `fine_tune` (the
    default), the last round's mean head trained on the client for `fine_tune_epochs`
    under the current representation; `own_head`, the client's head as it last left it (as
    in the FedPer and FedRep papers); `own_or_mean_head`, the same with the mean head for
    clients that have never taken part.

    Args:
        model: cut at the first personal layer.
        training: of both parts; step size 0.01 in FedRep's appendix. Weighting is
            "num_examples" in the FedPer paper and in FedRep's code.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.MLP((8, 8), num_classes=10, hidden=(32,))
        >>> list(srp.algorithms.FedPer(model).evaluations)
        ['fine_tune', 'own_head', 'own_or_mean_head']
    """

    @override
    def client(
        self,
        key: Key,
        representation: PyTree,
        state: FedRepClientState,
        examples: Examples,
        context: RoundContext,
    ) -> ClientOutput:
        # (phi_i, h_i) <- local SGD on f_i(h_i, phi_i), from (phi, h_i)
        start = SplitParams(representation, state.head)
        local = self.local_sgd(key, start, examples, context)
        representation, head = local.params
        return ClientOutput(
            message=SplitParams(representation, Uncharged(head)),
            state=FedRepClientState(head, jnp.bool_(True)),
            weight=self.training.weight(examples),
            loss=local.loss,
        )
