"""Who pays for doubling? Fair, clustered and personalized methods with everybody and with cohorts that double.

    python experiments/fairness/who_pays.py --scale smoke|cpu|full [--out DIR]

scikit-learn's digits on 50 clients with 3 classes, SRPFL's setting of experiments/srpfl (MLP 64-32, step 0.05, n0 = 5,
5 local epochs, fixed exponential speeds). A grid has

- FedAvg, q-FedAvg, AFL, IFCA and FedRep, each with everybody and with doubling: accuracy of all clients, of the worst
  tenth and of the slowest tenth, the standard deviation over clients, and times to a target without a cost;
- q-FedAvg with everybody for several q: what the published spread does here (q = 0 is FedAvg),
  with as many local epochs, and with one epoch and five times as many rounds.

And a measurement: IFCA's clusters where they are planted, images turned by 0, 90, 180 and 270 degrees, for several
numbers of models, beside FedAvg, which is IFCA with one.
"""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from sklearn.metrics import adjusted_rand_score

import fedjax_srp as srp
from experiments import curves, scripts
from fedjax_srp.lab.report import table

# seeds, rounds, of which the planted clusters have fewer
SCALES = {"smoke": (1, 3, 2), "cpu": (3, 60, 30), "full": (10, 300, 150)}
SHARED = scripts.DIGITS | {"eval_every": 2}
METHODS: dict[str, dict[str, Any]] = {
    "FedAvg": {"method": "fedavg"},
    "q-FedAvg, q = 1": {"method": "q_fedavg", "q": 1.0, "weighting": "uniform"},
    "AFL": {"method": "afl", "weight_step_size": 0.003},
    "IFCA": {"method": "ifca"},
    "FedRep": {"method": "fedrep"},
}
POLICIES: dict[str, dict[str, Any]] = {
    "everybody": {"participation": "full"},
    "doubling": {"participation": "doubling", "initial": 5},
}
FAIRNESS = {  # q -> its run with everybody; FedAvg is q = 0
    0.0: "FedAvg | everybody",
    0.1: "q = 0.1",
    1.0: "q-FedAvg, q = 1 | everybody",
    5.0: "q = 5",
}
TARGET = 0.85
GROUPS = ("mean", "worst_tenth", "slowest_tenth")
ROTATIONS = (0, 90, 180, 270)
NUM_MODELS = (1, 2, 4, 6)
COLORS = {
    "FedAvg": curves.GREEN,
    "q-FedAvg, q = 1": curves.ORANGE,
    "AFL": curves.PINK,
    "IFCA": curves.SKY,
    "FedRep": curves.BLUE,
}


def one_epoch(q: float) -> str:
    """Return the name of a run with one local epoch, as in q-FFL's experiments."""
    return f"q = {q:g}, one epoch"


def variants(num_rounds: int) -> dict[str, dict[str, Any]]:
    """Return the runs by name; those with one local epoch have five times as many rounds."""
    named = {}
    for method, options in METHODS.items():
        for policy, of_policy in POLICIES.items():
            named[f"{method} | {policy}"] = options | of_policy
    for q, name in FAIRNESS.items():
        fair = {"method": "q_fedavg", "q": q, "weighting": "uniform"}
        fair |= POLICIES["everybody"]
        named.setdefault(name, fair)
        longer = {"epochs": 1, "num_rounds": 5 * num_rounds, "eval_every": 10}
        named[one_epoch(q)] = fair | longer
    return named


def summary(history: srp.History) -> dict[str, float]:
    """Return final accuracies of groups of clients, their spread, and times to the target.

    `spread at the target` is that of the evaluation at which the mean reaches it; nan if none does.
    """
    spreads = np.nanstd(history.scores(), axis=1)
    place = history.reached(TARGET)
    at_target = np.nan if place is None else spreads[place]
    found = {"spread": spreads[-1], "spread at the target": at_target}
    for group in GROUPS:
        found[group] = history.group_scores(group)[-1]
        found[f"time, {group}"] = table.time_to(history, TARGET, of=group)
    return curves.rounded(found)


def planted(num_clusters: int, seed: int, num_rounds: int) -> dict[str, float]:
    """Return IFCA's accuracy on turned images, and how far its clusters are the planted ones."""
    dealt = srp.data.load("digits", num_clients=40, partition="iid")
    data = srp.data.shift_features(dealt, rotations=ROTATIONS)
    options = {"hidden": (64, 32), "learning_rate": 0.05, "epochs": 5}
    method = srp.methods.get("ifca", dataset=data, num_clusters=num_clusters, **options)
    history = srp.simulate(
        method,
        data,
        num_rounds=num_rounds,
        seed=seed,
        eval_every=num_rounds,
        progress=False,
    )
    models = history.server_state.params
    algorithm: Any = method.algorithm

    @jax.jit
    def cluster_of(client: jax.Array) -> jax.Array:
        return algorithm.cluster_of(models, data.train_client(client))

    clients = jnp.arange(data.num_clients, dtype=jnp.int32)
    chosen = [int(cluster_of(client)) for client in clients]
    turned = np.arange(data.num_clients) % len(ROTATIONS)
    found = {
        "accuracy": history.final_accuracy,
        "worst_tenth": float(history.worst_decile[-1]),
        "adjusted_rand": adjusted_rand_score(turned, chosen),
        "clusters": len(set(chosen)),
        "bytes_up": history.bytes_up,
        "bytes_down": history.bytes_down,
    }
    return curves.rounded(found)


def draw(found: dict[str, list[srp.History]]) -> Figure:
    """Draw mean, worst tenth and slowest tenth over time, doubling solid and everybody dashed."""
    figure, axes = curves.panels(len(GROUPS), sharey=True)
    grid = np.geomspace(0.3, 300, 150)
    lines = list(
        itertools.product(COLORS.items(), {"everybody": "--", "doubling": "-"}.items())
    )
    for ax, group in zip(axes, GROUPS, strict=True):
        for (method, color), (policy, style) in lines:
            trials = []
            for history in found[f"{method} | {policy}"]:
                scores = history.group_scores(group)
                times = history.eval_elapsed()
                trials.append(np.interp(grid, times, scores, left=np.nan, right=np.nan))
            means = 100 * np.mean(trials, axis=0)
            ax.plot(grid, means, style, color=color, label=f"{method}, {policy}")
        title = group.replace("_", " ")
        ax.set(xscale="log", xlabel="simulated time", title=title)
    axes[0].set_ylabel("accuracy %")
    curves.legend(figure, axes, 5, "mean over the seeds, no cost of communication")
    return figure


def main() -> None:
    args = scripts.grid_parser(__doc__, SCALES, "runs/fairness", "seed").parse_args()
    num_seeds, num_rounds, of_planted = SCALES[args.scale]
    seeds = scripts.seeds_of(args, num_seeds)
    runs = scripts.run_grid(
        args,
        variants=variants(num_rounds),
        axes={"seed": seeds},
        options=SHARED | {"num_rounds": num_rounds},
    ).histories_by("variant")
    clusters = scripts.measure_by(
        args,
        planted,
        "num_clusters",
        axes={"num_clusters": NUM_MODELS, "seed": seeds},
        options={"num_rounds": of_planted},
    )
    results = {
        "runs": {
            name: [summary(run) for run in of_seeds] for name, of_seeds in runs.items()
        },
        "planted": {str(num_clusters): found for num_clusters, found in clusters.items()},
    }
    curves.save(args, "who_pays", {"results": results}, draw(runs))


if __name__ == "__main__":
    main()
