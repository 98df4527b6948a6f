"""Training of models with noise in the engine."""

import dataclasses

import flax.linen as nn
import jax
import numpy as np
import pytest
from reference.small import Run, assert_close, scripted

import fedjax_srp as srp
from fedjax_srp.algorithms.local import SGD
from fedjax_srp.models.lenet import Dropout


def grey_federation(counts=(5, 9, 2), seed=0):
    """Return clients with 6 x 6 images of 3 classes."""
    rng = np.random.default_rng(seed)
    total, ends = sum(counts), np.cumsum(counts)
    y = rng.integers(0, 3, total)
    x = (rng.normal(size=(total, 6, 6)) + y[:, None, None]).astype(np.float32)
    rows = np.split(np.arange(total), ends[:-1])
    return srp.data.from_arrays(
        x, y, x + 1, y, train_indices=rows, test_indices=rows, num_classes=3
    )


def random_model():
    """Return an MLP with every kind of noise: augmented inputs, dropout below and above the cut."""
    dense = lambda width: nn.Sequential(
        [lambda x: x.reshape(x.shape[0], -1), nn.Dense(width)]
    )
    layers = [
        srp.models.Layer("fc1", dense(5), jax.nn.relu, Dropout(0.3)),
        srp.models.Layer("fc2", nn.Dense(4), jax.nn.relu, Dropout(0.3)),
        srp.models.Layer("out", nn.Dense(3)),
    ]
    model = srp.models.Split((6, 6), 3, layers, name="dropped", cut="fc2")
    return dataclasses.replace(model, augment=srp.models.CropAndFlip(padding=2))


@pytest.mark.long
def test_chunks_devices_and_the_order_of_clients_do_not_matter():
    """Random numbers of training depend on client, round and step only."""
    algorithm = srp.algorithms.FedRep(
        random_model(), srp.Training(SGD(0.1), batch_size=4), head_epochs=2
    )
    states = []
    for devices, chunk_size, ids in ((1, 3, [[2, 0, 1]]), (2, 1, [[0, 1, 2]])):
        run = Run(
            algorithm,
            grey_federation(),
            scripted(ids),
            devices=devices,
            chunk_size=chunk_size,
        )
        run.rounds(2)
        states.append(run.host_state())
    assert_close(states[1].server, states[0].server, 1e-5)
    assert_close(states[1].clients, states[0].clients, 1e-5)
    heads = states[0].clients.head["out"]["kernel"]
    assert len(np.unique(heads.reshape(3, -1), axis=0)) == 3
