"""Data sets of Hugging Face and partitions of flwr-datasets: fakes, and the real libraries if installed."""

from types import SimpleNamespace

import numpy as np
import pytest
from clients import rows
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image
from reference.small import refused

from fedjax_srp.data import from_huggingface, partition

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (60, 5, 5)).astype(np.uint8)
LABELS = np.arange(60) % 4
WRITERS = np.array([f"w{i % 5}" for i in range(60)])


class Picture:
    """An entry of an image column: an object that NumPy can read, like an image of PIL."""

    def __init__(self, pixels):
        self.pixels = pixels

    def __array__(self, dtype=None, copy=None):
        return self.pixels


class Dataset:
    """A fake of `datasets.Dataset`."""

    def __init__(self, **columns):
        self.columns = columns
        self.column_names = list(columns)

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, name):
        assert isinstance(name, str)
        return list(self.columns[name])

    def rows(self, chosen):
        columns = {}
        for name, column in self.columns.items():
            columns[name] = [column[i] for i in chosen]
        return Dataset(**columns)


OTHERS = {"label": LABELS.tolist(), "writer": WRITERS.tolist()}
PICTURES = Dataset(image=list(map(Picture, IMAGES)), **OTHERS)
NEGATIVES = Dataset(image=list(255 - IMAGES), **OTHERS)


class Partitioner:
    """A fake of a partitioner of flwr-datasets, with every `num_partitions`-th row."""

    def __init__(self, dataset, num_partitions=3):
        self.dataset = dataset
        self.num_partitions = num_partitions

    def load_partition(self, partition_id):
        return self.dataset.rows(range(partition_id, 60, 3))


class People(Partitioner):
    """A fake of `NaturalIdPartitioner`: partitions are numbered in the order in which people occur."""

    def __init__(self, dataset, order=("ann", "bob", "cy")):
        super().__init__(dataset)
        self.order = order
        self.partition_id_to_natural_id = {}

    def load_partition(self, partition_id):
        self.partition_id_to_natural_id = dict(enumerate(self.order))
        number = sorted(self.order).index(self.order[partition_id])
        return super().load_partition(number)


def pictures_of(data, kind="train", images=IMAGES):
    """Return the rows of `images` that each client has."""
    numbers = {image.tobytes(): row for row, image in enumerate(images)}
    x = np.asarray(getattr(data, f"x_{kind}"))
    return [[numbers[x[row].tobytes()] for row in own] for own in rows(data, kind)]


def all_pictures(data):
    clients = pictures_of(data) + pictures_of(data, "test")
    return sorted(row for own in clients for row in own)


def test_splits_become_training_and_test_data():
    splits = {"train": PICTURES.rows(range(40)), "test": PICTURES.rows(range(40, 60))}
    options = {"classes_per_client": 2, "seed": 1, "name": "mine"}
    data = from_huggingface(splits, 4, **options)
    assert (data.num_clients, data.num_classes, data.name) == (4, 4, "mine")
    expected = partition.by_classes(LABELS[:40], LABELS[40:], 4, 2, seed=1)
    assert pictures_of(data) == [own.tolist() for own in expected.train]
    assert pictures_of(data, "test") == [(40 + own).tolist() for own in expected.test]
    first = IMAGES[pictures_of(data)[0][0]]
    assert_allclose(data.train_client(0).x[0], first / 255, rtol=1e-6)


@pytest.mark.parametrize(
    "given", [{"num_clients": 6, "alpha": 1.0}, {"num_clients": 6}, {"user": "writer"}]
)
def test_without_a_test_split_a_share_is_held_out(given):
    data = from_huggingface(PICTURES, **given, test_fraction=0.25)
    assert all_pictures(data) == list(range(60))
    tests = pictures_of(data, "test")
    if "user" in given:
        for client, own in enumerate(pictures_of(data)):
            assert {*WRITERS[own]} == {f"w{client}"}
        assert [len(own) for own in tests] == [3] * 5  # of 12
    else:  # round(0.25 * 15)
        assert_array_equal(np.bincount(LABELS[np.concatenate(tests)]), 4)
    other = from_huggingface(PICTURES, **given, test_fraction=0.25, seed=1)
    assert pictures_of(other, "test") != tests


def test_each_class_keeps_an_example_for_training():
    few = Dataset(image=IMAGES[:5], label=[0, 0, 0, 0, 1])
    data = from_huggingface(few, 1, test_fraction=0.99)
    assert sorted(data.y_train.tolist()) == [0, 1]
    assert data.y_test.tolist() == [0, 0, 0]


PARTS = [list(range(i, 60, 3)) for i in range(3)]


def test_partitions_are_clients():
    data = from_huggingface(Partitioner(PICTURES), test=Partitioner(NEGATIVES))
    assert pictures_of(data) == pictures_of(data, "test", 255 - IMAGES) == PARTS
    split = from_huggingface(Partitioner(PICTURES))
    assert all_pictures(split) == list(range(60))
    assert [len(own) for own in rows(split, "test")] == [4, 4, 4]
    some = Partitioner(PICTURES)
    some.load_partition = lambda i: PICTURES.rows(PARTS[i] if i != 1 else [])
    with pytest.warns(UserWarning, match=r"dataset: partitions \[1\] are empty and left"):
        assert from_huggingface(some).num_clients == 2


def test_partitions_are_paired_by_natural_id():
    tests = People(NEGATIVES, ("cy", "ann", "bob"))
    data = from_huggingface(People(PICTURES), test=tests)
    assert data.client_names == ("ann", "bob", "cy")
    assert pictures_of(data) == PARTS
    assert [sorted(own) for own in pictures_of(data, "test", 255 - IMAGES)] == PARTS


def test_partitions_may_be_dicts_of_columns():
    partitioner = Partitioner(PICTURES)
    partitioner.load_partition = lambda i: PICTURES.rows(PARTS[i]).columns
    data = from_huggingface(partitioner)
    assert all_pictures(data) == list(range(60))
    assert data.num_clients == 3


def test_texts_become_tokens():
    columns = {"text": ["a b b", "b c", "b a"] * 4, "label": [0, 1, 0] * 4}
    # short texts may be equal
    splits = {"train": Dataset(**columns), "test": Dataset(**columns)}
    data = from_huggingface(splits, 2, x="text")
    assert data.example_shape == (25,)
    assert_array_equal(data.x_train[0, :4], [3, 2, 2, 0])


class Tensor(np.ndarray):
    """A fake of torch's, which `Dataset.with_format("torch")` gives."""

    def mode(self):
        """The most frequent value."""


def test_tensors_are_no_images_of_several_modes():
    tensors = Dataset(image=[image.view(Tensor) for image in IMAGES], label=LABELS)
    assert all_pictures(from_huggingface(tensors, 4)) == list(range(60))


def images(*column):
    return Dataset(image=column, label=range(len(column)))


def users(*column):
    return Dataset(image=[np.zeros(2)] * 2, label=[0, 1], u=column)


NOBODY = SimpleNamespace(num_partitions=3, load_partition=lambda _: [])
PALETTE = Image.fromarray(IMAGES[0]).quantize()
WRONG = [
    (PICTURES, {"x": "pixels"}, "x='pixels' is not a column of dataset; choose from im"),
    (PICTURES, {"user": "who"}, "user='who' is not a column of dataset"),
    (PICTURES, {"alhpa": 1.0}, r"unknown argument 'alhpa' \(did you mean alpha\?\)"),
    ([1, 2], {}, "dataset=.*list.* is not a data set, or has no rows; give a datasets"),
    (
        images(np.zeros((2, 2)), np.zeros((3, 2))),
        {},
        r"column 'image' has rows of shapes \[\(2, 2\), \(3, 2\)\]; give them one shape",
    ),
    # numbers of colours, not grey levels
    (
        images(PALETTE, PALETTE),
        {},
        "column 'image' has images of modes P; convert all to",
    ),
    (
        images(Image.new("RGBA", (2, 2)), Image.new("CMYK", (2, 2))),
        {},
        "column 'image' has images of modes CMYK, RGBA; convert all",
    ),
    (
        Dataset(image=[np.zeros(2)] * 2, label=[0, None]),
        {},
        r"column 'label': is object of shape \(2,\); give one integer class number for",
    ),
    (
        images(*[np.ma.masked_array(np.zeros(2), [True, False])] * 2),
        {},
        r"column 'image': is not a plain array \(it has a mask, which would be lost",
    ),
    (users("a", "a\0"), {"user": "u"}, r"user='u' has 'a\\x00', which contains a NUL"),
    (users(1, "1"), {"user": "u"}, "user='u' has values of type int, str; give texts"),
    (
        {"train": users("1", "2"), "test": users(1, 2)},
        {"user": "u"},
        "users_test: are numbers, users_train text, .*; give both as",
    ),
    (Partitioner(PICTURES), {"user": "writer"}, "the partitions of dataset are the cli"),
    (Partitioner(PICTURES), {"test": PICTURES}, "test: dataset and test must be of one"),
    (NOBODY, {}, "dataset: all 3 partitions are empty; give"),
    (
        Partitioner(PICTURES),
        {"test": Partitioner(NEGATIVES, 2)},
        "test: has 2 partitions and dataset 3.* give partitioners",
    ),
    (
        Partitioner(PICTURES),
        {"test": Partitioner(PICTURES)},
        "x_test: all 60 test examples equal training",
    ),
    (
        People(PICTURES),
        {"test": People(NEGATIVES, ("ann", "bob", "dan"))},
        r"test: 1 natural ids \(\['dan'\]\) are in one of .*the same people",
    ),
    (
        People(PICTURES),
        {"test": Partitioner(NEGATIVES)},
        "test: only dataset has partition_id_to_natural_id.* for both",
    ),
    (
        Dataset(image=["a", None], label=[0, 0]),
        {},
        r"x_train: is .* of shape \(1,\); give floats or integers",
    ),
    (
        {"train": images("a", "b"), "test": images(1, 2)},
        {"num_clients": 1},
        "x_train: is <U1 of shape",
    ),
]


@pytest.mark.parametrize(
    ("dataset", "options", "message"), WRONG, ids=[message for *_, message in WRONG]
)
def test_refusals(dataset, options, message):
    is_divided = "user" in options or hasattr(dataset, "num_partitions")
    given = {"num_clients": None if is_divided else 1} | options
    with refused(message):
        from_huggingface(dataset, **given)


@pytest.mark.parametrize("dataset", [Partitioner(PICTURES), PICTURES])
def test_an_object_is_not_both_for_training_and_test(dataset):
    with refused("test: is the same object as dataset.* leave test out"):
        from_huggingface(dataset, test=dataset)


def test_the_real_data_sets(tmp_path):
    datasets = pytest.importorskip("datasets")
    features = {
        "image": datasets.Image(),
        "label": datasets.ClassLabel(num_classes=4),
        "writer": datasets.Value("string"),
    }
    columns = {"image": list(map(Image.fromarray, IMAGES)), **OTHERS}
    whole = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
    expected = from_huggingface(PICTURES, user="writer")
    whole.save_to_disk(tmp_path / "saved")
    for dataset in (
        whole,
        datasets.load_from_disk(tmp_path / "saved"),
        datasets.DatasetDict(train=whole),
    ):
        data = from_huggingface(dataset, user="writer")
        assert pictures_of(data) == pictures_of(expected)
    halves = {"train": whole.select(range(40)), "test": whole.select(range(40, 60))}
    both = datasets.DatasetDict(halves)
    assert from_huggingface(both, 4, alpha=1.0).num_clients == 4
    assert from_huggingface(whole.with_format("numpy"), 4).num_clients == 4


def test_the_real_partitioners():
    datasets = pytest.importorskip("datasets")
    flwr = pytest.importorskip("flwr_datasets.partitioner")
    columns = {"image": IMAGES.tolist(), "label": LABELS.tolist()}
    for partitioner in (
        flwr.IidPartitioner(num_partitions=4),
        flwr.DirichletPartitioner(
            4, partition_by="label", alpha=1.0, min_partition_size=4
        ),
        flwr.PathologicalPartitioner(
            4, partition_by="label", num_classes_per_partition=2
        ),
    ):
        partitioner.dataset = datasets.Dataset.from_dict(columns)
        data = from_huggingface(partitioner)
        assert data.num_clients == 4
        sizes = [len(partitioner.load_partition(i)) for i in range(4)]
        assert (np.asarray(data.train_counts) + data.test_count).tolist() == sizes
