"""The gradient of a client's loss at the global model, for policies that ask how near its minimum the cohort is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from fedjax_srp.algorithms._sgd import SGD
from fedjax_srp.algorithms.local import LocalTraining, Loss, client_weight, full_gradient
from fedjax_srp.backend import platform
from fedjax_srp.base import ClientFunction, ClientOutput, Examples, Key, PyTree, RoundContext
from fedjax_srp.loops import sequential


def global_gradient(
    loss: Loss, training: LocalTraining, client_weighting: str, frozen: Callable[[Any], PyTree] = lambda state: ()
) -> ClientFunction:
    """`FederatedAlgorithm.gradient` of algorithms that broadcast what they share: grad L_i(w), over i's examples.

    L_i is what local SGD descends, so the penalty of its weight decay belongs to it; of an optimizer that is not made
    by `srp.algorithms.sgd` nothing is known, and the gradient is that of the mean loss. The model is taken as it is
    judged, without dropout and augmentation.

    Args:
        loss: of the examples, as for `local_sgd`.
        training: of the clients.
        client_weighting: of the server's mean.
        frozen: client state -> what the loss takes as frozen: the personal part, where there is one.
    """

    def of_all(params: PyTree, personal: PyTree, examples: Examples) -> PyTree:
        return full_gradient(loss, params, personal, examples)

    def gradient(key: Key, params: PyTree, state: Any, examples: Examples, context: RoundContext) -> ClientOutput:
        # one client after the other: its examples are many, and stay in the cache
        of_loss = (sequential(of_all) if platform() == "cpu" else of_all)(params, frozen(state), examples)
        optimizer = training.in_round(context).optimizer
        message = with_decay(optimizer, of_loss, params) if isinstance(optimizer, SGD) else of_loss
        return ClientOutput(message, weight=client_weight(client_weighting, examples))

    return gradient


def with_decay(optimizer: SGD, gradient: PyTree, params: PyTree) -> PyTree:
    """The gradient with that of the optimizer's weight decay, which acts on leaves of rank 2 and more."""
    decay = optimizer.weight_decay
    return jax.tree.map(lambda g, w: g + (decay * w).astype(g.dtype) if w.ndim > 1 else g, gradient, params)
