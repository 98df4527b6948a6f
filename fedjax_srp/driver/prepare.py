"""Preparation of a run: a request is checked and completed, so that it can be compiled."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fedjax_srp.base import (
    TRAINING_LOSS,
    Array,
    Clock,
    Examples,
    FederatedAlgorithm,
    FederatedSource,
    Key,
    Method,
    ParticipationPolicy,
    PyTree,
    WorkCosts,
    member_of,
)
from fedjax_srp.clocks import Exponential, Fixed
from fedjax_srp.clocks.by_name import read_clock
from fedjax_srp.contract.checks import (
    Shapes,
    check_algorithm,
    check_clock,
    check_policy,
    check_start,
)
from fedjax_srp.contract.messages import Sizes, sizes_of
from fedjax_srp.contract.operations import work_costs
from fedjax_srp.driver.given import Start, fitted_start
from fedjax_srp.driver.programs import Kept, Parts, Program, program
from fedjax_srp.driver.settings import Settings
from fedjax_srp.participation import Full
from fedjax_srp.participation.by_name import read_policy
from fedjax_srp.parts.checks import as_annotated, check_integer, check_known, short
from fedjax_srp.parts.options import full_names
from fedjax_srp.parts.part import several, with_values
from fedjax_srp.rounds.client_data import place_data
from fedjax_srp.rounds.sharding import Layout, checked_devices, lay_out, place
from fedjax_srp.xla.backend import check_not_forked, traced_for


class Request(NamedTuple):
    """A user's request for a run, or for an evaluation, which reads only some of the settings."""

    algorithm: FederatedAlgorithm | Method
    data: FederatedSource
    participation: ParticipationPolicy | str | None = None
    clock: Clock | str | None = None
    settings: Settings = Settings()
    start: Start = "init"  # a server state or parameters to begin from
    num_seeds: int | None = None  # None: one run, without a seeds axis
    values: Mapping[str, np.ndarray] = {}  # (num_seeds,) floats of the algorithm each


class Prepared(NamedTuple):
    """A checked and completed request."""

    name: str
    algorithm: FederatedAlgorithm
    policy: ParticipationPolicy
    clock: Clock
    evaluations: tuple[str, ...]
    layout: Layout
    sizes: Sizes
    costs: WorkCosts | None  # for clocks that need them
    data: FederatedSource  # as the user gave it
    settings: (
        Settings  # as given; `record_loss` also holds for a policy that needs the loss
    )
    num_seeds: int | None
    values: dict[
        str, np.ndarray
    ]  # dotted name -> (num_seeds,) floats of the algorithm, as given
    start: PyTree | None  # see `given.fitted_start`

    @property
    def fitted_clock(self) -> Clock:
        """The clock, fitted to the costs of a round if it needs them."""
        return self.clock if self.costs is None else self.clock.fit(self.costs)

    def program(self) -> Program:
        """The program, compiled on demand; runs that differ only in key, data or values share it."""
        parts = self.algorithm, self.policy, self.fitted_clock
        return program(
            *parts,
            self.evaluations,
            self.layout,
            self.num_seeds,
            tuple(self.values),
            self.settings.record_loss,
        )

    def placed(self, root: Key) -> tuple[Key, Any]:
        """Key and data on the devices."""
        if any(
            isinstance(leaf, Tracer)
            for leaf in jax.tree.leaves((root, self.algorithm, self.policy, self.clock))
        ):
            raise ValueError(
                "key, or a part, is traced: this compiles and runs by itself, outside of jit, vmap and grad; "
                "srp.Simulation does, simulate_seeds takes several keys and values"
            )
        if getattr(jax.config, "jax_disable_jit"):  # noqa: B009 (untyped in jax)
            raise ValueError(
                "jax_disable_jit is on: rounds are compiled here; srp.Simulation runs them step by step"
            )
        return place(self.layout, root), place_data(
            self.layout, self.data, self.settings.shard_data
        )

    def placed_start(self) -> PyTree | None:
        """The given start on the devices, with an axis of seeds if there is one."""
        start = self.start
        if start is not None and self.num_seeds is not None:
            seeds = (self.num_seeds,)
            start = jax.tree.map(
                lambda leaf: jnp.broadcast_to(leaf, (*seeds, *jnp.shape(leaf))), start
            )
        return None if start is None else place(self.layout, start)

    def traced(self, trains: bool = True) -> jax.stages.Traced:
        """Trace a segment of rounds, or its evaluation alone, for devices that need not exist.

        Nothing runs. The data may be shapes (`jax.ShapeDtypeStruct`), and are on every device; `.lower().compile()` of
        the result compiles for devices of `jax.experimental.topologies`.
        """
        seeds = () if self.num_seeds is None else (self.num_seeds,)
        root = jax.eval_shape(lambda: jnp.broadcast_to(jax.random.key(0), seeds))
        return self.program().traced(
            trains, self.layout.shapes(root), self.layout.shapes(self.data)
        )

    def of_seed(self, seed: int) -> FederatedAlgorithm:
        """The algorithm of one seed, with its own values."""
        return with_values(
            self.algorithm, {name: v[seed].item() for name, v in self.values.items()}
        )


SOURCE = (
    "num_clients",
    "train_client",
    "test_client",
    "score",
)  # members of a data source


def _with_parts_read(request: Request) -> Request:
    """Read clock and participation that are given as texts."""
    num_clients = getattr(request.data, "num_clients", None)
    if isinstance(request.clock, str):
        names = getattr(request.data, "client_names", None)
        clock = read_clock(request.clock, num_clients, names)
        request = request._replace(clock=clock)
    if isinstance(request.participation, str):
        policy = read_policy(request.participation, num_clients)
        request = request._replace(participation=policy)
    return request


def prepare(request: Request) -> Prepared:
    """Check and complete a request; the algorithm is traced, nothing runs."""
    check_not_forked()
    request = _with_parts_read(request)
    _check_parts(request)
    algorithm = request.algorithm
    policy: Any = request.participation
    clock: Any = request.clock
    data = request.data
    settings = request.settings
    name = settings.name
    if isinstance(algorithm, Method):
        if policy is not None:
            raise ValueError(
                f"method {algorithm.name!r} brings its participation; pass method.algorithm to choose another"
            )
        name = algorithm.name if name is None else name
        algorithm, policy = algorithm.algorithm, algorithm.participation
    evaluations = check_evaluations(algorithm, settings.evaluations)
    policy = Full() if policy is None else policy
    clock = Fixed(Exponential(1.0)) if clock is None else clock
    names = {
        "name": "" if name is None else name,
        "algorithm.name": algorithm.name,
        "participation.name": policy.name,
    }
    for argument, value in names.items():
        as_annotated(argument, value, str)
        if (
            (not value and name is not None)
            or "\0" in value
            or any(0xD800 <= ord(letter) < 0xE000 for letter in value)
        ):
            raise ValueError(f"{argument}={short(value)} is no name; give one of letters")
    _check_target(settings.target, evaluations, data)
    if TRAINING_LOSS in policy.needs:
        settings = dataclasses.replace(settings, record_loss=True)
    devices = checked_devices(settings.devices)
    with traced_for(devices[0].platform):  # on which the sizes of loops depend
        sizes, costs_of = _check_contract(
            Parts(algorithm, policy, clock), data, evaluations, settings.record_loss
        )
    _check_counts(data)
    # It may check its numbers, which are arguments above.
    jax.eval_shape(lambda: policy.init(jax.random.key(0), data.num_clients))
    seeds = request.num_seeds or 1
    at_once = (size * seeds for size in sizes.client.at_once(devices[0].platform))
    layout = lay_out(devices, settings.chunk_size, data.num_clients, *at_once)
    if name is None:
        name = (
            algorithm.name
            if policy.name == "full"
            else f"{algorithm.name} + {policy.name}"
        )
    start = fitted_start(request.start, algorithm, data)
    values = full_names(algorithm, request.values)
    algorithm = with_values(
        algorithm, {name: _weakly_typed(value) for name, value in values.items()}
    )
    return Prepared(
        name=name,
        algorithm=algorithm,
        policy=policy,
        clock=clock,
        evaluations=evaluations,
        layout=layout,
        sizes=sizes,
        costs=None if costs_of is None else costs_of(data),
        data=data,
        settings=settings,
        num_seeds=request.num_seeds,
        values=values,
        start=start,
    )


def _weakly_typed(value: np.ndarray) -> Array:
    """Floats of the seeds, typed as the float of one run is: a model of another type trains in its own."""
    return jnp.stack([jnp.asarray(float(of_seed)) for of_seed in value])


def _check_counts(data: FederatedSource) -> None:
    """Raise a ValueError if a client of your own data has more examples than rows: it would train on others' rows."""
    is_known = not any(
        isinstance(leaf, Tracer | jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(data)
    )
    if type(data).__module__.startswith(__name__.partition(".")[0] + ".") or not is_known:
        return
    for split in ("train", "test"):
        of_client = lambda data, client, split=split: getattr(data, f"{split}_client")(
            client
        )
        client: Any = jax.eval_shape(of_client, data, jax.ShapeDtypeStruct((), jnp.int32))
        if not (
            isinstance(client, Examples)
            and client.count.shape == ()
            and client.count.dtype.kind in "iu"
        ):
            continue
        with jax.ensure_compile_time_eval():  # `Simulation` checks inside of jit too
            counts = np.asarray(_counts(data, split))
        rows = min(leaf.shape[0] for leaf in jax.tree.leaves(client[:2]))
        for wrong in np.flatnonzero((counts < 0) | (counts > rows))[:1]:
            raise ValueError(
                f"data: {split}_client({wrong}) has count={counts[wrong]} and {rows} rows; count is how many of the "
                "first rows are examples"
            )


@functools.partial(jax.jit, static_argnums=1)
def _counts(data: FederatedSource, split: str) -> Array:
    """(num_clients,) int: the number of examples of every client; some at once, since a count may need all rows."""
    ids = jnp.arange(data.num_clients, dtype=jnp.int32)
    return jax.lax.map(
        lambda client: getattr(data, f"{split}_client")(client).count, ids, batch_size=64
    )


Counter = Callable[[FederatedSource], WorkCosts]
_checks = Kept(64)


def _check_contract(
    parts: Parts, data: FederatedSource, evaluations: tuple[str, ...], record_loss: bool
) -> tuple[Sizes, Counter | None]:
    """Check the contract; an algorithm that several policies and clocks train is traced once."""
    algorithm, policy, clock = parts
    for name, leaf in several(algorithm):
        raise ValueError(
            f"{name} has shape {jnp.shape(leaf)}, one run takes one number; simulate_seeds(values=...) takes several"
        )
    asks = policy.needs_global_gradient, str(policy.needs)

    def shapes() -> Shapes:
        return check_algorithm(algorithm, data, evaluations, policy, record_loss)

    def of_parts() -> tuple[Sizes, Counter | None]:
        of_algorithm = (algorithm, data)
        checked = _checks.get(shapes, of_algorithm, evaluations, record_loss, asks)
        costs_of = _counter(parts, data, checked)
        timed = clock
        if costs_of is not None:
            costs = jax.eval_shape(costs_of, data)
            timed = clock.fit(jax.tree.map(lambda leaf: np.ones(leaf.shape), costs))
        times = check_clock(timed, data.num_clients)
        check_start(algorithm, timed, times)
        check_policy(policy, times, checked.metrics, evaluations)
        return sizes_of(checked), costs_of

    return _checks.get(of_parts, (parts, data), evaluations, record_loss)


def _counter(parts: Parts, data: FederatedSource, checked: Shapes) -> Counter | None:
    """Count the costs that the clock needs; None if it needs none."""
    algorithm, policy, clock = parts
    if not clock.needs_costs:
        return None
    if checked.charges.communicates is not None:
        raise ValueError(
            f"clock {clock.name!r} charges a message in every round and {algorithm.name!r} has silent ones; choose "
            "another clock, such as srp.clocks.Fixed, and add communication afterwards"
        )
    return work_costs(algorithm, policy, data, checked)


def check_evaluations(
    algorithm: FederatedAlgorithm, evaluations: str | Sequence[str] | None
) -> tuple[str, ...]:
    """Return names of evaluations; None is the default one, "all" every one."""
    if evaluations is None:
        return tuple(algorithm.evaluations)[:1]
    if isinstance(evaluations, str):
        evaluations = (
            tuple(algorithm.evaluations) if evaluations == "all" else (evaluations,)
        )
    check_known(
        "evaluation",
        evaluations := tuple(evaluations),
        algorithm.evaluations,
        of=algorithm.name,
    )
    return tuple(dict.fromkeys(evaluations))


def _check_target(
    target: float | None, evaluations: tuple[str, ...], data: FederatedSource
) -> None:
    """Raise a ValueError for a target that no score can reach."""
    if target is None:
        return
    if not evaluations:
        raise ValueError(
            f"target={target}: nothing is evaluated, so no score reaches it; name an evaluation"
        )
    if member_of(data, "score_name") == "accuracy" and not 0 < target <= 1:
        raise ValueError(
            f"target={target}: accuracies lie between 0 and 1; give 0.9 for 90 %"
        )


def _check_parts(request: Request) -> None:
    kinds = {
        "algorithm": FederatedAlgorithm | Method,
        "participation": ParticipationPolicy | None,
        "clock": Clock | None,
    }
    for argument, kind in kinds.items():
        given = as_annotated(argument, getattr(request, argument), kind)
        cls = type(given.algorithm if isinstance(given, Method) else given)
        if given is not None and "__is_part__" not in vars(
            cls
        ):  # its constructor ran no checks
            raise ValueError(
                f"class {cls.__name__} is no part: put @srp.part above it, and list its fields in place of __init__"
            )
    data = request.data
    lacks = next((name for name in SOURCE if not hasattr(data, name)), None)
    if lacks is not None or any(leaf is data for leaf in jax.tree.leaves(data)):
        missing = (
            "is no pytree (jax.tree_util.register_dataclass)"
            if lacks is None
            else f"has no {lacks}"
        )
        raise ValueError(
            f"data={short(data)} is no federation, it {missing}; give srp.data.load(name, ...), "
            "srp.data.from_arrays(...) or a class like base.FederatedSource"
        )
    check_integer("data.num_clients", data.num_clients, 1)
