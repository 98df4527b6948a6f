"""Record of a run, what was asked for, and the hash of its program, what is computed.

Runs with equal records are the same run. A record describes parts by constructor and values; nothing is traced for it
unless a part or the data have a user's own code, or a closure, which only the program tells apart. The hash is of the
program's canonical text, traced for one CPU device, a fixed chunk and no axis of seeds, so that it depends on neither
machine nor names.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import operator
import weakref
import zlib
from typing import Any

import jax
import numpy as np

from fedjax_srp.base import (
    TRAINING_LOSS,
    Array,
    FederatedSource,
    Key,
    member_of,
    name_of_data,
)
from fedjax_srp.driver.given import checksum
from fedjax_srp.driver.prepare import Prepared
from fedjax_srp.driver.programs import as_numbers, numerics
from fedjax_srp.parts.description import describe, describe_data, own_code
from fedjax_srp.parts.part import type_of
from fedjax_srp.results.json_files import jsonable
from fedjax_srp.rounds.sharding import lay_out
from fedjax_srp.xla.program_text import calls_host, program_hash

_SCHEDULE = ("eval_every", "eval_first", "eval_last")
LIMITS = ("num_rounds", "time_limit", "target")  # may differ when a run is extended
UNKNOWN = "unknown"  # key of a program without a hash: the reason
CALLS_HOST = "it calls the host"
ROUNDS = "rounds"  # key of the hash of start and rounds
_CHUNK = 8
_MAX_HASHES = 256
_hashes: dict[Any, dict[str, str]] = {}  # by structure and shapes, oldest first
_checksums: weakref.WeakKeyDictionary[Any, tuple[list[Any], str]] = (
    weakref.WeakKeyDictionary()
)  # data -> its leaves


def program_of(run: Prepared) -> dict[str, str]:
    """Return {"rounds": hash of start and rounds, evaluation: its hash, ...}; or {"unknown": the reason}.

    Parts that differ in floats alone share hashes: these are arguments of the program. A program that calls the host
    has none, since its text lacks the host's functions. Nothing is compiled or run.
    """
    costs = {} if run.costs is None else {"costs": _hash_of(describe(run.costs))}
    parts = (run.of_seed(0), run.policy, run.fitted_clock), run.data
    leaves, structure = jax.tree.flatten(parts)
    types = (*map(type_of, leaves),)
    key = structure, types, run.evaluations, numerics()
    if key not in _hashes:
        try:
            _hashes[key] = _trace(run)
        except Exception as error:  # results of a run must not be lost
            reason = f"it cannot be traced for a CPU: {type(error).__name__}"
            _hashes[key] = {UNKNOWN: reason}
        while len(_hashes) > _MAX_HASHES:
            del _hashes[next(iter(_hashes))]
    return _hashes[key] | costs


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


def code_of(run: Prepared) -> list[str]:
    """Return the names of the run's own code: classes and functions of a user, closures and other objects."""
    described = [run.description(), describe(run.clock), describe_data(run.data)]
    return sorted({*own_code(described)})


def facts(run: Prepared) -> dict[str, Any]:
    """Return what was asked for and what differs between machines, for `History.config`."""
    settings = run.settings
    found = {
        "name": run.name,
        "algorithm": run.algorithm.name,
        "participation": run.policy.name,
        "clock": run.clock.name,
        "dataset": name_of_data(run.data),
        "num_clients": run.layout.num_clients,
        "options": jsonable(run.options()),
        "method": jsonable(run.description()),
        "clock_options": jsonable({"name": run.clock.name} | describe(run.clock)),
        "dataset_options": jsonable(member_of(run.data, "options")),
        "data_checksum": data_checksum(run.data),
        "unknown": [],
        **{name: getattr(settings, name) for name in (*LIMITS, *_SCHEDULE)},
        "evaluations": list(run.evaluations),
        "device": run.layout.devices[0].device_kind,
        "num_devices": run.layout.num_devices,
        "chunk_size": run.layout.chunk_size,  # the default follows from the devices
        "large_chunk": run.layout.large_chunk,
        "shard_data": settings.shard_data,
        "record_loss": settings.record_loss,
    }
    if run.start is not None:
        found["start_checksum"] = checksum(run.start)
    if own := code_of(run):
        found["program"] = program_of(run)
        found["unknown"] = own if UNKNOWN in found["program"] else []
    return found


def identify_runs(run: Prepared, root: Key) -> list[dict[str, str]]:
    """Return {"run": hash} for each seed: eight hexadecimal digits of parts, data, values, key and own code.

    The dicts are empty if the program has no hash.
    """
    keys = np.asarray(jax.random.key_data(root)).reshape(run.num_seeds or 1, -1)
    program = program_of(run) if code_of(run) else {}
    if UNKNOWN in program:
        return [{} for _ in keys]
    common = [
        describe(run.clock),
        data_checksum(run.data),
        program,
        None if run.start is None else checksum(run.start),
    ]
    found = []
    for seed, key in enumerate(keys):
        made = [run.description(seed), *common, key.tolist()]
        content = json.dumps(jsonable(made)).encode()
        found.append({"run": f"{zlib.crc32(content):08x}"})
    return found


def data_checksum(data: FederatedSource) -> str:
    """Checksum of data, eight hexadecimal digits: of their arrays, and of all that is static."""
    described = json.dumps(jsonable(describe_data(data)), sort_keys=True)
    arrays = int(_checksum_of_arrays(data), 16)
    return f"{zlib.crc32(described.encode(), arrays):08x}"


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
    """Facts that a resumed run must share: all but the number of rounds, the limits, and the folder of its data.

    `simulate` adds the hashes of its own programs, those that go on.
    """
    found = facts(run) | {"key": _bits(root).tolist(), "jax": jax.__version__}
    for name in ("program", *LIMITS):
        found.pop(name, None)
    options = found["dataset_options"] or {}  # the data have a checksum
    without_folder = {
        name: value for name, value in options.items() if name != "data_dir"
    }
    return found | {"dataset_options": without_folder}
