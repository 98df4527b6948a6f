"""Keys and states that a user gives: states of the server, to begin from or to judge, and of clients."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fedjax_srp.base import (
    ClientState,
    FederatedAlgorithm,
    FederatedSource,
    Key,
    PyTree,
    ServerState,
    member_of,
)
from fedjax_srp.parts.checks import (
    ArgumentError,
    check_choice,
    check_integer,
    check_known,
    is_key,
)
from fedjax_srp.results import sealed_folders
from fedjax_srp.results.history import History
from fedjax_srp.rounds.round import as_arrays

SEEDS = 2**32  # JAX keeps 32 bits of a seed: a larger one would repeat another run
Start = ServerState | Literal["init"]


def root_key(key: Key | None, seed: int | None) -> Key:
    """The key, or that of the seed, as the command line and grids make it."""
    if (key is None) == (seed is None):
        have = "neither key nor seed" if seed is None else f"key and seed={seed}"
        raise ValueError(f"{have}: give key=jax.random.key(0), or seed=0")
    if key is not None:
        return key
    return jax.random.key(check_integer("seed", seed, 0, SEEDS - 1))


def check_kept(server_state: ServerState, argument: str = "server_state") -> None:
    """Raise a ValueError for a history, and if the history had no server state."""
    if isinstance(server_state, History):
        raise ValueError(f"{argument} is a History; give history.server_state")
    if server_state is None and argument == "start":
        raise ArgumentError(
            "start",
            None,
            "is no state of a server",
            'give "init" for what the algorithm makes, or save the history that it is from with models=True',
        )
    if server_state is None:
        raise ValueError(
            f"{argument}=None: this history was loaded from a folder without models; save with models=True, or keep "
            "the history that simulate returns"
        )


def client_id(client: int | str, data: FederatedSource) -> int:
    """Return the id of a client, which may be given by its name."""
    if not isinstance(client, str):
        return check_integer("client", client, 0, data.num_clients - 1)
    names: list[str] = list(member_of(data, "client_names") or ())
    check_known("client", [client], names, of="data.client_names")
    return names.index(client)


def is_new(client_states: ClientState | Literal["new"]) -> bool:
    """True for clients that have not trained; ValueError if the history had no client states."""
    if client_states is None:
        raise ValueError(
            "client_states=None: this history kept none; run with keep_clients=True (and save with models=True), or "
            'give "new" for clients that have not trained'
        )
    return (
        isinstance(client_states, str)
        and check_choice("client_states", client_states, ["new"]) == "new"
    )


def fitted(argument: str, given: PyTree, expected: PyTree) -> PyTree:
    """The given arrays in the expected containers; loaded states have dicts instead."""
    remedy = "give the state of a run of the same algorithm with the same model"
    if argument == "start":
        remedy += ", or parameters as model.init(key) returns them, SplitParams(representation, head) (docs/weights.md)"
    found, wanted = sealed_folders.named(given), sealed_folders.named(expected)
    for names, says in (
        (wanted.keys() - found.keys(), "lacks"),
        (found.keys() - wanted.keys(), "also has"),
    ):
        if names:
            shown = min(names) or "an array that is not in a container"
            raise ValueError(f"{argument} {says} {shown}, {len(names)} in all: {remedy}")
    for name, like in wanted.items():
        shape = jnp.shape(found[name])
        try:
            dtype = jnp.asarray(found[name]).dtype
        except (TypeError, ValueError):
            problem = f"{name or 'it'} is no array of numbers"
            raise ArgumentError(
                argument, found[name], problem, "give plain arrays of NumPy or JAX"
            ) from None
        dtype = getattr(found[name], "dtype", dtype)  # NumPy's float64 is no float32
        if shape != like.shape or dtype != like.dtype:
            if shape == like.shape:
                remedy = f"convert it by .astype({str(like.dtype)!r})"
            elif shape == like.shape[::-1]:
                remedy = "transpose it, as PyTorch's weights (docs/weights.md)"
            elif sorted(shape) == sorted(like.shape):
                remedy = "give its axes in this order (docs/weights.md)"
            raise ValueError(
                f"{argument}: {name or 'it'} is {dtype}{list(shape)}, expected {like.dtype}{list(like.shape)}: {remedy}"
            )
    return jax.tree.unflatten(
        jax.tree.structure(expected), [found[name] for name in wanted]
    )


def fitted_start(
    start: Start, algorithm: FederatedAlgorithm, data: FederatedSource
) -> PyTree | None:
    """The given start in the containers of the server's state, or of its field `params`; None for "init"."""
    check_kept(start, "start")
    if isinstance(start, str):
        check_choice("start", start, ["init"])
        return None
    server = jax.eval_shape(
        lambda data: as_arrays(algorithm.init(jax.random.key(0), data)), data
    )
    has_params = (
        "params" in start if isinstance(start, Mapping) else hasattr(start, "params")
    )
    if hasattr(server, "params") and not has_params:
        return _finite(fitted("start", start, server.params))
    state = fitted("start", start, server)
    _finite(getattr(state, "params", state))  # others may have nan where nothing was seen
    return state


def _finite(params: PyTree) -> PyTree:
    """Return the parameters of a start, or raise a ValueError for nan and infinity."""
    for name, leaf in sealed_folders.named(params).items():
        is_known = not isinstance(leaf, Tracer) and not is_key(leaf)
        if is_known and not jnp.isfinite(leaf).all():
            raise ArgumentError(
                "start",
                leaf,
                f"{name} has nan or infinity, as parameters of a run that diverged",
                "give finite parameters",
            )
    return params


def checksum(start: PyTree) -> str:
    """Checksum of a start, eight hexadecimal digits: of its names and arrays."""
    found = 0
    for name, leaf in sealed_folders.named(start).items():
        array = np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)
        found = zlib.crc32(f"{name} {array.dtype} {array.shape}".encode(), found)
        found = zlib.crc32(
            np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, found
        )
    return f"{found:08x}"
