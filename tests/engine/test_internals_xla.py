"""Loops under vmap: alone, nested, and closing over tracers; options of the compiler; cores; the largest scores."""

import os
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.core import Tracer

import fedjax_srp as srp
from fedjax_srp.xla import backend, cores
from fedjax_srp.xla.largest import largest, magnitudes
from fedjax_srp.xla.loops import batch_max, mapped_with, reversible, sequential

BOUNDS = jnp.array([[1, 4, 2], [0, 3, 5]], jnp.int32)


def test_batch_max_is_the_largest_of_all_vmapped_axes():
    assert int(jax.jit(batch_max)(jnp.int32(3))) == 3
    nested = jax.vmap(jax.vmap(batch_max))
    for function in (nested, jax.jit(nested), jax.vmap(jax.jit(jax.vmap(batch_max)))):
        np.testing.assert_array_equal(function(BOUNDS), np.full((2, 3), 5))


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


def test_mapped_with_gives_a_tree_the_axes_of_what_maps_a_value():
    tree = {"mapped": X, "shared": jnp.float32(3.0)}
    axes = {"mapped": 0, "shared": None}
    both = jax.vmap(mapped_with, in_axes=(0, axes), out_axes=axes)
    with pytest.raises(ValueError, match="out_axes"):
        both(X, tree)  # the shared number has an entry for each element now
    of_shared = jax.vmap(mapped_with, in_axes=(None, axes), out_axes=axes)
    jax.tree.map(np.testing.assert_array_equal, of_shared(X[0], tree), tree)
    nested = jax.vmap(jax.vmap(mapped_with, in_axes=(0, None)), in_axes=(0, None))
    found = jax.jit(nested)(BOUNDS, tree["shared"])
    np.testing.assert_array_equal(found, np.full(BOUNDS.shape, 3.0))
    # `jax.jacfwd` is a vmap over tangents alone
    sums = lambda x: jax.vmap(lambda n: mapped_with(n, x * X))(BOUNDS).sum((0, 1))
    np.testing.assert_array_equal(jax.jacfwd(sums)(2.0), len(BOUNDS) * X.sum())
    with reversible(2):
        gradient = jax.grad(lambda x: mapped_with(jnp.int32(1), x) ** 2)
        assert float(gradient(3.0)) == 6.0


def test_a_loop_that_begins_with_its_axes_is_mapped_in_fewer_passes():
    """The body of a loop is mapped until no further part of the carry gains an axis."""
    passes = []
    counted = jax.custom_batching.custom_vmap(lambda x: x)

    @counted.def_vmap
    def one_pass(axis_size, in_batched, x):
        passes.append(axis_size)
        return x, in_batched[0]

    def number_of_passes(begin):
        def run(x, bound):
            body = lambda i, total: total + counted(x)
            return jax.lax.fori_loop(0, bound, body, begin(x, jnp.float32(0.0)))

        passes.clear()
        jax.make_jaxpr(jax.vmap(run, in_axes=(0, None)))(X, 2)
        return len(passes)

    as_it_is = number_of_passes(lambda x, start: start)
    assert 0 < number_of_passes(mapped_with) < as_it_is


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
    """A custom loss may close over a client's count and its key."""

    def one(x, n, key):
        noise = jax.random.uniform(key)
        return sequential(lambda x: x * noise + n.astype(x.dtype))(x)

    keys, n = jax.random.split(jax.random.key(0), 3), jnp.array([3, 1, 2], jnp.int32)
    found = jax.jit(jax.vmap(one))(X, n, keys)
    noise = np.array([float(jax.random.uniform(key)) for key in keys])
    np.testing.assert_allclose(found, np.asarray(X) * noise + np.asarray(n), rtol=1e-6)


def test_sequential_supports_forward_mode():
    """`jax.jacfwd` is a vmap over tangents only, without elements to process in turn."""
    once = sequential(lambda w, x: w**2 * jnp.sin(x))
    nested = sequential(lambda w, x: once(w, x))
    total = lambda w: jax.vmap(nested, in_axes=(None, 0))(w, jnp.arange(3.0)).sum()
    np.testing.assert_allclose(
        jax.jit(jax.jacfwd(total))(0.5), jnp.sin(jnp.arange(3.0)).sum(), rtol=1e-6
    )


@pytest.mark.parametrize(
    ("given", "eigen"),
    [
        ("--xla_a=1", "false"),
        ("--xla_cpu_multi_thread_eigen=true", "true"),  # your own choice
    ],
)
def test_devices_of_all_cores_have_one_thread_each_and_wait(monkeypatch, given, eigen):
    numbers = []
    config = SimpleNamespace(
        jax_num_cpu_devices=-1, update=lambda name, number: numbers.append(number)
    )
    monkeypatch.setattr(cores, "jax", SimpleNamespace(config=config))
    monkeypatch.setenv("XLA_FLAGS", given)
    assert srp.use_all_cores(3) == 3
    assert numbers == [3]
    text = os.environ["XLA_FLAGS"]
    flags = dict(flag.split("=") for flag in text.split())
    assert text.startswith(given)
    assert len(flags) == len(text.split())
    assert flags["--xla_cpu_multi_thread_eigen"] == eigen
    # XLA aborts a process in which one device is 40 seconds behind another
    assert float(flags["--xla_cpu_collective_call_terminate_timeout_seconds"]) > 1e5
    with pytest.raises(ValueError, match="num_devices=-1 must be at least 1"):
        srp.use_all_cores(-1)


def test_options_are_for_cpus():
    assert backend.compiler_options("gpu") == backend.compiler_options("tpu") == {}
    assert backend.compiler_options("cpu")


def test_a_users_optimization_level_is_kept(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    assert backend.options_for_one_run("cpu")
    assert not backend.options_for_one_run("gpu")
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=2")
    assert not backend.options_for_one_run("cpu")


@pytest.mark.parametrize(
    "values",
    [
        np.random.default_rng(0).standard_normal(500),
        np.random.default_rng(1).standard_normal(500) ** 9,
        np.round(np.random.default_rng(2).standard_normal(500)),  # ties
        np.zeros(7),
        np.array([np.nan, -np.inf, np.inf, 1e-45, -0.0]),
    ],
    ids=["even", "heavy tails", "ties", "zeros", "specials"],
)
@pytest.mark.parametrize("share", [0.002, 0.3, 1.0])
def test_the_largest_are_those_of_a_stable_sort(values, share):
    kept = max(1, round(share * values.size))
    order = np.argsort(-np.nan_to_num(np.abs(values), nan=np.inf), kind="stable")
    order = sorted(order, key=lambda i: not np.isnan(values[i]))  # nan first
    scores = magnitudes(jnp.asarray(values, jnp.float32))
    for found in (
        jax.jit(largest, static_argnums=1)(scores, kept),
        jax.jit(largest)(scores, jnp.int32(kept)),
    ):
        assert sorted(np.flatnonzero(found)) == sorted(order[:kept])
