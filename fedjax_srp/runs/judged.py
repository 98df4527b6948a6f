"""Shared training of methods that differ only in their evaluation, such as FedAvg and FedAvg-FT."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from fedjax_srp.base import FederatedAlgorithm, Method, ParticipationPolicy
from fedjax_srp.history import History

EVALUATION = "evaluation"  # field of an algorithm: its default evaluation


def trainings(methods: Iterable[Method]) -> list[list[Method]]:
    """Group methods by training: those of a list differ only in name and default evaluation."""
    found: dict[tuple[FederatedAlgorithm, ParticipationPolicy], list[Method]] = {}
    for method in methods:
        found.setdefault((with_default_evaluation(method.algorithm), method.participation), []).append(method)
    return list(found.values())


def with_default_evaluation(algorithm: FederatedAlgorithm) -> FederatedAlgorithm:
    """Return the algorithm with the default evaluation of its class."""
    default = {field.name: field.default for field in dataclasses.fields(algorithm)}.get(EVALUATION)
    return dataclasses.replace(algorithm, **{EVALUATION: default}) if default is not None else algorithm


def as_method(history: History, method: Method, evaluations: Sequence[str]) -> History:
    """Convert the history of a method with equal training to one of this method, with these evaluations in order."""
    trained, config = history.config["method"], {**history.config, "name": method.name, "evaluations": [*evaluations]}
    first = {EVALUATION: getattr(method.algorithm, EVALUATION)} if EVALUATION in trained["algorithm"] else {}
    config["method"] = {**trained, "name": method.name, "algorithm": {**trained["algorithm"], **first}}
    config["options"] = {**config["options"], **first}
    scores = {name: history.accuracies[name] for name in evaluations}
    return dataclasses.replace(history, name=method.name, accuracies=scores, config=config)
