"""Many seeds in one program, and large models trained one client at a time: the same runs as separately and batched."""

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.small import clients_of, federation, made_policy, model

import fedjax_srp as srp
from fedjax_srp.algorithms import local

DATA = federation(clients_of((1, 9, 4, 7, 2, 5, 30), (6,) * 7))
CLOCK = srp.clocks.Dynamic(srp.clocks.Exponential(1.0))
KEYS = jax.random.split(jax.random.key(5), 3)


def cohorts_of_a_size_by_key():
    """Return a policy whose cohorts have random sizes in every round, the fastest clients first, with unequal work."""

    def select(key, state, times):
        order = jnp.argsort(times.realised).astype(jnp.int32)
        size = jax.random.randint(key, (), 1, 8)
        return srp.Cohort(order, size, 1 + order % 2, size // 4), state

    return made_policy("by_key", lambda key, n: (), select, lambda state, info: state)


POLICY = cohorts_of_a_size_by_key()


STRATEGIES = ("batched", "one_after_the_other")
# The strategy is chosen when an algorithm is compiled: one algorithm for each.
ALGORITHMS = {
    strategy: srp.algorithms.LGFedAvg(
        model(hidden=(4,)),
        srp.Training(
            srp.SGD(0.2, 0.5, 0.01), batch_size=4, epochs=3, weighting="num_examples"
        ),
    )
    for strategy in STRATEGIES
}
RUN = {
    "participation": POLICY,
    "clock": CLOCK,
    "num_rounds": 4,
    "eval_every": 2,
    "progress": False,
}
EVALUATION = "own_representation"
LAYOUTS = {
    "batched": {"devices": 1},
    "one_after_the_other": {"devices": 2, "chunk_size": 2},
}


@contextlib.contextmanager
def in_force(strategy):
    before = local.SEQUENTIAL_BYTES
    local.SEQUENTIAL_BYTES = 0 if strategy == "one_after_the_other" else before
    try:
        yield
    finally:
        local.SEQUENTIAL_BYTES = before


@functools.cache
def histories(strategy, how):
    """Return the histories of all keys."""
    options = RUN | LAYOUTS[strategy] | {"evaluations": EVALUATION}
    with in_force(strategy):
        if how == "together":
            return srp.simulate_seeds(ALGORITHMS[strategy], DATA, keys=KEYS, **options)
        return [
            srp.simulate(ALGORITHMS[strategy], DATA, key=key, **options) for key in KEYS
        ]


@pytest.mark.short("batched-together")
@pytest.mark.parametrize(
    ("strategy", "how"),
    [
        ("batched", "together"),
        ("one_after_the_other", "one_by_one"),
        ("one_after_the_other", "together"),
    ],
)
def test_seeds_and_strategies_are_the_runs_one_by_one(strategy, how):
    sizes = set()
    for history, expected in zip(
        histories(strategy, how), histories("batched", "one_by_one"), strict=True
    ):
        for field in (
            "round",
            "stage",
            "cohort_size",
            "compute_time",
            "communicated",
            "finite",
            "eval_round",
        ):
            np.testing.assert_array_equal(
                getattr(history, field), getattr(expected, field), err_msg=field
            )
        np.testing.assert_array_equal(history.client_time, expected.client_time)
        np.testing.assert_array_equal(history.test_count, [6] * 7)
        wrong = np.abs(history.accuracy - expected.accuracy) * 6
        assert wrong.sum() <= 1  # of 84 answers, one may be a near tie
        assert (history.bytes_up, history.bytes_down) == (
            expected.bytes_up,
            expected.bytes_down,
        )
        assert history.config["key"] == expected.config["key"]
        sizes.add(tuple(expected.cohort_size.tolist()))
    assert len(sizes) == 3  # the seeds have cohorts of different sizes
