"""Next words of people's texts, as TensorFlow Federated's StackOverflow asks for them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from fedjax_srp._checks import checked
from fedjax_srp.data import leaf
from fedjax_srp.data.next_tokens import NextTokens, next_tokens
from fedjax_srp.data.partition import natural
from fedjax_srp.data.records import expanded
from fedjax_srp.parts import Count


@checked
def next_words(
    folder: str | Path,
    num_clients: Count | None = None,
    *,
    vocabulary: Count = 10_000,
    length: Count = 20,
    seed: int = 0,
) -> NextTokens:
    """Federated data for predicting the next word, from a folder of texts in LEAF's layout; a user is a client.

    The preprocessing of StackOverflow in Reddi et al. (2021, appendix C.4): words stand between spaces, a sentence is
    cut after `length` words, and token 0 is padding, 1 to `vocabulary` the most frequent words of all training texts,
    then follow the unknown word, the beginning and the end of a sentence. A sentence that was cut has no end. Accuracy
    counts all of them but padding, so unknown words and ends too.

    Args:
        folder: with `train/*.json` and `test/*.json`, {"users": [u, ...], "user_data": {u: {"x": ["a text", ...]}}};
            other entries are not read. StackOverflow itself has to be written there by you, in lower case.
        num_clients: how many users, at random; None for all that have texts of both kinds.
        vocabulary: number of words. Where texts have fewer, the tokens of the rest never occur.
        length: of the inputs.
        seed: which users.

    Raises:
        ValueError: no such files, files of another layout, too few users.

    Example:
        >>> import json, pathlib, tempfile
        >>> texts = {"users": ["ann"], "user_data": {"ann": {"x": ["how do i sort", "sort a list"]}}}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for kind in ("train", "test"):
        ...         (pathlib.Path(folder) / kind).mkdir()
        ...         _ = (pathlib.Path(folder) / kind / "all.json").write_text(json.dumps(texts))
        ...     data = next_words(folder, vocabulary=6, length=5)
        >>> data.num_classes, data.x_train.tolist()
        (10, [[8, 4, 3, 5, 1], [8, 1, 2, 6, 9]])
    """
    path = expanded(folder)
    columns = leaf.texts(path)
    counts = Counter(word for text in columns["x_train"] for word in text.split())
    ranked = sorted(counts, key=lambda word: (-counts[word], word))[:vocabulary]
    known = {word: token for token, word in enumerate(ranked, start=1)}
    users = natural(columns["users_train"], columns["users_test"], num_clients, seed)
    train, test = (
        [_tokens(columns[f"x_{kind}"][rows], known, vocabulary, length) for rows in of]
        for kind, of in (("train", users.train), ("test", users.test))
    )
    return next_tokens(train, test, num_classes=vocabulary + 4, name=path.name)


def _tokens(texts: np.ndarray, known: dict[str, int], vocabulary: int, length: int) -> np.ndarray:
    """(n, length + 1) tokens of texts, 0 behind them."""
    unknown, begin, end = vocabulary + 1, vocabulary + 2, vocabulary + 3
    found = np.zeros((len(texts), length + 1), np.int32)
    for row, text in zip(found, texts, strict=True):
        tokens = [begin, *(known.get(word, unknown) for word in text.split()[:length]), end][: length + 1]
        row[: len(tokens)] = tokens
    return found
