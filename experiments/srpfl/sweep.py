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
    table_of,
)

COLUMNS = {  # column -> option
    "classes": "classes_per_client",
    "images": "max_examples",
    "seed": "seed",
    "method": "method",
}


def main() -> None:
    args = scripts.grid_parser(
        __doc__,
        SIZES,
        "runs/srpfl/sweep",
        "data-dir",
        classes={"type": int, "nargs": "+", "default": (2, 3, 5, 10)},
        images={"type": int, "nargs": "+", "default": (20, 60, 200)},
        seeds={"type": int, "default": 2},
    ).parse_args()
    found = scripts.run_grid(
        args,
        options=OPTIONS,
        axes={
            "classes_per_client": args.classes,
            "max_examples": args.images,
            "seed": range(args.seeds),
            "method": METHODS,
        },
        where=EVALUATIONS,
        scales={name: {"options": size} for name, size in SIZES.items()},
    )
    file = scripts.results_folder(args) / "sweep.csv"
    scripts.write_table(file, table_of(found, COLUMNS), [*COLUMNS])
    print(sweep(file.parent))


if __name__ == "__main__":
    main()
