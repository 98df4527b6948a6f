"""Rounds, phase by phase, with algorithms of a few lines whose results are computed in NumPy."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from algorithms.recorded_orders import stream
from reference.small import (
    KEY,
    Run,
    algorithm_of,
    executables,
    made_clock,
    made_policy,
    numbers,
    scripted,
    simulate,
)

import fedjax_srp as srp
from fedjax_srp import ClientOutput, Uncharged, named_key, nothing

VALUES = np.array([3.0, -1.0, 4.0, 1.5, -5.0, 9.0, 2.0], np.float32)
DATA = numbers(*VALUES)
TIMES = np.array([7.0, 1.0, 3.0, 2.0, 11.0, 5.0, 13.0], np.float32)
CLOCK = srp.clocks.Fixed(srp.clocks.Constant(TIMES))
IDS = np.array([[5, 0, 3, 6, 1, 2, 4], [2, 4, 6, 1, 5, 0, 3], [0, 1, 2, 3, 4, 5, 6]])
SIZES, STAGES = np.array([3, 5, 7]), np.array([0, 4, 9])
WORK = np.array([[1, 2, 5, 1, 1, 1, 9], [3, 1, 1, 4, 2, 9, 9], [1, 1, 1, 1, 1, 1, 2]])
POLICY = scripted(IDS, SIZES, WORK, STAGES)
ROUNDS = [
    (ids[:size], work[:size].astype(np.float32))
    for ids, size, work in zip(IDS, SIZES, WORK, strict=True)
]
DEVICES = {
    "devices": 2,
    "chunk_size": 2,
}  # windows of 4 positions: the last of every cohort here is padded


def run_of(algorithm, policy=POLICY, **options):
    return Run(algorithm, DATA, policy, CLOCK, **DEVICES | options)


def three_rounds(run):
    return jax.tree.map(
        lambda *leaves: np.concatenate(leaves), *(run.rounds().rounds for _ in ROUNDS)
    )


# Means.


class Parts(NamedTuple):
    a: Any
    b: Any
    c: Any


def test_the_engine_averages_messages_by_weights_that_may_be_a_prefix():
    def client(key, broadcast, state, value, context):
        work = context.work.astype(value.dtype)
        message = Parts(
            value * jnp.array([1.0, 2.0]),
            {"x": value**2, "y": jnp.full((2, 3), value)},
            value,
        )
        return ClientOutput(message, weight=Parts(jnp.abs(value), work, 1.0))

    def init(key, data):
        return Parts(
            jnp.zeros(2), {"x": jnp.zeros(()), "y": jnp.zeros((2, 3))}, jnp.zeros(())
        )

    run = run_of(algorithm_of(client, init=init))
    for ids, work in ROUNDS:
        run.rounds()
        values, mean = VALUES[ids], run.host_state().server
        by_value, by_work = (
            np.average(values, weights=w) for w in (np.abs(values), work)
        )
        np.testing.assert_allclose(mean.a, by_value * np.array([1.0, 2.0]), rtol=1e-6)
        np.testing.assert_allclose(
            mean.b["x"], np.average(values**2, weights=work), rtol=1e-6
        )
        np.testing.assert_allclose(mean.b["y"], np.full((2, 3), by_work), rtol=1e-6)
        np.testing.assert_allclose(mean.c, values.mean(), rtol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_means_of_half_precision_neither_overflow_nor_stop_growing(dtype):
    """The sum of 300 weights of 701 is more than a float16 holds, and a sum of ones in bfloat16 stops at 256."""
    of_type = lambda number: jnp.full((), number, dtype)
    algorithm = algorithm_of(
        lambda key, broadcast, state, value, context: ClientOutput(
            of_type(0.5), None, value, {"one": of_type(1)}
        ),
        init=lambda key, data: of_type(0),
        gradient=lambda key, broadcast, state, value, context: ClientOutput(of_type(320)),
    )
    policy = scripted(np.arange(300)[None], needs_global_gradient=True)
    options = {
        "chunk_size": 1,
        "num_rounds": 1,
        "evaluations": (),
        "participation": policy,
    }
    history = simulate(algorithm, numbers(*[701.0] * 300), **options)
    assert history.server_state.dtype == dtype
    assert history.server_state == 0.5
    assert (history.metrics["one"], history.metrics["global_grad_norm"]) == (1, 320)


def test_padded_slots_are_ignored_even_if_they_give_nan():
    def client(key, broadcast, state, value, context):
        per_step = value / context.work.astype(
            value.dtype
        )  # like FedNova's d_i / tau_i: inf or nan without work
        weight = 1 + jnp.log(context.work.astype(value.dtype))
        return ClientOutput(per_step, per_step, weight, {"per_step": per_step})

    run = run_of(algorithm_of(client, init_client=lambda key, server, value: value))
    for ids, work in ROUNDS:
        info = run.rounds().rounds
        terms, weights = VALUES[ids] / work, 1 + np.log(work)
        np.testing.assert_allclose(
            run.host_state().server, np.average(terms, weights=weights), rtol=1e-5
        )
        np.testing.assert_allclose(info.metrics["per_step"], [terms.mean()], rtol=1e-6)
        np.testing.assert_array_equal(run.host_state().clients[ids], terms)


def test_info_is_averaged_over_the_cohort_and_joins_the_metrics():
    def client(key, broadcast, state, value, context):
        looked_at = {
            "value": value,
            "work": context.work,
            **context._replace(num_clients=7)._asdict(),
        }
        assert looked_at.pop("importance") is None  # without weights of updates
        return ClientOutput(
            value,
            weight=value**2,
            info={f"mean_{name}": x for name, x in looked_at.items()},
        )

    algorithm = algorithm_of(
        client,
        metrics=lambda server, data: {"double": 2 * server, "sum": data.values.sum()},
    )
    run = run_of(algorithm)
    metrics = three_rounds(run).metrics
    for t, (ids, work) in enumerate(ROUNDS):
        mean = np.average(VALUES[ids], weights=VALUES[ids] ** 2)
        expected = {
            "double": 2 * mean,
            "sum": VALUES.sum(),
            "mean_value": VALUES[ids].mean(),  # not weighted
            "mean_work": work.mean(),
            "mean_round": t,
            "mean_stage": STAGES[t],
            "mean_cohort_size": SIZES[t],
            "mean_num_clients": 7,
            "mean_record_loss": 0,
            "mean_client_id": ids.mean(),
        }
        assert set(metrics) == set(expected)
        for name, value in expected.items():
            np.testing.assert_allclose(metrics[name][t], value, rtol=1e-6, err_msg=name)


# Phases.


class Server(NamedTuple):
    w: jax.Array
    prepared: jax.Array
    finished: jax.Array


def all_phases() -> Any:
    """Return an algorithm with every phase; the message of each shows its inputs."""

    def model_of(server, context):
        return server.w

    def prepare(key, broadcast, state, value, context):
        return ClientOutput(value * context.work.astype(value.dtype), state + 10 * value)

    def client(key, broadcast, state, value, context):
        return ClientOutput(value + state + broadcast, state + 1, weight=value**2)

    def finish(key, broadcast, state, value, context):
        return ClientOutput(state * broadcast, state + broadcast, info={"before": state})

    def gradient(key, broadcast, state, value, context):
        message = {
            "g": (0.1 * broadcast - value) * jnp.array([1.0, 2.0]),
            "s": 0.01 * state,
        }
        return ClientOutput(message, state * jnp.nan, weight=jnp.abs(value))

    return algorithm_of(
        client,
        init=lambda key, data: Server(*(jnp.zeros(()),) * 3),
        init_client=lambda key, server, value: value,
        broadcast=model_of,
        server=lambda key, server, mean, context: server._replace(w=mean),
        finish=(
            model_of,
            finish,
            lambda key, server, mean, context: server._replace(finished=mean),
        ),
        prepare=(
            model_of,
            prepare,
            lambda key, server, mean, context: server._replace(prepared=mean),
        ),
        gradient=gradient,
    )


def test_all_phases_get_the_right_states():
    run = run_of(
        all_phases(), scripted(IDS, SIZES, WORK, STAGES, needs_global_gradient=True)
    )
    start = run.host_state()
    # Before the first round: all clients, one unit of work each.
    np.testing.assert_allclose(start.server, [0, VALUES.mean(), 0], rtol=1e-6)
    np.testing.assert_allclose(start.clients, 11 * VALUES, rtol=1e-6)
    assert start.round == 0
    states, w, means_of_norms = start.clients.astype(np.float64), 0.0, []
    for ids, _ in ROUNDS:
        info = run.rounds().rounds
        values = VALUES[ids].astype(np.float64)
        w = np.average(values + states[ids] + w, weights=values**2)
        states[ids] += 1
        before = states[ids].copy()
        states[ids] += (
            w  # `finish` gets the new broadcast and the new states of the same cohort
        )
        # The gradient uses the new model and the new states; the states that it returns are dropped.
        gradients = np.c_[0.1 * w - values, 2 * (0.1 * w - values), 0.01 * states[ids]]
        norm = np.linalg.norm(
            np.average(gradients, axis=0, weights=np.abs(values))
        )  # of the weighted mean
        means_of_norms.append(
            np.average(np.linalg.norm(gradients, axis=1), weights=np.abs(values)) / norm
        )
        after = run.host_state()
        np.testing.assert_allclose(
            after.server, [w, VALUES.mean(), (before * w).mean()], rtol=1e-5
        )
        np.testing.assert_allclose(after.clients, states, rtol=1e-5)
        np.testing.assert_allclose(info.global_grad_norm, [norm], rtol=1e-5)
        np.testing.assert_allclose(info.metrics["before"], [before.mean()], rtol=1e-5)
    assert max(means_of_norms) > 1.01  # and not the mean of the norms


def value_of(key, broadcast, state, value, context):
    return ClientOutput(value)


def test_clients_know_who_they_are_and_servers_do_not():
    """In every pass and every download; messages by client have the group of the client's id."""
    asked = []

    def of_server(function):
        def checked(*args):
            asked.append(args[-1].client_id)
            return function(*args)

        return checked

    def client(key, download, state, value, context):
        is_own = jnp.arange(7, dtype=jnp.int32) == context.client_id
        ids = context.client_id, download
        return ClientOutput(value, jnp.stack([state[0], *ids]), jnp.where(is_own, 1, 0))

    def mix(broadcast, own, others, context):
        # the other participant with the smallest id, by the ids of the rows
        is_other = others.takes_part & (others.client_ids != context.client_id)
        return jnp.min(jnp.where(is_other, others.client_ids, 7))

    def begin(key, broadcast, state, value, context):
        return ClientOutput((), state.at[0].set(10 + context.client_id))

    everybody = srp.Exchange(lambda state: state, mix)
    values = of_server(lambda key, server, mean, context: mean)
    keep = of_server(srp.unchanged)
    algorithm = algorithm_of(
        client,
        init=lambda key, data: jnp.zeros(7),
        init_client=lambda key, server, value: jnp.full(3, -1, jnp.int32),
        phases=(srp.Phase("round", of_server(nothing), client, values, everybody),),
        start_phases=(srp.Phase("begin", of_server(nothing), begin, keep),),
    )
    run = run_of(algorithm)
    states = run.host_state().clients
    np.testing.assert_array_equal(states[:, 0], 10 + np.arange(7))
    for ids, _ in ROUNDS:
        run.rounds()
        state = run.host_state()
        taken = np.where(np.isin(np.arange(7), ids), VALUES, 0)
        np.testing.assert_array_equal(state.server, taken)
        for i in ids:
            states[i, 1:] = i, min(set(ids) - {i})
        np.testing.assert_array_equal(state.clients, states)
    assert asked == [None] * len(asked)
    assert len(asked) >= 4


# Keys.


def test_keys_come_from_stream_round_client_and_phase():
    def draw(key):
        return jax.random.uniform(key, (2,))

    def client(key, broadcast, state, value, context):
        return ClientOutput(draw(key), draw(key))

    def server(key, state, mean, context):
        return state.at[2].set(draw(key)).at[0].set(mean)

    def finish(key, broadcast, state, value, context):
        return ClientOutput(draw(key))

    def personalize(key, server, state, value):
        return lambda test: draw(key)[0]

    algorithm = algorithm_of(
        client,
        init=lambda key, data: jnp.zeros((3, 2)),
        init_client=lambda key, server, value: draw(key),
        broadcast=nothing,
        server=server,
        finish=(nothing, finish, lambda key, state, mean, context: state.at[1].set(mean)),
        evaluations={"draw": personalize},
    )
    run = run_of(algorithm, evaluations="all")
    fold, data_of = jax.random.fold_in, lambda keys: np.array([draw(k) for k in keys])
    start = data_of(
        fold(named_key(named_key(KEY, "training"), "init"), i) for i in range(7)
    )
    np.testing.assert_array_equal(run.host_state().clients, start)
    for t, (ids, _) in enumerate(ROUNDS[:2]):
        scores = run.rounds().scores
        training = stream(KEY, "training", jnp.int32(t))
        state, drawn = (
            run.host_state(),
            data_of(fold(named_key(training, "round"), i) for i in ids),
        )
        np.testing.assert_array_equal(state.clients[ids], drawn)
        np.testing.assert_allclose(state.server[0], drawn.mean(axis=0), rtol=1e-6)
        finishing = data_of(fold(named_key(training, "finish"), i) for i in ids)
        np.testing.assert_allclose(state.server[1], finishing.mean(axis=0), rtol=1e-6)
        key_server = named_key(stream(KEY, "server", jnp.int32(t)), "round")
        np.testing.assert_array_equal(state.server[2], draw(key_server))
        judged = data_of(
            fold(stream(KEY, "evaluation", jnp.int32(t + 1)), i) for i in range(7)
        )
        np.testing.assert_array_equal(scores["draw"][0][:7], judged[:, 0])


def test_keys_of_clock_and_policy_have_their_own_streams():
    def draw(key, shape=()):
        return jax.random.randint(key, shape, 0, 1000)

    def sample(key, state, now):
        return srp.ClientTimes(
            state.astype(float), (state + draw(key, (7,))).astype(float)
        ), state

    def select(key, state, times):
        ids, ones = jnp.arange(7, dtype=jnp.int32), jnp.ones(7, jnp.int32)
        return srp.Cohort(ids, jnp.int32(7), ones, state + 1000 * draw(key)), state

    clock = made_clock("draws", lambda key, n: draw(key, (n,)), sample)
    policy = made_policy(
        "draws", lambda key, n: draw(key), select, lambda state, info: state
    )
    run = Run(algorithm_of(value_of), DATA, policy, clock, **DEVICES)
    start = {
        name: named_key(named_key(KEY, name), "init")
        for name in ("clock", "participation")
    }
    own_times, own_stage = (
        np.array(draw(start["clock"], (7,))),
        int(draw(start["participation"])),
    )
    np.testing.assert_array_equal(run.client_time, own_times)
    for t in range(2):
        info = run.rounds().rounds
        key_clock, key_policy = (stream(KEY, name, jnp.int32(t)) for name in start)
        assert (
            float(info.compute_time[0])
            == (own_times + np.array(draw(key_clock, (7,)))).max()
        )
        assert int(info.stage[0]) == own_stage + 1000 * int(draw(key_policy))


# Time.


def test_a_round_takes_as_long_as_its_slowest_participant_with_its_work():
    info = three_rounds(run_of(algorithm_of(value_of)))
    np.testing.assert_array_equal(
        info.compute_time, [(TIMES[ids] * work).max() for ids, work in ROUNDS]
    )
    np.testing.assert_array_equal(info.cohort_size, SIZES)
    np.testing.assert_array_equal(info.stage, STAGES)
    np.testing.assert_array_equal(info.round, [0, 1, 2])
    assert info.communicated.all()
    assert info.finite.all()
    assert np.isnan(info.global_grad_norm).all()  # nothing needs it


def test_communication_is_charged_in_rounds_that_communicate():
    algorithm = algorithm_of(
        value_of,
        communicates=lambda server, context: (context.round % 2 == 0) & (server < 1.9),
    )
    history = simulate(algorithm, DATA, 5, participation=POLICY, clock=CLOCK)
    means = [
        0.0,
        *(VALUES[ids].mean() for ids, _ in ROUNDS),
        VALUES.mean(),
    ]  # the server's state before each round
    communicated = [t % 2 == 0 and bool(mean < 1.9) for t, mean in enumerate(means)]
    # the states after the rounds would give another list
    assert communicated == [True, False, True, False, False]
    assert history.communicated.tolist() == communicated
    compute = [(TIMES[ids] * work).max() for ids, work in [*ROUNDS, ROUNDS[2], ROUNDS[2]]]
    for cost in (0.0, 1.0, 100.0):
        elapsed = np.cumsum(compute + cost * np.array(communicated))
        np.testing.assert_allclose(history.elapsed(cost), elapsed, rtol=1e-12)


# Bytes.


class Message(NamedTuple):
    weights: Any
    looked_at: Any


def test_bytes_are_those_of_charged_messages():
    def client(key, broadcast, state, value, context):
        weights = {"w": jnp.zeros((3, 5)), "b": jnp.zeros(5, jnp.int8)}  # 60 + 5
        return ClientOutput(
            Message(weights, Uncharged((jnp.zeros(100), value))),
            weight=1.0,
            info={"value": value},
        )

    def finish(key, broadcast, state, value, context):
        return ClientOutput(jnp.zeros(2))  # 8

    def gradient(key, broadcast, state, value, context):
        return ClientOutput(jnp.zeros(4))  # 16

    keep = lambda key, server, mean, context: server
    download = lambda server, context: (
        jnp.zeros(7),
        Uncharged(server),
        context.round,
    )  # 28 + 4

    def bytes_of(policy=POLICY, **more):
        algorithm = algorithm_of(client, broadcast=download, server=keep, **more)
        history = simulate(algorithm, DATA, 1, participation=policy, clock=CLOCK)
        return history.bytes_up, history.bytes_down

    assert bytes_of() == (65, 32)
    both = {"finish": (download, finish, keep), "gradient": gradient}
    assert bytes_of(**both) == (65 + 8, 2 * 32)
    assert bytes_of(finish=(nothing, finish, keep)) == (65 + 8, 32)  # a pass, no download
    assert (
        bytes_of(scripted(IDS, SIZES, needs_global_gradient=True), **both)[0]
        == 65 + 8 + 16
    )


def test_an_algorithm_without_messages_is_charged_nothing():
    algorithm = algorithm_of(
        lambda key, broadcast, state, value, context: ClientOutput(()),
        broadcast=lambda server, context: Uncharged(server),
        server=lambda key, server, mean, context: server,
    )
    history = simulate(algorithm, DATA, 3, participation=POLICY, clock=CLOCK)
    assert (history.bytes_up, history.bytes_down) == (0, 0)
    assert not history.communicated.any()
    np.testing.assert_array_equal(history.elapsed(50.0), history.elapsed(0.0))


# States.


def test_weakly_typed_states_are_not_traced_again():
    def server(key, state, mean, context):
        return {"mean": mean, "weak": state["weak"] + 1, "rounds": state["rounds"] + 1}

    init = lambda key, data: {"mean": 0.0, "weak": 0.5, "rounds": 0}
    run = run_of(algorithm_of(value_of, init=init, broadcast=nothing, server=server))
    three_rounds(run)
    assert executables(run.program) == {"start": 1, "rounds": 1}
    expected = {"mean": VALUES.mean(), "weak": 3.5, "rounds": 3}
    assert {name: float(x) for name, x in run.state.server.items()} == pytest.approx(
        expected
    )


def test_a_state_may_contain_the_data():
    """States are donated from segment to segment; the data that they were made from must survive."""
    algorithm = algorithm_of(
        lambda key, broadcast, state, value, context: ClientOutput(broadcast + value),
        init=lambda key, data: data.values,
        broadcast=lambda server, context: server[0],
        server=lambda key, server, mean, context: server + mean,
    )
    run = Run(algorithm, DATA, POLICY, CLOCK)
    run.rounds()
    run.rounds()
    assert not run.data.values.is_deleted()
    np.testing.assert_array_equal(DATA.values, VALUES)
