"""Measured logarithmic speed-up: time of SRPFL and FedRep to a target against the number of clients N.

    python experiments/srpfl/linear_speedup.py --scale smoke|cpu|full [--init moments|random] [--stages plain|lemma]
        [--clients N ...] [--results DIR]

Linear tasks with d=100, k=5, m=25, sigma=1, step 0.1, Exp(1) times redrawn every round, C=0, all N clients in the pool.
SRPFL starts with n0 = 2 d / (log(N) sigma_max) clients (appendix A, `srp.theory.initial_clients`), with sigma_max of
the heads of all clients, and doubles every 30 rounds (`--stages plain`), or by Lemma B.1 (`lemma`): the stages of
`srp.theory.schedule` for a = eta (1 - dist^2) sigma_min^2 / 2, with the distance after the first round and the smallest
singular value of the heads of all clients. Theorem 4.5 takes the smallest over every set of n0 clients or more, and a
step size for the largest, so its a is smaller. A random start has a = 0, and so no such stages. With fewer than 64
clients n0 would be more than all.

A target is a multiple of the noise floor of FedRep: the mean distance of its last 20 of 330 rounds, per repeat. A
repeat that never reaches its target counts as infinite; a point with such a repeat is drawn as an open triangle at the
time of the longest run.

A start by the method of moments improves with N, so that FedRep's number of rounds hardly grows. It is charged to both
methods: all clients send d x d numbers, so the time of the slowest one stands before round one (`start` in the results,
part of every time). `--init random` starts at distance 1 for every N, as the theory does, and adds 60 rounds to FedRep
and to SRPFL's first stage, in which the distance hardly falls; there the speed-up grows with log N.

The curves of theory (`srp.theory`) come from its own recursion, whose noise term is not that of the runs: compare
shapes, not heights. They are nan where n0 clients suffice for the target. A second call measures only new numbers of
clients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure

import fedjax_srp as srp
from experiments import batches, curves, scripts
from fedjax_srp import theory

DIM, RANK, SAMPLES, NOISE, STEP, STAGE = 100, 5, 25, 1.0, 0.1, 30
FACTORS = (2.0, 1.3, 1.1)
FEDREP_ROUNDS, FLOOR_ROUNDS, LAST_STAGE = 330, 20, 150
EXTRA_ROUNDS = {"moments": 0, "random": 60}
THEORY_A, THEORY_CHAT = 0.02, 1.3
SCALES = {
    "smoke": (range(6, 7), 2),
    "cpu": (range(6, 14), 5),
    "full": (range(6, 21), 10),
}  # log2 N, repeats


Contest = Callable[[srp.ParticipationPolicy, int], list[srp.History]]


def draw_task(num_clients: int, seed: int) -> srp.data.LinearTask:
    """Draw the task of a number of clients."""
    return srp.data.linear_task(jax.random.key(seed), num_clients, DIM, RANK, NOISE)


def first_cohort(task: srp.data.LinearTask) -> int:
    """Return n0 for the heads of all clients."""
    sigma_max = batches.head_values(task)[1]
    return theory.initial_clients(DIM, task.num_clients, sigma_max)


def plain_stages(num_clients: int, initial: int, init: str) -> list[int]:
    """Rounds of every stage but the last, all equal but for the first."""
    stages = int(np.ceil(np.log2(num_clients / initial)))
    return [STAGE + EXTRA_ROUNDS[init], *[STAGE] * (stages - 1)][:stages]


def lemma_stages(
    task: srp.data.LinearTask, initial: int, first_distance: float
) -> list[int]:
    """Rounds of every stage but the last, by Lemma B.1; chat matters for the last stage only, and a is optimistic."""
    sigma_min = batches.head_values(task)[0]
    a = theory.contraction_rate(STEP, first_distance, sigma_min)
    plan = theory.schedule(a, task.num_clients, initial, THEORY_CHAT)
    return plan.rounds_per_stage[:-1]


def fedrep_of(task: srp.data.LinearTask, init: str) -> srp.algorithms.LinearFedRep:
    """Return the algorithm of both methods."""
    return srp.algorithms.LinearFedRep(
        task, step_size=STEP, samples_per_round=SAMPLES, start=init, charge_start=True
    )


def options_of(policy: srp.ParticipationPolicy, rounds: int) -> dict[str, Any]:
    """Return the options of a run."""
    return {
        "participation": policy,
        "clock": srp.clocks.Dynamic(srp.clocks.Exponential(1.0)),
        "num_rounds": rounds,
        "eval_every": rounds,
        "evaluations": (),
        "progress": False,
    }


def contest(
    num_clients: int, repeats: int, seed: int, init: str
) -> tuple[srp.data.LinearTask, Contest]:
    """Draw a task; return it with a function that simulates all repeats of a policy for some rounds."""
    task = draw_task(num_clients, seed)
    algorithm = fedrep_of(task, init)
    key = jax.random.fold_in(jax.random.key(seed), num_clients)
    keys = jax.random.split(key, repeats)

    def run(policy: srp.ParticipationPolicy, rounds: int) -> list[srp.History]:
        options = options_of(policy, rounds) | {"chunk_size": min(1024, num_clients)}
        if num_clients <= 1024:  # one repeat alone does not fill the machine
            return srp.simulate_seeds(algorithm, task, keys=keys, **options)
        return [srp.simulate(algorithm, task, key=key, **options) for key in keys]

    return task, run


def floors_of(fedrep: list[srp.History]) -> list[float]:
    """Return the noise floor of each repeat."""
    return [history.metrics["distance"][-FLOOR_ROUNDS:].mean() for history in fedrep]


def times_to_floors(histories: list[srp.History], floors: list[float]) -> np.ndarray:
    """Return the times to each multiple of the floor, (targets, repeats); inf if a run never reached it."""
    times = []
    for run, floor in zip(histories, floors, strict=True):
        of_run = [run.time_to(factor * floor, metric="distance") for factor in FACTORS]
        times.append(of_run)
    return np.transpose(times)


def measure(num_clients: int, repeats: int, seed: int, init: str, stages: str) -> dict:
    """Measure times of both methods to each target, (repeats,) each; inf if a run never reached it."""
    task, run = contest(num_clients, repeats, seed, init)
    fedrep = run(srp.participation.Full(), FEDREP_ROUNDS + EXTRA_ROUNDS[init])
    floors = curves.rounded(floors_of(fedrep))
    first_distance = float(np.mean([run.metrics["distance"][0] for run in fedrep]))
    initial = first_cohort(task)
    if stages == "plain":
        lengths = plain_stages(num_clients, initial, init)
    else:
        lengths = lemma_stages(task, initial, first_distance)
    srpfl = run(srp.participation.Doubling(initial, lengths), sum(lengths) + LAST_STAGE)
    runs = {"fedrep": fedrep, "srpfl": srpfl}
    times = {name: times_to_floors(each, floors) for name, each in runs.items()}
    return {
        "num_clients": num_clients,
        "initial": initial,
        "rounds_per_stage": lengths,
        "floors": floors,
        "first_distance": first_distance,
        "start": [curves.rounded(history.start.time) for history in fedrep],
        "times": curves.rounded(times),
        "longest": {name: longest_time(each) for name, each in runs.items()},
    }


def longest_time(histories: list[srp.History]) -> float:
    """Return the simulated time of the longest run."""
    return float(max(history.elapsed()[-1] for history in histories))


def time_ratios(result: Mapping[str, Any]) -> np.ndarray:
    """Return SRPFL's time over FedRep's, (targets, repeats); nan if a run never reached its target."""
    srpfl, fedrep = (
        np.array(result["times"][name], float) for name in ("srpfl", "fedrep")
    )
    is_known = np.isfinite(srpfl) & np.isfinite(fedrep)
    return np.divide(srpfl, fedrep, out=np.full_like(srpfl, np.nan), where=is_known)


def mean_and_error(values: np.ndarray) -> tuple[float, float]:
    """Return mean and standard error; the mean is inf or nan if one value is, and the error nan."""
    if not np.isfinite(values).all():
        return float(values.mean()), np.nan
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values)))


def draw_curve(ax, clients, samples, waited, label, color) -> None:
    """Draw the mean with a band of two standard errors, and censored points as triangles at the time waited."""
    means, errors = np.array([mean_and_error(np.asarray(s, float)) for s in samples]).T
    seen = np.isfinite(means)
    lines = (means[seen], (means - 2 * errors)[seen], (means + 2 * errors)[seen])
    curves.draw_band(
        ax, clients[seen], lines, color, alpha=0.2, marker="o", markersize=4, label=label
    )
    if not seen.all():
        ax.plot(
            clients[~seen],
            np.asarray(waited)[~seen],
            "^",
            markerfacecolor="none",
            color=color,
        )


def draw(results: list[dict], init: str) -> Figure:
    """Draw measured times, those of theory, and the ratios of both."""
    clients = np.array([r["num_clients"] for r in results])
    figure, axes = curves.panels(3, width=4.6, height=4.2)
    measured, expected, ratio = axes
    index = FACTORS.index(1.3)
    colors = {"fedrep": curves.ORANGE, "srpfl": curves.BLUE}
    for name, color in colors.items():
        samples = [r["times"][name][index] for r in results]
        waited = [r["longest"][name] for r in results]
        label = srp.methods.label(name)
        draw_curve(measured, clients, samples, waited, label, color=color)
    measured.set(
        title=f"measured, {init} start: time to 1.3 x floor",
        ylabel="simulated time (time units)",
    )

    a, chat = THEORY_A, THEORY_CHAT
    cohorts = [(r["num_clients"], r["initial"]) for r in results]
    fedrep = np.array([theory.fedrep_time(a, n, n0, chat) for n, n0 in cohorts])
    srpfl = np.array([theory.schedule(a, n, n0, chat).time for n, n0 in cohorts])
    srpfl[fedrep == 0] = fedrep[fedrep == 0] = np.nan
    kind = theory.KIND
    lines = {
        f"FedRep: {kind['fedrep_time']}": (fedrep, "fedrep"),
        "FedRep: printed lower bound (is none)": (theory.fedrep_time_bound, "fedrep"),
        f"SRPFL: {kind['schedule']}": (srpfl, "srpfl"),
        "SRPFL: printed upper bound": (theory.srpfl_time_bound, "srpfl"),
    }
    for label, (times, name) in lines.items():
        style = "-"
        if callable(times):
            times = [times(a, int(n), chat) for n in clients]
            style = ":"
        expected.plot(clients, times, style, color=colors[name], label=label)
    expected.set(
        title=f"theory: a={a}, $\\hat c$={chat}, n0 as measured",
        ylabel="expected time (time units)",
    )

    not_drawn = np.full(len(clients), np.nan)
    for i, color in enumerate((curves.GREEN, curves.PINK, curves.YELLOW)):
        ratios = [time_ratios(r)[i] for r in results]
        label = f"measured, {FACTORS[i]:g} x floor"
        draw_curve(ratio, clients, ratios, not_drawn, label, color=color)
    label = f"theory: {kind['schedule']}"
    ratio.plot(clients, srpfl / fedrep, "--", color=curves.GREY, label=label)
    ratio.set(title="time of SRPFL / time of FedRep", ylabel="ratio")
    for ax in axes:
        ax.set_xscale("log", base=2)
        ax.set_xlabel("clients N")
        ax.legend(fontsize=8, frameon=False)
        ax.set_ylim(bottom=0)
    ratio.set_ylim(top=1.1)
    return figure


def main() -> None:
    parser = scripts.measurement_parser(
        __doc__,
        SCALES,
        "runs/linear_speedup",
        "seed",
        init={"choices": EXTRA_ROUNDS, "default": "moments"},
        stages={"choices": ("plain", "lemma"), "default": "plain"},
        clients={
            "type": int,
            "nargs": "+",
            "metavar": "N",
            "help": "default: those of the scale",
        },
    )
    args = parser.parse_args()
    if args.stages == "lemma" and args.init == "random":
        parser.error(
            "--stages lemma --init random: a random start has a = 0, so no stages; leave out one of the two"
        )
    exponents, repeats = SCALES[args.scale]
    clients = args.clients or [2**exponent for exponent in exponents]
    axes = {"num_clients": sorted(clients)}
    options = {"repeats": repeats}
    results = scripts.measure_each(args, measure, axes=axes, options=options)
    name = f"linear_speedup_{args.init}" + "_lemma" * (args.stages == "lemma")
    facts = {"init": args.init, "stages": args.stages, "results": results}
    curves.save(args, name, facts, draw(results, args.init))


if __name__ == "__main__":
    main()
