"""Record of a run, what was asked for, and the hash of its program, what is computed.

Runs whose records have an equal `results.records.identity` are the same run. A record describes parts by constructor
and values; nothing is traced for it unless a part or the data have a user's own code, or a closure, which only the
program tells apart. The hash is of the program's canonical text, traced for one CPU device, a fixed chunk and no axis
of seeds, so that it depends on neither machine nor names.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import operator
import warnings
import weakref
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fedjax_srp.base import (
    TRAINING_LOSS,
    Array,
    Clock,
    FederatedSource,
    Key,
    Method,
    member_of,
    name_of_data,
)
from fedjax_srp.driver.given import checksum
from fedjax_srp.driver.prepare import Prepared, Request, prepare
from fedjax_srp.driver.programs import Kept, as_numbers
from fedjax_srp.driver.settings import Settings
from fedjax_srp.parts.checks import ArgumentError
from fedjax_srp.parts.description import describe, describe_data, own_code
from fedjax_srp.results.history import History
from fedjax_srp.results.json_files import jsonable
from fedjax_srp.results.records import (
    LIMITS,
    MACHINE,
    PROGRAM,
    UNKNOWN,
    VERSION,
    identity,
    versions,
    without,
)
from fedjax_srp.rounds.sharding import lay_out
from fedjax_srp.xla.program_text import calls_host, program_hash

JAX_SETTINGS = {  # name -> default, change results
    "jax_enable_x64": False,
    "jax_default_matmul_precision": None,
    "jax_default_prng_impl": "threefry2x32",
    "jax_threefry_partitionable": True,
    "jax_random_seed_offset": 0,
    "jax_high_dynamic_range_gumbel": False,
}
_SCHEDULE = ("eval_every", "eval_first", "eval_last")
CODE = "code"  # key of a program without a hash: the names of its own code
CALLS_HOST = "it calls the host"
ROUNDS = "rounds"  # key of the hash of start and rounds
_CHUNK = 8
_hashes = Kept(256)
_checksums: weakref.WeakKeyDictionary[Any, tuple[list[Any], str]] = (
    weakref.WeakKeyDictionary()
)  # data -> its leaves


def program_of(run: Prepared) -> dict[str, str]:
    """Return {"rounds": hash of start and rounds, evaluation: its hash, ...}; or {"unknown": the reason}.

    Parts that differ in floats alone share hashes: these are arguments of the program. A program that calls the host
    has none, since its text lacks the host's functions. Nothing is compiled or run.
    """
    costs = {} if run.costs is None else {"costs": _hash_of(describe(run.costs))}
    parts = run.of_seed(0), run.policy, run.fitted_clock

    def hashes() -> dict[str, str]:
        try:
            return _trace(run)
        except Exception as error:  # results of a run must not be lost
            return {UNKNOWN: f"it cannot be traced for a CPU: {type(error).__name__}"}

    return _hashes.get(hashes, (parts, run.data), run.evaluations) | costs


def program_of_request(request: Request) -> dict[str, str]:
    """Return the hashes of a request's program; parts and data that differ in values alone are prepared once."""
    parts = request.algorithm, request.participation, request.clock, request.data
    of_costs = data_checksum(request.data)  # clocks may count the work on the examples
    hashes = lambda: program_of(prepare(request))
    return _hashes.get(hashes, parts, of_costs, request.settings.evaluations)


def _trace(run: Prepared) -> dict[str, str]:
    layout = lay_out(jax.local_devices(backend="cpu")[:1], _CHUNK, run.layout.num_clients)
    records_loss = TRAINING_LOSS in run.policy.needs
    bare = run._replace(
        algorithm=run.of_seed(0),
        layout=layout,
        evaluations=(),
        settings=dataclasses.replace(run.settings, record_loss=records_loss),
        num_seeds=None,
        values={},
    )
    shapes = layout.shapes((jax.eval_shape(lambda: jax.random.key(0)), run.data))
    start = bare.program().traced_start(*shapes).lower()
    rounds = bare.traced().lower()
    lowered = {ROUNDS: [start, rounds]}
    for name in run.evaluations:
        lowered[name] = [bare._replace(evaluations=(name,)).traced(trains=False).lower()]
    found = {}
    for name, programs in lowered.items():
        if any(calls_host(program.as_text()) for program in programs):
            return {UNKNOWN: CALLS_HOST}
        found[name] = "".join(map(program_hash, programs))
    return found


def _hash_of(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def asked(
    method: Method,
    clock: Clock,
    evaluations: Sequence[str],
    settings: Settings,
    key: Key,
) -> dict[str, Any]:
    """Return the facts of a record that need no data, see `results.records`."""
    needs_loss = TRAINING_LOSS in method.participation.needs
    return {
        "method": {
            "name": method.name,
            "algorithm": describe(method.algorithm),
            "participation": describe(method.participation),
        },
        "clock": describe(clock),
        "schedule": {name: getattr(settings, name) for name in (*LIMITS, *_SCHEDULE)},
        "evaluations": list(evaluations),
        "record_loss": settings.record_loss or needs_loss,
        "start": None,
        "key": words_of(key),
        "jax": {
            name: getattr(jax.config, name)
            for name, default in JAX_SETTINGS.items()
            if getattr(jax.config, name) != default
        },
        VERSION: versions(),
        PROGRAM: None,
    }


def words_of(key: Key) -> list[int]:
    """Return the words of a key, [0, n] for `jax.random.key(n)`."""
    return np.asarray(jax.random.key_data(key)).reshape(-1).tolist()


def of_data(data: FederatedSource) -> dict[str, Any]:
    """Return the facts of a record about data."""
    facts = {
        "name": name_of_data(data),
        "num_clients": data.num_clients,
        "checksum": data_checksum(data),
        "options": member_of(data, "options"),
    }
    class_names = member_of(data, "class_names")
    if class_names is not None:
        facts["class_names"] = list(class_names)
    return facts


def records(run: Prepared, root: Key) -> list[dict[str, Any]]:
    """Return the record of each seed of a run, for `History.config`, see `results.records`."""
    data = of_data(run.data)
    start = None if run.start is None else checksum(run.start)
    described = [describe(run.algorithm), describe(run.policy), describe(run.clock)]
    own = [*own_code([described, describe_data(run.data)])]
    program = with_names(program_of(run), own) if own else None
    machine = {
        "device": run.layout.devices[0].device_kind,
        "num_devices": run.layout.num_devices,
        "chunk_size": run.layout.chunk_size,  # the default follows from the devices
        "large_chunk": run.layout.large_chunk,
        "shard_data": run.settings.shard_data,
        "num_seeds": run.num_seeds,
    }
    found = []
    for seed in range(run.num_seeds or 1):
        method = Method(run.name, run.of_seed(seed), run.policy)
        key = root if run.num_seeds is None else root[seed]
        of_seed = asked(method, run.clock, run.evaluations, run.settings, key)
        of_seed |= {"data": data, "start": start, PROGRAM: program, MACHINE: machine}
        found.append(jsonable(of_seed))
    return found


def with_names(program: Mapping[str, str], own: Iterable[str]) -> dict[str, Any]:
    """Return the hashes of a program; of one without a hash, the reason and the names of its own code."""
    return {**program, CODE: sorted({*own})} if UNKNOWN in program else dict(program)


def identify_runs(run: Prepared, root: Key) -> list[dict[str, str]]:
    """Return {"run": hash} for each seed: eight hexadecimal digits of what is computed, whatever is evaluated of it.

    The dicts are empty if the program has no hash.
    """
    judged = [f"{PROGRAM}.{name}" for name in run.evaluations]
    left_out = ("schedule", "evaluations", "record_loss", *judged)
    found = []
    for of_seed in records(run, root):
        made = without(identity(of_seed), *left_out)
        is_known = UNKNOWN not in (made[PROGRAM] or {})
        content = json.dumps(made, sort_keys=True).encode()
        found.append({"run": f"{zlib.crc32(content):08x}"} if is_known else {})
    return found


def data_checksum(data: FederatedSource) -> str:
    """Checksum of data, eight hexadecimal digits: of their arrays, and of all that is static."""
    described = json.dumps(jsonable(describe_data(data)), sort_keys=True)
    arrays = int(_checksum_of_arrays(data), 16)
    return f"{zlib.crc32(described.encode(), arrays):08x}"


def check_same_data(data: FederatedSource, history: History, effect: str) -> None:
    """Raise an ArgumentError if the run had another number of clients; warn of an effect if it had other data.

    The warning is of the line that calls a checked public function, which calls this one.
    """
    recorded = history.config.get("data") or {}
    remedy = "give the data of the run: its clients, in the same order"
    num_clients = recorded.get("num_clients", data.num_clients)
    if num_clients != data.num_clients:
        problem = (
            f"has {data.num_clients} clients, and the run of `history` had {num_clients}"
        )
        raise ArgumentError("data", data, problem, remedy)
    checksum = data_checksum(data)
    of_run = recorded.get("checksum", checksum)
    if of_run != checksum:
        warnings.warn(
            f"data: have checksum {checksum}, and those of the run of `history` had {of_run}, so {effect}; {remedy}",
            stacklevel=4,
        )


def _checksum_of_arrays(data: FederatedSource) -> str:
    """Checksum of the data's arrays, or of this process's shards of them."""
    leaves = jax.tree.leaves(data)
    # a user's class may call others equal, or have got other arrays
    with contextlib.suppress(TypeError):  # not hashable, or no weak references
        known, found = _checksums.get(data, ([], ""))
        if found and len(known) == len(leaves) and all(map(operator.is_, known, leaves)):
            return found
    total = 0
    for leaf in leaves:
        parts = [leaf]
        if not getattr(leaf, "is_fully_addressable", True):
            parts = [shard.data for shard in leaf.addressable_shards]
        for part in parts:
            total = zlib.crc32(_bits(part).reshape(-1).view(np.uint8).data, total)
    if all(isinstance(leaf, jax.Array) for leaf in leaves):
        with contextlib.suppress(TypeError):
            _checksums[data] = leaves, f"{total:08x}"
    return f"{total:08x}"


def _bits(leaf: Array) -> np.ndarray:
    return np.ascontiguousarray(as_numbers(leaf))


def fingerprint(run: Prepared, root: Key) -> dict[str, Any]:
    """Return the facts that a resumed run must share: those of its record that tell runs apart, machine and JAX.

    `simulate` adds the hashes of its own programs, those that go on. So two keys mean something else than in a record:
    `version` is that of JAX alone, a string, and `program.rounds` is the hash of a segment of rounds with all its
    evaluations, without the start.
    """
    found, *_ = records(run, root)
    known = without(identity(found), PROGRAM)
    key = _bits(root).tolist()  # of every seed
    return known | {"key": key, MACHINE: found[MACHINE], VERSION: jax.__version__}
