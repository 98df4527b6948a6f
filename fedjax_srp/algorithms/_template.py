"""A template: copy this file, replace `template` in it, change the mathematics.

It runs unchanged: a shared model and a personal bias on its outputs are trained together.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, NamedTuple

import jax.numpy as jnp
from jax.tree_util import Partial
from typing_extensions import override

from fedjax_srp.algorithms import local
from fedjax_srp.algorithms.examples import ExampleAlgorithm
from fedjax_srp.base import (
    Array,
    ClientOutput,
    Examples,
    Key,
    RoundContext,
    Uncharged,
    evaluation,
    named_key,
)
from fedjax_srp.models import SplitParams
from fedjax_srp.parts.part import AtLeast, part


# States hold arrays only, and every round returns them with the shapes and dtypes that
# `init` and `init_client` chose.
class TemplateServerState(NamedTuple):
    """The shared model w, and the mean bias, from which only `fine_tune` starts."""

    params: SplitParams
    bias: Array  # (num_classes,)


class TemplateClientState(NamedTuple):
    """The personal bias b_i, which the engine keeps between participations."""

    bias: Array  # (num_classes,)


class TemplateParts(NamedTuple):
    """The parameters that a client trains, and its message."""

    params: SplitParams
    bias: Any  # in a message: Uncharged


# A part: its fields are the hyper-parameters, recorded with a run and options of the
# command line; its methods are pure functions. `ExampleAlgorithm` has the fields model,
# training, fine_tune_epochs and fine_tune_optimizer.
@part
class Template(ExampleAlgorithm):
    """FedAvg with a personal bias on the outputs of the shared model.

    FedSim (Pillutla et al., 2022) with the smallest personal part: a client descends
    `f_i(w, b_i) + (penalty / 2) |b_i|^2` in both at once and sends w alone.

    Evaluations: `fine_tune` (the default), the last cohort's mean bias trained on the
    client under the shared model; `own_bias`, the client's bias as it last left it;
    `global`, the shared model without a bias.

    Args:
        model: its cut does not matter.
        training: of model and bias.
        penalty: lambda, of the personal bias.
        fine_tune_epochs: epochs of the bias in `fine_tune`.
        fine_tune_optimizer: of the bias in `fine_tune`; default that of training.

    Example:
        >>> import fedjax_srp as srp
        >>> list(Template(srp.models.MLP((8, 8), num_classes=10, hidden=(32,))).evaluations)
        ['fine_tune', 'own_bias', 'global']
    """

    # The name in results; by default that of the class in lower case.
    name: ClassVar[str] = "template"

    # Checked when the algorithm is built, before tracing; an error names field, value and
    # this remedy. Floats are leaves: tracers in a program, so sweeps compile once, and a
    # Python `if` on them fails. Everything else is static. To check several fields
    # together, define `__post_init__` and call that of `super()` first.
    penalty: Annotated[float, AtLeast(0), "give 0 for none, or e.g. 0.01"] = 0.01

    def logits(self, parts: TemplateParts, x: Array, key: Key | None = None) -> Array:
        """The outputs of the shared model plus the bias, (batch, num_classes)."""
        # Ranks are explicit (`bias[None]`): rank promotion is an error in the tests.
        return self.model.logits(parts.params, x, key) + parts.bias[None]

    def loss_of_bias(
        self, bias: Array, params: SplitParams, x: Array, y: Array, key: Key | None
    ) -> Array:
        """The loss of each example with a bias on the outputs, and the penalty."""
        # f_i(w, b_i) + (lambda / 2) |b_i|^2 of each example
        outputs = self.logits(TemplateParts(params, bias), x, key)
        return self.model.loss(outputs, y) + 0.5 * self.penalty * jnp.sum(bias * bias)

    def loss_of_both(
        self, parts: TemplateParts, frozen: tuple, x: Array, y: Array, key: Key | None
    ) -> Array:
        """The same loss in all trained parameters."""
        return self.loss_of_bias(parts.bias, parts.params, x, y, key)

    # `@override` marks the functions of the contract (`base.py`), which has their
    # descriptions; functions of your own have a docstring.
    @override
    def init(self, key: Key, data: Any) -> TemplateServerState:
        params = self.init_params(key, data)  # checks that the data fit the model
        # The dtype of the parameters instead of the default one keeps runs in float64.
        bias = jnp.zeros(self.model.num_classes, local.dtype_of(params))
        return TemplateServerState(params, bias)

    @override
    def init_client(
        self, key: Key, server: TemplateServerState, examples: Examples
    ) -> TemplateClientState:
        # Omit this function if nothing is personal.
        return TemplateClientState(server.bias)

    @override
    def broadcast(
        self, server: TemplateServerState, context: RoundContext
    ) -> SplitParams:
        # All of it is charged: return only what a client downloads.
        return server.params

    @override
    def client(
        self,
        key: Key,
        params: SplitParams,
        state: TemplateClientState,
        examples: Examples,
        context: RoundContext,
    ) -> ClientOutput:
        # Written for one client. `params` is the result of `broadcast`; arrays come as
        # arguments or fields, never from globals. Work, and so `num_steps`, is 0 in a
        # padded slot of a chunk: guard divisions by it.
        # (w_i, b_i) <- local SGD from (w, b_i)
        start = TemplateParts(params, state.bias)
        trained = self.local_sgd(key, start, examples, context, loss=self.loss_of_both)
        params, bias = trained.params
        return ClientOutput(
            # The engine averages the message; integers become floats. The bytes of the
            # wrapped bias are not charged.
            message=TemplateParts(params, Uncharged(bias)),
            state=TemplateClientState(bias),
            weight=self.training.weight(examples),
            # Scalars to record: their mean over the cohort is
            # history.metrics["bias_norm"].
            info={"bias_norm": jnp.sqrt(jnp.sum(bias * bias))},
            # For runs that record the training loss; `local.total_loss` combines several
            # losses.
            loss=trained.loss,
        )

    @override
    def server(
        self,
        key: Key,
        server: TemplateServerState,
        mean: TemplateParts,
        context: RoundContext,
    ) -> TemplateServerState:
        # w <- sum_i p_i w_i; `mean` has the structure of the message, wrappers included
        return TemplateServerState(mean.params, mean.bias.value)

    # An evaluation gets TRAINING data and returns a function of inputs; the engine keeps
    # the test data. The first one is the default. `srp.personalize` returns the
    # parameters of a `Partial`.
    @evaluation
    def fine_tune(
        self,
        key: Key,
        server: TemplateServerState,
        state: TemplateClientState,
        examples: Examples,
    ):
        """The last cohort's mean bias, trained on the client under the shared model."""
        # Keys are named by purpose and used once. `self.local_sgd` is for rounds: its
        # purpose is "local", with which all methods draw the same batches.
        tuned = local.local_sgd(
            named_key(key, "head"),
            self.loss_of_bias,
            server.bias,
            server.params,
            examples,
            self.tuning,
        )
        return Partial(self.logits, TemplateParts(server.params, tuned.params))

    @evaluation
    def own_bias(
        self,
        key: Key,
        server: TemplateServerState,
        state: TemplateClientState,
        examples: Examples,
    ):
        """The client's bias as it last left it, on the outputs of the shared model."""
        return Partial(self.logits, TemplateParts(server.params, state.bias))

    @evaluation("global")
    def global_model(
        self,
        key: Key,
        server: TemplateServerState,
        state: TemplateClientState,
        examples: Examples,
    ):
        """The shared model without a bias."""
        return Partial(self.model.logits, server.params)
