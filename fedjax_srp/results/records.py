"""The record of a run, `History.config`: what was asked for and, apart, how the machine ran it.

Its keys are

- `method`: `{"name", "algorithm", "participation"}`, parts by constructor, see `parts.description.describe`;
- `clock`: by constructor;
- `data`: `{"name", "num_clients", "checksum", "options"}`, and `class_names` where labels were numbered;
- `schedule`: rounds, evaluated rounds and limits, fields of `Settings`;
- `evaluations`: their names, the default one first; `record_loss`, whether the training loss is recorded too;
- `start`: checksum of a given start, or null;
- `key`: the words of the root key, [0, n] for `jax.random.key(n)`;
- `jax`: settings of JAX that change results and differ from their defaults; `version`: of the package and of JAX;
- `program`: hashes of own code, see `driver.record.program_of`, or null if there is none;
- `model`: the name and all options by which a command or a grid chose a model;
- `words`: method, policy, clock and options as they were given to a command or a grid;
- `machine`: device, chunks, and the seeds of one program.

Neither words nor machine tell runs apart, nor do version and limits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jax

from fedjax_srp._version import __version__
from fedjax_srp.results.json_files import differences

MACHINE = "machine"
VERSION = "version"
PROGRAM = "program"
MODEL = "model"
WORDS = "words"
UNKNOWN = "unknown"  # key of a program without a hash: the reason
# as far as readers rely on it
_OPTIONAL = dict | None
STRUCTURE = {
    "method": (
        type(None),
        {"name": str | None, "algorithm": _OPTIONAL, "participation": _OPTIONAL},
    ),
    "data": (
        type(None),
        {"name": str | None, "num_clients": int | None, "options": _OPTIONAL},
    ),
    "machine": (type(None), {"num_seeds": int | None}),
    "schedule": (type(None), {"num_rounds": int | None}),
    **dict.fromkeys(("clock", "jax", "version", "program"), _OPTIONAL),
    **dict.fromkeys(("model", "words"), _OPTIONAL),
    **dict.fromkeys(("key", "evaluations"), list | None),
}
LIMITS = ("num_rounds", "time_limit", "target")  # may differ when a run is extended


def versions() -> dict[str, str]:
    """Return the versions of the package and of JAX."""
    return {"fedjax_srp": __version__, "jax": jax.__version__}


def without(record: Mapping[str, Any], *paths: str) -> dict[str, Any]:
    """Return a record without some of its facts, given as dotted paths; there may be none."""
    left = dict(record)
    for path in paths:
        first, dot, rest = path.partition(".")
        if not dot:
            left.pop(first, None)
        elif isinstance(left.get(first), Mapping):
            left[first] = without(left[first], rest)
    return left


def identity(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts that tell runs apart: neither limits nor words, machine and version.

    Data have their checksum, and else their options but for their folder; a model has its constructor, and else the
    options by which it was chosen.
    """
    left_out = [MACHINE, WORDS, VERSION, *(f"schedule.{name}" for name in LIMITS)]
    is_loaded = _has(record, "data", "checksum")
    left_out.append("data.options" if is_loaded else "data.options.data_dir")
    of_algorithm = ("method", "algorithm")
    if _has(record, *of_algorithm, "model") or _has(
        record, *of_algorithm, "algorithm", "model"
    ):
        left_out.append(MODEL)
    return without(record, *left_out)


def _has(record: Any, *path: str) -> bool:
    for name in path:
        if not isinstance(record, Mapping) or name not in record:
            return False
        record = record[name]
    return True


def contradictions(
    ours: Mapping[str, Any], theirs: Mapping[str, Any]
) -> Iterator[tuple[str, Any, Any]]:
    """Yield (dotted name, our value, their value) of the facts that make two records those of two runs.

    Programs are compared under one version alone: another one may trace equal code to another text.
    """
    is_same_version = ours.get(VERSION) == theirs.get(VERSION)
    left_out = [] if is_same_version else [PROGRAM]
    yield from differences(
        *(without(identity(record), *left_out) for record in (ours, theirs))
    )
