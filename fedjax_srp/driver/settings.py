"""Settings of a run: everything that it may be told besides its parts, its data, its key and its start."""

from __future__ import annotations

import dataclasses
import inspect
import math
import os
import textwrap
from collections.abc import Callable, Sequence
from typing import Annotated, ParamSpec, TypeVar

from fedjax_srp.parts.checks import as_annotated, hints_of
from fedjax_srp.parts.options import argument_help
from fedjax_srp.parts.part import Above, AtLeast, Count
from fedjax_srp.results.callbacks import Callback
from fedjax_srp.rounds.sharding import Devices

P = ParamSpec("P")
R = TypeVar("R")
TimeLimit = Annotated[float, Above(0), "give time units, or None for no limit"]
SETTINGS_LINE = "    **settings: fields of `Settings`, by keyword."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Rounds, evaluations, limits, devices and files of a run.

    `simulate` and the functions beside it take these fields as keywords, the command line and grids as options; all of
    them have defaults and texts from here.

    Args:
        num_rounds: maximal number of communication rounds.
        eval_every: rounds between evaluations; the last round is always evaluated.
        eval_first: also evaluate after each of the first `eval_first` rounds, so that early times are not upper bounds.
        eval_last: also evaluate after each of the last `eval_last` rounds, for means over them. An extended run resumes
            from before them.
        chunk_size: clients at work at once on each device; None for a measured default. More need more memory.
        time_limit: stop after the first evaluation at or beyond this simulated time (communication not counted).
        target: stop after the first evaluation whose mean score reaches this, an accuracy from below and an error from
            above.
        progress: show a progress bar, in the first process.
        checkpoint_dir: save the run after every segment and resume from there when called again, also with more rounds
            or other limits; the result equals that of an uninterrupted run, bit for bit. The folder holds two or three
            copies of all states, one or two at the end. Only one process can use it at a time.
        keep_clients: keep the states of all clients at the end, `history.client_states`.
        states_dir: keep the states of all clients in a file of this new folder, and in memory only those of a round's
            participants. Results are the same, bit for bit. What it costs, and what it does not go with, is in Scaling.
        evaluations: names of the algorithm's evaluations, the default one first; None for the algorithm's default,
            "all" for every one, () for none.
        devices: devices to spread the clients over, or how many; None for all, those of every process.
        shard_data: keep every client's examples on one device and move them to the device that trains the client, for
            `FederatedData` that do not fit every device. Results are the same, bit for bit.
        record_loss: record the training loss of each round as `history.metrics["training_loss"]`: the loss of the batch
            before each local step, averaged over a client's steps and then over the cohort.
        callback: called with a `srp.watch.Progress` after every new evaluation; returning True ends the run.
            `srp.watch` has callbacks that log.
        throw: raise `FloatingPointError` at the next evaluation if the run diverges; otherwise it goes on, and
            `history.diverged` has the round.
        name: of the run in tables and figures; default that of the method.

    Raises:
        ValueError: a value of a wrong type or out of range.
    """

    num_rounds: Count = 150  # as in the SRPFL authors' code
    eval_every: Count = 10
    eval_first: Annotated[int, AtLeast(0)] = 0
    eval_last: Annotated[int, AtLeast(0)] = 0
    chunk_size: Count | None = None
    time_limit: TimeLimit | None = None
    target: float | None = None
    progress: bool = True
    checkpoint_dir: str | os.PathLike | None = None
    keep_clients: bool = False
    states_dir: str | os.PathLike | None = None
    evaluations: str | Sequence[str] | None = None
    devices: Devices = None
    shard_data: bool = False
    record_loss: bool = False
    callback: Callback | None = None
    throw: bool = False
    name: str | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            checked = as_annotated(field.name, value, _HINTS[field.name], is_field=False)
            object.__setattr__(self, field.name, checked)
        if self.target is not None and not math.isfinite(self.target):
            raise ValueError(
                f"target={self.target} must be finite, e.g. 0.9 for an accuracy of 90 % (None sets none)"
            )

    def next_evaluation(self, completed: int) -> int:
        """Number of rounds at the next evaluation, after `completed` rounds.

        Evaluations follow every `eval_every`-th round and every round up to `eval_first`, wherever a resumed run was
        interrupted, and each of the last `eval_last` rounds, at least the last.
        """
        every = 1 if completed < self.eval_first else self.eval_every
        first_of_last = max(completed, self.num_rounds - self.eval_last) + 1
        return min(completed + every - completed % every, first_of_last, self.num_rounds)

    def evaluated_rounds(self) -> list[int]:
        """Numbers of rounds at all evaluations, if no limit ends the run early."""
        rounds = [self.next_evaluation(0)]
        while rounds[-1] < self.num_rounds:
            rounds.append(self.next_evaluation(rounds[-1]))
        return rounds

    def longer_evaluates_after(self, completed: int) -> bool:
        """True if a longer run evaluates after this many rounds."""
        longer = dataclasses.replace(self, num_rounds=completed + 1, eval_last=0)
        return longer.next_evaluation(completed - 1) == completed

    def can_resume_after(self, completed: int) -> bool:
        """True if a longer run can resume after `completed` rounds: it has all evaluations so far too."""
        first_of_last = max(self.num_rounds - self.eval_last + 1, 1)
        rounds = range(min(completed, first_of_last), completed + 1)
        return all(map(self.longer_evaluates_after, rounds))


_HINTS = hints_of(Settings)


def takes_settings(*names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Show settings that a function takes as `**settings` in its signature and documentation.

    Args:
        names: of the settings; all of them if none is given.
    """
    fields = inspect.signature(Settings).parameters
    texts = argument_help(Settings)

    def spelled_out(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)
        parameters = [
            p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD
        ]
        lines = []
        for name in names or fields:
            if name not in signature.parameters:
                parameters.append(fields[name])
                line = f"    {name}: {texts[name]}"
                lines.append(textwrap.fill(line, 120, subsequent_indent=8 * " "))
        function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        documentation = inspect.getdoc(function) or ""
        function.__doc__ = documentation.replace(SETTINGS_LINE, "\n".join(lines))
        return function

    return spelled_out
