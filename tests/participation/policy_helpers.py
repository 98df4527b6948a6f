"""Helpers for the tests of policies: times, records of rounds, and the order of clients."""

import jax
import jax.numpy as jnp

from fedjax_srp import ClientTimes, RoundInfo


def times_of(realised):
    realised = jnp.asarray(realised, dtype=float)
    return ClientTimes(realised, realised)


def random_times(num_clients, seed=0):
    key_expected, key_realised = jax.random.split(jax.random.key(seed))
    expected, realised = (
        jax.random.exponential(key, (num_clients,))
        for key in (key_expected, key_realised)
    )
    return ClientTimes(expected, realised)


def info_of(round, cohort, reports=None):
    return RoundInfo(
        round=jnp.asarray(round, jnp.int32),
        stage=cohort.stage,
        cohort_size=cohort.size,
        compute_time=jnp.ones(()),
        communicated=jnp.asarray(True),
        global_grad_norm=jnp.asarray(jnp.nan),
        finite=jnp.asarray(True),
        metrics={},
        reports=reports or {},
    )


def ranked(times, ids):
    """Sort ids by (time, id) in plain Python."""
    return sorted((int(i) for i in ids), key=lambda i: (float(times[i]), i))
