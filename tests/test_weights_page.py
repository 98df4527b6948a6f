"""The page on weights: its code runs, and what it exports scores as the run did."""

import importlib.util
import re
from pathlib import Path

import jax
import numpy as np
import pytest

import fedjax_srp as srp

PAGE = Path(__file__).parent.parent / "docs/weights.md"


@pytest.mark.usefixtures("one_device")
def test_weights_go_in_and_out():
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.M)
    has_torch = importlib.util.find_spec("torch") is not None
    page: dict = {}
    for block in blocks:
        if has_torch or "import torch" not in block:
            exec(compile(block, "docs/weights.md", "exec"), page)
    history = page["history"]
    accuracies = history.accuracies
    assert page["is_right"].mean() == pytest.approx(accuracies["fine_tune"][-1, 7])
    logits = page["model"].logits(page["own"], page["test"].x)
    is_right = (np.argmax(logits, -1) == page["test"].y)[: page["test"].count]
    assert is_right.mean() == pytest.approx(accuracies["own_head"][-1, 7])
    if has_torch:
        np.testing.assert_allclose(page["logits"], page["outputs"], atol=1e-4)
    again = page["again"]
    assert again.config["start"] == history.config["start"]
    np.testing.assert_array_equal(again.accuracy, accuracies["fine_tune"])


def test_a_pretrained_convolution_and_what_follows_it_compute_the_same():
    """Weights in PyTorch's order, converted by the formulas of the page, against sums written out."""
    channels, height, width = 2, 4, 3
    random = np.random.default_rng(0)
    image = random.normal(size=(height, width, channels))
    of_torch = random.normal(size=(5, channels, height, width))  # a kernel as the image
    sums = np.einsum("ochw,hwc->o", of_torch, image)
    kernel = of_torch.transpose(2, 3, 1, 0)
    np.testing.assert_allclose(np.einsum("hwco,hwc->o", kernel, image), sums)
    flat = of_torch.reshape(5, -1)  # the weight of a dense layer
    formula = re.search(r"`(w\.reshape\(.*?)`", PAGE.read_text())
    assert formula
    names = {"w": flat, "C": channels, "H": height, "W": width}
    np.testing.assert_allclose(image.reshape(-1) @ eval(formula[1], names), sums)


def test_a_start_of_flax_parameters_with_other_names_is_refused():
    data = srp.data.load("digits", num_clients=4)
    method = srp.methods.get("fedrep", dataset=data, hidden=(4,))
    kernel = np.zeros((64, 4), np.float32)
    start = {"representation": {"Dense_0": {"kernel": kernel}}, "head": {}}
    with pytest.raises(ValueError, match="start lacks head/out/bias") as caught:
        srp.simulate(method, data, num_rounds=1, key=jax.random.key(0), start=start)
    assert "\n" not in str(caught.value)
