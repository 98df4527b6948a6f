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
