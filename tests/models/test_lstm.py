"""The LSTM against NumPy, with and without padding."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.small import prepared, refused

import fedjax_srp as srp
from fedjax_srp.models import LSTM, TokenLSTM

KEY = jax.random.key(5)
MODEL = LSTM((7,), 3, vocabulary=11, embedding=4, features=5, dense=6)
LOGITS, PARAMS = jax.jit(MODEL.logits), jax.jit(MODEL.init)(KEY)


def numpy_logits(params, text, linear=False):
    """Return the logits of one text, in float64: Gers, Schmidhuber and Cummins (2000) without peepholes."""
    params = jax.tree.map(
        lambda a: np.asarray(a, np.float64), params.representation | params.head
    )
    sigmoid = lambda x: 1 / (1 + np.exp(-x))
    layer = params["lstm"]
    hidden = cell = np.zeros(5)
    for token in text:
        gates = (
            params["embedding"]["embedding"][token] @ layer["kernel"]
            + hidden @ layer["recurrent"]
            + layer["bias"]
        )
        i, f, g, o = gates.reshape(4, 5)
        cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
        hidden = sigmoid(o) * np.tanh(cell)
    x = hidden @ params["fc1"]["kernel"] + params["fc1"]["bias"]
    x = x if linear else np.maximum(x, 0)
    return x @ params["out"]["kernel"] + params["out"]["bias"]


def some_params():
    return jax.tree.map(lambda p: 2 * p + 0.1, PARAMS)


def test_logits_agree_with_numpy_and_do_not_depend_on_padding():
    params, texts = some_params(), [[3, 1, 4, 1, 5, 9, 2], [6, 5, 3], [8], []]
    behind = np.array([text + [0] * (7 - len(text)) for text in texts], np.int32)
    before = np.array([[0] * (7 - len(text)) + text for text in texts], np.int32)
    expected = [numpy_logits(params, text) for text in texts]
    for tokens in (behind, before):
        np.testing.assert_allclose(LOGITS(params, tokens), expected, rtol=1e-5, atol=1e-5)


def test_every_position_has_the_logits_of_the_text_up_to_it():
    model = TokenLSTM((7,), 11, embedding=4, features=5, dense=6)
    params = jax.tree.map(lambda p: 2 * p + 0.1, jax.jit(model.init)(KEY))
    texts = [[3, 1, 4, 1, 5, 9, 2], [6, 5, 3]]
    found = jax.jit(model.logits)(
        params, np.array([text + [0] * (7 - len(text)) for text in texts], np.int32)
    )
    assert found.shape == (2, 7, 11)
    for row, text in zip(found, texts, strict=True):
        expected = [
            numpy_logits(params, text[: place + 1], linear=True)
            for place in range(len(text))
        ]
        np.testing.assert_allclose(row[: len(text)], expected, rtol=1e-5, atol=1e-5)


def test_the_padding_vector_is_never_used_nor_trained():
    params, tokens = (
        some_params(),
        jnp.array([[2, 3, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 4, 12]], jnp.int32),
    )
    gradient = jax.jit(jax.grad(lambda p: jnp.sum(jnp.square(MODEL.logits(p, tokens)))))(
        params
    )
    rows = np.abs(gradient.representation["embedding"]["embedding"]).sum(1)
    assert set(np.flatnonzero(rows)) == {2, 3, 4}  # 12 is no token of this vocabulary
    without = tokens.at[1, 6].set(0)
    np.testing.assert_array_equal(LOGITS(params, tokens), LOGITS(params, without))


def test_the_biases_of_the_forget_gate_start_at_one():
    np.testing.assert_array_equal(
        PARAMS.representation["lstm"]["bias"], [0] * 5 + [1] * 5 + [0] * 10
    )
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(PARAMS))


def sequences(dtype):
    x, y = np.arange(28).reshape(4, 7).astype(dtype), np.array([0, 1, 2, 0])
    return srp.data.from_arrays(
        x,
        y,
        x[:, ::-1].copy(),
        y,
        train_indices=[[0, 1], [2, 3]],
        test_indices=[[0, 1], [2, 3]],
    )


@pytest.mark.parametrize(
    ("model", "dtype"), [(MODEL, np.float32), (srp.models.MLP((7,), 3), np.int32)]
)
def test_the_type_of_the_inputs_is_checked(model, dtype):
    data = sequences(dtype)
    with refused(rf"model '{model.name}' takes .*inputs; choose"):
        prepared(srp.algorithms.FedAvg(model), data)


def test_given_vectors_are_the_first_ones_and_the_others_stay():
    vectors = np.random.default_rng(0).normal(size=(11, 4)).astype(np.float32)
    given = dataclasses.replace(MODEL, vectors=vectors)
    for cut in ("out", None, "embedding"):
        model = given.recut(cut)
        params = jax.jit(lambda model: model.init(jax.random.key(0)))(model)
        drawn = MODEL.recut(cut).init(jax.random.key(0))
        layers = {**params.representation, **params.head}
        table = layers.pop("embedding")["embedding"]
        np.testing.assert_array_equal(table, vectors)
        others = {**drawn.representation, **drawn.head}
        del others["embedding"]
        jax.tree.map(np.testing.assert_array_equal, layers, others)
    with pytest.raises(ValueError, match=r"vectors has shape \(4, 11\)"):
        dataclasses.replace(MODEL, vectors=vectors.T)
