"""Bases of algorithms with submodels: clients train a part of the model, or of each hidden layer."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
from typing_extensions import override

from fedjax_srp.algorithms.examples import FedAvgServerState, GlobalModel
from fedjax_srp.algorithms.local import Loss
from fedjax_srp.base import (
    MESSAGE_SHARE,
    Array,
    Charges,
    ClientOutput,
    Examples,
    FederatedAlgorithm,
    Key,
    PyTree,
    RoundContext,
    Uncharged,
)
from fedjax_srp.models.narrow import narrow, narrow_model, unit_masks
from fedjax_srp.models.split import SplitParams
from fedjax_srp.parts.part import Above, AtMost, Static, part, undefined

Rate = Annotated[
    Static[float], Above(0), AtMost(1), "give a share of the units, e.g. 0.5"
]


@part
class MaskedAlgorithm(GlobalModel):
    """A global model of which each client trains a part, which a mask marks.

    The policy sets each client's capacity: with more units of work it trains a larger
    part, for as many steps as the other clients. The simulator computes the whole model,
    and `charges` say what a real client computes and sends.
    """

    def masks(self, trained: PyTree, context: RoundContext) -> PyTree:
        """1 for each parameter that a client trains, 0 for others, shaped like them."""
        undefined(self.masks)

    def loss_in(self, context: RoundContext, start: PyTree) -> Loss:
        """The loss of the client's part, whose training starts at `start`.

        Its gradient is zero outside of this part.
        """
        undefined(self.loss_in)

    def share(self, masks: PyTree, context: RoundContext) -> Array:
        """The client's part of the bytes of all parameters, () float."""
        del context
        return mean_entry(masks)

    def state_of(self, trained: PyTree) -> Any:
        """The server's state of these parameters, those of `broadcast`."""
        return FedAvgServerState(trained)

    @override
    def client(
        self,
        key: Key,
        trained: PyTree,
        state: tuple,
        examples: Examples,
        context: RoundContext,
    ):
        # m_i: 1 for the parameters that client i trains, 0 for others
        masks = self.masks(trained, context)
        # w_i <- local SGD on the part of client i, from w
        one_unit = context._replace(work=jnp.minimum(context.work, 1))
        local = self.local_sgd(
            key,
            trained,
            examples,
            one_unit,
            loss=self.loss_in(context, trained),
        )
        masked = jax.tree.map(jnp.multiply, local.params, masks)
        return ClientOutput(
            message=(masked, Uncharged(masks)),
            weight=self.training.weight(examples),
            info={MESSAGE_SHARE: self.share(masks, context)},
            loss=local.loss,
        )

    @override
    def server(
        self,
        key: Key,
        server: Any,
        mean: tuple[PyTree, Uncharged],
        context: RoundContext,
    ):
        # w[j] <- sum_i p_i m_i[j] w_i[j] / sum_i p_i m_i[j]; without clients as it was
        sums, weights = mean
        divide = lambda w, s, p: jnp.where(p > 0, s / jnp.where(p > 0, p, 1), w)
        trained = self.broadcast(server, context)
        return self.state_of(jax.tree.map(divide, trained, sums, weights.value))


@part
class SubmodelAlgorithm(MaskedAlgorithm):
    """A global model of which each client trains a share of every hidden layer.

    The policy sets each client's capacity: with w units of work it trains a submodel of
    rate r = `rates[w - 1]`, for as many steps as the other clients. The simulator
    computes the whole model under a mask, but `clocks.Devices` charges the operations and
    bytes of a model of this width, between r^2 and r of those of the whole model. Other
    clocks charge w units.

    A model is a stack of dense layers and convolutions, whose channels are the units;
    GroupNorm may be between them, and then sees the left-out units as zeros.

    Args:
        rates: of a client with 1, 2, ... units of work; the last one for more units.
            `rates=(1.0,)` is `FedAvg`.
    """

    supports_batch_norm: ClassVar[bool] = False

    rates: tuple[Rate, ...] = (0.0625, 0.125, 0.25, 0.5, 1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.rates:
            raise ValueError("rates=() is empty; give one or more, e.g. (0.5, 1.0)")

    def first_unit(self, context: RoundContext) -> Array:
        """The first unit of a client in each layer, () int32, modulo the width."""
        del context
        return jnp.int32(0)

    def narrowed(
        self, params: SplitParams, level: Array, first: Array, key: Key | None
    ) -> SplitParams:
        """The submodel of a training step.

        Outputs of its units are scaled by 1 / r (Scaler), those of others are 0.
        """
        del key
        rate = jnp.asarray(self.rates)[level]
        return narrow(self.model.layer_names, params, rate, first, 1 / rate)

    @property
    @override
    def charges(self) -> Charges:
        # With w units of work: a narrow model of rate `rates[w - 1]`.
        return Charges(
            costs_as=lambda: tuple((each,) for each in self.narrow_algorithms())
        )

    def narrow_algorithms(self) -> list[FederatedAlgorithm]:
        """The algorithm with the narrow model of each rate."""
        models = [narrow_model(self.model, rate) for rate in self.rates]
        return [dataclasses.replace(self, model=model, rates=(1.0,)) for model in models]

    @override
    def init_params(self, key: Key, data: Any) -> SplitParams:
        params = super().init_params(key, data)
        layers = {**params.representation, **params.head}
        for name, layer in layers.items():
            if not layer.keys() <= {"kernel", "bias", "scale"}:
                raise ValueError(
                    f"model {self.model.name!r}: layer {name!r} has {', '.join(layer)}, "
                    f"but {self.name} narrows only dense layers and convolutions; choose e.g. mlp or lenet5"
                )
        return params

    def level(self, context: RoundContext) -> Array:
        """The place of a client's rate, () int32."""
        return jnp.clip(context.work, 1, len(self.rates)) - 1

    @override
    def loss_in(self, context: RoundContext, start: SplitParams) -> Loss:
        level = self.level(context)
        first = self.first_unit(context)

        def loss(
            params: SplitParams, frozen: PyTree, x: Array, y: Array, key: Key | None
        ) -> Array:
            return self.loss(self.narrowed(params, level, first, key), frozen, x, y, key)

        return loss

    @override
    def masks(self, trained: SplitParams, context: RoundContext) -> SplitParams:
        rate = jnp.asarray(self.rates)[self.level(context)]
        first = self.first_unit(context)
        return unit_masks(self.model.layer_names, trained, rate, first)


def mean_entry(masks: PyTree) -> Array:
    """The mean over all entries, () float."""
    leaves = jax.tree.leaves(masks)
    total = sum((jnp.sum(leaf, dtype=float) for leaf in leaves), jnp.zeros(()))
    return total / sum(leaf.size for leaf in leaves)
