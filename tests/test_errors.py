"""Errors of arguments: their fields, and hints for names that users abbreviate."""

import pickle

import jax
import pytest

import fedjax_srp as srp
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


def test_a_seed_leads_to_a_key():
    data = srp.data.linear_task(jax.random.key(0), num_clients=4, dim=3, rank=1)
    with pytest.raises(TypeError, match=r"did you mean key\?"):
        srp.simulate(None, data, num_rounds=1, seed=3)
    with pytest.raises(ValueError, match=r"use jax.random.key\(3\)"):
        srp.simulate(None, data, num_rounds=1, key=3)
