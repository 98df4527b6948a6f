"""Random clients."""

from typing_extensions import override

from fedjax_srp.base import ClientTimes, Cohort, Key, ParticipationPolicy
from fedjax_srp.participation.cohorts import check_at_most, draw_pool, request
from fedjax_srp.participation.staged import Staged
from fedjax_srp.parts.part import Count, part


@part
class Uniform(ParticipationPolicy):
    """`k` clients, drawn uniformly without replacement in every round.

    It is FedRep's sampling of a fraction r = k / N of the clients (FedRep, Algorithm 1);
    with k = N it is `Full`.

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

    @override
    def init(self, key: Key, num_clients: int) -> tuple[()]:
        check_at_most("uniform: k", self.k, "num_clients", num_clients)
        return ()

    @override
    def select(
        self, key: Key, state: tuple[()], times: ClientTimes
    ) -> tuple[Cohort, tuple[()]]:
        num_clients = times.realised.shape[0]
        sample = draw_pool(key, num_clients, self.k, times.available)
        return request(times, sample), state

    @override
    def runs_as(self, num_clients: int) -> ParticipationPolicy:
        if type(self) is not Uniform:  # a subclass may have other cohorts
            return self
        # One stage, of the whole pool.
        return Staged(initial=self.k, pool=self.k)
