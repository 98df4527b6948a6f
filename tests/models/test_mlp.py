"""The MLP and its double softmax."""

import jax
import numpy as np

from fedjax_srp.models import MLP, cross_entropy

KEY = jax.random.key(1)


def test_a_cut_does_not_change_the_initial_parameters():
    at_out, at_fc1 = (
        MLP((6,), 4, hidden=(5,), cut=cut).init(KEY) for cut in ("out", "fc1")
    )
    jax.tree.map(
        np.testing.assert_array_equal, at_out.representation | at_out.head, at_fc1.head
    )


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
    np.testing.assert_allclose(
        loss, -np.log(softmax(softmax(z))[np.arange(8), y]), rtol=1e-5
    )
    # The loss is always above that of the logits (1, 0, 0, 0).
    assert loss.min() > np.log(1 + 3 / np.e)
