"""APPLE: every client learns how much of each client's core model its own model has."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import Partial
from typing_extensions import override

from fedjax_srp.algorithms.examples import ExampleAlgorithm, Penalty, stacked
from fedjax_srp.algorithms.local import Objective, plain_gradient, with_tuned_head
from fedjax_srp.algorithms.optimizers import as_optimizer
from fedjax_srp.algorithms.training import LocalTraining
from fedjax_srp.base import (
    Array,
    ClientOutput,
    Examples,
    Key,
    Phase,
    PyTree,
    RoundContext,
    Uncharged,
    evaluation,
    nothing,
)
from fedjax_srp.models.split import SplitParams
from fedjax_srp.parts.part import Above, AtLeast, part

# The weight of the penalty in its last round, with the exponential schedule.
LAST_WEIGHT = 1e-3


class APPLEServerState(NamedTuple):
    """The core models of all clients, and the relations with which they begin."""

    params: SplitParams  # leaves (num_clients, ...): w_j, as last sent
    relations: Array  # (num_clients,) float: p_0


class APPLEClientState(NamedTuple):
    """A client's relations to the core models of all clients, less p_0."""

    change: Array  # (num_clients,) float: p_i - p_0


class APPLEMessage(NamedTuple):
    """A client's core model; the server has a mean for each client."""

    core: SplitParams
    was_sent: Uncharged  # () float: 1; 0 in the mean over no clients


class APPLEParts(NamedTuple):
    """Trained parameters: a client's own core model, and its relations."""

    core: SplitParams
    change: Array


class Downloads(NamedTuple):
    """The server's state, and the client's place in it."""

    server: APPLEServerState
    own: SplitParams  # w_i, as last sent
    is_own: Array  # (num_clients,) float: 1 for the client itself


def mixture(server: APPLEServerState, change: Array) -> SplitParams:
    """The personal model sum_j p_ij w_j."""
    relations = server.relations + change

    def mixed(cores: Array) -> Array:
        weights = relations.astype(cores.dtype)
        return jnp.tensordot(weights, cores, 1, precision="highest")

    return jax.tree.map(mixed, server.params)


@part
class APPLE(ExampleAlgorithm):
    """APPLE (Luo and Wu, 2022, adaptive personalized cross-silo federated learning):
    every client has a core model, and its personal model is the sum of all cores,
    weighted by its directed relations p_i.

    A participant downloads all cores. In every step it descends the loss of its personal
    model along its own core, by the optimizer of `training`, and along p_i, by plain
    gradient steps that begin at p_0, the clients' weights in the federation. A penalty
    `lambda(r) (mu / 2) |p_i - p_0|^2` keeps p_i near p_0 in the first rounds. Only cores
    are sent; of clients that take no part the server keeps the last ones. In the paper
    all take part.

    Relations may be negative, and need not sum to 1. Cores start equal, as in PFLlib, in
    the authors' code each at random. There p_i has the momentum of the cores, and mu is
    our mu / 2. PFLlib sends personal models in place of cores, multiplies the step size
    of cores by the number of clients, and takes means over parameters in the gradient of
    p_i, where the paper has sums. The paper's limit on downloads is left out. With one
    client, and p_i fixed, this is `LocalOnly`.

    The server holds the core of every client, which a round copies twice on each device;
    all clients train on one array of them. A step reads all cores, so its cost grows with
    the number of clients: the method is for tens of them. The download is charged for all
    cores, also the client's own. A run that begins from given parameters is given those
    of all clients, stacked, and p_0 is 1 / N each.

    Evaluations: `own_model` (the default), the client's personal model from the cores at
    the server, with which its next round would begin; `fine_tune`, its head trained on
    the client.

    Args:
        training: of the cores; 0.01 with momentum 0.9 in the authors' code. With
            weighting "num_examples", the paper's, p_0 has the clients' shares of all
            examples, which they tell before the first round; with "uniform" 1 / N each.
        relation_step_size: eta_2, of p_i; 0.001 in the authors' code.
        penalty: mu; 0.1 in the authors' code.
        penalty_rounds: L, after which lambda is 0; in the authors' code a tenth of its
            160 rounds.
        penalty_schedule: lambda(r), "exponential" (1000 to the power -r / L) or "cosine"
            ((1 + cos(pi r / L)) / 2).

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.MLP((8, 8), num_classes=10, hidden=(32,))
        >>> list(srp.algorithms.APPLE(model, penalty=1.0).evaluations)
        ['own_model', 'fine_tune']
    """

    # Relations may be negative, and variances must not be.
    supports_batch_norm: ClassVar[bool] = False

    relation_step_size: Annotated[float, AtLeast(0), "give 0 for none, or e.g. 1e-3"] = (
        1e-3
    )
    penalty: Penalty = 0.1
    penalty_rounds: Annotated[float, Above(0), "give e.g. 16.0"] = 16.0
    penalty_schedule: Literal["exponential", "cosine"] = "exponential"

    @override
    def init(self, key: Key, data: Any) -> APPLEServerState:
        params = self.init_params(key, data)
        num_clients = data.num_clients
        relations = jnp.full(num_clients, 1 / num_clients)
        return APPLEServerState(stacked(params, num_clients), relations)

    @override
    def init_client(
        self, key: Key, server: APPLEServerState, examples: Examples
    ) -> APPLEClientState:
        return APPLEClientState(jnp.zeros_like(server.relations))

    # Before the first round: p_0.

    @property
    @override
    def start_phases(self) -> tuple[Phase, ...]:
        if self.training.weighting == "uniform":
            return ()
        return (Phase("relations", nothing, self.count, self.begin),)

    def count(
        self,
        key: Key,
        broadcast: tuple[()],
        state: APPLEClientState,
        examples: Examples,
        context: RoundContext,
    ):
        """The number of a client's examples, for the server alone."""
        is_own = jax.nn.one_hot(context.client_id, state.change.shape[0])
        return ClientOutput(self.training.weight(examples), weight=is_own)

    def begin(
        self, key: Key, server: APPLEServerState, counts: Array, context: RoundContext
    ) -> APPLEServerState:
        """The server's state with the shares of all clients."""
        # p_0j = n_j / sum_k n_k
        return server._replace(relations=counts / jnp.sum(counts))

    # Rounds.

    def loss_of_parts(
        self, parts: APPLEParts, downloads: Downloads, x: Array, y: Array, key: Key | None
    ) -> Array:
        """The loss of the personal model, (batch,)."""
        server, own, is_own = downloads
        relation = jnp.sum(is_own * (server.relations + parts.change))

        # w = sum_j p_ij w_j, with the client's own core as it is trained
        def with_own(mixed: Array, last: Array, new: Array) -> Array:
            return mixed + relation.astype(new.dtype) * (new - last)

        mixed = mixture(server, parts.change)
        params = jax.tree.map(with_own, mixed, own, parts.core)
        return self.loss(params, (), x, y, key)

    def penalty_in(self, context: RoundContext) -> Array:
        """lambda(r) mu."""
        r = context.round.astype(float)
        if self.penalty_schedule == "cosine":
            weight = (1 + jnp.cos(jnp.pi * r / self.penalty_rounds)) / 2
        else:
            weight = jnp.power(LAST_WEIGHT, r / self.penalty_rounds)
        return self.penalty * jnp.where(r < self.penalty_rounds, weight, 0)

    @override
    def training_in(self, context: RoundContext) -> LocalTraining:
        now = super().training_in(context)
        steps: dict[Hashable, Any] = {
            "core": now.optimizer.transformation(),
            "change": optax.sgd(self.relation_step_size),
        }
        labels = lambda parts: parts._replace(core="core", change="change")
        both = optax.partition(steps, labels)
        return now._replace(optimizer=as_optimizer("optimizer", both))

    @override
    def client(
        self,
        key: Key,
        server: APPLEServerState,
        state: APPLEClientState,
        examples: Examples,
        context: RoundContext,
    ):
        is_own = jax.nn.one_hot(context.client_id, state.change.shape[0])
        own = jax.tree.map(lambda cores: cores[context.client_id], server.params)
        penalty = self.penalty_in(context)

        def gradient(objective: Objective, parts: APPLEParts, weights: Array) -> PyTree:
            direction: APPLEParts = plain_gradient(objective, parts, weights)
            # grad_p F_i + lambda(r) mu (p_i - p_0)
            change = direction.change + penalty * parts.change
            return direction._replace(change=change)

        # (w_i, p_i) <- local SGD on F_i(sum_j p_ij w_j) + lambda(r) (mu / 2) |p_i - p_0|^2
        local = self.local_sgd(
            key,
            APPLEParts(own, state.change),
            examples,
            context,
            loss=self.loss_of_parts,
            frozen=Downloads(server, own, is_own),
            gradient=gradient,
        )
        core, change = local.params
        return ClientOutput(
            message=APPLEMessage(core, Uncharged(jnp.ones(()))),
            state=APPLEClientState(change),
            weight=is_own,
            info={"own_relation": jnp.sum(is_own * (server.relations + change))},
            loss=local.loss,
        )

    @override
    def server(
        self,
        key: Key,
        server: APPLEServerState,
        mean: APPLEMessage,
        context: RoundContext,
    ) -> APPLEServerState:
        # the mean of nobody is 0
        was_sent = mean.was_sent.value > 0

        def updated(last: Array, new: Array) -> Array:
            is_new = jnp.expand_dims(was_sent, tuple(range(1, new.ndim)))
            return jnp.where(is_new, new, last)

        # w_j as client j has sent it
        return server._replace(params=jax.tree.map(updated, server.params, mean.core))

    @evaluation
    def own_model(
        self,
        key: Key,
        server: APPLEServerState,
        state: APPLEClientState,
        examples: Examples,
    ):
        """The client's personal model from the cores at the server, with which its next
        round would begin.
        """
        return Partial(self.model.logits, mixture(server, state.change))

    @evaluation
    def fine_tune(
        self,
        key: Key,
        server: APPLEServerState,
        state: APPLEClientState,
        examples: Examples,
    ):
        """The client's personal model from the cores at the server, its head trained on
        the client.
        """
        params = mixture(server, state.change)
        return with_tuned_head(key, self.model, params, examples, self.tuning)
