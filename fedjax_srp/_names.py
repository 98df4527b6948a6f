"""One way to refuse an unknown name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def unknown(kind: str, name: object, known: Iterable[str]) -> ValueError:
    """The error for a name that is not `known`: the nearest ones first, then what there is."""
    known = list(known)
    close = difflib.get_close_matches(str(name), known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
    return ValueError(f"unknown {kind} {name!r}; {hint}choose from {', '.join(known)}")
