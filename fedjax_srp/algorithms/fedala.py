"""FedALA: clients learn how much of the global head replaces their own."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import Partial
from typing_extensions import override

from fedjax_srp.algorithms.examples import GlobalModel
from fedjax_srp.algorithms.fedavg import FedAvg, FedAvgServerState
from fedjax_srp.algorithms.local import head_problem, local_sgd
from fedjax_srp.algorithms.optimizers import optimizer
from fedjax_srp.algorithms.training import LocalTraining
from fedjax_srp.base import (
    Array,
    ClientFunction,
    ClientOutput,
    Examples,
    Key,
    PyTree,
    RoundContext,
    evaluation,
    named_key,
)
from fedjax_srp.models.normalization import with_statistics_of
from fedjax_srp.models.split import SplitParams
from fedjax_srp.parts.part import AtLeast, Count, Share, part


class FedALAClientState(NamedTuple):
    """The client's top layers after its last training, and its weights W_i."""

    head: PyTree
    weights: PyTree  # like the head, in [0, 1]
    is_learnt: Array  # () bool: the weights have been trained


def mix(own: PyTree, shared: PyTree, weights: PyTree) -> PyTree:
    """The own parameters, moved towards the shared ones by a weight for each."""
    # theta_i + (theta - theta_i) * W_i
    return jax.tree.map(
        lambda own, shared, w: own + (shared - own) * w, own, shared, weights
    )


@part
class FedALA(GlobalModel):
    """FedALA (Zhang et al., 2023, Algorithm 1): FedAvg whose clients start local training
    from their own mixture.

    All layers are sent. Below the model's cut a participant uses the global layers. Its
    head, the paper's p top layers, is a mixture of its own last head and the global one
    with weights W_i, one for each parameter, which start at 1 and are trained by plain
    gradient steps, clipped to [0, 1], on a part of its examples: consecutive ones from a
    random start, as in the authors' code. If the global head equals the client's, as in
    the first round, the weights are not trained. The first training has `start_epochs`,
    later ones one epoch; the paper first trains "until convergence", in the authors' code
    until the losses of ten epochs are nearly equal, at least eleven epochs. With a step
    size of 0 this is `FedAvg`. The length of the training depends on the client's state,
    so `clocks.Devices` cannot count its operations and needs `costs`.

    Evaluations: `aggregated` (the default), the model from which the client's next round
    would start, its weights trained for one more epoch, as in the authors' code;
    `global`, `fine_tune` and `fine_tune_all`, as in `FedAvg`.

    Args:
        model: cut at the first of the p top layers; p = 1 in most of the paper's
            experiments.
        training: of the clients; its batch size is that of the weights too. The paper
            weighs clients by their examples.
        weight_step_size: eta, 1 in the paper.
        weight_share: s, the share of the examples on which the weights are trained, 0.8
            in the paper.
        start_epochs: epochs of the first training of the weights.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.MLP((8, 8), num_classes=10, hidden=(32,))
        >>> list(srp.algorithms.FedALA(model).evaluations)
        ['aggregated', 'global', 'fine_tune', 'fine_tune_all']
    """

    weight_step_size: Annotated[float, AtLeast(0), "give 0 for none, or e.g. 1.0"] = 1.0
    weight_share: Share = 0.8
    start_epochs: Count = 11

    loss_gradient = FedAvg.loss_gradient

    @property
    @override
    def gradient(self) -> ClientFunction:
        return self.loss_gradient

    @override
    def init_client(
        self, key: Key, server: FedAvgServerState, examples: Examples
    ) -> FedALAClientState:
        head = server.params.head
        weights = jax.tree.map(jnp.ones_like, head)
        return FedALAClientState(head, weights, jnp.bool_(False))

    def aggregation(
        self,
        key: Key,
        params: SplitParams,
        state: FedALAClientState,
        examples: Examples,
        work: Array,
    ) -> FedALAClientState:
        """The client's mixture of heads, and its weights; trained if there is work."""
        segment = self.segment(key, examples)
        head_loss, frozen, segment = head_problem(
            self.model, params.representation, segment
        )

        def loss(
            weights: PyTree,
            fixed: tuple[PyTree, ...],
            x: Array,
            y: Array,
            key: Key | None,
        ) -> Array:
            own, shared, frozen = fixed
            head = mix(own, shared, weights)
            # Statistics are the global ones: their weights stay 1.
            head = with_statistics_of(head, jax.lax.stop_gradient(head))
            return head_loss(head, frozen, x, y, key)

        def clipped(weights: PyTree) -> PyTree:
            return jax.tree.map(lambda w: jnp.clip(w, 0, 1), weights)

        unequal = jax.tree.map(
            lambda own, shared: jnp.any(own != shared), state.head, params.head
        )
        differs = jnp.any(jnp.stack([jnp.bool_(False), *jax.tree.leaves(unequal)]))
        epochs = jnp.where(state.is_learnt, 1, self.start_epochs)
        epochs = jnp.where(differs, epochs, 0) * jnp.minimum(work, 1)
        # W_i <- clip(W_i - eta grad_W f_i(theta_i + (theta - theta_i) * W_i), 0, 1)
        steps = optimizer(optax.sgd, learning_rate=self.weight_step_size)
        weights = local_sgd(
            named_key(key, "weights"),
            loss,
            state.weights,
            (state.head, params.head, frozen),
            segment,
            LocalTraining(steps, self.training.batch_size, epochs=1, work=epochs),
            after_step=clipped,
        ).params
        head = mix(state.head, params.head, weights)
        is_learnt = state.is_learnt | (differs & (epochs > 0))
        return FedALAClientState(head, weights, is_learnt)

    def segment(self, key: Key, examples: Examples) -> Examples:
        """The consecutive examples, from a random start, that train the weights."""
        size = jnp.round(self.weight_share * examples.count.astype(float))
        size = jnp.maximum(size.astype(jnp.int32), 1)
        num_starts = jnp.maximum(examples.count - size, 0) + 1
        key_segment = named_key(key, "segment")
        first = jax.random.randint(key_segment, (), 0, num_starts, jnp.int32)
        capacity = examples.y.shape[0]
        rows = first + jnp.arange(capacity, dtype=jnp.int32)
        rows = jnp.minimum(rows, capacity - 1)
        count = jnp.minimum(size, examples.count)
        return Examples(examples.x[rows], examples.y[rows], count)

    @override
    def client(
        self,
        key: Key,
        params: SplitParams,
        state: FedALAClientState,
        examples: Examples,
        context: RoundContext,
    ) -> ClientOutput:
        start = self.aggregation(key, params, state, examples, context.work)
        # theta_i <- local SGD from the global layers below the cut and the mixture above
        params = params._replace(head=start.head)
        local = self.local_sgd(key, params, examples, context)
        new = start._replace(head=local.params.head)
        return ClientOutput(
            local.params, new, self.training.weight(examples), loss=local.loss
        )

    @evaluation
    def aggregated(
        self,
        key: Key,
        server: FedAvgServerState,
        state: FedALAClientState,
        examples: Examples,
    ):
        """The global model with the client's own mixture of heads, from which its next
        round would start.
        """
        head = self.aggregation(key, server.params, state, examples, jnp.int32(1)).head
        return Partial(self.model.logits, server.params._replace(head=head))
