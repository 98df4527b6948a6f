"""Optimizers as parts: the papers' SGD, and any optimizer of optax."""

from __future__ import annotations

import inspect
import numbers
from collections.abc import Callable
from typing import Annotated, Any, ClassVar

import jax
import numpy as np
import optax
from jax.core import Tracer
from typing_extensions import override

from fedjax_srp.base import Array, PyTree
from fedjax_srp.parts.checks import short, unknown_keyword
from fedjax_srp.parts.part import AtLeast, Below, StepSize, is_part, part, undefined

Schedule = Callable[[Any], Any]  # the number of a local step -> its step size


@part
class Optimizer:
    """An optimizer of optax as a part; its state is reset in every round.

    A step gets the gradient but no loss, so line searches and optimizers that need the
    loss do not work.

    Attributes:
        default_class: the class whose fields are the options of an optimizer on the
            command line.
    """

    remedy: ClassVar[str] = "give e.g. srp.SGD(0.01)"
    default_class: ClassVar[Any] = None

    @property
    def is_plain(self) -> bool:
        """True if a step is -learning_rate times the gradient, and nothing else."""
        return False

    def transformation(self) -> optax.GradientTransformation:
        """Return the transformation of optax."""
        undefined(self.transformation)

    def init(self, params: PyTree) -> PyTree:
        """The state before the first step."""
        return self.transformation().init(params)

    def update(
        self, gradient: PyTree, state: PyTree, params: PyTree
    ) -> tuple[PyTree, PyTree]:
        """Return the update of the parameters, and the new state."""
        return self.transformation().update(gradient, state, params)


@part
class SGD(Optimizer):
    """SGD as in the papers' experiments: weight decay leaves out biases.

    It acts on arrays of rank 2 and more.

    So it is in the code of SRPFL's authors. The paper on FedAvg as a representation
    learner does not say, and PyTorch's SGD decays biases too.

    Args:
        learning_rate: step size; a schedule of optax would count the client's local
            steps.
        momentum: heavy-ball coefficient, in [0, 1); the buffer starts at zero in every
            round. None: no buffer.
        weight_decay: coefficient of the L2 penalty's gradient; None: no decay.

    Raises:
        ValueError: a number is out of range.

    Example:
        >>> import fedjax_srp as srp
        >>> srp.SGD(0.05, momentum=0.5)
        SGD(learning_rate=0.05, momentum=0.5)
    """

    learning_rate: StepSize | Schedule = 0.01
    momentum: (
        Annotated[float, AtLeast(0), Below(1), "give None for none, or e.g. 0.5"] | None
    ) = None
    weight_decay: (
        Annotated[float, AtLeast(0), "give None for none, or a small number, e.g. 1e-4"]
        | None
    ) = None

    @property
    @override
    def is_plain(self) -> bool:
        if type(self) is not SGD:
            return False  # a subclass may take other steps
        has_terms = self.momentum is not None or self.weight_decay is not None
        return not has_terms and not callable(self.learning_rate)

    @override
    def transformation(self) -> optax.GradientTransformation:
        step = optax.sgd(self.learning_rate, self.momentum)  # type: ignore[arg-type]
        if self.weight_decay is None:
            return step
        on_weights = lambda params: jax.tree.map(lambda w: w.ndim > 1, params)
        decay = optax.add_decayed_weights(self.weight_decay, mask=on_weights)
        return optax.chain(decay, step)


Optimizer.default_class = SGD


@part
class OptaxOptimizer(Optimizer):
    """The result of `optimizer`."""

    factory: Callable[..., optax.GradientTransformation]
    floats: dict[str, float]
    others: tuple[tuple[str, Any], ...] = ()

    @override
    def transformation(self) -> optax.GradientTransformation:
        return self.factory(**self.floats, **dict(self.others))


Given = Optimizer | optax.GradientTransformation  # accepted as an optimizer
OptimizerOfRound = Callable[[Array], Optimizer]  # of the round, () float from 0


def optimizer(
    factory: Callable[..., optax.GradientTransformation], **arguments: Any
) -> Optimizer:
    """An optimizer of optax, or your own, whose floats are traced.

    Args:
        factory: function that returns the transformation, such as `optax.adam`.
        **arguments: of the factory; floats are leaves, everything else is static.

    Raises:
        ValueError: `factory` is no function, or does not take these arguments.

    Example:
        >>> import jax, optax, fedjax_srp as srp
        >>> jax.tree.leaves(srp.optimizer(optax.adam, learning_rate=1e-3, nesterov=True))
        [0.001]
    """
    problem = ""
    try:
        signature = inspect.signature(factory)
        problem = unknown_keyword(signature, arguments)
        signature.bind(**arguments)
    except TypeError as error:
        reason = problem or str(error)
        if not callable(factory):
            reason = "no function"
        raise ValueError(
            f"optimizer: {short(factory)}: {reason}; give a factory such as optax.adam"
        ) from None
    floats = {}
    others = []
    for name, value in arguments.items():
        if not _is_float(value):
            others.append((name, value))
        elif isinstance(value, numbers.Real):
            floats[name] = float(value)
        else:
            floats[name] = value
    return OptaxOptimizer(factory, floats, tuple(sorted(others)))


def _is_float(value: Any) -> bool:
    return isinstance(value, float | np.floating | np.ndarray | jax.Array | Tracer)


class _ConstantFactory:
    """A factory that returns a given transformation; equal only to itself."""

    name = "GradientTransformation"  # in records, which cannot describe it

    def __init__(self, transformation: optax.GradientTransformation):
        self.transformation = transformation

    def __call__(self) -> optax.GradientTransformation:
        return self.transformation


def as_optimizer(argument: str, value: Any) -> Any:
    """Return an argument as an optimizer, or as a function of the round that returns one.

    A transformation of optax is accepted too, but unlike `optimizer` it recompiles for
    other numbers.
    """
    if isinstance(value, Optimizer):
        return value
    if isinstance(value, optax.GradientTransformation):
        return OptaxOptimizer(_ConstantFactory(value), {})
    is_function = callable(value) and not isinstance(value, type) and not is_part(value)
    # A function with a learning rate is optax.sgd, say, instead of its result.
    if not is_function or "learning_rate" in _parameters(value):
        raise ValueError(
            f"{argument}={short(value)} must be an optimizer; give e.g. srp.SGD(0.01), "
            "not srp.SGD"
        )
    return value


def optional_optimizer(argument: str, value: Any) -> Any:
    """Return `as_optimizer` of an argument that may be None."""
    if value is None:
        return None
    return as_optimizer(argument, value)


def _parameters(function: Any) -> Any:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # some builtins have no signature
        return ()
