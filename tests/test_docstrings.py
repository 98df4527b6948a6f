"""Examples in docstrings run; `tests/algorithms/test_common.py` runs those of algorithms."""

import doctest
import importlib
from pathlib import Path

import pytest

import fedjax_srp as srp

ROOMS = ("clocks", "data", "linear", "models", "participation", "theory")
PACKAGE = Path(srp.__file__).parent
FILES = [path.relative_to(PACKAGE.parent) for room in ROOMS for path in sorted((PACKAGE / room).glob("*.py"))]
MODULES = [".".join(path.with_suffix("").parts) for path in FILES if ">>>" in (PACKAGE.parent / path).read_text()]


@pytest.mark.parametrize("module", MODULES)
def test_examples_run(module):
    results = doctest.testmod(importlib.import_module(module.removesuffix(".__init__")))
    assert results.attempted > 0
    assert results.failed == 0
