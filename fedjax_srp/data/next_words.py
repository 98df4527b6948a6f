"""`next_words`: next-word prediction on users' texts, as on TensorFlow Federated's StackOverflow."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedjax_srp.data import leaf
from fedjax_srp.data.next_tokens import NextTokens, next_tokens
from fedjax_srp.data.partition import natural
from fedjax_srp.data.records import expand_user
from fedjax_srp.data.text import most_frequent
from fedjax_srp.parts.checks import checked, short
from fedjax_srp.parts.part import Count

# of LEAF's Reddit -> the token, counted from the size of the vocabulary; 0 is padding
_MARKS = {"<PAD>": 0, "<UNK>": 1, "<BOS>": 2, "<EOS>": 3}


@checked
def next_words(
    folder: str | Path,
    num_clients: Count | None = None,
    *,
    vocabulary: Count = 10_000,
    length: Count = 20,
    seed: int = 0,
) -> NextTokens:
    """Build federated data for next-word prediction from a folder of texts in LEAF's layout.

    A user is a client.

    The preprocessing is that of StackOverflow in Reddi et al. (2021, appendix C.4): words
    are separated by spaces, and a sentence is cut after `length` words. Token 0 is
    padding, 1 to `vocabulary` are the most frequent words of all training texts, and the
    next three are the unknown word, the beginning and the end of a sentence. A sentence
    that was cut has no end. Accuracy counts all tokens but padding, so also unknown words
    and ends.

    Of LEAF's Reddit, whose inputs are lists of sequences of tokens, a client's sequences are
    those of all comments, with the beginnings, ends and padding that they have.

    Args:
        folder: with `train/*.json` and `test/*.json`, {"users": [u, ...], "user_data":
            {u: {"x": ["a text", ...]}}}; other entries are ignored. For StackOverflow you
            write these files yourself, in lower case.
        num_clients: number of users, drawn at random; None for all users with training
            and test texts.
        vocabulary: number of words. If the texts have fewer, the other tokens never
            occur.
        length: number of tokens of an input; for Reddit the sequences' own, 10.
        seed: of the draw of users.

    Raises:
        ValueError: missing files, files of another layout, too few users.

    Example:
        >>> import json, pathlib, tempfile
        >>> texts = {"train": ["how do i sort", "sort a list"], "test": ["sort it"]}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for kind, sentences in texts.items():
        ...         (pathlib.Path(folder) / kind).mkdir()
        ...         users = {"users": ["ann"], "user_data": {"ann": {"x": sentences}}}
        ...         _ = (pathlib.Path(folder) / kind / "all.json").write_text(json.dumps(users))
        ...     data = next_words(folder, vocabulary=6, length=5)
        >>> data.num_classes, data.x_train.tolist()
        (10, [[8, 4, 3, 5, 1], [8, 1, 2, 6, 9]])
    """
    path = expand_user(folder)
    columns = leaf.texts(path)
    all_texts = [*columns["x_train"], *columns["x_test"]]
    are_sequences = isinstance(all_texts[0], tuple)
    if any(isinstance(each, tuple) != are_sequences for each in all_texts):
        raise ValueError(
            f"folder={str(folder)!r}: some inputs are texts and some sequences of tokens; "
            "give all of one kind"
        )
    words: list[str] = []
    for each in columns["x_train"]:
        words.extend(each if are_sequences else each.split())
    marks = _MARKS if are_sequences else {}
    tokens_of = most_frequent(
        (word for word in words if word not in marks), vocabulary, first=1
    )
    for mark, number in marks.items():
        tokens_of[mark] = vocabulary + number if number else 0
    users = natural(columns["users_train"], columns["users_test"], num_clients, seed)
    sequences = []
    for kind, clients in users._asdict().items():
        texts = columns[f"x_{kind}"]
        sequences.append(
            [_tokens(texts[rows], tokens_of, vocabulary, length) for rows in clients]
        )
    train, test = sequences
    return next_tokens(train, test, num_classes=vocabulary + 4, name=path.resolve().name)


def _tokens(
    texts: np.ndarray, tokens_of: dict[str, int], vocabulary: int, length: int
) -> np.ndarray:
    """Convert texts to (n, length + 1) tokens, padded with 0."""
    unknown = vocabulary + 1
    begin = vocabulary + 2
    end = vocabulary + 3
    padded = np.zeros((len(texts), length + 1), np.int32)
    if isinstance(texts[0], tuple):
        return _of_sequences(texts, tokens_of, unknown)
    for row, text in zip(padded, texts, strict=True):
        words = [tokens_of.get(word, unknown) for word in text.split()[:length]]
        tokens = [begin, *words, end][: length + 1]
        row[: len(tokens)] = tokens
    return padded


def _of_sequences(
    sequences: np.ndarray, tokens_of: dict[str, int], unknown: int
) -> np.ndarray:
    """Convert sequences of tokens, all of one length."""
    lengths = {len(sequence) for sequence in sequences}
    if len(lengths) > 1:
        raise ValueError(
            f"folder: has sequences of {short(sorted(lengths))} tokens; give all one length"
        )
    tokens = np.zeros((len(sequences), *lengths), np.int32)
    for row, sequence in zip(tokens, sequences, strict=True):
        row[:] = [tokens_of.get(word, unknown) for word in sequence]
    return tokens
