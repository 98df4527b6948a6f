"""Three methods with everybody and with doubling cohorts under codes: does compression give back what C took?

    python experiments/messages/methods.py --scale smoke|cpu|full|held|mnist|cifar10|phones [--data-dir DIR] [--out DIR]

The runs stand in `methods.toml`; `methods.csv` in --results has a row for each run and evaluation and keeps its other
rows. A row has the accuracy after every round, and the stages: how many clients take part, for how many rounds, and the
seconds of such a round in this run. Clients have equally many examples, and who is fast does not depend on their data,
so that neither the clock nor the cost of a message changes how many rounds are needed, in the mean over draws. From
rounds follow the times under every such clock: `ties.py` has them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fedjax_srp as srp
from experiments import scripts

HERE = Path(__file__).parent
FILE = HERE / "methods.toml"
SCALES = ("smoke", "cpu", "full", "held", "mnist", "cifar10", "phones")
IDENTITY = ("scale", "method", "code", "seed", "evaluation")


def stages(history: srp.History) -> str:
    """Return size, number of rounds and seconds of a round of each stage, as text."""
    rounds = zip(
        history.cohort_size.tolist(), history.compute_time.round(4).tolist(), strict=True
    )
    groups = [(facts, len([*equal])) for facts, equal in itertools.groupby(rounds)]
    return " ".join(f"{size}:{count}:{seconds:g}" for (size, seconds), count in groups)


def rows_of(
    history: srp.History, scale: str, options: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the rows of a run, one for each evaluation."""
    found = []
    for evaluation in history.accuracies:
        accuracies = 100 * history.mean_scores(evaluation)
        found.append(
            {
                "scale": scale,
                "method": str(options["method"]),
                "code": str(options["variant"]),
                "seed": str(options["seed"]),
                "evaluation": evaluation,
                "bytes_up": history.bytes_up,
                "bytes_down": history.bytes_down,
                "stages": stages(history),
                "worst_tenth": f"{100 * history.worst_scores(evaluation)[-1]:.2f}",
                "accuracies": " ".join(f"{value:.2f}" for value in accuracies),
            }
        )
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = scripts.grid_parser(__doc__, SCALES, "runs/messages", "data-dir")
    parser.add_argument(
        "--codes", nargs="+", metavar="CODE", help="some of the variants (default: all)"
    )
    parser.add_argument(
        "--seeds", type=int, nargs="+", help="default: those of the scale"
    )
    args = parser.parse_args(arguments)
    args.out /= args.scale
    chosen = {"variant": args.codes, "seed": args.seeds}
    axes = {name: values for name, values in chosen.items() if values}
    found = scripts.run_grid(args, FILE, axes=axes)
    rows = [
        row
        for name, history in found.histories.items()
        for row in rows_of(history, args.scale, found.values[name])
    ]
    file = (args.results or HERE / "results") / "methods.csv"
    scripts.write_table(file, rows, IDENTITY)
    print(f"wrote {file}")


if __name__ == "__main__":
    main()
