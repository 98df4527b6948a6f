"""FedFomo: a client moves towards those models of others that help on its own data."""

from __future__ import annotations

import math
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
from typing_extensions import override

from fedjax_srp.algorithms.examples import OwnModel
from fedjax_srp.algorithms.local import mean_loss, random_order, square_norm
from fedjax_srp.base import (
    Array,
    ClientOutput,
    Examples,
    Exchange,
    Key,
    Participants,
    Phase,
    RoundContext,
    named_key,
    nothing,
    unchanged,
)
from fedjax_srp.models.normalization import without_statistics
from fedjax_srp.models.split import SplitParams
from fedjax_srp.parts.part import AtLeast, Below, Count, Share, Static, part


class FedFomoServerState(NamedTuple):
    """The mean of the last participants' models, and the preferences before the first
    round.
    """

    params: SplitParams
    preferences: Array  # (num_clients,) float: zeros


class FedFomoClientState(NamedTuple):
    """A client's model, the one that it last trained and sent, its preferences."""

    params: SplitParams  # theta_i, a mixture
    trained: SplitParams  # theta_i^l
    preferences: Array  # (num_clients,) float, p_i: sums of the weights of models
    seed: Array  # () uint32, of its held-out examples and of its exploration


class Offer(NamedTuple):
    """The models that a client downloads."""

    models: SplitParams  # leaves (num_models, ...)
    client_ids: Array  # (num_models,) int32; num_clients where there is no other model


class Parts(NamedTuple):
    """A client's training examples, and its validation examples."""

    training: Examples
    validation: Examples


@part
class FedFomo(OwnModel):
    """FedFomo (Zhang et al., 2021), first-order model optimization: every part of the
    model is personal, and a participant downloads the models of others that helped it.

    A participant trains its model on a part of its examples and sends it. It then
    downloads the new models of `num_models` other participants. Each of these, and its
    own new model, has the weight `(L_i(theta_i) - L_i(theta_n)) / |theta_n - theta_i|`,
    where theta_i is its model before the training and L_i the mean loss of its validation
    examples. It moves from theta_i by the mean of the differences to models of positive
    weight; without any it stays there. Weights are added to the client's preferences,
    which the server knows: it sends the models of highest preference, breaks ties by lot,
    and with probability `exploration` sends any model instead. Where fewer others take
    part all are sent, and `num_models` charged. How many of them have a positive weight,
    in the mean over the participants, is recorded as `models_used`.

    Validation examples are drawn once for each client. One that is too small for any
    validates on training examples. Statistics of BatchNorm have no part in distances.
    PFLlib holds out the last examples, has no exploration, compares the client's own
    model only while that is among the preferred ones, and keeps the trained model where
    no weight is positive. The authors' code measures weights and movements from the
    initial model, and lengths by sums of absolute values.

    A participant computes the loss of `num_models` + 2 models; every device holds the
    models of all participants, and `num_models` for each client that it trains at once.

    Evaluations: `own_model` (the default), the client's model after the mixture;
    `fine_tune`, its head trained further, on all examples. The server's state is the mean
    of the last participants' models, which no client downloads.

    Args:
        training: of the clients; its weighting is that of the mean, which has no effect
            on the clients.
        num_models: M, downloads of a participant; with its own model five, as in the
            authors' commands and in PFLlib.
        validation_share: of a client's examples; 0.2 in the authors' code and in PFLlib.
            0: all examples train and validate.
        exploration: epsilon in the first round, 0.3 in the authors' commands.
        exploration_decay: of epsilon, subtracted in every round, 0.05 in these.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.MLP((8, 8), num_classes=10, hidden=(32,))
        >>> list(srp.algorithms.FedFomo(model, num_models=3).evaluations)
        ['own_model', 'fine_tune']
    """

    num_models: Count = 4
    validation_share: Annotated[
        Static[float], AtLeast(0), Below(1), "give 0 for none, or e.g. 0.2"
    ] = 0.2
    exploration: Share = 0.3
    exploration_decay: Share = 0.05

    @override
    def init(self, key: Key, data: Any) -> FedFomoServerState:
        params = self.init_params(key, data)
        return FedFomoServerState(params, jnp.zeros(data.num_clients))

    @override
    def init_client(
        self, key: Key, server: FedFomoServerState, examples: Examples
    ) -> Any:
        seed = jax.random.bits(named_key(key, "seed"), (), jnp.uint32)
        params = server.params
        return FedFomoClientState(params, params, server.preferences, seed)

    @property
    @override
    def phases(self) -> tuple[Phase, ...]:
        # After training every participant downloads models of others.
        offers = Exchange(lambda state: state._replace(params=()), self.offer)
        finish = Phase("finish", nothing, self.move, unchanged, offers)
        return (Phase("round", nothing, self.client, self.server), finish)

    def parts(self, state: FedFomoClientState, examples: Examples) -> Parts:
        """A client's training and validation examples, the same in every round."""
        if self.validation_share == 0:
            return Parts(examples, examples)
        count = examples.count
        capacity = examples.y.shape[0]
        num_training = jnp.round((1 - self.validation_share) * count.astype(float))
        num_training = jnp.maximum(num_training.astype(jnp.int32), jnp.minimum(count, 1))
        # The validation examples come last, without any all examples.
        num_validation = count - num_training
        first = jnp.where(num_validation > 0, num_training, 0)
        most = min(math.ceil(self.validation_share * capacity + 0.5), capacity)
        key = named_key(jax.random.key(state.seed), "validation")
        order = random_order(key, count, 1, capacity)

        def rows(first: Array, number: Array, capacity: int) -> Examples:
            places = first + jnp.arange(capacity, dtype=jnp.int32)
            chosen = order[jnp.minimum(places, order.shape[0] - 1)]
            return Examples(examples.x[chosen], examples.y[chosen], number)

        return Parts(
            rows(jnp.int32(0), num_training, capacity),
            rows(first, jnp.minimum(count - first, most), most),
        )

    @override
    def client(
        self,
        key: Key,
        broadcast: tuple[()],
        state: FedFomoClientState,
        examples: Examples,
        context: RoundContext,
    ):
        # theta_i^l <- local SGD on the training examples from theta_i
        training = self.parts(state, examples).training
        local = self.local_sgd(key, state.params, training, context)
        return ClientOutput(
            message=local.params,
            state=state._replace(trained=local.params),
            weight=self.training.weight(examples),
            loss=local.loss,
        )

    @override
    def server(
        self,
        key: Key,
        server: FedFomoServerState,
        mean: SplitParams,
        context: RoundContext,
    ) -> FedFomoServerState:
        return server._replace(params=mean)

    def offer(
        self,
        broadcast: tuple[()],
        own: FedFomoClientState,
        others: Participants,
        context: RoundContext,
    ) -> Offer:
        """The models for one client: preferred ones, or some at random."""
        ids = others.client_ids
        preferences = own.preferences[ids]
        key = jax.random.fold_in(jax.random.key(own.seed), context.round)
        # The largest of these is any other client's, whatever the order of the cohort.
        lots = jax.random.uniform(named_key(key, "lots"), own.preferences.shape)[ids]
        # epsilon_t = epsilon - t decay
        t = context.round.astype(float)
        epsilon = jnp.maximum(self.exploration - t * self.exploration_decay, 0)
        key_explore = named_key(key, "explore")
        explores = jax.random.uniform(key_explore, (self.num_models,)) < epsilon

        def add(is_free: Array, explores: Array) -> tuple[Array, tuple[Array, Array]]:
            best = jnp.max(jnp.where(is_free, preferences, -jnp.inf))
            is_candidate = is_free & (explores | (preferences == best))
            row = jnp.argmax(jnp.where(is_candidate, lots, -1)).astype(jnp.int32)
            client_id = jnp.where(jnp.any(is_free), ids[row], context.num_clients)
            return is_free.at[row].set(False), (row, client_id)

        is_other = others.takes_part & (ids != context.client_id)
        _, (rows, client_ids) = jax.lax.scan(add, is_other, explores)
        models = jax.tree.map(lambda leaf: leaf[rows], others.shown.trained)
        return Offer(models, client_ids)

    def move(
        self,
        key: Key,
        offer: Offer,
        state: FedFomoClientState,
        examples: Examples,
        context: RoundContext,
    ):
        """Move towards the models that save loss on the validation examples."""
        validation = self.parts(state, examples).validation
        start = state.params
        loss = mean_loss(self.loss, start, (), validation)

        def weight(model: SplitParams) -> Array:
            # w_n = (L_i(theta_i) - L_i(theta_n)) / |theta_n - theta_i|
            saved = loss - mean_loss(self.loss, model, (), validation)
            difference = jax.tree.map(jnp.subtract, model, start)
            square = square_norm(without_statistics(difference))
            is_far = square > 0
            length = jnp.sqrt(jnp.where(is_far, square, 1))
            ratio = (saved / length).astype(state.preferences.dtype)
            return jnp.where(is_far & jnp.isfinite(ratio), ratio, 0)

        is_sent = offer.client_ids < state.preferences.shape[0]
        of_others = jnp.where(is_sent, jax.lax.map(weight, offer.models), 0)
        of_own = weight(state.trained)
        # p_i <- p_i + w
        preferences = state.preferences.at[offer.client_ids].add(of_others, mode="drop")
        # w_n <- max(w_n, 0) / sum_m max(w_m, 0)
        positive = jnp.maximum(jnp.append(of_others, of_own), 0)
        total = jnp.sum(positive)
        weights = positive / jnp.where(total > 0, total, 1)

        # theta_i <- theta_i + sum_n w_n (theta_n - theta_i)
        def moved(start: Array, trained: Array, models: Array) -> Array:
            models = jnp.concatenate([models, trained[None]])
            has_weight = jnp.expand_dims(weights > 0, tuple(range(1, models.ndim)))
            difference = jnp.where(has_weight, models - start[None], 0)
            of_models = weights.astype(start.dtype)
            return start + jnp.tensordot(of_models, difference, 1, precision="highest")

        params = jax.tree.map(moved, start, state.trained, offer.models)
        new = state._replace(params=params, preferences=preferences)
        info = {"models_used": jnp.sum(of_others > 0)}
        return ClientOutput(message=of_others, state=new, info=info)
