"""Fixtures: small data sets as tensorflow-datasets prepares them, and a machine without a network."""

import shutil
import socket

import pytest


@pytest.fixture(autouse=True)
def _no_data_of_this_machine(monkeypatch, tmp_path):
    """Point the default folder of prepared data sets to one that does not exist."""
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "default"))


@pytest.fixture
def no_network(monkeypatch):
    """Make every attempt to reach another machine fail as without a network; return the attempts."""
    attempts = []

    def fail(*address, **_):
        attempts.append(address)
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    monkeypatch.setattr(socket.socket, "connect", fail)
    return attempts


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    """Return a data_dir as tensorflow-datasets prepares it, with few examples of every data set."""
    import small_archives
    import tensorflow_datasets as tfds

    folder = tmp_path_factory.mktemp("prepared")
    tfds.disable_progress_bar()
    for name in small_archives.NAMES:
        small_archives.write_records(name, folder)
    return folder


@pytest.fixture
def data_dir(small, tmp_path):
    """Return a copy of the data_dir to damage, without caches."""
    ignore = shutil.ignore_patterns(".fedjax_srp")
    shutil.copytree(small, tmp_path / "data", ignore=ignore)
    return tmp_path / "data"
