"""A small transformer that predicts next tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from typing_extensions import override

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
        """(batch, length) int -> (batch, length, width); an unknown token is read as padding, 0."""
        initializer = nn.initializers.normal(0.02)
        dtype = self.param_dtype
        table = self.param("embedding", initializer, (self.vocabulary, self.width), dtype)
        positions = self.param(
            "positions", initializer, (tokens.shape[1], self.width), dtype
        )
        is_known = (tokens > 0) & (tokens < self.vocabulary)
        vectors = table[jnp.where(is_known, tokens, 0)]
        return vectors + jnp.broadcast_to(positions, vectors.shape)


class Block(nn.Module):
    """Pre-norm transformer block: causal self-attention and two dense layers, both residual."""

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
        query, key, value = jnp.unstack(h, axis=2)
        scale = jnp.sqrt(jnp.asarray(query.shape[-1], x.dtype))
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / scale
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
                f"input_shape={self.input_shape}: {self.name} takes token sequences (length,); "
                "choose mlp"
            )
        super().__post_init__()

    @property
    @override
    def input_dtype(self) -> Any:
        return jnp.int32


@part
class GPT(TokenModel):
    """A transformer for next tokens, a small GPT-2 (Radford et al., 2019).

    Its layers are embedding (tokens and positions), block1, block2, ..., norm, out.

    An example is a row of tokens, its labels are the next tokens, as in `srp.data.next_tokens`. The
    loss is the mean cross-entropy over the positions whose label is not padding (0). Attention is
    causal, so padding after a text does not matter.

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
                f"heads={self.heads} does not divide embedding={self.embedding}; "
                "choose one that does"
            )
        super().__post_init__()

    @override
    def stack(self) -> Sequence[Layer]:
        dtype = {"param_dtype": self.dtype}
        embedding = TokensAndPositions(self.num_classes, self.embedding, self.dtype)
        block = Block(self.heads, self.dtype)
        return [
            Layer("embedding", embedding),
            *(Layer(f"block{i}", block) for i in range(1, self.blocks + 1)),
            Layer("norm", nn.LayerNorm(force_float32_reductions=False, **dtype)),
            Layer("out", nn.Dense(self.num_classes, **dtype)),
        ]

    @override
    def loss(self, logits: Array, y: Array) -> Array:
        """The mean over the tokens of each example.

        (batch, length, num_classes), (batch, length) -> (batch,).
        """
        losses = cross_entropy(logits, y)
        is_token = (y > 0).astype(losses.dtype)
        num_tokens = jnp.sum(is_token, axis=-1)
        return jnp.sum(losses * is_token, axis=-1) / jnp.maximum(num_tokens, 1)
