"""Texts as tokens for `srp.models.lstm`: 0 is padding, 1 an unknown word, 2 the most frequent word, and so on.

Words are those of LEAF's Sent140 in lower case: runs of letters, digits and apostrophes, and each of the marks .,!?;
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np

_WORD = re.compile(r"[\w']+|[.,!?;]")
_UNKNOWN, _FIRST = 1, 2  # tokens: 0 is padding
VOCABULARY = 10_000  # tokens with padding and unknown words, as many as `srp.models.lstm` has
LENGTH = 25  # words of a text, as in LEAF's model of Sent140


def words(text: str) -> list[str]:
    """The words of a text in their order.

    Example:
        >>> words("It's late, @anna!")
        ["it's", 'late', ',', 'anna', '!']
    """
    return _WORD.findall(text.lower())


def vocabulary(texts: Iterable[str], size: int = VOCABULARY) -> dict[str, int]:
    """The tokens of the most frequent words of the TRAINING texts, from 2 on; ties in alphabetical order.

    `size` counts all tokens, also padding and unknown words.
    """
    counts = Counter(word for text in texts for word in words(text))
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return {word: token for token, word in enumerate(ranked[: size - _FIRST], start=_FIRST)}


def tokens(texts: Iterable[str], known: Mapping[str, int], length: int = LENGTH) -> np.ndarray:
    """The first `length` words of each text as tokens (n, length) int32, shorter ones padded at the end."""
    rows = [[known.get(word, _UNKNOWN) for word in words(text)[:length]] for text in texts]
    return np.array([row + [0] * (length - len(row)) for row in rows], np.int32).reshape(-1, length)
