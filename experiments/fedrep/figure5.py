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

from typing import Any

import numpy as np

import fedjax_srp as srp
from experiments import curves, scripts

LAST = 10  # rounds
OPTIONS = {
    "learning_rate": 0.1,
    "momentum": 0.5,
    "participation": "uniform",
    "eval_every": 10,
    "eval_last": LAST,
}
DIGITS = {
    "dataset": "digits",
    "num_clients": 50,
    "k": 5,
    "classes_per_client": 3,
    "model": "mlp",
    "hidden": (64, 32),
    "batch_size": 10,
    "num_rounds": 100,
}
CIFAR10 = {
    "dataset": "cifar10",
    "num_clients": 100,
    "k": 10,
    "classes_per_client": 2,
    "model": "lenet5",
    "initialization": "torch",
    "batch_size": 50,
    "num_rounds": 100,
}
SMALL = {"num_clients": 10, "k": 1, "classes_per_client": 2, "hidden": (8,)}
EPOCHS = (1, 2, 5, 10, 20)
SCALES: dict[str, tuple[dict[str, Any], dict[str, tuple[int, ...]], int]] = {
    # options, epochs of each method, seeds
    "cpu": (DIGITS, {"fedrep": EPOCHS, "fedavg": EPOCHS}, 5),
    "cifar10": (CIFAR10, {"fedrep": (1, 2, 5, 10, 15), "fedavg": (1, 2, 5)}, 1),
    "cifar10_step": (CIFAR10 | {"learning_rate": 0.03}, {"fedrep": (15,)}, 1),
    "smoke": (
        DIGITS | SMALL | {"num_rounds": 11},
        {"fedrep": (1, 2), "fedavg": (1, 2)},
        2,
    ),
}
EPOCHS_OF = {"fedrep": "head_epochs", "fedavg": "epochs"}  # the option on the axis
CURVES = {  # label -> method, evaluation, color
    "FedRep, own heads": ("fedrep", "own_head", curves.BLUE),
    "FedAvg": ("fedavg", "global", curves.GREEN),
    "FedAvg+FT": ("fedavg", "fine_tune", curves.PINK),
}


def accuracy(history: srp.History, evaluation: str) -> float:
    """Return the accuracy in % over the last rounds; nan if the run diverged."""
    if history.diverged is not None:
        return np.nan
    return 100 * float(history.mean_scores(evaluation)[-LAST:].mean())


def main() -> None:
    args = scripts.grid_parser(
        __doc__, SCALES, "runs/fedrep_figure5", "seed", "data-dir"
    ).parse_args()
    options, epochs_of, num_seeds = SCALES[args.scale]
    variants = {}
    for name, of_method in epochs_of.items():
        evaluations = [e for method, e, _ in CURVES.values() if method == name]
        for epochs in of_method:
            variants[f"{name} {epochs}"] = {
                "method": name,
                "evaluations": evaluations,
                EPOCHS_OF[name]: epochs,
            }
    runs = scripts.run_grid(
        args,
        variants=variants,
        axes={"seed": scripts.seeds_of(args, num_seeds)},
        options=OPTIONS | options,
    ).histories_by("variant")
    figure, (ax,) = curves.panels(1, width=5.4)
    results = {}
    by_round: dict[str, dict[str, float]] = {}
    shown = {label: curve for label, curve in CURVES.items() if curve[0] in epochs_of}
    for label, (name, evaluation, color) in shown.items():
        most = runs[f"{name} {epochs_of[name][-1]}"][0]
        means = 100 * most.mean_scores(evaluation)
        by_round[label] = dict(zip(map(str, most.eval_round), means, strict=True))
        of_epochs = []
        for epochs in epochs_of[name]:
            seeds = runs[f"{name} {epochs}"]
            of_epochs.append([accuracy(history, evaluation) for history in seeds])
        results[label] = curves.draw_line(
            ax, epochs_of[name], np.transpose(of_epochs), label, color, marker="o"
        )
    ax.set(xlabel="local epochs: of FedRep's head, of all in FedAvg", xscale="log")
    curves.ticks_at(ax, epochs_of["fedrep"])
    ax.set_ylabel("mean test accuracy, %")
    curves.legend(figure, ax, 3)
    facts = {
        "trials": num_seeds,
        "rounds": options["num_rounds"],
        "step": (OPTIONS | options)["learning_rate"],
        "most epochs, first seed, by round": curves.rounded(by_round),
        "results": results,
    }
    name = f"figure5_{args.scale}" if args.scale.startswith("cifar10") else "figure5"
    curves.save(args, name, facts, figure if len(epochs_of) > 1 else None)


if __name__ == "__main__":
    main()
