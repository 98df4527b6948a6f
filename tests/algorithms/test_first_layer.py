"""Training the first dense layer in the span of a client's examples: equal results, and when it is chosen."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_srp as srp
from fedjax_srp.algorithms import local
from fedjax_srp.base import Examples
from fedjax_srp.driver import programs as program
from fedjax_srp.models import dense

DIM, CAPACITY = 12, 9
MODEL = srp.models.MLP((3, 4), 3, hidden=(5, 4), dtype=jnp.float64)
HEAVY = srp.SGD(0.2, momentum=0.5, weight_decay=0.1)


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def both(monkeypatch):
    """Run a function with the first layer trained in the span and without; return both results."""

    def run(function):
        found, times = [], []
        for is_in in (True, False):
            program._jitted.cache_clear()
            entered = []

            def decide(loss, params, examples, training, is_in=is_in, entered=entered):
                is_meant = (
                    is_in
                    and isinstance(loss, local.ModelLoss)
                    and not isinstance(examples.x, dense.Inputs)
                )
                layer = loss.model.first_dense if is_meant else None
                if layer is None or local.kernel_of(layer, params) is None:
                    return None
                entered.append(layer)
                return layer

            monkeypatch.setattr(local, "layer_in_span", decide)
            found.append(function())
            times.append(len(entered))
        assert times[0] > 0 == times[1]
        return found

    yield run
    program._jitted.cache_clear()


def assert_close(found):
    within, plain = found
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-12), within, plain
    )
    return plain


def of_client(count=7, padding=0.0):
    rng = np.random.default_rng(count)
    x = np.where(
        (np.arange(CAPACITY) < count)[:, None, None],
        rng.normal(size=(CAPACITY, 3, 4)),
        padding,
    )
    return Examples(
        jnp.asarray(x), jnp.asarray(rng.integers(0, 3, CAPACITY)), jnp.int32(count)
    )


def trained(optimizer=HEAVY, count=7, padding=0.0, work=1, model=MODEL, **how):
    training = (
        srp.Training(optimizer, batch_size=4, **how)
        .alone()
        ._replace(record_loss=True, work=work)
    )
    start = model.init(jax.random.key(1))
    examples = of_client(count, padding)
    examples = examples._replace(x=examples.x.astype(model.dtype))
    loss = local.example_loss(model)
    return start, local.local_sgd(jax.random.key(2), loss, start, (), examples, training)


@pytest.mark.parametrize(
    "optimizer",
    [srp.SGD(0.2), HEAVY, srp.SGD(lambda step: 0.3 / (1.0 + step.astype(float)))],
)
@pytest.mark.parametrize("how", [{"epochs": 3}, {"epochs": None, "steps": 5}])
def test_the_results_agree(both, optimizer, how):
    start, result = assert_close(both(lambda: trained(optimizer, **how)))
    assert (
        np.abs(
            result.params.representation["fc1"]["kernel"]
            - start.representation["fc1"]["kernel"]
        ).max()
        > 1e-2
    )


@pytest.mark.parametrize(("count", "work"), [(0, 1), (7, 0)])
def test_a_client_without_examples_or_work_is_unchanged(both, count, work):
    for start, result in both(lambda: trained(count=count, work=work, epochs=2)):
        jax.tree.map(np.testing.assert_array_equal, result.params, start)


@pytest.mark.parametrize("optimizer", [srp.SGD, lambda rate: srp.SGD(rate, momentum=0.5)])
def test_a_step_size_of_higher_precision_leaves_the_types_of_the_parameters(
    both, optimizer
):
    """A function of the round returns such a step size."""
    model = dataclasses.replace(MODEL, dtype=jnp.float32)
    with jax.numpy_dtype_promotion("standard"):
        within, plain = both(
            lambda: trained(
                optimizer(jnp.asarray(0.2, jnp.float64)), model=model, epochs=2
            )
        )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-5), within, plain
    )
    assert {leaf.dtype for leaf in jax.tree.leaves(within[1].params)} == {
        np.dtype("float32")
    }


def test_padding_is_never_read(both):
    clean, dirty = (
        both(lambda padding=padding: trained(padding=padding, epochs=2))
        for padding in (0.0, np.nan)
    )
    jax.tree.map(np.testing.assert_array_equal, clean, dirty)


def federation():
    counts = [9, 4, 7, 1]
    places = np.split(np.arange(sum(counts)), np.cumsum(counts)[:-1])
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(sum(counts), 3, 4)), rng.integers(0, 3, sum(counts))
    return srp.data.from_arrays(
        x, y, x + 0.1, y, train_indices=places, test_indices=places, num_classes=3
    )


@pytest.mark.short("fedrep-cpu", "lg_fedavg-cpu", "fedavg-gpu")
@pytest.mark.parametrize(
    ("name", "platform"),
    [
        ("fedavg", "cpu"),
        ("fedrep", "cpu"),
        ("lg_fedavg", "cpu"),
        ("fedbabu", "cpu"),
        ("fedavg", "gpu"),
    ],
)
def test_rounds_are_the_same(both, name, platform, monkeypatch):
    """Clients of several sizes under a vmap: the representation alone, all layers, a personal first layer.

    On a CPU clients are trained one by one, on a GPU as a batch.
    """
    monkeypatch.setattr(local, "platform", lambda: platform)
    data = federation()
    options = {
        "dataset": data,
        "model": MODEL,
        "epochs": 2,
        "batch_size": 4,
        "learning_rate": 0.1,
        "momentum": 0.5,
    }
    method = srp.methods.get(name, **options)

    def run():
        given = {
            "num_rounds": 3,
            "record_loss": True,
            "evaluations": (),
            "devices": 1,
            "keep_clients": True,
        }
        end = srp.simulate(method, data, key=jax.random.key(1), progress=False, **given)
        return end.server_state, end.client_states, end.metrics["training_loss"]

    assert_close(both(run))


@pytest.mark.parametrize("derivative", [jax.jacfwd, jax.grad])
def test_derivatives_of_rounds_are_the_same(both, derivative):
    data = federation()

    def final(rate):
        training = srp.Training(srp.SGD(rate, momentum=0.5), batch_size=4, epochs=2)
        algorithm = srp.algorithms.FedAvg(MODEL, training)
        simulation = srp.Simulation(
            algorithm, data, record_loss=True, reverse_mode=derivative is jax.grad
        )
        state, info = simulation.step(simulation.init(jax.random.key(0)))
        return (
            info.metrics["training_loss"]
            + state.server.params.representation["fc1"]["kernel"].sum()
        )

    slope = assert_close(both(lambda: jax.jit(derivative(final))(0.1)))
    assert abs(slope) > 1e-3


def large(**changes):
    return dataclasses.replace(srp.models.MLP((28, 28), 10), **changes)


def chosen(model, capacity=150, dtype=jnp.float32, **how):
    params = jax.eval_shape(model.init, jax.random.key(0))
    of_type = jax.ShapeDtypeStruct
    examples = Examples(
        of_type((capacity, 28, 28), dtype),
        of_type((capacity,), jnp.int32),
        of_type((), jnp.int32),
    )
    training = srp.Training(**how).alone()
    return local.layer_in_span(local.example_loss(model), params, examples, training)


def test_it_is_chosen_where_it_is_faster():
    assert chosen(large()) == "fc1"
    assert chosen(large(cut=None), epochs=None, steps=75) == "fc1"
    assert chosen(large(), 480) is None  # it needs more products than it saves
    assert chosen(large(), 480, epochs=5) == "fc1"
    assert chosen(large(), batch_size=50) is None
    assert chosen(large(hidden=(8,))) is None  # the weights fit into the cache anyway


def test_a_gradient_has_the_rows_of_its_batch_alone():
    kernel = dense.Kernel(jnp.ones((1, 1)), jnp.ones((100, 3)))
    objective = lambda kernel, weights: (
        jnp.sum(weights[:, None] * kernel.moved) + 5 * kernel.scale.sum()
    )
    found = dense.gradient_in_span(objective, kernel, jnp.array([1.0, 2.0]))
    np.testing.assert_array_equal(found.rows, [[1, 1, 1], [2, 2, 2]])
    moved = dense.apply_updates(kernel, found, jnp.array([7, 7])).rows
    np.testing.assert_array_equal(moved[7], [4, 4, 4])
    assert (np.delete(moved, 7, axis=0) == 1).all()


def test_on_a_gpu_it_is_chosen_where_it_moves_less(monkeypatch):
    monkeypatch.setattr(local, "platform", lambda: "gpu")
    momentum, decay = (
        srp.SGD(0.1, momentum=0.5),
        srp.SGD(0.1, momentum=0.5, weight_decay=1e-4),
    )
    assert chosen(large()) == chosen(large(), batch_size=50, epochs=5) == "fc1"
    assert chosen(large(hidden=(8,))) is None  # X and X X^T are more than it saves
    assert chosen(large(), batch_size=150) is None  # one step, and both ends
    assert chosen(large(), batch_size=2**30) is None
    assert (
        chosen(large(), batch_size=150, epochs=20)
        == chosen(large(), batch_size=2**30, epochs=20)
        == "fc1"
    )
    assert chosen(large(), 480) == chosen(large(), 480, epochs=5) == "fc1"
    assert (
        chosen(large(), 2400, epochs=5) is None
    )  # 2,400 rows are more than three times 784
    assert (
        chosen(large(), 480, epochs=5, optimizer=momentum)
        == chosen(large(), 480, optimizer=momentum)
        == "fc1"
    )
    assert chosen(large(), 720, optimizer=decay) is None
    monkeypatch.setattr(local, "platform", lambda: "tpu")
    assert chosen(large()) is None


@srp.part
class Doubled(srp.models.MLP):
    """A model with its own `represent`."""

    def represent(self, representation, x, key=None):
        """Features of twice the input."""
        return super().represent(representation, 2 * x, key)


def precise():
    return srp.models.Split(
        (28, 28),
        10,
        [srp.models.Layer("out", srp.models.Dense(512, precision="high"))],
        cut=None,
    )


@srp.part
class OtherSGD(srp.SGD):
    """A subclass, which may step otherwise."""


class OtherDense(srp.models.Dense):
    """A subclass, which may compute something else."""


def of_other_layers():
    return srp.models.Split(
        (28, 28), 10, [srp.models.Layer("out", OtherDense(512))], cut=None
    )


def test_a_nested_layer_of_that_name_is_not_taken():
    inner = {"block": {"fc1": {"kernel": jnp.ones((2, 2))}}}
    assert dense.kernel_of("fc1", inner) is None
    assert dense.kernel_of(
        "fc1", srp.models.SplitParams(inner, {"fc1": {"kernel": jnp.ones((3, 2))}})
    ).shape == (3, 2)


OTHERS = {
    "own layer": (of_other_layers(), {}),
    "own SGD": (large(), {"optimizer": OtherSGD(0.1)}),
    "augmented": (large(augment=lambda key, x: -x), {}),
    "own represent": (Doubled((28, 28), 10), {}),
    "own precision": (precise(), {}),
    "a convolution": (srp.models.LeNet5((28, 28), 10), {}),
    "other inputs": (large(), {"dtype": jnp.bfloat16}),
    "another optimizer": (
        large(),
        {"optimizer": srp.optimizer(optax.adam, learning_rate=1e-3)},
    ),
}


@pytest.mark.parametrize(("model", "how"), OTHERS.values(), ids=OTHERS)
def test_other_layers_inputs_and_optimizers_are_trained_plainly(model, how):
    assert chosen(large(), 60, epochs=5) == "fc1"
    assert chosen(model, 60, epochs=5, **how) is None


def test_other_losses_and_gradients_are_trained_plainly(monkeypatch):
    """A user's own loss or gradient may read the weights."""
    params, examples = MODEL.init(jax.random.key(0)), of_client()
    loss, how = local.example_loss(MODEL), srp.Training(batch_size=4).alone()
    asked = []
    monkeypatch.setattr(local, "layer_in_span", lambda loss, *_: asked.append(loss))
    local.local_sgd(jax.random.key(1), loss, params, (), examples, how)
    assert asked == [loss]
    for given in (
        {
            "gradient": lambda objective, params, weights: local.plain_gradient(
                objective, params, weights
            )
        },
        {"after_step": lambda params: params},
        {"optimizer_state": how.optimizer.init(params)},
    ):
        local.local_sgd(jax.random.key(1), loss, params, (), examples, how, **given)
    assert asked == [loss]
    monkeypatch.undo()
    own = lambda *arguments: loss(*arguments)
    assert local.layer_in_span(own, params, examples, how) is None


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="of programs for CPUs")
def test_features_and_span_share_their_product():
    """FedRep computes X W0 once a client: XLA finds that the features of the head's training have it too."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 28, 28)).astype(np.float32), rng.integers(0, 3, 60)
    places = np.split(np.arange(60), 3)
    data = srp.data.from_arrays(x, y, x + 1, y, train_indices=places, test_indices=places)
    algorithm = srp.algorithms.FedRep(
        large(num_classes=3, hidden=(64,)), srp.Training(batch_size=4)
    )
    simulation = srp.Simulation(algorithm, data, chunk_size=1)
    state = jax.eval_shape(simulation.init, jax.random.key(0))
    lines = jax.jit(simulation.step).lower(state).compile().as_text().splitlines()
    assert (
        len(
            [
                line
                for line in lines
                if "dot(" in line and "f32[20,64]" in line.partition("dot(")[0]
            ]
        )
        == 1
    )
