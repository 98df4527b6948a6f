"""The package agrees with docs/code_map.md: floors, imports."""

import ast
import functools
import graphlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import fedjax_srp

PACKAGE = Path(fedjax_srp.__file__).parent
PAGE = (PACKAGE.parent / "docs/code_map.md").read_text()
TOP = "fedjax_srp"


# The page.


class Room(NamedTuple):
    floor: int
    may_import: frozenset[str]


def table(heading):
    """Return the cells of the first table below a heading."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if line[:1] == "|"
    ]
    assert len(rows) > 2, heading
    return rows[2:]


def quoted(cell):
    return frozenset(re.findall(r"`(\w+(?:\.\w+)*)`", cell))


def rooms():
    return {
        next(iter(quoted(name))): Room(int(floor), quoted(may))
        for floor, name, _, may in table("Rooms")
    }


def lazy_imports():
    return {
        next(iter(quoted(file))): quoted(targets)
        for file, targets, _ in table("Imports inside functions")
    }


# The code.


@functools.cache
def modules():
    """Return {module: path} of the package; `fedjax_srp.data` is the `__init__` of that folder."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = [TOP, *path.relative_to(PACKAGE).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def import_nodes(node, kind="run") -> Iterator[tuple[str, ast.Import | ast.ImportFrom]]:
    """Yield every import with its kind: `run` at module level, `lazy` in a function, `types` under TYPE_CHECKING."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield kind, node
    is_for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        kind = "lazy"
    for child in ast.iter_child_nodes(node):
        yield from import_nodes(
            child, "types" if is_for_types and child in node.body else kind
        )


@functools.cache
def bound(module):
    """Return the names that a file defines or imports at module level."""
    names = set()
    for node in ast.parse(modules()[module].read_text()).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        names |= {
            part.id
            for part in ast.walk(node)
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
        }
        names.add(getattr(node, "name", ""))
    return names


def targets(importer, node):
    """Return the files of the package that an import loads."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names if alias.name.partition(".")[0] == TOP}
    if node.level or node.module is None or node.module.partition(".")[0] != TOP:
        return set()
    found = set()
    for alias in node.names:
        submodule = f"{node.module}.{alias.name}"
        if submodule in modules():
            found.add(submodule)
        # A name that a folder defines itself is imported from its `__init__`, except by files of that folder.
        is_inside = f"{importer}.".startswith(f"{node.module}.")
        if submodule not in modules() or (
            alias.name in bound(node.module) and not is_inside
        ):
            found.add(node.module)
    return found


@functools.cache
def imports(module):
    """Return {kind: files of the package that a file imports in that way}."""
    found = {"run": set(), "lazy": set(), "types": set()}
    for kind, node in import_nodes(ast.parse(modules()[module].read_text())):
        found[kind] |= targets(module, node)
    assert all(target in modules() for of_kind in found.values() for target in of_kind), (
        module
    )
    return found


def short(module):
    return module.removeprefix(f"{TOP}.")


def room_of(module):
    return "__init__" if module == TOP else module.split(".")[1]


# Floors.


def test_the_page_lists_every_room_and_no_other():
    assert set(rooms()) == {room_of(module) for module in modules()}


def test_files_named_where_a_change_goes_exist():
    named = {
        name
        for row in table("Where a change goes")
        for name in re.findall(r"`([\w/]+\.py)`", row[1])
    }
    assert len(named) > 10
    assert [name for name in named if not (PACKAGE / name).is_file()] == []


def test_rooms_import_from_lower_floors_only():
    for name, room in rooms().items():
        for other in room.may_import:
            assert rooms()[other].floor < room.floor, (
                f"{name} (floor {room.floor}) may not import {other}"
            )


@pytest.mark.parametrize("kind", ["run", "types"])
def test_files_import_from_allowed_rooms_only(kind):
    broken = [
        f"{short(module)} imports {short(target)}"
        for module in modules()
        for target in imports(module)[kind]
        if room_of(target) not in (room_of(module), *rooms()[room_of(module)].may_import)
    ]
    assert not broken, "\n".join(sorted(broken))


def test_there_are_no_import_cycles():
    order = list(
        graphlib.TopologicalSorter(
            {module: imports(module)["run"] for module in modules()}
        ).static_order()
    )
    assert len(order) == len(modules())


def test_imports_inside_functions_are_those_of_the_page():
    found = {
        short(m): frozenset(map(short, imports(m)["lazy"]))
        for m in modules()
        if imports(m)["lazy"]
    }
    assert found == lazy_imports()


def test_imports_are_absolute():
    for module, path in modules().items():
        for _, node in import_nodes(ast.parse(path.read_text())):
            assert not getattr(node, "level", 0), f"{short(module)}: {ast.unparse(node)}"


# Tests of the helpers above.


def test_kinds_of_imports():
    at_module = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import a\nelse:\n    import b\n"
    nested = "try:\n    import c\nfinally:\n    pass\nclass K:\n    import d\n    def f(self):\n        import e\n"
    found = {
        ast.unparse(node).split()[1]: kind
        for kind, node in import_nodes(ast.parse(at_module + nested))
    }
    assert found == {
        "typing": "run",
        "a": "types",
        "b": "run",
        "c": "run",
        "d": "run",
        "e": "lazy",
    }


def test_targets_of_imports():
    def of(importer, line):
        return {
            short(target)
            for target in targets(f"{TOP}.{importer}", ast.parse(line).body[0])
        }

    assert of("engine.prepare", "from fedjax_srp.data import holdout") == {
        "data",
        "data.holdout",
    }
    assert of("engine.prepare", "from fedjax_srp.clocks import fixed") == {"clocks.fixed"}
    assert of("clocks.dynamic", "from fedjax_srp.clocks import fixed") == {"clocks.fixed"}
    assert of("clocks.dynamic", "from fedjax_srp.clocks import trace_of_nothing") == {
        "clocks"
    }
    assert of("history", "from fedjax_srp.lab.report import plots") == {"report.plots"}
    assert of("methods.build", "from fedjax_srp import models") == {"models"}
    assert of("methods.build", "from fedjax_srp import __version__") == {TOP}
    assert of("methods.build", "import fedjax_srp as srp") == {TOP}
    assert of("methods.build", "import jax") == set()
