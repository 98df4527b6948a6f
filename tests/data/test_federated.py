"""Examples of a client under transformations of JAX, scaling, types and scores."""

import dataclasses
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.small import refused

import fedjax_srp as srp
from fedjax_srp.data import FederatedData, from_arrays

COUNTS = (1, 3, 200)


def unequal(dtype=np.float32, **kwargs):
    """Return three clients with 1, 3 and 200 training and 1, 1 and 2 test examples; others belong to no client."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (220, 4, 3)).astype(dtype), rng.integers(0, 5, 220)
    rows = np.split(
        8 + rng.permutation(210)[:204], np.cumsum(COUNTS)[:-1]
    )  # the first 8 are for testing
    tests = [[7], [0], [3, 2]]
    data = from_arrays(
        x,
        y,
        x[:8],
        y[:8],
        train_indices=rows,
        test_indices=tests,
        num_classes=5,
        **kwargs,
    )
    return data, x, y, rows


def test_vmapped_gather_equals_numpy():
    data, x, y, rows = unequal()
    examples = jax.jit(lambda data, ids: jax.vmap(data.train_client)(ids))(
        data, jnp.array([2, 0, 1], jnp.int32)
    )
    assert examples.x.shape == (3, 200, 4, 3)
    np.testing.assert_array_equal(examples.count, [200, 1, 3])
    for slot, client in enumerate((2, 0, 1)):
        np.testing.assert_array_equal(examples.x[slot, : COUNTS[client]], x[rows[client]])
        np.testing.assert_array_equal(examples.y[slot, : COUNTS[client]], y[rows[client]])
    test = data.test_client(jnp.int32(2))
    np.testing.assert_array_equal(test.x, x[[3, 2]])
    assert test.y.dtype == test.count.dtype == jnp.int32


def test_score():
    x = np.eye(4, dtype=np.float32)[[0, 1, 2, 3, 0]]
    y = np.array([0, 1, 2, 0, 1])  # the last two are answered wrongly
    data = from_arrays(
        x, y, x, y, train_indices=[[0], [1]], test_indices=[[2], [3, 4]], num_classes=4
    )
    assert data.score(lambda x: x, data.test_client(jnp.int32(0))) == (1.0, 1.0)
    correct, count = data.score(lambda x: x, data.test_client(jnp.int32(1)))
    assert (correct, count) == (0.0, 2.0)
    assert correct.dtype == count.dtype == jnp.float32
    zeros = from_arrays(
        0 * x, 0 * y, x, 0 * y, train_indices=[[0]], test_indices=[[1]], num_classes=4
    )
    assert zeros.score(lambda x: x + jnp.nan, zeros.test_client(jnp.int32(0))) == (
        0.0,
        1.0,
    )  # argmax would be 0


@pytest.mark.parametrize(
    "predict", [lambda x: x[:, 0, 0], lambda x: x[:1, 0], lambda x: x[:, 0, :2]]
)
def test_score_refuses_other_shapes(predict):
    data, *_ = unequal()
    with refused(r"predict returned outputs of shape .* one row per label"):
        data.score(predict, data.test_client(jnp.int32(2)))


def test_uint8_is_normalised_where_it_is_gathered():
    data, x, _, rows = unequal(np.uint8)
    assert data.x_train.dtype == jnp.uint8
    gathered = data.train_client(jnp.int32(2)).x
    assert gathered.dtype == jnp.float32
    np.testing.assert_array_equal(
        gathered, x[rows[2]].astype(np.float32) * np.float32(1 / 255)
    )
    assert float(from_pixels(255)) == 1.0
    assert float(from_pixels(0)) == 0.0
    assert float(from_pixels(255, offset=-0.5)) == 0.5  # divided by 255 all the same


def from_pixels(value, **options):
    x, y = np.full((2, 1), value, np.uint8), np.zeros(2, int)
    data = from_arrays(x, y, x, y, train_indices=[[0]], test_indices=[[1]], **options)
    return data.train_client(jnp.int32(0)).x[0, 0]


def test_scale_and_offset_per_channel():
    scale, offset = np.array([0.5, 2.0, 1.0]), np.array([1.0, 0.0, -4.0])
    data, x, _, rows = unequal(np.uint8, scale=scale, offset=offset)
    expected = x[rows[2]] * scale + offset  # exact: halves
    np.testing.assert_array_equal(data.train_client(jnp.int32(2)).x, expected)
    np.testing.assert_array_equal(
        unequal(scale=scale, offset=offset)[0].train_client(jnp.int32(2)).x, expected
    )


def test_tokens_stay_integers():
    data, *_ = unequal(np.int32)
    assert data.train_client(jnp.int32(0)).x.dtype == jnp.int32
    assert (
        unequal(np.int32, offset=0.5)[0].train_client(jnp.int32(0)).x.dtype == jnp.float32
    )


def test_dtypes_follow_x64():
    assert unequal(np.float64)[0].x_train.dtype == jnp.float32
    assert (
        unequal(jnp.bfloat16, scale=2.0)[0].train_client(jnp.int32(0)).x.dtype
        == jnp.bfloat16
    )
    with jax.enable_x64(True):
        data, x, _, rows = unequal(np.float64, scale=1 / 3, offset=0.1)
        train = data.train_client(jnp.int32(2))
        assert train.x.dtype == jnp.float64
        assert train.y.dtype == train.count.dtype == data.train_indices.dtype == jnp.int32
        np.testing.assert_allclose(train.x, x[rows[2]] / 3 + 0.1, rtol=1e-15)
        assert unequal(np.float32)[0].train_client(jnp.int32(0)).x.dtype == jnp.float32
        assert (
            data.score(lambda x: x.reshape(2, -1), data.test_client(jnp.int32(0)))[
                0
            ].dtype
            == jnp.float64
        )


def test_is_a_pytree_and_an_argument():
    data, *_ = unequal()
    leaves, tree = jax.tree.flatten(data)
    assert len(leaves) == 8  # inputs as they are: neither scale nor offset
    again = jax.tree.unflatten(tree, leaves)
    assert isinstance(again, FederatedData)
    assert (again.name, again.num_classes) == ("arrays", 5)
    traces = []

    @jax.jit
    def first(data, client_id):
        traces.append(repr(data))
        return data.train_client(client_id).y[0]

    first(data, jnp.int32(0))
    first(dataclasses.replace(data, x_train=data.x_train + 1.0), jnp.int32(1))
    assert len(traces) == 1, "other values must not compile again"
    assert traces[0].startswith("FederatedData('arrays', [")


def test_subclasses_are_pytrees_whatever_else_they_inherit():
    class Own(FederatedData, typing.Generic[typing.TypeVar("T")]):
        """Of any kind."""

    class Special(Own[int]):
        """Of one kind."""

    data = unequal()[0]
    for cls in (Own, Special):
        copy = jax.tree.map(lambda leaf: leaf, cls(**vars(data)))
        assert type(copy) is cls
        assert len(jax.tree.leaves(copy)) == len(jax.tree.leaves(data))


def test_ids_past_the_end_are_clipped():
    """Padded slots of a chunk read a valid client."""
    data, *_ = unequal()
    np.testing.assert_array_equal(
        data.train_client(jnp.int32(9)).x, data.train_client(jnp.int32(2)).x
    )


def test_repr():
    data, *_ = unequal(name="toy")
    assert repr(data) == (
        "FederatedData('toy', 3 clients, 5 classes, inputs (4, 3) float32, "
        "train examples per client 1/3/200 (min/median/max), test examples per client 1/1/2 (min/median/max))"
    )
    assert repr(jax.tree.map(lambda _: 0, data)).startswith("FederatedData('toy', [0, 0")


def aligned(size):
    """Return floats at a multiple of 64 bytes, which a runtime may use without a copy."""
    memory = np.zeros(size + 16, np.float32)
    start = -memory.ctypes.data % 64 // 4
    return memory[start : start + size]


def test_arguments_are_copied():
    x, y = aligned(64 * 8).reshape(64, 8), np.zeros(64, np.int32)
    x[:] = 1.0
    data = from_arrays(x, y, x, y, train_indices=[[0]], test_indices=[[1]])
    x[:], y[:] = 5.0, 3
    assert data.x_train.max() == 1.0
    assert data.y_train.max() == 0


class Mine(FederatedData):
    """Data of a class outside of the package."""


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        (
            [1, 201, 0],
            r"^data: train_client\(1\) has count=201 and 200 rows; count is how many of the first rows are ex",
        ),
        ([1, 0, -1], r"^data: train_client\(2\) has count=-1 and 200 rows"),
        (
            [1.0, 2.0, 3.0],
            r"data set 'arrays' has float32\[\] as count of train_client; give an int32 number",
        ),
    ],
)
def test_counts_of_examples_that_a_client_does_not_have_are_refused(counts, words):
    """Rows beyond the last one would be copies of it."""
    data = Mine(**vars(unequal()[0]) | {"train_counts": jnp.array(counts)})
    algorithm = srp.algorithms.FedAvg(srp.models.MLP((4, 3), 5, hidden=()))
    with refused(words):
        srp.simulate(algorithm, data, num_rounds=1, key=jax.random.key(0), progress=False)


def test_own_data_may_be_of_numpy_and_used_inside_of_jit():
    data = Mine(**vars(unequal()[0]))
    of_numpy = dataclasses.replace(data, train_counts=np.asarray(data.train_counts))
    algorithm = srp.algorithms.FedAvg(srp.models.MLP((4, 3), 5, hidden=()))
    srp.simulate(algorithm, of_numpy, num_rounds=1, key=jax.random.key(0), progress=False)
    simulation = srp.Simulation(algorithm, data)
    assert (
        jax.jit(lambda key: simulation.step(simulation.init(key))[1].cohort_size)(
            jax.random.key(0)
        )
        == 3
    )
