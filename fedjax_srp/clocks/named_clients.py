"""Measurements by the names of clients."""

from collections.abc import Sequence
from typing import Any

from fedjax_srp.parts.checks import ArgumentError, nearest


def places_of(
    argument: str,
    value: Any,
    names: Sequence[Any],
    client_names: Sequence[str] | None,
    remedy: str,
) -> list[int]:
    """Return the place of each client among the names of what was measured.

    Args:
        argument: that has the measurements, for errors.
        value: of the argument.
        names: of what was measured; numbers stand for their text.
        client_names: of the data, `data.client_names`.
        remedy: where a client was not measured.

    Raises:
        ArgumentError: the data have no names, or a client was not measured.
    """
    if client_names is None:
        raise ArgumentError(
            "client_names",
            client_names,
            "is None: the data have no names of clients",
            "give from_arrays(client_names=...), or an array in the order of the clients",
        )
    texts = [str(name) for name in names]
    place = {text: i for i, text in enumerate(texts)}
    for name in client_names:
        if name not in place:
            known = ", ".join(map(repr, texts[:4]))
            problem = f"has no client {name!r}; it has {known}{nearest(name, texts)}"
            raise ArgumentError(argument, value, problem, remedy)
    return [place[name] for name in client_names]
