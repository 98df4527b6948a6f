"""BlazeFL's own benchmark in this package and in BlazeFL, rounds in turn: FedAvg on CIFAR-10.

    python benchmarks/blazefl_rival.py --data-dir DIR [--python PYTHON] [--rounds 5] [--out FILE.json]

100 clients, all in every round, two shards of 250 images each, five epochs in batches of 50 with step 0.1, the network
of PyTorch's tutorial (62,006 parameters), and after every round the accuracy on all 10,000 test images, as BlazeFL's
benchmark has it. PYTHON is that of an environment with blazefl 2 and torchvision; without it only ours is timed.

BlazeFL runs in a process for each core (its threads need a Python without a lock), each with one thread of PyTorch, so
that threads do not compete for cores; it stops between its rounds. Both have the same images for each client. The first
parameters follow PyTorch's rule in both, with other draws, and batches differ. A round of ours is timed once its
program is compiled; the seconds of compiling stand beside it. The ratio is the median over pairs of rounds.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from blazefl_child import BATCH, CLASSES, EPOCHS, RATE, SEED
from harness.command import Child, parser, write
from harness.measure import JudgedRounds, machine, ratios, seconds, summary

import fedjax_srp as srp

CLIENTS = 100
SHARDS = 2  # of a client
SIDE = 32
CHILD = Path(__file__).parent / "blazefl_child.py"


def images(data_dir: Path) -> dict[str, np.ndarray]:
    """CIFAR-10 and each client's rows of it: sorted by class, cut into shards, dealt at random."""
    whole = srp.data.load("cifar10", 1, partition="iid", data_dir=data_dir)
    x, y, x_test, y_test = map(
        np.asarray, (whole.x_train, whole.y_train, whole.x_test, whole.y_test)
    )
    shards = np.argsort(y, kind="stable").reshape(CLIENTS * SHARDS, -1)
    dealt = np.random.default_rng(SEED).permutation(shards)
    return {
        "x": x.reshape(-1, SIDE, SIDE, 3),
        "y": y,
        "x_test": x_test.reshape(-1, SIDE, SIDE, 3),
        "y_test": y_test,
        "clients": dealt.reshape(CLIENTS, -1),
    }


def ours(found: dict[str, np.ndarray]) -> JudgedRounds:
    """Compiled rounds of this package."""
    tests = np.arange(len(found["x_test"])).reshape(CLIENTS, -1)
    data = srp.data.from_arrays(
        found["x"],
        found["y"],
        found["x_test"],
        found["y_test"],
        train_indices=list(found["clients"]),
        test_indices=list(tests),
        num_classes=CLASSES,
        scale=2 / 255,
        offset=-1.0,
    )
    model = srp.models.LeNet5(
        data.example_shape,
        CLASSES,
        channels=(6, 16),
        hidden=(120, 84),
        initialization="torch",
    )
    training = srp.Training(srp.SGD(RATE), BATCH, EPOCHS)
    algorithm = srp.algorithms.FedAvg(model, training)
    return JudgedRounds(algorithm, data, "global")


def main() -> None:
    command = parser(__doc__)
    command.add_argument(
        "--data-dir", type=Path, required=True, help="folder with a prepared cifar10"
    )
    command.add_argument(
        "--python", help="interpreter of an environment with blazefl and torchvision"
    )
    command.add_argument("--rounds", type=int, default=5)
    args = command.parse_args()
    cores = srp.use_all_cores()
    found = images(args.data_dir)
    times: dict[str, list[float]] = {"ours": []}
    accuracies: dict[str, list[float]] = {"ours": []}
    rounds = ours(found)  # runs the first round, while it is compiled
    accuracies["ours"].append(rounds.accuracy())

    def step() -> None:
        rounds()
        accuracies["ours"].append(rounds.accuracy())

    with tempfile.TemporaryDirectory() as folder:
        child = None
        if args.python:
            file = Path(folder) / "images.npz"
            np.savez(file, **found)
            place = str(Path(folder) / "blazefl")
            words = [args.python, str(CHILD), str(file), place, str(cores)]
            child = Child(words, OMP_NUM_THREADS="1")
            times["blazefl"] = []
            accuracies["blazefl"] = [child.seconds("round")[1]]
        for _ in range(args.rounds - 1):
            times["ours"].append(seconds(step))
            if child is not None:
                took, accuracy = child.seconds("round")
                times["blazefl"].append(took)
                accuracies["blazefl"].append(accuracy)
        if child is not None:
            child.close()
    results: dict[str, Any] = machine() | {
        name: summary(of) for name, of in times.items()
    }
    results["compile_seconds"] = rounds.compile_seconds
    results["accuracies"] = accuracies
    if args.python:
        results["blazefl_over_ours"] = summary(ratios(times, "blazefl", "ours"))
    write(args.out, results)
    for name, value in results.items():
        print(name, value, flush=True)


if __name__ == "__main__":
    main()
