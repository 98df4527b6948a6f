"""A round is traced once: the next one, and one with another rate, compile nothing."""

import chex
import jax

import fedjax_srp as srp

DATA = srp.data.load("digits", num_clients=4, classes_per_client=4)


def test_a_second_round_and_another_rate_trace_nothing():
    def step(simulation, state):
        return simulation.step(state)[0]

    chex.clear_trace_counter()
    step = jax.jit(chex.assert_max_traces(step, n=1))
    init = jax.jit(lambda simulation: simulation.init(jax.random.key(0)))
    for rate in (0.1, 0.2):
        model = srp.models.MLP((8, 8), 10, hidden=(4,))
        algorithm = srp.algorithms.FedAvg(model, srp.Training(srp.SGD(rate)))
        simulation = srp.Simulation(algorithm, DATA, srp.participation.Doubling(2, 1))
        state = init(simulation)
        for _ in range(2):
            state = step(simulation, state)
        assert state.round == 2
