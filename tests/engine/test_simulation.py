"""`Simulation`: `init`, `step` and `score` give the rounds of `simulate`, under transformations of JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.small import algorithm_of, numbers, simulate

import fedjax_srp as srp

DATA = srp.data.load("digits", num_clients=6, classes_per_client=4)
KEY = jax.random.key(3)
# where cohorts and times alone matter: its round compiles in a moment
NUMBERS = numbers(3.0, -1.0, 4.0, 1.5, -5.0, 9.0)
MEAN = algorithm_of(lambda key, w, state, value, context: srp.ClientOutput(w + value))


def model(dtype=jnp.float32):
    return srp.models.MLP((8, 8), 10, hidden=(4,), dtype=dtype)


def fedavg(rate=0.1, **options):
    return srp.algorithms.FedAvg(model(), srp.Training(srp.SGD(rate)), **options)


def after(simulation, rounds, key=KEY):
    state = simulation.init(key)
    return jax.lax.scan(lambda state, _: simulation.step(state), state, length=rounds)


@pytest.mark.short("fedrep")
@pytest.mark.parametrize(
    "algorithm", [fedavg(), srp.algorithms.FedRep(model())], ids=lambda a: a.name
)
def test_rounds_agree_with_simulate(algorithm):
    doubling = srp.participation.Doubling(2, 1)
    clock = srp.clocks.Dynamic(srp.clocks.Exponential(2.0))
    simulation = srp.Simulation(algorithm, DATA, doubling, clock, chunk_size=3)
    state, info = jax.jit(after, static_argnums=1)(simulation, 3)
    history = simulate(
        algorithm, DATA, 3, participation=doubling, clock=clock, key=KEY, chunk_size=3,
        evaluations=[*algorithm.evaluations][-1], keep_clients=True,
    )  # fmt: skip
    np.testing.assert_array_equal(info.cohort_size, history.cohort_size)
    np.testing.assert_array_equal(info.compute_time, history.compute_time)
    found, kept = (
        (state.server, state.clients),
        (history.server_state, history.client_states),
    )
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(kept), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    for evaluation, scores in history.accuracies.items():
        np.testing.assert_allclose(
            jax.jit(simulation.score, static_argnums=1)(state, evaluation),
            scores[-1],
            rtol=1e-6,
        )
    assert state.round == 3


@pytest.mark.parametrize(
    "policy", [srp.participation.Doubling(2, 1), srp.participation.Uniform(3)]
)
def test_select_shows_the_times_and_the_cohort_of_the_next_round(policy):
    clock = srp.clocks.Dynamic(srp.clocks.Exponential(2.0))
    simulation = srp.Simulation(MEAN, NUMBERS, policy, clock)
    state, step = simulation.init(KEY), jax.jit(simulation.step)
    for _ in range(3):
        times, cohort = simulation.select(state)
        after, info = step(state)
        ids = cohort.client_ids[: int(cohort.size)]
        assert set(ids.tolist()) == set(
            np.flatnonzero(after.rounds_taken - state.rounds_taken).tolist()
        )
        assert times.realised[ids].max() == info.compute_time
        state = after


def test_init_works_without_jit():
    state = srp.Simulation(fedavg(), DATA).init(KEY)
    assert state.round == 0
    assert state.key == KEY


def test_a_method_brings_its_participation():
    method = srp.methods.get(
        "srpfl", dataset=DATA, hidden=(4,), initial=2, rounds_per_stage=1
    )
    _, info = jax.jit(after, static_argnums=1)(srp.Simulation(method, DATA), 3)
    assert info.cohort_size.tolist() == [2, 4, 6]


@pytest.mark.long
def test_seeds_and_rates_are_one_vmap():
    def score(rate, key):
        simulation = srp.Simulation(fedavg(rate), DATA)
        return jnp.nanmean(simulation.score(after(simulation, 2, key)[0]))

    rates, keys = jnp.array([0.05, 0.2]), jax.random.split(KEY, 2)
    together = jax.jit(jax.vmap(score))(rates, keys)
    for place in range(2):
        history = simulate(fedavg(float(rates[place])), DATA, key=keys[place])
        np.testing.assert_allclose(
            together[place], np.nanmean(history.accuracies["global"][-1]), atol=0.05
        )
    assert together[0] != together[1]


def test_a_while_loop_ends_at_a_target():
    def rounds_to(target):
        simulation = srp.Simulation(fedavg(0.2), DATA)
        goes_on = lambda state: (
            (jnp.nanmean(simulation.score(state)) < target) & (state.round < 20)
        )
        return jax.lax.while_loop(
            goes_on, lambda state: simulation.step(state)[0], simulation.init(KEY)
        ).round

    history = simulate(fedavg(0.2), DATA, 20, key=KEY, eval_every=1, target=0.5)
    mean = np.nanmean(history.accuracies["global"], axis=1)  # of the clients, as above
    assert int(jax.jit(rounds_to)(0.5)) == int(np.argmax(mean >= 0.5)) + 1


@pytest.mark.short("forward")
@pytest.mark.parametrize("reverse", [True, False], ids=["reverse", "forward"])
def test_the_gradient_in_a_server_step_size_is_that_of_finite_differences(reverse):
    with jax.enable_x64(True):
        data = srp.data.load("digits", num_clients=4, classes_per_client=4)
        tested = srp.data.training_loss(data, model(jnp.float64).loss)

        def final_loss(step_size, reverse_mode=False):
            training = srp.Training(srp.SGD(0.1), epochs=None, steps=2)
            algorithm = srp.algorithms.FedGATE(
                model(jnp.float64), training, server_step_size=step_size
            )
            policy = srp.participation.PartialWork(max_work=2)
            simulation = srp.Simulation(
                algorithm, tested, policy, reverse_mode=reverse_mode
            )
            return jnp.nanmean(simulation.score(after(simulation, 2)[0]))

        at, step = 1.0, 1e-6
        forward = lambda x: jax.jvp(final_loss, (x,), (1.0,))
        both = jax.jit(
            jax.value_and_grad(lambda x: final_loss(x, True)) if reverse else forward
        )
        difference = (both(at + step)[0] - both(at - step)[0]) / (2 * step)
        assert abs(difference) > 1e-3
        np.testing.assert_allclose(both(at)[1], difference, rtol=1e-6)


@srp.part
class LeavesAtOnce(srp.Clock):
    """Everybody is available, and leaves before any time has passed."""

    def sample(self, key, state, now):
        ones = jnp.ones(NUMBERS.num_clients)
        return srp.ClientTimes(
            ones, ones, available=ones > 0, stays=0 * ones, wait=jnp.zeros(())
        ), state


def test_time_passes_though_a_round_takes_none():
    """Else an interval that ends now would go on for ever; the smallest float above 0 counts as 0 on a CPU."""
    simulation = srp.Simulation(MEAN, NUMBERS, clock=LeavesAtOnce())
    state = simulation.init(KEY)
    for start in (0.0, 1.0, 1e9):
        new, info = jax.jit(simulation.step)(state._replace(now=jnp.asarray(start)))
        assert (info.cohort_size, info.compute_time) == (0, 0.0)
        assert (
            start < new.now <= np.nextafter(np.float32(start), np.float32(np.inf)) + 1e-30
        )
