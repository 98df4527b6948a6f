"""Local training: epochs that can be split, work, keys of steps, refused losses and optimizers."""

import dataclasses
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.extend.core import ClosedJaxpr
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
    refused,
)

import fedjax_srp as srp
from fedjax_srp.algorithms import local
from fedjax_srp.algorithms.local import fit_head, fit_representation, local_sgd
from fedjax_srp.algorithms.optimizers import SGD, as_optimizer
from fedjax_srp.algorithms.training import LocalTraining
from fedjax_srp.base import Examples, RoundContext, named_key
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
    total = local.total_loss(first.loss, None, second.loss)
    assert total.steps == 6
    np.testing.assert_allclose(total.mean, at_once.mean_loss, rtol=1e-6)
    with pytest.raises(AssertionError):  # a new optimizer state
        assert_close(train(1, first.params, first_epoch=1).params, at_once.params, 1e-2)


def test_an_empty_part_is_returned_unchanged():
    examples = DATA.train_client(jnp.int32(0))
    training = LocalTraining(SGD(0.3), 4, epochs=1)
    below, above = model(cut=None), model(cut="fc1")
    assert (
        fit_head(
            KEY, below, below.init(KEY).representation, {}, examples, training
        ).params
        == {}
    )
    assert (
        fit_representation(
            KEY, above, {}, above.init(KEY).head, examples, training
        ).params
        == {}
    )
    loss = local.ModelLoss(above, trains="representation")
    assert (
        local.full_gradient(loss, {}, above.init(KEY).head, examples) == {}
    )  # without error


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


@pytest.mark.parametrize(
    ("noise", "kept"),
    [(None, 4), ("fc2", 4), ("fc1", 5), ("augment", NUM_FEATURES)],
    ids=lambda value: str(value),
)
def test_layers_before_the_first_random_one_are_computed_once_and_the_rest_in_every_step(
    noise, kept
):
    seen = {"stem": [], "rest": []}

    def spy(name, function):
        def spied(params, x, *key):
            out = function(params, x, *key)
            seen[name].append((x.shape, out.shape))
            return out

        return spied

    model_ = with_noise(noise)
    params = model_.init(KEY)
    examples, training = (
        DATA.train_client(jnp.int32(1)),
        LocalTraining(SGD(0.3), 4, epochs=3),
    )
    spied = changed(model_, stem=spy("stem", model_.stem), rest=spy("rest", model_.rest))
    head = jax.jit(
        lambda: (
            fit_head(
                KEY, spied, params.representation, params.head, examples, training
            ).params
        )
    )()
    assert seen["stem"] == [
        ((12, NUM_FEATURES), (12, kept))
    ]  # all examples at once, outside the loops
    assert {shapes[0] for shapes in seen["rest"]} == {(4, kept)}  # batches

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
    steps = jax.jit(
        lambda first, work: run(
            LocalTraining(SGD(1.0), 4, steps=1, work=work), first_epoch=first
        )
    )
    draws = [
        float(jax.random.uniform(jax.random.fold_in(jax.random.fold_in(key, t), 0)))
        for t in range(5)
    ]
    np.testing.assert_allclose(steps(0, 5), sum(draws), rtol=1e-5)
    np.testing.assert_allclose(steps(2, 3), sum(draws[2:]), rtol=1e-5)


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
    nesterov = optax.sgd(0.3, 0.9, nesterov=True)
    own = changed(SGD(0.3), transformation=lambda: nesterov)  # its field momentum is None
    optimizers = own, as_optimizer("optimizer", nesterov)
    assert_close(
        *(uneven(optimizer, work, jnp.float32(0)) for optimizer in optimizers), 1e-6
    )


@pytest.mark.parametrize("strategy_of_steps", [{"epochs": 2}, {"steps": 5}])
def test_a_loss_that_is_nan_on_zeros_is_safe_with_clients_that_have_finished(
    strategy_of_steps,
):
    """Inputs are divided by their norm, which gives nan, and a nan gradient, for anything but a real example."""
    counts = jnp.array([8, 3, 0], jnp.int32)
    x = jnp.where(
        jnp.arange(8)[None, :, None] < counts[:, None, None],
        1 + jax.random.uniform(KEY, (3, 8, 2)),
        0.0,
    )

    def loss(w, _, x, y, key):
        return (x / jnp.sqrt(jnp.sum(x**2, axis=-1, keepdims=True)) @ w - 1) ** 2

    def one(x, count):
        training = LocalTraining(SGD(0.1), 2, **strategy_of_steps)
        trained = local_sgd(
            KEY,
            loss,
            jnp.zeros(2),
            (),
            Examples(x, jnp.zeros(8, jnp.int32), count),
            training,
        )
        return trained.params, trained.steps

    together, steps = jax.jit(jax.vmap(one))(x, counts)
    assert steps.tolist() == ([8, 4, 0] if "epochs" in strategy_of_steps else [5, 5, 0])
    alone = [jax.jit(one)(x[i], counts[i])[0] for i in range(2)]
    np.testing.assert_allclose(together[:2], jnp.stack(alone), rtol=1e-5)
    np.testing.assert_array_equal(together[2], 0.0)


@pytest.mark.parametrize("function", ["round", "gradient"])
def test_a_client_without_examples_has_no_gradient(function):
    """Neither FedSGD's message nor the gradient of a criterion reads its rows."""
    algorithm = srp.algorithms.FedSGD(MODEL)
    gradient = algorithm.client if function == "round" else algorithm.gradient
    one, context = (
        DATA.train_client(jnp.int32(0)),
        RoundContext(*[jnp.int32(1)] * 3, 2, jnp.int32(1)),
    )
    none = Examples(jnp.full_like(one.x, jnp.nan), one.y, jnp.int32(0))
    both = jax.tree.map(lambda *leaves: jnp.stack(leaves), one, none)
    found = jax.jit(
        jax.vmap(lambda examples: gradient(KEY, PARAMS, (), examples, context))
    )(both)
    assert_same_bits(
        jax.tree.map(lambda leaf: leaf[1], found.message),
        jax.tree.map(jnp.zeros_like, PARAMS),
    )
    assert found.weight[1] == 0
    assert all(bool(jnp.any(leaf[0])) for leaf in jax.tree.leaves(found.message.head))


WRONG_LOSSES = {  # name -> (loss of a model, what it returned for so many examples)
    "mean": (lambda logits, y: cross_entropy(logits, y).mean(), "()"),
    "column": (lambda logits, y: cross_entropy(logits, y)[:, None], "({0}, 1)"),
    "square": (
        lambda logits, y: (logits[:, :1] - y[None].astype(float)) ** 2,
        "({0}, {0})",
    ),
    "tuple": (lambda logits, y: (cross_entropy(logits, y), y), "tuple"),
}


def trained_by(function, model):
    """Trace one of the functions that use a model's loss."""
    algorithm = srp.algorithms.FedSGD(model)
    client, context = (
        DATA.train_client(jnp.int32(0)),
        RoundContext(*[jnp.int32(1)] * 3, 4, jnp.int32(1)),
    )
    of_loss, how = (
        local.example_loss(model),
        srp.Training(batch_size=4, epochs=None, steps=2).alone(),
    )
    ways = {
        "local_sgd": lambda: local_sgd(
            KEY, of_loss, PARAMS, (), client, how._replace(epochs=1, steps=None)
        ),
        "drawn batches": lambda: local_sgd(KEY, of_loss, PARAMS, (), client, how),
        "full_gradient": lambda: local.full_gradient(of_loss, PARAMS, (), client),
        "fit_head": lambda: fit_head(
            KEY, model, PARAMS.representation, PARAMS.head, client, how
        ),
        "fedsgd": lambda: algorithm.client(KEY, PARAMS, (), client, context),
    }
    return jax.eval_shape(ways[function])


@pytest.mark.parametrize("name", WRONG_LOSSES)
@pytest.mark.parametrize(
    "function", ["local_sgd", "drawn batches", "full_gradient", "fit_head", "fedsgd"]
)
def test_a_loss_must_be_one_number_per_example(function, name):
    """It would broadcast against the weights of a batch and give another gradient."""
    loss, returned = WRONG_LOSSES[name]
    trained_by(function, MODEL)
    rows = 4 if function in ("local_sgd", "drawn batches", "fit_head") else 12
    message = f"loss returned {returned.format(rows)} for {rows} examples, it must return ({rows},): one number"
    with refused(re.escape(message)):
        trained_by(function, changed(MODEL, loss=loss))


def test_only_plain_sgd_needs_no_selection_of_parameters():
    kernel = (5, *PARAMS.representation["fc1"]["kernel"].shape)

    def in_loops(jaxpr, inside=False):
        for equation in jaxpr.eqns:
            if inside and equation.primitive.name == "select_n":
                yield equation.outvars[0].aval.shape
            for value in jax.tree.leaves(
                tuple(equation.params.values()),
                is_leaf=lambda v: isinstance(v, ClosedJaxpr),
            ):
                if isinstance(value, ClosedJaxpr):
                    yield from in_loops(
                        value.jaxpr, inside or equation.primitive.name == "while"
                    )

    def selections(optimizer):
        traced = uneven(optimizer, (1,) * 5, jnp.float32(0), jit=jax.make_jaxpr)
        return list(in_loops(traced.jaxpr)).count(kernel)

    assert [
        selections(SGD(*numbers)) > 0
        for numbers in ((0.3,), (0.3, 0.5), (0.3, None, 0.1))
    ] == [False, True, True]
    assert not SGD(lambda count: 0.1).is_plain  # it counts steps
    assert SGD(jnp.float32(0.1)).is_plain


# Step sizes.


HALVED = optax.exponential_decay(0.5, 1, 0.5)
FOLLOWING = {  # optimizer, local steps of a round, step sizes of all steps of a run
    "formula": (
        lambda round: srp.SGD(0.5 / (1 + round.astype(float))),
        1,
        [0.5, 0.25, 0.5 / 3],
    ),
    "optax": (
        lambda round: optax.sgd(optax.polynomial_schedule(0.5, 0.125, 1, 3)(round)),
        1,
        [0.5, 0.375, 0.25],
    ),
    "schedule": (srp.SGD(HALVED), 3, [0.5, 0.25, 0.125] * 2),
    "schedule of optax": (optax.sgd(HALVED), 3, [0.5, 0.25, 0.125] * 2),
}


@pytest.mark.short("optax", "schedule")
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


def test_batches_drawn_with_replacement_do_not_depend_on_padding():
    x, y = np.arange(6.0, dtype=np.float32).reshape(3, 2), np.array([0, 1, 1], np.int32)

    def loss(w, _, x, y, key):
        return (x @ w - y.astype(x.dtype)) ** 2

    def trained(padding):
        examples = Examples(
            jnp.pad(x, ((0, padding), (0, 0)), constant_values=3e38),
            jnp.pad(y, (0, padding)),
            jnp.int32(3),
        )
        training = LocalTraining(srp.SGD(0.01), 10, steps=4)
        return local.local_sgd(
            jax.random.key(0), loss, jnp.zeros(2), (), examples, training
        ).params

    assert (trained(0) != 0).all()
    np.testing.assert_array_equal(trained(0), trained(17))
