"""`fedjax-srp grid`: a grid from a TOML file, with a worker per core or per GPU."""

from __future__ import annotations

import datetime
from typing import Any

import jax

from fedjax_srp.lab.grids.execute import LauncherName
from fedjax_srp.lab.grids.grid import grid
from fedjax_srp.lab.grids.launch import HAS_WORKERS, gpus
from fedjax_srp.lab.grids.result import Grid
from fedjax_srp.parts.checks import printable
from fedjax_srp.parts.options import REQUIRED, Option, written
from fedjax_srp.xla.cores import cores

OPTIONS = {
    "file": Option(
        "file",
        str,
        REQUIRED,
        "TOML with tables [options], [axes], [variants.NAME], [[exclude]], [[where]] and [scales.NAME]",
    ),
    **written(grid, leave_out=("file", "workers")),
    "workers": Option(
        "workers",
        int | None,
        None,
        "processes on this machine; default one per GPU, or one per core (none on Windows); 0 for none",
    ),
}


def run(
    workers: int | None,
    launcher: LauncherName = "local",
    dry_run: bool = False,
    **arguments: Any,
) -> None:
    """Run a grid with these options and print its results."""
    if workers is None and HAS_WORKERS:
        workers = len(gpus()) or len(cores())
    workers = workers or 0
    if workers or launcher != "local":
        # this process only plans; GPUs are for the workers
        jax.config.update("jax_platforms", "cpu")
    finished = grid(workers=workers, launcher=launcher, dry_run=dry_run, **arguments)
    num_failed = len(finished.failures)
    if dry_run:
        if num_failed:
            raise ValueError(
                f"no estimate: {num_failed} of the programs failed in a short run"
            )
        print(estimate(finished))
        return
    folder = printable(str(finished.folder))
    print(f"{len(finished.folders)} of {len(finished.values)} runs finished in {folder}")
    if finished.folders:
        print(
            f"runs.csv and a table of rounds are there; fedjax-srp report {folder} compares"
        )
    if num_failed:
        raise ValueError(f"{num_failed} runs failed; the same command tries them again")


def estimate(finished: Grid) -> str:
    """Describe the estimated time of a grid."""
    if finished.seconds is None:
        return "not estimated: jobs wait in a queue"
    duration = datetime.timedelta(seconds=round(finished.seconds))
    return (
        f"about {duration} (hours:minutes:seconds), by a short run of each program up to its "
        "first evaluation"
    )
