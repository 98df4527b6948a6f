"""Which part of a method reads which option: read off signatures, so that a hyper-parameter is written once."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from fedjax_srp import algorithms, models
from fedjax_srp._checks import check_momentum, nearest, short, unknown
from fedjax_srp.base import Array, ParticipationPolicy
from fedjax_srp.methods.table import POLICIES, RECIPES, Factory, recipe
from fedjax_srp.models import SplitModel

OBJECTS = ("optimizer", "head_optimizer", "fine_tune_optimizer")  # arguments that take objects of optax
WHATEVER_MODEL = ("augment", "initialization")  # options of `models.get` for models that are given as such too
MODEL_OPTIONS = ("head_layers", *WHATEVER_MODEL)  # for every model by name


def optimizers(
    learning_rate: float | Array = 0.01,
    momentum: float | Array = 0.0,
    weight_decay: float | Array = 0.0,
    fine_tune_momentum: float | Array | None = None,
) -> dict[str, Any]:
    """SGD of training, and of fine-tuning where it has a momentum of its own: arguments of a factory.

    Args:
        learning_rate: step size of local training; 0.01 in all experiments of SRPFL (its code has beta = 0.1 for
            HF-MAML).
        momentum: unsaid in SRPFL's text; its code and FedRep's paper have 0.5 for FedRep and SRPFL.
        weight_decay: on weights only; unsaid in the text, 1e-4 in the code.
        fine_tune_momentum: of fine-tuning, which then is SGD with `learning_rate` and `weight_decay`; None fine-tunes
            as in training. The code has 0.5 in every method, also where training has none.
    """
    made = {"optimizer": algorithms.sgd(learning_rate, momentum, weight_decay)}
    if fine_tune_momentum is not None:
        check_momentum("fine_tune_momentum", fine_tune_momentum)
        made["fine_tune_optimizer"] = algorithms.sgd(learning_rate, fine_tune_momentum, weight_decay)
    return made


def arguments(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The arguments that a function takes, but for the model and what a `functools.partial` has set."""
    fixed = function.keywords if isinstance(function, functools.partial) else ()
    return {name: parameter for name, parameter in _parameters(function) if name not in ("model", *fixed)}


@functools.lru_cache(maxsize=256)
def _parameters(function: Callable[..., Any]) -> tuple[tuple[str, inspect.Parameter], ...]:
    return tuple(inspect.signature(function).parameters.items())


class Routes(NamedTuple):
    """Which part of a method reads which options, and the function whose signature and docstring say so."""

    factory: Factory
    algorithm: tuple[str, ...]  # of the factory
    optimizers: tuple[str, ...]  # of `optimizers`
    policy: tuple[str, ...]  # of the function in `POLICIES`
    participation: str

    def sources(self) -> dict[Callable[..., Any], tuple[str, ...]]:
        """Function -> its arguments that are options."""
        found = {self.factory: self.algorithm, optimizers: self.optimizers}
        return found | ({POLICIES[self.participation]: self.policy} if self.policy else {})


def routes(name: str | Factory, policy: str | None = None) -> Routes:
    """The options of a method, but for those of its model.

    Args:
        name: of the method, or the factory of an algorithm.
        policy: the name of its participation; None for that of its row.

    Raises:
        ValueError: no such method or participation, a factory with an `optimizer` and an option of its SGD.
    """
    row = recipe(name)
    policy = policy or row.participation
    if policy not in POLICIES:
        raise unknown("participation", policy, POLICIES)
    taken = arguments(row.factory)
    of_sgd = [o for o in arguments(optimizers) if "optimizer" in taken]
    if "fine_tune_optimizer" not in taken:
        of_sgd = [o for o in of_sgd if o != "fine_tune_momentum"]
    if twice := [o for o in of_sgd if o in taken]:
        raise ValueError(
            f"{twice[0]}: an argument of {name_of(row.factory)!r} beside its optimizer, which has a {twice[0]} itself; "
            "rename it, or do without the argument optimizer"
        )
    own = tuple(o for o in taken if o not in OBJECTS)
    return Routes(row.factory, own, tuple(of_sgd), tuple(arguments(POLICIES[policy])), policy)


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


def without_effect(name: str) -> list[str]:
    """The options that only other methods, policies and models read.

    Raises:
        ValueError: no such method.

    Example:
        >>> "initial" in without_effect("fedavg"), "initial" in without_effect("srpfl")
        (True, False)
    """
    of_models = [option for model in models.names() for option in models.options(model)]
    read = {*option_names(name), *of_models, *OBJECTS}
    return [option for option in _readers() if option not in read]


class Choice(NamedTuple):
    """Every option of a method with its value."""

    name: str
    route: Routes
    algorithm: dict[str, Any]  # of the factory and its optimizers
    policy: dict[str, Any]
    model: dict[str, Any]  # as far as given
    defaults: dict[str, Any]  # of the model

    def record(self) -> dict[str, Any]:
        """For the record of a run; objects that are not given are left out."""
        of_algorithm = {o: v for o, v in self.algorithm.items() if o not in OBJECTS or v is not None}
        return of_algorithm | {"participation": self.route.participation} | self.policy | self.defaults | self.model


def choose(
    name: str | Factory,
    model: str | SplitModel = "mlp",
    participation: str | ParticipationPolicy | None = None,
    shared: Mapping[str, Any] | None = None,
    **options: Any,
) -> Choice:
    """The options of what `get` makes, which the data have no part in: arguments and errors as there."""
    if not isinstance(participation, str | ParticipationPolicy | None):
        raise ValueError(
            f"participation={short(participation)} is neither a name nor a policy; call it, or give its name"
        )
    route = routes(name, participation if isinstance(participation, str) else None)
    if isinstance(participation, ParticipationPolicy):
        route = route._replace(policy=(), participation=participation.name)
    objects = tuple(o for o in OBJECTS if o in arguments(route.factory))
    of_model = WHATEVER_MODEL if isinstance(model, SplitModel) else (*MODEL_OPTIONS, *models.options(model))
    if isinstance(model, SplitModel) and (of_names := [o for o in options if o in _of_named_models()]):
        raise ValueError(f"{', '.join(of_names)}: options of a model given by name, but model is a SplitModel already")
    _check_apart(route, objects, of_model)
    given = _chosen(name, (*route.algorithm, *route.optimizers, *objects, *route.policy, *of_model), options, shared)
    for instead, of_sgd in (("optimizer", route.optimizers), ("fine_tune_optimizer", ("fine_tune_momentum",))):
        if given.get(instead) is not None:
            if twice := [o for o in route.optimizers if o in of_sgd and options.get(o) is not None]:
                raise ValueError(f"{twice[0]}: the {instead} that is given has its own; leave one of the two out")
            route = route._replace(optimizers=tuple(o for o in route.optimizers if o not in of_sgd))
    if given.get("local_steps") is not None:
        given.setdefault("local_epochs", None)  # steps are instead of epochs

    of_algorithm = _resolved(route.factory, (*route.algorithm, *objects), given)
    of_algorithm |= _resolved(optimizers, route.optimizers, given)
    of_policy = _resolved(POLICIES[route.participation], route.policy, given) if route.policy else {}
    base = name if isinstance(name, str) else name_of(name)
    is_own = route.participation == recipe(name).participation and not isinstance(participation, ParticipationPolicy)
    named = {"model": model} if isinstance(model, SplitModel) else {"model": model, **models.options(model)}
    return Choice(
        base if is_own else f"{base} + {route.participation}",
        route,
        of_algorithm,
        of_policy,
        {o: given[o] for o in of_model if o in given},
        named | dict.fromkeys(WHATEVER_MODEL),
    )


def _check_apart(route: Routes, objects: Sequence[str], of_model: Sequence[str]) -> None:
    """Refuses names that two parts of a method read: one value would go to both."""
    where = {
        "its algorithm": {*route.algorithm, *route.optimizers, *objects},
        f"participation {route.participation!r}": route.policy,
        "its model": of_model,
    }
    for (one, some), (other, others) in itertools.combinations(where.items(), 2):
        if twice := sorted(set(some) & set(others)):
            made = (
                "model=srp.models.mlp(...) or the like" if other == "its model" else "participation as a policy, made"
            )
            raise ValueError(f"{twice[0]}: read by {one} and by {other}; rename it in your factory, or give {made}")


def _chosen(
    name: str | Factory, known: tuple[str, ...], options: Mapping[str, Any], shared: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The options of a method: its own, and those of the shared ones that it takes; refuses what nobody takes."""
    what = name if isinstance(name, str) else name_of(name)
    readers = _readers()
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


def _of_named_models() -> set[str]:
    return {"head_layers"}.union(*(models.options(name) for name in models.names()))


def _readers() -> dict[str, list[str]]:
    """Option -> the methods, models and policies that read it."""
    readers: dict[str, list[str]] = {}
    for name in RECIPES:
        route = routes(name)
        for option in (*route.algorithm, *route.optimizers, *(o for o in OBJECTS if o in arguments(route.factory))):
            readers.setdefault(option, []).append(name)
    for name, policy in POLICIES.items():
        for option in arguments(policy):
            readers.setdefault(option, []).append(f"participation {name!r}")
    for name in models.names():
        for option in (*MODEL_OPTIONS, *models.options(name)):
            readers.setdefault(option, []).append(f"model {name!r}")
    return readers


def _resolved(function: Callable[..., Any], names: Sequence[str], given: Mapping[str, Any]) -> dict[str, Any]:
    """Every option of a function with its value, given or default.

    Raises:
        ValueError: one without a default is missing.
    """
    resolved = {}
    for name in names:
        value = given.get(name, arguments(function)[name].default)
        if value is inspect.Parameter.empty:
            raise ValueError(f"{name} is missing: {name_of(function)!r} needs it")
        resolved[name] = value
    return resolved


def name_of(function: Callable[..., Any]) -> str:
    """What a function is called, behind a `functools.partial` too."""
    inner = function.func if isinstance(function, functools.partial) else function
    return getattr(inner, "__name__", type(inner).__name__)
