"""LG-FedAvg: a personal representation, a shared head."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_srp.algorithms.examples import ExampleAlgorithm
from fedjax_srp.algorithms.local import fit_representation, local_sgd
from fedjax_srp.base import (
    Array,
    ClientOutput,
    Examples,
    Key,
    PyTree,
    RoundContext,
    Uncharged,
    evaluation,
    named_key,
)
from fedjax_srp.models.split import SplitParams
from fedjax_srp.parts.part import part


class LGFedAvgClientState(NamedTuple):
    """The personal representation of client i, and whether the client has ever trained it."""

    representation: PyTree
    has_trained: Array  # () bool


@part
class LGFedAvg(ExampleAlgorithm):
    """LG-FedAvg (Liang et al., 2020): the layers below the model's cut are local to a client, those above are global.

    Both parts are trained together; only the global one is averaged. SRPFL's text and FedRep's code share the last two
    layers, FedRep's text all fully connected layers (CIFAR) or the last one (FEMNIST): cut the model there.

    Evaluations: `fine_tune` (the default), the last round's mean local layers trained on the client for
    `fine_tune_epochs` under frozen global ones, as in the authors' code and fair to clients that have not taken part
    yet; `own_representation`, the client's own layers as it last left them, under the global ones;
    `own_or_mean_representation`, the same with the mean local layers for clients that have never taken part.

    Args:
        model: cut at the first global layer ("fc3" for the last two layers of the MLP).
        training: of both parts; step size 0.01 in SRPFL, section 5. Weighting is "uniform" in the paper, "num_examples"
            in the authors' code.
        fine_tune_optimizer: of `fine_tune`; default that of training. SRPFL's code has momentum 0.5 there and none in
            training.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.MLP((8, 8), num_classes=10, hidden=(32, 16), cut="fc2")
        >>> srp.algorithms.LGFedAvg(model).name
        'lg_fedavg'
    """

    name: ClassVar[str] = "lg_fedavg"

    def init(self, key: Key, data: Any) -> SplitParams:
        """The initial parameters: the global head, and a representation from which only `fine_tune` starts."""
        return self.init_params(key, data)

    def init_client(
        self, key: Key, server: SplitParams, examples: Examples
    ) -> LGFedAvgClientState:
        """The initial representation."""
        return LGFedAvgClientState(server.representation, jnp.bool_(False))

    def broadcast(self, server: SplitParams, context: RoundContext) -> PyTree:
        """The global head."""
        return server.head

    def client(
        self,
        key: Key,
        head: PyTree,
        state: LGFedAvgClientState,
        examples: Examples,
        context: RoundContext,
    ):
        """Local SGD on both parts."""
        # (local_i, global_i) <- local SGD from (local_i, global)
        start, now = (
            SplitParams(state.representation, head),
            self.training.in_round(context),
        )
        local = local_sgd(named_key(key, "local"), self.loss, start, (), examples, now)
        representation, head = local.params
        message = SplitParams(
            Uncharged(representation), head
        )  # the head is sent; the rest is for evaluations
        new = LGFedAvgClientState(representation, jnp.bool_(True))
        return ClientOutput(message, new, self.training.weight(examples), loss=local.loss)

    def server(
        self, key: Key, server: SplitParams, mean: SplitParams, context: RoundContext
    ):
        """The mean head, and the mean representation for evaluations."""
        # global <- (1/n) sum_i global_i
        return SplitParams(mean.representation.value, mean.head)

    @evaluation
    def fine_tune(
        self,
        key: Key,
        server: SplitParams,
        state: LGFedAvgClientState,
        examples: Examples,
    ):
        """The mean local layers of the last cohort, trained on the client under the global ones."""
        tuned = fit_representation(
            key, self.model, server.representation, server.head, examples, self.tuning
        )
        return lambda x: self.model.classify(
            server.head, self.model.represent(tuned.params, x)
        )

    @evaluation
    def own_representation(
        self,
        key: Key,
        server: SplitParams,
        state: LGFedAvgClientState,
        examples: Examples,
    ):
        """The client's own local layers, as it last left them, under the global ones."""
        return lambda x: self.model.classify(
            server.head, self.model.represent(state.representation, x)
        )

    @evaluation
    def own_or_mean_representation(
        self,
        key: Key,
        server: SplitParams,
        state: LGFedAvgClientState,
        examples: Examples,
    ):
        """The client's own local layers, or the last round's mean ones for clients that have never taken part."""
        representation = jax.tree.map(
            lambda own, mean: jnp.where(state.has_trained, own, mean),
            state.representation,
            server.representation,
        )
        return lambda x: self.model.classify(
            server.head, self.model.represent(representation, x)
        )
