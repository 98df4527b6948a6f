"""The memory of a run can be asked for; it is the estimate that the run itself checks."""

import jax
import numpy as np
import pytest
from reference.small import clients_of, federation, model, prepared, refusal

import fedjax_srp as srp
from fedjax_srp.driver import memory

DATA = federation(clients_of((30, 20, 10), (5, 5, 5)))
DITTO = srp.algorithms.Ditto(model())


def test_it_is_the_estimate_of_the_run():
    asked = srp.estimate_memory(DITTO, DATA, chunk_size=2, devices=1)
    run = prepared(DITTO, DATA, chunk_size=2, devices=1)
    assert asked == memory.estimate(run)
    params = model().init(jax.random.key(0))
    of_model = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    assert asked.clients == 3 * of_model  # a personal model for each
    assert asked.total == sum(asked)


def test_seeds_multiply_states_and_not_data():
    one = srp.estimate_memory(DITTO, DATA, devices=1)
    four = srp.estimate_memory(DITTO, DATA, devices=1, num_seeds=4)
    assert four.data == one.data
    assert (four.clients, four.server) == (4 * one.clients, 4 * one.server)


def test_policy_and_clock_are_given_as_for_a_run():
    clock = srp.clocks.Trace(np.ones((50, 3)))
    plain = srp.estimate_memory(DITTO, DATA)
    traced = srp.estimate_memory(DITTO, DATA, clock=clock, participation="Uniform(k=1)")
    assert traced.schedule > plain.schedule + 50 * 3


@pytest.mark.parametrize(
    "wrong",
    [{"num_seeds": 0}, {"chunk_size": 0}, {"clock": "slow"}, {"evaluations": "globl"}],
)
def test_wrong_arguments_are_refused(wrong):
    (argument,) = wrong
    assert argument.removesuffix("s") in refusal(
        srp.estimate_memory, DITTO, DATA, **wrong
    )


def test_what_clients_share_is_not_counted_for_each_of_them():
    """The clients of a linear task share its representation, (dim, rank)."""

    def of_one_more(dim):
        task = srp.data.linear_task(jax.random.key(0), 100, dim, 2)
        algorithm = srp.algorithms.LinearFedRep(task, 0.1, 10, start="random")
        options = {"devices": 1, "evaluations": ()}
        two, one = (
            srp.estimate_memory(algorithm, task, chunk_size=size, **options).working
            for size in (2, 1)
        )
        return two - one

    assert 0 < of_one_more(10) == of_one_more(10_000)


def test_sharded_examples_that_move_are_counted():
    """Each client has 2 training and 500 test images of 28 x 28, a byte a pixel; 2 devices serve 2 clients each."""
    clients = 24

    def images(of_each):
        x = np.zeros((clients * of_each, 28, 28), np.uint8)
        return x, np.arange(len(x)) % 10, np.split(np.arange(len(x)), clients)

    x, y, train = images(2)
    x_test, y_test, test = images(500)
    data = srp.data.from_arrays(
        x, y, x_test, y_test, train_indices=train, test_indices=test
    )
    algorithm = srp.algorithms.FedAvg(srp.models.MLP((28, 28), 10, (8,)))
    options = {"devices": 2, "chunk_size": 2, "evaluations": ()}
    sharded, plain = (
        srp.estimate_memory(algorithm, data, shard_data=shard, **options).working
        for shard in (True, False)
    )
    of_an_image = 28 * 28 + data.y_train.dtype.itemsize
    assert sharded - plain == pytest.approx(4 * 502 * of_an_image, rel=1e-3)
