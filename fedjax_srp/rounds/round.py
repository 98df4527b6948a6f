"""One round: selection, local work, aggregation, costs; all in-graph, for one device of the mesh."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_srp.base import (
    CLIENT_GRADIENT_NORM,
    GRADIENT_NORM,
    NUM_EXAMPLES,
    TRAINING_LOSS,
    WASTED_TIME,
    Array,
    ClientData,
    ClientOutput,
    ClientState,
    ClientTimes,
    Clock,
    Cohort,
    Exchange,
    FederatedAlgorithm,
    FederatedSource,
    Jobs,
    Key,
    Participants,
    ParticipationPolicy,
    Phase,
    PyTree,
    RoundContext,
    RoundInfo,
    named_key,
)
from fedjax_srp.contract.checks import GRADIENT
from fedjax_srp.parts.pytrees import take as take_rows
from fedjax_srp.rounds.client_data import DataAccess, data_access
from fedjax_srp.rounds.cohort import cohort_fault, slowest, takes_part, wasted_time
from fedjax_srp.rounds.sharding import (
    Held,
    Layout,
    Window,
    everywhere,
    gather,
    my_chunk,
    owners_first,
    put,
    take,
    total,
    window_positions,
)
from fedjax_srp.xla.loops import barrier, batch_max, fori_loop


class SimulationState(NamedTuple):
    """The state between rounds, as in checkpoints."""

    server: PyTree
    clients: PyTree  # leaves (owned * num_devices, ...), sharded by client
    policy: PyTree
    clock: PyTree
    round: Array  # () int32: rounds completed
    now: Any  # () float: simulated time so far
    ahead: Any  # () float: of the exact sum of times, by rounding of `now`
    rounds_taken: Any  # (num_clients,) int32: rounds that each client took part in


class PassResult(NamedTuple):
    """The result of a pass over a cohort."""

    mean: PyTree  # of the messages
    states: PyTree  # of all clients, updated for the cohort
    info: PyTree  # mean over the cohort
    # () float, mean training loss of clients with a step, nan for none; None: not reported
    loss: Array | None
    records: dict[str, Array]  # (owned,) each: what `record` returned for each client


class _Sums(NamedTuple):
    """Sums over the participants of a pass."""

    message: PyTree  # weighted
    weight: PyTree
    info: PyTree
    loss: PyTree  # sum over clients with a step, and their number; None: not reported


# The work of ONE client: key, its state, its data -> message and new state.
ClientWork = Callable[[Key, ClientState, ClientData, RoundContext], ClientOutput]
# Scalars to keep for one client.
Record = Callable[[ClientOutput, ClientData], dict[str, Array]]


def record_nothing(output: ClientOutput, client_data: ClientData) -> dict[str, Array]:
    """Keep no scalar of a client."""
    return {}


def cohort_pass(
    client: ClientWork,
    access: DataAccess,  # to their data
    states: PyTree,  # of all clients, leaves (owned, ...)
    cohort: Cohort,
    context: RoundContext,  # what differs between clients is filled in
    key: Key,  # a client's key folds in its id
    layout: Layout,
    record: Record = record_nothing,
) -> PassResult:
    """Run a client function over a cohort; rounds, criteria and evaluations all use this.

    The cohort is cut into windows of `num_devices * chunk_size` positions. A loop with a traced trip count runs one
    window per trip, so one program serves every cohort size; its cost depends on the cohort, its memory on the chunk. A
    layout with large chunks has a loop over these first, while they are at least half full. Each device trains its own
    clients first; only in later windows do devices exchange states and wait for each other.
    """
    pool = cohort.client_ids.shape[0]
    of_clients = {"work": cohort.work}  # fields of a client's context, besides its id
    if cohort.importance is not None:
        of_clients["importance"] = cohort.importance
    at_home, *ordered = owners_first(
        layout, cohort.client_ids, cohort.size, *of_clients.values()
    )
    pad = (0, -pool % layout.by_chunk_size[0].window)
    client_ids, *padded = (jnp.pad(by_position, pad) for by_position in ordered)
    of_clients = dict(zip(of_clients, padded, strict=True))

    def one(
        client_id: Array, of_client: dict[str, Array], state: ClientState, moved: PyTree
    ) -> tuple[ClientOutput, dict[str, Array]]:
        client_data = access.read(client_id, moved)
        client_key = jax.random.fold_in(key, client_id)
        of_one = context._replace(client_id=client_id, **of_client)
        output = client(client_key, state, client_data, of_one)
        return output, record(output, client_data)

    # Traced once, for the shapes and for the loop.
    @functools.partial(jax.jit, static_argnums=0, inline=True)
    def run_window(
        sized: Layout, first: Array, states: PyTree
    ) -> tuple[ClientOutput, dict[str, Array], _Sums, Window]:
        """Run the window that starts at `first`."""
        positions = first + window_positions(sized)
        active = positions < cohort.size
        # A padded slot repeats the first participant without work and with weight zero.
        ids = jnp.where(active, take_rows(client_ids, positions), client_ids[0])
        away = batch_max(jnp.minimum(first + sized.window, cohort.size) > at_home)
        window = Window(ids, active, away)
        # Read once, before new states are written.
        rows = barrier(take(sized, states, window))
        of_chunk = {
            name: my_chunk(sized, jnp.where(active, take_rows(values, positions), 0))
            for name, values in of_clients.items()
        }
        mine = my_chunk(sized, ids)
        outputs, records = jax.vmap(one)(mine, of_chunk, rows, access.move(window))
        # Integers and flags become floats, so that their mean is one.
        message, weight, info = jax.tree.map(
            as_float, (outputs.message, outputs.weight, dict(outputs.info))
        )
        loss = outputs.loss if context.record_loss else None
        outputs = ClientOutput(message, outputs.state, weight, info, loss)
        sums = _summed(outputs, my_chunk(sized, active))
        return outputs, records, sums, window

    def add_window(sized: Layout, done: Array, trip: Array, carry: Any) -> Any:
        """Add the next window to the sums; write its states and records."""
        sums, states, records = carry
        first = done + trip * sized.window
        outputs, new_records, new, window = run_window(sized, first, states)
        if outputs.state is not None:
            states = put(sized, states, window, outputs.state)
        records = put(sized, records, window, new_records)
        return jax.tree.map(jnp.add, sums, new), states, records

    small = layout.by_chunk_size[-1]
    shapes = jax.eval_shape(run_window, small, jnp.int32(0), states)
    output_shapes, record_shapes, sum_shapes, _ = shapes
    no_sums = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), sum_shapes)
    no_records = jax.tree.map(
        lambda leaf: jnp.zeros(layout.owned, leaf.dtype), record_shapes
    )
    carry = (no_sums, states, no_records)
    done = jnp.int32(0)
    size = batch_max(cohort.size)
    for sized in layout.by_chunk_size:
        rounded_up = sized.window - 1  # added before the division
        if sized.window > layout.window:  # large chunks are at least half full
            rounded_up = sized.window // 2
        num_windows = jnp.maximum(size - done + rounded_up, 0) // sized.window
        add = functools.partial(add_window, sized, done)
        carry = fori_loop(num_windows, add, carry, at_most=-(-pool // sized.window))
        done = done + num_windows * sized.window
    sums, states, records = carry
    sums = total(layout, sums)
    return PassResult(
        mean=jax.tree.map(_divided, sums.weight, sums.message, output_shapes.message),
        states=states,
        info=_divided(cohort.size, sums.info, output_shapes.info),
        loss=None if sums.loss is None else sums.loss[0] / sums.loss[1],
        records=records,
    )


def _summed(outputs: ClientOutput, mine: Array) -> _Sums:
    """Sums over the real slots of a chunk, `mine`."""

    def real(leaf: Array) -> Array:
        # A padded slot may hold nan (without work d_i / tau_i is 0 / 0), and 0 * nan is nan.
        is_real = jnp.expand_dims(mine, tuple(range(1, leaf.ndim)))
        return jnp.where(is_real, leaf, jnp.zeros((), leaf.dtype))

    def sum_of(leaf: Array) -> Array:
        return jnp.sum(leaf, axis=0, dtype=_sum_type(leaf))

    def weighted_sum(weight: Array, leaf: Array) -> Array:
        values = real(leaf).astype(_sum_type(leaf))
        # (chunk,), or (groups, chunk) for a mean by group. Never TF32.
        by_group = weight.astype(values.dtype).T
        return jnp.tensordot(by_group, values, 1, precision="highest")

    def weighted(weight: Array, part: PyTree) -> PyTree:
        return jax.tree.map(functools.partial(weighted_sum, weight), part)

    weight = jax.tree.map(real, outputs.weight)
    loss = None
    if outputs.loss is not None:
        counts = mine & (outputs.loss.steps > 0)
        losses = jnp.where(counts, outputs.loss.mean, 0)
        loss = (jnp.sum(losses.astype(float)), jnp.sum(counts).astype(float))
    return _Sums(
        message=jax.tree.map(weighted, weight, outputs.message),  # a prefix of it
        weight=jax.tree.map(sum_of, weight),
        info=jax.tree.map(lambda leaf: sum_of(real(leaf)), outputs.info),
        loss=loss,
    )


def _divided(weight: Array, sums: PyTree, shapes: PyTree) -> PyTree:
    """Means from sums, in the types of the values."""

    def mean(leaf: Array, shape: Any) -> Array:
        total_weight = weight.astype(leaf.dtype)
        if total_weight.ndim:
            # Groups, of which some may be empty; their mean is 0.
            is_empty = total_weight == 0
            total_weight = jnp.where(is_empty, 1, total_weight)
            total_weight = jnp.expand_dims(total_weight, tuple(range(1, leaf.ndim)))
        return (leaf / total_weight).astype(shape.dtype)

    return jax.tree.map(mean, sums, shapes)


def as_float(leaf: Array) -> Array:
    """Convert integers and flags to floats."""
    if jnp.issubdtype(leaf.dtype, jnp.inexact):
        return leaf
    return leaf.astype(float)


def _sum_type(leaf: Any) -> Any:
    """The type of a sum over clients: at least float32, since half precision overflows or stops growing."""
    if jnp.finfo(leaf.dtype).bits >= 32:
        return leaf.dtype
    return jnp.dtype(jnp.float32)


def as_arrays(tree: PyTree) -> PyTree:
    """Convert the result of an author's function, which may contain Python or NumPy numbers, to JAX arrays.

    No array is weakly typed; otherwise a state would change its type after the first round.
    """

    def as_array(leaf: Any) -> Array:
        array = jnp.asarray(leaf)
        if getattr(array, "weak_type", False):  # JAX's keys have none
            return array.astype(array.dtype)
        return array

    return jax.tree.map(as_array, tree)


def all_clients(num_clients: int) -> Cohort:
    """A cohort of all clients, in order of id."""
    ids = jnp.arange(num_clients, dtype=jnp.int32)
    return Cohort(ids, jnp.int32(num_clients), jnp.ones_like(ids), jnp.int32(0))


def stream(root: Key, name: str, round_index: Array) -> Key:
    """The key of one stream (data, clock, participation, training, evaluation, server) in one round."""
    return jax.random.fold_in(named_key(root, name), round_index)


def all_finite(tree: PyTree) -> Array:
    """() bool: no nan and no inf in any floating-point leaf."""
    finite = jnp.bool_(True)
    for leaf in jax.tree.leaves(tree):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            finite &= jnp.all(jnp.isfinite(leaf))
    return finite


def run_phase(
    phase: Phase,
    server: PyTree,
    states: PyTree,
    cohort: Cohort,
    context: RoundContext,
    data: FederatedSource,
    root: Key,
    layout: Layout,
    record: Record = record_nothing,
) -> tuple[PyTree, PassResult]:
    """One pass of a `Phase`, and the server's update."""
    if phase.over == "next" and cohort.next_ids is not None:
        cohort = cohort._replace(client_ids=cohort.next_ids, importance=None)
    broadcast = as_arrays(phase.broadcast(server, context))
    download = _download(phase.exchange, broadcast, states, cohort, layout)

    def client(
        key: Key, state: Any, client_data: Any, context: RoundContext
    ) -> ClientOutput:
        return phase.client(key, download(state, context), state, client_data, context)

    access = data_access(layout, data, "train")
    key = named_key(stream(root, "training", context.round), phase.name)
    result = cohort_pass(client, access, states, cohort, context, key, layout, record)
    key_server = named_key(stream(root, "server", context.round), phase.name)
    return as_arrays(phase.server(key_server, server, result.mean, context)), result


def _download(
    exchange: Exchange | None,
    broadcast: PyTree,
    states: PyTree,
    cohort: Cohort,
    layout: Layout,
) -> Callable[[ClientState, RoundContext], PyTree]:
    """The download of ONE participant, from its state: the broadcast, or a mixture of what participants show."""
    if exchange is None:
        return lambda state, context: broadcast
    is_real = takes_part(cohort)
    # Rows of non-participants repeat the first.
    ids = jnp.where(is_real, cohort.client_ids, cohort.client_ids[0])
    if isinstance(states, Held):
        of_all = states._replace(rows=jax.vmap(exchange.shown)(states.rows))
    else:
        of_all = jax.vmap(exchange.shown)(states)
    shown = everywhere(layout, of_all, ids)
    participants = Participants(shown, is_real, ids)

    def mixed(state: ClientState, context: RoundContext) -> PyTree:
        own = exchange.shown(state)
        return as_arrays(exchange.mix(broadcast, own, participants, context))

    return mixed


def prepare_server(
    algorithm: FederatedAlgorithm,
    clock: Clock,
    data: FederatedSource,
    state: SimulationState,
    root: Key,
    layout: Layout,
) -> SimulationState:
    """The passes over all clients before the first round, see `FederatedAlgorithm.start_phases`.

    The clock's state stays that before the first round, whose times are so the same with and without charges.
    """
    cohort = all_clients(layout.num_clients)
    context = RoundContext(
        jnp.int32(0), cohort.stage, cohort.size, layout.num_clients, jnp.int32(1)
    )
    for phase in algorithm.start_phases:
        server, result = run_phase(
            phase, state.server, state.clients, cohort, context, data, root, layout
        )
        state = state._replace(server=server, clients=result.states)
        if phase.charged:
            key_clock = named_key(named_key(root, "clock"), f"start {phase.name}")
            times, _ = as_arrays(clock.sample(key_clock, state.clock, state.now))
            state = state._replace(now=state.now + slowest(cohort, times))
    return state


class Selection(NamedTuple):
    """The beginning of a round: the clients' times and the cohort, with the states of clock and policy."""

    times: ClientTimes
    clock: PyTree
    cohort: Cohort
    policy: PyTree


def select_cohort(
    policy: ParticipationPolicy, clock: Clock, state: SimulationState, root: Key
) -> Selection:
    """Begin a round."""
    key_clock = stream(root, "clock", state.round)
    times, clock_state = as_arrays(clock.sample(key_clock, state.clock, state.now))
    key_policy = stream(root, "participation", state.round)
    cohort, policy_state = as_arrays(policy.select(key_policy, state.policy, times))
    return Selection(times, clock_state, cohort, policy_state)


def one_round(
    algorithm: FederatedAlgorithm,
    policy: ParticipationPolicy,
    clock: Clock,
    data: FederatedSource,
    state: SimulationState,
    root: Key,
    layout: Layout,
    record_loss: bool = False,
) -> tuple[SimulationState, tuple[RoundInfo, Array]]:
    """Run a round: clock, cohort, the algorithm's phases, criterion, time; also return cohort faults."""
    times, clock_state, cohort, policy_state = select_cohort(policy, clock, state, root)
    context = RoundContext(
        round=state.round,
        stage=cohort.stage,
        cohort_size=cohort.size,
        num_clients=layout.num_clients,
        work=jnp.int32(1),
        record_loss=record_loss,
    )
    of_round = (cohort, context, data, root, layout)

    training, *more = algorithm.phases
    server = state.server
    clients = state.clients
    if cohort.jobs is not None:
        starts = [phase for phase in more if phase.over == "next"]
        more = [phase for phase in more if phase.over != "next"]
        server, clients = begin_jobs(starts, cohort.jobs, server, clients, *of_round)
    before = server
    record = functools.partial(_reports, policy.needs)
    server, trained = run_phase(training, server, clients, *of_round, record)
    clients = trained.states
    info = dict(trained.info)
    for phase in more:
        server, result = run_phase(phase, server, clients, *of_round)
        clients = result.states
        info |= result.info
    if times.available is not None:  # without participants the means are nan
        keep = lambda new, old: jnp.where(cohort.size > 0, new, old)
        server = jax.tree.map(keep, server, before)

    metrics = {**as_arrays(algorithm.metrics(server, data)), **info}
    if record_loss:
        metrics[TRAINING_LOSS] = trained.loss
    global_grad_norm = jnp.full((), jnp.nan)
    records = trained.records
    if policy.needs_global_gradient:
        criterion = _gradient_phase(algorithm)
        report = functools.partial(_gradient_reports, policy.needs)
        mean_gradient, judged = run_phase(criterion, server, clients, *of_round, report)
        global_grad_norm = _norm(mean_gradient)
        metrics[GRADIENT_NORM] = global_grad_norm
        records = records | judged.records

    communicates = algorithm.charges.communicates
    duration = slowest(cohort, times) if cohort.duration is None else cohort.duration
    if cohort.asked is not None:
        metrics[WASTED_TIME] = wasted_time(cohort, times, duration)
    if cohort.jobs is not None and cohort.jobs.wasted is not None:
        metrics[WASTED_TIME] = cohort.jobs.wasted
    round_info = RoundInfo(
        round=state.round,
        stage=cohort.stage,
        cohort_size=cohort.size,
        compute_time=duration if times.wait is None else times.wait + duration,
        communicated=as_arrays(
            communicates is None or communicates(state.server, context)
        ),
        global_grad_norm=global_grad_norm,
        finite=all_finite(server),
        metrics=metrics,
        reports=_by_client_id(records, cohort, layout),
    )
    policy_state = policy.update(policy_state, round_info)
    of_policy = jax.tree.map(as_float, as_arrays(policy.metrics(policy_state)))
    ids = jnp.where(takes_part(cohort), cohort.client_ids, layout.num_clients)
    now, ahead = end_of_round(state, cohort, times, round_info.compute_time)
    following = SimulationState(
        server=server,
        clients=clients,
        policy=policy_state,
        clock=clock_state,
        round=state.round + 1,
        now=now,
        ahead=ahead,
        rounds_taken=state.rounds_taken.at[ids].add(1, mode="drop"),
    )
    round_info = round_info._replace(metrics={**metrics, **of_policy}, reports={})
    return following, (round_info, cohort_fault(cohort, times))


def begin_jobs(
    phases: list[Phase],
    jobs: Jobs,
    server: PyTree,
    states: PyTree,
    cohort: Cohort,
    context: RoundContext,
    *of_round: Any,
) -> tuple[PyTree, PyTree]:
    """Run the phases over clients that begin a job in this round, as if at the end of the last one."""
    work = jnp.ones_like(jobs.client_ids)
    beginners = Cohort(jobs.client_ids, jobs.size, work, cohort.stage)
    context = context._replace(round=context.round - 1, cohort_size=jobs.size)
    for phase in phases:
        new, result = run_phase(phase, server, states, beginners, context, *of_round)
        keep = functools.partial(jnp.where, jobs.size > 0)  # a mean over nobody is nan
        server = jax.tree.map(keep, new, server)
        states = result.states
    return server, states


def end_of_round(
    state: SimulationState, cohort: Cohort, times: ClientTimes, compute_time: Array
) -> tuple[Array, Array]:
    """The simulated time after a round, and how far it is ahead of the exact sum of times, () float each.

    Kahan's sum: a million rounds of 0.1 are 100,000 time units as float32, which a plain sum misses by 1 %.
    """
    step = compute_time - state.ahead
    now = jnp.maximum(state.now + step, state.now)  # never back
    ahead = (now - state.now) - step
    ahead = jnp.where(jnp.isfinite(now), ahead, 0)  # infinity less infinity is nan
    if times.available is None:
        return now, ahead
    # Time must pass, or clients that leave at once would be selected forever; subnormal numbers count as 0.
    later = jnp.nextafter(state.now, jnp.inf)
    later = jnp.maximum(later, jnp.finfo(later.dtype).tiny)
    stands = (now < later) & ((cohort.size == 0) | (compute_time <= 0))
    ahead = jnp.where(stands, 0, ahead)
    return jnp.where(stands, later, now), ahead


def _reports(
    needs: tuple[str, ...], output: ClientOutput, client_data: ClientData
) -> dict[str, Array]:
    """The reports of one participant to the policy, () float each; `contract` has checked that they exist."""
    reports: dict[str, Any] = {}
    for name in needs:
        if name == NUM_EXAMPLES:
            reports[name] = client_data.count
        elif name == TRAINING_LOSS:
            loss = output.loss
            assert loss is not None
            reports[name] = jnp.where(loss.steps > 0, loss.mean, jnp.nan)
        elif name in output.info:  # else one of `_gradient_reports`
            reports[name] = jnp.asarray(output.info[name])
    return {name: report.astype(float) for name, report in reports.items()}


def _gradient_reports(
    needs: tuple[str, ...], output: ClientOutput, client_data: ClientData
) -> dict[str, Array]:
    """The report of one participant that follows from its gradient at the new model."""
    if CLIENT_GRADIENT_NORM not in needs:
        return {}
    return {CLIENT_GRADIENT_NORM: _norm(output.message)}


def _by_client_id(
    reports: dict[str, Array], cohort: Cohort, layout: Layout
) -> dict[str, Array]:
    """Reports (num_clients,) on every device, nan for non-participants, from the (owned,) of each device."""
    ids = jnp.where(takes_part(cohort), cohort.client_ids, layout.num_clients)
    nowhere = jnp.zeros(layout.num_clients, jnp.bool_)
    took_part = nowhere.at[ids].set(True, mode="drop")
    return {
        name: jnp.where(took_part, leaf[: layout.num_clients], jnp.nan)
        for name, leaf in gather(layout, reports).items()
    }


def _gradient_phase(algorithm: FederatedAlgorithm) -> Phase:
    """The pass in which the cohort uploads its gradients at the new model (FLANP, Algorithm 2)."""
    gradient = algorithm.gradient
    assert gradient is not None  # `contract` refuses the policy otherwise

    def client(*args: Any) -> ClientOutput:
        return gradient(*args)._replace(state=None)

    def mean_gradient(key: Key, server: Any, mean: PyTree, context: RoundContext) -> Any:
        return mean

    return Phase(GRADIENT, algorithm.phases[0].broadcast, client, mean_gradient)


def _norm(gradient: PyTree) -> Array:
    """() float: the Euclidean norm."""
    leaves = [leaf.astype(_sum_type(leaf)) for leaf in jax.tree.leaves(gradient)]
    return jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in leaves)).astype(float)
