"""`data prepare`: the arrays of original archives, from files or a server; errors if these are missing or damaged."""

import http.server
import re
import threading

import numpy as np
import pytest
import small_archives
import tensorflow_datasets as tfds
from numpy.testing import assert_array_equal
from reference.small import refused

from fedjax_srp.data import SOURCES, archives, is_ready, load, names, prepare, records
from fedjax_srp.lab.commands import cli

LABELS = "t10k-labels-idx1-ubyte.gz"


def manual(data_dir):
    return data_dir / "downloads" / "manual"


def prepare_quietly(name, data_dir):
    return prepare(name, data_dir, say=lambda _: None)


def error_of(capsys, *words):
    """Run the command, which must fail with an error of one line, and return the error."""
    words = ["data", "prepare", *map(str, words)]
    assert cli.main(words, set_up_cores=False) == 2
    error = capsys.readouterr().err
    assert error.startswith("fedjax-srp: error: ")
    assert error.count("\n") == 1
    return error


@pytest.mark.parametrize("name", small_archives.NAMES)
def test_arrays_are_those_of_the_archive(name, tmp_path, no_network, monkeypatch):
    images = records.IMAGES[name]
    small_archives.put(name.partition("/")[0], manual(tmp_path), monkeypatch)
    assert not is_ready(name, tmp_path)
    said = []
    assert prepare(name, tmp_path, say=said.append) == [tmp_path / f"{name}.npz"]
    assert re.fullmatch(f"{name}: preparing .*/{name}.npz", said[0])
    assert re.fullmatch(rf"{name}: 60 training and 20 test examples, \d+\.\d s", said[1])
    raw = SOURCES[name](tmp_path)
    for column, array in small_archives.arrays(name).items():
        if column.startswith("y"):
            array = array - images.first_label
        assert_array_equal(getattr(raw, column), array)
    assert raw.x_train.dtype == np.uint8
    assert raw.num_classes == images.num_classes
    assert is_ready(name, tmp_path)
    assert name in names(tmp_path)
    assert load(name, 2, data_dir=tmp_path).scale is not None  # of NORMALISATION
    assert not no_network


def test_originals_are_those_of_the_catalogue():
    for kind, originals in archives.ORIGINALS.items():
        infos = dict(tfds.builder_cls(kind).url_infos)
        for original in originals:
            info = infos.pop(original.folders[0] + original.name)
            assert original[:3] == (info.filename, info.size, info.checksum)
        assert not infos


def test_data_that_are_there_are_only_read(data_dir, no_network, monkeypatch):
    small_archives.put("mnist", manual(data_dir), monkeypatch)
    said = []
    prepare(["mnist", "emnist/digits"], data_dir, say=said.append)
    assert said[0] == f"mnist: already prepared in {data_dir}/mnist/3.0.1"
    (data_dir / "mnist" / "3.0.1" / "dataset_info.json").unlink()
    prepare_quietly("mnist", data_dir)  # from the archives
    for path in manual(data_dir).iterdir():
        path.unlink()
    prepare("mnist", data_dir, say=said.append)
    assert said[-2] == f"mnist: already prepared in {data_dir}/mnist.npz"
    (data_dir / "mnist.npz").write_bytes(b"PK")
    with refused("damaged"):
        prepare_quietly("mnist", data_dir)
    assert not no_network


def test_without_a_network_every_missing_file_is_named_once(
    tmp_path, no_network, monkeypatch, capsys
):
    folder = manual(tmp_path)
    small_archives.put("mnist", folder, monkeypatch)
    (folder / LABELS).unlink()
    (folder / "gzip.zip").write_text("another file")
    error = error_of(capsys, "mnist", "emnist", "cifar10", "--data-dir", tmp_path)
    assert "cannot download (ConnectionError at storage.googleapis.com, " in error
    assert f"put these files into {str(folder)!r} by hand: {LABELS} (" in error
    assert "train-images" not in error
    for file in (
        "gzip.zip (the file there has another SHA-256; 561,753,746 bytes, from https://",
        "cifar-10-binary.tar.gz (170,052,171 bytes, from https://",
    ):
        assert error.count(file) == 1
    assert no_network
    assert (folder / "gzip.zip").read_text() == "another file"
    with refused("has not been prepared.*run fedjax-srp data prepare mnist"):
        load("mnist", 2, data_dir=tmp_path)


class _Handler(http.server.BaseHTTPRequestHandler):
    """Serve files at /right/, and broken answers at other addresses."""

    def log_message(self, *_):
        pass

    def do_GET(self):
        _, way, name = self.path.split("/")
        content = (self.server.folder / name).read_bytes()
        self.server.requests.append(way)
        if way == "missing":
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if way == "login":
            content = b"x" * len(content)
        if way in ("cut", "stalls"):
            content = content[:-9]
        self.wfile.write(content)
        if way == "stalls":
            self.server.over.wait(10)


@pytest.fixture
def server(tmp_path):
    """Return a server on this machine, with files in its `folder`."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.folder = tmp_path / "server"
    server.requests = []
    server.over = threading.Event()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.over.set()
    server.shutdown()
    server.server_close()
    thread.join()


def put_on(server, ways, monkeypatch):
    """Make this server the source of MNIST's archives: its addresses of these ways, in order."""
    addresses = [f"http://127.0.0.1:{server.server_port}/{way}/" for way in ways]
    small_archives.put("mnist", server.folder, monkeypatch, addresses)


@pytest.mark.parametrize(
    ("way", "reason"),
    [
        ("missing", "status 404"),
        ("login", "a file with another checksum"),
        ("cut", r"\w+Error"),
        ("stalls", r"\w+(Error|Timeout)"),
    ],
)
def test_a_mirror_serves_if_an_address_fails(
    way, reason, server, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(archives, "_TIMEOUT", (0.5, 0.2))
    put_on(server, [way, way], monkeypatch)
    error = error_of(capsys, "mnist", "--data-dir", tmp_path)
    found = f"{reason} at 127.0.0.1"
    assert re.search(rf"cannot download \({found}, {found}\); put these files", error)
    assert server.requests == [way, way]
    assert not any(manual(tmp_path).iterdir())
    put_on(server, [way, "right"], monkeypatch)
    (manual(tmp_path) / LABELS).write_text("another file")
    prepare_quietly("mnist", tmp_path)
    assert server.requests[2:] == [way, "right"] * 4
    assert len(archives.read("mnist", tmp_path).y_train) == 60
    kept = {path.name: path.read_bytes() for path in manual(tmp_path).iterdir()}
    assert kept == {path.name: path.read_bytes() for path in server.folder.iterdir()}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "unknown data set '(none)'; choose from cifar10"),
        (("minst",), "unknown data set 'minst' (did you mean mnist or emnist?); choose"),
        (("sentiment140",), "unknown data set 'sentiment140'; choose from"),
        (
            ("mnist", "--data-dir", "{}/file"),
            "data_dir='{}/file': cannot prepare mnist there ([Errno ",
        ),
    ],
)
def test_errors_of_use(words, message, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    error = error_of(capsys, *(word.replace("{}", str(tmp_path)) for word in words))
    assert error.startswith(f"fedjax-srp: error: {message.replace('{}', str(tmp_path))}")
