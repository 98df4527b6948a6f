"""FedBuff, in NumPy, as events: clients work concurrently, the server steps after every k updates."""

import heapq
from typing import NamedTuple

from reference.local import combine, mean, train, weight


class Job(NamedTuple):
    """A client's work on one model, in the order of a queue: by its end, then by client."""

    end: float
    client: int
    version: int  # of the model that it began with: the server's steps until then


def jobs(num_clients, job_time, k):
    """Yields jobs as they end. After every k of them these k clients start again, with the next version.

    `job_time(v, i)` is the duration of the job that client i begins with version v.
    """
    queue = [Job(job_time(0, i), i, 0) for i in range(num_clients)]
    heapq.heapify(queue)
    version = 0
    while True:
        waiting = []
        while len(waiting) < k:
            job = heapq.heappop(queue)
            waiting.append(job.client)
            yield job
        version += 1
        for i in waiting:
            heapq.heappush(queue, Job(job.end + job_time(version, i), i, version))


def limited_jobs(first, next_client, job_time, k):
    """Yields jobs as they end, with a limited number of clients at work: FedBuff's server loop.

    `first` begin at time 0; when one delivers, the client `next_client(busy, version)` begins at once with the model of
    that version. Busy clients are at work or have an update in the buffer.
    """
    queue = [Job(job_time(0, i), i, 0) for i in first]
    heapq.heapify(queue)
    version, in_buffer = 0, []
    while True:
        job = heapq.heappop(queue)
        in_buffer.append(job.client)
        yield job
        if len(in_buffer) == k:
            version, in_buffer = version + 1, []
        at_work = {other.client for other in queue}
        i = next_client(at_work | set(in_buffer), version)
        heapq.heappush(queue, Job(job.end + job_time(version, i), i, version))


class Step(NamedTuple):
    """A step of the server."""

    time: float
    arrivals: list[int]
    staleness: list[int]
    params: dict


def run(
    params,
    clients,
    queue,
    steps,
    *,
    k,
    sgd,
    eta=1.0,
    exponent=0.5,
    client_weighting="uniform",
):
    """Yields every `Step` of the server.

    `queue` are the jobs as they end; `steps(v, i)` are the rows of the batches of the job of client i that ends while
    the server has version v.
    """
    models = [params]
    updates, weights, arrivals, staleness = [], [], [], []
    for job in queue:
        i, version, start = job.client, len(models) - 1, models[job.version]
        tau = version - job.version
        trained = train(
            start, list(start), clients[i].x, clients[i].y, steps(version, i), sgd
        )
        scale = 1 / (1 + tau) ** exponent
        updates.append(
            combine(lambda new, old, scale=scale: scale * (new - old), trained, start)
        )
        weights.append(weight(client_weighting, clients[i]))
        arrivals.append(i)
        staleness.append(tau)
        if len(updates) == k:
            models.append(
                combine(
                    lambda w, delta: w + eta * delta, models[-1], mean(updates, weights)
                )
            )
            yield Step(job.end, arrivals, staleness, models[-1])
            updates, weights, arrivals, staleness = [], [], [], []
