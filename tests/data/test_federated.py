"""Examples of a client under transformations of JAX, scaling, types and scores."""

import dataclasses
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from clients import examples
from numpy.testing import assert_allclose, assert_array_equal
from reference.small import refused, simulate

import fedjax_srp as srp
from fedjax_srp.data import FederatedData, from_arrays

COUNTS = (1, 3, 200)
RNG = np.random.default_rng(0)
X = RNG.integers(0, 256, (220, 4, 3))
Y = RNG.integers(0, 5, 220)
# the first 8 are for testing, others belong to no client
ROWS = np.split(8 + RNG.permutation(210)[:204], np.cumsum(COUNTS)[:-1])


def unequal(dtype=np.float32, **options):
    """Return three clients with 1, 3 and 200 training and 1, 1 and 2 test examples."""
    x = X.astype(dtype)
    options |= {"train_indices": ROWS, "test_indices": [[7], [0], [3, 2]]}
    return from_arrays(x, Y, x[:8], Y[:8], num_classes=5, **options)


def test_vmapped_gather_equals_numpy():
    data = unequal()
    many = jax.jit(lambda data, ids: jax.vmap(data.train_client)(ids))(
        data, jnp.array([2, 0, 1], jnp.int32)
    )
    assert many.x.shape == (3, 200, 4, 3)
    assert_array_equal(many.count, [200, 1, 3])
    for slot, client in enumerate((2, 0, 1)):
        own = ROWS[client]
        assert_array_equal(many.x[slot, : len(own)], X[own])
        assert_array_equal(many.y[slot, : len(own)], Y[own])
    test = data.test_client(2)
    assert_array_equal(test.x, X[[3, 2]])
    assert test.y.dtype == test.count.dtype == jnp.int32
    # padded slots of a chunk read a valid client
    assert_array_equal(data.train_client(9).x, many.x[0])


def test_score():
    x = np.eye(4, dtype=np.float32)[[0, 1, 2, 3, 0]]
    y = np.array([0, 1, 2, 0, 1])  # the last two are answered wrongly
    data = from_arrays(x, y, x, y, train_indices=[[0], [1]], test_indices=[[2], [3, 4]])
    scores = [data.score(lambda x: x, data.test_client(i)) for i in (0, 1)]
    assert scores == [(1.0, 1.0), (0.0, 2.0)]
    assert {score.dtype for pair in scores for score in pair} == {jnp.dtype("float32")}
    test = data.test_client(0)._replace(y=jnp.zeros(2, jnp.int32))
    # argmax would be 0
    assert data.score(lambda x: x + jnp.nan, test) == (0.0, 1.0)


@pytest.mark.parametrize(
    "predict", [lambda x: x[:, 0, 0], lambda x: x[:1, 0], lambda x: x[:, 0, :2]]
)
def test_score_refuses_other_shapes(predict):
    data = unequal()
    with refused(r"predict returned outputs of shape .* one row per label"):
        data.score(predict, data.test_client(2))


SCALE = np.array([0.5, 2.0, 1.0])
OFFSET = np.array([1.0, 0.0, -4.0])


@pytest.mark.parametrize(
    ("dtype", "options", "expected"),
    [
        (np.uint8, {}, X.astype(np.float32) * np.float32(1 / 255)),
        (np.uint8, {"offset": -0.5}, X.astype(np.float32) * np.float32(1 / 255) - 0.5),
        (np.uint8, {"scale": SCALE, "offset": OFFSET}, X * SCALE + OFFSET),
        (np.float32, {"scale": SCALE, "offset": OFFSET}, X * SCALE + OFFSET),
        (np.int32, {"offset": 0.5}, X + 0.5),
    ],
)
def test_inputs_are_scaled_where_they_are_gathered(dtype, options, expected):
    data = unequal(dtype, **options)
    assert data.x_train.dtype == dtype
    x, _ = examples(data, 2)
    assert_array_equal(x, expected[ROWS[2]].astype(np.float32), strict=True)
    if options == {}:
        assert x.max() == 1.0


@pytest.mark.parametrize(
    ("dtype", "options", "of_model"),
    [
        (np.int32, {}, np.int32),  # tokens
        (np.float64, {}, np.float32),
        (jnp.bfloat16, {"scale": 2.0}, jnp.bfloat16),
    ],
)
def test_dtypes(dtype, options, of_model):
    assert unequal(dtype, **options).train_client(0).x.dtype == of_model


def test_dtypes_follow_x64():
    with jax.enable_x64(True):
        data = unequal(np.float64, scale=1 / 3, offset=0.1)
        train = data.train_client(2)
        assert train.y.dtype == train.count.dtype == data.train_indices.dtype == jnp.int32
        assert_allclose(train.x, X[ROWS[2]] / 3 + 0.1, rtol=1e-15)
        correct, _ = data.score(lambda x: x.reshape(2, -1), data.test_client(0))
        assert correct.dtype == jnp.float64
        assert unequal(np.float32).train_client(0).x.dtype == jnp.float32


def test_is_a_pytree_and_an_argument():
    data = unequal()
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
    (text,) = traces  # other values do not compile again
    assert text.startswith("FederatedData('arrays', [")


def test_subclasses_are_pytrees_whatever_else_they_inherit():
    class Own(FederatedData, typing.Generic[typing.TypeVar("T")]):
        """Of any kind."""

    class Special(Own[int]):
        """Of one kind."""

    fields = vars(unequal())
    for cls in (Own, Special):
        copy = jax.tree.map(lambda leaf: leaf, cls(**fields))
        assert type(copy) is cls
        assert len(jax.tree.leaves(copy)) == 8


def test_repr():
    data = unequal(name="toy")
    assert repr(data) == (
        "FederatedData('toy', 3 clients, 5 classes, inputs (4, 3) float32, train examples "
        "per client 1/3/200 (min/median/max), test examples per client 1/1/2 "
        "(min/median/max))"
    )
    assert repr(jax.tree.map(lambda _: 0, data)).startswith("FederatedData('toy', [0, 0")


def test_arguments_are_copied():
    memory = np.ones(64 * 8 + 16, np.float32)
    # at a multiple of 64 bytes, which a runtime may use without a copy
    start = -memory.ctypes.data % 64 // 4
    x = memory[start : start + 64 * 8].reshape(64, 8)
    y = np.zeros(64, np.int32)
    data = from_arrays(x, y, x, y, train_indices=[[0]], test_indices=[[1]])
    x[:] = 5.0
    y[:] = 3
    assert data.x_train.max() == 1.0
    assert data.y_train.max() == 0


class Mine(FederatedData):
    """Data of a class outside of the package."""


FEDAVG = srp.algorithms.FedAvg(srp.models.MLP((4, 3), 5, hidden=()))


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ([1, 201, 0], r"^data: train_client\(1\) has count=201 and 200 rows; count is"),
        ([1, 0, -1], r"^data: train_client\(2\) has count=-1 and 200 rows"),
        ([1.0, 2.0, 3.0], r"has float32\[\] as count of train_client; give an int32"),
    ],
)
def test_counts_of_examples_that_a_client_does_not_have_are_refused(counts, message):
    """Rows beyond the last one would be copies of it."""
    data = Mine(**vars(unequal()) | {"train_counts": jnp.array(counts)})
    with refused(message):
        simulate(FEDAVG, data)


def test_own_data_may_be_of_numpy_and_used_inside_of_jit():
    data = Mine(**vars(unequal()))
    of_numpy = dataclasses.replace(data, train_counts=np.asarray(data.train_counts))
    simulate(FEDAVG, of_numpy, num_rounds=1)
    simulation = srp.Simulation(FEDAVG, data)

    @jax.jit
    def cohort_size(key):
        return simulation.step(simulation.init(key))[1].cohort_size

    assert cohort_size(jax.random.key(0)) == 3
