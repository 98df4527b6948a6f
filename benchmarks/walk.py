"""How far it is from `srp.simulate(...)` to the function that a client computes: functions and files of the package.

    python benchmarks/walk.py [--registry] [--functions] [--out FILE.json]

One cold call of FedRep on digits is followed with `sys.setprofile`: which functions of the package it enters, until
the client's function is entered for the first time (its contract is checked), until it is entered for the last time
(the segment of rounds is traced) and until the call returns, and how often the algorithm is made. "A reader's walk" is
the stack at that last time, without the frames of JAX: what one reads to get from the call to the client's mathematics.

FedRep is made by its constructor, or by `srp.methods.get("fedrep", ...)` with `--registry`. Not counted: imports,
comprehensions, and methods that `dataclasses` and `NamedTuple` write. With a copy of this script outside the
repository, `PYTHONPATH=FOLDER python walk.py` follows the code of any folder.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
import traceback
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import jax

import fedjax_srp as srp

PACKAGE = Path(srp.__file__).parent
CLIENT_FILE = PACKAGE / "algorithms/fedrep.py"

# Names of before the refactoring, tried where there are no new ones. To be deleted when nobody compares with it.
MAKES, CLIENT = ("FedRep", "fedrep"), "client"  # the constructor; the function that a client computes


def constructed(model: Any) -> Any:
    """FedRep by its constructor."""
    algorithms = srp.algorithms
    if not hasattr(algorithms, "FedRep"):
        return algorithms.fedrep(model, algorithms.sgd(0.05))
    return algorithms.FedRep(model, srp.Training(srp.SGD(0.05)))


# End of the names.


class Entry(NamedTuple):
    """The moment when the client's function is entered."""

    entered: set[CodeType]  # by then, functions of the package
    stack: list[tuple[str, str]]  # (file, function) of the package, the call first


def is_counted(code: CodeType) -> bool:
    """Whether it is a function of the package, and neither module, class body nor comprehension."""
    of_package = code.co_filename.startswith(f"{PACKAGE}/")
    is_function = code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.endswith(("comp>", "genexpr>"))
    return bool(of_package and is_function)


def place(code: CodeType) -> tuple[str, str]:
    return str(Path(code.co_filename).relative_to(PACKAGE)), code.co_qualname


class Walk:
    """What is entered while it is set as the profile function."""

    def __init__(self) -> None:
        self.entered: set[CodeType] = set()
        self.entries: list[Entry] = []
        self.made = 0  # how often the algorithm was

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event != "call":
            return
        self.made += is_making(frame)
        if not is_counted(code):
            return
        self.entered.add(code)
        if Path(code.co_filename) == CLIENT_FILE and code.co_name == CLIENT:
            frames = [above.f_code for above, _ in traceback.walk_stack(frame)][::-1]
            self.entries.append(Entry(set(self.entered), [place(c) for c in frames if is_counted(c)]))


def is_making(frame: FrameType) -> bool:
    """Whether the frame is of the constructor: a function of its name, or the `__init__` of such a class.

    A pytree that is put together again counts too where that calls `__init__`.
    """
    code = frame.f_code
    if code.co_name == "__init__":
        return type(frame.f_locals.get("self")).__name__ in MAKES
    return Path(code.co_filename) == CLIENT_FILE and code.co_name in MAKES and is_counted(code)


def followed(function: Any) -> Walk:
    walk = Walk()
    sys.setprofile(walk)
    try:
        function()
    finally:
        sys.setprofile(None)
    return walk


def files_of(places: list[tuple[str, str]]) -> list[str]:
    """In order of their first appearance."""
    return list(dict.fromkeys(file for file, _ in places))


def size(entered: set[CodeType]) -> dict[str, int]:
    return {"functions": len(entered), "files": len({code.co_filename for code in entered})}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--registry", action="store_true", help="made by srp.methods.get, not by its constructor")
    parser.add_argument("--functions", action="store_true", help="print every function entered until the last time")
    parser.add_argument("--out", type=Path, help="where the numbers go, as JSON")
    args = parser.parse_args()
    jax.config.update("jax_enable_compilation_cache", False)
    print(f"code of {PACKAGE}, jax {jax.__version__}, {'registry' if args.registry else 'constructor'}")
    data = srp.data.load("digits", num_clients=12, classes_per_client=4)
    model = srp.models.get("mlp", data, hidden=(16,), head_layers=1)
    made: list[Any] = []

    def make() -> None:
        of_registry = {"hidden": (16,), "learning_rate": 0.05}
        made.append(srp.methods.get("fedrep", dataset=data, **of_registry) if args.registry else constructed(model))

    before = followed(make)
    walk = followed(lambda: srp.simulate(made[0], data, num_rounds=2, key=jax.random.key(0), progress=False))
    if not walk.entries:
        inside = sorted(place(code)[1] for code in walk.entered if Path(code.co_filename) == CLIENT_FILE)
        raise SystemExit(f"no function {CLIENT} of {CLIENT_FILE.name} was entered, but {', '.join(inside)}")
    first, last = walk.entries[0], walk.entries[-1]
    found: dict[str, Any] = {
        "to the client's function, first time": size(first.entered),
        "to the client's function, last time": size(last.entered),
        "the whole call": size(walk.entered),
        "a reader's walk": {"functions": len(set(last.stack)), "files": len(files_of(last.stack))},
        "the client's function is entered": len(walk.entries),
        "the algorithm is made, before the call": before.made,
        "the algorithm is made, in the call": walk.made,
    }
    for what, numbers in found.items():
        shown = f"{numbers} times" if isinstance(numbers, int) else ", ".join(f"{n} {of}" for of, n in numbers.items())
        print(f"{what}: {shown}")
    print("a reader's walk:")
    for file, function in last.stack:
        print(f"    {file:<32}{function}")
    if args.functions:
        print("all functions until the last time:")
        for file, function in sorted(place(code) for code in last.entered):
            print(f"    {file:<32}{function}")
    if args.out:
        args.out.write_text(json.dumps(found | {"files of the walk": files_of(last.stack)}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
