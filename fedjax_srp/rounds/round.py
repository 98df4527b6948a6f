"""One round: selection, local work, aggregation, costs; all in-graph, for one device of the mesh."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_srp.base import (
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
    FederatedAlgorithm,
    FederatedSource,
    Key,
    Participants,
    ParticipationPolicy,
    Phase,
    PyTree,
    RoundContext,
    RoundInfo,
    ShownFunction,
    TrainingLoss,
    named_key,
)
from fedjax_srp.contract.checks import GRADIENT
from fedjax_srp.rounds.client_data import DataAccess, data_access
from fedjax_srp.rounds.cohort import cohort_fault, slowest, takes_part, wasted_time
from fedjax_srp.rounds.sharding import (
    Layout,
    Window,
    everywhere,
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
    rounds_taken: Any  # (num_clients,) int32: rounds that each client took part in


class PassResult(NamedTuple):
    """The result of a pass over a cohort."""

    mean: PyTree  # of the messages
    states: PyTree  # of all clients, updated for the cohort
    info: PyTree  # mean over the cohort
    records: PyTree  # leaves (owned, ...): each client's `info`; () without `record`
    loss: (
        Array | None
    )  # () float, mean training loss of clients with a step, nan for none; None: not reported
    reports: Mapping[
        str, Array
    ]  # (num_clients,) float each, see `ParticipationPolicy.needs`


def cohort_pass(
    client: Callable[
        [Key, ClientState, ClientData, RoundContext], ClientOutput
    ],  # of ONE client
    access: DataAccess,  # to their data
    states: PyTree,  # of all clients, leaves (owned, ...)
    cohort: Cohort,
    context: RoundContext,  # `work` is filled in for each client
    key: Key,  # a client's key folds in its id
    layout: Layout,
    record: bool = False,  # keep each client's `info`
    needs: tuple[str, ...] = (),  # names of the reports for the policy
) -> PassResult:
    """Run a client function over a cohort; rounds, criteria and evaluations all use this.

    The cohort is cut into windows of `num_devices * chunk_size` positions. A loop with a traced trip count runs one
    window per trip, so one program serves every cohort size; its cost depends on the cohort, its memory on the chunk. A
    layout with large chunks has a loop over these first, while they are at least half full. Each device trains its own
    clients first; only in later windows do devices exchange states and wait for each other.
    """
    at_home, *ordered = owners_first(layout, cohort.client_ids, cohort.size, cohort.work)
    pad = (0, -cohort.client_ids.shape[0] % layout.by_chunk_size[0].window)
    client_ids, work = (jnp.pad(by_position, pad) for by_position in ordered)

    def one(
        client_id: Array, work: Array, state: ClientState, moved: PyTree
    ) -> tuple[ClientOutput, dict[str, Array]]:
        client_data = access.read(client_id, moved)
        output = client(
            jax.random.fold_in(key, client_id),
            state,
            client_data,
            context._replace(work=work),
        )
        return output, {name: _report(name, output, client_data) for name in needs}

    chunk = jax.jit(
        jax.vmap(one), inline=True
    )  # traced once, for the shapes and for the loop
    zero = lambda leaf: jnp.zeros((), leaf.dtype)

    def weighted_sum(weight: PyTree, values: PyTree, mine: Array) -> PyTree:
        def weighted(weight: Array, part: PyTree) -> PyTree:
            def leaf_sum(leaf: Array) -> Array:
                # A padded slot may hold nan (without work d_i / tau_i is 0 / 0), and 0 * nan is nan.
                is_real = jnp.expand_dims(mine, tuple(range(1, leaf.ndim)))
                real = jnp.where(is_real, leaf, zero(leaf)).astype(_sum_type(leaf))
                return jnp.tensordot(
                    weight.astype(real.dtype), real, 1, precision="highest"
                )  # never TF32

            return jax.tree.map(leaf_sum, part)

        return jax.tree.map(weighted, weight, values)  # `weight` is a prefix of `values`

    def run_window(
        layout: Layout, first: Array, states: PyTree
    ) -> tuple[ClientOutput, dict[str, Array], Window, Array]:
        """Run the window that starts at `first`: outputs, reports, the window and the mask of real slots."""
        positions = first + window_positions(layout)
        active = positions < cohort.size
        # A padded slot repeats the first participant without work and with weight zero.
        ids = jnp.where(active, client_ids[positions], client_ids[0])
        away = batch_max(jnp.minimum(first + layout.window, cohort.size) > at_home)
        window, mine = Window(ids, active, away), my_chunk(layout, active)
        rows = barrier(
            take(layout, states, window)
        )  # read once, before new states are written
        chunk_work = jnp.where(mine, my_chunk(layout, work[positions]), 0)
        outputs, reported = chunk(
            my_chunk(layout, ids), chunk_work, rows, access.move(window)
        )
        # Integers and flags become floats, so that their mean is one.
        message, weight, info = jax.tree.map(
            _as_float, (outputs.message, outputs.weight, dict(outputs.info))
        )
        loss = None if not context.record_loss else outputs.loss
        weight = jax.tree.map(lambda w: jnp.where(mine, w, zero(w)), weight)
        return (
            ClientOutput(message, outputs.state, weight, info, loss),
            reported,
            window,
            mine,
        )

    def add_window(
        layout: Layout, first: Array, carry: tuple[PyTree, ...]
    ) -> tuple[PyTree, ...]:
        sums, states, records, reports = carry
        outputs, reported, window, mine = run_window(layout, first, states)
        new = (
            weighted_sum(outputs.weight, outputs.message, mine),
            jax.tree.map(lambda w: jnp.sum(w, dtype=_sum_type(w)), outputs.weight),
            jax.tree.map(
                lambda i: jnp.sum(jnp.where(mine, i, zero(i)), dtype=_sum_type(i)),
                outputs.info,
            ),
            None if outputs.loss is None else _summed(outputs.loss, mine),
        )
        if outputs.state is not None:
            states = put(layout, states, window, outputs.state)
        if record:
            records = put(layout, records, window, outputs.info)
        if needs:
            ids = jnp.where(mine, my_chunk(layout, window.client_ids), layout.num_clients)
            reports = jax.tree.map(
                lambda all, some: all.at[ids].set(some, mode="drop"), reports, reported
            )
        return jax.tree.map(jnp.add, sums, new), states, records, reports

    shape = jax.eval_shape(lambda s: run_window(layout, jnp.int32(0), s)[0], states)
    scalar = lambda leaf: jnp.zeros((), _sum_type(leaf))
    zeros = lambda leaf: jnp.zeros(leaf.shape[1:], _sum_type(leaf))
    sums = (
        jax.tree.map(zeros, shape.message),
        jax.tree.map(scalar, shape.weight),
        jax.tree.map(scalar, shape.info),
        None if shape.loss is None else (jnp.zeros(()), jnp.zeros(())),
    )
    records = (
        jax.tree.map(lambda i: jnp.zeros((layout.owned,), i.dtype), shape.info)
        if record
        else ()
    )
    reports = {name: jnp.zeros(layout.num_clients) for name in needs}
    carry, done, size = (
        (sums, states, records, reports),
        jnp.int32(0),
        batch_max(cohort.size),
    )
    for sized in layout.by_chunk_size:
        padding = (
            sized.window // 2 if sized.window > layout.window else sized.window - 1
        )  # large chunks: half full
        num_windows = jnp.maximum(size - done + padding, 0) // sized.window
        carry = fori_loop(
            num_windows,
            lambda i, carry, sized=sized, done=done: add_window(
                sized, done + i * sized.window, carry
            ),
            carry,
            at_most=-(-cohort.client_ids.shape[0] // sized.window),
        )
        done = done + num_windows * sized.window
    sums, states, records, reports = carry
    messages, weights, info, losses = total(layout, sums)
    mean = jax.tree.map(
        lambda w, part: jax.tree.map(lambda m: m / w.astype(m.dtype), part),
        weights,
        messages,
    )
    mean = jax.tree.map(lambda m, leaf: m.astype(leaf.dtype), mean, shape.message)
    loss = None if losses is None else losses[0] / losses[1]
    if needs:  # a client reports on one device, with zeros on the others
        ids = jnp.where(takes_part(cohort), cohort.client_ids, layout.num_clients)
        took_part = (
            jnp.zeros(layout.num_clients, jnp.bool_).at[ids].set(True, mode="drop")
        )
        reports = jax.tree.map(
            lambda leaf: jnp.where(took_part, leaf, jnp.nan), total(layout, reports)
        )
    info = jax.tree.map(
        lambda i, leaf: (i / cohort.size.astype(i.dtype)).astype(leaf.dtype),
        info,
        shape.info,
    )
    return PassResult(mean, states, info, records, loss, reports)


def _report(name: str, output: ClientOutput, client_data: ClientData) -> Array:
    """() float: a report of one participant, which `contract` has checked to exist."""
    if name == NUM_EXAMPLES:
        return client_data.count.astype(float)
    if name == TRAINING_LOSS:
        assert output.loss is not None
        return jnp.where(output.loss.steps > 0, output.loss.mean, jnp.nan).astype(float)
    return jnp.asarray(output.info[name]).astype(float)


def _summed(loss: TrainingLoss, mine: Array) -> tuple[Array, Array]:
    """The sum of the losses of a chunk, and the number of clients with at least one step."""
    counts = mine & (loss.steps > 0)
    return jnp.sum(jnp.where(counts, loss.mean, 0).astype(float)), jnp.sum(counts).astype(
        float
    )


def _as_float(leaf: Array) -> Array:
    return leaf if jnp.issubdtype(leaf.dtype, jnp.inexact) else leaf.astype(float)


def _sum_type(leaf: Any) -> Any:
    """The type of a sum over clients: at least float32, since half precision overflows or stops growing."""
    return leaf.dtype if jnp.finfo(leaf.dtype).bits >= 32 else jnp.dtype(jnp.float32)


def as_arrays(tree: PyTree) -> PyTree:
    """Convert the result of an author's function, which may contain Python or NumPy numbers, to JAX arrays.

    No array is weakly typed; otherwise a state would change its type after the first round.
    """

    def as_array(leaf: Any) -> Array:
        array = jnp.asarray(leaf)
        return (
            array.astype(array.dtype) if getattr(array, "weak_type", False) else array
        )  # JAX's keys have none

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
    leaves = [
        jnp.all(jnp.isfinite(leaf))
        for leaf in jax.tree.leaves(tree)
        if jnp.issubdtype(leaf.dtype, jnp.floating)
    ]
    return jnp.all(jnp.stack(leaves)) if leaves else jnp.bool_(True)


def run_phase(
    phase: Phase,
    server: PyTree,
    states: PyTree,
    cohort: Cohort,
    context: RoundContext,
    data: FederatedSource,
    root: Key,
    layout: Layout,
    needs: tuple[str, ...] = (),
) -> tuple[PyTree, PassResult]:
    """One pass of a `Phase`, and the server's update."""
    exchange = phase.exchange
    if phase.over == "next" and cohort.next_ids is not None:
        cohort = cohort._replace(client_ids=cohort.next_ids)
    broadcast = as_arrays(phase.broadcast(server, context))
    participants = (
        None
        if exchange is None
        else _participants(exchange.shown, states, cohort, layout)
    )

    def client(
        key: Key, state: Any, client_data: Any, context: RoundContext
    ) -> ClientOutput:
        down = broadcast
        if exchange is not None and participants is not None:
            down = as_arrays(
                exchange.mix(broadcast, exchange.shown(state), participants, context)
            )
        return phase.client(key, down, state, client_data, context)

    key = named_key(stream(root, "training", context.round), phase.name)
    result = cohort_pass(
        client,
        data_access(layout, data, "train"),
        states,
        cohort,
        context,
        key,
        layout,
        needs=needs,
    )
    key_server = named_key(stream(root, "server", context.round), phase.name)
    return as_arrays(phase.server(key_server, server, result.mean, context)), result


def _participants(
    shown: ShownFunction, states: PyTree, cohort: Cohort, layout: Layout
) -> Participants:
    """The shown states of all participants, on every device; rows of non-participants repeat the first."""
    real = takes_part(cohort)
    ids = jnp.where(real, cohort.client_ids, cohort.client_ids[0])
    return Participants(everywhere(layout, jax.vmap(shown)(states), ids), real)


def prepare_server(
    algorithm: FederatedAlgorithm,
    data: FederatedSource,
    state: SimulationState,
    root: Key,
    layout: Layout,
) -> SimulationState:
    """The passes over all clients before the first round, see `FederatedAlgorithm.start_phases`."""
    cohort = all_clients(layout.num_clients)
    context = RoundContext(
        jnp.int32(0), cohort.stage, cohort.size, layout.num_clients, jnp.int32(1)
    )
    for phase in algorithm.start_phases:
        server, result = run_phase(
            phase, state.server, state.clients, cohort, context, data, root, layout
        )
        state = state._replace(server=server, clients=result.states)
    return state


def select_cohort(
    policy: ParticipationPolicy, clock: Clock, state: SimulationState, root: Key
) -> tuple[tuple[ClientTimes, PyTree], tuple[Cohort, PyTree]]:
    """Begin a round: the clients' times and the cohort, with the states of clock and policy."""
    sampled = as_arrays(
        clock.sample(stream(root, "clock", state.round), state.clock, state.now)
    )
    picked = policy.select(
        stream(root, "participation", state.round), state.policy, sampled[0]
    )
    return sampled, as_arrays(picked)


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
    (times, clock_state), (cohort, policy_state) = select_cohort(
        policy, clock, state, root
    )
    context = RoundContext(
        state.round,
        cohort.stage,
        cohort.size,
        layout.num_clients,
        jnp.int32(1),
        record_loss,
    )
    args = cohort, context, data, root, layout

    training, *more = algorithm.phases
    server, trained = run_phase(
        training, state.server, state.clients, *args, policy.needs
    )
    clients = trained.states
    info = dict(trained.info)
    for phase in more:
        server, result = run_phase(phase, server, clients, *args)
        clients = result.states
        info |= result.info
    if times.available is not None:  # without participants the means are nan
        server = jax.tree.map(
            lambda new, old: jnp.where(cohort.size > 0, new, old), server, state.server
        )

    metrics = {**as_arrays(algorithm.metrics(server, data)), **info}
    if record_loss:
        metrics[TRAINING_LOSS] = trained.loss
    global_grad_norm = jnp.full((), jnp.nan)
    if policy.needs_global_gradient:
        mean_gradient, _ = run_phase(_gradient_phase(algorithm), server, clients, *args)
        global_grad_norm = _norm(mean_gradient)
        metrics[GRADIENT_NORM] = global_grad_norm

    communicates = algorithm.charges.communicates
    communicated = True if communicates is None else communicates(state.server, context)
    duration = slowest(cohort, times) if cohort.duration is None else cohort.duration
    if cohort.asked is not None:
        metrics[WASTED_TIME] = wasted_time(cohort, times, duration)
    round_info = RoundInfo(
        round=state.round,
        stage=cohort.stage,
        cohort_size=cohort.size,
        compute_time=duration if times.wait is None else times.wait + duration,
        communicated=as_arrays(communicated),
        global_grad_norm=global_grad_norm,
        finite=all_finite(server),
        metrics=metrics,
        reports=trained.reports,
    )
    policy_state = policy.update(policy_state, round_info)
    policy_metrics = jax.tree.map(_as_float, as_arrays(policy.metrics(policy_state)))
    round_info = round_info._replace(metrics={**metrics, **policy_metrics}, reports={})
    now = state.now + round_info.compute_time
    if (
        times.available is not None
    ):  # time must pass, or clients that leave at once would be selected forever
        later = jnp.nextafter(state.now, jnp.inf)
        now = jnp.maximum(
            now, jnp.maximum(later, jnp.finfo(later.dtype).tiny)
        )  # subnormal numbers count as 0
    ids = jnp.where(takes_part(cohort), cohort.client_ids, layout.num_clients)
    rounds_taken = state.rounds_taken.at[ids].add(1, mode="drop")
    new = SimulationState(
        server, clients, policy_state, clock_state, state.round + 1, now, rounds_taken
    )
    return new, (round_info, cohort_fault(cohort, times))


def _gradient_phase(algorithm: FederatedAlgorithm) -> Phase:
    """The pass in which the cohort uploads its gradients at the new model (FLANP, Algorithm 2)."""
    gradient = algorithm.gradient
    assert gradient is not None  # `contract` refuses the policy otherwise

    def client(
        key: Key, broadcast: Any, state: Any, client_data: Any, context: RoundContext
    ) -> ClientOutput:
        return gradient(key, broadcast, state, client_data, context)._replace(state=None)

    return Phase(
        GRADIENT,
        algorithm.phases[0].broadcast,
        client,
        lambda key, server, mean, context: mean,
    )


def _norm(gradient: PyTree) -> Array:
    """() float: the Euclidean norm."""
    leaves = [leaf.astype(_sum_type(leaf)) for leaf in jax.tree.leaves(gradient)]
    return jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in leaves)).astype(float)
