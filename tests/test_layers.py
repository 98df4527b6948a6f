"""Imports that the layers of pyproject.toml (`make check`) cannot see: names of modules in texts."""

import ast
import re
from pathlib import Path

import pytest

import fedjax_srp as srp

PACKAGE = Path(srp.__file__).parent
FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def texts_of(path):
    """Return the texts of a file that are no docstrings."""
    tree = ast.parse(path.read_text("utf-8"))
    documented = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            documented.add(node.value)
    constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    return [node.value for node in constants if node not in documented]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_file_names_no_module_of_the_package_in_a_text(path):
    """Such a name would be an import that no linter sees; records of runs name classes."""
    named = [
        text
        for text in texts_of(path)
        if isinstance(text, str) and re.fullmatch(r"fedjax_srp(\.\w+)+", text)
    ]
    names_classes = path.name in ("description.py", "checks.py")
    may_name = path.is_relative_to(PACKAGE / "lab") or names_classes
    assert may_name or not named
