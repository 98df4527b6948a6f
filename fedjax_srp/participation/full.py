"""All clients."""

import jax.numpy as jnp
from typing_extensions import override

from fedjax_srp.base import ClientTimes, Cohort, Key, ParticipationPolicy
from fedjax_srp.participation.cohorts import request
from fedjax_srp.participation.staged import Staged
from fedjax_srp.parts.part import part


@part
class Full(ParticipationPolicy):
    """Every client takes part in every round, and the round waits for the slowest.

    FedRep as SRPFL compares with it: n = N from the first round on (SRPFL, section 4).

    Example:
        >>> import jax, jax.numpy as jnp, fedjax_srp as srp
        >>> policy = srp.participation.Full()
        >>> times = jnp.array([3.0, 1.0, 2.0])
        >>> state = policy.init(jax.random.key(0), 3)
        >>> policy.select(jax.random.key(1), state, srp.ClientTimes(times, times))[0].client_ids.tolist()
        [1, 2, 0]
    """

    @override
    def select(
        self, key: Key, state: tuple[()], times: ClientTimes
    ) -> tuple[Cohort, tuple[()]]:
        all_clients = jnp.arange(times.realised.shape[0], dtype=jnp.int32)
        return request(times, all_clients), state

    @override
    def runs_as(self, num_clients: int) -> ParticipationPolicy:
        if type(self) is not Full:  # a subclass may have other cohorts
            return self
        # One stage, of all clients.
        return Staged(initial=num_clients)
