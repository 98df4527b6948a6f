"""A data set of no examples for the tests of methods, and what they read of a method."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp

import fedjax_srp as srp
from fedjax_srp import ClientTimes

NUM_CLIENTS = 100
SHAPES = SimpleNamespace(
    name="shapes", example_shape=(5,), num_classes=3, num_clients=NUM_CLIENTS
)
KEY = jax.random.key(0)


def cohort_sizes(policy, rounds):
    """Return the number of participants among 100 clients, by round."""
    state, times, sizes = (
        policy.init(KEY, NUM_CLIENTS),
        jnp.arange(1.0, 1.0 + NUM_CLIENTS),
        [],
    )
    for t in rounds:
        state = state._replace(round=jnp.int32(t)) if hasattr(state, "round") else state
        sizes.append(int(policy.select(KEY, state, ClientTimes(times, times))[0].size))
    return sizes


def algorithm_of(name, **options):
    """Return the algorithm of a method, on the paper's MLP with fewer units."""
    return srp.methods.get(name, dataset=SHAPES, hidden=(4, 4), **options).algorithm


def record(name, **options):
    """Return option -> value as runs record them."""
    return srp.methods.choose(name, **options).record()


def steps_of(optimizer):
    """Return weights and biases, ones at first, after each of two steps with gradients of ones."""
    params = {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}
    state, steps = optimizer.init(params), []
    for _ in range(2):
        updates, state = optimizer.update(
            jax.tree.map(jnp.ones_like, params), state, params
        )
        steps += [float(updates["kernel"][0, 0]), float(updates["bias"][0])]
    return steps
