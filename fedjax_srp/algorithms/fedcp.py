"""FedCP: a policy divides each example's features among a global and a personal head."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from typing_extensions import override

from fedjax_srp.algorithms.examples import Penalty
from fedjax_srp.algorithms.gpfl import (
    HeadAmongParts,
    normalized,
    uniform_layer,
    unit_rows,
)
from fedjax_srp.algorithms.local import dtype_of
from fedjax_srp.base import (
    Array,
    ClientOutput,
    Examples,
    Key,
    PyTree,
    RoundContext,
    evaluation,
    named_key,
)
from fedjax_srp.models.normalization import weights_of_batch
from fedjax_srp.models.split import SplitParams
from fedjax_srp.parts.part import part

BANDWIDTHS = (10.0, 15.0, 20.0, 50.0)  # of the kernels, in the authors' code


class FedCPClientState(NamedTuple):
    """The client's personal head."""

    head: PyTree


class FedCPParts(NamedTuple):
    """The trained parameters; at the server with the global head."""

    params: SplitParams
    policy: dict[str, Array]  # a layer with twice as many outputs as features


class Fixed(NamedTuple):
    """What stays as it is while a client trains."""

    shared: SplitParams  # as downloaded
    direction: Array  # (num_features,): of the personal head


class Judged(NamedTuple):
    """The parameters by which a client is judged."""

    parts: FedCPParts
    fixed: Fixed


def discrepancy(a: Array, b: Array, weights: Array) -> Array:
    """The squared maximum mean discrepancy of two samples (batch, num_features)."""

    def kernel(x: Array, y: Array) -> Array:
        products = jnp.matmul(x, y.T, precision="highest")
        of_x = jnp.sum(jnp.square(x), axis=1)[:, None]
        of_y = jnp.sum(jnp.square(y), axis=1)[None]
        squares = of_x + of_y - 2 * products
        values = jnp.zeros_like(squares)
        for bandwidth in BANDWIDTHS:
            values = values + jnp.exp(-squares / (2 * bandwidth))
        return values

    differences = kernel(a, a) + kernel(b, b) - 2 * kernel(a, b)
    return jnp.sum(weights[:, None] * weights[None] * differences)


@part
class FedCP(HeadAmongParts):
    """FedCP (Zhang et al., 2023), a conditional policy: the representation below the
    model's cut, a head and a policy are shared; every client has a personal head, too.

    The policy, a dense layer with layer normalization, takes the features of an example
    times the direction of the personal head, the normalized sum of its rows. Its softmax
    gives a share r of every feature to the personal head, and 1 - r to the global one;
    the outputs of both are added. A participant trains representation, personal head and
    policy on its cross-entropy plus lambda times the maximum mean discrepancy between the
    features of a batch and those under the downloaded representation. For the global head
    it sends the mean of its personal and the downloaded one. The authors' code adds
    Gumbel noise to the policy, also where clients are judged, and its first direction is
    random.

    Evaluations: `own_model` (the default), both heads; `fine_tune`, the same with the
    global head in place of the personal one, trained on the client.

    Args:
        model: cut below one or more dense layers; features are what the policy divides.
        training: of the clients; weighting is "num_examples" in the authors' code.
        alignment_penalty: lambda; 5 in the authors' commands.

    Raises:
        ValueError: in `init`, the head has other layers than dense ones on all features.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.MLP((8, 8), num_classes=10, hidden=(32,))
        >>> list(srp.algorithms.FedCP(model, alignment_penalty=1.0).evaluations)
        ['own_model', 'fine_tune']
    """

    alignment_penalty: Penalty = 5.0

    @override
    def init(self, key: Key, data: Any) -> FedCPParts:
        params = self.init_params(key, data)
        x = jnp.zeros((1, *self.model.input_shape), self.model.input_dtype)
        width = jax.eval_shape(self.features, params.representation, x).shape[1]
        self.check_head(params.head, width)
        key_policy = named_key(key, "policy")
        policy = uniform_layer(key_policy, width, 2 * width, dtype_of(params))
        return FedCPParts(params, policy)

    def check_head(self, head: PyTree, width: int) -> None:
        """Raise a ValueError unless a head is dense layers on features of a width."""
        is_dense = bool(head)
        for layer in head.values():
            is_dense = is_dense and "kernel" in layer and layer["kernel"].ndim == 2
        if not is_dense or jax.eval_shape(self.direction, head).shape != (width,):
            layers = ", ".join(head) or "no layer"
            raise ValueError(
                f"{self.name} needs a head of dense layers that reads all {width} "
                f"features, but that of model {self.model.name!r} is {layers}; give a "
                "model with such a head, e.g. srp.models.MLP, or another cut"
            )

    @override
    def init_client(
        self, key: Key, server: FedCPParts, examples: Examples
    ) -> FedCPClientState:
        return FedCPClientState(server.params.head)

    def direction(self, head: PyTree) -> Array:
        """The direction of the sum of a head's rows, (num_features,)."""
        # v_i = sum_c (rows of the product of the layers' kernels), divided by its norm
        rows = jnp.ones(self.model.num_classes, dtype_of(head))
        for name in reversed(self.model.layer_names):
            if name in head:
                rows = jnp.matmul(head[name]["kernel"], rows, precision="highest")
        return unit_rows(rows[None])[0]

    def divided(
        self, parts: FedCPParts, fixed: Fixed, features: Array, key: Key | None
    ) -> Array:
        """The sum of the outputs of both heads, (batch, num_classes)."""
        flat = features.reshape(features.shape[0], -1)
        seen = flat * fixed.direction[None]
        dense = jnp.matmul(seen, parts.policy["kernel"]) + parts.policy["bias"][None]
        logits = jax.nn.relu(normalized(parts.policy, dense))
        # r = exp(a_1) / (exp(a_1) + exp(a_2)), for each feature
        own, shared = jnp.split(logits, 2, axis=1)
        share = jax.nn.sigmoid(own - shared).reshape(features.shape)
        of_own = self.model.classify(parts.params.head, share * features, key)
        rest = (1 - share) * features
        return of_own + self.model.classify(fixed.shared.head, rest, key)

    def separated(
        self, parts: FedCPParts, fixed: Fixed, x: Array, y: Array, key: Key | None
    ) -> Array:
        """The loss of both heads, and the penalized discrepancy of features, (batch,)."""
        features = self.model.represent(parts.params.representation, x, key)
        losses = self.model.loss(self.divided(parts, fixed, features, key), y)
        downloaded = self.features(fixed.shared.representation, x, key)
        weights = weights_of_batch(x.shape[0], features.dtype)
        flat = features.reshape(x.shape[0], -1)
        # f_i + lambda MMD(h, h of the downloaded representation)
        return losses + self.alignment_penalty * discrepancy(flat, downloaded, weights)

    @override
    def client(
        self,
        key: Key,
        down: FedCPParts,
        state: FedCPClientState,
        examples: Examples,
        context: RoundContext,
    ):
        # representation, personal head, policy <- local SGD
        start = down._replace(params=down.params._replace(head=state.head))
        fixed = Fixed(down.params, self.direction(state.head))
        local = self.local_sgd(
            key, start, examples, context, loss=self.separated, frozen=fixed
        )
        body, head = local.params.params
        # (personal head + global head) / 2
        sent = jax.tree.map(lambda own, w: (own + w) / 2, head, down.params.head)
        return ClientOutput(
            message=local.params._replace(params=SplitParams(body, sent)),
            state=FedCPClientState(head),
            weight=self.training.weight(examples),
            loss=local.loss,
        )

    @override
    def server(
        self, key: Key, server: FedCPParts, mean: FedCPParts, context: RoundContext
    ) -> FedCPParts:
        # each part <- sum_i p_i of it
        return mean

    def judged(self, server: FedCPParts, head: PyTree) -> Judged:
        """The shared parts with a head beside the global one."""
        parts = server._replace(params=server.params._replace(head=head))
        return Judged(parts, Fixed(server.params, self.direction(head)))

    @override
    def outputs(self, judged: Judged, x: Array) -> Array:
        """The sum of the outputs of both heads, (batch, num_classes)."""
        parts, fixed = judged
        features = self.model.represent(parts.params.representation, x)
        return self.divided(parts, fixed, features, None)

    @evaluation
    def own_model(
        self, key: Key, server: FedCPParts, state: FedCPClientState, examples: Examples
    ):
        """The shared parts with the client's personal head beside the global one."""
        return Partial(self.outputs, self.judged(server, state.head))

    @evaluation
    def fine_tune(
        self, key: Key, server: FedCPParts, state: FedCPClientState, examples: Examples
    ):
        """The shared parts with two global heads, of which one is trained on the client."""
        start = self.judged(server, server.params.head)
        head = self.tuned_head(key, start, examples)
        return Partial(self.outputs, self.judged(server, head))
