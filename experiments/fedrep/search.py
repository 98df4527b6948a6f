"""Steps and penalties of table 1's methods, searched by validation.

    python experiments/fedrep/search.py [--scale cpu|l2gd|smoke] [--batch 64] [--results DIR] [--seed N]

FedRep's appendix A.2 tunes steps and penalties over lists that our copy has lost, so these lists are ours. A fifth of
every client's training examples is held out; a row's setting is the one with the highest validation accuracy, the mean
over clients, the last evaluations and seeds. It is trained anew on all training data and judged by the test data,
beside table 1's step of 0.01 and the penalties of `rivals.py`.

Both scales have scikit-learn's digits and one seed, where the paper has five; `l2gd` has more rounds, since one round
of L2GD in ten trains, and is run with `--seed 1`, whose coin trains early. With `--batch 64` settings that are one
program run as one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import fedjax_srp as srp
from experiments import curves, judged, scripts
from experiments.fedrep.rivals import ROWS, Column, by_class, run_options

PUBLISHED_STEP = 0.01
SEARCHED = {  # training -> its option, the value of table 1, other values
    "fedprox": ("mu", 0.1, (0.01, 1.0)),
    "scaffold": ("server_step_size", 1.0, (0.5,)),
    "l2gd": ("aggregation_step_size", 0.05, (0.01, 0.2, 1.0)),
    "apfl": ("own_share", 0.75, (0.25, 0.5)),
    "ditto": ("penalty", 1.0, (0.1, 0.3, 3.0)),
}


class Scale(NamedTuple):
    """Data, model and length of the runs."""

    column: Column
    steps: tuple[float, ...]
    seeds: int
    last: int  # evaluations, one a round, whose mean is the accuracy
    trainings: tuple[str, ...]


SCALES = {
    "cpu": Scale(
        Column("digits (50, 3)", by_class("digits", 50, 3), {"model": "mlp", "hidden": (64, 32)}, 5, 60, None),
        (0.01, 0.03, 0.1, 0.3), 1, 10,
        ("fedavg", "fedprox", "scaffold", "apfl", "ditto", "fedrep"),
    ),
    "l2gd": Scale(
        Column("digits (50, 3)", by_class("digits", 50, 3), {"model": "mlp", "hidden": (64, 32)}, 5, 100, None),
        (0.01, 0.03, 0.1, 0.3), 1, 10, ("l2gd",),
    ),
    "smoke": Scale(
        Column("digits (10, 2)", by_class("digits", 10, 2), {"model": "mlp", "hidden": (8,)}, 1, 4, None),
        (0.01, 0.1), 1, 1, ("fedprox", "fedrep"),
    ),
}  # fmt: skip


def settings(training: str) -> list[dict[str, float]]:
    """Return the values of a training's own option, that of table 1 first."""
    if training not in SEARCHED:
        return [{}]
    option, published, others = SEARCHED[training]
    return [{option: value} for value in (published, *others)]


def search(args: Any, scale: Scale) -> Any:
    """Train every method with every step and value, judged by held-out training data."""
    num_clients = scale.column.federation["num_clients"]
    variants = {}
    for training in scale.trainings:
        options = run_options(scale.column, training, num_clients)
        rows = judged.rows_of(ROWS, training)
        options["evaluations"] = [row.evaluation for row in rows.values()]
        for place, own in enumerate(settings(training)):
            variants[f"{training}/{place}"] = options | own
    return scripts.run_grid(
        args,
        variants=variants,
        axes={
            "learning_rate": scale.steps,
            "seed": range(args.seed, args.seed + scale.seeds),
        },
        options={
            "validation": 0.2,
            "eval_every": scale.column.num_rounds,
            "eval_last": scale.last,
        },
    )


def accuracy(history: srp.History, evaluation: str) -> float:
    """Return the accuracy in % over the last evaluations; nan if the run diverged."""
    if history.diverged is not None:
        return np.nan
    return 100 * float(history.mean_scores(evaluation).mean())


def by_setting(grid: Any, row: judged.Row) -> dict[tuple[int, float], dict[str, float]]:
    """Group a row's accuracies: (place of its value, step) -> name of the run -> accuracy."""
    found: dict[tuple[int, float], dict[str, float]] = {}
    for name, history in grid.histories.items():
        training, _, place = grid.values[name]["variant"].partition("/")
        if training == row.training:
            setting = (int(place), grid.values[name]["learning_rate"])
            found.setdefault(setting, {})[name] = accuracy(history, row.evaluation)
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = scripts.grid_parser(
        __doc__, SCALES, "runs/fedrep_search", "seed", "data-dir"
    )
    args = parser.parse_args(arguments)
    scale = SCALES[args.scale]
    args.out /= args.scale
    rows = {label: row for label, row in ROWS.items() if row.training in scale.trainings}
    with scripts.reported():
        grid = search(args, scale)
        found = {label: by_setting(grid, row) for label, row in rows.items()}
        chosen = {}
        for label, accuracies in found.items():
            means = {each: np.mean([*runs.values()]) for each, runs in accuracies.items()}
            chosen[label] = max(
                means, key=lambda each: np.nan_to_num(means[each], nan=-1)
            )
        wanted = {
            name
            for label, accuracies in found.items()
            for setting in (chosen[label], (0, PUBLISHED_STEP))
            for name in accuracies[setting]
        }
        names = [name for name in grid.histories if name in wanted]
        tests = grid.rerun(names, batch=args.batch, workers=args.workers)
    results = {}
    for label, row in rows.items():
        tested = by_setting(tests, row)
        options = settings(row.training)
        entries = []
        for setting, runs in found[label].items():
            place, step = setting
            entry = options[place] | {
                "step": step,
                "validation": curves.rounded([*runs.values()]),
            }
            if setting in tested:
                entry["test"] = curves.rounded([*tested[setting].values()])
            entries.append(entry)
        best = [*found[label]].index(chosen[label])
        results[label] = {"chosen": best, "settings": entries}
    facts = {
        "column": scale.column.title,
        "seeds": scale.seeds,
        "rounds": scale.column.num_rounds,
        "steps": scale.steps,
    }
    curves.save(args, f"search_{args.scale}", facts | {"results": results})


if __name__ == "__main__":
    main()
