"""LSTM models: a text classifier, and a predictor of next tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from typing_extensions import override

from fedjax_srp.base import Array, Key
from fedjax_srp.models.gpt import GPT, TokenModel
from fedjax_srp.models.mlp import dense_layers
from fedjax_srp.models.split import Layer, SplitParams
from fedjax_srp.parts.part import AtLeast, Count, part


class Embedding(nn.Module):
    """Vectors of tokens, with one more channel: 1 for a token, 0 for padding (token 0)."""

    vocabulary: int
    features: int
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, tokens: Array) -> Array:
        """(batch, length) int -> (batch, length, features + 1); an unknown token is padding."""
        shape = (self.vocabulary, self.features)
        initializer = nn.initializers.normal(self.features**-0.5)
        table = self.param("embedding", initializer, shape, self.param_dtype)
        is_token = (tokens > 0) & (tokens < self.vocabulary)
        vectors = table[jnp.where(is_token, tokens, 0)]
        mask = is_token[..., None].astype(table.dtype)
        return jnp.concatenate(
            [vectors * jnp.broadcast_to(mask, vectors.shape), mask], axis=-1
        )


class Recurrence(nn.Module):
    """One LSTM layer without peepholes (Gers, Schmidhuber and Cummins 2000).

    It returns the last output, or the outputs at all positions. Padding, at any position, does not
    change state and output. The columns of the kernels are the gates i, f, g, o; the bias of f
    starts at 1, the others at 0.
    """

    features: int
    param_dtype: Any = jnp.float32
    return_sequence: bool = False

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        """(batch, length, channels + 1) -> (batch, features), or (batch, length, features).

        The last channel of the inputs is the mask.
        """
        x = inputs[..., :-1]
        mask = inputs[..., -1:]
        width = 4 * self.features
        dtype = self.param_dtype
        normal = nn.initializers.lecun_normal()
        orthogonal = nn.initializers.orthogonal()
        kernel = self.param("kernel", normal, (x.shape[-1], width), dtype)
        recurrent = self.param("recurrent", orthogonal, (self.features, width), dtype)
        bias = self.param("bias", _forget_bias, (width,), dtype)
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
            cell = jnp.where(is_token, new_cell, cell)
            hidden = jnp.where(is_token, new_hidden, hidden)
            output = hidden if self.return_sequence else None
            return (cell, hidden), output

        start = jnp.zeros((x.shape[0], self.features), from_inputs.dtype)
        over_time = (from_inputs, jnp.swapaxes(mask, 0, 1))
        (_, hidden), sequence = jax.lax.scan(step, (start, start), over_time)
        if sequence is None:
            return hidden
        return jnp.swapaxes(sequence, 0, 1)


def _forget_bias(key: Array, shape: tuple[int], dtype: Any) -> Array:
    del key
    quarter = shape[0] // 4
    return jnp.zeros(shape, dtype).at[quarter : 2 * quarter].set(1)


@part
class LSTM(TokenModel):
    """A text classifier: layers embedding, lstm (its last output), fc1 with ReLU, out.

    Between embedding and lstm the features have one more channel, 1 for a token and 0 for padding.

    Args:
        input_shape: (length,) tokens of one example, integers from 1 on; token 0 is padding, before
            or after the text.
        num_classes: width of `out`.
        vocabulary: number of tokens, including padding; a larger token is read as padding.
        embedding: channels of a token.
        features: of the LSTM's state.
        dense: width of fc1.
        vectors: (vocabulary, embedding) the first vectors of all tokens, such as GloVe's; they are
            trained like every parameter, and the row of padding is never read. None: drawn.

    Raises:
        ValueError: `vectors` has another shape.
    """

    vocabulary: Annotated[int, AtLeast(2)] = 10_000
    embedding: Count = 50
    features: Count = 64
    dense: Count = 64
    vectors: jax.Array | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        shape = (self.vocabulary, self.embedding)
        if self.vectors is not None and jnp.shape(self.vectors) != shape:
            raise ValueError(
                f"vectors has shape {jnp.shape(self.vectors)}, the model needs {shape}; give a row "
                "for every token, or set vocabulary and embedding"
            )

    @override
    def init(self, key: Key) -> SplitParams:
        params = super().init(key)
        if self.vectors is None:
            return params
        table = jnp.asarray(self.vectors, self.dtype)
        side = params.head if "embedding" in params.head else params.representation
        changed = side | {"embedding": {"embedding": table}}
        if side is params.head:
            return params._replace(head=changed)
        return params._replace(representation=changed)

    @override
    def stack(self) -> Sequence[Layer]:
        return [
            Layer("embedding", Embedding(self.vocabulary, self.embedding, self.dtype)),
            Layer("lstm", Recurrence(self.features, self.dtype)),
            *dense_layers(self, (self.dense,)),
        ]


@part
class TokenLSTM(TokenModel):
    """A predictor of next tokens: layers embedding, lstm (its output at every position), fc1, out.

    The model of StackOverflow's next words in Reddi et al. (2021, appendix C), with 4,050,748
    parameters for 10,004 tokens. Inputs, labels and loss are those of `GPT`. An output depends on
    earlier tokens only through the state of the LSTM, which padding does not change.

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

    @override
    def stack(self) -> Sequence[Layer]:
        return [
            Layer("embedding", Embedding(self.num_classes, self.embedding, self.dtype)),
            Layer("lstm", Recurrence(self.features, self.dtype, return_sequence=True)),
            Layer("fc1", nn.Dense(self.dense, param_dtype=self.dtype)),
            Layer("out", nn.Dense(self.num_classes, param_dtype=self.dtype)),
        ]
