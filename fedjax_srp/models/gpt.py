"""A small transformer that predicts next tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_srp.base import Array
from fedjax_srp.models.split import Layer, SplitModel, cross_entropy
from fedjax_srp.parts.part import Count, part


class TokensAndPositions(nn.Module):
    """The sum of a token embedding and a position embedding."""

    vocabulary: int
    width: int
    param_dtype: Any

    @nn.compact
    def __call__(self, tokens: Array) -> Array:
        """(batch, length) int -> (batch, length, width); a token outside the vocabulary is read as padding, 0."""
        initializer = nn.initializers.normal(0.02)
        table = self.param(
            "embedding", initializer, (self.vocabulary, self.width), self.param_dtype
        )
        positions = self.param(
            "positions", initializer, (tokens.shape[1], self.width), self.param_dtype
        )
        vectors = table[jnp.where((tokens > 0) & (tokens < self.vocabulary), tokens, 0)]
        return vectors + jnp.broadcast_to(positions, vectors.shape)


class Block(nn.Module):
    """Pre-norm transformer block: causal self-attention, then two dense layers, each with a residual connection."""

    heads: int
    param_dtype: Any

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """(batch, length, width) -> (batch, length, width)."""
        batch, length, width = x.shape
        dtype = {"param_dtype": self.param_dtype}
        norm_options = {**dtype, "force_float32_reductions": False}
        h = nn.LayerNorm(name="norm1", **norm_options)(x)
        h = nn.Dense(3 * width, name="qkv", **dtype)(h).reshape(
            batch, length, 3, self.heads, -1
        )
        query, key, value = (h[:, :, i] for i in range(3))
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / jnp.sqrt(
            jnp.asarray(query.shape[-1], x.dtype)
        )
        is_past = jnp.broadcast_to(
            jnp.tril(jnp.ones((length, length), bool)), scores.shape
        )
        attention = jax.nn.softmax(
            jnp.where(is_past, scores, jnp.finfo(scores.dtype).min), axis=-1
        )
        mixed = jnp.einsum("bhqk,bkhd->bqhd", attention, value).reshape(x.shape)
        x = x + nn.Dense(width, name="mix", **dtype)(mixed)
        h = nn.Dense(4 * width, name="up", **dtype)(
            nn.LayerNorm(name="norm2", **norm_options)(x)
        )
        return x + nn.Dense(width, name="down", **dtype)(jax.nn.gelu(h))


@part
class TokenModel(SplitModel):
    """Base of models whose inputs are sequences of tokens."""

    def __post_init__(self) -> None:
        if len(self.input_shape) != 1:
            raise ValueError(
                f"input_shape={self.input_shape}: {self.name} takes token sequences (length,); choose mlp"
            )
        super().__post_init__()

    @property
    def input_dtype(self) -> Any:
        """Type of the inputs: tokens."""
        return jnp.int32


@part
class GPT(TokenModel):
    """A transformer for next tokens, a small GPT-2 (Radford et al., 2019): layers embedding (tokens and
    positions), block1, block2, ..., norm, out.

    An example is a row of tokens, its labels are the next tokens, as in `srp.data.next_tokens`. The loss is the mean
    cross-entropy over the positions whose label is not padding (0). Attention is causal, so padding after a text does
    not matter.

    Args:
        input_shape: (length,) tokens of one example.
        num_classes: number of tokens, including padding; width of `out`.
        embedding: channels of a token.
        blocks: number of blocks.
        heads: of attention in each block; must divide embedding.

    Example:
        >>> import fedjax_srp as srp
        >>> srp.models.GPT((16,), num_classes=100, embedding=32).layer_names
        ('embedding', 'block1', 'block2', 'norm', 'out')
    """

    name: ClassVar[str] = "gpt"

    embedding: Count = 64
    blocks: Count = 2
    heads: Count = 4

    def __post_init__(self) -> None:
        if self.embedding % self.heads:
            raise ValueError(
                f"heads={self.heads} does not divide embedding={self.embedding}; choose one that does"
            )
        super().__post_init__()

    def stack(self) -> Sequence[Layer]:
        """Embedding, blocks, normalisation and a dense layer."""
        dtype = {"param_dtype": self.dtype}
        return [
            Layer(
                "embedding",
                TokensAndPositions(self.num_classes, self.embedding, self.dtype),
            ),
            *(
                Layer(f"block{i}", Block(self.heads, self.dtype))
                for i in range(1, self.blocks + 1)
            ),
            Layer("norm", nn.LayerNorm(force_float32_reductions=False, **dtype)),
            Layer("out", nn.Dense(self.num_classes, **dtype)),
        ]

    def loss(self, logits: Array, y: Array) -> Array:
        """Mean loss of each example's tokens: (batch, length, num_classes), (batch, length) -> (batch,)."""
        losses = cross_entropy(logits, y)
        is_token = (y > 0).astype(losses.dtype)
        return jnp.sum(losses * is_token, axis=-1) / jnp.maximum(
            jnp.sum(is_token, axis=-1), 1
        )
