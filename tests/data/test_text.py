"""Words of texts, and their tokens."""

import inspect

import numpy as np

from fedjax_srp import models
from fedjax_srp.data import text


def test_words():
    assert text.words("It's LATE, @anna!  caf\xe9..") == [
        *("it's", "late", ",", "anna", "!", "caf\xe9", ".", ".")
    ]
    assert text.words(" \n") == []


def test_frequent_words_first_and_ties_by_the_alphabet():
    texts = ["b b a a c", "d"]
    assert text.vocabulary(texts) == {"a": 2, "b": 3, "c": 4, "d": 5}
    assert text.vocabulary(texts, size=4) == {"a": 2, "b": 3}


def test_tokens():
    known = {"a": 2, "b": 3}
    found = text.tokens(["A b, x", "", "b a b a"], known, length=3)
    assert found.dtype == np.int32
    assert found.tolist() == [[2, 3, 1], [0, 0, 0], [3, 2, 3]]
    assert text.tokens([], known).shape == (0, text.LENGTH)


def test_the_default_vocabulary_fits_the_model():
    model = inspect.signature(models.LSTM).parameters
    assert model["vocabulary"].default == text.VOCABULARY
