"""FedCAC: the models that a participant's critical parameters are averaged with."""

from fractions import Fraction
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
from algorithm_table import TABLE

from fedjax_srp.base import Participants, RoundContext

BETA = 3


def alike(flags):
    """For each participant itself, and those whose overlap with it is the largest of all pairs."""
    everybody = range(len(flags))
    overlaps = {
        (i, j): Fraction(
            2 * int((flags[i] & flags[j]).sum()), int(flags[i].sum() + flags[j].sum())
        )
        for i in everybody
        for j in everybody
        if i != j
    }
    best = max(overlaps.values())
    return [[j for j in everybody if i == j or overlaps[i, j] == best] for i in everybody]


def test_in_round_beta_the_pair_of_the_largest_overlap_is_averaged():
    """The threshold is then the largest overlap, up to rounding; who takes no part is not read."""
    algorithm = TABLE["fedcac"].make(collaboration_rounds=float(BETA))
    rng = np.random.default_rng(0)
    # trials, participants, parameters: at random, or with equal overlaps of all pairs
    at_random = rng.random((20, 5, 60)) < 0.15
    equal = np.zeros((10, 5, 60), bool)
    for trial in range(10):
        equal[trial, :, : trial + 1] = True
        for i in range(4):
            equal[trial, i, 20 + 9 * i : 29 + 9 * i] = True
    flags = np.concatenate([at_random, equal])
    models = rng.standard_normal((5, 60)).astype(np.float32)
    models[4] = np.nan
    takes_part = jnp.array([True] * 4 + [False])
    now = RoundContext(
        jnp.int32(BETA - 1), jnp.int32(0), jnp.int32(4), 5, work=jnp.int32(1)
    )

    @jax.jit
    @jax.vmap
    def mixtures(flags):
        everybody = Participants((models, flags), takes_part, jnp.arange(5))

        def of_one(own, critical):
            one = SimpleNamespace(own=own, critical=critical)
            return algorithm.mix((), one, everybody, now)

        return jax.vmap(of_one)(jnp.asarray(models[:4]), flags[:4])

    found = mixtures(flags)
    for trial in range(len(flags)):
        for i, others in enumerate(alike(flags[trial, :4])):
            expected = models[others].mean(axis=0)
            np.testing.assert_allclose(found[trial, i], expected, rtol=0, atol=1e-6)
