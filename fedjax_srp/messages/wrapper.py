"""Wrapper: an algorithm around another one, whose messages it changes."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from fedjax_srp.base import FederatedAlgorithm, Key, PyTree, ServerState
from fedjax_srp.parts.part import part


@part
class Wrapper(FederatedAlgorithm):
    """An algorithm around another one; it is the inner one but for what a subclass overrides."""

    algorithm: FederatedAlgorithm

    @property
    def name(self) -> str:  # type: ignore[override]
        """Name of the algorithm."""
        return self.algorithm.name

    @property
    def asynchronous(self) -> bool:  # type: ignore[override]
        """As for the algorithm."""
        return self.algorithm.asynchronous

    @property
    def sends_changes(self) -> bool:  # type: ignore[override]
        """As for the algorithm."""
        return self.algorithm.sends_changes

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
