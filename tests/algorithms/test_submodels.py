"""HeteroFL, FedRolex and FjORD against submodels that are cut out of NumPy arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from recorded_orders import RecordedOrders, stream
from reference import submodels
from reference.local import Sgd, batches, train, weight
from reference.small import (
    ALGORITHMS,
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
from fedjax_srp import named_key

COUNTS, TEST_COUNTS = (4, 3, 7, 5, 8), (2, 2, 2, 2, 2)
BATCH, EPOCHS, SGD = 3, 2, Sgd(0.3, momentum=0.5, decay=0.01)
WIDE = {"hidden": (7, 5)}
IDS, SIZES = [[0, 1, 2, 3, 4], [4, 2, 0, 1, 3], [1, 3, 4, 0, 2]], [4, 2, 3]
WORK = [
    [3, 1, 2, 1, 1],
    [1, 2, 1, 1, 1],
    [1, 9, 2, 1, 1],
]  # 9 units are more than there are rates
RATES = (0.3, 0.6, 1.0)


def fjord_rates(t, i, level, rates, steps):
    """Yield the rates that client i draws in its steps (epoch, step) of round t."""
    key = jax.random.fold_in(named_key(stream(KEY, "training", jnp.int32(t)), "round"), i)
    noise = named_key(named_key(key, "local"), "noise")
    for epoch, s in steps:
        key_step = jax.random.fold_in(jax.random.fold_in(noise, epoch), s)
        yield rates[
            int(jax.random.randint(named_key(key_step, "rate"), (), 0, level + 1))
        ]


@pytest.mark.short("num_examples-*")
@pytest.mark.parametrize("name", ["heterofl", "fedrolex", "fjord"])
@pytest.mark.parametrize("weighting", ["uniform", "num_examples"])
def test_a_submodel_is_cut_out_trained_and_put_back(name, weighting):
    with jax.enable_x64(True):
        clients, split_model = (
            clients_of(COUNTS, TEST_COUNTS, dtype=np.float64),
            model(dtype=jnp.float64, **WIDE),
        )
        optimizer = srp.SGD(SGD.step, SGD.momentum, SGD.decay)
        training = srp.Training(
            optimizer, batch_size=BATCH, epochs=EPOCHS, weighting=weighting
        )
        run = Run(
            ALGORITHMS[name](split_model, training, rates=RATES),
            federation(clients),
            scripted(IDS, SIZES, WORK),
        )
        params = by_layer(split_model, *run.host_state().server.params)
        orders, untouched = RecordedOrders(KEY, COUNTS, BATCH), 0
        for t, size in enumerate(SIZES):
            parts, weights = [], []
            for i, work in zip(IDS[t][:size], WORK[t][:size], strict=True):
                level = min(work, len(RATES)) - 1
                rate, first = RATES[level], t if name == "fedrolex" else 0
                rows = [*batches(orders.epochs(t, i, "local", EPOCHS), BATCH)]
                x, y = clients[i].x, clients[i].y
                if name == "fjord":
                    steps = [
                        (epoch, s)
                        for epoch in range(EPOCHS)
                        for s in range(len(rows) // EPOCHS)
                    ]
                    gradient = submodels.nested_gradient(
                        params, fjord_rates(t, i, level, RATES, steps)
                    )
                    units = submodels.units_of(params, rate)
                    small = submodels.cut(params, units)
                    parts.append(
                        (units, train(small, list(small), x, y, rows, SGD, gradient))
                    )
                else:
                    parts.append(submodels.client(params, rate, first, x, y, rows, SGD))
                weights.append(weight(weighting, clients[i]))
            new = submodels.averaged(params, parts, weights)
            untouched += sum(
                int(np.sum(new[n][leaf] == params[n][leaf]))
                for n in new
                for leaf in new[n]
            )
            params = new
            run.rounds()
            assert_close(
                by_layer(split_model, *run.host_state().server.params), params, 1e-9
            )
        assert untouched > 0  # in the second round nobody trains the whole model


def test_models_without_units_are_refused():
    tokens = srp.models.LSTM((5,), 3)
    with refused(r"model 'lstm': layer 'embedding' has .*; choose e.g. mlp or lenet5"):
        srp.algorithms.HeteroFL(tokens).init_params(KEY, None)
