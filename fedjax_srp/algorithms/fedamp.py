"""FedAMP: every client has its own model, drawn towards a mixture of similar models."""

from __future__ import annotations

from typing import Annotated

import jax
import jax.numpy as jnp
from typing_extensions import override

from fedjax_srp.algorithms.examples import (
    GlobalModel,
    OwnModel,
    OwnModelState,
    Penalty,
)
from fedjax_srp.algorithms.fedprox import proximal_gradient
from fedjax_srp.algorithms.local import square_norm
from fedjax_srp.base import (
    Array,
    ClientOutput,
    Examples,
    Exchange,
    Key,
    Participants,
    Phase,
    RoundContext,
    nothing,
)
from fedjax_srp.models.normalization import without_statistics
from fedjax_srp.models.split import SplitParams
from fedjax_srp.parts.part import Above, part


@part
class FedAMP(OwnModel):
    """FedAMP (Huang et al., 2021, Algorithm 1), with the attention A(x) = 1 - exp(-x /
    sigma) of the paper: every part of the model is personal, and a client downloads a
    mixture u_i of the participants' models.

    u_i = w_i + sum_j xi_ij (w_j - w_i) with `xi_ij = alpha A'(|w_i - w_j|^2)`: near
    models count more. Statistics of BatchNorm have no part in the distances, as in
    PFLlib. A participant descends `f_i(w_i) + lambda / (2 alpha) |w_i - u_i|^2`, from its
    own w_i as in PFLlib, whose penalty is a distance without the square. Under full
    participation the mixture is the paper's; otherwise it has only the last models of the
    participants. HeurFedAMP of the same paper has another attention.

    A mixture adds one model after the other; every device holds the models of all
    participants. Without a penalty this is `LocalOnly` (except for the bytes); a lone
    participant stays near its own last model.

    Evaluations: `own_model` (the default), the client's model as it last left it;
    `fine_tune`, its head trained further. The server's state is the mean of the last
    participants' models, which no client downloads.

    Args:
        training: of the clients; its weighting is that of the mean, which has no effect
            on the clients.
        penalty: lambda; 1 in PFLlib.
        attention_step_size: alpha; 1 in PFLlib. For a mixture that is an average, the
            weights xi_ij of the others must not sum to more than 1: alpha <= sigma /
            (participants - 1) is small enough.
        attention_width: sigma, in squared distances between models; 1 in PFLlib.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.MLP((8, 8), num_classes=10, hidden=(32,))
        >>> list(srp.algorithms.FedAMP(model, attention_step_size=0.1).evaluations)
        ['own_model', 'fine_tune']
    """

    penalty: Penalty = 1.0
    attention_step_size: Annotated[float, Above(0), "give e.g. 0.1"] = 1.0
    attention_width: Annotated[float, Above(0), "give e.g. 1.0"] = 1.0

    # The server keeps the mean of the last participants' models.
    init = GlobalModel.init
    server = GlobalModel.server

    @property
    @override
    def phases(self) -> tuple[Phase, ...]:
        # Every participant downloads its own mixture of the last models.
        mixtures = Exchange(lambda state: state.params, self.mix)
        return (Phase("round", nothing, self.client, self.server, mixtures),)

    def mix(
        self,
        broadcast: tuple[()],
        own: SplitParams,
        others: Participants,
        context: RoundContext,
    ) -> SplitParams:
        """The mixture u_i of one participant."""

        def add(
            mixture: SplitParams, other: tuple[SplitParams, Array]
        ) -> tuple[SplitParams, None]:
            model, takes_part = other
            difference = without_statistics(jax.tree.map(jnp.subtract, model, own))
            square = square_norm(difference)
            # xi_ij = alpha A'(|w_i - w_j|^2)
            #       = (alpha / sigma) exp(-|w_i - w_j|^2 / sigma)
            height = self.attention_step_size / self.attention_width
            attention = height * jnp.exp(-square / self.attention_width)
            # u_i <- u_i + xi_ij (w_j - w_i)
            new = jax.tree.map(
                lambda u, d: u + jnp.where(takes_part, attention * d, 0),
                mixture,
                difference,
            )
            return new, None

        return jax.lax.scan(add, own, (others.shown, others.takes_part))[0]

    @override
    def client(
        self,
        key: Key,
        mixture: SplitParams,
        state: OwnModelState,
        examples: Examples,
        context: RoundContext,
    ):
        # w_i <- local SGD along grad f_i(w_i) + (lambda / alpha) (w_i - u_i), from w_i
        strength = self.penalty / self.attention_step_size
        regularised = proximal_gradient(strength, mixture)
        local = self.local_sgd(key, state.params, examples, context, gradient=regularised)
        return ClientOutput(
            message=local.params,
            state=OwnModelState(local.params),
            weight=self.training.weight(examples),
            loss=local.loss,
        )
