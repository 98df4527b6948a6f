"""`fedjax-srp grid`: a grid from a TOML file, with a worker per core or per GPU."""

from __future__ import annotations

from typing import Any

import jax

from fedjax_srp.lab.grids.grid import grid
from fedjax_srp.lab.grids.launch import cores, gpus
from fedjax_srp.parts.checks import printable
from fedjax_srp.parts.options import REQUIRED, Option, written

OPTIONS = {
    "file": Option(
        "file",
        str,
        REQUIRED,
        "TOML with tables [options], [axes], [variants.NAME] and [[exclude]]",
    ),
    **written(grid, leave_out=("file", "workers")),
    "workers": Option(
        "workers",
        int | None,
        None,
        "processes on this machine; default one per GPU, or one per core; 0 for none",
    ),
}


def run(workers: int | None, **arguments: Any) -> None:
    """Run a grid with these options and print its results."""
    if workers is None:
        workers = len(gpus()) or len(cores())
    if workers or arguments["launcher"] != "local":
        jax.config.update(
            "jax_platforms", "cpu"
        )  # this process only plans; GPUs are for the workers
    found = grid(workers=workers, **arguments)
    if arguments["dry_run"]:
        if found.failures:
            raise ValueError(
                f"no estimate: {len(found.failures)} of the programs failed in a short run"
            )
        print(
            _duration(found.seconds)
            if found.seconds is not None
            else "not estimated: jobs wait in a queue"
        )
        return
    tables = found.save()
    folder = printable(str(found.folder))
    print(f"{len(found.folders)} of {len(found.values)} runs finished in {folder}")
    if tables:
        paths = printable(", ".join(map(str, tables)))
        print(f"tables {paths}; fedjax-srp report {folder} compares the runs")
    if found.failures:
        raise ValueError(
            f"{len(found.failures)} runs failed; the same command tries them again"
        )


def _duration(seconds: float) -> str:
    hours, minutes = divmod(round(seconds / 60), 60)
    words = (
        f"{hours} h {minutes} min"
        if hours
        else f"{minutes} min"
        if minutes
        else f"{seconds:.0f} s"
    )
    return f"about {words}, by a short run of each program up to its first evaluation"
