"""Local only of figure 1 with the ridge of the authors' notebook.

    python experiments/fedrep/figure1_ridge.py [--results DIR] [--seed N]

A client alone solves (X^T X / m + ridge) theta = X^T y / m. `figure1.py` has the solution of smallest norm, ridge 0,
whose mean error is not finite for m = d samples; the notebook has 1e-5. The tasks are those of `figure1.py`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from experiments import curves, scripts
from experiments.fedrep import figure1, synthetic

RIDGE = 1e-5
SCALES = {
    "smoke": {"axes": {"samples": (5,)}, "options": {"trials": 2}},
    "cpu": {"axes": {"samples": (5, 10, 20)}, "options": {"trials": 10}},
}


@scripts.in_double_precision
def error(task, samples: int) -> float:
    """Return the mean error of clients that fit their own samples alone."""

    def fit(x: jax.Array, y: jax.Array) -> jax.Array:
        matrix = x.T @ x / samples + RIDGE * jnp.eye(figure1.DIM)
        return jnp.linalg.solve(matrix, x.T @ y / samples)

    x, y = (
        jnp.asarray(np.asarray(rows), jnp.float64)
        for rows in synthetic.fixed_samples(task, samples)
    )
    theta = np.asarray(jax.vmap(fit)(x, y))
    true = np.asarray(task.heads @ task.representation.T)
    return float(np.sum((theta - true) ** 2, axis=1).mean())


def errors_with_ridge(samples: int, trials: int, seed: int) -> list[float]:
    """Return the error of every trial."""
    return [error(task, samples) for task in figure1.tasks(seed, trials, samples)]


def main() -> None:
    args = scripts.measurement_parser(
        __doc__, SCALES, "runs/fedrep_figure1", "seed"
    ).parse_args()
    scale = SCALES[args.scale]
    found = scripts.measure_each(args, errors_with_ridge, **scale)
    results = dict(zip(map(str, scale["axes"]["samples"]), found, strict=True))
    curves.save(
        args, "figure1_ridge", scale["options"] | {"ridge": RIDGE, "results": results}
    )


if __name__ == "__main__":
    main()
