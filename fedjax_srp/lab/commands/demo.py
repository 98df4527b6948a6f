"""The demo: a grid of the SRPFL paper's methods except HF-MAML on scikit-learn's digits, and its report."""

from __future__ import annotations

from fedjax_srp.lab.commands import grid as grid_command
from fedjax_srp.lab.commands.report import report
from fedjax_srp.lab.grids.launch import gpus
from fedjax_srp.parts.checks import check_integer
from fedjax_srp.xla.cores import cores

MOST_WORKERS = 2  # a training gains from several cores, and compiling it leaves one idle
METHODS = (
    *("srpfl", "fedrep", "lg_srpfl", "lg_fedavg"),
    *("flanp_fedavg", "fedavg", "flanp_fedavg_ft", "fedavg_ft"),
)
OPTIONS = {
    "dataset": "digits",
    "num_clients": 50,
    "classes_per_client": 3,
    "num_rounds": 100,
    "eval_every": 2,
    "hidden": (64, 32),
    "learning_rate": 0.05,
    "epochs": 5,
    "initial": 5,
    "rounds_per_stage": 10,
    "clock": "fixed",
}
QUICK_METHODS = ("srpfl", "fedrep")
QUICK_ROUNDS = 50


def run(
    out: str = "runs/demo", seeds: int = 3, quick: bool = False, progress: bool = True
) -> str:
    """Run the demo, or what is left of it, and return its table and the names of its files.

    All methods have the same clients, times and batches; the partition of the digits is that of all
    seeds.

    Args:
        out: folder for table, figure, page and runs.
        seeds: number of repeats, simulated together.
        quick: only SRPFL and FedRep, half the rounds.
        progress: show a progress bar.
    """
    check_integer("seeds", seeds, 1)
    methods = METHODS
    options = OPTIONS
    if quick:
        methods = QUICK_METHODS
        options = OPTIONS | {"num_rounds": QUICK_ROUNDS}
    print(
        f"{len(methods)} methods, {seeds} seeds, {options['num_rounds']} rounds: digits, "
        f"{options['num_clients']} clients with {options['classes_per_client']} classes each,\n"
        "whose local work takes 1 time unit on average: exponential, drawn once for each client and "
        "seed\n"
    )
    grid_command.run(
        len(gpus()) or min(len(cores()), MOST_WORKERS),
        axes={"method": methods, "seed": range(seeds)},
        options=options,
        out=out,
        batch=seeds,
        progress=progress,
    )
    return report(out)
