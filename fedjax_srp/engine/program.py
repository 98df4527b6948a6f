"""A simulation as compiled programs: one for the start, one for a segment of rounds and the evaluation that ends it."""

from __future__ import annotations

import functools
import hashlib
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_srp.backend import traced_for
from fedjax_srp.base import (
    Array,
    Clock,
    FederatedAlgorithm,
    FederatedSource,
    Key,
    ParticipationPolicy,
    PyTree,
    RoundContext,
    RoundInfo,
    Uncharged,
    named_key,
)
from fedjax_srp.engine.owned import is_by_client, own_client
from fedjax_srp.engine.round import SimulationState, one_round, prepare, stream
from fedjax_srp.engine.scoring import evaluate
from fedjax_srp.engine.sharding import Layout, device_index, spread


class Spec(NamedTuple):
    """What a program is made from; equal specs share their compiled programs."""

    algorithm: FederatedAlgorithm  # with `evaluations` and `sends` as tuples, so that a spec can be hashed
    policy: ParticipationPolicy
    clock: Clock
    evaluations: tuple[str, ...]
    plan: Layout
    num_seeds: int | None  # None: one run, without a seeds axis
    numerics: tuple  # settings of JAX that change what is computed


def numerics() -> tuple:
    """The settings of JAX that change what a program computes, as they are now."""
    names = "jax_enable_x64", "jax_default_matmul_precision", "jax_numpy_dtype_promotion"
    return tuple(getattr(jax.config, name) for name in names)


class Start(NamedTuple):
    """The state before the first round, and what is known of the clients' speed."""

    state: SimulationState
    client_time: Array  # (num_clients,) expected time of a unit of work


class Segment(NamedTuple):
    """What a segment hands to the host; behind a seeds axis where there is one."""

    rounds: RoundInfo  # leaves (length,)
    scores: dict[str, tuple[Array, Array]]  # per evaluation: sums and numbers of scores, (owned * num_devices,)


# What is sharded by client; the rest is replicated. Flags stand in for whole subtrees, so types say less than usual.
_NO: Any = False
_YES: Any = True
STATE_BY_CLIENT = SimulationState(server=_NO, clients=_YES, policy=_NO, clock=_NO, round=_NO)
START_BY_CLIENT = Start(state=STATE_BY_CLIENT, client_time=_NO)


class Program:
    """Traces and compiles on demand, keeps what is compiled, and counts both."""

    def __init__(self, spec: Spec):
        self.spec = spec
        leaves, shape = spec.algorithm.sends
        self.algorithm = spec.algorithm._replace(
            evaluations=dict(spec.algorithm.evaluations), sends=jax.tree.unflatten(shape, leaves)
        )
        self.compile_seconds = 0.0
        self.num_traces = 0
        self._lowered: dict[Any, jax.stages.Lowered] = {}
        self._compiled: dict[Any, jax.stages.Compiled] = {}

    def start(self, root: Key, data: FederatedSource) -> Start:
        """The state before the first round; `root` has a leading axis where there are seeds."""
        return self._compile(*self._start(data), (root, data))(root, data)

    def _start(self, data: FederatedSource):
        plan = self.spec.plan

        def function(root: Key, data: FederatedSource) -> Start:
            server = self.algorithm.init(named_key(named_key(root, "server"), "init"), data)
            clients = self._init_clients(server, root, data)
            policy = self.spec.policy.init(named_key(named_key(root, "participation"), "init"), plan.num_clients)
            clock = self.spec.clock.init(named_key(named_key(root, "clock"), "init"), plan.num_clients)
            times, _ = self.spec.clock.sample(stream(root, "clock", jnp.int32(0)), clock)
            state = SimulationState(server, clients, policy, clock, jnp.int32(0))
            return Start(prepare(self.algorithm, data, state, root, plan), times.expected)

        return "start", function, (_NO, is_by_client(data)), START_BY_CLIENT

    def _init_clients(self, server: PyTree, root: Key, data: FederatedSource) -> PyTree:
        """The states of this device's clients before any training, leaves (owned, ...)."""
        plan = self.spec.plan
        ids = device_index(plan) * plan.owned + jnp.arange(plan.owned, dtype=jnp.int32)
        key_clients = named_key(named_key(root, "training"), "init")

        def init_client(client_id: Array) -> PyTree:
            client_id = jnp.minimum(client_id, plan.num_clients - 1)  # the last device's rows may be padding
            key = jax.random.fold_in(key_clients, client_id)
            return self.algorithm.init_client(key, server, own_client(plan, data, client_id))

        return jax.lax.map(init_client, ids, batch_size=min(plan.chunk_size, plan.owned))

    def scores(self, server: PyTree, root: Key, data: FederatedSource) -> dict[str, tuple[Array, Array]]:
        """What clients that have not trained score under a server state: sums and numbers of scores, by client."""

        def function(server: PyTree, root: Key, data: FederatedSource):
            state = SimulationState(server, self._init_clients(server, root, data), (), (), jnp.int32(0))
            return evaluate(self.algorithm, self.spec.evaluations, data, state, root, self.spec.plan)

        args = server, root, data
        return self._compile("scores", function, (_NO, _NO, is_by_client(data)), _NO, args)(*args)

    def segment(self, length: int, state: SimulationState, root: Key, data: FederatedSource):
        """`length` rounds and one evaluation: (new state, Segment). The state is donated."""
        args = state, root, data
        return self._compile(*self._segment(length, data), args, donate=True)(*args)

    def working_bytes(self, length: int, state: SimulationState, root: Key, data: FederatedSource) -> int:
        """What a segment needs on each device beside its arguments and results, as the compiler has it."""
        compiled = self._compile(*self._segment(length, data), (state, root, data), donate=True)
        return getattr(compiled.memory_analysis(), "temp_size_in_bytes", 0)

    def start_fingerprint(self, root: Key, data: FederatedSource) -> str:
        """A hash of the program of `start`: how server, clients, clock and policy begin. To be asked before `start`."""
        return _hash(self._lower(*self._start(data), (root, data)))

    def segment_fingerprint(self, length: int, state: SimulationState, root: Key, data: FederatedSource) -> str:
        """A hash of the program of a segment, and so of all that is compiled into it: step sizes, schedules, models."""
        return _hash(self._lower(*self._segment(length, data), (state, root, data), donate=True))

    # `_start` and `_segment`: name, function, and what of its arguments and results is sharded by client.

    def _segment(self, length: int, data: FederatedSource):
        def function(state: SimulationState, root: Key, data: FederatedSource):
            def body(state: SimulationState, _: None):
                return one_round(self.algorithm, self.spec.policy, self.spec.clock, data, state, root, self.spec.plan)

            state, rounds = jax.lax.scan(body, state, length=length)
            scores = evaluate(self.algorithm, self.spec.evaluations, data, state, root, self.spec.plan)
            return state, Segment(rounds, scores)

        return ("segment", length), function, (STATE_BY_CLIENT, _NO, is_by_client(data)), (STATE_BY_CLIENT, _NO)

    def _lower(self, name: Any, function: Callable, in_by_client, out_by_client, args: tuple, donate: bool = False):
        """Traces the function of this name for arguments of these shapes; once, unless it is compiled meanwhile."""
        signature = _signature(name, args)
        if signature not in self._lowered:
            begin = time.perf_counter()

            def counted(*args):
                self.num_traces += 1
                return function(*args)

            spread_function = spread(counted, self.spec.plan, in_by_client, out_by_client)
            if self.spec.num_seeds is not None:
                axes = (*(0,) * (len(args) - 1), None)  # data, the last argument, is shared by the seeds
                spread_function = jax.vmap(spread_function, in_axes=axes)
            with traced_for(self.spec.plan.platform):
                self._lowered[signature] = jax.jit(spread_function, donate_argnums=(0,) if donate else ()).lower(*args)
            self.compile_seconds += time.perf_counter() - begin
        return self._lowered[signature]

    def _compile(
        self, name: Any, function: Callable, in_by_client, out_by_client, args: tuple, donate: bool = False
    ) -> jax.stages.Compiled:
        """The compiled function of this name and these shapes, made the first time."""
        signature = _signature(name, args)
        if signature not in self._compiled:
            lowered = self._lower(name, function, in_by_client, out_by_client, args, donate)
            begin = time.perf_counter()
            self._compiled[signature] = lowered.compile()
            del self._lowered[signature]
            self.compile_seconds += time.perf_counter() - begin
        return self._compiled[signature]


def _hash(lowered: jax.stages.Lowered) -> str:
    return hashlib.sha256(lowered.as_text().encode()).hexdigest()[:16]


def _signature(name: Any, args: tuple) -> tuple:
    return name, jax.tree.structure(args), tuple((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(args))


@functools.lru_cache(maxsize=16)
def _program(spec: Spec) -> Program:
    return Program(spec)


def program(
    algorithm: FederatedAlgorithm,
    policy: ParticipationPolicy,
    clock: Clock,
    evaluations: Sequence[str],
    plan: Layout,
    num_seeds: int | None = None,
) -> Program:
    """The program of these parts; the very same parts get the very same program, so a new key compiles nothing."""
    sends, shapes = jax.tree.flatten(algorithm.sends)
    hashable = algorithm._replace(evaluations=tuple(algorithm.evaluations.items()), sends=(tuple(sends), shapes))
    return _program(Spec(hashable, policy, clock, tuple(evaluations), plan, num_seeds, numerics()))


def num_bytes(tree: PyTree) -> int:
    """Bytes of the arrays of a tree, or of their shapes."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _charged_bytes(tree: PyTree) -> int:
    leaves = jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, Uncharged))
    return num_bytes([leaf for leaf in leaves if not isinstance(leaf, Uncharged)])


class Traffic(NamedTuple):
    """What one participant handles in a round, and the states behind it, in bytes, from shapes alone."""

    up: int  # sent
    down: int  # received
    held: int  # data, state and messages of a client while it trains
    judged: int  # data and state of a client while it is evaluated
    examples: int  # its data alone, as the model takes it
    client_state: int
    server_state: int

    def of_seeds(self, num_seeds: int | None) -> tuple[int, int]:
        """What a client holds while it trains, and while it is evaluated, in a batch of seeds."""
        return self.held * (num_seeds or 1), self.judged * (num_seeds or 1)


def traffic(algorithm: FederatedAlgorithm, policy: ParticipationPolicy, data: FederatedSource) -> Traffic:
    """Sizes of messages, broadcasts and client data; runs nothing."""

    def exchange(key: Key, data: FederatedSource):
        zero, one = jnp.int32(0), jnp.int32(1)
        context = RoundContext(zero, zero, one, data.num_clients, one)
        server, examples = algorithm.init(key, data), data.train_client(zero)
        state, broadcast = algorithm.init_client(key, server, examples), algorithm.broadcast(server, context)
        clients = [phase.client for phase in (algorithm.round, algorithm.finish) if phase is not None]
        down = [broadcast for _ in clients]
        if policy.needs_global_gradient and algorithm.gradient is not None:
            clients.append(algorithm.gradient)  # at the model that the next round starts from: no further download
        up = [client(key, broadcast, state, examples, context).message for client in clients]
        return up, down, examples, data.test_client(zero), state, server

    up, down, examples, tests, state, server = jax.eval_shape(exchange, jax.random.key(0), data)
    sent = up if algorithm.sends is None else (algorithm.sends, up[1:])
    held, judged = num_bytes((examples, state, up)), max(num_bytes(examples), num_bytes(tests)) + num_bytes(state)
    own = (num_bytes(part) for part in (examples, state, server))
    return Traffic(_charged_bytes(sent), _charged_bytes(down), held, judged, *own)
