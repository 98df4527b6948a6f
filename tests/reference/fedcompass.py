"""FedCompass (Li et al., 2024), in plain Python, as events: arrivals, and timers of groups."""

import dataclasses
import math
from typing import NamedTuple

from reference.local import combine, train

GROUP, LATE, FIRST = 0, 1, 2


@dataclasses.dataclass
class Group:
    """Clients that are to arrive together."""

    expected: float
    latest: float
    away: list = dataclasses.field(default_factory=list)
    arrived: list = dataclasses.field(default_factory=list)
    is_open: bool = True


@dataclasses.dataclass
class Client:
    """A client with a job."""

    ends: float
    units: int
    took: float
    pace: float | None = None
    group: Group | None = None


class Event(NamedTuple):
    """The server deals with the updates of these clients."""

    time: float
    kind: int
    work: dict  # units of each client


def events(num_clients, unit_time, least, most, factor, momentum):
    """Yield every `Event`; `unit_time(e, i)` is the time of a unit of a job of client i that begins after e events."""
    now, number, groups = 0.0, 0, []
    first = [unit_time(0, i) for i in range(num_clients)]
    clients = [Client(most * time, most, time) for time in first]

    def units_until(time, i):
        return math.floor((time - now) / clients[i].pace * (1 + 1e-6))

    def join(i):
        best, units = None, -1
        for group in groups:
            found = units_until(group.expected, i)
            if group.is_open and least <= found <= most and found >= units:
                best, units = group, found
        return best, units

    def create(i):
        units = -1
        for group in groups:
            if group.is_open:
                fastest = min(clients[j].pace for j in group.away + group.arrived)
                found = units_until(group.latest + fastest * most, i)
                if found <= most:
                    units = max(units, found)
        units = most if units < 0 else max(units, least)
        lasts = units * clients[i].pace
        groups.append(Group(now + lasts, now + lasts * factor))
        return groups[-1], units

    def measure(i):
        client = clients[i]
        if client.pace is None:
            client.pace = client.took
        else:
            client.pace = (1 - momentum) * client.pace + momentum * client.took

    def begin(delivering):
        for i in sorted(delivering, key=lambda i: (clients[i].pace, i)):
            clients[i].group = None
            group, units = join(i)
            if group is None:
                group, units = create(i)
            group.away.append(i)
            took = unit_time(number, i)
            clients[i].group = group
            clients[i].units, clients[i].took = units, took
            clients[i].ends = now + units * took

    def event(kind, delivering):
        return Event(now, kind, {i: clients[i].units for i in delivering})

    waiting = set(range(num_clients))  # clients at work
    while True:
        i = min(waiting, key=lambda i: (clients[i].ends, i))
        timers = [group for group in groups if group.is_open]
        timer = min(timers, key=lambda group: group.latest, default=None)
        ended = None
        if timer is not None and timer.latest < clients[i].ends:
            now, ended = timer.latest, timer
        else:
            now = clients[i].ends
            group = clients[i].group
            measure(i)
            if group is None or not group.is_open:
                happened = event(FIRST if group is None else LATE, [i])
                number += 1
                if group is not None:
                    group.away.remove(i)
                begin([i])
                yield happened
                continue
            waiting.remove(i)
            group.away.remove(i)
            group.arrived.append(i)
            if not group.away:
                ended = group
        if ended is not None:
            ended.is_open = False
            if ended.arrived:
                happened, arrived = event(GROUP, ended.arrived), ended.arrived
                number += 1
                begin(arrived)
                waiting |= set(arrived)
                yield happened


def run(params, clients, happenings, steps, *, sgd, alpha, exponent):
    """Yield (event, staleness of each update, the server's model after it).

    `steps(e, i, units)` are the rows of the batches of client i's job that is delivered by event number e.
    """
    models = [params]  # by the server's steps
    version = dict.fromkeys(range(len(clients)), 0)
    buffer = []  # updates that are late, with their weights
    for number, happened in enumerate(happenings):
        updates, staleness = [], {}
        for i, units in happened.work.items():
            start, tau = models[version[i]], len(models) - 1 - version[i]
            x, y = clients[i].x, clients[i].y
            trained = train(start, list(start), x, y, steps(number, i, units), sgd)
            weight = alpha * (1 + tau) ** -exponent / len(clients)
            updates.append((weight, combine(lambda w, old: w - old, trained, start)))
            staleness[i] = tau
        if happened.kind == LATE:
            buffer += updates
        else:
            if happened.kind == GROUP:
                updates, buffer = updates + buffer, []
            model = models[-1]
            for weight, update in updates:
                step = lambda w, delta, weight=weight: w + weight * delta
                model = combine(step, model, update)
            models.append(model)
        for i in happened.work:
            version[i] = len(models) - 1
        yield happened, staleness, models[-1]
