"""`fedjax-srp report`: table, figure and page of the run folders below a folder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from fedjax_srp.lab.report import page, panels, repeats, table
from fedjax_srp.lab.runs import options as run_options
from fedjax_srp.parts.checks import check_path, printable
from fedjax_srp.results import atomic
from fedjax_srp.results.folder import finished, is_finished, unfinished

# in the demo, methods with and without doubling break even at 1 to 12
COMMUNICATIONS = (0, 1, 10)
_MAX_NAMED = 12  # unfinished runs in the message


def report(
    folder: str,
    target: float | None = None,
    communications: Sequence[float] = COMMUNICATIONS,
    out: str | None = None,
    evaluation: str | None = None,
    load: Sequence[str] = (),
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
        load: Python files that are run first, with parts of yours that the runs name.

    Raises:
        ValueError: no such folder, no finished run in it, two different results of one run, an invalid target or cost,
            or a run without that evaluation.
    """
    run_options.load(load)
    table.check_target(target)
    table.check_communications(communications)
    check_path("folder", folder)
    if not Path(folder).is_dir():
        problem = "is a file" if Path(folder).exists() else "there is no such folder"
        raise ValueError(
            f"folder={folder!r}: {problem}; give a folder that fedjax-srp run, grid or demo wrote"
        )
    run_folders = finished(Path(folder))
    left = [str(run) for run in unfinished(Path(folder))]
    if not run_folders:
        hint = "give a folder that fedjax-srp run, grid or demo wrote"
        if left:
            hint = f"{len(left)} are started or planned; the command that started them resumes them"
        raise ValueError(f"folder={folder!r}: holds no finished run; {hint}")
    all_runs = [repeats.read(run) for run in run_folders]
    tasks, errors = repeats.by_task(all_runs)
    if not tasks:
        scores = repeats.why_no_accuracies(run.history for run in errors)
        raise ValueError(
            f"folder={folder!r}: none of its runs was evaluated by accuracy{scores}"
        )
    twice = []
    for task, runs in tasks.items():
        judged = [repeats.with_evaluation(run, evaluation) for run in runs]
        tasks[task], copies = repeats.without_copies(judged)
        twice += copies
    out_folder = atomic.writable(out or folder)
    compared = page.compared(tasks, target, communications)
    files = {out_folder / page.FILE: page.writer(compared)}
    texts = []
    suffixes = [""] if len(tasks) == 1 else _suffixes(tasks)
    for suffix, comparison in zip(suffixes, compared, strict=True):
        text, of_task = panels.files(comparison, out_folder, suffix)
        files |= of_task
        names = ", ".join(path.name for path in of_task)
        texts.append(f"{comparison.title}\n\n{text}\n\nwritten to {out_folder}: {names}")
    old = _files_of_earlier_report(out_folder, {"", *_suffixes(tasks)} - {*suffixes})
    atomic.replace(files)
    texts.append(f"page    {out_folder / page.FILE}")
    for path in old:
        path.unlink()
    judged_by_errors = [str(run.folder) for run in errors]
    others = [run for run in all_runs if run not in errors]
    unjudged = [str(run.folder) for run in others if not len(run.history.eval_round)]
    copies = [f"{run.folder} (as {same.folder})" for run, same in twice]
    if len(left) > _MAX_NAMED:
        left[_MAX_NAMED:] = [f"{len(left) - _MAX_NAMED} more"]
    remarks = {
        "removed files of an earlier report": [path.name for path in old],
        "left out, their scores are errors; plot them with srp.plots": judged_by_errors,
        "left out, not evaluated": unjudged,
        "left out, duplicates of other runs": copies,
        "left out, not finished": left,
    }
    for remark, names in remarks.items():
        if names:
            texts.append(f"{remark}: {', '.join(names)}")
    return printable("\n\n".join(texts), kept="\n")


def _files_of_earlier_report(folder: Path, suffixes: Iterable[str]) -> list[Path]:
    """Return the files of a report with other names; an incomplete set may be the user's own."""
    if not (folder / page.FILE).exists() or is_finished(folder):  # no run's own figure
        return []
    old = []
    for suffix in suffixes:
        paths = [folder / name.format(suffix) for name in panels.FILES]
        if all(map(Path.is_file, paths)):
            old += paths
    return old


def _suffixes(tasks: Iterable[str]) -> list[str]:
    """Return the ends of the names of files of each task."""
    suffixes: list[str] = []
    for task in tasks:
        suffix = f"_{printable(task, instead='_').replace('/', '_')}"
        if suffix in suffixes:
            suffix += f"_{len(suffixes)}"
        suffixes.append(suffix)
    return suffixes
