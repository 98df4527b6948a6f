"""Sliding window: weak clients train a window of layers that moves from round to round."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
from typing_extensions import override

from fedjax_srp.algorithms._submodels import mean_entry
from fedjax_srp.algorithms.depthfl import DepthAlgorithm, DepthServerState, is_first
from fedjax_srp.algorithms.examples import FedAvgServerState, GlobalModel
from fedjax_srp.algorithms.local import Loss
from fedjax_srp.base import (
    Array,
    Charges,
    ClientOutput,
    Examples,
    FederatedAlgorithm,
    Key,
    PyTree,
    RoundContext,
)
from fedjax_srp.models.exits import block_of_layers, ended_after
from fedjax_srp.models.split import SplitModel, SplitParams
from fedjax_srp.parts.part import part


@part
class SlidingWindow(DepthAlgorithm):
    """Sliding window: clients train neighbouring blocks of layers, which move up from
    round to round.

    A client with w units of work trains w of B blocks, from block f = t mod (B - w + 1)
    of round t on, with the classifier after the last of them. The blocks below run
    forward and stay as they are, those above are not needed. So even the slowest client
    trains every block in turn. The server averages each block over the clients that
    train it. For `participation.PartialWork(4)`.

    The window is that of FedEL (Zhang et al., 2025), which fits it to each client's time:
    here the policy sets w. The rule by which it moves, and the classifiers, are our own.
    FedEL's choice of important tensors within the window, and its correction of that
    choice by the global model, are left out.

    `clocks.Devices` charges the mean operations over the places of the window, and the
    messages of the highest place: a download of all blocks, an upload of the last w. The
    metric `message_share` is the mean of the shares that participants download and
    upload. Models are stacks of layers, of any kind.

    Evaluations, all of the whole model with its last classifier: `global` (the default),
    `fine_tune`, `fine_tune_all`.

    Raises:
        ValueError: a model that does not apply its layers in turn.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.MLP((8, 8), num_classes=10, hidden=(32, 16, 8))
        >>> srp.algorithms.SlidingWindow(model, exits=("fc2",)).sizes
        [1, 2]
    """

    name: ClassVar[str] = "sliding_window"

    @property
    @override
    def charges(self) -> Charges:
        def costs_as() -> tuple[tuple[FederatedAlgorithm, ...], ...]:
            number = len(self.sizes)
            return tuple(
                tuple(self.window(first, size) for first in range(number - size + 1))
                for size in self.sizes
            )

        return Charges(costs_as=costs_as)

    def window(self, first: int, size: int) -> FederatedAlgorithm:
        """The work of a client whose window has `size` blocks, from `first` on."""
        ends = self.ends
        block = block_of_layers(self.model, ends)
        lowest = next(name for name, number in block.items() if number == first)
        model: SplitModel = self.model.recut(lowest)
        last = first + size - 1
        if last < len(ends):
            model = ended_after(self.model, ends[last], cut=lowest)
        return _Window(model, self.training)

    def first_block(self, context: RoundContext) -> Array:
        """f of a client, () int32."""
        places = len(self.sizes) - self.blocks_in(context) + 1
        return context.round % places

    def below(self, context: RoundContext) -> tuple[Array, Array]:
        """Flags of the blocks below the window, and of those up to its end."""
        number = len(self.sizes)
        first = self.first_block(context)
        size = self.blocks_in(context)
        return is_first(first, number), is_first(first + size, number)

    @override
    def masks(self, trained: DepthServerState, context: RoundContext) -> DepthServerState:
        below, up_to_end = self.below(context)
        return self.masks_of(trained, up_to_end & ~below, self.last(context))

    def last(self, context: RoundContext) -> Array:
        """Flag of the last block of the window."""
        end = self.first_block(context) + self.blocks_in(context) - 1
        return jnp.arange(len(self.sizes), dtype=jnp.int32) == end

    @override
    def share(self, masks: DepthServerState, context: RoundContext) -> Array:
        _, up_to_end = self.below(context)
        downloads = self.masks_of(masks, up_to_end, self.last(context))
        return (mean_entry(masks) + mean_entry(downloads)) / 2

    @override
    def loss_in(self, context: RoundContext, start: DepthServerState) -> Loss:
        last = self.last(context)
        masks = self.masks(start, context)
        in_window = lambda mask, new, old: jnp.where(mask > 0, new, old)

        def loss(
            trained: DepthServerState, frozen: PyTree, x: Array, y: Array, key: Key | None
        ) -> Array:
            # CE of the classifier at the end of the window, above blocks as they were
            whole = jax.tree.map(in_window, masks, trained, start)
            losses, _ = self.losses(whole, x, y, key)
            return jnp.sum(jnp.where(last, losses, 0), axis=1)

        return loss


@part
class _Window(GlobalModel):
    """The work of a client with one window: the head is trained, what is below runs forward."""

    @override
    def client(
        self,
        key: Key,
        params: SplitParams,
        state: tuple,
        examples: Examples,
        context: RoundContext,
    ):
        def loss(
            head: PyTree, representation: PyTree, x: Array, y: Array, key: Key | None
        ) -> Array:
            return self.loss(SplitParams(representation, head), (), x, y, key)

        frozen = params.representation
        local = self.local_sgd(
            key, params.head, examples, context, loss=loss, frozen=frozen
        )
        return ClientOutput(local.params, weight=self.training.weight(examples))

    @override
    def server(
        self, key: Key, server: FedAvgServerState, mean: PyTree, context: RoundContext
    ):
        return FedAvgServerState(SplitParams(server.params.representation, mean))
