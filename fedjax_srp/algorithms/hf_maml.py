"""Per-FedAvg with Hessian-free meta-gradients: a global model that is good after one step on the client's data."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_srp._checks import check_integer, check_numbers
from fedjax_srp.algorithms.local import (
    LocalTraining,
    Objective,
    Optimizer,
    check_weighting,
    client_weight,
    example_loss,
    fine_tuning,
    local_sgd,
    local_training,
    with_tuned_head,
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
from fedjax_srp.models.split import SplitModel, SplitParams
from fedjax_srp.record import recorded


class HFMAMLServerState(NamedTuple):
    """The global initialisation w."""

    params: SplitParams


@recorded
def hf_maml(
    model: SplitModel,
    optimizer: Optimizer | None = None,
    inner_step_size: float | Array = 0.01,
    difference: float | Array = 1e-3,
    batch_size: int = 10,
    local_epochs: int | None = 1,
    local_steps: int | None = None,
    support_fraction: float | None = None,
    inner_steps: int = 1,
    fine_tune_epochs: int = 10,
    client_weighting: str = "uniform",
    fine_tune_optimizer: Optimizer | None = None,
) -> FederatedAlgorithm:
    """HF-MAML (Per-FedAvg of Fallah et al., 2020, Hessian-free), a baseline of the SRPFL and FedRep papers.

    Everything is shared. Clients descend F_i(w) = f_i(w - alpha grad f_i(w)), whose gradient
    (I - alpha H(w)) grad f_i(w - alpha grad f_i(w)) needs a Hessian-vector product only; it is taken by central
    differences, so that a step costs four gradients. The papers' own code differs: SRPFL's aliases its buffers and does
    plain SGD but for one meta-step on the last batch; this is what it means to do.

    Evaluations: `one_inner_step` (the default), the model after `inner_steps` full-batch steps of size alpha on the
    client's data; `global`, the model as it is; `fine_tune`, its head trained on the client for `fine_tune_epochs`.

    Args:
        model: where it is cut matters to `fine_tune` alone.
        optimizer: of the meta-steps, afresh in every round; default SGD with step size beta = 0.01 (SRPFL, appendix C,
            for all experiments). SRPFL's code has 0.1, which it hardly ever takes: with the meta-steps that are meant
            it diverges on MNIST.
        inner_step_size: alpha; 0.01 in SRPFL's code, unsaid in its text.
        difference: delta, of the central differences, in units of the direction v: (grad f(w + delta v) - grad
            f(w - delta v)) / (2 delta).
        batch_size: examples a meta-step; the last batch of an epoch may be smaller.
        local_epochs: epochs over the client's shuffled examples in a round, per unit of work.
        local_steps: instead of epochs, meta-steps on batches drawn with replacement (set local_epochs=None).
        support_fraction: of a batch for the inner step and the Hessian, the rest for the outer gradient (FedRep's code:
            0.8); None takes the whole batch for both.
        inner_steps: of `one_inner_step`.
        fine_tune_epochs: of the head, in `fine_tune`.
        client_weighting: "uniform" (papers) or "num_examples" (authors' code).
        fine_tune_optimizer: of `fine_tune`; default as `optimizer`.

    Returns:
        A `FederatedAlgorithm` on `Examples`.

    Raises:
        ValueError: an argument out of range, or labels and examples that do not fit the model.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.mlp((8, 8), num_classes=10, hidden=(32,))
        >>> list(srp.algorithms.hf_maml(model).evaluations)
        ['one_inner_step', 'global', 'fine_tune']
    """
    training = local_training(optimizer, batch_size, local_epochs, local_steps)
    tuning = fine_tuning(fine_tune_optimizer, optimizer, batch_size, fine_tune_epochs)
    check_weighting(client_weighting)
    check_integer("inner_steps", inner_steps, 1)
    check_numbers("inner_step_size", inner_step_size, "give a step size, e.g. 0.01", max_ndim=0)
    check_numbers("difference", difference, "give a small number, e.g. 1e-3", positive=True, max_ndim=0)
    adapting = LocalTraining(optax.sgd(inner_step_size), batch_size=2**30, epochs=inner_steps)  # full batches
    if support_fraction is not None and not 0 < support_fraction < 1:
        raise ValueError(f"support_fraction={support_fraction} must lie between 0 and 1; None takes the batch for both")

    loss = example_loss(model)

    def halves(weights: Array) -> tuple[Array, Array]:
        """Weights of support and target: the first of the batch and the others; where none is left, all are both."""
        if support_fraction is None:
            return weights, weights
        real = (weights > 0).astype(weights.dtype)
        count, place = jnp.sum(real), jnp.cumsum(real)
        support = jnp.where(place <= jnp.maximum(jnp.round(support_fraction * count), 1), real, jnp.zeros_like(real))
        target = jnp.where(count > jnp.sum(support), real - support, support)
        return support / jnp.maximum(jnp.sum(support), 1), target / jnp.maximum(jnp.sum(target), 1)

    def meta_gradient(objective: Objective, w: PyTree, weights: Array) -> PyTree:
        support, target = halves(weights)
        gradient = jax.grad(objective)
        move = lambda size, v: jax.tree.map(lambda p, q: p + size * q, w, v)  # noqa: E731
        # v = grad f(w - alpha grad f(w))
        v = gradient(move(-inner_step_size, gradient(w, support)), target)
        # H(w) v = (grad f(w + delta v) - grad f(w - delta v)) / (2 delta)
        forward, backward = gradient(move(difference, v), support), gradient(move(-difference, v), support)
        # (I - alpha H(w)) v
        factor = inner_step_size / (2 * difference)
        return jax.tree.map(lambda v, f, b: v - factor * (f - b), v, forward, backward)

    def init(key: Key, data: Any) -> HFMAMLServerState:
        model.check_fits(data)
        return HFMAMLServerState(model.init(key))

    def client(key: Key, params: SplitParams, state: tuple, examples: Examples, context: RoundContext) -> ClientOutput:
        # w_i <- steps of size beta on F_i from w
        now = training.in_round(context)
        local = local_sgd(named_key(key, "local"), loss, params, (), examples, now, gradient=meta_gradient)
        return ClientOutput(local, weight=client_weight(client_weighting, examples))

    def server(key: Key, state: HFMAMLServerState, mean: SplitParams, context: RoundContext) -> HFMAMLServerState:
        # w <- (1/n) sum_i w_i
        return HFMAMLServerState(mean)

    def one_inner_step(key: Key, server: HFMAMLServerState, state: tuple, examples: Examples):
        """The global model after its inner full-batch steps on the client's data."""
        params = local_sgd(named_key(key, "local"), loss, server.params, (), examples, adapting)
        return lambda x: model.logits(params, x)

    def as_it_is(key: Key, server: HFMAMLServerState, state: tuple, examples: Examples):
        """The global model as it is."""
        return lambda x: model.logits(server.params, x)

    def fine_tune(key: Key, server: HFMAMLServerState, state: tuple, examples: Examples):
        """The global model, its head trained on the client."""
        return with_tuned_head(key, model, server.params, examples, tuning)

    return FederatedAlgorithm(
        name="hf_maml",
        init=init,
        init_client=lambda key, server, examples: (),
        round=Phase(lambda server, context: server.params, client, server),
        evaluations={"one_inner_step": one_inner_step, "global": as_it_is, "fine_tune": fine_tune},
    )
