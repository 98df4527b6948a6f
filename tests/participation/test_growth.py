"""Stages that grow by another factor than two."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_srp as srp

ROUNDS = 2  # of a stage


def sizes_of(policy, num_clients, stages):
    times = jnp.arange(float(num_clients))
    state = policy.init(jax.random.key(0), num_clients)
    select = jax.jit(policy.select)
    found = []
    for stage in range(stages):
        state = state._replace(round=jnp.int32(ROUNDS * stage))
        cohort, state = select(jax.random.key(1), state, srp.ClientTimes(times, times))
        found.append(int(cohort.size))
    return found


@pytest.mark.parametrize("growth", [2, 3, 100])
@pytest.mark.parametrize(
    ("initial", "num_clients"), [(1, 1), (1, 64), (5, 64), (7, 50), (50, 50), (49, 50)]
)
def test_a_stage_has_growth_times_the_clients_of_the_last_up_to_all(
    initial, num_clients, growth
):
    policy = srp.participation.Doubling(initial, ROUNDS, growth=growth)
    expected = [min(num_clients, initial * growth**r) for r in range(8)]
    assert sizes_of(policy, num_clients, 8) == expected


def test_the_criterion_grows_by_the_factor_too():
    data = srp.data.linear_regression(jax.random.key(0), 9, 20, 3, 1.0, 2.0)
    model = srp.models.LinearRegression((3,))
    history = srp.simulate(
        srp.algorithms.FedGATE(model, srp.Training(srp.SGD(0.1), batch_size=20)),
        data,
        participation=srp.participation.StatisticalAccuracy(
            1, first_threshold=1.0, shrinkage=1.0, growth=3
        ),
        num_rounds=40,
        key=jax.random.key(1),
        progress=False,
    )
    assert {*np.unique(history.cohort_size).tolist()} == {1, 3, 9}


def test_a_stage_grows_at_least_to_twice_its_clients():
    with pytest.raises(ValueError, match="growth=1 must be at least 2"):
        srp.participation.Doubling(growth=1)


def test_work_by_stage_takes_its_time():
    """Tau of FLANP's Algorithm 2: units of work of each stage, the last for all later ones."""
    times = np.array([5.0, 1.0, 3.0, 2.0, 8.0, 4.0])
    data = srp.data.linear_regression(jax.random.key(0), 6, 20, 3, 1.0, 2.0)
    model = srp.models.LinearRegression((3,))
    training = srp.Training(srp.SGD(0.1), batch_size=5, epochs=None, steps=1)
    work = np.array([3, 1])
    history = srp.simulate(
        srp.algorithms.FedGATE(
            model,
            training,
            step_size_by_stage=(0.2, 0.1),
            server_step_size_by_stage=(1.0,),
        ),
        data,
        participation=srp.participation.StatisticalAccuracy(
            1, first_threshold=1.0, shrinkage=1.0, max_work=3, work_by_stage=(3, 1)
        ),
        clock=srp.clocks.Fixed(srp.clocks.Constant(times)),
        num_rounds=30,
        key=jax.random.key(1),
        progress=False,
    )
    assert history.stage.max() == 3
    slowest = np.sort(times)[history.cohort_size - 1]
    units = work[np.minimum(history.stage, 1)]
    np.testing.assert_allclose(history.compute_time, units * slowest, rtol=1e-6)
