"""Time of LeNet-5 on images of CIFAR's shape, compared with PyTorch, in turn.

    python benchmarks/lenet.py [--repeats 5] [--clients 20] [--out benchmarks/results/NAME.json]

Clients of 100 training and 50 test images of 32 x 32 x 3, batches of 10; the images are random unless --data-dir holds
a prepared CIFAR-10. Every ratio is the median over interleaved pairs, without compile time. Two rivals: "loop" iterates
over the clients with as many threads as cores; "processes" is the best PyTorch setting we found, one process of one
thread a core, channels last, and no mean between the processes. Threads that wait for each other suffer most from other
processes, so measure on an idle machine.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from functools import partial

import numpy as np
from harness.command import parser, write
from harness.measure import Rounds, arrays, limits, machine, paired, seconds, synthetic

import fedjax_srp as srp

EXAMPLES = 100
TESTS = 50
# Multiplications and additions of one image, forward: conv1, conv2, fc1, fc2, out; backward, conv1 needs no gradient
# of its input. Counted as direct convolutions, whatever the algorithm.
FORWARD = [
    2 * n for n in (28 * 28 * 75 * 64, 10 * 10 * 1600 * 64, 1600 * 120, 120 * 64, 64 * 10)
]
TRAINING = 3 * sum(FORWARD) - FORWARD[0]


def main() -> None:
    command = parser(__doc__, 5)
    command.add_argument("--clients", type=int, default=20)
    command.add_argument("--data-dir")
    args = command.parse_args()
    if importlib.util.find_spec("torch") is None:
        command.error("the rival needs PyTorch: pip install torch")
    import torch
    from harness.torch_loop import Processes, TorchLoop, lenet5

    cores = srp.use_all_cores()
    torch.set_num_threads(cores)
    if args.data_dir:
        options = {
            "classes_per_client": 5,
            "max_examples": EXAMPLES,
            "data_dir": args.data_dir,
        }
        data = srp.data.load("cifar10", num_clients=args.clients, **options)
    else:
        data = synthetic(args.clients, EXAMPLES, TESTS, (32, 32, 3))
    results: dict[str, dict[str, float]] = {}

    def report(name: str, result: dict[str, float]) -> None:
        results[name] = result
        print(
            f"{name:52s}",
            "  ".join(f"{key} {value:.4g}" for key, value in result.items()),
            flush=True,
        )

    report("matrix products, all devices", {"gflops": limits(1024)["matrix_flops"] / 1e9})
    training = srp.Training(srp.SGD(0.01, momentum=0.5))
    model = srp.models.LeNet5((32, 32, 3), data.num_classes)
    augmented = dataclasses.replace(
        model, augment=srp.models.augmentation("crop_flip", data)
    )
    cases = {  # algorithm, operations of an image, and the ways in which PyTorch computes the same
        "local training": (srp.algorithms.FedAvg(model), TRAINING, ({},)),
        "FedRep round": (srp.algorithms.FedRep(model, training), sum(FORWARD) + TRAINING, ({}, {"cache": True})),
        "FedRep round, crop and flip": (
            srp.algorithms.FedRep(augmented, training), 10 * sum(FORWARD) + TRAINING, ({"augment": True},),
        ),
    }  # fmt: skip
    images = int(np.sum(data.train_counts))
    examples = arrays(data)
    for name, (algorithm, operations, ways) in cases.items():
        ours = Rounds(algorithm, data)
        report(f"compile: {name}", {"ours": ours.compile_seconds})
        method = "fedrep_round"
        if name == "local training":
            method = "fedavg_round"
        for options in ways:
            loop = TorchLoop(lenet5(), examples, **options)
            processes = Processes(examples, min(cores, args.clients), **options)
            for rival, call in {
                "loop": getattr(loop, method),
                "processes": partial(processes.run, method),
            }.items():
                call()  # warm
                found = paired(
                    partial(seconds, ours), partial(seconds, call), args.repeats
                )
                found["our_gflops"] = images * operations / found["ours"] / 1e9
                report(
                    f"{name}, rival: {rival}{', features cached' * ('cache' in options)}",
                    found,
                )
            processes.close()
    write(
        args.out,
        {
            "machine": machine(),
            "repeats": args.repeats,
            "clients": args.clients,
            "seconds": results,
        },
    )


if __name__ == "__main__":
    main()
