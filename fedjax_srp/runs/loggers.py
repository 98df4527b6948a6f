"""Loggers of a run by its options: TensorBoard and Weights & Biases."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax

from fedjax_srp import watch
from fedjax_srp.runs.run import Run


@contextlib.contextmanager
def loggers(run: Run, folder: Path, among_others: bool = False) -> Iterator[list[watch.Callback]]:
    """Callbacks that log a run in a folder; a resumed run continues under the same name.

    A run `among_others` is one of a grid, where each has its own folder within TensorBoard's.
    """
    found: list[watch.Callback] = []
    with contextlib.ExitStack() as stack:
        if run.tensorboard is not None:
            found.append(watch.tensorboard(Path(run.tensorboard, folder.name) if among_others else run.tensorboard))
        if run.wandb is not None and jax.process_index() == 0:
            place = f"{zlib.crc32(str(folder.absolute()).encode()):08x}"
            more = {"reinit": "create_new"} if among_others else {}  # batches log several at a time
            own = watch.wandb_run(
                project=run.wandb, name=folder.name, id=place, resume="allow", config=run.record, **more
            )
            stack.callback(own.finish)
            found.append(watch.wandb(own))
        yield found


def apart(callbacks: Sequence[watch.Callback]) -> watch.Callback:
    """Return a callback for runs of one program, which gives each its own rows."""

    def call(progress: watch.Progress) -> None:
        for place in progress.seeds or ():
            rows = [
                {name: value for name, value in row.items() if name != "seed"}
                for row in progress.rows
                if row["seed"] == place
            ]
            callbacks[place](progress._replace(seeds=None, rows=rows))

    return call
