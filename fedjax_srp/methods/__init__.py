"""Methods by name: an algorithm with its participation, at the papers' hyper-parameters.

The table has one row a method. Options are routed, not listed: `get` reads off signatures which of them the algorithm's
factory, its optimizers, the policy and the model take, so a hyper-parameter is written once, in its factory, and
reaches Python, the command line, the record of a run and the manual from there.
"""

from fedjax_srp.methods.build import get, traced
from fedjax_srp.methods.options import (
    OBJECTS,
    Choice,
    choose,
    name_of,
    optimizers,
    option_names,
    routes,
    without_effect,
)
from fedjax_srp.methods.own import register, register_participation
from fedjax_srp.methods.table import POLICIES, RECIPES, Recipe, algorithm_names, label, names, recipe

__all__ = [
    "OBJECTS",
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
    "optimizers",
    "option_names",
    "recipe",
    "register",
    "register_participation",
    "routes",
    "traced",
    "without_effect",
]
