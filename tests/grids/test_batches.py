"""Batches of a grid: results equal those of single runs, also after interruptions and growth; tables."""

import json
import shutil

import jax
import numpy as np
import pandas as pd
import pytest
from small_grid import AXES, DATA, OPTIONS, RATES, SEEDS, grid, members_of, planned

import fedjax_srp as srp
from fedjax_srp import History
from fedjax_srp.lab.commands import cli
from fedjax_srp.lab.grids import batches as units
from fedjax_srp.lab.grids.work import Worker
from fedjax_srp.lab.runs import folder as run_folder

TABLES = ("history.csv", "clients.csv")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Four runs in one program."""
    return grid(tmp_path_factory.mktemp("whole"))


def tables(found):
    return {
        name: [(folder / table).read_bytes() for table in TABLES]
        for name, folder in found.folders.items()
    }


def simulated(method, seed=0, num_rounds=2, **options):
    data = srp.data.load(
        "digits", **{name: value for name, value in DATA.items() if name != "dataset"}
    )
    clock = srp.clocks.Dynamic(srp.clocks.Exponential(srp.clocks.Uniform(1 / 6, 1)))
    given = {
        "num_rounds": num_rounds,
        "eval_every": 1,
        "devices": 1,
        "key": jax.random.key(seed),
        "progress": False,
    }
    return srp.simulate(
        srp.methods.get(method, dataset=data, hidden=(4,), **options),
        data,
        clock=clock,
        **given,
    )


def test_a_batch_equals_single_runs(whole):
    assert members_of(whole.folder) == [4]
    for name, (rate, seed) in zip(
        whole.folders, [(r, s) for r in RATES for s in SEEDS], strict=True
    ):
        assert name == f"fedavg, learning_rate={rate}, seed={seed}"
        expected, history = (
            simulated("fedavg", seed, learning_rate=rate),
            whole.histories[name],
        )
        np.testing.assert_array_equal(history.compute_time, expected.compute_time)
        np.testing.assert_allclose(history.accuracy, expected.accuracy, atol=1e-5)
        assert history.method.algorithm.training.optimizer.learning_rate == rate
        assert history.config["key"] == [0, seed]
    finals = [history.accuracy.tobytes() for history in whole.histories.values()]
    assert len(set(finals)) == 4  # no run stands for another


def test_finished_runs_are_not_run_again(whole, monkeypatch):
    before = tables(whole)
    monkeypatch.setattr(Worker, "run", lambda *_: pytest.fail("it is finished"))
    again = grid(whole.folder)
    assert tables(again) == before
    assert repr(again) == f"Grid({str(whole.folder)!r}: 4 of 4 runs finished)"


def test_run_folders_of_a_batch_equal_those_of_the_run_command(whole, capsys):
    folder = whole.folders["fedavg, learning_rate=0.2, seed=0"]
    words = [f"--{name.replace('_', '-')}={value}" for name, value in DATA.items()]
    words += [
        "--hidden",
        "4",
        "--num-rounds",
        "2",
        "--eval-every",
        "1",
        "--devices",
        "1",
        "--clock",
        "random",
    ]
    words += [
        "--method",
        "fedavg",
        "--learning-rate",
        "0.2",
        "--out",
        str(folder),
        "--no-progress",
    ]
    assert cli.main(["run", *words], set_up_cores=False) == 0, capsys.readouterr().err
    assert "holds this run already, finished" in capsys.readouterr().out


def test_floats_that_are_derived_from_an_axis_are_values_of_a_batch(tmp_path):
    """The optimizer of fine-tuning has the step size of training, and another momentum."""
    axes = {"method": ["fedavg_ft"], "learning_rate": RATES}
    (unit,) = planned(tmp_path, axes, **{"fine_tune_optimizer.momentum": 0.5})
    values = units.batch_of([member.point for member in unit.members]).values
    names = "training.optimizer.learning_rate", "fine_tune_optimizer.learning_rate"
    assert {name: tuple(values[name]) for name in values} == dict.fromkeys(names, RATES)


def test_long_tables_have_the_histories(whole, monkeypatch):
    frame, clients = whole.to_frame(communication=3.0), whole.clients_frame()
    assert frame.columns[:5].tolist() == ["run", "id", "method", "learning_rate", "seed"]
    for name, history in whole.histories.items():
        own = frame[frame["run"] == name]
        assert own["elapsed"].tolist() == history.elapsed(3.0).tolist()
        assert own["accuracy_global"].tolist() == history.mean_accuracy.tolist()
        of_clients = clients[clients["run"] == name]["accuracy"].tolist()
        assert of_clients == history.accuracy.ravel().tolist()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)  # of pyarrow
    runs, rounds = whole.save(communication=3.0)
    pd.testing.assert_frame_equal(pd.read_csv(rounds), frame)
    summary = pd.read_csv(runs)
    finals = [history.final_accuracy for history in whole.histories.values()]
    assert summary["final_accuracy"].tolist() == pytest.approx(finals)
    assert summary["seed"].tolist() == [*SEEDS, *SEEDS]
    last = [history.elapsed(3.0)[-1] for history in whole.histories.values()]
    assert summary["simulated_time"].tolist() == last
    monkeypatch.undo()
    pytest.importorskip("pyarrow")
    _, rounds = whole.save()
    pd.testing.assert_frame_equal(pd.read_parquet(rounds), whole.to_frame())


@pytest.mark.usefixtures("no_rounds")
def test_an_option_with_the_name_of_a_column_has_another_one_in_tables(tmp_path):
    found = grid(tmp_path, {"method": ["fedavg"], "evaluation": ["fine_tune"]})
    for table in (found.clients_frame(), found.summary()):
        columns = table[["option_evaluation", "evaluation"]]
        assert (columns == "fine_tune").all(axis=None)
    assert len(found.save()) == 2  # no column twice, which pyarrow refuses


def test_a_full_disk_leaves_the_tables_as_they_were(whole, monkeypatch):
    before = {path: path.read_bytes() for path in whole.save()}

    def full(table, path, **_):
        path.write_bytes(b"a part")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)  # of pyarrow
    monkeypatch.setattr("pandas.DataFrame.to_parquet", full)
    with pytest.raises(OSError, match=f"No space left on device: '{whole.folder}'"):
        whole.save(communication=9.0)
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.usefixtures("no_rounds")
def test_tables_have_the_cost_and_the_target_of_each_run(tmp_path):
    axes = {"method": ["fedavg"], "communication": [0.0, 7.0]}
    found = grid(tmp_path, axes, options={"target": 0.001, "num_rounds": 2}, batch=1)
    found.save()
    runs = pd.read_csv(tmp_path / "runs.csv").set_index("run")
    names = ["simulated_time", "time_to_target"]
    for name, folder in found.folders.items():
        own = json.loads((folder / "summary.json").read_text())
        expected = [own[column] for column in names]
        assert runs.loc[name, names].tolist() == pytest.approx(expected)
    with pytest.warns(UserWarning, match="2 of 2 runs is an upper bound"):
        frame = found.summary(communication=7.0)
    assert frame["reached_at_once"].all()
    free, dear = frame["simulated_time"]
    assert free == dear  # what is given goes for all
    assert found.summary(target=1.0)["time_to_target"].tolist() == [np.inf, np.inf]


def test_a_batch_that_is_interrupted_ends_with_the_same_bytes(
    whole, tmp_path, monkeypatch
):
    """First in the middle of the rounds, then between the folders of its runs."""
    save, saved = run_folder.save, []

    def save_one(*args):
        saved.append(args)
        if len(saved) > 1:
            raise KeyboardInterrupt
        save(*args)

    def stop(progress):
        raise KeyboardInterrupt

    for name, value in (("_progress_callback", lambda tell: stop), ("save", save_one)):
        with monkeypatch.context() as patch:
            patch.setattr(f"fedjax_srp.lab.grids.work.{name}", value)
            with pytest.raises(KeyboardInterrupt):
                grid(tmp_path)
    (begun,) = (tmp_path / units.SHARED).glob("*/checkpoint")
    assert {int(step.name) for step in begun.iterdir() if step.name.isdecimal()} == {2}
    (finished,) = [
        path.parent / "history.csv" for path in tmp_path.glob("*/summary.json")
    ]
    before = finished.stat().st_mtime_ns
    found = grid(tmp_path)
    assert tables(found) == tables(whole)
    assert finished.stat().st_mtime_ns == before
    assert members_of(tmp_path) == [4]
    (begun / ".1.0123abcd.gone").mkdir()  # its removal failed
    grid(tmp_path)
    assert not [*begun.glob("*.gone")]


def test_a_grid_grows_and_its_runs_are_made_longer(whole, tmp_path):
    axes = AXES | {"learning_rate": [0.05], "seed": [0, 1]}
    grid(tmp_path, axes, options={"num_rounds": 1})
    longer = grid(tmp_path, axes)
    assert members_of(tmp_path) == [2]
    assert [history.num_rounds for history in longer.histories.values()] == [2, 2]
    first = "fedavg, learning_rate=0.05, seed=0"
    np.testing.assert_allclose(
        longer.histories[first].accuracy, whole.histories[first].accuracy, atol=1e-5
    )
    kept = tables(longer)
    more = grid(tmp_path, axes | {"seed": [0, 1, 2, 3]})
    assert sorted(members_of(tmp_path)) == [2, 2]
    assert {name: table for name, table in tables(more).items() if name in kept} == kept


def test_summaries_are_written_for_another_cost_and_nothing_is_simulated(
    whole, tmp_path, monkeypatch, capsys
):
    shutil.copytree(whole.folder, tmp_path, dirs_exist_ok=True)
    for place in ("simulate", "simulate_seeds"):
        fails = lambda **_: pytest.fail("it is simulated")
        monkeypatch.setattr(f"fedjax_srp.lab.grids.work.{place}", fails)
    options = OPTIONS | {"communication": 7.0}
    found = srp.grid(axes=AXES, options=options, out=tmp_path)
    assert "4 with another communication cost" in capsys.readouterr().err
    assert not found.failures
    for folder in found.folders.values():
        history = History.load(folder)
        summary = json.loads((folder / "summary.json").read_text())
        assert summary["simulated_time"] == history.elapsed(7.0)[-1]
        assert summary["communication"] == 7.0
    monkeypatch.setattr(Worker, "run", lambda *_: pytest.fail("it is done"))
    assert len(grid(tmp_path, options={"communication": 7.0}).folders) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"target": 0.9},
            "seed=0 and 3 more runs: is finished with target=None and .*delete its",
        ),
        (
            {"num_rounds": 1},
            "is finished with num_rounds=2 and has no checkpoint of its own",
        ),
    ],
)
def test_runs_without_checkpoint_that_would_lose_rounds_are_refused(
    whole, tmp_path, options, message
):
    shutil.copytree(whole.folder, tmp_path, dirs_exist_ok=True)
    with pytest.raises(ValueError, match=message):
        grid(tmp_path, options=options, batch=1)
    assert members_of(tmp_path) == [4]  # the batch stays one, with its checkpoint
    assert tables(grid(tmp_path)) == tables(whole)


@pytest.mark.long
def test_jobs_of_submitit_end_with_the_same_runs(whole, tmp_path):
    pytest.importorskip("submitit")
    slurm = {"cluster": "local", "timeout_min": 30}
    found = grid(tmp_path, AXES | {"seed": [0]}, launcher="slurm", slurm=slurm)
    assert not found.failures
    for name, history in found.histories.items():
        np.testing.assert_allclose(
            history.accuracy, whole.histories[name].accuracy, atol=1e-5
        )


@pytest.mark.usefixtures("no_rounds")
def test_tables_have_the_options_of_variants(tmp_path):
    variants = {
        "plain": {"method": "fedavg", "learning_rate": 0.2},
        "own": {"method": "fedavg"},
    }
    found = grid(tmp_path, {"seed": [0, 1]}, variants=variants)
    rows = found.summary()
    assert list(rows)[:6] == ["run", "id", "variant", "seed", "method", "learning_rate"]
    assert rows["method"].tolist() == ["fedavg"] * 4
    assert rows["learning_rate"].fillna(-1).tolist() == [0.2, 0.2, -1, -1]  # as given
    assert next(iter(found.folders)) == "plain, seed=0"
    assert set(found.to_frame()["method"]) == {"fedavg"}
