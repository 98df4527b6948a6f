"""A round, phase by phase, with algorithms of a few lines whose results are known in NumPy."""

import re
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.small import (
    KEY,
    Run,
    algorithm_of,
    assert_close,
    assert_same_bits,
    clients_of,
    federation,
    made_clock,
    made_policy,
    model,
    numbers,
    script,
    scripted,
)

import fedjax_srp as srp
from fedjax_srp.algorithms import local
from fedjax_srp.base import ClientOutput, Phase, Uncharged, named_key, nothing
from fedjax_srp.engine import program
from fedjax_srp.engine.round import stream
from fedjax_srp.engine.sharding import Layout, default_chunks

VALUES = np.array([3.0, -1.0, 4.0, 1.5, -5.0, 9.0, 2.0], np.float32)
DATA = numbers(*VALUES)
TIMES = np.array([7.0, 1.0, 3.0, 2.0, 11.0, 5.0, 13.0], np.float32)
KEYS = jax.random.split(KEY, 2)
CLOCK = srp.clocks.Fixed(srp.clocks.Constant(TIMES))
IDS = np.array([[5, 0, 3, 6, 1, 2, 4], [2, 4, 6, 1, 5, 0, 3], [0, 1, 2, 3, 4, 5, 6]])
SIZES, STAGES = np.array([3, 5, 7]), np.array([0, 4, 9])
WORK = np.array([[1, 2, 5, 1, 1, 1, 9], [3, 1, 1, 4, 2, 9, 9], [1, 1, 1, 1, 1, 1, 2]])
POLICY = scripted(IDS, SIZES, WORK, STAGES)
ROUNDS = [(ids[:size], work[:size].astype(np.float32)) for ids, size, work in zip(IDS, SIZES, WORK, strict=True)]
DEVICES = {"devices": 2, "chunk_size": 2}  # windows of 4 positions: the last of every cohort here is padded


def run_of(algorithm, policy=POLICY, **options):
    return Run(algorithm, DATA, policy, CLOCK, **DEVICES | options)


def three_rounds(run):
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *(run.rounds().rounds for _ in ROUNDS))


# Means.


class Parts(NamedTuple):
    a: Any
    b: Any
    c: Any


def test_the_engine_averages_messages_by_weights_that_may_be_a_prefix():
    def client(key, broadcast, state, value, context):
        work = context.work.astype(value.dtype)
        message = Parts(value * jnp.array([1.0, 2.0]), {"x": value**2, "y": jnp.full((2, 3), value)}, value)
        return ClientOutput(message, weight=Parts(jnp.abs(value), work, 1.0))

    def init(key, data):
        return Parts(jnp.zeros(2), {"x": jnp.zeros(()), "y": jnp.zeros((2, 3))}, jnp.zeros(()))

    run = run_of(algorithm_of(client, init=init))
    for ids, work in ROUNDS:
        run.rounds()
        values, mean = VALUES[ids], run.host_state().server
        by_value, by_work = (np.average(values, weights=w) for w in (np.abs(values), work))
        np.testing.assert_allclose(mean.a, by_value * np.array([1.0, 2.0]), rtol=1e-6)
        np.testing.assert_allclose(mean.b["x"], np.average(values**2, weights=work), rtol=1e-6)
        np.testing.assert_allclose(mean.b["y"], np.full((2, 3), by_work), rtol=1e-6)
        np.testing.assert_allclose(mean.c, values.mean(), rtol=1e-6)


def test_padded_slots_count_for_nothing_even_where_no_work_gives_nan():
    def client(key, broadcast, state, value, context):
        per_step = value / context.work.astype(value.dtype)  # as FedNova's d_i / tau_i: inf or nan without work
        weight = 1 + jnp.log(context.work.astype(value.dtype))
        return ClientOutput(per_step, per_step, weight, {"per_step": per_step})

    run = run_of(algorithm_of(client, init_client=lambda key, server, value: value))
    for ids, work in ROUNDS:
        info = run.rounds().rounds
        terms, weights = VALUES[ids] / work, 1 + np.log(work)
        np.testing.assert_allclose(run.host_state().server, np.average(terms, weights=weights), rtol=1e-5)
        np.testing.assert_allclose(info.metrics["per_step"], [terms.mean()], rtol=1e-6)
        np.testing.assert_array_equal(run.host_state().clients[ids], terms)


def test_info_is_averaged_over_the_cohort_and_joins_the_metrics():
    def client(key, broadcast, state, value, context):
        looked_at = {"value": value, "work": context.work, **context._replace(num_clients=7)._asdict()}
        looked_at["is_negative"] = value < 0  # a flag
        return ClientOutput(value, weight=value**2, info={f"mean_{name}": x for name, x in looked_at.items()})

    algorithm = algorithm_of(client, metrics=lambda server, data: {"double": 2 * server, "sum": data.values.sum()})
    run = run_of(algorithm)
    metrics = three_rounds(run).metrics
    for t, (ids, work) in enumerate(ROUNDS):
        mean = np.average(VALUES[ids], weights=VALUES[ids] ** 2)
        expected = {
            "double": 2 * mean,
            "sum": VALUES.sum(),
            "mean_value": VALUES[ids].mean(),  # not weighted
            "mean_is_negative": (VALUES[ids] < 0).mean(),
            "mean_work": work.mean(),
            "mean_round": t,
            "mean_stage": STAGES[t],
            "mean_cohort_size": SIZES[t],
            "mean_num_clients": 7,
            "mean_records_loss": 0,
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
    """Every phase there is; each says in its message what it has seen."""

    def model_of(server, context):
        return server.w

    def prepare(key, broadcast, state, value, context):
        return ClientOutput(value * context.work.astype(value.dtype), state + 10 * value)

    def client(key, broadcast, state, value, context):
        return ClientOutput(value + state + broadcast, state + 1, weight=value**2)

    def finish(key, broadcast, state, value, context):
        return ClientOutput(state * broadcast, state + broadcast, info={"before": state})

    def gradient(key, broadcast, state, value, context):
        message = {"g": (0.1 * broadcast - value) * jnp.array([1.0, 2.0]), "s": 0.01 * state}
        return ClientOutput(message, state * jnp.nan)

    return algorithm_of(
        client,
        init=lambda key, data: Server(*(jnp.zeros(()),) * 3),
        init_client=lambda key, server, value: value,
        round=Phase(model_of, client, lambda key, server, mean, context: server._replace(w=mean)),
        finish=Phase(model_of, finish, lambda key, server, mean, context: server._replace(finished=mean)),
        prepare=Phase(model_of, prepare, lambda key, server, mean, context: server._replace(prepared=mean)),
        gradient=gradient,
    )


def test_all_phases_see_what_they_should():
    run = run_of(all_phases(), scripted(IDS, SIZES, WORK, STAGES, needs_global_gradient=True))
    start = run.host_state()
    # Before the first round: everybody, one unit of work each, whoever will take part.
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
        states[ids] += w  # `finish` gets the new broadcast and the new states of the same cohort
        # The gradient is taken at the new model and with the new states, and what it says of states is dropped.
        gradients = np.c_[0.1 * w - values, 2 * (0.1 * w - values), 0.01 * states[ids]]
        norm = np.linalg.norm(gradients.mean(axis=0))  # of the mean
        means_of_norms.append(np.linalg.norm(gradients, axis=1).mean() / norm)
        after = run.host_state()
        np.testing.assert_allclose(after.server, [w, VALUES.mean(), (before * w).mean()], rtol=1e-5)
        np.testing.assert_allclose(after.clients, states, rtol=1e-5)
        np.testing.assert_allclose(info.global_grad_norm, [norm], rtol=1e-5)
        np.testing.assert_allclose(info.metrics["before"], [before.mean()], rtol=1e-5)
    assert max(means_of_norms) > 1.01  # and not the mean of the norms


def test_the_gradient_of_a_mean_is_weighted_and_absent_unless_asked_for():
    def gradient(key, broadcast, state, value, context):
        return ClientOutput(value, weight=jnp.abs(value))

    def client(key, broadcast, state, value, context):
        return ClientOutput(value)

    algorithm = algorithm_of(client, gradient=gradient)
    asked = three_rounds(run_of(algorithm, scripted(IDS, SIZES, needs_global_gradient=True)))
    expected = [abs(np.average(VALUES[ids], weights=np.abs(VALUES[ids]))) for ids, _ in ROUNDS]
    np.testing.assert_allclose(asked.global_grad_norm, expected, rtol=1e-6)
    assert np.isnan(three_rounds(run_of(algorithm)).global_grad_norm).all()


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
        round=Phase(nothing, client, server),
        finish=Phase(nothing, finish, lambda key, state, mean, context: state.at[1].set(mean)),
        evaluations={"draw": personalize},
    )
    run = run_of(algorithm, evaluations="all")
    fold, data_of = jax.random.fold_in, lambda keys: np.array([draw(k) for k in keys])
    start = data_of(fold(named_key(named_key(KEY, "training"), "init"), i) for i in range(7))
    np.testing.assert_array_equal(run.host_state().clients, start)
    for t, (ids, _) in enumerate(ROUNDS[:2]):
        scores = run.rounds().scores
        training = stream(KEY, "training", jnp.int32(t))
        state, drawn = run.host_state(), data_of(fold(named_key(training, "round"), i) for i in ids)
        np.testing.assert_array_equal(state.clients[ids], drawn)
        np.testing.assert_allclose(state.server[0], drawn.mean(axis=0), rtol=1e-6)
        finishing = data_of(fold(named_key(training, "finish"), i) for i in ids)
        np.testing.assert_allclose(state.server[1], finishing.mean(axis=0), rtol=1e-6)
        key_server = named_key(stream(KEY, "server", jnp.int32(t)), "round")
        np.testing.assert_array_equal(state.server[2], draw(key_server))
        judged = data_of(fold(stream(KEY, "evaluation", jnp.int32(t + 1)), i) for i in range(7))
        np.testing.assert_array_equal(scores["draw"][0][:7], judged[:, 0])


def test_keys_of_clock_and_policy_have_streams_of_their_own():
    def draw(key, shape=()):
        return jax.random.randint(key, shape, 0, 1000)

    def sample(key, state, now):
        return srp.ClientTimes(state.astype(float), (state + draw(key, (7,))).astype(float)), state

    def select(key, state, times):
        ids, ones = jnp.arange(7, dtype=jnp.int32), jnp.ones(7, jnp.int32)
        return srp.Cohort(ids, jnp.int32(7), ones, state + 1000 * draw(key)), state

    clock = made_clock("draws", lambda key, n: draw(key, (n,)), sample)
    policy = made_policy("draws", lambda key, n: draw(key), select, lambda state, info: state)
    run = Run(algorithm_of(value_of), DATA, policy, clock, **DEVICES)
    start = {name: named_key(named_key(KEY, name), "init") for name in ("clock", "participation")}
    own_times, own_stage = np.array(draw(start["clock"], (7,))), int(draw(start["participation"]))
    np.testing.assert_array_equal(run.client_time, own_times)
    for t in range(2):
        info = run.rounds().rounds
        key_clock, key_policy = (stream(KEY, name, jnp.int32(t)) for name in start)
        assert float(info.compute_time[0]) == (own_times + np.array(draw(key_clock, (7,)))).max()
        assert int(info.stage[0]) == own_stage + 1000 * int(draw(key_policy))


# Time.


def value_of(key, broadcast, state, value, context):
    return ClientOutput(value)


def test_a_round_takes_as_long_as_its_slowest_participant_with_its_work():
    info = three_rounds(run_of(algorithm_of(value_of)))
    np.testing.assert_array_equal(info.compute_time, [(TIMES[ids] * work).max() for ids, work in ROUNDS])
    np.testing.assert_array_equal(info.cohort_size, SIZES)
    np.testing.assert_array_equal(info.stage, STAGES)
    np.testing.assert_array_equal(info.round, [0, 1, 2])
    assert info.communicated.all()
    assert info.finite.all()


def test_communication_is_charged_by_the_round_and_not_where_rounds_are_silent():
    algorithm = algorithm_of(value_of, communicates=lambda server, context: (context.round % 2 == 0) & (server < 1.9))
    history = srp.simulate(algorithm, DATA, participation=POLICY, clock=CLOCK, num_rounds=5, key=KEY, progress=False)
    means = [0.0, *(VALUES[ids].mean() for ids, _ in ROUNDS), VALUES.mean()]  # the server's state before each round
    spoke = [t % 2 == 0 and bool(mean < 1.9) for t, mean in enumerate(means)]
    assert spoke == [True, False, True, False, False]  # and the states after the rounds say otherwise
    assert history.communicated.tolist() == spoke
    compute = [(TIMES[ids] * work).max() for ids, work in [*ROUNDS, ROUNDS[2], ROUNDS[2]]]
    for cost in (0.0, 1.0, 100.0):
        np.testing.assert_allclose(history.elapsed(cost), np.cumsum(compute + cost * np.array(spoke)), rtol=1e-12)


# Bytes.


class Message(NamedTuple):
    weights: Any
    looked_at: Any


def test_bytes_are_those_that_would_travel():
    def client(key, broadcast, state, value, context):
        weights = {"w": jnp.zeros((3, 5)), "b": jnp.zeros(5, jnp.int8)}  # 60 + 5
        return ClientOutput(Message(weights, Uncharged((jnp.zeros(100), value))), weight=1.0, info={"value": value})

    def finish(key, broadcast, state, value, context):
        return ClientOutput(jnp.zeros(2))  # 8

    def gradient(key, broadcast, state, value, context):
        return ClientOutput(jnp.zeros(4))  # 16

    keep = lambda key, server, mean, context: server  # noqa: E731
    download = lambda server, context: (jnp.zeros(7), Uncharged(server), context.round)  # 28 + 4  # noqa: E731
    make = lambda **more: algorithm_of(  # noqa: E731
        client,
        round=Phase(download, client, keep),
        **more,
    )
    bytes_of = lambda algorithm, policy: (lambda h: (h.bytes_up, h.bytes_down))(  # noqa: E731
        srp.simulate(algorithm, DATA, participation=policy, clock=CLOCK, num_rounds=1, key=KEY, progress=False)
    )
    assert bytes_of(make(), POLICY) == (65, 32)
    both = make(finish=Phase(download, finish, keep), gradient=gradient)
    assert bytes_of(both, POLICY) == (65 + 8, 2 * 32)
    assert bytes_of(make(finish=Phase(nothing, finish, keep)), POLICY) == (65 + 8, 32)  # a pass, no download
    with_criterion = scripted(IDS, SIZES, needs_global_gradient=True)
    assert bytes_of(both, with_criterion)[0] == 65 + 8 + 16


def test_an_algorithm_without_messages_charges_nothing():
    def client(key, broadcast, state, value, context):
        return ClientOutput((), state + value)

    algorithm = algorithm_of(
        client,
        round=Phase(lambda server, context: Uncharged(server), client, lambda key, server, mean, context: server),
        init_client=lambda key, server, value: jnp.zeros(()),
        evaluations={"state": lambda key, server, state, value: lambda test: state},
    )
    history = srp.simulate(algorithm, DATA, participation=POLICY, clock=CLOCK, num_rounds=3, key=KEY, progress=False)
    assert (history.bytes_up, history.bytes_down) == (0, 0)
    assert not history.communicated.any()
    np.testing.assert_array_equal(history.elapsed(50.0), history.elapsed(0.0))
    taken = sum(np.isin(np.arange(7), ids) for ids, _ in ROUNDS)
    np.testing.assert_array_equal(history.accuracy[-1], taken * VALUES)


# States.


def test_states_of_python_scalars_and_keys_and_odd_types_go_through_rounds():
    class Odd(NamedTuple):
        key: Any
        flag: Any
        small: Any
        count: Any

    def client(key, broadcast, state, value, context):
        new = Odd(jax.random.fold_in(state.key, context.round), ~state.flag, state.small + 1, state.count + 1)
        return ClientOutput(value, new)

    def init_client(key, server, value):
        return Odd(key, value > 0, jnp.int8(-3), 0)

    def server(key, state, mean, context):
        return {"mean": mean, "weak": state["weak"] + 1, "rounds": state["rounds"] + 1}

    algorithm = algorithm_of(
        client,
        init=lambda key, data: {"mean": 0.0, "weak": 0.5, "rounds": 0},
        init_client=init_client,
        round=Phase(nothing, client, server),
    )
    run = run_of(algorithm)
    keys = jax.random.key_data(run.layout.by_id(run.state.clients.key))[:7]
    flags = np.array(run.layout.by_id(run.state.clients.flag))[:7]
    for _ in range(3):
        run.rounds()
    assert run.program.num_traces == 2
    assert {name: float(x) for name, x in run.state.server.items()} == pytest.approx(
        {"mean": VALUES.mean(), "weak": 3.5, "rounds": 3}
    )
    taken = sum(np.isin(np.arange(7), ids) for ids, _ in ROUNDS)
    state = jax.tree.map(lambda leaf: run.layout.by_id(leaf)[:7], run.state.clients)
    np.testing.assert_array_equal(state.flag, flags ^ (taken % 2 == 1))
    np.testing.assert_array_equal(state.small, taken - 3)
    np.testing.assert_array_equal(state.count, taken)
    for i in range(7):
        key = jax.random.wrap_key_data(keys[i])
        for t, (ids, _) in enumerate(ROUNDS):
            key = jax.random.fold_in(key, t) if i in ids else key
        np.testing.assert_array_equal(jax.random.key_data(state.key[i]), jax.random.key_data(key))


def test_a_state_may_contain_the_data():
    """States are donated from segment to segment; the data they were made from must survive."""
    algorithm = algorithm_of(
        lambda key, broadcast, state, value, context: ClientOutput(broadcast + value),
        init=lambda key, data: data.values,
        round=Phase(
            lambda server, context: server[0],
            lambda key, broadcast, state, value, context: ClientOutput(broadcast + value),
            lambda key, server, mean, context: server + mean,
        ),
    )
    run = Run(algorithm, DATA, POLICY, CLOCK)
    run.rounds()
    run.rounds()
    assert not run.data.values.is_deleted()
    np.testing.assert_array_equal(DATA.values, VALUES)


def test_the_script_is_what_the_tests_believe():
    """One program serves edited scripts: what the other tests of this folder rely on."""
    run = run_of(algorithm_of(value_of))
    run.rounds()
    run.place(run.host_state()._replace(policy=script(IDS[:, ::-1], np.full(3, 2))))
    run.rounds()
    assert run.program.num_traces == 2
    np.testing.assert_allclose(run.host_state().server, VALUES[[4, 2]].mean())


# Chunks of two sizes.


@pytest.mark.short("2-1-3")
@pytest.mark.parametrize(
    ("devices", "chunk_size", "large_chunk"), [(1, 1, 2), (1, 1, 7), (1, 2, 4), (2, 1, 2), (2, 1, 3), (3, 1, 2)]
)
def test_large_chunks_go_first_and_nobody_is_served_twice(devices, chunk_size, large_chunk):
    """Cohorts of 3, 5 and 7: full large windows, a rest, or no large window at all."""

    def client(key, broadcast, state, value, context):
        message = value * context.work.astype(value.dtype)
        return ClientOutput(message, state + message, info={"value": value})

    algorithm = algorithm_of(client, init_client=lambda key, server, value: 0 * value)
    options = {"devices": devices, "chunk_size": chunk_size}
    run, small = (Run(algorithm, DATA, POLICY, CLOCK, **options, large_chunk=size) for size in (large_chunk, 0))
    expected = np.zeros(len(VALUES), np.float32)
    for ids, work in ROUNDS:
        info = run.rounds().rounds
        expected[ids] += VALUES[ids] * work
        np.testing.assert_allclose(run.host_state().server, (VALUES[ids] * work).mean(), rtol=1e-6)
        np.testing.assert_array_equal(run.host_state().clients, expected)
        np.testing.assert_allclose(info.metrics["value"], [VALUES[ids].mean()], rtol=1e-6)
        small.rounds()
        np.testing.assert_array_equal(small.host_state().clients, expected)


def late(key, broadcast, state, value, context):
    """Reads the old state after the new one is known, and tells both."""
    work = context.work.astype(value.dtype)
    new = {
        "sum": state["sum"] + work * value,
        "key": jax.random.fold_in(state["key"], context.work),
        "steps": state["steps"] + context.work,
        "odd": state["odd"] ^ (context.work % 2 == 1),
    }
    message = jnp.stack([new["sum"] - state["sum"], jax.random.normal(key), jax.random.normal(state["key"])])
    return ClientOutput(message, new, weight=jnp.abs(value), info={"before": state["sum"], "rises": value > 0})


@pytest.mark.short("3-2")
@pytest.mark.parametrize(("devices", "chunk_size"), [(2, 1), (2, 2), (2, 4), (3, 1), (3, 2), (4, 1)])
def test_whoever_serves_a_client_changes_no_bit_of_its_state(devices, chunk_size):
    """Cohorts of 3, 5 and 7 of seven clients: some served by their owner, some by others, some slots padded."""
    algorithm = algorithm_of(
        late,
        init=lambda key, data: jnp.zeros(3),
        init_client=lambda key, server, value: {
            "sum": 0 * value,
            "key": key,
            "steps": jnp.int32(0),
            "odd": jnp.bool_(False),
        },
        evaluations={"sum": lambda key, server, state, value: lambda test: state["sum"] + jax.random.normal(key)},
    )
    alone, many = (
        Run(algorithm, DATA, POLICY, CLOCK, devices=n, chunk_size=chunk_size, evaluations="all") for n in (1, devices)
    )
    sums, steps, bits = np.zeros(len(VALUES), np.float32), np.zeros(len(VALUES), np.int32), jax.random.key_data
    for ids, work in ROUNDS:
        ours, expected = many.rounds(), alone.rounds()
        assert_same_bits(*(jax.tree.map(lambda leaf: leaf[: len(VALUES)], run.scores) for run in (ours, expected)))
        assert_close(ours.rounds, expected.rounds, 1e-6)
        found, expected = many.host_state(), alone.host_state()
        assert_close(found.server, expected.server, 1e-6)
        assert_same_bits(bits(found.clients["key"]), bits(expected.clients["key"]))
        sums[ids] += VALUES[ids] * work
        steps[ids] += work.astype(np.int32)
        np.testing.assert_array_equal(found.clients["sum"], sums)
        np.testing.assert_array_equal(found.clients["steps"], steps)
        np.testing.assert_array_equal(found.clients["odd"], steps % 2 == 1)


@pytest.mark.parametrize("chunk_size", [1, 2])
def test_a_round_costs_the_chunks_of_its_cohort(chunk_size):
    served = []

    def client(key, broadcast, state, value, context):
        jax.debug.callback(lambda _: served.append(1), value)
        return ClientOutput(value, state + value)

    algorithm = algorithm_of(client, init_client=lambda key, server, value: 0 * value)
    run = run_of(algorithm, chunk_size=chunk_size)
    for ids, _ in ROUNDS:
        served.clear()
        run.rounds()
        jax.effects_barrier()
        assert len(served) == 2 * chunk_size * -(-len(ids) // (2 * chunk_size))


@pytest.mark.short("True-None")
@pytest.mark.parametrize("num_seeds", [None, pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.parametrize("shard_data", [False, True])
def test_clients_at_home_are_not_exchanged(shard_data, num_seeds, monkeypatch):
    """Exchanges that lose everything do no harm where devices own as many participants, and else they do."""
    data = federation(clients_of((3,) * 8, (2,) * 8))
    algorithm = algorithm_of(
        lambda key, broadcast, state, examples, context: ClientOutput((), state + jnp.sum(examples.x)),
        init=lambda key, data: (),
        init_client=lambda key, server, examples: jnp.zeros(()),
        evaluations={},
    )
    options = {"num_rounds": 2, "devices": 2, "chunk_size": 3, "shard_data": shard_data, "progress": False}

    def final(policy, **exchange):
        program._shared.cache_clear()
        with monkeypatch.context() as patch:
            for name, made in exchange.items():
                patch.setattr(jax.lax, name, made)
            run, keys = (srp.simulate, {"key": KEY}) if num_seeds is None else (srp.simulate_seeds, {"keys": KEYS})
            history = run(algorithm, data, participation=policy, keep_clients=True, **keys, **options)
        return [h.client_states for h in (history if num_seeds else [history])]

    lost = {
        "psum_scatter": lambda bits, axis, tiled: jnp.zeros_like(bits[: len(bits) // 2]),
        "all_gather": lambda bits, axis, tiled: jnp.zeros((2 * len(bits), *bits.shape[1:]), bits.dtype),
    }
    everybody, first = srp.participation.Full(), srp.participation.Fastest(4)
    options["clock"] = srp.clocks.Fixed(srp.clocks.Constant(np.arange(1.0, 9.0)))  # 0 to 3 are the fastest
    for policy in (everybody, first):
        assert_same_bits(final(policy, **lost), final(policy))
    options["clock"] = srp.clocks.Fixed(srp.clocks.Constant(np.arange(8.0) // 2 + 10 * (np.arange(8) % 2)))
    with pytest.raises(AssertionError):  # the even ones are, all of one device
        assert_same_bits(final(first, **lost), final(first))


def test_accelerators_have_large_chunks_by_default():
    mebibyte = 2**20
    sizes = 4 * mebibyte, mebibyte, 2 * mebibyte
    # Judged in 30 windows of 334, of which the last has room for 20 more.
    assert default_chunks("gpu", *sizes, 10_000) == (154, 0, 334)  # 65 times, as 156 would be
    assert default_chunks("gpu", 2 * mebibyte, *sizes[1:], 10_000) == (156, 3 * 156, 334)
    assert default_chunks("gpu", 2 * mebibyte, 0, 0, 1_000) == (128, 4 * 128, 1_000)
    assert default_chunks("gpu", *sizes, 100) == (100, 0, 100)
    assert default_chunks("gpu", 14 * mebibyte, 0, 0, 100) == (50, 0, 100)  # there is memory for 73
    assert default_chunks("cpu", 100, 100, 100, 1_000) == (16, 0, 16)
    layout = Layout((SimpleNamespace(platform="gpu"),), 156, 10_000, 512, large_chunk=3 * 156)
    assert [part.chunk_size for part in layout.parts] == [3 * 156, 156]
    assert [part.chunk_size for part in layout.for_evaluation().parts] == [512]


# What a trip costs.


ALONE = pytest.mark.skipif(jax.__version_info__ >= (0, 11), reason="XLA copies nothing by itself")


@pytest.mark.short("2-True")
@pytest.mark.parametrize(("devices", "told"), [(1, True), (2, True), pytest.param(1, False, marks=ALONE)])
def test_a_trip_does_not_copy_the_states_that_it_does_not_train(devices, told, monkeypatch):
    """An algorithm that looks at the old state last: left alone, XLA for CPUs copies the whole table first."""
    monkeypatch.setattr(local, "SEQUENTIAL_BYTES", 0)
    if not told:
        monkeypatch.setattr(program, "compiler_options", lambda platform: {})
    rows = 11  # of the table of a device's clients
    data = federation(clients_of((3,) * devices * rows, (1,) * devices * rows))
    algorithm = srp.algorithms.FedMTL(model(hidden=(5,)), srp.Training(batch_size=2))
    run = Run(algorithm, data, srp.participation.Full(), devices=devices, chunk_size=1)
    run.rounds()
    (segment,) = [c for (what, *_), c in run.program.shared.compiled.items() if what == ("segment", 1)]
    copies = re.findall(rf"= f32\[{rows},[\d,]+\]\S* copy\(", segment.as_text())
    assert (not copies) == told
