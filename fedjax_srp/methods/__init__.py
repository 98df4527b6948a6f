"""Methods by name: an algorithm with its participation and the papers' hyper-parameters.

The table has a row per method. Options are fields of dataclasses, defined once: of the algorithm, of its `Training` and
optimizer, of the policy and of the model (`fedjax_srp.parts.options`). Python, the command line, records of
runs and the manual read them there.
"""

from fedjax_srp.methods.build import get
from fedjax_srp.methods.options import (
    Choice,
    choose,
    name_of,
    option_names,
    read_unless_name,
    routes,
)
from fedjax_srp.methods.own import register
from fedjax_srp.methods.table import (
    RECIPES,
    Recipe,
    algorithm_names,
    label,
    names,
    recipe,
)
from fedjax_srp.participation.by_name import POLICIES, register_participation

__all__ = [
    "POLICIES",
    "RECIPES",
    "Choice",
    "Recipe",
    "algorithm_names",
    "choose",
    "get",
    "label",
    "name_of",
    "names",
    "option_names",
    "read_unless_name",
    "recipe",
    "register",
    "register_participation",
    "routes",
]
