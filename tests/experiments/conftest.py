"""Fixtures for scripts of experiments that run in the process of the tests."""

import importlib

import pytest

import fedjax_srp as srp
from fedjax_srp.lab.commands import interrupt


@pytest.fixture(autouse=True)
def process_as_before(monkeypatch):
    """The devices of this process are already set, and Ctrl-C ends the tests."""
    monkeypatch.setattr(srp, "use_all_cores", lambda: None)
    monkeypatch.setattr(interrupt, "watch", lambda line: None)


@pytest.fixture(scope="module")
def import_from():
    """Return `import_from(folder)`, which returns a function that imports a script of this folder by name."""

    def enter(folder):
        package = f"experiments.{folder}" if folder else "experiments"
        return lambda name: importlib.import_module(f"{package}.{name}")

    return enter
