"""Methods and policies of one's own, beside those of the package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedjax_srp import models
from fedjax_srp._checks import unknown
from fedjax_srp.base import ParticipationPolicy
from fedjax_srp.methods.options import arguments, option_names
from fedjax_srp.methods.table import (
    BUILT_IN,
    BUILT_IN_POLICIES,
    POLICIES,
    RECIPES,
    Factory,
    Recipe,
    check_factory,
)
from fedjax_srp.parts import own_factory


def register(name: str, factory: Factory, **row: Any) -> None:
    """Adds a method of your own: `get`, the command line, tables and figures know it from then on.

    Args:
        name: of the method.
        factory: `(model, ...) -> FederatedAlgorithm`; its other arguments are the options of the method. Those that
            are annotated `float | Array` are passed as traced numbers, so that other values compile nothing.
        **row: the other fields of `Recipe`: participation, head_layers, label, color, twin, source, options.

    Raises:
        ValueError: a name of the package's own, an unknown field, participation or option, a factory without a model.

    Example:
        >>> import fedjax_srp as srp
        >>> srp.methods.register("my_fedavg", srp.algorithms.fedavg, label="My FedAvg", participation="doubling")
        >>> data = srp.data.load("digits", num_clients=20, classes_per_client=4)
        >>> srp.methods.get("my_fedavg", dataset=data, initial=5, local_epochs=2).participation.name
        'doubling'
        >>> del srp.methods.RECIPES["my_fedavg"]
    """
    if name in BUILT_IN:
        raise ValueError(f"name={name!r} is a method of the package; choose another name")
    for field in row:
        if field not in Recipe._fields:
            raise unknown("field of a recipe", field, Recipe._fields[1:])
    check_factory(factory)
    made = Recipe(factory, **row)
    if made.participation not in POLICIES:
        raise unknown("participation", made.participation, POLICIES)
    routed = [o for model in models.names() for o in option_names(factory, made.participation, model)]
    known = dict.fromkeys([*routed, *arguments(factory)])
    for option in made.options:
        if option not in known:
            raise unknown(f"option in the row of {name!r}", option, known)
    RECIPES[name] = made


def register_participation(name: str, factory: Callable[..., ParticipationPolicy]) -> None:
    """Adds a participation policy of your own: `get`, rows of methods and the command line know it from then on.

    Args:
        name: of the participation.
        factory: its arguments are options of every method that is run with it, on the command line those with a type.
            They stand in the record of a run, and equal ones give the same policy.

    Raises:
        ValueError: a name of the package's own, or a factory whose arguments cannot be given by name.

    Example:
        >>> import fedjax_srp as srp
        >>> def few(m: int = 5):
        ...     return srp.participation.uniform(m)._replace(name="few")
        >>> srp.methods.register_participation("few", few)
        >>> data = srp.data.load("digits", num_clients=20, classes_per_client=4)
        >>> srp.methods.get("fedrep", dataset=data, participation="few", m=3).participation.options
        {'m': 3}
        >>> del srp.methods.POLICIES["few"]
    """
    POLICIES[name] = own_factory("participation", name, factory, ParticipationPolicy, BUILT_IN_POLICIES)
