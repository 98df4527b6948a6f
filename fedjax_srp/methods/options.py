"""Options of a method by the part that reads them: fields of algorithm, policy and model."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

from fedjax_srp import models
from fedjax_srp.base import FederatedAlgorithm, Method, ParticipationPolicy
from fedjax_srp.messages import Coded, Private
from fedjax_srp.messages.by_name import read_codec
from fedjax_srp.methods.table import RECIPES, Factory, recipe
from fedjax_srp.models import SplitModel
from fedjax_srp.participation.by_name import POLICIES, read_policy
from fedjax_srp.parts import part as parts
from fedjax_srp.parts.checks import as_annotated, check_known, nearest
from fedjax_srp.parts.options import REQUIRED, Option, build, options_of, without_partial

# Of `models.get`, also for models given as objects.
ANY_MODEL_OPTIONS = ("augment", "initialization")
MODEL_OPTIONS = ("head_layers", *ANY_MODEL_OPTIONS)  # for all models by name
# Of every algorithm that has no field of this name: its messages pass through codes, and then through a clip.
CODES = {name: options_of(Coded)[name] for name in ("up", "down")}
PRIVACY = {
    name: option._replace(default=None)
    for name, option in options_of(Private).items()
    if name != "algorithm"
}
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
        policy: its participation; None for its row's. A policy given as an object, or as a text, has no options.
        model: its model. A model object has few options.
    """
    row = recipe(name)
    of_algorithm = CODES | PRIVACY | options_of(row.factory)
    of_algorithm.pop("model", None)
    of_model = ANY_MODEL_OPTIONS
    if isinstance(model, str):
        of_model = (*MODEL_OPTIONS, *models.options(model))
    policy = read_unless_name(row.participation if policy is None else policy)
    if isinstance(policy, ParticipationPolicy):
        return Routes(row.factory, policy.name, of_algorithm, {}, of_model)
    of_policy = options_of(POLICIES[policy])
    return Routes(row.factory, policy, of_algorithm, of_policy, of_model)


def option_names(
    name: str | Factory,
    policy: str | ParticipationPolicy | None = None,
    model: str = "mlp",
) -> list[str]:
    """Return the options that `get` takes for a method with a participation and a model, beside its own arguments.

    Raises:
        ValueError: an unknown method, participation or model.

    Example:
        >>> [option for option in option_names("srpfl") if option not in option_names("fedrep")]
        ['initial', 'rounds_per_stage', 'redraw', 'by', 'growth']
    """
    route = routes(name, policy, model)
    plain = [name for name, option in route.algorithm.items() if not option.is_part]
    return list(dict.fromkeys([*plain, *route.policy, *route.model]))


class Choice(NamedTuple):
    """Method with its chosen options."""

    name: str
    route: Routes
    algorithm: dict[str, Any]  # given options only
    policy: dict[str, Any]  # given options only
    model: dict[str, Any]  # given options only
    defaults: dict[str, Any]  # of the model
    own_policy: ParticipationPolicy | None  # an object, also by text or of the row

    @property
    def codes(self) -> dict[str, Any]:
        """The given codes of messages, see `Coded`."""
        return _codes(self.route, self.algorithm)

    @property
    def privacy(self) -> dict[str, Any]:
        """The given options of privacy, see `Private`."""
        return _privacy(self.route, self.algorithm)

    def model_options(self) -> dict[str, Any]:
        """Return the name of the model, or the object, and its options with their defaults."""
        return self.defaults | self.model

    def method_with(self, model: SplitModel) -> Method:
        """Build the method with a model."""
        policy = self.own_policy
        if policy is None:
            policy = build(POLICIES[self.route.participation], self.policy)
        codes = self.codes
        privacy = self.privacy
        own = {
            name: value
            for name, value in self.algorithm.items()
            if name not in codes and name not in privacy
        }
        algorithm: FederatedAlgorithm = build(self.route.factory, own, model)
        if any(code is not None for code in codes.values()):
            algorithm = Coded(algorithm, **codes)
        given = {name: value for name, value in privacy.items() if value is not None}
        if given:
            fields: dict[str, Any] = {"clip": None, "denominator": None, **given}
            algorithm = Private(algorithm, **fields)
        return Method(self.name, algorithm, policy)

    def on_placeholder(self) -> Method:
        """Build the method without data, on a model on which neither algorithm nor policy depend."""
        return self.method_with(_PLACEHOLDER_MODEL)


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
    policy = None if participation is None else read_unless_name(participation)
    route = routes(name, policy, model)
    own = read_unless_name(recipe(name).participation) if policy is None else policy
    _check_disjoint(route)
    given = _chosen(name, route, options, shared or {})
    given = _without_inner_options(route, given, options)
    if given.get("steps") is not None and "epochs" in route.algorithm:
        given.setdefault("epochs", None)  # steps replace epochs
    _check_complete(name_of(route.factory), route.algorithm, given)
    _check_complete(route.participation, route.policy, given)
    base = name if isinstance(name, str) else name_of(name)
    is_own = policy is None or route.participation == recipe(name).participation
    if not is_own or isinstance(policy, ParticipationPolicy):
        base = f"{base} + {route.participation}"
    messages = _codes(route, given) | _privacy(route, given)
    for option, value in messages.items():
        if value is not None:
            base = f"{base} + {option} {value!r}"
    defaults: dict[str, Any] = {"model": model}
    if not isinstance(model, SplitModel):
        defaults |= models.options(model)
    return Choice(
        name=base,
        route=route,
        algorithm=_among(route.algorithm, given),
        policy=_among(route.policy, given),
        model=_among(route.model, given),
        defaults=defaults | dict.fromkeys(ANY_MODEL_OPTIONS),
        own_policy=own if isinstance(own, ParticipationPolicy) else None,
    )


def _among(names: Iterable[str], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given options of these names, in the order of the names."""
    return {name: given[name] for name in names if name in given}


def read_unless_name(
    policy: str | ParticipationPolicy, num_clients: int | None = None
) -> str | ParticipationPolicy:
    """Read a policy that is given as the text of a constructor; names, which take options, stay as they are."""
    if isinstance(policy, str) and policy not in POLICIES:
        return read_policy(policy, num_clients)
    return policy


def _of_wrapper(options: Mapping[str, Option], route: Routes) -> list[str]:
    """Return the names of those options of `Coded` or `Private` that the algorithm does not read itself."""
    return [name for name, each in options.items() if route.algorithm[name] is each]


def _codes(route: Routes, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given codes of messages, unless they are options of the algorithm's own."""
    codes = _among(_of_wrapper(CODES, route), given)
    return {name: read_codec(name, code) for name, code in codes.items()}


def _privacy(route: Routes, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given options of privacy, unless they are options of the algorithm's own."""
    privacy = _among(_of_wrapper(PRIVACY, route), given)
    chosen = [name for name, value in privacy.items() if value is not None]
    if chosen and "noise_multiplier" not in chosen:
        raise ValueError(
            f"noise_multiplier is missing: {chosen[0]!r} needs it; give 0 for none, or e.g. 1.0"
        )
    return privacy


def _check_complete(
    reader: str, options: Mapping[str, Option], given: Mapping[str, Any]
) -> None:
    for name, option in options.items():
        if option.default is REQUIRED and name not in given:
            raise ValueError(f"{name} is missing: {reader!r} needs it")


def _check_disjoint(route: Routes) -> None:
    """Refuse option names that two parts of a method read."""
    readers = {
        "its algorithm": route.algorithm,
        f"participation {route.participation!r}": route.policy,
        "its model": route.model,
    }
    for (one, some), (other, others) in itertools.combinations(readers.items(), 2):
        for twice in sorted({*some} & {*others}):
            raise ValueError(
                f"{twice}: read by {one} and by {other}; rename your field, or give an object for the other"
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
    given = {**recipe(name).options, **shared, **options}
    return {option: value for option, value in given.items() if option in known}


def _objects_among(
    known: Mapping[str, Option], given: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return the beginnings of the paths of options in parts that are given as objects."""
    names = [name for name in given if name in known and known[name].is_part]
    return tuple(f"{known[name].path}." for name in names if given[name] is not None)


def _without_inner_options(
    route: Routes, given: dict[str, Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Leave out default options of parts that are given as objects; options of the user are refused later."""
    known = route.algorithm
    objects = _objects_among(known, given)
    left: dict[str, Any] = {}
    for name, value in given.items():
        is_inside = name in known and known[name].path.startswith(objects)
        if not is_inside or options.get(name) is not None:
            left[name] = value
    return left


def _readers() -> dict[str, list[str]]:
    """Return option -> the methods, models and policies that read it."""
    readers: dict[str, list[str]] = collections.defaultdict(list)
    for name in RECIPES:
        for option in routes(name).algorithm:
            readers[option].append(name)
    for name, policy in POLICIES.items():
        for option in options_of(policy):
            readers[option].append(f"participation {name!r}")
    for name in models.names():
        for option in (*MODEL_OPTIONS, *models.options(name)):
            readers[option].append(f"model {name!r}")
    return readers


def name_of(maker: Callable[..., Any]) -> str:
    """Return the name of a maker of parts: a class's `name`, or a function's name."""
    inner: Any = without_partial(maker)
    if parts.is_part(inner):
        return inner.name
    return str(getattr(inner, "__name__", type(inner).__name__))
