"""DepthFL and the sliding window against layers that are cut out of NumPy arrays."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from algorithm_table import with_batch_norm
from parts_of_models import NUM_ROUNDS, SGD, clients, participants, policy, training
from reference import depth
from reference.small import KEY, Run, assert_close, federation, model, refused, scripted
from setting import by_layer, flat

import fedjax_srp as srp

HIDDEN, ENDS, LAST = ["fc1", "fc2", "fc3"], ["fc1", "fc2"], "out"
DEEP = {"hidden": (7, 5, 4)}
RAMP = 2


def together(server, split_model):
    """Return the layers of a model and of its classifiers, by name."""
    exits = {f"exit {name}": layer for name, layer in server.exits.items()}
    return by_layer(split_model, *server.params) | jax.tree.map(np.asarray, exits)


@pytest.mark.short("num_examples-*")
@pytest.mark.parametrize("name", ["depthfl", "sliding_window"])
@pytest.mark.parametrize("weighting", ["uniform", "num_examples"])
def test_blocks_are_cut_out_trained_and_put_back(name, weighting):
    with jax.enable_x64(True):
        of_clients = clients()
        split_model = model(dtype=jnp.float64, **DEEP)
        if name == "depthfl":
            algorithm = srp.algorithms.DepthFL(
                split_model, training(weighting), distillation=3.0, ramp_rounds=RAMP
            )
        else:
            algorithm = srp.algorithms.SlidingWindow(split_model, training(weighting))
        run = Run(algorithm, federation(of_clients), policy())
        params = together(run.host_state().server, split_model)
        assert {*params} == {*HIDDEN, LAST, *(f"exit {end}" for end in ENDS)}
        untouched = 0
        for t in range(NUM_ROUNDS):
            parts, weights = [], []
            for each in participants(t, of_clients, weighting):
                blocks = min(each.work, 3)
                examples = each.x, each.y, each.rows, SGD
                layers = params, ENDS, HIDDEN, LAST
                if name == "depthfl":
                    of_others = depth.weight_of_others(3.0, t, RAMP)
                    part = depth.depth_client(*layers, blocks, of_others, *examples)
                else:
                    first = t % (3 - blocks + 1)
                    part = depth.window_client(*layers, first, blocks, *examples)
                parts.append(part)
                weights.append(each.weight)
            new = depth.averaged(params, parts, weights)
            untouched += sum(new[layer] is params[layer] for layer in new)
            params = new
            run.rounds()
            assert_close(together(run.host_state().server, split_model), params, 1e-9)
        assert untouched > 0  # in the second round nobody trains the last block


def clipped(learning_rate, max_norm):
    return optax.chain(optax.clip_by_global_norm(max_norm), optax.sgd(learning_rate))


@pytest.mark.parametrize("cls", [srp.algorithms.DepthFL, srp.algorithms.SlidingWindow])
def test_a_clip_measures_the_gradient_of_a_clients_part_alone(cls):
    """One client takes one step a round, of the length that the clip leaves it."""
    optimizer = srp.optimizer(clipped, learning_rate=0.3, max_norm=0.01)
    algorithm = cls(model(**DEEP), srp.Training(optimizer, batch_size=99, epochs=1))
    run = Run(algorithm, federation(clients(np.float32)), scripted([[2]], [1], [[1]]))
    for _ in range(3):  # the window moves from the first block to the last
        before = run.host_state().server
        run.rounds()
        after = run.host_state().server
        step = np.linalg.norm(flat(after) - flat(before))
        np.testing.assert_allclose(step, 0.3 * 0.01, rtol=1e-3)


def test_the_ensemble_is_the_mean_of_the_logits():
    split_model = model(**DEEP)
    algorithm = srp.algorithms.DepthFL(split_model)
    data = federation(clients(np.float32))
    server = algorithm.init(KEY, data)
    examples = data.train_client(jnp.int32(2))
    assert next(iter(algorithm.evaluations)) == "ensemble"
    predict = algorithm.evaluations["ensemble"](KEY, server, (), examples)
    layers, h, logits = together(server, split_model), np.asarray(examples.x), []
    for name in HIDDEN:
        h = np.maximum(h @ layers[name]["kernel"] + layers[name]["bias"], 0)
        classifier = layers[f"exit {name}" if name in ENDS else LAST]
        logits.append(h @ classifier["kernel"] + classifier["bias"])
    np.testing.assert_allclose(predict(examples.x), np.mean(logits, axis=0), rtol=1e-5)


def test_a_classifier_reads_the_mean_of_an_images_pixels():
    layers = [
        srp.models.Layer("conv", nn.Conv(2, (1, 1)), nn.relu),
        srp.models.Layer("out", srp.models.Dense(4)),
    ]
    algorithm = srp.algorithms.DepthFL(
        srp.models.Split((3, 3, 1), 4, layers), exits=("conv",)
    )
    server = algorithm.init(KEY, None)
    x = np.linspace(-1, 1, 45, dtype=np.float32).reshape(5, 3, 3, 1)
    of_both = algorithm.evaluations["ensemble"](KEY, server, (), ())(x)
    of_last = algorithm.evaluations["global"](KEY, server, (), ())(x)
    conv = jax.device_get(server.params.representation["conv"])
    pixels = np.maximum(x @ conv["kernel"][0, 0] + conv["bias"], 0)
    classifier = jax.device_get(server.exits["conv"])
    first = pixels.mean(axis=(1, 2)) @ classifier["kernel"] + classifier["bias"]
    np.testing.assert_allclose(2 * of_both - of_last, first, rtol=1e-5, atol=1e-6)


def test_classifiers_begin_as_pytorchs_where_the_model_does():
    net = srp.models.MLP((6,), 4, hidden=(9, 5), initialization="torch")
    exits = srp.algorithms.DepthFL(net).init(KEY, None).exits
    for leaf in exits["fc1"].values():  # uniform, biases too
        assert 0.5 < np.abs(leaf).max() * np.sqrt(9) <= 1


def test_one_block_is_trained_under_the_noise_and_augmentation_of_fedavg():
    layers = [
        srp.models.Layer("fc", nn.Dense(5), nn.relu, srp.models.Dropout(0.5)),
        srp.models.Layer("out", nn.Dense(4)),
    ]
    jitter = lambda key, x: x + jax.random.normal(key, x.shape, x.dtype)
    net = srp.models.Split((6,), 4, layers, augment=jitter)
    servers = []
    for algorithm in (
        srp.algorithms.FedAvg(net),
        srp.algorithms.SlidingWindow(net, exits=()),
    ):
        run = Run(algorithm, federation(clients(np.float32)), policy([[1] * 5] * 3))
        run.rounds()
        servers.append(run.host_state().server.params)
    assert_close(*servers, 1e-5)


@pytest.mark.parametrize(
    ("net", "ends"),
    [
        (srp.models.ResNet18((8, 8, 3), 5), ("block2", "block4", "block6")),
        (srp.models.LeNet5((16, 16), 5), ("conv1", "conv2", "fc1")),
        (srp.models.LSTM((5,), 3), ("embedding", "lstm")),
        (model(hidden=(5,)), ()),
        (model(hidden=()), ()),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_models_have_four_blocks_of_about_as_many_layers(net, ends):
    algorithm = srp.algorithms.DepthFL(net)
    assert algorithm.ends == ends
    server = jax.eval_shape(lambda key: algorithm.init(key, None), KEY)
    assert {*server.exits} == {*ends}
    for layer in server.exits.values():
        assert layer["kernel"].shape[1] == net.num_classes


@pytest.mark.parametrize(
    ("cls", "exits", "moved"),
    [
        (srp.algorithms.DepthFL, "fc0", (False, True)),
        (srp.algorithms.DepthFL, "norm", (True, True)),
        (srp.algorithms.SlidingWindow, "fc0", (False, True)),
        (srp.algorithms.SlidingWindow, "norm", (True, False)),
    ],
)
def test_running_statistics_move_with_the_block_that_is_trained(cls, exits, moved):
    """The first round has one unit of work; the second one two for DepthFL, and one for the next window."""
    algorithm = cls(with_batch_norm(), srp.Training(batch_size=3), exits=(exits,))
    second = 2 if cls is srp.algorithms.DepthFL else 1
    work = scripted([[0, 1], [0, 1]], [2, 2], [[1, 1], [second, 1]])
    run = Run(algorithm, federation(clients(np.float32)), work)
    norm = lambda: run.host_state().server.params.representation["norm"]
    for has_moved in moved:
        before = norm()
        run.rounds()
        for old, new in zip(*map(jax.tree.leaves, (before, norm())), strict=True):
            assert np.isfinite(new).all()
            assert np.array_equal(old, new) != has_moved


def test_models_without_an_earlier_end_are_refused():
    for make, says in (
        (
            lambda: srp.algorithms.DepthFL(srp.models.lora(model(), rank=1)),
            "model 'lora' does not apply its layers one after the other",
        ),
        (
            lambda: srp.algorithms.SlidingWindow(srp.models.TokenLSTM((5,), 7)),
            r"model 'token_lstm' has outputs \(5, 7\) .*choose e.g. mlp",
        ),
        (
            lambda: srp.algorithms.DepthFL(srp.models.LinearRegression((3,))),
            "model 'linear_regression' predicts a number.*sliding_window",
        ),
        (
            lambda: srp.algorithms.DepthFL(model(), exits=("out",)),
            "exits='out' is unknown; choose from fc1, fc2",
        ),
    ):
        with refused(says):
            make()
