"""BlazeFL's own benchmark in this package, in BlazeFL and in Flower, rounds in turn: FedAvg on CIFAR-10.

    python benchmarks/blazefl_rival.py --data-dir DIR [--blazefl PYTHON] [--flower PYTHON] [--rounds 5]
        [--model resnet18 --clients 4 --images 50 --tests 1000 --epochs 1] [--out FILE.json]

100 clients, all in every round, two shards of 250 images each, five epochs in batches of 50 with step 0.1, the network
of PyTorch's tutorial (62,006 parameters), and after every round the accuracy on all 10,000 test images, as BlazeFL's
benchmark has it; its other network is torchvision's ResNet-18 (BatchNorm). The options after --rounds make it smaller.
PYTHON is that of an environment with torchvision and blazefl 2, or flwr with its simulation; without them only ours is
timed.

BlazeFL runs in a process for each core (its threads need a Python without a lock), and so does Flower, in Ray's; each
has one thread of PyTorch, so that threads do not compete for cores, and waits between its rounds. All have the same
images for each client. The first parameters follow the same rules (PyTorch's; He's for ResNet-18), with other draws,
and batches differ. A round of ours is timed once its program is compiled, those of the others from the second on; the
seconds of compiling stand beside it. Ratios are medians over pairs of rounds.
"""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from blazefl_child import BATCH, CLASSES, RATE, SEED
from harness.command import Child, parser, write
from harness.measure import JudgedRounds, machine, ratios, seconds, summary

import fedjax_srp as srp
from fedjax_srp.models.resnet import ConvNorm

CLIENTS = 100
IMAGES = 500  # of a client
TESTS = 10_000
EPOCHS = 5
SHARDS = 2  # of a client
SIDE = 32
SHAPE = (SIDE, SIDE, 3)
HERE = Path(__file__).parent
RAY = {  # for Flower: it reports nothing, and its workers are as important as other processes
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
}


def images(
    data_dir: Path, clients: int, number: int, tests: int
) -> dict[str, np.ndarray]:
    """CIFAR-10 and each client's rows of it: sorted by class, cut into shards, dealt at random."""
    whole = srp.data.load("cifar10", 1, partition="iid", data_dir=data_dir)
    x, y, x_test, y_test = map(
        np.asarray, (whole.x_train, whole.y_train, whole.x_test, whole.y_test)
    )
    shards = np.argsort(y, kind="stable").reshape(CLIENTS * SHARDS, -1)
    dealt = np.random.default_rng(SEED).permutation(shards).reshape(CLIENTS, SHARDS, -1)
    return {
        "x": x.reshape(-1, *SHAPE),
        "y": y,
        "x_test": x_test[:tests].reshape(-1, *SHAPE),
        "y_test": y_test[:tests],
        "clients": dealt[:clients, :, : number // SHARDS].reshape(clients, -1),
    }


def pooled_relu(x: jax.Array) -> jax.Array:
    """ReLU, then the largest of windows of 3 x 3, with a stride of 2."""
    padded = jnp.pad(jax.nn.relu(x), ((0, 0), (1, 1), (1, 1), (0, 0)))
    height, width = x.shape[1:3]
    windows = [
        padded[:, i : i + height : 2, j : j + width : 2]
        for i in range(3)
        for j in range(3)
    ]
    return functools.reduce(jnp.maximum, windows)


def small_cnn() -> srp.models.SplitModel:
    """The network of PyTorch's tutorial."""
    return srp.models.LeNet5(
        SHAPE, CLASSES, channels=(6, 16), hidden=(120, 84), initialization="torch"
    )


def resnet18() -> srp.models.SplitModel:
    """torchvision's ResNet-18, whose first layer halves the image, and pools."""
    _, *blocks = srp.models.ResNet18(SHAPE, CLASSES).stack()
    stem = ConvNorm(64, (7, 7), 2, None, "auto", jnp.float32)
    first = srp.models.Layer("conv1", stem, pooled_relu, block=8)
    return srp.models.Split(
        SHAPE, CLASSES, (first, *blocks), name="torchvision_resnet18", cut=None
    )


MODELS = {"cnn": small_cnn, "resnet18": resnet18}


def ours(found: dict[str, np.ndarray], model_name: str, epochs: int) -> JudgedRounds:
    """Compiled rounds of this package."""
    tests = np.array_split(np.arange(len(found["x_test"])), len(found["clients"]))
    data = srp.data.from_arrays(
        found["x"],
        found["y"],
        found["x_test"],
        found["y_test"],
        train_indices=list(found["clients"]),
        test_indices=tests,
        num_classes=CLASSES,
        scale=2 / 255,
        offset=-1.0,
    )
    training = srp.Training(srp.SGD(RATE), BATCH, epochs)
    algorithm = srp.algorithms.FedAvg(MODELS[model_name](), training)
    return JudgedRounds(algorithm, data, "global")


def main() -> None:
    command = parser(__doc__)
    command.add_argument(
        "--data-dir", type=Path, required=True, help="folder with a prepared cifar10"
    )
    for name in ("blazefl", "flower"):
        command.add_argument(f"--{name}", help="interpreter of its environment")
    command.add_argument("--rounds", type=int, default=5)
    command.add_argument("--model", choices=MODELS, default="cnn")
    command.add_argument("--clients", type=int, default=CLIENTS)
    command.add_argument("--images", type=int, default=IMAGES, help="of a client")
    command.add_argument("--tests", type=int, default=TESTS, help="images of the test")
    command.add_argument("--epochs", type=int, default=EPOCHS)
    args = command.parse_args()
    if args.rounds < 2:
        command.error(f"--rounds {args.rounds}: the first is not timed; give 2 or more")
    cores = srp.use_all_cores()
    found = images(args.data_dir, args.clients, args.images, args.tests)
    rounds = ours(found, args.model, args.epochs)  # runs the first round, while compiled
    times: dict[str, list[float]] = {"ours": []}
    accuracies: dict[str, list[float]] = {"ours": [rounds.accuracy()]}

    def step() -> None:
        rounds()
        accuracies["ours"].append(rounds.accuracy())

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "images.npz"
        np.savez(file, **found)
        rivals = {}
        for name, python in (("blazefl", args.blazefl), ("flower", args.flower)):
            if python:
                words = [python, str(HERE / f"{name}_child.py"), str(file)]
                words += [f"{folder}/{name}", str(cores), args.model, str(args.epochs)]
                words += [str(args.rounds)] * (name == "flower")
                rivals[name] = Child(words, OMP_NUM_THREADS="1", **RAY)
                times[name] = []
                accuracies[name] = [rivals[name].seconds("round")[1]]
        for _ in range(args.rounds - 1):
            times["ours"].append(seconds(step))
            for name, child in rivals.items():
                took, accuracy = child.seconds("round")
                times[name].append(took)
                accuracies[name].append(accuracy)
        for child in rivals.values():
            child.close()
    results: dict[str, Any] = machine() | {
        name: summary(of) for name, of in times.items()
    }
    for name in ("model", "clients", "images", "tests", "epochs"):
        results[name] = getattr(args, name)
    results["compile_seconds"] = rounds.compile_seconds
    results["accuracies"] = accuracies
    for name in rivals:
        results[f"{name}_over_ours"] = summary(ratios(times, name, "ours"))
    write(args.out, results)
    for name, value in results.items():
        print(name, value, flush=True)


if __name__ == "__main__":
    main()
