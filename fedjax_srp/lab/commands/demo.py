"""The demo: the SRPFL paper's methods except HF-MAML on scikit-learn's digits, in a few minutes."""

from __future__ import annotations

import functools
import itertools
import os
import threading
from collections.abc import Sequence
from concurrent import futures
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_srp import clocks, data, methods
from fedjax_srp.base import Method
from fedjax_srp.driver.simulate import simulate_seeds
from fedjax_srp.lab.commands.report import COMMUNICATIONS
from fedjax_srp.lab.report import page, panels, repeats, table
from fedjax_srp.lab.runs import shared_training
from fedjax_srp.parts.checks import check_integer
from fedjax_srp.results import atomic
from fedjax_srp.results.atomic import writable
from fedjax_srp.results.history import History

PARALLEL_TRAININGS = 2  # since compiling one leaves a core idle
OWN_PARTS = ("own_head", "own_representation")  # cheap evaluations, without training


class Plan(NamedTuple):
    """Plan of the simulations of a demo."""

    methods: Sequence[str]
    num_rounds: int
    eval_every: int
    federation: dict[str, Any]  # of `data.load`
    hyperparameters: dict[str, Any]  # of `methods.get`, the same for every method


FULL = Plan(
    methods=(
        *("srpfl", "fedrep", "lg_srpfl", "lg_fedavg"),
        *("flanp_fedavg", "fedavg", "flanp_fedavg_ft", "fedavg_ft"),
    ),
    num_rounds=100,
    eval_every=2,
    federation={"num_clients": 50, "classes_per_client": 3},
    hyperparameters={
        "hidden": (64, 32),
        "learning_rate": 0.05,
        "epochs": 5,
        "initial": 5,
        "rounds_per_stage": 10,
    },
)
QUICK = FULL._replace(methods=("srpfl", "fedrep"), num_rounds=50)


class Demo(NamedTuple):
    """Results of a demo, all of them also in its folder."""

    histories: dict[str, list[History]]  # method -> one per seed
    target: table.Target
    text: str


def command(
    out: str = "runs/demo", seeds: int = 3, quick: bool = False, progress: bool = True
) -> None:
    """Run the demo and print its table and folder.

    Args:
        out: folder for table, figure, page and runs.
        seeds: number of repeats, simulated together.
        quick: only SRPFL and FedRep, half the rounds.
        progress: show a progress bar.
    """
    plan = QUICK if quick else FULL
    folder = Path(out)
    federation = plan.federation
    print(
        f"{len(plan.methods)} methods, {seeds} seeds, {plan.num_rounds} rounds: digits, "
        f"{federation['num_clients']} clients with {federation['classes_per_client']} classes each,\n"
        "whose local work takes 1 time unit on average: exponential, drawn once for each client and "
        "seed\n"
    )
    print(f"\n{run(out, seeds, plan, progress).text}\n")
    print(f"table   {folder / 'table.txt'}, {folder / 'table.csv'}")
    print(f"figure  {folder / 'accuracy.png'}")
    print(
        f"page    {folder / page.FILE}, for a browser: any communication cost, any target"
    )
    print(f"runs    {folder / '<method>' / 'seed_<seed>'}")


def run(
    out: str | os.PathLike, seeds: int = 3, plan: Plan = FULL, progress: bool = True
) -> Demo:
    """Simulate every method of the plan, all seeds at once, and write table, figure, page and run folders.

    Clients' times are Exp(1), drawn once per seed; all methods have the same clients, times and batches. The partition
    of the digits among clients is the same for all seeds.

    Seed s is `jax.random.key(s)`, as in `fedjax-srp run --seed s`; its runs are in `<method>/seed_<s>`.
    """
    check_integer("seeds", seeds, 1)
    folder = writable(out)
    dataset = data.load("digits", **plan.federation)
    keys = jax.vmap(jax.random.key)(jnp.arange(seeds))
    get = functools.partial(methods.get, dataset=dataset, shared=plan.hyperparameters)
    trainings = shared_training.trainings(map(get, plan.methods))
    histories: dict[str, list[History]] = {name: [] for name in plan.methods}
    stopped = threading.Event()

    def train(together: list[Method]) -> None:
        evaluations = {method.name: _evaluations(method) for method in together}
        labels = " and ".join(map(methods.label, evaluations))
        runs = simulate_seeds(
            together[0],
            dataset,
            evaluations=[*dict.fromkeys(itertools.chain(*evaluations.values()))],
            clock=clocks.Fixed(clocks.Exponential(1.0)),
            num_rounds=plan.num_rounds,
            eval_every=plan.eval_every,
            keys=keys,
            progress=progress,
            callback=lambda _: stopped.is_set(),
            name=f"{trainings.index(together) + 1} of {len(trainings)}, {labels}",
        )
        for method in together:
            for run in runs:
                history = shared_training.as_method(run, method, evaluations[method.name])
                histories[method.name].append(history)

    with futures.ThreadPoolExecutor(PARALLEL_TRAININGS) as threads:
        # twins are neighbours: the second of them finds the programs of the first compiled
        in_order = trainings[::2] + trainings[1::2]
        try:
            trained = [threads.submit(train, together) for together in in_order]
            for done in futures.as_completed(trained):
                done.result()
        finally:  # after an error or Ctrl-C, the other training ends with its next evaluation
            stopped.set()
            threads.shutdown(cancel_futures=True)
    target = table.common_target(histories)
    saved = []
    for name, runs in histories.items():
        for seed, history in enumerate(runs):
            place = folder / name / f"seed_{seed}"
            history.save(place, target=target.accuracy, overwrite=True)
            saved.append(repeats.read(place))
    rows = repeats.rows(saved)
    if len(trainings) > 1:
        rows.notes.append(
            f"{PARALLEL_TRAININGS} trainings at a time, so that their seconds overlap"
        )
    title = f"digits, {dataset.num_clients} clients"
    comparison = page.Comparison(title, rows, target, COMMUNICATIONS)
    text, files = panels.files(comparison, folder)
    atomic.replace(files | {folder / page.FILE: page.writer([comparison])})
    return Demo(histories, target, text)


def _evaluations(method: Method) -> list[str]:
    default, *others = method.algorithm.evaluations
    return [default, *filter(OWN_PARTS.__contains__, others)]
