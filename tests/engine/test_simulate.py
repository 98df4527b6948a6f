"""`simulate` on the host: what ends up in a history, when a run stops, and what it says to wrong arguments."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.small import KEY, algorithm_of, changed, clients_of, federation, model, numbers, scripted

import fedjax_srp as srp
from fedjax_srp import storage
from fedjax_srp.backend import platform
from fedjax_srp.base import ClientOutput
from fedjax_srp.engine import outcome
from fedjax_srp.engine.outcome import Limits
from fedjax_srp.engine.program import program
from fedjax_srp.engine.sharding import lay_out

VALUES = np.array([3.0, -1.0, 4.0, 1.5, -5.0, 9.0, 2.0], np.float32)
DATA = numbers(*VALUES)
TIMES = np.array([7.0, 1.0, 3.0, 2.0, 11.0, 5.0, 13.0])
CLOCK = srp.clocks.Fixed(srp.clocks.Constant(TIMES))
DOUBLING = srp.participation.Doubling(2, 2)  # 2, 2, 4, 4, 7, ... participants: times 2, 2, 5, 5, 13, ...


def half_way(key, w, state, value, context):
    return ClientOutput(w + 0.5 * (value - w), state + 1)


ALGORITHM = algorithm_of(
    half_way,
    init_client=lambda key, server, value: jnp.zeros(()),
    evaluations={
        "rounds": lambda key, server, state, value: lambda test: state,
        "model": lambda key, server, state, value: lambda test: server,
        "value": lambda key, server, state, value: lambda test: test,
    },
    metrics=lambda server, data: {"w": server},
)
FULL = srp.participation.Full()
CLOSE = {"rtol": 1e-6, "atol": 1e-6}  # w passes near zero on its way between values of both signs


def simulate(algorithm=ALGORITHM, data=DATA, num_rounds=5, **options):
    given = {"participation": DOUBLING, "clock": CLOCK, "key": KEY, "progress": False, "eval_every": 2, "devices": 1}
    return srp.simulate(algorithm, data, num_rounds=num_rounds, **given | options)


def test_a_history_says_what_happened():
    history = simulate(evaluations="all")
    order = np.argsort(TIMES)
    w, ws, counts, evaluated = 0.0, [], np.zeros(7), []
    for t, size in enumerate([2, 2, 4, 4, 7]):
        w += 0.5 * (VALUES[order[:size]].mean() - w)
        counts[order[:size]] += 1
        ws.append(w)
        if t in (1, 3, 4):  # every two rounds and after the last
            evaluated.append((counts.copy(), np.full(7, w), VALUES))
    np.testing.assert_array_equal(history.round, [1, 2, 3, 4, 5])
    np.testing.assert_array_equal(history.cohort_size, [2, 2, 4, 4, 7])
    np.testing.assert_array_equal(history.stage, [0, 0, 1, 1, 2])
    np.testing.assert_array_equal(history.compute_time, [2, 2, 5, 5, 13])
    np.testing.assert_allclose(history.metrics["w"], ws, **CLOSE)
    np.testing.assert_array_equal(history.eval_round, [2, 4, 5])
    assert list(history.accuracies) == ["rounds", "model", "value"]
    for name, expected in zip(history.accuracies, zip(*evaluated, strict=True), strict=True):
        np.testing.assert_allclose(history.accuracies[name], expected, **CLOSE)
    np.testing.assert_array_equal(history.test_count, np.ones(7))
    np.testing.assert_array_equal(history.client_time, TIMES)
    assert history.diverged is None
    assert history.name == "few_lines + doubling"
    assert (history.bytes_up, history.bytes_down) == (4, 4)


def test_a_run_stops_at_the_first_evaluation_beyond_its_limits():
    assert simulate(num_rounds=20, time_limit=8.9).num_rounds == 4  # 9 time units after round 3
    assert simulate(num_rounds=20, time_limit=4).num_rounds == 2
    assert simulate(num_rounds=20, target=2.5).num_rounds == 6  # mean number of rounds: 8/14 at 2, 12/7, 26/7 at 6
    assert simulate(num_rounds=4, time_limit=1e9, target=1e9).num_rounds == 4


def test_a_batch_ends_when_each_seed_has_reached_one_of_the_limits():
    scores = np.array([[0.1, 0.2, 0.9, 0.9], [0.1, 0.1, 0.1, 0.1]])[:, :, None]
    records = {"eval_round": np.array([[1, 2, 3, 4]] * 2), "compute_time": np.array([[1.0] * 4, [1.0, 9.0, 1.0, 1.0]])}
    records |= {"means/global": scores[..., 0]}
    run = SimpleNamespace(evaluations=("global",), data=None)

    def end(target=None, time_limit=None):
        return outcome.ended_after(records, run, Limits(4, 1, time_limit, target))

    assert end(target=0.8, time_limit=5.0) == 3  # the first seed by its target, the second by its time, before
    assert end(target=0.8) is None
    assert end(time_limit=11.0) is None
    assert end(time_limit=3.0) == 3


def test_a_target_that_nothing_can_reach_is_refused():
    data = srp.data.load("digits", num_clients=4, classes_per_client=3, max_examples=5)
    method = srp.methods.get("fedavg", dataset=data, hidden=(3,))
    run = {"num_rounds": 1, "key": KEY, "progress": False}
    with pytest.raises(ValueError, match=r"target=90: accuracies lie between 0 and 1; give 0\.9 for 90 %"):
        srp.simulate(method, data, target=90, **run)
    with pytest.raises(ValueError, match=r"target=0\.5: nothing is evaluated, so nothing reaches it"):
        srp.simulate(method, data, target=0.5, evaluations=(), **run)


@pytest.mark.parametrize(
    ("eval_every", "eval_first", "grid"),
    [(3, 3, [1, 2, 3, 6, 7]), (3, 2, [1, 2, 3, 6, 7]), (2, 3, [1, 2, 3, 4, 6, 7]), (9, 1, [1, 7]), (2, 9, range(1, 8))],
)
def test_the_grid_of_evaluations_is_dense_at_first(eval_every, eval_first, grid):
    limits, completed = Limits(7, eval_every, None, None, eval_first), [0]
    while completed[-1] < 7:
        completed.append(limits.next_evaluation(completed[-1]))
    assert completed[1:] == list(grid)


@pytest.mark.parametrize(
    ("eval_every", "eval_first", "eval_last", "grid"),
    [
        (3, 0, 2, [3, 6, 7]),
        (3, 0, 3, [3, 5, 6, 7]),
        (9, 2, 1, [1, 2, 7]),
        (4, 0, 9, range(1, 8)),
        (2, 6, 2, range(1, 8)),
    ],
)
def test_the_last_rounds_are_evaluated_too(eval_every, eval_first, eval_last, grid):
    limits, completed = Limits(7, eval_every, None, None, eval_first, eval_last), [0]
    while completed[-1] < 7:
        completed.append(limits.next_evaluation(completed[-1]))
    assert completed[1:] == list(grid)
    plain, longer = limits._replace(eval_last=0), []  # a run of 99 rounds evaluates nowhere else up to there
    for after in range(1, 8):
        undisturbed = [r for r in completed[1:] if r <= after] == [r for r in range(1, after + 1) if plain.on_grid(r)]
        if plain.on_grid(after) and undisturbed:
            longer.append(after)
    assert [after for after in range(1, 8) if limits.goes_on(after)] == longer


def test_a_run_with_its_last_rounds_evaluated_is_made_longer(tmp_path):
    options = {"eval_every": 2, "eval_last": 3, "checkpoint_dir": tmp_path / "run"}
    short = simulate(num_rounds=6, **options)
    np.testing.assert_array_equal(short.eval_round, [2, 4, 5, 6])
    again, continued = simulate(num_rounds=6, **options), simulate(num_rounds=9, **options)
    assert again.seconds_per_round != again.seconds_per_round  # nan: no round was run
    np.testing.assert_array_equal(again.eval_round, [2, 4, 5, 6])
    undisturbed = simulate(num_rounds=9, eval_every=2, eval_last=3)
    np.testing.assert_array_equal(continued.eval_round, [2, 4, 6, 7, 8, 9])
    np.testing.assert_array_equal(continued.accuracy, undisturbed.accuracy)
    with pytest.raises(ValueError, match="eval_last=3"):
        simulate(num_rounds=9, **options | {"eval_last": 0})


def test_a_longer_run_that_cannot_go_on_from_a_shorter_one_leaves_nothing_of_it(tmp_path, monkeypatch):
    """The shorter one was evaluated after round 1, the longer one is not: it starts again."""
    options = {"eval_every": 2, "eval_last": 2, "checkpoint_dir": tmp_path / "run"}
    np.testing.assert_array_equal(simulate(num_rounds=2, **options).eval_round, [1, 2])

    def killed(*args, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:  # between its first records and its first snapshot
        patch.setattr(storage, "write", killed)
        with pytest.raises(KeyboardInterrupt):
            simulate(num_rounds=4, **options)
    undisturbed = simulate(num_rounds=4, eval_every=2, eval_last=2)
    for _ in range(2):
        longer = simulate(num_rounds=4, **options)
        np.testing.assert_array_equal(longer.eval_round, [2, 3, 4])
        np.testing.assert_array_equal(longer.accuracy, undisturbed.accuracy)
    assert np.isnan(longer.seconds_per_round)  # all of it was there


def test_a_dense_grid_brackets_early_times_and_changes_nothing_else():
    plain, dense = simulate(evaluations="all"), simulate(evaluations="all", eval_first=3)
    np.testing.assert_array_equal(dense.eval_round, [1, 2, 3, 4, 5])
    for field in ("round", "cohort_size", "compute_time"):
        np.testing.assert_array_equal(getattr(dense, field), getattr(plain, field))
    np.testing.assert_allclose(dense.metrics["w"], plain.metrics["w"], **CLOSE)
    np.testing.assert_allclose(dense.scores("model")[[1, 3, 4]], plain.scores("model"), **CLOSE)
    np.testing.assert_allclose(dense.scores("model")[:, 0], dense.metrics["w"], **CLOSE)  # each after its own round
    # 2, 2 and 4 clients take part: 8 of 7 clients' rounds are done after the third, and not after the second.
    assert (plain.time_to(1.0, evaluation="rounds"), dense.time_to(1.0, evaluation="rounds")) == (14, 9)
    assert dense.config["eval_first"] == 3
    assert plain.config["eval_first"] == 0


@pytest.mark.long
def test_a_dense_grid_is_kept_by_seeds_and_when_continued(tmp_path):
    options = {"keys": jax.random.split(KEY, 2), "participation": DOUBLING, "clock": CLOCK, "devices": 1}
    options |= {"eval_every": 2, "eval_first": 2, "progress": False, "checkpoint_dir": tmp_path}
    short = srp.simulate_seeds(ALGORITHM, DATA, num_rounds=1, **options)
    np.testing.assert_array_equal(short[1].eval_round, [1])
    continued = srp.simulate_seeds(ALGORITHM, DATA, num_rounds=5, **options)
    for history in continued:
        np.testing.assert_array_equal(history.eval_round, [1, 2, 4, 5])
    with pytest.raises(ValueError, match="eval_first=2"):
        srp.simulate_seeds(ALGORITHM, DATA, num_rounds=5, **options | {"eval_first": 3})


def test_limits_of_seeds_wait_for_the_last():
    clock = srp.clocks.Fixed(srp.clocks.Exponential(1.0))
    keys = jax.random.split(KEY, 3)
    options = {"participation": FULL, "clock": clock, "eval_every": 1, "num_rounds": 60, "devices": 1}
    alone = [simulate(key=key, time_limit=20.0, **options).num_rounds for key in keys]
    together = srp.simulate_seeds(ALGORITHM, DATA, keys=keys, time_limit=20.0, progress=False, **options)
    assert len(set(alone)) > 1
    assert [history.num_rounds for history in together] == [max(alone)] * 3


def test_a_target_that_is_an_error_is_reached_from_above():
    task = srp.data.linear_task(KEY, num_clients=8, dim=6, rank=2, noise_std=0.1)
    algorithm = srp.algorithms.LinearFedRep(task, step_size=0.2, samples_per_round=20, start="random")
    options = {"key": KEY, "eval_every": 1, "progress": False, "devices": 1}
    history = srp.simulate(algorithm, task, num_rounds=30, target=0.5, **options)
    assert history.score_name == "squared error"
    assert history.smaller_is_better
    assert 1 < history.num_rounds < 30
    assert history.mean_accuracy[-1] <= 0.5 < history.mean_accuracy[:-1].min()


def test_a_history_ends_with_the_servers_state():
    history = simulate()
    assert history.server_state == pytest.approx(history.metrics["w"][-1])
    first, second = srp.simulate_seeds(
        ALGORITHM, DATA, keys=jax.random.split(KEY, 2), participation=srp.participation.Uniform(3), num_rounds=4,
        progress=False, devices=1,
    )  # fmt: skip
    assert first.server_state == pytest.approx(first.metrics["w"][-1])
    assert second.server_state == pytest.approx(second.metrics["w"][-1])
    assert first.server_state != second.server_state


@pytest.mark.short("3")
@pytest.mark.parametrize("devices", [1, 3])
def test_a_server_state_is_judged_on_other_clients(devices):
    new = numbers(10.0, 20.0, 30.0, 40.0)
    scores = srp.evaluate(ALGORITHM, new, np.float32(2.5), key=KEY, evaluations="all", devices=devices)
    np.testing.assert_array_equal(scores["model"], np.full(4, 2.5))
    np.testing.assert_array_equal(scores["value"], [10.0, 20.0, 30.0, 40.0])
    np.testing.assert_array_equal(scores["rounds"], np.zeros(4))  # nobody has trained
    assert list(srp.evaluate(ALGORITHM, new, np.float32(2.5), key=KEY)) == ["rounds"]


def test_a_run_without_rounds_to_come_is_judged_as_its_history_says():
    data = federation(clients_of((3, 5, 4), (2, 3, 2)))
    algorithm = srp.algorithms.FedAvg(model(), srp.Training(batch_size=2))
    history = srp.simulate(algorithm, data, num_rounds=2, key=KEY, progress=False)
    scores = srp.evaluate(srp.Method("x", algorithm, FULL), data, history.server_state, key=KEY)
    np.testing.assert_array_equal(scores["global"], history.accuracy[-1])


def test_evaluate_refuses_what_cannot_be_judged():
    with pytest.raises(ValueError, match="server_state=None: this history was loaded from a folder without models"):
        srp.evaluate(ALGORITHM, DATA, None, key=KEY)
    with pytest.raises(ValueError, match=r"evaluation of .*'modle'.*model"):
        srp.evaluate(ALGORITHM, DATA, np.float32(1), key=KEY, evaluations="modle")
    with pytest.raises(ValueError, match="not a typed key"):
        srp.evaluate(ALGORITHM, DATA, np.float32(1), key=3)
    with pytest.raises(ValueError, match=r"key has shape \(2,\), give one key"):
        srp.evaluate(ALGORITHM, DATA, np.float32(1), key=jax.random.split(KEY, 2))


def test_what_is_sent_may_be_any_pytree():
    sends = {"w": jax.ShapeDtypeStruct((3,), jnp.float32), "b": [jax.ShapeDtypeStruct((), jnp.float32)]}
    assert simulate(changed(ALGORITHM, sends=sends), num_rounds=2).bytes_up == 16


def test_evaluations_are_chosen_by_name():
    assert list(simulate().accuracies) == ["rounds"]
    assert list(simulate(evaluations="model", num_rounds=2).accuracies) == ["model"]
    assert list(simulate(evaluations=("value", "rounds"), num_rounds=2).accuracies) == ["value", "rounds"]
    nothing = simulate(evaluations=(), num_rounds=2)
    assert nothing.evaluation is None
    assert len(nothing.eval_round) == 0
    np.testing.assert_array_equal(nothing.compute_time, simulate().compute_time[:2])


def test_names():
    assert simulate(participation=FULL, num_rounds=2).name == "few_lines"
    assert simulate(num_rounds=2, name="mine").name == "mine"
    method = srp.Method("some_method", ALGORITHM, DOUBLING)
    history = srp.simulate(method, DATA, clock=CLOCK, num_rounds=2, eval_every=2, key=KEY, progress=False, devices=1)
    assert history.name == "some_method"
    assert history.cohort_size.tolist() == [2, 2]


@pytest.mark.parametrize("name", ["", "a\0", "\ud800"])
def test_a_name_is_a_text_that_can_be_written(name):
    with pytest.raises(ValueError, match=r"^name=.* is no name; give one of letters"):
        simulate(num_rounds=1, name=name)


def test_stages_and_segments_share_one_program():
    own = changed(ALGORITHM, name="own")  # a program that no other test runs
    simulate(own, num_rounds=6)
    compiled = program(own, DOUBLING, CLOCK, ("rounds",), lay_out(1, None, 7, 16))
    traces = compiled.num_traces
    simulate(own, num_rounds=12, key=jax.random.key(1))  # more stages, more segments, another key
    assert compiled.num_traces == traces == 2  # the start, a segment of 2


def test_settings_of_jax_make_a_program_of_their_own():
    """A run under other numerics is not served by what was compiled before."""
    options = {"num_rounds": 2, "progress": False, "eval_every": 2, "devices": 1, "key": KEY}
    task = srp.data.linear_task(KEY, num_clients=8, dim=12, rank=3)
    algorithm = srp.algorithms.LinearFedAvg(task, step_size=0.1, local_steps=1)
    assert srp.simulate(algorithm, task, **options).compile_seconds > 0
    assert srp.simulate(algorithm, task, **options).compile_seconds == 0
    with jax.default_matmul_precision("highest"):
        assert srp.simulate(algorithm, task, **options).compile_seconds > 0
    with jax.enable_x64(True):
        doubled = simulate(num_rounds=2, data=numbers(*VALUES.astype(np.float64)))
    assert doubled.metrics["w"].dtype == np.float64


def test_a_strategy_is_that_of_the_devices_that_are_used(monkeypatch):
    """A simulation on CPU devices where JAX's default is an accelerator."""
    seen = []

    def client(key, w, state, value, context):
        seen.append(platform())
        return half_way(key, w, state, value, context)

    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert platform() == "gpu"
    simulate(changed(ALGORITHM, client=client), num_rounds=1)
    assert platform() == "gpu"
    assert "cpu" in seen[-1]


def test_default_parts_are_everybody_at_exponential_times():
    history = srp.simulate(ALGORITHM, DATA, num_rounds=2, key=KEY, progress=False, eval_every=2, devices=2)
    assert history.cohort_size.tolist() == [7, 7]
    assert len(set(history.client_time.tolist())) == 7
    assert history.compute_time.tolist() == [history.client_time.max()] * 2


def test_progress_is_shown_where_asked_for(capfd, tmp_path):
    new = changed(ALGORITHM, metrics=lambda server, data: {})  # nobody has compiled it
    simulate(new, num_rounds=3, progress=True, checkpoint_dir=tmp_path)
    shown = capfd.readouterr().err.split("\r")
    compiled = [line.partition("...")[0].strip() for line in shown if "compiling" in line]
    assert list(dict.fromkeys(compiled)) == [
        f"few_lines + doubling: {where}"
        for where in ("0/3, compiling the start", "0/3, compiling 2 rounds", "2/3, compiling 1 round")
    ]
    # What is narrow cuts off the end: the number stands in the first 60 columns.
    assert shown[-1][:59].startswith("few_lines + doubling: 3/3, number 1.14, n 4, time 9 ")
    simulate(new, num_rounds=5, progress=True, checkpoint_dir=tmp_path)
    assert "few_lines + doubling continues after round 2\n" in capfd.readouterr().err  # the last one on the grid
    simulate(num_rounds=2)
    assert capfd.readouterr().err == ""


# Divergence.

CLIENTS = clients_of((4, 8, 5), (3, 4, 5))
HUGE_STEPS = srp.algorithms.FedAvg(model(hidden=(3,)), srp.Training(srp.SGD(1e38), batch_size=4))


@pytest.fixture(scope="module")
def diverging():
    return srp.simulate(HUGE_STEPS, federation(CLIENTS), num_rounds=3, eval_every=3, key=KEY, progress=False, devices=1)


def test_divergence_is_data(diverging):
    assert diverging.diverged in (1, 2)
    assert diverging.finite.tolist() == [t < diverging.diverged for t in (1, 2, 3)]
    assert diverging.num_rounds == 3  # nothing is cut off
    assert np.isfinite(diverging.elapsed(1.0)).all()
    np.testing.assert_array_equal(diverging.accuracy[-1], np.zeros(3))  # an output of nan is a wrong answer


def test_divergence_raises_only_where_asked_for():
    step_later = algorithm_of(
        lambda key, broadcast, state, value, context: ClientOutput(jnp.where(context.round == 3, jnp.inf, value))
    )
    assert simulate(step_later).diverged == 4
    with pytest.raises(FloatingPointError, match=r"few_lines \+ doubling diverged in round 4.*smaller learning rate"):
        simulate(step_later, throw=True)
    assert simulate(throw=True).diverged is None
    keys = jax.random.split(KEY, 2)
    with pytest.raises(FloatingPointError, match="diverged in round 4"):
        srp.simulate_seeds(step_later, DATA, keys=keys, num_rounds=5, progress=False, throw=True, devices=1)


# Errors of use.

FEDERATION = federation(CLIENTS)
FEDAVG = srp.algorithms.FedAvg(model(hidden=(3,)), srp.Training(batch_size=4))
METHOD = srp.Method("some_method", FEDAVG, FULL)
NEEDS_GRADIENT = scripted([[0, 1, 2]], needs_global_gradient=True)


def few_classes():
    return srp.models.MLP((6,), 3, hidden=(3,))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"participation": srp.participation.Uniform(4)}, ["k=4", "num_clients=3", "at most 3"]),
        ({"participation": srp.participation.Fastest(9)}, ["k=9", "num_clients=3"]),
        ({"participation": srp.participation.Doubling(5, 1)}, ["initial=5", "num_clients=3"]),
        ({"participation": srp.participation.Doubling(1, 1, pool=5)}, ["pool=5", "num_clients=3"]),
        ({"clock": CLOCK}, ["constant: value", "7", "num_clients=3"]),
        ({"time_limit": -1.0}, ["time_limit=-1.0", "positive"]),
        ({"evaluations": "globl"}, ["'globl'", "did you mean global", "fine_tune_all"]),
        ({"evaluations": ("global", "own_head")}, ["'own_head'", "fedavg", "fine_tune"]),
        ({"devices": 5}, ["devices=5", "4 are available", "use_all_cores"]),
        ({"devices": 0}, ["devices=0"]),
        ({"devices": []}, ["devices"]),
        ({"devices": "cpu"}, ["devices='cpu'", "jax.devices()"]),
        ({"key": jax.random.split(KEY, 2)}, ["key", "(2,)", "simulate_seeds"]),
        (
            {"algorithm": srp.algorithms.LGFedAvg(model(hidden=(3,))), "participation": NEEDS_GRADIENT},
            ["policy needs the global gradient", "'lg_fedavg'", "participation.Doubling"],
        ),
        ({"algorithm": srp.algorithms.FedAvg(few_classes())}, ["labels", "reach 3", "3 classes", "num_classes=4"]),
        (
            {"algorithm": srp.algorithms.FedRep(srp.models.MLP((5,), 4))},
            ["examples", "(6,)", "(5,)", "input_shape=(6,)"],
        ),
        ({"algorithm": METHOD, "participation": FULL}, ["'some_method'", "participation", "method.algorithm"]),
    ],
    ids=lambda value: "-".join(f"{k}" for k in value) if isinstance(value, dict) else "",
)
def test_refusals_name_argument_value_and_remedy(change, words):
    options = {"algorithm": FEDAVG, "num_rounds": 1, "key": KEY, "progress": False, "devices": 1} | change
    with pytest.raises(ValueError, match=r"\w") as caught:
        srp.simulate(options.pop("algorithm"), FEDERATION, **options)
    message = str(caught.value)
    for word in words:
        assert word in message
    assert "\n" not in message


def test_raw_keys_are_not_taken_for_seeds():
    """A key of the old kind is an array of two numbers and must not become two seeds."""
    with pytest.raises(ValueError, match=r"jax\.random\.key"):
        srp.simulate_seeds(FEDAVG, FEDERATION, keys=jax.random.PRNGKey(0), num_rounds=1, progress=False)


def test_integers_of_numpy_are_integers():
    assert simulate(num_rounds=np.int64(2), eval_every=np.int32(2), devices=np.int64(1)).num_rounds == 2
