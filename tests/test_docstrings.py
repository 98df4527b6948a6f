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
# What they print follows from sizes; tests/algorithms/test_coded.py and test_private.py run such rounds.
WITHOUT_ROUNDS = ("fedjax_srp.messages.coded", "fedjax_srp.messages.private")


@pytest.mark.usefixtures("one_device")
@pytest.mark.parametrize("module", MODULES)
def test_examples_run(module, request):
    if module in WITHOUT_ROUNDS:
        request.getfixturevalue("no_rounds")
    results = doctest.testmod(importlib.import_module(module.removesuffix(".__init__")))
    assert results.attempted > 0
    assert results.failed == 0
