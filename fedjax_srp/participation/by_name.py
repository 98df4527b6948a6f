"""Policies by name and as texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedjax_srp.base import ParticipationPolicy
from fedjax_srp.participation.asynchronous_tiers import AsynchronousTiers
from fedjax_srp.participation.buffered import Buffered
from fedjax_srp.participation.compass import Compass
from fedjax_srp.participation.deadline import Deadline
from fedjax_srp.participation.doubling import Doubling
from fedjax_srp.participation.fastest import Fastest
from fedjax_srp.participation.full import Full
from fedjax_srp.participation.growing import (
    GradientDiversity,
    Growing,
    GrowthRule,
    LossPlateau,
    NormTest,
)
from fedjax_srp.participation.oort import Oort
from fedjax_srp.participation.partial_work import PartialWork
from fedjax_srp.participation.power_of_choice import PowerOfChoice
from fedjax_srp.participation.queued import Queued
from fedjax_srp.participation.statistical_accuracy import StatisticalAccuracy
from fedjax_srp.participation.tiered import Tiered
from fedjax_srp.participation.uniform import Uniform
from fedjax_srp.parts.checks import as_annotated, check_integer, reads_texts
from fedjax_srp.parts.options import checked_maker
from fedjax_srp.parts.registry import Registry
from fedjax_srp.parts.texts import read_part


def everybody(pool: int | None = None) -> ParticipationPolicy:
    """Every client takes part in every round, or every client of a pool that is drawn for each round.

    Args:
        pool: N, participants drawn uniformly without replacement; None for all clients.
    """
    if pool is None:
        return Full()
    return Uniform(check_integer("pool", pool, 1))


CLASSES = (
    AsynchronousTiers,
    Buffered,
    Compass,
    Deadline,
    Doubling,
    Fastest,
    Full,
    Growing,
    Oort,
    PartialWork,
    PowerOfChoice,
    Queued,
    StatisticalAccuracy,
    Tiered,
    Uniform,
)
_CONSTRUCTORS: dict[str, Any] = {cls.__name__: cls for cls in CLASSES}
_RULES: dict[str, Any] = {
    cls.__name__: cls for cls in (GradientDiversity, LossPlateau, NormTest)
}
POLICIES: Registry[Callable[..., ParticipationPolicy]] = Registry(
    "participation",
    {cls.name: cls for cls in _CONSTRUCTORS.values()} | {"full": everybody},
    adds="srp.methods.register_participation",
    reserved=(*_CONSTRUCTORS, "N"),
)


def register_participation(
    name: str, factory: Callable[..., ParticipationPolicy]
) -> None:
    """Register your own participation policy: for `get`, rows of methods, the command line and texts.

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
    POLICIES.add(name, checked_maker("participation", factory, ParticipationPolicy))


def read_policy(text: str, num_clients: int | None = None) -> ParticipationPolicy:
    """Return the policy of a text: the constructor of one, or the name of one that needs no arguments.

    Args:
        text: such as "Fastest(k=5)", "fastest(k=N // 2)" or "oort".
        num_clients: N in the text.

    Raises:
        ValueError: one line with the text, what is not understood, and the remedy.

    Example:
        >>> read_policy("Doubling(initial=N // 10, rounds_per_stage=10)", num_clients=50).initial
        5
    """
    remedy = f"give e.g. oort or Fastest(k=5), see srp.participation; {POLICIES.remedy}"
    policy = read_part(
        "participation",
        text,
        _CONSTRUCTORS | _RULES | POLICIES,
        remedy,
        num_clients=num_clients,
    )
    return as_annotated("participation", policy, ParticipationPolicy)


def _read_rule(text: str) -> GrowthRule:
    remedy = "give e.g. NormTest(0.5) or LossPlateau(patience=3), see srp.participation"
    return as_annotated(
        "criterion", read_part("criterion", text, _RULES, remedy), GrowthRule
    )


reads_texts(ParticipationPolicy, "participation", read_policy)
reads_texts(GrowthRule, "criterion", _read_rule)
