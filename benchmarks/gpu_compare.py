"""Differences between the trained states of two programs, their bounds, and files that pass states on."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np


class Distance(NamedTuple):
    """Difference of two states."""

    absolute: float  # the largest of any number of the server
    of_move: float  # norm relative to that of the array's change by training, the largest of all arrays


# By the precision of products. On a CPU, three rounds of 100 clients of the MLP differed by 1e-5 and 0.006 in other
# chunks, and by 5e-5 and 0.04 with products rounded as in TF32: units of ReLU near zero switch.
BOUNDS = {"highest": Distance(1e-4, 0.03), "default": Distance(1e-3, 0.15)}
# Bound on the mean over clients of the difference of scores, and at least two test points; measured: 0 and 0.0035.
SCORES_APART = {"highest": 0.005, "default": 0.02}
SERVER = "['server']"  # prefix of the names of its arrays
HOPELESS = 10.0  # times a bound: a program with a larger difference is not timed


class WrongError(Exception):
    """The accelerator's results differ from the CPU's; `ratio` is the difference over its bound."""

    def __init__(self, message: str, found: dict[str, Any], ratio: float):
        self.is_hopeless = not ratio <= HOPELESS
        if self.is_hopeless:
            message += "; not timed"
        super().__init__(message)
        self.found = found


def trained_arrays(server: Any, clients: Any, num_clients: int) -> dict[str, np.ndarray]:
    """Float arrays of server and clients by name, without padding of the clients."""
    own = jax.tree.map(lambda leaf: leaf[:num_clients], clients)
    leaves = jax.tree_util.tree_flatten_with_path(
        jax.device_get({"server": server, "clients": own})
    )[0]
    named = {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}
    return {
        name: leaf
        for name, leaf in named.items()
        if np.issubdtype(leaf.dtype, np.floating)
    }


def _file(folder: Path, name: str) -> Path:
    return folder / f"{''.join(c if c.isalnum() else '_' for c in name)}.npz"


def stored(folder: Path, name: str, prefix: str) -> dict[str, np.ndarray]:
    """Arrays of a case whose names begin with a prefix."""
    if not _file(folder, name).exists():
        raise FileNotFoundError(f"case {name!r} stored no arrays to compare with")
    with np.load(_file(folder, name)) as file:
        return {
            key.removeprefix(prefix): file[key]
            for key in file.files
            if key.startswith(prefix)
        }


def store(folder: Path, name: str, arrays: dict[str, Any]) -> None:
    """Write arrays for the cases that need this one."""
    np.savez(_file(folder, name), **arrays)


def difference(
    found: dict[str, np.ndarray],
    expected: dict[str, np.ndarray],
    begin: dict[str, np.ndarray],
) -> tuple[Distance, str]:
    """Largest differences from the expected arrays, and the array with the largest one relative to its change."""
    if found.keys() != expected.keys():
        raise ValueError(
            f"arrays of other names: {sorted(found.keys() ^ expected.keys())}"
        )
    absolute = 0.0
    of_move = {}
    for name, value in expected.items():
        if name.startswith(SERVER):
            absolute = max(
                absolute, _finite_or_inf(np.max(np.abs(found[name] - value), initial=0.0))
            )
        error = np.linalg.norm(found[name] - value)
        move = np.linalg.norm(value - begin[name])
        if not move:  # an array that does not change: its norm
            move = np.linalg.norm(value)
        if error == 0:
            of_move[name] = 0.0
        elif move:
            of_move[name] = _finite_or_inf(error / move)
        else:
            of_move[name] = math.inf
    worst = max(of_move, key=lambda name: of_move[name])
    return Distance(absolute, of_move[worst]), worst


def _finite_or_inf(value: Any) -> float:
    """Infinity for a nan."""
    if not np.isfinite(value):
        return math.inf
    return float(value)


def check_difference(
    distance: Distance, where: str, bound: Distance, to: str
) -> dict[str, Any]:
    """Check a difference; returns it in the format of results.

    Raises:
        WrongError: it exceeds the bound.
    """
    shown = [str(number) if math.isinf(number) else number for number in distance]
    found = {"apart": shown[0], "apart_of_move": shown[1], "apart_most_in": where}
    found |= {"apart_at_most": bound.absolute, "apart_of_move_at_most": bound.of_move}
    if distance.absolute > bound.absolute or distance.of_move > bound.of_move:
        raise WrongError(
            f"{distance.absolute:.2g} from {to}, {distance.of_move:.2g} of the move in {where}; at most "
            f"{bound.absolute:g} and {bound.of_move:g} are right",
            found,
            max(distance.absolute / bound.absolute, distance.of_move / bound.of_move),
        )
    return found
