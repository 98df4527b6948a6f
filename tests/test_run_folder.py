"""Saving a history to its folder and loading it."""

import dataclasses
import json
import math
import os
import random
from collections.abc import Mapping
from concurrent import futures
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from reference.small import refused
from test_history import small

from fedjax_srp.results import commits, csv_files, json_files, sealed_folders
from fedjax_srp.results import folder as run_folder
from fedjax_srp.results.atomic import NEXT
from fedjax_srp.results.history import History
from fedjax_srp.results.json_files import jsonable


def random_history(seed=0, num_rounds=7, num_clients=13) -> History:
    rng = np.random.default_rng(seed)

    def floats(
        *shape,
    ):  # of every magnitude, with numbers that a decimal of 15 digits would change
        return rng.standard_normal(shape) * 10.0 ** rng.integers(-300, 300, shape)

    distance = floats(num_rounds)
    distance[:4] = [np.nan, np.inf, -np.inf, -0.0]
    return History(
        name="ünïcode, method",
        round=np.arange(1, num_rounds + 1),
        stage=np.arange(num_rounds),
        cohort_size=rng.integers(1, 9, num_rounds),
        compute_time=rng.exponential(size=num_rounds),
        communicated=rng.random(num_rounds) < 0.5,
        finite=rng.random(num_rounds) < 0.5,
        client_time=np.abs(floats(num_clients)),
        metrics={
            "distance": distance,
            'odd, "name"': rng.random(num_rounds).astype(np.float32),
        },
        eval_round=[0, 2, 7],
        accuracies={
            "own_head": rng.random((3, num_clients)),
            "nan": np.full((3, num_clients), np.nan),
        },
        test_count=rng.integers(0, 50, num_clients),
        rounds_taken=np.arange(num_clients)[::-1],
        bytes_up=5,
        bytes_down=3,
        seconds_per_round=0.1,
        compile_seconds=0.2,
        host_seconds=0.3,
        config={"clock": {"rate": 1.0 / 3.0}, "widths": [512, 256], "note": None},
    )


def bits(value):
    """A value as text, with every bit of its numbers, but one nan for all."""
    if isinstance(value, Mapping):
        return [(name, bits(entry)) for name, entry in value.items()]
    return (
        (str(value.dtype), value.shape, repr(value.tolist()))
        if isinstance(value, np.ndarray)
        else repr(value)
    )


def assert_equal(left: History, right: History) -> None:
    for name in {field.name for field in dataclasses.fields(History)} - {"environment"}:
        assert bits(getattr(left, name)) == bits(getattr(right, name)), name


def test_a_saved_history_is_loaded_bit_for_bit(tmp_path):
    history = random_history()
    loaded = History.load(history.save(tmp_path / "run"))
    assert_equal(history, loaded)
    first = {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()}
    assert set(first) == {
        "config.json",
        "summary.json",
        "history.csv",
        "clients.csv",
        "accuracy.png",
    }
    loaded.save(tmp_path / "again")  # with the environment of the run, not of this save
    assert {p.name: p.read_bytes() for p in (tmp_path / "again").iterdir()} == first


def test_history_csv_does_not_depend_on_the_host(tmp_path):
    slow = small(
        host_seconds=1e9,
        compile_seconds=math.inf,
        seconds_per_round=7.0,
        environment={"workdir_commit": "other"},
    )
    small().save(tmp_path / "fast", target=0.5, communication=0.0)
    slow.save(tmp_path / "slow", target=0.9, communication=10.0)
    for name in ("history.csv", "clients.csv"):
        assert (tmp_path / "fast" / name).read_bytes() == (
            tmp_path / "slow" / name
        ).read_bytes()
    assert b"\r" not in (tmp_path / "fast" / "history.csv").read_bytes()


@pytest.mark.parametrize(
    "accuracies",
    [{}, {"own_head": np.empty((0, 3))}],
    ids=["none asked for", "none made"],
)
@pytest.mark.parametrize(
    "metrics", [{"distance": [1.0, 0.5, 0.0, 2.0]}, {}], ids=["metric", "no metric"]
)
def test_a_run_without_evaluations(tmp_path, accuracies, metrics):
    history = small(accuracies=accuracies, eval_round=[], metrics=metrics)
    assert history.accuracy.shape == (0, 3)
    assert history.mean_accuracy.shape == history.worst_decile.shape == (0,)
    assert math.isnan(history.final_accuracy)
    assert history.time_to(0.0) == math.inf
    assert np.isnan(history.speed_quartiles()).all()
    summary = history.summary(target=0.5)
    assert summary["final_accuracy"] is summary["worst_decile"] is None
    loaded = History.load(history.save(tmp_path))
    assert_equal(history, loaded)
    assert (tmp_path / "accuracy.png").exists() == bool(metrics)


def test_a_run_is_saved_although_its_figure_cannot_be_drawn(tmp_path, monkeypatch):
    history = small()
    history.save(tmp_path)
    monkeypatch.setattr(History, "plot", lambda *_: 1 // 0)
    with pytest.warns(
        UserWarning,
        match=r"accuracy.png of 'fedrep' is left out, it .* drawn \(ZeroDivisionError: ",
    ):
        history.save(tmp_path)
    assert_equal(history, History.load(tmp_path))
    assert not (tmp_path / "accuracy.png").exists()


def test_names_of_clients_are_a_column_and_come_back(tmp_path):
    names = ["=ann", "b\r\n", "\udc80", "\N{SNOWMAN}"]
    history = dataclasses.replace(random_history(num_clients=4), client_names=names)
    loaded = History.load(history.save(tmp_path))
    assert loaded.client_names == ("=ann", "b\r\n", "?", "\N{SNOWMAN}")
    table = pd.read_csv(tmp_path / "clients.csv", nrows=4)
    cells = ["'=ann", "b\ufffd\ufffd", "?", "\N{SNOWMAN}"]
    assert table.client_name.tolist() == cells


def test_a_table_of_clients_with_its_earlier_column_is_read(tmp_path):
    history = small(rounds_taken=[4, 0, 2])
    history.save(tmp_path)
    table = tmp_path / "clients.csv"
    table.write_text(table.read_text().replace("rounds_taken_in_all", "rounds_taken"))
    seal = json_files.read_json(tmp_path / "summary.json")
    seal["files"] |= sealed_folders.digests(tmp_path, [table])
    json_files.write_json(tmp_path / "summary.json", seal)
    assert_equal(history, History.load(tmp_path))


def test_a_run_of_no_rounds(tmp_path):
    empty = {name: [] for name in run_folder.ROUND_COLUMNS}
    history = small(**empty, metrics={"distance": []}, accuracies={}, eval_round=[])
    assert history.diverged is None
    assert history.summary()["simulated_time"] == 0.0
    assert_equal(history, History.load(history.save(tmp_path)))


def strict(path):
    """Parse a file as JSON, without the words NaN and Infinity that Python's parser accepts."""
    return json.loads(path.read_text(), parse_constant=pytest.fail)


def test_json_is_strict(tmp_path):
    history = small(
        seconds_per_round=math.nan,
        config={"time_limit": math.inf, "loss": np.float32(np.nan)},
    )
    history.save(tmp_path, target=1.0)
    summary = strict(tmp_path / "summary.json")
    assert summary["time_to_target"] == "inf"
    assert summary["seconds_per_round"] == "nan"
    config = strict(tmp_path / "config.json")
    assert config["config"] == {"time_limit": "inf", "loss": "nan"} == history.config
    assert set(config["environment"]["versions"]) == {
        "python",
        "fedjax_srp",
        "jax",
        "jaxlib",
        "numpy",
    }
    assert config["environment"]["device"]["count"] == 4


def test_jsonable_keeps_json_values_and_converts_the_rest(tmp_path):
    plain = {"a": [1, 2.5, None, True, "x"], "b": {"c": []}}
    assert jsonable(plain) == plain
    assert jsonable({1: (np.int32(2), np.arange(2), tmp_path)}) == {
        "1": [2, [0, 1], str(tmp_path)]
    }
    assert jsonable(jnp.float32(0.5)) == jsonable(np.longdouble(0.5)) == 0.5
    assert jsonable({"b", "a"}) == ["a", "b"]
    assert jsonable(jsonable) == "fedjax_srp.results.json_files.jsonable"


def test_commits_of_the_package_and_of_the_working_directory_are_recorded(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    found = History.load(small().save(tmp_path / "run")).environment
    assert found["workdir_commit"] is None
    assert found["package_commit"] == commits.commit_of_package(
        Path(run_folder.__file__).parent
    )


def test_a_save_that_dies_leaves_the_earlier_run(tmp_path, monkeypatch):
    small().save(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def die(path):
        path.write_text("evaluation,rou")
        raise KeyboardInterrupt

    monkeypatch.setattr(csv_files, "as_csv", lambda table: die)
    with pytest.raises(KeyboardInterrupt):
        small(name="other").save(tmp_path, overwrite=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_another_run_is_replaced_only_on_request(tmp_path):
    made = {
        "schedule": {"num_rounds": 4},
        "method": {"algorithm": {"learning_rate": 0.1}},
    }
    one = small(config=made)
    one.save(tmp_path)
    longer = dataclasses.replace(
        one, config={**one.config, "schedule": {"num_rounds": 9}}
    )
    longer.save(tmp_path)
    other = dataclasses.replace(
        one, config={**made, "method": {"algorithm": {"learning_rate": 0.5}}}
    )
    for different in (other, small(name="fedavg", config=one.config)):
        with refused(
            r"^directory='.*': holds another run, with .* where this one has .*; .* overwrite=True$"
        ):
            different.save(tmp_path)
        assert History.load(tmp_path).config == longer.config
    other.save(tmp_path, overwrite=True)
    assert History.load(tmp_path).config == other.config


def test_threads_that_save_to_one_folder_leave_the_result_of_one_of_them(tmp_path):
    histories = [small(name=f"run{number}") for number in range(6)]

    def save(history):
        try:
            history.save(tmp_path, overwrite=True)
        except ValueError as error:
            assert "is running here" in str(error)  # noqa: PT017
            return None
        return history.name

    with futures.ThreadPoolExecutor(6) as threads:
        saved = set(threads.map(save, histories)) - {None}
    assert saved
    assert History.load(tmp_path).name in saved


def hostile(change):
    """A run folder whose seal is changed by someone who knows how to compute its checksum."""

    def save(folder):
        small().save(folder)
        seal = json_files.read_json(folder / "summary.json")
        json_files.write_json(folder / "summary.json", change(seal) or seal)

    return save


SEALS = {
    "device": lambda seal: seal["files"].update({"/dev/zero": [0, ""]}),
    "above": lambda seal: seal["files"].update({"../config.json": [0, ""]}),
    "no tables": lambda seal: seal.update(files={}),
    "empty": lambda seal: {"name": "fedrep"},
}


@pytest.mark.parametrize("change", SEALS.values(), ids=SEALS)
def test_a_seal_with_other_contents_is_refused_or_changes_nothing(change, tmp_path):
    hostile(change)(tmp_path)
    try:
        loaded = History.load(tmp_path)
    except ValueError as error:
        assert "is damaged" in str(error)  # noqa: PT017
    else:
        assert_equal(loaded, small())


@pytest.mark.parametrize("schedule", [[], "all", {"num_rounds": "many"}])
def test_a_record_of_other_types_is_damaged(schedule, tmp_path):
    """Also where it is compared before its checksum is looked at."""
    small().save(tmp_path)
    file = tmp_path / "config.json"
    content = json.loads(file.read_text())
    content["config"]["schedule"] = schedule
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="is not that of a run"):
        run_folder.read_config(tmp_path)


@pytest.mark.parametrize(
    "name", ["config.json", "history.csv", "clients.csv", "summary.json"]
)
def test_pipes_in_the_place_of_tables_are_not_waited_for(name, tmp_path):
    small().save(tmp_path)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises((FileNotFoundError, ValueError), match=name):
        History.load(tmp_path)


def test_a_newer_result_is_read_and_reported_before_it_is_in_its_place(tmp_path):
    """As after a process that was killed between two files."""
    small().save(tmp_path / "run")
    newer = dataclasses.replace(small(), name="newer")
    newer.save(tmp_path / "other")
    (tmp_path / "other").rename(tmp_path / "run" / NEXT)
    assert run_folder.finished(tmp_path) == [tmp_path / "run"]
    assert_equal(History.load(tmp_path / "run"), newer)
    (tmp_path / "run" / NEXT / "history.csv").replace(tmp_path / "run" / "history.csv")
    assert_equal(History.load(tmp_path / "run"), newer)
    run_folder.settle(tmp_path / "run")
    assert_equal(History.load(tmp_path / "run"), newer)
    assert not (tmp_path / "run" / NEXT).exists()


def test_models_of_another_run_are_not_taken_for_those_of_a_loaded_one(tmp_path):
    one = dataclasses.replace(small(), server_state={"weights": np.zeros(3)})
    loaded = History.load(one.save(tmp_path, models=True))
    dataclasses.replace(small(), server_state={"weights": np.ones(3)}).save(
        tmp_path, models=True
    )
    with refused("damaged"):
        loaded.server_state  # noqa: B018


def test_errors_name_the_value_and_the_remedy(tmp_path):
    with refused("choose from none"):
        small(accuracies={}).time_to(0.5, evaluation="global")
    with pytest.raises(
        FileNotFoundError,
        match=r"nothing here' .* config\.json is missing; give the folder",
    ):
        History.load(tmp_path / "nothing here")
    (tmp_path / "file").write_text("")
    with refused("is a file"):
        small().save(tmp_path / "file")


def test_a_flipped_bit_in_a_finished_folder_is_refused(tmp_path):
    """In any file but `accuracy.png`, which is drawn from the tables and never read."""
    rng, states = (
        random.Random(0),
        {"kernel": np.ones((5, 3)), "bias": np.ones(3, np.float32)},
    )
    saved = dataclasses.replace(random_history(), server_state=states).save(
        tmp_path, models=True
    )
    files = sorted(
        path
        for path in saved.rglob("*")
        if path.is_file() and path.name != "accuracy.png"
    )
    files = [path for path in files if path.stat().st_size]
    for trial in range(60):
        path = files[trial % len(files)]
        intact = path.read_bytes()
        flipped = bytearray(intact)
        flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
        path.write_bytes(flipped)
        with refused(r"damaged \("):
            History.load(saved).server_state  # noqa: B018
        path.write_bytes(intact)
    assert History.load(saved).server_state is not None


@pytest.mark.parametrize("part", [0, 0.5])
def test_a_run_whose_table_is_cut_short_is_replaced(part, tmp_path):
    config = small().save(tmp_path) / "config.json"
    content = config.read_bytes()
    config.write_bytes(content[: int(part * len(content))])
    assert_equal(History.load(small().save(tmp_path)), small())


def test_names_that_a_spreadsheet_would_run_are_escaped_and_restored(tmp_path):
    metrics = {
        name: np.arange(4.0) for name in ("=1+1", "'=1+1", "@a", "-2", "$\\frac{1}{$")
    }
    history = small(metrics=metrics, accuracies={"+a": small().accuracy})
    assert_equal(history, History.load(history.save(tmp_path)))
    assert "'=1+1,''=1+1,'@a,-2,$" in (tmp_path / "history.csv").read_text()
    assert "\n'+a,2,0," in (tmp_path / "clients.csv").read_text()


@pytest.mark.filterwarnings("ignore")  # fonts lack letters
@pytest.mark.parametrize("name", ["a\rb", "a\r\nb", "\r", "a\nb", "\u2028"])
def test_names_with_line_breaks_are_read_back(name, tmp_path):
    made = small(
        metrics={name: [1.0, 0.5, 0.25, 0.125]},
        accuracies={name: [[0.5, 0.25, 1.0], [0.75, 0.5, 1.0]]},
    )
    loaded = History.load(made.save(tmp_path))
    assert loaded.metrics[name].tolist() == made.metrics[name].tolist()
    assert loaded.accuracies[name].tolist() == made.accuracies[name].tolist()
