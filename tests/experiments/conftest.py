"""Fixture that imports scripts of experiments, whose devices are those of the tests."""

import importlib

import pytest

import fedjax_srp as srp


@pytest.fixture(autouse=True)
def without_setting_devices(monkeypatch):
    """The devices of this process are already set."""
    monkeypatch.setattr(srp, "use_all_cores", lambda: None)


@pytest.fixture(scope="module")
def import_from():
    """Return `import_from(folder)`, which returns a function that imports a script of this folder by name."""

    def enter(folder):
        package = f"experiments.{folder}" if folder else "experiments"
        return lambda name: importlib.import_module(f"{package}.{name}")

    return enter
