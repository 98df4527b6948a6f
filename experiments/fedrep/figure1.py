"""Figure 1 of the FedRep paper: average error of Local-only, FedSGD and FedRep against the samples of each client.

    python experiments/fedrep/figure1.py --scale smoke|cpu|full [--init descent|random] [--results DIR] [--seed N]

The paper shows that clients training alone suffer from few samples, that a single model (FedSGD, with the head refitted
on every client) cannot overcome their differences however many samples there are, and that FedRep's error is small in
all cases.

As in the paper: d=20, k=2, n=100 clients, all in every round, m in {5, 10, 20} fixed samples each, T=500 rounds, noise
1e-3 for features divided by sqrt(m), heads of unit length. The error is ||theta_i - B* w_i*||^2, the noise-free test
error per unit of feature variance.

FedRep starts from 10 steps of projected gradient descent on the unfactorised problem; `--init random` shows the effect
of that start.

Differs: the server orthonormalises B in every round, as Algorithm 2 of the SRPFL paper does; the authors' code does
not, and sums over clients where we average. Their steps, 0.1 for FedRep and 0.005 for FedSGD, times n=100 are 10 and
0.5 for an average. FedSGD takes 0.5, from a random start. For FedRep a step of 10 only works if B may grow until it
fits; here it is 1.0, chosen on other seeds.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments import curves, scripts
from experiments.fedrep import synthetic

DIM, RANK, CLIENTS, FEDREP_STEP, FEDSGD_STEP = 20, 2, 100, 1.0, 0.5
AXES = {"samples": (5, 10, 20)}
SCALES = {
    "smoke": {
        "axes": {"samples": (5,)},
        "options": {"rounds": 10, "eval_every": 5, "trials": 2},
    },
    "cpu": {"axes": AXES, "options": {"rounds": 500, "eval_every": 20, "trials": 10}},
    "full": {"axes": AXES, "options": {"rounds": 500, "eval_every": 10, "trials": 50}},
}
COLORS = {"Local only": curves.GREY, "FedSGD": curves.ORANGE, "FedRep": curves.BLUE}


def tasks(seed: int, trials: int, samples: int) -> list:
    """Draw the training clients of every trial."""
    drawn = synthetic.make_trials(seed, trials, CLIENTS, 1, DIM, RANK, samples)
    return [training for training, _ in drawn]


def measure(
    samples: int, rounds: int, eval_every: int, trials: int, seed: int, init: str
) -> dict[str, Any]:
    """Return for each method the (trials, evaluations) mean errors over clients."""
    drawn = tasks(seed, trials, samples)
    of_fedrep = {"step_size": FEDREP_STEP, "samples_per_round": samples}
    algorithms = {
        "FedRep": synthetic.fedrep_from(init, drawn[0], **of_fedrep),
        "FedSGD": synthetic.FedSGD(drawn[0], step_size=FEDSGD_STEP, samples=samples),
    }
    options = {"num_rounds": rounds, "eval_every": eval_every, "chunk_size": CLIENTS}
    errors = {}
    for label, algorithm in algorithms.items():
        histories = scripts.simulate_each(algorithm, drawn, **options)
        errors[label] = [history.mean_accuracy for history in histories]
    alone = [[float(synthetic.local_only(task, samples).mean())] for task in drawn]
    return {"Local only": np.repeat(alone, rounds // eval_every, axis=1), **errors}


def main() -> None:
    args = scripts.measurement_parser(
        __doc__,
        SCALES,
        "runs/fedrep_figure1",
        "seed",
        init={"choices": ("descent", "random"), "default": "descent"},
    ).parse_args()
    scale = SCALES[args.scale]
    counts = scale["axes"]["samples"]
    rounds, eval_every, trials = scale["options"].values()
    found = scripts.measure_each(args, measure, **scale)
    figure, (left, right) = curves.panels(2, sharey=True)
    at = np.arange(eval_every, rounds + 1, eval_every)
    results = {}
    for label, color in COLORS.items():
        errors = [np.array(of_count[label]) for of_count in found]
        final = np.stack([each[:, -1] for each in errors], axis=1)
        by_samples = curves.draw_line(left, counts, final, label, color, marker="o")
        results[label] = {
            "final by samples": by_samples,
            "final of every trial": curves.rounded(final.T),
            f"m={counts[0]}, by round": curves.draw_line(
                right, at, errors[0], label, color
            ),
        }
    left.set(title=f"after {rounds} rounds", xlabel="samples m of a client", yscale="log")
    left.set_xticks(counts)
    left.set_ylabel(r"mean error $\|\theta_i - B^* w_i^*\|^2$")
    right.set(title=f"m = {counts[0]}", xlabel="round")
    curves.legend(figure, left, 3)
    name = "figure1" if args.init == "descent" else "figure1_random"
    facts = {"init": args.init, "trials": trials, "rounds": rounds, "results": results}
    curves.save(args, name, facts, figure)


if __name__ == "__main__":
    main()
