"""Archives with the names and the layout of the originals but few examples, and records of the same examples."""

import gzip
import hashlib
import io
import struct
import tarfile
import zipfile

import numpy as np
from PIL import Image

from fedjax_srp.data import archives, records

NUM_EXAMPLES = {"train": 60, "test": 20}
NAMES = ("mnist", "emnist/letters", "emnist/digits", "cifar10", "cifar100")


def arrays(name):
    """Return random images and the labels of the archive, of every class if there are enough examples."""
    rng = np.random.default_rng(len(name))
    images = records.IMAGES[name]
    made = {}
    for split, number in NUM_EXAMPLES.items():
        pixels = rng.integers(0, 256, (number, *images.shape), dtype=np.uint8)
        labels = np.arange(number) % images.num_classes + images.first_label
        made[f"x_{split}"] = pixels
        made[f"y_{split}"] = labels.astype(np.uint8)
    return made


def idx_files(name, stems):
    files = {}
    made = arrays(name)
    for split, stem in stems.items():
        for column, kind in (("x", "images-idx3"), ("y", "labels-idx1")):
            array = made[f"{column}_{split}"]
            head = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
            packed = gzip.compress(head + array.tobytes(), mtime=0)
            files[f"{stem}-{kind}-ubyte.gz"] = packed
    return files


def mnist():
    return idx_files("mnist", {"train": "train", "test": "t10k"})


def emnist():
    """Return the archive with two of the six sets."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for part in ("letters", "digits"):
            stems = {split: f"gzip/emnist-{part}-{split}" for split in NUM_EXAMPLES}
            for file, content in idx_files(f"emnist/{part}", stems).items():
                archive.writestr(file, content)
    return {"gzip.zip": stream.getvalue()}


def cifar(name):
    """Return the archive of cifar10 with five files of training images, or of cifar100 with one and coarse labels."""
    made = arrays(name)
    names = {"train": "train.bin", "test": "test.bin"}
    if name == "cifar10":
        names = {"train": "data_batch_%d.bin", "test": "test_batch.bin"}
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for split, file in names.items():
            labels = made[f"y_{split}"][:, None]
            if name == "cifar100":
                labels = np.hstack([labels // 5, labels])
            pixels = made[f"x_{split}"].transpose(0, 3, 1, 2)
            table = np.hstack([labels, pixels.reshape(len(labels), -1)])
            parts = np.split(table, 5 if "%" in file else 1)
            for number, part in enumerate(parts, start=1):
                member = tarfile.TarInfo("folder/" + file.replace("%d", str(number)))
                member.size = part.size
                archive.addfile(member, io.BytesIO(part.tobytes()))
    return {archives.ORIGINALS[name][0].name: stream.getvalue()}


MAKERS = {
    "mnist": mnist,
    "emnist": emnist,
    "cifar10": lambda: cifar("cifar10"),
    "cifar100": lambda: cifar("cifar100"),
}


def put(kind, folder, monkeypatch, addresses=None):
    """Write the archives of a data set into a folder, and make them the originals, at other addresses if given."""
    files = MAKERS[kind]()
    folder.mkdir(parents=True, exist_ok=True)
    originals = []
    for original in archives.ORIGINALS[kind]:
        content = files[original.name]
        (folder / original.name).write_bytes(content)
        sha256 = hashlib.sha256(content).hexdigest()
        changed = original._replace(num_bytes=len(content), sha256=sha256)
        originals.append(changed._replace(folders=addresses or original.folders))
    monkeypatch.setitem(archives.ORIGINALS, kind, originals)


def write_records(name, data_dir):
    """Write what tensorflow-datasets makes of these archives, by its own builder, without TensorFlow."""
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core import registered

    kind, _, part = name.partition("/")
    base = tfds.builder_cls(kind)
    made = arrays(name)

    def examples(features, split):
        for i in range(NUM_EXAMPLES[split]):
            image = io.BytesIO()
            Image.fromarray(made[f"x_{split}"][i]).save(image, "PNG")
            image.seek(0)
            label = int(made[f"y_{split}"][i])
            example = {"image": image, "label": label, "coarse_label": label // 5}
            example["id"] = f"{split}_{i:05d}"
            yield i, {key: example[key] for key in features}

    def split_generators(self, _):
        return {split: examples(self.info.features, split) for split in NUM_EXAMPLES}

    members = {"__module__": base.__module__, "_split_generators": split_generators}
    with registered.skip_registration():
        builder = type(base.__name__, (base,), members)
    config = tfds.download.DownloadConfig(try_download_gcs=False)
    builder(
        data_dir=data_dir, file_format="array_record", config=part or None
    ).download_and_prepare(download_config=config)
