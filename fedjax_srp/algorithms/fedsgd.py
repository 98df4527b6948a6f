"""FedSGD: gradient descent, its gradients taken where the data are."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import optax

from fedjax_srp._checks import per_example, updates_of
from fedjax_srp.algorithms._evaluations import global_evaluations
from fedjax_srp.algorithms._gradient import global_gradient
from fedjax_srp.algorithms.local import (
    Optimizer,
    check_weighting,
    client_weight,
    example_loss,
    fine_tuning,
    local_training,
    of_examples,
)
from fedjax_srp.base import (
    Array,
    ClientOutput,
    Examples,
    FederatedAlgorithm,
    Key,
    Phase,
    PyTree,
    RoundContext,
    named_key,
)
from fedjax_srp.loops import batch_max
from fedjax_srp.models.split import SplitModel, SplitParams
from fedjax_srp.record import recorded

AT_ONCE = 256  # examples, so that a large client needs no more memory; only a model's noise depends on it


class FedSGDServerState(NamedTuple):
    """The global model w, and the state of the server's optimizer."""

    params: SplitParams
    optimizer: PyTree


@recorded
def fedsgd(
    model: SplitModel,
    optimizer: Optimizer | None = None,
    batch_size: int = 10,
    fine_tune_epochs: int = 10,
    client_weighting: str = "num_examples",
    evaluation: str = "global",
    fine_tune_optimizer: Optimizer | None = None,
) -> FederatedAlgorithm:
    """FedSGD (McMahan et al., 2017, section 2, C-fraction): every part of the model is shared, nothing is personal.

    A participant sends the gradient over all its examples at the global model, and the server takes one step along
    their mean: distributed gradient descent. Under full participation and weights by examples that is gradient descent
    on all samples. The optimizer is the server's, its momentum goes on from round to round. A unit of work is one
    gradient; more units compute nothing more.

    Evaluations: those of `fedavg`.

    Args:
        model: where it is cut matters to `fine_tune` alone.
        optimizer: of the server; default SGD with step size 0.01.
        batch_size: examples a step of fine-tuning.
        fine_tune_epochs: epochs of fine-tuning before a client is judged.
        client_weighting: "num_examples" (paper, n_k / n) or "uniform" (FedRep, section 5: a mean over clients).
        evaluation: the default one.
        fine_tune_optimizer: of both kinds of fine-tuning; default as `optimizer`.

    Returns:
        A `FederatedAlgorithm` on `Examples`.

    Raises:
        ValueError: an argument out of range, or labels and examples that do not fit the model.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.mlp((8, 8), num_classes=10, hidden=(32,))
        >>> srp.algorithms.fedsgd(model, srp.algorithms.sgd(0.5)).name
        'fedsgd'
    """
    training = local_training(optimizer, batch_size, epochs=1)
    tuning = fine_tuning(fine_tune_optimizer, optimizer, batch_size, fine_tune_epochs)
    check_weighting(client_weighting)
    loss = example_loss(model)

    def of_round(context: RoundContext) -> optax.GradientTransformation:
        return cast(optax.GradientTransformation, training.in_round(context).optimizer)

    def init(key: Key, data: Any) -> FedSGDServerState:
        model.check_fits(data)
        params, zero = model.init(key), jnp.int32(0)
        first = of_round(RoundContext(zero, zero, zero, data.num_clients, zero))
        return FedSGDServerState(params, first.init(params))

    def client(key: Key, params: SplitParams, state: tuple, examples: Examples, context: RoundContext) -> ClientOutput:
        size = min(AT_ONCE, examples.y.shape[0])
        key_local, place = named_key(key, "local"), jnp.arange(size, dtype=jnp.int32)

        def add(number: Array, total: SplitParams) -> SplitParams:
            rows = number * size + place
            valid = rows < examples.count
            rows = jnp.where(valid, rows, 0)  # padding is never even read
            x, y, key = examples.x[rows], examples.y[rows], jax.random.fold_in(key_local, number)

            def part(params: SplitParams) -> Array:
                losses = per_example(loss(params, (), x, y, key), size)
                weights = valid.astype(losses.dtype) / jnp.maximum(examples.count, 1).astype(losses.dtype)
                return jnp.sum(weights * losses)

            return jax.tree.map(jnp.add, total, jax.grad(part)(params))

        # g_i = grad f_i(w), one block of examples after the other
        num_blocks = batch_max((examples.count + size - 1) // size)
        gradient = jax.lax.fori_loop(jnp.int32(0), num_blocks, add, jax.tree.map(jnp.zeros_like, params))
        return ClientOutput(of_examples(gradient, examples), weight=client_weight(client_weighting, examples))

    def server(key: Key, state: FedSGDServerState, mean: SplitParams, context: RoundContext) -> FedSGDServerState:
        # w <- w - eta sum_i (n_i / n) g_i
        updates, optimizer = updates_of(of_round(context), mean, state.optimizer, state.params)
        return FedSGDServerState(jax.tree.map(jnp.add, state.params, updates), optimizer)

    return FederatedAlgorithm(
        name="fedsgd",
        init=init,
        init_client=lambda key, server, examples: (),
        round=Phase(lambda server, context: server.params, client, server),
        evaluations=global_evaluations(model, tuning, evaluation),
        gradient=global_gradient(loss, training, client_weighting),
    )
