"""Float hyper-parameters are arguments of the program: other values, the same program, the same numbers."""

import dataclasses
import doctest
import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial
from reference.small import KEY, algorithm_of, clients_of, federation, numbers

import fedjax_srp as srp
from fedjax_srp.adaptation import _course
from fedjax_srp.base import ClientOutput
from fedjax_srp.engine.prepare import Request, prepare
from fedjax_srp.parts import are_named, attach, detach, values_of, with_values

DATA = federation(clients_of((4, 6, 3, 8, 5, 7), (3,) * 6))
OPTIONS = {"num_rounds": 3, "eval_every": 1, "key": KEY, "progress": False, "devices": 2}
SHORT = {"hidden": (5, 4), "fine_tune_epochs": 1}


def get(name, **options):
    return srp.methods.get(name, dataset=DATA, shared=SHORT | {"initial": 2, "rounds_per_stage": 1, "k": 2}, **options)


def shared_of(algorithm, **options):
    """What the programs of equal parts share."""
    return prepare(Request(algorithm, DATA, devices=2, **options)).program().shared


def constant(name, learning_rate, momentum=0.0, weight_decay=0.0, **options):
    """The same method closed over its numbers."""
    row, optimizer = srp.methods.recipe(name), srp.algorithms.sgd(learning_rate, momentum, weight_decay)
    model = srp.models.get("mlp", DATA, row.head_layers, hidden=(5, 4))
    return row.factory(model, optimizer=optimizer, fine_tune_epochs=1, **options)


def test_examples():
    assert doctest.testmod(importlib.import_module("fedjax_srp.parts")).failed == 0


def test_two_learning_rates_one_trace():
    first = srp.simulate(get("fedrep", learning_rate=0.3), DATA, **OPTIONS)
    shared = shared_of(get("fedrep", learning_rate=0.3))
    traces, compiled = shared.num_traces, len(shared.compiled)
    assert traces == 2
    second = srp.simulate(get("fedrep", learning_rate=0.05), DATA, **OPTIONS)
    assert shared_of(get("fedrep", learning_rate=0.05)) is shared
    assert (shared.num_traces, len(shared.compiled)) == (traces, compiled)
    assert second.compile_seconds == 0
    assert any(
        (a != b).any() for a, b in zip(*map(jax.tree.leaves, (first.server_state, second.server_state)), strict=True)
    )
    assert second.config["options"]["learning_rate"] == 0.05


@pytest.mark.parametrize("name", ["srpfl", "lg_fedavg", "fedavg_ft", "fedbuff", "hf_maml"])
def test_methods_made_anew_share_their_programs_and_other_constants_do_not(name):
    assert shared_of(get(name, learning_rate=0.1)) is shared_of(get(name, learning_rate=0.2))
    assert shared_of(get(name, momentum=0.1)) is shared_of(get(name, momentum=0.2))
    assert shared_of(get(name, momentum=0.1)) is not shared_of(get(name))  # a buffer more
    assert shared_of(get(name, batch_size=3)) is not shared_of(get(name))


NUMBERS = {"learning_rate": 0.3, "momentum": 0.5, "weight_decay": 0.01}


@pytest.mark.parametrize(("name", "more"), [("fedrep", {}), ("hf_maml", {"inner_step_size": 0.07})])
def test_the_numbers_are_those_of_constants(name, more):
    options = OPTIONS | {"eval_every": 3, "devices": 1}
    tuned = srp.simulate(get(name, **NUMBERS, **more), DATA, **options)
    fixed = srp.simulate(constant(name, **NUMBERS, **more), DATA, **options)
    scale = max(np.abs(leaf).max() for leaf in jax.tree.leaves(fixed.server_state))
    for a, b in zip(jax.tree.leaves(tuned.server_state), jax.tree.leaves(fixed.server_state), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6 * scale)
    for evaluation, scores in fixed.accuracies.items():
        np.testing.assert_allclose(tuned.accuracies[evaluation], scores, atol=1e-6)
    np.testing.assert_array_equal(tuned.compute_time, fixed.compute_time)


CLOCKS = {
    "fixed": lambda rate: srp.clocks.fixed(srp.clocks.exponential(rate)),
    "work": lambda work: srp.clocks.fixed(srp.clocks.exponential(2.0), work=work),
    "dynamic": lambda low: srp.clocks.dynamic(srp.clocks.exponential(srp.clocks.uniform(low, 5.0))),
    "trace": lambda start: srp.clocks.trace(np.arange(18.0).reshape(3, 6) + start),
    "per client": lambda start: srp.clocks.fixed(srp.clocks.constant([start + i for i in range(6)])),
}


@pytest.mark.parametrize("kind", CLOCKS)
def test_rates_of_clocks_are_arguments(kind):
    method = get("fedavg")
    runs = [srp.simulate(method, DATA, clock=CLOCKS[kind](rate), **OPTIONS) for rate in (1.0, 3.0)]
    assert shared_of(method, clock=CLOCKS[kind](1.0)) is shared_of(method, clock=CLOCKS[kind](3.0))
    assert runs[1].compile_seconds == 0
    assert (runs[0].client_time != runs[1].client_time).all()
    for rate, run in zip((1.0, 3.0), runs, strict=True):  # as outside of any program
        clock = CLOCKS[kind](rate)
        key = srp.named_key(srp.named_key(KEY, "clock"), "init")
        times, _ = clock.sample(KEY, clock.init(key, 6))
        np.testing.assert_allclose(run.client_time, times.expected, rtol=1e-6)


def test_integers_and_floats_make_the_same_clock():
    exponential, fixed = srp.clocks.exponential, srp.clocks.fixed
    assert shared_of(get("fedavg"), clock=fixed(exponential(1))) is shared_of(
        get("fedavg"), clock=fixed(exponential(2.5))
    )


def test_equal_policies_are_the_same_policy():
    make = srp.participation.doubling
    assert make(5, 10) is make(5, 10) is make(rounds_per_stage=10, initial=5)
    assert make(5, 10) is not make(5, 11)
    assert make(5, [1, 2]) is not make(5, [1, 2])  # lists have no hash: programs are compiled anew
    assert make(5, (1, 2)) is make(5, (1, 2))


def test_equal_models_and_optimizers_are_the_same():
    get, sgd = srp.models.get, srp.algorithms.sgd
    first, again = (federation(clients_of((4,) * clients, (2,) * clients)) for clients in (3, 5))
    again = dataclasses.replace(again, name="others")
    assert get("mlp", first, hidden=[5, 4]) is get("mlp", again, hidden=(5, 4))  # other clients, the same shapes
    assert get("mlp", DATA, hidden=(5, 4)) is not get("mlp", DATA, 2, hidden=(5, 4))
    assert get("mlp", DATA, initialization="torch") is not get("mlp", DATA)
    assert sgd(0.1, momentum=0.5) is sgd(0.1, momentum=0.5)
    assert sgd(0.1, 0.5) is sgd(momentum=0.5, learning_rate=0.1) is sgd(0.1, 0.5, weight_decay=0.0)
    assert get("lstm", DATA, vocabulary=9, features=4) is get("lstm", DATA, 1, features=4, vocabulary=9)
    assert get("mlp", DATA) is get("mlp", DATA, hidden=srp.models.options("mlp")["hidden"])
    assert sgd(0.1) is not sgd(0.2)
    assert sgd(jnp.float32(0.1)) is not sgd(jnp.float32(0.1))  # arrays have no hash
    courses = [_course(get("mlp", DATA, hidden=(5,)), "head", 2, sgd(0.1), 10) for _ in range(2)]
    assert courses[0] is courses[1]  # so `srp.adapt` compiles once


def test_values_differ_between_the_seeds_of_a_batch():
    rates, keys = [0.3, 0.05, 0.3], jnp.stack([KEY, KEY, jax.random.key(1)])
    options = {name: value for name, value in OPTIONS.items() if name != "key"}
    batch = srp.simulate_seeds(get("fedrep"), DATA, keys=keys, values={"learning_rate": rates}, **options)
    for rate, key, history in zip(rates, keys, batch, strict=True):
        alone = srp.simulate(get("fedrep", learning_rate=rate), DATA, **OPTIONS | {"key": key})
        np.testing.assert_allclose(history.accuracy, alone.accuracy, atol=1e-6)
        for a, b in zip(jax.tree.leaves(history.server_state), jax.tree.leaves(alone.server_state), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
        assert history.config["options"]["learning_rate"] == pytest.approx(rate)
    with pytest.raises(ValueError, match=r"values\['learning_rate'\] has shape \(2,\), give a number for each of 3"):
        srp.simulate_seeds(get("fedrep"), DATA, keys=keys, values={"learning_rate": [0.1, 0.2]}, **options)
    with pytest.raises(ValueError, match=r"values\['learning_rate'\] has shape \(4,\), give a number for each of 3"):
        srp.simulate_seeds(get("fedrep"), DATA, keys=keys, values={"learning_rate": [*rates, 0.1]}, **options)
    with pytest.raises(ValueError, match="values has 'mu', which is no float of algorithm 'fedrep'; it has learning_r"):
        srp.simulate_seeds(get("fedrep"), DATA, keys=keys, values={"mu": rates}, **options)
    with pytest.raises(ValueError, match=r"it has none; make it with srp.methods.get or srp.tunable"):
        srp.simulate_seeds(constant("fedavg", 0.1), DATA, keys=keys, values={"learning_rate": rates}, **options)


def test_a_zero_is_a_constant_of_the_program():
    """It may leave out a computation, as that of momentum."""
    assert values_of(get("fedavg", momentum=0.0).algorithm).keys() == {"learning_rate"}
    assert values_of(get("fedavg", momentum=0.5).algorithm).keys() == {"learning_rate", "momentum"}


def test_whole_numbers_are_values_too():
    method = get("fedprox", mu=1)
    assert values_of(method.algorithm)["mu"] == 1.0
    assert shared_of(method) is shared_of(get("fedprox", mu=0.5))
    own = srp.tunable(lambda values: of_scale(values["scale"]), {"scale": np.int32(3)})
    for algorithm, name in ((method.algorithm, "mu"), (own, "scale")):
        assert any(are_named(algorithm._replace(evaluations={}), [name]))
        with_axis = with_values(algorithm, {name: np.array([1.0, 9.0])})
        np.testing.assert_array_equal(values_of(with_axis)[name], [1.0, 9.0])


def test_values_survive_batches_of_seeds(monkeypatch):
    """Where memory is short, each batch gets the values of its own seeds."""
    from fedjax_srp.engine import simulate

    monkeypatch.setattr(simulate, "seeds_at_once", lambda request, num_seeds, sharers=1: 1)
    options = {name: value for name, value in OPTIONS.items() if name != "key"}
    keys, rates = jnp.stack([KEY, KEY]), [0.3, 0.05]
    runs = srp.simulate_seeds(get("fedavg"), DATA, keys=keys, values={"learning_rate": rates}, **options)
    assert [run.config["options"]["learning_rate"] for run in runs] == pytest.approx(rates)
    assert (runs[0].accuracy != runs[1].accuracy).any()


def test_a_checkpoint_knows_the_values(tmp_path):
    run = {**OPTIONS, "checkpoint_dir": tmp_path / "run"}
    srp.simulate(get("fedavg", learning_rate=0.1), DATA, **run)
    with pytest.raises(ValueError, match=r"belongs to a run with options\.learning_rate=0.1, this one has 0.2"):
        srp.simulate(get("fedavg", learning_rate=0.2), DATA, **run)
    build = lambda values: constant("fedavg", values["rate"])  # noqa: E731
    run["checkpoint_dir"] = tmp_path / "own"
    srp.simulate(srp.tunable(build, {"rate": 0.1}), DATA, **run)
    with pytest.raises(ValueError, match=r"belongs to a run with options\.optimizer\.learning_rate="):
        srp.simulate(srp.tunable(build, {"rate": 0.2}), DATA, **run)
    clock = srp.clocks.fixed(srp.clocks.exponential(2.0))
    with pytest.raises(ValueError, match=r"belongs to a run with clock_options"):
        srp.simulate(srp.tunable(build, {"rate": 0.1}), DATA, clock=clock, **run)


def test_values_that_a_factory_refuses_are_refused_for_each_run():
    keys = jax.random.split(jax.random.key(0), 3)
    run = {"keys": keys, "num_rounds": 1, "progress": False}
    with pytest.raises(ValueError, match=r"values of run 1: learning_rate must be finite and positive, got -0\.2"):
        srp.simulate_seeds(get("fedavg"), DATA, values={"learning_rate": [0.1, -0.2, 0.0]}, **run)
    method = get("fedavg", momentum=0.5)
    with pytest.raises(ValueError, match=r"values of run 2: momentum=3\.0 must be below 1"):
        srp.simulate_seeds(method, DATA, values={"momentum": [0.5, 0.0, 3.0]}, **run)


def test_a_checkpoint_of_a_number_that_is_none_goes_on(tmp_path):
    """FLANP's heuristic criterion carries nan for the constants that nobody gave."""
    run = {"key": jax.random.key(0), "checkpoint_dir": tmp_path, "progress": False}
    method = srp.methods.get("flanp", dataset=DATA, hidden=(3,), initial=2)
    assert srp.simulate(method, DATA, num_rounds=1, **run).num_rounds == 1
    longer = srp.simulate(method, DATA, num_rounds=3, **run)
    whole = srp.simulate(method, DATA, num_rounds=3, **run | {"checkpoint_dir": None})
    np.testing.assert_array_equal(longer.compute_time, whole.compute_time)
    np.testing.assert_array_equal(longer.mean_accuracy[-1], whole.mean_accuracy[-1])


def test_a_checkpoint_has_a_hash_of_a_long_trace(tmp_path):
    times = np.arange(1, 6 * 300 + 1, dtype=float).reshape(300, 6)
    run = {"key": jax.random.key(0), "checkpoint_dir": tmp_path, "progress": False, "num_rounds": 1}
    srp.simulate(get("fedavg"), DATA, clock=srp.clocks.trace(times), **run)
    assert max(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < 20_000
    run["num_rounds"] = 2
    with pytest.raises(ValueError, match="belongs to a run with"):
        srp.simulate(get("fedavg"), DATA, clock=srp.clocks.trace(times + 1), **run)
    assert srp.simulate(get("fedavg"), DATA, clock=srp.clocks.trace(times), **run).num_rounds == 2


def of_scale(scale):
    """Clients report a multiple of their number, and the server keeps the mean."""
    return algorithm_of(lambda key, broadcast, state, value, context: ClientOutput(scale * value))


def test_only_values_that_are_given_for_each_seed_have_an_axis_of_seeds():
    """An array that an algorithm carries is the same for all seeds, also where it has as many entries as there are."""
    offset = np.array([10.0, 20.0, 30.0], np.float32)

    def build(values):
        def client(key, broadcast, state, value, context):
            return ClientOutput(values["scale"] * value + values["offset"])

        return algorithm_of(client, init=lambda key, data: jnp.zeros(3))

    algorithm = srp.tunable(build, {"scale": 1.0, "offset": offset})
    options = {"keys": jax.random.split(KEY, 3), "num_rounds": 1, "progress": False, "devices": 1}
    runs = srp.simulate_seeds(algorithm, numbers(1.0, 2.0, 6.0), values={"scale": [1.0, 2.0, 4.0]}, **options)
    for scale, run in zip((1.0, 2.0, 4.0), runs, strict=True):
        np.testing.assert_allclose(run.server_state, scale * 3 + offset, rtol=1e-6)
        assert run.config["options"] == {"scale": scale}


def initial(w, key, data):
    return w


def echo(key, broadcast, state, value, context):
    return ClientOutput(broadcast)


def test_sizes_follow_the_arrays_that_an_algorithm_carries():
    algorithm = algorithm_of(echo)
    for dtype, size in ((jnp.float32, 10), (jnp.float32, 1000), (jnp.float16, 1000)):
        carrying = algorithm._replace(init=Partial(initial, jnp.zeros(size, dtype)))
        sizes = prepare(Request(carrying, numbers(1.0, 2.0))).sizes
        assert (sizes.up, sizes.down, sizes.server_state) == (size * jnp.dtype(dtype).itemsize,) * 3


def test_tunable_wraps_every_function_and_keeps_the_rest():
    made = srp.tunable(lambda values: of_scale(values["scale"]), {"scale": 3.0})
    plain = of_scale(3.0)
    assert made.name == plain.name
    assert list(made.evaluations) == list(plain.evaluations)
    assert (made.finish, made.prepare, made.gradient, made.sends) == (None,) * 4
    assert values_of(made) == {"scale": 3.0}
    assert values_of(plain) == {}
    data = numbers(1.0, 2.0, 6.0)
    run = srp.simulate(made, data, num_rounds=1, key=KEY, progress=False)
    assert float(run.server_state) == 9.0
    other = made._replace(evaluations={})  # nothing goes stale
    assert float(srp.simulate(other, data, num_rounds=1, key=KEY, progress=False).server_state) == 9.0


def test_what_is_taken_off_is_put_back():
    parts = get("srpfl").algorithm._replace(evaluations={}), CLOCKS["dynamic"](0.5)
    static, values = detach(parts)
    assert sorted({float(value) for value in values}) == [0.0, 0.01, 0.5, 1.0, 5.0]
    again = attach(static, values)
    assert detach(again) == (static, values)
    assert hash(static) == hash(detach(attach(static, values))[0])


def test_what_a_build_refuses_is_refused_at_once():
    with pytest.raises(ValueError, match="learning_rate must be finite and positive, got -1"):
        srp.tunable(lambda values: constant("fedavg", values["rate"]), {"rate": -1.0})
