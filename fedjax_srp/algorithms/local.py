"""Local training, shared by every algorithm that trains on examples.

`local_sgd` trains, `example_loss` is its usual loss, `fit_head` and `fit_representation`
train one side of a model's cut, and `full_gradient` is for control variates and gradient
tracking.

Everything is written for one client, which the engine vmaps over clients:

* loop bounds are the client's own (`ceil(count / batch_size)` steps an epoch), so clients
  of any size share a program; `batch_max` makes such a bound a plain number under vmap,
  and clients that have finished keep their parameters;
* a first dense layer is trained in the span of the client's examples where that is faster
  (`layer_in_span`), which changes only rounding;
* large models (trained or frozen) are trained one client after the other (`sequential`),
  since on a CPU a client's weights then stay in the cache; small ones (heads) are
  batched, since the overhead of each operation dominates.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, cast

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import Partial

from fedjax_srp.algorithms.optimizers import SGD
from fedjax_srp.algorithms.training import LocalTraining, num_steps, steps_per_epoch
from fedjax_srp.base import Array, Examples, Key, Predict, PyTree, TrainingLoss, named_key
from fedjax_srp.models.dense import (
    apply_updates,
    gradient_in_span,
    into_span,
    kernel_of,
    of_all_rows,
    out_of_span,
)
from fedjax_srp.models.normalization import (
    example_weights,
    has_statistics,
    with_statistics,
    without_statistics,
)
from fedjax_srp.models.split import SplitModel, SplitParams
from fedjax_srp.parts.checks import per_example
from fedjax_srp.xla.backend import platform
from fedjax_srp.xla.loops import (
    batch_max,
    fori_loop,
    mapped_with,
    most_work,
    sequential,
)

# On a CPU, models larger than this are trained one client after the other.
SEQUENTIAL_BYTES = 128 * 1024

# (params, frozen, x, y, key) -> (batch,)
Loss = Callable[[PyTree, PyTree, Array, Array, Key | None], Array]
# (params, weights (batch,) of the examples) -> ()
Objective = Callable[[PyTree, Array], Array]
# parameters, state of the optimizer, sum of losses or ()
Carry = tuple[PyTree, PyTree, PyTree]
# (objective, params, weights) -> direction of ascent
Gradient = Callable[[Objective, PyTree, Array], PyTree]


class Trained(NamedTuple):
    """The result of local training."""

    params: PyTree
    optimizer: PyTree  # the optimizer's state after the last step
    # () float: mean loss of each step's batch before the step; None: not recorded
    mean_loss: Array | None
    steps: Array  # () int32, number of steps

    @property
    def loss(self) -> TrainingLoss | None:
        """The loss for `ClientOutput`."""
        if self.mean_loss is None:
            return None
        return TrainingLoss(self.mean_loss, self.steps)


def total_loss(*losses: TrainingLoss | None) -> TrainingLoss | None:
    """Combine the losses of several trainings of a client into one."""
    recorded = [loss for loss in losses if loss is not None]
    if not recorded:
        return None
    steps = sum((loss.steps for loss in recorded[1:]), start=recorded[0].steps)
    sums = [loss.mean * loss.steps.astype(loss.mean.dtype) for loss in recorded]
    total = sum(sums[1:], start=sums[0])
    return TrainingLoss(total / jnp.maximum(steps, 1).astype(total.dtype), steps)


def _is_sequential(*params: PyTree) -> bool:
    num_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(params))
    return platform() == "cpu" and num_bytes > SEQUENTIAL_BYTES


def random_order(key: Key, count: Array, batch_size: int, capacity: int) -> Array:
    """Random order of the rows 0 .. count - 1, then the others, in whole batches.

    Rows are sorted by 31 random bits each. Up to 1,024 rows the last ten bits are the
    row's number: sorting plain integers is five times faster than an argsort, and ties of
    the other 21 bits, whose rows keep their order, are too rare to matter. The bits of a
    row do not depend on the capacity, so padding does not change the order.
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
    """The gradient of a batch's loss, the default direction of `local_sgd`."""
    return jax.grad(objective)(params, weights)


def as_stepped(params: PyTree) -> PyTree:
    """No projection."""
    return params


@dataclasses.dataclass(frozen=True)
class ModelLoss:
    """The loss of each example under a model, `(params, frozen, x, y, key) -> (batch,)`.

    Attributes:
        model: reads the parameters and the inputs; nothing else may read them.
        trains: "all": params are the whole model; "representation": they are its
            representation, frozen is the head.
    """

    model: SplitModel
    trains: Literal["all", "representation"] = "all"

    def __call__(
        self, params: PyTree, frozen: PyTree, x: Array, y: Array, key: Key | None
    ) -> Array:
        """(batch,) losses."""
        whole = params
        if self.trains == "representation":
            whole = SplitParams(params, frozen)
        return self.model.loss(self.model.logits(whole, x, key), y)


def example_loss(model: SplitModel) -> ModelLoss:
    """The loss of each example, `(params, frozen, x, y, key) -> (batch,)`."""
    return ModelLoss(model)


def full_gradient(
    loss: Loss, params: PyTree, frozen: PyTree, examples: Examples, key: Key | None = None
) -> PyTree:
    """The gradient of the mean loss over all examples; zero if there are none.

    Args:
        loss: as for `local_sgd`.
        params: the point of the gradient.
        frozen: passed to `loss`.
        examples: of the client, all in one batch.
        key: passed to `loss`; None for evaluation mode, without dropout and augmentation.
    """
    if not jax.tree.leaves(params):
        return params
    objective = mean_objective(loss, frozen, examples, dtype_of(params), key)
    return of_examples(jax.grad(objective)(params), examples)


def mean_objective(
    loss: Loss, frozen: PyTree, examples: Examples, dtype: Any, key: Key | None = None
) -> Callable[[PyTree], Array]:
    """The mean loss over all examples, a function of the parameters of a type.

    Without examples its value may be nan.
    """
    capacity = examples.y.shape[0]
    x, y, valid = without_padding(examples)
    weights = valid.astype(dtype) / jnp.maximum(examples.count, 1).astype(dtype)

    def objective(params: PyTree) -> Array:
        losses = per_example(loss(params, frozen, x, y, key), capacity)
        return jnp.sum(weights * losses)

    return objective


def mean_loss(loss: Loss, params: PyTree, frozen: PyTree, examples: Examples) -> Array:
    """The mean loss over all examples in evaluation mode, () float; 0 without examples."""
    objective = mean_objective(loss, frozen, examples, dtype_of(params))
    return jnp.where(examples.count > 0, objective(params), 0)


def square_norm(tree: PyTree) -> Array:
    """The squared norm over all leaves, () float."""
    return jnp.asarray(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree)))


def dtype_of(params: PyTree) -> Any:
    """The dtype of parameters: that of the first leaf."""
    return jax.tree.leaves(params)[0].dtype


class Rows(NamedTuple):
    """All rows of a client's examples."""

    x: Array
    y: Array
    valid: Array  # (max_examples,) bool; False for padding


def without_padding(examples: Examples) -> Rows:
    """The examples, the first one in place of padding, which is never read."""
    rows = jnp.arange(examples.y.shape[0], dtype=jnp.int32)
    valid = rows < examples.count
    rows = jnp.where(valid, rows, 0)
    return Rows(examples.x[rows], examples.y[rows], valid)


def of_examples(gradient: PyTree, examples: Examples) -> PyTree:
    """Replace a gradient by 0 for a client without examples, where it may be nan."""
    return jax.tree.map(lambda leaf: jnp.where(examples.count > 0, leaf, 0), gradient)


class Batch(NamedTuple):
    """A batch of a client's examples."""

    rows: Array  # (batch,) int32
    valid: Array  # (batch,) bool; False: a row without weight
    active: Array  # () bool; False: the client has taken all its steps
    epoch: Array  # () int32, which includes earlier epochs
    number: Array | int  # () int32, in its epoch


class Step(NamedTuple):
    """A step of `local_sgd`, see its arguments."""

    loss: Loss
    gradient: Gradient
    after_step: Callable[[PyTree], PyTree]
    training: LocalTraining
    # One client trains after the other, so that no step is taken after a client's last.
    is_sequential: bool

    @property
    def is_in_span(self) -> bool:
        """True if the first dense layer is in the span of the examples."""
        return self.gradient is gradient_in_span

    @property
    def moves_only_rows(self) -> bool:
        """True if rows of other examples stay as they are in the span."""
        return self.is_in_span and self.training.optimizer.is_plain

    @property
    def is_none_without_weight(self) -> bool:
        """True if a batch of weight zero leaves a client that has finished unchanged.

        Its step then needs no select.
        """
        has_plain_gradient = self.gradient is plain_gradient or self.is_in_span
        is_plain = self.training.optimizer.is_plain and has_plain_gradient
        return is_plain and self.after_step is as_stepped and not self.is_sequential

    def __call__(
        self, carry: Carry, frozen: PyTree, examples: Examples, batch: Batch, key: Key
    ) -> Carry:
        """Take the step on a batch; the key is for noise."""
        valid = batch.valid
        if self.is_none_without_weight:
            valid = valid & batch.active
        # Rows without weight are the first example's, so padding is never read.
        rows = jnp.where(valid, batch.rows, 0)
        params, state, losses = carry
        dtype = dtype_of(params)
        weights = valid.astype(dtype) / jnp.maximum(jnp.sum(valid.astype(dtype)), 1)
        x = examples.x[rows]
        y = examples.y[rows]

        def objective(params: PyTree, weights: Array) -> Array:
            with example_weights(weights):
                each = self.loss(params, frozen, x, y, key)
                return jnp.sum(weights * per_example(each, rows.shape[0]))

        gradient = self.gradient(objective, params, weights)
        direction = without_statistics(gradient)
        if self.is_in_span and not self.moves_only_rows:  # momentum, decay move all rows
            direction = of_all_rows(direction, params, rows)
        if self.training.record_loss:
            losses = losses + objective(params, weights).astype(losses.dtype)
        updates, new_state = self.training.optimizer.update(direction, state, params)
        if self.moves_only_rows:
            new_params = apply_updates(params, updates, rows)
        else:
            new_params = optax.apply_updates(params, updates)
        new_params = self.after_step(new_params)
        if has_statistics(params):
            if self.gradient is not plain_gradient:
                gradient = plain_gradient(objective, params, weights)
            new_params = with_statistics(new_params, params, gradient, weights)
        new = new_params, new_state, losses
        if self.is_sequential or self.is_none_without_weight:
            return new
        return jax.tree.map(lambda n, o: jnp.where(batch.active, n, o), new, carry)


# (carry, batch) -> carry
Take = Callable[[Carry, Batch], Carry]


def over_random_batches(
    take: Take,
    carry: Carry,
    key: Key,
    examples: Examples,
    training: LocalTraining,
    first_step: Array,
) -> Carry:
    """Take `training.steps` steps on batches drawn with replacement."""
    batch_size = training.batch_size
    steps = num_steps(training, examples)
    everything = jnp.ones(batch_size, bool)

    def sampled(t: Array, carry: Carry) -> Carry:
        key_step = jax.random.fold_in(key, first_step + t)
        num_rows = jnp.maximum(examples.count, 1)
        rows = jax.random.randint(key_step, (batch_size,), 0, num_rows)
        return take(carry, Batch(rows, everything, t < steps, first_step + t, 0))

    max_steps = (training.steps or 0) * most_work()
    return fori_loop(batch_max(steps), sampled, carry, max_steps)


def over_epochs(
    take: Take,
    carry: Carry,
    key: Key,
    examples: Examples,
    training: LocalTraining,
    first_epoch: Array,
) -> Carry:
    """Take the steps of `training.epochs` epochs, each in an order of its own."""
    capacity = examples.y.shape[0]
    batch_size = training.batch_of(capacity)
    num_epochs = jnp.int32(training.epochs) * training.work
    steps = steps_per_epoch(training.batch_size, examples)
    position = jnp.arange(batch_size, dtype=jnp.int32)

    def epoch(e: Array, carry: Carry) -> Carry:
        key_epoch = jax.random.fold_in(key, first_epoch + e)
        order = random_order(key_epoch, examples.count, batch_size, capacity)

        def shuffled(s: Array, carry: Carry) -> Carry:
            first = s * batch_size
            rows = jax.lax.dynamic_slice_in_dim(
                order, first, batch_size, allow_negative_indices=False
            )
            valid = first + position < examples.count
            active = (e < num_epochs) & (s < steps)
            return take(carry, Batch(rows, valid, active, first_epoch + e, s))

        max_steps = -(-capacity // batch_size)
        return fori_loop(batch_max(steps), shuffled, carry, max_steps)

    max_epochs = (training.epochs or 0) * most_work()
    return fori_loop(batch_max(num_epochs), epoch, carry, max_epochs)


def local_sgd(
    key: Key,
    loss: Loss,
    params: PyTree,
    frozen: PyTree,
    examples: Examples,
    training: LocalTraining,
    first_epoch: Array | int = 0,
    gradient: Gradient = plain_gradient,
    after_step: Callable[[PyTree], PyTree] = as_stepped,
    optimizer_state: PyTree = None,
) -> Trained:
    """Train `params` on one client's examples.

    Args:
        key: of this client, round and purpose; epoch e draws its order from fold_in(key,
            e).
        loss: `(params, frozen, x, y, key) -> (batch,)`, of each example; its key is new
            in every step, for noise.
        params: the parameters to train; returned unchanged if there are no leaves.
        frozen: passed to `loss`.
        examples: x (max_examples, ...), y (max_examples,), count ().
        training: `training.in_round(context)` in a round, `training.alone(...)` in an
            evaluation.
        first_epoch: number of earlier epochs, so that training in parts draws the same
            batches as in one call.
        gradient: the step's gradient, from the objective `(params, weights) -> ()` of its
            batch.
        after_step: a projection after each step, such as onto [0, 1].
        optimizer_state: initial state of the optimizer; None: a new one.

    Returns:
        Parameters, the optimizer's state, the mean loss if the run records it, and the
        number of steps.

    Raises:
        ValueError: the loss has another shape.
    """
    optimizer = training.optimizer
    if not jax.tree.leaves(params):
        if optimizer_state is None:
            optimizer_state = optimizer.init(params)
        mean_loss = jnp.zeros(()) if training.record_loss else None
        return Trained(params, optimizer_state, mean_loss, jnp.int32(0))
    is_default = gradient is plain_gradient and after_step is as_stepped
    if is_default and optimizer_state is None:
        layer = layer_in_span(loss, params, examples, training)
        if layer is not None:
            return _sgd_in_span(
                layer, key, loss, params, frozen, examples, training, first_epoch
            )
    is_sequential = _is_sequential(params, frozen)
    step = Step(loss, gradient, after_step, training, is_sequential)

    def train(
        params: PyTree,
        state: PyTree,
        frozen: PyTree,
        examples: Examples,
        key: Key,
        work: Array,
        first_epoch: Array,
    ) -> Carry:
        key_noise = named_key(key, "noise")
        if state is None:
            state = optimizer.init(params)
        losses = jnp.zeros(()) if training.record_loss else ()

        def take(carry: Carry, batch: Batch) -> Carry:
            key_epoch = jax.random.fold_in(key_noise, batch.epoch)
            key_step = jax.random.fold_in(key_epoch, batch.number)
            return step(carry, frozen, examples, batch, key_step)

        over_batches = over_random_batches
        if training.steps is None:
            over_batches = over_epochs
        carry = mapped_with(examples.count, (params, state, losses))
        now = training._replace(work=work)
        return over_batches(take, carry, key, examples, now, first_epoch)

    if is_sequential:
        train = sequential(train)
    work = jnp.asarray(training.work, jnp.int32)
    first = jnp.asarray(first_epoch, jnp.int32)
    trained, state, losses = train(
        params, optimizer_state, frozen, examples, key, work, first
    )
    if step.is_none_without_weight:  # a client without examples has read only padding
        start = params, jax.tree.map(jnp.zeros_like, losses)
        if_examples = lambda new, old: jnp.where(examples.count > 0, new, old)
        trained, losses = jax.tree.map(if_examples, (trained, losses), start)
    steps = num_steps(training, examples)
    mean_loss = None
    if training.record_loss:
        mean_loss = losses / jnp.maximum(steps, 1).astype(losses.dtype)
    return Trained(trained, state, mean_loss, steps)


def layer_in_span(
    loss: Loss, params: PyTree, examples: Examples, training: LocalTraining
) -> str | None:
    """The name of a first dense layer that trains faster in the examples' span.

    None if there is none, see `models.dense`.

    On a CPU the number of products decides. In a plain step an example costs two per
    weight (outputs, gradient), in the span one per entry of R; reading and writing these
    costs each step as much as 20 and 10 more. The span adds X W0, X X^T and X^T R. On two
    cores with AVX-512 the way with fewer products was faster, or as fast, in 22 of 24
    cases of `benchmarks/first_layer.py`; FedRep with 480 images was slower by 9 and 16 %.

    A GPU waits for its memory, so the number of values read and written decides there, as
    counted in compiled programs. A plain step moves the weights three times, with other
    options five, with momentum seven times; in the span a plain step reads R and moves
    the rows of its batch three times, other steps move R five times, and momentum and
    weight decay add two each. Both ends of the span move W0, X, R and X X^T. One case has
    been measured, with 150 images.
    """
    optimizer = training.optimizer
    # A subclass of SGD may take other steps.
    if not isinstance(loss, ModelLoss) or type(optimizer) is not SGD:
        return None
    layer = loss.model.first_dense
    if layer is None:
        return None
    kernel = kernel_of(layer, params)
    if kernel is None or kernel.dtype != examples.x.dtype:
        return None
    dim, width = kernel.shape
    capacity = examples.y.shape[0]
    batch_size = training.batch_of(capacity)
    if training.epochs is None:
        num_examples = (training.steps or 0) * batch_size
    else:
        num_examples = training.epochs * capacity
    if platform() == "gpu":
        has_momentum = optimizer.momentum is not None
        has_decay = optimizer.weight_decay is not None
        if optimizer.is_plain:
            moves = 3
            rows_moved = capacity + 3 * batch_size
        else:
            moves = 5 + 2 * has_momentum
            rows_moved = (5 + 2 * has_momentum + 2 * has_decay) * capacity
        steps = num_examples / batch_size
        ends = (2 * dim + 3 * capacity) * width + (2 * dim + capacity) * capacity
        plain = steps * moves * dim * width
        in_span = steps * rows_moved * width + ends
    elif _is_sequential(params):
        steps_in_span = num_examples * capacity * width * (1 + 10 / batch_size)
        ends = 2 * capacity * dim * width + capacity**2 * dim
        plain = num_examples * dim * width * (2 + 20 / batch_size)
        in_span = steps_in_span + ends
    else:
        return None
    return layer if in_span < plain else None


def _sgd_in_span(
    layer: str,
    key: Key,
    loss: Loss,
    params: PyTree,
    frozen: PyTree,
    examples: Examples,
    training: LocalTraining,
    first_epoch: Array | int,
) -> Trained:
    """Train as `local_sgd`, with the named layer in the span of the examples."""

    def train(
        params: PyTree,
        frozen: PyTree,
        examples: Examples,
        key: Key,
        work: Array,
        first: Array,
    ) -> Trained:
        kernel = cast(Array, kernel_of(layer, params))
        start, inputs = into_span(layer, params, kernel, examples)
        now = training._replace(work=work)
        trained = local_sgd(
            key, loss, start, frozen, inputs, now, first, gradient_in_span
        )
        end, state = out_of_span((trained.params, trained.optimizer), kernel, examples)
        return trained._replace(params=end, optimizer=state)

    if platform() == "cpu":
        train = sequential(train)
    work = jnp.asarray(training.work, jnp.int32)
    first = jnp.asarray(first_epoch, jnp.int32)
    return train(params, frozen, examples, key, work, first)


def fit_head(
    key: Key,
    model: SplitModel,
    representation: PyTree,
    head: PyTree,
    examples: Examples,
    training: LocalTraining,
    first_epoch: Array | int = 0,
    optimizer_state: PyTree = None,
) -> Trained:
    """Train a head on a frozen representation.

    The deterministic first layers of the representation are computed once.
    """
    loss, frozen, examples = head_problem(model, representation, examples)
    return local_sgd(
        named_key(key, "head"),
        loss,
        head,
        frozen,
        examples,
        training,
        first_epoch,
        optimizer_state=optimizer_state,
    )


def head_problem(
    model: SplitModel, representation: PyTree, examples: Examples
) -> tuple[Loss, PyTree, Examples]:
    """Return the loss of a head, its frozen parameters, and its examples.

    The inputs of these examples are the outputs of the model's stem.
    """

    def loss(head: PyTree, frozen: PyTree, x: Array, y: Array, key: Key | None) -> Array:
        return model.loss(model.classify(head, model.rest(frozen, x, key), key), y)

    frozen = {
        name: params
        for name, params in representation.items()
        if name not in model.stem_layer_names
    }
    return loss, frozen, examples._replace(x=model.stem(representation, examples.x))


def with_tuned_head(
    key: Key,
    model: SplitModel,
    params: SplitParams,
    examples: Examples,
    training: LocalTraining,
) -> Predict:
    """Return the predictions of a model with its head trained on the client."""
    representation, head = params
    tuned = fit_head(key, model, representation, head, examples, training)
    params = SplitParams(representation, tuned.params)
    return Partial(model.logits, params)


def fit_representation(
    key: Key,
    model: SplitModel,
    representation: PyTree,
    head: PyTree,
    examples: Examples,
    training: LocalTraining,
    first_epoch: Array | int = 0,
    optimizer_state: PyTree = None,
) -> Trained:
    """Train a representation under a frozen head."""
    return local_sgd(
        named_key(key, "local"),
        ModelLoss(model, trains="representation"),
        representation,
        head,
        examples,
        training,
        first_epoch,
        optimizer_state=optimizer_state,
    )
