"""Methods made of their options."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Callable, Mapping
from typing import Any

from fedjax_srp import models
from fedjax_srp._checks import check_integer, checked, is_number
from fedjax_srp.base import FederatedAlgorithm, Method, ParticipationPolicy
from fedjax_srp.methods.options import Choice, arguments, choose, optimizers
from fedjax_srp.methods.table import BUILT_IN_POLICIES, POLICIES, Factory, Recipe, recipe
from fedjax_srp.models import SplitModel
from fedjax_srp.models.augment import check_dataset
from fedjax_srp.outside import reads
from fedjax_srp.parts import tunable
from fedjax_srp.record import Options, describe


@checked
def get(
    name: str | Factory,
    *,
    dataset: Any,
    model: str | SplitModel = "mlp",
    participation: str | ParticipationPolicy | None = None,
    shared: Mapping[str, Any] | None = None,
    **options: Any,
) -> Method:
    """A method at the hyper-parameters of the papers unless told otherwise (SRPFL, section 5 and appendix C).

    Options are the arguments of the algorithm's factory (`srp.algorithms`), of its policy (`srp.participation`), of
    its model (`srp.models`), and `learning_rate`, `momentum`, `weight_decay`, `fine_tune_momentum` of its optimizers;
    `option_names` lists them. Learning rates and other floats are arguments of the compiled program: another value
    compiles nothing.

    Args:
        name: one of `names()`, an algorithm of `srp.algorithms`, or a factory `(model, ...) -> FederatedAlgorithm`.
        dataset: what it will run on; gives the model its shapes.
        model: one of `srp.models.names()`, cut where the method wants it, or a `SplitModel` cut as you want it.
        participation: a name of `srp.participation`, or a policy; None for that of the method. With `pool=N`, methods
            without doubling train N clients drawn at random.
        shared: options for several methods, of which this one takes its own and ignores the others: for grids.
        **options: of this method.

    Returns:
        A `Method`, to be passed to `srp.simulate`; its `options` hold every option with its value.

    Raises:
        ValueError: an unknown name (with the nearest ones), an option that the method does not read, an argument out of
            range, a model that does not take the examples of `dataset`.

    Example:
        >>> import fedjax_srp as srp
        >>> data = srp.data.load("digits", num_clients=20, classes_per_client=4)
        >>> srp.methods.get("srpfl", dataset=data).participation.name
        'doubling'
    """
    check_dataset(dataset)
    choice = choose(name, model, participation, shared, **options)
    route, row = choice.route, recipe(name)
    if route.participation in BUILT_IN_POLICIES:
        _check_sizes(dataset, **{o: v for o, v in choice.policy.items() if o in ("pool", "initial", "k")})
    policy = participation
    if not isinstance(policy, ParticipationPolicy):
        policy = POLICIES[route.participation](**choice.policy)
    values = traced(choice)
    constants = {o: tuple(v) if isinstance(v, list) else v for o, v in choice.algorithm.items() if o not in values}
    whole = _model(name, row, dataset, model, choice.model)
    build = _Build(route.factory, whole, tuple(constants.items()), route.optimizers, reads(route.factory))
    options = {option: describe(value) for option, value in choice.record().items()}
    return Method(choice.name, tunable(build, values), policy, Options(options))


def traced(choice: Choice) -> dict[str, Any]:
    """The options of a method that are arguments of its program, as floats: another value compiles nothing."""
    route, values = choice.route, choice.algorithm
    sources = ((route.factory, route.algorithm), (optimizers, route.optimizers))
    return {o: float(values[o]) for function, of in sources for o in of if _is_traced(function, o, values[o])}


@dataclasses.dataclass(frozen=True)
class _Build:
    """Makes a method's algorithm of its floats; equal where all else is."""

    factory: Factory
    model: SplitModel
    constants: tuple[tuple[str, Any], ...]
    of_sgd: tuple[str, ...]  # names of the options that `optimizers` takes
    outside: tuple[Any, ...]  # what the factory reads

    def __call__(self, values: Mapping[str, Any]) -> FederatedAlgorithm:
        options = dict(self.constants) | dict(values)
        of_sgd = {name: options.pop(name) for name in self.of_sgd}
        made = self.factory(self.model, **options | (optimizers(**of_sgd) if of_sgd else {}))
        if made is None:
            raise ValueError(
                f"{getattr(self.factory, '__name__', self.factory)}: returned None, not a FederatedAlgorithm"
            )
        return made


def _is_traced(function: Callable[..., Any], option: str, value: Any) -> bool:
    """Whether an option is an argument of the program: a number where the signature says `float | Array`.

    Zero is not: it may leave out a computation, such as that of momentum.
    """
    parameter = arguments(function).get(option)
    may_be = parameter is not None and "Array" in str(parameter.annotation)
    return may_be and isinstance(value, numbers.Real) and is_number(value) and value != 0


def _check_sizes(dataset: Any, **sizes: int | None) -> None:
    """Refuses numbers of participants below 1 and, where the data has a number of clients, above it."""
    num_clients = getattr(dataset, "num_clients", None)
    for argument, size in sizes.items():
        if size is not None and check_integer(argument, size, 1) > (num_clients or size):
            raise ValueError(f"{argument}={size} is larger than num_clients={num_clients}; give at most {num_clients}")


def _model(
    name: str | Factory, row: Recipe, dataset: Any, model: str | SplitModel, options: dict[str, Any]
) -> SplitModel:
    """A model cut where a method wants it."""
    if isinstance(model, SplitModel):
        initialization, augment = options.get("initialization"), options.get("augment")
        model = model if initialization is None else models.initialized(model, initialization)
        return model if augment is None else models.augmented(model, models.augmentation(augment, dataset))
    options = {"head_layers": row.head_layers, **options}
    whole = models.get(model, dataset, **{**options, "head_layers": 0})
    if check_integer("head_layers", options["head_layers"], 0) > len(whole.layers):
        raise ValueError(
            f"method {name!r} takes the last {options['head_layers']} layers of a model as its head and model "
            f"{model!r} has {len(whole.layers)} ({', '.join(whole.layers)}); give it more, e.g. hidden=(64, 32)"
        )
    return models.get(model, dataset, **options)
