"""HetLoRA: low-rank matrices whose rank follows the client's speed."""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
from typing_extensions import override

from fedjax_srp.algorithms._submodels import mean_entry
from fedjax_srp.algorithms.examples import FedAvgServerState, GlobalModel
from fedjax_srp.base import (
    MESSAGE_SHARE,
    Array,
    Charges,
    ClientOutput,
    Examples,
    Key,
    PyTree,
    RoundContext,
    Uncharged,
)
from fedjax_srp.models.lora import LoRA, lora
from fedjax_srp.models.split import SplitParams
from fedjax_srp.parts.part import Count, part


@part
class RankAlgorithm(GlobalModel):
    """A frozen model with low-rank matrices, of which each client trains some ranks; the
    server averages them, padded with zeros.

    Args:
        model: a `models.lora`, whose rank becomes the largest of `ranks`, or another
            model, which gets matrices beside all its dense kernels.
        ranks: of a client with 1, 2, ... units of work; the last one for more units.
    """

    ranks: tuple[Count, ...] = (1, 2, 4, 8)

    def __post_init__(self) -> None:
        if not self.ranks:
            raise ValueError("ranks=() is empty; give one or more, e.g. (2, 8)")
        model = self.model
        if not isinstance(model, LoRA):
            model = lora(model)
        adapted = dataclasses.replace(model, rank=max(self.ranks), is_frozen=True)
        object.__setattr__(self, "model", adapted)
        super().__post_init__()

    @property
    @override
    def charges(self) -> Charges:
        # With w units of work: matrices of rank `ranks[w - 1]`.
        def costs_as() -> tuple[tuple[RankAlgorithm, ...], ...]:
            return tuple(
                (RankAlgorithm(self.model, self.training, (rank,)),)
                for rank in self.ranks
            )

        return Charges(costs_as=costs_as)

    def message(self, matrices: PyTree) -> PyTree:
        """What a client sends of its matrices, zeros above its rank."""
        return matrices

    @override
    def broadcast(self, server: FedAvgServerState, context: RoundContext) -> PyTree:
        # the base never changes
        return SplitParams(Uncharged(server.params.representation), server.params.head)

    @override
    def client(
        self,
        key: Key,
        broadcast: SplitParams,
        state: tuple,
        examples: Examples,
        context: RoundContext,
    ):
        level = jnp.clip(context.work, 1, len(self.ranks)) - 1
        rank = jnp.asarray(self.ranks, jnp.int32)[level]
        # m_i: the first r_i columns of A and rows of B
        masks = rank_masks(broadcast.head, rank)

        def loss(
            matrices: PyTree, base: PyTree, x: Array, y: Array, key: Key | None
        ) -> Array:
            own = jax.tree.map(jnp.multiply, matrices, masks)
            features = self.model.rest(base, x, key)
            return self.model.loss(self.model.classify(own, features, key), y)

        # (A_i, B_i) <- local SGD from the first ranks of (A, B)
        one_unit = context._replace(work=jnp.minimum(context.work, 1))
        local = self.local_sgd(
            key,
            broadcast.head,
            examples,
            one_unit,
            loss=loss,
            frozen=broadcast.representation.value,
        )
        return ClientOutput(
            self.message(jax.tree.map(jnp.multiply, local.params, masks)),
            weight=self.training.weight(examples),
            info={MESSAGE_SHARE: mean_entry(masks)},
            loss=local.loss,
        )

    @override
    def server(
        self, key: Key, server: FedAvgServerState, mean: PyTree, context: RoundContext
    ):
        # (A, B) <- sum_i p_i (A_i, B_i)
        return FedAvgServerState(SplitParams(server.params.representation, mean))


def rank_masks(matrices: PyTree, rank: Array) -> PyTree:
    """1 in the first `rank` columns of each A and rows of each B, 0 elsewhere."""
    masks = {}
    for name, pair in matrices.items():
        place = jnp.arange(pair["b"].shape[0], dtype=jnp.int32)
        is_own = (place < rank).astype(pair["b"].dtype)
        masks[name] = {
            "a": jnp.broadcast_to(is_own[None], pair["a"].shape),
            "b": jnp.broadcast_to(is_own[:, None], pair["b"].shape),
        }
    return masks


@part
class HetLoRA(RankAlgorithm):
    """HetLoRA (Cho, Liu, Xu, Fahrezi and Joshi, 2024): clients train low-rank matrices
    of different ranks beside a frozen model.

    A client of rank r receives the first r columns of each A and rows of each B (models
    are W + scaling A B), and trains them. The server pads what it gets with zeros up to
    the largest rank and averages with weights `|A_i B_i|_F`, for each kernel
    ("sparsity-weighted"), so that the zeros of low ranks dilute less. With equal ranks and
    `aggregation="zero_padding"` it is `FedAvg` of LoRA. For
    `participation.PartialWork(4)`. The paper's pruning of ranks by the clients is left
    out: ranks follow the speed, and their numbers are our own, since the paper's are for
    language models.

    The base is frozen, and known to the clients before the first round: only matrices
    are sent. `clocks.Devices` charges operations and bytes of matrices of the client's
    rank; the operations are those of training with W + scaling A B in place of W.

    Evaluations: `global` (the default), the whole model; `fine_tune`, its matrices
    trained on the client; `fine_tune_all`, the same with other batches, where weight decay
    moves the base too.

    Args:
        aggregation: weights of the clients' matrices: their norms, or equal ones.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.MLP((8, 8), num_classes=10, hidden=(32,))
        >>> algorithm = srp.algorithms.HetLoRA(model, ranks=(2, 6))
        >>> algorithm.model.name, algorithm.model.rank
        ('lora', 6)
    """

    aggregation: Literal["sparsity", "zero_padding"] = "sparsity"

    @override
    def message(self, matrices: PyTree) -> PyTree:
        weights = {}
        weighted = {}
        for name, pair in matrices.items():
            weights[name] = jnp.ones((), pair["a"].dtype)
            if self.aggregation == "sparsity":
                # s_i = |A_i B_i|_F
                weights[name] = jnp.linalg.norm(pair["a"] @ pair["b"])
            weighted[name] = {leaf: weights[name] * pair[leaf] for leaf in pair}
        return weighted, Uncharged(weights)

    @override
    def server(
        self,
        key: Key,
        server: FedAvgServerState,
        mean: tuple[PyTree, Uncharged],
        context: RoundContext,
    ):
        # A <- sum_i s_i A_i / sum_i s_i, and so B; where all products are 0 as it was
        weighted, weights = mean
        base, matrices = server.params
        new = {}
        for name, pair in matrices.items():
            total = weights.value[name]
            safe = jnp.where(total > 0, total, 1)
            new[name] = {
                leaf: jnp.where(total > 0, weighted[name][leaf] / safe, pair[leaf])
                for leaf in pair
            }
        return FedAvgServerState(SplitParams(base, new))
