"""SGD that tells what it is made of."""

from __future__ import annotations

import jax
import optax

from fedjax_srp._checks import check_momentum, check_numbers
from fedjax_srp.base import Array
from fedjax_srp.parts import interned
from fedjax_srp.record import recorded


class SGD(optax.GradientTransformation):
    """SGD that can tell its numbers, for methods whose mathematics speaks of them.

    Attributes:
        step_size: the learning rate.
        momentum: the heavy-ball coefficient.
        weight_decay: coefficient of the L2 penalty's gradient, on arrays of rank 2 and more.
        is_plain: a step is exactly -step_size times the gradient: no momentum, no decay, no schedule.
    """

    step_size: float | Array | optax.Schedule
    momentum: float | Array
    weight_decay: float | Array
    is_plain: bool


@interned
@recorded
def sgd(
    learning_rate: float | Array | optax.Schedule, momentum: float | Array = 0.0, weight_decay: float | Array = 0.0
) -> SGD:
    """SGD as in the papers' experiments: decay acts on weights (arrays of rank 2 and more) and not on biases.

    For equal numbers the very same object, so that programs are shared.

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
    if not off(weight_decay):
        on_weights = lambda params: jax.tree.map(lambda w: w.ndim > 1, params)  # noqa: E731
        step = optax.chain(optax.add_decayed_weights(weight_decay, mask=on_weights), step)
    made = SGD(*step)
    made.step_size, made.momentum, made.weight_decay = learning_rate, momentum, weight_decay
    made.is_plain = off(momentum) and off(weight_decay) and not callable(learning_rate)
    return made
