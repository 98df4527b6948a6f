"""Options of a method by the part that reads them: fields of algorithm, policy and model, see `fedjax_srp.options`."""

from __future__ import annotations

import functools
import itertools
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from fedjax_srp import models, parts
from fedjax_srp._checks import check_known, is_number, nearest, short
from fedjax_srp.base import ParticipationPolicy
from fedjax_srp.description import describe
from fedjax_srp.methods.table import POLICIES, RECIPES, Factory, recipe
from fedjax_srp.models import SplitModel
from fedjax_srp.options import REQUIRED, Option, build, options_of

WHATEVER_MODEL = ("augment", "initialization")  # options of `models.get`, also for given models
MODEL_OPTIONS = ("head_layers", *WHATEVER_MODEL)  # for every model by name


class Routes(NamedTuple):
    """Options of a method by the part that reads them, under short names."""

    factory: Factory
    participation: str
    algorithm: dict[str, Option]
    policy: dict[str, Option]

    def sources(self) -> dict[Callable[..., Any], tuple[str, ...]]:
        """Maker of a part -> its options for the command line."""
        of_policy = {POLICIES[self.participation]: tuple(self.policy)} if self.policy else {}
        return {self.factory: tuple(name for name, option in self.algorithm.items() if not option.is_part)} | of_policy


def routes(name: str | Factory, policy: str | None = None) -> Routes:
    """The options of a method, without those of its model.

    Args:
        name: of the method, or a class or function that makes an algorithm.
        policy: the name of its participation; None for its row's.
    """
    row = recipe(name)
    policy = policy or row.participation
    check_known("participation", [policy], POLICIES)
    of_algorithm = {name: option for name, option in options_of(row.factory).items() if option.path != "model"}
    return Routes(row.factory, policy, of_algorithm, options_of(POLICIES[policy]))


def option_names(name: str | Factory, policy: str | None = None, model: str = "mlp") -> list[str]:
    """The options that `get` takes for a method with a participation and a model, beside its own arguments.

    Raises:
        ValueError: no such method, participation or model.

    Example:
        >>> [option for option in option_names("srpfl") if option not in option_names("fedrep")]
        ['initial', 'rounds_per_stage', 'redraw', 'by']
    """
    routed = [option for options in routes(name, policy).sources().values() for option in options]
    return list(dict.fromkeys([*routed, *MODEL_OPTIONS, *models.options(model)]))


class Choice(NamedTuple):
    """A method with its chosen options."""

    name: str
    route: Routes
    algorithm: dict[str, Any]  # as far as given
    policy: dict[str, Any]  # likewise
    model: dict[str, Any]  # likewise
    defaults: dict[str, Any]  # of the model

    def record(self) -> dict[str, Any]:
        """Every option with its value, for the record of a run, without objects that are not given."""
        whole = [self.route.algorithm[name].path for name in self.algorithm if self.route.algorithm[name].is_part]
        plain = {
            name: option.default
            for name, option in self.route.algorithm.items()
            if not (option.is_part or option.is_optional or any(option.path.startswith(f"{path}.") for path in whole))
        }
        of_policy = {name: option.default for name, option in self.route.policy.items()}
        values = plain | self.algorithm | {"participation": self.route.participation} | of_policy | self.policy
        return {name: describe(value) for name, value in (values | self.defaults | self.model).items()}

    def made(self, model: SplitModel) -> Any:
        """The algorithm with a model."""
        return build(self.route.factory, self.algorithm, model)


def traced(choice: Choice) -> dict[str, Any]:
    """The options of a method that are arguments of its program, as floats: another value recompiles nothing."""
    record, known, factory = choice.record(), choice.route.algorithm, choice.route.factory
    is_class = parts.is_part(factory.func if isinstance(factory, functools.partial) else factory)
    leaves = (n for n in record if is_class and n in known and parts.is_leaf(known[n].hint))
    return {n: float(record[n]) for n in leaves if isinstance(record[n], numbers.Real) and is_number(record[n])}


def leaves(choice: Choice) -> dict[str, Any]:
    """The same by their paths in the algorithm, including dependent ones."""
    made = choice.made(_STAND_IN)
    return {name: leaf for name, leaf in parts.values_of(made).items() if not name.startswith("model.")}


_STAND_IN = models.MLP((1,), 1, hidden=(1, 1, 1))  # no leaf depends on the model


def choose(
    name: str | Factory,
    model: str | SplitModel = "mlp",
    participation: str | ParticipationPolicy | None = None,
    shared: Mapping[str, Any] | None = None,
    **options: Any,
) -> Choice:
    """The options for `get`, independent of the data: arguments and errors as there."""
    if not isinstance(participation, str | ParticipationPolicy | None):
        raise ValueError(
            f"participation={short(participation)} is neither a name nor a policy; call it, or give its name"
        )
    route = routes(name, participation if isinstance(participation, str) else None)
    if isinstance(participation, ParticipationPolicy):
        route = route._replace(policy={}, participation=participation.name)
    of_model = WHATEVER_MODEL if isinstance(model, SplitModel) else (*MODEL_OPTIONS, *models.options(model))
    if isinstance(model, SplitModel) and (of_names := [o for o in options if o in _of_named_models()]):
        raise ValueError(f"{', '.join(of_names)}: options of a model given by name, but model is a SplitModel already")
    _check_apart(route, of_model)
    given = _chosen(name, (*route.algorithm, *route.policy, *of_model), options, shared)
    given = _without_parts_of_wholes(route, given, options)
    if given.get("steps") is not None and "epochs" in route.algorithm:
        given.setdefault("epochs", None)  # steps are instead of epochs
    for reader, read in ((name_of(route.factory), route.algorithm), (route.participation, route.policy)):
        if missing := [o for o, option in read.items() if option.default is REQUIRED and o not in given]:
            raise ValueError(f"{missing[0]} is missing: {reader!r} needs it")
    base = name if isinstance(name, str) else name_of(name)
    is_own = route.participation == recipe(name).participation and not isinstance(participation, ParticipationPolicy)
    named = {"model": model} if isinstance(model, SplitModel) else {"model": model, **models.options(model)}
    return Choice(
        base if is_own else f"{base} + {route.participation}",
        route,
        {o: given[o] for o in route.algorithm if o in given},
        {o: given[o] for o in route.policy if o in given},
        {o: given[o] for o in of_model if o in given},
        named | dict.fromkeys(WHATEVER_MODEL),
    )


def _check_apart(route: Routes, of_model: Sequence[str]) -> None:
    """Refuse names that two parts of a method read: one value would go to both."""
    where = {
        "its algorithm": route.algorithm,
        f"participation {route.participation!r}": route.policy,
        "its model": of_model,
    }
    for (one, some), (other, others) in itertools.combinations(where.items(), 2):
        if twice := sorted(set(some) & set(others)):
            made = (
                "model=srp.models.MLP(...) or the like" if other == "its model" else "participation as a policy, made"
            )
            raise ValueError(f"{twice[0]}: read by {one} and by {other}; rename your field, or give {made}")


def _chosen(
    name: str | Factory, known: tuple[str, ...], options: Mapping[str, Any], shared: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The options of a method: its own, and the shared ones that it reads; refuse options that no method reads."""
    what = name if isinstance(name, str) else name_of(name)
    strange = [option for option in (*options, *(shared or {})) if option not in known]
    readers = _readers() if strange else {}  # slow, and only needed for unknown options
    for option in options:
        if option in known:
            continue
        if option in readers:
            raise ValueError(
                f"{option}: has no effect on method {what!r}, only on {', '.join(readers[option])}; leave it out, or "
                "pass it in `shared`"
            )
        hint = nearest(option, known) or nearest(option, readers)
        raise ValueError(
            f"unknown option of method {what!r} or its model {option!r}{hint}; choose from {', '.join(known)}"
        )
    for option in shared or {}:
        if option not in known and option not in readers:
            raise ValueError(
                f"shared: {option!r} is an option of no method{nearest(option, {**dict.fromkeys(known), **readers})}"
            )
    own = {o: v for o, v in recipe(name).options.items() if o in known}
    return own | {o: v for o, v in (shared or {}).items() if o in known} | dict(options)


def _without_parts_of_wholes(route: Routes, given: dict[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out options of a given part, unless a user gives both, which is refused later."""
    known = route.algorithm
    wholes = tuple(f"{known[o].path}." for o, v in given.items() if o in known and known[o].is_part and v is not None)
    within = [o for o in given if o in known and known[o].path.startswith(wholes)]
    return {o: v for o, v in given.items() if o not in within or options.get(o) is not None}


def _of_named_models() -> set[str]:
    return {"head_layers"}.union(*(models.options(name) for name in models.names()))


def _readers() -> dict[str, list[str]]:
    """Option -> the methods, models and policies that read it."""
    readers: dict[str, list[str]] = {}
    for name in RECIPES:
        for option in routes(name).algorithm:
            readers.setdefault(option, []).append(name)
    for name, policy in POLICIES.items():
        for option in options_of(policy):
            readers.setdefault(option, []).append(f"participation {name!r}")
    for name in models.names():
        for option in (*MODEL_OPTIONS, *models.options(name)):
            readers.setdefault(option, []).append(f"model {name!r}")
    return readers


def name_of(maker: Callable[..., Any]) -> str:
    """Name of a maker of parts: a class's `name`, or a function's own name."""
    inner = maker.func if isinstance(maker, functools.partial) else maker
    return str(getattr(inner, "name" if parts.is_part(inner) else "__name__", type(inner).__name__))
