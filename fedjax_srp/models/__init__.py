"""Models, each split at a named layer into a representation and a head."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal

from fedjax_srp._checks import checked, short, unknown
from fedjax_srp.models._shapes import Shapes
from fedjax_srp.models.augment import augmentation, check_dataset, crop_and_flip
from fedjax_srp.models.cnn import cnn
from fedjax_srp.models.convolution import Convolution
from fedjax_srp.models.initialization import initialized
from fedjax_srp.models.lenet import lenet5, lenet5_cifar100
from fedjax_srp.models.linear_regression import half_square, linear_regression
from fedjax_srp.models.lstm import lstm
from fedjax_srp.models.mlp import mlp
from fedjax_srp.models.split import Layer, SplitModel, SplitParams, augmented, cross_entropy, split
from fedjax_srp.outside import reads
from fedjax_srp.parts import interned, own_factory

__all__ = [
    "Convolution",
    "Layer",
    "SplitModel",
    "SplitParams",
    "augmentation",
    "augmented",
    "cnn",
    "crop_and_flip",
    "cross_entropy",
    "get",
    "half_square",
    "initialized",
    "lenet5",
    "lenet5_cifar100",
    "linear_regression",
    "lstm",
    "mlp",
    "names",
    "options",
    "register",
    "split",
]

Factory = Callable[..., SplitModel]  # (input_shape, num_classes, ...)

_BUILT_IN: dict[str, Factory] = {
    "mlp": mlp,
    "lenet5": lenet5,
    "lenet5_cifar100": lenet5_cifar100,
    "cnn": cnn,
    "lstm": lstm,
}
FACTORIES = {**_BUILT_IN}  # and those that `register` adds


def names() -> list[str]:
    """The models that `get` knows."""
    return list(FACTORIES)


def register(name: str, factory: Factory) -> None:
    """Adds a model of your own: `get`, every method and the command line know it from then on.

    Args:
        name: of the model.
        factory: `(input_shape, num_classes, ...) -> SplitModel`, called with the shape of one example and the number of
            classes of a data set; its other arguments have defaults and are options, on the command line those with a
            type. They stand in the record of a run, and equal ones give the same model.

    Raises:
        ValueError: a name of the package's own, a factory that does not take two arguments, or an option without a name
            or a default.

    Example:
        >>> import fedjax_srp as srp
        >>> def two_layers(input_shape, num_classes, width: int = 32):
        ...     return srp.models.mlp(input_shape, num_classes, hidden=(width,))
        >>> srp.models.register("two_layers", two_layers)
        >>> data = srp.data.load("digits", num_clients=20, classes_per_client=4)
        >>> method = srp.methods.get("fedrep", dataset=data, model="two_layers", width=16)
        >>> method.options["model"], method.options["width"]
        ('two_layers', 16)
        >>> del srp.models.FACTORIES["two_layers"]
    """
    FACTORIES[name] = own_factory("model", name, factory, SplitModel, _BUILT_IN, given=2)


@checked
def get(
    name: str,
    dataset: Any,
    head_layers: int = 1,
    augment: Literal["crop_flip"] | None = None,
    initialization: Literal["torch"] | None = None,
    **options: Any,
) -> SplitModel:
    """A model by name, shaped for a data set; the very same for equal arguments, so that programs are shared.

    Args:
        name: one of `names()`.
        dataset: gives `example_shape` and `num_classes`.
        head_layers: how many of the last layers are above the cut: 1 for FedRep's head, 2 for what LG-FedAvg shares.
        augment: what happens to inputs in training: "crop_flip" shifts images by up to 4 pixels and mirrors half of
            them, as the authors' code does on CIFAR; None for nothing.
        initialization: where parameters start: "torch" for the defaults of PyTorch, in which FedRep's experiments
            were run (`initialized`); None for those of Flax.
        **options: passed to the factory of that name.

    Raises:
        ValueError: an unknown name (with the nearest ones), a head with more layers than the model, an unknown option,
            an option out of range, examples that the model does not take.
    """
    if name not in FACTORIES:
        raise unknown("model", name, FACTORIES)
    check_dataset(dataset)
    _check_options(name, options)
    every = {**_defaults(name), **options}
    hashable = {option: tuple(value) if isinstance(value, list) else value for option, value in every.items()}
    factory, shapes = FACTORIES[name], Shapes.of(dataset, augment is not None)
    return _get(name, factory, reads(factory), shapes, head_layers, augment, initialization, **hashable)


@interned
def _get(
    name: str,
    factory: Factory,
    outside: tuple[Any, ...],
    shapes: Shapes,
    head_layers: int,
    augment: str | None,
    initialization: Any,
    **options: Any,
) -> SplitModel:
    del outside  # tells apart what one factory makes
    try:
        model = factory(shapes.example_shape, shapes.num_classes, **options)
    except ValueError as error:
        raise ValueError(f"model={name!r} for data set {shapes.name!r}: {error}") from None
    model = model.cut_above(head_layers)
    model = model if initialization is None else initialized(model, initialization)
    return model if augment is None else augmented(model, augmentation(augment, shapes))


@checked
def options(name: str) -> dict[str, Any]:
    """Option -> default: what `get` passes to the factory of a model. Its cut follows from `head_layers`.

    Raises:
        ValueError: an unknown name (with the nearest ones).
    """
    if name not in FACTORIES:
        raise unknown("model", name, FACTORIES)
    return _defaults(name)


def _defaults(name: str) -> dict[str, Any]:
    parameters = list(inspect.signature(FACTORIES[name]).parameters.items())[2:]  # but shape and classes
    return {option: parameter.default for option, parameter in parameters if option != "cut"}


def _check_options(name: str, given: Mapping[str, Any]) -> None:
    """Refuses what the factory of that name does not take."""
    if "cut" in given:
        shown = short(given["cut"])
        raise ValueError(f"cut={shown}: the cut follows from head_layers; give that, or model.recut(layer)")
    known = {model: _defaults(model) for model in FACTORIES}
    for option in given:
        owners = " or ".join(repr(model) for model in known if option in known[model])
        if owners and option not in known[name]:
            raise ValueError(f"{option}: belongs to model {owners} and the model is {name!r}; leave one of them out")
        if option not in known[name]:
            raise unknown(f"option of model {name!r}", option, known[name])
