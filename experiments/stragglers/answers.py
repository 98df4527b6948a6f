"""Comparison of methods against stragglers ("answers") on one clock, with and without a personal part.

    python experiments/stragglers/answers.py [--scale smoke|cpu|mnist|full] [--results experiments/stragglers/results]

Answers that select a subset of the clients are branches of one policy, so that all of them, with all clocks, numbers of
classes and seeds, run as one program for each personalization: a `vmap` of `srp.Simulation`. Clocks draw T_i once per
client, with mean 1: Exp(1), uniform on [0.18, 1.82] (FLANP's [50, 500]), log-normal with sigma 1. `--traces` adds
phones: `clocks.Devices` with measured speeds and networks, whose seconds follow from operations and bytes; and the same
phones, available only when idle, charging and on wifi, by recorded sessions. A cost C is added to every round
afterwards, and to every job of an asynchronous server. Results of finished programs are kept in `--out`, and the tables
are written after each program.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_srp as srp
from experiments import scripts
from experiments.stragglers import answer_rows
from experiments.stragglers.answer_rows import COSTS, PHONE_SLOWDOWN, Point
from experiments.stragglers.phone_traces import phones, sessions
from fedjax_srp import algorithms, participation
from fedjax_srp.models.split import SplitModel
from fedjax_srp.parts.part import Leaf

EPOCHS = 4  # of a client that does all of its work in a round
QUANTILES = 512
PARAMETERS = 2.41e6  # of the model whose operations and bytes phones are charged for


class Scale(NamedTuple):
    """Size and length of the runs."""

    federation: dict[str, Any]
    hidden: tuple[int, ...]
    step: float
    classes: tuple[int, ...]
    seeds: int
    k: int  # clients of a round, for answers that select a subset
    initial: int  # of doubling
    rounds_per_stage: int
    rounds: tuple[int, int, int]  # with all clients, with doubling, with k clients
    eval_every: int  # rounds; more for answers that select a subset
    clocks: tuple[str, ...] = ("exponential", "uniform", "lognormal")
    batch_size: int | None = None  # of the runs of a program; None: all


SCALES = {
    "smoke": Scale({"name": "digits", "num_clients": 12}, (8,), 0.1, (2, 5), 2, 3, 3, 1, (2, 4, 4), 2),
    "cpu": Scale({"name": "digits", "num_clients": 50}, (32,), 0.05, (2, 5), 3, 10, 5, 8, (30, 44, 100), 2),
    "mnist": Scale(
        {"name": "mnist", "num_clients": 50, "max_examples": 60}, (512, 256, 64), 0.05, (2, 5), 2, 10, 5, 6,
        (24, 36, 80), 2, ("exponential",), 1,
    ),
    "full": Scale(
        {"name": "mnist", "num_clients": 100, "max_examples": 150}, (512, 256, 64), 0.01, (2, 5, 10), 3, 20, 10, 10,
        (100, 150, 400), 5, batch_size=1,
    ),
}  # fmt: skip


class Group(NamedTuple):
    """Answers that run as one program, as branches of one policy."""

    algorithm: srp.FederatedAlgorithm
    policy: srp.ParticipationPolicy
    rounds: int
    eval_every: int
    evaluations: tuple[str, ...]
    answers: tuple[str, ...]  # branches of the policy
    work: float = 1.0  # time of a unit of work, in times of a round


@srp.part
class Mixed(srp.ParticipationPolicy):
    """One of several policies, selected by an index that may differ between the runs of a batch.

    Args:
        policies: the branches.
        which: index of the branch in use.
    """

    policies: tuple[srp.ParticipationPolicy, ...]
    which: Leaf[Any] = 0

    @property
    def needs(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Needs of all branches."""
        return tuple(sorted({need for policy in self.policies for need in policy.needs}))

    def init(self, key: srp.Key, num_clients: int) -> tuple[Any, ...]:
        """Initialise all branches."""
        return tuple(policy.init(key, num_clients) for policy in self.policies)

    def select(
        self, key: srp.Key, state: tuple[Any, ...], times: srp.ClientTimes
    ) -> tuple[srp.Cohort, tuple[Any, ...]]:
        """Select with all branches; return the cohort of one."""
        picked = [
            policy.select(key, substate, times)
            for policy, substate in zip(self.policies, state, strict=True)
        ]
        most = max(len(cohort.client_ids) for cohort, _ in picked)
        cohorts = [self._padded(cohort, most, times) for cohort, _ in picked]
        chosen = jax.tree.map(lambda *leaves: jnp.stack(leaves)[self.which], *cohorts)
        return chosen, tuple(new for _, new in picked)

    def _padded(
        self, cohort: srp.Cohort, most: int, times: srp.ClientTimes
    ) -> srp.Cohort:
        """Pad a cohort to the size of the largest branch, and set its duration."""
        place = jnp.arange(cohort.client_ids.shape[0], dtype=jnp.int32)
        longest = jnp.max(
            jnp.where(place < cohort.size, times.realised[cohort.client_ids], 0.0)
        )
        more = (0, most - place.shape[0])
        ids, work = (
            jnp.pad(cohort.client_ids, more),
            jnp.pad(cohort.work, more, constant_values=1),
        )
        duration = longest if cohort.duration is None else cohort.duration
        asked = cohort.size if cohort.asked is None else cohort.asked
        return cohort._replace(client_ids=ids, work=work, duration=duration, asked=asked)

    def update(self, state: tuple[Any, ...], info: srp.RoundInfo) -> tuple[Any, ...]:
        """Update all branches; only one matters."""
        return tuple(
            policy.update(substate, info)
            for policy, substate in zip(self.policies, state, strict=True)
        )


def drawn_clocks() -> dict[str, np.ndarray]:
    """Return quantiles of T_i, with mean 1."""
    u = (np.arange(QUANTILES) + 0.5) / QUANTILES
    normal = np.asarray(jax.scipy.stats.norm.ppf(u))
    found = {
        "exponential": -np.log1p(-u),
        "uniform": 0.18 + 1.64 * u,
        "lognormal": np.exp(normal),
    }
    return {name: values / values.mean() for name, values in found.items()}


def personalizations(model: SplitModel, step: float, epochs: int) -> dict[str, Any]:
    """Return each algorithm with its evaluations, the main one first."""
    training = srp.Training(srp.SGD(step), epochs=epochs)
    lg = model.recut(f"fc{len(model.hidden)}")  # type: ignore[attr-defined]
    return {
        "FedAvg": (algorithms.FedAvg(model, training), ("global", "fine_tune")),
        "FedRep": (
            algorithms.FedRep(
                model,
                srp.Training(srp.SGD(step)),
                head_epochs=2 * epochs,
                representation_epochs=epochs,
            ),
            ("fine_tune", "own_or_mean_head"),
        ),
        "Ditto": (algorithms.Ditto(model, training), ("own_model", "fine_tune")),
        "LG": (algorithms.LGFedAvg(lg, training), ("fine_tune",)),
        "FedPer": (algorithms.FedPer(model, training), ("fine_tune", "own_or_mean_head")),
    }


def groups(scale: Scale, model: SplitModel, unit: float) -> dict[str, list[Group]]:
    """Return the groups of each personalization; `unit` is the mean time of a client, which sets time limits."""
    k, tiers = scale.k, min(5, scale.federation["num_clients"] // scale.k)
    every, (full_rounds, doubling_rounds, subset_rounds) = scale.eval_every, scale.rounds
    full, subset = (
        (full_rounds, every),
        (subset_rounds, min(subset_rounds, 5 * every // 2)),
    )  # rounds, eval_every
    chosen = {
        "uniform": participation.Uniform(k),
        "fastest": participation.Fastest(k),
        "over-selection": participation.Fastest(k, pool=-(-13 * k // 10)),
        "deadline": participation.Deadline(
            unit, policy=participation.Uniform(-(-15 * k // 10))
        ),
        "TiFL": participation.Tiered(k, tiers=tiers),
        "TiFL, by loss": participation.Tiered(k, tiers=tiers, by="loss"),
        "Oort": participation.Oort(k, step=unit),
        "power of choice": participation.PowerOfChoice(k, candidates=2 * k),
    }
    full_work, unit_work = (
        personalizations(model, scale.step, epochs) for epochs in (EPOCHS, 1)
    )
    partial, share = participation.PartialWork(EPOCHS), 1 / EPOCHS
    found: dict[str, list[Group]] = {}
    for name, (algorithm, evaluations) in full_work.items():
        doubling = participation.Doubling(scale.initial, scale.rounds_per_stage)
        found[name] = [
            Group(algorithm, participation.Full(), *full, evaluations, ("full",)),
            Group(
                algorithm, doubling, doubling_rounds, every, evaluations, ("doubling",)
            ),
            Group(
                algorithm,
                Mixed(tuple(chosen.values())),
                *subset,
                evaluations,
                tuple(chosen),
            ),
            Group(
                unit_work[name][0], partial, *full, evaluations, ("partial work",), share
            ),
        ]
    training, evaluations = unit_work["FedAvg"][0].training, ("global", "fine_tune")
    fedprox = algorithms.FedProx(model, training, mu=0.1)
    fedbuff = algorithms.FedBuff(model, full_work["FedAvg"][0].training)
    fedat = algorithms.FedAT(model, full_work["FedAvg"][0].training, num_tiers=tiers)
    fedasync = algorithms.FedAsync(model, full_work["FedAvg"][0].training)
    rates = (0.25, 0.5, 0.75, 1.0)  # for 1 to 4 units of work
    narrow = [
        (
            f"{cls.__name__}, partial work",
            cls(model, full_work["FedAvg"][0].training, rates=rates),
        )
        for cls in (algorithms.HeteroFL, algorithms.FedRolex, algorithms.FjORD)
    ]
    memory = [
        (name, cls(model, full_work["FedAvg"][0].training))
        for name, cls in (("MIFA", algorithms.MIFA), ("FedVARP", algorithms.FedVARP))
    ]
    found["FedAvg"] += [
        Group(fedprox, partial, *full, evaluations, ("FedProx, partial work",), share),
        Group(fedbuff, participation.Buffered(k), *subset, evaluations, ("FedBuff",)),
        Group(
            fedbuff,
            participation.Buffered(k, concurrency=k),
            *subset,
            evaluations,
            ("FedBuff, k at work",),
        ),
        Group(
            fedasync,
            participation.Buffered(1),
            k * subset[0],
            k * subset[1],
            evaluations,
            ("FedAsync",),
        ),
        Group(
            fedat,
            participation.AsynchronousTiers(k, tiers),
            *subset,
            evaluations,
            ("FedAT",),
        ),
        *(
            Group(each, partial, *full, evaluations, (answer,), share)
            for answer, each in narrow
        ),
        *(
            Group(each, participation.Uniform(k), *subset, evaluations, (answer,))
            for answer, each in memory
        ),
    ]
    return found


class Cell(NamedTuple):
    """Batch of runs that are one program."""

    personalization: str
    kind: str  # "", "phones" or "phones come and go"
    group: Group
    batch: list[Point]
    clocks: list[srp.Clock]  # one for each point

    @property
    def name(self) -> str:
        """Return the name of the file of its arrays."""
        return f"{self.personalization} {self.group.answers[0]} {self.kind}".strip()


def run_group(
    group: Group,
    which: Sequence[int],
    data: Sequence[Any],
    clocks: Sequence[srp.Clock],
    keys: jax.Array,
    batch_size: int | None = None,
) -> dict[str, np.ndarray]:
    """Run a batch of branches, federations, clocks and keys, of equal length; return arrays by batch."""

    def run_one(
        which: jax.Array, data: Any, clock: srp.Clock, key: jax.Array
    ) -> dict[str, jax.Array]:
        policy = group.policy
        if isinstance(policy, Mixed):
            policy = dataclasses.replace(policy, which=which)
        simulation = srp.Simulation(group.algorithm, data, policy, clock)
        start = simulation.init(key)

        def segment(state: Any, _: None) -> tuple[Any, Any]:
            state, info = jax.lax.scan(
                lambda state, _: simulation.step(state), state, length=group.eval_every
            )
            wasted = info.metrics.get("wasted_time", jnp.zeros(group.eval_every))
            scores = {
                f"scores/{name}": simulation.score(state, name)
                for name in group.evaluations
            }
            return state, {
                "time": info.compute_time,
                "size": info.cohort_size,
                "wasted": wasted,
            } | scores

        end, found = jax.lax.scan(segment, start, length=group.rounds // group.eval_every)
        flat = {name: found[name].reshape(-1) for name in ("time", "size", "wasted")}
        clock = start.clock.clock if hasattr(start.clock, "clock") else start.clock
        times = clock.unit + clock.once if hasattr(clock, "unit") else clock.times
        times = (
            times[:, 0] if times.ndim > 1 else times
        )  # of one unit of work, if units do not add up
        return found | flat | {"client_time": times, "rounds_taken": end.rounds_taken}

    def stack(*leaves: Any) -> jax.Array:
        return jnp.stack([jnp.asarray(leaf) for leaf in leaves])

    is_shared = jax.tree.map(
        lambda *leaves: all(leaf is leaves[0] for leaf in leaves), *data
    )
    leaves = zip(jax.tree.leaves(data[0]), jax.tree.leaves(is_shared), strict=True)
    shared = [leaf for leaf, same in leaves if same]
    stacked = jax.tree.map(
        lambda same, *leaves: () if same else stack(*leaves), is_shared, *data
    )

    def run_point(shared: Any, point: Any) -> dict[str, jax.Array]:
        which, own, clock, key = point
        remaining = iter(shared)
        federation = jax.tree.map(
            lambda same, leaf: next(remaining) if same else leaf, is_shared, own
        )
        return run_one(which, federation, clock, key)

    @jax.jit
    def run_batch(shared: Any, points: Any) -> dict[str, jax.Array]:
        return jax.lax.map(
            lambda point: run_point(shared, point),
            points,
            batch_size=batch_size or len(which),
        )

    found = run_batch(
        shared,
        (jnp.asarray(which, jnp.int32), stacked, jax.tree.map(stack, *clocks), keys),
    )
    return {name: np.asarray(value) for name, value in found.items()}


def mean_time(algorithm: srp.FederatedAlgorithm, data: Any, clock: srp.Clock) -> float:
    """Return the mean seconds of a client in a round."""
    simulation = srp.Simulation(algorithm, data, participation.Full(), clock)
    devices = jax.jit(simulation.init)(jax.random.key(0)).clock
    return float(jnp.mean(devices.unit + devices.once))


def make_stackable(data: Sequence[Any]) -> list[Any]:
    """Return federations that share examples and have indices of equal length, so that they stack."""
    length = (
        max(each.train_indices.shape[1] for each in data),
        max(each.test_indices.shape[1] for each in data),
    )

    def padded(indices: jax.Array, length: int) -> jax.Array:
        return jnp.pad(indices, ((0, 0), (0, length - indices.shape[1])))

    arrays = {
        name: getattr(data[0], name)
        for name in ("x_train", "y_train", "x_test", "y_test", "scale", "offset")
    }
    return [
        dataclasses.replace(
            each,
            **arrays,
            train_indices=padded(each.train_indices, length[0]),
            test_indices=padded(each.test_indices, length[1]),
        )
        for each in data
    ]


def points(group: Group, scale: Scale, clocks: Sequence[str]) -> list[Point]:
    """Return the batch of a group; asynchronous groups have the cost in the clock."""
    costs = (
        COSTS
        if group.policy.asynchronous and not clocks[0].startswith("phones")
        else (0.0,)
    )
    return [
        Point(*at)
        for at in itertools.product(
            group.answers, scale.classes, clocks, costs, range(scale.seeds)
        )
    ]


def path_of(folder: Path, cell: str) -> Path:
    """Return the file of a cell's arrays."""
    return folder / f"{cell.replace(' ', '_')}.npz"


def load_or_run(
    folder: Path, name: str, run: Callable[[], dict[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """Return the arrays of a cell: load them, or run the cell and store them."""
    path = path_of(folder, name)
    if not path.is_file():
        begin = time.perf_counter()
        scripts.store(path, run())
        print(f"{name}: {time.perf_counter() - begin:.0f} s", flush=True)
    with np.load(path, allow_pickle=False) as found:
        return dict(found)


def cells(
    scale: Scale, names: Sequence[str], model: SplitModel, data: Any, traces: Path | None
) -> Iterator[Cell]:
    """Yield all programs of these personalizations: on drawn clocks, then on phones."""
    times = {
        clock: srp.clocks.Empirical(quantiles)
        for clock, quantiles in drawn_clocks().items()
    }
    for name in names:
        for group in groups(scale, model, 1.0)[name]:
            batch = points(group, scale, scale.clocks)
            clocks = [
                srp.clocks.Fixed(times[point.clock], group.work, False, point.cost)
                for point in batch
            ]
            yield Cell(name, "", group, batch, clocks)
    if traces is None:
        return
    num_clients, params = (
        scale.federation["num_clients"],
        jax.eval_shape(model.init, jax.random.key(0)),
    )
    model_ratio = PARAMETERS / sum(leaf.size for leaf in jax.tree.leaves(params))
    normal = [
        phones(traces, num_clients, seed, model_ratio) for seed in range(scale.seeds)
    ]
    slow = [
        phones(traces, num_clients, seed, PHONE_SLOWDOWN * model_ratio)
        for seed in range(scale.seeds)
    ]
    come_and_go = [
        *map(srp.clocks.Available, slow, sessions(traces, num_clients, scale.seeds))
    ]
    for name in names:
        first = groups(scale, model, 1.0)[name][0].algorithm
        for kind, clocks, devices in (
            ("phones", normal, normal),
            ("phones come and go", come_and_go, slow),
        ):
            for group in groups(scale, model, mean_time(first, data, devices[0]))[name]:
                if kind == "phones" or not group.policy.asynchronous:
                    batch = points(group, scale, [kind])
                    yield Cell(
                        name, kind, group, batch, [clocks[point.seed] for point in batch]
                    )


def run_study(args: argparse.Namespace) -> None:
    """Run unfinished programs, and write the tables after each."""
    scale, out = SCALES[args.scale], args.out
    results = scripts.results_folder(args)
    federation: dict[str, Any] = scale.federation | (
        {} if args.data_dir is None else {"data_dir": args.data_dir}
    )
    loaded = make_stackable(
        [
            srp.data.load(**federation, classes_per_client=classes)
            for classes in scale.classes
        ]
    )
    data = dict(zip(scale.classes, loaded, strict=True))
    model = srp.models.MLP(
        loaded[0].example_shape, loaded[0].num_classes, hidden=scale.hidden
    )
    runs: list[tuple[str, list[Point], dict[str, np.ndarray]]] = []

    def run(cell: Cell) -> dict[str, np.ndarray]:
        which = [cell.group.answers.index(point.answer) for point in cell.batch]
        keys = jnp.stack([jax.random.key(point.seed) for point in cell.batch])
        federations = [data[point.classes] for point in cell.batch]
        return run_group(
            cell.group, which, federations, cell.clocks, keys, scale.batch_size
        )

    def write() -> None:
        for name, make in (("grid", answer_rows.table), ("curves", answer_rows.curves)):
            make(runs, data).to_csv(
                results / f"{name}_{federation['name']}.csv",
                index=False,
                float_format="%.5g",
            )

    for cell in cells(scale, args.personalizations, model, loaded[0], args.traces):
        if not args.tabulate or path_of(out, cell.name).is_file():
            arrays = load_or_run(out, cell.name, lambda cell=cell: run(cell))
            runs.append((cell.personalization, cell.batch, arrays))
            if not args.tabulate:
                write()
    write()


def main(arguments: list[str] | None = None) -> None:
    parser = scripts.parser(__doc__, SCALES, "runs/stragglers", "data-dir")
    parser.add_argument(
        "--personalizations",
        nargs="+",
        default=["FedAvg", "FedRep", "Ditto", "LG", "FedPer"],
    )
    parser.add_argument(
        "--traces",
        type=Path,
        help="folder with traces of phones and networks (default: no phones)",
    )
    parser.add_argument(
        "--tabulate",
        action="store_true",
        help="write the tables of finished programs, run nothing",
    )
    args = parser.parse_args(arguments)
    args.out /= args.scale
    run_study(args)


if __name__ == "__main__":
    main()
