"""All methods on CIFAR-10 in the common setting of PFLlib: 20 clients, classes by Dirichlet(0.1), its CNN.

    python experiments/personalization/table.py --data-dir DIR [--scale cpu|full|smoke] [--methods NAME ...]
        [--seeds 0 1] [--out runs/personalization]
    python experiments/personalization/table.py --summarize

Every finished training adds its rows to `table.csv` in --results, and trainings with rows there are skipped. An
interrupted training continues from its last checkpoint below --out. `--summarize` trains nothing and rewrites the
tables of the README beside this file from `results/table.csv` there. To train again, delete the rows.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd

import fedjax_srp as srp
from experiments import pages, scripts
from experiments.personalization import readme_tables
from experiments.personalization.readme_tables import COLUMNS, Result
from experiments.personalization.rows import ROWS, TRAININGS
from fedjax_srp.models.lenet import BLOCK, pooled_relu
from fedjax_srp.results import atomic

HERE = Path(__file__).parent


class Scale(NamedTuple):
    """The size of a run."""

    num_rounds: int
    eval_every: int
    learning_rate: float
    min_examples: int  # training examples of a client, before the cap
    max_train: int | None = None  # cap on the training examples of a client
    max_test: int | None = None
    dataset: str = "cifar10"


SCALES = {
    "full": Scale(2000, 1, 0.005, 30),
    "cpu": Scale(20, 2, 0.05, 100, 100, 100),
    "smoke": Scale(4, 2, 0.05, 5, dataset="digits"),
}


def federation(scale: Scale, data_dir: Path | None) -> srp.data.FederatedData:
    """Load the data of 20 clients, with pixels scaled to [-1, 1] as in PFLlib."""
    options = {
        "num_clients": 20,
        "alpha": 0.1,
        "min_examples": scale.min_examples,
        "max_examples": scale.max_train,
    }
    data = srp.data.load(scale.dataset, **options, data_dir=data_dir)
    train, test = (
        [
            np.asarray(rows[:count])
            for rows, count in zip(*map(np.asarray, pair), strict=True)
        ]
        for pair in (
            (data.train_indices, data.train_counts),
            (data.test_indices, data.test_counts),
        )
    )
    arrays = [
        np.asarray(part)
        for part in (data.x_train, data.y_train, data.x_test, data.y_test)
    ]
    if scale.max_test is not None:
        test = srp.data.partition.cap_examples(test, arrays[3], scale.max_test)
    scaled = {"scale": 2 / 255, "offset": -1.0} if scale.dataset == "cifar10" else {}
    return srp.data.from_arrays(
        *arrays,
        train_indices=train,
        test_indices=test,
        name=scale.dataset,
        num_classes=10,
        **scaled,
    )


def network(data: srp.data.FederatedData) -> srp.models.SplitModel:
    """PFLlib's FedAvgCNN: 5 x 5 convolutions of 32 and 64 channels, each with ReLU and pooling, dense 512, `out`."""
    if len(data.example_shape) < 3:
        return srp.models.MLP(data.example_shape, data.num_classes, hidden=(16,))
    layers = (
        srp.models.Layer(
            "conv1", srp.models.Convolution(32, (5, 5)), pooled_relu, block=BLOCK
        ),
        srp.models.Layer(
            "conv2", srp.models.Convolution(64, (5, 5)), pooled_relu, block=BLOCK
        ),
        srp.models.Layer("fc1", srp.models.Dense(512), jax.nn.relu),
        srp.models.Layer("out", srp.models.Dense(data.num_classes)),
    )
    return srp.models.Split(
        data.example_shape, data.num_classes, layers, name="fedavg_cnn"
    )


def method_of(
    training: str, scale: Scale, data: Any, model: srp.models.SplitModel
) -> srp.Method:
    """Return a method with one epoch of SGD in batches of 10 and means weighted by examples, if it has such means."""
    options = {
        "learning_rate": scale.learning_rate,
        "batch_size": 10,
        "epochs": 1,
        "initialization": "torch",
    }
    if not getattr(
        srp.methods.recipe(training).factory, "requires_uniform_weighting", False
    ):
        options |= {"weighting": "num_examples"}
    return srp.methods.get(
        training, dataset=data, model=model, participation="full", shared=options
    )


def train(
    training: str, scale: Scale, seed: int, data: Any, model: Any, folder: Path
) -> dict[str, Result]:
    """Run one training; return the results of its rows."""
    method, begin = method_of(training, scale, data, model), time.process_time()
    rows = {name: row for name, row in ROWS.items() if row.training == training}
    during = tuple(row.evaluation for row in rows.values() if not row.after)
    history = srp.simulate(
        method,
        data,
        num_rounds=scale.num_rounds,
        eval_every=scale.eval_every,
        evaluations=during or ("global",),
        key=jax.random.key(seed),
        progress=False,
        checkpoint_dir=folder / training / str(seed),
        devices=1,
    )
    later = tuple(row.evaluation for row in rows.values() if row.after)
    key = jax.random.fold_in(jax.random.key(seed), scale.num_rounds)
    scores = (
        srp.evaluate(
            method, data, history.server_state, key=key, evaluations=later, devices=1
        )
        if later
        else {}
    )
    seconds = round(time.process_time() - begin)
    found = {}
    for name, row in rows.items():
        if row.after:
            values, at = (
                np.array([np.average(scores[row.evaluation], weights=data.test_count)]),
                [scale.num_rounds],
            )
        else:
            values, at = history.mean_scores(row.evaluation), history.eval_round
        best = int(np.nanargmax(values))
        percent = [f"{100 * values[place]:.2f}" for place in (best, -1)]
        found[name] = Result(
            row.evaluation,
            scale.num_rounds,
            percent[0],
            int(at[best]),
            percent[1],
            seconds,
        )
    shutil.rmtree(folder / training / str(seed), ignore_errors=True)
    return found


def write(file: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write all rows to a new file, which then replaces the old one."""
    frame = pd.DataFrame(rows, columns=[*COLUMNS])
    atomic.replace(
        {file: lambda path: frame.to_csv(path, index=False, lineterminator="\n")}
    )


def main(arguments: list[str] | None = None) -> None:
    parser = scripts.parser(__doc__, SCALES, "runs/personalization", "data-dir")
    parser.add_argument(
        "--methods", nargs="+", metavar="NAME", choices=TRAININGS, default=list(TRAININGS)
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument(
        "--results", type=Path, default=HERE / "results", help="folder of table.csv"
    )
    parser.add_argument(
        "--summarize",
        action="store_true",
        help="train nothing: rewrite the tables of the README",
    )
    args = parser.parse_args(arguments)
    file = args.results / "table.csv"
    if args.summarize:
        pages.write(readme_tables.PAGES)
        return
    scale, data, model = SCALES[args.scale], None, None
    with scripts.reported_by(parser):
        for seed in args.seeds:
            for training in args.methods:
                known = readme_tables.read(file)
                mine = [
                    row
                    for row in known
                    if (row["scale"], row["seed"]) == (args.scale, str(seed))
                ]
                if {name for name, row in ROWS.items() if row.training == training} <= {
                    row["method"] for row in mine
                }:
                    continue
                if data is None or model is None:
                    data = federation(scale, args.data_dir)
                    model = network(data)
                found = train(training, scale, seed, data, model, args.out / args.scale)
                facts = {"scale": args.scale, "seed": seed}
                new = [
                    facts | {"method": name} | result._asdict()
                    for name, result in found.items()
                ]
                write(
                    file,
                    [
                        *(
                            row
                            for row in known
                            if row not in mine or row["method"] not in found
                        ),
                        *new,
                    ],
                )
                print(
                    *(f"{row['method']}, seed {seed}: {row['last']} %" for row in new),
                    sep="\n",
                    flush=True,
                )


if __name__ == "__main__":
    main()
