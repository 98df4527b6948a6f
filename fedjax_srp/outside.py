"""What a function of one's own reads from outside: another helper, or number, in its module makes another program.

Parts that are equal share what is compiled, and a function is equal to itself. In a notebook it may mean something else
by then: a helper that it calls was edited, a number that it reads was changed.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import inspect
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np

_PACKAGE = __name__.partition(".")[0]
_LARGE = 2**16  # bytes of an array, entries of a dict, from which on it is compared by identity


def reads(function: Any) -> tuple[Any, ...]:
    """Hashable, equal while a function reads the same: its code, defaults and closure, and what it names in modules.

    Functions are followed, but for those of this package and of installed ones. Plain values, tuples and dicts of them
    and small arrays are compared by value, everything else by identity. What is no function of one's own reads nothing.
    """
    return tuple(_reads(function, set()))


def _reads(function: Any, seen: set[int]) -> Iterator[Any]:
    if isinstance(function, functools.partial):
        yield from _values([*function.args, function.keywords], seen)
        function = function.func
    with contextlib.suppress(ValueError):  # of what is wrapped without end, a mock say
        function = inspect.unwrap(function) if callable(function) else function
    if not isinstance(function, types.FunctionType) or id(function) in seen or _is_installed(function.__module__):
        return
    seen.add(id(function))
    codes = [function.__code__]
    for code in codes:  # grows: functions within are constants of the code
        constants = [constant for constant in code.co_consts if not isinstance(constant, types.CodeType)]
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
        yield code.co_code, repr(constants)
    yield from _values([function.__defaults__, function.__kwdefaults__], seen)
    yield from _values([cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)], seen)
    for code in codes:
        for name in code.co_names:
            if name in function.__globals__:
                yield name
                yield from _named(function.__globals__[name], code, seen)


def _named(value: Any, code: types.CodeType, seen: set[int]) -> Iterator[Any]:
    """A value of a module; of a module of one's own, what the code names in it."""
    if not isinstance(value, types.ModuleType):
        yield from _values([value], seen)
    elif not _is_installed(value.__name__):
        attributes = {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_ATTR", "LOAD_METHOD")}
        yield from _values([getattr(value, name) for name in sorted(attributes) if hasattr(value, name)], seen)


def _values(values: list[Any], seen: set[int]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, bool | int | float | complex | str | bytes | None):
            yield type(value), value
        elif isinstance(value, tuple):
            yield "tuple", *_values([*value], seen)
        elif type(value) is dict and len(value) < _LARGE:
            yield "dict", *_values([*value.keys(), *value.values()], seen)
        elif isinstance(value, np.ndarray) and value.nbytes < _LARGE:
            yield value.shape, str(value.dtype), value.tobytes()
        elif own := tuple(_reads(value, seen)):
            yield own
        elif id(value) not in seen:
            yield id(value)


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


@functools.lru_cache(maxsize=1024)
def _is_installed(module: str | None) -> bool:
    """Whether a module is of this package, or lies where packages are installed: it does not change."""
    if module is None or module.partition(".")[0] in (_PACKAGE, *sys.stdlib_module_names):
        return module is not None
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is not None and ("site-packages" in file or "dist-packages" in file)
