"""APFL: every client mixes its own model with the global one."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from typing_extensions import override

from fedjax_srp.algorithms.examples import GlobalModel
from fedjax_srp.algorithms.fedavg import FedAvgServerState
from fedjax_srp.algorithms.local import dtype_of
from fedjax_srp.base import (
    Array,
    ClientOutput,
    Examples,
    Key,
    RoundContext,
    evaluation,
)
from fedjax_srp.models.split import SplitParams
from fedjax_srp.parts.part import Share, part


class APFLClientState(NamedTuple):
    """The client's own model v_i, and its share alpha_i of the mixture."""

    own: SplitParams
    alpha: Array  # () float in [0, 1]


class APFLParts(NamedTuple):
    """Trained parameters: the copy w_i of the global model, v_i, alpha_i if adaptive."""

    shared: SplitParams
    own: SplitParams
    alpha: Array | None


def mixture(alpha: Array, own: SplitParams, shared: SplitParams) -> SplitParams:
    """alpha v + (1 - alpha) w, in the parameters."""
    return jax.tree.map(
        lambda v, w: alpha.astype(v.dtype) * v + (1 - alpha).astype(v.dtype) * w,
        own,
        shared,
    )


def clip_alpha(parts: APFLParts) -> APFLParts:
    """Clip alpha_i to [0, 1]."""
    if parts.alpha is None:
        return parts
    return parts._replace(alpha=jnp.clip(parts.alpha, 0, 1))


@part
class APFL(GlobalModel):
    """APFL (Deng et al., 2020, Algorithm 1): a global model by FedAvg, and personal
    mixtures with it.

    The global model is that of `FedAvg`, whatever the share alpha. In addition every
    client keeps a model v_i, trained step by step on the loss of the mixture alpha_i v_i
    + (1 - alpha_i) w_i, where w_i is its copy of the global model; alpha = 1 trains v_i
    on the client alone. Only w_i is sent. A participant takes two gradients a step.

    FedRep's authors fix alpha, as is the default here. If adaptive, alpha_i descends the
    same loss, in every step and with the same optimizer (the code of APFL's authors: in
    the first batch of a round), and is clipped to [0, 1]; its mean over the participants
    is recorded as `own_share`. It may end at 1, where every client trains alone. FedRep's
    code mixes alpha v_i + alpha w_i in training, and shares one momentum between the
    steps of both models; this implementation does neither.

    Evaluations: `own_model` (the default), the mixture of the client's v_i, as it last
    left it, with the global model; `global`, `fine_tune` (its head) and `fine_tune_all`,
    as in `FedAvg`.

    Args:
        training: of both models and the share.
        own_share: alpha, share of the client's own model, in [0, 1], or its initial value
            if adaptive; 0.75 in the code of FedRep's authors.
        adaptive: every client learns its share.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.MLP((8, 8), num_classes=10, hidden=(32,))
        >>> srp.algorithms.APFL(model, own_share=0.5, adaptive=True).name
        'apfl'
    """

    supports_batch_norm: ClassVar[bool] = False

    own_share: Share = 0.75
    adaptive: bool = False

    @override
    def init_client(
        self, key: Key, server: FedAvgServerState, examples: Examples
    ) -> APFLClientState:
        alpha = jnp.asarray(self.own_share, dtype_of(server.params))
        return APFLClientState(server.params, alpha)

    def both_losses(
        self, parts: APFLParts, fixed: Array, x: Array, y: Array, key: Key | None
    ) -> Array:
        """The losses of w_i and of the mixture, summed for each example, (batch,)."""
        # Their gradients: grad f_i(w_i) for w_i, alpha grad f_i(mixture) for v_i, and
        # <v_i - w_i, grad f_i(mixture)> for alpha_i
        alpha = parts.alpha
        if alpha is None:
            alpha = fixed
        mixed = mixture(alpha, parts.own, jax.lax.stop_gradient(parts.shared))
        return self.loss(parts.shared, (), x, y, key) + self.loss(mixed, (), x, y, key)

    @override
    def client(
        self,
        key: Key,
        params: SplitParams,
        state: APFLClientState,
        examples: Examples,
        context: RoundContext,
    ):
        # (w_i, v_i, alpha_i) <- local SGD on both losses, from (w, v_i, alpha_i)
        start = APFLParts(params, state.own, None)
        if self.adaptive:
            start = start._replace(alpha=state.alpha)
        local = self.local_sgd(
            key,
            start,
            examples,
            context,
            loss=self.both_losses,
            frozen=state.alpha,
            after_step=clip_alpha,
        )
        shared, own, alpha = local.params
        if alpha is None:
            alpha = state.alpha
        return ClientOutput(
            message=shared,
            state=APFLClientState(own, alpha),
            weight=self.training.weight(examples),
            info={"own_share": alpha},
            loss=local.loss,
        )

    @evaluation
    def own_model(
        self,
        key: Key,
        server: FedAvgServerState,
        state: APFLClientState,
        examples: Examples,
    ):
        """The mixture of the client's own model, as it last left it, and the global one
        with the client's share.
        """
        params = mixture(state.alpha, state.own, server.params)
        return Partial(self.model.logits, params)
