"""Deadlines, tiers and Oort, against NumPy, and the distributions of their draws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from policy_helpers import info_of, random_times, times_of

from fedjax_srp import participation

KEY = jax.random.key(0)


def ids_of(cohort):
    return cohort.client_ids[: int(cohort.size)].tolist()


def frequencies(policy, state, times, number=4000):
    """Frequency with which each client takes part, over keys."""
    select = lambda key: policy.select(key, state, times)[0].client_ids
    ids = np.asarray(jax.jit(jax.vmap(select))(jax.random.split(KEY, number)))
    return np.bincount(ids.ravel(), minlength=times.expected.shape[0]) / number


@pytest.mark.parametrize(
    "policy",
    [participation.Fastest(2, pool=4), participation.Deadline(quorum=2)],
    ids=str,
)
def test_ties_of_reports_do_not_enlarge_the_cohort(policy):
    cohort, _ = policy.select(
        jax.random.key(0),
        policy.init(jax.random.key(1), 4),
        times_of([2.0, 1.0, 1.0, 1.0]),
    )
    assert ids_of(cohort) == [1, 2]
    assert (float(cohort.duration), int(cohort.asked)) == (1.0, 4)


@pytest.mark.parametrize("losses", [[], [1.0, 3.0], [1.0, 3.0, 4.0]])
def test_tiers_are_drawn_uniformly_or_by_their_mean_loss_once_all_have_one(losses):
    policy, times = (
        participation.Tiered(2, tiers=3, by="loss" if losses else "uniform"),
        random_times(12),
    )
    order = np.argsort(np.asarray(times.expected))
    last = np.full(12, np.nan)
    for tier, loss in enumerate(losses):
        last[order[4 * tier : 4 * tier + 3]] = loss * np.array(
            [0.5, 1.0, 1.5]
        )  # the fourth was never seen
    share = np.full(3, 1 / 3) if len(losses) < 3 else np.array(losses) / sum(losses)
    found = frequencies(policy, (jnp.asarray(last, dtype=float), jnp.int32(0)), times)[
        order
    ].reshape(3, 4)
    np.testing.assert_allclose(
        found, np.repeat(share[:, None] / 2, 4, 1), atol=5 * 0.5 / np.sqrt(4000)
    )


@pytest.mark.parametrize("k", [1, 2])
def test_oort_draws_new_clients_by_expected_speed_and_known_ones_by_utility(k):
    """One after the other, without replacement."""
    policy = participation.Oort(k, explore=0.0, explore_least=0.0, cutoff=0.0)
    times = random_times(5)
    new = policy.init(KEY, 5)
    known = new._replace(
        utility=jnp.arange(1.0, 6.0), last=jnp.ones(5, jnp.int32), preferred=jnp.ones(())
    )
    for state, weight in (
        (new, 1 / times.expected),
        (known, policy.utilities(known, known.preferred)),
    ):
        share = np.asarray(weight / weight.sum(), float)
        law = share
        if k == 2:
            after = share / (1 - share)
            law = share * (1 + after.sum() - after)
        np.testing.assert_allclose(
            frequencies(policy, state, times), law, atol=5 * 0.5 / np.sqrt(4000)
        )


@pytest.mark.parametrize("name", ["oort", "power_of_choice"])
def test_scores_of_clients_that_are_away_change_nothing(name):
    """The cap, the cutoff and the ranking are those of the clients that are available."""
    if name == "oort":
        policy = participation.Oort(1, explore=0.0, explore_least=0.0, cutoff=0.0)
        state = policy.init(KEY, 8)._replace(
            last=jnp.ones(8, jnp.int32), preferred=jnp.ones(())
        )
        scored = lambda scores: state._replace(utility=jnp.asarray(scores, dtype=float))
    else:
        policy = participation.PowerOfChoice(3, candidates=5)
        scored = lambda scores: jnp.asarray(scores, dtype=float)
    available = jnp.array([1, 1, 1, 1, 1, 0, 0, 0], bool)
    times = random_times(8)._replace(
        available=available, stays=jnp.full(8, jnp.inf), wait=jnp.zeros(())
    )
    present = [1.0, 1.0, 1.0, 1.0, 3.0]
    drawn = []
    for away in ([0.0] * 3, [1e6] * 3):
        state_of = scored(present + away)
        drawn.append(frequencies(policy, state_of, times, 400))
    assert drawn[0].tolist() == drawn[1].tolist()
    assert drawn[0][4] == drawn[0].max()
    assert drawn[0][5:].tolist() == [0.0] * 3


def oort_utilities(utility, last, duration, preferred, round, penalty):
    """Utilities of the clients that have taken part, from Algorithm 1 in plain Python."""
    known = [i for i in range(len(utility)) if last[i] > 0]
    most = np.quantile([utility[i] for i in known], 0.95)
    found = {}
    for i in known:
        found[i] = min(utility[i], most) + np.sqrt(0.1 * np.log(round) / last[i])
        if duration[i] > preferred:
            found[i] *= (preferred / duration[i]) ** penalty
    return found


def test_oort_equals_algorithm_1_in_numpy():
    num_clients, k, window = 30, 6, 3
    rates = {"explore": 0.5, "decay": 0.9, "explore_least": 0.2}
    policy = participation.Oort(
        k, step=0.7, window=window, straggler_penalty=1.5, **rates
    )
    select, update = jax.jit(policy.select), jax.jit(policy.update)
    state, rng = policy.init(KEY, num_clients), np.random.default_rng(0)
    utility, last, duration = (
        np.zeros(num_clients),
        np.zeros(num_clients, int),
        np.zeros(num_clients),
    )
    gained, preferred, raised = [], 0.7, 0
    for round in range(1, 41):
        key = jax.random.fold_in(KEY, round)
        times = random_times(num_clients, seed=round)
        if (
            round > 2 * window
            and (round - 1) % window == 0
            and sum(gained[-2 * window : -window]) > sum(gained[-window:])
        ):
            preferred, raised = preferred + 0.7, raised + 1
        known = np.flatnonzero(last)
        new = max(round_half_even(k * max(0.5 * 0.9 ** (round - 1), 0.2)), k - len(known))
        new = min(new, num_clients - len(known), k)
        before = state
        cohort, state = select(key, state, times)
        taken = ids_of(cohort)
        assert len(set(taken)) == k
        assert sum(last[i] == 0 for i in taken) == new
        np.testing.assert_allclose(
            policy.metrics(state)["preferred_duration"], preferred, rtol=1e-6
        )
        if len(known):
            expected = oort_utilities(utility, last, duration, preferred, round, 1.5)
            found = policy.utilities(before, jnp.asarray(preferred, dtype=float))
            np.testing.assert_allclose(
                found[known], [expected[i] for i in known], rtol=1e-5
            )
            if new < k:
                least = 0.95 * sorted(expected.values(), reverse=True)[k - new - 1]
                assert all(
                    expected[i] >= least * (1 - 1e-5) for i in taken if last[i] > 0
                )
        loss, examples = np.full(num_clients, np.nan), np.full(num_clients, np.nan)
        loss[taken], examples[taken] = rng.uniform(size=k) / round, rng.integers(1, 50, k)
        reports = {
            "training_loss": jnp.asarray(loss, dtype=float),
            "num_examples": jnp.asarray(examples, dtype=float),
        }
        state = update(state, info_of(round - 1, cohort, reports))
        utility[taken], last[taken] = (loss * examples)[taken], round
        duration[taken] = np.asarray(times.realised)[taken]
        gained.append(np.nansum(loss * examples))
    assert raised > 2
    assert (last > 0).all()


def round_half_even(value):
    return round(np.float32(value))
