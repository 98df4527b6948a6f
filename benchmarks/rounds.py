"""Rounds and evaluations against a PyTorch loop, paired in one process.

    python benchmarks/rounds.py [--repeats 5] [--out FILE.json]

MLP 784-512-256-64-10, 100 clients x 150 examples (5 classes each), batch 10. MNIST where `--data-dir` has `mnist.npz`, synthetic images of
the same shape otherwise (speed does not depend on the pixels). Compile time is reported apart; a ratio is the median over interleaved pairs.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time

import jax
import numpy as np

import fedjax_srp as srp

srp.use_all_cores()


def synthetic(num_clients: int, examples: int, tests: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 256, (num_clients * examples, 28, 28), dtype=np.uint8)
    x_test = rng.integers(0, 256, (num_clients * tests, 28, 28), dtype=np.uint8)
    deal = lambda n: [np.arange(i * n, (i + 1) * n) for i in range(num_clients)]  # noqa: E731
    return srp.data.from_arrays(
        x, rng.integers(0, 10, len(x)), x_test, rng.integers(0, 10, len(x_test)),
        train_indices=deal(examples), test_indices=deal(tests), num_classes=10,
    )  # fmt: skip


class Ours:
    """Compiled rounds of one method; `__call__` runs `length` of them and waits."""

    def __init__(self, algorithm, data, participation=None, length=1, evaluations=(), chunk_size=None, num_seeds=None):
        from fedjax_srp.engine.program import program
        from fedjax_srp.engine.sharding import layout

        plan = layout(None, chunk_size, data.num_clients)
        clock = srp.clocks.fixed(srp.clocks.exponential(1.0))
        policy = participation or srp.participation.full()
        self.program, self.length = program(algorithm, policy, clock, evaluations, plan, num_seeds), length
        self.data = jax.device_put(data, plan.sharding())
        key = jax.random.key(0)
        self.root = jax.device_put(key if num_seeds is None else jax.random.split(key, num_seeds), plan.sharding())
        self.state = self.program.start(self.root, self.data).state
        self()

    def __call__(self):
        self.state, segment = self.program.segment(self.length, self.state, self.root, self.data)
        jax.block_until_ready(segment)


def seconds(function) -> float:
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def paired(ours, rival, repeats: int) -> dict[str, float]:
    pairs = [(seconds(ours), seconds(rival)) for _ in range(repeats)]
    mine, theirs = zip(*pairs, strict=True)
    return {
        "seconds": statistics.median(mine),
        "rival_seconds": statistics.median(theirs),
        "ratio": statistics.median(t / m for m, t in pairs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out")
    parser.add_argument("--no-torch", action="store_true", help="only the comparisons with ourselves")
    args = parser.parse_args()

    model = srp.models.mlp((28, 28), 10)
    fedavg = srp.algorithms.fedavg(model)
    fedrep = srp.algorithms.fedrep(model, srp.algorithms.sgd(0.01, momentum=0.5))
    data = synthetic(100, 150, 50)
    results: dict[str, dict] = {}

    def report(name: str, result: dict) -> None:
        results[name] = result
        print(f"{name:28s}", {k: round(v, 4) for k, v in result.items()}, flush=True)

    ours = {
        "fedavg_round": Ours(fedavg, data),
        "fedrep_round": Ours(fedrep, data),
        "fedrep_round_evaluated": Ours(fedrep, data, evaluations=("fine_tune",)),
    }
    for name, run in ours.items():
        results[f"compile {name}"] = {"seconds": run.program.compile_seconds}
    if not args.no_torch:
        from torch_loop import TorchLoop

        clients = jax.device_get(jax.vmap(data.train_client)(np.arange(100)))
        tests = jax.device_get(jax.vmap(data.test_client)(np.arange(100)))
        flat = lambda x: np.array(x, np.float32).reshape(*x.shape[:2], -1)  # noqa: E731
        rival = TorchLoop(flat(clients.x), clients.y, flat(tests.x), tests.y, (512, 256, 64))
        report("fedavg_round", paired(ours["fedavg_round"], rival.fedavg_round, args.repeats))
        report("fedrep_round", paired(ours["fedrep_round"], rival.fedrep_round, args.repeats))

        pairs = []
        for _ in range(args.repeats):
            plain = seconds(ours["fedrep_round"])
            with_evaluation = seconds(ours["fedrep_round_evaluated"])
            pairs.append((max(with_evaluation - plain, 1e-9), seconds(rival.fine_tuned_evaluation)))
        mine, theirs = zip(*pairs, strict=True)
        report("evaluation_fine_tune_10", {
            "seconds": statistics.median(mine),
            "rival_seconds": statistics.median(theirs),
            "ratio": statistics.median(theirs) / statistics.median(mine),
        })  # fmt: skip
    else:
        for name, run in ours.items():
            report(name, {"seconds": statistics.median(seconds(run) for _ in range(args.repeats))})

    print(f"device: {jax.devices()}, {platform.processor() or platform.machine()}, jax {jax.__version__}")
    if args.out:
        with open(args.out, "w") as file:
            json.dump({"device": jax.devices()[0].device_kind, "num_devices": jax.device_count(),
                       "jax": jax.__version__, "results": results}, file, indent=1)  # fmt: skip


if __name__ == "__main__":
    main()
