"""A worker process: reads units from its input, writes what becomes of them to its output, ends when the input does.

    python -m fedjax_srp.grids.worker CORES

Both are pickles, between a process and the ones that it starts itself. The worker's prints go to its log.
"""

from __future__ import annotations

import os
import pickle
import queue
import sys
import threading
from typing import Any

from fedjax_srp.engine.cores import use_all_cores
from fedjax_srp.grids.launchers import perform
from fedjax_srp.grids.work import Worker


def main(cores: list[int]) -> None:
    """Works until the input ends; then nobody waits for the result, and files appear whole or not at all.

    Args:
        cores: that this process may use.
    """
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    use_all_cores(len(cores))
    tasks: queue.Queue[Any] = queue.Queue()
    threading.Thread(target=_read, args=(tasks,), daemon=True).start()
    worker = Worker()

    def answer(news: Any) -> None:
        try:
            pickle.dump(news, answers)
            answers.flush()
        except OSError:  # nobody reads
            os._exit(0)

    while True:
        task, unit = tasks.get()
        done = perform(worker, task, unit, answer)
        answer((done.error, done.is_elsewhere, done.result))


def _read(tasks: queue.Queue[Any]) -> None:
    try:
        while True:
            tasks.put(pickle.load(sys.stdin.buffer))
    except (EOFError, pickle.UnpicklingError):
        os._exit(0)


if __name__ == "__main__":
    main([int(core) for core in sys.argv[1].split(",")])
