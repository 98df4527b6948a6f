"""FedCAC: critical parameters are averaged over clients whose critical ones overlap."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.tree_util import Partial
from typing_extensions import override

from fedjax_srp.algorithms.examples import FedAvgServerState, GlobalModel
from fedjax_srp.base import (
    Array,
    ClientOutput,
    Examples,
    Exchange,
    Key,
    Participants,
    Phase,
    PyTree,
    RoundContext,
    evaluation,
    nothing,
    unchanged,
)
from fedjax_srp.models.normalization import without_statistics
from fedjax_srp.models.split import SplitParams
from fedjax_srp.parts.part import Above, Share, part
from fedjax_srp.xla.largest import largest, magnitudes


class FedCACClientState(NamedTuple):
    """The client's personal model, and the flags M_i of its critical parameters."""

    own: SplitParams  # as trained; after the round a mean of similar clients' models
    critical: PyTree  # bool, of the shape of the model


class FedCACMessage(NamedTuple):
    """A client's message: its model, and its flags, a bit each."""

    params: SplitParams
    bits: Array  # uint8


def overlap(products: Array, own: Array, others: Array) -> Array:
    """The overlap O_ij, from the numbers of flags in common, of i and of j."""
    # O_ij = 1 - |M_i - M_j|_1 / (|M_i|_1 + |M_j|_1)
    together = own + others
    return 1 - (together - 2 * products) / jnp.maximum(together, 1)


@part
class FedCAC(GlobalModel):
    """FedCAC (Wu et al., 2023), cautiously aggressive collaboration: a global model as in
    `FedAvg`, in which the critical parameters of every client are personal.

    A participant starts from the global model with its personal critical parameters.
    After training, those parameters of each array whose sensitivity `|(v - w) v|` is
    largest are critical, unless they did not change; their flags are sent, too.
    The overlap O_ij of two participants is the share of critical parameters in common;
    participant i then downloads the mean of its model and of those with O_ij at least
    `O_mean + (t / beta) (O_max - O_mean)` in round t, and keeps it for its critical
    parameters. After round beta no overlap is large enough, unless all are equal. O_mean
    and O_max are those of the participants; other clients keep their personal models.
    Statistics of BatchNorm are never critical. With `critical_share=0` this is `FedAvg`.

    Evaluations: `own_model` (the default), the global model with the client's critical
    parameters, from which its next round would start; `global`, `fine_tune` (its head)
    and `fine_tune_all`, as in `FedAvg`.

    Args:
        training: of the clients; weighting is that of the global model.
        critical_share: tau, of the parameters of each array; 0.5 for CIFAR-10 in the
            library FLing.
        collaboration_rounds: beta; 100 for CIFAR-10 in FLing, 170 for CIFAR-100.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.MLP((8, 8), num_classes=10, hidden=(32,))
        >>> list(srp.algorithms.FedCAC(model, critical_share=0.3).evaluations)
        ['own_model', 'global', 'fine_tune', 'fine_tune_all']
    """

    critical_share: Share = 0.5
    collaboration_rounds: Annotated[float, Above(0), "give e.g. 100.0"] = 100.0

    @override
    def init_client(
        self, key: Key, server: FedAvgServerState, examples: Examples
    ) -> FedCACClientState:
        never = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, bool), server.params)
        return FedCACClientState(server.params, never)

    @property
    @override
    def phases(self) -> tuple[Phase, ...]:
        # After training every participant downloads the mean of similar clients' models.
        similar = Exchange(lambda state: state, self.mix)
        finish = Phase("finish", nothing, self.take, unchanged, similar)
        return (*super().phases, finish)

    def start_of(self, params: SplitParams, state: FedCACClientState) -> SplitParams:
        """The global model with a client's personal critical parameters."""
        # w_i = M_i v_i + (1 - M_i) w
        return jax.tree.map(jnp.where, state.critical, state.own, params)

    def critical(self, start: SplitParams, end: SplitParams) -> PyTree:
        """Flags M_i of the parameters that are most sensitive to a client's data."""

        def flags(before: Array, after: Array) -> Array:
            # c = |(v - w) v|, of which the tau d largest of an array of d are critical
            sensitivity = jnp.abs((after - before) * after).reshape(-1)
            wanted = jnp.floor(jnp.asarray(self.critical_share) * sensitivity.size)
            wanted = wanted.astype(jnp.int32)
            is_large = largest(magnitudes(sensitivity), jnp.maximum(wanted, 1))
            is_critical = is_large & (sensitivity > 0) & (wanted > 0)
            return is_critical.reshape(after.shape)

        # statistics are zero here
        return jax.tree.map(flags, without_statistics(start), without_statistics(end))

    @override
    def client(
        self,
        key: Key,
        params: SplitParams,
        state: FedCACClientState,
        examples: Examples,
        context: RoundContext,
    ):
        # v_i <- local SGD on f_i from w_i
        start = self.start_of(params, state)
        local = self.local_sgd(key, start, examples, context)
        critical = self.critical(start, local.params)
        flags, _ = ravel_pytree(critical)
        return ClientOutput(
            message=FedCACMessage(local.params, jnp.packbits(flags)),
            state=FedCACClientState(local.params, critical),
            weight=self.training.weight(examples),
            loss=local.loss,
        )

    def mix(
        self,
        broadcast: tuple[()],
        own: FedCACClientState,
        others: Participants,
        context: RoundContext,
    ) -> SplitParams:
        """The mean of the models whose critical parameters overlap with one client's."""
        models, flags = others.shown
        takes_part = others.takes_part
        dtype = jnp.zeros(()).dtype

        def common(one: PyTree) -> Array:
            """Number of flags in common with each participant, (participants,)."""

            def of_leaf(a: Array, b: Array) -> Array:
                rows = b.reshape(b.shape[0], -1).astype(dtype)
                of_one = a.reshape(-1).astype(dtype)
                return jnp.matmul(rows, of_one, precision="highest")

            products = jax.tree.leaves(jax.tree.map(of_leaf, one, flags))
            return jnp.asarray(sum(products))

        # The mean and the largest overlap of two participants, the same for all clients.
        products = jax.vmap(common)(flags)
        counts = jnp.diagonal(products)
        overlaps = overlap(products, counts[:, None], counts[None])
        others_than = ~jnp.eye(counts.shape[0], dtype=bool)
        is_pair = takes_part[:, None] & takes_part[None] & others_than
        num_pairs = jnp.maximum(jnp.sum(is_pair), 1).astype(dtype)
        mean = jnp.sum(jnp.where(is_pair, overlaps, 0)) / num_pairs
        best = jnp.max(jnp.where(is_pair, overlaps, mean))
        # Tr = O_mean + (t / beta) (O_max - O_mean)
        t = (context.round + 1).astype(dtype)
        threshold = mean + t / self.collaboration_rounds * (best - mean)
        # The client's own overlap is 1: it is among these, or nobody is.
        own_count = sum(jnp.sum(leaf) for leaf in jax.tree.leaves(own.critical))
        own_count = jnp.asarray(own_count).astype(dtype)
        similar = overlap(common(own.critical), own_count, counts)
        rounding = 8 * jnp.finfo(dtype).eps
        is_alike = takes_part & (similar >= threshold - rounding)
        number = jnp.sum(is_alike)
        weights = is_alike.astype(dtype) / jnp.maximum(number, 1).astype(dtype)

        # v_i <- mean of v_j over j with O_ij >= Tr
        def mixture(own: Array, leaf: Array) -> Array:
            is_real = jnp.expand_dims(takes_part, tuple(range(1, leaf.ndim)))
            present = jnp.where(is_real, leaf, 0)
            mixed = jnp.tensordot(
                weights.astype(leaf.dtype), present, 1, precision="highest"
            )
            return jnp.where(number > 0, mixed, own)

        return jax.tree.map(mixture, own.own, models)

    def take(
        self,
        key: Key,
        mixture: SplitParams,
        state: FedCACClientState,
        examples: Examples,
        context: RoundContext,
    ):
        """Keep the mean of similar clients' models."""
        return ClientOutput((), state._replace(own=mixture))

    @override
    def server(
        self,
        key: Key,
        server: FedAvgServerState,
        mean: FedCACMessage,
        context: RoundContext,
    ) -> FedAvgServerState:
        # w <- sum_i p_i v_i
        return FedAvgServerState(mean.params)

    @evaluation
    def own_model(
        self,
        key: Key,
        server: FedAvgServerState,
        state: FedCACClientState,
        examples: Examples,
    ):
        """The global model with the client's personal critical parameters."""
        return Partial(self.model.logits, self.start_of(server.params, state))
