"""Clocks that begin anew after some rounds."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_srp as srp

CLIENTS = 6
FIXED = srp.clocks.Fixed(srp.clocks.Exponential(1.0))
LINEAR = srp.data.linear_task(jax.random.key(0), CLIENTS, dim=5, rank=1)


@functools.partial(jax.jit, static_argnames="rounds")
def times_of_seeds(clock, seeds, rounds):
    """Realised times, (seeds, rounds, clients)."""

    def of_seed(seed):
        def in_round(state, r):
            times, state = clock.sample(jax.random.key(100 + r), state, r.astype(float))
            return state, times.realised

        start = clock.init(jax.random.key(seed), CLIENTS)
        return jax.lax.scan(in_round, start, jnp.arange(rounds))[1]

    return jax.vmap(of_seed)(seeds)


def times_of(clock, rounds):
    return np.asarray(times_of_seeds(clock, jnp.arange(1), rounds))[0]


@pytest.mark.parametrize("every", [1, 3])
def test_a_draw_lasts_for_so_many_rounds_and_the_first_is_the_clock_s_own(every):
    drawn = times_of(srp.clocks.Redrawn(FIXED, every=every), 7)
    np.testing.assert_allclose(drawn[0], times_of(FIXED, 1)[0], rtol=1e-6)
    for r in range(1, 7):
        assert np.array_equal(drawn[r], drawn[r - 1]) == (r % every > 0)


def test_draws_are_independent_and_of_the_clock_s_distribution():
    many = srp.clocks.Redrawn(FIXED, every=1)
    drawn = np.asarray(times_of_seeds(many, jnp.arange(8), 50)).ravel()
    assert abs(drawn.mean() - 1) < 4 / np.sqrt(drawn.size)
    before = np.asarray(times_of_seeds(many, jnp.arange(100), 2))
    correlation = np.corrcoef(before[:, 0].ravel(), before[:, 1].ravel())[0, 1]
    assert abs(correlation) < 4 / np.sqrt(before[:, 0].size)


def test_other_clocks_and_their_availability_begin_anew_too():
    inner = srp.clocks.Available(
        srp.clocks.Dynamic(srp.clocks.Exponential(srp.clocks.Uniform(0.1, 1.0))),
        srp.clocks.Markov(on=2.0, off=2.0),
    )
    clock = srp.clocks.Redrawn(inner, every=2)
    assert np.isfinite(times_of(clock, 5)).all()


def test_stages_of_doubling_wait_for_other_clients():
    """With fixed speeds cohorts are nested; with speeds of a stage they need not be."""
    algorithm = srp.algorithms.LinearFedRep(LINEAR, step_size=0.1, samples_per_round=4)
    history = srp.simulate(
        algorithm,
        LINEAR,
        participation=srp.participation.Doubling(initial=2, rounds_per_stage=3),
        clock="Redrawn(Fixed(Exponential(1.0)), every=3)",
        num_rounds=6,
        key=jax.random.key(3),
        progress=False,
    )
    times = history.compute_time
    assert len({*times[:3].tolist()}) == 1
    assert len({*times[3:].tolist()}) == 1


def test_every_is_a_positive_integer():
    with pytest.raises(ValueError, match="every=0 must be at least 1"):
        srp.clocks.Redrawn(FIXED, every=0)
