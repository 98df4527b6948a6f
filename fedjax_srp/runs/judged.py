"""Methods that differ only in their evaluation, as FedAvg and FedAvg-FT: one training serves all."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from fedjax_srp.base import FederatedAlgorithm, Method, ParticipationPolicy
from fedjax_srp.history import History

EVALUATION = "evaluation"  # field of an algorithm: the evaluation that comes first


def trainings(methods: Iterable[Method]) -> list[list[Method]]:
    """Group methods by training: those of a list differ only in name and first evaluation."""
    found: dict[tuple[FederatedAlgorithm, ParticipationPolicy], list[Method]] = {}
    for method in methods:
        found.setdefault((trained_by(method.algorithm), method.participation), []).append(method)
    return list(found.values())


def trained_by(algorithm: FederatedAlgorithm) -> FederatedAlgorithm:
    """Return the algorithm with the first evaluation of its class."""
    default = {field.name: field.default for field in dataclasses.fields(algorithm)}.get(EVALUATION)
    return dataclasses.replace(algorithm, **{EVALUATION: default}) if default is not None else algorithm


def as_method(history: History, method: Method, evaluations: Sequence[str]) -> History:
    """Return the run of a method of equal training as one of this method, with these evaluations in their order."""
    made, config = history.config["method"], {**history.config, "name": method.name, "evaluations": [*evaluations]}
    own = {EVALUATION: getattr(method.algorithm, EVALUATION)} if EVALUATION in made["algorithm"] else {}
    config["method"] = {**made, "name": method.name, "algorithm": {**made["algorithm"], **own}}
    config["options"] = {**config["options"], **own}
    scores = {name: history.accuracies[name] for name in evaluations}
    return dataclasses.replace(history, name=method.name, accuracies=scores, config=config)
