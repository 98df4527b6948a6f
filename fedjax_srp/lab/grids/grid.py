"""`grid`: all combinations of options as runs, in Python and on the command line."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from fedjax_srp.lab.grids.execute import LauncherName, Number
from fedjax_srp.lab.grids.points import at_scale, overlaid, points, read
from fedjax_srp.lab.grids.result import Grid, run_grid
from fedjax_srp.parts.checks import checked
from fedjax_srp.parts.part import Count
from fedjax_srp.results.atomic import writable


@checked
def grid(
    file: str | os.PathLike | None = None,
    *,
    axes: Mapping[str, Sequence[Any] | Mapping[str, Any]] | None = None,
    options: Mapping[str, Any] | None = None,
    variants: Mapping[str, Mapping[str, Any]] | None = None,
    exclude: Sequence[Mapping[str, Any]] = (),
    where: Sequence[Mapping[str, Any]] = (),
    scales: Mapping[str, Mapping[str, Any]] | None = None,
    scale: str | None = None,
    out: str | os.PathLike | None = None,
    workers: Number = 0,
    batch: Count | None = None,
    retries: Number = 0,
    launcher: LauncherName = "local",
    slurm: Mapping[str, Any] | None = None,
    dry_run: bool = False,
    progress: bool = True,
) -> Grid:
    """Run every combination of values, each into its own folder, and return all of them.

    Names and values are those of `fedjax-srp run` with underscores. The values of method, participation, model and
    clock may also be objects, and `data` takes data in memory; on an axis, `{name: object}` names objects. Finished
    runs in the folder are not run again, interrupted ones resume from their checkpoint, and failed ones are listed at
    the end and tried again by the next call.

    Args:
        file: TOML with tables [options], [axes], [variants.NAME], [[exclude]], [[where]], [scales.NAME] and `out`.
            Arguments beside it replace its options, axes and options of variants of the same names, and add rules;
            what they leave without effect in the file is not refused.
        axes: option -> its values; there is a run for each combination.
        options: of every run. An option that a method does not read is left out of its runs.
        variants: name -> options that go together: one more axis, called "variant". An axis of this name chooses some.
        exclude: rules; a run with all values of a rule is left out, a list matches any of its values. A rule that
            matches no run is refused, or noted by a warning if the grid has none of its methods, or of its seeds.
        where: rules, each with options that it sets in such runs: {"method": ["fedrep"], "set": {"epochs": 5}}.
        scales: name -> tables options, axes, variants, exclude and where that replace or add to the others at this
            scale, such as {"smoke": {"options": {"num_rounds": 4}}}.
        scale: one of the scales, of the file or of `scales`. What has an effect at another scale alone, such as a rule
            for its runs, is not refused.
        out: folder of the grid; default that of the file, else runs/grid.
        workers: processes on this machine, each with its share of the cores or a GPU; 0 runs everything here.
        batch: most runs in one program; they differ only in seed and in floats such as learning rates. None: as many
            as memory allows while every worker has work, and only where runs are long enough to gain from it.
        retries: number of times that a failed run is tried again.
        launcher: "slurm" submits jobs with submitit instead of starting processes here; `workers` is then the number of
            jobs among which the runs are divided.
        slurm: parameters of submitit, e.g. {"slurm_partition": "gpu", "timeout_min": 60}; `cluster` is one of them.
        dry_run: run each program up to its first evaluation only, and estimate the time of the grid (`Grid.seconds`).
        progress: show a progress bar.

    Returns:
        A `Grid` with histories and tables.

    Raises:
        ValueError: the grid or some of its runs have errors that can be found without compiling; in one line, before
            anything runs.

    Example:
        >>> import tempfile, fedjax_srp as srp
        >>> found = srp.grid(
        ...     axes={"method": ["srpfl", "fedrep"], "seed": [0, 1]},
        ...     options={"dataset": "digits", "num_clients": 20, "hidden": [16], "num_rounds": 2, "initial": 5},
        ...     out=tempfile.mkdtemp(), progress=False,
        ... )
        >>> found.to_frame().groupby("method")["cohort_size"].mean().to_dict()
        {'fedrep': 20.0, 'srpfl': 5.0}
    """
    others: dict[str, Any] = {}
    tables = {"options": options, "axes": axes, "variants": variants}
    tables |= {"exclude": list(exclude), "where": list(where)}
    given = {name: table for name, table in tables.items() if table}
    if file is None:
        scaled = given | {"scales": scales or {}}
        spec = at_scale(scaled, scale, "grid")
    elif scales:
        raise ValueError(
            f"file={os.fspath(file)!r}: scales stand in the file; give them there, or no file"
        )
    else:
        spec, others = read(os.fspath(file), scale)
        if given:
            spec = overlaid(spec, at_scale(given, None, "grid"))
    return run_grid(
        points(spec),
        writable(out or others.get("out") or "runs/grid"),
        workers=workers,
        batch=batch,
        retries=retries,
        launcher=launcher,
        slurm=slurm or others.get("slurm"),
        dry_run=dry_run,
        progress=progress,
    )
