"""Fed-MTL: personal models with constant task relations."""

from __future__ import annotations

import math
from typing import ClassVar

import jax
import jax.numpy as jnp
from typing_extensions import override

from fedjax_srp.algorithms.examples import (
    FedAvgServerState,
    GlobalModel,
    OwnModel,
    OwnModelState,
    Penalty,
    mean_of_all,
)
from fedjax_srp.algorithms.local import Objective, plain_gradient
from fedjax_srp.base import (
    Array,
    ClientOutput,
    Examples,
    Key,
    PyTree,
    RoundContext,
)
from fedjax_srp.models.split import SplitParams
from fedjax_srp.parts.part import part


@part
class FedMTL(OwnModel):
    """Fed-MTL (Smith et al., 2017) with CONSTANT task relations, as the code of LG-FedAvg
    and FedRep has it: every part of the model is personal, and only the mean of all
    models is shared.

    The N models are the columns of W; clients descend `sum_i f_i(w_i) + l1 tr(W Omega
    W^T) + l2 |W|_F^2` with a constant Omega = (I - 11^T / N)^2, so the trace is `sum_i
    |w_i - w_bar|^2`: mean-regularized multi-task learning. MOCHA, the algorithm of the
    paper, also learns Omega and solves a dual problem for linear models; for networks
    neither the authors' code nor this does. A participant trains its own column by local
    SGD; the other columns are those of the beginning of the round.

    The code relates only the sampled clients, here all clients are related; it also has a
    matrix of ones instead of I, which makes the term a multiple of `|sum_i w_i|^2`. At
    its strengths, 1e-7 for networks of 10^5 to 10^6 parameters, neither has a visible
    effect.

    With both strengths 0, or for one client and l2 = 0, this is `LocalOnly` (except for
    the bytes). Under full participation one full-batch step of plain SGD moves w_bar as
    if there were no relations.

    Evaluations: `own_model` (the default), the client's model as it last left it;
    `fine_tune`, the same with its head trained further on the client for
    `fine_tune_epochs`.

    Args:
        training: of the clients; weighting must be "uniform", w_bar being the mean of all
            models.
        relation_strength: l1; None for the code's 10^-(floor(log10 d) + 2) with d
            parameters.
        norm_strength: l2, on weights and biases alike; None as for l1, 0 for none.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.MLP((8, 8), num_classes=10, hidden=(32,))
        >>> list(srp.algorithms.FedMTL(model, relation_strength=0.1).evaluations)
        ['own_model', 'fine_tune']
    """

    sends_changes: ClassVar[bool] = True
    name: ClassVar[str] = "fed_mtl"
    requires_uniform_weighting: ClassVar[bool] = True

    relation_strength: Penalty | None = None
    norm_strength: Penalty | None = None

    # The server keeps the mean of all models, w_bar, and clients download it.
    init = GlobalModel.init
    broadcast = GlobalModel.broadcast

    @override
    def client(
        self,
        key: Key,
        mean: SplitParams,
        state: OwnModelState,
        examples: Examples,
        context: RoundContext,
    ):
        num_params = sum(leaf.size for leaf in jax.tree.leaves(mean))
        default = 10.0 ** -(int(math.log10(num_params) + 1) + 1)
        l1 = self.relation_strength
        if l1 is None:
            l1 = default
        l2 = self.norm_strength
        if l2 is None:
            l2 = default

        # d/dw_i (l1 tr(W Omega W^T) + l2 |W|^2) = 2 l1 (w_i - w_bar) + 2 l2 w_i, and
        # w_bar includes w_i: so it is slope w_i - pull, both constant in a round
        slope = 2 * l1 * (1 - 1 / context.num_clients) + 2 * l2
        pull = jax.tree.map(
            lambda w_bar, w: 2 * l1 * (w_bar - w / context.num_clients),
            mean,
            state.params,
        )

        def related(objective: Objective, params: PyTree, weights: Array) -> PyTree:
            gradient = plain_gradient(objective, params, weights)
            return jax.tree.map(lambda g, w, p: g + slope * w - p, gradient, params, pull)

        # w_i <- local SGD along it, from w_i
        local = self.local_sgd(key, state.params, examples, context, gradient=related)
        change = jax.tree.map(jnp.subtract, local.params, state.params)
        return ClientOutput(change, OwnModelState(local.params), loss=local.loss)

    @override
    def server(
        self,
        key: Key,
        server: FedAvgServerState,
        mean: SplitParams,
        context: RoundContext,
    ):
        # w_bar <- w_bar + (1 / N) sum_i (w_i+ - w_i)
        return FedAvgServerState(mean_of_all(server.params, mean, context))
