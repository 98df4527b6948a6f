"""Data frames, and partitions from files."""

import json
import pickle

import numpy as np
import pandas as pd
import pytest
from clients import examples, rows
from numpy.testing import assert_allclose
from reference.small import refused

from fedjax_srp.data import SOURCES, from_arrays, from_frame, load, read_partition

NAMES = ["Zoë", "ann", "李"]


def table(**columns):
    """Return three users of four rows each, the last one a test row."""
    rows = np.arange(12)
    content = {
        "age": rows + 0.5,
        "smokes": rows % 3 == 0,
        "dose": rows * 2,
        "outcome": np.resize(["same", "better", "worse"], 12),
        "clinic": np.repeat(NAMES, 4),
        "part": np.resize(["train", "train", "train", "test"], 12),
    }
    return pd.DataFrame(content | columns)


COLUMNS = {"user": "clinic", "label": "outcome", "split": "part"}


def test_a_frame_by_user():
    data = from_frame(table(), **COLUMNS, name="clinics")
    assert (data.name, data.client_names) == ("clinics", tuple(NAMES))
    assert data.class_names == ("better", "same", "worse")
    for client in range(3):
        own = np.arange(4 * client, 4 * client + 4)
        x = np.stack([own + 0.5, own % 3 == 0, own * 2], axis=1)
        labels = np.array([1, 0, 2])[own % 3]
        for kind, part in (("train", slice(3)), ("test", slice(3, 4))):
            found_x, found_y = examples(data, client, kind)
            assert_allclose(found_x, x[part])
            assert found_y.tolist() == labels[part].tolist()


def test_a_frame_without_a_split():
    frame = table().drop(columns="part")
    data = from_frame(
        frame.sample(frac=1, random_state=0), user="clinic", label="outcome"
    )
    assert data.test_counts.tolist() == [1, 1, 1]
    half = from_frame(frame, user="clinic", label="outcome", test_fraction=0.5)
    assert half.train_counts.tolist() == [2, 2, 2]
    divided = from_frame(frame, 2, label="outcome", features=["age"], alpha=10.0)
    assert (divided.num_clients, divided.example_shape) == (2, (1,))


def test_the_seed_of_a_frame_draws_its_test_rows():
    frame = table().drop(columns="part")
    tests = []
    for seed in (0, 1, 2, 0):
        data = from_frame(frame, user="clinic", label="outcome", seed=seed)
        tests.append(np.sort(np.asarray(data.x_test), axis=0).tolist())
    assert tests[0] == tests[3]
    assert tests[0] != tests[1] or tests[0] != tests[2]


def test_flags_as_labels_of_a_frame():
    """pandas has flags as objects where a cell was empty."""
    flags = pd.Series([True, False, None, *[True] * 10], dtype=object).dropna()
    data = from_frame(table(outcome=flags.to_numpy()), **COLUMNS)
    assert data.class_names == ("False", "True")
    assert data.y_train.tolist() == [1, 0, 1, *[1] * 6]


def test_the_texts_of_a_frame():
    frame = table(text=["good day"] * 11 + ["bad news"])
    data = from_frame(frame, **COLUMNS, features="text")
    assert data.example_shape == (25,)
    assert data.x_train[0, :3].tolist() == [2 + 1, 2, 0]  # day, good
    assert data.x_test[-1, :3].tolist() == [1, 1, 0]


def test_users_of_a_frame():
    """Whole floats, which pandas makes of integers, are integers; a user of one row is left out."""
    frame = table(clinic=np.repeat([10.0, 9.0, 2.0], [4, 7, 1])).drop(columns="part")
    with pytest.warns(
        UserWarning, match="natural: 1 of 3 users are left out: 1 have no test"
    ):
        data = from_frame(frame, user="clinic", label="outcome")
    assert data.client_names == ("9", "10")


NO_CELL = [None, *["same"] * 11]
WRONG = [
    (
        {},
        {"user": "clinik"},
        r"user='clinik': is no column \(did you mean clinic\?\); choose",
    ),
    ({}, {"label": "y"}, "label='y': is no column; choose from age, smokes, dose"),
    (
        {},
        {"features": ["age", "outcome"]},
        "features: 'outcome' is user, label or split too",
    ),
    ({}, {"features": []}, "features: no column is left; give one or more"),
    (  # one cell of a column that pandas read as text
        {"age": [*map(str, range(11)), "nine"]},
        {},
        "features='age': has 'nine' of type object, no number",
    ),
    ({}, {"split": None}, r"features='part': has 'train' of type .*pd.get_dummies"),
    (
        {"age": [np.nan, *[1.0] * 11]},
        {},
        r"features='age': row 0 is empty \(1 of 12 are\)",
    ),
    ({"outcome": NO_CELL}, {}, r"label='outcome': row 0 is empty .*dropna\(subset="),
    ({"outcome": [1, *["a"] * 11]}, {}, "y_train: labels are of types int, str; give"),
    ({"outcome": np.arange(12) / 8}, {}, r"y_train\[1\]: the label 0.125 is not a class"),
    ({"clinic": NO_CELL}, {}, "user='clinic': row 0 is empty"),
    (
        {"clinic": [1, *["a"] * 11]},
        {},
        r"user='clinic': has values of types int, str.*astype",
    ),
    ({"clinic": np.arange(12) / 8}, {}, "user='clinic': has values of types float"),
    (
        {"part": ["val", *["train"] * 11]},
        {},
        "split='part': has 'val'; give train or test",
    ),
    ({}, {"test_fraction": 0.5}, "test_fraction=0.5: column 'part' says which rows"),
    ({}, {"alhpa": 0.5}, "alhpa.*alpha"),
]


@pytest.mark.parametrize(("columns", "arguments", "message"), WRONG)
def test_wrong_frames(columns, arguments, message):
    with refused(message):
        from_frame(table(**columns), **COLUMNS | arguments)


def test_what_is_no_frame():
    with refused("frame=.*is no data frame, or has no rows; give a pandas.DataFrame"):
        from_frame([[1, 2]], user="a", label="b")
    with refused("frame=.*has no rows"):
        from_frame(table().iloc[:0], **COLUMNS)
    twice = pd.concat([table(), table()[["age"]]], axis=1)
    with refused("frame: has two columns 'age'; rename one"):
        from_frame(twice, **COLUMNS)


# ---- partitions

TRAIN = {"2": [0, 5], "10": [3], "Zoë": [7, 8]}
TEST = {"2": [1], "10": [0, 2], "Zoë": [9]}


def as_csv():
    lines = ["Client, split ,row,note"]
    for split, clients in (("train", TRAIN), ("test", TEST)):
        for client, own in clients.items():
            lines.extend(f"{client},{split},{row}," for row in own)
    return "\ufeff" + "\r\n".join(lines) + "\r\n"


def as_json():
    return json.dumps({"test": dict(reversed(TEST.items())), "train": TRAIN})


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_partitions_of_csv_and_json(kind, tmp_path):
    """Clients are in the order of their numbers, and each has its own rows."""
    file = tmp_path / f"parts.{kind}"
    file.write_text({"csv": as_csv, "json": as_json}[kind](), encoding="utf-8")
    found = read_partition(file)
    assert {client: own.tolist() for client, own in found.train.items()} == TRAIN
    assert {client: own.tolist() for client, own in found.test.items()} == TEST
    assert not found.is_of_all
    data = load("digits", partition=str(file))
    assert data.client_names == ("2", "10", "Zoë")
    assert rows(data) == list(TRAIN.values())
    assert rows(data, "test") == list(TEST.values())
    raw = SOURCES["digits"](tmp_path)
    mine = from_arrays(
        *raw[:4], scale=1 / 16, train_indices=found.train, test_indices=found.test
    )
    assert mine.client_names == data.client_names


@pytest.mark.parametrize(
    "content",
    [
        {"train": [[0, 1], [2]], "test": [[3], [4]]},
        {"train": [[0], [2]], "val": [[1], []], "test": [[3], [4]]},
        {"train": {"0": [0]}, "val": {"1": [2], "0": [1]}, "test": {"0": [3], "1": [4]}},
        [{"train": [0], "val": [1], "test": [3]}, {"train": [2], "test": [4]}],
        {"1": {"train": [2], "test": [4]}, "0": {"train": [0, 1], "test": [3]}},
    ],
)
def test_other_forms_of_json(content, tmp_path):
    file = tmp_path / "parts.json"
    file.write_text(json.dumps(content))
    data = load("digits", partition=str(file))
    assert (data.client_names, rows(data)) == (("0", "1"), [[0, 1], [2]])


@pytest.mark.parametrize(
    "content",
    [
        "client,row\nann,7\nann,3\nbob,0\nbob,1\nbob,5\n",
        '{"bob": [0, 1, 5], "ann": [7, 3]}',
    ],
)
def test_partitions_without_test_rows(content, tmp_path):
    """A row of each client is for its test, the same one each time; the data's own test rows are not used."""
    file = tmp_path / ("parts.json" if content[0] == "{" else "parts.csv")
    file.write_text(content)
    assert not read_partition(file).test
    data = load("digits", partition=str(file))
    assert data.client_names == ("ann", "bob")
    assert data.test_counts.tolist() == [1, 1]
    raw = SOURCES["digits"](tmp_path)
    for client, own in enumerate(([7, 3], [0, 1, 5])):
        found = [*examples(data, client)[0], *examples(data, client, "test")[0]]
        expected = [raw.x_train[row] / 16 for row in own]
        assert sorted(x.tobytes() for x in found) == sorted(
            x.astype(np.float32).tobytes() for x in expected
        )


@pytest.mark.parametrize("protocol", [2, 4, pickle.HIGHEST_PROTOCOL])
def test_partitions_of_fl_bench(protocol, tmp_path):
    """Rows count through training and test examples; those for validation are trained on."""
    raw = SOURCES["digits"](tmp_path)
    first = len(raw.y_train)
    indices = [
        {
            "train": np.array([5, first + 2]),
            "val": np.array([1], np.int32),
            "test": np.array([0, first]),
        },
        {"train": np.array([7]), "val": np.array([]), "test": np.array([first + 1])},
    ]
    everyone = {"train": [0, 1], "val": [0, 1], "test": [0, 1], "total": 2}
    file = tmp_path / "partition.pkl"
    content = {"separation": everyone, "data_indices": indices}
    file.write_bytes(pickle.dumps(content, protocol))
    data = load("digits", partition=str(file))
    x, y = examples(data, 0)
    assert_allclose(x * 16, [raw.x_train[5], raw.x_test[2], raw.x_train[1]])
    assert y.tolist() == [raw.y_train[5], raw.y_test[2], raw.y_train[1]]
    x, _ = examples(data, 1, "test")
    assert_allclose(x * 16, [raw.x_test[1]])


WRONG_FILES = {
    "a.csv": (
        "user,row\nann,0\n",
        r"its columns are user, row\); copy or write it again",
    ),
    "b.csv": ("client,split,row\nann,train,x\n", "line 2 has client 'ann' and row 'x'"),
    "c.csv": (
        "client,split,row\nann,val,1\n",
        "line 2 has the split 'val', not train or test",
    ),
    "d.csv": ("client,split,row\nann,train\n", "line 2 has client 'ann' and row ''"),
    "e.csv": ("client,row\n", "has no clients; give one or more"),
    "h.csv": (
        "client,row\nann,3\n",
        "client 'ann' has one row and the file no test rows",
    ),
    "j.csv": (
        "client,row,Row\nann,3,4\n",
        "two of its columns client, row, row have one name",
    ),
    "n.json": (
        '{"train": {"a": [0]}, "valid": {"a": [1]}, "test": {"a": [2]}}',
        r"it has \['valid'\] beside train, test and val",
    ),
    "o.json": (
        '{"a": {"train": [0], "test": [2], "extra": [1]}}',
        r"client 'a' has \['extra'\] beside train, test and val",
    ),
    "k.csv": ("client,row\nann,3,4\n", "line 2 has more entries than the 2 columns"),
    "l.csv": ("client,row\na\0,3\n", r"line 2 has client 'a\\x00' and row '3'"),
    "i.csv": ('client,row\n"ann,1\n', "is damaged .*unexpected end of data"),
    "l.json": ("3", "is damaged .*it has 3 in place of clients"),
    "m.json": ('[{"train": [0]}]', "is damaged .*KeyError.'test'"),
    "k.json": ('{"a": [0], "a": [1]}', "the key 'a' occurs twice"),
    "f.csv": (
        "client,split,row\nann,train,0\n",
        "no line has the split test",
    ),
    "g.csv": ("", "its columns are none"),
    "a.json": (
        '{"train": {"ann": [0]}',
        "is damaged or is not in a layout of srp.data.read_partition.*",
    ),
    "b.json": (
        '{"train": {"ann": [0]}}',
        r"is damaged or is not in a layout of srp.data.read_partition.*KeyError\('test'\)",
    ),
    "c.json": (
        '{"train": {"a": [-1]}, "test": {"a": [0]}}',
        r"client 'a' has train rows \[-1\]",
    ),
    "d.json": (
        '{"train": {"a": [0.5]}, "test": {"a": [0]}}',
        r"client 'a' has train rows \[0.5",
    ),
    "e.json": (
        '{"train": {"a": [[0]]}, "test": {"a": [0]}}',
        "client 'a' has train rows",
    ),
    "f.json": ("[1]", "is damaged or is not in a layout of srp.data.read_partition.*"),
    "g.json": (
        '{"train": {"a": [0]}, "test": {"b": [0]}}',
        r"clients \['b'\] have no train",
    ),
    "h.json": (
        '{"train": {"a": [9999]}, "test": {"a": [0]}}',
        "train row 9999, but the data",
    ),
    "i.json": (
        '{"train": [[1, 1]], "test": [[2]]}',
        "train row 1 is listed twice for client .0.",
    ),
    "j.json": (
        '{"data_indices": [{"train": [0], "test": [0]}]}',
        "example 0 is in train_indices too",
    ),
}


@pytest.mark.parametrize("name", WRONG_FILES)
def test_wrong_partitions(name, tmp_path):
    content, message = WRONG_FILES[name]
    file = tmp_path / name
    file.write_text(content)
    with refused(message):
        load("digits", partition=str(file))


def test_a_partition_from_a_file_stands_alone(tmp_path):
    file = tmp_path / "parts.json"
    file.write_text(json.dumps({"train": [[0, 1]], "test": [[3]]}))
    for arguments, message in (
        (
            {"alpha": 0.5},
            "alpha=0.5: partition=.*divides the data already; leave alpha out",
        ),
        ({"num_clients": 4}, "num_clients=4: .*has 1 clients; leave num_clients out"),
        ({"classes": [1, 2]}, "classes: .*row numbers of the whole data set"),
    ):
        with refused(message):
            load("digits", partition=str(file), **arguments)
    with refused("nowhere.csv' is missing; copy it again, or give another path"):
        load("digits", partition=str(tmp_path / "nowhere.csv"))


@pytest.mark.parametrize("is_found", [True, False])
def test_digits_are_those_of_scikit_learn_wherever_their_file_lies(
    tmp_path, monkeypatch, is_found
):
    from sklearn.datasets import load_digits

    digits = load_digits()
    if not is_found:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    raw = SOURCES["digits"](tmp_path)
    for split, pixels in ((raw.x_train, 34_000), (raw.x_test, 14_000)):
        assert split.dtype == np.uint8
        assert split.sum() > pixels
    x = np.concatenate([raw.x_train, raw.x_test]).reshape(-1, 64)
    y = np.concatenate([raw.y_train, raw.y_test])
    expected = np.column_stack([digits.data.astype(int), digits.target])
    assert sorted(np.column_stack([x, y]).tolist()) == sorted(expected.tolist())
