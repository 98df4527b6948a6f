"""How far what two programs have learnt may be apart, and the files in which one leaves it for the next."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np


class Distance(NamedTuple):
    """How far two states are apart."""

    absolute: float  # the largest number of the server's
    of_move: float  # as a part of how far an array moved, the norm of each on its own


# By the precision of products. On a CPU, three rounds of 100 clients of the MLP in other chunks were 1e-5 and 0.006
# apart, with products rounded as TF32 rounds them 5e-5 and 0.04: units of ReLU that are near zero switch.
BOUNDS = {"highest": Distance(1e-4, 0.03), "default": Distance(1e-3, 0.15)}
# Mean over clients of how far scores may be apart, where that is more than two test points; so measured: 0 and 0.0035.
SCORES_APART = {"highest": 0.005, "default": 0.02}
SERVER = "['server']"  # begins the names of its arrays
HOPELESS = 10.0  # times a bound: what is further away is not timed


class WrongError(Exception):
    """The accelerator computes something else than the CPU; `ratio` is how far it is beyond what is right."""

    def __init__(self, message: str, found: dict[str, Any], ratio: float):
        self.is_hopeless = not ratio <= HOPELESS
        super().__init__(message + ("; not timed" if self.is_hopeless else ""))
        self.found = found


def learnt(server: Any, clients: Any, num_clients: int) -> dict[str, np.ndarray]:
    """What a run has learnt, by name: floats of the server, and of the clients without padding."""
    own = jax.tree.map(lambda leaf: leaf[:num_clients], clients)
    leaves = jax.tree_util.tree_flatten_with_path(jax.device_get({"server": server, "clients": own}))[0]
    named = {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}
    return {name: leaf for name, leaf in named.items() if np.issubdtype(leaf.dtype, np.floating)}


def _file(folder: Path, name: str) -> Path:
    return folder / f"{''.join(c if c.isalnum() else '_' for c in name)}.npz"


def stored(folder: Path, name: str, prefix: str) -> dict[str, np.ndarray]:
    """Arrays that a case left, those whose names begin with a prefix."""
    if not _file(folder, name).exists():
        raise FileNotFoundError(f"case {name!r} left no arrays to compare with")
    with np.load(_file(folder, name)) as file:
        return {key.removeprefix(prefix): file[key] for key in file.files if key.startswith(prefix)}


def store(folder: Path, name: str, arrays: dict[str, Any]) -> None:
    """Leaves arrays for cases that need this one."""
    np.savez(_file(folder, name), **arrays)


def apart(
    found: dict[str, np.ndarray], expected: dict[str, np.ndarray], begin: dict[str, np.ndarray]
) -> tuple[Distance, str]:
    """How far arrays are from those expected, at the most, and in which of them as a part of how far it moved."""
    if found.keys() != expected.keys():
        raise ValueError(f"arrays of other names: {sorted(found.keys() ^ expected.keys())}")
    absolute, of_move = 0.0, {}
    for name, value in expected.items():
        if name.startswith(SERVER):
            absolute = max(absolute, _number(np.max(np.abs(found[name] - value), initial=0.0)))
        error = np.linalg.norm(found[name] - value)
        moved = np.linalg.norm(value - begin[name]) or np.linalg.norm(value)  # of what never moves, its size
        of_move[name] = 0.0 if error == 0 else _number(error / moved) if moved else math.inf
    worst = max(of_move, key=lambda name: of_move[name])
    return Distance(absolute, of_move[worst]), worst


def _number(value: Any) -> float:
    """A nan counts as infinitely far."""
    return float(value) if np.isfinite(value) else math.inf


def close(distance: Distance, where: str, bound: Distance, to: str) -> dict[str, Any]:
    """The distance as results have it.

    Raises:
        WrongError: too far.
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
