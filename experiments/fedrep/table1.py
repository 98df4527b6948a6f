"""Table 1 of the FedRep paper: accuracy of every method on real images, at the paper's size.

    python experiments/fedrep/table1.py --data-dir DIR [--columns NAME ...] [--methods NAME ...] [--seeds 0 1]
        [--out runs/fedrep] [--scale cpu|ablation|smoke]

All runs are one grid, whose finished runs in --out are not trained again. One training serves a method and its "+FT".
`rivals.py` has rows and columns.

Accuracy is the paper's: the mean over all clients and over the last ten rounds, each evaluated; rows with "+FT", and
PerFedAvg, are evaluated once, after training. The runs are added to `table1.json` (with `--scale ablation`,
`ablation.json`) in --results, which keeps the numbers of other runs; `readme_tables.py` writes the README's tables.
To start over, delete the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fedjax_srp as srp
from experiments import judged, scripts
from experiments.fedrep import rivals_table
from experiments.fedrep.rivals import AVERAGED, COLUMNS, ROWS, Column, run_options

HERE = Path(__file__).parent
TRAININGS = judged.trainings(ROWS)


def variants(args: Any, columns: Mapping[str, Column]) -> dict[str, dict[str, Any]]:
    """Return the training of every method on every column."""
    found = {}
    for name, column in columns.items():
        num_clients = column.federation.get("num_clients")
        if num_clients is None:  # those of the data set
            others = dict(column.federation)
            data = srp.data.load(others.pop("dataset"), **others, data_dir=args.data_dir)
            num_clients = data.num_clients
        for training in args.methods:
            options = run_options(column, training, num_clients)
            options["evaluations"] = judged.during(judged.rows_of(ROWS, training))
            found[f"{name}/{training}"] = options
    return found


@scripts.reported()
def main() -> None:
    parser = scripts.grid_parser(
        __doc__,
        COLUMNS,
        "runs/fedrep",
        "data-dir",
        columns={
            "nargs": "+",
            "metavar": "NAME",
            "help": "default: all of the scale but sent140",
        },
        methods={
            "nargs": "+",
            "metavar": "NAME",
            "choices": TRAININGS,
            "default": list(TRAININGS),
        },
        seeds={"type": int, "nargs": "+", "default": [0]},
    )
    args = parser.parse_args()
    columns = COLUMNS[args.scale]
    for name in args.columns or ():
        if name not in columns:
            parser.error(
                f"--columns {name}: --scale {args.scale} has {', '.join(columns)}"
            )
    chosen = args.columns or [name for name in columns if name != "sent140"]
    args.out /= args.scale
    grid = scripts.run_grid(
        args,
        variants=variants(args, {name: columns[name] for name in chosen}),
        axes={"seed": args.seeds},
        options={"eval_every": 10, "eval_last": AVERAGED, "models": True},
    )
    found = rivals_table.collect(grid)
    is_ablation = args.scale == "ablation"
    file = f"{'ablation' if is_ablation else 'table1'}.json"
    runs = rivals_table.merge(found, (args.results or HERE / "results") / file)
    if is_ablation:
        print(rivals_table.ablation(runs, columns))
    else:
        print(rivals_table.tables(runs))


if __name__ == "__main__":
    main()
