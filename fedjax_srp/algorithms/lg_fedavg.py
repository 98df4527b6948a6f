"""LG-FedAvg: a personal representation, a shared head."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
from jax.tree_util import Partial
from typing_extensions import override

from fedjax_srp.algorithms.examples import ExampleAlgorithm
from fedjax_srp.algorithms.fedrep import own_or_mean
from fedjax_srp.algorithms.local import fit_representation
from fedjax_srp.base import (
    Array,
    ClientOutput,
    Examples,
    Key,
    PyTree,
    RoundContext,
    Uncharged,
    evaluation,
)
from fedjax_srp.models.split import SplitParams
from fedjax_srp.parts.part import part


class LGFedAvgClientState(NamedTuple):
    """The personal representation of client i, and a flag: it has been trained."""

    representation: PyTree
    has_trained: Array  # () bool


@part
class LGFedAvg(ExampleAlgorithm):
    """LG-FedAvg (Liang et al., 2020): the layers below the model's cut are local to a
    client, those above are global.

    Both parts are trained together; only the global one is averaged. SRPFL's text and
    FedRep's code share the last two layers, FedRep's text all fully connected layers
    (CIFAR) or the last one (FEMNIST): cut the model there.

    Evaluations: `fine_tune` (the default), the last round's mean local layers trained on
    the client for `fine_tune_epochs` under frozen global ones, as in the authors' code
    and fair to clients that have not taken part yet; `own_representation`, the client's
    own layers as it last left them, under the global ones; `own_or_mean_representation`,
    the same with the mean local layers for clients that have never taken part.

    Args:
        model: cut at the first global layer ("fc3" for the last two layers of the MLP).
        training: of both parts; step size 0.01 in SRPFL, section 5. Weighting is
            "uniform" in the paper, "num_examples" in the authors' code.
        fine_tune_optimizer: of `fine_tune`; default that of training. SRPFL's code has
            momentum 0.5 there and none in training.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.MLP((8, 8), num_classes=10, hidden=(32, 16), cut="fc2")
        >>> srp.algorithms.LGFedAvg(model).name
        'lg_fedavg'
    """

    name: ClassVar[str] = "lg_fedavg"

    @override
    def init(self, key: Key, data: Any) -> SplitParams:
        # The global head, and a representation from which only `fine_tune` starts.
        return self.init_params(key, data)

    @override
    def init_client(
        self, key: Key, server: SplitParams, examples: Examples
    ) -> LGFedAvgClientState:
        return LGFedAvgClientState(server.representation, jnp.bool_(False))

    @override
    def broadcast(self, server: SplitParams, context: RoundContext) -> PyTree:
        return server.head

    @override
    def client(
        self,
        key: Key,
        head: PyTree,
        state: LGFedAvgClientState,
        examples: Examples,
        context: RoundContext,
    ):
        # (local_i, global_i) <- local SGD from (local_i, global)
        start = SplitParams(state.representation, head)
        local = self.local_sgd(key, start, examples, context)
        representation, head = local.params
        return ClientOutput(
            # The head is sent; the rest is for evaluations.
            message=SplitParams(Uncharged(representation), head),
            state=LGFedAvgClientState(representation, jnp.bool_(True)),
            weight=self.training.weight(examples),
            loss=local.loss,
        )

    @override
    def server(
        self, key: Key, server: SplitParams, mean: SplitParams, context: RoundContext
    ):
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
        """The mean local layers of the last cohort, which clients never send, trained on
        the client under the global ones.
        """
        tuned = fit_representation(
            key, self.model, server.representation, server.head, examples, self.tuning
        )
        params = server._replace(representation=tuned.params)
        return Partial(self.model.logits, params)

    @evaluation
    def own_representation(
        self,
        key: Key,
        server: SplitParams,
        state: LGFedAvgClientState,
        examples: Examples,
    ):
        """The client's own local layers, as it last left them, under the global ones."""
        params = server._replace(representation=state.representation)
        return Partial(self.model.logits, params)

    @evaluation
    def own_or_mean_representation(
        self,
        key: Key,
        server: SplitParams,
        state: LGFedAvgClientState,
        examples: Examples,
    ):
        """The client's own local layers, or the last round's mean ones, which clients
        never send, for clients that have never taken part.
        """
        representation = own_or_mean(
            state.has_trained, state.representation, server.representation
        )
        params = server._replace(representation=representation)
        return Partial(self.model.logits, params)
