"""Methods on CIFAR-10 in the common setting of PFLlib: 20 clients, classes by Dirichlet(0.1), its CNN.

    python experiments/personalization/table.py --data-dir DIR [--scale cpu|full|smoke] [--methods NAME ...]
        [--seeds 0 1] [--traces DIR] [--out runs/personalization]

Finished trainings in --out are not repeated, and interrupted ones continue from their last checkpoint there. Their rows
are added to `table.csv` and `curves.csv` in --results, which keep their other rows. Times are those of phones, from the
traces in --traces; without it there are none. `readme_tables.py` writes the tables of the README.
"""

from __future__ import annotations

import functools
import shutil
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import fedjax_srp as srp
from experiments import judged, scripts
from experiments.personalization.readme_tables import IDENTITY, Point, Result
from experiments.personalization.rows import ROWS, TRAININGS
from experiments.stragglers.phone_traces import phones
from fedjax_srp.models.lenet import BLOCK, pooled_relu

HERE = Path(__file__).parent
MAX_POINTS = 100  # of a curve
UNTIMED = (
    "l2gd",  # phones charge a message in every round, and it has silent ones
    "fedala",  # its loop's length is known only while it runs
)


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


@functools.cache
def federation(scale: Scale, data_dir: str | None) -> srp.data.FederatedData:
    """Load the data of 20 clients, with pixels scaled to [-1, 1] as in PFLlib."""
    options = {
        "num_clients": 20,
        "alpha": 0.1,
        "min_examples": scale.min_examples,
        "max_examples": scale.max_train,
    }
    data = srp.data.load(scale.dataset, **options, data_dir=data_dir)
    train = rows_of_clients(data.train_indices, data.train_counts)
    test = rows_of_clients(data.test_indices, data.test_counts)
    if scale.max_test is not None:
        labels = np.asarray(data.y_test)
        test = srp.data.partition.cap_examples(test, labels, scale.max_test)
    if scale.dataset == "cifar10":
        scaled = {"scale": 2 / 255, "offset": -1.0}
    else:
        scaled = {"scale": data.scale, "offset": data.offset}
    return srp.data.from_arrays(
        *map(np.asarray, (data.x_train, data.y_train, data.x_test, data.y_test)),
        train_indices=train,
        test_indices=test,
        name=scale.dataset,
        num_classes=10,
        **scaled,
    )


def rows_of_clients(indices: Any, counts: Any) -> list[np.ndarray]:
    """Return the rows of each client, without padding."""
    pairs = zip(np.asarray(indices), np.asarray(counts), strict=True)
    return [rows[:count] for rows, count in pairs]


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


def curve(history: srp.History, evaluation: str, is_timed: bool) -> list[dict[str, Any]]:
    """Return time, bytes and accuracies at each evaluation."""
    seconds = [""] * len(history.eval_round)
    if is_timed:
        seconds = [f"{value:.1f}" for value in history.eval_elapsed()]
    megabytes = [f"{value / 1e6:.2f}" for value in history.eval_bytes()]
    mean = [f"{100 * value:.2f}" for value in history.mean_scores(evaluation)]
    worst = [f"{100 * value:.2f}" for value in history.worst_scores(evaluation)]
    points = zip(
        history.eval_round.tolist(), seconds, megabytes, mean, worst, strict=True
    )
    return [Point(*values)._asdict() for values in points]


def train(
    training: str,
    scale_name: str,
    seed: int,
    data_dir: str | None,
    traces: str | None,
    checkpoints: str,
) -> dict[str, list[dict[str, Any]]]:
    """Run one training; return the rows of the table that it serves, and their curves."""
    begin = time.process_time()
    scale = SCALES[scale_name]
    data = federation(scale, data_dir)
    method = method_of(training, scale, data, network(data))
    folder = Path(checkpoints) / scale_name / training / str(seed)
    rows = judged.rows_of(ROWS, training)
    clock = None
    if traces is not None and training not in UNTIMED:
        clock = phones(Path(traces), data.num_clients, seed, model_ratio=1.0)
    history = srp.simulate(
        method,
        data,
        num_rounds=scale.num_rounds,
        eval_every=scale.eval_every,
        evaluations=tuple(row.evaluation for row in rows.values()),
        seed=seed,
        clock=clock,
        progress=False,
        checkpoint_dir=folder,
        devices=1,
        name=training,
    )
    seconds = round(time.process_time() - begin)
    found: dict[str, list[dict[str, Any]]] = {"rows": [], "curves": []}
    for name, row in rows.items():
        facts = {"scale": scale_name, "method": name, "seed": str(seed)}
        points = curve(history, row.evaluation, is_timed=clock is not None)
        values = [float(point["mean"]) for point in points]
        best = len(values) - 1 if row.after else int(np.nanargmax(values))
        result = Result(
            row.evaluation,
            scale.num_rounds,
            points[best]["mean"],
            points[best]["round"],
            points[-1]["mean"],
            seconds,
        )
        found["rows"].append(facts | result._asdict())
        kept = np.unique(np.linspace(0, len(points) - 1, MAX_POINTS).round().astype(int))
        found["curves"] += [facts | points[place] for place in kept]
    shutil.rmtree(folder, ignore_errors=True)
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = scripts.measurement_parser(
        __doc__, SCALES, "runs/personalization", "data-dir"
    )
    parser.add_argument(
        "--methods", nargs="+", metavar="NAME", choices=TRAININGS, default=list(TRAININGS)
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument(
        "--traces", metavar="DIR", help="folder with the traces of phones and networks"
    )
    args = parser.parse_args(arguments)
    options = {
        "scale_name": args.scale,
        "traces": args.traces,
        "checkpoints": str(args.out / "checkpoints"),
    }
    axes = {"seed": args.seeds, "training": args.methods}
    found = scripts.measure_each(args, train, axes=axes, options=options)
    folder = args.results or HERE / "results"
    rows = [row for of_training in found for row in of_training["rows"]]
    points = [point for of_training in found for point in of_training["curves"]]
    scripts.write_table(folder / "table.csv", rows, IDENTITY)
    scripts.write_table(folder / "curves.csv", points, (*IDENTITY, "round"))
    print(*(f"{r['method']}, seed {r['seed']}: {r['last']} %" for r in rows), sep="\n")


if __name__ == "__main__":
    main()
