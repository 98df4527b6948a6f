"""Controls of figure 6: an untrained representation, and heads that are trained until they converge.

    python experiments/fedrep/figure6_controls.py [--scale digits] [--results DIR] [--seed N]
    python experiments/fedrep/figure6_controls.py --scale letters|ten_letters|letter_classes --data-dir DIR

The representations of FedRep and FedAvg, trained as in `figure6.py`, beside the random one from which they start. New
clients fit a head to all their samples under each: by 30 epochs of SGD as there, and to the minimum of the mean
cross-entropy with an L2 penalty of 1e-4, by scikit-learn's logistic regression. `ten_letters`: 50 training clients
have 3 of the ten letters a to j each, as the paper's have ten letters; `letter_classes`: 3 of 52; `letters`: FEMNIST's
writers with all their letters.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.linear_model import LogisticRegression

import fedjax_srp as srp
from experiments import curves, scripts
from experiments.fedrep import figure6
from fedjax_srp.driver.adapt import params_of

PENALTY = 1e-4  # of the mean loss; keeps the minimum finite where a client's classes can be separated
METHODS = ("fedrep", "fedavg")
UNTRAINED = "untrained"
SCALES = {  # name -> scale of figure 6, classes of the training clients; None: those of figure 6
    "digits": ("cpu", None),
    "ten_letters": ("letter_classes", range(36, 46)),
    "letter_classes": ("letter_classes", None),
    "letters": ("letters", None),
    "smoke": ("smoke", None),
}


def federations(scale: str, seed: int, data_dir: str | None) -> tuple[Any, Any]:
    """Return the training clients and the new clients."""
    name, classes = SCALES[scale]
    old, new = figure6.federations(name, seed, data_dir)
    if classes is not None:
        source = {
            "name": figure6.SCALES[name].dataset,
            "data_dir": data_dir,
            "seed": seed,
        }
        old = srp.data.load(
            **source, classes=classes, num_clients=50, classes_per_client=3
        )
    return old, new


def converged_accuracy(model: Any, representation: Any, data: Any) -> float:
    """Return the mean test accuracy of new clients whose heads are at the minimum of their penalised loss."""
    represent = jax.jit(model.represent)

    def features_and_labels(examples: srp.Examples) -> tuple[np.ndarray, np.ndarray]:
        count = int(examples.count)
        features = represent(representation, examples.x)
        return np.asarray(features)[:count], np.asarray(examples.y)[:count]

    scores = []
    for i in range(data.num_clients):
        x, y = features_and_labels(data.train_client(jnp.int32(i)))
        x_test, y_test = features_and_labels(data.test_client(jnp.int32(i)))
        fit = LogisticRegression(C=1 / (PENALTY * len(y)), max_iter=5000).fit(x, y)
        scores.append(fit.score(x_test, y_test))
    return float(np.mean(scores))


def control_accuracies(
    scale_name: str, seed: int, data_dir: str | None
) -> dict[str, dict[str, float]]:
    """Return the accuracies of new clients in one trial, for each representation and way to train heads."""
    scale = figure6.SCALES[SCALES[scale_name][0]]
    old, new = federations(scale_name, seed, data_dir)
    model = srp.models.get("mlp", new, hidden=scale.hidden)
    fresh = model.init(jax.random.key(10_000 + seed))
    representations = {UNTRAINED: fresh.representation}
    for name in METHODS:
        state = figure6.train(name, scale, old, seed)
        representations[name] = params_of(state).representation
    found = {}
    for name, representation in representations.items():
        params = fresh._replace(representation=representation)
        by_epoch = srp.adapt(
            model,
            new,
            params,
            key=jax.random.key(seed),
            epochs=scale.epochs,
            optimizer=srp.SGD(scale.learning_rate, momentum=0.5),
        ).mean
        found[name] = {
            "epochs": float(np.ravel(by_epoch)[-1]),
            "converged": converged_accuracy(model, representation, new),
        }
    return found


def main() -> None:
    args = scripts.measurement_parser(
        __doc__,
        (),
        "runs/fedrep_figure6_controls",
        "seed",
        "data-dir",
        scale={"choices": SCALES, "default": "digits"},
    ).parse_args()
    scale = figure6.SCALES[SCALES[args.scale][0]]
    axes = {"seed": scripts.seeds_of(args, scale.trials)}
    options = {"scale_name": args.scale}
    by_trial = scripts.measure_each(args, control_accuracies, axes=axes, options=options)
    results = {}
    for representation in (*METHODS, UNTRAINED):
        row = {}
        for heads in ("epochs", "converged"):
            row[heads] = [100 * found[representation][heads] for found in by_trial]
        results[representation] = row
    facts = {
        "trials": scale.trials,
        "dataset": scale.dataset,
        "rounds": scale.num_rounds,
        "epochs": scale.epochs,
        "results": results,
    }
    curves.save(args, f"figure6_controls_{args.scale}", facts)


if __name__ == "__main__":
    main()
