"""Models, each split at a named layer into a representation and a head."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

from fedjax_srp.base import name_of_data
from fedjax_srp.models.augment import CropAndFlip, augmentation, check_dataset
from fedjax_srp.models.cnn import CNN
from fedjax_srp.models.convolution import Convolution
from fedjax_srp.models.dense import Dense
from fedjax_srp.models.from_module import from_module
from fedjax_srp.models.gpt import GPT
from fedjax_srp.models.lenet import Dropout, LeNet5, LeNet5CIFAR100
from fedjax_srp.models.linear_regression import LinearRegression, half_square
from fedjax_srp.models.lora import lora
from fedjax_srp.models.lstm import LSTM, TokenLSTM
from fedjax_srp.models.mlp import MLP
from fedjax_srp.models.resnet import ResNet18
from fedjax_srp.models.split import Layer, Split, SplitModel, SplitParams, cross_entropy
from fedjax_srp.parts.checks import check_known, checked
from fedjax_srp.parts.options import checked_maker, options_of
from fedjax_srp.parts.part import is_part
from fedjax_srp.parts.registry import Registry

__all__ = [
    "CNN",
    "GPT",
    "LSTM",
    "MLP",
    "Convolution",
    "CropAndFlip",
    "Dense",
    "Dropout",
    "Layer",
    "LeNet5",
    "LeNet5CIFAR100",
    "LinearRegression",
    "ResNet18",
    "Split",
    "SplitModel",
    "SplitParams",
    "TokenLSTM",
    "augmentation",
    "cross_entropy",
    "from_module",
    "get",
    "half_square",
    "lora",
    "names",
    "options",
    "register",
]

Factory = Callable[..., SplitModel]  # (input_shape, num_classes, ...)

FACTORIES: Registry[Factory] = Registry(
    "model",
    {
        "mlp": MLP,
        "lenet5": LeNet5,
        "lenet5_cifar100": LeNet5CIFAR100,
        "cnn": CNN,
        "resnet18": ResNet18,
        "lstm": LSTM,
        "gpt": GPT,
        "token_lstm": TokenLSTM,
    },
    adds="srp.models.register",
)


def names() -> list[str]:
    """The models that `get` knows."""
    return FACTORIES.names()


def register(name: str, factory: Factory) -> None:
    """Register your own model for `get`, every method and the command line.

    Args:
        name: of the model.
        factory: a class of models, or a function `(input_shape, num_classes, ...) -> SplitModel`,
            called with the shape of one example and the number of classes of a data set. Its other
            arguments have defaults and are options, on the command line those with a type.

    Example:
        >>> import fedjax_srp as srp
        >>> def two_layers(input_shape, num_classes, width: int = 32):
        ...     return srp.models.MLP(input_shape, num_classes, hidden=(width,))
        >>> srp.models.register("two_layers", two_layers)
        >>> data = srp.data.load("digits", num_clients=20, classes_per_client=4)
        >>> method = srp.methods.get("fedrep", dataset=data, model="two_layers", width=16)
        >>> method.algorithm.model.hidden
        (16,)
        >>> del srp.models.FACTORIES["two_layers"]
    """
    FACTORIES.add(name, checked_maker("model", factory, SplitModel, given=2))


_COMMON_FIELDS = (
    "input_shape",
    "num_classes",
    "cut",
    "dtype",
    "augment",
    "initialization",
)


@checked
def get(
    name: str,
    dataset: Any,
    head_layers: int = 1,
    augment: Literal["crop_flip"] | None = None,
    initialization: Literal["torch"] | None = None,
    **settings: Any,
) -> SplitModel:
    """Make a model by name, shaped for a data set.

    Args:
        name: one of `names()`.
        dataset: gives `example_shape` and `num_classes`.
        head_layers: number of last layers above the cut: 1 for FedRep's head, 2 for the layers that
            LG-FedAvg shares.
        augment: augmentation in training: "crop_flip" shifts images by up to 4 pixels and mirrors
            half of them, as in the authors' code on CIFAR; None for none.
        initialization: "torch" for PyTorch's defaults, used in FedRep's experiments; None for
            Flax's.
        **settings: options of that model, see `options`.
    """
    check_dataset(dataset)
    if "cut" in settings:
        raise ValueError(
            "cut: it follows from head_layers; give head_layers, or call model.recut(layer)"
        )
    check_known("option", settings, options(name), of=f"model {name!r}")
    try:
        model = FACTORIES[name](
            tuple(dataset.example_shape), dataset.num_classes, **settings
        )
    except ValueError as error:
        data_name = name_of_data(dataset)
        raise ValueError(f"model={name!r} for data set {data_name!r}: {error}") from None
    return adjusted(model.cut_above(head_layers), dataset, augment, initialization)


def adjusted(
    model: SplitModel, dataset: Any, augment: str | None, initialization: Any
) -> SplitModel:
    """Set augmentation and initialization by name; None keeps the model's own."""
    if initialization is not None:
        model = dataclasses.replace(model, initialization=initialization)
    if augment is not None:
        model = dataclasses.replace(model, augment=augmentation(augment, dataset))
    return model


@checked
def options(name: str) -> dict[str, Any]:
    """Return {option: default} of a model by name; its cut follows from `head_layers`."""
    factory = FACTORIES[name]
    arguments = options_of(factory)
    common = _COMMON_FIELDS
    if not is_part(factory):
        common = (*list(arguments)[:2], "cut")
    return {
        option: arguments[option].default for option in arguments if option not in common
    }
