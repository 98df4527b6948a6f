"""FedRep: a shared representation, a personal head."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from typing_extensions import override

from fedjax_srp.algorithms.examples import ExampleAlgorithm, gradient_message
from fedjax_srp.algorithms.local import (
    ModelLoss,
    fit_head,
    fit_representation,
    total_loss,
    with_tuned_head,
)
from fedjax_srp.algorithms.optimizers import Given, optional_optimizer
from fedjax_srp.base import (
    Array,
    ClientFunction,
    ClientOutput,
    Examples,
    Key,
    PyTree,
    RoundContext,
    TrainingLoss,
    Uncharged,
    evaluation,
)
from fedjax_srp.models.split import SplitParams
from fedjax_srp.parts.part import AtLeast, field, part


class FedRepClientState(NamedTuple):
    """The personal head h_i, and whether the client has ever trained it."""

    head: PyTree
    has_trained: Array  # () bool


@part
class PersonalHead(ExampleAlgorithm):
    """Base of FedRep and FedPer: representations are averaged, heads are personal.

    The server keeps the representation phi, and the last round's mean head, from which
    only `fine_tune` starts.
    """

    @override
    def init(self, key: Key, data: Any) -> SplitParams:
        return self.init_params(key, data)

    @override
    def init_client(
        self, key: Key, server: SplitParams, examples: Examples
    ) -> FedRepClientState:
        return FedRepClientState(server.head, jnp.bool_(False))

    @override
    def broadcast(self, server: SplitParams, context: RoundContext) -> PyTree:
        return server.representation

    @override
    def server(
        self, key: Key, server: SplitParams, mean: SplitParams, context: RoundContext
    ):
        # phi <- (1/n) sum_i phi_i
        return SplitParams(mean.representation, mean.head.value)

    def head_of(self, server: SplitParams, state: FedRepClientState) -> PyTree:
        """The head that a client holds, given the server's state."""
        return state.head

    def start_of(self, broadcast: PyTree, state: FedRepClientState) -> SplitParams:
        """The representation and the head from which a participant starts."""
        return SplitParams(broadcast, state.head)

    @property
    @override
    def gradient(self) -> ClientFunction:
        return self.loss_gradient

    def loss_gradient(
        self,
        key: Key,
        broadcast: PyTree,
        state: FedRepClientState,
        examples: Examples,
        context: RoundContext,
    ) -> ClientOutput:
        """Gradient of the client's loss in the representation, under its own head."""
        loss = ModelLoss(self.model, trains="representation")
        start = self.start_of(broadcast, state)
        return gradient_message(
            loss, start.representation, start.head, examples, self.training, context
        )

    @evaluation
    def fine_tune(
        self, key: Key, server: SplitParams, state: FedRepClientState, examples: Examples
    ):
        """The mean head of the last cohort, which clients never send, trained on the
        client under the current representation.
        """
        return with_tuned_head(key, self.model, server, examples, self.tuning)

    @evaluation
    def own_head(
        self, key: Key, server: SplitParams, state: FedRepClientState, examples: Examples
    ):
        """The client's own head, as it last left it, under the current representation."""
        head = self.head_of(server, state)
        params = SplitParams(server.representation, head)
        return Partial(self.model.logits, params)

    @evaluation
    def own_or_mean_head(
        self, key: Key, server: SplitParams, state: FedRepClientState, examples: Examples
    ):
        """The client's own head, or the last round's mean head, which clients never send,
        for clients that have never taken part.
        """
        head = own_or_mean(state.has_trained, state.head, server.head)
        params = SplitParams(server.representation, head)
        return Partial(self.model.logits, params)


def own_or_mean(has_trained: Array, own: PyTree, mean: PyTree) -> PyTree:
    """A client's own part of the model if it has trained one, else the mean part."""
    return jax.tree.map(lambda o, m: jnp.where(has_trained, o, m), own, mean)


class _Repetition(NamedTuple):
    """The state of a client's local work between two repetitions."""

    representation: PyTree
    head: PyTree
    loss: TrainingLoss | None
    of_representation: PyTree = None  # the optimizers' states; None: new ones
    of_head: PyTree = None


@part
class FedRep(PersonalHead):
    """FedRep (Collins et al., 2021, Algorithm 1; SRPFL, Algorithm 1, lines 8 to 10): the
    representation below the model's cut is shared, the head above it is personal.

    A round repeats `training.epochs` times: `head_epochs` epochs of the head under a
    frozen representation (whose features are computed once), then `representation_epochs`
    of the representation under the frozen new head. SRPFL's experiments have 1 or 5
    repetitions of (10 + 1); FedRep's have one of (10 + 1) or (10 + 5). With W units of
    work (`PartialWork`) both numbers of epochs are multiplied by W in each repetition.

    Evaluations: `fine_tune` (the default), the last round's mean head trained on the
    client for `fine_tune_epochs` under the current representation, as in the authors'
    code and fair to clients that have not taken part yet; `own_head`, the client's head
    as it last left it; `own_or_mean_head`, the same with the mean head for clients that
    have never taken part.

    Args:
        model: cut at the first personal layer.
        training: of the representation; `epochs` is the number of repetitions in a round.
            Weighting is "uniform" in the paper, "num_examples" in the authors' code.
        fine_tune_optimizer: of the head in `fine_tune`; default `head_optimizer`.
        head_epochs: tau_h, in epochs.
        representation_epochs: tau_phi, in epochs.
        head_optimizer: of the head; default that of training.
        keeps_optimizer: the optimizers of head and representation keep their states
            through all repetitions of a round, as in the code of SRPFL's authors. By
            default they are reset in every repetition.
        newcomers_take_mean_head: a client that takes part for the first time starts from
            the mean head of the last cohort, as in the code of SRPFL's authors, instead
            of the initial head; that head is also its `own_head` until then. The bytes
            received do not count it, since later rounds do not need it.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.MLP((8, 8), num_classes=10, hidden=(32,))
        >>> list(srp.algorithms.FedRep(model, srp.Training(srp.SGD(0.05))).evaluations)
        ['fine_tune', 'own_head', 'own_or_mean_head']
    """

    head_epochs: Annotated[int, AtLeast(0)] = 10
    representation_epochs: Annotated[int, AtLeast(0)] = 1
    head_optimizer: Given | None = field(
        converter=partial(optional_optimizer, "head_optimizer"), default=None
    )
    keeps_optimizer: bool = False
    newcomers_take_mean_head: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.training.epochs:
            raise ValueError(
                f"training.epochs={self.training.epochs}: repetitions in a round; "
                "give at least 1"
            )

    @property
    @override
    def tuning(self):
        optimizer = self.fine_tune_optimizer
        if optimizer is None:
            optimizer = self.head_optimizer
        argument = "fine_tune_optimizer"
        return self.training.alone(optimizer, self.fine_tune_epochs, argument)

    @override
    def broadcast(self, server: SplitParams, context: RoundContext) -> PyTree:
        if self.newcomers_take_mean_head:
            return SplitParams(server.representation, Uncharged(server.head))
        return super().broadcast(server, context)

    @override
    def head_of(self, server: SplitParams, state: FedRepClientState) -> PyTree:
        if self.newcomers_take_mean_head:
            return own_or_mean(state.has_trained, state.head, server.head)
        return state.head

    @override
    def start_of(self, broadcast: PyTree, state: FedRepClientState) -> SplitParams:
        if self.newcomers_take_mean_head:
            mean = broadcast.head.value
            head = own_or_mean(state.has_trained, state.head, mean)
            return SplitParams(broadcast.representation, head)
        return super().start_of(broadcast, state)

    @override
    def client(
        self,
        key: Key,
        broadcast: PyTree,
        state: FedRepClientState,
        examples: Examples,
        context: RoundContext,
    ) -> ClientOutput:
        now = self.training.in_round(context)
        of_representation = now._replace(epochs=self.representation_epochs)
        of_head = now._replace(epochs=self.head_epochs)
        if self.head_optimizer is not None:
            training = dataclasses.replace(self.training, optimizer=self.head_optimizer)
            of_head = training.in_round(context)._replace(epochs=self.head_epochs)

        def alternate(r: Array | int, last: _Repetition) -> _Repetition:
            done = r * context.work  # in earlier repetitions
            # h_i <- tau_h steps on f_i(h_i, phi), phi frozen (eq. 3)
            head = fit_head(
                key,
                self.model,
                last.representation,
                last.head,
                examples,
                of_head,
                done * self.head_epochs,
                last.of_head,
            )
            # phi_i <- tau_phi steps on f_i(h_i, phi_i), the new h_i frozen (eq. 4)
            body = fit_representation(
                key,
                self.model,
                last.representation,
                head.params,
                examples,
                of_representation,
                done * self.representation_epochs,
                last.of_representation,
            )
            loss = total_loss(head.loss, body.loss)
            if last.loss is not None:
                loss = total_loss(last.loss, loss)
            if not self.keeps_optimizer:
                return _Repetition(body.params, head.params, loss)
            return _Repetition(
                body.params, head.params, loss, body.optimizer, head.optimizer
            )

        # The first repetition is outside the loop: it starts from a representation that
        # all clients share.
        representation, head = self.start_of(broadcast, state)
        last = alternate(0, _Repetition(representation, head, None))
        repetitions = self.training.epochs or 1
        if repetitions > 1:
            last = jax.lax.fori_loop(1, repetitions, alternate, last)
        return ClientOutput(
            # phi_i is sent; the head is for evaluations.
            message=SplitParams(last.representation, Uncharged(last.head)),
            state=FedRepClientState(last.head, jnp.bool_(True)),
            weight=self.training.weight(examples),
            loss=last.loss,
        )
