"""Policies without stages, and properties of all policies: ties by id, all clients, uniform draws."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from policy_helpers import random_times, ranked, times_of

from fedjax_srp import participation
from fedjax_srp.participation.cohorts import jobs_of, k_fastest, order_by

KEY = jax.random.key(0)
POLICIES = [
    participation.Full(),
    participation.Uniform(7),
    participation.Fastest(7),
    participation.Fastest(7, pool=12),
    participation.Doubling(3, 2, pool=10),
    participation.Growing(3, participation.LossPlateau()),
    participation.PartialWork(1),
    participation.StatisticalAccuracy(3, by="realised"),
    participation.Deadline(0.8, policy=participation.Uniform(15)),
    participation.PowerOfChoice(4, candidates=9),
    participation.Tiered(4, tiers=3, by="loss"),
    participation.Oort(7),
    participation.Buffered(7),
    participation.AsynchronousTiers(3, tiers=3),
]


def by_name(policy):
    return policy.name


@functools.cache
def selector(policy, num_clients):
    return jax.jit(
        lambda key, times: policy.select(key, policy.init(KEY, num_clients), times)[0]
    )


def select_once(policy, times, key=KEY):
    return selector(policy, times.realised.shape[0])(key, times)


@pytest.mark.parametrize("policy", POLICIES, ids=by_name)
def test_ties_go_by_client_id(policy):
    all_equal = select_once(policy, times_of(np.ones(500)))
    assert all_equal.client_ids.tolist() == sorted(all_equal.client_ids.tolist())
    realised = np.arange(500) % 3  # ties in three groups
    cohort = select_once(policy, times_of(realised))
    assert cohort.client_ids.tolist() == ranked(realised, cohort.client_ids)


@pytest.mark.short("*-37")
@pytest.mark.parametrize("num_clients", [1, 2, 37, 100])
@pytest.mark.parametrize("ties", [False, True])
def test_policies_with_all_clients_are_full(num_clients, ties):
    times = times_of(np.arange(num_clients) % 4) if ties else random_times(num_clients)
    full = select_once(participation.Full(), times)
    assert full.client_ids.tolist() == ranked(times.realised, range(num_clients))
    for policy in (
        participation.Uniform(num_clients),
        participation.Fastest(num_clients),
        participation.Fastest(num_clients, pool=num_clients),
        *(participation.Doubling(num_clients, pool=pool) for pool in (None, num_clients)),
        *(
            participation.Doubling(num_clients, pool=pool, redraw="stage")
            for pool in (None, num_clients)
        ),
        participation.PartialWork(1),
        participation.PowerOfChoice(num_clients, candidates=num_clients),
        participation.Tiered(num_clients, tiers=1),
        participation.Oort(num_clients),
        participation.Deadline(1e9),
        participation.Buffered(num_clients),
        participation.StatisticalAccuracy(num_clients, by="realised"),
    ):
        chex.assert_trees_all_equal(
            full, select_once(policy, times)._replace(duration=None, asked=None)
        )


def test_uniform_draws_every_client_and_every_pair_equally_often():
    num_clients, k, num_rounds = 12, 4, 20_000
    times, policy = random_times(num_clients), participation.Uniform(k)
    keys = jax.random.split(KEY, num_rounds)
    ids = np.asarray(
        jax.vmap(lambda key: policy.select(key, (), times)[0].client_ids)(keys)
    )
    taken = np.zeros((num_rounds, num_clients))
    np.put_along_axis(taken, ids, 1.0, axis=1)
    assert np.all(taken.sum(1) == k)
    share = k / num_clients
    assert np.max(np.abs(taken.mean(0) - share)) < 5 * np.sqrt(
        share * (1 - share) / num_rounds
    )
    pair = share * (k - 1) / (num_clients - 1)
    pairs = (taken.T @ taken / num_rounds)[~np.eye(num_clients, dtype=bool)]
    assert np.max(np.abs(pairs - pair)) < 5 * np.sqrt(pair * (1 - pair) / num_rounds)


def test_the_fastest_are_found_without_a_full_sort():
    """XLA finds the k largest in one pass, unless it moves slices of the ids into their readers."""

    def scanned(times):
        def one(times, _):
            ids = k_fastest(times, 8)
            takes_part = jnp.arange(8, dtype=jnp.float32) < times[0]
            counts = (
                jnp.zeros(1000, jnp.int32)
                .at[jnp.where(takes_part, ids, 1000)]
                .add(1, mode="drop")
            )
            return times, (times[ids].max(), jnp.pad(ids, (0, 4)), counts, ids[0])

        return jax.lax.scan(one, times, length=2)[1]

    text = jax.jit(scanned).lower(jnp.arange(1000, dtype=jnp.float32)).compile().as_text()
    assert "TopK" in text
    assert " sort(" not in text


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_clients_are_ordered_as_numpy_orders_them(dtype):
    rng = np.random.default_rng(0)
    some = [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1.5, -1.5, 3e-5, -3e-5]
    values = np.concatenate([rng.choice(some, 200), rng.standard_normal(100)])
    values = values.astype(dtype)
    ids = rng.permutation(1000)[: len(values)].astype(np.int32)
    wanted = ids[np.lexsort((ids, values))]
    found = jax.jit(order_by)(values, ids)
    assert found.dtype == np.int32
    assert found.tolist() == wanted.tolist()
    in_turn = jax.vmap(order_by)(jnp.stack([values, values[::-1]]), np.stack([ids, ids]))
    assert in_turn[0].tolist() == wanted.tolist()
    assert in_turn[1].tolist() == ids[np.lexsort((ids, values[::-1]))].tolist()


def test_clients_that_begin_a_job_come_first_by_id():
    begins = np.random.default_rng(0).random(50) < 0.3
    jobs = jobs_of(jnp.asarray(begins))
    assert jobs.client_ids.tolist() == [*np.flatnonzero(begins), *np.flatnonzero(~begins)]
    assert jobs.client_ids.dtype == jnp.int32
    assert jobs.size == begins.sum()
