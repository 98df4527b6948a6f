"""Rounds whose clients' states lie in a file: those of one cohort are in memory, and the next one's are read ahead.

A round is selected first, by a program without states. The host reads the states of its clients, the program of a
segment runs the round on them, and the host writes them back. A client that has not taken part has no bytes in the
file: its state is made from the server's first one, as at the start of a run in memory.
"""

from __future__ import annotations

from concurrent import futures
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_srp.base import Array, Cohort, FederatedSource, Key, PyTree
from fedjax_srp.contract.checks import check_cohorts
from fedjax_srp.driver.prepare import Prepared
from fedjax_srp.driver.programs import (
    START_BY_CLIENT,
    STATE_BY_CLIENT,
    Function,
    Parts,
    Program,
    Segment,
    Spec,
    as_numbers,
)
from fedjax_srp.parts.checks import is_key
from fedjax_srp.results.atomic import writable
from fedjax_srp.results.errors import writing
from fedjax_srp.rounds.first_state import Start, first_state, init_clients
from fedjax_srp.rounds.round import SimulationState, select_cohort
from fedjax_srp.rounds.scoring import score_clients
from fedjax_srp.rounds.sharding import Held, Layout

FILE = "states.npy"
JUDGED_BYTES = 64 * 2**20  # of the states that an evaluation holds at once


class StateFile:
    """States of clients, a row each, in a file of NumPy; rows that were never written take no space.

    Attributes:
        row: type of a row, with a field for each array of a state.
        is_known: (num_clients,) bool: True for clients whose rows were written.
    """

    def __init__(self, path: Path, num_clients: int, state: PyTree):
        """Make the file, for clients whose states have the shapes of this one."""
        self._path = path
        self._types = [leaf.dtype for leaf in jax.tree.leaves(state)]
        fields = []
        for place, leaf in jax.tree_util.tree_leaves_with_path(state):
            name = jax.tree_util.keystr(place) or "state"
            fields.append((name, _stored_type(leaf.dtype), leaf.shape))
        self.row = np.dtype(fields)
        self.is_known = np.zeros(num_clients, bool)
        with writing(path.parent):
            empty = np.lib.format.open_memmap(path, "w+", self.row, (num_clients,))
        self._begin = empty.offset

    def read(self, client_ids: np.ndarray) -> np.ndarray:
        """Return copies of rows; those of unknown clients are zeros."""
        return np.load(self._path, mmap_mode="r")[client_ids]

    def write(self, client_ids: np.ndarray, rows: np.ndarray) -> None:
        """Write rows, by plain writes: a full disk then raises an `OSError`, where a map ends the process."""
        with writing(self._path.parent), self._path.open("r+b") as file:
            for client_id, row in zip(client_ids.tolist(), rows, strict=True):
                file.seek(self._begin + client_id * self.row.itemsize)
                file.write(row.tobytes())
        self.is_known[client_ids] = True

    def packed(self, leaves: list[np.ndarray]) -> np.ndarray:
        """Return rows from the arrays of states, (number, ...) each."""
        rows = np.empty(len(leaves[0]), self.row)
        for name, leaf in zip(self.row.names or (), leaves, strict=True):
            rows[name] = leaf.view(_stored_type(leaf.dtype))
        return rows

    def unpacked(self, rows: np.ndarray) -> list[np.ndarray]:
        """Undo `packed`."""
        pairs = zip(self.row.names or (), self._types, strict=True)
        return [np.ascontiguousarray(rows[name]).view(dtype) for name, dtype in pairs]


def _stored_type(dtype: np.dtype) -> np.dtype:
    """The type of an array in the file; bfloat16 and the like, which NumPy lacks, as unsigned integers."""
    return np.dtype(f"u{dtype.itemsize}") if dtype.kind == "V" else dtype


class Places(NamedTuple):
    """Rows on the devices for some clients, `capacity` on each device."""

    client_ids: np.ndarray  # ascending
    capacity: int
    of_clients: np.ndarray  # the place of each among the rows of all devices
    # (num_devices * capacity,) int32: row of each among all of its owner; 0: none
    local_rows: np.ndarray
    row_of: np.ndarray  # (num_devices * owned,) int32: as in `Held`


def places_of(layout: Layout, client_ids: np.ndarray, capacity: int = 0) -> Places:
    """Places for clients on their owners; by default a power of two on each device, so that few programs compile."""
    owner = client_ids % layout.num_devices
    row = client_ids // layout.num_devices
    most = np.bincount(owner, minlength=1).max(initial=1)
    capacity = capacity or min(1 << (int(most) - 1).bit_length(), layout.owned)
    of_device = np.zeros_like(client_ids)
    for device in range(layout.num_devices):
        is_owner = owner == device
        of_device[is_owner] = np.arange(is_owner.sum())
    of_clients = owner * capacity + of_device
    local_rows = np.zeros(layout.num_devices * capacity, np.int32)
    local_rows[of_clients] = row
    row_of = np.full(layout.num_devices * layout.owned, capacity, np.int32)
    row_of[owner * layout.owned + row] = of_device
    return Places(client_ids, capacity, of_clients, local_rows, row_of)


# ---- functions that are compiled ----------------------------------------------------------------------------------


class _Selected(NamedTuple):
    """The clients of a round."""

    client_ids: Array  # (pool,) int32
    size: Array  # () int32


def _start(
    spec: Spec, begin: PyTree | None, root: Key, parts: Parts, data: FederatedSource
) -> Start:
    return first_state(*parts, root, data, spec.layout, begin, keeps_clients=False)


def _select(
    spec: Spec, state: SimulationState, root: Key, parts: Parts, data: FederatedSource
) -> tuple[_Selected, _Selected]:
    """The clients of the next round, and a guess for the one after it, which learns nothing from the next."""
    selection = select_cohort(parts.policy, parts.clock, state, root)
    cohort = selection.cohort
    if cohort.jobs is not None or cohort.next_ids is not None:
        raise ValueError(
            f"states_dir with participation {parts.policy.name!r}: others than the participants of a round begin jobs "
            "in it; leave out states_dir, or use a policy whose rounds do not overlap, such as 'uniform'"
        )
    later = state._replace(
        policy=selection.policy, clock=selection.clock, round=state.round + 1
    )
    after = select_cohort(parts.policy, parts.clock, later, root).cohort
    return (
        _Selected(cohort.client_ids, cohort.size),
        _Selected(after.client_ids, after.size),
    )


def _first(
    spec: Spec,
    capacity: int,
    server: PyTree,
    rows: Array,
    root: Key,
    parts: Parts,
    data: FederatedSource,
) -> PyTree:
    """The states of `capacity` clients on each device before their first round."""
    return init_clients(parts.algorithm, server, root, data, spec.layout, rows)


def _judge(
    spec: Spec,
    at_once: int,
    state: SimulationState,
    first: Array,
    root: Key,
    parts: Parts,
    data: FederatedSource,
) -> dict[str, tuple[Array, Array]]:
    """Scores of `at_once` clients with neighbouring ids; of others, zeros."""
    num_clients = spec.layout.num_clients
    ids = jnp.minimum(first + jnp.arange(at_once, dtype=jnp.int32), num_clients - 1)
    size = jnp.minimum(num_clients - first, at_once)
    cohort = Cohort(ids, size, jnp.ones_like(ids), jnp.int32(0))
    algorithm = parts.algorithm
    return score_clients(
        algorithm, spec.evaluations, data, state, root, spec.layout, cohort
    )


_NO: Any = False
_YES: Any = True
_START = Function("start", _start, (_NO,), START_BY_CLIENT, quick=True)
_SELECT = Function("selection", _select, (STATE_BY_CLIENT,), _NO)
_FIRST = Function("first states", _first, (_NO, _YES), _YES)


class StoredProgram(Program):
    """The program of a simulation whose clients' states lie in a file."""

    def __init__(self, run: Prepared):
        _check(run)
        of_memory = run.program()
        super().__init__(of_memory.spec, of_memory.parts)
        assert run.settings.states_dir is not None
        self._folder = writable(run.settings.states_dir, "states_dir")
        if any(self._folder.iterdir()):
            raise ValueError(
                f"states_dir={str(self._folder)!r} is not empty; give a new folder, or remove that one"
            )
        self._layout = run.layout
        self._by_capacity: dict[int, Program] = {}
        self._reader = futures.ThreadPoolExecutor(1)
        self._ahead: futures.Future[Any] | None = None

    def start(
        self,
        root: Key,
        data: FederatedSource,
        trains: bool = False,
        begin: PyTree | None = None,
    ) -> Start:
        """The state before the first round, without clients; their file is made."""
        start = self.run(_START, begin, root=root, data=data)
        # A round donates its state.
        self._server = jax.tree.map(jnp.copy, start.state.server)
        one = places_of(self._layout, np.zeros(1, np.int64))
        self._example = self._first_states(one, root, data)
        shapes = jax.tree.map(lambda leaf: as_numbers(leaf)[0], self._example)
        self.file = StateFile(self._folder / FILE, self._layout.num_clients, shapes)
        return start

    def segment(
        self, length: int, state: SimulationState, root: Key, data: FederatedSource
    ) -> tuple[SimulationState, Segment]:
        """`length` rounds, one by one, and one evaluation, of some clients at a time."""
        segments = []
        for _ in range(length):
            state, segment = self._round(state, root, data)
            segments.append(segment)
        rounds, faults = jax.tree.map(
            lambda *leaves: np.concatenate(leaves),
            *[(segment.rounds, segment.faults) for segment in segments],
        )
        return state, Segment(rounds, faults, self._scores(state, root, data))

    def _round(
        self, state: SimulationState, root: Key, data: FederatedSource
    ) -> tuple[SimulationState, Segment]:
        selected, guess = jax.device_get(self.run(_SELECT, state, root=root, data=data))
        if self._ahead is not None:
            self._ahead.result()
        places = places_of(self._layout, self._ids(selected))
        held = self._held(places, root, data)
        expected = self._ids(guess)
        expected = expected[self.file.is_known[expected]]
        # It stays in the system's cache: what a round has written meanwhile is read anew.
        self._ahead = self._reader.submit(self.file.read, expected)
        program = self._by_capacity.get(places.capacity)
        if program is None:
            program = Program(self.spec._replace(evaluations=()), self.parts)
            program.announce = self.announce
            self._by_capacity[places.capacity] = program
        compiled_before = program.compile_seconds
        rounds_before = np.array(state.rounds_taken)
        state, segment = program.segment(1, state._replace(clients=held), root, data)
        self.compile_seconds += program.compile_seconds - compiled_before
        self._check_selection(places, rounds_before, state, segment)
        rows = self._on_host(state.clients.rows)[places.of_clients]
        self.file.write(places.client_ids, rows)
        return state._replace(clients=()), segment

    def _check_selection(
        self,
        places: Places,
        rounds_before: np.ndarray,
        state: SimulationState,
        segment: Segment,
    ) -> None:
        """Raise an error if a round had other clients than those whose states were read.

        The round selects them again, in another program: a last digit of a time could differ.
        """
        took_part = np.flatnonzero(np.asarray(state.rounds_taken) != rounds_before)
        if np.array_equal(took_part, places.client_ids):
            return
        number = int(segment.rounds.round[0]) + 1
        check_cohorts(self.parts.policy, segment.faults, number)
        raise RuntimeError(
            f"states_dir={str(self._folder)!r}: round {number} had other clients than those whose states were read; "
            "leave out states_dir"
        )

    def _ids(self, selected: _Selected) -> np.ndarray:
        """The participants by id; ids of no client are left to the check of cohorts."""
        ids = np.unique(selected.client_ids[: max(int(selected.size), 0)])
        return ids[(ids >= 0) & (ids < self._layout.num_clients)]

    def _scores(
        self, state: SimulationState, root: Key, data: FederatedSource
    ) -> dict[str, tuple[Any, Any]]:
        """As those of a segment."""
        scores: dict[str, tuple[Any, Any]] = {}
        if not self.spec.evaluations:
            return scores
        layout = self._layout
        window = layout.for_evaluation().window
        windows = JUDGED_BYTES // (window * self.file.row.itemsize)
        everybody = -(-layout.owned * layout.num_devices // window)
        at_once = window * min(max(windows, 1), everybody)
        judge = Function("evaluation", _judge, (STATE_BY_CLIENT, _NO), _NO, (at_once,))
        for first in range(0, layout.num_clients, at_once):
            ids = np.arange(first, min(first + at_once, layout.num_clients))
            places = places_of(layout, ids, -(-at_once // layout.num_devices))
            held = self._held(places, root, data)
            of_some = self.run(
                judge,
                state._replace(clients=held),
                jnp.int32(first),
                root=root,
                data=data,
            )
            for name, pair in jax.device_get(of_some).items():
                if name not in scores:
                    scores[name] = tuple(map(np.zeros_like, pair))
                for whole, part in zip(scores[name], pair, strict=True):
                    whole[ids] = part[ids]
        return scores

    def _held(self, places: Places, root: Key, data: FederatedSource) -> Held:
        """The states of clients on their owners: from the file, or as before their first round."""
        ids = places.client_ids
        rows = np.zeros(len(places.local_rows), self.file.row)
        rows[places.of_clients] = self.file.read(ids)
        is_new = ~self.file.is_known[ids]
        if is_new.any():
            first = self._on_host(self._first_states(places, root, data))
            new = places.of_clients[is_new]
            rows[new] = first[new]
        sharding = self._layout.sharding(by_client=True)

        def placed(leaf: np.ndarray, kind: Array) -> Array:
            array = jax.device_put(leaf, sharding)
            if is_key(kind):
                return jax.random.wrap_key_data(array, impl=jax.random.key_impl(kind))
            return array

        kinds, structure = jax.tree.flatten(self._example)
        leaves = map(placed, self.file.unpacked(rows), kinds)
        states = jax.tree.unflatten(structure, leaves)
        return Held(states, jax.device_put(places.row_of, sharding))

    def _first_states(self, places: Places, root: Key, data: FederatedSource) -> PyTree:
        rows = jax.device_put(places.local_rows, self._layout.sharding(by_client=True))
        first = _FIRST._replace(static=(places.capacity,))
        return self.run(first, self._server, rows, root=root, data=data)

    def _on_host(self, states: PyTree) -> np.ndarray:
        """Rows as in the file."""
        leaves = [np.asarray(as_numbers(leaf)) for leaf in jax.tree.leaves(states)]
        return self.file.packed(leaves)


def _check(run: Prepared) -> None:
    """Raise a ValueError for what a run with states in a file cannot do."""
    settings = run.settings
    algorithm = f"algorithm {run.algorithm.name!r}"
    processes = {device.process_index for device in run.layout.devices}
    refusals = {
        f"{algorithm}, whose clients keep no state": not run.sizes.client.state,
        f"{algorithm}, which has a pass over all clients before the first round": bool(
            run.algorithm.start_phases
        )
        and run.start is None,
        "checkpoint_dir": settings.checkpoint_dir is not None,
        "keep_clients": settings.keep_clients,
        "several seeds in one program": run.num_seeds is not None,
        "devices of several processes": len(processes) > 1,
    }
    for what, is_asked in refusals.items():
        if is_asked:
            raise ValueError(
                f"states_dir={str(settings.states_dir)!r} does not go with {what}; leave out one of them"
            )
