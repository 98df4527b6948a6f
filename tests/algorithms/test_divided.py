"""FedCP and GPFL: heads that are refused, features that are divided, conditions, fine-tuning."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from algorithm_table import TABLE, classification, with_batch_norm
from reference.small import KEY, model, refused

import fedjax_srp as srp


@pytest.mark.parametrize(
    ("split_model", "layers"),
    [(model().recut(None), "no layer"), (with_batch_norm().recut("norm"), "norm, fc1")],
)
def test_fedcp_needs_a_head_of_dense_layers(split_model, layers):
    algorithm = srp.algorithms.FedCP(split_model)
    with refused(f"fedcp needs a head of dense layers .* is {layers}; give a model"):
        algorithm.init(KEY, classification())


def started(name):
    """The algorithm, its first states, and a client's examples."""
    algorithm = TABLE[name].make()
    examples = classification().train_client(jnp.int32(4))
    server = algorithm.init(KEY, classification())
    return algorithm, server, algorithm.init_client(KEY, server, examples), examples


def test_equal_heads_need_no_policy():
    """Two equal heads have all of the features together: r h + (1 - r) h = h."""
    algorithm, server, state, examples = started("fedcp")
    found = algorithm.own_model(KEY, server, state, examples)(examples.x)
    bias = server.params.head["out"]["bias"]
    expected = algorithm.model.logits(server.params, examples.x) + bias[None]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_the_condition_of_one_class_is_its_embedding():
    algorithm, server, _, examples = started("gpfl")
    of_one = examples._replace(y=jnp.full_like(examples.y, 2))
    found = algorithm.condition(server.embeddings, of_one)
    np.testing.assert_allclose(found, server.embeddings[2], rtol=1e-6)
    nobody = examples._replace(count=jnp.int32(0))
    assert not algorithm.condition(server.embeddings, nobody).any()


@pytest.mark.parametrize("name", ["fedcp", "gpfl"])
def test_fine_tuning_trains_the_servers_head_and_no_other_part(name):
    algorithm, server, state, examples = started(name)
    expected = algorithm.own_model(KEY, server, state, examples)  # has the server's head
    other = state._replace(head=jax.tree.map(jnp.zeros_like, state.head))
    untrained = dataclasses.replace(algorithm, fine_tune_epochs=0)
    found = untrained.fine_tune(KEY, server, other, examples)
    np.testing.assert_array_equal(found(examples.x), expected(examples.x))

    tuned = algorithm.fine_tune(KEY, server, other, examples)
    (before,), (after,) = expected.args, tuned.args
    rest = after.parts.params._replace(head=before.parts.params.head)
    jax.tree.map(
        np.testing.assert_array_equal, after.parts._replace(params=rest), before.parts
    )
    loss = lambda predict: float(
        algorithm.model.loss(predict(examples.x), examples.y)[: examples.count].mean()
    )
    assert loss(tuned) < loss(expected)
