"""Training the first dense layer in the span of a client's examples; orders of examples; submodels."""

import dataclasses
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from engine.counted import LENET
from reference.small import KEY, model
from test_reference import check

import fedjax_srp as srp
from fedjax_srp import Examples
from fedjax_srp.algorithms import local
from fedjax_srp.algorithms.local import random_order
from fedjax_srp.driver import programs as program
from fedjax_srp.models import dense
from fedjax_srp.models.narrow import narrow_model, unit_masks

CAPACITY = 9
MODEL = srp.models.MLP((3, 4), 3, hidden=(5, 4), dtype=jnp.float64)
HEAVY = srp.SGD(0.2, momentum=0.5, weight_decay=0.1)


@pytest.fixture
def both(monkeypatch, float64):
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


@pytest.mark.short("how0-optimizer1", "how1-optimizer0")
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


@pytest.mark.short("grad")
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


def test_it_is_chosen_where_it_is_faster(monkeypatch):
    assert chosen(large()) == "fc1"
    assert chosen(large(), 480) is None  # it needs more products than it saves
    assert chosen(large(), 480, epochs=5) == "fc1"
    assert chosen(large(hidden=(8,))) is None  # the weights fit into the cache anyway
    monkeypatch.setattr(local, "platform", lambda: "gpu")
    assert chosen(large(), 480) == "fc1"
    assert chosen(large(), batch_size=150) is None  # one step, and both ends
    assert chosen(large(), batch_size=150, epochs=20) == "fc1"
    monkeypatch.setattr(local, "platform", lambda: "tpu")
    assert chosen(large()) is None


@srp.part
class Doubled(srp.models.MLP):
    """A model with its own `represent`."""

    def represent(self, representation, x, key=None):
        """Features of twice the input."""
        return super().represent(representation, 2 * x, key)


OTHERS = {
    "augmented": (large(augment=lambda key, x: -x), {}),
    "own represent": (Doubled((28, 28), 10), {}),
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


@pytest.mark.usefixtures("float64")
def test_other_losses_and_gradients_are_trained_plainly(monkeypatch):
    """A user's own loss or gradient may read the weights."""
    params, examples = MODEL.init(jax.random.key(0)), of_client()
    loss, how = local.example_loss(MODEL), srp.Training(batch_size=4).alone()
    asked = []
    monkeypatch.setattr(local, "layer_in_span", lambda loss, *_: asked.append(loss))
    local.local_sgd(jax.random.key(1), loss, params, (), examples, how)
    assert asked == [loss]
    given = {"after_step": lambda params: params}
    local.local_sgd(jax.random.key(1), loss, params, (), examples, how, **given)
    assert asked == [loss]
    monkeypatch.undo()
    own = lambda *arguments: loss(*arguments)
    assert local.layer_in_span(own, params, examples, how) is None


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="of programs for CPUs")
def test_features_and_span_share_their_product():
    """FedRep computes X W0 once a client: XLA finds that the features of the head's training have it too."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 28, 28)).astype(np.float32)
    y = rng.integers(0, 3, 60)
    places = np.split(np.arange(60), 3)
    data = srp.data.from_arrays(x, y, x + 1, y, train_indices=places, test_indices=places)
    net = large(num_classes=3, hidden=(64,))
    algorithm = srp.algorithms.FedRep(net, srp.Training(batch_size=4))
    simulation = srp.Simulation(algorithm, data, chunk_size=1)
    state = jax.eval_shape(simulation.init, jax.random.key(0))
    text = jax.jit(simulation.step).lower(state).compile().as_text()
    assert len(re.findall(r"= f32\[20,64\]\S* dot\(", text)) == 1


@pytest.mark.parametrize("capacity", [9, 1024, 1025])
def test_an_order_is_a_permutation_of_the_examples_and_padding_comes_after(capacity):
    shuffled = jax.jit(lambda count: random_order(KEY, count, 4, capacity))
    for count in (1, 7, 9, capacity):
        order = np.asarray(shuffled(jnp.int32(count)))
        assert len(order) == -(-capacity // 4) * 4
        assert sorted(order[:count]) == list(range(count))
        assert sorted(order[count:capacity]) == list(range(count, capacity))


@pytest.mark.parametrize("capacities", [(9, 800), (1025, 2000)])
def test_an_order_does_not_depend_on_padding(capacities):
    orders = [
        np.asarray(random_order(KEY, jnp.int32(9), 4, capacity))[:9].tolist()
        for capacity in capacities
    ]
    assert all(order == orders[0] for order in orders)


@pytest.mark.parametrize("capacity", [9, 1500])
def test_an_order_is_the_same_in_float64(capacity):
    expected = random_order(KEY, jnp.int32(7), 4, capacity)
    with jax.enable_x64(True):
        np.testing.assert_array_equal(
            random_order(KEY, jnp.int32(7), 4, capacity), expected
        )


@pytest.mark.parametrize("capacity", [5, 1030])
def test_every_example_is_equally_often_in_every_place(capacity):
    draws = 6000
    keys = jax.random.split(KEY, draws)
    orders = np.asarray(
        jax.jit(jax.vmap(lambda key: random_order(key, jnp.int32(5), 1, capacity)[:5]))(
            keys
        )
    )
    shares = (orders[:, :, None] == np.arange(5)).mean(axis=0)
    assert np.abs(shares - 0.2).max() < 5 * np.sqrt(0.2 * 0.8 / draws)


@pytest.mark.usefixtures("float64")
def test_blocks_of_examples_change_nothing_in_fedsgd(monkeypatch):
    monkeypatch.setattr(sys.modules["fedjax_srp.algorithms.fedsgd"], "AT_ONCE", 4)
    program._jitted.cache_clear()  # its keys do not contain the size of blocks
    check("fedsgd", "heavy")


@pytest.mark.parametrize(
    "rate", [0.05, 0.28, 0.6, 1.0]
)  # 0.28 * 25 > 7, and 0.6 * 25 > 15 in float32
def test_a_narrow_model_has_the_parameters_that_the_mask_keeps(rate):
    cnn = srp.models.CNN((8, 8, 3), 4, channels=(3,) * 6, hidden=(10, 7))
    for net in (model(hidden=(9, 4, 25)), LENET, cnn):
        params = jax.tree.map(
            lambda w: np.zeros(w.shape, w.dtype), jax.eval_shape(net.init, KEY)
        )
        masks = unit_masks(net.layer_names, params, jnp.asarray(rate), jnp.int32(0))
        narrow = jax.eval_shape(narrow_model(net, rate).init, KEY)
        assert [int(np.sum(m)) for m in jax.tree.leaves(masks)] == [
            w.size for w in jax.tree.leaves(narrow)
        ]


@pytest.mark.short("0.5")
@pytest.mark.parametrize("rate", [0.25, 0.5])
def test_units_that_are_left_out_never_matter(rate):
    """Huge parameters of other units change no logit, in convolutions and in dense layers above flattened channels."""
    net = srp.models.LeNet5((16, 16, 1), 3, channels=(4, 8), hidden=(6, 5))
    params = net.init(KEY)
    masks = unit_masks(net.layer_names, params, jnp.asarray(rate), jnp.int32(3))
    kept = [int(m["bias"].sum()) for part in masks for m in part.values()]
    assert kept == [*(int(np.ceil(rate * width)) for width in (4, 8, 6, 5)), 3]
    x = jax.random.normal(KEY, (2, 16, 16, 1))
    huge = jax.tree.map(lambda w, m: jnp.where(m > 0, w, 1e3), params, masks)
    logits_of = jax.jit(net.logits)
    logits = [logits_of(jax.tree.map(jnp.multiply, p, masks), x) for p in (params, huge)]
    np.testing.assert_array_equal(*logits)
