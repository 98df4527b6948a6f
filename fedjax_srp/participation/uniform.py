"""Random clients."""

from fedjax_srp.base import ClientTimes, Cohort, Key, ParticipationPolicy
from fedjax_srp.participation.cohorts import check_at_most, draw_pool, request
from fedjax_srp.participation.staged import Staged
from fedjax_srp.parts.part import Count, part


@part
class Uniform(ParticipationPolicy):
    """In every round `k` clients are drawn uniformly without replacement, whatever their speed.

    It is FedRep's sampling of a fraction r = k / N of the clients (FedRep, Algorithm 1); with k = N it is `Full`.

    Args:
        k: clients per round.

    Example:
        >>> import jax, jax.numpy as jnp, fedjax_srp as srp
        >>> policy = srp.participation.Uniform(10)
        >>> times = jnp.arange(100.0)
        >>> state = policy.init(jax.random.key(0), 100)
        >>> policy.select(jax.random.key(1), state, srp.ClientTimes(times, times))[0].client_ids.shape
        (10,)
    """

    k: Count

    def init(self, key: Key, num_clients: int) -> tuple[()]:
        """No state."""
        check_at_most("uniform: k", self.k, "num_clients", num_clients)
        return ()

    def select(
        self, key: Key, state: tuple[()], times: ClientTimes
    ) -> tuple[Cohort, tuple[()]]:
        """A new draw in every round."""
        return request(
            times, draw_pool(key, times.realised.shape[0], self.k, times.available)
        ), state

    def runs_as(self, num_clients: int) -> ParticipationPolicy:
        """One stage, of the whole pool."""
        if type(self) is not Uniform:  # a subclass may have other cohorts
            return self
        return Staged(initial=self.k, pool=self.k)
