"""Checks of input by themselves; that every public argument has them is tested in `test_wrong_types.py`."""

import jax
import numpy as np
import pytest

from fedjax_srp import models, participation
from fedjax_srp._checks import INT32_MAX, check_choice, check_integer


@pytest.mark.parametrize("value", ["two", 2.5, True, None, float("nan"), np.ones(2)])
def test_what_is_no_integer_is_refused(value):
    with pytest.raises(ValueError, match="must be an integer, at least 1") as caught:
        check_integer("n", value, 1)
    assert str(caught.value).startswith(f"n={value!r} ")


@pytest.mark.parametrize("check", [lambda n: check_integer("k", n, 1), participation.Uniform])
def test_integers_out_of_range_are_refused_in_the_same_words(check):
    for value, words in ((0, "at least 1"), (-1, "at least 1"), (2**31, f"at most {INT32_MAX}")):
        with pytest.raises(ValueError, match=f"^k={value} must be {words}$"):
            check(value)


def test_an_integer_may_be_any_that_python_takes_for_one():
    assert check_integer("n", np.int8(3), 1) == 3
    assert check_integer("n", np.asarray(3), 1) == 3
    assert type(check_integer("n", jax.numpy.int32(3), 1)) is int
    assert check_integer("n", INT32_MAX, 1) == INT32_MAX
    assert check_integer("n", 2**70, 1, maximum=None) == 2**70
    assert participation.Uniform(INT32_MAX).name == "uniform"


def test_a_tracer_is_no_integer_and_no_choice():
    with pytest.raises(ValueError, match=r"n=.* must be an integer, known before tracing, at least 1"):
        jax.jit(lambda n: check_integer("n", n, 1))(3)
    with pytest.raises(ValueError, match=r"c=.* is unknown; choose from a, b"):
        jax.jit(lambda c: check_choice("c", c, "ab"))(3)


@pytest.mark.parametrize(
    ("choose", "wrong", "message"),
    [
        (
            lambda v: participation.Fastest(1, by=v),
            "realized",
            r"^by='realized' is unknown \(did you mean realised\?\)",
        ),
        (lambda v: participation.Fastest(1, by=v), 3, "^by=3 is unknown; choose from "),
        (
            lambda v: models.MLP((6,), 4, hidden=(3,), cut=v),
            "fc2",
            r"^cut='fc2' is no layer of .* \(did you mean fc1\?\)",
        ),
        (lambda v: models.MLP((6,), 4, hidden=v), 32, r"^hidden=32 must be several; \(32,\) is one of them$"),
    ],
)
def test_unknown_choices_are_refused_with_the_nearest_ones(choose, wrong, message):
    with pytest.raises(ValueError, match=message):
        choose(wrong)
