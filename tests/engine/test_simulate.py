"""`simulate`: the records of a run, names, progress, divergence, and wrong arguments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import small
from reference.small import (
    KEY,
    algorithm_of,
    changed,
    clients_of,
    federation,
    model,
    numbers,
    refusal,
)

import fedjax_srp as srp
from fedjax_srp import ClientOutput
from fedjax_srp.driver import progress

VALUES = np.array([3.0, -1.0, 4.0, 1.5, -5.0, 9.0, 2.0], np.float32)
DATA = numbers(*VALUES)
TIMES = np.array([7.0, 1.0, 3.0, 2.0, 11.0, 5.0, 13.0])
CLOCK = srp.clocks.Fixed(srp.clocks.Constant(TIMES))
DOUBLING = srp.participation.Doubling(
    2, 2
)  # 2, 2, 4, 4, 7, ... participants: times 2, 2, 5, 5, 13, ...


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
CLOSE = {
    "rtol": 1e-6,
    "atol": 1e-6,
}  # w passes near zero on its way between values of both signs


def simulate(algorithm=ALGORITHM, data=DATA, num_rounds=5, **options):
    given = {"participation": DOUBLING, "clock": CLOCK, "eval_every": 2}
    return small.simulate(algorithm, data, num_rounds, **given | options)


def test_a_history_records_all_rounds():
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
    for name, expected in zip(
        history.accuracies, zip(*evaluated, strict=True), strict=True
    ):
        np.testing.assert_allclose(history.accuracies[name], expected, **CLOSE)
    np.testing.assert_array_equal(history.rounds_taken, counts)
    np.testing.assert_array_equal(history.test_count, np.ones(7))
    np.testing.assert_array_equal(history.client_time, TIMES)
    assert history.server_state == pytest.approx(ws[-1])
    assert history.client_states is None  # not requested
    assert history.diverged is None
    assert history.name == "few_lines + doubling"
    assert (history.bytes_up, history.bytes_down) == (4, 4)


@pytest.mark.short("3")
@pytest.mark.parametrize("devices", [1, 3])
def test_a_server_state_is_evaluated_on_other_clients(devices):
    new = numbers(10.0, 20.0, 30.0, 40.0)
    scores = srp.evaluate(
        ALGORITHM, new, np.float32(2.5), key=KEY, evaluations="all", devices=devices
    )
    np.testing.assert_array_equal(scores["model"], np.full(4, 2.5))
    np.testing.assert_array_equal(scores["value"], [10.0, 20.0, 30.0, 40.0])
    np.testing.assert_array_equal(scores["rounds"], np.zeros(4))  # nobody has trained
    assert list(srp.evaluate(ALGORITHM, new, np.float32(2.5), key=KEY)) == ["rounds"]


def test_evaluating_the_final_state_gives_the_last_scores():
    data = federation(clients_of((3, 5, 4), (2, 3, 2)))
    algorithm = srp.algorithms.FedAvg(model(), srp.Training(batch_size=2))
    history = small.simulate(algorithm, data)
    scores = srp.evaluate(
        srp.Method("x", algorithm, FULL), data, history.server_state, key=KEY
    )
    np.testing.assert_array_equal(scores["global"], history.accuracy[-1])


def test_evaluations_are_chosen_by_name():
    assert list(simulate().accuracies) == ["rounds"]
    assert list(simulate(evaluations="model", num_rounds=2).accuracies) == ["model"]
    twice = simulate(evaluations=("value", "rounds", "value"), num_rounds=2)
    assert list(twice.accuracies) == twice.config["evaluations"] == ["value", "rounds"]
    nothing = simulate(evaluations=(), num_rounds=2)
    assert nothing.evaluation is None
    assert len(nothing.eval_round) == 0
    np.testing.assert_array_equal(nothing.compute_time, simulate().compute_time[:2])


def test_names():
    assert simulate(participation=FULL, num_rounds=2).name == "few_lines"
    assert simulate(num_rounds=2, name="mine").name == "mine"
    method = srp.Method("some_method", ALGORITHM, DOUBLING)
    history = small.simulate(method, DATA, clock=CLOCK)
    assert history.name == "some_method"
    assert history.cohort_size.tolist() == [2, 2]


def test_settings_of_jax_make_a_program_of_their_own():
    """A run under other numerics does not use programs that were compiled before."""
    own = changed(ALGORITHM, name="own")
    assert simulate(own, num_rounds=2).compile_seconds > 0
    assert simulate(own, num_rounds=2).compile_seconds == 0
    with jax.default_matmul_precision("highest"):
        assert simulate(own, num_rounds=2).compile_seconds > 0
    with jax.threefry_partitionable(False):  # other random numbers
        assert simulate(own, num_rounds=2).compile_seconds > 0
    with jax.enable_x64(True):
        doubled = simulate(num_rounds=2, data=numbers(*VALUES.astype(np.float64)))
    assert doubled.metrics["w"].dtype == np.float64


def test_defaults_are_full_participation_and_exponential_times():
    history = srp.simulate(
        ALGORITHM, DATA, num_rounds=2, key=KEY, progress=False, eval_every=2, devices=2
    )
    assert history.cohort_size.tolist() == [7, 7]
    assert len(set(history.client_time.tolist())) == 7
    assert history.compute_time.tolist() == [history.client_time.max()] * 2


def test_progress_is_shown_on_request(capfd, tmp_path):
    new = changed(ALGORITHM, metrics=lambda server, data: {})  # not compiled before
    simulate(new, num_rounds=3, progress=True, checkpoint_dir=tmp_path)
    shown = capfd.readouterr().err.splitlines()  # it is no terminal
    assert any("0/3, compiling the rounds" in line for line in shown)
    # Narrow terminals cut off the end: the score stands in the first 60 columns.
    assert shown[-1][:59].startswith(
        "few_lines + doubling: 3/3, number 1.14, n 4, time 9 "
    )
    simulate(new, num_rounds=5, progress=True, checkpoint_dir=tmp_path)
    assert (
        "few_lines + doubling continues after round 2\n" in capfd.readouterr().err
    )  # the last one on the grid
    simulate(num_rounds=2)
    assert capfd.readouterr().err == ""


def test_a_wait_for_the_compiler_is_estimated_by_the_last_one(capfd, monkeypatch):
    monkeypatch.setattr(progress, "SHOWN_WAIT", 0.0)
    monkeypatch.setattr(progress, "_last_wait", {})
    for i in range(2):
        new = changed(ALGORITHM, metrics=lambda server, data, i=i: {f"m{i}": server + i})
        simulate(new, num_rounds=1, progress=True)
        shown = capfd.readouterr().err
        assert ("compiling the rounds ... (the last one took " in shown) == (i == 1)


# Divergence.

CLIENTS = clients_of((4, 8, 5), (3, 4, 5))


def test_divergence_is_recorded_and_raises_on_request(tmp_path):
    step_later = algorithm_of(
        lambda key, broadcast, state, value, context: ClientOutput(
            jnp.where(context.round == 3, jnp.inf, value)
        )
    )
    diverging = simulate(step_later)
    assert diverging.diverged == 4
    assert diverging.finite.tolist() == [
        True,
        True,
        True,
        False,
        True,
    ]  # nothing is cut off
    with pytest.raises(
        FloatingPointError,
        match=r"few_lines \+ doubling diverged in round 4.*smaller learning rate",
    ):
        simulate(step_later, throw=True)
    evaluated, look = [], lambda at: evaluated.append(at.round)
    for _ in range(2):  # it ends there, and is not continued
        with pytest.raises(FloatingPointError, match="diverged in round 4"):
            simulate(
                step_later,
                throw=True,
                eval_every=2,
                num_rounds=8,
                checkpoint_dir=tmp_path,
                callback=look,
            )
    assert evaluated == [2, 4]
    assert simulate(throw=True).diverged is None


# Errors of use.

FEDERATION = federation(CLIENTS)
FEDAVG = srp.algorithms.FedAvg(model(hidden=(3,)), srp.Training(batch_size=4))


def few_classes():
    return srp.models.MLP((6,), 3, hidden=(3,))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"clock": CLOCK}, ["constant: value", "7", "num_clients=3"]),
        ({"devices": 5}, ["devices=5", "4 are available", "use_all_cores"]),
        ({"devices": 2 * jax.devices()[:1]}, ["devices=[CpuDevice", "each once"]),
        (
            {"algorithm": srp.algorithms.FedAvg(few_classes())},
            ["labels", "reach 3", "3 classes", "num_classes=4"],
        ),
        (
            {"algorithm": srp.algorithms.FedRep(srp.models.MLP((5,), 4))},
            ["examples", "(6,)", "(5,)", "input_shape=(6,)"],
        ),
    ],
    ids=lambda value: "-".join(f"{k}" for k in value) if isinstance(value, dict) else "",
)
def test_refusals_name_argument_value_and_remedy(change, words):
    message = refusal(
        small.simulate, **{"algorithm": FEDAVG, "data": FEDERATION} | change
    )
    for word in words:
        assert word in message
