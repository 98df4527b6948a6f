"""`data prepare`: records equal those of tensorflow-datasets, and errors if archives are missing or damaged."""

import functools
import http.server
import re
import shutil
import socket
import threading
from pathlib import Path

import pytest
import small_archives
import tensorflow_datasets as tfds
from reference.small import refused
from tensorflow_datasets.core.download import resource
from tensorflow_datasets.core.utils import tqdm_utils

from fedjax_srp.data import _builders, archives, load, prepare, records
from fedjax_srp.lab.commands import cli


@pytest.fixture(autouse=True)
def _originals():
    yield
    small_archives.restore()


def main(*words):
    return cli.main(
        [str(word) for word in ("data", "prepare", *words)], set_up_cores=False
    )


def error_of(capsys, *words):
    """Run the command, which must fail with an error of one line, and return the error."""
    assert main(*words) == 2
    error = capsys.readouterr().err
    assert error.startswith("fedjax-srp: error: ")
    assert error.count("\n") == 1
    return error


@pytest.mark.parametrize(
    "name",
    ["mnist", "emnist/letters", "emnist/digits", "cifar10", "cifar100", "sentiment140"],
)
def test_metadata_agree_with_the_catalogue(name, small):
    folder = small[0]
    shipped = tfds.builder(
        name, data_dir=folder / "elsewhere", file_format="array_record"
    )
    written = tfds.builder_from_directory(folder / name / str(shipped.version))
    assert written.info.full_name == shipped.info.full_name
    assert written.info.module_name == shipped.info.module_name
    assert str(written.info.features) == str(shipped.info.features)
    assert written.info.supervised_keys == shipped.info.supervised_keys
    assert str(written.info.citation) == str(shipped.info.citation)
    assert written.info.description == shipped.info.description


def test_examples_have_their_ids_and_names(small):
    folder, made, _ = small
    for name, keys in (("cifar10", ["label"]), ("cifar100", ["label", "coarse_label"])):
        for split, number in (("train", 60), ("test", 20)):
            source = tfds.data_source(name, split=split, data_dir=folder, download=False)
            rows = {example["id"].decode(): example for example in source}
            assert set(rows) == {f"{split}_{i:05d}" for i in range(number)}
            for i in range(number):
                example = rows[f"{split}_{i:05d}"]
                assert (example["image"] == made[name][f"x_{split}"][i]).all()
                assert example["label"] == made[name][f"y_{split}"][i]
                assert (
                    "coarse_label" not in keys
                    or example["coarse_label"] == example["label"] // 5
                )
            assert source.dataset_info.features["label"].names[3] == "kind_3"


def test_keys_of_mnist_are_positions():
    """As those of the shipped builder; the order of the records follows from them."""
    made = small_archives.arrays((28, 28), 10)
    images, labels = (
        _builders.gzip.decompress(small_archives.idx_gz(made[f"{c}_train"])) for c in "xy"
    )
    assert [key for key, _ in _builders._labelled_images(images, labels)] == [*range(60)]


def test_tweets_keep_quotes_line_ends_and_latin_1(small):
    source = tfds.data_source(
        "sentiment140", split="train", data_dir=small[0], download=False
    )
    rows = {example["user"]: example for example in source}
    assert rows[b"anna"]["text"].decode() == 'caf\xe9, closed "again"'
    assert (
        rows[b"anna"]["polarity"],
        rows[b"ben"]["polarity"],
        rows[b"ben"]["query"],
    ) == (0, 4, b"q")


def test_progress_is_printed(small):
    _, _, said = small
    assert re.fullmatch(r"mnist: preparing .*/mnist/3\.0\.1", said[0])
    assert re.fullmatch(r"mnist: 60 training and 20 test examples, \d+\.\d s", said[1])
    assert re.fullmatch(r"sentiment140: 2 train and 1 test, \d+\.\d s", said[-2])
    assert said[-1].startswith(
        "sentiment140: is text, which load reads only in LEAF's layout; read its records with"
    )


def test_prepared_data_are_only_read(data_dir, no_network, capsys):
    assert main("mnist", "emnist/digits", "--data-dir", data_dir) == 0
    assert capsys.readouterr().out.count("already prepared in") == 2
    records_file = (
        data_dir / "mnist" / "3.0.1" / "mnist-train.array_record-00000-of-00001"
    )
    records_file.write_bytes(records_file.read_bytes()[:5000])
    error = error_of(capsys, "mnist", "--data-dir", data_dir)
    assert "is damaged (" in error
    assert (
        f"delete {data_dir / 'mnist' / '3.0.1'} and run fedjax-srp data prepare mnist"
        in error
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            '"fileFormat": "array_record"',
            '"fileFormat": "tfrecord"',
            "was prepared as tfrecord files, which only",
        ),
        ("{", "", "3.0.1 has a damaged dataset_info.json (Extra data"),
    ],
)
def test_data_prepared_in_another_format_are_kept(
    old, new, message, data_dir, no_network, capsys
):
    path = data_dir / "mnist" / "3.0.1" / "dataset_info.json"
    text = path.read_text()
    path.write_text(text.replace(old, new, 1))
    assert message in error_of(capsys, "mnist", "--data-dir", data_dir)
    assert path.read_text() != text


def test_another_version_does_not_hide_an_unfinished_one(data_dir, no_network, capsys):
    folder = data_dir / "mnist" / "3.0.1"
    shutil.copytree(folder, folder.with_name("2.0.0"))
    (folder / "dataset_info.json").unlink()
    assert main("mnist", "--data-dir", data_dir) == 2
    said = capsys.readouterr()
    assert f"{folder} lacks dataset_info.json" in said.err
    assert (
        f"delete {folder} and run fedjax-srp data prepare mnist --data-dir {data_dir}"
        in said.err
    )
    assert "already prepared" not in said.out


def test_the_home_folder_is_expanded(monkeypatch, tmp_path, no_network):
    monkeypatch.setenv("HOME", str(tmp_path))
    small_archives.mnist(tmp_path / "data")
    assert prepare("mnist", "~/data", say=lambda _: None) == [
        tmp_path / "data" / "mnist" / "3.0.1"
    ]
    assert load("mnist", 2, data_dir="~/data").num_clients == 2
    assert not Path("~").exists()
    assert not no_network


def test_without_a_network_every_missing_file_is_named_once(tmp_path, no_network, capsys):
    small_archives.mnist(tmp_path)
    manual = tmp_path / "downloads" / "manual"
    (manual / "t10k-labels-idx1-ubyte.gz").unlink()
    error = error_of(
        capsys, "mnist", "emnist", "cifar10", "sentiment140", "--data-dir", tmp_path
    )
    assert "cannot download (ConnectionError at " in error
    assert (
        f"put these files into {manual} by hand: t10k-labels-idx1-ubyte.gz (39 bytes, from https://"
        in error
    )
    assert "train-images" not in error
    for file in (
        "gzip.zip (561,753,746 bytes",
        "cifar-10-binary.tar.gz (170,052,171",
        "trainingandtestdata.zip (81,3",
    ):
        assert error.count(file) == 1
    assert no_network
    with refused("has not been prepared"):
        load("mnist", 2, data_dir=tmp_path)


@pytest.mark.parametrize(
    "content",
    [lambda good: good[:-1], lambda good: b"x" + good[1:]],
    ids=["another size", "another checksum"],
)
def test_an_archive_with_another_checksum_is_refused(
    content, tmp_path, no_network, capsys
):
    small_archives.emnist(tmp_path)
    path = tmp_path / "downloads" / "manual" / "gzip.zip"
    path.write_bytes(content(path.read_bytes()))
    error = error_of(capsys, "emnist/digits", "--data-dir", tmp_path)
    assert f"{path}, has wrong checksum: " in error
    assert error.endswith(
        "delete the archive if it is not the original, free disk space, or give another data_dir\n"
    )
    assert not no_network


def downloaded(data_dir, file, content, with_info=True):
    """Put a file into tensorflow-datasets' downloads of MNIST, under the name of the original's checksum."""
    ((url, info),) = (
        (url, info)
        for url, info in _builders.MNIST.url_infos.items()
        if info.filename == file
    )
    path = data_dir / "downloads" / "mnist" / resource.get_dl_fname(url, info.checksum)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    if with_info:
        resource.write_info_file(url, path, "mnist", file, info)
    return path


@pytest.mark.parametrize(
    "spoil", [lambda good: good[:-20], lambda good: good[:-9] + b"\7" + good[-8:]]
)
def test_downloads_of_tensorflow_datasets_are_checked(
    spoil, tmp_path, no_network, capsys
):
    small_archives.mnist(tmp_path)
    manual = tmp_path / "downloads" / "manual"
    for file in ("train-labels-idx1-ubyte.gz", "t10k-images-idx3-ubyte.gz"):
        good = (manual / file).read_bytes()
        (manual / file).unlink()
        path = downloaded(tmp_path, file, good)
    path.write_bytes(spoil(good))
    error = error_of(capsys, "mnist", "--data-dir", tmp_path)
    assert re.search(
        r"cannot prepare mnist there \(.+\); delete the archive if it is not the original",
        error,
    )
    path.write_bytes(good)
    assert main("mnist", "--data-dir", tmp_path) == 0
    assert not no_network


def test_a_download_without_metadata_counts_as_missing(tmp_path, no_network, capsys):
    small_archives.mnist(tmp_path)
    file = tmp_path / "downloads" / "manual" / "t10k-labels-idx1-ubyte.gz"
    downloaded(tmp_path, file.name, file.read_bytes(), with_info=False)
    file.unlink()
    error = error_of(capsys, "mnist", "--data-dir", tmp_path)
    assert f"put these files into {file.parent} by hand: {file.name} (39 bytes" in error


def test_a_killed_preparation_is_not_used(tmp_path, monkeypatch):
    small_archives.mnist(tmp_path)

    def killed(images, labels):
        yield (
            0,
            {
                "image": _builders._encode_png(_builders._decode_idx(images)[0]),
                "label": 1,
            },
        )
        shutil.copytree(*unfinished())  # SIGKILL leaves the folder behind
        raise KeyboardInterrupt

    def unfinished():
        (place,) = (tmp_path / "mnist").glob("incomplete.*")
        return place, place.with_name("incomplete.KILLED_3.0.1")

    with monkeypatch.context() as patch:
        patch.setattr(_builders, "_labelled_images", killed)
        with pytest.raises(KeyboardInterrupt):
            prepare(["mnist"], tmp_path, say=lambda _: None)
    with refused(
        r"did not finish \(incomplete.KILLED_3.0.1\).*; run fedjax-srp data prepare"
    ):
        load("mnist", 2, data_dir=tmp_path)
    (tmp_path / "mnist" / "3.0.1").mkdir()  # as a copy that was interrupted
    prepare(["mnist"], tmp_path, say=lambda _: None)
    assert len(records.read("mnist", tmp_path).y_train) == 60


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def download_from(address, monkeypatch):
    """Make this server the source of MNIST's archives."""
    monkeypatch.setattr(_builders.MNIST, "URL", address)
    infos = {address + info.filename: info for info in _builders.MNIST.url_infos.values()}
    monkeypatch.setattr(_builders.MNIST, "url_infos", infos)


@pytest.fixture
def served(tmp_path, monkeypatch):
    """Serve the archives of MNIST on this machine; return their folder and an empty data_dir."""
    small_archives.mnist(tmp_path / "server")
    files = tmp_path / "server" / "downloads" / "manual"
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(_Quiet, directory=str(files))
    )
    download_from(f"http://127.0.0.1:{server.server_port}/", monkeypatch)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield files, tmp_path / "data"
    server.shutdown()
    server.server_close()
    thread.join()


def test_archives_are_downloaded(served):
    files, data_dir = served
    prepare(["mnist"], data_dir, say=lambda _: None)
    assert len(records.read("mnist", data_dir).y_train) == 60
    kept = data_dir / "downloads" / "manual"
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == {
        path.name: path.read_bytes() for path in files.iterdir()
    }


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (
            lambda file: file.write_bytes(b"a page that asks for a login"),
            "a file with another checksum",
        ),
        (Path.unlink, "status 404"),
    ],
    ids=["something else", "nothing"],
)
def test_a_server_without_the_file_is_reported(spoil, reason, served, capsys):
    files, data_dir = served
    spoil(files / "t10k-labels-idx1-ubyte.gz")
    error = error_of(capsys, "mnist", "--data-dir", data_dir)
    assert f"cannot download ({reason} at 127.0.0.1); put these files into" in error
    assert "t10k-labels-idx1-ubyte.gz (39 bytes" in error


@pytest.mark.parametrize(
    "sends", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 39\r\n\r\nso far"]
)
def test_a_server_that_stalls_is_reported(sends, tmp_path, monkeypatch, capsys):
    """The server accepts connections and then sends nothing, or a part."""
    monkeypatch.setattr(archives, "_TIMEOUT", (0.2, 0.2))
    small_archives.mnist(tmp_path)
    file = tmp_path / "downloads" / "manual" / "t10k-labels-idx1-ubyte.gz"
    file.unlink()
    with socket.create_server(("127.0.0.1", 0)) as server:
        download_from(f"http://127.0.0.1:{server.getsockname()[1]}/", monkeypatch)
        connections = []

        def answer():
            connections.append(server.accept()[0])
            connections[-1].sendall(sends)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        error = error_of(capsys, "mnist", "--data-dir", tmp_path)
        thread.join()
        connections[0].close()
    assert re.search(
        rf"cannot download \(\w+ at 127.0.0.1\); .* by hand: {file.name} \(39 bytes",
        error,
    )
    assert not list(file.parent.glob("*.writing"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "unknown data set '(none)'; choose from cifar10"),
        (
            ("minst",),
            "unknown data set 'minst' (did you mean mnist or emnist?); choose from cifar10",
        ),
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


@pytest.mark.parametrize("are_shown", [False, True])
def test_progress_bars_of_tensorflow_datasets_are_afterwards_as_before(are_shown):
    tfds.display_progress_bar(are_shown)
    try:
        with archives._without_bars():
            assert isinstance(tqdm_utils.tqdm(), tqdm_utils.EmptyTqdm)
        assert isinstance(tqdm_utils.tqdm(), tqdm_utils.EmptyTqdm) != are_shown
    finally:
        tfds.enable_progress_bar()
