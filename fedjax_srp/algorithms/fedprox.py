"""FedProx: FedAvg with a proximal term."""

from __future__ import annotations

import jax
from typing_extensions import override

from fedjax_srp.algorithms.examples import Penalty
from fedjax_srp.algorithms.fedavg import FedAvg
from fedjax_srp.algorithms.local import Gradient, Objective, plain_gradient
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


def proximal_gradient(mu: Array | float, center: PyTree) -> Gradient:
    """Gradient of an objective plus `(mu / 2) |w_i - w|^2`; `center` is w."""

    def proximal(objective: Objective, local: PyTree, weights: Array) -> PyTree:
        # grad h_i(w_i) = grad f_i(w_i) + mu (w_i - w)
        gradient = plain_gradient(objective, local, weights)
        return jax.tree.map(lambda g, w_i, w: g + mu * (w_i - w), gradient, local, center)

    return proximal


@part
class FedProx(FedAvg):
    """FedProx (Li et al., 2020, Algorithm 2): every part of the model is shared, nothing
    is personal.

    A client descends `f_i(w_i) + (mu / 2) |w_i - w|^2` from the global model w. The
    paper's gamma_i-inexact minimum is found by local SGD, as in its experiments; gamma_i
    differs if the policy gives each client its own units of work. With mu = 0 this is
    `FedAvg`. Momentum includes the term's gradient.

    Evaluations: those of `FedAvg`; FedProx+FT of the FedRep paper is
    `evaluation="fine_tune"`.

    Args:
        training: of the clients; weighting is "uniform" in the paper, which draws devices
            in proportion to their examples (policies here draw them uniformly), and
            "num_examples" in FedRep's code.
        mu: weight of the proximal term; the paper tunes it in {0.001, 0.01, 0.1, 1}, 0
            for none.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.MLP((8, 8), num_classes=10, hidden=(32,))
        >>> list(srp.algorithms.FedProx(model, mu=0.01).evaluations)
        ['global', 'fine_tune', 'fine_tune_all']
    """

    mu: Penalty = 0.1

    @override
    def client(
        self,
        key: Key,
        params: SplitParams,
        state: tuple,
        examples: Examples,
        context: RoundContext,
    ):
        # w_i <- local SGD on h_i, from w
        gradient = proximal_gradient(self.mu, params)
        local = self.local_sgd(key, params, examples, context, gradient=gradient)
        return ClientOutput(
            local.params, weight=self.training.weight(examples), loss=local.loss
        )
