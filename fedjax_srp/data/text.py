"""Tokens of texts for `srp.models.lstm`: 0 is padding, 1 an unknown word, 2 the most frequent word, and so on.

As in LEAF's Sent140, but in lower case, a word is a run of letters, digits and
apostrophes, or one of the marks .,!?;
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np

_WORD = re.compile(r"[\w']+|[.,!?;]")
_UNKNOWN = 1  # token of an unknown word
_FIRST = 2  # token of the most frequent word
# number of tokens, with padding and unknown words: the default of `srp.models.lstm`
VOCABULARY = 10_000
LENGTH = 25  # words per text, as in LEAF's model of Sent140


def words(text: str) -> list[str]:
    """Split a text into words.

    Example:
        >>> words("It's late, @anna!")
        ["it's", 'late', ',', 'anna', '!']
    """
    return _WORD.findall(text.lower())


def vocabulary(texts: Iterable[str], size: int = VOCABULARY) -> dict[str, int]:
    """Return the tokens, from 2, of the most frequent words of the TRAINING texts.

    Ties in alphabetical order.

    `size` counts all tokens, including padding and unknown words.
    """
    return most_frequent(
        (word for text in texts for word in words(text)), size - _FIRST, _FIRST
    )


def most_frequent(words: Iterable[str], number: int, first: int) -> dict[str, int]:
    """Return the tokens, from `first`, of the most frequent words.

    Ties in alphabetical order.
    """
    counts = Counter(words)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return {word: token for token, word in enumerate(ranked[:number], start=first)}


def tokens(
    texts: Iterable[str], vocabulary: Mapping[str, int], length: int = LENGTH
) -> np.ndarray:
    """Convert the first `length` words of each text to tokens, padded at the end.

    The result is (n, length) int32.
    """
    rows = []
    for text in texts:
        row = [vocabulary.get(word, _UNKNOWN) for word in words(text)[:length]]
        rows.append(row + [0] * (length - len(row)))
    return np.array(rows, np.int32).reshape(-1, length)
