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
SCALES = {"smoke": ((5,), 2), "cpu": ((5, 10, 20), 10)}  # samples, trials


@scripts.in_double_precision
def error(task, samples: int, ridge: float) -> float:
    """Return the mean error of clients that fit their own samples alone."""

    def fit(x: jax.Array, y: jax.Array) -> jax.Array:
        matrix = x.T @ x / samples + ridge * jnp.eye(figure1.DIM)
        return jnp.linalg.solve(matrix, x.T @ y / samples)

    x, y = (
        jnp.asarray(np.asarray(rows), jnp.float64)
        for rows in synthetic.fixed_samples(task, samples)
    )
    theta = np.asarray(jax.vmap(fit)(x, y))
    true = np.asarray(task.heads @ task.representation.T)
    return float(np.sum((theta - true) ** 2, axis=1).mean())


def main(arguments: list[str] | None = None) -> None:
    args = scripts.parser(__doc__, SCALES, "runs/fedrep_figure1", "seed").parse_args(
        arguments
    )
    counts, trials = SCALES[args.scale]
    sizes = (figure1.CLIENTS, 1, figure1.DIM, figure1.RANK)
    results = {}
    for samples in counts:
        drawn = synthetic.make_trials(args.seed, trials, *sizes, samples)
        results[str(samples)] = [error(training, samples, RIDGE) for training, _ in drawn]
    curves.save(
        args, "figure1_ridge", {"trials": trials, "ridge": RIDGE, "results": results}
    )


if __name__ == "__main__":
    main()
