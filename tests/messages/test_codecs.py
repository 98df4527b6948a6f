"""Codecs: bits by hand, codes against NumPy, unbiased ones by their statistics."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from reference.small import KEY

from fedjax_srp.messages import (
    ErrorFeedback,
    Half,
    LowRank,
    Quantized,
    RandomK,
    Sign,
    TopK,
)
from fedjax_srp.messages.by_name import read_codec

MATRIX = jax.random.normal(KEY, (12, 5))
CODECS = [
    Half(),
    Half("float16"),
    Quantized(2),
    Quantized(4, scale="l2", bucket=7),
    Sign(),
    TopK(0.2),
    TopK(0.2, values=Quantized(3)),
    RandomK(0.2),
    RandomK(0.2, unbiased=False),
    LowRank(1),
    LowRank(1, values=Half()),
]


def coded(codec, values, key=KEY):
    return np.asarray(codec.code(key, jnp.asarray(values)))


@pytest.mark.parametrize(
    ("codec", "bits"),
    [
        (Half(), 60 * 16),
        (Quantized(8), 60 * 8 + 32),
        (Quantized(4, bucket=7), 60 * 4 + 9 * 32),  # 60 = 8 * 7 + 4
        (Sign(), 60 + 32),
        (TopK(0.05), 3 * (32 + 6)),  # 60 < 2^6
        (TopK(0.051), 4 * (32 + 6)),
        (TopK(0.5), 30 * 32 + 60),  # a map of 60 bits is shorter than 30 positions
        (TopK(1.0), 60 * 32),
        (TopK(0.05, values=Quantized(4)), 3 * (4 + 6) + 32),
        (RandomK(0.05), 3 * 32 + 3 * 6),
        (RandomK(0.3), 18 * 32 + 60),
        (LowRank(2), 2 * (12 + 5) * 32),
        (LowRank(2, values=Half()), 2 * (12 + 5) * 16),
        (LowRank(4), 60 * 32),  # 4 * (12 + 5) values are no fewer
    ],
    ids=repr,
)
def test_bits_of_a_matrix_are_those_counted_by_hand(codec, bits):
    assert codec.num_bits((12, 5), np.float32) == bits


def test_bits_of_a_large_array_and_of_other_types():
    assert RandomK(0.1).num_bits((1000,), np.float32) == 100 * 32 + 64  # a seed
    assert Half().num_bits((10,), np.float16) == 10 * 16
    assert Sign().num_bits((10,), np.float64) == 10 + 64
    assert LowRank(1).num_bits((3, 3, 4, 8), np.float32) == (36 + 8) * 32
    assert LowRank(1).num_bits((9,), np.float32) == 9 * 32


@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_codes_keep_shape_and_type_and_zeros_and_show_nan(codec):
    for shape, dtype in (
        ((12, 5), jnp.float32),
        ((12, 5), jnp.bfloat16),
        ((1,), jnp.float32),
    ):
        values = jax.ShapeDtypeStruct(shape, dtype)
        assert jax.eval_shape(codec.code, KEY, values) == values
    assert not coded(codec, np.zeros((12, 5), np.float32)).any()
    if not isinstance(codec, RandomK):  # which may leave it out
        assert np.isnan(coded(codec, np.full((12, 5), np.nan, np.float32))).any()


@pytest.mark.parametrize(
    "codec",
    [
        Quantized(3),
        Quantized(2, scale="l2"),
        Quantized(3, bucket=16),
        RandomK(0.2),
        RandomK(0.5, values=Quantized(3)),
    ],
    ids=repr,
)
def test_unbiased_codes_have_the_array_as_their_mean(codec):
    keys = jax.random.split(KEY, 4000)
    codes = np.asarray(jax.vmap(codec.code, (0, None))(keys, MATRIX), np.float64)
    error = codes.std(0) / np.sqrt(len(keys))
    assert (error > 0).mean() > 0.8  # largest entries are exact
    assert (np.abs(codes.mean(0) - MATRIX) < 5 * error + 1e-6).all()


def test_quantized_values_are_the_two_levels_beside_them():
    levels = 7 / np.abs(MATRIX).max()  # 4 bits: a sign, and levels from 0 to 7
    code = coded(Quantized(4), MATRIX) * levels
    np.testing.assert_allclose(code, np.rint(code), atol=1e-4)
    assert np.abs(code - MATRIX * levels).max() < 1.001
    norm = np.linalg.norm(MATRIX)
    code = coded(Quantized(4, scale="l2"), MATRIX) * (7 / norm)
    np.testing.assert_allclose(code, np.rint(code), atol=1e-4)


def test_largest_entries_are_kept():
    flat = np.asarray(MATRIX).reshape(-1)
    kept = np.argsort(-np.abs(flat))[:12]
    expected = np.zeros(60, np.float32)
    expected[kept] = flat[kept]
    np.testing.assert_array_equal(coded(TopK(0.2), MATRIX).reshape(-1), expected)
    both = coded(TopK(0.2, values=Sign()), MATRIX).reshape(-1)
    expected[kept] = np.sign(flat[kept]) * np.abs(flat[kept]).mean()
    np.testing.assert_allclose(both, expected, rtol=1e-6)


def test_random_entries_are_uniform_and_without_replacement():
    keys = jax.random.split(KEY, 3000)
    code = jax.vmap(RandomK(0.2, unbiased=False).code, (0, None))(keys, MATRIX)
    is_kept = np.asarray(code != 0).reshape(len(keys), 60)
    assert (is_kept.sum(1) == 12).all()
    error = np.sqrt(0.2 * 0.8 / len(keys))
    assert np.abs(is_kept.mean(0) - 0.2).max() < 5 * error


def test_signs_halves_and_the_l1_scale_are_those_of_numpy():
    values = np.asarray(MATRIX)
    expected = np.where(values >= 0, 1, -1) * np.abs(values).mean()
    np.testing.assert_allclose(coded(Sign(), values), expected, rtol=1e-6)
    tiny = np.array([3e-5, -6e-8, 2e-8, 6.2e-5], np.float32)  # subnormals of float16
    values = np.concatenate([values.reshape(-1), tiny])
    for kind, dtype in (("bfloat16", ml_dtypes.bfloat16), ("float16", np.float16)):
        rounded = values.astype(dtype).astype(np.float32)
        np.testing.assert_array_equal(coded(Half(kind), values), rounded)


def test_low_rank_is_exact_for_such_matrices_and_near_the_truncated_decomposition():
    rng = np.random.default_rng(0)
    low = rng.normal(size=(20, 2)) @ rng.normal(size=(2, 9))
    np.testing.assert_allclose(coded(LowRank(2), low.astype(np.float32)), low, atol=1e-4)
    kernel = (low + 0.3 * rng.normal(size=low.shape)).astype(np.float32)
    best = np.sqrt((np.linalg.svd(kernel, compute_uv=False)[2:] ** 2).sum())
    code = coded(LowRank(2, iterations=4), kernel.reshape(4, 5, 9)).reshape(20, 9)
    assert np.linalg.norm(code - kernel) < 1.02 * best


def test_factors_have_the_type_of_the_array():
    kernel = jax.random.normal(KEY, (40, 30), jnp.bfloat16)
    code = LowRank(2).code(KEY, kernel)
    as_wide = LowRank(2).code(KEY, kernel.astype(jnp.float32)).astype(jnp.bfloat16)
    assert (code != as_wide).any()  # rounded factors


@pytest.mark.parametrize(
    "codec", [Quantized(2), Quantized(2, scale="l2"), Quantized(3, bucket=16)], ids=repr
)
@pytest.mark.parametrize("size", [2, 8, 400, 10_000])
def test_codes_that_contract_are_nearer_than_zeros(codec, size):
    errors = []
    for seed in range(20):
        values = jax.random.normal(jax.random.key(seed), (size,))
        error = coded(codec, values) - np.asarray(values)
        errors.append(np.sum(error**2) / np.sum(np.asarray(values) ** 2))
    if codec.contracts((size,)):
        assert np.mean(errors) < 1
    if np.mean(errors) > 1:
        assert not codec.contracts((size,))


def test_a_text_gives_the_codec_of_its_constructor():
    text = "ErrorFeedback(TopK(0.01, values=quantized(4)))"
    expected = ErrorFeedback(TopK(0.01, values=Quantized(4)))
    assert read_codec("up", text) == expected
    assert read_codec("up", "half") == Half()
    assert read_codec("up", "None") is None
