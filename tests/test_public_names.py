"""Public names and their parameters are those of `public_names.txt`: none goes, or comes, unnoticed.

python tests/test_public_names.py   # writes the file, after a change that is meant
"""

import inspect
import types
from pathlib import Path

import fedjax_srp as srp

RECORDED = Path(__file__).with_name("public_names.txt")


def described(name, value):
    """Yield a line for a name, with its parameters if it is called."""
    try:
        parameters = ", ".join(inspect.signature(value).parameters)
    except (TypeError, ValueError):
        yield name
    else:
        yield f"{name}({parameters})"


def members(name, value):
    """Yield a line for each public method, property and field that a class itself defines."""
    for member, found in sorted(vars(value).items()):
        if not member.startswith("_"):
            found = getattr(found, "__func__", found)
            function = found if inspect.isfunction(found) else None
            yield from described(f"{name}.{member}", function)


def public_in(module):
    """Return the public names of a module: those that it lists, or those of its own functions and classes."""
    if hasattr(module, "__all__"):
        return sorted(module.__all__)
    own = []
    for name, value in vars(module).items():
        if (
            not name.startswith("_")
            and getattr(value, "__module__", "") == module.__name__
        ):
            own.append(name)
    return sorted(own)


def names():
    """Return the lines of the file."""
    lines = []
    for name in sorted(srp.__all__):
        value = getattr(srp, name)
        if isinstance(value, types.ModuleType):
            for inner in public_in(value):
                lines += described(f"{name}.{inner}", getattr(value, inner))
            continue
        lines += described(name, value)
        if inspect.isclass(value):
            lines += members(name, value)
    return lines


def test_public_names_are_those_that_are_recorded():
    recorded = RECORDED.read_text("utf-8").splitlines()
    found = names()
    gone = sorted({*recorded} - {*found})
    new = sorted({*found} - {*recorded})
    assert recorded == found, f"gone: {gone}; new: {new}; see the top of this file"


if __name__ == "__main__":
    RECORDED.write_text("\n".join(names()) + "\n", "utf-8")
