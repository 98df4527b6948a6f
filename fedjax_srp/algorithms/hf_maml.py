"""HF-MAML: a global model that is good after one step on the client's data."""

from __future__ import annotations

from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import Partial
from typing_extensions import override

from fedjax_srp.algorithms.examples import FedAvgServerState, GlobalModel
from fedjax_srp.algorithms.local import Objective, local_sgd
from fedjax_srp.algorithms.optimizers import optimizer
from fedjax_srp.algorithms.training import LocalTraining
from fedjax_srp.base import (
    Array,
    ClientOutput,
    Examples,
    Key,
    PyTree,
    RoundContext,
    evaluation,
    named_key,
)
from fedjax_srp.models.split import SplitParams
from fedjax_srp.parts.part import Above, AtLeast, Below, Count, Static, part

InnerStepSize = Annotated[float, AtLeast(0), "give a step size, e.g. 0.01"]
SupportFraction = Annotated[
    Static[float], Above(0), Below(1), "None takes the whole batch for both"
]


@part
class HFMAML(GlobalModel):
    """HF-MAML (Per-FedAvg of Fallah et al., 2020, Hessian-free), a baseline of the SRPFL
    and FedRep papers.

    Every part of the model is shared. Clients descend F_i(w) = f_i(w - alpha grad
    f_i(w)), whose gradient (I - alpha H(w)) grad f_i(w - alpha grad f_i(w)) needs only a
    Hessian-vector product; it is computed by central differences, so a step costs four
    gradients. The papers' code differs: SRPFL's aliases its buffers and does plain SGD
    except for one meta-step on the last batch; this implements the intended method.

    Evaluations: `one_inner_step` (the default), the model after `inner_steps` full-batch
    steps of size alpha on the client's data; `global`, the model as it is; `fine_tune`,
    its head trained on the client for `fine_tune_epochs`; `fine_tune_all`, all its layers
    trained.

    Args:
        training: by meta-steps, of size beta = 0.01 in all experiments of SRPFL (appendix
            C). SRPFL's code has 0.1 but hardly ever takes such a step; with proper
            meta-steps 0.1 diverges on MNIST. Weighting is "uniform" in the papers,
            "num_examples" in the authors' code.
        inner_step_size: alpha; 0.01 in SRPFL's code, not in its text.
        difference: delta, of the central differences, in units of the direction v: (grad
            f(w + delta v) - grad f(w - delta v)) / (2 delta).
        support_fraction: share of a batch for the inner step and the Hessian, the rest is
            for the outer gradient (FedRep's code: 0.8); None takes the whole batch for
            both.
        inner_steps: of `one_inner_step`.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.MLP((8, 8), num_classes=10, hidden=(32,))
        >>> list(srp.algorithms.HFMAML(model).evaluations)
        ['one_inner_step', 'global', 'fine_tune', 'fine_tune_all']
    """

    name: ClassVar[str] = "hf_maml"
    supports_batch_norm: ClassVar[bool] = False

    inner_step_size: InnerStepSize = 0.01
    difference: Annotated[float, Above(0), "give a small number, e.g. 1e-3"] = 1e-3
    support_fraction: SupportFraction | None = None
    inner_steps: Count = 1

    @evaluation
    def one_inner_step(
        self, key: Key, server: FedAvgServerState, state: tuple, examples: Examples
    ):
        """The global model after the inner full-batch steps on the client's data."""
        # Not `SGD`: the step size may be 0. The batch is all examples.
        step = optimizer(optax.sgd, learning_rate=self.inner_step_size)
        training = LocalTraining(step, batch_size=2**30, epochs=self.inner_steps)
        adapted = local_sgd(
            named_key(key, "local"), self.loss, server.params, (), examples, training
        )
        return Partial(self.model.logits, adapted.params)

    def halves(self, weights: Array) -> tuple[Array, Array]:
        """Weights of a batch's support (its first samples) and target.

        Without a target, all samples are both.
        """
        if self.support_fraction is None:
            return weights, weights
        real = (weights > 0).astype(weights.dtype)
        count = jnp.sum(real)
        position = jnp.cumsum(real)
        size = jnp.maximum(jnp.round(self.support_fraction * count), 1)
        support = jnp.where(position <= size, real, jnp.zeros_like(real))
        target = jnp.where(count > jnp.sum(support), real - support, support)
        mean = lambda flags: flags / jnp.maximum(jnp.sum(flags), 1)
        return mean(support), mean(target)

    def meta_gradient(self, objective: Objective, w: PyTree, weights: Array) -> PyTree:
        """grad F_i(w), by central differences."""
        support, target = self.halves(weights)
        gradient = jax.grad(objective)
        move = lambda size, v: jax.tree.map(lambda p, q: p + size * q, w, v)
        # v = grad f(w - alpha grad f(w))
        v = gradient(move(-self.inner_step_size, gradient(w, support)), target)
        # H(w) v = (grad f(w + delta v) - grad f(w - delta v)) / (2 delta)
        forward = gradient(move(self.difference, v), support)
        backward = gradient(move(-self.difference, v), support)
        # (I - alpha H(w)) v
        factor = self.inner_step_size / (2 * self.difference)
        return jax.tree.map(lambda v, f, b: v - factor * (f - b), v, forward, backward)

    @override
    def client(
        self,
        key: Key,
        params: SplitParams,
        state: tuple,
        examples: Examples,
        context: RoundContext,
    ):
        # w_i <- steps of size beta on F_i from w
        local = self.local_sgd(
            key, params, examples, context, gradient=self.meta_gradient
        )
        return ClientOutput(
            local.params, weight=self.training.weight(examples), loss=local.loss
        )
