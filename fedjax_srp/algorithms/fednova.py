"""FedNova: FedAvg for clients that take unequal numbers of steps."""

from __future__ import annotations

from typing import ClassVar

from typing_extensions import override

from fedjax_srp.algorithms._normalised import (
    NormalisedMessage,
    check_equal_steps,
    gradient_weights,
    mean_direction,
    move,
    normalised_output,
)
from fedjax_srp.algorithms.fedavg import FedAvg, FedAvgServerState
from fedjax_srp.base import Examples, Key, RoundContext
from fedjax_srp.models.split import SplitParams
from fedjax_srp.parts.part import part


@part
class FedNova(FedAvg):
    """FedNova (Wang et al., 2020): every part of the model is shared, nothing is
    personal.

    If client i takes tau_i steps, FedAvg's mean is biased towards clients with many
    steps. Here the server averages d_i = (w - w_i) / tau_i and moves by that mean times
    the mean tau. The numbers of steps depend on the policy (`participation.PartialWork`)
    and on the data, since an epoch of more examples has more steps. With equal numbers
    this is `FedAvg`.

    With momentum tau_i is ||a_i||_1, the sum of the gradients' weights in the update. For
    optimizers other than `SGD` it is the number of steps.

    Evaluations: those of `FedAvg`.

    Args:
        training: of the clients, with one step size in a round; with `steps=1` a unit of
            work is one step. Its weighting is p_i, "uniform" in FLANP and "num_examples"
            in the paper.

    Raises:
        ValueError: the optimizer is `SGD` with a schedule over local steps.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.MLP((8, 8), num_classes=10, hidden=(32,))
        >>> srp.algorithms.FedNova(model, srp.Training(epochs=None, steps=1)).name
        'fednova'
    """

    sends_changes: ClassVar[bool] = True
    supports_batch_norm: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_equal_steps(self.training.optimizer)

    @override
    def client(
        self,
        key: Key,
        params: SplitParams,
        state: tuple,
        examples: Examples,
        context: RoundContext,
    ):
        # w_i <- local SGD from w
        local = self.local_sgd(key, params, examples, context)
        # eta d_i = (w - w_i) / ||a_i||_1
        length = gradient_weights(self.training.in_round(context), examples)
        return normalised_output(params, local, length, self.training.weight(examples))

    @override
    def server(
        self,
        key: Key,
        server: FedAvgServerState,
        mean: NormalisedMessage,
        context: RoundContext,
    ):
        # w <- w - tau_eff sum_i p_i eta d_i, tau_eff = sum_i p_i ||a_i||_1
        return FedAvgServerState(move(server.params, mean_direction(mean), mean.length))
