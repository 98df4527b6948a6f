"""Fixture that imports scripts of experiments, whose folders have modules of the same name."""

import importlib
import sys
from pathlib import Path

import pytest

import fedjax_srp as srp

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.fixture(autouse=True)
def without_setting_devices(monkeypatch):
    """The devices of this process are already set."""
    monkeypatch.setattr(srp, "use_all_cores", lambda: None)


def unload_experiments():
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(EXPERIMENTS)):
            del sys.modules[name]


@pytest.fixture(scope="module")
def import_from():
    """`import_from(folder)` puts a folder on the path, as `python FILE` does, and returns `importlib.import_module`."""
    path = list(sys.path)

    def enter(folder):
        unload_experiments()
        sys.path[:] = [str(EXPERIMENTS / folder), str(EXPERIMENTS), *path]
        return importlib.import_module

    yield enter
    sys.path[:] = path
    unload_experiments()
