"""Local training, shared by every algorithm that trains on examples: what a client does between two messages.

Everything here is written for one client. Two things follow from the fact that the engine will vmap it:

* loop bounds are the client's own (`ceil(count / batch_size)` steps an epoch), so clients of any size can share a
  program; `batch_max` keeps such a bound a plain number under vmap, and clients that are done keep their parameters;
* large models (trained or frozen) are taken one client after the other (`sequential`), because on a CPU a client's
  weights then stay in the cache, while small ones (heads) are trained as a batch, because there the overhead of each
  operation rules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.core import Tracer

from fedjax_srp._checks import check_integer, check_numbers
from fedjax_srp.backend import platform
from fedjax_srp.base import Array, Examples, Key, Predict, PyTree, named_key
from fedjax_srp.loops import batch_max, sequential
from fedjax_srp.models.split import SplitModel, SplitParams, cross_entropy

SEQUENTIAL_BYTES = 128 * 1024  # on a CPU, models larger than this are trained one client after the other

Loss = Callable[[PyTree, PyTree, Array, Array, Key], Array]  # (params, frozen, x, y, key) -> (batch,)
Objective = Callable[[PyTree, Array], Array]  # (params, weights (batch,) of the examples) -> ()
Gradient = Callable[[Objective, PyTree, Array], PyTree]  # (objective, params, weights) -> direction of ascent


class LocalTraining(NamedTuple):
    """How a client trains: `epochs` over shuffled data, or `steps` on batches drawn with replacement (exactly one)."""

    optimizer: optax.GradientTransformation
    batch_size: int
    epochs: int | None = None
    steps: int | None = None


def local_training(
    optimizer: optax.GradientTransformation | None,
    batch_size: int,
    epochs: int | None = None,
    steps: int | None = None,
    what: str = "local",
) -> LocalTraining:
    """Checks the arguments that every example-based factory shares; the optimizer defaults to the papers' SGD.

    `what` is how the caller's arguments begin: `local` for local_epochs and local_steps.

    Raises:
        ValueError: a batch size below 1, a negative number of epochs or steps, or both or none of the two.
    """
    check_integer("batch_size", batch_size, 1)
    if (epochs is None) == (steps is None):
        raise ValueError(f"give either {what}_epochs or {what}_steps, got {epochs} and {steps}; set the other to None")
    for name, value in (("epochs", epochs), ("steps", steps)):
        if value is not None:
            check_integer(f"{what}_{name}", value, 0)
    return LocalTraining(sgd(0.01) if optimizer is None else optimizer, batch_size, epochs, steps)


def sgd(learning_rate: float | Array, momentum: float = 0.0, weight_decay: float = 0.0) -> optax.GradientTransformation:
    """SGD as in the papers' experiments: decay acts on weights (arrays of rank 2 and more) and not on biases.

    Args:
        learning_rate: step size; a schedule would count the client's local steps.
        momentum: heavy-ball coefficient; the buffer starts at zero in every round.
        weight_decay: coefficient of the L2 penalty's gradient.

    Raises:
        ValueError: a number out of range; those of tracers are not known.
    """
    if not callable(learning_rate):  # a schedule
        check_numbers("learning_rate", learning_rate, "give a step size, e.g. 0.01", positive=True, max_ndim=0)
    check_momentum("momentum", momentum)
    check_numbers("weight_decay", weight_decay, "give 0 for none, or a small number, e.g. 1e-4", max_ndim=0)
    off = lambda value: isinstance(value, int | float) and value == 0  # a tracer cannot say  # noqa: E731
    step = optax.sgd(learning_rate, None if off(momentum) else momentum)
    if off(weight_decay):
        return step
    return optax.chain(
        optax.add_decayed_weights(weight_decay, mask=lambda p: jax.tree.map(lambda w: w.ndim > 1, p)), step
    )


def check_momentum(argument: str, value: float | Array) -> None:
    """Raises a `ValueError` of one line unless `value` is a number in [0, 1), or a tracer."""
    check_numbers(argument, value, "give 0 for none, or e.g. 0.5", max_ndim=0)
    if not isinstance(value, Tracer) and value >= 1:
        raise ValueError(f"{argument}={value} must be below 1; give 0 for none, or e.g. 0.5")


def _one_after_the_other(*params: PyTree) -> bool:
    num_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(params))
    return platform() == "cpu" and num_bytes > SEQUENTIAL_BYTES


def _shuffled(key: Key, count: Array, batch_size: int, capacity: int) -> Array:
    """A random order of the rows 0 .. count - 1, then the other rows, padded to whole batches.

    Rows are sorted by 31 random bits each. Up to 1,024 rows the last ten bits give way to the row's number: sorting
    plain integers is five times faster than an argsort, and ties among the 21 bits left are too rare to matter (they
    fall in the order of rows). The bits of a row do not depend on the capacity, so padding does not change the order.
    """
    bits = jax.random.bits(key, (capacity,), jnp.uint32) >> 1
    row = jnp.arange(capacity, dtype=jnp.uint32)
    padding_last = jnp.where(row < count.astype(jnp.uint32), bits, jnp.uint32(1) << 31)
    if capacity <= 1024:
        packed = padding_last & jnp.uint32(0xFFFFFC00) | row
        order = jnp.sort(packed, stable=False) & jnp.uint32(0x3FF)
    else:
        order = jnp.argsort(padding_last, stable=True)
    return jnp.pad(order.astype(jnp.int32), (0, -capacity % batch_size))


def plain_gradient(objective: Objective, params: PyTree, weights: Array) -> PyTree:
    """The gradient of a batch's loss: what SGD descends."""
    return jax.grad(objective)(params, weights)


def local_sgd(
    key: Key,
    loss: Loss,
    params: PyTree,
    frozen: PyTree,
    examples: Examples,
    training: LocalTraining,
    work: Array | int = 1,
    first_epoch: Array | int = 0,
    gradient: Gradient = plain_gradient,
) -> PyTree:
    """Trains `params` on one client's examples.

    Args:
        key: of this client, round and purpose; epoch e draws its order from fold_in(key, e).
        loss: `(params, frozen, x, y, key) -> (batch,)`, the loss of each example; its key is new in every step, for
            models that are random in training.
        params: what is trained; returned as it is if it has no leaves.
        frozen: passed to `loss` untouched.
        examples: x (max_examples, ...), y (max_examples,), count ().
        training: optimizer (its state starts afresh), batch size, epochs or steps.
        work: () int32, how many times the configured epochs or steps are done; 0 changes nothing.
        first_epoch: number of epochs that came before, so that a split run draws the batches of an unbroken one.
        gradient: what a step descends, from the objective `(params, weights) -> ()` of its batch.

    Returns:
        The trained parameters.
    """
    if not jax.tree.leaves(params):
        return params
    capacity = examples.y.shape[0]
    # An epoch's batch never exceeds the client; draws with replacement may, whatever the padding.
    batch_size = training.batch_size if training.epochs is None else min(training.batch_size, capacity)
    dtype = jax.tree.leaves(params)[0].dtype
    one_client_at_a_time = _one_after_the_other(params, frozen)

    def train(params, frozen, examples, key, work, first_epoch):
        key_noise = named_key(key, "noise")

        def step(carry, rows, valid, active, epoch, s):
            # Rows that pad a batch are replaced by a valid one at weight zero: padding is never even read.
            rows = jnp.where(valid, rows, rows[0])
            weights = valid.astype(dtype) / jnp.maximum(jnp.sum(valid.astype(dtype)), 1)
            x, y = examples.x[rows], examples.y[rows]
            key_step = jax.random.fold_in(jax.random.fold_in(key_noise, epoch), s)

            def objective(params, weights):
                return jnp.sum(weights * loss(params, frozen, x, y, key_step))

            old_params, old_state = carry
            direction = gradient(objective, old_params, weights)
            updates, state = training.optimizer.update(direction, old_state, old_params)
            new = optax.apply_updates(old_params, updates), state
            return new if one_client_at_a_time else jax.tree.map(lambda n, o: jnp.where(active, n, o), new, carry)

        carry = params, training.optimizer.init(params)
        zero = jnp.int32(0)
        position = jnp.arange(batch_size, dtype=jnp.int32)
        if training.steps is not None:  # batches drawn with replacement
            num_steps = jnp.where(examples.count > 0, training.steps * work, 0)

            def sampled_step(t, carry):
                key_step = jax.random.fold_in(key, first_epoch + t)
                rows = jax.random.randint(key_step, (batch_size,), 0, jnp.maximum(examples.count, 1))
                return step(carry, rows, position >= 0, t < num_steps, first_epoch + t, 0)

            return jax.lax.fori_loop(zero, batch_max(num_steps), sampled_step, carry)[0]

        num_epochs = jnp.int32(training.epochs) * work
        steps_per_epoch = (examples.count + batch_size - 1) // batch_size

        def epoch(e, carry):
            order = _shuffled(jax.random.fold_in(key, first_epoch + e), examples.count, batch_size, capacity)

            def shuffled_step(s, carry):
                rows = jax.lax.dynamic_slice(order, (s * batch_size,), (batch_size,))
                valid = s * batch_size + position < examples.count
                return step(carry, rows, valid, (e < num_epochs) & (s < steps_per_epoch), first_epoch + e, s)

            return jax.lax.fori_loop(zero, batch_max(steps_per_epoch), shuffled_step, carry)

        return jax.lax.fori_loop(zero, batch_max(num_epochs), epoch, carry)[0]

    run = sequential(train) if one_client_at_a_time else train
    return run(params, frozen, examples, key, jnp.asarray(work, jnp.int32), jnp.asarray(first_epoch, jnp.int32))


def fit_head(
    key: Key,
    model: SplitModel,
    representation: PyTree,
    head: PyTree,
    examples: Examples,
    training: LocalTraining,
    work: Array | int = 1,
    first_epoch: Array | int = 0,
) -> PyTree:
    """Trains a head on a frozen representation.

    What the representation computes before anything random in it (augmentation, dropout) is computed once, not once an
    epoch.
    """
    if not jax.tree.leaves(head):
        return head
    settled = examples._replace(x=model.stem(representation, examples.x))
    frozen = {name: params for name, params in representation.items() if name not in model.settled}

    def loss(head, frozen, x, y, key):
        return cross_entropy(model.classify(head, model.rest(frozen, x, key), key), y)

    return local_sgd(named_key(key, "head"), loss, head, frozen, settled, training, work, first_epoch)


def with_tuned_head(
    key: Key, model: SplitModel, params: SplitParams, examples: Examples, training: LocalTraining
) -> Predict:
    """A model judged after its head has been trained on the client: `fine_tune` of several algorithms."""
    head = fit_head(key, model, params.representation, params.head, examples, training)
    return lambda x: model.classify(head, model.represent(params.representation, x))


def fit_representation(
    key: Key,
    model: SplitModel,
    representation: PyTree,
    head: PyTree,
    examples: Examples,
    training: LocalTraining,
    work: Array | int = 1,
    first_epoch: Array | int = 0,
) -> PyTree:
    """Trains a representation under a frozen head."""

    def loss(representation, head, x, y, key):
        return cross_entropy(model.classify(head, model.represent(representation, x, key), key), y)

    return local_sgd(named_key(key, "local"), loss, representation, head, examples, training, work, first_epoch)


CLIENT_WEIGHTINGS = ("uniform", "num_examples")


def check_weighting(client_weighting: str) -> str:
    """Returns the argument, or raises a `ValueError` that lists the choices."""
    if client_weighting not in CLIENT_WEIGHTINGS:
        raise ValueError(f"client_weighting={client_weighting!r} is none of {', '.join(CLIENT_WEIGHTINGS)}")
    return client_weighting


def client_weight(client_weighting: str, examples: Examples) -> Array:
    """Weight of a client in the server's mean: 1 ("uniform", the papers) or its number of examples (their code)."""
    dtype = jnp.zeros(()).dtype
    return jnp.ones((), dtype) if client_weighting == "uniform" else examples.count.astype(dtype)
