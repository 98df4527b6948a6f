"""Check of FLANP's Theorem 1 and Proposition 1: stages with the theorem's step sizes, local steps and rounds.

python experiments/flanp/theorems.py --scale smoke|cpu|full

Linear regression, 64 clients with 100 samples. A stage starts at the first model of the stage before that met the
criterion |grad L_m(w)|^2 <= 2 mu c / (m s), and runs for R = 12 kappa log 6 rounds with eta_n, gamma_n and tau of the
theorem. Theorem 1: then E[L_n(w) - L_n(w_n*)] <= V_ns = c / (n s). Proposition 1: the stage starts at
2 (n - m) / n (V_(n-m)s + V_ms) + V_ms at most. Lemma 1 has two more bounds for that start: (6) of the squared gradient
of L_n, and (7) of that of every client's own loss. mu and L are those of the loss of all clients.

The first three seeds also run in single precision, because eta_n is about 1e-6, not far above its rounding.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_srp as srp
from experiments import scripts
from experiments.flanp.panels import curves, parser
from fedjax_srp import theory

SIZE = {
    "smoke": (4, 30, 3, 2),
    "cpu": (64, 100, 20, 10),
    "full": (64, 100, 20, 20),
}  # N, s, d, seeds
BATCH, CONDITION = 10, 10.0


@srp.part
class _FedGATE(srp.algorithms.FedGATE):
    """FedGATE that records the weights of every round."""

    name: ClassVar[str] = "fedgate"

    def metrics(self, server: Any, data: Any) -> dict[str, jax.Array]:
        return {
            f"w{i}": weight
            for i, weight in enumerate(server.params.head["out"]["kernel"][:, 0])
        }


class Stage:
    """The loss of the first n clients, in double precision."""

    def __init__(self, data: srp.data.LinearRegression, n: int) -> None:
        """Compute the Hessian and the minimum of L_n."""
        self.x = np.asarray(data.x[:n], np.float64)
        self.y = np.asarray(data.y[:n], np.float64)
        rows = self.x.reshape(-1, self.x.shape[-1])
        targets = self.y.reshape(-1)
        self.hessian = rows.T @ rows / len(rows)
        self.minimiser = np.linalg.solve(self.hessian, rows.T @ targets / len(rows))

    def gaps(self, weights: np.ndarray) -> np.ndarray:
        """Return L_n(w) - L_n(w_n*) of each row."""
        apart = weights - self.minimiser
        return 0.5 * np.einsum("ri,ij,rj->r", apart, self.hessian, apart)

    def squared_norms(self, weights: np.ndarray) -> np.ndarray:
        """Return |grad L_n(w)|^2 of each row."""
        return np.sum(((weights - self.minimiser) @ self.hessian) ** 2, axis=1)

    def own_squared_norms(self, weights: np.ndarray) -> np.ndarray:
        """Return |grad L^i(w)|^2 of every client i."""
        left = np.einsum("csd,d->cs", self.x, weights) - self.y
        gradients = np.einsum("csd,cs->cd", self.x, left) / self.x.shape[1]
        return np.sum(gradients**2, axis=1)

    def run(
        self,
        data: Any,
        local_steps: int,
        steps: tuple[float, float],
        start: np.ndarray | None,
        rounds: int,
        seed: int,
        dtype: str,
    ) -> np.ndarray:
        """Return the models before the first round and after each; shifted data take the place of another start."""
        model = srp.models.LinearRegression((self.x.shape[-1],), dtype=jnp.dtype(dtype))
        training = srp.Training(
            srp.SGD(steps[0]), batch_size=BATCH, epochs=None, steps=local_steps
        )
        algorithm = _FedGATE(model, training, server_step_size=steps[1])
        key = jax.random.key(seed)
        own = dataclasses.replace(
            data, x=jnp.asarray(self.x, dtype), y=jnp.asarray(self.y, dtype)
        )
        server = algorithm.init(srp.named_key(srp.named_key(key, "server"), "init"), own)
        origin = np.asarray(server.params.head["out"]["kernel"][:, 0], np.float64)
        shift = np.zeros_like(origin) if start is None else start - origin
        shifted = dataclasses.replace(own, y=jnp.asarray(self.y - self.x @ shift, dtype))
        history = srp.simulate(
            algorithm,
            shifted,
            num_rounds=rounds,
            eval_every=rounds,
            evaluations=(),
            key=key,
            progress=False,
            devices=1,
        )
        after = np.stack([history.metrics[f"w{i}"] for i in range(len(origin))], axis=1)
        return np.concatenate([origin[None], np.asarray(after, np.float64)]) + shift


def lemma_bounds(n: int, samples: int, mu: float, c: float) -> tuple[float, float]:
    """Return the bounds (6) and (7) of Lemma 1 for a stage of n clients that begins at a model of n / 2 clients."""
    m = n // 2
    before = c / (m * samples)
    new = c / ((n - m) * samples)
    joined = 2 * ((n - m) / n) ** 2 * (math.sqrt(new) + math.sqrt(before)) ** 2
    return joined + 4 * mu * before, 3 * (2 * mu + 1) * before + 3 * c / samples


def run_stages(
    scale: str, dtype: str, seeds: int
) -> dict[str, dict[str, list[float | None]]]:
    """Run all stages in a precision; return for each n what its stage found, seed by seed."""
    with jax.enable_x64(dtype == "float64"), jax.numpy_dtype_promotion("standard"):
        return _run_stages(scale, dtype, seeds)


def _run_stages(
    scale: str, dtype: str, seeds: int
) -> dict[str, dict[str, list[float | None]]]:
    num_clients, samples, dim, _ = SIZE[scale]
    size = (num_clients, samples, dim, 1.0, CONDITION)
    worlds = [srp.data.linear_regression(jax.random.key(s), *size) for s in range(seeds)]
    c = dim / 2
    # variance of a batch's gradient at the minimum
    noise = float(np.sum(CONDITION ** (-np.arange(dim) / (dim - 1)))) / BATCH
    tau = math.ceil(theory.flanp_local_steps(samples, noise, c))
    allowed = []
    for world in worlds:
        mu, smoothness = world.curvature
        allowed.append(math.ceil(theory.flanp_stage_rounds(smoothness / mu)))
    found = {}
    starts: list[np.ndarray | None] = [None] * seeds
    for n in (2**k for k in range(int(math.log2(num_clients)) + 1)):
        rows = []
        accuracy = c / (n * samples)
        for seed, data in enumerate(worlds):
            stage = Stage(data, n)
            mu, smoothness = data.curvature
            steps = theory.flanp_step_sizes(n, mu, smoothness, c, tau)
            models = stage.run(data, tau, steps, starts[seed], max(allowed), seed, dtype)
            gaps = stage.gaps(models)
            row = {
                "eta": steps[0],
                "allowed_rounds": allowed[seed],
                "start_over_bound": None,
                "gap_over_accuracy": gaps[allowed[seed]] / accuracy,
                "rounds_to_accuracy": first_round(gaps[1:] <= accuracy),
                "rounds_to_criterion": first_round(
                    stage.squared_norms(models)[1:] <= 2 * mu * accuracy
                ),
                "start_gradient_over_bound": None,
                "own_gradients_over_bound": None,
            }
            if n > 1:
                all_bound, own_bound = lemma_bounds(n, samples, mu, c)
                all_norm = stage.squared_norms(models[:1])[0]
                own_norm = stage.own_squared_norms(models[0]).max()
                warm = theory.flanp_warm_gap(n, n // 2, samples, c)
                row["start_over_bound"] = gaps[0] / warm
                row["start_gradient_over_bound"] = all_norm / all_bound
                row["own_gradients_over_bound"] = own_norm / own_bound
            starts[seed] = models[row["rounds_to_criterion"] or -1]
            rows.append(row)
        found[str(n)] = curves.rounded(curves.columns(rows))
    return found


def first_round(holds: np.ndarray) -> int | None:
    """Return the first round in which a condition holds, None if there is none."""
    places = np.flatnonzero(holds)
    return int(places[0]) + 1 if len(places) else None


def main() -> None:
    args = parser(__doc__, scripts.measurement_parser).parse_args()
    seeds = args.seeds or SIZE[args.scale][3]
    variants = {
        "float64": {"dtype": "float64", "seeds": seeds},
        "float32": {"dtype": "float32", "seeds": min(seeds, 3)},
    }
    found = scripts.measure_each(args, run_stages, variants=variants)
    results = dict(zip(variants, found, strict=True))
    curves.save(args, "theorems", {"results": results})


if __name__ == "__main__":
    main()
