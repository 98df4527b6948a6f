"""Shared code of this paper's figures of networks: scales, federations, trained models, new clients.

The trained models of a figure are a grid in --out; figures with the same --out share them.

The paper (section 5.2, appendix C.2): a CNN of three blocks and a three-layer MLP; SGD with step size 0.1, momentum 0.5
and weight decay 1e-4; batches of 10; a tenth of the clients in a round, 500 samples of each; T tau = 125,000 local
steps, so that D-SGD (tau = 1) makes 50 times as many rounds as FedAvg with tau = 50. Five trials with five new clients
each. `--scale full` has these sizes and has never been run.

Differences from the paper, or choices that it does not mention, at every scale:

* momentum starts afresh in every round, so it has no effect at tau = 1;
* the partition, the start and the new clients are drawn anew in every trial;
* a new client's output layer is fresh, the same for every method, since its classes are new. The paper does not say
  what happens to this layer;
* an untrained model with random parameters is fine-tuned too.

`--scale cpu` differs in data and model: an MLP; the 52 letters of FEMNIST instead of CIFAR-100, with its ten digits as
new classes and MNIST as the other data set; 26 clients with 100 samples, so that tau = 10 is one local epoch, as tau =
50 is in the paper; fewer steps and trials. FEMNIST's images are inverted, so that ink is bright in both.

`--scale cnn` has the paper's data and clients, a CNN a quarter as wide and T tau = 5,000.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_srp as srp
from experiments import curves, scripts
from fedjax_srp.algorithms.local import example_loss, local_sgd
from fedjax_srp.base import named_key
from fedjax_srp.data import FederatedData, partition
from fedjax_srp.driver.adapt import params_of
from fedjax_srp.models import SplitModel, SplitParams
from fedjax_srp.results.history import History

RANDOM = "random start"
COLORS = (curves.ORANGE, curves.SKY, curves.BLUE, curves.GREEN)  # by tau, ascending
STEP, MOMENTUM, DECAY = 0.1, 0.5, 1e-4
BATCH, FINE_TUNE_EPOCHS, NEW_CLIENTS, ALPHA, SAMPLES = 10, 10, 5, 0.6, 500
PIXELS = {
    "femnist_leaf105": (-1 / 255, 1.0),
    "mnist": (1 / 255, 0.0),
}  # factor and offset that make ink 1 and paper 0


class Source(NamedTuple):
    """Some classes of a data set, and the number of clients that share them."""

    dataset: str
    classes: range
    num_clients: int = NEW_CLIENTS


class Scale(NamedTuple):
    """Models, data and lengths of the runs."""

    model: dict[str, Any]  # arguments of `srp.models.get`
    training: tuple[
        Source, Source
    ]  # for the left and right panel of figure 5; figure 2 has the right one
    new: tuple[Source, Source]  # of new clients: new classes, a new data set
    dirichlet: Source  # of figure 4
    samples: int  # of a training client, at most
    num_classes: tuple[int, ...]  # C of figure 5
    shown: int  # C of figure 2
    taus: tuple[int, ...]  # of figures 2 and 5
    cosine_taus: tuple[int, ...]  # of figure 4
    steps: int  # T tau
    cosine_steps: int  # T tau of figure 4
    counts: tuple[int, ...]  # samples of a new client
    trials: int
    brightness: float = 1.0  # of the new data set's images
    images: int = 500  # for CKA
    pairs: int = 25  # of images, in figure 4


LETTERS = Source("femnist_leaf105", range(10, 62), 26)
MNIST = Source("mnist", range(10))
TOY = Source("digits", range(5), 10)
SCALES = {
    "smoke": Scale(
        {"name": "mlp", "hidden": (12, 8)}, (TOY, TOY), (Source("digits", range(5, 10), 2),) * 2,
        Source("digits", range(10), 10), 40, (2,), 2, (1, 5), (1, 5), 10, 10, (10, 20), 2, 1.0, 20, 4,
    ),
    "cpu": Scale(
        {"name": "mlp", "hidden": (256, 128, 64)}, (LETTERS, LETTERS), (Source("femnist_leaf105", range(10)), MNIST),
        MNIST._replace(num_clients=100), 100, (2, 4), 4, (1, 10, 50), (1, 10, 50), 10_000,
        4_000, (20, 50, 100, 200, 500), 3,
    ),
    "cnn": Scale(
        {"name": "cnn", "channels": (8, 16, 32, 32, 64, 64), "hidden": (256, 128)},
        (Source("cifar100", range(80), 80), Source("cifar100", range(100), 100)),
        (Source("cifar100", range(80, 100)), Source("cifar10", range(10))), Source("cifar10", range(10), 100),
        SAMPLES, (5,), 5, (1, 50), (1, 50), 5_000, 5_000, (50, 100, 500), 2,
    ),
    "full": Scale(
        {"name": "cnn"}, (Source("cifar100", range(80), 80), Source("cifar100", range(100), 100)),
        (Source("cifar100", range(80, 100)), Source("cifar10", range(10))), Source("cifar10", range(10), 100),
        SAMPLES, (2, 5, 10, 20), 5, (1, 50), (1, 2, 10, 50), 125_000, 125_000, (50, 100, 500, 2000), 5,
    ),
}  # fmt: skip


def method_label(tau: int) -> str:
    """Return a method's name in the figures; tau = 0 is a random start."""
    return {0: RANDOM, 1: "D-SGD (tau = 1)"}.get(tau, f"FedAvg, tau = {tau}")


def line_of(taus: Sequence[int], tau: int) -> tuple[str, dict[str, Any]]:
    """Return color and style of a method's line."""
    if not tau:
        return curves.GREY, {"marker": "o", "linestyle": ":"}
    return COLORS[taus.index(tau)], {"marker": "o"}


def optimizer() -> Any:
    """Return the SGD of fine-tuning."""
    return srp.SGD(STEP, MOMENTUM, DECAY)


def federation(
    source: Source, seed: int, data_dir: Path | None, **division: Any
) -> FederatedData:
    """Load the clients of a source; `division` are arguments of `srp.data.load`."""
    options = {
        "num_clients": source.num_clients,
        "classes": source.classes,
        "seed": seed,
        "data_dir": data_dir,
    }
    data = srp.data.load(source.dataset, **options, **division)
    if source.dataset not in PIXELS:
        return data
    scale, offset = (jnp.asarray(value, jnp.float32) for value in PIXELS[source.dataset])
    return dataclasses.replace(data, scale=scale, offset=offset)


def new_clients(
    source: Source, seed: int, data_dir: Path | None, brightness: float = 1.0
) -> FederatedData:
    """Load new clients, with images of all classes of their source multiplied by `brightness`."""
    data = federation(source, seed, data_dir, classes_per_client=len(source.classes))
    if brightness == 1 or data.scale is None or data.offset is None:
        return data
    return dataclasses.replace(
        data, scale=brightness * data.scale, offset=brightness * data.offset
    )


def subsampled(data: FederatedData, counts: Sequence[int], seed: int) -> FederatedData:
    """Repeat all clients for each number of training examples, with the same test examples: count by count.

    A client has equally many of each class, up to one.

    Raises:
        ValueError: a client has too few examples.
    """
    rows, sizes = np.asarray(data.train_indices), np.asarray(data.train_counts)
    if sizes.min() < max(counts):
        raise ValueError(
            f"counts={max(counts)}: a new client of {data.name!r} has {sizes.min()} samples; give fewer"
        )
    rows = [row[:size] for row, size in zip(rows, sizes, strict=True)]
    labels = np.asarray(data.y_train)
    kept = []
    for count in counts:
        kept += partition.cap_examples(rows, labels, count, seed)
    padded = np.stack([np.resize(part, max(counts)) for part in kept])
    return dataclasses.replace(
        data,
        train_indices=jnp.asarray(padded, jnp.int32),
        train_counts=jnp.asarray([len(part) for part in kept], jnp.int32),
        test_indices=jnp.tile(data.test_indices, (len(counts), 1)),
        test_counts=jnp.tile(data.test_counts, len(counts)),
    )


def model_for(scale: Scale, data: FederatedData) -> SplitModel:
    """Return the scale's model for a federation."""
    return srp.models.get(dataset=data, **scale.model)


OF_SCALE = ("steps", "trials", "taus", "num_classes", "brightness")
OWN = {
    "step_size": {
        "type": float,
        "default": STEP,
        "help": "step size of training; new clients have 0.1",
    },
    "batch_size": {
        "type": int,
        "default": BATCH,
        "help": "of training; new clients have 10",
    },
    "taus": {
        "type": int,
        "nargs": "+",
        "help": "of figures 2 and 5; default: those of the scale",
    },
    "num_classes": {
        "type": int,
        "nargs": "+",
        "help": "C of figure 5; default: those of the scale",
    },
    "brightness": {
        "type": float,
        "help": "factor on the new data set's images, figures 2 and 5",
    },
    "steps": {"type": int, "help": "T tau; default: that of the scale"},
    "trials": {"type": int, "help": "default: those of the scale"},
}


def parse_arguments(doc: str | None) -> tuple[argparse.Namespace, Scale]:
    """Parse the command line of a figure; return arguments and scale."""
    args = scripts.grid_parser(
        doc, SCALES, "runs/fedavg_representation_neural", "seed", "data-dir", **OWN
    ).parse_args()
    given = {name: vars(args)[name] for name in OF_SCALE}
    own = {name: value for name, value in given.items() if value is not None}
    return args, SCALES[args.scale]._replace(**own)


def suffix(args: argparse.Namespace) -> str:
    """Return the part of a name that tells another step size or batch size than the paper's."""
    step = "" if args.step_size == STEP else f"_step_{args.step_size:g}"
    return step + ("" if args.batch_size == BATCH else f"_batch_{args.batch_size}")


def file_name(args: argparse.Namespace, figure: str) -> str:
    """Return the name of a figure's files, which depends on step size, batch size and brightness."""
    bright = "" if args.brightness is None else f"_brightness_{args.brightness:g}"
    return figure + suffix(args) + bright


class Trained(NamedTuple):
    """A model: FedAvg with `tau` local steps of size `step` in a round."""

    source: Source
    num_classes: int | None  # C; None: Dirichlet(0.6) over the classes of all clients
    tau: int
    trial: int
    step: float

    def federation(self, args: argparse.Namespace, scale: Scale) -> FederatedData:
        """Load the clients that train it."""
        division: dict[str, Any] = {"alpha": ALPHA}
        if self.num_classes is not None:
            division = {"classes_per_client": self.num_classes}
            division["max_examples"] = scale.samples
        return federation(self.source, args.seed + self.trial, args.data_dir, **division)


def train(
    args: argparse.Namespace, scale: Scale, models: Iterable[Trained]
) -> dict[Trained, History]:
    """Train models, or load those that are trained.

    Raises:
        ValueError: local steps do not divide the number of all steps.
    """
    variants = {}
    for model in models:
        if scale.steps % model.tau:
            raise ValueError(
                f"steps={scale.steps} is not a multiple of tau={model.tau}; give a multiple"
            )
        rounds = scale.steps // model.tau
        data = model.federation(args, scale)
        variants[str(model)] = {
            "data": data,
            "model": model_for(scale, data),
            "steps": model.tau,
            "learning_rate": model.step,
            "k": round(0.1 * data.num_clients),
            "num_rounds": rounds,
            "eval_every": max(1, rounds // 10),
            "seed": args.seed + model.trial,
        }
    options = {
        "method": "fedavg",
        "epochs": None,
        "momentum": MOMENTUM,
        "weight_decay": DECAY,
        "batch_size": args.batch_size,
        "participation": "uniform",
        "models": True,
    }
    given = vars(args) | {"data_dir": None}  # the data are loaded
    runs = scripts.run_grid(
        argparse.Namespace(**given), variants=variants, options=options
    ).histories_by("variant")
    return {model: runs[str(model)][0] for model in models}


Judge = Callable[[argparse.Namespace, Scale, Any, History | None], Any]


@scripts.reported()
def judge(
    args: argparse.Namespace, scale: Scale, function: Judge, cases: Mapping[Any, Trained]
) -> dict[Any, Any]:
    """Train the models of all cases, and measure a function of each; both are kept.

    The function takes arguments and scale, the case, and the history of its model: None for a random start, tau = 0.
    """
    models = dict.fromkeys(model for model in cases.values() if model.tau)
    histories = train(args, scale, models)
    pairs = {str(case): (case, histories.get(cases[case])) for case in cases}

    def judged(pair: tuple[Any, History | None], setting: str) -> Any:
        return function(args, scale, *pair)

    judged.__name__ = function.__name__
    setting = str((scale, args.seed, args.step_size, args.batch_size))
    found = scripts.measure_each(
        args, judged, axes={"pair": pairs}, options={"setting": setting}
    )
    return dict(zip(cases, found, strict=True))


def initial_model(
    scale: Scale, run: History | None, new: FederatedData, seed: int
) -> tuple[SplitModel, SplitParams]:
    """Return a model for new clients: a trained representation (None: random) with the trial's fresh output layer."""
    model = model_for(scale, new)
    fresh = model.init(jax.random.key(10_000 + seed))
    if run is None:
        return model, fresh
    return model, SplitParams(params_of(run.server_state).representation, fresh.head)


def fine_tune(
    model: SplitModel,
    params: SplitParams,
    data: FederatedData,
    seed: int,
    epochs: int = FINE_TUNE_EPOCHS,
) -> list[SplitParams]:
    """Train all layers on every client of `data`; return the parameters of each."""
    training = srp.Training(optimizer(), BATCH, epochs).alone()

    @jax.jit
    def tune(data: FederatedData, params: SplitParams, client: jax.Array) -> SplitParams:
        key = named_key(jax.random.fold_in(jax.random.key(seed), client), "local")
        return local_sgd(
            key, example_loss(model), params, (), data.train_client(client), training
        ).params

    return [tune(data, params, jnp.int32(client)) for client in range(data.num_clients)]
