"""A simulation as compiled programs: one for the start, one for a segment of rounds and its final evaluation.

Algorithm, policy and clock are arguments of the programs (`fedjax_srp.parts.part`): simulations that differ only
in floats, keys or data share compiled programs.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent import futures
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
from fedjax_srp.parts.part import values_of
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
# Compiled functions kept for equal specs, and specs kept. On a CPU a function takes about 330 memory maps; Linux allows
# a process 65,530 of them, and XLA crashes beyond that.
FUNCTIONS_KEPT, SPECS_KEPT = 8, 16


class Parts(NamedTuple):
    """The parts of a simulation; with the data, the arguments of its programs."""

    algorithm: FederatedAlgorithm
    policy: ParticipationPolicy
    clock: Clock


class Mode(NamedTuple):
    """What functions of the package ask for while they are traced; both change the operations of a program."""

    platform: str  # see `backend.platform`
    reversible: int  # most units of work in loops with static bounds, 0 for others, see `loops.reversible`


def current_mode() -> Mode:
    """The mode outside of a program, for results that are shared by shapes."""
    return Mode(platform(), reversible_work())


class Spec(NamedTuple):
    """The static part of a program; equal specs share compiled functions."""

    parts: Any  # PyTreeDef of the parts: all but their leaves
    by_seed: tuple[bool, ...]  # for each leaf, True if it has an axis of seeds
    evaluations: tuple[str, ...]
    layout: Layout
    num_seeds: int | None  # None: one run, without a seeds axis
    records_loss: bool
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
    server=_NO, clients=_YES, policy=_NO, clock=_NO, round=_NO, now=_NO, rounds_taken=_NO
)
START_BY_CLIENT = Start(state=STATE_BY_CLIENT, client_time=_NO)


class Function(NamedTuple):
    """A function of a program, called with `(..., root, parts, data)`."""

    name: Any  # hashable
    call: Callable[..., Any]
    takes: tuple[Any, ...]  # for each leading argument, True if it is sharded by client
    gives: Any  # likewise for results
    donates: bool = False  # True if the first argument's memory is donated
    quick: bool = False  # True if it runs once and does not train, so that most of its time is compilation


class Shared:
    """Traces and compiled functions that programs of equal specs share, with the number of traces."""

    def __init__(self) -> None:
        self.lock = (
            threading.RLock()
        )  # of tracing and compiling: a second thread waits, and finds the result
        self.num_traces = 0
        self.lowered: dict[Any, jax.stages.Lowered] = {}
        self.compiled: dict[Any, jax.stages.Compiled] = {}  # least recently used first


class Program:
    """The compiled functions of a simulation, with its parts; they are traced and compiled on demand.

    Attributes:
        parts: of the simulation, their leaves as arrays.
        shared: traces and compiled functions, shared with programs of equal specs.
        announce: called with a function's name; returns a context that is open while it is traced or compiled.
        compile_seconds: of tracing and compiling, and of waiting for another thread that does so.
        longest: rounds of the longest segment.
    """

    def __init__(self, spec: Spec, shared: Shared, parts: Parts):
        self.spec, self.shared, self.parts = (
            spec,
            shared,
            jax.tree.map(jnp.asarray, parts),
        )
        self.announce: Callable[[Any], contextlib.AbstractContextManager[Any]] = (
            contextlib.nullcontext
        )
        self.compile_seconds, self.longest = 0.0, 1

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
        signature, shared = _signature(start.name, args), self.shared
        with self._lock(start):
            if trains and signature not in shared.compiled:
                lowered = self._lower(start, args)
                with futures.ThreadPoolExecutor(1) as thread:
                    compiling = thread.submit(
                        lowered.compile, compiler_options=self._options(start)
                    )
                    self._lower(
                        self._segment(),
                        (self._shapes(lowered.out_info.state), self._given(1), *args[1:]),
                    )
                    with self._timed(start):
                        self._keep(signature, compiling.result())
        return self._run(start, begin, root, data=data)

    def _shapes(self, state: SimulationState) -> SimulationState:
        layout, leading = self.spec.layout, int(self.spec.num_seeds is not None)
        return layout.shapes(state)._replace(
            clients=layout.shapes(state.clients, True, leading)
        )

    def _start(self, begin: PyTree | None) -> Function:
        def start(
            begin: PyTree | None, root: Key, parts: Parts, data: FederatedSource
        ) -> Start:
            return first_state(*parts, root, data, self.spec.layout, begin)

        trains = begin is None and bool(self.parts.algorithm.start_phases)
        return Function("start", start, (_NO,), START_BY_CLIENT, quick=not trains)

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
        spec, layout = self.spec, self.spec.layout

        def scores(
            server: PyTree,
            clients: PyTree,
            root: Key,
            parts: Parts,
            data: FederatedSource,
        ):
            if clients is None:
                clients = init_clients(parts.algorithm, server, root, data, layout)
            state = SimulationState(server, clients, (), (), jnp.int32(0), (), ())
            return score_clients(
                parts.algorithm, spec.evaluations, data, state, root, layout
            )

        return self._run(
            Function("scores", scores, (_NO, _YES), _NO), server, clients, root, data=data
        )

    def epoch_scores(
        self,
        plan: AdaptationPlan,
        server: PyTree,
        counts: Array,
        root: Key,
        data: FederatedSource,
    ) -> tuple[Array, Array]:
        """Score clients during adaptation, see `score_epochs`; the algorithm is not used."""

        def scores(
            server: PyTree, counts: Array, root: Key, parts: Parts, data: FederatedSource
        ):
            return score_epochs(plan, data, server, counts, root, self.spec.layout)

        return self._run(
            Function(("epoch scores", plan), scores, (_NO, _NO), _NO),
            server,
            counts,
            root,
            data=data,
        )

    def segment(
        self, length: int, state: SimulationState, root: Key, data: FederatedSource
    ):
        """`length` rounds and one evaluation: (new state, Segment of NumPy arrays). The state is donated."""
        self.longest = max(self.longest, length)
        state, segment = self._run(
            self._segment(), state, self._given(length), root, data=data
        )
        found = jax.device_get(segment)
        of_seeds = (slice(None),) * int(self.spec.num_seeds is not None)
        rounds, faults = jax.tree.map(
            lambda leaf: leaf[*of_seeds, :length], (found.rounds, found.faults)
        )
        return state, Segment(rounds, faults, found.scores)

    def _given(self, length: int) -> Array:
        """A number of rounds as an argument of the program; with seeds, for each of them."""
        seeds = () if self.spec.num_seeds is None else (self.spec.num_seeds,)
        return place(self.spec.layout, np.full(seeds, length, np.int32))

    def _segment(self, trains: bool = True, longest: int | None = None) -> Function:
        """A segment of as many rounds as its argument says, or of none."""
        spec, at_most = (
            self.spec,
            max(ROUNDS, 1 << ((longest or self.longest) - 1).bit_length()),
        )

        def segment(
            state: SimulationState,
            length: Array,
            root: Key,
            parts: Parts,
            data: FederatedSource,
        ):
            def round_of(state: SimulationState) -> tuple[SimulationState, Any]:
                return one_round(
                    *parts, data, state, root, spec.layout, spec.records_loss
                )

            one = jax.jit(
                round_of, inline=True
            )  # traced once, for the shapes and for the loop
            rows = jax.tree.map(
                lambda leaf: jnp.zeros((at_most, *leaf.shape), leaf.dtype),
                jax.eval_shape(one, state)[1],
            )

            def body(
                index: Array, carry: tuple[SimulationState, Any]
            ) -> tuple[SimulationState, Any]:
                state, row = one(carry[0])
                put = functools.partial(
                    jax.lax.dynamic_update_index_in_dim, index=index, axis=0
                )
                return state, jax.tree.map(put, carry[1], row)

            if trains:
                state, rows = fori_loop(batch_max(length), body, (state, rows), at_most)
            scores = score_clients(
                parts.algorithm, spec.evaluations, data, state, root, spec.layout
            )
            rounds, faults = rows
            return state, Segment(rounds, faults, scores)

        name = "rounds" if trains else "evaluation", at_most
        return Function(
            name, segment, (STATE_BY_CLIENT, _NO), (STATE_BY_CLIENT, _NO), donates=True
        )

    def working_bytes(
        self, state: SimulationState, root: Key, data: FederatedSource
    ) -> int:
        """Bytes that a segment needs on each device besides arguments and results, according to the compiler."""
        compiled = self._compile(
            self._segment(), (state, self._given(1), root, self._placed, data)
        )
        return getattr(compiled.memory_analysis(), "temp_size_in_bytes", 0)

    def start_fingerprint(
        self, root: Key, data: FederatedSource, begin: PyTree | None = None
    ) -> str:
        """A hash of the program of `start`, which initializes all states. Call it before `start`."""
        args = (begin, root, self._placed, data)
        return program_hash(self._lower(self._start(begin), args))

    def segment_fingerprint(
        self, state: SimulationState, root: Key, data: FederatedSource
    ) -> str:
        """A hash of the program of a segment, which includes its schedules, models and loops, but not its length."""
        args = state, self._given(1), root, self._placed, data
        return program_hash(self._lower(self._segment(longest=ROUNDS), args))

    def traced(self, trains: bool, root: Key, data: FederatedSource) -> jax.stages.Traced:
        """Trace a segment, or its evaluation alone, for shapes (`Layout.shapes`), on devices that need not exist."""
        args = root, self.spec.layout.shapes(self.parts), data
        start = self.traced_start(root, data)
        with self._traced():
            length = self.spec.layout.shapes(jax.ShapeDtypeStruct(root.shape, jnp.int32))
            args = self._shapes(start.out_info.state), length, *args
            return self._jitted(self._segment(trains), args).trace(*args)

    def traced_start(self, root: Key, data: FederatedSource) -> jax.stages.Traced:
        """Trace the start for shapes, as `traced` does a segment."""
        args = None, root, self.spec.layout.shapes(self.parts), data
        with self._traced():
            return self._jitted(self._start(None), args).trace(*args)

    def values(self) -> dict[str, Any]:
        """The floats that programs take as arguments, by name; long arrays as a hash."""
        arrays = {
            name: np.asarray(as_numbers(value), float)
            for name, value in values_of(self.parts).items()
        }
        return {
            name: a.tolist() if a.size <= WRITTEN_OUT else _hash(a.tobytes())
            for name, a in arrays.items()
        }

    def _run(self, function: Function, *args: Any, data: FederatedSource) -> Any:
        arguments = (*args, self._placed, data)
        compiled = self._compile(function, arguments)
        with (
            jax.debug_nans(False),
            jax.debug_infs(False),
        ):  # records have nan for unknown values
            return compiled(*arguments)

    @contextlib.contextmanager
    def _traced(self) -> Iterator[None]:
        """Trace in the mode of the spec, whenever and in whatever thread that is."""
        with traced_for(self.spec.mode.platform), reversible(self.spec.mode.reversible):
            yield

    @contextlib.contextmanager
    def _timed(self, function: Function) -> Iterator[None]:
        begin = time.perf_counter()
        with self.announce(function.name):
            yield
        self.compile_seconds += time.perf_counter() - begin

    @contextlib.contextmanager
    def _lock(self, function: Function) -> Iterator[None]:
        """Hold the lock of the shared functions."""
        if not self.shared.lock.acquire(blocking=False):
            with self._timed(function):
                self.shared.lock.acquire()
        try:
            yield
        finally:
            self.shared.lock.release()

    def _lower(self, function: Function, args: tuple[Any, ...]) -> jax.stages.Lowered:
        """Trace a function for arguments of these shapes; the trace is kept until it is compiled."""
        signature, shared = _signature(function.name, args), self.shared
        with self._lock(function):
            if signature not in shared.lowered:
                if (
                    function.donates
                ):  # by shapes, so that a trace before the start has the same text
                    args = (self._shapes(args[0]), *args[1:])
                with self._traced(), self._timed(function):
                    shared.lowered[signature] = self._jitted(function, args).lower(*args)
            return shared.lowered[signature]

    def _jitted(self, function: Function, args: tuple[Any, ...]) -> Any:
        """Jit a function over devices and seeds for arguments like these, and count its traces."""
        shared, spec = self.shared, self.spec

        def counted(*args: Any) -> Any:
            shared.num_traces += 1
            return function.call(*args)

        *front, _, _, data = args
        takes = (*function.takes, _NO, _NO, is_by_client(data))
        spread_function = spread(counted, spec.layout, takes, function.gives)
        if spec.num_seeds is not None:
            of_parts = jax.tree.unflatten(
                spec.parts, [0 if by_seed else None for by_seed in spec.by_seed]
            )
            axes = (*(0,) * (len(front) + 1), of_parts, None)  # seeds share the data
            spread_function = jax.vmap(spread_function, in_axes=axes)
        return jax.jit(spread_function, donate_argnums=(0,) if function.donates else ())

    def _compile(self, function: Function, args: tuple[Any, ...]) -> jax.stages.Compiled:
        signature, shared = _signature(function.name, args), self.shared
        with self._lock(function):
            if signature in shared.compiled:
                shared.compiled[signature] = shared.compiled.pop(
                    signature
                )  # the newest in use
            else:
                lowered = self._lower(function, args)
                with self._timed(function):
                    self._keep(
                        signature,
                        lowered.compile(compiler_options=self._options(function)),
                    )
            return shared.compiled[signature]

    def _options(self, function: Function) -> dict[str, Any]:
        return dict(self.spec.compiler) | (
            options_for_one_run(self.spec.layout.platform) if function.quick else {}
        )

    def _keep(self, signature: Any, compiled: jax.stages.Compiled) -> None:
        """Keep a compiled function; drop the least recently used one beyond `FUNCTIONS_KEPT`."""
        shared = self.shared
        shared.compiled[signature] = compiled
        del shared.lowered[signature]
        if len(shared.compiled) > FUNCTIONS_KEPT:
            del shared.compiled[next(iter(shared.compiled))]


def as_numbers(leaf: Array) -> Array:
    """A leaf as numbers; of a key, its data."""
    return jax.random.key_data(leaf) if is_key(leaf) else leaf


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _signature(name: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    leaves, structure = jax.tree.flatten(args)
    return (
        name,
        structure,
        tuple(
            (leaf.shape, leaf.dtype, getattr(leaf, "weak_type", False)) for leaf in leaves
        ),
    )


@functools.lru_cache(maxsize=SPECS_KEPT)
def _shared(spec: Spec) -> Shared:
    del spec
    return Shared()


def program(
    algorithm: FederatedAlgorithm,
    policy: ParticipationPolicy,
    clock: Clock,
    evaluations: Sequence[str],
    layout: Layout,
    num_seeds: int | None = None,
    by_seed: Collection[str] = (),
    records_loss: bool = False,
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
        records_loss,
        numerics(),
        mode,
        compiler,
    )
    return Program(spec, _shared(spec), parts)
