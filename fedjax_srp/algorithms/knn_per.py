"""kNN-Per: FedAvg's model mixed with nearest neighbours of a client's examples."""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from fedjax_srp import base
from fedjax_srp.algorithms.fedavg import FedAvg, FedAvgServerState
from fedjax_srp.base import Array, Examples, Key
from fedjax_srp.models.split import SplitParams
from fedjax_srp.parts.part import Count, Share, part


class Remembered(NamedTuple):
    """The global model, and what a client remembers of its training examples."""

    params: SplitParams
    keys: Array  # (max_examples, features) their features, padding last
    one_hot: Array  # (max_examples, num_classes) their labels
    num_examples: Array  # () int32


@part
class KNNPer(FedAvg):
    """kNN-Per (Marfoq et al., 2022): every part of the model is shared, and each client
    remembers its examples.

    Training is that of `FedAvg`. Predictions mix two distributions over the classes: with
    weight lambda that of the k nearest training examples, weighted by exp(-distance) of
    the features at the model's cut, and with weight 1 - lambda that of the global model.
    A client without examples uses the global model.

    Evaluations: `neighbours` (the default), and those of `FedAvg`.

    Args:
        model: cut after the features whose distances count; its labels are classes.
        num_neighbours: k; 10 in the paper.
        own_share: lambda, the same for all clients; the paper tunes it for each client on
            held-out examples.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.MLP((8, 8), num_classes=10, hidden=(32,))
        >>> list(srp.algorithms.KNNPer(model).evaluations)
        ['neighbours', 'global', 'fine_tune', 'fine_tune_all']
    """

    name: ClassVar[str] = "knn_per"
    num_neighbours: Count = 10
    own_share: Share = 0.5
    evaluation: Literal[  # pyright: ignore[reportIncompatibleVariableOverride]
        "neighbours", "global", "fine_tune", "fine_tune_all"
    ] = "neighbours"

    @base.evaluation
    def neighbours(
        self, key: Key, server: FedAvgServerState, state: tuple, examples: Examples
    ):
        """The global model mixed with the client's nearest training examples."""
        keys = self.features(server.params.representation, examples.x)
        one_hot = self.one_hot(examples.y, keys.dtype)
        remembered = Remembered(server.params, keys, one_hot, examples.count)
        return Partial(self.mixture, remembered)

    def mixture(self, remembered: Remembered, x: Array) -> Array:
        """Logarithms of the mixed probabilities, (batch, num_classes)."""
        params, keys, one_hot, count = remembered
        capacity = keys.shape[0]
        is_real = jnp.arange(capacity, dtype=jnp.int32) < count
        features = self.model.represent(params.representation, x)
        shared = jax.nn.softmax(self.model.classify(params.head, features), axis=-1)
        features = features.reshape(x.shape[0], -1)
        # |a - b|^2 = |a|^2 - 2 a b + |b|^2, without an array of all differences
        products = jnp.matmul(features, keys.T, precision="highest")
        squares = jnp.sum(features**2, axis=1)[:, None] - 2 * products
        squares = squares + jnp.sum(keys**2, axis=1)[None]
        distances = jnp.sqrt(jnp.maximum(squares, 0))
        # w_j = exp(-d_j) / sum of these over the k nearest
        scores = jnp.where(is_real[None], -distances, -jnp.inf)
        k = min(self.num_neighbours, capacity)
        score, nearest = jax.lax.top_k(scores, k)
        weights = jax.nn.softmax(jnp.where(count > 0, score, 0.0), axis=-1)
        own = jnp.einsum("bk,bkc->bc", weights, one_hot[nearest])
        share = jnp.where(count > 0, self.own_share, 0.0).astype(own.dtype)
        # lambda h_kNN + (1 - lambda) h_global
        return jnp.log(share * own + (1 - share) * shared)
