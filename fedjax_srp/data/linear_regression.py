"""`LinearRegression`: a convex problem with a known minimum, on fixed samples of one distribution."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_srp.base import Array, Examples, Key, Predict, named_key
from fedjax_srp.parts.description import records_arguments
from fedjax_srp.parts.part import AtLeast, Below, Count
from fedjax_srp.parts.pytrees import register, take


class Curvature(NamedTuple):
    """Curvature of a mean loss: `mu |v|^2 <= v' H v <= L |v|^2` for its Hessian H."""

    mu: float  # strong convexity
    smoothness: float  # L


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class LinearRegression:
    """Samples (x, y) of every client, a pytree to pass to `simulate`.

    The loss of w is the mean of (y - x w)^2 / 2.

    Clients are scored on their training samples: a score is the client's training loss,
    SMALLER IS BETTER, and the mean over clients is the training objective. Build it with
    `linear_regression`.

    Attributes:
        x: (num_clients, samples, dim).
        y: (num_clients, samples) float.
        hessian: (dim, dim) of the mean loss of all clients.
        minimiser: (dim,) of the mean loss of all clients, float32.
        name: of the data in results.
        options: arguments of `linear_regression`, for the record of a run; None if
            unknown.
    """

    x: Array
    y: Array
    hessian: Array
    minimiser: Array
    name: str = "linear_regression"
    options: Mapping[str, Any] | None = None

    num_classes: ClassVar[int] = 1  # outputs of a model
    score_name: ClassVar[str] = "training loss"
    smaller_is_better: ClassVar[bool] = True

    @property
    def num_clients(self) -> int:
        """Number of clients."""
        return self.x.shape[0]

    @property
    def example_shape(self) -> tuple[int, ...]:
        """Shape (dim,) of one input."""
        return self.x.shape[2:]

    @property
    def curvature(self) -> Curvature:
        """Smallest and largest eigenvalue of the Hessian of the mean loss of all clients, which is constant."""
        values = np.linalg.eigvalsh(np.asarray(self.hessian, np.float64))
        return Curvature(float(values[0]), float(values[-1]))

    def train_client(self, client_id: Array) -> Examples:
        """Return the samples of a client, whose id () int32 may be traced."""
        return Examples(
            take(self.x, client_id), take(self.y, client_id), jnp.int32(self.x.shape[1])
        )

    def test_client(self, client_id: Array) -> Examples:
        """Return the training samples: clients are scored by their training loss."""
        return self.train_client(client_id)

    def score(self, predict: Predict, test: Examples) -> tuple[Array, Array]:
        """Return the sum of the losses of a client's samples, and their number.

        `predict` (m, dim) -> (m, 1).
        """
        with jax.default_matmul_precision("highest"):
            losses = 0.5 * (predict(test.x)[:, 0] - test.y) ** 2
        return jnp.sum(losses, dtype=float), test.count.astype(float)

    def distance(self, weights: Array) -> Array:
        """Return ||w - w*||, () float, the distance of weights (dim,) to the minimum of all clients' mean loss."""
        return jnp.linalg.norm(weights - self.minimiser).astype(float)

    def gap(self, weights: Array) -> Array:
        """Return L_N(w) - L_N(w*) = (w - w*)' H (w - w*) / 2, () float, for weights (dim,)."""
        difference = weights - self.minimiser
        slope = jnp.dot(self.hessian, difference, precision="highest")
        return (0.5 * jnp.dot(difference, slope)).astype(float)

    def __repr__(self) -> str:
        leaves = jax.tree.leaves(self)
        if not all(hasattr(leaf, "shape") for leaf in leaves):  # of axes or shardings
            return f"LinearRegression({self.name!r}, {leaves})"
        clients, samples, dim = self.x.shape
        return f"LinearRegression({self.name!r}, {clients} clients, {samples} samples each, dim {dim})"


register(LinearRegression, "name")


@records_arguments
def linear_regression(
    key: Key,
    num_clients: Count,
    samples: Count,
    dim: Count,
    noise_std: Annotated[
        float, AtLeast(0), Below(math.inf), "give 0 for none, or e.g. 1.0"
    ] = 1.0,
    condition: Annotated[float, AtLeast(1), Below(math.inf), "give L / mu"] = 1.0,
) -> LinearRegression:
    """Draw y = x w + z, the same w for all clients: w ~ N(0, I), z ~ N(0, sigma^2), x ~ N(0, diag(e)).

    The variances e of the inputs fall geometrically from 1 to 1 / condition. FLANP's
    synthetic linear regression has 10,000 samples on 100 clients; the paper does not give
    the variances.

    Args:
        key: of w and the samples; the samples of a client do not depend on num_clients.
        num_clients: N.
        samples: s, per client.
        dim: d.
        noise_std: sigma, in units of y.
        condition: condition number of the population's Hessian; `curvature` has that of
            the samples.

    Returns:
        The data with the minimum of their mean loss, computed in double precision and
        stored in single: distances below about 1e-7 of its length, and gaps below their
        square, are rounding errors.

    Example:
        >>> import jax, fedjax_srp as srp
        >>> data = srp.data.linear_regression(jax.random.key(0), num_clients=10, samples=100, dim=5)
        >>> data
        LinearRegression('linear_regression', 10 clients, 100 samples each, dim 5)
        >>> float(data.distance(data.minimiser))
        0.0
    """
    if num_clients * samples <= dim:
        raise ValueError(
            f"linear_regression: dim={dim} must be below num_clients * samples = "
            f"{num_clients * samples}, or the minimum is not unique"
        )
    deviations = jnp.asarray(
        float(condition) ** (-0.5 * np.arange(dim) / max(dim - 1, 1)), jnp.float32
    )
    truth = jax.random.normal(named_key(key, "weights"), (dim,), jnp.float32)

    def of_client(client_id: Array) -> tuple[Array, Array]:
        key_client = jax.random.fold_in(named_key(key, "samples"), client_id)
        x = deviations[None, :] * jax.random.normal(
            named_key(key_client, "x"), (samples, dim), jnp.float32
        )
        noise = jax.random.normal(named_key(key_client, "noise"), (samples,), jnp.float32)
        return x, jnp.dot(x, truth, precision="highest") + jnp.float32(noise_std) * noise

    x, y = jax.vmap(of_client)(jnp.arange(num_clients, dtype=jnp.int32))
    rows = np.asarray(x, np.float64).reshape(-1, dim)
    targets = np.asarray(y, np.float64).reshape(-1)
    hessian = rows.T @ rows / len(rows)
    minimiser = np.linalg.solve(hessian, rows.T @ targets / len(rows))
    return LinearRegression(
        x, y, jnp.asarray(hessian, jnp.float32), jnp.asarray(minimiser, jnp.float32)
    )
