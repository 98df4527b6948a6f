"""The papers' linear model, y = w_i*^T B*^T x + z: subspaces, samples, start."""

from fedjax_srp.linear import samplers
from fedjax_srp.linear.moments import method_of_moments
from fedjax_srp.linear.sampling import (
    Design,
    LinearClient,
    draw_batch,
    draw_design,
    least_squares,
)
from fedjax_srp.linear.subspace import orthonormalize, principal_angle_distance

__all__ = [
    "Design",
    "LinearClient",
    "draw_batch",
    "draw_design",
    "least_squares",
    "method_of_moments",
    "orthonormalize",
    "principal_angle_distance",
    "samplers",
]
