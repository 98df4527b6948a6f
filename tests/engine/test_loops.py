"""`batch_max` and `sequential` under vmap: alone, nested, and closing over tracers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.core import Tracer

from fedjax_srp.xla.loops import batch_max, sequential

BOUNDS = jnp.array([[1, 4, 2], [0, 3, 5]], jnp.int32)


def test_batch_max_is_the_largest_of_all_vmapped_axes():
    assert int(jax.jit(batch_max)(jnp.int32(3))) == 3
    nested = jax.vmap(jax.vmap(batch_max))
    for function in (nested, jax.jit(nested), jax.vmap(jax.jit(jax.vmap(batch_max)))):
        np.testing.assert_array_equal(function(BOUNDS), np.full((2, 3), 5))
    both = jax.vmap(
        lambda bound, x: batch_max(bound).astype(x.dtype) + x, in_axes=(None, 0)
    )
    np.testing.assert_array_equal(
        both(jnp.int32(2), jnp.arange(3.0)), [2.0, 3.0, 4.0]
    )  # an axis that it does not see


def masked_sum(bound, x):
    """Return x * (0 + 1 + ... + bound - 1), by a loop whose body masks finished elements."""
    body = lambda i, total: (
        total + jnp.where(i < bound, i.astype(x.dtype) * x, jnp.zeros((), x.dtype))
    )
    return jax.lax.fori_loop(jnp.int32(0), batch_max(bound), body, jnp.zeros_like(x))


def test_a_loop_bounded_by_batch_max_keeps_a_scalar_predicate():
    """With the plain bound vmap makes the predicate a vector, and every iteration selects on the whole carry."""

    def predicate_shape(function):
        jaxpr = jax.make_jaxpr(jax.vmap(function))(BOUNDS[0], jnp.ones(3))
        (loop,) = (
            equation for equation in jaxpr.eqns if equation.primitive.name == "while"
        )
        return loop.params["cond_jaxpr"].out_avals[0].shape

    plain = lambda bound, x: jax.lax.fori_loop(
        jnp.int32(0), bound, lambda i, total: total + x, x
    )
    assert predicate_shape(plain) == (3,)
    assert predicate_shape(masked_sum) == ()


# sequential


def power_by_gradients(x, n, rate):
    """Take n steps of gradient descent on x^2 / 2, which gives x (1 - rate)^n; the loop has its own bound."""
    step = lambda _, v: v - rate * jax.grad(lambda u: 0.5 * u**2)(v)
    return jax.lax.fori_loop(jnp.int32(0), batch_max(n), step, x)


X, RATES = jnp.array([1.0, 2.0, 4.0]), jnp.array([0.5, 0.25])


def expected(rates):
    return np.asarray(X) * (1 - np.asarray(rates)[:, None]) ** np.asarray(BOUNDS)


@pytest.mark.parametrize("jit", [False, True])
def test_sequential_under_nested_vmap(jit):
    inner = jax.vmap(sequential(power_by_gradients), in_axes=(0, 0, None))
    outer = jax.vmap(inner, in_axes=(None, 0, 0))
    outer = jax.jit(outer) if jit else outer
    np.testing.assert_allclose(outer(X, BOUNDS, RATES), expected(RATES), rtol=1e-6)


def test_sequential_closes_over_tracers_of_an_outer_vmap():
    """A vmapped learning rate reaches the client through the closure of the algorithm (under jit, as in the engine)."""

    def client_of(rate):
        def client(x, n):
            assert isinstance(rate, Tracer)
            return power_by_gradients(x, n, rate)

        return sequential(client)

    def seeds(rate, bounds):
        return jax.vmap(client_of(rate))(X, bounds)

    np.testing.assert_allclose(
        jax.jit(jax.vmap(seeds))(RATES, BOUNDS), expected(RATES), rtol=1e-6
    )


def test_sequential_closes_over_integers_and_keys():
    """A custom loss may close over a client's count, its key and the round."""

    def one(x, n, key, round):
        def client(x):
            noise = jax.random.uniform(key)
            return (
                x * noise
                + n.astype(x.dtype)
                + jnp.where(round > 1, 10.0, 0.0).astype(x.dtype)
            )

        return sequential(client)(x)

    keys, n = jax.random.split(jax.random.key(0), 3), jnp.array([3, 1, 2], jnp.int32)
    run = jax.vmap(one, in_axes=(0, 0, 0, None))
    found = jax.jit(jax.vmap(run, in_axes=(None, None, None, 0)))(
        X, n, keys, jnp.arange(2) + 1
    )
    noise = np.array([float(jax.random.uniform(key)) for key in keys])
    for round in range(2):
        np.testing.assert_allclose(
            found[round], np.asarray(X) * noise + np.asarray(n) + 10 * round, rtol=1e-6
        )


@pytest.mark.parametrize("nested", [False, True])
def test_sequential_supports_forward_mode(nested):
    """`jax.jacfwd` is a vmap over tangents only, without elements to process in turn."""
    once = sequential(lambda w, x: w**2 * jnp.sin(x))
    function = sequential(lambda w, x: once(w, x)) if nested else once
    total = lambda w: jax.vmap(function, in_axes=(None, 0))(w, jnp.arange(3.0)).sum()
    np.testing.assert_allclose(
        jax.jit(jax.jacfwd(total))(0.5), jnp.sin(jnp.arange(3.0)).sum(), rtol=1e-6
    )
