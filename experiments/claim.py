"""A claim of a paper: a row of the page that `claims.py` writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

HOLDS, IN_PART, FAILS, NOT_RUN = "holds", "in part", "fails", "not run"
NOT_FOUND = (
    "not found at this scale"  # a no with networks or data smaller than the paper's
)
VERDICTS = (HOLDS, IN_PART, FAILS, NOT_FOUND, NOT_RUN)
PAPER, OTHER = "the paper's", "not the paper's"  # first words of `Claim.size`


class Claim(NamedTuple):
    """One row of the page."""

    quote: str
    place: str
    verdict: str
    found: Callable[[], str] | str
    size: str  # begins with PAPER or OTHER, then the setting where the text and the code of a paper differ
    files: tuple[str, ...] = ()  # in the `results` of the paper's folder
    command: str = ""  # script in the paper's folder, with options


def plural(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"
