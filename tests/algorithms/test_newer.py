"""FedOpt, FedBABU, MOON, FedRoD, kNN-Per, FedProto: their NumPy versions, three rounds in float64, and limits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import fedavg, fedbabu, fedopt, fedproto, fedrod, knn_per, moon
from reference.small import NUM_CLASSES, assert_close, clients_of
from test_baselines import SHAPED, setting_of, split_model
from test_personal_models import check_round, given
from test_reference import by_layer, check_accuracies, of_client

import fedjax_srp as srp
from fedjax_srp.base import Examples

pytestmark = pytest.mark.usefixtures("float64")

SGD, LAYOUT = SHAPED["heavy"]
RULES = {"momentum": 0.4, "adagrad": 0.0, "adam": 0.6, "yogi": 0.6}  # rule -> beta1


@pytest.mark.short("yogi")
@pytest.mark.parametrize(("rule", "beta1"), RULES.items(), ids=RULES)
def test_fedopt(rule, beta1):
    options = {"rule": rule, "server_step_size": 0.3, "beta1": beta1, "beta2": 0.8, "adaptivity": 0.05}
    setting, args, more = given(srp.algorithms.FedOpt, SGD, LAYOUT, **options)
    states = list(fedopt.run(*args, rule=rule, eta=0.3, beta1=beta1, beta2=0.8, tau=0.05, **more))
    for t, state in enumerate(states):
        server = setting.states[t].server
        assert_close(by_layer(split_model(), *server.m), state.m, 1e-9)
        assert_close(by_layer(split_model(), *server.v), state.v, 1e-9)
        check_round(setting, t, state.params, SGD)
    assert t == 2


@pytest.mark.short("adagrad-*")
@pytest.mark.parametrize(("rule", "beta2"), [("adam", 0.0), ("yogi", 0.0), ("adagrad", 0.99)])
def test_fedopt_without_tau_and_memory_moves_every_weight_by_its_step(rule, beta2):
    """v is the square of the first mean move alone: x moves by eta times its sign."""
    options = {"rule": rule, "beta1": 0.0, "beta2": beta2, "adaptivity": 1e-14, "server_step_size": 0.03}
    setting, _, _ = given(srp.algorithms.FedOpt, SGD, LAYOUT, **options)
    moves = jax.tree.map(jnp.subtract, setting.states[0].server.params, setting.start.params)
    deltas = setting.states[0].server.m  # with beta1 = 0 the mean move itself
    expected = jax.tree.map(lambda d: jnp.where(jnp.abs(d) > 1e-9, 0.03 * jnp.sign(d), jnp.nan), deltas)
    for move, step in zip(jax.tree.leaves(moves), jax.tree.leaves(expected), strict=True):
        real = ~jnp.isnan(step)
        assert real.any()
        np.testing.assert_allclose(move[real], step[real], rtol=1e-4)


def test_fedbabu_and_its_head_stays():
    setting, (params, clients, cohorts), more = given(srp.algorithms.FedBABU, SGD, LAYOUT)
    for t, expected in enumerate(fedbabu.run(params, ["out"], clients, cohorts, **more)):
        check_round(setting, t, expected, SGD)
        np.testing.assert_array_equal(setting.states[t].server.params.head["out"]["kernel"], params["out"]["kernel"])
    assert t == 2


def test_moon():
    setting, args, more = given(srp.algorithms.MOON, SGD, LAYOUT, mu=0.8, temperature=0.3)
    for t, state in enumerate(moon.run(*args, mu=0.8, tau=0.3, **more)):
        check_round(setting, t, state.params, SGD)
        for i, last in enumerate(state.last):
            body = {name: layer for name, layer in last.items() if name != "out"}
            own = of_client(setting.states[t].clients.representation, i)
            assert_close(by_layer(split_model(), own), body, 1e-9)
    assert t == 2


def test_features_of_zero_have_no_direction():
    cosine = jax.value_and_grad(lambda z: srp.algorithms.moon.cosine(z, jnp.ones((1, 3)))[0])
    for found in cosine(jnp.zeros((1, 3))):
        assert jnp.isfinite(found).all()
        assert jnp.abs(found).max() <= 1e8


def test_fedrod():
    setting, args, more = given(srp.algorithms.FedRoD, SGD, LAYOUT)
    for t, state in enumerate(fedrod.run(*args, num_classes=NUM_CLASSES, **more)):
        for i, head in enumerate(state.heads):
            assert_close(of_client(setting.states[t].clients.head, i)["out"], head, 1e-9)
        own = [fedrod.own_accuracy(state, i, client) for i, client in enumerate(setting.clients)]
        check_round(setting, t, state.params, SGD, own_model=own)
    assert t == 2


@pytest.mark.long
def test_fedrod_shares_fedavgs_model_where_every_client_has_as_many_of_each_class():
    x = np.random.default_rng(0).normal(size=(8, 6))
    examples = Examples(jnp.asarray(x), jnp.asarray([0, 1, 2, 3] * 2, jnp.int32), jnp.int32(8))
    context = srp.RoundContext(*[jnp.int32(1)] * 3, 5, jnp.int32(1))
    moved = []
    for cls in (srp.algorithms.FedRoD, srp.algorithms.FedAvg):
        algorithm = cls(split_model(), srp.Training(srp.SGD(0.3), batch_size=3))
        server = algorithm.init(jax.random.key(0), None)
        state = algorithm.init_client(jax.random.key(1), server, examples)
        down = algorithm.broadcast(server, context)
        moved.append(algorithm.client(jax.random.key(2), down, state, examples, context).message)
    assert_close(moved[0], moved[1], 1e-9)


@pytest.mark.parametrize(
    ("k", "share"), [(3, 0.6), *(pytest.param(*given, marks=pytest.mark.long) for given in ((100, 1.0), (2, 0.0)))]
)
def test_knn_per(k, share):
    setting = setting_of(
        srp.algorithms.KNNPer, LAYOUT, optimizer=srp.SGD(0.2), num_neighbours=k, own_share=share, epochs=2
    )
    algorithm = srp.algorithms.KNNPer(split_model(), num_neighbours=k, own_share=share)
    capacity = 4 + max(len(client.y) for client in setting.clients)  # one shape for all

    @jax.jit
    def neighbours(server, examples, x):
        return jnp.exp(algorithm.neighbours(jax.random.key(0), server, (), examples)(x))

    for t in range(3):
        server = setting.states[t].server
        params, accuracies = by_layer(split_model(), *server.params), []
        for client in setting.clients:
            expected = knn_per.probabilities(params, client, client.x_test, NUM_CLASSES, k, share)
            missing = capacity - len(client.y)
            padded = np.concatenate([client.x, np.full((missing, client.x.shape[1]), 1e30)])
            labels = jnp.asarray(np.concatenate([client.y, np.zeros(missing, int)]), jnp.int32)
            examples = Examples(jnp.asarray(padded), labels, jnp.int32(len(client.y)))
            found = neighbours(server, examples, jnp.asarray(client.x_test))
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-7)
            accuracies.append(np.mean(expected.argmax(axis=1) == client.y_test))
        np.testing.assert_array_equal(setting.accuracies[t]["neighbours"], accuracies)


def test_a_client_without_examples_has_the_global_model():
    algorithm = srp.algorithms.KNNPer(split_model(), own_share=1.0)
    server = algorithm.init(jax.random.key(0), None)
    x = jnp.asarray(clients_of((3,), (2,), dtype=np.float64)[0].x)
    nobody = Examples(x, jnp.zeros(3, jnp.int32), jnp.int32(0))
    shared = jax.nn.log_softmax(algorithm.model.logits(server.params, x))
    np.testing.assert_allclose(algorithm.neighbours(jax.random.key(0), server, (), nobody)(x), shared, atol=1e-9)


@pytest.mark.short("heavy")
@pytest.mark.parametrize(("sgd", "run_options"), SHAPED.values(), ids=SHAPED)
def test_fedproto(sgd, run_options):
    """Rounds of 3, 2 and 7 of 7 clients: in the first two, classes are missing."""
    setting, args, more = given(srp.algorithms.FedProto, sgd, run_options | {"tuned": False}, penalty=0.7)
    for t, state in enumerate(fedproto.run(*args, penalty=0.7, **more)):
        found = setting.states[t].server.prototypes
        assert set(np.flatnonzero(found.weight)) == set(state.prototypes)
        for c, prototype in state.prototypes.items():
            np.testing.assert_allclose(found.features[c], prototype, rtol=0, atol=1e-9)
        accuracies = {"own_model": [], "nearest_prototype": []}
        for i, client in enumerate(setting.clients):
            assert_close(
                by_layer(split_model(), *of_client(setting.states[t].clients.params, i)), state.models[i], 1e-9
            )
            accuracies["own_model"].append(fedavg.global_accuracy(state.models[i], client))
            accuracies["nearest_prototype"].append(fedproto.nearest_accuracy(state, i, client))
        check_accuracies(setting, t, accuracies)
    assert t == 2
