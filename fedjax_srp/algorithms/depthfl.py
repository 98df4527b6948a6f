"""DepthFL: weak clients train the first layers, with a classifier of their own."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from typing_extensions import override

from fedjax_srp.algorithms._submodels import MaskedAlgorithm
from fedjax_srp.algorithms.examples import Penalty
from fedjax_srp.algorithms.local import Loss
from fedjax_srp.base import (
    Array,
    Charges,
    Examples,
    FederatedAlgorithm,
    Key,
    PyTree,
    RoundContext,
    evaluation,
    named_key,
)
from fedjax_srp.models.exits import (
    block_ends,
    block_of_layers,
    check_layers,
    ended_after,
    exit_logits,
    init_exits,
)
from fedjax_srp.models.split import SplitModel, SplitParams
from fedjax_srp.parts.checks import check_choice
from fedjax_srp.parts.part import Count, part

BLOCKS = 4  # of a model, as in DepthFL's experiments


class DepthServerState(NamedTuple):
    """The global model w, and the classifiers between its blocks."""

    params: SplitParams
    exits: dict[str, PyTree]  # by the layer below


@part
class DepthAlgorithm(MaskedAlgorithm):
    """A global model of which clients train some blocks of layers, with a classifier
    after each block.

    Args:
        exits: the last layers of all blocks but the last one, after which a classifier
            stands: the mean over an image's pixels and a dense layer. None: four blocks
            of about equally many layers.
        least_blocks: the fewest blocks that a client trains, all where the model has no more.
    """

    exits: tuple[str, ...] | None = None
    least_blocks: Count = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_layers(self.name, self.model)
        for name in self.exits or ():
            check_choice("exits", name, self.model.layer_names[:-1])

    @property
    def ends(self) -> tuple[str, ...]:
        """The layers below the classifiers, first to last."""
        if self.exits is None:
            return block_ends(self.model, BLOCKS)
        return tuple(name for name in self.model.layer_names if name in self.exits)

    @property
    def sizes(self) -> list[int]:
        """Blocks of a client with 1, 2, ... units of work."""
        number = len(self.ends) + 1
        least = min(self.least_blocks, number)
        return [max(units, least) for units in range(1, number + 1)]

    def blocks_in(self, context: RoundContext) -> Array:
        """Blocks that a client trains, () int32."""
        sizes = jnp.asarray(self.sizes, jnp.int32)
        return sizes[jnp.clip(context.work, 1, len(self.sizes)) - 1]

    def masks_of(
        self, trained: DepthServerState, blocks: Array, exits: Array
    ) -> DepthServerState:
        """Masks of the blocks and classifiers that are flagged, (number,) bool each."""
        block = block_of_layers(self.model, self.ends)

        def full(layers: PyTree, flags: Array) -> PyTree:
            masks = {}
            for name, layer in layers.items():
                of_leaf = partial(jnp.full_like, fill_value=flags[block[name]])
                masks[name] = jax.tree.map(of_leaf, layer)
            return masks

        representation, head = trained.params
        params = SplitParams(full(representation, blocks), full(head, blocks))
        return DepthServerState(params, full(trained.exits, exits))

    def losses(
        self, trained: DepthServerState, x: Array, y: Array, key: Key | None
    ) -> tuple[Array, Array]:
        """Losses of all classifiers, (batch, classifiers), and their logits."""
        logits = exit_logits(self.model, trained.params, trained.exits, x, key)
        # over the classifiers
        losses = jax.vmap(self.model.loss, in_axes=(1, None), out_axes=1)
        return losses(logits, y), logits

    @override
    def state_of(self, trained: DepthServerState) -> DepthServerState:
        return trained

    @override
    def init(self, key: Key, data: Any) -> DepthServerState:
        params = self.init_params(key, data)
        exits = init_exits(named_key(key, "exits"), self.model, params, self.ends)
        return DepthServerState(params, exits)

    @override
    def broadcast(
        self, server: DepthServerState, context: RoundContext
    ) -> DepthServerState:
        return server


def is_first(number: Array, of: int) -> Array:
    """Flags of the first `number` of some blocks, (of,) bool."""
    return jnp.arange(of, dtype=jnp.int32) < number


@part
class DepthFL(DepthAlgorithm):
    """DepthFL (Kim, Yu, Kim and Moon, 2023): submodels are the first blocks of layers,
    with a classifier after each.

    A client with w units of work trains the first w blocks and their classifiers. Each
    classifier learns the labels, and the predictions of the client's others (mutual
    self-distillation), whose weight rises from exp(-5) over the first `ramp_rounds`
    rounds, as in the authors' code. The server averages each block over the clients that
    have it. For `participation.PartialWork(4)`. This is the paper's DepthFL (FedAvg); its
    regularization by FedDyn is left out, and so are the bottleneck layers and attention
    of its ResNet's classifiers.

    `clocks.Devices` charges the operations and bytes of a model that ends after w blocks,
    with its classifiers. Models are stacks of layers, of any kind.

    Evaluations, all of the whole model: `ensemble` (the default, the paper's), `global`,
    the last classifier, `fine_tune` and `fine_tune_all` of it.

    Args:
        distillation: weight of the mean divergence from the other classifiers, 1 in the
            paper; 0 for the labels alone.
        ramp_rounds: rounds until it has its full weight.

    Raises:
        ValueError: a model that does not apply its layers in turn, or one of numbers.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.MLP((8, 8), num_classes=10, hidden=(32, 16, 8))
        >>> srp.algorithms.DepthFL(model).ends
        ('fc1', 'fc2')
    """

    distillation: Penalty = 1.0
    ramp_rounds: Count = 300

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model.is_regression:
            raise ValueError(
                f"model {self.model.name!r} predicts a number, and {self.name} distils probabilities of classes; "
                "choose a classifier, or sliding_window"
            )

    @evaluation
    def ensemble(
        self, key: Key, server: DepthServerState, state: Any, examples: Examples
    ):
        """The mean of the logits of all the global model's classifiers."""
        return Partial(self.mean_logits, server)

    def mean_logits(self, trained: DepthServerState, x: Array) -> Array:
        """The mean over all classifiers, (batch, num_classes)."""
        logits = exit_logits(self.model, trained.params, trained.exits, x)
        return jnp.mean(logits, axis=1)

    @property
    @override
    def charges(self) -> Charges:
        # With w units of work: a model that ends after the last of its blocks.
        return Charges(costs_as=lambda: tuple((self.ended(n),) for n in self.sizes))

    def ended(self, number: int) -> FederatedAlgorithm:
        """The algorithm whose model ends after so many blocks, which all clients train."""
        ends = self.ends
        model: SplitModel = self.model
        if number <= len(ends):
            model = ended_after(model, ends[number - 1])
        return dataclasses.replace(
            self, model=model, exits=ends[: number - 1], least_blocks=number
        )

    @override
    def masks(self, trained: DepthServerState, context: RoundContext) -> DepthServerState:
        flags = is_first(self.blocks_in(context), len(self.sizes))
        return self.masks_of(trained, flags, flags)

    @override
    def loss_in(self, context: RoundContext, start: DepthServerState) -> Loss:
        number = len(self.sizes)
        blocks = self.blocks_in(context)
        taught = is_first(blocks, number)
        pairs = taught[:, None] & taught[None] & ~jnp.eye(number, dtype=bool)
        # exp(-5 (1 - t / T)^2)
        phase = 1 - jnp.minimum(context.round.astype(float) / self.ramp_rounds, 1)
        weight = self.distillation * jnp.exp(-5 * phase**2)

        def loss(
            trained: DepthServerState, frozen: PyTree, x: Array, y: Array, key: Key | None
        ) -> Array:
            # sum_i CE(z_i, y) + weight / (d - 1) sum_{j != i} KL(p_j || p_i), p_j constant
            losses, logits = self.losses(trained, x, y, key)
            of_labels = jnp.sum(jnp.where(taught, losses, 0), axis=1)
            others = jnp.maximum(blocks - 1, 1).astype(logits.dtype)
            of_pairs = jnp.where(pairs, divergences(logits), 0)
            divergence = jnp.sum(of_pairs, axis=(1, 2)) / others
            return of_labels + weight.astype(logits.dtype) * divergence

        return loss


def divergences(logits: Array) -> Array:
    """KL(p_j || p_i) of all classifiers i and j, with p_j constant: (batch, i, j)."""
    log_p = jax.nn.log_softmax(logits)
    targets = jax.lax.stop_gradient(log_p)
    difference = targets[:, None] - log_p[:, :, None]
    return jnp.sum(jnp.exp(targets)[:, None] * difference, axis=-1)
