"""FedPHP: clients inherit a private model, which teaches the next global one."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from typing_extensions import override

from fedjax_srp.algorithms.examples import GlobalAndPersonalModel
from fedjax_srp.algorithms.fedavg import FedAvg, FedAvgServerState
from fedjax_srp.base import (
    Array,
    ClientFunction,
    ClientOutput,
    Examples,
    Key,
    PyTree,
    RoundContext,
)
from fedjax_srp.models.split import SplitParams
from fedjax_srp.parts.part import Count, Share, part

TEMPERATURE = 4.0  # of the private model's outputs, in the authors' code


class FedPHPClientState(NamedTuple):
    """The client's private model v_i, and the number of its rounds so far."""

    own: SplitParams
    rounds: Array  # () int32


@part
class FedPHP(GlobalAndPersonalModel):
    """FedPHP (Li et al., 2021), inherited private models, with distillation: a global
    model as in `FedAvg`, and a private one of every client, which is never sent.

    A participant trains the downloaded model on (1 - lambda) times its loss plus lambda
    times the cross-entropy to what its private model says, at a temperature of 4. The
    private model then becomes mu v_i + (1 - mu) w_i, where mu grows in proportion to the
    client's number of rounds, from 0 to `inheritance`. The paper has a maximum mean
    discrepancy of features as another kind of teaching. With `teaching=0` the global
    model is that of `FedAvg`.

    Evaluations: `own_model` (the default), the private model; `global`, `fine_tune` (its
    head) and `fine_tune_all`, as in `FedAvg`.

    Args:
        model: a classifier.
        training: of the clients; weighting is "num_examples" in the authors' code.
        teaching: lambda; 0.1 for distillation in the authors' code.
        inheritance: the largest mu; 0.9 in the authors' code.
        inheritance_rounds: a client's number of rounds after which mu is largest; in the
            authors' code the expected number of all, 100 of 1000 at a tenth of the
            clients.

    Raises:
        ValueError: the model is no classifier.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.MLP((8, 8), num_classes=10, hidden=(32,))
        >>> list(srp.algorithms.FedPHP(model, teaching=0.05).evaluations)
        ['own_model', 'global', 'fine_tune', 'fine_tune_all']
    """

    teaching: Share = 0.1
    inheritance: Share = 0.9
    inheritance_rounds: Count = 100

    loss_gradient = FedAvg.loss_gradient

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model.is_regression:
            raise ValueError(
                f"model={self.model.name!r} takes numbers, but {self.name} compares the "
                "probabilities of classes; give a classifier, or choose e.g. fedavg"
            )

    @property
    @override
    def gradient(self) -> ClientFunction | None:
        return self.loss_gradient

    @override
    def init_client(self, key: Key, server: FedAvgServerState, examples: Examples) -> Any:
        return FedPHPClientState(server.params, jnp.int32(0))

    def taught(
        self, params: SplitParams, own: SplitParams, x: Array, y: Array, key: Key | None
    ) -> Array:
        """The loss and the distance to what the private model says, (batch,)."""
        logits = self.model.logits(params, x, key)
        teacher = jax.nn.softmax(self.model.logits(own, x) / TEMPERATURE)
        # (1 - lambda) f_i(w_i) - lambda sum_c p_c log q_c
        distance = -jnp.sum(teacher * jax.nn.log_softmax(logits), axis=-1)
        loss = self.model.loss(logits, y)
        return (1 - self.teaching) * loss + self.teaching * distance

    @override
    def client(
        self,
        key: Key,
        params: SplitParams,
        state: FedPHPClientState,
        examples: Examples,
        context: RoundContext,
    ):
        # w_i <- local SGD from w
        local = self.local_sgd(
            key, params, examples, context, loss=self.taught, frozen=state.own
        )
        # mu_i = mu min(rounds / Q, 1)
        part = state.rounds.astype(float) / self.inheritance_rounds
        mu = self.inheritance * jnp.minimum(part, 1)

        # v_i <- mu_i v_i + (1 - mu_i) w_i
        def inherit(own: Array, new: Array) -> Array:
            return new + mu.astype(new.dtype) * (own - new)

        own: PyTree = jax.tree.map(inherit, state.own, local.params)
        return ClientOutput(
            message=local.params,
            state=FedPHPClientState(own, state.rounds + 1),
            weight=self.training.weight(examples),
            loss=local.loss,
        )
