"""GPFL: shared embeddings of the classes guide features, a valve separates them."""

from __future__ import annotations

import math
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from typing_extensions import override

from fedjax_srp.algorithms.examples import ExampleAlgorithm, Penalty
from fedjax_srp.algorithms.local import Objective, dtype_of, local_sgd, plain_gradient
from fedjax_srp.base import (
    Array,
    ClientOutput,
    Examples,
    Key,
    PyTree,
    RoundContext,
    Uncharged,
    evaluation,
    named_key,
)
from fedjax_srp.models.normalization import weights_of_batch
from fedjax_srp.models.split import SplitParams, cross_entropy
from fedjax_srp.parts.part import AtLeast, part, undefined


class GPFLClientState(NamedTuple):
    """The client's head."""

    head: PyTree


class GPFLParts(NamedTuple):
    """Everything that is trained; at the server with the last participants' mean head."""

    params: SplitParams
    embeddings: Array  # (num_classes, num_features): C, a vector for each class
    # Two layers, gamma and beta, which compute a scale and a shift from a condition.
    valve: dict[str, dict[str, Array]]


class Judged(NamedTuple):
    """The parameters by which a client is judged."""

    parts: GPFLParts
    condition: Array


class Guides(NamedTuple):
    """What stays as it is while a client trains."""

    embeddings: Array  # as downloaded
    own: Array  # (num_features,): p_i
    generic: Array  # (num_features,): g


def uniform_layer(key: Key, inputs: int, outputs: int, dtype: Any) -> dict[str, Array]:
    """A dense layer with the initial values of PyTorch, and a layer normalization."""
    bound = 1 / math.sqrt(inputs)
    key_kernel = named_key(key, "kernel")
    key_bias = named_key(key, "bias")
    return {
        "kernel": jax.random.uniform(key_kernel, (inputs, outputs), dtype, -bound, bound),
        "bias": jax.random.uniform(key_bias, (outputs,), dtype, -bound, bound),
        "scale": jnp.ones(outputs, dtype),
        "offset": jnp.zeros(outputs, dtype),
    }


def normalized(layer: dict[str, Array], x: Array) -> Array:
    """Layer normalization of the last axis of x (batch, features)."""
    mean = jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(x - mean), axis=-1, keepdims=True)
    standard = (x - mean) / jnp.sqrt(variance + 1e-5)
    return standard * layer["scale"][None] + layer["offset"][None]


def unit_rows(x: Array) -> Array:
    """Rows divided by their norms; rows of zeros stay."""
    squares = jnp.sum(jnp.square(x), axis=1, keepdims=True)
    return x / jnp.sqrt(jnp.maximum(squares, 1e-24))


def length(x: Array) -> Array:
    """The norm of all entries, whose gradient at zero is zero."""
    square = jnp.sum(jnp.square(x))
    is_zero = square == 0
    return jnp.where(is_zero, 0, jnp.sqrt(jnp.where(is_zero, 1, square)))


@part
class HeadAmongParts(ExampleAlgorithm):
    """An algorithm whose heads are judged among other parts: `parts` of `judged`, with
    the model's `params`.
    """

    def outputs(self, judged: Any, x: Array) -> Array:
        """The outputs under given parts, (batch, num_classes)."""
        undefined(self.outputs)

    def loss_of_head(
        self, head: PyTree, judged: PyTree, x: Array, y: Array, key: Key | None
    ) -> Array:
        """The loss of a head among given parts, (batch,)."""
        parts = judged.parts
        parts = parts._replace(params=parts.params._replace(head=head))
        return self.model.loss(self.outputs(judged._replace(parts=parts), x), y)

    def tuned_head(self, key: Key, judged: PyTree, examples: Examples) -> PyTree:
        """The head of given parts, trained on the client."""
        return local_sgd(
            named_key(key, "head"),
            self.loss_of_head,
            judged.parts.params.head,
            judged,
            examples,
            self.tuning,
        ).params


@part
class GPFL(HeadAmongParts):
    """GPFL (Zhang et al., 2023): the representation below the model's cut, an embedding
    of every class and a conditional valve are shared; heads are personal.

    The valve scales and shifts the features by numbers that it computes from a condition.
    Under the condition p_i, the embeddings weighted by the client's class shares, they go
    to its head, and to its cross-entropy. Under the mean embedding g, they are guided: by
    the cross-entropy of their cosines with the embeddings, and by lambda times their
    distance to the downloaded embeddings of their classes, a norm over the whole batch as
    in the authors' code. All parts take the same steps; embeddings and valve also have a
    weight decay mu. Conditions follow from the downloaded embeddings; in the authors'
    code from those that the client itself trained last, and they are zero in the first
    round.

    Evaluations: `own_model` (the default), the client's head behind the valve under its
    own condition; `fine_tune`, the same with the last participants' mean head, trained on
    the client.

    Args:
        model: cut at its head; its labels are classes.
        training: of the clients; weighting is "num_examples" in the authors' code.
        guidance_penalty: lambda; 0.01 in the authors' commands for MLPs and small CNNs,
            0.0001 for ResNet-18.
        guidance_decay: mu; 0.1 in these commands, 0 for ResNet-18.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.MLP((8, 8), num_classes=10, hidden=(32,))
        >>> list(srp.algorithms.GPFL(model, guidance_penalty=0.1).evaluations)
        ['own_model', 'fine_tune']
    """

    guidance_penalty: Penalty = 0.01
    guidance_decay: Annotated[float, AtLeast(0), "give 0 for none, or e.g. 0.1"] = 0.1

    @override
    def init(self, key: Key, data: Any) -> GPFLParts:
        params = self.init_params(key, data)
        x = jnp.zeros((1, *self.model.input_shape), self.model.input_dtype)
        width = jax.eval_shape(self.features, params.representation, x).shape[1]
        dtype = dtype_of(params)
        valve = {}
        for name in ("gamma", "beta"):
            valve[name] = uniform_layer(named_key(key, name), width, width, dtype)
        key_embeddings = named_key(key, "embeddings")
        shape = (self.model.num_classes, width)
        embeddings = jax.random.normal(key_embeddings, shape, dtype)
        return GPFLParts(params, embeddings, valve)

    @override
    def init_client(
        self, key: Key, server: GPFLParts, examples: Examples
    ) -> GPFLClientState:
        return GPFLClientState(server.params.head)

    @override
    def broadcast(self, server: GPFLParts, context: RoundContext) -> GPFLParts:
        return server._replace(params=server.params._replace(head=()))

    def condition(self, embeddings: Array, examples: Examples) -> Array:
        """The embeddings weighted by a client's shares of the classes, (num_features,)."""
        counts = jnp.sum(self.members(examples, embeddings.dtype), axis=0)
        # p_i = sum_c (n_ic / n_i) C_c
        shares = counts / jnp.maximum(jnp.sum(counts), 1)
        return jnp.matmul(shares, embeddings, precision="highest")

    def through(self, valve: PyTree, condition: Array, features: Array) -> Array:
        """Features (batch, num_features) behind the valve under a condition."""
        affine = {}
        for name, layer in valve.items():
            dense = jnp.matmul(condition[None], layer["kernel"]) + layer["bias"][None]
            affine[name] = normalized(layer, jax.nn.relu(dense))
        # relu((gamma + 1) * f + beta)
        return jax.nn.relu(features * (affine["gamma"] + 1) + affine["beta"])

    @override
    def outputs(self, judged: Judged, x: Array) -> Array:
        """The outputs of a head behind the valve, (batch, num_classes)."""
        params, _, valve = judged.parts
        features = self.model.represent(params.representation, x)
        flat = features.reshape(x.shape[0], -1)
        own = self.through(valve, judged.condition, flat)
        return self.model.classify(params.head, own.reshape(features.shape))

    def guided(
        self, parts: GPFLParts, guides: Guides, x: Array, y: Array, key: Key | None
    ) -> Array:
        """The loss of the head and the guidance, (batch,)."""
        params, embeddings, valve = parts
        features = self.model.represent(params.representation, x, key)
        flat = features.reshape(x.shape[0], -1)
        own = self.through(valve, guides.own, flat).reshape(features.shape)
        losses = self.model.loss(self.model.classify(params.head, own, key), y)
        # - log exp(cos(f, C_y)) / sum_c exp(cos(f, C_c))
        generic = self.through(valve, guides.generic, flat)
        cosines = jnp.matmul(unit_rows(generic), unit_rows(embeddings).T)
        # lambda |f - C_y|, over the batch
        weights = weights_of_batch(x.shape[0], flat.dtype)
        is_label = self.one_hot(y, flat.dtype)
        target = jnp.matmul(is_label, guides.embeddings, precision="highest")
        difference = jnp.where(weights[:, None] > 0, generic - target, 0)
        distance = self.guidance_penalty * length(difference)
        return losses + cross_entropy(cosines, y) + distance

    def decayed(self, objective: Objective, parts: GPFLParts, weights: Array):
        """The gradient with the decay of embeddings and valve."""
        gradient: GPFLParts = plain_gradient(objective, parts, weights)

        def with_decay(g: Array, w: Array) -> Array:
            return g + self.guidance_decay * w

        return GPFLParts(
            gradient.params,
            with_decay(gradient.embeddings, parts.embeddings),
            jax.tree.map(with_decay, gradient.valve, parts.valve),
        )

    @override
    def client(
        self,
        key: Key,
        down: GPFLParts,
        state: GPFLClientState,
        examples: Examples,
        context: RoundContext,
    ):
        own = self.condition(down.embeddings, examples)
        # g = (1 / number of classes) sum_c C_c
        guides = Guides(down.embeddings, own, jnp.mean(down.embeddings, axis=0))
        # all parts <- local SGD from the downloaded ones and the personal head
        start = down._replace(params=down.params._replace(head=state.head))
        local = self.local_sgd(
            key,
            start,
            examples,
            context,
            loss=self.guided,
            frozen=guides,
            gradient=self.decayed,
        )
        params = local.params.params
        sent = SplitParams(params.representation, Uncharged(params.head))
        return ClientOutput(
            message=local.params._replace(params=sent),
            state=GPFLClientState(params.head),
            weight=self.training.weight(examples),
            loss=local.loss,
        )

    @override
    def server(
        self, key: Key, server: GPFLParts, mean: GPFLParts, context: RoundContext
    ) -> GPFLParts:
        # shared parts <- sum_i p_i of them
        body, head = mean.params
        return mean._replace(params=SplitParams(body, head.value))

    @evaluation
    def own_model(
        self, key: Key, server: GPFLParts, state: GPFLClientState, examples: Examples
    ):
        """The shared parts with the client's own head, under its own condition."""
        parts = server._replace(params=server.params._replace(head=state.head))
        condition = self.condition(server.embeddings, examples)
        return Partial(self.outputs, Judged(parts, condition))

    @evaluation
    def fine_tune(
        self, key: Key, server: GPFLParts, state: GPFLClientState, examples: Examples
    ):
        """The shared parts under the client's own condition with the last participants'
        mean head, which clients never send, trained on the client.
        """
        judged = Judged(server, self.condition(server.embeddings, examples))
        head = self.tuned_head(key, judged, examples)
        parts = server._replace(params=server.params._replace(head=head))
        return Partial(self.outputs, judged._replace(parts=parts))
