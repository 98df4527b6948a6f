"""The references check themselves: a gradient by finite differences, steps by hand."""

import numpy as np
import pytest
from reference import fed_mtl, fednova, hf_maml, mlp
from reference.local import Sgd, batches, train


def a_model(rng, widths=(3, 4, 5, 2)):
    layers = zip(
        [f"fc{i}" for i in range(1, len(widths))], widths[:-1], widths[1:], strict=True
    )
    return {
        name: {"kernel": rng.normal(size=(m, n)), "bias": rng.normal(size=n)}
        for name, m, n in layers
    }


def by_differences(function, w):
    """Central differences of `function()` in the entries of an array that it reads."""
    found = np.zeros_like(w)
    for index in np.ndindex(w.shape):
        old, ends = w[index], []
        for sign in (1, -1):
            w[index] = old + sign * 1e-6
            ends.append(function())
        w[index] = old
        found[index] = (ends[0] - ends[1]) / 2e-6
    return found


@pytest.mark.parametrize("alpha", [0.0, 0.2])
def test_gradients_by_central_differences(alpha):
    """Gradients of the loss, and of the loss after a step: HF-MAML, whose Hessian is a difference of gradients."""
    rng = np.random.default_rng(0)
    params, x, y = a_model(rng), rng.normal(size=(7, 3)), rng.integers(0, 2, 7)
    moved = lambda: hf_maml.plus(-alpha, params, mlp.gradient(params, x, y))
    gradient = (
        hf_maml.meta_gradient(params, x, y, alpha=alpha, delta=1e-4)
        if alpha
        else mlp.gradient(params, x, y)
    )
    for name, layer in params.items():
        for part, w in layer.items():
            expected = by_differences(lambda: mlp.loss(moved(), x, y), w)
            np.testing.assert_allclose(
                gradient[name][part], expected, rtol=0, atol=1e-6 if alpha else 1e-8
            )


def test_the_gradient_of_the_relations_of_fed_mtl():
    columns = np.random.default_rng(0).normal(size=(3, 4))
    value, gradient = fed_mtl.penalty(columns, 0.6, 0.1)
    deviations = columns - columns.mean(axis=1, keepdims=True)
    assert value == pytest.approx(
        0.6 * np.sum(deviations**2) + 0.1 * np.sum(columns**2), rel=1e-12
    )
    differences = by_differences(lambda: fed_mtl.penalty(columns, 0.6, 0.1)[0], columns)
    np.testing.assert_allclose(gradient, differences, rtol=1e-6)


def test_fednova_weights_of_gradients():
    """Momentum 0.5, three steps along gradients 1, 10 and 100, by hand."""
    position, buffer = 0.0, 0.0
    for gradient in (1.0, 10.0, 100.0):
        buffer = 0.5 * buffer + gradient
        position += buffer
    assert fednova.weights_of_gradients(3, 0.5) @ [1.0, 10.0, 100.0] == position


def test_two_steps_of_sgd_by_hand():
    x, y = np.array([[1.0], [2.0]]), np.array([0, 1])
    params = {"out": {"kernel": np.array([[1.0, -1.0]]), "bias": np.array([0.5, 0.0])}}

    def step_gradient(w, b, row):
        logits = x[row, 0] * w + b
        delta = np.exp(logits) / np.exp(logits).sum() - np.eye(2)[y[row]]
        return x[row, 0] * delta, delta

    w0, b0 = params["out"]["kernel"][0], params["out"]["bias"]
    gw, gb = step_gradient(w0, b0, 0)
    vw, vb = gw + 0.1 * w0, gb  # decay on the weight and not on the bias
    w1, b1 = w0 - 0.5 * vw, b0 - 0.5 * vb
    gw, gb = step_gradient(w1, b1, 1)
    vw, vb = 0.9 * vw + gw + 0.1 * w1, 0.9 * vb + gb
    trained = train(
        params, ["out"], x, y, batches([[0, 1]], 1), Sgd(0.5, momentum=0.9, decay=0.1)
    )
    np.testing.assert_allclose(trained["out"]["kernel"][0], w1 - 0.5 * vw, rtol=1e-14)
    np.testing.assert_allclose(trained["out"]["bias"], b1 - 0.5 * vb, rtol=1e-14)
