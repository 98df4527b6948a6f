"""Parts that differ only in floats share one program; any other difference compiles again."""

import dataclasses
from concurrent import futures

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from reference.small import (
    CLOCK,
    KEY,
    algorithm_of,
    assert_same_bits,
    changed,
    clients_of,
    federation,
    model,
    numbers,
    prepared,
    traced,
)

import fedjax_srp as srp
from fedjax_srp import ClientOutput

DATA = federation(clients_of((4, 6, 3, 8, 5, 7), (3,) * 6))
FEW = numbers(*range(6))
OPTIONS = {"num_rounds": 3, "eval_every": 1, "progress": False, "devices": 1}
SHORT = {"hidden": (5, 4), "fine_tune_epochs": 1}
FedAvg, FedProx, FedRep = (
    srp.algorithms.FedAvg,
    srp.algorithms.FedProx,
    srp.algorithms.FedRep,
)


def get(name, **options):
    return srp.methods.get(
        name,
        dataset=DATA,
        shared=SHORT | {"initial": 2, "rounds_per_stage": 1, "k": 2},
        **options,
    )


def simulate(algorithm, data=DATA, key=KEY, **options):
    return srp.simulate(algorithm, data, key=key, **OPTIONS | options)


def spec_of(algorithm, data=DATA, **options):
    """Return the static part of a program; programs with equal ones are one."""
    return prepared(algorithm, data, devices=1, **options).program().spec


def leaves(history):
    return jax.tree.leaves(history.server_state)


def counting():
    """Return an algorithm of a new class that compiles in a moment; it takes `FEW`."""
    return algorithm_of(
        lambda key, total, state, value, context: ClientOutput(
            total + value * context.work.astype(float)
        )
    )


# One trace.


def fedprox(mu=0.1, rate=0.3, momentum=0.5, **training):
    """Return a new algorithm with a new model."""
    training = srp.Training(srp.SGD(rate, momentum), **{"batch_size": 4} | training)
    return FedProx(model(hidden=(3,)), training, fine_tune_epochs=1, mu=mu)


def tuned(rate):
    heads = {
        "head_optimizer": srp.SGD(2 * rate),
        "fine_tune_optimizer": srp.SGD(rate, 0.5),
    }
    return FedRep(model(hidden=(3,)), head_epochs=1, fine_tune_epochs=1, **heads)


def by_optax(rate):
    training = srp.Training(srp.optimizer(optax.sgd, learning_rate=rate, momentum=0.5))
    return FedAvg(model(hidden=(3,)), training)


SWEEPS = {
    "method and optimizer": [
        fedprox(0.0),
        fedprox(1.0),
        fedprox(rate=0.1),
        fedprox(momentum=0.9),
        fedprox(2, 0.2, 0.1),
    ],
    "heads": [tuned(0.1), tuned(0.2)],
    "optax": [by_optax(0.1), by_optax(0.2)],
}


@pytest.mark.short("method and optimizer")
@pytest.mark.parametrize("case", SWEEPS)
def test_a_sweep_is_traced_once(case):
    sweep = SWEEPS[case]
    with traced() as names:
        runs = [simulate(algorithm) for algorithm in sweep]
    assert len({spec_of(algorithm) for algorithm in sweep}) == 1
    assert names == ["start", "rounds"]
    assert runs[0].compile_seconds > 0
    assert [run.compile_seconds for run in runs[1:]] == [0.0] * (len(sweep) - 1)
    assert len(
        {np.concatenate([leaf.ravel() for leaf in leaves(run)]).tobytes() for run in runs}
    ) == len(sweep)


@pytest.mark.parametrize("num_seeds", [None, 2])
def test_any_numbers_of_rounds_are_one_program(num_seeds):
    algorithm = counting()

    def run(**options):
        options = (
            OPTIONS
            | {"participation": srp.participation.Doubling(2, 1), "clock": CLOCK}
            | options
        )
        if num_seeds is None:
            return [srp.simulate(algorithm, FEW, key=KEY, **options)]
        return srp.simulate_seeds(
            algorithm, FEW, keys=jax.random.split(KEY, num_seeds), **options
        )

    with traced() as names:
        often = run(num_rounds=9)
        for options in ({"eval_every": 10**9}, {"eval_every": 5, "eval_first": 2}):
            for every, one in zip(run(num_rounds=9, **options), often, strict=True):
                assert_same_bits(every.server_state, one.server_state)
                assert_same_bits(every.compute_time, one.compute_time)
                assert every.mean_accuracy[-1] == one.mean_accuracy[-1]
                assert every.round.tolist() == list(range(1, 10))
    assert names == ["start", "rounds"]
    with traced() as names:
        longer = run(num_rounds=129, eval_every=129)
    assert {len(history.round) for history in longer} == {129}
    assert names == ["rounds"]  # a longer segment has a program of its own


CLOCKS = {
    "fixed": lambda rate: srp.clocks.Fixed(srp.clocks.Exponential(rate)),
    "dynamic": lambda low: srp.clocks.Dynamic(
        srp.clocks.Exponential(srp.clocks.Uniform(low, 5.0))
    ),
    "trace": lambda start: srp.clocks.Trace(np.arange(18.0).reshape(3, 6) + start),
}


@pytest.mark.parametrize("kind", CLOCKS)
def test_floats_of_clocks_are_arguments(kind):
    algorithm = counting()
    with traced() as names:
        runs = [simulate(algorithm, FEW, clock=CLOCKS[kind](rate)) for rate in (1.0, 3)]
    assert names == ["start", "rounds"]
    assert runs[1].compile_seconds == 0.0
    assert (runs[0].client_time != runs[1].client_time).all()
    for rate, run in zip((1.0, 3.0), runs, strict=True):  # as outside of any program
        clock = CLOCKS[kind](rate)
        key = srp.named_key(srp.named_key(KEY, "clock"), "init")
        times, _ = clock.sample(KEY, clock.init(key, 6), jnp.zeros(()))
        np.testing.assert_allclose(run.client_time, times.expected, rtol=1e-6)


def test_srpfl_fedrep_and_all_stages_are_one_program():
    policies = [
        srp.participation.Full(),
        srp.participation.Doubling(2, 1),
        srp.participation.Doubling(3, 2),
        *[srp.participation.Uniform(4), srp.participation.Doubling(2, 1, pool=4)],
    ]
    algorithm = counting()
    runs = [simulate(algorithm, FEW, participation=policy) for policy in policies]
    is_compiled = [run.compile_seconds > 0 for run in runs]
    assert is_compiled == [True, False, False, True, False]
    assert [run.cohort_size.tolist() for run in runs[:4]] == [
        [6] * 3,
        [2, 4, 6],
        [3, 3, 6],
        [4] * 3,
    ]


@srp.part
class OwnFull(srp.participation.Full):
    """Runs as itself."""


@srp.part
class OwnUniform(srp.participation.Uniform):
    """Runs as itself."""


STEADY = srp.clocks.Fixed(srp.clocks.Exponential(1.0))


@pytest.mark.parametrize(
    "clock",
    [
        STEADY,
        srp.clocks.Failing(STEADY, 0.4),
        srp.clocks.Available(STEADY, srp.clocks.Markov(2.0, 1.0)),
    ],
    ids=["steady", "failing", "available"],
)
def test_shared_programs_give_the_same_cohorts_also_of_clients_that_fail_or_leave(clock):
    algorithm = counting()
    for policy, alone in (
        (srp.participation.Full(), OwnFull()),
        (srp.participation.Uniform(4), OwnUniform(4)),
    ):
        given = {"clock": clock, "num_rounds": 8}
        runs = [
            simulate(algorithm, FEW, participation=each, **given)
            for each in (policy, alone)
        ]
        for name in ("compute_time", "cohort_size", "rounds_taken"):
            np.testing.assert_array_equal(*(getattr(run, name) for run in runs))
        assert (len({*runs[0].cohort_size.tolist()}) > 1) == (clock is not STEADY)
        for a, b in zip(*map(leaves, runs), strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)


def test_a_subclass_of_full_runs_as_itself():
    @srp.part
    class Pairs(srp.participation.Full):
        def select(self, key, state, times):
            cohort, state = super().select(key, state, times)
            return cohort._replace(size=jnp.int32(2)), state

    assert (
        simulate(counting(), FEW, participation=Pairs()).cohort_size.tolist() == [2] * 3
    )


def test_threads_with_equal_parts_compile_once():
    algorithm, seeds = counting(), range(4)
    compiled = []

    def note(event, duration_secs, **of_event):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(of_event["fun_name"])

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        with futures.ThreadPoolExecutor(4) as threads:
            runs = threads.map(
                lambda seed: simulate(algorithm, FEW, key=jax.random.key(seed)), seeds
            )
            runs = list(runs)
    finally:
        jax.monitoring.unregister_event_duration_listener(note)
    assert compiled.count("jit(start)") == compiled.count("jit(rounds)") == 1
    for seed, run in zip(seeds, runs, strict=True):
        alone = simulate(algorithm, FEW, key=jax.random.key(seed))
        assert_same_bits(run.server_state, alone.server_state)


APART = {
    "momentum": fedprox(momentum=None),
    "batches": fedprox(batch_size=3),
    "steps": fedprox(epochs=None, steps=1),
    "weighting": fedprox(weighting="num_examples"),
    "tuning": dataclasses.replace(fedprox(), fine_tune_epochs=2),
    "evaluation": dataclasses.replace(fedprox(), evaluation="fine_tune"),
    "cut": dataclasses.replace(fedprox(), model=model(hidden=(3,), cut="fc1")),
    "class": FedAvg(
        model(hidden=(3,)),
        srp.Training(srp.SGD(0.3, 0.5), batch_size=4),
        fine_tune_epochs=1,
    ),
    "schedule": fedprox(rate=optax.constant_schedule(0.3)),
    "edited": changed(fedprox()),
}


@pytest.mark.parametrize("case", APART)
def test_any_other_difference_compiles_again(case):
    assert spec_of(APART[case]) != spec_of(fedprox())


def test_the_loss_and_evaluations_have_their_own_programs():
    spec = spec_of(fedprox())
    assert spec_of(fedprox(), record_loss=True) != spec
    assert spec_of(fedprox(), evaluations="all") != spec
    assert spec_of(fedprox(), evaluations="global") == spec


# The same numbers.


def closed_over(algorithm):
    """Return the same algorithm with its floats as constants of the program."""
    functions = {name: getattr(algorithm, name) for name in ("init", "init_client")}
    return changed(
        algorithm, **functions, evaluations=algorithm.evaluations, phases=algorithm.phases
    )


NUMBERS = {"learning_rate": 0.3, "momentum": 0.5, "weight_decay": 0.01}


@pytest.mark.short("fedprox-*")
@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("fedrep", {}),
        pytest.param("hf_maml", {"inner_step_size": 0.07}, marks=pytest.mark.long),
        ("fedprox", {"mu": 0.3}),
    ],
)
def test_arguments_give_the_results_of_constants(name, more):
    made = get(name, **NUMBERS, **more).algorithm
    options = {"eval_every": 3, "devices": 1}
    arguments, constants = (
        simulate(made, **options),
        simulate(closed_over(made), **options),
    )
    assert constants.compile_seconds > 0
    scale = max(np.abs(leaf).max() for leaf in leaves(constants))
    for a, b in zip(leaves(arguments), leaves(constants), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6 * scale)
    for evaluation, scores in constants.accuracies.items():
        np.testing.assert_allclose(arguments.accuracies[evaluation], scores, atol=1e-6)
    np.testing.assert_array_equal(arguments.compute_time, constants.compute_time)


# Equal parts.


def test_equal_models_and_optimizers_compare_equal():
    get = srp.models.get
    others = dataclasses.replace(DATA, name="others")
    assert get("mlp", DATA, hidden=[5, 4]) == get("mlp", others, hidden=(5, 4))
    assert get("mlp", DATA, hidden=(5, 4)) != get("mlp", DATA, 2, hidden=(5, 4))
    assert model(dtype=jnp.float32) == model(dtype="float32")
    assert srp.SGD(0.1, 0.5) == srp.SGD(momentum=0.5, learning_rate=0.1)
    assert srp.SGD(0.1) != srp.SGD(0.2)
