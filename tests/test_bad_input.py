"""Invalid input of the right type: swapped parts, impossible times, labels with gaps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.small import (
    KEY,
    algorithm_of,
    clients_of,
    federation,
    made_clock,
    model,
    numbers,
    refused,
)

import fedjax_srp as srp
from fedjax_srp import ClientOutput, ClientTimes

MLP, DATA = model(), federation(clients_of((3, 5, 4), (2, 3, 2)))
FEDAVG = srp.algorithms.FedAvg(MLP)


RUN = {
    "algorithm": FEDAVG,
    "data": DATA,
    "num_rounds": 1,
    "key": KEY,
    "progress": False,
    "devices": 1,
}


def test_a_simulation_inside_a_transformation_of_jax_is_refused():
    time = lambda key: srp.simulate(**RUN | {"key": key}).compute_time
    for call in (
        lambda: jax.jit(time)(KEY),
        lambda: jax.vmap(time)(jax.random.split(KEY)),
    ):
        with refused("outside of jit, vmap and grad"):
            call()
    with jax.disable_jit(), refused("jax_disable_jit is on"):
        time(KEY)


def test_debug_nans_does_not_stop_a_run():
    with jax.debug_nans(True), jax.debug_infs(True):
        assert srp.simulate(**RUN).num_rounds == 1


def own_clock(expected, realised):
    """Return a clock with these times for client 1; `realised` from the second round on."""
    usual = jnp.ones(3)

    def sample(key, round, now):
        later = usual.at[1].set(jnp.where(round > 0, realised, 1.0))
        return ClientTimes(usual.at[1].set(expected), later), round + 1

    return made_clock("mine", lambda key, num_clients: jnp.int32(0), sample)


@pytest.mark.parametrize("time", [np.inf, np.nan, -1.0])
def test_impossible_times_of_a_custom_clock_are_refused(time):
    algorithm = algorithm_of(
        lambda key, broadcast, state, value, context: ClientOutput(value)
    )
    run = {"num_rounds": 3, "eval_every": 2, "participation": srp.participation.Full()}
    run |= {"algorithm": algorithm, "data": numbers(1.0, 2.0, 3.0)}
    with refused(f"clock 'mine': the time of client 1 is {time}"):
        srp.simulate(**RUN | run, clock=own_clock(time, 1.0))
    if not time < 0:  # the slowest of a round
        with refused(f"clock 'mine': the time of round 2 is {time}"):
            srp.simulate(**RUN | run, clock=own_clock(1.0, time))


def arrays(y, **options):
    x = np.ones((len(y), 3), np.float32)
    rows = {"train_indices": [np.arange(len(y))], "test_indices": [np.arange(len(y))]}
    return srp.data.from_arrays(x, y, x + 1, y, **rows, **options)


def test_labels_with_gaps_give_a_warning():
    with pytest.warns(UserWarning, match=r"4 of 31 classes .*class 1 has none"):
        assert arrays([0, 10, 20, 30]).num_classes == 31
    with pytest.warns(UserWarning, match="2 of 1048576 classes"):
        arrays([0, 2**20 - 1])  # in no more memory than the labels take
    given = arrays([0, 10, 20, 30], num_classes=31)  # no warning
    assert given.num_classes == 31
    assert arrays([2, 0, 1]).num_classes == 3


@pytest.mark.parametrize("shape", [(4, 0), (4, 0, 8)])
def test_empty_examples_are_refused(tmp_path, shape):
    x, y = np.ones(shape), np.arange(4)
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    with refused("x_train: is float64 of shape .*; give .* at least one number each"):
        srp.data.load(tmp_path / "a.npz", num_clients=2)
