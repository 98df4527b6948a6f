"""Local only: every client trains its own model alone."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

from typing_extensions import override

from fedjax_srp.algorithms.examples import OwnModel, OwnModelState
from fedjax_srp.algorithms.local import square_norm
from fedjax_srp.base import (
    Array,
    ClientOutput,
    Examples,
    Key,
    RoundContext,
    Uncharged,
)
from fedjax_srp.models.split import SplitParams
from fedjax_srp.parts.part import part


class LocalOnlyServerState(NamedTuple):
    """The initial model w_0, and the mean squared norm of the last cohort.

    Divergence shows in the norm.
    """

    params: SplitParams
    square_norm: Array  # () float, mean of |w_i|^2


@part
class LocalOnly(OwnModel):
    """Local-only training (the first row of FedRep's table): nothing is shared,
    everything is personal.

    A participant continues to train its own model; all start from the same one. No bytes
    are sent or charged, and a round lasts as long as its slowest participant computes, as
    in every method.

    Evaluations: `own_model` (the default), the client's model as it last left it;
    `fine_tune`, the same with its head trained further on the client for
    `fine_tune_epochs`.

    Args:
        training: of the clients; its weighting is "uniform" and has no effect.

    Example:
        >>> import jax, fedjax_srp as srp
        >>> data = srp.data.load("digits", num_clients=20, classes_per_client=4)
        >>> algorithm = srp.algorithms.LocalOnly(srp.models.MLP((8, 8), num_classes=10, hidden=(32,)))
        >>> history = srp.simulate(algorithm, data, num_rounds=1, key=jax.random.key(0), progress=False)
        >>> history.bytes_up, history.bytes_down, bool(history.communicated[0])
        (0, 0, False)
    """

    name: ClassVar[str] = "local_only"
    requires_uniform_weighting: ClassVar[bool] = True

    @override
    def init(self, key: Key, data: Any) -> LocalOnlyServerState:
        params = self.init_params(key, data)
        return LocalOnlyServerState(params, square_norm(params))

    @override
    def with_params(
        self, server: LocalOnlyServerState, params: SplitParams
    ) -> LocalOnlyServerState:
        return LocalOnlyServerState(params, square_norm(params))

    @override
    def broadcast(self, server: LocalOnlyServerState, context: RoundContext) -> tuple[()]:
        return ()

    @override
    def client(
        self,
        key: Key,
        broadcast: tuple,
        state: OwnModelState,
        examples: Examples,
        context: RoundContext,
    ):
        # w_i <- local SGD from w_i
        local = self.local_sgd(key, state.params, examples, context)
        message = Uncharged(square_norm(local.params))
        return ClientOutput(message, OwnModelState(local.params), loss=local.loss)

    @override
    def server(
        self,
        key: Key,
        server: LocalOnlyServerState,
        mean: Uncharged,
        context: RoundContext,
    ):
        return server._replace(square_norm=mean.value)
