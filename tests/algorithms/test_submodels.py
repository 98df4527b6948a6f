"""HeteroFL, FedRolex and FjORD against submodels that are cut out of NumPy arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from parts_of_models import (
    EPOCHS,
    NUM_ROUNDS,
    SGD,
    clients,
    participants,
    policy,
    training,
)
from recorded_orders import stream
from reference import submodels
from reference.local import train
from reference.small import (
    ALGORITHMS,
    KEY,
    Run,
    assert_close,
    federation,
    model,
    refused,
)
from setting import by_layer

import fedjax_srp as srp
from fedjax_srp import named_key

WIDE = {"hidden": (7, 5)}
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
        of_clients = clients()
        split_model = model(dtype=jnp.float64, **WIDE)
        algorithm = ALGORITHMS[name](split_model, training(weighting), rates=RATES)
        run = Run(algorithm, federation(of_clients), policy())
        params = by_layer(split_model, *run.host_state().server.params)
        untouched = 0
        for t in range(NUM_ROUNDS):
            parts, weights = [], []
            for each in participants(t, of_clients, weighting):
                level = min(each.work, len(RATES)) - 1
                rate = RATES[level]
                first = t if name == "fedrolex" else 0
                examples = each.x, each.y, each.rows, SGD
                if name == "fjord":
                    steps = [
                        (epoch, s)
                        for epoch in range(EPOCHS)
                        for s in range(len(each.rows) // EPOCHS)
                    ]
                    gradient = submodels.nested_gradient(
                        params, fjord_rates(t, each.id, level, RATES, steps)
                    )
                    units = submodels.units_of(params, rate)
                    small = submodels.cut(params, units)
                    parts.append((units, train(small, list(small), *examples, gradient)))
                else:
                    parts.append(submodels.client(params, rate, first, *examples))
                weights.append(each.weight)
            new = submodels.averaged(params, parts, weights)
            untouched += sum(
                int(np.sum(new[n][leaf] == params[n][leaf]))
                for n in new
                for leaf in new[n]
            )
            params = new
            run.rounds()
            found = by_layer(split_model, *run.host_state().server.params)
            assert_close(found, params, 1e-9)
        assert untouched > 0  # in the second round nobody trains the whole model


def test_models_without_units_are_refused():
    tokens = srp.models.LSTM((5,), 3)
    with refused(r"model 'lstm': layer 'embedding' has .*; choose e.g. mlp or lenet5"):
        srp.algorithms.HeteroFL(tokens).init_params(KEY, None)
