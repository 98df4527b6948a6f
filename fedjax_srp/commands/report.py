"""`fedjax-srp report`: table and figure of the run folders below a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedjax_srp import methods
from fedjax_srp.demo import figure, writable
from fedjax_srp.history import History
from fedjax_srp.report import table


def report(folder: str, target: float | None, communications: Sequence[float], out: str | None) -> str:
    """One table and one figure for every data set and number of clients among the runs.

    Args:
        folder: run folders are looked for in it and below.
        target: mean accuracy to time; None for 95 % of FedRep's final accuracy, of the best method's without FedRep.
        communications: costs per communicating round, in time units.
        out: where to write; None for `folder`.

    Raises:
        ValueError: no finished runs there.
    """
    found = sorted(path.parent for path in Path(folder).rglob("summary.json"))
    if not found:
        raise ValueError(f"folder={folder!r}: holds no finished run; give a folder that fedjax-srp run or demo wrote")
    tasks: dict[str, dict[str, list[History]]] = {}
    order = {name: place for place, name in enumerate(methods.names())}
    for history in sorted(map(History.load, found), key=lambda run: order.get(run.name, len(order))):
        task = f"{history.config.get('dataset', 'data')}_{history.num_clients}_clients"
        tasks.setdefault(task, {}).setdefault(history.name, []).append(history)
    place, texts = writable(out or folder), []
    for task, histories in tasks.items():
        evaluated = {name: runs for name, runs in histories.items() if all(len(run.eval_round) for run in runs)}
        if not evaluated:
            continue
        aim = table.common_target(evaluated) if target is None else table.Target(target, "as asked")
        frame = table.comparison(evaluated, aim.accuracy, communications)
        title = task.replace("_", " ")
        suffix = "" if len(tasks) == 1 else f"_{task.replace('/', '_')}"
        frame.to_csv(place / f"table{suffix}.csv", index=False)
        text = table.render(frame, aim)
        (place / f"table{suffix}.txt").write_text(text + "\n", "utf-8")
        figure(evaluated, aim, communications, title).savefig(place / f"accuracy{suffix}.png", dpi=150)
        texts.append(
            f"{title}\n\n{text}\n\nwritten to {place}: table{suffix}.txt, table{suffix}.csv, accuracy{suffix}.png"
        )
    if not texts:
        raise ValueError(f"folder={folder!r}: none of its runs was evaluated; run with --evaluations")
    return "\n\n".join(texts)
