"""Times to the targets of figure 3, evaluated after every round instead of every tenth.

    python experiments/srpfl/every_round.py --datasets mnist cifar10 --data-dir DIR --out experiments/srpfl/results

FedRep, SRPFL and fine-tuned FedAvg with and without doubling, trained as in figure 3 until their mean accuracy reaches
99 % of FedRep's final one (read from `figure3_NAME.csv` in --out), or for all rounds of the setting. Writes
`every_round.csv`: a row for each data set, method, seed and target, with the first round at the target (0: never) and
its simulated time without communication (inf: never); a cost C adds C times the round.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import jax
import pandas as pd
from paper import CURVES, FIGURES, SETTINGS, Study
from paper_tables import FRACTIONS

import fedjax_srp as srp

METHODS = ("fedrep", "srpfl", "fedavg_ft", "flanp_fedavg_ft")


def targets(table: Path) -> dict[float, float]:
    """Return the target accuracies of the figure by their fraction of FedRep's final accuracy."""
    values = sorted(set(pd.read_csv(table)["target"]))
    return dict(zip(FRACTIONS, values, strict=True))


def measure(study: Study, name: str, seed: int, goals: dict[float, float]) -> list[dict]:
    """Run one seed; return a row for each target."""
    curve = CURVES[name]
    history = srp.simulate(
        study.method(curve.training),
        study.data,
        clock=study.clocks["fixed"],
        num_rounds=study.setting.num_rounds,
        eval_every=1,
        target=max(goals.values()),
        evaluations=(curve.evaluation,),
        key=jax.random.key(seed),
        progress=False,
    )
    rows = []
    for fraction, goal in goals.items():
        reached = history.mean_accuracy >= goal
        rows.append({
            "dataset": study.setting.federation["name"], "method": name, "seed": seed, "fraction": fraction,
            "target": goal, "round": int(history.eval_round[reached.argmax()]) if reached.any() else 0,
            "time": history.time_to(goal),
        })  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", choices=SETTINGS, default="cpu")
    parser.add_argument("--datasets", nargs="+", required=True, metavar="NAME")
    parser.add_argument("--data-dir", type=Path, help="folder with prepared data sets")
    parser.add_argument("--out", type=Path, required=True, help="folder of the tables, with figure3_NAME.csv")
    args = parser.parse_args()
    srp.use_all_cores()
    rows = []
    for dataset in args.datasets:
        setting, goals = SETTINGS[args.scale][dataset], targets(args.out / f"figure3_{dataset}.csv")
        study = Study(FIGURES[3], setting, args.out, args.data_dir, print)
        for name in METHODS:
            for seed in range(setting.seeds):
                rows += measure(study, name, seed, goals)
                print(*rows[-1].values(), flush=True)
                pd.DataFrame(rows).to_csv(args.out / "every_round.csv", index=False)


if __name__ == "__main__":
    main()
