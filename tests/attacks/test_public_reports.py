"""Values that reports about other libraries ask for, where no room's test has them; public_reports.md is the log."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_srp as srp

KEY = jax.random.key(0)
DATA = srp.data.load("digits", num_clients=4, classes_per_client=3, max_examples=8)


@srp.part
class Keyed(srp.participation.Uniform):
    """Random clients, drawn by keys of the policy's own state, of two kinds."""

    def init(self, key, num_clients):
        return super().init(key, num_clients), key, jax.random.key(7, impl="rbg")

    def select(self, key, state, times):
        own, threefry, rbg = state
        threefry, used = jax.random.split(threefry)
        rbg, _ = jax.random.split(rbg)
        cohort, own = super().select(used, own, times)
        return cohort, (own, threefry, rbg)

    def update(self, state, info):
        return super().update(state[0], info), *state[1:]

    def metrics(self, state):
        return {"drawn": jax.random.uniform(state[2])}


def run(num_rounds, **given):
    model = srp.models.MLP(DATA.example_shape, DATA.num_classes, hidden=(3,))
    return srp.simulate(
        srp.algorithms.FedAvg(model),
        DATA,
        participation=Keyed(2),
        clock=srp.clocks.Trace(np.zeros(4)),
        num_rounds=num_rounds,
        seed=0,
        progress=False,
        **given,
    )


def test_keys_in_a_state_are_continued_and_times_may_be_zero(tmp_path):
    whole = run(5)
    run(2, checkpoint_dir=tmp_path)
    continued = run(5, checkpoint_dir=tmp_path)
    jax.tree.map(
        np.testing.assert_array_equal, continued.server_state, whole.server_state
    )
    drawn = [history.metrics["drawn"] for history in (continued, whole)]
    np.testing.assert_array_equal(*drawn)
    assert len({*drawn[0].tolist()}) == 5
    np.testing.assert_array_equal(whole.compute_time, np.zeros(5))
    np.testing.assert_array_equal(whole.elapsed(2.0), 2.0 * np.arange(1, 6))


@pytest.mark.parametrize(("k", "bad"), [(9, 0.0), (9, np.inf), (10, np.nan)])
def test_oort_draws_no_client_twice_and_no_more_than_can_work(k, bad):
    """Ten clients that fail and go, losses of 0, or one that is no number."""
    policy = srp.participation.Oort(k)
    clock = srp.clocks.Available(
        srp.clocks.Failing(srp.clocks.Fixed(srp.clocks.Exponential(1.0)), rate=0.5),
        srp.clocks.Markov(on=50.0, off=10.0),
    )
    losses = jnp.where(jnp.arange(10) == 3, bad, 0.0 if bad == 0 else 1.0)

    def one_round(carry, key):
        policy_state, clock_state, now = carry
        times, clock_state = clock.sample(key, clock_state, now)
        cohort, policy_state = policy.select(key, policy_state, times)
        position = jnp.arange(cohort.client_ids.shape[0])
        counts = (
            jnp.zeros(10, jnp.int32)
            .at[cohort.client_ids]
            .add((position < cohort.size).astype(jnp.int32))
        )
        info = srp.RoundInfo(
            round=jnp.int32(0),
            stage=cohort.stage,
            cohort_size=cohort.size,
            compute_time=cohort.duration,
            communicated=jnp.asarray(True),
            global_grad_norm=jnp.asarray(jnp.nan),
            finite=jnp.asarray(True),
            metrics={},
            reports={
                "num_examples": jnp.where(counts > 0, 5.0, jnp.nan),
                "training_loss": jnp.where(counts > 0, losses, jnp.nan),
            },
        )
        policy_state = policy.update(policy_state, info)
        now = now + times.wait + cohort.duration
        return (policy_state, clock_state, now), (counts, times.available)

    start = (policy.init(KEY, 10), clock.init(KEY, 10), jnp.zeros(()))
    keys = jax.random.split(KEY, 300)
    (_, _, now), (counts, available) = jax.lax.scan(one_round, start, keys)
    counts = np.asarray(counts)
    assert counts.max() == 1
    assert not counts[~np.asarray(available)].any()
    assert counts.sum(axis=0).min() > 0
    assert np.isfinite(now)


def test_each_subject_is_divided_by_dirichlet():
    """Six subjects become thirty clients, as the page on data does it."""
    rng = np.random.default_rng(0)
    subject = np.repeat(np.arange(6), 100)
    y = rng.integers(0, 4, 600)
    train = {}
    test = {}
    for name in range(6):
        rows = rng.permutation(np.flatnonzero(subject == name))
        own = rows[20:]
        own_test = rows[:20]
        parts = srp.data.partition.dirichlet(
            y[own], y[own_test], num_clients=5, alpha=0.5, seed=name
        )
        for i in range(5):
            train[f"{name}.{i}"] = own[parts.train[i]]
            test[f"{name}.{i}"] = own_test[parts.test[i]]
    x = rng.normal(size=(600, 3))
    data = srp.data.from_arrays(x, y, x, y, train_indices=train, test_indices=test)
    rows = np.asarray(data.train_indices)
    for i, name in enumerate(data.client_names):
        own = rows[i, : int(data.train_counts[i])]
        assert {*subject[own].tolist()} == {int(name[0])}
    assert np.asarray(data.train_counts).sum() == 480
