"""FedGATE: FedAvg whose local steps are corrected for drift by tracked gradients."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from typing_extensions import override

from fedjax_srp.algorithms._normalised import (
    NormalisedMessage,
    mean_direction,
    move,
    normalised_output,
    total_step,
)
from fedjax_srp.algorithms.fedavg import FedAvg
from fedjax_srp.algorithms.local import Objective, plain_gradient
from fedjax_srp.algorithms.optimizers import Optimizer
from fedjax_srp.algorithms.training import LocalTraining, check_step_size, num_steps
from fedjax_srp.base import (
    Array,
    ClientOutput,
    Examples,
    Key,
    Phase,
    PyTree,
    RoundContext,
    unchanged,
)
from fedjax_srp.models.split import SplitParams
from fedjax_srp.parts.part import Leaf, StepSize, part


class FedGATEServerState(NamedTuple):
    """The global model w, and Delta / tau: the mean direction of the last cohort."""

    params: SplitParams
    direction: PyTree


class FedGATEClientState(NamedTuple):
    """The tracking variable delta_i, and its stage."""

    tracking: PyTree
    stage: Array  # () int32


# A number of each stage, the last one for all later stages.
ByStage = Leaf[tuple[StepSize, ...] | None]


def _of_stage(numbers: tuple[float, ...], stage: Array) -> Array:
    """The number of a stage, () float."""
    stacked = jnp.stack([jnp.asarray(number) for number in numbers])  # weakly typed
    return stacked[jnp.minimum(stage, len(numbers) - 1)]


@part
class FedGATE(FedAvg):
    """FedGATE (Haddadpour et al., 2020) as in FLANP (Algorithm 2): every part of the
    model is shared; a client keeps a gradient tracking variable, as large as the model,
    and downloads the cohort's mean direction as well.

    Local steps follow g_i(w_i) - delta_i, and delta_i tracks the difference of the
    client's gradients from the mean: delta_i <- delta_i + (Delta_i - Delta) / tau, after
    every round. (The printed line subtracts Delta_i from itself.) It starts from zero in
    every stage of the participation policy. This corrects client drift, and the fixed
    point is the minimum of the mean loss. With full participation, one epoch of full
    batches and gamma = 1 it is gradient descent.

    In Algorithm 2 eta, gamma and tau depend on the stage: `step_size_by_stage` and
    `server_step_size_by_stage` here, such as `srp.theory.flanp_step_sizes` gives them, and
    `work_by_stage` of `srp.participation.StatisticalAccuracy`, which charges tau steps
    for tau times one. Without them all stages have the same.

    The paper has equal tau. Where clients take unequal numbers of steps, the server
    averages Delta_i / tau_i and moves the model by eta gamma times the mean tau: so the
    tracking variables of a cohort still sum to zero, as the fixed point requires. With
    momentum tau_i is the sum of the gradients' weights in the update.

    Evaluations: those of `FedAvg`.

    Args:
        training: of the clients, by `SGD` with a constant step size eta, by which updates
            are divided; tau is its `steps`, if given. Weighting is "uniform" in the
            paper.
        server_step_size: gamma; 1 in FLANP's experiments with networks.
        step_size_by_stage: eta of stage 0, 1, ... in place of the optimizer's step size,
            the last one for all later stages; None: that of the optimizer.
        server_step_size_by_stage: gamma of stage 0, 1, ..., likewise; None:
            `server_step_size`.

    Raises:
        ValueError: the optimizer has no constant step size, or is a function of the round
            beside `step_size_by_stage`.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.MLP((8, 8), num_classes=10, hidden=(32,))
        >>> srp.algorithms.FedGATE(model, srp.Training(srp.SGD(0.05), epochs=2)).name
        'fedgate'
    """

    sends_changes: ClassVar[bool] = True
    supports_batch_norm: ClassVar[bool] = False

    server_step_size: StepSize = 1.0
    step_size_by_stage: ByStage = None
    server_step_size_by_stage: ByStage = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_step_size(self.training)
        for name in ("step_size_by_stage", "server_step_size_by_stage"):
            if getattr(self, name) == ():
                raise ValueError(
                    f"{name}=(): give a number for the first stage, e.g. (0.1,)"
                )
        is_of_round = not isinstance(self.training.optimizer, Optimizer)
        if self.step_size_by_stage is not None and is_of_round:
            raise ValueError(
                f"step_size_by_stage={self.step_size_by_stage}: the optimizer is a function "
                "of the round; give srp.SGD(0.01), whose step size is replaced, or leave "
                "out step_size_by_stage"
            )

    @override
    def training_in(self, context: RoundContext) -> LocalTraining:
        now = super().training_in(context)
        if self.step_size_by_stage is None:
            return now
        eta = _of_stage(self.step_size_by_stage, context.stage)
        return now._replace(
            optimizer=dataclasses.replace(now.optimizer, learning_rate=eta)
        )

    @override
    def init(self, key: Key, data: Any) -> FedGATEServerState:
        params = self.init_params(key, data)
        return FedGATEServerState(params, jax.tree.map(jnp.zeros_like, params))

    @override
    def init_client(
        self, key: Key, server: FedGATEServerState, examples: Examples
    ) -> FedGATEClientState:
        tracking = jax.tree.map(jnp.zeros_like, server.params)
        return FedGATEClientState(tracking, jnp.int32(0))

    @override
    def client(
        self,
        key: Key,
        params: SplitParams,
        state: FedGATEClientState,
        examples: Examples,
        context: RoundContext,
    ) -> ClientOutput:
        # delta_i <- 0 at the beginning of a stage
        is_same_stage = state.stage == context.stage
        keep = lambda d: jnp.where(is_same_stage, d, 0)
        tracking = jax.tree.map(keep, state.tracking)

        def tracked(objective: Objective, w_i: PyTree, weights: Array) -> PyTree:
            # d_i = g_i(w_i) - delta_i
            gradient = plain_gradient(objective, w_i, weights)
            return jax.tree.map(jnp.subtract, gradient, tracking)

        # w_i <- local SGD along that, from w
        local = self.local_sgd(key, params, examples, context, gradient=tracked)
        # Delta_i / tau_i = (w - w_i) / (eta tau_i)
        length = total_step(self.training_in(context), examples)
        weight = self.training.weight(examples)
        output = normalised_output(params, local, length, weight)
        # delta_i <- delta_i + Delta_i / tau_i; `correct` then subtracts the mean
        tracking = jax.tree.map(jnp.add, tracking, output.message.direction)
        return output._replace(state=FedGATEClientState(tracking, context.stage))

    @override
    def server(
        self,
        key: Key,
        server: FedGATEServerState,
        mean: NormalisedMessage,
        context: RoundContext,
    ):
        # w <- w - eta gamma Delta
        direction = mean_direction(mean)
        gamma = self.server_step_size
        if self.server_step_size_by_stage is not None:
            gamma = _of_stage(self.server_step_size_by_stage, context.stage)
        length = gamma * mean.length
        return FedGATEServerState(move(server.params, direction, length), direction)

    @property
    @override
    def phases(self) -> tuple[Phase, ...]:
        # The cohort downloads its mean direction.
        direction = lambda server, context: server.direction
        finish = Phase("finish", direction, self.correct, unchanged)
        return (*super().phases, finish)

    def correct(
        self,
        key: Key,
        direction: PyTree,
        state: FedGATEClientState,
        examples: Examples,
        context: RoundContext,
    ) -> ClientOutput:
        """Subtract the mean direction from the client's tracking variable."""
        # delta_i <- delta_i - Delta / tau, for clients that took steps
        has_steps = num_steps(self.training_in(context), examples) > 0
        subtract = lambda d, m: jnp.where(has_steps, d - m, d)
        tracking = jax.tree.map(subtract, state.tracking, direction)
        return ClientOutput((), state._replace(tracking=tracking))
