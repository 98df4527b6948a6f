"""What authors outside the package can write: methods, policies and clocks made of public names alone."""

import ast
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_srp as srp
from fedjax_srp.algorithms import local

KEY = jax.random.key(5)
NUM_FEATURES, NUM_CLASSES = 5, 3
MODEL = srp.models.MLP((NUM_FEATURES,), NUM_CLASSES, hidden=(4,))


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


def square(params, others):
    return sum(jnp.sum((p - q) ** 2) for p, q in zip(jax.tree.leaves(params), jax.tree.leaves(others), strict=True))


@srp.part
class GlobalModel(srp.FederatedAlgorithm):
    """One model for all: what the methods below share."""

    model: srp.models.SplitModel
    training: srp.Training = srp.Training()

    def init(self, key, data):
        return self.model.init(key)

    def server(self, key, server, mean, context):
        return mean

    @srp.evaluation("global")
    def as_it_is(self, key, server, state, examples):
        return lambda x: self.model.logits(server, x)


@srp.part
class FedProx(GlobalModel):
    """FedAvg whose clients are held near the global model (Li et al., 2020)."""

    mu: Annotated[float, srp.AtLeast(0)] = 0.1

    def client(self, key, params, state, examples, context):
        plain_loss = local.example_loss(self.model)

        def loss(params, global_params, x, y, key):
            return plain_loss(params, (), x, y, key) + 0.5 * self.mu * square(params, global_params)

        now = self.training.in_round(context)
        trained = local.local_sgd(srp.named_key(key, "local"), loss, params, params, examples, now).params
        weight = self.training.weight(examples)
        return srp.ClientOutput(trained, weight=weight, info={"drift": square(trained, params)})


@pytest.mark.long
def test_fedprox_is_fedavg_without_its_term_and_drifts_less_with_it():
    data, training = blobs(3, 7, 5, 6), srp.Training(srp.SGD(0.1), batch_size=2, epochs=3)
    runs = {mu: run(FedProx(MODEL, training, mu), data) for mu in (0.0, 1.0, 5.0)}
    fedavg = run(srp.algorithms.FedAvg(MODEL, training), data)
    assert_close(runs[0.0].server_state, fedavg.server_state.params)
    drifts = [runs[mu].metrics["drift"][0] for mu in (0.0, 1.0, 5.0)]
    assert drifts[0] > 1.1 * drifts[1] > 1.21 * drifts[2] > 0


# Control variates: a step size, a number of steps, another direction of descent.


class Variates(NamedTuple):
    params: Any  # x
    control: Any  # c


class OwnVariate(NamedTuple):
    control: Any  # c_i


@srp.part
class Scaffold(GlobalModel):
    """SCAFFOLD (Karimireddy et al., 2020, Algorithm 1, option II, global step size 1)."""

    def __post_init__(self):
        local.step_size(self.training.optimizer)  # refuses one that does not tell it

    def init(self, key, data):
        params = self.model.init(key)
        return Variates(params, jax.tree.map(jnp.zeros_like, params))

    def init_client(self, key, server, examples):
        return OwnVariate(jax.tree.map(jnp.zeros_like, server.params))

    def client(self, key, server, state, examples, context):
        def corrected(objective, params, weights):
            # g_i(y) - c_i + c
            gradient = jax.grad(objective)(params, weights)
            return jax.tree.map(lambda g, own, mean: g - own + mean, gradient, state.control, server.control)

        now, loss = self.training.in_round(context), local.example_loss(self.model)
        key_local = srp.named_key(key, "local")
        y = local.local_sgd(key_local, loss, server.params, (), examples, now, gradient=corrected).params
        # c_i <- c_i - c + (x - y) / (K eta); K is 0 in a padded slot
        length = jnp.maximum(local.num_steps(now, examples), 1).astype(float) * local.step_size(now.optimizer)
        control = jax.tree.map(
            lambda own, mean, x, y: own - mean + (x - y) / length, state.control, server.control, server.params, y
        )
        moved = Variates(y, jax.tree.map(jnp.subtract, control, state.control))
        return srp.ClientOutput(moved, OwnVariate(control))

    def server(self, key, state, mean, context):
        # x <- mean y_i; c <- c + (|S| / N) mean (c_i' - c_i)
        share = context.cohort_size.astype(float) / context.num_clients
        return Variates(mean.params, jax.tree.map(lambda c, d: c + share * d, state.control, mean.control))

    @srp.evaluation("global")
    def as_it_is(self, key, server, state, examples):
        return lambda x: self.model.logits(server.params, x)


LARGE = srp.models.MLP((NUM_FEATURES,), NUM_CLASSES, hidden=(256, 256))  # trained one client after the other on a CPU


@pytest.mark.long
@pytest.mark.parametrize("model", [MODEL], ids=["small"])
def test_scaffold_is_fedavg_where_clients_are_identical(model):
    one, ids = blobs(8), np.arange(32).reshape(4, 8)
    x, y = np.tile(one.x_train[:8], (4, 1)), np.tile(one.y_train[:8], 4)
    data = srp.data.from_arrays(x, y, x.copy(), y, train_indices=ids, test_indices=ids, num_classes=NUM_CLASSES)
    training = srp.Training(srp.SGD(0.1), batch_size=8, epochs=3)
    fedavg = run(srp.algorithms.FedAvg(model, training), data)
    found = run(Scaffold(model, training), data)
    assert_close(found.server_state.params, fedavg.server_state.params, 1e-5)
    assert found.bytes_up == found.bytes_down == 2 * fedavg.bytes_up


@pytest.mark.long
@pytest.mark.parametrize("model", [LARGE], ids=["large"])
def test_scaffold_corrects_drift_where_clients_differ(model):
    """Its control variate of the server is the mean gradient along the way, whatever the chunks."""
    data, training = blobs(3, 7, 5, 6), srp.Training(srp.SGD(0.1), batch_size=2, epochs=2)
    fedavg = run(srp.algorithms.FedAvg(model, training), data)
    found = [run(Scaffold(model, training), data, chunk_size=c, devices=d) for c, d in ((4, 1), (1, 2))]
    assert found[0].finite.all()
    assert_close(found[0].server_state, found[1].server_state, 1e-5)
    with pytest.raises(AssertionError):
        assert_close(found[0].server_state.params, fedavg.server_state.params, 1e-3)


def test_scaffold_refuses_an_optimizer_that_does_not_tell_its_step_size():
    with pytest.raises(ValueError, match="step size"):
        Scaffold(MODEL, srp.Training(optax.sgd(0.1)))


# A projection after each step.


class Mixed(NamedTuple):
    own: Any  # the personal model v_i
    share: jax.Array  # () alpha_i in [0, 1]


@srp.part
class Mixture(GlobalModel):
    """A personal mixture of the client's own model and the global one, with a learned share."""

    project: bool = True

    def mixed(self, parts, params, x, key=None):
        own, shared = self.model.logits(parts.own, x, key), self.model.logits(params, x, key)
        return parts.share * own + (1 - parts.share) * shared

    def loss(self, parts, params, x, y, key):
        return srp.models.cross_entropy(self.mixed(parts, params, x, key), y)

    def onto_unit_interval(self, parts):
        return parts._replace(share=jnp.clip(parts.share, 0.0, 1.0)) if self.project else parts

    def init_client(self, key, server, examples):
        return Mixed(self.model.init(key), jnp.full((), 0.5))

    def client(self, key, params, state, examples, context):
        now, plain_loss = self.training.in_round(context), local.example_loss(self.model)
        trained = local.local_sgd(srp.named_key(key, "local"), plain_loss, params, (), examples, now)
        key_own, project = srp.named_key(key, "mixture"), self.onto_unit_interval
        own = local.local_sgd(key_own, self.loss, state, params, examples, now, after_step=project).params
        outside = jnp.maximum(-own.share, own.share - 1)
        return srp.ClientOutput(trained.params, own, info={"share": own.share, "outside": outside})

    @srp.evaluation
    def own(self, key, server, state, examples):
        return lambda x: self.mixed(state, server, x)


def test_a_share_is_kept_between_0_and_1_by_a_projection():
    data, steep = blobs(3, 7, 5, 6), srp.Training(srp.SGD(5.0))
    one_by_one = {"participation": srp.participation.Uniform(1), "num_rounds": 6}  # the mean of one is its own
    kept = run(Mixture(MODEL, steep), data, **one_by_one)
    free = run(Mixture(MODEL, steep, project=False), data, **one_by_one)
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


@srp.part
class Census(srp.FederatedAlgorithm):
    """The server counts who took part."""

    num_clients: int

    def init(self, key, data):
        return jnp.zeros(self.num_clients)

    def broadcast(self, server, context):
        return srp.nothing(server, context)

    def client(self, key, broadcast, state, name, context):
        return srp.ClientOutput((name == jnp.arange(self.num_clients)).astype(float))

    def server(self, key, counts, mean, context):
        return counts + mean * context.cohort_size.astype(float)


def counts_of(policy, num_clients, num_rounds, clock=None):
    data = Names(jnp.arange(num_clients))
    history = run(Census(num_clients), data, num_rounds, participation=policy, clock=clock, evaluations=())
    return np.round(history.server_state).astype(int), history


class Waiting(NamedTuple):
    rounds: jax.Array  # (num_clients,) int32, since the client last took part


@srp.part
class LongestWaiting(srp.ParticipationPolicy):
    """The k clients that have waited longest, ties at random; it remembers whom it picked."""

    name: ClassVar[str] = "longest_waiting"
    k: Annotated[int, srp.AtLeast(1)] = 10

    def init(self, key, num_clients):
        return Waiting(jnp.zeros(num_clients, jnp.int32))

    def select(self, key, state, times):
        num_clients = times.realised.shape[0]
        shuffled = jax.random.permutation(key, num_clients).astype(jnp.int32)
        picked = shuffled[jnp.argsort(-state.rounds[shuffled], stable=True)[: self.k]]
        picked = picked[jnp.argsort(times.realised[picked])]  # fastest first
        cohort = srp.Cohort(picked, jnp.int32(self.k), jnp.ones(self.k, jnp.int32), jnp.int32(0))
        return cohort, Waiting((state.rounds + 1).at[picked].set(0))


def test_a_policy_that_remembers_whom_it_picked_serves_everybody_in_turn():
    counts, history = counts_of(LongestWaiting(3), 9, 6)
    assert counts.tolist() == [2] * 9
    assert (history.cohort_size == 3).all()
    at_random, _ = counts_of(srp.participation.Uniform(3), 9, 6)
    assert at_random.sum() == 18
    assert at_random.tolist() != [2] * 9


@srp.part
class Deadline(srp.ParticipationPolicy):
    """Whoever is done by the deadline takes part, and the fastest in any case; the server never goes on earlier."""

    limit: Annotated[float, srp.Above(0)] = 1.0

    def select(self, key, state, times):
        ids = jnp.argsort(times.realised).astype(jnp.int32)
        size = jnp.maximum(jnp.sum(times.realised <= self.limit, dtype=jnp.int32), 1)
        duration = jnp.maximum(self.limit, jnp.min(times.realised))
        return srp.Cohort(ids, size, jnp.ones_like(ids), jnp.int32(0), duration), state


def test_a_policy_that_says_how_long_its_rounds_last():
    clock = srp.clocks.Trace([[4.0, 1.0, 2.0], [7.0, 9.0, 5.0]])
    counts, history = counts_of(Deadline(3.0), 3, 2, clock)
    assert counts.tolist() == [0, 1, 2]
    assert history.cohort_size.tolist() == [2, 1]
    assert history.compute_time.tolist() == [3.0, 5.0]
    np.testing.assert_allclose(history.elapsed(communication=10), np.cumsum([13.0, 15.0]))


# Clocks.


class Rush(NamedTuple):
    times: jax.Array  # (num_clients,) float, on a free road
    is_jammed: jax.Array  # (num_clients,) bool


@srp.part
class TrafficJam(srp.Clock):
    """A client's road jams and clears by a Markov chain; a jam multiplies its time."""

    slowdown: Annotated[float, srp.AtLeast(1)] = 10.0
    probability: Annotated[float, srp.AtLeast(0), srp.AtMost(1)] = 0.1

    def init(self, key, num_clients):
        times = 1 + jax.random.exponential(srp.named_key(key, "times"), (num_clients,))
        return Rush(times, jnp.zeros(num_clients, bool))

    def sample(self, key, state, now):
        changes = jax.random.bernoulli(key, self.probability, state.is_jammed.shape)
        is_jammed = jnp.where(changes, ~state.is_jammed, state.is_jammed)
        realised = jnp.where(is_jammed, self.slowdown * state.times, state.times)
        return srp.ClientTimes(state.times, realised), Rush(state.times, is_jammed)


def test_a_clock_of_ones_own():
    _, history = counts_of(None, 1, 200, TrafficJam(10.0, 0.2))
    free = history.client_time[0]
    is_jammed = np.isclose(history.compute_time, 10 * free)
    np.testing.assert_allclose(history.compute_time[~is_jammed], free, rtol=1e-6)
    changes = np.diff(is_jammed.astype(int), prepend=0) != 0
    assert abs(changes.mean() - 0.2) < 4 * np.sqrt(0.2 * 0.8 / 200)
    _, always = counts_of(None, 1, 4, TrafficJam(10.0, 1.0))
    np.testing.assert_allclose(always.compute_time / always.client_time[0], [10, 1, 10, 1], rtol=1e-6)


# Step sizes that follow the round, or the local step.


def descended(data, step_sizes):
    """Gradient descent on all examples of the only client, one step for each step size."""
    # The server's initial model: what a run leaves that does not train.
    start = run(srp.algorithms.FedAvg(MODEL, srp.Training(epochs=0)), data, 1).server_state.params
    rows = np.asarray(data.train_indices[0])
    x, y = data.x_train[rows], data.y_train[rows]
    params = jax.tree.map(jnp.asarray, start)
    for eta in step_sizes:
        gradient = jax.grad(lambda p: jnp.mean(srp.models.cross_entropy(MODEL.logits(p, x), y)))(params)
        params = jax.tree.map(lambda p, g: p - jnp.float32(eta) * g, params, gradient)  # noqa: B023
    return params


BY_ROUND = {
    "a_formula": lambda round: srp.SGD(0.5 / (1 + round.astype(float))),
    "optax": lambda round: optax.sgd(optax.polynomial_schedule(0.5, 0.125, 1, 3)(round)),
}
EXPECTED = {"a_formula": [0.5, 0.25, 0.5 / 3], "optax": [0.5, 0.375, 0.25]}


@pytest.mark.short("optax")
@pytest.mark.parametrize("name", BY_ROUND)
def test_an_optimizer_may_follow_the_round(name):
    data = blobs(6)
    algorithm = srp.algorithms.FedAvg(
        MODEL, srp.Training(BY_ROUND[name], batch_size=6), fine_tune_optimizer=srp.SGD(0.1)
    )
    found = run(algorithm, data, evaluations="all").server_state.params
    assert_close(found, descended(data, EXPECTED[name]), 1e-5)


def test_an_evaluation_has_no_round_for_an_optimizer_to_follow():
    with pytest.raises(ValueError, match="fine_tune_optimizer"):
        srp.algorithms.FedAvg(MODEL, srp.Training(BY_ROUND["a_formula"]))


@pytest.mark.short("sgd")
@pytest.mark.parametrize("make", [srp.SGD, optax.sgd], ids=["sgd", "optax"])
def test_a_schedule_counts_the_local_steps_and_starts_anew_in_every_round(make):
    data = blobs(6)
    algorithm = srp.algorithms.FedAvg(
        MODEL, srp.Training(make(optax.exponential_decay(0.5, 1, 0.5)), batch_size=6, epochs=3)
    )
    assert_close(run(algorithm, data, 2).server_state.params, descended(data, [0.5, 0.25, 0.125] * 2), 1e-5)


# Floats as arguments of a program.

TRACES = []  # one entry whenever a client function is traced


@srp.part
class Counted(FedProx):
    def client(self, *args):
        TRACES.append(1)
        return super().client(*args)


@srp.part
class WrittenIn(Counted):
    """Its floats stand in the program."""

    rate: srp.Static[float] = 0.1
    weight: srp.Static[float] = 0.0

    def client(self, *args):
        written_in = FedProx(self.model, srp.Training(srp.SGD(self.rate), batch_size=2), self.weight)
        return FedProx.client(written_in, *args)


@pytest.mark.long
def test_floats_compile_once_and_are_equal_to_constants():
    data, settings = blobs(3, 7, 5, 6), [(0.05, 0.0), (0.2, 1.5)]

    def traced_by(rate, mu, **options):
        TRACES.clear()
        history = run(Counted(MODEL, srp.Training(srp.SGD(rate), batch_size=2), mu), data, **options)
        return len(TRACES), history

    compiling, history = traced_by(*settings[0])
    assert compiling > 0
    # Another key, a part that is built again, other floats: nothing is traced, not even to be checked.
    assert traced_by(*settings[0], key=jax.random.key(6))[0] == 0
    again, other = traced_by(*settings[1])
    assert again == 0
    for found, (rate, mu) in zip((history, other), settings, strict=True):
        constant = run(WrittenIn(MODEL, rate=rate, weight=mu), data)
        assert_close(found.server_state, constant.server_state)
    with pytest.raises(AssertionError):
        assert_close(other.server_state, history.server_state, 1e-2)
