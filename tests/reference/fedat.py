"""FedAT (Chai et al., 2021, Algorithm 2), in NumPy: a queue of tiers, each with its own rounds."""

import heapq
from typing import NamedTuple

from reference.local import mean, towards, train, weight


class TierRound(NamedTuple):
    """A round of a tier, in the order of a queue: by its end, then by tier."""

    end: float
    tier: int
    version: int  # the server's steps before it began
    clients: list


def tier_rounds(draw, times, tiers):
    """Yields rounds of tiers as they end; `draw(v, m)` are the clients of the round that tier m begins with version v.

    `times(v, i)`: how long client i takes in a round that begins with version v.
    """

    def begin(now, tier, version):
        clients = draw(version, tier)
        return TierRound(
            now + max(times(version, i) for i in clients), tier, version, clients
        )

    queue = [begin(0.0, tier, 0) for tier in range(tiers)]
    heapq.heapify(queue)
    version = 0
    while True:
        ended = heapq.heappop(queue)
        yield ended
        version += 1
        heapq.heappush(queue, begin(ended.end, ended.tier, version))


def run(params, clients, rounds, steps, *, tiers, sgd, penalty, client_weighting):
    """Yields (round of a tier, global model behind it)."""
    models = [params]
    last, counts = [params] * tiers, [0] * tiers
    for t, ended in enumerate(rounds):
        start = models[ended.version]
        near = towards(start, penalty)
        trained = [
            train(start, list(start), clients[i].x, clients[i].y, steps(t, i), sgd, near)
            for i in ended.clients
        ]
        last[ended.tier] = mean(
            trained, [weight(client_weighting, clients[i]) for i in ended.clients]
        )
        counts[ended.tier] += 1
        models.append(mean(last, [counts[tiers - 1 - m] for m in range(tiers)]))
        yield ended, models[-1]
