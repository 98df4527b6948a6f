"""Methods of one's own, beside those of the table."""

from __future__ import annotations

from typing import Any

from fedjax_srp import models
from fedjax_srp._checks import unknown
from fedjax_srp.methods.options import arguments, option_names
from fedjax_srp.methods.table import BUILT_IN, POLICIES, RECIPES, Factory, Recipe, check_factory


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
