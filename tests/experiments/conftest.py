"""Scripts of experiments import what lies beside them; folders have files of the same name."""

import importlib
import sys
from pathlib import Path

import pytest

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def forget():
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(EXPERIMENTS)):
            del sys.modules[name]


@pytest.fixture(scope="module")
def beside():
    """`beside(folder)`: from now on modules come from there, as by `python FILE`; returns what imports them."""
    path = list(sys.path)

    def enter(folder):
        forget()
        sys.path[:] = [str(EXPERIMENTS / folder), str(EXPERIMENTS), *path]
        return importlib.import_module

    yield enter
    sys.path[:] = path
    forget()
