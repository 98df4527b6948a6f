"""Checkpoints of a running simulation: its state and a log of its records, written after each segment."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax

from fedjax_srp.driver.round_log import Arrays, Log, Records
from fedjax_srp.parts.checks import printable, short
from fedjax_srp.results import atomic, errors, json_files, sealed_folders
from fedjax_srp.results.errors import DamagedError
from fedjax_srp.results.json_files import jsonable
from fedjax_srp.results.sealed_folders import SEAL
from fedjax_srp.rounds.round import SimulationState

KEPT = 2  # snapshots, in case one is damaged
# structure of the facts in the seal of a snapshot
_FACTS = {"fingerprint": dict, "records": {"bytes": int, "digest": str}}


class Snapshot(NamedTuple):
    """A simulation after `num_rounds` rounds."""

    num_rounds: int
    state: SimulationState
    records: Records


class Checkpoints:
    """Folder of the checkpoints of one simulation; the caller holds it (`held`).

    Resuming is exact on the same devices, chunk and version of jax. A snapshot has the fingerprint of its simulation;
    no other simulation resumes from it.

    Args:
        directory: exists already.
        fingerprint: facts that a continued run must share, as JSON.
        can_resume_after: number of rounds -> True if a longer run evaluates there too, so that it can resume there.
    """

    def __init__(
        self,
        directory: str | os.PathLike,
        fingerprint: dict[str, Any],
        can_resume_after: Callable[[int], bool],
    ):
        self._path, self._can_resume_after = Path(directory).absolute(), can_resume_after
        self._fingerprint = jsonable(fingerprint)
        self._log, self._completed = Log(self._path), 0
        if jax.process_index() == 0:
            atomic.clear(self._path)

    def save(self, num_rounds: int, state: SimulationState, segment: Arrays) -> None:
        """Write a snapshot after `num_rounds` rounds, with the records since the last `save` or `restore`.

        Earlier snapshots stay intact if the process is killed meanwhile.
        """
        snapshot, mark = self._path / str(num_rounds), None
        if jax.process_index() == 0:
            # The log of this run replaces that of snapshots from which it did not resume.
            self._remove(
                [step for step in snapshots(self._path) if step > self._completed]
            )
            with errors.writing(snapshot):
                mark = self._log.append(segment)
        sealed_folders.write(
            snapshot, _arrays(state), {"fingerprint": self._fingerprint, "records": mark}
        )
        self._completed = num_rounds
        if jax.process_index() == 0:
            self._keep(KEPT)

    def finish(self) -> None:
        """Keep the newest snapshot, and the newest from which a longer run can resume."""
        if jax.process_index() == 0:
            self._keep(1)

    def restore(
        self, state: SimulationState, evaluations: Sequence[int]
    ) -> Snapshot | None:
        """Return the newest undamaged snapshot with all evaluations of this run so far and no others, or None.

        If a shorter run ended between two evaluations of a longer one, the longer one repeats the rounds after the
        first of these, and drops their evaluations.

        Args:
            state: gives structure and placement.
            evaluations: numbers of rounds at the evaluations of the whole run; the last one is its end.

        Raises:
            ValueError: the snapshots are of another simulation or have more rounds, all of them are damaged, or the
                folder has numbered folders that are not snapshots.
        """
        num_rounds = evaluations[-1]
        found, damages, like = snapshots(self._path), [], _arrays(state)
        for step in found:
            sealed_folders.check_not_foreign(self._path / str(step))
            with contextlib.suppress(DamagedError):
                self._check_facts(_facts(self._path / str(step))["fingerprint"])
        if found and found[0] > num_rounds:
            raise ValueError(
                f"num_rounds={num_rounds}: checkpoint_dir={str(self._path)!r} holds {found[0]} rounds of this run; "
                f"give at least {found[0]}, or another folder"
            )
        for step in found:
            if step not in evaluations:
                continue
            folder, log = self._path / str(step), Log(self._path)
            try:
                arrays = sealed_folders.read(folder, like)
                with errors.reading("the log of its rounds", "is not that of a run"):
                    records = Records(log.read(_facts(folder)["records"]))
                    if records["compute_time"].shape[1] != step:
                        raise ValueError("another number of rounds")
            except DamagedError as error:
                damages.append(f"{str(folder)!r} is damaged ({error})")
                continue
            planned = [after for after in evaluations if after <= step]
            if "eval_round" in records and records["eval_round"][0].tolist() != planned:
                continue  # the last rounds of a run of another length with `eval_last`
            if damages and jax.process_index() == 0:
                line = f"{'; '.join(damages)}: going on from round {step}"
                print(printable(line), file=sys.stderr)
            self._log, self._completed = log, step
            leaves = [arrays[name] for name in like]
            return Snapshot(
                step, jax.tree.unflatten(jax.tree.structure(state), leaves), records
            )
        if damages:
            raise ValueError(
                f"{'; '.join(damages)}; delete {str(self._path)!r} to start again, or give another folder"
            )
        return None

    def _check_facts(self, known: Mapping[str, Any]) -> None:
        for name, ours, theirs in json_files.differences(self._fingerprint, known):
            remedy = "choose another folder or delete that one"
            if name == "machine.num_devices":
                remedy = (
                    f"give devices={theirs}, after srp.use_all_cores({theirs}) as the first call if fewer CPU devices "
                    f"exist (command line: as many cores, grid: as many --workers as before), or {remedy}"
                )
            elif name == "machine.chunk_size":
                remedy = f"give the same chunk_size, or none, as before, or {remedy}"
            elif name.startswith("program."):
                remedy = f"code of a part or of the package, the score, or a setting of JAX has changed, so {remedy}"
            raise ValueError(
                f"checkpoint_dir={str(self._path)!r} belongs to a run with {name}={short(theirs)}, this one has "
                f"{short(ours)}; {remedy}"
            )

    def _keep(self, number: int) -> None:
        """Remove all snapshots but the newest, and the newest `number` from which a longer run can resume."""
        found = snapshots(self._path)
        kept = {
            *found[:1],
            *[step for step in found if self._can_resume_after(step)][:number],
        }
        self._remove(set(found) - kept)

    def _remove(self, steps: Collection[int]) -> None:
        for step in steps:
            atomic.remove(self._path / str(step))


def _arrays(state: SimulationState) -> dict[str, Any]:
    return {
        f"state/{place:05}": leaf for place, leaf in enumerate(jax.tree.leaves(state))
    }


def _facts(folder: Path) -> dict[str, Any]:
    """Return the facts in the seal of a snapshot.

    Raises:
        DamagedError: they are not those of a snapshot.
    """
    facts = json_files.read_json(folder / SEAL).get("facts")
    if not json_files.has_structure(facts, _FACTS):
        raise DamagedError(f"{SEAL} is not that of a checkpoint")
    return cast("dict[str, Any]", facts)


def snapshots(path: Path) -> list[int]:
    """Return the numbers of rounds of the snapshots in a folder, the largest first."""
    return sorted(
        (int(step.name) for step in path.glob("*") if step.name.isdecimal()), reverse=True
    )


def folder_of_seeds(path: Path, first: int, last: int) -> Path:
    """Return the folder of one batch of seeds, `first` to `last` - 1."""
    return path / f"seeds_{first}_to_{last}"


def seeds_together(path: Path, num_seeds: int) -> int | None:
    """Return the number of seeds in a batch of the run with snapshots in a folder; None without snapshots."""
    if snapshots(path):
        return num_seeds
    sizes = (
        size
        for size in range(num_seeds - 1, 0, -1)
        if snapshots(folder_of_seeds(path, 0, size))
    )
    return next(sizes, None)
