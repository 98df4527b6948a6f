"""MOON: FedAvg with a contrastive loss between features of two models."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
from typing_extensions import override

from fedjax_srp.algorithms.examples import FedAvgServerState, Penalty
from fedjax_srp.algorithms.fedavg import FedAvg
from fedjax_srp.base import (
    Array,
    ClientOutput,
    Examples,
    Key,
    PyTree,
    RoundContext,
)
from fedjax_srp.models.split import SplitParams
from fedjax_srp.parts.part import Above, part

# Lower bound of a product of norms: the cosine with features that are zero is zero.
EPSILON = 1e-8


class MOONClientState(NamedTuple):
    """The representation of the client's last model."""

    representation: PyTree


def cosine(a: Array, b: Array) -> Array:
    """Cosine of the angle between rows, (batch,)."""
    a = a.reshape(b.shape)
    squares = jnp.sum(a * a, axis=1) * jnp.sum(b * b, axis=1)
    return jnp.sum(a * b, axis=1) / jnp.sqrt(jnp.maximum(squares, EPSILON**2))


@part
class MOON(FedAvg):
    """MOON (Li, He and Song, 2021, Algorithm 1): every part of the model is shared;
    clients remember features.

    With z the features at the model's cut, z_glob those of the downloaded model and
    z_prev those of the client's last model, a client descends the cross-entropy plus mu
    times

        -log(exp(cos(z, z_glob) / tau) / (exp(cos(z, z_glob) / tau) + exp(cos(z, z_prev) /
        tau)))

    The paper has a projection of two layers after its encoder: give the model such layers
    below the cut. With mu = 0 this is `FedAvg`.

    Evaluations: those of `FedAvg`.

    Args:
        model: cut after the compared features.
        training: of the clients; the paper weighs them by their examples.
        mu: weight of the contrastive loss; the paper tunes it in {0.1, 1, 5, 10}.
        temperature: tau; 0.5 in the paper.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.MLP((8, 8), num_classes=10, hidden=(32,))
        >>> srp.algorithms.MOON(model, mu=5.0).temperature
        0.5
    """

    mu: Penalty = 1.0
    temperature: Annotated[float, Above(0)] = 0.5

    @override
    def init_client(
        self, key: Key, server: FedAvgServerState, examples: Examples
    ) -> MOONClientState:
        return MOONClientState(server.params.representation)

    def contrasted(
        self, params: SplitParams, frozen: PyTree, x: Array, y: Array, key: Key | None
    ) -> Array:
        """Cross-entropy plus mu times the contrastive loss of each example, (batch,)."""
        z = self.model.represent(params.representation, x, key)
        shared, own = frozen
        z_glob = self.features(shared, x, key)
        z_prev = self.features(own, x, key)
        # -log(e^a / (e^a + e^b)) = log(1 + e^(b - a)), a and b the similarities over tau
        difference = (cosine(z, z_prev) - cosine(z, z_glob)) / self.temperature
        losses = self.model.loss(self.model.classify(params.head, z, key), y)
        return losses + self.mu * jax.nn.softplus(difference)

    @override
    def client(
        self,
        key: Key,
        params: SplitParams,
        state: MOONClientState,
        examples: Examples,
        context: RoundContext,
    ):
        # w_i <- local SGD on the sum of both losses, from w
        frozen = params.representation, state.representation
        local = self.local_sgd(
            key, params, examples, context, loss=self.contrasted, frozen=frozen
        )
        return ClientOutput(
            message=local.params,
            state=MOONClientState(local.params.representation),
            weight=self.training.weight(examples),
            loss=local.loss,
        )
