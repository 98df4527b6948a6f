"""What a round and an evaluation cost the simulator, and the same in PyTorch, paired in one process.

    python benchmarks/rounds.py [--repeats 7] [--out benchmarks/results/NAME.json] [--skip-torch]

MLP 784-512-256-64-10, clients of 150 training and 50 test images of 28 x 28, batches of 10. The images are random: speed does not depend
on them. Compile time is apart. A ratio is the median over interleaved pairs; absolute times are medians too and depend on the machine.
The rival (`torch_loop.py`, needs torch) is a lean loop over clients. PyTorch may use all cores; so do we.
"""  # noqa: E501

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

import fedjax_srp as srp
from fedjax_srp.engine.program import program, traffic
from fedjax_srp.engine.sharding import layout

EXAMPLES, TESTS, HIDDEN = 150, 50, (512, 256, 64)


def synthetic(num_clients: int, examples: int = EXAMPLES, tests: int = TESTS) -> srp.data.FederatedData:
    """Random uint8 images, dealt evenly."""
    rng = np.random.default_rng(0)

    def split(per_client: int):
        x = rng.integers(0, 256, (num_clients * per_client, 28, 28), dtype=np.uint8)
        rows = [np.arange(i * per_client, (i + 1) * per_client) for i in range(num_clients)]
        return x, rng.integers(0, 10, len(x)), rows

    x, y, train = split(examples)
    x_test, y_test, test = split(tests)
    return srp.data.from_arrays(x, y, x_test, y_test, train_indices=train, test_indices=test, num_classes=10)


class Rounds:
    """Compiled rounds of one method; a call runs `length` of them, and the evaluations asked for, and waits."""

    def __init__(self, algorithm, data, participation=None, length=1, evaluations=(), num_seeds=None, chunk_size=None):
        policy = participation or srp.participation.full()
        clock = srp.clocks.fixed(srp.clocks.exponential(1.0))
        held = traffic(algorithm, policy, data).held * (num_seeds or 1)
        plan = layout(None, chunk_size, data.num_clients, held)
        self.program, self.length = program(algorithm, policy, clock, evaluations, plan, num_seeds), length
        self.data = jax.device_put(data, plan.sharding())
        key = jax.random.key(0)
        self.root = jax.device_put(key if num_seeds is None else jax.random.split(key, num_seeds), plan.sharding())
        self.state = self.program.start(self.root, self.data).state
        self()  # compiles

    def __call__(self) -> None:
        self.state, segment = self.program.segment(self.length, self.state, self.root, self.data)
        jax.block_until_ready(segment)


def seconds(function: Callable[[], object]) -> float:
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def paired(ours: Callable[[], float], rival: Callable[[], float], repeats: int) -> dict[str, float]:
    """Medians of two ways of measuring, in turn, and the median of their ratios pair by pair."""
    pairs = [(ours(), rival()) for _ in range(repeats)]
    mine, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
    return {"ours": mine, "rival": theirs, "rival_over_ours": statistics.median(b / a for a, b in pairs)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--skip-torch", action="store_true", help="only the comparisons with ourselves")
    args = parser.parse_args()
    if not args.skip_torch and importlib.util.find_spec("torch") is None:
        parser.error("the rival needs PyTorch: pip install torch, or --skip-torch for the comparisons with ourselves")
    srp.use_all_cores()

    model = srp.models.mlp((28, 28), 10, HIDDEN)
    fedavg = srp.algorithms.fedavg(model)
    fedrep = srp.algorithms.fedrep(model, srp.algorithms.sgd(0.01, momentum=0.5))
    data = synthetic(100)
    results: dict[str, dict[str, float]] = {}

    def report(name: str, result: dict[str, float]) -> None:
        results[name] = result
        print(f"{name:58s}", "  ".join(f"{key} {value:.4g}" for key, value in result.items()), flush=True)

    print(f"{jax.device_count()} x {jax.devices()[0].device_kind}, jax {jax.__version__}; seconds, medians")
    runs = {
        "FedAvg round": Rounds(fedavg, data),
        "FedRep round (10 + 1 epochs)": Rounds(fedrep, data),
        "FedRep round with evaluation": Rounds(fedrep, data, evaluations=("fine_tune",)),
        "SRPFL round": Rounds(fedrep, data, srp.participation.doubling(10, 10)),
    }
    for name, run in runs.items():
        report(f"compile: {name}", {"ours": run.program.compile_seconds})
    plain, judged = runs["FedRep round (10 + 1 epochs)"], runs["FedRep round with evaluation"]
    evaluation = lambda: max(seconds(judged) - seconds(plain), 1e-9)  # noqa: E731

    if not args.skip_torch:
        from torch_loop import TorchLoop

        def arrays(client):
            split = jax.device_get(jax.vmap(client)(np.arange(data.num_clients)))
            return np.array(split.x, np.float32).reshape(*split.x.shape[:2], -1), split.y

        rival = TorchLoop(*arrays(data.train_client), *arrays(data.test_client), HIDDEN)
        for name, ours, theirs in (
            ("FedAvg round", lambda: seconds(runs["FedAvg round"]), rival.fedavg_round),
            ("FedRep round (10 + 1 epochs)", lambda: seconds(plain), rival.fedrep_round),
            ("evaluation, 10 epochs of the head", evaluation, rival.fine_tuned_evaluation),
        ):
            report(f"{name}, rival: PyTorch loop", paired(ours, lambda t=theirs: seconds(t), args.repeats))

    many = synthetic(10_000, tests=1)
    few_of_few = Rounds(fedrep, data, srp.participation.fastest(10), length=4)
    few_of_many = Rounds(fedrep, many, srp.participation.fastest(10), length=4)
    name = "FedRep round, 10 of 10,000 clients, rival: 10 of 100"
    report(name, paired(lambda: seconds(few_of_many) / 4, lambda: seconds(few_of_few) / 4, args.repeats))
    del many
    for name, algorithm in (("FedAvg", fedavg), ("FedRep", fedrep)):
        batch, one = Rounds(algorithm, data, num_seeds=4), Rounds(algorithm, data)
        looped = lambda one=one: sum(seconds(one) for _ in range(4))  # noqa: E731
        name = f"{name} round, 4 seeds vmapped, rival: looped"
        report(name, paired(lambda batch=batch: seconds(batch), looped, args.repeats))

    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        machine = {
            "device": jax.devices()[0].device_kind,
            "num_devices": jax.device_count(),
            "cores": os.cpu_count(),
            "processor": platform.machine(),
            "python": platform.python_version(),
            "jax": jax.__version__,
        }
        args.out.write_text(
            json.dumps({"machine": machine, "repeats": args.repeats, "seconds": results}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
