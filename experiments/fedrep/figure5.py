"""Figure 5 of the FedRep paper: accuracy against local epochs, of the head in FedRep and of all layers in FedAvg.

    python experiments/fedrep/figure5.py [--scale cpu|cifar10|smoke] [--data-dir DIR] [--out DIR] [--seed N]

FedRep trains its head for h epochs, then the representation for one; FedAvg trains everything for h epochs. Step size
0.1, momentum 0.5, a tenth of the clients in a round, accuracy over all clients and the last ten rounds: FedRep's with
the heads that clients hold, FedAvg's without fine-tuning and after ten epochs of the head.

The paper has CIFAR-10 with batches of 50 (`cifar10`: 100 clients with 2 classes, our choice, because the numbers are
lost in our copy, PyTorch's start, because FedAvg diverges in the first round with the other, and at most 5 epochs of
FedAvg, which take half an hour of a core); `cpu` is scikit-learn's digits, 50 clients with 3 classes and batches of 10.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_srp as srp
from experiments import curves, pages, scripts


class Scale(NamedTuple):
    """Size and length of the runs."""

    federation: dict[str, Any]
    model: dict[str, Any]
    batch_size: int
    epochs: dict[str, tuple[int, ...]]  # by method
    num_rounds: int
    seeds: int


DIGITS = {"fedrep": (1, 2, 5, 10, 20), "fedavg": (1, 2, 5, 10, 20)}
SCALES = {
    "cpu": Scale(
        {"name": "digits", "num_clients": 50, "classes_per_client": 3}, {"model": "mlp", "hidden": (64, 32)}, 10,
        (1, 2, 5, 10, 20), 100, 5,
    ),
    "cifar10": Scale(
        {"name": "cifar10", "num_clients": 100, "classes_per_client": 2},
        {"model": "lenet5", "initialization": "torch"}, 50,
        {"fedrep": (1, 2, 5, 10, 15), "fedavg": (1, 2, 5)}, 100, 1,
    ),
    "smoke": Scale(
        {"name": "digits", "num_clients": 10, "classes_per_client": 2}, {"model": "mlp", "hidden": (8,)}, 10,
        {"fedrep": (1, 2), "fedavg": (1, 2)}, 11, 2,
    ),
}  # fmt: skip
CURVES = {  # label -> method, evaluation, color
    "FedRep, own heads": ("fedrep", "own_head", curves.BLUE),
    "FedAvg": ("fedavg", "global", curves.GREEN),
    "FedAvg+FT": ("fedavg", "fine_tune", curves.PINK),
}


def accuracies(
    name: str,
    epochs: int,
    scale: Scale,
    data: Any,
    keys: jax.Array,
    devices: int | None,
    folder: Path,
) -> dict[str, list[float]]:
    """Return for each evaluation the accuracy in % of every seed, nan if it diverged; a killed call goes on."""
    own = {"head_epochs": epochs} if name == "fedrep" else {"epochs": epochs}
    method = srp.methods.get(
        name,
        dataset=data,
        **scale.model,
        **own,
        learning_rate=0.1,
        momentum=0.5,
        batch_size=scale.batch_size,
        participation="uniform",
        k=data.num_clients // 10,
    )
    wanted = tuple(
        evaluation
        for method_name, evaluation, _ in CURVES.values()
        if method_name == name
    )
    histories = srp.simulate_seeds(
        method, data, keys=keys, num_rounds=scale.num_rounds, eval_every=10, eval_last=10, evaluations=wanted,
        progress=False, devices=devices, checkpoint_dir=folder / f"{name}_{epochs}",
    )  # fmt: skip
    mean = lambda h, e: (
        100 * float(h.mean_scores(e)[-10:].mean()) if h.diverged is None else np.nan
    )
    return {e: [mean(h, e) for h in histories] for e in wanted}


def main(arguments: list[str] | None = None) -> None:
    options = "seed", "devices", "data-dir"
    args = scripts.parser(__doc__, SCALES, "runs/fedrep_figure5", *options).parse_args(
        arguments
    )
    scale = SCALES[args.scale]
    scripts.use_cores(args)
    data = srp.data.load(**scale.federation, data_dir=args.data_dir)
    keys = jax.vmap(jax.random.key)(jnp.arange(args.seed, args.seed + scale.seeds))
    found = {
        (name, epochs): accuracies(
            name, epochs, scale, data, keys, args.devices, args.out / "checkpoints"
        )
        for name, of_method in scale.epochs.items()
        for epochs in of_method
    }
    figure, (ax,) = curves.panels(1, width=5.4)
    results = {}
    for label, (name, evaluation, color) in CURVES.items():
        values = np.transpose(
            [found[name, epochs][evaluation] for epochs in scale.epochs[name]]
        )
        results[label] = curves.draw_line(
            ax, scale.epochs[name], values, label, color, marker="o"
        )
        print(
            f"{label:18s} by epochs {scale.epochs[name]}: {', '.join(pages.pm(column, 1) for column in values.T)}"
        )
    ax.set(xlabel="local epochs: of FedRep's head, of all in FedAvg", xscale="log")
    ax.set_xticks(
        scale.epochs["fedrep"], [str(epochs) for epochs in scale.epochs["fedrep"]]
    )
    ax.set_xticks([], minor=True)
    ax.set_ylabel("mean test accuracy, %")
    curves.legend(figure, ax, 3)
    facts = {"trials": scale.seeds, "rounds": scale.num_rounds, "results": results}
    curves.save(
        args, "figure5" if args.scale != "cifar10" else "figure5_cifar10", facts, figure
    )


if __name__ == "__main__":
    main()
