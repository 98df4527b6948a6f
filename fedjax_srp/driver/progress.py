"""Progress of a run: the bar, and the `Progress` of a callback."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Any

import jax

from fedjax_srp.base import Key
from fedjax_srp.driver.outcome import (
    Results,
    histories,
    on_host,
    score_name,
)
from fedjax_srp.driver.prepare import Prepared
from fedjax_srp.driver.round_log import Records
from fedjax_srp.parts.checks import printable
from fedjax_srp.parts.columns import ROUND_COLUMNS, Metrics, accuracy_column
from fedjax_srp.results.bars import tqdm
from fedjax_srp.results.callbacks import Progress

# The most important entries come first: a narrow terminal cuts off the end.
BAR_FORMAT = "{desc}: {n_fmt}/{total_fmt}{postfix} |{bar}| {elapsed}<{remaining}"

# Seconds; how long the last function of this name was compiled in this process is shown from there on.
SHOWN_WAIT = 1.0
_last_wait: dict[str, float] = {}


class Bar:
    """The progress bar of a run, and its messages."""

    def __init__(self, run: Prepared, silent: bool):
        self._run = run
        self._bar = tqdm(
            total=run.settings.num_rounds,
            desc=printable(run.name),
            bar_format=BAR_FORMAT,
            disable=silent,
        )

    @contextlib.contextmanager
    def compiling(self, name: Any) -> Iterator[None]:
        """Show the name of a function while it is compiled; that time does not count for the rate."""
        begin = time.perf_counter()
        shown = "" if self._bar.disable else self._bar.postfix
        function = name[0] if isinstance(name, tuple) else name
        text = f"compiling the {function} ..."
        if function in _last_wait:
            text += f" (the last one took {_last_wait[function]:.0f} s)"
        self._bar.set_postfix_str(text)
        try:
            yield
        finally:
            wait = time.perf_counter() - begin
            if wait >= SHOWN_WAIT:  # others came from the cache
                _last_wait[function] = wait
            self._bar.waited += wait
            self._bar.set_postfix_str(shown or "", refresh=False)

    def resume_after(self, completed: int) -> None:
        """Show that a run resumes after `completed` rounds."""
        if not self._bar.disable:
            tqdm.write(
                f"{printable(self._run.name)} continues after round {completed}",
                file=sys.stderr,
            )
            self._bar.initial = self._bar.n = completed
            self._bar.refresh()

    def update(self, length: int, records: Records) -> None:
        """Advance the bar, and show the last records."""
        run, shown = self._run, {}
        if run.evaluations:
            shown[score_name(run.data)] = (
                f"{records.last[f'means/{run.evaluations[0]}'].mean():.3g}"
            )
        shown |= {
            "n": f"{records.last['cohort_size'][0, -1]}",
            "time": f"{records.elapsed()[:, -1].mean():.4g}",
        }
        text = ", ".join(f"{name} {value}" for name, value in shown.items())
        self._bar.set_postfix_str(printable(text), refresh=False)
        self._bar.update(length)

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()


def progress_after(
    run: Prepared,
    root: Key,
    results: Results,
    length: int,
    seeds: range | None,
    run_ids: list[dict[str, str]],
) -> Progress:
    """Make the `Progress` for a callback after a segment of `length` rounds; `run_ids` come from `identify_runs`."""
    records = results.records.last
    elapsed = results.records.elapsed()
    metrics = {
        name.removeprefix("metrics/"): v
        for name, v in records.items()
        if name.startswith("metrics/")
    }
    scores = {name: records[f"means/{name}"][:, -1] for name in run.evaluations}
    columns = (
        {name: records[name] for name in ROUND_COLUMNS} | {"elapsed": elapsed} | metrics
    )
    columns["round"] = records["round"] + 1
    columns["communicated"] = records["communicated"] & (sum(run.sizes.messages) > 0)
    rows = []
    for s in range(run.num_seeds or 1):
        of_seed = (
            {"name": run.name}
            | run_ids[s]
            | ({} if seeds is None else {"seed": seeds[s]})
        )
        rows += [
            of_seed | {name: v[s, r].item() for name, v in columns.items()}
            for r in range(-length, 0)
        ]
        rows[-1] |= {
            accuracy_column(name): value[s].item() for name, value in scores.items()
        }
    own = (
        (lambda array: array)
        if run.num_seeds is not None
        else (lambda array: array[0].item())
    )

    def server_state() -> Any:
        return on_host(results.server)

    def history() -> Any:
        runs = histories(run, root, results)
        return runs[0] if run.num_seeds is None else runs

    return Progress(
        name=run.name,
        seeds=seeds,
        round=elapsed.shape[1],
        num_rounds=run.settings.num_rounds,
        elapsed=own(elapsed[:, -1]),
        scores=jax.tree.map(own, scores),
        metrics=Metrics({name: own(values[:, -1]) for name, values in metrics.items()}),
        rows=rows,
        server_state=server_state,
        history=history,
    )
