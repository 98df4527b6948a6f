"""q-FedAvg: clients with large losses count more."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from typing_extensions import override

from fedjax_srp.algorithms.fedavg import FedAvg, FedAvgServerState
from fedjax_srp.algorithms.local import mean_loss, square_norm
from fedjax_srp.algorithms.training import check_step_size, step_size
from fedjax_srp.base import (
    Array,
    ClientFunction,
    ClientOutput,
    Examples,
    Key,
    RoundContext,
)
from fedjax_srp.models.split import SplitParams
from fedjax_srp.parts.part import AtLeast, part

LEAST_LOSS = 1e-10  # added to losses, as in the authors' code: F^(q - 1) stays finite


class QFedAvgMessage(NamedTuple):
    """A client's step Delta_i, and h_i, a bound of its objective's curvature."""

    step: SplitParams
    curvature: Array  # () float


@part
class QFedAvg(FedAvg):
    """q-FedAvg (Li et al., 2020, Algorithm 2): FedAvg for the objective q-FFL, sum_i p_i
    F_i^(q + 1) / (q + 1); every part of the model is shared, nothing is personal.

    The larger q, the more clients with large losses count, and the less losses differ.
    The step size of the server follows from the local Lipschitz constants, which grow
    with q: q F_i^(q - 1) times the squared norm of L (w - w_i), plus L F_i^q, with
    L = 1 / eta. F_i is the mean loss of all of the client's examples at the model that it
    downloads. With q = 0 this is `FedAvg`. The paper draws clients in proportion to p_i;
    policies here have their own draws, and p_i are the weights of both sums.

    Evaluations: those of `FedAvg`. What q is for shows in the spread over clients:
    `history.worst_decile`, and the standard deviation of `history.scores()`.

    Args:
        training: of the clients, with one step size in a round; its weighting is p_i,
            "num_examples" in the paper.
        q: 0 for FedAvg; 1 on the paper's synthetic data and Sent140, 5 on Vehicle, 0.001
            on Shakespeare.

    Raises:
        ValueError: the optimizer is not `SGD`, or its step size is a schedule over local
            steps.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.MLP((8, 8), num_classes=10, hidden=(32,))
        >>> srp.algorithms.QFedAvg(model, q=0.1).name
        'q_fedavg'
    """

    name: ClassVar[str] = "q_fedavg"
    sends_changes: ClassVar[bool] = True
    supports_batch_norm: ClassVar[bool] = False

    q: Annotated[float, AtLeast(0), "give 0 for FedAvg, or e.g. 1.0"] = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_step_size(self.training)

    @property
    @override
    def gradient(self) -> ClientFunction | None:
        # The objective is not the mean loss.
        return None

    @override
    def client(
        self, key: Key, params: Any, state: Any, examples: Examples, context: RoundContext
    ) -> ClientOutput:
        lipschitz = 1 / step_size(self.training_in(context).optimizer)
        loss = mean_loss(self.loss, params, (), examples) + LEAST_LOSS
        # w_i <- local SGD from w
        local = super().client(key, params, state, examples, context)
        # Delta w_i = L (w - w_i)
        change = jax.tree.map(lambda w, w_i: lipschitz * (w - w_i), params, local.message)
        # Delta_i = F_i^q Delta w_i
        factor = loss**self.q
        step = jax.tree.map(lambda leaf: (factor * leaf).astype(leaf.dtype), change)
        # h_i = q F_i^(q - 1) |Delta w_i|^2 + L F_i^q
        curvature = self.q * factor / loss * square_norm(change) + lipschitz * factor
        return local._replace(message=QFedAvgMessage(step, curvature))

    @override
    def server(
        self,
        key: Key,
        server: FedAvgServerState,
        mean: QFedAvgMessage,
        context: RoundContext,
    ) -> FedAvgServerState:
        # w <- w - sum_i p_i Delta_i / sum_i p_i h_i; h_i may be 0 in single precision
        length = jnp.where(mean.curvature > 0, 1 / mean.curvature, 0)
        new = lambda w, step: w - (length * step).astype(w.dtype)
        return FedAvgServerState(jax.tree.map(new, server.params, mean.step))
