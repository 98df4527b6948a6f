"""Registration of users' methods and policies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedjax_srp import models
from fedjax_srp.base import ParticipationPolicy
from fedjax_srp.methods.options import option_names
from fedjax_srp.methods.table import (
    BUILT_IN,
    BUILT_IN_POLICIES,
    POLICIES,
    RECIPES,
    Factory,
    Recipe,
    check_factory,
)
from fedjax_srp.parts.checks import check_known
from fedjax_srp.parts.options import checked_maker, options_of


def register(name: str, factory: Factory, **row: Any) -> None:
    """Register your own method for `get`, the command line, tables and figures.

    Args:
        name: of the method.
        factory: a class of algorithms whose first field is `model`, or a function `(model, ...) ->
            FederatedAlgorithm`; its other fields, or arguments, are the options of the method.
        **row: the other fields of `Recipe`: participation, head_layers, label, color, twin, source, options.

    Raises:
        ValueError: a built-in name, an unknown field, participation or option, or a factory without a model.

    Example:
        >>> import fedjax_srp as srp
        >>> srp.methods.register("my_fedavg", srp.algorithms.FedAvg, label="My FedAvg", participation="doubling")
        >>> data = srp.data.load("digits", num_clients=20, classes_per_client=4)
        >>> srp.methods.get("my_fedavg", dataset=data, initial=5, epochs=2).participation.name
        'doubling'
        >>> del srp.methods.RECIPES["my_fedavg"]
    """
    if name in BUILT_IN:
        raise ValueError(f"name={name!r} is a method of the package; choose another name")
    check_known("field", row, Recipe._fields[1:], of="a recipe")
    check_factory(factory)
    made = Recipe(factory, **row)
    routed = [
        o
        for model in models.names()
        for o in option_names(factory, made.participation, model)
    ]
    check_known(
        "option",
        made.options,
        dict.fromkeys([*routed, *options_of(factory)]),
        of=f"the row of {name!r}",
    )
    RECIPES[name] = made


def register_participation(
    name: str, factory: Callable[..., ParticipationPolicy]
) -> None:
    """Register your own participation policy for `get`, rows of methods and the command line.

    Args:
        name: of the participation.
        factory: a class of policies, or a function that returns one; its fields or arguments are options of methods
            with it, on the command line only those with a type.

    Raises:
        ValueError: a built-in name.

    Example:
        >>> import fedjax_srp as srp
        >>> def few(m: int = 5):
        ...     return srp.participation.Uniform(m)
        >>> srp.methods.register_participation("few", few)
        >>> data = srp.data.load("digits", num_clients=20, classes_per_client=4)
        >>> srp.methods.get("fedrep", dataset=data, participation="few", m=3).participation
        Uniform(k=3)
        >>> del srp.methods.POLICIES["few"]
    """
    POLICIES[name] = checked_maker(
        "participation", name, factory, ParticipationPolicy, BUILT_IN_POLICIES
    )
