"""Figure 6 of the FedRep paper: accuracy of new clients, epoch by epoch, on representations that methods have learnt.

    python experiments/fedrep/figure6.py [--scale cpu|smoke] [--results DIR] [--seed N]
    python experiments/fedrep/figure6.py --scale femnist|letters|letter_classes --data-dir DIR [--results DIR]
    python experiments/fedrep/figure6.py [--scale femnist|letters|letter_classes] --redraw --results DIR

Every method trains a federation; then clients that took no part train a head on the frozen representation, epoch by
epoch. Local trains all layers of a fresh model on the new client alone.

The paper trains on ten letters of FEMNIST, and new clients have digits, 500 samples from 5 classes each. Here, `cpu`:
training clients have scikit-learn's digits 0 to 4, new ones 5 to 9. `femnist`: new clients are held-out writers with
the same 62 classes. `letters`: training clients are writers with all their letters, new ones have 500 digits of 5
classes. `letter_classes`: the same new clients, but 100 training clients have 3 of the 52 letters each. All heads start
from the same random one, so that only the representations differ; the paper does not say where its heads start. A new
client has at most as many samples as its panel says. `--redraw` draws the results again.

`srp.adapt` trains and evaluates the new clients; every method has the same samples in the same order.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from matplotlib.figure import Figure

import fedjax_srp as srp
from experiments import curves, scripts
from fedjax_srp.driver.adapt import params_of

ALL = 10**9  # more samples than any client has
COLORS = {
    "fedrep": curves.BLUE,
    "fedavg": curves.GREEN,
    "fedprox": curves.YELLOW,
    "per_fedavg": curves.GREY,
    "lg_fedavg": curves.ORANGE,
    "apfl": curves.PINK,
    "l2gd": curves.SKY,
}
LOCAL = "Local, all layers"


class Scale(NamedTuple):
    """Size and length of the runs."""

    dataset: str
    num_rounds: int
    epochs: int
    counts: tuple[int, ...]
    hidden: tuple[int, ...]
    learning_rate: float
    local_epochs: int
    trials: int
    methods: tuple[str, ...]


SCALES = {
    "cpu": Scale("digits", 100, 30, (5, ALL), (64, 32), 0.05, 5, 5, tuple(COLORS)),
    "femnist": Scale(
        "femnist_leaf105", 100, 30, (20, ALL), (128, 64), 0.01, 5, 2, tuple(COLORS)
    ),
    "letters": Scale(
        "femnist_leaf105", 200, 30, (20, ALL), (128, 64), 0.01, 5, 5, tuple(COLORS)
    ),
    "letter_classes": Scale(
        "femnist_leaf105", 200, 30, (20, ALL), (128, 64), 0.01, 5, 5, tuple(COLORS)
    ),
    "smoke": Scale("digits", 2, 2, (3, ALL), (8,), 0.05, 1, 2, ("fedrep",)),
}


def federations(name: str, seed: int, data_dir: str | None) -> tuple[Any, Any]:
    """Return the training clients and the new clients of a scale."""
    scale = SCALES[name]
    if scale.dataset == "digits":
        options = {"classes_per_client": 3, "seed": seed}
        old = srp.data.load("digits", num_clients=30, classes=range(5), **options)
        return old, srp.data.load(
            "digits", num_clients=20, classes=range(5, 10), **options
        )
    if data_dir is None:
        raise ValueError(
            f"--scale {name}: give --data-dir, a folder with {scale.dataset}.npz"
        )
    if name != "femnist":
        source = {"name": scale.dataset, "data_dir": data_dir, "seed": seed}
        by_class = {"num_clients": 100, "classes_per_client": 3}
        division = by_class if name == "letter_classes" else {"partition": "natural"}
        old = srp.data.load(**source, classes=range(10, 62), **division)
        return old, srp.data.load(
            **source, num_clients=20, classes=range(10), classes_per_client=5
        )
    with np.load(Path(data_dir) / f"{scale.dataset}.npz") as file:
        stored = {name: file[name] for name in file.files}
    writers, sizes = np.unique(stored["writer_train"], return_counts=True)
    writers = np.random.default_rng(seed).permutation(
        [w for w in writers[sizes >= 50] if (stored["writer_test"] == w).any()]
    )
    parts = []
    for some in (writers[20:], writers[:20]):
        rows = {
            kind: [np.flatnonzero(stored[f"writer_{kind}"] == w) for w in some]
            for kind in ("train", "test")
        }
        arrays = [stored[name] for name in ("x_train", "y_train", "x_test", "y_test")]
        indices = {f"{kind}_indices": rows[kind] for kind in rows}
        parts.append(
            srp.data.from_arrays(
                *arrays, **indices, num_classes=62, scale=1 / 255, name="femnist"
            )
        )
    return parts[0], parts[1]


def train(name: str, scale: Scale, data: Any, seed: int) -> Any:
    """Train with a tenth of the clients in each round; return the server's state."""
    shared = {
        "hidden": scale.hidden, "learning_rate": scale.learning_rate, "momentum": 0.5,
        "epochs": scale.local_epochs,
    }  # fmt: skip
    own: dict[str, Any] = {
        "participation": "uniform",
        "k": max(1, data.num_clients // 10),
    }
    if name == "fedrep":
        own |= {"epochs": 1, "representation_epochs": scale.local_epochs}
    if name == "l2gd":
        own = {"participation": "full"}  # as in table 1
    if name == "lg_fedavg":
        own["head_layers"] = (
            1  # as in the paper on FEMNIST: all but the output layer is local
        )
    method = srp.methods.get(name, dataset=data, shared=shared, **own)
    rounds = scale.num_rounds
    options = {
        "num_rounds": rounds,
        "eval_every": rounds,
        "evaluations": (),
        "progress": False,
    }
    return srp.simulate(method, data, key=jax.random.key(seed), **options).server_state


def accuracies(scale_name: str, seed: int, data_dir: str | None) -> dict[str, list]:
    """Return the accuracies of new clients in one trial: for each method, by panel and epoch."""
    scale = SCALES[scale_name]
    old, new = federations(scale_name, seed, data_dir)
    model = srp.models.get("mlp", new, hidden=scale.hidden)
    fresh = model.init(jax.random.key(10_000 + seed))
    options = {
        "key": jax.random.key(seed),
        "epochs": scale.epochs,
        "num_samples": scale.counts,
        "optimizer": srp.SGD(scale.learning_rate, momentum=0.5),
    }
    found = {}
    for name in scale.methods:
        params = params_of(train(name, scale, old, seed))
        found[name] = srp.adapt(
            model, new, params._replace(head=fresh.head), **options
        ).mean.tolist()
    return found | {
        "local": srp.adapt(model, new, fresh, part="all", **options).mean.tolist()
    }


def draw(panels: dict[str, dict[str, Any]]) -> Figure:
    """Draw a panel for each number of samples; FedAvg is dashed, above APFL, whose shared model is the same."""
    figure, axes = curves.panels(len(panels), width=4.6, height=4.0, sharey=True)
    names = {srp.methods.label(name): name for name in COLORS}
    for ax, (title, by_label) in zip(axes, panels.items(), strict=True):
        for label, rows in by_label.items():
            style = {
                LOCAL: {"linestyle": ":"},
                "FedAvg": {"linestyle": (0, (3, 3)), "zorder": 3},
            }.get(label, {})
            color = COLORS[names[label]] if label in names else "#000000"
            curves.draw_summary(ax, rows, label, color, **style)
        ax.set(title=f"{title} of each new client", xlabel="epochs")
    axes[0].set_ylabel("mean test accuracy of new clients, %")
    curves.legend(figure, axes[0], 4)
    return figure


def main() -> None:
    args = scripts.measurement_parser(
        __doc__,
        SCALES,
        "runs/fedrep_figure6",
        "seed",
        "data-dir",
        redraw={
            "action": "store_true",
            "help": "draw the results without training again",
        },
    ).parse_args()
    scale = SCALES[args.scale]
    name_of_figure = "figure6" if scale.dataset == "digits" else f"figure6_{args.scale}"
    if args.redraw:
        known = curves.stored(args, name_of_figure)
        curves.save(args, name_of_figure, known, draw(known["results"]))
        return
    axes = {"seed": scripts.seeds_of(args, scale.trials)}
    options = {"scale_name": args.scale}
    by_trial = scripts.measure_each(args, accuracies, axes=axes, options=options)
    labels = {name: srp.methods.label(name) for name in scale.methods} | {"local": LOCAL}
    results: dict[str, dict[str, Any]] = {}
    for place, count in enumerate(scale.counts):
        title = "all samples" if count == ALL else f"{count} samples"
        results[title] = {}
        for name, label in labels.items():
            values = 100 * np.array([found[name][place] for found in by_trial])
            epochs = np.arange(scale.epochs + 1)
            results[title][label] = curves.summary(epochs, values)
    facts = {
        "trials": scale.trials,
        "dataset": scale.dataset,
        "rounds": scale.num_rounds,
        "results": results,
    }
    curves.save(args, name_of_figure, facts, draw(results))


if __name__ == "__main__":
    main()
