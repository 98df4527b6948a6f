"""A data set of no examples for the tests of methods, and what they read of a method."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp

import fedjax_srp as srp
from fedjax_srp import ClientTimes
from fedjax_srp.parts.options import options_of
from fedjax_srp.parts.part import is_part

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


def values_of(given, leave_out=()):
    """Return short name -> value of every option of a part; inner parts by their own options."""
    found = {}
    for name, option in options_of(type(given)).items():
        first, *inner = option.path.split(".")
        value = getattr(given, first)
        for field in inner:
            value = getattr(value, field, None)
        is_within_none = option.is_optional and getattr(given, first) is None
        if not (is_within_none or first in leave_out or is_part(value)):
            found[name] = value
    return found


def record(name, **options):
    """Return option -> value of a method and its model."""
    choice = srp.methods.choose(name, **options)
    method = choice.on_placeholder()
    values = values_of(method.algorithm, ("model",)) | values_of(method.participation)
    return values | choice.model_options()


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
