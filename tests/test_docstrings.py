"""Examples in docstrings run; `tests/algorithms/test_common.py` runs those of algorithms."""

import doctest
import importlib
from pathlib import Path

import pytest

import fedjax_srp as srp

PACKAGE = Path(srp.__file__).parent
FILES = [
    path for path in sorted(PACKAGE.rglob("*.py")) if path.parent.name != "algorithms"
]
FILES = [path for path in FILES if ">>>" in path.read_text()]
MODULES = [
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in FILES
]


@pytest.mark.usefixtures("one_device")
@pytest.mark.parametrize("module", MODULES)
def test_examples_run(module):
    results = doctest.testmod(importlib.import_module(module.removesuffix(".__init__")))
    assert results.attempted > 0
    assert results.failed == 0
