"""Loggers of a run: TensorBoard and Weights & Biases."""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax

from fedjax_srp.driver.checkpoint import snapshots
from fedjax_srp.driver.record import LIMITS
from fedjax_srp.lab.runs.folder import overwriting
from fedjax_srp.lab.runs.run import NOT_SIMULATED, Run
from fedjax_srp.results import callbacks as watch


@contextlib.contextmanager
def loggers(
    run: Run, folder: Path, in_grid: bool = False, overwrite: bool = False
) -> Iterator[list[watch.Callback]]:
    """Yield the callbacks that log a run; a resumed run continues as the same run, one of other options is another.

    A run that begins again with `overwrite` replaces what it logged: in TensorBoard it hides older events of its
    folder. Runs of a grid (`in_grid`) have their own folders within that of TensorBoard.
    """
    callbacks: list[watch.Callback] = []
    begins_again = overwrite and not snapshots(
        overwriting(folder, run)
    )  # else it continues an interrupted one
    with contextlib.ExitStack() as stack:
        if run.tensorboard is not None and jax.process_index() == 0:
            directory = Path(run.tensorboard, folder.name) if in_grid else run.tensorboard
            writer = watch.summary_writer(
                directory, **({"purge_step": 0} if begins_again else {})
            )
            stack.callback(writer.close)  # else its file and its thread stay
            callbacks.append(watch.tensorboard(directory, writer))
        if run.wandb is not None and jax.process_index() == 0:
            kept = {
                name: value
                for name, value in run.record.items()
                if name not in (*LIMITS, *NOT_SIMULATED)
            }
            run_id = f"{zlib.crc32(json.dumps([str(folder.absolute()), kept], sort_keys=True).encode()):08x}"
            more = (
                {"reinit": "create_new"} if in_grid else {}
            )  # batches log several at a time
            resume = None if begins_again else "allow"  # None: replace a run of this id
            wandb_run = watch.wandb_run(
                project=run.wandb,
                name=folder.name,
                id=run_id,
                resume=resume,
                config=run.record,
                **more,
            )
            stack.callback(wandb_run.finish)
            callbacks.append(watch.wandb(wandb_run))
        yield callbacks


def split_by_seed(callbacks: Sequence[watch.Callback]) -> watch.Callback:
    """Return a callback of a batched program that passes each run its own rows."""

    def call(progress: watch.Progress) -> None:
        for i in progress.seeds or ():
            rows = [
                {name: value for name, value in row.items() if name != "seed"}
                for row in progress.rows
                if row["seed"] == i
            ]
            callbacks[i](progress._replace(seeds=None, rows=rows))

    return call
