"""IFCA: one cluster is FedAvg, what a client sends, a mean by group, planted clusters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.small import (
    KEY,
    Client,
    assert_close,
    built,
    clients_of,
    federation,
    model,
    numbers,
    prepared,
    refused,
    simulate,
)

import fedjax_srp as srp

DATA = federation(clients_of((4, 6, 3, 8), (3,) * 4))
STEPS = {"optimizer": srp.SGD(0.2, 0.5), "batch_size": 3}


def test_one_cluster_is_fedavg():
    runs = []
    for cls, more in (
        (srp.algorithms.IFCA, {"num_clusters": 1}),
        (srp.algorithms.FedAvg, {}),
    ):
        algorithm = built(cls, model(), **STEPS, weighting="num_examples", **more)
        runs.append(simulate(algorithm, DATA, 3, record_loss=True))
    clusters, alone = runs
    only = jax.tree.map(lambda leaf: leaf[0], clusters.server_state.params)
    assert_close(only, alone.server_state.params, 1e-5)
    np.testing.assert_allclose(
        clusters.metrics["training_loss"], alone.metrics["training_loss"], rtol=1e-5
    )


@pytest.mark.parametrize("num_clusters", [1, 3])
def test_a_client_sends_one_model_and_an_index_and_receives_all_models(num_clusters):
    fedavg = prepared(srp.algorithms.FedAvg(model()), DATA).sizes.messages
    ifca = srp.algorithms.IFCA(model(), num_clusters=num_clusters)
    found = prepared(ifca, DATA).sizes.messages
    assert found == (fedavg.sent + 4, num_clusters * fedavg.received)
    coded = srp.messages.Coded(ifca, up=srp.messages.Half())
    assert prepared(coded, DATA).sizes.messages.sent == fedavg.sent / 2 + 4


def test_planted_clusters_are_found():
    """Half of the clients have the other labels, so that no single model suits both."""
    rng = np.random.default_rng(0)
    clients = []
    for i in range(8):
        x = rng.normal(size=(60, 6)).astype(np.float32)
        y = ((x[:, 0] > 0) ^ (i % 2 == 1)).astype(np.int32)
        clients.append(Client(x[:40], y[:40], x[40:], y[40:]))
    data = federation(clients)
    algorithm = built(
        srp.algorithms.IFCA, model(), optimizer=srp.SGD(0.3), epochs=3, num_clusters=2
    )
    history = simulate(algorithm, data, 20)
    clusters = []
    for client in range(8):
        examples = data.train_client(jnp.int32(client))
        clusters.append(int(algorithm.cluster_of(history.server_state.params, examples)))
    assert clusters in ([0, 1] * 4, [1, 0] * 4)
    assert history.final_accuracy > 0.9


# The mean by group, of any algorithm.


@srp.part
class ByParity(srp.FederatedAlgorithm):
    """Means of the values of even and of odd clients, the value is the client's weight too."""

    num_groups: int = 2

    def init(self, key, data):
        return jnp.full((self.num_groups, 2), 7.0)

    def client(self, key, server, state, value, context):
        group = (value.astype(jnp.int32) % 2) == jnp.arange(
            self.num_groups, dtype=jnp.int32
        )
        weight = jnp.where(group, value, 0.0)
        return srp.ClientOutput(jnp.stack([value, -value]), weight=weight)

    def server(self, key, server, mean, context):
        return mean

    @srp.evaluation
    def nothing(self, key, server, state, value):
        return lambda test: test


@pytest.mark.parametrize("chunk_size", [1, 3])
def test_a_vector_of_weights_makes_a_mean_for_each_group(chunk_size):
    data = numbers(1, 2, 3, 4, 6)
    history = simulate(ByParity(3), data, 1, chunk_size=chunk_size)
    even = (4 + 16 + 36) / (2 + 4 + 6)
    odd = (1 + 9) / (1 + 3)
    expected = [[even, -even], [odd, -odd], [0.0, 0.0]]  # nobody is in the third
    np.testing.assert_allclose(history.server_state, expected, rtol=1e-6)
    assert history.bytes_up == 8
    alone = srp.debug_client(ByParity(3), data, client=2, key=KEY, evaluations=())
    np.testing.assert_allclose(alone.server, [[0.0, 0.0], [3.0, -3.0], [0.0, 0.0]])


def test_a_weight_of_two_axes_is_refused():
    @srp.part
    class Square(ByParity):
        def client(self, key, server, state, value, context):
            return srp.ClientOutput(value, weight=jnp.ones((2, 2)))

    with refused("weight.*group"):
        simulate(Square(), numbers(1, 2), 1)
