"""Local training: epochs that can be split, work, keys of steps, refused losses and optimizers."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from reference.small import (
    KEY,
    NUM_CLASSES,
    NUM_FEATURES,
    Run,
    assert_close,
    assert_same_bits,
    changed,
    clients_of,
    federation,
    model,
    simulate,
)

import fedjax_srp as srp
from fedjax_srp import SGD, named_key
from fedjax_srp.algorithms import local
from fedjax_srp.algorithms.local import LocalTraining, fit_head, local_sgd
from fedjax_srp.models import cross_entropy

DATA = federation(clients_of((5, 12, 1, 8), (1, 1, 1, 1)))
MODEL = model(hidden=(5,))
PARAMS = MODEL.init(KEY)


@pytest.fixture(
    params=["batched", pytest.param("one_after_the_other", marks=pytest.mark.long)]
)
def strategy(request, monkeypatch):
    if request.param == "one_after_the_other":
        monkeypatch.setattr(local, "SEQUENTIAL_BYTES", 0)
    return request.param


def loss(params, _, x, y, key):
    return cross_entropy(MODEL.logits(params, x), y)


def train(examples, *numbers, params=PARAMS, epochs=1, work=1, **options):
    """Run `epochs` of SGD on one client; `numbers` are the arguments of `SGD`, 0.3 by default."""
    training = LocalTraining(SGD(*numbers or (0.3,)), 4, epochs=epochs, work=work)
    return local_sgd(KEY, loss, params, (), examples, training, **options).params


# Epochs and work.


def test_epochs_can_be_split_into_runs_and_be_given_as_work(strategy):
    examples = DATA.train_client(jnp.int32(1))
    epochs = jax.jit(
        lambda params, first, work: train(
            examples, params=params, first_epoch=first, work=work
        )
    )
    at_once = jax.jit(lambda: train(examples, epochs=4))()
    assert_close(epochs(PARAMS, 0, 4), at_once, 1e-6)
    assert_close(epochs(epochs(PARAMS, 0, 1), 1, 3), at_once, 1e-6)
    with pytest.raises(AssertionError):  # the first epoch's batches once more
        assert_close(epochs(epochs(PARAMS, 0, 1), 0, 3), at_once, 1e-3)


def test_the_optimizer_continues_from_its_state_and_steps_are_counted(strategy):
    """Two epochs at once equal one after the other with the momentum of the first."""
    examples = DATA.train_client(jnp.int32(1))  # 12 examples: 3 steps of 4

    def train(epochs, params, **options):
        training = LocalTraining(SGD(0.3, 0.9), 4, epochs=epochs, record_loss=True)
        return jax.jit(
            lambda params: local_sgd(KEY, loss, params, (), examples, training, **options)
        )(params)

    at_once, first = train(2, PARAMS), train(1, PARAMS)
    second = train(1, first.params, first_epoch=1, optimizer_state=first.optimizer)
    assert (at_once.steps, first.steps, second.steps) == (6, 3, 3)
    assert_close(second.params, at_once.params, 1e-6)
    assert_close(second.optimizer, at_once.optimizer, 1e-6)
    with pytest.raises(AssertionError):  # a new optimizer state
        assert_close(train(1, first.params, first_epoch=1).params, at_once.params, 1e-2)


@pytest.mark.parametrize("cut", [None, "fc1"])
def test_either_part_of_a_model_may_be_empty(cut):
    algorithm = srp.algorithms.FedRep(model(cut=cut), head_epochs=1)
    history = simulate(algorithm, DATA, 1)
    assert history.diverged is None


# Layers that are computed once while a representation is frozen.


def halved(key, x):
    return x * jax.random.bernoulli(key, 0.5, x.shape).astype(x.dtype)


def with_noise(name):
    """Return the model with noise behind one of its layers, or with augmented inputs, or neither."""
    if name == "augment":
        return dataclasses.replace(MODEL, augment=halved)
    layers = [
        srp.models.Layer(f"fc{i}", nn.Dense(width), jax.nn.relu)
        for i, width in enumerate((5, 4), 1)
    ]
    layers = [
        layer._replace(noise=halved) if layer.name == name else layer for layer in layers
    ]
    return srp.models.Split(
        (NUM_FEATURES,),
        4,
        [*layers, srp.models.Layer("out", nn.Dense(NUM_CLASSES))],
        name="noisy",
    )


@pytest.mark.parametrize("noise", [None, "fc2", "fc1", "augment"])
def test_a_head_is_trained_as_if_every_step_computed_the_whole_representation(noise):
    model_ = with_noise(noise)
    params = model_.init(KEY)
    examples = DATA.train_client(jnp.int32(1))
    training = LocalTraining(SGD(0.3), 4, epochs=3)

    def fit(representation, head):
        return fit_head(KEY, model_, representation, head, examples, training).params

    head = jax.jit(fit)(*params)

    # The same by hand: the whole representation in every step.
    def whole_loss(head, representation, x, y, key):
        return cross_entropy(
            model_.classify(head, model_.represent(representation, x, key), key), y
        )

    by_hand = jax.jit(
        lambda: (
            local_sgd(
                named_key(KEY, "head"),
                whole_loss,
                params.head,
                params.representation,
                examples,
                training,
            ).params
        )
    )
    assert_close(head, by_hand(), 1e-5)


def test_every_step_has_its_own_key(strategy):
    """With the loss u(key) * w, SGD adds up the draws of the steps' keys."""
    examples = DATA.train_client(jnp.int32(1))  # 12 examples: 3 steps of 4

    def noise(params, _, x, y, key):
        return jnp.broadcast_to(params * jax.random.uniform(key), y.shape)

    def run(training, **options):
        return -local_sgd(
            KEY, noise, jnp.zeros(()), (), examples, training, **options
        ).params

    key = named_key(KEY, "noise")
    keys = [
        jax.random.fold_in(jax.random.fold_in(key, e), s)
        for e in range(2)
        for s in range(3)
    ]
    draws = [float(jax.random.uniform(k)) for k in keys]
    assert len(set(draws)) == 6
    epochs = jax.jit(
        lambda first, work: run(
            LocalTraining(SGD(1.0), 4, epochs=1, work=work), first_epoch=first
        )
    )
    np.testing.assert_allclose(epochs(0, 2), sum(draws), rtol=1e-5)
    np.testing.assert_allclose(epochs(1, 1), sum(draws[3:]), rtol=1e-5)


# Clients that have finished, in a batch with others that have not.


def uneven(optimizer, work, padding, jit=jax.jit):
    """Train five clients, one of them without examples, for two epochs per unit of work."""
    data = federation(clients_of((5, 12, 1, 8, 3), (1, 1, 1, 1, 1)))

    def one(client_id, work):
        x = data.train_client(client_id)
        x = x._replace(count=jnp.where(client_id == 4, 0, x.count))
        real = jnp.arange(12) < x.count
        x = x._replace(
            x=jnp.where(real[:, None], x.x, padding),
            y=jnp.where(real, x.y, jnp.int32(2**31 - 1)),
        )
        return local_sgd(
            KEY, loss, PARAMS, (), x, LocalTraining(optimizer, 4, epochs=2, work=work)
        ).params

    return jit(jax.vmap(one))(jnp.arange(5, dtype=jnp.int32), jnp.array(work, jnp.int32))


@pytest.mark.parametrize("work", [(1, 1, 1, 1, 1), (3, 0, 2, 1, 3)])
def test_steps_without_weight_change_nothing(work, strategy):
    """Plain SGD gives clients that have finished a batch of weight 0; other optimizers select the old parameters."""
    optimizers = SGD(0.3), changed(SGD(0.3), is_plain=False), SGD(0.3, 0.9, 0.1)
    weightless, selected, heavy = (
        uneven(optimizer, work, jnp.float32(np.nan)) for optimizer in optimizers
    )
    assert_close(weightless, selected, 1e-6)
    for i in range(5):
        for trained in (weightless, heavy):
            mine = jax.tree.map(lambda leaf, i=i: leaf[i], trained)
            assert np.isfinite(mine.head["out"]["kernel"]).all()
            if i == 4 or work[i] == 0:
                assert_same_bits(mine, PARAMS)
            else:
                assert not np.allclose(
                    mine.head["out"]["kernel"], PARAMS.head["out"]["kernel"]
                )


# Step sizes.


HALVED = optax.exponential_decay(0.5, 1, 0.5)
FOLLOWING = {  # optimizer, local steps of a round, step sizes of all steps of a run
    "optax": (
        lambda round: optax.sgd(optax.polynomial_schedule(0.5, 0.125, 1, 3)(round)),
        1,
        [0.5, 0.375, 0.25],
    ),
    "schedule": (srp.SGD(HALVED), 3, [0.5, 0.25, 0.125] * 2),
}


@pytest.mark.parametrize("case", FOLLOWING)
def test_step_sizes_follow_the_round_or_the_local_steps_of_a_round(case):
    """Compare with gradient descent on all examples of the only client."""
    optimizer, epochs, step_sizes = FOLLOWING[case]
    (client,) = clients_of((6,), (2,))
    training = srp.Training(optimizer, batch_size=6, epochs=epochs)
    algorithm = srp.algorithms.FedAvg(MODEL, training, fine_tune_optimizer=SGD(0.1))
    run = Run(
        algorithm, federation([client]), srp.participation.Full(), evaluations="all"
    )
    params = run.host_state().server.params
    gradient = jax.jit(
        jax.grad(lambda params: jnp.mean(loss(params, (), client.x, client.y, KEY)))
    )
    for eta in step_sizes:
        params = jax.tree.map(
            lambda p, g, eta=eta: p - np.float32(eta) * g, params, gradient(params)
        )
    run.rounds(len(step_sizes) // epochs)
    assert_close(run.host_state().server.params, jax.device_get(params), 1e-5)
