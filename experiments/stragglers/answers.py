"""Every answer to stragglers on one clock: what it costs and what it gives, with and without a personal part.

    python experiments/stragglers/answers.py [--scale smoke|cpu|full] [--results experiments/stragglers/results]

Answers that pick some clients are branches of one policy, so that all of them, and all clocks, numbers of classes and
seeds, run as one program for each personalization: a `vmap` of `srp.Simulation`. Clocks draw T_i once per client, of
mean 1: Exp(1), uniform on [0.18, 1.82] (FLANP's [50, 500]), log-normal with sigma 1. With `--traces` there are phones
too: `clocks.Devices` with measured speeds and networks, whose seconds follow from operations and bytes. A cost C is
added to every round afterwards, and to every job of FedBuff. Programs that are finished stand in `--out` and do not
run again; the table is written after each.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

import fedjax_srp as srp
from fedjax_srp import algorithms, participation
from fedjax_srp.models.split import SplitModel
from fedjax_srp.parts import Leaf

EPOCHS = 4  # of a client in a round that waits for all of its work
COSTS = (0.0, 1.0, 10.0)  # mean times of a client
QUANTILES = 512
MODEL = 1000  # how many times as large the model is that phones train


class Scale(NamedTuple):
    """How large, and how long."""

    federation: dict[str, Any]
    hidden: tuple[int, ...]
    step: float
    classes: tuple[int, ...]
    seeds: int
    k: int  # clients of a round, where some are chosen
    initial: int  # of doubling
    rounds_per_stage: int
    rounds: tuple[int, int, int]  # with everybody, doubling, with k clients
    eval_every: int  # rounds; more where some clients are chosen


SCALES = {
    "smoke": Scale({"name": "digits", "num_clients": 12}, (8,), 0.1, (2, 5), 2, 3, 3, 1, (2, 4, 4), 2),
    "cpu": Scale({"name": "digits", "num_clients": 50}, (32,), 0.05, (2, 5), 3, 10, 5, 8, (30, 44, 100), 2),
    "full": Scale(
        {"name": "mnist", "num_clients": 100, "max_examples": 150}, (512, 256, 64), 0.01, (2, 5, 10), 3, 20, 10, 10,
        (100, 150, 400), 5,
    ),
}  # fmt: skip


class Group(NamedTuple):
    """Answers that run as one program."""

    algorithm: srp.FederatedAlgorithm
    policy: srp.ParticipationPolicy
    rounds: int
    eval_every: int
    evaluations: tuple[str, ...]
    answers: tuple[str, ...]  # branches of the policy
    work: float = 1.0  # time of a unit of work, in times of a round


@srp.part
class Mixed(srp.ParticipationPolicy):
    """One of several policies, told by a number that may differ between the runs of a batch.

    Args:
        policies: the branches.
        which: place of the one that picks.
    """

    policies: tuple[srp.ParticipationPolicy, ...]
    which: Leaf[Any] = 0

    @property
    def needs(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whatever a branch needs."""
        return tuple(sorted({need for policy in self.policies for need in policy.needs}))

    def init(self, key: srp.Key, num_clients: int) -> tuple[Any, ...]:
        """All branches begin."""
        return tuple(policy.init(key, num_clients) for policy in self.policies)

    def select(
        self, key: srp.Key, state: tuple[Any, ...], times: srp.ClientTimes
    ) -> tuple[srp.Cohort, tuple[Any, ...]]:
        """The cohort of one branch."""
        num_clients = times.realised.shape[0]
        picked = [policy.select(key, of, times) for policy, of in zip(self.policies, state, strict=True)]
        cohorts = [self._padded(cohort, num_clients, times) for cohort, _ in picked]
        chosen = jax.tree.map(lambda *leaves: jnp.stack(leaves)[self.which], *cohorts)
        return chosen, tuple(new for _, new in picked)

    def _padded(self, cohort: srp.Cohort, num_clients: int, times: srp.ClientTimes) -> srp.Cohort:
        """With room for everybody, and its duration."""
        place = jnp.arange(cohort.client_ids.shape[0], dtype=jnp.int32)
        longest = jnp.max(jnp.where(place < cohort.size, times.realised[cohort.client_ids], 0.0))
        more = (0, num_clients - place.shape[0])
        ids, work = jnp.pad(cohort.client_ids, more), jnp.pad(cohort.work, more, constant_values=1)
        duration = longest if cohort.duration is None else cohort.duration
        asked = cohort.size if cohort.asked is None else cohort.asked
        return cohort._replace(client_ids=ids, work=work, duration=duration, asked=asked)

    def update(self, state: tuple[Any, ...], info: srp.RoundInfo) -> tuple[Any, ...]:
        """All branches hear of the round; only one matters."""
        return tuple(policy.update(of, info) for policy, of in zip(self.policies, state, strict=True))


def drawn_clocks() -> dict[str, np.ndarray]:
    """Quantiles of T_i, of mean 1."""
    u = (np.arange(QUANTILES) + 0.5) / QUANTILES
    normal = np.asarray(jax.scipy.stats.norm.ppf(u))
    found = {"exponential": -np.log1p(-u), "uniform": 0.18 + 1.64 * u, "lognormal": np.exp(normal)}
    return {name: values / values.mean() for name, values in found.items()}


# ---- the axes -----------------------------------------------------------------------------------------------------
def personalizations(model: SplitModel, step: float, epochs: int) -> dict[str, Any]:
    """Algorithm and its evaluations, the first one its own judge."""
    training = srp.Training(srp.SGD(step), epochs=epochs)
    lg = model.recut(f"fc{len(model.hidden)}")  # type: ignore[attr-defined]
    return {
        "FedAvg": (algorithms.FedAvg(model, training), ("global", "fine_tune")),
        "FedRep": (
            algorithms.FedRep(model, srp.Training(srp.SGD(step)), head_epochs=2 * epochs, representation_epochs=epochs),
            ("fine_tune", "own_or_mean_head"),
        ),
        "Ditto": (algorithms.Ditto(model, training), ("own_model", "fine_tune")),
        "LG": (algorithms.LGFedAvg(lg, training), ("fine_tune",)),
        "FedPer": (algorithms.FedPer(model, training), ("fine_tune", "own_or_mean_head")),
    }


def groups(scale: Scale, model: SplitModel, unit: float) -> dict[str, list[Group]]:
    """Personalization -> the programs of its answers; `unit` is a mean time, which limits of time follow."""
    k, tiers = scale.k, min(5, scale.federation["num_clients"] // scale.k)
    everybody, doubling, some = scale.rounds
    every, seldom = scale.eval_every, min(some, 5 * scale.eval_every // 2)
    chosen = {
        "uniform": participation.Uniform(k),
        "fastest": participation.Fastest(k),
        "over-selection": participation.Fastest(k, pool=-(-13 * k // 10)),
        "deadline": participation.Deadline(unit, policy=participation.Uniform(-(-15 * k // 10))),
        "TiFL": participation.Tiered(k, tiers=tiers),
        "TiFL, by loss": participation.Tiered(k, tiers=tiers, by="loss"),
        "Oort": participation.Oort(k, step=unit),
        "power of choice": participation.PowerOfChoice(k, candidates=2 * k),
    }
    whole, parts = (personalizations(model, scale.step, epochs) for epochs in (EPOCHS, 1))
    partial, share = participation.PartialWork(EPOCHS), 1 / EPOCHS
    found: dict[str, list[Group]] = {}
    for name, (algorithm, judged) in whole.items():
        doubled = participation.Doubling(scale.initial, scale.rounds_per_stage)
        found[name] = [
            Group(algorithm, participation.Full(), everybody, every, judged, ("full",)),
            Group(algorithm, doubled, doubling, every, judged, ("doubling",)),
            Group(algorithm, Mixed(tuple(chosen.values())), some, seldom, judged, tuple(chosen)),
            Group(parts[name][0], partial, everybody, every, judged, ("partial work",), share),
        ]
    training, judged = parts["FedAvg"][0].training, ("global", "fine_tune")
    prox = algorithms.FedProx(model, training, mu=0.1)
    buffered = algorithms.FedBuff(model, whole["FedAvg"][0].training)
    tiered = algorithms.FedAT(model, whole["FedAvg"][0].training, num_tiers=tiers)
    narrow = algorithms.HeteroFL(model, whole["FedAvg"][0].training, rates=(0.25, 0.5, 0.75, 1.0))  # of 1 to 4 units
    found["FedAvg"] += [
        Group(prox, partial, everybody, every, judged, ("FedProx, partial work",), share),
        Group(buffered, participation.Buffered(k), some, seldom, judged, ("FedBuff",)),
        Group(buffered, participation.Buffered(k, concurrency=k), some, seldom, judged, ("FedBuff, k at work",)),
        Group(tiered, participation.AsynchronousTiers(k, tiers), some, seldom, judged, ("FedAT",)),
        Group(narrow, partial, everybody, every, judged, ("HeteroFL, partial work",), share),
    ]
    return found


# ---- one program --------------------------------------------------------------------------------------------------
def run_group(
    group: Group,
    which: Sequence[int],
    data: Sequence[Any],
    clocks: Sequence[srp.Clock],
    keys: jax.Array,
) -> dict[str, np.ndarray]:
    """Runs a batch of branches, federations, clocks and keys, of equal length; arrays with that axis in front."""

    def one(which: jax.Array, data: Any, clock: srp.Clock, key: jax.Array) -> dict[str, jax.Array]:
        policy = group.policy
        if isinstance(policy, Mixed):
            policy = dataclasses.replace(policy, which=which)
        simulation = srp.Simulation(group.algorithm, data, policy, clock)
        start = simulation.init(key)

        def segment(state: Any, _: None) -> tuple[Any, Any]:
            state, info = jax.lax.scan(lambda state, _: simulation.step(state), state, length=group.eval_every)
            wasted = info.metrics.get("wasted_time", jnp.zeros(group.eval_every))
            scores = {f"scores/{name}": simulation.score(state, name) for name in group.evaluations}
            return state, {"time": info.compute_time, "size": info.cohort_size, "wasted": wasted} | scores

        end, found = jax.lax.scan(segment, start, length=group.rounds // group.eval_every)
        flat = {name: found[name].reshape(-1) for name in ("time", "size", "wasted")}
        times = start.clock.unit + start.clock.once if hasattr(start.clock, "unit") else start.clock.times
        times = times if times.ndim == 1 else times[:, 0]  # of a unit: HeteroFL's narrowest model
        return found | flat | {"client_time": times, "rounds_taken": end.rounds_taken}

    def stack(*leaves: Any) -> jax.Array:
        return jnp.stack([jnp.asarray(leaf) for leaf in leaves])

    alike = jax.tree.map(lambda *leaves: all(leaf is leaves[0] for leaf in leaves), *data)
    of_data = jax.tree.map(lambda same, *leaves: leaves[0] if same else stack(*leaves), alike, *data)
    axes = jax.tree.map(lambda same: None if same else 0, alike)
    together = jax.vmap(one, (0, axes, 0, 0))
    found = jax.jit(together)(jnp.asarray(which, jnp.int32), of_data, jax.tree.map(stack, *clocks), keys)
    return {name: np.asarray(value) for name, value in found.items()}


def phones(folder: Path, num_clients: int, seed: int) -> srp.clocks.Devices:
    """Phones with AI-Benchmark's float scores and measured networks, drawn for the clients.

    The median phone does 2e9 operations a second. All speeds are divided by `MODEL`: the small models here stand for
    some that have so many times as many operations and parameters.
    """
    devices = srp.clocks.read_devices(folder / "trace_flash_ai_benchmark_phones.csv", compute="CPU_F_AI_Score")
    links = srp.clocks.read_devices(folder / "trace_flash_network_speed.csv", downlink="down_mean", uplink="up_mean")
    links = links.assign(num_clients, seed)
    compute = 2e9 / np.median(devices.compute) * devices.assign(num_clients, seed).compute
    return srp.clocks.Devices(compute / MODEL, 1024 * links.downlink / MODEL, 1024 * links.uplink / MODEL)


def mean_time(algorithm: srp.FederatedAlgorithm, data: Any, clock: srp.Clock) -> float:
    """Mean seconds of a client in a round."""
    simulation = srp.Simulation(algorithm, data, participation.Full(), clock)
    devices = jax.jit(simulation.init)(jax.random.key(0)).clock
    return float(jnp.mean(devices.unit + devices.once))


def shared(data: Sequence[Any]) -> list[Any]:
    """Federations of the same examples, with indices of equal length, so that they stack."""
    length = max(each.train_indices.shape[1] for each in data), max(each.test_indices.shape[1] for each in data)

    def padded(indices: jax.Array, length: int) -> jax.Array:
        return jnp.pad(indices, ((0, 0), (0, length - indices.shape[1])))

    arrays = {name: getattr(data[0], name) for name in ("x_train", "y_train", "x_test", "y_test", "scale", "offset")}
    return [
        dataclasses.replace(
            each,
            **arrays,
            train_indices=padded(each.train_indices, length[0]),
            test_indices=padded(each.test_indices, length[1]),
        )
        for each in data
    ]


class Point(NamedTuple):
    """One run of a batch."""

    answer: str
    classes: int
    clock: str
    cost: float  # of a round, in the clock; what is added afterwards is 0 here
    seed: int


def points(group: Group, scale: Scale, clocks: Sequence[str]) -> list[Point]:
    """The batch of a group; rounds that overlap have their cost in the clock."""
    costs = COSTS if group.policy.asynchronous and "phones" not in clocks else (0.0,)
    return [Point(*at) for at in itertools.product(group.answers, scale.classes, clocks, costs, range(scale.seeds))]


def finished(folder: Path, name: str, run: Callable[[], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The arrays of a cell, run the first time."""
    path = folder / f"{name.replace(' ', '_')}.npz"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        begin = time.perf_counter()
        arrays = run()
        part = path.with_suffix(".part")
        with part.open("wb") as file:
            np.savez_compressed(file, **arrays)
        part.replace(path)
        print(f"{name}: {time.perf_counter() - begin:.0f} s", flush=True)
    with np.load(path, allow_pickle=False) as found:
        return dict(found)


def history_of(arrays: dict[str, np.ndarray], place: int, judge: str, data: Any, overlaps: bool) -> srp.History:
    """One run of a batch as a `History`, judged by one evaluation."""
    one = {name: values[place] for name, values in arrays.items()}
    rounds, scores = len(one["time"]), one[f"scores/{judge}"]
    return srp.History(
        name=judge,
        round=np.arange(1, rounds + 1),
        stage=np.zeros(rounds),
        cohort_size=one["size"],
        compute_time=one["time"],
        communicated=np.ones(rounds, bool),
        finite=np.ones(rounds, bool),
        client_time=one["client_time"],
        metrics={"wasted_time": one["wasted"]},
        eval_round=rounds // len(scores) * np.arange(1, len(scores) + 1),
        accuracies={judge: scores},
        test_count=np.asarray(data.test_counts),
        rounds_taken=one["rounds_taken"],
        asynchronous=overlaps,
    )


def row(history: srp.History, cost: float, target: float, horizon: float) -> dict[str, Any]:
    """A run in numbers."""
    return {
        "final": history.final_accuracy,
        "at_horizon": _held(history, horizon, cost),
        "slowest_tenth": history.slowest_scores()[-1],
        "worst_tenth": history.worst_decile[-1],
        "target": target,
        "time": history.time_to(target, cost),
        "end": history.elapsed(cost)[-1],
        "gini": history.participation.gini,
        "never": history.participation.never,
        "wasted": history.metrics["wasted_time"].sum() / (history.compute_time.sum() * history.cohort_size.mean()),
    }


def _held(history: srp.History, time: float, cost: float) -> float:
    """The mean accuracy at a time, the last one where a run ended before; nan before the first."""
    past = int((history.eval_elapsed(cost) <= time).sum())
    return float(history.mean_accuracy[past - 1]) if past else math.nan


def table(runs: Sequence[tuple[str, list[Point], dict[str, np.ndarray]]], data: dict[int, Any]) -> pd.DataFrame:
    """A row a run, cost and judge. The target is 95 % of what waiting for everybody ends at, in the mean over seeds;
    the horizon is the time that it takes.
    """
    waits: dict[tuple[str, str, int, str], list[srp.History]] = {}
    rows = []
    for name, batch, arrays in runs:
        judges = [key.removeprefix("scores/") for key in arrays if key.startswith("scores/")]
        for judge, (place, point) in itertools.product(judges, enumerate(batch)):
            own = history_of(arrays, place, judge, data[point.classes], point.answer.startswith(("FedBuff", "FedAT")))
            setting = name, judge, point.classes, point.clock
            if point.answer == "full":  # comes first
                waits.setdefault(setting, []).append(own)
            rows.append((setting, point, own))
    found = []
    for setting, point, own in rows:
        others = waits[setting]
        target = round(0.95 * float(np.mean([other.final_accuracy for other in others])), 3)
        for cost in (point.cost,) if own.asynchronous else COSTS if point.clock != "phones" else (0.0,):
            horizon = float(np.mean([other.elapsed(cost)[-1] for other in others]))
            columns = dict(zip(("personalization", "judge", "classes", "clock"), setting, strict=True))
            numbers = row(own, 0.0 if own.asynchronous else cost, target, horizon)
            found.append(
                {"answer": point.answer} | columns | {"cost": cost, "seed": point.seed, "horizon": horizon} | numbers
            )
    return pd.DataFrame(found)


def study(
    scale: Scale, out: Path, results: Path, traces: Path | None, data_dir: Path | None, only: Sequence[str]
) -> pd.DataFrame:
    """Runs what is not finished, and writes the table after each program."""
    federation: dict[str, Any] = scale.federation | ({} if data_dir is None else {"data_dir": data_dir})
    loaded = shared([srp.data.load(**federation, classes_per_client=classes) for classes in scale.classes])
    data = dict(zip(scale.classes, loaded, strict=True))
    model = srp.models.MLP(loaded[0].example_shape, loaded[0].num_classes, hidden=scale.hidden)
    quantiles: dict[str, np.ndarray] = drawn_clocks()
    runs: list[tuple[str, list[Point], dict[str, np.ndarray]]] = []

    def add(name: str, group: Group, batch: list[Point], clock_of: Callable[[Point], srp.Clock], kind: str) -> None:
        def run() -> dict[str, np.ndarray]:
            which = [group.answers.index(point.answer) for point in batch]
            keys = jnp.stack([jax.random.key(point.seed) for point in batch])
            return run_group(group, which, [data[point.classes] for point in batch], [*map(clock_of, batch)], keys)

        runs.append((name, batch, finished(out, f"{name} {group.answers[0]}{kind}", run)))
        table(runs, data).to_csv(results / f"grid_{federation['name']}.csv", index=False, float_format="%.5g")

    for name in only:
        for group in groups(scale, model, 1.0)[name]:

            def drawn(point: Point, group: Group = group) -> srp.Clock:
                return srp.clocks.Fixed(srp.clocks.Empirical(quantiles[point.clock]), group.work, False, point.cost)

            add(name, group, points(group, scale, list(quantiles)), drawn, "")
    for name in only if traces is not None else ():
        num_clients = scale.federation["num_clients"]
        of_seed = [phones(traces, num_clients, seed) for seed in range(scale.seeds)]
        unit = mean_time(groups(scale, model, 1.0)[name][0].algorithm, loaded[0], of_seed[0])
        for group in groups(scale, model, unit)[name]:
            add(name, group, points(group, scale, ["phones"]), lambda point, of=of_seed: of[point.seed], " phones")
    return table(runs, data)


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", choices=SCALES, default="cpu")
    parser.add_argument("--personalizations", nargs="+", default=["FedAvg", "FedRep", "Ditto", "LG", "FedPer"])
    parser.add_argument("--traces", type=Path, help="folder with traces of phones and networks; none: no phones")
    parser.add_argument("--data-dir", type=Path, help="folder with prepared data sets")
    parser.add_argument("--out", type=Path, default=Path("runs/stragglers"), help="folder of the arrays")
    parser.add_argument("--results", type=Path, help="folder of the tables (default: that of the arrays)")
    args = parser.parse_args(arguments)
    out, results = args.out / args.scale, args.results or args.out / args.scale
    results.mkdir(parents=True, exist_ok=True)
    study(SCALES[args.scale], out, results, args.traces, args.data_dir, args.personalizations)


if __name__ == "__main__":
    main()
