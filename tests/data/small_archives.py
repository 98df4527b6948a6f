"""Archives with the names and the layout of the originals but few examples, and their checksums."""

import gzip
import hashlib
import io
import struct
import tarfile
import zipfile

import numpy as np
from tensorflow_datasets.core.download import checksums

from fedjax_srp.data import _builders

NUM_TRAIN, NUM_TEST = 60, 20
TWEETS = (
    '"0","11","Mon Apr 06","NO_QUERY","anna","caf\xe9, closed ""again"""\r\n'
    '"4","11","Mon Apr 06","q","ben","fine"\r\n'
)


def arrays(shape, num_classes, first_label=0, seed=0):
    """Return random images and labels of both splits, with every class if there are enough examples."""
    rng = np.random.default_rng(seed)
    made = {}
    for split, number in (("train", NUM_TRAIN), ("test", NUM_TEST)):
        made[f"x_{split}"] = rng.integers(0, 256, (number, *shape), dtype=np.uint8)
        made[f"y_{split}"] = (np.arange(number) % num_classes + first_label).astype(
            np.uint8
        )
    return made


def idx_gz(array):
    head = struct.pack(">xxBB", 8, array.ndim) + struct.pack(
        f">{array.ndim}I", *array.shape
    )
    return gzip.compress(head + array.tobytes(), mtime=0)


def mnist(folder):
    made = arrays((28, 28), 10)
    files = {
        f"{prefix}-{kind}-ubyte.gz": idx_gz(made[f"{column}_{split}"])
        for split, prefix in (("train", "train"), ("test", "t10k"))
        for kind, column in (("images-idx3", "x"), ("labels-idx1", "y"))
    }
    _place(folder, _builders.MNIST, files)
    return made


def emnist(folder):
    """Return {configuration: arrays} for two of the six."""
    made = {
        "letters": arrays((28, 28), 26, first_label=1, seed=1),
        "digits": arrays((28, 28), 10, seed=2),
    }
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for config, columns in made.items():
            for split in ("train", "test"):
                stem = f"gzip/emnist-{config}-{split}"
                archive.writestr(
                    f"{stem}-images-idx3-ubyte.gz", idx_gz(columns[f"x_{split}"])
                )
                archive.writestr(
                    f"{stem}-labels-idx1-ubyte.gz", idx_gz(columns[f"y_{split}"])
                )
    _place(folder, _builders.EMNIST, {"gzip.zip": stream.getvalue()})
    return made


def cifar(folder, name):
    """Make cifar10 with five files of training images, or cifar100 with one and coarse labels."""
    fine = {"cifar10": 10, "cifar100": 100}[name]
    made = arrays((32, 32, 3), fine, seed=3)
    rows = {}
    for split in ("train", "test"):
        labels = made[f"y_{split}"][:, None]
        labels = labels if fine == 10 else np.concatenate([labels // 5, labels], axis=1)
        pixels = made[f"x_{split}"].transpose(0, 3, 1, 2).reshape(len(labels), -1)
        rows[split] = np.concatenate([labels, pixels], axis=1)
    if fine == 10:
        parts = {
            f"data_batch_{i + 1}.bin": part
            for i, part in enumerate(np.split(rows["train"], 5))
        }
        files = {
            **parts,
            "test_batch.bin": rows["test"],
            "batches.meta.txt": names(10) + b"\n",
        }
        files = {
            f"cifar-10-batches-bin/{file}": bytes(content)
            for file, content in files.items()
        }
    else:
        files = {"train.bin": rows["train"], "test.bin": rows["test"]}
        files |= {"coarse_label_names.txt": names(20), "fine_label_names.txt": names(100)}
        files = {
            f"cifar-100-binary/{file}": bytes(content) for file, content in files.items()
        }
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for file, content in files.items():
            member = tarfile.TarInfo(file)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    builder = {"cifar10": _builders.Cifar10, "cifar100": _builders.Cifar100}[name]
    _place(folder, builder, {f"cifar-{fine}-binary.tar.gz": stream.getvalue()})
    return made


def names(number):
    return b"".join(b"kind_%d\n" % i for i in range(number))


def sentiment140(folder):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr(
            "training.1600000.processed.noemoticon.csv", TWEETS.encode("ISO-8859-1")
        )
        archive.writestr(
            "testdata.manual.2009.06.14.csv", '"2","3","May","kindle2","tpryan","so so"\n'
        )
    _place(folder, _builders.Sentiment140, {"trainingandtestdata.zip": stream.getvalue()})


def _place(folder, builder, files):
    """Write the files, and make the builder expect their checksums until `restore`."""
    manual = folder / "downloads" / "manual"
    manual.mkdir(parents=True, exist_ok=True)
    known = {info.filename: url for url, info in _ORIGINAL[builder].items()}
    assert set(known) == set(files), "files have other names than the originals"
    builder.url_infos = {
        known[name]: checksums.UrlInfo(
            len(content), hashlib.sha256(content).hexdigest(), name
        )
        for name, content in files.items()
    }
    for name, content in files.items():
        (manual / name).write_bytes(content)


_ORIGINAL = {builder: builder.url_infos for builder in _builders.BUILDERS.values()}


def restore():
    """Restore the checksums of all builders."""
    for builder, infos in _ORIGINAL.items():
        builder.url_infos = infos
