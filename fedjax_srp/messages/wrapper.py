"""Wrapper: an algorithm around another one, whose messages it changes."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, ClassVar

from typing_extensions import override

from fedjax_srp.base import FederatedAlgorithm, Key, PyTree, ServerState
from fedjax_srp.parts.part import part


@part
class Wrapper(FederatedAlgorithm):
    """An algorithm around another one; it is the inner one but for what a subclass overrides."""

    algorithm: FederatedAlgorithm

    name: ClassVar[Any] = property(attrgetter("algorithm.name"))
    asynchronous: ClassVar[Any] = property(attrgetter("algorithm.asynchronous"))
    jobs_by: ClassVar[Any] = property(attrgetter("algorithm.jobs_by"))
    sends_changes: ClassVar[Any] = property(attrgetter("algorithm.sends_changes"))

    @property
    def model(self) -> Any:
        """The algorithm's model, for clocks that count batches; None if it has none."""
        return getattr(self.algorithm, "model", None)

    @property
    def training(self) -> Any:
        """The algorithm's local training, for clocks that count batches; None if it has none."""
        return getattr(self.algorithm, "training", None)

    @override
    def init(self, key: Key, data: Any) -> ServerState:
        return self.algorithm.init(key, data)

    @override
    def metrics(self, server: ServerState, data: Any) -> Any:
        return self.algorithm.metrics(server, data)

    @override
    def with_params(self, server: ServerState, params: PyTree) -> ServerState:
        return self.algorithm.with_params(server, params)
