"""`fedjax-srp report`: table, figure and page of the run folders below a folder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from fedjax_srp.lab.report import page, panels, repeats, table
from fedjax_srp.parts.checks import printable
from fedjax_srp.results import atomic
from fedjax_srp.results.folder import finished, is_finished, unfinished

COMMUNICATIONS = (
    0,
    1,
    10,
)  # in the demo, methods with and without doubling break even at 1 to 12
_MAX_NAMED = 12  # unfinished runs in the message


def report(
    folder: str,
    target: float | None = None,
    communications: Sequence[float] = COMMUNICATIONS,
    out: str | None = None,
    evaluation: str | None = None,
) -> str:
    """Write a table and a figure for each data set and number of clients, and one page for all; return them as text.

    Runs that differ only in the seed are repeats of one row, whether Python or the command line saved them. If they
    differ in more, such as the learning rate or the partition, there is a row for each value, named by it.

    Args:
        folder: contains run folders, or links to them, at any depth.
        target: mean accuracy to time; None for 95 % of FedRep's final accuracy, of the best method's without FedRep.
        communications: costs per communicating round, in time units.
        out: folder to write to; None for the folder itself.
        evaluation: to compare; None for the default of each run.

    Raises:
        ValueError: no such folder, no finished run in it, two different results of one run, an invalid target or cost,
            or a run without that evaluation.
    """
    table.check_target(target)
    table.check_communications(communications)
    if not Path(folder).is_dir():
        problem = "is a file" if Path(folder).exists() else "there is no such folder"
        raise ValueError(
            f"folder={folder!r}: {problem}; give a folder that fedjax-srp run, grid or demo wrote"
        )
    found = finished(Path(folder))
    left_out = [str(run) for run in unfinished(Path(folder))]
    if not found:
        hint = "give a folder that fedjax-srp run, grid or demo wrote"
        if left_out:
            hint = f"{len(left_out)} are started or planned; the command that started them resumes them"
        raise ValueError(f"folder={folder!r}: holds no finished run; {hint}")
    all_runs = [repeats.read(run) for run in found]
    tasks, errors = repeats.by_task(all_runs)
    twice = []
    for task, runs in tasks.items():
        tasks[task], again = repeats.without_copies(
            repeats.with_evaluation(run, evaluation) for run in runs
        )
        twice += again
    if not tasks:
        scores = repeats.why_no_accuracies(run.history for run in errors)
        raise ValueError(
            f"folder={folder!r}: none of its runs was evaluated by accuracy{scores}"
        )
    out_folder = atomic.writable(out or folder)
    compared = page.compared(tasks, target, communications)
    suffixes, others = (
        ([""], _suffixes(tasks)) if len(tasks) == 1 else (_suffixes(tasks), [""])
    )
    files, texts = {out_folder / page.FILE: page.writer(compared)}, []
    for suffix, each in zip(suffixes, compared, strict=True):
        text, of_task = panels.files(each, out_folder, suffix)
        files |= of_task
        texts.append(
            f"{each.title}\n\n{text}\n\nwritten to {out_folder}: {', '.join(path.name for path in of_task)}"
        )
    is_again = (out_folder / page.FILE).exists() and not is_finished(
        out_folder
    )  # no run's own figure
    sets = [
        [out_folder / name.format(suffix) for name in panels.FILES]
        for suffix in others
        if is_again
    ]
    old = [
        path for paths in sets if all(map(Path.is_file, paths)) for path in paths
    ]  # else the user's
    atomic.replace(files)
    texts.append(f"page    {out_folder / page.FILE}")
    if old:
        for path in old:
            path.unlink()
        texts.append(
            f"removed files of an earlier report: {', '.join(path.name for path in old)}"
        )
    if errors:
        names = ", ".join(str(run.folder) for run in errors)
        texts.append(
            f"left out, their scores are errors: {names}; plot them with srp.plots"
        )
    if unjudged := [
        str(run.folder)
        for run in all_runs
        if run not in errors and not len(run.history.eval_round)
    ]:
        texts.append(f"left out, not evaluated: {', '.join(unjudged)}")
    if twice:
        names = ", ".join(f"{run.folder} (as {same.folder})" for run, same in twice)
        texts.append(f"left out, duplicates of other runs: {names}")
    if left_out:
        more = (
            f" and {len(left_out) - _MAX_NAMED} more"
            if len(left_out) > _MAX_NAMED
            else ""
        )
        texts.append(f"left out, not finished: {', '.join(left_out[:_MAX_NAMED])}{more}")
    return printable("\n\n".join(texts), kept="\n")


def _suffixes(tasks: Iterable[str]) -> list[str]:
    words = [f"_{printable(task, instead='_').replace('/', '_')}" for task in tasks]
    return [f"{word}_{i}" if word in words[:i] else word for i, word in enumerate(words)]
