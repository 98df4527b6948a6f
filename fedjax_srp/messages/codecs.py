"""Codecs: what the receiver of an array gets, and the bits that the sender puts on the wire.

A codec works on one array of a message, a layer's kernel or bias. The simulator computes the decoded array at once;
`num_bits` counts the wire format from shape and type alone: values, positions, scales, seeds.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from typing_extensions import override

from fedjax_srp.base import Array, Key, named_key
from fedjax_srp.parts.part import (
    Above,
    AtLeast,
    AtMost,
    Count,
    Static,
    part,
    undefined,
)
from fedjax_srp.xla.largest import largest, magnitudes

SEED_BITS = 64
Kept = Annotated[
    Static[float], Above(0), AtMost(1), "give a share of the entries, e.g. 0.01"
]


@part
class Codec:
    """A code for one array of a message.

    Attributes:
        by_entry: zeros stay zeros, and bits are in proportion to the entries but for scales, so that submodels under a
            mask (`HeteroFL`) can be coded.
    """

    remedy: ClassVar[str] = (
        "give e.g. srp.messages.TopK(0.01) or Quantized(8), or None for no code"
    )
    name: ClassVar[str] = "codec"
    by_entry: ClassVar[bool] = False

    def contracts(self, shape: tuple[int, ...], /) -> bool:
        """True if the code of every array of this shape is nearer to it than zeros are, on average.

        Error feedback needs this; otherwise what it keeps may grow without bound.
        """
        del shape
        return True

    def code(self, key: Key, values: Array, /) -> Array:
        """The array that the receiver decodes, of the same shape and type."""
        undefined(self.code)

    def num_bits(self, shape: tuple[int, ...], dtype: Any, /) -> int:
        """Bits of an array of this shape and type on the wire."""
        undefined(self.num_bits)


def whole_bits(shape: tuple[int, ...], dtype: Any) -> int:
    """Bits of an array that is sent as it is."""
    return math.prod(shape) * jnp.dtype(dtype).itemsize * 8


def _coded_by(codec: Codec | None, key: Key, values: Array) -> Array:
    return values if codec is None else codec.code(named_key(key, "values"), values)


def _contracts_by(codec: Codec | None, kept: int) -> bool:
    return codec is None or codec.contracts((kept,))


def _bits_by(codec: Codec | None, shape: tuple[int, ...], dtype: Any) -> int:
    return whole_bits(shape, dtype) if codec is None else codec.num_bits(shape, dtype)


def _wide(dtype: Any) -> Any:
    """The type of scales, and of sums: at least float32."""
    dtype = jnp.dtype(dtype)
    return dtype if dtype.itemsize >= 4 else jnp.dtype(jnp.float32)


@part
class Half(Codec):
    """Half precision: every value is rounded to the nearest of 16 bits.

    Args:
        kind: "bfloat16" has the range of float32 and 8 significant bits; "float16" has 11 of them, and values above
            65,504 become infinite.

    Example:
        >>> import jax.numpy as jnp, fedjax_srp as srp
        >>> codec = srp.messages.Half()
        >>> codec.num_bits((10, 3), jnp.float32) // 8
        60
    """

    by_entry: ClassVar[bool] = True

    kind: Literal["bfloat16", "float16"] = "bfloat16"

    @override
    def code(self, key: Key, values: Array) -> Array:
        # XLA would cancel a cast there and back
        kind = jnp.finfo(self.kind)
        wide = values.astype(_wide(values.dtype))
        rounded = jax.lax.reduce_precision(wide, kind.nexp, kind.nmant)
        # subnormals are multiples of 2^-24, here they became 0
        if self.kind == "float16":
            is_subnormal = jnp.abs(wide) < 2.0**-14
            rounded = jnp.where(
                is_subnormal, jnp.round(wide * 2.0**24) * 2.0**-24, rounded
            )
        return rounded.astype(values.dtype)

    @override
    def num_bits(self, shape: tuple[int, ...], dtype: Any) -> int:
        return min(whole_bits(shape, dtype), 16 * math.prod(shape))


@part
class Quantized(Codec):
    """Stochastic quantization, QSGD (Alistarh et al., 2017, section 3.1); with `FedAvg` it is FedPAQ (Reisizadeh et
    al., 2020, Algorithm 1).

    A value is rounded at random to one of the two nearest of s = 2^(bits - 1) - 1 levels of the scale, so that its
    expectation is the value. The wire has a sign and a level in `bits` bits for each value, and a scale for each
    bucket; Elias codes of the paper are not used.

    Args:
        bits: of a value, sign included. QSGD's experiments have 2, 4 and 8.
        scale: of a bucket: "max", its largest magnitude, as in QSGD's experiments, or "l2", its Euclidean norm, as in
            the theory of QSGD and FedPAQ, whose quantizer is noisier.
        bucket: values that share a scale; None: the whole array. QSGD's experiments have 512 with 4 bits.

    Example:
        >>> import jax.numpy as jnp, fedjax_srp as srp
        >>> srp.messages.Quantized(4).num_bits((10, 3), jnp.float32) // 8  # 30 half bytes, a scale
        19
    """

    by_entry: ClassVar[bool] = True

    bits: Annotated[int, AtLeast(2), AtMost(16), "give e.g. 8"] = 8
    scale: Literal["max", "l2"] = "max"
    bucket: Count | None = None

    @override
    def code(self, key: Key, values: Array) -> Array:
        wide = values.astype(_wide(values.dtype))
        rows = _in_buckets(wide, self.bucket)
        magnitude = jnp.abs(rows)
        if self.scale == "max":
            scale = jnp.max(magnitude, axis=1, keepdims=True)
        else:
            scale = jnp.sqrt(jnp.sum(jnp.square(rows), axis=1, keepdims=True))
        levels = 2 ** (self.bits - 1) - 1
        # |v_i| / |v| lies between the levels l / s and (l + 1) / s
        position = levels * (magnitude / jnp.where(scale > 0, scale, 1))
        below = jnp.floor(position)
        # xi_i = (l + 1) / s with probability s |v_i| / |v| - l, else l / s
        # 16 random bits, a third of the time of a uniform float: chances are right to 2^-17
        words = _random_words(key, -(-rows.size // 2))
        random = jax.lax.bitcast_convert_type(words, jnp.uint16).reshape(-1)
        random = random[: rows.size].reshape(rows.shape)
        chance = (random.astype(rows.dtype) + 0.5) / 2**16
        level = below + (chance < position - below).astype(rows.dtype)
        # Q(v_i) = |v| sgn(v_i) xi_i
        decoded = jnp.sign(rows) * (level * (scale / levels))
        decoded = decoded.reshape(-1)[: values.size].reshape(values.shape)
        return decoded.astype(values.dtype)

    @override
    def contracts(self, shape: tuple[int, ...]) -> bool:
        size = math.prod(shape)
        if self.bucket is not None:
            size = min(size, self.bucket)
        levels = 2 ** (self.bits - 1) - 1
        if self.scale == "max":
            # a value errs by (scale / s)^2 / 4 at most, and scale^2 <= |v|^2
            return size < 4 * levels**2
        # Alistarh et al., lemma 3.1: min(n / s^2, sqrt(n) / s) |v|^2
        return size < levels**2

    @override
    def num_bits(self, shape: tuple[int, ...], dtype: Any) -> int:
        size = math.prod(shape)
        num_scales = 1 if self.bucket is None else -(-size // self.bucket)
        return self.bits * size + whole_bits((num_scales,), _wide(dtype))


def _random_words(key: Key, size: int) -> Array:
    """(size,) uint32: random bits, as those of new keys, of which a block of Threefry gives 64 and not 32."""
    keys = jax.random.split(key, -(-size // 2))
    return jax.random.key_data(keys).reshape(-1)[:size]


def _in_buckets(values: Array, bucket: int | None) -> Array:
    """The values in rows of a bucket each, the last one filled with zeros."""
    if bucket is None:
        return values.reshape(1, -1)
    flat = jnp.pad(values.reshape(-1), (0, -values.size % bucket))
    return flat.reshape(-1, bucket)


@part
class Sign(Codec):
    """Signs with one scale, the mean magnitude (Karimireddy et al., 2019, Algorithm 1: EF-signSGD).

    It is biased: under `ErrorFeedback` it converges, alone it may not. The wire has a bit for each value, so zeros
    become plus the scale.

    Example:
        >>> import jax.numpy as jnp, fedjax_srp as srp
        >>> srp.messages.ErrorFeedback(srp.messages.Sign()).codec.num_bits((16, 2), jnp.float32) // 8
        8
    """

    @override
    def code(self, key: Key, values: Array) -> Array:
        # Delta = (|p|_1 / d) sgn(p)
        wide = values.astype(_wide(values.dtype))
        scale = jnp.mean(jnp.abs(wide))
        return jnp.where(wide >= 0, scale, -scale).astype(values.dtype)

    @override
    def num_bits(self, shape: tuple[int, ...], dtype: Any) -> int:
        return math.prod(shape) + whole_bits((1,), _wide(dtype))


def _num_kept(share: float, size: int) -> int:
    """Entries that are sent: the share of all, rounded up, at least one."""
    return min(size, max(1, math.ceil(share * size - 1e-9)))


def _with_entries(
    values: Array, is_sent: Array, kept: int, codec: Codec | None, key: Key
) -> Array:
    """The array that has coded values where a mask (n,) has True, `kept` times, and zeros elsewhere."""
    flat = values.reshape(-1)
    if codec is None:
        return jnp.where(is_sent, flat, 0).reshape(values.shape)
    (positions,) = jnp.nonzero(is_sent, size=kept)
    sent = _coded_by(codec, key, flat[positions])
    zeros = jnp.zeros_like(flat)
    return zeros.at[positions].set(sent, unique_indices=True).reshape(values.shape)


def _position_bits(kept: int, size: int) -> int:
    """Bits of positions: each as a number, or a map of one bit for each entry if that is shorter."""
    if kept == size:
        return 0
    return min(kept * math.ceil(math.log2(size)), size)


@part
class TopK(Codec):
    """The entries of largest magnitude, array by array (Aji and Heafield, 2017; Stich et al., 2018).

    The wire has their values and positions: numbers of ceil(log2 d) bits, or a map of d bits where that is shorter.

    Args:
        share: k / d, rounded up to whole entries. Deep Gradient Compression (Lin et al., 2018) has 0.001, Aji and
            Heafield 0.01, both under error feedback.
        values: a code of the values that are sent; None: as they are.

    Example:
        >>> import jax.numpy as jnp, fedjax_srp as srp
        >>> srp.messages.TopK(0.01).num_bits((1024,), jnp.float32)  # 11 values, 11 positions of 10 bits
        462
    """

    share: Kept
    values: Codec | None = None

    @override
    def code(self, key: Key, values: Array) -> Array:
        kept = _num_kept(self.share, values.size)
        is_sent = largest(magnitudes(values.reshape(-1)), kept)
        return _with_entries(values, is_sent, kept, self.values, key)

    @override
    def contracts(self, shape: tuple[int, ...]) -> bool:
        return _contracts_by(self.values, _num_kept(self.share, math.prod(shape)))

    @override
    def num_bits(self, shape: tuple[int, ...], dtype: Any) -> int:
        size = math.prod(shape)
        kept = _num_kept(self.share, size)
        return _position_bits(kept, size) + _bits_by(self.values, (kept,), dtype)


@part
class RandomK(Codec):
    """Entries drawn uniformly without replacement, array by array (Stich et al., 2018; Konecny et al., 2016, "random
    mask").

    The wire has their values, and the seed of the draw, or their positions where these are shorter.

    Args:
        share: k / d, rounded up to whole entries.
        values: a code of the values that are sent; None: as they are.
        unbiased: values are multiplied by d / k, so that the expectation is the array. Under `ErrorFeedback` they must
            not be.

    Example:
        >>> import jax.numpy as jnp, fedjax_srp as srp
        >>> srp.messages.RandomK(0.01).num_bits((1024,), jnp.float32)  # 11 values and a seed
        416
    """

    share: Kept
    values: Codec | None = None
    unbiased: bool = True

    @override
    def contracts(self, shape: tuple[int, ...]) -> bool:
        kept = _num_kept(self.share, math.prod(shape))
        return not self.unbiased and _contracts_by(self.values, kept)

    @override
    def code(self, key: Key, values: Array) -> Array:
        kept = _num_kept(self.share, values.size)
        words = _random_words(named_key(key, "positions"), values.size)
        is_sent = largest((words >> 2).astype(jnp.int32), kept)
        decoded = _with_entries(values, is_sent, kept, self.values, key)
        factor = values.size / kept if self.unbiased else 1.0
        return decoded * factor

    @override
    def num_bits(self, shape: tuple[int, ...], dtype: Any) -> int:
        size = math.prod(shape)
        kept = _num_kept(self.share, size)
        positions = min(SEED_BITS, _position_bits(kept, size))
        return positions + _bits_by(self.values, (kept,), dtype)


@part
class LowRank(Codec):
    """A matrix of low rank, M = P Q^T, by power iteration from a random start (Vogels et al., 2019, Algorithm 1,
    PowerSGD, without its warm start).

    The rows of a kernel are all its axes but the last. PowerSGD starts from the last round's Q, so that one iteration
    is enough; here every code stands alone and starts from new random numbers, and more iterations come closer to the
    truncated singular value decomposition. Arrays whose factors are no shorter, such as biases, are sent whole. The
    wire has P and Q.

    Args:
        rank: r of P (m, r) and Q (n, r); PowerSGD's experiments have 1, 2 and 4.
        iterations: products with M M^T, besides the first one.
        values: a code of the factors, and of arrays that are sent whole; None: as they are.

    Example:
        >>> import jax.numpy as jnp, fedjax_srp as srp
        >>> srp.messages.LowRank(2).num_bits((64, 32), jnp.float32) // 8  # 2 * (64 + 32) values
        768
    """

    rank: Count = 2
    iterations: Annotated[int, AtLeast(0)] = 2
    values: Codec | None = None

    def _matrix(self, shape: tuple[int, ...]) -> tuple[int, int] | None:
        """Rows and columns of the matrix; None for an array that is sent whole."""
        if len(shape) < 2:
            return None
        rows = math.prod(shape[:-1])
        columns = shape[-1]
        is_shorter = self.rank * (rows + columns) < rows * columns
        return (rows, columns) if is_shorter else None

    @override
    def code(self, key: Key, values: Array) -> Array:
        shape = self._matrix(values.shape)
        if shape is None:
            return _coded_by(self.values, key, values)
        matrix = values.astype(_wide(values.dtype)).reshape(shape)
        start = jax.random.normal(
            named_key(key, "start"), (shape[1], self.rank), matrix.dtype
        )

        def times(one: Array, other: Array) -> Array:
            return jnp.matmul(one, other, precision="highest")

        # P <- M Q, orthonormal; Q <- M^T P
        left, _ = jnp.linalg.qr(times(matrix, start))
        right = times(matrix.T, left)
        for _ in range(self.iterations):
            left, _ = jnp.linalg.qr(times(matrix, right))
            right = times(matrix.T, left)

        def sent(name: str, factor: Array) -> Array:
            in_type = factor.astype(values.dtype)
            decoded = _coded_by(self.values, named_key(key, name), in_type)
            return decoded.astype(factor.dtype)

        # M <- P Q^T
        product = times(sent("left", left), sent("right", right).T)
        return product.reshape(values.shape).astype(values.dtype)

    @override
    def contracts(self, shape: tuple[int, ...]) -> bool:
        if self._matrix(shape) is None:
            return _contracts_by(self.values, math.prod(shape))
        # errors of both factors multiply
        return self.values is None or isinstance(self.values, Half)

    @override
    def num_bits(self, shape: tuple[int, ...], dtype: Any) -> int:
        matrix = self._matrix(shape)
        if matrix is None:
            return _bits_by(self.values, shape, dtype)
        rows, columns = matrix
        left = _bits_by(self.values, (rows, self.rank), dtype)
        return left + _bits_by(self.values, (columns, self.rank), dtype)


@part
class ErrorFeedback:
    """A code of uploads that makes up in the next message for what it left out (Seide et al., 2014; Karimireddy et al.,
    2019, Algorithm 2).

    A client adds what its codes have left out so far, e_i, to what it sends, and keeps the difference:
    e_i <- p_i - C(p_i), p_i = message + e_i. It keeps e_i beside its state until it takes part again.

    Args:
        codec: C; it must leave out less than there is (`Codec.contracts`): one that never does is refused here, and one
            that does not for an array of the model when the run begins.

    Example:
        >>> import fedjax_srp as srp
        >>> srp.messages.ErrorFeedback(srp.messages.RandomK(0.1, unbiased=False)).codec.share
        0.1
    """

    remedy: ClassVar[str] = "give e.g. srp.messages.ErrorFeedback(srp.messages.Sign())"

    codec: Codec

    def __post_init__(self) -> None:
        smallest = (1,)
        if not self.codec.contracts(smallest):
            raise ValueError(
                f"codec={self.codec!r}: what it leaves out can be more than there is, so that the error grows; give "
                "more bits, unbiased=False, or no ErrorFeedback"
            )
