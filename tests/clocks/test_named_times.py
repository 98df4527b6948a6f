"""Times of named clients: columns are matched by name, or refused."""

import json
import warnings

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
    file.write_text(
        header + "\n" + "\n".join(",".join(map(str, row)) for row in TIMES) + "\n",
        encoding="utf-8",
    )
    np.testing.assert_array_equal(
        srp.clocks.read_times(file, NAMES), TIMES[:, [0, 1, 3, 2]]
    )
    np.testing.assert_array_equal(
        read_clock(f"trace:{file}", 4, NAMES).times, TIMES[:, [0, 1, 3, 2]]
    )
    np.testing.assert_array_equal(srp.clocks.read_times(file, ["f2"]), TIMES[:, [2]])
    with refused("has no column for client 'f3'; give each client a column"):
        srp.clocks.read_times(file, [*NAMES, "f3"])
    with refused(
        "^clock='trace:.*has columns with names .*the data have none; give the data client_names, or take"
    ):
        read_clock(f"trace:{file}", 4)


def test_columns_without_names_are_of_clients_by_number(tmp_path):
    file = tmp_path / "times.csv"
    np.savetxt(
        file, TIMES, delimiter=",", header="measured in the lab, in seconds"
    )  # a remark of two words
    with pytest.warns(
        UserWarning,
        match=r"columns have no names.*f0, f1, f10, f2, ... in this order.*write the names",
    ):
        np.testing.assert_array_equal(srp.clocks.read_times(file, NAMES), TIMES)
    for names in (None, ["f1", "f2", "f9", "f10"], ["ann", "bob", "cy", "dan"]):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            np.testing.assert_array_equal(srp.clocks.read_times(file, names), TIMES)


def test_two_columns_of_a_name_are_refused(tmp_path):
    file = tmp_path / "times.csv"
    np.savetxt(file, TIMES, delimiter=",", header="f0,f1,f0,f2")
    with refused("has two columns of the same name; give each client"):
        srp.clocks.read_times(file, ["f0", "f1"])


def test_users_of_a_folder_get_their_own_times(tmp_path):
    users = [f"f{i}" for i in range(12)]
    for kind, inputs in (("train", [[0.5, 1.0], [2.0, 0.25]]), ("test", [[0.75, 1.5]])):
        (tmp_path / "leaf" / kind).mkdir(parents=True)
        data = {
            user: {"x": [[a + i, b] for a, b in inputs], "y": [0, 1][: len(inputs)]}
            for i, user in enumerate(users)
        }
        content = {"users": users, "num_samples": [len(inputs)] * 12, "user_data": data}
        (tmp_path / "leaf" / kind / "all.json").write_text(json.dumps(content))
    data = srp.data.load(tmp_path / "leaf")
    assert data.client_names == tuple(sorted(users))
    np.savetxt(
        tmp_path / "times.csv",
        np.arange(12.0)[None],
        delimiter=",",
        header=",".join(users),
    )
    clock = read_clock(f"trace:{tmp_path / 'times.csv'}", 12, data.client_names)
    np.testing.assert_array_equal(
        clock.times[0], [int(name[1:]) for name in data.client_names]
    )
    srp.data.save(data, tmp_path / "mine.npz")
    assert srp.data.load(tmp_path / "mine.npz").client_names == data.client_names
    fifth = srp.data.holdout_clients(data, "held_out")
    assert [
        data.client_names[int(i)]
        for i in np.flatnonzero(np.isin(data.client_names, fifth.client_names))
    ] == [*fifth.client_names]
    assert len(fifth.client_names) == fifth.num_clients
