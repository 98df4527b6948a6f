"""FlexLoRA: low-rank matrices of different ranks, averaged as products and decomposed again."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from typing_extensions import override

from fedjax_srp.algorithms.examples import FedAvgServerState
from fedjax_srp.algorithms.hetlora import RankAlgorithm
from fedjax_srp.base import Array, Charges, Key, PyTree, RoundContext
from fedjax_srp.models.split import SplitParams
from fedjax_srp.parts.part import part


@part
class FlexLoRA(RankAlgorithm):
    """FlexLoRA (Bai et al., 2024): clients train low-rank matrices of different ranks;
    the server averages their products.

    As `HetLoRA`, but the mean is that of the products A_i B_i, of which each client gets
    the best approximation of its rank: the largest singular values and their vectors, A
    <- U and B <- S V^T, a split of our own. So no zeros are averaged. For
    `participation.PartialWork(4)`. The paper weighs clients by their numbers of examples,
    `weighting="num_examples"`.

    A client sends its matrices; the simulator's message is their product, and the server
    decomposes one matrix as large as each kernel in every round. Singular vectors of near
    values magnify rounding, so that other chunks or devices change matrices by more than
    the last digits; their products agree.

    Evaluations: `global` (the default), the whole model; `fine_tune`, its matrices
    trained on the client; `fine_tune_all`, the same with other batches, where weight decay
    moves the base too.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.MLP((8, 8), num_classes=10, hidden=(32,))
        >>> srp.algorithms.FlexLoRA(model).ranks
        (1, 2, 4, 8)
    """

    @property
    @override
    def charges(self) -> Charges:
        shapes = jax.eval_shape(self.model.init, jax.random.key(0))
        return super().charges._replace(sends=shapes.head)

    @override
    def message(self, matrices: PyTree) -> PyTree:
        # A_i B_i
        return {name: pair["a"] @ pair["b"] for name, pair in matrices.items()}

    @override
    def server(
        self, key: Key, server: FedAvgServerState, mean: PyTree, context: RoundContext
    ):
        # U S V^T <- sum_i p_i A_i B_i
        rank = max(self.ranks)
        matrices = {name: factors(product, rank) for name, product in mean.items()}
        return FedAvgServerState(SplitParams(server.params.representation, matrices))


def factors(product: Array, rank: int) -> dict[str, Array]:
    """Return A and B of a rank whose product is nearest; zeros above the product's own."""
    u, s, vt = jnp.linalg.svd(product, full_matrices=False)
    # of the two signs of each pair, that of a positive largest entry
    largest = jnp.argmax(jnp.abs(u), axis=0)
    signs = jnp.sign(jnp.take_along_axis(u, largest[None], axis=0))
    u = u * signs
    vt = vt * signs.T
    missing = max(rank - s.shape[0], 0)
    a = jnp.pad(u[:, :rank], ((0, 0), (0, missing)))
    b = jnp.pad(s[:rank, None] * vt[:rank], ((0, missing), (0, 0)))
    return {"a": a, "b": b}
