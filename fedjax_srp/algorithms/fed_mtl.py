"""Fed-MTL: personal models that are held together by constant task relations."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_srp._checks import check_numbers
from fedjax_srp.algorithms.local import (
    Objective,
    Optimizer,
    example_loss,
    fine_tuning,
    local_sgd,
    local_training,
    plain_gradient,
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


class FedMTLServerState(NamedTuple):
    """The mean of ALL clients' models: w_bar."""

    params: SplitParams


class FedMTLClientState(NamedTuple):
    """The client's model w_i: its column of W."""

    params: SplitParams


@recorded
def fed_mtl(
    model: SplitModel,
    optimizer: Optimizer | None = None,
    relation_strength: float | Array | None = None,
    norm_strength: float | Array | None = None,
    batch_size: int = 10,
    local_epochs: int | None = 1,
    local_steps: int | None = None,
    fine_tune_epochs: int = 10,
    fine_tune_optimizer: Optimizer | None = None,
) -> FederatedAlgorithm:
    """Fed-MTL (Smith et al., 2017) with CONSTANT task relations, as the code of LG-FedAvg and FedRep has it: every part
    of the model is personal, and only the mean of all models is shared.

    The N models are the columns of W; clients descend `sum_i f_i(w_i) + l1 tr(W Omega W^T) + l2 |W|_F^2` with
    Omega = (I - 11^T / N)^2 for good, so the trace is `sum_i |w_i - w_bar|^2`: mean-regularized multi-task learning.
    MOCHA, the algorithm of the paper, also learns Omega and solves a dual problem for linear models; for networks
    neither the authors' code nor this does. A participant moves its own column by local SGD and takes the others as
    they were when the round began.

    The code sums over the sampled clients, here the relations are between all; it also writes a matrix of ones where I
    is meant, which makes the term a multiple of `|sum_i w_i|^2`. At its strengths, 1e-7 for networks of 10^5 to 10^6
    parameters, neither can be told from no relation.

    With both strengths 0, or for one client and l2 = 0, this is `local_only` (but for the bytes). Under full
    participation one full-batch step of plain SGD moves w_bar as if there were no relations.

    Evaluations: `own_model` (the default), the client's model as it last left it; `fine_tune`, the same with its head
    trained further on the client for `fine_tune_epochs`.

    Args:
        model: where it is cut matters to `fine_tune` alone.
        optimizer: of local training, afresh in every round; default SGD with step size 0.01.
        relation_strength: l1; None for the code's 10^-(floor(log10 d) + 2) with d parameters.
        norm_strength: l2, on weights and biases alike; None as for l1, 0 for none.
        batch_size: examples a local step; the last batch of an epoch may be smaller.
        local_epochs: epochs over the client's shuffled examples in a round, per unit of work.
        local_steps: instead of epochs, steps on batches drawn with replacement (set local_epochs=None).
        fine_tune_epochs: epochs of the head before a client is judged by `fine_tune`.
        fine_tune_optimizer: of the head in `fine_tune`; default as `optimizer`.

    Returns:
        A `FederatedAlgorithm` on `Examples`.

    Raises:
        ValueError: an argument out of range, or labels and examples that do not fit the model.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.mlp((8, 8), num_classes=10, hidden=(32,))
        >>> list(srp.algorithms.fed_mtl(model, relation_strength=0.1).evaluations)
        ['own_model', 'fine_tune']
    """
    training = local_training(optimizer, batch_size, local_epochs, local_steps)
    tuning = fine_tuning(fine_tune_optimizer, optimizer, batch_size, fine_tune_epochs)
    for name, strength in (("relation_strength", relation_strength), ("norm_strength", norm_strength)):
        if strength is not None:
            check_numbers(name, strength, "give 0 for none, or e.g. 0.01", max_ndim=0)
    loss = example_loss(model)

    def init(key: Key, data: Any) -> FedMTLServerState:
        model.check_fits(data)
        return FedMTLServerState(model.init(key))

    def client(
        key: Key, mean: SplitParams, state: FedMTLClientState, examples: Examples, context: RoundContext
    ) -> ClientOutput:
        num_params = sum(leaf.size for leaf in jax.tree.leaves(mean))
        of_the_code = 10.0 ** -(int(math.log10(num_params) + 1) + 1)
        l1, l2 = (of_the_code if s is None else s for s in (relation_strength, norm_strength))

        # d/dw_i (l1 tr(W Omega W^T) + l2 |W|^2) = 2 l1 (w_i - w_bar) + 2 l2 w_i, with w_i in w_bar as it is now:
        # slope w_i - pull, where only w_i changes from step to step
        slope = 2 * l1 * (1 - 1 / context.num_clients) + 2 * l2
        pull = jax.tree.map(lambda w_bar, w: 2 * l1 * (w_bar - w / context.num_clients), mean, state.params)

        def related(objective: Objective, params: PyTree, weights: Array) -> PyTree:
            gradient = plain_gradient(objective, params, weights)
            return jax.tree.map(lambda g, w, p: g + slope * w - p, gradient, params, pull)

        # w_i <- local SGD on this, from w_i
        in_round = training.in_round(context)
        params = local_sgd(named_key(key, "local"), loss, state.params, (), examples, in_round, gradient=related)
        return ClientOutput(jax.tree.map(jnp.subtract, params, state.params), FedMTLClientState(params))

    def server(key: Key, state: FedMTLServerState, mean: SplitParams, context: RoundContext) -> FedMTLServerState:
        # w_bar <- w_bar + (1 / N) sum_i (w_i+ - w_i)
        share = context.cohort_size.astype(float) / context.num_clients
        return FedMTLServerState(jax.tree.map(lambda w, d: w + share.astype(w.dtype) * d, state.params, mean))

    def own_model(key: Key, server: FedMTLServerState, state: FedMTLClientState, examples: Examples):
        """The client's own model, as it last left it."""
        return lambda x: model.logits(state.params, x)

    def fine_tune(key: Key, server: FedMTLServerState, state: FedMTLClientState, examples: Examples):
        """The client's own model, its head trained further on the client."""
        return with_tuned_head(key, model, state.params, examples, tuning)

    return FederatedAlgorithm(
        name="fed_mtl",
        init=init,
        init_client=lambda key, server, examples: FedMTLClientState(server.params),
        round=Phase(lambda server, context: server.params, client, server),
        evaluations={"own_model": own_model, "fine_tune": fine_tune},
    )
