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

import numpy as np

import fedjax_srp as srp
from experiments import curves, scripts
from experiments.fedrep import synthetic

DIM, RANK, CLIENTS, FEDREP_STEP, FEDSGD_STEP = 20, 2, 100, 1.0, 0.5
SCALES = {  # samples, rounds, eval_every, trials
    "smoke": ((5,), 10, 5, 2),
    "cpu": ((5, 10, 20), 500, 20, 10),
    "full": ((5, 10, 20), 500, 10, 50),
}
COLORS = {"Local only": curves.GREY, "FedSGD": curves.ORANGE, "FedRep": curves.BLUE}


def measure(
    samples: int, rounds: int, eval_every: int, trials: int, seed: int, init: str
) -> dict[str, list[list[float]]]:
    """Return for each method the (trials, evaluations) mean errors over clients."""
    tasks = [
        training
        for training, _ in synthetic.make_trials(
            seed, trials, CLIENTS, 1, DIM, RANK, samples
        )
    ]
    make = (
        synthetic.FedRepFromDescent if init == "descent" else srp.algorithms.LinearFedRep
    )
    fedrep = make(
        tasks[0],
        step_size=FEDREP_STEP,
        samples_per_round=samples,
        sampling="fixed",
        start="random",
    )
    fedsgd = synthetic.FedSGD(tasks[0], step_size=FEDSGD_STEP, samples=samples)
    options = {"num_rounds": rounds, "eval_every": eval_every, "chunk_size": CLIENTS}
    errors = {
        label: [
            run.mean_accuracy.tolist()
            for run in scripts.simulate_each(algorithm, tasks, **options)
        ]
        for label, algorithm in (("FedRep", fedrep), ("FedSGD", fedsgd))
    }
    alone = [float(synthetic.local_only(task, samples).mean()) for task in tasks]
    evaluations = len(errors["FedRep"][0])
    return {"Local only": [[error] * evaluations for error in alone], **errors}


def main() -> None:
    parser = scripts.measurement_parser(__doc__, SCALES, "runs/fedrep_figure1", "seed")
    parser.add_argument("--init", choices=("descent", "random"), default="descent")
    args = parser.parse_args()
    counts, rounds, eval_every, trials = SCALES[args.scale]
    figure, axes = curves.panels(2, sharey=True)
    options = {"rounds": rounds, "eval_every": eval_every, "trials": trials}
    options |= {"seed": args.seed, "init": args.init}
    found = scripts.measure_each(args, measure, axes={"samples": counts}, options=options)
    errors = {
        m: {label: np.array(values) for label, values in of_m.items()}
        for m, of_m in zip(counts, found, strict=True)
    }
    at = np.arange(eval_every, rounds + 1, eval_every)
    results = {}
    for label, color in COLORS.items():
        final = np.stack([errors[m][label][:, -1] for m in counts], axis=1)
        results[label] = {
            "final by samples": curves.draw_line(
                axes[0], counts, final, label, color, marker="o"
            )
        }
        results[label]["final of every trial"] = curves.rounded(final.T)
        few = f"m={counts[0]}, by round"
        results[label][few] = curves.draw_line(
            axes[1], at, errors[counts[0]][label], label, color
        )
    axes[0].set(
        title=f"after {rounds} rounds",
        xlabel="samples m of a client",
        xticks=counts,
        yscale="log",
    )
    axes[0].set_ylabel(r"mean error $\|\theta_i - B^* w_i^*\|^2$")
    axes[1].set(title=f"m = {counts[0]}", xlabel="round")
    curves.legend(figure, axes[0], 3)
    name = "figure1" if args.init == "descent" else "figure1_random"
    curves.save(
        args,
        name,
        {"init": args.init, "trials": trials, "rounds": rounds, "results": results},
        figure,
    )


if __name__ == "__main__":
    main()
