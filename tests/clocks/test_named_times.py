"""Times of named clients: columns are matched by name, or refused."""

import json

import numpy as np
import pytest
from reference.small import refused

import fedjax_srp as srp
from fedjax_srp.clocks.by_name import read_clock

NAMES = ["f0", "f1", "f10", "f2"]  # in the order of text, as users are
TIMES = np.array(
    [[0.0, 1.0, 2.0, 10.0], [100.0, 101.0, 102.0, 110.0]]
)  # of f0, f1, f2, f10


@pytest.mark.parametrize(
    "header",
    ["f0,f1,f2,f10", "# f0,f1,f2,f10", '"f0", "f1", "f2", "f10"', "\ufefff0,f1,f2,f10"],
)
def test_columns_are_matched_by_name(header, tmp_path):
    file = tmp_path / "times.csv"
    rows = [header, *(",".join(map(str, row)) for row in TIMES)]
    file.write_text("\n".join(rows), encoding="utf-8")
    expected = TIMES[:, [0, 1, 3, 2]]
    np.testing.assert_array_equal(srp.clocks.read_times(file, NAMES), expected)
    np.testing.assert_array_equal(read_clock(f"trace:{file}", 4, NAMES).times, expected)
    np.testing.assert_array_equal(srp.clocks.read_times(file, ["f2"]), TIMES[:, [2]])
    with refused("has no column for client 'f3'; give each client a column"):
        srp.clocks.read_times(file, [*NAMES, "f3"])
    with refused("^clock='trace:.*the data have none; give the data client_names"):
        read_clock(f"trace:{file}", 4)
    rows[0] = header.replace("f10", "f0")
    file.write_text("\n".join(rows), encoding="utf-8")
    with refused("has two columns of the same name; give each client"):
        srp.clocks.read_times(file, ["f0", "f1"])


def test_columns_without_names_are_of_clients_by_number(tmp_path):
    file = tmp_path / "times.csv"
    remark = "measured in the lab, in seconds"
    np.savetxt(file, TIMES, delimiter=",", header=remark)
    with pytest.warns(UserWarning, match="f0, f1, f10, f2, ... in this order"):
        np.testing.assert_array_equal(srp.clocks.read_times(file, NAMES), TIMES)
    for names in (None, ["f1", "f2", "f9", "f10"]):  # which are in their order
        np.testing.assert_array_equal(srp.clocks.read_times(file, names), TIMES)


def test_users_of_a_folder_get_their_own_times(tmp_path):
    users = [f"f{i}" for i in range(12)]
    for kind, shift in (("train", 0.0), ("test", 0.25)):
        (tmp_path / "leaf" / kind).mkdir(parents=True)
        data = {
            user: {"x": [[i + shift, 1.0], [i + 0.5 + shift, 2.0]], "y": [0, 1]}
            for i, user in enumerate(users)
        }
        content = {"users": users, "num_samples": [2] * 12, "user_data": data}
        (tmp_path / "leaf" / kind / "all.json").write_text(json.dumps(content))
    data = srp.data.load(tmp_path / "leaf")
    names = data.client_names
    assert names == tuple(sorted(users))
    file, header = tmp_path / "times.csv", ",".join(users)
    np.savetxt(file, np.arange(12.0)[None], delimiter=",", header=header)
    clock = read_clock(f"trace:{file}", 12, names)
    np.testing.assert_array_equal(clock.times[0], [int(name[1:]) for name in names])
    srp.data.save(data, tmp_path / "mine.npz")
    assert srp.data.load(tmp_path / "mine.npz").client_names == names
    fifth = srp.data.holdout_clients(data, "held_out")
    assert len(fifth.client_names) == fifth.num_clients
    assert [name for name in names if name in fifth.client_names] == [*fifth.client_names]


NUMBERED = ["1", "10", "2", "3"]


@pytest.mark.parametrize("header", ["3,1,2,10", "# 3,1,2,10", "3,1,2,10,0"])
def test_names_may_be_numbers(header, tmp_path):
    file = tmp_path / "times.csv"
    table = np.arange(10.0).reshape(2, 5)[:, : len(header.split(","))]
    rows = [header, *(",".join(map(str, row)) for row in table)]
    file.write_text("\n".join(rows))
    expected = table[:, [1, 3, 2, 0]]
    np.testing.assert_array_equal(srp.clocks.read_times(file, NUMBERED), expected)
    np.testing.assert_array_equal(
        read_clock(f"trace:{file}", 4, NUMBERED).times, expected
    )


@pytest.mark.parametrize(
    ("header", "names", "reason"),
    [
        ("1,2,3,4", NUMBERED, "may be names of 3 of the 4 clients, or times"),
        ("1,2,3,4", None, "may be the numbers of the columns, or times"),
        ("0,1,2,3", None, "may be the numbers of the columns, or times"),
        ("0,1,2,3", NAMES, "may be the numbers of the columns, or times"),
    ],
)
def test_numbers_that_may_be_names_or_times_are_refused(header, names, reason, tmp_path):
    file = tmp_path / "times.csv"
    file.write_text(f"{header}\n5,6,7,8\n")
    with refused(f"path='.*begins with '{header}', which {reason}; write .*leave"):
        srp.clocks.read_times(file, names)
    file.write_text(header.replace(",", ".0,") + "\n5,6,7,8\n")
    table = srp.clocks.read_times(file, ["1", "2", "3", "4"])
    np.testing.assert_array_equal(table[1], [5, 6, 7, 8])


WRONG_ARRAYS = {
    "three axes": np.ones((2, 2, 2)),
    "texts": np.array([["1", "2"]]),
    "complex numbers": np.array([[1j, 2]]),
}


@pytest.mark.parametrize("kind", WRONG_ARRAYS)
def test_an_array_that_is_no_table_of_times(kind, tmp_path):
    np.save(tmp_path / "times.npy", WRONG_ARRAYS[kind])
    with refused("is not a table of numbers"):
        srp.clocks.read_times(tmp_path / "times.npy")


def test_an_array_of_a_time_for_each_client_is_a_row(tmp_path):
    np.save(tmp_path / "times.npy", np.arange(1.0, 5.0))
    assert srp.clocks.read_times(tmp_path / "times.npy").tolist() == [[1, 2, 3, 4]]


def test_an_archive_of_arrays_is_no_table_of_times(tmp_path):
    np.savez(tmp_path / "times.npz", times=np.ones((2, 2)))
    (tmp_path / "times.npz").rename(tmp_path / "times.npy")
    with refused("is not a table of numbers"):
        srp.clocks.read_times(tmp_path / "times.npy")
