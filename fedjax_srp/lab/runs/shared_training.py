"""Shared training of methods that differ only in their evaluation, such as FedAvg and FedAvg-FT."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Sequence
from typing import Any, get_args

from fedjax_srp.base import FederatedAlgorithm, Method
from fedjax_srp.parts import part as parts
from fedjax_srp.results.history import History

EVALUATION = "evaluation"  # field of an algorithm: its default evaluation


def chooses_evaluation(maker: Any) -> bool:
    """Return True for a class of algorithms whose field `evaluation` has its evaluations as choices.

    A field of this name in a user's class may mean something else.
    """
    if not (inspect.isclass(maker) and parts.is_part(maker)):
        return False
    choices = set(get_args(parts.fields(maker).hints.get(EVALUATION)))
    members = [getattr(maker, name) for name in dir(maker)]
    evaluations = {getattr(member, "evaluation", None) for member in members}
    return bool(choices) and choices <= evaluations


def with_default_evaluation(algorithm: FederatedAlgorithm) -> FederatedAlgorithm:
    """Return the algorithm with the default evaluation of its class."""
    if not chooses_evaluation(type(algorithm)):
        return algorithm
    for field in dataclasses.fields(algorithm):
        if field.name == EVALUATION:
            return dataclasses.replace(algorithm, **{EVALUATION: field.default})
    return algorithm


def as_method(history: History, method: Method, evaluations: Sequence[str]) -> History:
    """Convert the history of a method with equal training to one of this method.

    It has these evaluations in order.
    """
    evaluation = {}
    if chooses_evaluation(type(method.algorithm)):
        evaluation[EVALUATION] = getattr(method.algorithm, EVALUATION)
    of_method = dict(history.config["method"])
    of_method["name"] = method.name
    of_method["algorithm"] = of_method["algorithm"] | evaluation
    config = {
        **history.config,
        "method": of_method,
        "evaluations": list(evaluations),
    }
    scores = {name: history.accuracies[name] for name in evaluations}
    return dataclasses.replace(
        history, name=method.name, accuracies=scores, config=config
    )
