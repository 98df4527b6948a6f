"""Rounds of SRPFL's Algorithm 2 against NumPy, paired in one process, and their cost by clients and dimension.

    python benchmarks/linear.py [--repeats 5] [--million] [--out FILE.json]

Full participation, k=5, m=50, noise 1. NumPy draws the samples in full, once for a hundred clients at a time
(vectorised) and once client by client. `--million` adds N=1,000,000 with d=1,000 (some seconds a repeat). The printed
memory is the peak of the process. Times are without compilation; a ratio is the median over interleaved pairs.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics

import jax
import numpy as np
from harness.measure import Rounds, in_turn, peak_memory, seconds

import fedjax_srp as srp

RANK, SAMPLES, STEP = 5, 50, 0.1


def ours(num_clients, dim, sampling="subspace", chunk_size=None, length=1):
    """Compiled rounds of all clients."""
    task = srp.data.linear_task(jax.random.key(0), num_clients, dim, RANK, noise_std=1.0)
    algorithm = srp.algorithms.LinearFedRep(
        task, step_size=STEP, samples_per_round=SAMPLES, sampling=sampling, start="random"
    )
    return Rounds(algorithm, task, length=length, chunk_size=chunk_size or min(4096, num_clients))


class Vectorised:
    """All clients of a slice at once: batched products and one batched solve."""

    def __init__(self, num_clients, dim, length=1, at_once=100, seed=0):
        self.rng, self.length, self.at_once = np.random.default_rng(seed), length, at_once
        orthonormal = lambda: np.linalg.qr(self.rng.normal(size=(dim, RANK)))[0].astype(np.float32)  # noqa: E731
        self.truth, self.b = orthonormal(), orthonormal()
        self.heads = self.rng.normal(size=(num_clients, RANK)).astype(np.float32)

    def slice(self, heads):
        """Sum of X^T r w^T / m over these clients."""
        n = len(heads)
        x = self.rng.standard_normal((n, SAMPLES, self.b.shape[0]), np.float32)
        noise = self.rng.standard_normal((n, SAMPLES), np.float32)
        y = np.einsum("nmk,nk->nm", x @ self.truth, heads) + noise
        features = x @ self.b
        transposed = features.transpose(0, 2, 1)
        w = np.linalg.solve(transposed @ features, (transposed @ y[:, :, None]))[:, :, 0]
        residual = y - np.einsum("nmk,nk->nm", features, w)
        return np.matmul(residual[:, None, :], x)[:, 0].T @ w / SAMPLES

    def __call__(self):
        for _ in range(self.length):
            slices = range(0, len(self.heads), self.at_once)
            descent = sum(self.slice(self.heads[i : i + self.at_once]) for i in slices) / len(self.heads)
            self.b = np.linalg.qr(self.b + STEP * descent)[0]


class Loop(Vectorised):
    """One client after the other, as Algorithm 2 is written."""

    def slice(self, heads):
        total = np.zeros_like(self.b)
        for head in heads:
            x = self.rng.standard_normal((SAMPLES, self.b.shape[0]), np.float32)
            y = x @ (self.truth @ head) + self.rng.standard_normal(SAMPLES, np.float32)
            features = x @ self.b
            w = np.linalg.lstsq(features, y, rcond=None)[0]
            total += np.outer(x.T @ (y - features @ w), w) / SAMPLES
        return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--million", action="store_true", help="add N=1,000,000 with d=1,000")
    parser.add_argument("--cores", action="store_true", help="one device per CPU core")
    parser.add_argument("--out")
    args = parser.parse_args()
    if args.cores:
        srp.use_all_cores()
    results: dict[str, dict] = {}

    def report(name: str, contenders: dict) -> None:
        """Times the contenders in turn; the others are compared with the first."""
        each = {name: lambda run=run: seconds(run) / run.length / num_clients(run) for name, run in contenders.items()}
        times = in_turn(each, args.repeats)
        first = next(iter(times))
        for label, values in times.items():
            ratios = [other / ours for ours, other in zip(times[first], values, strict=True)]
            results[f"{name} {label}"] = {
                "microseconds_per_client": 1e6 * statistics.median(values),
                "clients_per_second": 1 / statistics.median(values),
                f"ratio_to_{first}": statistics.median(ratios),
            }
            print(f"{name:32s} {label:16s}", *(f"{v:12.4g}" for v in results[f"{name} {label}"].values()), flush=True)

    def num_clients(run) -> int:
        return run.data.num_clients if isinstance(run, Rounds) else len(run.heads)

    print(f"{'':49s} us/client    clients/s     ratio")
    report("N=1,000 d=100", {
        "subspace": ours(1000, 100, chunk_size=1000, length=20),
        "full": ours(1000, 100, "full", chunk_size=50),
        "numpy vectorised": Vectorised(1000, 100),
        "numpy loop": Loop(1000, 100),
    })  # fmt: skip
    report("N=100,000 subspace", {f"d={dim:,}": ours(100_000, dim, length=3) for dim in (100, 1000, 10_000)})
    if args.million:
        big, small = ours(1_000_000, 1000), ours(10_000, 1000, length=50)
        report("d=1,000 subspace", {"N=10,000": small, "N=1,000,000": big})
    peak = peak_memory() / 2**30
    print(f"peak memory {peak:.2f} GiB; {jax.devices()}, {platform.machine()}, jax {jax.__version__}")
    if args.out:
        facts = {"device": jax.devices()[0].device_kind, "num_devices": jax.device_count(), "jax": jax.__version__}
        with open(args.out, "w") as file:
            json.dump(facts | {"peak_memory_gib": peak, "results": results}, file, indent=1)


if __name__ == "__main__":
    main()
