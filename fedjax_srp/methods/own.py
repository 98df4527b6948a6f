"""Registration of users' methods."""

from __future__ import annotations

from typing import Any

from fedjax_srp import models
from fedjax_srp.base import ParticipationPolicy
from fedjax_srp.methods.options import option_names
from fedjax_srp.methods.table import RECIPES, Factory, Recipe, check_factory
from fedjax_srp.parts.checks import as_annotated, check_known
from fedjax_srp.parts.options import options_of


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
    check_known("field", row, Recipe._fields[1:], of="a recipe")
    check_factory(factory)
    made = Recipe(factory, **row)
    as_annotated("participation", made.participation, str | ParticipationPolicy)
    readable: list[str] = []
    for model in models.names():
        readable += option_names(factory, made.participation, model)
    known = dict.fromkeys([*readable, *options_of(factory)])
    check_known("option", made.options, known, of=f"the row of {name!r}")
    RECIPES.add(name, made)
