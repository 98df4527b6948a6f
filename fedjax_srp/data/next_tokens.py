"""`NextTokens`: sequences for models that predict the next token at every position."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from fedjax_srp.base import Array, Examples
from fedjax_srp.data import overlap
from fedjax_srp.data.arrays import as_array, pad
from fedjax_srp.data.federated import FederatedData
from fedjax_srp.parts.checks import checked
from fedjax_srp.parts.part import Count


class NextTokens(FederatedData):
    """The result of `next_tokens`: `FederatedData` whose labels are (n, length), 0 for padding."""

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
    clients = {"train": [as_array(f"train[{i}]", given) for i, given in enumerate(train)]}
    clients["test"] = [as_array(f"test[{i}]", given) for i, given in enumerate(test)]
    width = clients["train"][0].shape[-1:]
    for kind, arrays in clients.items():
        for i, array in enumerate(arrays):
            if (
                array.ndim != 2
                or array.shape[1:] != width
                or array.shape[1] < 2
                or not len(array)
            ):
                raise ValueError(
                    f"{kind}[{i}]: has shape {array.shape}; give one or more sequences "
                    "of 2 or more tokens, all of one length, padded with 0"
                )
            if (
                not np.issubdtype(array.dtype, np.integer)
                or array.min() < 0
                or array.max() >= 2**31 - 1
            ):
                raise ValueError(
                    f"{kind}[{i}]: has values that are not tokens; give integers from 1, "
                    "or 0 for padding"
                )
    largest = max(int(array.max()) for arrays in clients.values() for array in arrays)
    if num_classes is None:
        num_classes = largest + 1
    elif largest >= num_classes:
        raise ValueError(
            f"num_classes={num_classes}: there is a token {largest}; give at least "
            f"{largest + 1}"
        )
    parts = {}
    joined = {}
    for kind, arrays in clients.items():
        together = np.concatenate(arrays).astype(np.int32)
        joined[kind] = together
        parts[f"x_{kind}"], parts[f"y_{kind}"] = (
            jnp.asarray(together[:, :-1]),
            jnp.asarray(together[:, 1:]),
        )
        ends = np.cumsum([len(array) for array in arrays])
        parts[f"{kind}_indices"], parts[f"{kind}_counts"] = pad(
            np.split(np.arange(ends[-1]), ends[:-1])
        )
    ends = np.cumsum([len(array) for array in clients["train"]])
    owned = np.split(np.arange(ends[-1]), ends[:-1])
    overlap.check_values(
        joined["train"],
        joined["test"],
        owned,
        np.arange(len(joined["test"])),
        ("train", "test"),
    )
    return NextTokens(
        **parts, scale=None, offset=None, name=name, num_classes=num_classes
    )
