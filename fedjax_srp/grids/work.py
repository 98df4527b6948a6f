"""One unit of a grid, run in this process: a point as `fedjax-srp run` does it, or a batch as one program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from fedjax_srp import stored
from fedjax_srp.commands import run as run_command
from fedjax_srp.commands import run_options
from fedjax_srp.engine.simulate import simulate, simulate_seeds
from fedjax_srp.grids.units import Datasets, Member, Unit, batch_of
from fedjax_srp.watch import Progress

Tell = Callable[[int], None]  # how many rounds the points of a unit have completed, all together


class Cost(NamedTuple):
    """What a short run of a unit took, in seconds."""

    compile: float
    per_round: float  # of all points together, evaluations included


class Worker:
    """Runs units one after the other; keeps data sets and programs between them."""

    def __init__(self) -> None:
        self._datasets, self._loaded = Datasets(), set[str]()

    def run(self, unit: Unit, tell: Tell) -> None:
        """Runs what is not finished of a unit, from its checkpoint if there is one, and mends summaries of other costs.

        Raises:
            HeldError: another process is running it.
            ValueError: an argument out of range, a damaged checkpoint.
            OSError: the disk is full.
        """
        self._load(unit)
        if len(unit.members) == 1:
            self._run_one(unit.members[0], tell)
            return
        with stored.held(unit.shared, "out"):
            if not unit.is_finished():
                self._run_batch(unit, tell)
            for member in unit.members:
                if not member.is_summarized():
                    self._run_one(member, tell)

    def measure(self, unit: Unit) -> Cost:
        """Runs a unit up to its first evaluation, and keeps nothing of it."""
        self._load(unit)
        arguments = unit.members[0].point.arguments
        num_rounds = min(arguments["eval_every"], arguments["num_rounds"])
        simulated = self._simulation(unit) | {"num_rounds": num_rounds, "eval_first": 0}
        if len(unit.members) == 1:
            history = simulate(**simulated)
        else:
            batch = batch_of([member.point for member in unit.members])
            del simulated["key"]
            history = simulate_seeds(**simulated, **batch._asdict())[0]
        return Cost(history.compile_seconds, history.seconds_per_round)

    def _load(self, unit: Unit) -> None:
        """Runs the files of `load`, once."""
        for file in unit.members[0].point.arguments["load"]:
            if file not in self._loaded:
                run_options.load([file])
                self._loaded.add(file)

    def _simulation(self, unit: Unit) -> dict[str, Any]:
        arguments = unit.members[0].point.arguments
        return run_command.simulation(arguments, self._datasets(arguments))

    def _run_one(self, member: Member, tell: Tell) -> None:
        run_command.run(
            {**member.point.arguments, "out": str(member.folder), "overwrite": member.begins_anew()},
            say=lambda line: None,
            load=self._datasets,
            callback=_telling(tell),
        )

    def _run_batch(self, unit: Unit, tell: Tell) -> None:
        points = [member.point for member in unit.members]
        arguments, simulated = points[0].arguments, self._simulation(unit)
        del simulated["key"]
        histories = simulate_seeds(
            **simulated,
            **batch_of(points)._asdict(),
            checkpoint_dir=unit.shared / "checkpoint" if arguments["checkpoint"] else None,
            keep_clients=arguments["models"],
            callback=_telling(tell),
        )
        for member, history in zip(unit.members, histories, strict=True):
            with stored.held(member.folder, "out"):
                if not member.is_finished():
                    run_command.save(history, member.folder, member.point.arguments, arguments["models"])


def _telling(tell: Tell) -> Callable[[Progress], None]:
    """A callback that tells the rounds of all points; where memory is short, several programs run one by one."""
    done: dict[int, int] = {}

    def call(progress: Progress) -> None:
        seeds = progress.seeds or range(1)
        done[seeds.start] = progress.round * len(seeds)
        tell(sum(done.values()))

    return call
