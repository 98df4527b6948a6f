"""FedSGD: distributed gradient descent."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from typing_extensions import override

from fedjax_srp.algorithms.fedavg import FedAvg
from fedjax_srp.algorithms.local import of_examples
from fedjax_srp.algorithms.optimizers import Optimizer
from fedjax_srp.algorithms.training import Training
from fedjax_srp.base import (
    Array,
    ClientOutput,
    Examples,
    Key,
    PyTree,
    RoundContext,
    named_key,
)
from fedjax_srp.models.split import SplitParams, smallest_block
from fedjax_srp.parts.checks import per_example
from fedjax_srp.parts.part import part
from fedjax_srp.xla.loops import batch_max, fori_loop

# Bounds of the memory of a large client; only a model's noise depends on them.
AT_ONCE = 256  # examples in one pass
BLOCKS_AT_ONCE = 4  # blocks of a model with large intermediate results (`Layer.block`)


class FedSGDServerState(NamedTuple):
    """The global model w, and the state of the server's optimizer."""

    params: SplitParams
    optimizer: PyTree


@part
class FedSGD(FedAvg):
    """FedSGD (McMahan et al., 2017, section 2, C-fraction): every part of the model is
    shared, nothing is personal.

    A participant sends the gradient over all its examples at the global model, and the
    server takes one step along the mean: distributed gradient descent. Under full
    participation, with clients weighted by their examples, it is gradient descent on all
    examples. The server's optimizer keeps its momentum from round to round. A unit of
    work is one gradient; more units have no effect.

    Evaluations: those of `FedAvg`.

    Args:
        training: its optimizer is the server's, its batch size that of fine-tuning;
            epochs and steps have no effect. Weighting is "num_examples" in the paper, n_k
            / n, and "uniform" in FedRep, section 5: a mean over clients.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.MLP((8, 8), num_classes=10, hidden=(32,))
        >>> srp.algorithms.FedSGD(model, srp.Training(srp.SGD(0.5), weighting="num_examples")).name
        'fedsgd'
    """

    sends_changes: ClassVar[bool] = True
    supports_batch_norm: ClassVar[bool] = False

    training: Training = Training(weighting="num_examples")

    def server_optimizer(self, context: RoundContext) -> Optimizer:
        """The server's optimizer in a round."""
        return self.training.in_round(context).optimizer

    @override
    def init(self, key: Key, data: Any) -> FedSGDServerState:
        return self.of_params(self.init_params(key, data))

    def of_params(self, params: SplitParams) -> FedSGDServerState:
        """The state of the server before the first round, at these parameters."""
        zero = jnp.int32(0)
        first = self.server_optimizer(RoundContext(zero, zero, zero, 1, zero))
        return FedSGDServerState(params, first.init(params))

    @override
    def with_params(
        self, server: FedSGDServerState, params: SplitParams
    ) -> FedSGDServerState:
        return self.of_params(params)

    @override
    def client(
        self,
        key: Key,
        params: SplitParams,
        state: tuple,
        examples: Examples,
        context: RoundContext,
    ):
        capacity = examples.y.shape[0]
        block_of_model = smallest_block(self.model.stack())
        size = AT_ONCE
        if block_of_model is not None:
            size = BLOCKS_AT_ONCE * block_of_model
        size = min(size, capacity)
        weight = self.training.weight(examples)
        examples = examples._replace(count=jnp.where(context.work > 0, examples.count, 0))
        key_local = named_key(key, "local")
        position = jnp.arange(size, dtype=jnp.int32)

        def add_block(block: Array, total: SplitParams) -> SplitParams:
            rows = block * size + position
            valid = rows < examples.count
            rows = jnp.where(valid, rows, 0)  # padding is never read
            x = examples.x[rows]
            y = examples.y[rows]
            key = jax.random.fold_in(key_local, block)

            def block_loss(params: SplitParams) -> Array:
                losses = per_example(self.loss(params, (), x, y, key), size)
                count = jnp.maximum(examples.count, 1).astype(losses.dtype)
                weights = valid.astype(losses.dtype) / count
                return jnp.sum(weights * losses)

            return jax.tree.map(jnp.add, total, jax.grad(block_loss)(params))

        # g_i = grad f_i(w), summed over blocks of examples
        num_blocks = batch_max((examples.count + size - 1) // size)
        max_blocks = -(-capacity // size)
        zeros = jax.tree.map(jnp.zeros_like, params)
        gradient = fori_loop(num_blocks, add_block, zeros, max_blocks)
        return ClientOutput(of_examples(gradient, examples), weight=weight)

    @override
    def server(
        self,
        key: Key,
        server: FedSGDServerState,
        mean: SplitParams,
        context: RoundContext,
    ):
        # w <- w - eta sum_i (n_i / n) g_i
        optimizer = self.server_optimizer(context)
        step, state = optimizer.update(mean, server.optimizer, server.params)
        return FedSGDServerState(jax.tree.map(jnp.add, server.params, step), state)
