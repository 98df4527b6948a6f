"""SRPFL against fine-tuned FLANP over numbers of classes and images of a client, in the text's setting.

    python experiments/srpfl/sweep.py --data-dir DIR --results experiments/srpfl/results

MNIST, 50 clients, 50 rounds, the rest as in figure 3. The two methods have the same cohorts and times in every round,
so a method that is ahead after a round is ahead at that time, whatever communication costs. `sweep.csv` has a row for
each cell, seed, evaluation and evaluated round; what a call has run replaces its rows there. `cause_tables.py` makes
the README's table from the file.
"""

from __future__ import annotations

from experiments import scripts
from experiments.srpfl.cause_tables import sweep
from experiments.srpfl.causes import (
    EVALUATIONS,
    METHODS,
    OPTIONS,
    SIZES,
    score_rows,
)

CLASSES, IMAGES = (2, 3, 5, 10), (20, 60, 200)
CELL = {"classes": "classes_per_client", "images": "max_examples"}  # column -> option


def main(arguments: list[str] | None = None) -> None:
    parser = scripts.grid_parser(__doc__, SIZES, "runs/srpfl/sweep", "data-dir")
    parser.add_argument("--classes", type=int, nargs="+", default=CLASSES)
    parser.add_argument("--images", type=int, nargs="+", default=IMAGES)
    parser.add_argument("--seeds", type=int, default=2)
    args = parser.parse_args(arguments)
    axes = {option: list(getattr(args, column)) for column, option in CELL.items()}
    axes |= {"seed": range(args.seeds), "method": METHODS}
    found = scripts.run_grid(
        args,
        options=OPTIONS,
        axes=axes,
        where=EVALUATIONS,
        scales={name: {"options": size} for name, size in SIZES.items()},
    )
    rows = []
    for name, history in found.histories.items():
        values = found.values[name]
        facts = {column: values[option] for column, option in CELL.items()}
        facts |= {"seed": values["seed"], "method": values["method"]}
        rows += score_rows(history, facts)
    file = scripts.results_folder(args) / "sweep.csv"
    scripts.write_table(file, rows, [*CELL, "seed", "method"])
    print(sweep(file.parent))


if __name__ == "__main__":
    main()
