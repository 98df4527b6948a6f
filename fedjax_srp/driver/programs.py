"""A simulation as compiled programs: one for the start, one for a segment of rounds and its final evaluation.

Algorithm, policy and clock are arguments of the programs (`fedjax_srp.parts.part`): simulations that differ only
in floats, keys or data share compiled programs.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import hashlib
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent import futures
from contextvars import ContextVar
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_srp.base import (
    Array,
    Clock,
    FederatedAlgorithm,
    FederatedSource,
    Key,
    ParticipationPolicy,
    PyTree,
    RoundInfo,
)
from fedjax_srp.parts.checks import is_key
from fedjax_srp.parts.part import type_of, values_of
from fedjax_srp.rounds.adaptation import AdaptationPlan, score_epochs
from fedjax_srp.rounds.client_data import is_by_client
from fedjax_srp.rounds.first_state import Start, first_state, init_clients
from fedjax_srp.rounds.round import SimulationState, one_round
from fedjax_srp.rounds.scoring import score_clients
from fedjax_srp.rounds.sharding import Layout, place, spread
from fedjax_srp.xla.backend import (
    compiler_options,
    options_for_one_run,
    platform,
    traced_for,
)
from fedjax_srp.xla.loops import batch_max, fori_loop, reversible, reversible_work
from fedjax_srp.xla.program_text import program_hash

ROUNDS = 128  # of a segment, at most, in the program that most runs share
WRITTEN_OUT = (
    1000  # longest value that a checkpoint stores in full; longer ones are hashed
)
# Functions whose compiled programs are kept, the most recently used ones. On a CPU each takes about 330 memory maps;
# Linux allows a process 65,530 of them, and XLA crashes beyond that.
FUNCTIONS_KEPT = 128


class Parts(NamedTuple):
    """The parts of a simulation; with the data, the arguments of its programs."""

    algorithm: FederatedAlgorithm
    policy: ParticipationPolicy
    clock: Clock


class Mode(NamedTuple):
    """Settings that functions of the package read while they are traced; both change the operations of a program."""

    platform: str  # see `backend.platform`
    reversible: int  # most units of work in loops with static bounds, 0 for others, see `loops.reversible`


def current_mode() -> Mode:
    """The mode outside of a program, for results that are shared by shapes."""
    return Mode(platform(), reversible_work())


class Kept:
    """The last results of traces, one for all trees that differ only in values; threads share them."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._results: dict[Any, Any] = {}  # oldest first

    def __len__(self) -> int:
        return len(self._results)

    def get(self, trace: Callable[[], Any], tree: PyTree, *static: Any) -> Any:
        """The result of `trace`, which depends on the types in the tree and on static values."""
        leaves, structure = jax.tree.flatten(tree)
        types = tuple(map(type_of, leaves))
        key = (structure, types, static, numerics(), current_mode())
        result = self._results.get(key)
        if result is None:
            result = trace()
            self._results[key] = result
            for oldest in list(self._results)[: -self.most]:
                self._results.pop(oldest, None)  # unless another thread was faster
        return result


class Spec(NamedTuple):
    """The static part of a program; equal specs share compiled functions."""

    parts: Any  # PyTreeDef of the parts: all but their leaves
    by_seed: tuple[bool, ...]  # for each leaf, True if it has an axis of seeds
    evaluations: tuple[str, ...]
    layout: Layout
    num_seeds: int | None  # None: one run, without a seeds axis
    record_loss: bool
    numerics: tuple[Any, ...]  # settings of JAX that change what is computed
    mode: Mode
    compiler: tuple[tuple[str, Any], ...]  # options beside XLA's own


def numerics() -> tuple[Any, ...]:
    """The current JAX settings that change what a program computes."""
    names = (
        "enable_x64",
        "default_matmul_precision",
        "numpy_dtype_promotion",
        "threefry_partitionable",
    )
    more = (
        "default_prng_impl",
        "random_seed_offset",
        "high_dynamic_range_gumbel",
    )  # of keys that a part makes
    return tuple(getattr(jax.config, f"jax_{name}") for name in (*names, *more))


class Segment(NamedTuple):
    """Results of a segment, with a leading axis of seeds if there are several."""

    rounds: RoundInfo  # leaves (length,)
    faults: Any  # (length, 2) int32 of the cohorts, see `cohort.cohort_fault`
    scores: dict[
        str, tuple[Array, Array]
    ]  # per evaluation: sums and numbers of scores, (owned * num_devices,)


# True for subtrees that are sharded by client; the others are replicated.
_NO: Any = False
_YES: Any = True
STATE_BY_CLIENT = SimulationState(
    server=_NO,
    clients=_YES,
    policy=_NO,
    clock=_NO,
    round=_NO,
    now=_NO,
    ahead=_NO,
    rounds_taken=_NO,
)
START_BY_CLIENT = Start(state=STATE_BY_CLIENT, client_time=_NO)


class Function(NamedTuple):
    """A function of a program, called with `(spec, *static, ..., root, parts, data)`."""

    name: str
    call: Callable[..., Any]
    takes: tuple[
        Any, ...
    ]  # for each argument before `root`, True if it is sharded by client
    gives: Any  # likewise for results
    static: tuple[Any, ...] = ()  # hashable
    donates: bool = False  # True if the memory of the first of `takes` is donated
    quick: bool = False  # True if it runs once and does not train, so that most of its time is compilation


# ---- functions that are compiled ----------------------------------------------------------------------------------


def _start(
    spec: Spec, begin: PyTree | None, root: Key, parts: Parts, data: FederatedSource
) -> Start:
    return first_state(*parts, root, data, spec.layout, begin)


def _segment(
    spec: Spec,
    trains: bool,
    at_most: int,
    state: SimulationState,
    length: Array,
    root: Key,
    parts: Parts,
    data: FederatedSource,
) -> tuple[SimulationState, Segment]:
    """Run as many rounds as `length` says, or none, and evaluate."""

    def round_of(state: SimulationState) -> tuple[SimulationState, Any]:
        return one_round(*parts, data, state, root, spec.layout, spec.record_loss)

    one = jax.jit(round_of, inline=True)  # traced once, for the shapes and for the loop
    rows = jax.tree.map(
        lambda leaf: jnp.zeros((at_most, *leaf.shape), leaf.dtype),
        jax.eval_shape(one, state)[1],
    )

    def body(
        index: Array, carry: tuple[SimulationState, Any]
    ) -> tuple[SimulationState, Any]:
        state, rows = carry
        state, row = one(state)
        put = functools.partial(
            jax.lax.dynamic_update_index_in_dim,
            index=index,
            axis=0,
            allow_negative_indices=False,
        )
        return state, jax.tree.map(put, rows, row)

    if trains:
        state, rows = fori_loop(batch_max(length), body, (state, rows), at_most)
    scores = score_clients(
        parts.algorithm, spec.evaluations, data, state, root, spec.layout
    )
    rounds, faults = rows
    return state, Segment(rounds, faults, scores)


def _scores(
    spec: Spec,
    server: PyTree,
    clients: PyTree | None,
    root: Key,
    parts: Parts,
    data: FederatedSource,
) -> dict[str, tuple[Array, Array]]:
    if clients is None:
        clients = init_clients(parts.algorithm, server, root, data, spec.layout)
    state = SimulationState(server, clients, (), (), jnp.int32(0), (), (), ())
    return score_clients(
        parts.algorithm, spec.evaluations, data, state, root, spec.layout
    )


def _epoch_scores(
    spec: Spec,
    plan: AdaptationPlan,
    server: PyTree,
    counts: Array,
    root: Key,
    parts: Parts,
    data: FederatedSource,
) -> tuple[Array, Array]:
    return score_epochs(plan, data, server, counts, root, spec.layout)


_lock = threading.Lock()  # of `_jitted`, so that two threads get the same function


@functools.lru_cache(maxsize=FUNCTIONS_KEPT)
def _jitted(spec: Spec, function: Function) -> Any:
    """Jit a function over devices and seeds; JAX keeps its traces and compiled programs as long as this is kept."""

    def over_clients(*args: Any) -> Any:
        *front, _, data = args
        takes = (*function.takes, _NO, _NO, is_by_client(data))
        call = functools.partial(function.call, spec, *function.static)
        call = spread(call, spec.layout, takes, function.gives)
        if spec.num_seeds is not None:
            of_leaves = [0 if by_seed else None for by_seed in spec.by_seed]
            of_parts = jax.tree.unflatten(spec.parts, of_leaves)
            axes = (*[0] * len(front), of_parts, None)  # seeds share the data
            call = jax.vmap(call, in_axes=axes)
        # in the mode of the spec, whenever and in whatever thread this is traced
        with traced_for(spec.mode.platform), reversible(spec.mode.reversible):
            return call(*args)

    over_clients.__name__ = function.name
    options = dict(spec.compiler)
    if function.quick:
        options |= options_for_one_run(spec.layout.platform)
    donated = (0,) if function.donates else ()
    return jax.jit(over_clients, donate_argnums=donated, compiler_options=options)


_events: ContextVar[list[str] | None] = ContextVar("events", default=None)


def _note(event: str, duration_secs: float, **kwargs: str | int) -> None:
    """Note that JAX traced or compiled something, see `Program.compile_seconds`."""
    events = _events.get()
    if events is not None and event.startswith("/jax/core/compile/"):
        events.append(event)


jax.monitoring.register_event_duration_secs_listener(_note)


class Program:
    """The compiled functions of a simulation, with its parts; they are traced and compiled on demand.

    JAX keeps what is compiled: programs of equal specs share it, also in several threads.

    Attributes:
        parts: of the simulation, their leaves as arrays.
        compiled: the functions that this program has used.
        announce: called with a function's name; returns a context that is open while it is traced or compiled.
        compile_seconds: of tracing and compiling; 0 if everything was compiled before.
        longest: rounds of the longest segment.
    """

    def __init__(self, spec: Spec, parts: Parts):
        self.spec = spec
        self.parts = jax.tree.map(jnp.asarray, parts)
        self.compiled: dict[Function, jax.stages.Compiled] = {}
        self.announce: Callable[[str], contextlib.AbstractContextManager[Any]] = (
            contextlib.nullcontext
        )
        self.compile_seconds = 0.0
        self.longest = 1

    @functools.cached_property
    def _placed(self) -> Parts:
        return place(self.spec.layout, self.parts)

    def start(
        self,
        root: Key,
        data: FederatedSource,
        trains: bool = False,
        begin: PyTree | None = None,
    ) -> Start:
        """The state before the first round; with seeds, `root` and `begin` have a leading axis.

        `begin` is as in `first_state`. If it `trains`, a segment is traced while another thread compiles the start.
        """
        start = self._start(begin)
        args = (begin, root, self._placed, data)
        if trains:
            with self._timed(start), futures.ThreadPoolExecutor(1) as thread:
                # Settings of JAX belong to a thread: the other one only compiles what is traced here.
                lowered = self._lower(start, args)
                in_context = contextvars.copy_context().run
                compiling = thread.submit(in_context, lowered.compile)
                state = lowered.out_info.state
                self._lower(self._segment(), (state, self._length(1), *args[1:]))
                self.compiled[start] = compiling.result()
        return self._run(start, *args)

    def _start(self, begin: PyTree | None) -> Function:
        trains = begin is None and bool(self.parts.algorithm.start_phases)
        return Function("start", _start, (_NO,), START_BY_CLIENT, quick=not trains)

    def scores(
        self,
        server: PyTree,
        root: Key,
        data: FederatedSource,
        clients: PyTree | None = None,
    ) -> dict[str, tuple[Array, Array]]:
        """Score every client under a server state: sums and numbers of scores, by client.

        `clients` are their states, leaves (owned * num_devices, ...); None for clients that have not trained.
        """
        function = Function("scores", _scores, (_NO, _YES), _NO)
        return self._run(function, server, clients, root, self._placed, data)

    def epoch_scores(
        self,
        plan: AdaptationPlan,
        server: PyTree,
        counts: Array,
        root: Key,
        data: FederatedSource,
    ) -> tuple[Array, Array]:
        """Score clients during adaptation, see `score_epochs`; the algorithm is not used."""
        function = Function("epoch scores", _epoch_scores, (_NO, _NO), _NO, (plan,))
        return self._run(function, server, counts, root, self._placed, data)

    def segment(
        self, length: int, state: SimulationState, root: Key, data: FederatedSource
    ) -> tuple[SimulationState, Segment]:
        """`length` rounds and one evaluation: (new state, Segment of NumPy arrays). The state is donated."""
        self.longest = max(self.longest, length)
        state, segment = self._run(
            self._segment(), state, self._length(length), root, self._placed, data
        )
        segment = jax.device_get(segment)
        of_seeds = (slice(None),) * int(self.spec.num_seeds is not None)
        rounds, faults = jax.tree.map(
            lambda leaf: leaf[*of_seeds, :length], (segment.rounds, segment.faults)
        )
        return state, Segment(rounds, faults, segment.scores)

    def run(
        self, function: Function, *args: Any, root: Key, data: FederatedSource
    ) -> Any:
        """Run one more function of this simulation, compiled at its first call."""
        return self._run(function, *args, root, self._placed, data)

    def _length(self, length: int) -> Array:
        """A number of rounds as an argument of the program; with seeds, for each of them."""
        seeds = () if self.spec.num_seeds is None else (self.spec.num_seeds,)
        return place(self.spec.layout, np.full(seeds, length, np.int32))

    def _segment(self, trains: bool = True, longest: int | None = None) -> Function:
        """The segment with room for the records of the longest one."""
        at_most = max(ROUNDS, 1 << ((longest or self.longest) - 1).bit_length())
        return Function(
            "rounds" if trains else "evaluation",
            _segment,
            takes=(STATE_BY_CLIENT, _NO),
            gives=(STATE_BY_CLIENT, _NO),
            static=(trains, at_most),
            donates=True,
        )

    def working_bytes(
        self, state: SimulationState, root: Key, data: FederatedSource
    ) -> int:
        """Bytes that a segment needs on each device besides arguments and results, according to the compiler."""
        segment = self._segment()
        with self._timed(segment):
            compiled = self._compile(
                segment, (state, self._length(1), root, self._placed, data)
            )
        return getattr(compiled.memory_analysis(), "temp_size_in_bytes", 0)

    def start_fingerprint(
        self, root: Key, data: FederatedSource, begin: PyTree | None = None
    ) -> str:
        """A hash of the program of `start`, which initializes all states."""
        return self._fingerprint(self._start(begin), begin, root, self._placed, data)

    def segment_fingerprint(
        self, state: SimulationState, root: Key, data: FederatedSource
    ) -> str:
        """A hash of the program of a segment, which includes its schedules, models and loops, but not its length."""
        segment = self._segment(longest=ROUNDS)
        args = (state, self._length(1), root, self._placed, data)
        return self._fingerprint(segment, *args)

    def _fingerprint(self, function: Function, *args: Any) -> str:
        with self._timed(function):
            return program_hash(self._lower(function, args))

    def traced(self, trains: bool, root: Key, data: FederatedSource) -> jax.stages.Traced:
        """Trace a segment, or its evaluation alone, for shapes (`Layout.shapes`), on devices that need not exist."""
        layout = self.spec.layout
        start = self.traced_start(root, data)
        state = self._shapes(start.out_info.state)
        length = layout.shapes(jax.ShapeDtypeStruct(root.shape, jnp.int32))
        args = (state, length, root, layout.shapes(self.parts), data)
        return self._jitted(self._segment(trains)).trace(*args)

    def traced_start(self, root: Key, data: FederatedSource) -> jax.stages.Traced:
        """Trace the start for shapes, as `traced` does a segment."""
        args = (None, root, self.spec.layout.shapes(self.parts), data)
        return self._jitted(self._start(None)).trace(*args)

    def values(self) -> dict[str, Any]:
        """The floats that programs take as arguments, by name; long arrays as a hash."""
        values = {}
        for name, leaf in values_of(self.parts).items():
            array = np.asarray(as_numbers(leaf), float)
            is_long = array.size > WRITTEN_OUT
            values[name] = _hash(array.tobytes()) if is_long else array.tolist()
        return values

    def _jitted(self, function: Function) -> Any:
        with _lock:
            return _jitted(self.spec, function)

    def _shapes(self, state: SimulationState) -> SimulationState:
        layout = self.spec.layout
        leading = int(self.spec.num_seeds is not None)
        clients = layout.shapes(state.clients, True, leading)
        return layout.shapes(state)._replace(clients=clients)

    @contextlib.contextmanager
    def _timed(self, function: Function) -> Iterator[None]:
        """Count the time of a block as compilation, unless JAX had everything."""
        events: list[str] = []
        token = _events.set(events)
        begin = time.perf_counter()
        try:
            with self.announce(function.name):
                yield
        finally:
            _events.reset(token)
        if events:
            self.compile_seconds += time.perf_counter() - begin

    def _lower(self, function: Function, args: tuple[Any, ...]) -> jax.stages.Lowered:
        """Trace a function for arguments like these; JAX keeps the trace."""
        if (
            function.donates
        ):  # by shapes, so that a trace before the start has the same text
            args = (self._shapes(args[0]), *args[1:])
        with _unchecked():
            return self._jitted(function).lower(*args)

    def _compile(self, function: Function, args: tuple[Any, ...]) -> jax.stages.Compiled:
        lowered = self._lower(function, args)
        with _unchecked():
            self.compiled[function] = lowered.compile()
        return self.compiled[function]

    def _run(self, function: Function, *args: Any) -> Any:
        if function not in self.compiled:
            with self._timed(function):
                self._compile(function, args)
        with _unchecked():
            return self._jitted(function)(*args)


@contextlib.contextmanager
def _unchecked() -> Iterator[None]:
    """Let JAX accept nan and inf, which records have for unknown values."""
    with jax.debug_nans(False), jax.debug_infs(False):
        yield


def as_numbers(leaf: Array) -> Array:
    """A leaf as numbers; of a key, its data."""
    return jax.random.key_data(leaf) if is_key(leaf) else leaf


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def program(
    algorithm: FederatedAlgorithm,
    policy: ParticipationPolicy,
    clock: Clock,
    evaluations: Sequence[str],
    layout: Layout,
    num_seeds: int | None = None,
    by_seed: Collection[str] = (),
    record_loss: bool = False,
) -> Program:
    """The program of these parts; parts that differ only in leaves share compiled functions.

    The algorithm's leaves named in `by_seed`, dotted, have a leading axis of seeds, see `parts.with_values`.
    """
    parts = Parts(algorithm, policy.runs_as(layout.num_clients), clock)
    of_algorithm = {f"algorithm.{name}" for name in by_seed}
    with_axis = tuple(name in of_algorithm for name in values_of(parts))
    compiler = tuple(compiler_options(layout.platform).items())
    structure = jax.tree.structure(parts)
    mode = Mode(layout.platform, reversible_work())
    spec = Spec(
        structure,
        with_axis,
        tuple(evaluations),
        layout,
        num_seeds,
        record_loss,
        numerics(),
        mode,
        compiler,
    )
    return Program(spec, parts)
