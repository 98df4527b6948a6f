"""What authors outside the package can write: methods, policies and clocks made of public names alone."""

import ast
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_srp as srp
from fedjax_srp.algorithms import local

KEY = jax.random.key(5)
NUM_FEATURES, NUM_CLASSES = 5, 3
MODEL = srp.models.mlp((NUM_FEATURES,), NUM_CLASSES, hidden=(4,))


def blobs(*counts, seed=0):
    """A federation with clients of these sizes, around a centre per class, and one test example a client."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, NUM_CLASSES, sum(counts) + len(counts))
    x = (rng.normal(size=(NUM_CLASSES, NUM_FEATURES))[y] + rng.normal(size=(len(y), NUM_FEATURES))).astype(np.float32)
    ends = np.cumsum(counts)
    train = np.split(np.arange(ends[-1]), ends[:-1])
    test = [[ends[-1] + i] for i in range(len(counts))]
    return srp.data.from_arrays(x, y, x, y, train_indices=train, test_indices=test, num_classes=NUM_CLASSES)


def run(algorithm, data, num_rounds=3, **options):
    options = {"eval_every": num_rounds, "devices": 1, "key": KEY, "progress": False} | options
    return srp.simulate(algorithm, data, num_rounds=num_rounds, **options)


def assert_close(actual, desired, rtol=1e-6):
    """Every leaf, relative to its largest entry."""
    for a, d in zip(jax.tree.leaves(actual), jax.tree.leaves(desired), strict=True):
        np.testing.assert_allclose(a, d, rtol=0, atol=rtol * np.abs(d).max())


def test_only_public_names_are_used_here():
    tree = ast.parse(Path(__file__).read_text())
    imported = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    own = [line for line in imported if "fedjax_srp" in line]
    assert own == ["import fedjax_srp as srp", "from fedjax_srp.algorithms import local"]
    used = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "srp"]
    assert used
    assert {node.attr for node in used} <= {*srp.__all__, "__all__"}
    private = [node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr.startswith("_")]
    assert set(private) <= {"__all__", "_replace"}


# A method that is FedAvg but for its loss.


def fedprox(model, mu, optimizer=None, batch_size=10, local_epochs=1):
    """FedAvg whose clients are held near the global model (Li et al., 2020)."""
    training = local.local_training(optimizer, batch_size, local_epochs)
    plain_loss = local.example_loss(model)

    def square(params, others):
        return sum(jnp.sum((p - q) ** 2) for p, q in zip(jax.tree.leaves(params), jax.tree.leaves(others), strict=True))

    def loss(params, global_params, x, y, key):
        return plain_loss(params, (), x, y, key) + 0.5 * mu * square(params, global_params)

    def client(key, params, state, examples, context):
        trained = local.local_sgd(
            srp.named_key(key, "local"), loss, params, params, examples, training.in_round(context)
        )
        weight = local.client_weight("uniform", examples)
        return srp.ClientOutput(trained, weight=weight, info={"drift": square(trained, params)})

    return srp.FederatedAlgorithm(
        name="fedprox",
        init=lambda key, data: model.init(key),
        init_client=lambda key, server, examples: (),
        round=srp.Phase(lambda server, context: server, client, lambda key, server, mean, context: mean),
        evaluations={"global": lambda key, server, state, examples: lambda x: model.logits(server, x)},
    )


@pytest.mark.long
def test_fedprox_is_fedavg_without_its_term_and_drifts_less_with_it():
    data, sgd = blobs(3, 7, 5, 6), srp.algorithms.sgd(0.1)
    runs = {mu: run(fedprox(MODEL, mu, sgd, batch_size=2, local_epochs=3), data) for mu in (0.0, 1.0, 5.0)}
    fedavg = run(srp.algorithms.fedavg(MODEL, sgd, batch_size=2, local_epochs=3), data)
    assert_close(runs[0.0].server_state, fedavg.server_state.params)
    drifts = [runs[mu].metrics["drift"][0] for mu in (0.0, 1.0, 5.0)]
    assert drifts[0] > 1.1 * drifts[1] > 1.21 * drifts[2] > 0


# Control variates: a step size, a number of steps, another direction of descent.


class Scaffold(NamedTuple):
    params: Any  # x
    control: Any  # c


class ScaffoldClient(NamedTuple):
    control: Any  # c_i


def scaffold(model, optimizer, batch_size=10, local_epochs=1):
    """SCAFFOLD (Karimireddy et al., 2020, Algorithm 1, option II, global step size 1)."""
    training = local.local_training(optimizer, batch_size, local_epochs)
    eta, loss = local.step_size(training), local.example_loss(model)

    def init(key, data):
        params = model.init(key)
        return Scaffold(params, jax.tree.map(jnp.zeros_like, params))

    def client(key, server, state, examples, context):
        def corrected(objective, params, weights):
            # g_i(y) - c_i + c
            gradient = jax.grad(objective)(params, weights)
            return jax.tree.map(lambda g, own, mean: g - own + mean, gradient, state.control, server.control)

        in_round = training.in_round(context)
        key_local = srp.named_key(key, "local")
        y = local.local_sgd(key_local, loss, server.params, (), examples, in_round, gradient=corrected)
        # c_i <- c_i - c + (x - y) / (K eta); K is 0 in a padded slot
        steps = jnp.maximum(local.num_steps(in_round, examples), 1).astype(float)
        control = jax.tree.map(
            lambda own, mean, x, y: own - mean + (x - y) / (steps * eta),
            state.control,
            server.control,
            server.params,
            y,
        )
        moved = Scaffold(y, jax.tree.map(jnp.subtract, control, state.control))
        return srp.ClientOutput(moved, ScaffoldClient(control))

    def server(key, state, mean, context):
        # x <- mean y_i; c <- c + (|S| / N) mean (c_i' - c_i)
        share = context.cohort_size.astype(float) / context.num_clients
        return Scaffold(mean.params, jax.tree.map(lambda c, d: c + share * d, state.control, mean.control))

    return srp.FederatedAlgorithm(
        name="scaffold",
        init=init,
        init_client=lambda key, server, examples: ScaffoldClient(jax.tree.map(jnp.zeros_like, server.params)),
        round=srp.Phase(lambda server, context: server, client, server),
        evaluations={"global": lambda key, server, state, examples: lambda x: model.logits(server.params, x)},
    )


LARGE = srp.models.mlp((NUM_FEATURES,), NUM_CLASSES, hidden=(256, 256))  # trained one client after the other on a CPU


@pytest.mark.long
@pytest.mark.parametrize("model", [MODEL], ids=["small"])
def test_scaffold_is_fedavg_where_clients_are_identical(model):
    one, ids = blobs(8), np.arange(32).reshape(4, 8)
    x, y = np.tile(one.x_train[:8], (4, 1)), np.tile(one.y_train[:8], 4)
    data = srp.data.from_arrays(x, y, x.copy(), y, train_indices=ids, test_indices=ids, num_classes=NUM_CLASSES)
    options = {"batch_size": 8, "local_epochs": 3}
    fedavg = run(srp.algorithms.fedavg(model, srp.algorithms.sgd(0.1), **options), data)
    found = run(scaffold(model, srp.algorithms.sgd(0.1), **options), data)
    assert_close(found.server_state.params, fedavg.server_state.params, 1e-5)
    assert found.bytes_up == found.bytes_down == 2 * fedavg.bytes_up


@pytest.mark.parametrize("model", [LARGE], ids=["large"])
def test_scaffold_corrects_drift_where_clients_differ(model):
    """Its control variate of the server is the mean gradient along the way, whatever the chunks."""
    data, options = blobs(3, 7, 5, 6), {"batch_size": 2, "local_epochs": 2}
    fedavg = run(srp.algorithms.fedavg(model, srp.algorithms.sgd(0.1), **options), data)
    found = [
        run(scaffold(model, srp.algorithms.sgd(0.1), **options), data, chunk_size=c, devices=d)
        for c, d in ((4, 1), (1, 2))
    ]
    assert found[0].finite.all()
    assert_close(found[0].server_state, found[1].server_state, 1e-5)
    with pytest.raises(AssertionError):
        assert_close(found[0].server_state.params, fedavg.server_state.params, 1e-3)


def test_scaffold_refuses_an_optimizer_that_does_not_tell_its_step_size():
    with pytest.raises(ValueError, match="step size"):
        scaffold(MODEL, optax.sgd(0.1))


# A projection after each step.


class Mixed(NamedTuple):
    own: Any  # the personal model v_i
    share: jax.Array  # () alpha_i in [0, 1]


def mixture(model, optimizer, batch_size=10, local_epochs=1, project=True):
    """A personal mixture of the client's own model and the global one, with a learned share."""
    training = local.local_training(optimizer, batch_size, local_epochs)
    plain_loss = local.example_loss(model)

    def mixed(parts, params, x, key=None):
        own, shared = model.logits(parts.own, x, key), model.logits(params, x, key)
        return parts.share * own + (1 - parts.share) * shared

    def loss(parts, params, x, y, key):
        return srp.models.cross_entropy(mixed(parts, params, x, key), y)

    def onto_unit_interval(parts):
        return parts._replace(share=jnp.clip(parts.share, 0.0, 1.0)) if project else parts

    def client(key, params, state, examples, context):
        in_round = training.in_round(context)
        trained = local.local_sgd(srp.named_key(key, "local"), plain_loss, params, (), examples, in_round)
        state = local.local_sgd(
            srp.named_key(key, "mixture"), loss, state, params, examples, in_round, after_step=onto_unit_interval
        )
        outside = jnp.maximum(-state.share, state.share - 1)
        return srp.ClientOutput(trained, state, info={"share": state.share, "outside": outside})

    return srp.FederatedAlgorithm(
        name="mixture",
        init=lambda key, data: model.init(key),
        init_client=lambda key, server, examples: Mixed(model.init(key), jnp.full((), 0.5)),
        round=srp.Phase(lambda server, context: server, client, lambda key, server, mean, context: mean),
        evaluations={"own": lambda key, server, state, examples: lambda x: mixed(state, server, x)},
    )


def test_a_share_is_kept_between_0_and_1_by_a_projection():
    data, steep = blobs(3, 7, 5, 6), srp.algorithms.sgd(5.0)
    one_by_one = {"participation": srp.participation.uniform(1), "num_rounds": 6}  # the mean of one is its own
    kept = run(mixture(MODEL, steep), data, **one_by_one)
    free = run(mixture(MODEL, steep, project=False), data, **one_by_one)
    assert (kept.metrics["outside"] <= 0).all()
    assert (free.metrics["outside"] > 0).any()
    assert ((kept.metrics["share"] == 0) | (kept.metrics["share"] == 1)).any()


# Policies.


@jax.tree_util.register_pytree_node_class
class Names:
    """A federation whose clients know nothing but their ids: who took part can be read off the server."""

    def __init__(self, ids):
        self.ids = ids

    num_clients = property(lambda self: self.ids.shape[0])

    def train_client(self, client_id):
        return self.ids[client_id]

    test_client = train_client

    def score(self, predict, test):
        return jnp.ones(()), jnp.ones(())

    def tree_flatten(self):
        return (self.ids,), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


def census(num_clients):
    """The server counts who took part."""

    def client(key, broadcast, state, name, context):
        return srp.ClientOutput((name == jnp.arange(num_clients)).astype(float))

    def server(key, counts, mean, context):
        return counts + mean * context.cohort_size.astype(float)

    return srp.FederatedAlgorithm(
        name="census",
        init=lambda key, data: jnp.zeros(num_clients),
        init_client=lambda key, server, name: (),
        round=srp.Phase(srp.nothing, client, server),
        evaluations={},
    )


def counts_of(policy, num_clients, num_rounds, clock=None):
    data = Names(jnp.arange(num_clients))
    history = run(census(num_clients), data, num_rounds, participation=policy, clock=clock, evaluations=())
    return np.round(history.server_state).astype(int), history


class Waiting(NamedTuple):
    rounds: jax.Array  # (num_clients,) int32, since the client last took part


def longest_waiting(k):
    """The k clients that have waited longest, ties at random; it remembers whom it picked."""

    def select(key, state, times):
        num_clients = times.realised.shape[0]
        shuffled = jax.random.permutation(key, num_clients).astype(jnp.int32)
        picked = shuffled[jnp.argsort(-state.rounds[shuffled], stable=True)[:k]]
        picked = picked[jnp.argsort(times.realised[picked])]  # fastest first
        cohort = srp.Cohort(picked, jnp.int32(k), jnp.ones(k, jnp.int32), jnp.int32(0))
        return cohort, Waiting((state.rounds + 1).at[picked].set(0))

    return srp.ParticipationPolicy(
        "longest_waiting",
        init=lambda key, num_clients: Waiting(jnp.zeros(num_clients, jnp.int32)),
        select=select,
        update=lambda state, info: state,
    )


def test_a_policy_that_remembers_whom_it_picked_serves_everybody_in_turn():
    counts, history = counts_of(longest_waiting(3), 9, 6)
    assert counts.tolist() == [2] * 9
    assert (history.cohort_size == 3).all()
    at_random, _ = counts_of(srp.participation.uniform(3), 9, 6)
    assert at_random.sum() == 18
    assert at_random.tolist() != [2] * 9


def deadline(limit):
    """Whoever is done by the deadline takes part, and the fastest in any case; the server never goes on earlier."""

    def select(key, state, times):
        ids = jnp.argsort(times.realised).astype(jnp.int32)
        size = jnp.maximum(jnp.sum(times.realised <= limit, dtype=jnp.int32), 1)
        duration = jnp.maximum(limit, jnp.min(times.realised))
        return srp.Cohort(ids, size, jnp.ones_like(ids), jnp.int32(0), duration), state

    return srp.ParticipationPolicy("deadline", lambda key, num_clients: (), select, lambda state, info: state)


def test_a_policy_that_says_how_long_its_rounds_last():
    clock = srp.clocks.trace([[4.0, 1.0, 2.0], [7.0, 9.0, 5.0]])
    counts, history = counts_of(deadline(3.0), 3, 2, clock)
    assert counts.tolist() == [0, 1, 2]
    assert history.cohort_size.tolist() == [2, 1]
    assert history.compute_time.tolist() == [3.0, 5.0]
    np.testing.assert_allclose(history.elapsed(communication=10), np.cumsum([13.0, 15.0]))


# Clocks.


class Rush(NamedTuple):
    times: jax.Array  # (num_clients,) float, on a free road
    is_jammed: jax.Array  # (num_clients,) bool


def traffic_jam(slowdown, probability):
    """A client's road jams and clears by a Markov chain; a jam multiplies its time."""

    def init(key, num_clients):
        times = 1 + jax.random.exponential(srp.named_key(key, "times"), (num_clients,))
        return Rush(times, jnp.zeros(num_clients, bool))

    def sample(key, state):
        changes = jax.random.bernoulli(key, probability, state.is_jammed.shape)
        is_jammed = jnp.where(changes, ~state.is_jammed, state.is_jammed)
        realised = jnp.where(is_jammed, slowdown * state.times, state.times)
        return srp.ClientTimes(state.times, realised), Rush(state.times, is_jammed)

    return srp.Clock("traffic_jam", init, sample)


def test_a_clock_of_ones_own():
    _, history = counts_of(None, 1, 200, traffic_jam(10.0, 0.2))
    free = history.client_time[0]
    is_jammed = np.isclose(history.compute_time, 10 * free)
    np.testing.assert_allclose(history.compute_time[~is_jammed], free, rtol=1e-6)
    changes = np.diff(is_jammed.astype(int), prepend=0) != 0
    assert abs(changes.mean() - 0.2) < 4 * np.sqrt(0.2 * 0.8 / 200)
    _, always = counts_of(None, 1, 4, traffic_jam(10.0, 1.0))
    np.testing.assert_allclose(always.compute_time / always.client_time[0], [10, 1, 10, 1], rtol=1e-6)


# Step sizes that follow the round, or the local step.


def descended(data, step_sizes):
    """Gradient descent on all examples of the only client, one step for each step size."""
    # The server's initial model: what a run leaves that does not train.
    start = run(srp.algorithms.fedavg(MODEL, local_epochs=0), data, 1).server_state.params
    rows = np.asarray(data.train_indices[0])
    x, y = data.x_train[rows], data.y_train[rows]
    params = jax.tree.map(jnp.asarray, start)
    for eta in step_sizes:
        gradient = jax.grad(lambda p: jnp.mean(srp.models.cross_entropy(MODEL.logits(p, x), y)))(params)
        params = jax.tree.map(lambda p, g: p - jnp.float32(eta) * g, params, gradient)  # noqa: B023
    return params


BY_ROUND = {
    "a_formula": lambda round: srp.algorithms.sgd(0.5 / (1 + round.astype(float))),
    "optax": lambda round: optax.sgd(optax.polynomial_schedule(0.5, 0.125, 1, 3)(round)),
}
EXPECTED = {"a_formula": [0.5, 0.25, 0.5 / 3], "optax": [0.5, 0.375, 0.25]}


@pytest.mark.parametrize("name", BY_ROUND)
def test_an_optimizer_may_follow_the_round(name):
    data = blobs(6)
    algorithm = srp.algorithms.fedavg(MODEL, BY_ROUND[name], batch_size=6, fine_tune_optimizer=srp.algorithms.sgd(0.1))
    found = run(algorithm, data, evaluations="all").server_state.params
    assert_close(found, descended(data, EXPECTED[name]), 1e-5)


def test_an_evaluation_has_no_round_for_an_optimizer_to_follow():
    with pytest.raises(ValueError, match="fine_tune_optimizer"):
        srp.algorithms.fedavg(MODEL, BY_ROUND["a_formula"])


@pytest.mark.parametrize("make", [srp.algorithms.sgd, optax.sgd], ids=["sgd", "optax"])
def test_a_schedule_counts_the_local_steps_and_starts_anew_in_every_round(make):
    data = blobs(6)
    algorithm = srp.algorithms.fedavg(MODEL, make(optax.exponential_decay(0.5, 1, 0.5)), batch_size=6, local_epochs=3)
    assert_close(run(algorithm, data, 2).server_state.params, descended(data, [0.5, 0.25, 0.125] * 2), 1e-5)


# Floats as arguments of a program.


def counted(factory, counts):
    """The factory, whose client function counts how often it is traced."""

    def make(*args):
        algorithm = factory(*args)
        client = algorithm.round.client

        def counting(*args):
            counts.append(1)
            return client(*args)

        return algorithm._replace(round=algorithm.round._replace(client=counting))

    return make


def test_tunable_floats_compile_once_and_are_equal_to_constants():
    data, traces = blobs(3, 7, 5, 6), []
    make = counted(lambda rate, mu: fedprox(MODEL, mu, srp.algorithms.sgd(rate), 2), traces)
    build = lambda values: make(values["learning_rate"], values["mu"])  # noqa: E731

    def traced_by(algorithm, **options):
        traces.clear()
        history = run(algorithm, data, **options)
        return len(traces), history

    settings = [(0.05, 0.0), (0.2, 1.5)]
    first, second = ({"learning_rate": rate, "mu": mu} for rate, mu in settings)
    compiling, history = traced_by(srp.tunable(build, first))
    # Another key is known to compile nothing: what is left is the check of the contract at the door.
    checking, _ = traced_by(srp.tunable(build, first), key=jax.random.key(6))
    again, other = traced_by(srp.tunable(build, second))
    assert again == checking < compiling
    for tuned, (rate, mu) in zip((history, other), settings, strict=True):
        as_constants, constant = traced_by(make(rate, mu))
        assert as_constants == compiling
        assert_close(tuned.server_state, constant.server_state)
    with pytest.raises(AssertionError):
        assert_close(other.server_state, history.server_state, 1e-2)
