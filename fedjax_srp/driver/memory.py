"""Memory estimate of a simulation, from shapes alone; a large simulation prints it, one that cannot fit is refused."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_srp.base import (
    Clock,
    FederatedAlgorithm,
    FederatedSource,
    Key,
    Method,
    ParticipationPolicy,
    PyTree,
)
from fedjax_srp.contract.messages import num_bytes
from fedjax_srp.driver.prepare import Prepared, Request, prepare
from fedjax_srp.driver.settings import Settings, takes_settings
from fedjax_srp.parts.checks import checked, printable
from fedjax_srp.parts.part import Count
from fedjax_srp.results.bars import tqdm
from fedjax_srp.rounds.client_data import moved_bytes
from fedjax_srp.rounds.round import as_arrays
from fedjax_srp.rounds.sharding import Layout

GIB = 2**30
REPORT_FROM = GIB  # bytes on a device, or half of its free memory
# Measured with `memory_analysis` of compiled segments: on CPUs 1.2 to 1.5 times what clients hold, 1.2 to 2.5 server
# states.
CPU_FACTOR, SERVER_FACTOR = 1.5, 2.0


REMEDIES = {  # of a simulation that does not fit, by the largest part of its memory
    "data": "shard_data=True on several devices, fewer examples",
    "clients": "states_dir, more devices, fewer clients",
    "server": "a smaller model",
    "schedule": "fewer clients, a smaller pool",
    "working": "a smaller chunk_size, a smaller model",
}


class Memory(NamedTuple):
    """Bytes on one device."""

    data: int  # examples and indices
    clients: int  # states of the clients that the device owns, of all seeds
    server: int  # state of the server, of all seeds
    schedule: int  # states of clock and policy, times and ids of all clients
    working: (
        int  # a chunk of clients in training, of all seeds; less certain than the rest
    )

    @property
    def total(self) -> int:
        """Sum of all parts."""
        return sum(self)

    @property
    def certain(self) -> int:
        """Lower bound: half of the working memory may be overestimated."""
        return self.total - self.working // 2


@checked
@takes_settings("evaluations", "chunk_size", "devices", "shard_data", "record_loss")
def estimate_memory(
    algorithm: FederatedAlgorithm | Method,
    data: FederatedSource,
    *,
    participation: ParticipationPolicy | str | None = None,
    clock: Clock | str | None = None,
    num_seeds: Count | None = None,
    **settings: Any,
) -> Memory:
    """Estimate the memory of a run on each of its devices, in bytes, before it; nothing is compiled or run.

    `simulate` prints the same estimate for a large run, and refuses one that cannot fit.

    Args:
        algorithm: the algorithm, or a `Method` with its participation.
        data: as for `simulate`.
        participation: as for `simulate`.
        clock: as for `simulate`.
        num_seeds: of `simulate_seeds`, all at once; None for one run.
        **settings: fields of `Settings`, by keyword.

    Returns:
        Bytes by what takes them: `data`, `clients` (their states), `server`, `schedule` (times and ids), `working` (a
        chunk of clients in training); `total` is their sum. The working memory is less certain than the rest.

    Raises:
        ValueError: as `simulate`.

    Example:
        >>> import fedjax_srp as srp
        >>> data = srp.data.load("digits", num_clients=20, classes_per_client=4)
        >>> method = srp.methods.get("ditto", dataset=data, hidden=(32,))
        >>> srp.estimate_memory(method, data).clients  # a model of 2,410 floats for each of 20 clients
        192800
    """
    chosen = Settings(**settings)
    request = Request(algorithm, data, participation, clock, chosen, num_seeds=num_seeds)
    return estimate(prepare(request))


def estimate(run: Prepared) -> Memory:
    """Estimate the memory of a simulation on each of its devices, without running it.

    The working memory holds data, state and messages of a chunk's clients, and on an accelerator what their training
    makes (`contract.peak_memory`). On a CPU it is underestimated if clients draw large samples, as linear methods with
    `sampling="full"` do.
    """
    layout, sizes, seeds = run.layout, run.sizes, run.num_seeds or 1

    def schedule(key: Key, policy: ParticipationPolicy, clock: Clock) -> PyTree:
        of_policy, of_clock = (
            as_arrays(part.init(key, layout.num_clients)) for part in (policy, clock)
        )
        times, _ = as_arrays(clock.sample(key, of_clock, jnp.zeros(())))
        cohort, _ = policy.select(key, of_policy, times)
        return of_policy, of_clock, cohort, times

    in_memory = layout.owned
    if run.settings.states_dir is not None:
        in_memory = 0  # those of the participants, whose number may be traced
    largest = layout.by_chunk_size[0]
    training, judging = sizes.client.at_once(layout.platform)
    evaluated_at_once = layout.evaluation_chunk if run.evaluations else 0
    in_chunk = max(largest.chunk_size * training, evaluated_at_once * judging)
    in_chunk *= CPU_FACTOR if layout.platform == "cpu" else 1.0
    if layout.num_devices > 1:  # clients that move at once are on every device
        of_evaluation = layout.for_evaluation().window if run.evaluations else 0
        moved = sizes.client.state + moved_bytes(run.data, run.settings.shard_data)
        in_chunk += max(largest.window, of_evaluation) * moved
    in_chunk += layout.num_clients * sizes.shown
    return Memory(
        data=math.ceil(
            num_bytes(run.data) / (layout.num_devices if run.settings.shard_data else 1)
        ),
        clients=in_memory * sizes.client.state * seeds,
        server=sizes.server_state * seeds,
        schedule=num_bytes(
            jax.eval_shape(schedule, jax.random.key(0), run.policy, run.fitted_clock)
        )
        * seeds,
        working=int((in_chunk + SERVER_FACTOR * sizes.server_state) * seeds),
    )


class Room(NamedTuple):
    """Bytes that a simulation needs on each of its devices, and bytes available."""

    needed: Memory
    free: float  # on each device; inf if unknown
    present: float  # data already on each device

    @property
    def fits(self) -> bool:
        """False if it cannot fit even with half of the estimated working memory."""
        return self.needed.certain - self.present <= self.free


def room(run: Prepared, sharers: int = 1) -> Room:
    """Compare the estimate with the free memory, an equal share of it if several processes run.

    Free is, on a GPU, what the device's allocator has left; on a CPU, an equal share of the system's available memory.
    """
    sharing = _devices_sharing_memory(run.layout)
    present = (
        0
        if run.settings.shard_data
        else sum(_bytes_on(device, run.data) for device in sharing) / len(sharing)
    )
    return Room(estimate(run), _free_share(run.layout) / sharers, present)


def check(run: Prepared, say: bool) -> None:
    """Print the estimate of a large simulation; ValueError if it cannot fit."""
    found = room(run)
    needed, free = found.needed, found.free
    if not found.fits:
        largest, _ = max(needed._asdict().items(), key=lambda part: part[1])
        raise ValueError(
            f"the simulation needs {_list(needed)} on each device and {free / GIB:.2f} GiB are free; use "
            f"{REMEDIES[largest]}"
        )
    if say and needed.total > min(REPORT_FROM, free / 2):
        left = "" if free == math.inf else f", {free / GIB:.1f} GiB free"
        line = f"{run.name}: about {_list(needed)} on each of {run.layout.num_devices} devices{left}"
        tqdm.write(printable(line), file=sys.stderr)


def check_working(run: Prepared, working: int) -> None:
    """Raise a ValueError if the working memory of a compiled simulation does not fit; the rest is already placed."""
    free = _free_share(run.layout)
    if working > free:
        chunk, devices = run.layout.by_chunk_size[0].chunk_size, run.layout.num_devices
        raise ValueError(
            f"chunk_size={chunk}: clients at work and their evaluation need {working / GIB:.2f} GiB on each of "
            f"{devices} devices and {free / GIB:.2f} GiB are free; use a smaller chunk_size, fewer seeds, "
            "or a smaller model"
        )


def _list(needed: Memory) -> str:
    parts = sorted(needed._asdict().items(), key=lambda part: -part[1])
    shown = ", ".join(
        f"{name} {size / GIB:.2f}" for name, size in parts if size > 0.01 * needed.total
    )
    return f"{needed.total / GIB:.2f} GiB ({shown})"


def _devices_sharing_memory(layout: Layout) -> list[Any]:
    """Devices of this process that share memory: all CPU devices, or one accelerator."""
    mine = [
        device for device in layout.devices if device.process_index == jax.process_index()
    ]
    return mine if layout.platform == "cpu" else mine[:1]


def _free_share(layout: Layout) -> float:
    sharing = _devices_sharing_memory(layout)
    return _free(sharing[0]) / len(sharing)


def _free(device: Any) -> float:
    """Free bytes of a device; inf if unknown."""
    if device.platform != "cpu":
        stats = device.memory_stats() or {}
        return (
            stats["bytes_limit"] - stats["bytes_in_use"]
            if "bytes_limit" in stats
            else math.inf
        )
    try:
        lines = Path("/proc/meminfo").read_text("utf-8").splitlines()
    except OSError:
        return math.inf
    return next(
        (
            1024 * int(line.split()[1])
            for line in lines
            if line.startswith("MemAvailable:")
        ),
        math.inf,
    )


def _bytes_on(device: Any, tree: PyTree) -> int:
    """Bytes of a tree that are already on a device and will not be copied."""
    leaves = (
        leaf
        for leaf in jax.tree.leaves(tree)
        if isinstance(leaf, jax.Array) and device in leaf.devices()
    )
    return sum(num_bytes(leaf) for leaf in leaves)
