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
