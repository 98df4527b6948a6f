"""A seed stands for its key in every function that takes a key."""

import jax
import numpy as np
import pytest
from reference.small import KEY, algorithm_of, numbers, refusal

import fedjax_srp as srp
from fedjax_srp.base import ClientOutput


def drawn(key, server, state, value, context):
    return ClientOutput(jax.random.normal(key))


ALGORITHM = algorithm_of(drawn)
DATA = numbers(1.0, 2.0)
RUN = {"num_rounds": 1, "progress": False, "devices": 1}


@pytest.mark.parametrize("seed", [0, 3, 2**32 - 1])
def test_a_seed_is_its_key(seed):
    by_seed = srp.simulate(ALGORITHM, DATA, seed=seed, **RUN)
    by_key = srp.simulate(ALGORITHM, DATA, key=jax.random.key(seed), **RUN)
    assert by_seed.server_state == by_key.server_state
    many = srp.simulate_seeds(ALGORITHM, DATA, seeds=[5, seed], **RUN)
    np.testing.assert_array_equal(many[1].client_time, by_key.client_time)
    tried = srp.debug_client(ALGORITHM, DATA, seed=seed).outputs["round"]
    same = srp.debug_client(ALGORITHM, DATA, key=jax.random.key(seed)).outputs["round"]
    assert tried.message == same.message


CALLS = {
    "simulate": lambda **given: srp.simulate(ALGORITHM, DATA, **RUN, **given),
    "evaluate": lambda **given: srp.evaluate(ALGORITHM, DATA, np.float32(0), **given),
    "adapt": lambda **given: srp.adapt(srp.models.MLP((3,), 2), DATA, (), **given),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "neither key nor seed"),
        ({"key": KEY, "seed": 1}, "key and seed=1"),
        ({"seed": -1}, "seed=-1 must be"),
        ({"seed": 2**32}, "seed=4294967296 must be"),
        ({"seed": 1.5}, "seed=1.5"),
        ({"seed": "one"}, "seed='one'"),
        ({"key": 3}, "jax.random.key(3)"),
    ],
)
def test_one_of_both_is_needed(name, given, words):
    assert words in refusal(CALLS[name], **given)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"keys": jax.random.split(KEY), "seeds": [1]},
        {"seeds": ["one"]},
        {"seeds": []},
    ],
)
def test_seeds_or_keys(given):
    assert "seed" in refusal(srp.simulate_seeds, ALGORITHM, DATA, **RUN, **given)
