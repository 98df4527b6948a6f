"""Times computed from work: operations divided by speed, bytes divided by bandwidth."""

from __future__ import annotations

import dataclasses
from typing import Annotated, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from typing_extensions import override

from fedjax_srp.base import Array, ClientTimes, Clock, Key, PyTree, WorkCosts, named_key
from fedjax_srp.clocks.distributions import Distribution, Parameter, per_client
from fedjax_srp.parts.checks import as_annotated, short
from fedjax_srp.parts.part import Above, AtLeast, Leaf, part

BYTES_OF_MBIT = 125_000
Measured = Annotated[
    float | jax.Array | np.ndarray,
    Above(0),
    "give a number, or an array with one for each client, in their order",
]
Bandwidth = Annotated[Parameter, Above(0), "give bytes per second, e.g. 1e6"]


class DevicesState(NamedTuple):
    """Seconds that a round takes each client, without jitter."""

    # (num_clients,) float, of a unit of local work; (num_clients, units) of 1, 2, ... units
    unit: Array
    once: Array  # of the same shape, of messages and one-off work
    jitter: PyTree  # parameters of its distribution, (num_clients,) arrays; () for none


@part
class Devices(Clock):
    """Seconds = (operations / compute + bytes down / downlink + bytes up / uplink + latency) * jitter.

    Operations are those of the client's local work, in matrix products and convolutions, as the
    engine counts them in the traced program: a larger model takes longer, and so does a client with
    more examples. Bytes are `history.bytes_down` and `history.bytes_up`. With more units of work
    (`PartialWork`) the work takes longer and the messages do not; submodels (`HeteroFL`) have their
    own operations and bytes for each number of units. `history.elapsed` takes no communication
    cost, since the times include it.

    A speed is a number, one per client, or a distribution drawn once per client. Phones train at a
    small part of their peak speed: give measured speeds. `Devices.measured` takes seconds of a batch
    and Mbit/s.

    Args:
        compute: operations per second; a multiplication and an addition are two operations. With
            per="batch", batches per second.
        downlink: bytes per second from the server.
        uplink: bytes per second to the server.
        jitter: factor of a client's time, drawn in every round; its mean should be 1. None: every
            round takes the same time.
        costs: costs of a round, if known; None: the engine counts them.
        per: what `compute` counts: an "operation", or a "batch", a gradient step of the whole model
            on `training.batch_size` examples. Other work counts by its operations: a step on the
            head alone is a small part of a batch.
        latency: seconds of a round that messages take whatever their size, so that no codec
            (`srp.messages`) shortens them; None: none.

    Example:
        >>> import jax, numpy as np, fedjax_srp as srp
        >>> operations = np.array([2e9, 4e9])
        >>> costs = srp.WorkCosts(operations, np.zeros(2), np.float64(1e6), np.float64(1e6))
        >>> clock = srp.clocks.Devices(compute=1e9, downlink=1e6, uplink=[5e5, 1e6], costs=costs)
        >>> state = clock.init(jax.random.key(0), 2)
        >>> state.unit.tolist(), state.once.tolist()
        ([2.0, 4.0], [3.0, 2.0])
    """

    needs_costs: ClassVar[bool] = True
    compute: Annotated[Parameter, Above(0), "give operations per second, e.g. 1e9"]
    downlink: Bandwidth
    uplink: Bandwidth
    jitter: Distribution | None = None
    costs: Leaf[WorkCosts | None] = None
    per: Literal["operation", "batch"] = "operation"
    latency: (
        Annotated[Parameter, AtLeast(0), "give seconds, e.g. 0.1, or None"] | None
    ) = None

    def __post_init__(self) -> None:
        if self.costs is not None and not isinstance(self.costs, WorkCosts):
            raise ValueError(
                f"costs={short(self.costs)} must be a srp.WorkCosts, or None to have them counted"
            )

    @classmethod
    def measured(
        cls,
        seconds_per_batch: Measured,
        down_mbit: Measured,
        up_mbit: Measured,
        jitter: Distribution | None = None,
    ) -> Devices:
        """Devices in the units in which people measure.

        Each measure is a positive number, or an array with one for each client.

        Args:
            seconds_per_batch: of a training step of the model on a batch, as in `per`.
            down_mbit: megabits per second from the server; 1 Mbit is 125,000 bytes.
            up_mbit: megabits per second to the server.
            jitter: as for `Devices`.

        Example:
            >>> import fedjax_srp as srp
            >>> clock = srp.clocks.Devices.measured([0.05, 0.2], down_mbit=20.0, up_mbit=[8.0, 4.0])
            >>> clock.compute.tolist(), clock.downlink, clock.uplink.tolist()
            ([20.0, 5.0], 2500000.0, [1000000.0, 500000.0])
        """
        seconds = as_annotated("seconds_per_batch", seconds_per_batch, Measured)
        down = as_annotated("down_mbit", down_mbit, Measured)
        up = as_annotated("up_mbit", up_mbit, Measured)
        return cls(
            1 / seconds, down * BYTES_OF_MBIT, up * BYTES_OF_MBIT, jitter, per="batch"
        )

    @override
    def fit(self, costs: WorkCosts) -> Devices:
        """The clock with these costs, unless it already has costs."""
        if self.costs is not None:
            return self
        is_known = isinstance(costs.batch, Tracer) or costs.batch > 0
        if self.per == "batch" and not is_known:
            raise ValueError(
                "devices: per='batch', and the algorithm has no batch: it lacks a field `model` or "
                "`training`; give compute in operations per second, and leave out per"
            )
        return dataclasses.replace(self, costs=costs)

    @override
    def init(self, key: Key, num_clients: int) -> DevicesState:
        if self.costs is None:
            raise ValueError(
                "devices: costs are not known; fit(costs) sets them, as the engine does"
            )

        def speed(name: str) -> Array:
            return per_client(self, name, named_key(key, name), num_clients)

        speeds = (speed("compute"), speed("downlink"), speed("uplink"))
        costs = jax.tree.map(lambda cost: jnp.asarray(cost, dtype=float), self.costs)
        if costs.operations.ndim > 1:  # a column for each number of units of work
            speeds = jax.tree.map(lambda values: values[:, None], speeds)
            costs = costs._replace(
                once=costs.once[:, None],
                bytes_down=costs.bytes_down.reshape(1, -1),
                bytes_up=costs.bytes_up.reshape(1, -1),
            )
        compute, downlink, uplink = speeds
        if self.per == "batch":
            compute = compute * costs.batch
        messages = costs.bytes_down / downlink + costs.bytes_up / uplink
        if self.latency is not None:
            latency = per_client(self, "latency", named_key(key, "latency"), num_clients)
            messages = messages + latency.reshape(-1, *(1,) * (messages.ndim - 1))
        jitter = ()
        if self.jitter is not None:
            jitter = self.jitter.parameters(named_key(key, "jitter"), num_clients)
        return DevicesState(
            costs.operations / compute, costs.once / compute + messages, jitter
        )

    @override
    def sample(
        self, key: Key, state: DevicesState, now: Array
    ) -> tuple[ClientTimes, DevicesState]:
        total = state.unit + state.once
        if total.ndim > 1:
            times = ClientTimes(total[:, 0], total[:, 0], by_work=total)
        else:
            times = ClientTimes(total, total, communication=state.once)
        if self.jitter is None:
            return times, state
        factor = self.jitter.sample(key, state.jitter)

        def jitter(leaf: Array) -> Array:
            """Scale by client, the first axis of every array."""
            return leaf * factor.reshape(-1, *(1,) * (leaf.ndim - 1))

        jittered = jax.tree.map(jitter, times)
        expected = times.expected * self.jitter.mean(state.jitter)
        return jittered._replace(expected=expected), state
