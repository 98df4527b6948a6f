"""Seeds with individual values, and arrays that an algorithm carries."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.small import (
    KEY,
    assert_same_bits,
    changed,
    numbers,
    prepared,
    refusal,
)
from test_shared_programs import (
    DATA,
    OPTIONS,
    by_optax,
    fedprox,
    leaves,
    simulate,
    tuned,
)

import fedjax_srp as srp
from fedjax_srp import ClientOutput


def seeds(algorithm, values, keys, data=DATA, **options):
    return srp.simulate_seeds(
        algorithm, data, keys=keys, values=values, **OPTIONS | options
    )


KEYS = jnp.stack([KEY, KEY, jax.random.key(1)])
RATES = [0.3, 0.05, 0.3]
VALUES = {
    "one": (lambda rate: fedprox(rate=rate), {"learning_rate": RATES}),
    "several": (
        lambda rate: fedprox(mu=2 * rate, momentum=rate),
        {"mu": [2 * rate for rate in RATES], "training.optimizer.momentum": RATES},
    ),
    "heads": (
        tuned,
        {
            "head_optimizer.learning_rate": [2 * rate for rate in RATES],
            "fine_tune_optimizer.learning_rate": RATES,
        },
    ),
    "optax": (by_optax, {"learning_rate": RATES}),
}


@pytest.mark.short("several")
@pytest.mark.parametrize("case", VALUES)
def test_values_of_seeds_are_those_of_runs_alone(case):
    """Up to rounding, since a batch of seeds is another program than one run."""
    make, values = VALUES[case]
    batch = seeds(make(0.7), values, KEYS)
    for rate, key, history in zip(RATES, KEYS, batch, strict=True):
        alone = simulate(make(rate), key=key)
        np.testing.assert_allclose(history.accuracy, alone.accuracy, atol=1e-6)
        for a, b in zip(leaves(history), leaves(alone), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
        # with the numbers that were given, such as 0.1, in every digit
        assert history.config["method"] == alone.config["method"]
    assert any(
        (a != b).any() for a, b in zip(*map(leaves, batch[:2]), strict=True)
    )  # of one key


def test_short_and_dotted_names_give_the_same_bits():
    short = seeds(fedprox(), {"learning_rate": RATES}, KEYS)
    dotted = {"training.optimizer.learning_rate": np.array(RATES)}
    for history, other in zip(short, seeds(fedprox(), dotted, KEYS), strict=True):
        assert other.compile_seconds == 0.0
        assert_same_bits(other.server_state, history.server_state)
        assert other.config["method"] == history.config["method"]


def test_values_of_other_names_make_other_programs():
    def spec(values):
        run = prepared(fedprox(), DATA, num_seeds=2, values=values, devices=1)
        return run.program().spec

    names = ("mu", "learning_rate"), ("learning_rate",), ()
    assert all(
        spec(dict.fromkeys(of, jnp.ones(2))) != spec({"mu": jnp.ones(2)}) for of in names
    )
    assert spec({"mu": jnp.ones(2)}) == spec({"mu": jnp.zeros(2)})


REFUSED = {
    "too few": (
        {"learning_rate": [0.1, 0.2]},
        "values['learning_rate']=[0.1, 0.2]: give a number for each of 3 keys",
    ),
    "unknown": (
        {"nu": RATES},
        "values has 'nu'",
    ),
    "twice": (
        {"learning_rate": RATES, "training.optimizer.learning_rate": RATES},
        "which is given twice; leave one o",
    ),
    "above": (
        {"momentum": [0.5, 0.0, 3.0]},
        "values of run 2: momentum=3.0 must be below 1",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_values_are_refused(case):
    values, words = REFUSED[case]
    assert words in refusal(seeds, fedprox(), values, KEYS)


# Arrays that an algorithm carries.


@srp.part
class Carrying(srp.FederatedAlgorithm):
    """The server keeps a multiple of the mean, plus an offset that all seeds share."""

    scale: float
    offset: jax.Array
    clock: Any = None  # a name that the engine has for something else

    def init(self, key, data):
        return jnp.zeros_like(self.offset)

    def client(self, key, broadcast, state, value, context):
        return ClientOutput(self.scale * value + self.offset)

    def server(self, key, server, mean, context):
        return mean


def test_only_values_given_per_seed_have_an_axis_of_seeds():
    """An array that an algorithm carries is shared by all seeds, even if it has as many entries as there are seeds."""
    offset = np.array([10.0, 20.0, 30.0], np.float32)
    data, scales = numbers(1.0, 2.0, 6.0), (1.0, 2.0, 4.0)
    runs = seeds(
        Carrying(0.5, offset),
        {"scale": scales},
        KEYS,
        data,
        num_rounds=1,
        devices=1,
        evaluations=(),
    )
    for scale, run in zip(scales, runs, strict=True):
        np.testing.assert_allclose(run.server_state, scale * 3 + offset, rtol=1e-6)
        recorded = run.config["method"]["algorithm"]
        assert (recorded["scale"], recorded["offset"]) == (scale, [10.0, 20.0, 30.0])


def test_a_checkpoint_knows_arrays_and_keys(tmp_path):
    options = {"num_rounds": 1, "evaluations": (), "checkpoint_dir": tmp_path}
    offsets = [jax.random.key(0), jax.random.key(1)]

    def drawing(key):
        init = lambda _, data: jnp.zeros(())
        client = lambda key, w, state, value, context: ClientOutput(value)
        return changed(Carrying(1.0, key), init=init, client=client)

    simulate(drawing(offsets[0]), numbers(1.0), **options)
    assert simulate(drawing(offsets[0]), numbers(1.0), **options).num_rounds == 1
    with pytest.raises(ValueError, match="belongs to a run with"):
        simulate(drawing(offsets[1]), numbers(1.0), **options)
