"""Time of LeNet-5 on images of CIFAR's shape, compared with PyTorch, in turn.

    python benchmarks/lenet.py [--repeats 5] [--clients 20] [--out benchmarks/results/NAME.json] [--skip-torch]

Clients of 100 training and 50 test images of 32 x 32 x 3, batches of 10; the images are random unless --data-dir holds
a prepared CIFAR-10. Every ratio is the median over interleaved pairs, without compile time. Two rivals: "loop" iterates
over the clients with as many threads as cores; "processes" is the best PyTorch setting we found, one process of one
thread a core, channels last, and no mean between the processes. Threads that wait for each other suffer most from other
processes, so measure on an idle machine.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import os
import platform
import statistics
from functools import partial
from pathlib import Path

import jax
import numpy as np
from harness.measure import Rounds, arrays, limits, paired, seconds, synthetic

import fedjax_srp as srp

EXAMPLES, TESTS = 100, 50
# Multiplications and additions of one image, forward: conv1, conv2, fc1, fc2, out; backward, conv1 needs no gradient
# of its input. Counted as direct convolutions, whatever the algorithm.
FORWARD = [2 * n for n in (28 * 28 * 75 * 64, 10 * 10 * 1600 * 64, 1600 * 120, 120 * 64, 64 * 10)]
TRAINING = 3 * sum(FORWARD) - FORWARD[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--data-dir")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--skip-torch", action="store_true", help="only time this package")
    args = parser.parse_args()
    if not args.skip_torch and importlib.util.find_spec("torch") is None:
        parser.error("the rival needs PyTorch: pip install torch, or --skip-torch")
    cores = srp.use_all_cores()
    if args.data_dir:
        options = {"classes_per_client": 5, "max_examples": EXAMPLES, "data_dir": args.data_dir}
        data = srp.data.load("cifar10", num_clients=args.clients, **options)
    else:
        data = synthetic(args.clients, EXAMPLES, TESTS, (32, 32, 3))
    results: dict[str, dict[str, float]] = {}

    def report(name: str, result: dict[str, float]) -> None:
        results[name] = result
        print(f"{name:52s}", "  ".join(f"{key} {value:.4g}" for key, value in result.items()), flush=True)

    print(f"{jax.device_count()} x {jax.devices()[0].device_kind}, jax {jax.__version__}; seconds, medians")
    report("matrix products, all devices", {"gflops": limits(1024)["matrix_flops"] / 1e9})
    sgd = srp.SGD(0.01, momentum=0.5)
    model = srp.models.LeNet5((32, 32, 3), data.num_classes)
    augmented = dataclasses.replace(model, augment=srp.models.augmentation("crop_flip", data))
    algorithms = {
        "local training": (srp.algorithms.FedAvg(model), TRAINING),
        "FedRep round": (srp.algorithms.FedRep(model, srp.Training(sgd)), sum(FORWARD) + TRAINING),
        "FedRep round, crop and flip": (
            srp.algorithms.FedRep(augmented, srp.Training(sgd)),
            10 * sum(FORWARD) + TRAINING,
        ),
    }
    runs, images = {}, int(np.sum(data.train_counts))
    for name, (algorithm, _) in algorithms.items():
        runs[name] = Rounds(algorithm, data)
        report(f"compile: {name}", {"ours": runs[name].compile_seconds})

    def measured(what: str, ours: str, result: dict[str, float]) -> None:
        report(what, {**result, "our_gflops": images * algorithms[ours][1] / result["ours"] / 1e9})

    if args.skip_torch:
        for name, run in runs.items():
            measured(name, name, {"ours": statistics.median(seconds(run) for _ in range(args.repeats))})
    else:
        import torch
        from harness.torch_loop import TorchLoop, lenet5
        from torch_processes import Processes

        torch.set_num_threads(cores)
        examples = arrays(data)
        for what, method, options in (
            ("local training", "fedavg_round", {}),
            ("FedRep round", "fedrep_round", {}),
            ("FedRep round", "fedrep_round", {"cache": True}),
            ("FedRep round, crop and flip", "fedrep_round", {"augment": True}),
        ):
            loop = TorchLoop(lenet5(), examples, **options)
            processes = Processes(examples, min(cores, args.clients), channels_last=True, **options)
            for rival, call in {"loop": getattr(loop, method), "processes": partial(processes.run, method)}.items():
                call()  # warm
                result = paired(partial(seconds, runs[what]), partial(seconds, call), args.repeats)
                cached = ", features cached" if options.get("cache") else ""
                measured(f"{what}, rival: {rival}{cached}", what, result)
            processes.close()

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
        written = {"machine": machine, "repeats": args.repeats, "clients": args.clients, "seconds": results}
        args.out.write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    main()
