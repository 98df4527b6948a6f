"""DepthFL and the sliding window against layers that are cut out of NumPy arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from algorithm_table import with_batch_norm
from recorded_orders import RecordedOrders
from reference import depth
from reference.local import Sgd, batches, weight
from reference.small import (
    KEY,
    Run,
    assert_close,
    clients_of,
    federation,
    model,
    refused,
    scripted,
)
from setting import by_layer

import fedjax_srp as srp

COUNTS, TEST_COUNTS = (4, 3, 7, 5, 8), (2, 2, 2, 2, 2)
BATCH, EPOCHS, SGD = 3, 2, Sgd(0.3, momentum=0.5, decay=0.01)
HIDDEN, ENDS, LAST = ["fc1", "fc2", "fc3"], ["fc1", "fc2"], "out"
DEEP = {"hidden": (7, 5, 4)}
IDS, SIZES = [[0, 1, 2, 3, 4], [4, 2, 0, 1, 3], [1, 3, 4, 0, 2]], [4, 2, 3]
WORK = [[3, 1, 2, 1, 1], [1, 2, 1, 1, 1], [1, 9, 2, 1, 1]]  # 9 units are all three blocks
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
        clients = clients_of(COUNTS, TEST_COUNTS, dtype=np.float64)
        split_model = model(dtype=jnp.float64, **DEEP)
        optimizer = srp.SGD(SGD.step, SGD.momentum, SGD.decay)
        training = srp.Training(
            optimizer, batch_size=BATCH, epochs=EPOCHS, weighting=weighting
        )
        if name == "depthfl":
            algorithm = srp.algorithms.DepthFL(
                split_model, training, distillation=3.0, ramp_rounds=RAMP
            )
        else:
            algorithm = srp.algorithms.SlidingWindow(split_model, training)
        run = Run(algorithm, federation(clients), scripted(IDS, SIZES, WORK))
        params = together(run.host_state().server, split_model)
        assert {*params} == {*HIDDEN, LAST, *(f"exit {end}" for end in ENDS)}
        orders, untouched = RecordedOrders(KEY, COUNTS, BATCH), 0
        for t, size in enumerate(SIZES):
            parts, weights = [], []
            for i, work in zip(IDS[t][:size], WORK[t][:size], strict=True):
                blocks = min(work, 3)
                rows = [*batches(orders.epochs(t, i, "local", EPOCHS), BATCH)]
                of_client = clients[i].x, clients[i].y, rows, SGD
                layers = params, ENDS, HIDDEN, LAST
                if name == "depthfl":
                    of_others = depth.weight_of_others(3.0, t, RAMP)
                    part = depth.depth_client(*layers, blocks, of_others, *of_client)
                else:
                    first = t % (3 - blocks + 1)
                    part = depth.window_client(*layers, first, blocks, *of_client)
                parts.append(part)
                weights.append(weight(weighting, clients[i]))
            new = depth.averaged(params, parts, weights)
            untouched += sum(new[layer] is params[layer] for layer in new)
            params = new
            run.rounds()
            assert_close(together(run.host_state().server, split_model), params, 1e-9)
        assert untouched > 0  # in the second round nobody trains the last block


def test_the_ensemble_is_the_mean_of_the_logits():
    split_model = model(**DEEP)
    algorithm = srp.algorithms.DepthFL(split_model)
    data = federation(clients_of(COUNTS, TEST_COUNTS))
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


def test_running_statistics_are_averaged_over_those_who_train_them():
    split_model = with_batch_norm()
    algorithm = srp.algorithms.DepthFL(
        split_model, srp.Training(srp.SGD(0.1), batch_size=3), exits=("fc0",)
    )
    run = Run(
        algorithm, federation(clients_of(COUNTS, TEST_COUNTS)), scripted(IDS, SIZES, WORK)
    )
    before = run.host_state().server.params.representation["norm"]
    run.rounds()
    run.rounds()
    after = run.host_state().server.params.representation["norm"]
    statistics = jax.tree.leaves(after["batch_stats"])
    assert all(np.isfinite(leaf).all() for leaf in statistics)
    assert not np.array_equal(statistics[0], jax.tree.leaves(before["batch_stats"])[0])


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
