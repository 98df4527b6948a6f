"""pFedMe of Dinh et al., 2020, as somebody outside the package writes it."""

from typing import Annotated

import jax
import optax

import fedjax_srp as srp
from fedjax_srp.algorithms import local


def envelope(step: float, penalty: float) -> optax.GradientTransformation:
    """w <- w - eta lambda (w - theta), where theta comes as the gradient and is remembered as the state."""

    def update(theta, last, w):
        return jax.tree.map(lambda w, theta: -step * penalty * (w - theta), w, theta), theta

    return optax.GradientTransformation(lambda w: w, update)


@srp.part
class PFedMe(srp.algorithms.FedAvg):
    """pFedMe (Dinh et al., 2020, Algorithm 1): a client's own model theta_i is the minimum, nearly, of
    f_i(theta) + (lambda / 2) |theta - w_i|^2, and its copy w_i of the global model follows it.

    Args:
        model: where it is cut matters to `fine_tune` alone.
        training: of w_i, by `SGD` with step size eta; every batch is one of the paper's local rounds.
        fine_tune_epochs: as for FedAvg.
        fine_tune_optimizer: as for FedAvg.
        evaluation: the default one.
        penalty: lambda.
        inner_steps: K, for theta on each batch, from w_i on.
        inner_step_size: of these steps.
        mixing: beta, how far the server goes towards the mean.
    """

    penalty: Annotated[float, srp.AtLeast(0)] = 15.0
    inner_steps: Annotated[int, srp.AtLeast(1)] = 5
    inner_step_size: Annotated[float, srp.Above(0)] = 0.01
    mixing: Annotated[float, srp.Above(0)] = 1.0

    def init_client(self, key, server, examples):
        return server.params  # theta_i

    def client(self, key, params, theta, examples, context):
        def personal(objective, w, weights):
            def step(_, theta):
                # theta <- theta - alpha (grad f_i(theta) + lambda (theta - w_i))
                gradient = local.plain_gradient(objective, theta, weights)
                slope = jax.tree.map(lambda g, theta, w: g + self.penalty * (theta - w), gradient, theta, w)
                return jax.tree.map(lambda theta, s: theta - self.inner_step_size * s, theta, slope)

            return jax.lax.fori_loop(0, self.inner_steps, step, w)

        now = self.training.in_round(context)
        outer = srp.optimizer(envelope, step=local.step_size(now.optimizer), penalty=self.penalty)
        now, key = now._replace(optimizer=outer), srp.named_key(key, "local")
        trained = local.local_sgd(key, self.loss, params, (), examples, now, gradient=personal)
        weight = self.training.weight(examples)
        return srp.ClientOutput(trained.params, trained.optimizer, weight, loss=trained.loss)  # theta_i: the last one

    def server(self, key, server, mean, context):
        # w <- (1 - beta) w + beta mean w_i
        mixed = jax.tree.map(lambda w, w_i: (1 - self.mixing) * w + self.mixing * w_i, server.params, mean)
        return server._replace(params=mixed)

    @srp.evaluation
    def own_model(self, key, server, theta, examples):
        """The client's own model, as it last left it."""
        return lambda x: self.model.logits(theta, x)
