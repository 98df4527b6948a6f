"""Folders with valid checksums and other contents, since a checksum is no secret: one line, or a run like any other."""

import copy
import functools
import json
from unittest import mock

import jax
import numpy as np
import pytest
from test_history import small

import fedjax_srp as srp
from fedjax_srp.lab.commands.report import report
from fedjax_srp.lab.report import page, repeats
from fedjax_srp.results import json_files, sealed_folders
from fedjax_srp.results.errors import DamagedError
from fedjax_srp.results.history import History

VALUES = {
    "none": None,
    "list": [],
    "object": {},
    "number": 7,
    "large": 10**400,
    "text": "rounds \x1b[31m",
    "false": False,
    "nested": functools.reduce(lambda inner, _: [inner], range(900), []),
    "part": {"part": "fedjax_srp.algorithms.FedAvg", "model": []},
}


@pytest.fixture(scope="module")
def run():
    """Return a run with the record of a simulation."""
    data = srp.data.load("digits", num_clients=3, max_examples=5)
    method = srp.methods.get("fedavg", dataset=data, hidden=(2,))
    key = jax.random.key(0)
    history = srp.simulate(method, data, num_rounds=1, key=key, progress=False)
    config = {**history.config, "arguments": {"communication": 0.0, "seed": 0}}
    return small(config=config, server_state={"weights": np.ones(3)})


def places(value, before=()):
    """Yield the path of every value within others."""
    entries = ()
    if isinstance(value, dict):
        entries = value.items()
    if isinstance(value, list):
        entries = enumerate(value[:2])
    for name, each in entries:
        yield (*before, name)
        yield from places(each, (*before, name))


def changed(content, place, value):
    """Return content with another value in a place."""
    content = copy.deepcopy(content)
    inner = content
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    return content


def reseal(folder, name, content):
    """Write a file of a folder, and its checksum into the seal."""
    text = json.dumps(content)
    (folder / name).write_text(text)
    seal = json_files.read_json(folder / "summary.json")
    seal["files"] |= sealed_folders.digests(folder, [folder / name])
    json_files.write_json(folder / "summary.json", seal)


def use(folder):
    """Do with a folder what users do."""
    history = History.load(folder)
    repr(history)
    history.summary()
    page.writer(page.compared(repeats.by_task([repeats.read(folder)])[0], None, [0]))
    assert history.server_state is not None
    _ = history.method
    small().save(folder, overwrite=False)


def check(folder):
    """Use a folder, and return the error for its user."""
    try:
        use(folder)
    except (ValueError, FileNotFoundError) as error:
        return str(error)
    return ""


@pytest.fixture(autouse=True)
def no_figures():
    with mock.patch("fedjax_srp.results.folder.image", return_value=b"a figure"):
        yield


def test_the_run_itself_is_used_without_an_error(run, tmp_path):
    run.save(tmp_path, models=True)
    assert "holds another run" in check(tmp_path)


@pytest.mark.short("config.json-text", "config.json-nested", "summary.json-list")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("name", ["config.json", "summary.json", "models/contents.json"])
def test_other_values_in_a_sealed_folder_are_one_line(name, value, run, tmp_path):
    folder = run.save(tmp_path / "run", models=True)
    intact = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    content = json.loads((folder / name).read_text())
    for place in places(content):
        if place[0] == "checksum":
            continue
        other = changed(content, place, value)
        if name == "config.json":
            reseal(folder, name, other)
        else:
            del other["checksum"]
            try:
                json_files.write_json(folder / name, other)
            except ValueError:  # too deep for a checksum
                (folder / name).write_text(json.dumps(other))
        assert check(folder).isprintable()
        for path, data in intact.items():
            path.write_bytes(data)


INDICES = [[], 7, None, {"unit": []}, {"unit": {"point": 7}}, {"unit": None}]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("index", INDICES, ids=map(str, INDICES))
def test_other_values_in_the_index_of_a_grid_stop_no_report(index, tmp_path):
    small().save(tmp_path / "run")
    (tmp_path / "grid.json").write_text(json.dumps(index))
    if isinstance(index, dict):
        json_files.write_json(tmp_path / "grid.json", index)
    assert "FedRep" in report(str(tmp_path))


def test_deep_nesting_is_one_line(tmp_path):
    deep = "[" * 100_000
    (tmp_path / "file.json").write_text(deep)
    with pytest.raises(DamagedError, match="not what was written"):
        json_files.read_json(tmp_path / "file.json")
    small().save(tmp_path / "run")
    for name in ("config.json", "summary.json"):
        (tmp_path / "run" / name).write_text(deep)
        with pytest.raises(ValueError, match="damaged"):
            History.load(tmp_path / "run")
