"""SRPFL against fine-tuned FLANP over numbers of classes and images of a client, in the text's setting.

    python experiments/srpfl/sweep.py --data-dir DIR --results experiments/srpfl/results

MNIST, 50 clients, 50 rounds, the rest as in figure 3. The two methods have the same cohorts and times in every round,
so a method that is ahead after a round is ahead at that time, whatever communication costs. `sweep.csv` is written
after each cell: a row for each cell, seed, evaluation and evaluated round. A second call skips the cells and seeds that
the file has. `cause_tables.py` makes the README's table from the file.
"""

from __future__ import annotations

import argparse
import functools

import pandas as pd

import fedjax_srp as srp
from experiments.srpfl.cause_tables import sweep
from experiments.srpfl.causes import FEDERATION, METHODS, read_rows, score_rows, setting
from experiments.srpfl.paper import FIGURES, Study, scripts
from fedjax_srp.results import atomic

CLASSES, IMAGES = (2, 3, 5, 10), (20, 60, 200)
DIGITS = {"name": "digits", "num_clients": 10}


def study(args: argparse.Namespace, classes: int, images: int) -> Study:
    """Return the study of one cell."""
    federation = (DIGITS if args.smoke else FEDERATION) | {
        "classes_per_client": classes,
        "max_examples": images,
    }
    column = setting("text", args.smoke)._replace(
        title=f"{classes} classes, {images} images", federation=federation
    )
    return Study(
        FIGURES[3],
        column,
        args.out / f"{classes}_classes_{images}_images",
        args.data_dir,
        print,
    )


def main(arguments: list[str] | None = None) -> None:
    parser = scripts.parser(__doc__, (), "runs/srpfl/sweep", "data-dir", "results")
    parser.add_argument(
        "--smoke", action="store_true", help="digits, 10 clients, 4 rounds"
    )
    parser.add_argument("--classes", type=int, nargs="+", default=CLASSES)
    parser.add_argument("--images", type=int, nargs="+", default=IMAGES)
    parser.add_argument("--seeds", type=int, default=2)
    args = parser.parse_args(arguments)
    srp.use_all_cores()
    results = scripts.results_folder(args)
    rows = read_rows(results / "sweep.csv")
    done = {(row["classes"], row["images"], row["seed"]) for row in rows}
    for seed in range(args.seeds):
        for images in args.images:
            for classes in args.classes:
                if (classes, images, seed) in done:
                    continue
                cell = study(args, classes, images)
                for training in METHODS:
                    cell.train(training, [seed], together=False)
                    found = score_rows(cell, training, seed)
                    rows += [
                        {"classes": classes, "images": images} | row for row in found
                    ]
                frame = pd.DataFrame(rows).drop(columns="setting")
                atomic.replace(
                    {results / "sweep.csv": functools.partial(frame.to_csv, index=False)}
                )
    print(sweep(results))


if __name__ == "__main__":
    main()
