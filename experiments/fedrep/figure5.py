"""Figure 5 of the FedRep paper: accuracy against local epochs, of the head in FedRep and of all layers in FedAvg.

    python experiments/fedrep/figure5.py [--scale cpu|cifar10|cifar10_step|smoke] [--data-dir DIR] [--results DIR]

FedRep trains its head for h epochs, then the representation for one; FedAvg trains everything for h epochs. Step size
0.1, momentum 0.5, a tenth of the clients in a round, accuracy over all clients and the last ten rounds: FedRep's with
the heads that clients hold, FedAvg's without fine-tuning and after ten epochs of the head.

The paper has CIFAR-10 with batches of 50 (`cifar10`: 100 clients with 2 classes, our choice, because the numbers are
lost in our copy, PyTorch's start, because FedAvg diverges in the first round with the other, and at most 5 epochs of
FedAvg, which take half an hour of a core; `cifar10_step` has FedRep's 15 epochs at a step of 0.03); `cpu` is
scikit-learn's digits, 50 clients with 3 classes and batches of 10.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import fedjax_srp as srp
from experiments import curves, scripts


class Scale(NamedTuple):
    """Size and length of the runs."""

    federation: dict[str, Any]
    model: dict[str, Any]
    batch_size: int
    epochs: dict[str, tuple[int, ...]]  # by method
    num_rounds: int
    seeds: int
    learning_rate: float = 0.1


LAST = 10  # rounds
DIGITS = {"fedrep": (1, 2, 5, 10, 20), "fedavg": (1, 2, 5, 10, 20)}
SCALES = {
    "cpu": Scale(
        {"dataset": "digits", "num_clients": 50, "classes_per_client": 3}, {"model": "mlp", "hidden": (64, 32)}, 10,
        DIGITS, 100, 5,
    ),
    "cifar10": Scale(
        {"dataset": "cifar10", "num_clients": 100, "classes_per_client": 2},
        {"model": "lenet5", "initialization": "torch"}, 50,
        {"fedrep": (1, 2, 5, 10, 15), "fedavg": (1, 2, 5)}, 100, 1,
    ),
    "cifar10_step": Scale(
        {"dataset": "cifar10", "num_clients": 100, "classes_per_client": 2},
        {"model": "lenet5", "initialization": "torch"}, 50, {"fedrep": (15,)}, 100, 1, 0.03,
    ),
    "smoke": Scale(
        {"dataset": "digits", "num_clients": 10, "classes_per_client": 2}, {"model": "mlp", "hidden": (8,)}, 10,
        {"fedrep": (1, 2), "fedavg": (1, 2)}, 11, 2,
    ),
}  # fmt: skip
CURVES = {  # label -> method, evaluation, color
    "FedRep, own heads": ("fedrep", "own_head", curves.BLUE),
    "FedAvg": ("fedavg", "global", curves.GREEN),
    "FedAvg+FT": ("fedavg", "fine_tune", curves.PINK),
}


def run(args: Any, scale: Scale) -> dict[str, list[srp.History]]:
    """Run every method with every number of epochs; return the seeds of each."""
    variants = {}
    for name, of_method in scale.epochs.items():
        for epochs in of_method:
            own = {"head_epochs" if name == "fedrep" else "epochs": epochs}
            evaluations = [e for method, e, _ in CURVES.values() if method == name]
            variants[f"{name} {epochs}"] = {
                "method": name,
                "evaluations": evaluations,
                **own,
            }
    options = {
        "learning_rate": scale.learning_rate,
        "momentum": 0.5,
        "batch_size": scale.batch_size,
        "participation": "uniform",
        "k": scale.federation["num_clients"] // 10,
        "num_rounds": scale.num_rounds,
        "eval_every": 10,
        "eval_last": LAST,
    }
    found = scripts.run_grid(
        args,
        variants=variants,
        axes={"seed": range(args.seed, args.seed + scale.seeds)},
        options=options | scale.federation | scale.model,
    )
    return found.histories_by("variant")


def accuracy(history: srp.History, evaluation: str) -> float:
    """Return the accuracy in % over the last rounds; nan if the run diverged."""
    if history.diverged is not None:
        return np.nan
    return 100 * float(history.mean_scores(evaluation)[-LAST:].mean())


def main(arguments: list[str] | None = None) -> None:
    parser = scripts.grid_parser(
        __doc__, SCALES, "runs/fedrep_figure5", "seed", "data-dir"
    )
    args = parser.parse_args(arguments)
    scale = SCALES[args.scale]
    with scripts.reported():
        runs = run(args, scale)
    figure, (ax,) = curves.panels(1, width=5.4)
    results = {}
    shown = {label: curve for label, curve in CURVES.items() if curve[0] in scale.epochs}
    by_round: dict[str, dict[str, float]] = {}
    for label, (name, evaluation, color) in shown.items():
        first = runs[f"{name} {scale.epochs[name][-1]}"][0]
        means = 100 * first.mean_scores(evaluation)
        by_round[label] = dict(zip(map(str, first.eval_round), means, strict=True))
        by_epochs = [runs[f"{name} {epochs}"] for epochs in scale.epochs[name]]
        values = np.transpose(
            [[accuracy(one, evaluation) for one in seeds] for seeds in by_epochs]
        )
        results[label] = curves.draw_line(
            ax, scale.epochs[name], values, label, color, marker="o"
        )
    ax.set(xlabel="local epochs: of FedRep's head, of all in FedAvg", xscale="log")
    ax.set_xticks(
        scale.epochs["fedrep"], [str(epochs) for epochs in scale.epochs["fedrep"]]
    )
    ax.set_xticks([], minor=True)
    ax.set_ylabel("mean test accuracy, %")
    curves.legend(figure, ax, 3)
    facts = {
        "trials": scale.seeds,
        "rounds": scale.num_rounds,
        "step": scale.learning_rate,
        "most epochs, first seed, by round": curves.rounded(by_round),
        "results": results,
    }
    name = f"figure5_{args.scale}" if args.scale.startswith("cifar10") else "figure5"
    curves.save(args, name, facts, figure if len(scale.epochs) > 1 else None)


if __name__ == "__main__":
    main()
