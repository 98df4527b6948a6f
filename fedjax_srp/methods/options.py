"""Options of a method by the part that reads them: fields of algorithm, policy and model."""

from __future__ import annotations

import collections
import itertools
import numbers
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from fedjax_srp import models
from fedjax_srp.base import ParticipationPolicy
from fedjax_srp.methods.table import POLICIES, RECIPES, Factory, recipe
from fedjax_srp.models import SplitModel
from fedjax_srp.parts import part as parts
from fedjax_srp.parts.checks import as_annotated, check_known, is_number, nearest
from fedjax_srp.parts.description import describe
from fedjax_srp.parts.options import REQUIRED, Option, build, options_of, without_partial

ANY_MODEL_OPTIONS = (
    "augment",
    "initialization",
)  # of `models.get`, also for models given as objects
MODEL_OPTIONS = ("head_layers", *ANY_MODEL_OPTIONS)  # for all models by name
_PLACEHOLDER_MODEL = models.MLP((1,), 1, hidden=(1, 1, 1))  # no leaf depends on the model


class Routes(NamedTuple):
    """Options of a method by the part that reads them, under short names."""

    factory: Factory
    participation: str
    algorithm: Mapping[str, Option]
    policy: Mapping[str, Option]
    model: Collection[str]


def routes(
    name: str | Factory,
    policy: str | ParticipationPolicy | None = None,
    model: str | SplitModel = "mlp",
) -> Routes:
    """Return the options of a method.

    Args:
        name: of the method, or a class or function that makes an algorithm.
        policy: its participation; None for its row's. A policy object has no options.
        model: its model. A model object has few options.
    """
    row = recipe(name)
    of_algorithm = {
        name: option
        for name, option in options_of(row.factory).items()
        if option.path != "model"
    }
    of_model = (
        (*MODEL_OPTIONS, *models.options(model))
        if isinstance(model, str)
        else ANY_MODEL_OPTIONS
    )
    if isinstance(policy, ParticipationPolicy):
        return Routes(row.factory, policy.name, of_algorithm, {}, of_model)
    policy = policy or row.participation
    own = (
        "; srp.methods.register_participation, in a file for --load, adds one of your own"
    )
    check_known("participation", [policy], POLICIES, own)
    return Routes(
        row.factory, policy, of_algorithm, options_of(POLICIES[policy]), of_model
    )


def option_names(
    name: str | Factory, policy: str | None = None, model: str = "mlp"
) -> list[str]:
    """Return the options that `get` takes for a method with a participation and a model, beside its own arguments.

    Raises:
        ValueError: an unknown method, participation or model.

    Example:
        >>> [option for option in option_names("srpfl") if option not in option_names("fedrep")]
        ['initial', 'rounds_per_stage', 'redraw', 'by']
    """
    route = routes(name, policy, model)
    of_algorithm = (
        name for name, option in route.algorithm.items() if not option.is_part
    )
    return list(dict.fromkeys([*of_algorithm, *route.policy, *route.model]))


class Choice(NamedTuple):
    """Method with its chosen options."""

    name: str
    route: Routes
    algorithm: dict[str, Any]  # given options only
    policy: dict[str, Any]  # given options only
    model: dict[str, Any]  # given options only
    defaults: dict[str, Any]  # of the model

    def record(self) -> dict[str, Any]:
        """Return option -> value for the record of a run, without objects that are not given."""
        whole = [
            self.route.algorithm[name].path
            for name in self.algorithm
            if self.route.algorithm[name].is_part
        ]
        plain = {
            name: option.default
            for name, option in self.route.algorithm.items()
            if not (
                option.is_part
                or option.is_optional
                or any(option.path.startswith(f"{path}.") for path in whole)
            )
        }
        of_policy = {name: option.default for name, option in self.route.policy.items()}
        values = (
            plain
            | self.algorithm
            | {"participation": self.route.participation}
            | of_policy
            | self.policy
        )
        return {
            name: describe(value)
            for name, value in (values | self.defaults | self.model).items()
        }

    def algorithm_with(self, model: SplitModel) -> Any:
        """Build the algorithm with a model."""
        return build(self.route.factory, self.algorithm, model)

    def floats(self) -> dict[str, float]:
        """Return the options that are arguments of the method's program: other values need no recompilation."""
        record, known, factory = self.record(), self.route.algorithm, self.route.factory
        is_class = parts.is_part(without_partial(factory))
        leaves = {
            n: record[n]
            for n in record
            if is_class and n in known and parts.is_leaf(known[n].hint)
        }
        numeric = {
            n: value
            for n, value in leaves.items()
            if isinstance(value, numbers.Real) and is_number(value)
        }
        # an integer stays one where the annotation allows it, and has a program of its own
        may_be_int = {
            n
            for n in numeric
            if int in (kind for kind, _ in parts.types_of(known[n].hint))
        }
        return {
            n: float(value)
            for n, value in numeric.items()
            if isinstance(value, float) or n not in may_be_int
        }

    def leaves(self) -> dict[str, Any]:
        """Return dotted name -> leaf of the algorithm, including leaves that depend on options."""
        return parts.values_of(self.algorithm_with(_PLACEHOLDER_MODEL))


def choose(
    name: str | Factory,
    model: str | SplitModel = "mlp",
    participation: str | ParticipationPolicy | None = None,
    shared: Mapping[str, Any] | None = None,
    **options: Any,
) -> Choice:
    """Choose the options for `get`, independently of the data; arguments and errors as there."""
    participation = as_annotated(
        "participation", participation, str | ParticipationPolicy | None
    )
    route = routes(name, participation, model)
    _check_disjoint(route)
    given = _without_inner_options(
        route, _chosen(name, route, options, shared or {}), options
    )
    if given.get("steps") is not None and "epochs" in route.algorithm:
        given.setdefault("epochs", None)  # steps replace epochs
    for reader, read in (
        (name_of(route.factory), route.algorithm),
        (route.participation, route.policy),
    ):
        if missing := [
            o
            for o, option in read.items()
            if option.default is REQUIRED and o not in given
        ]:
            raise ValueError(f"{missing[0]} is missing: {reader!r} needs it")
    base = name if isinstance(name, str) else name_of(name)
    is_own = route.participation == recipe(name).participation and not isinstance(
        participation, ParticipationPolicy
    )
    defaults = (
        {"model": model}
        if isinstance(model, SplitModel)
        else {"model": model, **models.options(model)}
    )
    return Choice(
        base if is_own else f"{base} + {route.participation}",
        route,
        {o: given[o] for o in route.algorithm if o in given},
        {o: given[o] for o in route.policy if o in given},
        {o: given[o] for o in route.model if o in given},
        defaults | dict.fromkeys(ANY_MODEL_OPTIONS),
    )


def _check_disjoint(route: Routes) -> None:
    """Refuse option names that two parts of a method read."""
    policy = f"participation {route.participation!r}"
    readers = {
        "its algorithm": route.algorithm,
        policy: route.policy,
        "its model": route.model,
    }
    for (one, some), (other, others) in itertools.combinations(readers.items(), 2):
        if twice := sorted({*some} & {*others}):
            raise ValueError(
                f"{twice[0]}: read by {one} and by {other}; rename your field, or give an object for the other"
            )


def _chosen(
    name: str | Factory,
    route: Routes,
    options: Mapping[str, Any],
    shared: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the options of a method: its own, and the shared ones that it reads; refuse unknown ones."""
    method = name if isinstance(name, str) else name_of(name)
    known = (*route.algorithm, *route.policy, *route.model)
    unread = [option for option in (*options, *shared) if option not in known]
    readers = _readers() if unread else {}  # slow
    for option in unread:
        if option in options and option in readers:
            raise ValueError(
                f"{option}: has no effect on method {method!r}, only on {', '.join(readers[option])}; leave it out"
            )
        if option in options:
            check_known("option", [option], known, of=f"method {method!r} or its model")
        if option not in readers:
            raise ValueError(
                f"shared: {option!r} is an option of no method{nearest(option, {*known, *readers})}"
            )
    of_row = {o: v for o, v in recipe(name).options.items() if o in known}
    return of_row | {o: v for o, v in shared.items() if o in known} | dict(options)


def _without_inner_options(
    route: Routes, given: dict[str, Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Leave out default options of parts that are given as objects; options of the user are refused later."""
    known = route.algorithm
    wholes = tuple(
        f"{known[o].path}."
        for o, v in given.items()
        if o in known and known[o].is_part and v is not None
    )
    within = [o for o in given if o in known and known[o].path.startswith(wholes)]
    return {
        o: v for o, v in given.items() if o not in within or options.get(o) is not None
    }


def _readers() -> dict[str, list[str]]:
    """Return option -> the methods, models and policies that read it."""
    read = {name: routes(name).algorithm for name in RECIPES}
    read |= {
        f"participation {name!r}": options_of(policy) for name, policy in POLICIES.items()
    }
    read |= {
        f"model {name!r}": dict.fromkeys((*MODEL_OPTIONS, *models.options(name)))
        for name in models.names()
    }
    readers: dict[str, list[str]] = collections.defaultdict(list)
    for name, options in read.items():
        for option in options:
            readers[option].append(name)
    return readers


def name_of(maker: Callable[..., Any]) -> str:
    """Return the name of a maker of parts: a class's `name`, or a function's name."""
    inner = without_partial(maker)
    return str(
        getattr(
            inner, "name" if parts.is_part(inner) else "__name__", type(inner).__name__
        )
    )
