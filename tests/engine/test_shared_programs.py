"""Parts that differ only in floats share one program; any other difference compiles again."""

import dataclasses
import gc
from concurrent import futures
from pathlib import Path

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
from fedjax_srp.base import ClientOutput
from fedjax_srp.contract import checks as contract
from fedjax_srp.driver import programs as program
from fedjax_srp.driver.adapt import Fit
from fedjax_srp.parts.part import rebuilt, values_of, with_values
from fedjax_srp.rounds.sharding import lay_out
from fedjax_srp.xla.loops import reversible
from fedjax_srp.xla.program_text import program_hash

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
    "kinds of numbers": [
        fedprox(mu, batch_size=3)
        for mu in (1, 0.5, np.float32(0.25), np.float64(0.1), np.array(2))
    ],
    "by name": [get("apfl", learning_rate=rate) for rate in (0.1, 0.3)],
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
        for options in (
            {"eval_every": 4},
            {"eval_every": 10**9},
            {"eval_every": 5, "eval_first": 2, "eval_last": 3},
        ):
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


def test_dropped_functions_are_freed():
    """On Linux a process that keeps hundreds of them runs out of memory areas."""
    areas = Path("/proc/self/maps")
    if not areas.exists():
        pytest.skip("this system does not list the memory areas of a process")

    def number():
        gc.collect()
        return areas.read_bytes().count(b"\n")

    program._jitted.cache_clear()
    before = number()
    for _ in range(3):
        simulate(counting(), FEW, num_rounds=1)
    kept = number()
    # of each run two that ran, and three of which the record has hashes
    assert program._jitted.cache_info().currsize == 15
    program._jitted.cache_clear()
    assert number() - before < 0.2 * (kept - before)


CLOCKS = {
    "fixed": lambda rate: srp.clocks.Fixed(srp.clocks.Exponential(rate)),
    "work": lambda work: srp.clocks.Fixed(srp.clocks.Exponential(2.0), work=work),
    "dynamic": lambda low: srp.clocks.Dynamic(
        srp.clocks.Exponential(srp.clocks.Uniform(low, 5.0))
    ),
    "trace": lambda start: srp.clocks.Trace(np.arange(18.0).reshape(3, 6) + start),
    "per client": lambda start: srp.clocks.Fixed(
        srp.clocks.Constant([start + i for i in range(6)])
    ),
}


@pytest.mark.parametrize("kind", CLOCKS)
def test_floats_of_clocks_are_arguments(kind):
    algorithm = counting()
    with traced() as names:
        runs = [
            simulate(algorithm, FEW, clock=CLOCKS[kind](rate)) for rate in (1.0, 3.0, 3)
        ]
    assert names == ["start", "rounds"]
    assert [run.compile_seconds for run in runs[1:]] == [0.0, 0.0]
    assert (runs[0].client_time != runs[1].client_time).all()
    np.testing.assert_array_equal(
        runs[2].client_time, runs[1].client_time
    )  # whole numbers are floats
    for rate, run in zip((1.0, 3.0), runs, strict=False):  # as outside of any program
        clock = CLOCKS[kind](rate)
        key = srp.named_key(srp.named_key(KEY, "clock"), "init")
        times, _ = clock.sample(KEY, clock.init(key, 6), jnp.zeros(()))
        np.testing.assert_allclose(run.client_time, times.expected, rtol=1e-6)


def test_floats_of_policies_are_arguments():
    policies = [
        srp.participation.StatisticalAccuracy(2, shrinkage=share) for share in (0.5, 0.9)
    ]
    method = FedAvg(model())
    assert spec_of(method, participation=policies[0]) == spec_of(
        method, participation=policies[1]
    )
    on_time = [
        srp.participation.PartialWork(3, on_time=share) for share in (0.5, 0.9)
    ]  # which shapes the program
    assert spec_of(method, participation=on_time[0]) != spec_of(
        method, participation=on_time[1]
    )


def test_srpfl_fedrep_and_all_stages_are_one_program():
    policies = [
        srp.participation.Full(),
        srp.participation.Doubling(2, 1),
        srp.participation.Doubling(3, 2),
        *[srp.participation.Uniform(4), srp.participation.Doubling(2, 1, pool=4)],
        *[
            srp.participation.Doubling(2, (1, 0, 1)),
            srp.participation.Doubling(2, (2, 1, 1)),
        ],
    ]
    algorithm = counting()
    runs = [simulate(algorithm, FEW, participation=policy) for policy in policies]
    assert [run.compile_seconds > 0 for run in runs] == [
        True,
        False,
        False,
        True,
        False,
        True,
        False,
    ]
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


def test_every_float_of_every_method_is_an_argument():
    """Algorithms with half the values share the program."""
    spec_of = lambda made: (
        program.program(
            made, srp.participation.Full(), CLOCK, (), lay_out(1, None, 6)
        ).spec
    )
    for name in srp.methods.algorithm_names():
        algorithm = get(name, momentum=0.2, weight_decay=0.01).algorithm
        values = values_of(algorithm)
        assert values.keys() >= {
            f"training.optimizer.{n}"
            for n in ("learning_rate", "momentum", "weight_decay")
        }
        half = {path: value / 2 for path, value in values.items()}
        halved = rebuilt(with_values(algorithm, half))
        assert spec_of(halved) == spec_of(algorithm), name


APART = {
    "momentum": fedprox(momentum=None),
    "decay": dataclasses.replace(
        fedprox(), training=srp.Training(srp.SGD(0.3, 0.5, 0.1), batch_size=4)
    ),
    "batches": fedprox(batch_size=3),
    "epochs": fedprox(epochs=2),
    "steps": fedprox(epochs=None, steps=1),
    "weighting": fedprox(weighting="num_examples"),
    "tuning": dataclasses.replace(fedprox(), fine_tune_epochs=2),
    "its own tuning": dataclasses.replace(
        fedprox(), fine_tune_optimizer=srp.SGD(0.3, 0.5)
    ),
    "evaluation": dataclasses.replace(fedprox(), evaluation="fine_tune"),
    "model": dataclasses.replace(fedprox(), model=model(hidden=(4,))),
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


def test_platform_and_reverse_mode_are_part_of_every_key(monkeypatch):
    """Both change what is traced: static bounds of loops, and code for a kind of device."""
    algorithm = counting()
    made = prepared(algorithm, FEW, devices=1)
    plain = made.program()
    assert plain.spec.mode == ("cpu", 0)
    with reversible(2):
        other = made.program()
    assert other.spec.mode == ("cpu", 2)
    assert other.spec != plain.spec
    root, data = made.placed(KEY)
    shapes = made.layout.shapes(root), made.layout.shapes(data)
    # traced here, outside of the mode in which the program was made
    assert "while" in str(plain.traced(True, *shapes).jaxpr)
    assert "while" not in str(other.traced(True, *shapes).jaxpr)
    elsewhere = program.Mode("gpu", 0)
    monkeypatch.setattr(program, "Mode", lambda platform, reversible: elsewhere)
    assert made.program().spec != plain.spec


def test_checks_are_repeated_for_another_platform_and_in_reverse_mode(monkeypatch):
    algorithm = counting()
    calls = []

    def counted(*args):
        calls.append(args)
        return check(*args)

    check = contract.check_algorithm
    monkeypatch.setattr("fedjax_srp.driver.prepare.check_algorithm", counted)
    for _ in range(2):
        prepared(algorithm, FEW, devices=1)
        with reversible(2):
            prepared(algorithm, FEW, devices=1)
    assert len(calls) == 2
    monkeypatch.setattr(
        "fedjax_srp.driver.prepare.current_mode", lambda: program.Mode("gpu", 0)
    )
    prepared(algorithm, FEW, devices=1)
    assert len(calls) == 3


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
    get, sgd = srp.models.get, srp.SGD
    others = dataclasses.replace(
        federation(clients_of((4,) * 3, (2,) * 3)), name="others"
    )
    assert get("mlp", DATA, hidden=[5, 4]) == get(
        "mlp", others, hidden=(5, 4)
    )  # other clients, the same shapes
    assert get("mlp", DATA, hidden=(5, 4)) != get("mlp", DATA, 2, hidden=(5, 4))
    assert get("mlp", DATA, initialization="torch") != get("mlp", DATA)
    assert get("lstm", DATA, vocabulary=9, features=4) == get(
        "lstm", DATA, 1, features=4, vocabulary=9
    )
    assert get("mlp", DATA) == get(
        "mlp", DATA, hidden=srp.models.options("mlp")["hidden"]
    )
    assert (
        model(dtype=jnp.float32)
        == model(dtype="float32")
        == model(dtype=np.dtype("float32"))
    )
    assert (
        sgd(0.1, 0.5)
        == sgd(momentum=0.5, learning_rate=0.1)
        == sgd(0.1, 0.5, weight_decay=None)
    )
    assert sgd(0.1) != sgd(0.2)
    courses = [
        Fit(get("mlp", DATA, hidden=(5,)), srp.Training(sgd(0.1)), "head", 2)
        for _ in range(2)
    ]
    assert courses[0] == courses[1]  # so `srp.adapt` compiles once
    assert hash(courses[0]) == hash(courses[1])


# Checkpoints.


@pytest.mark.long
def test_a_checkpoint_of_a_criterion_without_constants_is_continued(tmp_path):
    """FLANP's heuristic has nan for a threshold that is not known yet."""
    options = {"eval_every": 10, "devices": None}
    method = srp.methods.get("flanp", dataset=DATA, hidden=(3,), initial=2)
    assert (
        simulate(
            method, **options | {"num_rounds": 1, "checkpoint_dir": tmp_path}
        ).num_rounds
        == 1
    )
    longer = simulate(method, **options, checkpoint_dir=tmp_path)
    whole = simulate(method, **options)
    np.testing.assert_array_equal(longer.compute_time, whole.compute_time)
    np.testing.assert_array_equal(longer.mean_accuracy[-1], whole.mean_accuracy[-1])


@pytest.mark.long
def test_a_checkpoint_has_a_hash_of_a_long_trace(tmp_path):
    times = np.arange(1, 6 * 300 + 1, dtype=float).reshape(300, 6)
    options = {"num_rounds": 1, "checkpoint_dir": tmp_path}
    simulate(get("fedavg"), clock=srp.clocks.Trace(times), **options)
    assert (
        max(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
        < 20_000
    )
    options["num_rounds"] = 2
    with pytest.raises(ValueError, match="belongs to a run with"):
        simulate(get("fedavg"), clock=srp.clocks.Trace(times + 1), **options)
    assert (
        simulate(get("fedavg"), clock=srp.clocks.Trace(times), **options).num_rounds == 2
    )


@pytest.mark.short("fedrep-2-3")
@pytest.mark.parametrize(
    ("name", "num_devices", "num_seeds"), [("fedavg", 1, None), ("fedrep", 2, 3)]
)
def test_a_program_traced_from_shapes_is_the_one_that_runs(name, num_devices, num_seeds):
    examples = {
        split: getattr(DATA, split)
        for split in ("x_train", "y_train", "x_test", "y_test")
    }
    shapes = {
        split: jax.ShapeDtypeStruct(array.shape, array.dtype)
        for split, array in examples.items()
    }
    options = {"devices": num_devices, "num_seeds": num_seeds, "evaluations": ()}
    absent, run = (
        prepared(get(name), data, **options)
        for data in (dataclasses.replace(DATA, **shapes), DATA)
    )
    traced, compiled = absent.traced(), run.program()
    root, data = run.placed(
        KEY if num_seeds is None else jax.random.split(KEY, num_seeds)
    )
    state = compiled.start(root, data).state
    assert program_hash(traced.lower()) == compiled.segment_fingerprint(state, root, data)
