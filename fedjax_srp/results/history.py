"""Records of a run: a table of its rounds and the score of every client at every evaluation.

Simulated time is in time units. Methods add a cost per communicating round on request, so
one run covers every cost.
"""

from __future__ import annotations

import copy
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedjax_srp.base import MESSAGE_SHARE, STAGE_COMPLETED, Method
from fedjax_srp.parts.checks import (
    check_choice,
    check_known,
    check_numbers,
    checked,
    printable,
    short,
)
from fedjax_srp.parts.columns import ROUND_COLUMNS, Metrics, check_metric_names
from fedjax_srp.parts.description import rebuild
from fedjax_srp.parts.files import MALFORMED
from fedjax_srp.results import figure, measures, records
from fedjax_srp.results import folder as run_folder
from fedjax_srp.results.errors import DamagedError
from fedjax_srp.results.figure import X
from fedjax_srp.results.json_files import has_structure, jsonable
from fedjax_srp.results.locks import held
from fedjax_srp.results.measures import Of, Reached
from fedjax_srp.results.stages import Stage, stages_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False, repr=False)
class History:
    """The record of one run.

    R rounds, E evaluations, M clients. Arrays are NumPy's, read-only copies of the
    arguments; floats are float64.

    Attributes:
        name: of the method.
        round: (R,) completed rounds, 1 to R.
        stage: (R,) stage of the participation policy, from 0.
        cohort_size: (R,) number of clients that took part.
        compute_time: (R,) simulated duration of the round, without an added communication
            cost, in time units.
        communicated: (R,) True if the round is charged a communication.
        finite: (R,) True if the server's state was free of nan and inf after the round.
        client_time: (M,) expected time of each client per unit of local work in the first
            round, in time units.
        metrics: name -> (R,) scalars of algorithm and policy.
        eval_round: (E,) rounds completed at each evaluation, 0 before training; empty if
            `accuracies` is empty.
        accuracies: name of the evaluation -> (E, M) score of each client (fraction
            correct), the default one first.
        test_count: (M,) test points of each client; clients without test points are left
            out of means.
        rounds_taken: (M,) rounds that each client took part in; zeros if not counted.
        bytes_up: sent by one participant in one round. If `metrics` has `message_share`
            (submodels), the mean participant sends and receives this share.
        bytes_down: received by one participant in one round.
        seconds_per_round: of the simulator, without compilation.
        compile_seconds: of the simulator, for tracing and compiling.
        host_seconds: of the simulator, in all.
        asynchronous: rounds overlapped (`participation.Buffered`), so no communication
            cost can be added.
        communication_included: `compute_time` includes the time of messages
            (`clocks.Devices`): none can be added.
        score_name: kind of the scores in `accuracies`: "accuracy", or "squared error" for
            linear tasks.
        smaller_is_better: scores are errors; the worst clients have the largest.
        server_state: at the end of the run, NumPy arrays, for `srp.evaluate`. After
            `load`, dicts of them, read from the folder on first access; None if not
            saved.
        client_states: states of all clients, as `server_state`, leaves (M, ...); None
            unless the run kept them.
        config: the record of the run, see `fedjax_srp.results.records`, as JSON: inf is
            "inf".
        environment: versions, commits and device, as read by `load`; None: `save`
            determines them.
        client_names: (M,) the user of each client, as text; None if clients have no
            names.
    """

    name: str
    round: np.ndarray
    stage: np.ndarray
    cohort_size: np.ndarray
    compute_time: np.ndarray
    communicated: np.ndarray
    finite: np.ndarray
    client_time: np.ndarray
    metrics: Mapping[str, np.ndarray] = field(default_factory=dict)
    eval_round: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    accuracies: Mapping[str, np.ndarray] = field(default_factory=dict)
    test_count: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    rounds_taken: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    bytes_up: int = 0
    bytes_down: int = 0
    seconds_per_round: float = math.nan
    compile_seconds: float = math.nan
    host_seconds: float = math.nan
    asynchronous: bool = False
    communication_included: bool = False
    score_name: str = "accuracy"
    smaller_is_better: bool = False
    # no class attributes, so that `__getattr__` works
    server_state: Any = field(default_factory=lambda: None)
    client_states: Any = field(default_factory=lambda: None)
    config: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] | None = None
    client_names: Sequence[str] | None = None

    def __post_init__(self) -> None:
        num_rounds = len(self.round)
        num_clients = len(self.client_time)
        eval_round = self.eval_round if self.accuracies else []
        num_evaluations = len(eval_round)
        fields = vars(self)
        fields["eval_round"] = eval_round
        for name in ("test_count", "rounds_taken"):
            if not len(fields[name]):
                fields[name] = np.zeros(num_clients)
        arrays = {name: (dtype, num_rounds) for name, dtype in ROUND_COLUMNS.items()}
        arrays["client_time"] = np.float64, num_clients
        arrays["eval_round"] = np.int64, num_evaluations
        arrays["test_count"] = np.int64, num_clients
        arrays["rounds_taken"] = np.int64, num_clients
        for name, (dtype, length) in arrays.items():
            fields[name] = _read_only(name, fields[name], dtype, length)
        metrics = _all_read_only("metrics", self.metrics, num_rounds)
        fields["metrics"] = Metrics(metrics)
        fields["accuracies"] = _all_read_only(
            "accuracies", self.accuracies, num_evaluations, num_clients
        )
        if self.client_names is not None:
            fields["client_names"] = _check_names(self.client_names, num_clients)
        fields["config"] = jsonable(self.config)
        if not has_structure(self.config, records.STRUCTURE):
            raise ValueError(
                f"config={short(self.config)}: one of its settings has another type than in the "
                "record of simulate; leave it out, or give it another name"
            )
        if not np.array_equal(self.round, np.arange(1, num_rounds + 1)):
            raise ValueError(
                f"round must count the completed rounds 1..{num_rounds}, got {self.round}"
            )
        if (np.diff(self.eval_round, prepend=-1, append=num_rounds + 1) <= 0).any():
            raise ValueError(
                f"eval_round must increase within 0..{num_rounds}, got {self.eval_round}"
            )
        check_metric_names("metrics", self.metrics, self.accuracies)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Read the states on first access after `load`."""
            if name not in run_folder.STATES or run_folder.MODELS not in vars(self):
                raise AttributeError(
                    f"History has no attribute {name!r}", name=name, obj=self
                )
            vars(self).update(run_folder.load_models(vars(self)[run_folder.MODELS]))
            return vars(self)[name]

    def __repr__(self) -> str:
        size = (
            f"{self.num_rounds} rounds, {self.num_clients} clients, "
            f"{len(self.eval_round)} evaluations"
        )
        if len(self.eval_round):
            score = f"{self.evaluation} {self.score_name} {self.final_accuracy:.4g}"
            size += f", final {printable(score)}"
        return f"History({self.name!r}: {size})"

    @property
    def num_rounds(self) -> int:
        """Number of completed rounds."""
        return len(self.round)

    @property
    def num_clients(self) -> int:
        """Number of clients of the federation."""
        return len(self.client_time)

    @property
    def evaluation(self) -> str | None:
        """Name of the default evaluation, None without evaluations."""
        return next(iter(self.accuracies), None)

    @property
    def judged_on(self) -> Literal["test", "validation"]:
        """Data of the scores: the clients' test data, or held-out training data (`srp.data.holdout`)."""
        data = self.config.get("data")
        options = data.get("options") if isinstance(data, Mapping) else None
        # data made from other data record those as `data`
        while isinstance(options, Mapping):
            is_holdout = "fraction" in options and "part" not in options
            if is_holdout or options.get("validation") is not None:
                return "validation"
            options = options.get("data")
        return "test"

    def judged_by(self, evaluation: str) -> History:
        """Return the same run with one of its evaluations as the default one."""
        check_choice("evaluation", evaluation, self.accuracies)
        judged = copy.copy(self)  # without reading the states
        accuracies = {evaluation: self.accuracies[evaluation], **self.accuracies}
        vars(judged)["accuracies"] = accuracies
        return judged

    @property
    def final_accuracy(self) -> float:
        """Mean accuracy at the last default evaluation; nan without evaluations."""
        return measures.last(self.mean_accuracy)

    @property
    def diverged(self) -> int | None:
        """The first round (from 1) after which the server's state was not finite.

        None when there is none.
        """
        index = measures.first(~self.finite)
        return None if index is None else int(self.round[index])

    @property
    def takes_communication(self) -> bool:
        """True if a communication cost can be added to the times."""
        return not (self.asynchronous or self.communication_included)

    @property
    def method(self) -> Method:
        """Method of this run, rebuilt from its record.

        ValueError if it has functions of your own.
        """
        record = self.config.get("method")
        if record is None:
            raise ValueError(
                f"history {self.name!r} has no record of its method; simulate writes one"
            )
        return Method(
            record.get("name", self.name),
            rebuild(record.get("algorithm")),
            rebuild(record.get("participation")),
        )

    def elapsed(self, communication: float = 0.0) -> np.ndarray:
        """(R,) simulated time at the end of each round, in time units, at a cost per communicating round."""
        remedy = "give a cost in time units, e.g. 10.0"
        check_numbers("communication", communication, remedy, max_ndim=0)
        if communication and not self.takes_communication:
            reason = (
                f"times of {self.name!r} include its messages; leave it out, or choose a "
                "clock without links"
            )
            if self.asynchronous:
                reason = (
                    f"rounds of {self.name!r} overlap, so a cost changes who arrives "
                    "when; give it to the clock"
                )
            raise ValueError(f"communication={communication:g}: {reason}")
        return np.cumsum(self.compute_time + communication * self.communicated)

    def eval_elapsed(self, communication: float = 0.0) -> np.ndarray:
        """(E,) simulated time at each evaluation, in time units."""
        return np.concatenate([[0.0], self.elapsed(communication)])[self.eval_round]

    def scores(self, evaluation: str | None = None) -> np.ndarray:
        """(E, M) score of each client in the evaluation of that name, the default one when None."""
        name = self.evaluation if evaluation is None else evaluation
        if name is None:
            return np.empty((0, self.num_clients))
        more = "; a run with evaluations='all' records every one"
        check_known(
            "evaluation", [name], self.accuracies, more, of=f"this run of {self.name!r}"
        )
        return self.accuracies[name]

    def mean_scores(self, evaluation: str | None = None) -> np.ndarray:
        """(E,) mean over clients weighted by test points.

        Nan as soon as a client with test points scores nan.
        """
        return measures.weighted_mean(self.scores(evaluation), self.test_count)

    def worst_scores(self, evaluation: str | None = None) -> np.ndarray:
        """(E,) plain mean over the worst tenth of the clients with test points, rounded down, at least one."""
        return measures.worst_tenth(
            self.scores(evaluation), self.test_count, self.smaller_is_better
        )

    def slowest_scores(self, evaluation: str | None = None) -> np.ndarray:
        """(E,) mean over the floor(M/10) clients, at least one, with the longest expected times, by test points."""
        return self.group_scores("slowest_tenth", evaluation)

    @checked
    def group_scores(self, of: Of = "mean", evaluation: str | None = None) -> np.ndarray:
        """Return the (E,) mean scores of a group of clients.

        Args:
            of: "mean" of all clients, "worst_tenth" (`worst_scores`), or, by expected speed, "slowest_tenth",
                "fastest_quarter", "second_quarter", "third_quarter", "slowest_quarter".
            evaluation: name of the evaluation, the default one when None.
        """
        if of == "mean":
            return self.mean_scores(evaluation)
        if of == "worst_tenth":
            return self.worst_scores(evaluation)
        clients = measures.by_speed(self.client_time)[of]
        scores = self.scores(evaluation)[:, clients]
        return measures.weighted_mean(scores, self.test_count[clients])

    @checked
    def group_size(self, of: Of = "mean") -> int:
        """Return the number of clients with test points in a group of `group_scores`."""
        is_tested = self.test_count > 0
        if of == "worst_tenth":
            num_tested = int(is_tested.sum())
            return min(measures.tenth(num_tested), num_tested)
        if of != "mean":
            is_tested = is_tested[measures.by_speed(self.client_time)[of]]
        return is_tested.sum().item()

    accuracy = property(scores, doc="(E, M) scores of the default evaluation.")
    mean_accuracy = property(
        mean_scores,
        doc="(E,) mean over clients of the default evaluation, by test points.",
    )
    worst_decile = property(
        worst_scores,
        doc="(E,) mean of the worst tenth of the clients in the default evaluation.",
    )

    @checked
    def time_to(
        self,
        target: float,
        communication: float = 0.0,
        evaluation: str | None = None,
        metric: str | None = None,
        of: Of = "mean",
    ) -> Reached:
        """Return the simulated time at which a target is reached for the first time.

        Args:
            target: mean score of the evaluation; reached from below, or from above where
                `smaller_is_better`.
            communication: cost per communicating round, in time units.
            evaluation: name of the evaluation, the default one when None.
            metric: instead of an evaluation, a per-round metric that falls to the target
                (linear tasks: "distance").
            of: group of clients whose mean score is to reach the target, see
                `group_scores`.

        Returns:
            Time units, at the end of a round, without interpolation; inf if the target
            was not reached. nan does not reach a target. If the first evaluation reached
            it, the time is an upper bound: `is_bound` is True, the text begins with "≤",
            and a warning says so.
        """
        if metric is None:
            index = self.reached(target, evaluation, of)
            time = _until(index, self.eval_elapsed(communication))
            return self._warned("time_to", target, time)
        check_known("metric", [metric], self.metrics, of=f"this run of {self.name!r}")
        index = measures.first(self.metrics[metric] <= target)
        times = self.elapsed(communication)
        return Reached(math.inf if index is None else times[index])

    def reached(
        self, target: float, evaluation: str | None = None, of: Of = "mean"
    ) -> int | None:
        """Return the index of the first evaluation whose mean score reaches the target.

        None if there is none. With index 0, times and bytes until then are upper bounds.
        """
        if self.score_name == "accuracy" and not target <= 1:
            raise ValueError(
                f"target={target}: no accuracy can reach it; give 0.9 for 90 %"
            )
        scores = self.group_scores(of, evaluation)
        if self.smaller_is_better:
            return measures.first(scores <= target)
        return measures.first(scores >= target)

    def _warned(self, method: str, target: float, value: Reached) -> Reached:
        """Warn the caller of a method if its result is an upper bound."""
        if value.is_bound:
            warnings.warn(
                f"{method}({target:g}) of {self.name!r} is an upper bound: its first evaluation, after round "
                f"{self.eval_round[0]}, has reached the target; evaluate earlier rounds, e.g. with eval_first=20",
                stacklevel=4,
            )
        return value

    def score_at(
        self, time: float, communication: float = 0.0, evaluation: str | None = None
    ) -> float:
        """Return the mean score at a simulated time, to compare methods at equal time.

        Arguments as in `time_to`.

        It is the score of the last evaluation up to that time; nan before the first one
        and after the end of the run.
        """
        remedy = "give a simulated time in time units, e.g. 200.0"
        check_numbers("time", time, remedy, max_ndim=0)
        scores = self.mean_scores(evaluation)
        num_past = int((self.eval_elapsed(communication) <= time).sum())
        if not num_past or time > self._end(communication):
            return math.nan
        return float(scores[num_past - 1])

    def _end(self, communication: float) -> float:
        """Simulated time at the end of the run."""
        return float(self.elapsed(communication)[-1]) if self.num_rounds else 0.0

    def speed_quartiles(self, evaluation: str | None = None) -> np.ndarray:
        """(4,) mean accuracy at the last evaluation of each quarter of the clients, the fastest quarter first."""
        quarters = [self.group_scores(of, evaluation) for of in measures.QUARTERS]
        return np.array([measures.last(scores) for scores in quarters])

    @property
    def participation(self) -> measures.Participation:
        """Measures of how evenly rounds are spread over the clients."""
        is_counted = self.rounds_taken.any() or not self.cohort_size.any()
        if not is_counted:
            return measures.Participation(math.nan, math.nan)
        return measures.participation(self.rounds_taken)

    @property
    def _messages(self) -> np.ndarray:
        """(R,) number of messages to the server, with parts of a message for submodels."""
        whole = self.cohort_size * self.communicated
        share = self.metrics.get(MESSAGE_SHARE, 1)
        return whole * np.where(whole > 0, share, 0)  # the mean over no client is nan

    def eval_bytes(self) -> np.ndarray:
        """(E,) bytes that all participants have sent and received until each evaluation."""
        sent = np.rint(np.cumsum(self._messages) * float(self.bytes_up + self.bytes_down))
        return np.concatenate([[0.0], sent])[self.eval_round]

    @checked
    def bytes_to(
        self, target: float, evaluation: str | None = None, of: Of = "mean"
    ) -> Reached:
        """Return the bytes that all participants sent and received until the target was reached.

        Inf if it was not. Arguments, and marks of upper bounds, as in `time_to`.
        """
        index = self.reached(target, evaluation, of)
        return self._warned("bytes_to", target, _until(index, self.eval_bytes()))

    def stages(self, communication: float = 0.0) -> list[Stage]:
        """Return the stages of the participation policy with their cohorts, times and criteria."""
        return stages_of(
            self.stage,
            self.cohort_size,
            self.elapsed(communication),
            self.metrics.get(STAGE_COMPLETED),
        )

    def to_frame(self, communication: float = 0.0) -> pd.DataFrame:
        """Return a pandas table with one row per round.

        Mean accuracies are in columns `accuracy_<evaluation>`, nan at rounds without
        evaluation. An evaluation before training (round 0) is only in `clients_frame`.
        """
        return run_folder.rounds_frame(self, communication)

    def clients_frame(self) -> pd.DataFrame:
        """Return a pandas table with one row per evaluation, round and client.

        `rounds_taken_in_all` counts the rounds of the whole run, on every row. Clients
        with names have a column `client_name`.

        Without evaluations it has one row per client, with an empty `evaluation`, round 0
        and accuracy nan.
        """
        return run_folder.clients_frame(self)

    def summary(
        self, target: float | None = None, communication: float = 0.0
    ) -> dict[str, Any]:
        """Return a summary of the run as a dict.

        Values that were not requested or not evaluated are None; `time_to_target` is inf
        if the target was not reached. `reached_at_once` is True if the first evaluation
        reached it, so that times and bytes are upper bounds.

        Args:
            target: mean accuracy of the default evaluation, for `time_to_target` and
                `bytes_to_target`.
            communication: cost per communicating round, in time units, for
                `simulated_time` and `time_to_target`.
        """
        sent = self._messages.sum().item()
        summary: dict[str, Any] = {
            "name": self.name,
            "evaluation": self.evaluation,
            "judged_on": self.judged_on,
            "score": self.score_name,
            "final_accuracy": None,
            "worst_decile": None,
            "final_accuracies": dict.fromkeys(self.accuracies),
            "slowest_tenth": None,
            "speed_quartiles": None,
            "participation": self.participation._asdict(),
            "final_metrics": {k: measures.last(v) for k, v in self.metrics.items()},
            "target": target,
            "communication": communication,
            "time_to_target": None,
            "bytes_to_target": None,
            "reached_at_once": None,
            "simulated_time": self._end(communication),
            "stages": [stage._asdict() for stage in self.stages(communication)],
            "num_evaluations": len(self.eval_round),
            "total_bytes_up": round(self.bytes_up * sent),
            "total_bytes_down": round(self.bytes_down * sent),
            "num_rounds": self.num_rounds,
            "num_clients": self.num_clients,
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "diverged": self.diverged,
        }
        for name in run_folder.SECONDS:
            summary[name] = getattr(self, name)
        if len(self.eval_round):
            summary["final_accuracy"] = self.final_accuracy
            summary["worst_decile"] = measures.last(self.worst_decile)
            summary["slowest_tenth"] = measures.last(self.slowest_scores())
            summary["speed_quartiles"] = self.speed_quartiles().tolist()
            for name in self.accuracies:
                final = measures.last(self.mean_scores(name))
                summary["final_accuracies"][name] = final
        if target is not None:
            index = self.reached(target)
            times = self.eval_elapsed(communication)
            summary["reached_at_once"] = index == 0
            summary["time_to_target"] = _until(index, times)
            summary["bytes_to_target"] = _until(index, self.eval_bytes())
        return summary

    def plot(
        self,
        communication: float = 0.0,
        evaluation: str | None = None,
        ax: Axes | None = None,
        x: X = "time",
    ) -> Figure:
        """Draw mean accuracy over simulated time or rounds, or the first metric if there are no evaluations.

        `srp.plots` draws several runs in one figure.

        Args:
            communication: cost per communicating round, in time units.
            evaluation: name of the evaluation; None takes the default one.
            ax: axes to draw in; None makes a figure.
            x: "time" for simulated time, "rounds" for completed rounds.

        Raises:
            ValueError: there is nothing to draw, or the run lacks the evaluation.
        """
        return figure.draw(self, communication, evaluation, ax, x)

    @checked
    def save(
        self,
        directory: str | os.PathLike,
        target: float | None = None,
        communication: float = 0.0,
        models: bool = False,
        overwrite: bool = False,
    ) -> Path:
        """Write the folder of the run and return its path.

        The files are `config.json` (with versions, commits and device), `history.csv`
        (one row per round, times without communication), `clients.csv`, `accuracy.png`
        (`plot()`, if there is anything to draw) and, last, `summary.json` with the
        checksums of the tables: a folder with a summary is complete. A save that fails,
        or is killed, leaves the earlier result or the new one. The JSON is strict: a
        number that is not finite is the string "inf", "-inf" or "nan"; values that were
        not requested or not evaluated are null.

        Args:
            directory: created if missing; the result of the same run, shorter or longer,
                is replaced.
            target: mean accuracy, for the summary.
            communication: cost per communicating round, for the summary and the figure.
            models: also write `server_state` and `client_states`, if present, into a
                folder `models`.
            overwrite: replace the result of another run, too.

        Raises:
            ValueError: the directory cannot be written to, is in use by another process
                or thread, holds another run, or has tables or models that were not
                written by `save`.
            OSError: the disk is full or has failed; the earlier result is intact.
        """
        if models and self.server_state is None:
            raise ValueError(
                "models=True: this history has no server_state; simulate again, or load "
                "a run saved with it"
            )
        # refuses wrong values, before the folder is created
        self.summary(target, communication)
        folder = Path(directory)
        with held(folder, "directory", alone=True):
            name = run_folder.foreign(folder)
            if name:
                raise ValueError(
                    f"directory={str(folder)!r}: its {name} was not written by "
                    "fedjax_srp; give another one"
                )
            difference = "" if overwrite else run_folder.difference(self, folder)
            if difference:
                raise ValueError(
                    f"directory={str(folder)!r}: holds another run, with {difference}; "
                    "give another directory, or overwrite=True"
                )
            return run_folder.write(self, folder, target, communication, models)

    @classmethod
    @checked
    def load(cls, directory: str | os.PathLike) -> History:
        """Read a saved run; floats are restored bit for bit.

        Raises:
            FileNotFoundError: a file of the run is missing.
            ValueError: a file is damaged.
        """
        fields, models = run_folder.load(Path(directory))
        try:
            history = cls(**fields)
        except MALFORMED as error:
            reason = " ".join(str(error).split())
            raise DamagedError(
                f"{str(directory)!r} is damaged ({reason}): run it again, or give a copy"
            ) from None
        if models is not None:  # `__getattr__` reads them
            for name in run_folder.STATES:
                del vars(history)[name]
            vars(history)[run_folder.MODELS] = models
        return history


def _until(index: int | None, values: np.ndarray) -> Reached:
    """Return the value at the evaluation that reached a target; inf if none did."""
    if index is None:
        return Reached(math.inf)
    return Reached(values[index], is_bound=index == 0 and math.isfinite(values[0]))


def _read_only(name: str, value: Any, dtype: type, *shape: int) -> np.ndarray:
    array = np.array(value, dtype)
    array.setflags(write=False)
    if array.shape != shape:
        raise ValueError(
            f"{name} has shape {array.shape}, it needs {shape}: every array of a history "
            "is complete"
        )
    return array


def _all_read_only(
    field_name: str, arrays: Mapping[str, Any], *shape: int
) -> dict[str, np.ndarray]:
    by_name = {}
    for name, array in arrays.items():
        title = f"{field_name}[{name!r}]"
        by_name[name] = _read_only(title, array, np.float64, *shape)
    return by_name


def _check_names(client_names: Sequence[str], num_clients: int) -> tuple[str, ...]:
    """Return the names as a tuple; tables cannot hold lone surrogates, which become "?"."""
    is_text = all(isinstance(name, str) for name in client_names)
    if len(client_names) != num_clients or not is_text:
        raise ValueError(
            f"client_names={short(client_names)}: give a text for each of {num_clients} "
            "clients"
        )
    return tuple(name.encode(errors="replace").decode() for name in client_names)
