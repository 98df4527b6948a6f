"""Fixtures: data sets prepared from small archives, and a machine without a network."""

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
    """Return a data_dir with every data set, prepared from archives of a few examples; the examples; the output."""
    import small_archives

    from fedjax_srp.data import prepare

    folder = tmp_path_factory.mktemp("prepared")
    made = {"mnist": small_archives.mnist(folder)}
    made |= {
        f"emnist/{config}": columns
        for config, columns in small_archives.emnist(folder).items()
    }
    made |= {name: small_archives.cifar(folder, name) for name in ("cifar10", "cifar100")}
    small_archives.sentiment140(folder)
    said = []
    prepare([*made, "sentiment140"], folder, say=said.append)
    small_archives.restore()
    return folder, made, said


@pytest.fixture
def data_dir(small, tmp_path):
    """Return a copy of the data_dir to damage, without caches."""
    import shutil

    shutil.copytree(
        small[0],
        tmp_path / "data",
        ignore=shutil.ignore_patterns(".fedjax_srp", "downloads"),
    )
    return tmp_path / "data"
