"""Scripts use names that their modules have: most scripts run in the long tests alone."""

import ast
import importlib
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = [*(ROOT / "experiments").rglob("*.py"), *(ROOT / "notebooks").glob("*.py")]
OURS = ("experiments", "fedjax_srp")
MISSING = object()


def found_in(module, name):
    """Return what a module has by a name, a submodule too, or `MISSING`."""
    if hasattr(module, name):
        return getattr(module, name)
    try:
        return importlib.import_module(f"{module.__name__}.{name}")
    except ImportError:
        return MISSING


def imports(tree):
    """Yield (name in the script, what it is, what was asked for) of imports of this project."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname and alias.name.split(".")[0] in OURS:
                    yield alias.asname, importlib.import_module(alias.name), alias.name
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in OURS:
            module = importlib.import_module(node.module)
            for alias in node.names:
                asked = f"{module.__name__}.{alias.name}"
                yield alias.asname or alias.name, found_in(module, alias.name), asked


def bound_in(tree):
    """Return the names that a script gives to values of its own."""
    nodes = list(ast.walk(tree))
    stored = {
        n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }
    return stored | {node.arg for node in nodes if isinstance(node, ast.arg)}


@pytest.mark.parametrize(
    "path", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.stem}"
)
def test_scripts_ask_modules_for_names_that_they_have(path):
    tree = ast.parse(path.read_text("utf-8"))
    modules, missing = {}, []
    for name, value, asked in imports(tree):
        if value is MISSING:
            missing.append(asked)
        if isinstance(value, types.ModuleType):
            modules[name] = value
    for name in bound_in(tree):
        modules.pop(name, None)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = modules.get(node.value.id)
            if module is not None and not hasattr(module, node.attr):
                missing.append(f"{module.__name__}.{node.attr}")
    assert not missing
