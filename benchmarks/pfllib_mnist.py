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
import json
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from harness.measure import Rounds, arrays, machine, seconds, summary

import fedjax_srp as srp
from fedjax_srp.models.lenet import pooled_relu

CLIENTS, EVERY, BATCH = 20, 5, 10
EVALUATION = {"FedAvg": "global", "FedRep": "own_head", "FedALA": "aggregated"}


@srp.part
class Network(srp.models.SplitModel):
    """PFLlib's FedAvgCNN, with PyTorch's start."""

    def stack(self) -> Sequence[srp.models.Layer]:
        """Two convolutions and two dense layers."""
        layer, convolution, dense = srp.models.Layer, srp.models.Convolution, srp.models.Dense
        return [
            layer("conv1", convolution(32, (5, 5)), pooled_relu, block=50),
            layer("conv2", convolution(64, (5, 5)), pooled_relu, block=50),
            layer("fc1", dense(512), jax.nn.relu),
            layer("fc", dense(self.num_classes)),
        ]


def federation(data_dir: Path, images: int, seed: int) -> srp.data.FederatedData:
    """Clients with a multiple of ten training images, at most `images`."""
    whole = srp.data.load(
        "mnist", CLIENTS, partition="dirichlet", alpha=0.1, min_examples=2 * BATCH, seed=seed, data_dir=data_dir
    )
    x, y, x_test, y_test = arrays(whole)
    counts = [min(int(count), images) // BATCH * BATCH for count in whole.train_counts]
    rng = np.random.default_rng(seed)
    chosen = [rng.permutation(int(of))[:count] for of, count in zip(whole.train_counts, counts, strict=True)]
    tests = [np.arange(int(count)) for count in whole.test_counts]

    def flat(values: np.ndarray, rows: list[np.ndarray]) -> np.ndarray:
        return np.concatenate([of_client[row] for of_client, row in zip(values, rows, strict=True)])

    def indices(rows: list[np.ndarray]) -> list[np.ndarray]:
        ends = np.cumsum([len(row) for row in rows])
        return [np.arange(end - len(row), end) for row, end in zip(rows, ends, strict=True)]

    return srp.data.from_arrays(
        *(flat(x, chosen), flat(y, chosen), flat(x_test, tests), flat(y_test, tests)),
        train_indices=indices(chosen),
        test_indices=indices(tests),
        num_classes=whole.num_classes,
    )


class Ours:
    """Rounds of this package; a call runs one."""

    def __init__(self, name: str, data: srp.data.FederatedData):
        model = Network(data.example_shape, data.num_classes, cut="fc", initialization="torch")
        training = srp.Training(srp.SGD(0.005), BATCH, epochs=1, weighting="num_examples")
        options: dict[str, Any] = {"head_epochs": 1, "representation_epochs": 1} if name == "FedRep" else {}
        algorithm = getattr(srp.algorithms, name)(model, training, **options)
        self.evaluation = EVALUATION[name]
        self.run = Rounds(algorithm, data)
        self.judged = Rounds(algorithm, data, evaluations=(self.evaluation,))
        self.parameters = sum(leaf.size for leaf in jax.tree.leaves(model.init(jax.random.key(0))))

    def __call__(self) -> None:
        """A round."""
        self.run()

    def accuracy(self) -> float:
        """The mean over test images."""
        of, state = self.judged, self.run.state
        found = of.program.scores(state.server, of.root, of.data, state.clients)[self.evaluation]
        right, number = jax.device_get(found)
        return float(right.sum() / number.sum())


class Theirs:
    """PFLlib's command in a separate process, which runs only during a call."""

    def __init__(self, python: str, checkout: Path, name: str, data: srp.data.FederatedData, rounds: int, folder: Path):
        x, y, x_test, y_test = arrays(data)
        for split, images, labels, counts in (
            ("train", x, y, data.train_counts),
            ("test", x_test, y_test, data.test_counts),
        ):
            place = folder / "dataset" / "MNIST" / split
            place.mkdir(parents=True, exist_ok=True)
            for i, count in enumerate(map(int, counts)):
                kept: Any = {"x": images[i, :count].reshape(count, 1, 28, 28), "y": labels[i, :count]}
                np.savez(place / f"{i}.npz", data=kept)
        (folder / "system").mkdir(exist_ok=True)
        command = [python, "-u", str(checkout.absolute() / "system" / "main.py"), "-dev", "cpu", "-algo", name]
        command += ["-data", "MNIST", "-m", "CNN", "-nc", str(CLIENTS), "-gr", str(rounds), "-eg", str(EVERY)]
        self.process = subprocess.Popen(
            command, cwd=folder / "system", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.said: list[str] = []
        self.accuracies: list[float] = []
        self.lines = self._read()

    def _read(self) -> Iterator[str]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
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


def compare(name: str, data: srp.data.FederatedData, args: argparse.Namespace) -> dict[str, Any]:
    """Times of both in turn, and accuracies of every fifth round."""
    ours, pairs, accuracies = Ours(name, data), [], []
    with tempfile.TemporaryDirectory() as folder:
        theirs = None
        if args.pfllib:
            theirs = Theirs(args.python, args.pfllib, name, data, args.rounds + EVERY, Path(folder))
        try:
            for number in range(args.rounds + 1):
                if number % EVERY == 0:
                    accuracies.append(ours.accuracy() if number else float("nan"))  # one round is run while compiling
                pair = [seconds(ours)] if number else [float("nan")]
                if theirs is not None:
                    pair.append(seconds(theirs))
                if number % EVERY:
                    pairs.append(pair)
        finally:
            if theirs is not None:
                theirs.process.kill()
                theirs.process.wait()
    found: dict[str, Any] = {"ours": summary([pair[0] for pair in pairs]), "accuracies": {"ours": accuracies[1:]}}
    if theirs is not None:
        found["pfllib"] = summary([pair[1] for pair in pairs])
        found["pfllib_over_ours"] = summary([there / here for here, there in pairs])
        found["accuracies"]["pfllib"] = theirs.accuracies[1:]
    words = {key: round(found[key]["median"], 3) for key in ("ours", "pfllib", "pfllib_over_ours") if key in found}
    print(name, words, found["accuracies"], flush=True)
    return found | {"parameters": ours.parameters}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True, help="folder with a prepared mnist")
    parser.add_argument("--pfllib", type=Path, metavar="CHECKOUT", help="a clone of PFLlib")
    parser.add_argument("--python", help="interpreter of an environment for PFLlib")
    parser.add_argument("--methods", nargs="+", choices=EVALUATION, default=[*EVALUATION])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--images", type=int, default=600, help="of a client at most, for training")
    parser.add_argument("--seed", type=int, default=0, help="of the division")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.rounds < EVERY:
        parser.error(f"--rounds {args.rounds}: both are evaluated every fifth round; give at least {EVERY}")
    if (args.pfllib is None) != (args.python is None):
        parser.error("--pfllib and --python go together; give both, or neither")
    srp.use_all_cores()
    data = federation(args.data_dir, args.images, args.seed)
    facts: dict[str, Any] = machine() | {"images": [int(count) for count in data.train_counts]}
    for name in args.methods:
        facts[name] = compare(name, data, args)
        if args.out:
            rounded = json.loads(json.dumps(facts), parse_float=lambda text: float(f"{float(text):.4g}"))
            args.out.write_text(json.dumps(rounded, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
