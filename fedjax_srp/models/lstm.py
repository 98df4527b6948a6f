"""LSTM models: a text classifier, and a predictor of next tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_srp.base import Array
from fedjax_srp.models.gpt import GPT, TokenModel
from fedjax_srp.models.mlp import dense_layers
from fedjax_srp.models.split import Layer
from fedjax_srp.parts.part import AtLeast, Count, part


class Embedding(nn.Module):
    """Vectors of tokens, with one more channel that is 1 for a token and 0 for padding (token 0)."""

    vocabulary: int
    features: int
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, tokens: Array) -> Array:
        """(batch, length) int -> (batch, length, features + 1); a token outside the vocabulary is read as padding."""
        shape = (self.vocabulary, self.features)
        table = self.param(
            "embedding",
            nn.initializers.normal(self.features**-0.5),
            shape,
            self.param_dtype,
        )
        is_token = (tokens > 0) & (tokens < self.vocabulary)
        vectors = table[jnp.where(is_token, tokens, 0)]
        mask = is_token[..., None].astype(table.dtype)
        return jnp.concatenate(
            [vectors * jnp.broadcast_to(mask, vectors.shape), mask], axis=-1
        )


class Recurrence(nn.Module):
    """One LSTM layer without peepholes (Gers, Schmidhuber and Cummins 2000).

    It returns the last output, or the outputs at all positions. Padding, at any position, does not change state and
    output. The columns of the kernels are the gates i, f, g, o; the bias of f starts at 1, the others at 0.
    """

    features: int
    param_dtype: Any = jnp.float32
    return_sequence: bool = False

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        """(batch, length, channels + 1), the last channel a mask -> (batch, features), or (batch, length, features)."""
        x, mask, width = inputs[..., :-1], inputs[..., -1:], 4 * self.features
        kernel = self.param(
            "kernel",
            nn.initializers.lecun_normal(),
            (x.shape[-1], width),
            self.param_dtype,
        )
        recurrent = self.param(
            "recurrent",
            nn.initializers.orthogonal(),
            (self.features, width),
            self.param_dtype,
        )
        bias = self.param("bias", _forget_bias, (width,), self.param_dtype)
        from_inputs = x @ kernel  # at all positions at once
        from_inputs = jnp.swapaxes(
            from_inputs + jnp.broadcast_to(bias, from_inputs.shape), 0, 1
        )

        def step(
            carry: tuple[Array, Array], now: tuple[Array, Array]
        ) -> tuple[tuple[Array, Array], Array | None]:
            cell, hidden = carry
            from_input, mask = now
            i, f, g, o = jnp.split(from_input + hidden @ recurrent, 4, axis=-1)
            new_cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
            new_hidden = jax.nn.sigmoid(o) * jnp.tanh(new_cell)
            is_token = jnp.broadcast_to(mask > 0, cell.shape)
            cell, hidden = (
                jnp.where(is_token, new_cell, cell),
                jnp.where(is_token, new_hidden, hidden),
            )
            return (cell, hidden), hidden if self.return_sequence else None

        start = jnp.zeros((x.shape[0], self.features), from_inputs.dtype)
        (_, hidden), sequence = jax.lax.scan(
            step, (start, start), (from_inputs, jnp.swapaxes(mask, 0, 1))
        )
        return hidden if sequence is None else jnp.swapaxes(sequence, 0, 1)


def _forget_bias(key: Array, shape: tuple[int], dtype: Any) -> Array:
    del key
    quarter = shape[0] // 4
    return jnp.zeros(shape, dtype).at[quarter : 2 * quarter].set(1)


@part
class LSTM(TokenModel):
    """A text classifier: layers embedding, lstm (its last output), fc1 with ReLU, out.

    Between embedding and lstm the features have one more channel, 1 for a token and 0 for padding.

    Args:
        input_shape: (length,) tokens of one example, integers from 1 on; token 0 is padding, before or after the text.
        num_classes: width of `out`.
        vocabulary: number of tokens, including padding; a larger token is read as padding.
        embedding: channels of a token.
        features: of the LSTM's state.
        dense: width of fc1.
    """

    vocabulary: Annotated[int, AtLeast(2)] = 10_000
    embedding: Count = 50
    features: Count = 64
    dense: Count = 64

    def stack(self) -> Sequence[Layer]:
        """Embedding, recurrence and dense layers."""
        return [
            Layer("embedding", Embedding(self.vocabulary, self.embedding, self.dtype)),
            Layer("lstm", Recurrence(self.features, self.dtype)),
            *dense_layers(self, (self.dense,)),
        ]


@part
class TokenLSTM(TokenModel):
    """A predictor of next tokens: layers embedding, lstm (its output at every position), fc1, out.

    The model of StackOverflow's next words in Reddi et al. (2021, appendix C), with 4,050,748 parameters for 10,004
    tokens. Inputs, labels and loss are those of `GPT`. An output depends on earlier tokens only through the state of
    the LSTM, which padding does not change.

    Args:
        input_shape: (length,) tokens of one example.
        num_classes: number of tokens, including padding; width of `out`.
        embedding: channels of a token.
        features: of the LSTM's state.
        dense: width of fc1, which has no activation.

    Example:
        >>> import fedjax_srp as srp
        >>> srp.models.TokenLSTM((20,), num_classes=10_004).layer_names
        ('embedding', 'lstm', 'fc1', 'out')
    """

    name: ClassVar[str] = "token_lstm"

    embedding: Count = 96
    features: Count = 670
    dense: Count = 96
    loss = GPT.loss

    def stack(self) -> Sequence[Layer]:
        """Embedding, recurrence and dense layers."""
        return [
            Layer("embedding", Embedding(self.num_classes, self.embedding, self.dtype)),
            Layer("lstm", Recurrence(self.features, self.dtype, return_sequence=True)),
            Layer("fc1", nn.Dense(self.dense, param_dtype=self.dtype)),
            Layer("out", nn.Dense(self.num_classes, param_dtype=self.dtype)),
        ]
