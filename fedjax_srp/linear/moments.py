"""The method of moments: a first estimate of the shared subspace from a batch of every client."""

from __future__ import annotations

import math
from typing import Any

from fedjax_srp.base import Array, ClientOutput, Key, Phase, RoundContext, nothing
from fedjax_srp.linear.sampling import LinearClient, draw_batch
from fedjax_srp.linear.subspace import eigh, exact_matmul

MAX_BYTES = 256 * 2**20  # of the d x d matrix of every client in a chunk


def method_of_moments(
    dim: int,
    rank: int,
    samples: int,
    itemsize: int = 4,
    fixed: bool = False,
    charged: bool = False,
) -> Phase:
    """Estimate the subspace by the top eigenvectors U (d, k) of the mean of P_i.

    P_i = (1/m) sum_j y_j^2 x_j x_j^T: lines 1 to 5 of SRPFL's Algorithm 2. E P_i = (||w_i*||^2 +
    sigma^2) I + 2 B* w_i* w_i*^T B*^T for Gaussian inputs, so U spans B* for any noise. Independent
    inputs of kurtosis kappa add (kappa - 3) diag(theta_i^2), theta_i = B* w_i*: with signs (kappa = 1)
    and columns of B* along axes nothing of the signal is left.

    Args:
        dim: d.
        rank: k.
        samples: m.
        itemsize: bytes of a number.
        fixed: use the clients' fixed samples instead of new ones.
        charged: charge its time and its d x d numbers of every client.

    Returns:
        A phase for `FederatedAlgorithm.start_phases`; the server state must have a field
        `representation`.
    """
    bytes_per_client = dim**2 * itemsize
    if bytes_per_client > MAX_BYTES:
        largest_dim = math.isqrt(MAX_BYTES // itemsize)
        raise ValueError(
            f"start='moments' needs a {dim} x {dim} matrix per client "
            f"({bytes_per_client / 2**30:.2g} GiB); use start='random', or a dim of at most "
            f"{largest_dim}"
        )

    @exact_matmul
    def client(
        key: Key, broadcast: Any, state: Any, client: LinearClient, context: RoundContext
    ) -> ClientOutput:
        x, y = draw_batch(client.key if fixed else key, client, samples)
        scaled = x * y[:, None]
        return ClientOutput(scaled.T @ scaled / samples)

    def server(key: Key, state: Any, mean: Array, context: RoundContext) -> Any:
        _, vectors = eigh(mean)  # eigenvalues ascend
        return state._replace(representation=vectors[:, -rank:])

    return Phase("prepare", nothing, client, server, charged=charged)
