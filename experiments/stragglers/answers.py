"""Comparison of methods against stragglers ("answers") on one clock, with and without a personal part.

    python experiments/stragglers/answers.py [--scale smoke|cpu|mnist|full] [--results experiments/stragglers/results]

All runs are one grid, whose seeds run together. Clocks draw T_i once per client, with mean 1: Exp(1), uniform on
[0.18, 1.82] (FLANP's [50, 500]), log-normal with sigma 1. `--traces` adds phones: `clocks.Devices` with measured speeds
and networks, whose seconds follow from operations and bytes; and the same phones, available only when idle, charging
and on wifi, by recorded sessions. A cost C is added to every round afterwards, and to every job of an asynchronous
server.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_srp as srp
from experiments import scripts
from experiments.stragglers import answer_rows
from experiments.stragglers.answer_rows import COSTS, PHONE_SLOWDOWN, Point
from experiments.stragglers.phone_traces import phones, seconds_of_clients, sessions
from fedjax_srp import algorithms, participation
from fedjax_srp.models.split import SplitModel

EPOCHS = 4  # of a client that does all of its work in a round
QUANTILES = 512
PARAMETERS = 2.41e6  # of the model whose operations and bytes phones are charged for


class Scale(NamedTuple):
    """Size and length of the runs."""

    dataset: str
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


SCALES = {
    "smoke": Scale("digits", {"num_clients": 12}, (8,), 0.1, (2, 5), 2, 3, 3, 1, (2, 4, 4), 2),
    "cpu": Scale("digits", {"num_clients": 50}, (32,), 0.05, (2, 5), 3, 10, 5, 8, (30, 44, 100), 2),
    "mnist": Scale(
        "mnist", {"num_clients": 50, "max_examples": 60}, (512, 256, 64), 0.05, (2, 5), 2, 10, 5, 6,
        (24, 36, 80), 2, ("exponential",),
    ),
    "full": Scale(
        "mnist", {"num_clients": 100, "max_examples": 150}, (512, 256, 64), 0.01, (2, 5, 10), 3, 20, 10, 10,
        (100, 150, 400), 5,
    ),
}  # fmt: skip


class Answer(NamedTuple):
    """A method against stragglers, with one personalization."""

    algorithm: srp.FederatedAlgorithm
    policy: srp.ParticipationPolicy
    lengths: tuple[int, int]  # rounds, rounds between evaluations
    evaluations: tuple[str, ...]
    work: float = 1.0  # time of a unit of work, in times of a round

    def options(self, clock: srp.Clock) -> dict[str, Any]:
        """Return the options of its runs."""
        num_rounds, eval_every = self.lengths
        return {
            "method": self.algorithm,
            "participation": self.policy,
            "clock": clock,
            "num_rounds": num_rounds,
            "eval_every": eval_every,
            "evaluations": self.evaluations,
        }


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


def answers(scale: Scale, model: SplitModel, unit: float) -> dict[str, dict[str, Answer]]:
    """Return the answers of each personalization; `unit` is the mean time of a client, which sets time limits."""
    k = scale.k
    tiers = min(5, scale.federation["num_clients"] // k)
    every = scale.eval_every
    full_rounds, doubling_rounds, subset_rounds = scale.rounds
    full = (full_rounds, every)
    subset = (subset_rounds, min(subset_rounds, 5 * every // 2))
    uniform = participation.Uniform(k)
    more = participation.Uniform(-(-15 * k // 10))
    chosen = {
        "uniform": uniform,
        "fastest": participation.Fastest(k),
        "over-selection": participation.Fastest(k, pool=-(-13 * k // 10)),
        "deadline": participation.Deadline(unit, policy=more),
        "TiFL": participation.Tiered(k, tiers=tiers),
        "TiFL, by loss": participation.Tiered(k, tiers=tiers, by="loss"),
        "Oort": participation.Oort(k, step=unit),
        "power of choice": participation.PowerOfChoice(k, candidates=2 * k),
    }
    full_work = personalizations(model, scale.step, EPOCHS)
    unit_work = personalizations(model, scale.step, 1)
    partial = participation.PartialWork(EPOCHS)
    share = 1 / EPOCHS
    doubling = participation.Doubling(scale.initial, scale.rounds_per_stage)
    found: dict[str, dict[str, Answer]] = {}
    for name, (algorithm, judges) in full_work.items():
        of_unit = unit_work[name][0]
        found[name] = {
            "full": Answer(algorithm, participation.Full(), full, judges),
            "doubling": Answer(algorithm, doubling, (doubling_rounds, every), judges),
        }
        for answer, policy in chosen.items():
            found[name][answer] = Answer(algorithm, policy, subset, judges)
        found[name]["partial work"] = Answer(of_unit, partial, full, judges, share)
    training = full_work["FedAvg"][0].training
    fedprox = algorithms.FedProx(model, unit_work["FedAvg"][0].training, mu=0.1)
    narrow = {}
    for cls in (algorithms.HeteroFL, algorithms.FedRolex, algorithms.FjORD):
        rates = (0.25, 0.5, 0.75, 1.0)  # for 1 to 4 units of work
        narrow[f"{cls.__name__}, partial work"] = cls(model, training, rates=rates)
    judges = ("global", "fine_tune")
    of_fedavg = found["FedAvg"]
    of_fedavg["FedProx, partial work"] = Answer(fedprox, partial, full, judges, share)
    fedbuff = algorithms.FedBuff(model, training)
    fedasync = algorithms.FedAsync(model, training)
    fedat = algorithms.FedAT(model, training, num_tiers=tiers)
    at_every_arrival = (k * subset[0], k * subset[1])
    for answer, algorithm, policy, lengths in (
        ("FedBuff", fedbuff, participation.Buffered(k), subset),
        ("FedBuff, k at work", fedbuff, participation.Buffered(k, concurrency=k), subset),
        ("FedAsync", fedasync, participation.Buffered(1), at_every_arrival),
        ("FedAT", fedat, participation.AsynchronousTiers(k, tiers), subset),
    ):
        of_fedavg[answer] = Answer(algorithm, policy, lengths, judges)
    for answer, algorithm in narrow.items():
        of_fedavg[answer] = Answer(algorithm, partial, full, judges, share)
    for cls in (algorithms.MIFA, algorithms.FedVARP):
        of_fedavg[cls.__name__] = Answer(cls(model, training), uniform, subset, judges)
    return found


def mean_time(algorithm: srp.FederatedAlgorithm, data: Any, clock: srp.Clock) -> float:
    """Return the mean seconds of a client in a round."""
    simulation = srp.Simulation(algorithm, data, participation.Full(), clock)
    return float(jnp.mean(seconds_of_clients(simulation)))


Points = Iterator[tuple[Point, dict[str, Any]]]  # runs with their options


def with_drawn_clocks(scale: Scale, names: Sequence[str], model: SplitModel) -> Points:
    """Yield the runs on drawn clocks; asynchronous answers have the cost in the clock."""
    times = {
        clock: srp.clocks.Empirical(quantiles)
        for clock, quantiles in drawn_clocks().items()
    }
    by_name = answers(scale, model, 1.0)
    for name in names:
        for answer, made in by_name[name].items():
            costs = COSTS if made.policy.asynchronous else (0.0,)
            for classes, clock, cost, seed in itertools.product(
                scale.classes, scale.clocks, costs, range(scale.seeds)
            ):
                of_run = srp.clocks.Fixed(times[clock], made.work, False, cost)
                point = Point(name, answer, classes, clock, cost, seed)
                yield point, made.options(of_run)


def with_phones(
    scale: Scale, names: Sequence[str], model: SplitModel, data: Any, traces: Path
) -> Points:
    """Yield the runs on phones."""
    num_clients = scale.federation["num_clients"]
    params = jax.eval_shape(model.init, jax.random.key(0))
    model_ratio = PARAMETERS / sum(leaf.size for leaf in jax.tree.leaves(params))
    normal, slow = (
        [phones(traces, num_clients, seed, ratio) for seed in range(scale.seeds)]
        for ratio in (model_ratio, PHONE_SLOWDOWN * model_ratio)
    )
    times = sessions(traces, num_clients, scale.seeds)
    come_and_go = [*map(srp.clocks.Available, slow, times)]
    for name in names:
        first = answers(scale, model, 1.0)[name]["full"].algorithm
        for kind, clocks, devices in (
            ("phones", normal, normal),
            ("phones come and go", come_and_go, slow),
        ):
            unit = mean_time(first, data, devices[0])
            for answer, made in answers(scale, model, unit)[name].items():
                if kind != "phones" and made.policy.asynchronous:
                    continue
                for classes, seed in itertools.product(scale.classes, range(scale.seeds)):
                    point = Point(name, answer, classes, kind, 0.0, seed)
                    yield point, made.options(clocks[seed])


def points_of(args: argparse.Namespace, scale: Scale) -> dict[Point, dict[str, Any]]:
    """Return all runs with their options."""
    first = {"classes_per_client": scale.classes[0], "data_dir": args.data_dir}
    data = srp.data.load(scale.dataset, **scale.federation, **first)
    model = srp.models.MLP(data.example_shape, data.num_classes, hidden=scale.hidden)
    found = dict(with_drawn_clocks(scale, args.personalizations, model))
    if args.traces is not None:
        of_phones = with_phones(scale, args.personalizations, model, data, args.traces)
        found |= dict(of_phones)
    for point, options in found.items():
        options |= {"classes_per_client": point.classes, "seed": point.seed}
    return found


@scripts.reported()
def main() -> None:
    names = ["FedAvg", "FedRep", "Ditto", "LG", "FedPer"]
    args = scripts.grid_parser(
        __doc__,
        SCALES,
        "runs/stragglers",
        "data-dir",
        personalizations={"nargs": "+", "default": names, "choices": names},
        traces={
            "type": Path,
            "help": "folder with traces of phones and networks (default: no phones)",
        },
    ).parse_args()
    scale = SCALES[args.scale]
    points = points_of(args, scale)
    args.out /= args.scale
    found = scripts.run_grid(
        args,
        variants={point.name: options for point, options in points.items()},
        options=scale.federation | {"dataset": scale.dataset},
    ).histories_by("variant")
    runs = {point: found[point.name][0] for point in points}
    results = scripts.results_folder(args)
    for name, make in (("grid", answer_rows.table), ("curves", answer_rows.curves)):
        file = results / f"{name}_{scale.dataset}.csv"
        make(runs).to_csv(file, index=False, float_format="%.5g")


if __name__ == "__main__":
    main()
