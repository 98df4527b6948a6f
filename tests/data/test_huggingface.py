"""Data sets of Hugging Face and partitions of flwr-datasets: fakes, and the real libraries if installed."""

from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from reference.small import refused

import fedjax_srp as srp

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (60, 5, 5)).astype(np.uint8)
LABELS, WRITERS = np.arange(60) % 4, np.array([f"w{i % 5}" for i in range(60)])


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

    def rows(self, rows):
        return Dataset(
            **{name: [column[i] for i in rows] for name, column in self.columns.items()}
        )


class Partitioner:
    """A fake of a partitioner of flwr-datasets."""

    num_partitions = 3

    def __init__(self, dataset):
        self.dataset = dataset

    def load_partition(self, partition_id):
        return self.dataset.rows(range(partition_id, 60, 3))


PICTURES = Dataset(
    image=[Picture(pixels) for pixels in IMAGES],
    label=LABELS.tolist(),
    writer=WRITERS.tolist(),
)


NEGATIVES = Dataset(
    image=[255 - pixels for pixels in IMAGES],
    label=LABELS.tolist(),
    writer=WRITERS.tolist(),
)


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


def rows_of(data, client, kind="train"):
    """Return the rows of IMAGES that a client has."""
    own = getattr(data, f"{kind}_indices")[client][
        : int(getattr(data, f"{kind}_counts")[client])
    ]
    images = np.asarray(getattr(data, f"x_{kind}"))[np.asarray(own)]
    return [int(np.flatnonzero((image == IMAGES).all((1, 2)))[0]) for image in images]


def all_rows(data):
    return sorted(
        row
        for kind in ("train", "test")
        for i in range(data.num_clients)
        for row in rows_of(data, i, kind)
    )


def test_splits_become_training_and_test_data():
    train, test = PICTURES.rows(range(40)), PICTURES.rows(range(40, 60))
    data = srp.data.from_huggingface(
        {"train": train, "test": test}, 4, classes_per_client=2, seed=1, name="mine"
    )
    assert (data.num_clients, data.num_classes, data.name, data.example_shape) == (
        4,
        4,
        "mine",
        (5, 5),
    )
    expected = srp.data.partition.by_classes(LABELS[:40], LABELS[40:], 4, 2, seed=1)
    for client in range(4):
        assert rows_of(data, client) == expected.train[client].tolist()
        assert rows_of(data, client, "test") == (40 + expected.test[client]).tolist()
    np.testing.assert_allclose(
        data.train_client(0).x[0], IMAGES[rows_of(data, 0)[0]] / 255, rtol=1e-6
    )


@pytest.mark.parametrize(
    "given", [{"num_clients": 6, "alpha": 1.0}, {"num_clients": 6}, {"user": "writer"}]
)
def test_without_a_test_split_a_share_is_held_out(given):
    data = srp.data.from_huggingface(PICTURES, **given, test_fraction=0.25)
    assert all_rows(data) == list(range(60))
    tests = [
        row for client in range(data.num_clients) for row in rows_of(data, client, "test")
    ]
    if "user" in given:
        assert data.num_clients == 5
        for client in range(5):
            assert {WRITERS[row] for row in rows_of(data, client)} == {f"w{client}"}
            assert len(rows_of(data, client, "test")) == 3  # of 12
    else:
        np.testing.assert_array_equal(
            np.bincount(LABELS[tests]), [4, 4, 4, 4]
        )  # round(0.25 * 15)
    other = srp.data.from_huggingface(PICTURES, **given, test_fraction=0.25, seed=1)
    assert rows_of(other, 0, "test") != rows_of(data, 0, "test")
    few = Dataset(image=PICTURES["image"][:5], label=[0, 0, 0, 0, 1])
    data = srp.data.from_huggingface(
        few, 1, test_fraction=0.99
    )  # each class keeps an example for training
    assert (sorted(data.y_train.tolist()), data.y_test.tolist()) == ([0, 1], [0, 0, 0])


def test_partitions_are_clients():
    data = srp.data.from_huggingface(Partitioner(PICTURES), test=Partitioner(NEGATIVES))
    assert [rows_of(data, i) for i in range(3)] == [
        list(range(i, 60, 3)) for i in range(3)
    ]
    for i in range(3):
        tests = 255 - np.asarray(data.x_test)[np.asarray(data.test_indices[i])]
        np.testing.assert_array_equal(tests, IMAGES[i::3])
    split = srp.data.from_huggingface(Partitioner(PICTURES))
    assert all_rows(split) == list(range(60))
    assert [len(rows_of(split, i, "test")) for i in range(3)] == [4, 4, 4]
    some = Partitioner(PICTURES)
    some.load_partition = lambda i: PICTURES.rows(range(i, 60 * (i != 1), 3))
    with pytest.warns(
        UserWarning,
        match=r"dataset: partitions \[1\] are empty and left out; the clients are the others",
    ):
        assert srp.data.from_huggingface(some).num_clients == 2


def test_partitions_are_paired_by_natural_id():
    tests = People(NEGATIVES, ("cy", "ann", "bob"))
    data = srp.data.from_huggingface(People(PICTURES), test=tests)
    assert data.client_names == ("ann", "bob", "cy")
    for i in range(3):
        negatives = 255 - np.asarray(data.x_test)[np.asarray(data.test_indices[i])]
        assert rows_of(data, i) == list(range(i, 60, 3))
        assert {image.tobytes() for image in negatives} == {
            image.tobytes() for image in IMAGES[i::3]
        }


@pytest.mark.parametrize(
    ("test", "message"),
    [
        (
            People(NEGATIVES, ("ann", "bob", "dan")),
            r"test: 1 natural ids \(\['dan'\]\) are in one of .*the same people",
        ),
        (
            Partitioner(NEGATIVES),
            "test: only dataset has partition_id_to_natural_id.* for both",
        ),
    ],
)
def test_partitions_that_cannot_be_paired_are_refused(test, message):
    with refused(message):
        srp.data.from_huggingface(People(PICTURES), test=test)


def test_partitions_by_number_must_be_as_many():
    two = Partitioner(NEGATIVES)
    two.num_partitions = 2
    with refused("test: has 2 partitions and dataset 3.* give partitioners"):
        srp.data.from_huggingface(Partitioner(PICTURES), test=two)


@pytest.mark.parametrize("dataset", [Partitioner(PICTURES), PICTURES])
def test_an_object_is_not_both_for_training_and_test(dataset):
    with refused("test: is the same object as dataset.* leave test out"):
        srp.data.from_huggingface(dataset, test=dataset)
    with refused("x_test: all 60 test examples equal training"):
        srp.data.from_huggingface(Partitioner(PICTURES), test=Partitioner(PICTURES))


def test_partitions_may_be_dicts_of_columns():
    partitioner = Partitioner(PICTURES)
    partitioner.load_partition = lambda i: PICTURES.rows(range(i, 60, 3)).columns
    data = srp.data.from_huggingface(partitioner)
    assert all_rows(data) == list(range(60))
    assert data.num_clients == 3


def test_texts_become_tokens():
    texts = Dataset(text=["a b b", "b c", "b a"] * 4, label=[0, 1, 0] * 4)
    other = Dataset(
        text=["a b b", "b c", "b a"] * 4, label=[0, 1, 0] * 4
    )  # short texts may be equal
    data = srp.data.from_huggingface({"train": texts, "test": other}, 2, x="text")
    assert data.example_shape == (25,)
    np.testing.assert_array_equal(data.x_train[0, :4], [3, 2, 2, 0])
    data.train_client(0)


class Tensor(np.ndarray):
    """A fake of torch's, which `Dataset.with_format("torch")` gives."""

    def mode(self):
        """The most frequent value."""


def test_tensors_are_no_images_of_several_modes():
    tensors = Dataset(image=[image.view(Tensor) for image in IMAGES], label=LABELS)
    assert all_rows(srp.data.from_huggingface(tensors, 4)) == list(range(60))


def users(of):
    return Dataset(image=[np.zeros(2)] * 2, label=[0, 1], u=of)


WRONG = {
    "column": (
        PICTURES,
        {"num_clients": 2, "x": "pixels"},
        "x='pixels' is not a column of dataset; choose from image",
    ),
    "user": (PICTURES, {"user": "who"}, r"user='who' is not a column of dataset"),
    "no clients": (PICTURES, {}, r"num_clients=None: partition 'iid' needs it"),
    "an argument": (
        PICTURES,
        {"num_clients": 2, "alhpa": 1.0},
        r"unknown argument 'alhpa' \(did you mean alpha\?\)",
    ),
    "a list": (
        [1, 2],
        {"num_clients": 2},
        r"dataset=.*list.* is not a data set, or has no rows; give a datasets",
    ),
    "shapes": (
        Dataset(image=[np.zeros((2, 2)), np.zeros((3, 2))], label=[0, 1]),
        {"num_clients": 1},
        r"column 'image' has rows of shapes \[\(2, 2\), \(3, 2\)\]; give them one shape with Dataset.map first",
    ),
    "a palette": (  # numbers of colours, not grey levels
        Dataset(image=[Image.fromarray(IMAGES[0]).quantize()] * 2, label=[0, 1]),
        {"num_clients": 1},
        r"column 'image' has images of modes P; convert all to L or RGB with Dataset.map first",
    ),
    "modes": (  # of equal shapes
        Dataset(
            image=[Image.new(mode, (2, 2)) for mode in ("RGBA", "CMYK")], label=[0, 1]
        ),
        {"num_clients": 1},
        r"column 'image' has images of modes CMYK, RGBA; convert all",
    ),
    "no label": (
        Dataset(image=[np.zeros(2)] * 2, label=[0, None]),
        {"num_clients": 1},
        r"column 'label': is object of shape \(2,\); give one integer class number for each of the 2 examples",
    ),
    "masks": (
        Dataset(image=[np.ma.masked_array(np.zeros(2), [True, False])] * 2, label=[0, 1]),
        {"num_clients": 1},
        r"column 'image': is not a plain array \(it has a mask, which would be lost",
    ),
    "a NUL": (
        users(["a", "a\0"]),
        {"user": "u"},
        r"user='u' has 'a\\x00', which contains a NUL; remove it",
    ),
    "kinds of users": (
        users([1, "1"]),
        {"user": "u"},
        r"user='u' has values of type int, str; give texts, or int",
    ),
    "no user": (
        users(["a", None]),
        {"user": "u"},
        r"user='u' has values of type NoneType, str; give texts",
    ),
    "users of two kinds": (
        {"train": users(["1", "2"]), "test": users([1, 2])},
        {"user": "u"},
        "users_test: are int64, users_train <U1; give both as numbers or as strings",
    ),
    "users of partitions": (
        Partitioner(PICTURES),
        {"user": "writer"},
        "user='writer': the partitions of dataset are the clients; leave it out",
    ),
    "one partitioner": (
        Partitioner(PICTURES),
        {"test": PICTURES, "num_clients": 3},
        "test: dataset and test must be of one kind; give a partitioner for both or for neither",
    ),
    "no rows": (
        Partitioner(SimpleNamespace(rows=lambda _: [])),
        {},
        "dataset: all 3 partitions are empty",
    ),
    "texts and none": (
        Dataset(text=["a", None], label=[0, 0]),
        {"num_clients": 1, "x": "text"},
        r"x_train: is .* of shape \(1,\); give floats or integers",
    ),
    "texts and numbers": (
        {
            "train": Dataset(text=["a", "b"], label=[0, 1]),
            "test": Dataset(text=[1, 2], label=[0, 1]),
        },
        {"num_clients": 1, "x": "text"},
        "x_train: is <U1 of shape",
    ),
    "labels": (
        Dataset(image=IMAGES, label=WRITERS),
        {"num_clients": 2},
        r"column 'label': is <U2",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_refusals(case):
    dataset, options, message = WRONG[case]
    with refused(message):
        srp.data.from_huggingface(dataset, **options)


def test_the_real_data_sets(tmp_path):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(num_classes=4),
            "writer": datasets.Value("string"),
        }
    )
    from_pil = pytest.importorskip("PIL.Image").fromarray
    columns = {
        "image": [from_pil(image) for image in IMAGES],
        "label": LABELS.tolist(),
        "writer": WRITERS.tolist(),
    }
    whole = datasets.Dataset.from_dict(columns, features=features)
    expected = srp.data.from_huggingface(PICTURES, user="writer")
    whole.save_to_disk(tmp_path / "saved")
    for dataset in (
        whole,
        datasets.load_from_disk(tmp_path / "saved"),
        datasets.DatasetDict(train=whole),
    ):
        data = srp.data.from_huggingface(dataset, user="writer")
        assert [rows_of(data, i) for i in range(5)] == [
            rows_of(expected, i) for i in range(5)
        ]
    both = datasets.DatasetDict(
        train=whole.select(range(40)), test=whole.select(range(40, 60))
    )
    assert srp.data.from_huggingface(both, 4, alpha=1.0).num_clients == 4
    assert srp.data.from_huggingface(whole.with_format("numpy"), 4).num_clients == 4


def test_the_real_partitioners():
    datasets, partitioners = (
        pytest.importorskip("datasets"),
        pytest.importorskip("flwr_datasets.partitioner"),
    )
    whole = datasets.Dataset.from_dict(
        {"image": IMAGES.tolist(), "label": LABELS.tolist()}
    )
    for partitioner in (
        partitioners.IidPartitioner(num_partitions=4),
        partitioners.DirichletPartitioner(
            4, partition_by="label", alpha=1.0, min_partition_size=4
        ),
        partitioners.PathologicalPartitioner(
            4, partition_by="label", num_classes_per_partition=2
        ),
    ):
        partitioner.dataset = whole
        data = srp.data.from_huggingface(partitioner)
        assert data.num_clients == 4
        sizes = [len(partitioner.load_partition(i)) for i in range(4)]
        assert (np.asarray(data.train_counts) + data.test_count).tolist() == sizes
