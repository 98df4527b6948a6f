"""APPLE: what it equals where relations are fixed, and the memory of its core models."""

import jax
import numpy as np
import pytest
from jax.extend.core import ClosedJaxpr, Jaxpr
from reference.small import KEY, assert_close, built
from setting import COUNTS, EVERYBODY, SMALL, run_of, split_model

import fedjax_srp as srp

NUM_CLIENTS = len(COUNTS)


@pytest.mark.usefixtures("float64")
def test_with_fixed_relations_and_one_step_it_is_fedavg():
    """Each core moves by its share of its client's gradient, so that their mean moves by 1 / N of the mean gradient."""
    one_step = {"batch_size": 99, "epochs": 1}
    step = lambda size: {"optimizer": srp.SGD(size), **one_step}
    apple = built(
        srp.algorithms.APPLE,
        split_model(),
        relation_step_size=0.0,
        **step(0.3 * NUM_CLIENTS),
    )
    fedavg = built(srp.algorithms.FedAvg, split_model(), **step(0.3))
    found = run_of(apple, SMALL(), EVERYBODY)
    expected = run_of(fedavg, SMALL(), EVERYBODY)
    for state, of_fedavg in zip(found, expected, strict=True):
        mean = jax.tree.map(lambda cores: cores.mean(axis=0), state.server.params)
        assert_close(mean, of_fedavg.server.params, 1e-9)
        np.testing.assert_array_equal(state.clients.change, 0)


def sizes_of(jaxpr):
    """Yield the number of entries of every array in a program."""
    for equation in jaxpr.eqns:
        for variable in equation.outvars:
            yield variable.aval.size
        for value in jax.tree.leaves(
            equation.params, is_leaf=lambda v: isinstance(v, ClosedJaxpr | Jaxpr)
        ):
            if isinstance(value, ClosedJaxpr):
                yield from sizes_of(value.jaxpr)
            elif isinstance(value, Jaxpr):
                yield from sizes_of(value)


@pytest.mark.parametrize("width", [8, 200])
def test_clients_that_train_at_once_share_one_array_of_cores(width):
    """Small models are trained as a batch, large ones one after the other."""
    data = srp.data.load("digits", num_clients=20, classes_per_client=4)
    model = srp.models.MLP((8, 8), num_classes=10, hidden=(width,))
    algorithm = srp.algorithms.APPLE(model)
    simulation = srp.Simulation(algorithm, data, chunk_size=20)
    state = jax.eval_shape(simulation.init, KEY)
    cores = 20 * max(leaf.size for leaf in jax.tree.leaves(model.init(KEY)))
    program = jax.make_jaxpr(simulation.step)(state)
    assert cores <= max(sizes_of(program.jaxpr)) < 20 * cores
