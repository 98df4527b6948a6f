"""Table 1 of the FedRep paper: accuracy of every method on real images, at the paper's size.

    python experiments/fedrep/table1.py --data-dir DIR [--columns NAME ...] [--methods NAME ...] [--seeds 0 1]
        [--out runs/fedrep] [--scale cpu|ablation|smoke]
    python experiments/fedrep/table1.py --summarize [--scale cpu|ablation|smoke]

Each run is stored in a folder OUT/COLUMN/METHOD/seed_S: finished runs are skipped, and interrupted ones continue from
their last evaluated round. One training serves a method and its "+FT". `rivals.py` has rows and columns.

Accuracy is the paper's: the mean over all clients and over the last ten rounds, each evaluated; rows with "+FT", and
PerFedAvg, are evaluated once, after training. `--summarize` adds the finished runs below --out to `table1.json` (with
`--scale ablation`, `ablation.json`) in --results, keeps the numbers of other runs there, and prints the tables;
`readme_tables.py` writes those of the README. To start over, delete the file.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import jax

import fedjax_srp as srp
from experiments import scripts
from experiments.fedrep import rivals, rivals_table
from experiments.fedrep.rivals import AVERAGED, COLUMNS, ROWS, TRAININGS, Column
from fedjax_srp.results.json_files import jsonable

HERE = Path(__file__).parent


def describe_run(name: str, column: Column, training: str, seed: int) -> Any:
    """Return everything that determines a run, to compare it with a finished one."""
    facts = column._replace(title="", place=None, note="")._asdict() | {
        "own": column.own.get(training, {})
    }
    return jsonable({"column": name, "training": training, "seed": seed, **facts})


def train(
    column: Column,
    training: str,
    seed: int,
    data: Any,
    folder: Path,
    arguments: Any,
    devices: Any,
) -> str:
    """Train and evaluate into a folder; return a message with accuracy and time."""
    options = rivals.method_options(column, training, data.num_clients)
    model = options["shared"].pop("model")
    method = srp.methods.get(training, dataset=data, model=model, **options)
    judged = [row for row in ROWS.values() if row.training == training]
    during = tuple(row.evaluation for row in judged if not row.after) or ("global",)
    begin = time.process_time()
    history = srp.simulate(
        method,
        data,
        num_rounds=column.num_rounds,
        eval_every=10,
        eval_last=AVERAGED,
        evaluations=during,
        key=jax.random.key(seed),
        progress=False,
        checkpoint_dir=folder / "checkpoint",
        devices=devices,
        name=training,
    )
    key = jax.random.fold_in(jax.random.key(seed), column.num_rounds)
    later = tuple(row.evaluation for row in judged if row.after)
    scores = srp.evaluate(
        method, data, history.server_state, key=key, evaluations=later, devices=devices
    )
    (folder / rivals_table.AFTER_TRAINING).write_text(
        json.dumps({name: values.tolist() for name, values in scores.items()}) + "\n",
        "utf-8",
    )
    scripts.keep(history, folder, arguments)
    last = history.mean_accuracy[-AVERAGED:].mean()
    return (
        f"{100 * last:.2f} % ({during[0]}), {time.process_time() - begin:.0f} CPU seconds"
    )


def main(arguments: list[str] | None = None) -> None:
    parser = scripts.parser(__doc__, COLUMNS, "runs/fedrep", "devices", "data-dir")
    parser.add_argument(
        "--columns",
        nargs="+",
        metavar="NAME",
        help="default: all of the scale but sent140",
    )
    parser.add_argument(
        "--methods", nargs="+", metavar="NAME", choices=TRAININGS, default=list(TRAININGS)
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument(
        "--results",
        type=Path,
        default=HERE / "results",
        help="folder of the files of results",
    )
    parser.add_argument(
        "--summarize",
        action="store_true",
        help="train nothing: add finished runs to the results",
    )
    args = parser.parse_args(arguments)
    columns = COLUMNS[args.scale]
    for name in args.columns or ():
        if name not in columns:
            parser.error(
                f"--columns {name}: --scale {args.scale} has {', '.join(columns)}"
            )
    if args.summarize:
        name = "ablation" if args.scale == "ablation" else "table1"
        file = args.results / f"{name}.json"
        read = rivals_table.summarize(columns, args.out, file)
        runs = json.loads(file.read_text("utf-8"))["runs"]
        print(f"{read} numbers from the runs below {args.out}\n")
        print(
            rivals_table.ablation(runs, columns)
            if args.scale == "ablation"
            else rivals_table.tables(runs)
        )
        return
    scripts.use_cores(args)
    with scripts.reported_by(parser):
        for name in args.columns or [name for name in columns if name != "sent140"]:
            column, data = columns[name], None
            for seed in args.seeds:
                for training in args.methods:
                    folder = args.out / name / training / f"seed_{seed}"
                    made_of = describe_run(name, column, training, seed)
                    if scripts.is_finished(folder, made_of):
                        continue
                    if data is None:
                        data = srp.data.load(**column.federation, data_dir=args.data_dir)
                    message = train(
                        column, training, seed, data, folder, made_of, args.devices
                    )
                    print(
                        f"{column.title}: {training}, seed {seed}: {message}", flush=True
                    )


if __name__ == "__main__":
    main()
