"""The MLP and its double softmax."""

import jax
import numpy as np

from fedjax_srp.models import MLP, cross_entropy

KEY = jax.random.key(1)


def test_double_softmax_agrees_with_its_formula():
    plain, twice = MLP((6,), 4, hidden=(5,)), MLP((6,), 4, hidden=(5,), output="softmax")
    params, x, y = (
        plain.init(KEY),
        jax.random.normal(KEY, (8, 6)),
        np.arange(8, dtype=np.int32) % 4,
    )
    jax.tree.map(np.testing.assert_array_equal, params, twice.init(KEY))
    z = np.asarray(plain.logits(params, x), np.float64)
    softmax = lambda z: np.exp(z) / np.exp(z).sum(1, keepdims=True)
    np.testing.assert_allclose(twice.logits(params, x), softmax(z), rtol=1e-5)
    loss = cross_entropy(twice.logits(params, x), y)
    expected = -np.log(softmax(softmax(z))[np.arange(8), y])
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
