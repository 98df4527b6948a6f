"""pfl-research's CIFAR-10 workload in this package and in pfl, in turn.

    python benchmarks/pfl_cifar10.py [--data-dir DIR] [--pfl PYTHON] [--rounds 40] [--seed 0] [--out FILE.json]

1,000 users with 50 images each, 50 of them a round, one epoch in batches of 10 with step 0.1, the mean of their models;
a CNN with dropout and 1,626,442 parameters; all 10,000 test images after every tenth round. Users are iid, as in the
speed comparison of pfl's paper (Granqvist et al., 2024). PYTHON is that of an environment with pfl and PyTorch
(`pip install "pfl[pytorch]"`); without it only this package is timed. Both have the same users; each draws its own
cohorts and batches. Without DIR images and labels are random numbers, on which a round takes as long.

Rounds of both alternate, so that other processes slow both; the ratio is the median over pairs. The first ten rounds
are left out.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from harness.measure import Rounds, arrays, limits, machine, seconds, summary, synthetic

import fedjax_srp as srp
from fedjax_srp.models.lenet import pooled_relu

USERS, COHORT, EVERY, LEFT_OUT, XAVIER = 1000, 50, 10, 10, nn.initializers.xavier_uniform()


@srp.part
class Network(srp.models.SplitModel):
    """The CNN of pfl-research's benchmark."""

    def stack(self) -> Sequence[srp.models.Layer]:
        """Two convolutions and two dense layers."""
        layer, convolution, dense = srp.models.Layer, srp.models.Convolution, srp.models.Dense
        some, half = srp.models.Dropout(0.25), srp.models.Dropout(0.5)
        return [
            layer("conv1", convolution(32, (3, 3), kernel_init=XAVIER), jax.nn.relu, block=50),
            layer("conv2", convolution(64, (3, 3), kernel_init=XAVIER), pooled_relu, some, block=50),
            layer("fc1", dense(128, kernel_init=XAVIER), jax.nn.relu, half),
            layer("out", dense(self.num_classes, kernel_init=XAVIER)),
        ]


class Ours:
    """Rounds of this package; a call runs one, and every tenth evaluates."""

    def __init__(self, data: srp.data.FederatedData):
        model = Network(data.example_shape, data.num_classes, cut=None)
        algorithm = srp.algorithms.FedAvg(model, srp.Training(srp.SGD(0.1), batch_size=10, epochs=1))
        cohort = srp.participation.Uniform(COHORT)
        self.run = Rounds(algorithm, data, cohort)
        self.evaluated = Rounds(algorithm, data, cohort, evaluations=("global",))
        self.done, self.accuracy = 1, float("nan")
        parameters = sum(leaf.size for leaf in jax.tree.leaves(model.init(jax.random.key(0))))
        self.facts = {"parameters": parameters, "compile_seconds": self.run.compile_seconds}

    def __call__(self) -> None:
        """A round."""
        self.run()
        self.done += 1
        if self.done % EVERY == 0:
            program, root, data = self.evaluated.program, self.evaluated.root, self.evaluated.data
            right, number = jax.device_get(program.scores(self.run.state.server, root, data)["global"])
            self.accuracy = float(right.sum() / number.sum())


def rival(python: str, data: srp.data.FederatedData, folder: Path, seed: int) -> tuple[subprocess.Popen, Callable]:
    """A process with pfl, and a function that runs a round in it: (seconds, accuracy or nan)."""
    x, y, x_test, y_test = arrays(data)
    path = folder / "federation.npz"
    np.savez(path, x=x, y=y, x_test=x_test.reshape(-1, *x_test.shape[2:]), y_test=y_test.reshape(-1))
    command = [python, str(Path(__file__).with_name("pfl_rounds.py")), str(path), str(seed)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    told, said = process.stdin, process.stdout
    if said.readline().strip() != "ready":
        raise SystemExit(f"--pfl {python}: pfl did not start; its message is above")

    def turn() -> tuple[float, float]:
        print("round", file=told, flush=True)
        line = next((line for line in said if line.startswith("turn ")), None)
        if line is None:
            raise SystemExit(f"--pfl {python}: pfl ended; its message is above")
        time, accuracy = map(float, line.split()[1:])
        return time, accuracy

    return process, turn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, help="folder with a prepared cifar10; default: random images")
    parser.add_argument("--pfl", metavar="PYTHON", help="interpreter of an environment with pfl and PyTorch")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.rounds <= LEFT_OUT:
        parser.error(f"--rounds {args.rounds}: the first {LEFT_OUT} are left out; give more")
    srp.use_all_cores()
    if args.data_dir is None:
        data = synthetic(USERS, 50, 10, (32, 32, 3))
    else:
        data = srp.data.load("cifar10", USERS, partition="iid", seed=args.seed, data_dir=args.data_dir)
    ours = Ours(data)
    facts: dict[str, Any] = (
        machine()
        | {"random_images": args.data_dir is None}
        | ours.facts
        | {"matrix_flops": limits(2048)["matrix_flops"]}
    )
    times: dict[str, list[float]] = {"ours": [], "pfl": []}
    accuracies: dict[str, list[float]] = {"ours": [], "pfl": []}
    with tempfile.TemporaryDirectory() as folder:
        process, turn = rival(args.pfl, data, Path(folder), args.seed) if args.pfl else (None, None)
        for number in range(1, args.rounds + 1):
            times["ours"].append(seconds(ours))
            if ours.done % EVERY == 0:
                accuracies["ours"].append(ours.accuracy)
            if turn is not None:
                time, accuracy = turn()
                times["pfl"].append(time)
                if accuracy == accuracy:
                    accuracies["pfl"].append(accuracy)
            if number % EVERY == 0:
                print(number, {name: f"{times[name][-1]:.2f} s" for name in times if times[name]}, flush=True)
                print({name: [f"{a:.3f}" for a in found[-1:]] for name, found in accuracies.items()}, flush=True)
        if process is not None and process.stdin is not None:
            process.stdin.close()
            process.wait()
    facts |= {name: summary(found[LEFT_OUT:]) for name, found in times.items() if found[LEFT_OUT:]}
    if times["pfl"]:
        pairs = zip(times["ours"][LEFT_OUT:], times["pfl"][LEFT_OUT:], strict=True)
        facts["pfl_over_ours"] = summary([theirs / mine for mine, theirs in pairs])
    facts["accuracies"] = accuracies
    print({name: facts[name]["median"] for name in ("ours", "pfl", "pfl_over_ours") if name in facts})
    if args.out:
        rounded = json.loads(json.dumps(facts), parse_float=lambda text: float(f"{float(text):.4g}"))
        args.out.write_text(json.dumps(rounded, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
