"""`NextTokens`: sequences for models that predict the next token at every position."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike
from typing_extensions import override

from fedjax_srp.base import Array, Examples
from fedjax_srp.data import overlap
from fedjax_srp.data.arrays import as_array, pad
from fedjax_srp.data.federated import FederatedData
from fedjax_srp.parts.checks import checked
from fedjax_srp.parts.part import Count


class NextTokens(FederatedData):
    """The result of `next_tokens`: `FederatedData` whose labels are (n, length), 0 for padding."""

    @override
    def _is_label(self, test: Examples) -> Array:
        return super()._is_label(test)[:, None] & (test.y > 0)


@checked
def next_tokens(
    train: Sequence[ArrayLike],
    test: Sequence[ArrayLike],
    num_classes: Count | None = None,
    name: str = "tokens",
) -> NextTokens:
    """Build federated data of token sequences, for `srp.models.GPT`.

    An input is a sequence without its last token, its labels are the sequence without its
    first token. Accuracies are shares of correct tokens; a client is weighted by its
    number of tokens.

    Args:
        train: each client's sequences, (n_i, length + 1) integers from 1, all of one
            length; 0 is padding after a sequence. `srp.data.text` converts texts to
            tokens.
        test: likewise.
        num_classes: number of distinct tokens, with the padding; default: the largest
            token + 1.
        name: of the data set in results.

    Raises:
        ValueError: invalid sequences or unequal lengths; a client without sequences; test
            sequences that all equal training sequences, where training sequences rarely
            equal each other.

    Example:
        >>> train = [np.arange(1, 13).reshape(2, 6), np.arange(1, 7).reshape(1, 6)]
        >>> test = [np.arange(2, 8).reshape(1, 6), np.arange(7, 13).reshape(1, 6)]
        >>> next_tokens(train, test).example_shape
        (5,)
    """
    if len(train) != len(test) or not len(train):
        raise ValueError(
            f"train lists {len(train)} clients and test {len(test)}; give both one array "
            "for each client"
        )
    width = as_array("train[0]", train[0]).shape[-1:]
    largest = 0
    clients: dict[str, list[np.ndarray]] = {"train": [], "test": []}
    for kind, sequences in (("train", train), ("test", test)):
        for i, sequences_of_client in enumerate(sequences):
            array = as_array(f"{kind}[{i}]", sequences_of_client)
            is_matrix = array.ndim == 2 and array.shape[1:] == width
            if not is_matrix or array.shape[1] < 2 or not len(array):
                raise ValueError(
                    f"{kind}[{i}]: has shape {array.shape}; give one or more sequences "
                    "of 2 or more tokens, all of one length, padded with 0"
                )
            is_integer = np.issubdtype(array.dtype, np.integer)
            if not is_integer or array.min() < 0 or array.max() >= 2**31 - 1:
                raise ValueError(
                    f"{kind}[{i}]: has values that are not tokens; give integers from 1, "
                    "or 0 for padding"
                )
            clients[kind].append(array)
            largest = max(largest, int(array.max()))
    if num_classes is None:
        num_classes = largest + 1
    elif largest >= num_classes:
        raise ValueError(
            f"num_classes={num_classes}: there is a token {largest}; give at least "
            f"{largest + 1}"
        )
    parts = {}
    joined = {}
    rows = {}
    for kind, arrays in clients.items():
        joined[kind] = np.concatenate(arrays).astype(np.int32)
        ends = np.cumsum([len(array) for array in arrays])
        rows[kind] = np.split(np.arange(ends[-1]), ends[:-1])
        parts[f"x_{kind}"] = jnp.asarray(joined[kind][:, :-1])
        parts[f"y_{kind}"] = jnp.asarray(joined[kind][:, 1:])
        parts[f"{kind}_indices"], parts[f"{kind}_counts"] = pad(rows[kind])
    overlap.check_values(
        joined["train"],
        joined["test"],
        rows["train"],
        np.arange(len(joined["test"])),
        ("train", "test"),
    )
    return NextTokens(
        **parts, scale=None, offset=None, name=name, num_classes=num_classes
    )
