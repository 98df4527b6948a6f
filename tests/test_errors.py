"""Errors of arguments: their fields, and hints for names that users abbreviate."""

import pickle

import pytest

from fedjax_srp.clocks.distributions import Cost
from fedjax_srp.parts.checks import (
    ArgumentError,
    as_annotated,
    check_choice,
    check_integer,
    check_key,
    nearest,
)


@pytest.mark.parametrize(
    ("refuse", "value", "remedy"),
    [
        (lambda value: check_integer("k", value, 1), "three", ""),
        (lambda value: check_choice("k", value, ["all", "none"]), "al", "all, none"),
        (lambda value: check_key("k", value), 3, "jax.random.key(3)"),
        (lambda value: as_annotated("k", value, Cost), -1, "give a time"),
    ],
)
def test_errors_have_fields_and_survive_a_process_boundary(refuse, value, remedy):
    with pytest.raises(ArgumentError) as caught:
        refuse(value)
    error = caught.value
    assert (error.argument, error.value) == ("k", value)
    assert remedy in error.remedy
    assert str(error).startswith(f"k={value!r} ")
    renamed = error.renamed("m")
    assert (type(renamed), str(renamed)) == (type(error), "m" + str(error)[1:])
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), str(error))


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("lr", "learning_rate"),
        ("--lr", "--learning-rate"),
        ("batch", "batch_size"),
        ("seed", "key"),
    ],
)
def test_abbreviations_are_understood(word, name):
    known = ["learning_rate", "batch_size", "key", "epochs", "--learning-rate"]
    assert name in nearest(word, known)
    assert nearest("qqq", known) == ""
