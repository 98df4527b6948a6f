"""Parts in compiled programs: floats are arguments, the rest is compiled in."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from example_parts import ORDER, Inner, Outer, Third
from reference.small import refused

from fedjax_srp.parts import part as parts


def test_unflattening_runs_no_checks():
    made = Outer(decay=2.0, times=np.ones(2))
    leaves, structure = jax.tree.flatten(made)
    for value in (None, object(), -5.0, "text", jnp.ones((2, 3))):
        again = jax.tree.unflatten(structure, [value] * len(leaves))
        assert (again.inner.rate, again.mu) == (value, value)
        assert (again.epochs, again.share) == (1, 0.25)
    ORDER.clear()
    jax.jit(lambda p: jax.tree.map(lambda leaf: leaf, p))(Third())
    assert [who for who, _ in ORDER].count("second") == 1  # the one that was made above


def test_a_part_made_of_tracers_is_checked_as_far_as_they_say():
    @jax.jit
    def scaled(rate):
        return Inner(rate).rate + Outer(mu=rate).mu

    assert scaled(-1.0) == -2.0  # whose values nobody knows
    with refused("epochs=.* must be an integer, known before tracing"):
        jax.jit(lambda n: Outer(epochs=n).mu)(3)


def scale(p, x):
    power = 1.0 if p.decay is None else p.decay
    return p.inner.rate * p.epochs * x**power


def test_floats_are_arguments_and_the_rest_is_compiled_in():
    chex.clear_trace_counter()
    compiled = jax.jit(chex.assert_max_traces(scale, n=1))
    for rate in (0.1, 0.2, 3):
        for mu in (0.0, np.float64(0.5)):
            made = Outer(Inner(rate), mu=mu)
            assert float(compiled(made, 2.0)) == pytest.approx(2 * rate)
    others = [Outer(), Outer(decay=1.0), Outer(epochs=2), Outer(share=0.5), Outer(Inner(kind="odd"))]  # fmt: skip
    assert len({jax.tree.structure(p) for p in others}) == len(others)


def test_functions_and_strings_in_leaf_fields_are_static():
    def schedule(step):
        return 0.1 * step

    made = Outer(schedule=schedule, whatever="text")
    assert list(parts.values_of(made)) == ["inner.rate", "mu"]
    again = jax.tree.map(lambda leaf: leaf, made)
    assert again.schedule is schedule
    assert made == again == Outer(schedule=schedule, whatever="text")
    other = Outer(schedule=lambda step: 0.1 * step, whatever="text")  # another object
    assert made not in (other, Outer(whatever="text"))
