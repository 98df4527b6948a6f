"""Loggers of a run: TensorBoard and Weights & Biases."""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from fedjax_srp.driver.checkpoint import snapshots
from fedjax_srp.lab.runs.folder import overwriting
from fedjax_srp.lab.runs.run import Run
from fedjax_srp.results import callbacks as watch
from fedjax_srp.results.records import identity


@contextlib.contextmanager
def loggers(
    run: Run, folder: Path, in_grid: bool = False, overwrite: bool = False
) -> Iterator[list[watch.Callback]]:
    """Yield the callbacks that log a run.

    A resumed run continues as the same run; one of other options is another. A run that begins
    again with `overwrite` replaces what it logged: in TensorBoard it hides older events of its
    folder. Runs of a grid (`in_grid`) have their own folders within that of TensorBoard.
    """
    callbacks: list[watch.Callback] = []
    # otherwise it continues an interrupted run
    begins_again = overwrite and not snapshots(overwriting(folder, run))
    with contextlib.ExitStack() as stack:
        if jax.process_index() == 0:
            if run.tensorboard is not None:
                directory = Path(run.tensorboard)
                if in_grid:
                    directory /= folder.name
                options = {"purge_step": 0} if begins_again else {}
                writer = watch.summary_writer(directory, **options)
                stack.callback(writer.close)  # else its file and its thread stay
                callbacks.append(watch.tensorboard(directory, writer))
            if run.wandb is not None:
                wandb_run = _wandb_run(run, folder, in_grid, begins_again)
                stack.callback(wandb_run.finish)
                callbacks.append(watch.wandb(wandb_run))
        yield callbacks


def _wandb_run(run: Run, folder: Path, in_grid: bool, begins_again: bool) -> Any:
    text = json.dumps([str(folder.absolute()), identity(run.record)], sort_keys=True)
    # batches log several at a time
    options = {"reinit": "create_new"} if in_grid else {}
    return watch.wandb_run(
        project=run.wandb,
        name=folder.name,
        id=f"{zlib.crc32(text.encode()):08x}",
        resume=None if begins_again else "allow",  # None: replace a run of this id
        config=run.record,
        **options,
    )


def split_by_seed(callbacks: Sequence[watch.Callback]) -> watch.Callback:
    """Return a callback of a batched program that passes each run its own rows."""

    def call(progress: watch.Progress) -> None:
        if progress.seeds is None:
            return  # several points share one training, and none of them logs
        rows_of: dict[int, list[dict[str, Any]]] = {i: [] for i in progress.seeds}
        for row in progress.rows:
            of_run = dict(row)
            rows_of[of_run.pop("seed")].append(of_run)
        for i, rows in rows_of.items():
            callbacks[i](progress._replace(seeds=None, rows=rows))

    return call
