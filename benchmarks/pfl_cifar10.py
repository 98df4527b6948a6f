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

import tempfile
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from harness.command import Child, parser, write
from harness.measure import (
    JudgedRounds,
    arrays,
    limits,
    machine,
    ratios,
    seconds,
    summary,
    synthetic,
)

import fedjax_srp as srp
from fedjax_srp.models import Convolution, Dense, Dropout, Layer, Split
from fedjax_srp.models.lenet import pooled_relu

USERS = 1000
COHORT = 50
EVERY = 10
LEFT_OUT = 10
XAVIER = nn.initializers.xavier_uniform()
LAYERS = (
    Layer("conv1", Convolution(32, (3, 3), kernel_init=XAVIER), jax.nn.relu, block=50),
    Layer(
        "conv2",
        Convolution(64, (3, 3), kernel_init=XAVIER),
        pooled_relu,
        Dropout(0.25),
        block=50,
    ),
    Layer("fc1", Dense(128, kernel_init=XAVIER), jax.nn.relu, Dropout(0.5)),
    Layer("out", Dense(10, kernel_init=XAVIER)),
)


def rival(python: str, data: srp.data.FederatedData, seed: int) -> Child:
    """A process with pfl."""
    x, y, x_test, y_test = arrays(data)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "federation.npz"
        np.savez(
            path,
            x=x,
            y=y,
            x_test=x_test.reshape(-1, *x_test.shape[2:]),
            y_test=y_test.reshape(-1),
        )
        return Child(
            [python, str(Path(__file__).with_name("pfl_rounds.py")), str(path), str(seed)]
        )


def main() -> None:
    command = parser(__doc__)
    command.add_argument(
        "--data-dir",
        type=Path,
        help="folder with a prepared cifar10; default: random images",
    )
    command.add_argument(
        "--pfl",
        metavar="PYTHON",
        help="interpreter of an environment with pfl and PyTorch",
    )
    command.add_argument("--rounds", type=int, default=40)
    command.add_argument("--users", type=int, default=USERS)
    command.add_argument("--cohort", type=int, default=COHORT, help="users of a round")
    command.add_argument("--seed", type=int, default=0)
    args = command.parse_args()
    if args.pfl and (args.users, args.cohort) != (USERS, COHORT):
        command.error(
            f"--pfl: its workload has {USERS} users, {COHORT} a round; leave out --users and --cohort"
        )
    if args.rounds <= LEFT_OUT:
        command.error(
            f"--rounds {args.rounds}: the first {LEFT_OUT} are left out; give more"
        )
    srp.use_all_cores()
    if args.data_dir is None:
        data = synthetic(args.users, 50, 10, (32, 32, 3))
    else:
        data = srp.data.load(
            "cifar10",
            args.users,
            partition="iid",
            seed=args.seed,
            data_dir=args.data_dir,
        )
    model = Split(data.example_shape, data.num_classes, LAYERS, name="pfl_cnn", cut=None)
    algorithm = srp.algorithms.FedAvg(
        model, srp.Training(srp.SGD(0.1), batch_size=10, epochs=1)
    )
    ours = JudgedRounds(algorithm, data, "global", srp.participation.Uniform(args.cohort))
    facts: dict[str, Any] = machine() | {
        "users": args.users,
        "cohort": args.cohort,
        "random_images": args.data_dir is None,
        "parameters": sum(
            leaf.size for leaf in jax.tree.leaves(model.init(jax.random.key(0)))
        ),
        "compile_seconds": ours.compile_seconds,
        "matrix_flops": limits(2048)["matrix_flops"],
    }
    accuracies: dict[str, list[float]] = {"ours": []}

    def own(is_judged: bool) -> None:
        ours()
        if is_judged:
            accuracies["ours"].append(ours.accuracy())

    child = rival(args.pfl, data, args.seed) if args.pfl else None
    times: dict[str, list[float]] = {"ours": []}
    for number in range(1, args.rounds + 1):
        is_judged = (
            number + 1
        ) % EVERY == 0  # the first round runs while the program is compiled
        times["ours"].append(seconds(lambda is_judged=is_judged: own(is_judged)))
        if child is not None:
            time, accuracy = child.seconds("round")
            times.setdefault("pfl", []).append(time)
            accuracies.setdefault("pfl", []).extend([accuracy] * (accuracy == accuracy))
        if number % EVERY == 0:
            last = {name: of[-1] for name, of in accuracies.items() if of}
            print(
                number,
                *(f"{name} {of[-1]:.3f} s" for name, of in times.items()),
                *(f"{name} {100 * accuracy:.1f} %" for name, accuracy in last.items()),
                flush=True,
            )
        if number > LEFT_OUT and (number % EVERY == 0 or number == args.rounds):
            kept = {name: of[LEFT_OUT:] for name, of in times.items()}
            facts |= {"rounds": number}
            facts |= {name: summary(of) for name, of in kept.items()}
            if child is not None:
                facts["pfl_over_ours"] = summary(ratios(kept, "pfl", "ours"))
            write(args.out, facts | {"accuracies": accuracies})
    if child is not None:
        child.close()
    medians = {
        name: facts[name]["median"]
        for name in ("ours", "pfl", "pfl_over_ours")
        if name in facts
    }
    print(medians)


if __name__ == "__main__":
    main()
