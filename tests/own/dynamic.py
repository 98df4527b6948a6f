"""FedDyn of Acar et al., 2021, as a user writes it, with public names only."""

from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

import fedjax_srp as srp
from fedjax_srp.algorithms import local


class ServerState(NamedTuple):
    """The global model w, and h."""

    params: Any
    h: Any


@srp.part
class Dynamic(srp.algorithms.FedAvg):
    """FedDyn (Acar et al., 2021, Algorithm 1): clients descend f_i(w_i) - <h_i, w_i> + (alpha / 2) |w_i - w|^2.

    Args:
        model: where it is cut matters to `fine_tune` alone.
        training: of the clients; its weighting has no effect, means are uniform.
        fine_tune_epochs: as for FedAvg.
        fine_tune_optimizer: as for FedAvg.
        evaluation: the default one.
        alpha: of the dynamic regularizer; the paper has 0.001 to 0.1.
    """

    alpha: Annotated[float, srp.Above(0), "give a small number, e.g. 0.01"] = 0.01

    def init(self, key, data):
        params = self.init_params(key, data)
        return ServerState(params, jax.tree.map(jnp.zeros_like, params))

    def init_client(self, key, server, examples):
        return jax.tree.map(jnp.zeros_like, server.params)  # h_i

    def client(self, key, params, h, examples, context):
        def dynamic(objective, w_i, weights):
            # grad f_i(w_i) - h_i + alpha (w_i - w)
            gradient = local.plain_gradient(objective, w_i, weights)
            return jax.tree.map(lambda g, h, w_i, w: g - h + self.alpha * (w_i - w), gradient, h, w_i, params)

        now = self.training.in_round(context)
        trained = local.local_sgd(srp.named_key(key, "local"), self.loss, params, (), examples, now, gradient=dynamic)
        # h_i <- h_i - alpha (w_i - w)
        h = jax.tree.map(lambda h, w_i, w: h - self.alpha * (w_i - w), h, trained.params, params)
        return srp.ClientOutput(trained.params, h, loss=trained.loss)

    def server(self, key, server, mean, context):
        # h <- h - (alpha / N) sum_i (w_i - w), over the participants
        share = self.alpha * context.cohort_size.astype(float) / context.num_clients
        h = jax.tree.map(lambda h, w_i, w: h - share * (w_i - w), server.h, mean, server.params)
        # w <- mean w_i - h / alpha
        return ServerState(jax.tree.map(lambda w_i, h: w_i - h / self.alpha, mean, h), h)
