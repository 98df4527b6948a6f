"""Generalized AsyncSGD (Leconte et al., 2024, Algorithm 1), in NumPy, as events: clients with queues of jobs."""

import collections
import heapq
from typing import NamedTuple

from reference.local import combine, train


class Job(NamedTuple):
    """A job at work, in the order of events: by its end, then by client."""

    end: float
    client: int
    version: int  # of the model with which it was sent: the server's steps until then


def jobs(first, next_client, job_time):
    """Yields jobs as they end. Then one is sent to the client `next_client(version)`, with that version.

    Clients `first` are sent one each, with version 0. A client works off its jobs in the order in which they came;
    `job_time(v, i)` is how long client i takes for a job that it begins at the server's version v.
    """
    queues, at_work, version, now = collections.defaultdict(collections.deque), [], 0, 0.0

    def begin(i):
        heapq.heappush(at_work, Job(now + job_time(version, i), i, queues[i][0]))

    for i in first:
        queues[i].append(0)
        if len(queues[i]) == 1:
            begin(i)
    while True:
        job = heapq.heappop(at_work)
        yield job
        queues[job.client].popleft()
        now, version = job.end, version + 1
        if queues[job.client]:
            begin(job.client)
        i = next_client(version)
        queues[i].append(version)
        if len(queues[i]) == 1:
            begin(i)


def run(params, clients, queue, steps, *, probabilities, sgd, eta):
    """Yields (job, staleness, the server's model after it)."""
    models = [params]
    for job in queue:
        i, version, start = job.client, len(models) - 1, models[job.version]
        x, y = clients[i].x, clients[i].y
        trained = train(start, list(start), x, y, steps(version, i), sgd)
        rate = eta / (len(clients) * probabilities[i])
        update = combine(lambda new, old: new - old, trained, start)
        step = lambda w, delta, rate=rate: w + rate * delta
        models.append(combine(step, models[-1], update))
        yield job, version - job.version, models[-1]
