"""Canonical text of a lowered program, and its hash: equal for programs that compute the same operations."""

from __future__ import annotations

import hashlib
import re

import jax

_FIELD_NAMES = re.compile(r'jax\.result_info = "(?:[^"\\]|\\.)*"')
_SYMBOL = r'@("(?:[^"\\]|\\.)*"|[\w.$-]+)'
_DEFINITION = re.compile(rf"func\.func (?:public |private )?{_SYMBOL}")
# The target of a custom call is an operation, such as a routine of LAPACK.
_MENTION = re.compile(rf"(?<!custom_call ){_SYMBOL}")
_CALLBACK = re.compile(r"custom_call @\w*callback")


def canonical(text: str) -> str:
    """Remove the names that have no effect from a program's text: of fields and of functions."""
    numbers: dict[str, int] = {}
    for name in _DEFINITION.findall(text):
        numbers.setdefault(name, len(numbers))

    def numbered(mention: re.Match[str]) -> str:
        number = numbers.get(mention[1])
        return mention[0] if number is None else f"@f{number}"

    return _MENTION.sub(numbered, _FIELD_NAMES.sub("", text))


def calls_host(text: str) -> bool:
    """Return True for a program with callbacks: its text has no code of theirs."""
    return _CALLBACK.search(text) is not None


def program_hash(lowered: jax.stages.Lowered) -> str:
    """Return 16 hexadecimal digits of a program's canonical text."""
    return hashlib.sha256(canonical(lowered.as_text()).encode()).hexdigest()[:16]
