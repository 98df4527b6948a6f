"""Shared training of methods that differ only in their evaluation, such as FedAvg and FedAvg-FT."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Sequence
from typing import Any, get_args

from fedjax_srp.base import FederatedAlgorithm, Method, ParticipationPolicy
from fedjax_srp.parts import part as parts
from fedjax_srp.results.history import History

EVALUATION = "evaluation"  # field of an algorithm: its default evaluation


def trainings(methods: Iterable[Method]) -> list[list[Method]]:
    """Group methods by training: those of a list differ only in name and default evaluation."""
    found: dict[tuple[FederatedAlgorithm, ParticipationPolicy], list[Method]] = {}
    for method in methods:
        found.setdefault(
            (with_default_evaluation(method.algorithm), method.participation), []
        ).append(method)
    return list(found.values())


def chooses_evaluation(maker: Any) -> bool:
    """Return True for a class of algorithms whose field `evaluation` has its evaluations as choices.

    A field of this name in a user's class may mean something else.
    """
    if not (inspect.isclass(maker) and parts.is_part(maker)):
        return False
    choices = get_args(parts.fields(maker).hints.get(EVALUATION))
    members = [
        value for cls in maker.__mro__ for value in vars(cls).values() if callable(value)
    ]
    return bool(choices) and {
        getattr(member, "evaluation", None) for member in members
    }.issuperset(choices)


def with_default_evaluation(algorithm: FederatedAlgorithm) -> FederatedAlgorithm:
    """Return the algorithm with the default evaluation of its class."""
    if not chooses_evaluation(type(algorithm)):
        return algorithm
    default = {field.name: field.default for field in dataclasses.fields(algorithm)}[
        EVALUATION
    ]
    return dataclasses.replace(algorithm, **{EVALUATION: default})


def as_method(history: History, method: Method, evaluations: Sequence[str]) -> History:
    """Convert the history of a method with equal training to one of this method, with these evaluations in order."""
    trained, config = (
        history.config["method"],
        {**history.config, "name": method.name, "evaluations": [*evaluations]},
    )
    chosen = chooses_evaluation(type(method.algorithm))
    first = {EVALUATION: getattr(method.algorithm, EVALUATION)} if chosen else {}
    config["method"] = {
        **trained,
        "name": method.name,
        "algorithm": {**trained["algorithm"], **first},
    }
    config["options"] = {**config["options"], **first}
    scores = {name: history.accuracies[name] for name in evaluations}
    return dataclasses.replace(
        history, name=method.name, accuracies=scores, config=config
    )
