"""PFLlib's command on MNIST in this package and in PFLlib, in turn: FedAvg, FedRep and FedALA.

    python benchmarks/pfllib_mnist.py --data-dir DIR [--pfllib CHECKOUT --python PYTHON] [--rounds 20] [--images 600]
        [--out FILE.json]

20 clients by Dirichlet(0.1), all in every round, one epoch in batches of 10 with step 0.005, PFLlib's CNN (582,026
parameters). CHECKOUT is a clone of TsingZ0/PFLlib, PYTHON that of an environment with what it needs; without them only
ours is timed. Its `main.py` runs as it is, `-eg 5`, on the images that ours has. It leaves out batches that are not
full, so every client has a multiple of ten images, at most --images of them; and it starts from other parameters, and
draws other batches.

Rounds of both alternate, with PFLlib stopped by a signal in between, so that other processes slow both; the ratio is
the median over pairs. Both evaluate every fifth round, outside of these pairs: PFLlib evaluates training examples too.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from harness.command import parser, write
from harness.measure import JudgedRounds, arrays, machine, ratios, seconds, summary

import fedjax_srp as srp
from fedjax_srp.models import Convolution, Dense, Layer, Split
from fedjax_srp.models.lenet import pooled_relu

CLIENTS = 20
EVERY = 5
BATCH = 10
EVALUATION = {"FedAvg": "global", "FedRep": "own_head", "FedALA": "aggregated"}
LAYERS = (
    Layer("conv1", Convolution(32, (5, 5)), pooled_relu, block=50),
    Layer("conv2", Convolution(64, (5, 5)), pooled_relu, block=50),
    Layer("fc1", Dense(512), jax.nn.relu),
    Layer("fc", Dense(10)),
)


def federation(data_dir: Path, images: int, seed: int) -> srp.data.FederatedData:
    """Clients with a multiple of ten training images, at most `images`."""
    whole = srp.data.load(
        "mnist",
        CLIENTS,
        partition="dirichlet",
        alpha=0.1,
        min_examples=2 * BATCH,
        seed=seed,
        data_dir=data_dir,
    )
    rng = np.random.default_rng(seed)
    rows = np.asarray(whole.train_indices)
    chosen = [
        row[rng.permutation(count)[: min(count, images) // BATCH * BATCH]]
        for row, count in zip(rows, np.asarray(whole.train_counts).tolist(), strict=True)
    ]
    tests = zip(
        np.asarray(whole.test_indices), np.asarray(whole.test_counts), strict=True
    )
    return srp.data.from_arrays(
        *map(np.asarray, (whole.x_train, whole.y_train, whole.x_test, whole.y_test)),
        train_indices=chosen,
        test_indices=[row[:count] for row, count in tests],
        num_classes=whole.num_classes,
        scale=whole.scale,
        offset=whole.offset,
    )


def rounds(name: str, data: srp.data.FederatedData) -> JudgedRounds:
    """Compiled rounds of this package."""
    model = Split(
        data.example_shape,
        data.num_classes,
        LAYERS,
        name="cnn",
        cut="fc",
        initialization="torch",
    )
    training = srp.Training(srp.SGD(0.005), BATCH, epochs=1, weighting="num_examples")
    options: dict[str, Any] = {}
    if name == "FedRep":
        options = {"head_epochs": 1, "representation_epochs": 1}
    algorithm = getattr(srp.algorithms, name)(model, training, **options)
    return JudgedRounds(algorithm, data, EVALUATION[name])


class Theirs:
    """PFLlib's command in a separate process, which runs only during a call."""

    def __init__(
        self,
        python: str,
        checkout: Path,
        name: str,
        data: srp.data.FederatedData,
        rounds: int,
        folder: Path,
    ):
        x, y, x_test, y_test = arrays(data)
        for split, images, labels, counts in (
            ("train", x, y, data.train_counts),
            ("test", x_test, y_test, data.test_counts),
        ):
            place = folder / "dataset" / "MNIST" / split
            place.mkdir(parents=True)
            for i, count in enumerate(map(int, counts)):
                kept: Any = {
                    "x": images[i, :count].reshape(count, 1, 28, 28),
                    "y": labels[i, :count],
                }
                np.savez(place / f"{i}.npz", data=kept)
        (folder / "system").mkdir()
        command = [
            python,
            "-u",
            str(checkout.absolute() / "system" / "main.py"),
            "-dev",
            "cpu",
            "-algo",
            name,
        ]
        command += [
            "-data",
            "MNIST",
            "-m",
            "CNN",
            "-nc",
            str(CLIENTS),
            "-gr",
            str(rounds),
            "-eg",
            str(EVERY),
        ]
        self.process = subprocess.Popen(
            command,
            cwd=folder / "system",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.said: list[str] = []
        self.accuracies: list[float] = []
        self.lines = self._read()

    def _read(self) -> Iterator[str]:
        for line in self.process.stdout or ():
            self.said.append(line)
            if line.startswith("Averaged Test Accuracy:"):
                self.accuracies.append(float(line.split()[-1]))
            yield line

    def __call__(self) -> None:
        """Run until a round ends."""
        self.process.send_signal(signal.SIGCONT)
        if not any("time cost" in line for line in self.lines):
            raise SystemExit("PFLlib ended:\n" + "".join(self.said[-20:]))
        self.process.send_signal(signal.SIGSTOP)


def compare(
    name: str, data: srp.data.FederatedData, args: argparse.Namespace
) -> dict[str, Any]:
    """Times of both in turn, and accuracies of every fifth round."""
    ours = rounds(name, data)  # runs the first round, while it is compiled
    times: dict[str, list[float]] = {"ours": []}
    accuracies: dict[str, list[float]] = {"ours": []}
    with tempfile.TemporaryDirectory() as folder:
        theirs = None
        if args.pfllib:
            theirs = Theirs(
                args.python, args.pfllib, name, data, args.rounds + EVERY, Path(folder)
            )
            times["pfllib"] = []
        try:
            for number in range(args.rounds + 1):
                if number and number % EVERY == 0:
                    accuracies["ours"].append(ours.accuracy())
                pair = {"ours": 0.0}
                if number:
                    pair["ours"] = seconds(ours)
                if theirs is not None:
                    pair["pfllib"] = seconds(theirs)
                if number % EVERY:
                    for who, took in pair.items():
                        times[who].append(took)
        finally:
            if theirs is not None:
                theirs.process.kill()
                theirs.process.wait()
                accuracies["pfllib"] = theirs.accuracies[1:]
    found: dict[str, Any] = {who: summary(of) for who, of in times.items()} | {
        "accuracies": accuracies
    }
    if theirs is not None:
        found["pfllib_over_ours"] = summary(ratios(times, "pfllib", "ours"))
    medians = {
        key: round(value["median"], 3)
        for key, value in found.items()
        if "median" in value
    }
    print(name, medians, accuracies, flush=True)
    return found


def main() -> None:
    command = parser(__doc__)
    command.add_argument(
        "--data-dir", type=Path, required=True, help="folder with a prepared mnist"
    )
    command.add_argument(
        "--pfllib", type=Path, metavar="CHECKOUT", help="a clone of PFLlib"
    )
    command.add_argument("--python", help="interpreter of an environment for PFLlib")
    command.add_argument(
        "--methods", nargs="+", choices=EVALUATION, default=[*EVALUATION]
    )
    command.add_argument("--rounds", type=int, default=20)
    command.add_argument(
        "--images", type=int, default=600, help="of a client at most, for training"
    )
    command.add_argument("--seed", type=int, default=0, help="of the division")
    args = command.parse_args()
    if args.rounds < EVERY:
        command.error(
            f"--rounds {args.rounds}: both are evaluated every fifth round; give at least {EVERY}"
        )
    if (args.pfllib is None) != (args.python is None):
        command.error("--pfllib and --python go together; give both, or neither")
    srp.use_all_cores()
    data = federation(args.data_dir, args.images, args.seed)
    facts: dict[str, Any] = machine() | {
        "images": [int(count) for count in data.train_counts]
    }
    for name in args.methods:
        facts[name] = compare(name, data, args)
        write(args.out, facts)


if __name__ == "__main__":
    main()
