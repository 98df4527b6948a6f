"""Clients that arrive, work, leave and fail, event by event in plain Python: no arrays, no JAX."""

import heapq
import math
from typing import NamedTuple

REPORTS, LEAVES = 0, 1
ROUNDING = 1e-9  # a client that leaves at the end of a round is absent in the next


class Asked(NamedTuple):
    """The server's request of one round."""

    clients: list
    quorum: int | None = None  # number of reports that ends the round
    work: dict | None = None  # units of each client; None: one
    limit: float | None = None  # time at which the round ends if a client has reported


class Outcome(NamedTuple):
    """The end of a round."""

    reported: list  # in the order of their reports
    duration: float
    wasted: float


def presence(row, period, now):
    """Next arrival and departure of a client after `now`; `row` are its intervals, which repeat with the period."""
    time = now % period
    plays = [
        (start + play, end + play)
        for start, end in row
        for play in (0.0, period)
        if start < end
    ]
    come = [
        (max(start - time, 0.0), end - time)
        for start, end in plays
        if end > time + ROUNDING
    ]
    return min(
        ((start if start > ROUNDING else 0.0, end) for start, end in come),
        default=(math.inf, math.inf),
    )


def units_that_fit(clients, times, stays, communication, most, on_time):
    """Units of work of each client when the server stops the others once `on_time` of them have done `most`."""
    events = []
    for client in clients:
        needed = communication + most * (times[client] - communication)
        event = (needed, REPORTS) if needed <= stays[client] else (stays[client], LEAVES)
        heapq.heappush(events, event)
    done, now = 0, 0.0
    while events and done < on_time:
        now, kind = heapq.heappop(events)
        done += kind == REPORTS
    work = {}
    for client in clients:
        units = math.floor(
            (now - communication) / (times[client] - communication) * (1 + 1e-6)
        )
        work[client] = min(max(units, 1), most)
    return work


def play_round(asked, times, stays, communication=0.0):
    """Play a round; return who reported, its duration, and the work of the others, which is wasted."""
    work = asked.work or dict.fromkeys(asked.clients, 1)
    events, ends = [], {}
    for client in asked.clients:
        needed = communication + work[client] * (times[client] - communication)
        kind = REPORTS if needed <= stays[client] else LEAVES
        ends[client] = needed if kind == REPORTS else stays[client]
        heapq.heappush(events, (ends[client], kind, client))
    reported, now = [], 0.0
    while events:
        if asked.limit is not None and reported and events[0][0] > asked.limit:
            now = max(now, asked.limit)
            break
        now, kind, client = heapq.heappop(events)
        if kind == REPORTS:
            reported.append(client)
            if len(reported) == asked.quorum:
                break
    wasted = sum(
        min(ends[client], now) for client in asked.clients if client not in reported
    )
    return Outcome(reported, now, wasted)


class Job(NamedTuple):
    """A job in flight, in the order of its end; times since the beginning of the run."""

    end: float
    client: int
    kind: int
    begun: float
    round: int


class Delivered(NamedTuple):
    """A server step of an asynchronous server."""

    jobs: list  # in the order of their delivery
    begun: list  # clients that began a job, in that order
    end: float
    wasted: float


class Buffer:
    """An asynchronous server whose clients come, go and fail: it steps after `k` deliveries.

    All clients that are there have a job, or, with a limit, the first ones of a round's order; others begin when a job
    ends, whether it is delivered or lost.
    """

    def __init__(self, k, limit=None):
        self.k, self.limit, self.jobs = k, limit, []

    def step(self, number, now, order, times, stays):
        """Play the round that begins at `now`; `order` are the ids that are there."""
        at_work = {job.client for job in self.jobs}
        waiting = [i for i in order if i not in at_work]
        begun, delivered, lost = [], [], []

        def begin(client, time):
            done, left = time + times[client], now + stays[client]
            kind = REPORTS if done <= left else LEAVES
            heapq.heappush(self.jobs, Job(min(done, left), client, kind, time, number))
            begun.append(client)

        for client in waiting[
            : None if self.limit is None else self.limit - len(at_work)
        ]:
            begin(client, now)
        waiting, time = [i for i in waiting if i not in begun], now
        while self.jobs and len(delivered) < self.k:
            job = heapq.heappop(self.jobs)
            time = job.end
            (delivered if job.kind == REPORTS else lost).append(job)
            present = [i for i in waiting if now + stays[i] > time]
            if present and len(delivered) < self.k:
                waiting.remove(present[0])
                begin(present[0], time)
        doomed = lost + [job for job in self.jobs if job.kind == LEAVES]
        wasted = sum(min(job.end, time) - max(job.begun, now) for job in doomed)
        return Delivered(delivered, begun, time, wasted)


class TierQueue:
    """Tiers of clients, each with rounds of its own among its clients that are there."""

    def __init__(self, tiers):
        self.jobs, self.idle = [], set(range(tiers))

    def step(self, number, now, drawn, times, stays):
        """Play until the round of a tier ends; `drawn` are the clients of each tier that would begin now.

        Returns the tier, and its round.
        """
        begun = []
        for tier in sorted(self.idle):
            if drawn[tier]:
                self.idle.remove(tier)
                begun += drawn[tier]
                outcome = play_round(Asked(drawn[tier]), times, stays)
                end = now + outcome.duration
                jobs = [Job(end, i, REPORTS, now, number) for i in outcome.reported]
                heapq.heappush(self.jobs, (end, tier, jobs, outcome.wasted))
        end, tier, jobs, wasted = heapq.heappop(self.jobs)
        self.idle.add(tier)
        return tier, Delivered(jobs, begun, end, wasted)
