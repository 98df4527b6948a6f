"""Grids: equal results for batches, single runs and worker processes; failures, interruptions and kills."""

import contextlib
import json
import os
import random
import shutil
import sys
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pandas as pd
import pytest
from attacks import killed_grid
from reference.small import refused

import fedjax_srp as srp
from fedjax_srp import storage
from fedjax_srp.commands import cli
from fedjax_srp.engine import simulate
from fedjax_srp.grids import execute, launch, units
from fedjax_srp.grids.execute import describe_plan, plan
from fedjax_srp.grids.points import Spec, points, read
from fedjax_srp.grids.result import Grid
from fedjax_srp.grids.work import Cost, DatasetCache, TaskResult, Worker
from fedjax_srp.history import History
from fedjax_srp.runs import folder as run_folder
from fedjax_srp.runs.run import LIMITS

RATES, SEEDS = (0.05, 0.2), (0, 2**32 - 1)
DATA = {"dataset": "digits", "num_clients": 6, "classes_per_client": 3, "max_examples": 8}
OPTIONS = DATA | {"hidden": [4], "num_rounds": 2, "eval_every": 1, "devices": 1, "clock": "random"}
AXES = {"method": ["fedavg"], "learning_rate": RATES, "seed": SEEDS}
TABLES = ("history.csv", "clients.csv")
EXAMPLES = Path(__file__).parents[2] / "experiments" / "grids"


def grid(out, axes=None, **given):
    given = {"batch": 16} | given
    return srp.grid(axes=axes or AXES, options=OPTIONS | given.pop("options", {}), out=out, progress=False, **given)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Four runs in one program."""
    return grid(tmp_path_factory.mktemp("whole"))


def tables(found):
    return {name: [(folder / table).read_bytes() for table in TABLES] for name, folder in found.folders.items()}


def members_of(out):
    return [len(members) for members in storage.read_json(Path(out) / units.GRID_INDEX).values()]


def simulated(method, seed=0, num_rounds=2, **options):
    data = srp.data.load("digits", **{name: value for name, value in DATA.items() if name != "dataset"})
    clock = srp.clocks.Dynamic(srp.clocks.Exponential(srp.clocks.Uniform(1 / 6, 1)))
    given = {"num_rounds": num_rounds, "eval_every": 1, "devices": 1, "key": jax.random.key(seed), "progress": False}
    return srp.simulate(srp.methods.get(method, dataset=data, hidden=(4,), **options), data, clock=clock, **given)


def test_a_batch_equals_single_runs(whole):
    assert members_of(whole.folder) == [4]
    for name, (rate, seed) in zip(whole.folders, [(r, s) for r in RATES for s in SEEDS], strict=True):
        assert name == f"fedavg, learning_rate={rate}, seed={seed}"
        expected, history = simulated("fedavg", seed, learning_rate=rate), whole.histories[name]
        np.testing.assert_array_equal(history.compute_time, expected.compute_time)
        np.testing.assert_allclose(history.accuracy, expected.accuracy, atol=1e-5)
        recorded = history.config["arguments"]
        assert (recorded["learning_rate"], recorded["seed"], history.config["seed"]) == (rate, seed, seed)
    finals = [history.accuracy.tobytes() for history in whole.histories.values()]
    assert len(set(finals)) == 4  # no run stands for another


@pytest.mark.long
def test_a_batch_with_derived_floats_equals_single_runs(tmp_path):
    """The optimizer of fine-tuning has the step size of training, and another momentum."""
    axes, own = {"method": ["fedavg_ft"], "learning_rate": RATES}, {"fine_tune_optimizer.momentum": 0.5}
    found = grid(tmp_path, axes, options={"fine_tune_epochs": 2, "num_rounds": 1} | own)
    assert members_of(tmp_path) == [2]
    (unit,) = planned(tmp_path, axes, fine_tune_epochs=2, num_rounds=1, **own)
    values = units.batch_of([member.point for member in unit.members]).values
    assert values.keys() == {"training.optimizer.learning_rate", "fine_tune_optimizer.learning_rate"}
    for name, rate in zip(found.folders, RATES, strict=True):
        history = simulated("fedavg_ft", num_rounds=1, learning_rate=rate, fine_tune_epochs=2, **own)
        assert history.method.algorithm.fine_tune_optimizer == srp.SGD(rate, 0.5)
        np.testing.assert_allclose(found.histories[name].accuracy, history.accuracy, atol=1e-5)
        options = found.histories[name].config["options"]
        assert options["fine_tune_optimizer.learning_rate"] == options["learning_rate"] == pytest.approx(rate)
    assert len({history.accuracy.tobytes() for history in found.histories.values()}) == 2


@pytest.fixture
def trained(monkeypatch):
    """Number of trainings of each program, in the order of the programs."""
    found = []

    def counted(train):
        def call(**given):
            found.append(len(given.get("keys", [0])))
            return train(**given)

        return call

    monkeypatch.setattr("fedjax_srp.grids.work.simulate_seeds", counted(simulate.simulate_seeds))
    for place in ("grids.work", "runs.folder"):
        monkeypatch.setattr(f"fedjax_srp.{place}.simulate", counted(simulate.simulate))
    return found


JUDGED = {"method": ["fedavg", "fedavg_ft"], "evaluations": [["fine_tune_all", "global"], ["fine_tune"]]}


@pytest.mark.long
@pytest.mark.parametrize("batch", [pytest.param(1, marks=pytest.mark.long), 16])
def test_runs_that_differ_only_in_evaluation_share_a_training(tmp_path, trained, batch):
    """Their histories and records equal those of separate grids."""
    axes, seeds = {"method": ["fedavg", "fedavg_ft", "flanp_fedavg_ft"]}, [0, 1]
    found = grid(tmp_path / "all", axes | {"seed": seeds}, options={"initial": 2}, batch=batch)
    assert sorted(trained) == ([1, 1, 1, 1] if batch == 1 else [2, 2])
    assert members_of(tmp_path / "all") == ([2, 2, 1, 1] if batch == 1 else [4, 2])
    trained.clear()
    for seed in seeds:
        alone = [grid(tmp_path / name, {"method": [name]}, options={"seed": seed}) for name in ("fedavg", "fedavg_ft")]
        for name, of_one in zip(("fedavg", "fedavg_ft"), alone, strict=True):
            history = found.histories[f"{name}, seed={seed}"]
            (expected,) = of_one.histories.values()
            np.testing.assert_array_equal(history.compute_time, expected.compute_time)
            np.testing.assert_allclose(history.accuracy, expected.accuracy, atol=1e-5)
            assert [*history.accuracies] == [*expected.accuracies]
            shared = {**expected.config, "num_seeds": history.config["num_seeds"]}
            assert history.config == shared
    assert trained == [1, 1, 1, 1]
    scores = [found.histories[f"{name}, seed=0"].final_accuracy for name in ("fedavg", "fedavg_ft")]
    assert scores[0] != scores[1]
    trained.clear()
    longer = grid(tmp_path / "all", axes | {"seed": seeds}, options={"initial": 2, "num_rounds": 3}, batch=batch)
    assert {history.num_rounds for history in longer.histories.values()} == {3}
    assert sorted(trained) == ([1, 1, 1, 1] if batch == 1 else [2, 2])


def test_several_evaluations_share_a_training_and_an_unknown_one_is_refused(tmp_path, trained, capsys):
    found = srp.grid(axes=JUDGED, options=OPTIONS, out=tmp_path)
    assert trained == [1]
    assert "4 to run by 1 training, 2 rounds at most" in capsys.readouterr().err
    for name, history in found.histories.items():
        assert [*history.accuracies] == (["fine_tune_all", "global"] if "global" in name else ["fine_tune"])
        assert history.config["evaluations"] == [*history.accuracies]
    assert len({folder.name for folder in found.folders.values()}) == 4
    with pytest.raises(
        ValueError, match=r"fedavg, evaluations=nope: unknown evaluation of fedavg .*; fedavg_ft, evaluations=nope"
    ):
        grid(tmp_path, JUDGED | {"evaluations": [["global"], ["nope"]]})


@pytest.mark.parametrize("options", [{"target": 0.01}, {"evaluations": []}, {"tensorboard": "logs"}])
def test_some_evaluations_prevent_a_shared_training(tmp_path, options):
    """Runs with a target, without evaluations, or with a log do not share a training."""
    axes = {"method": ["fedavg", "fedavg_ft"], "seed": [0, 1]}
    assert max(len(unit.members) for unit in planned(tmp_path, axes)) == 4
    for unit in planned(tmp_path, axes, **options):
        assert len(unit.trainings()) == len(unit.members) <= 2
    (first, second) = planned(tmp_path / "time", axes, time_limit=5.0)  # which ends them together
    assert [len(first.members), len(first.trainings()), len(second.members)] == [2, 1, 2]


def test_objects_that_differ_only_in_evaluation_share_a_training(tmp_path, trained):
    model = srp.models.MLP((8, 8), 10, (4,))
    methods = {"as it is": srp.algorithms.FedAvg(model), "tuned": srp.algorithms.FedAvg(model, evaluation="fine_tune")}
    options = {name: value for name, value in OPTIONS.items() if name != "hidden"}
    found = srp.grid(axes={"method": methods}, options=options, out=tmp_path, progress=False)
    assert trained == [1]
    assert [[*history.accuracies] for history in found.histories.values()] == [["global"], ["fine_tune"]]
    described = [json.loads(json.dumps(h.config["arguments"]["algorithm"])) for h in found.histories.values()]
    assert described[0] != described[1]


def test_finished_runs_are_not_run_again(whole, monkeypatch):
    before = tables(whole)
    monkeypatch.setattr(Worker, "run", lambda *_: pytest.fail("it is finished"))
    again = grid(whole.folder)
    assert tables(again) == before
    assert repr(again) == f"Grid({str(whole.folder)!r}: 4 of 4 runs finished)"


def test_run_folders_of_a_batch_equal_those_of_the_run_command(whole, capsys):
    folder = whole.folders["fedavg, learning_rate=0.2, seed=0"]
    words = [f"--{name.replace('_', '-')}={value}" for name, value in DATA.items()]
    words += ["--hidden", "4", "--num-rounds", "2", "--eval-every", "1", "--devices", "1", "--clock", "random"]
    words += ["--method", "fedavg", "--learning-rate", "0.2", "--out", str(folder), "--no-progress"]
    assert cli.main(["run", *words], set_up_cores=False) == 0, capsys.readouterr().err
    assert "holds this run already, finished" in capsys.readouterr().out


def test_long_tables_have_the_histories(whole, monkeypatch, tmp_path):
    frame, clients, summary = whole.to_frame(communication=3.0), whole.clients_frame(), whole.summary(target=0.0)
    assert frame.columns[:4].tolist() == ["run", "method", "learning_rate", "seed"]
    for name, history in whole.histories.items():
        own = frame[frame["run"] == name]
        assert own["elapsed"].tolist() == history.elapsed(3.0).tolist()
        assert own["accuracy_global"].tolist() == history.mean_accuracy.tolist()
        assert clients[clients["run"] == name]["accuracy"].tolist() == history.accuracy.ravel().tolist()
    assert summary["final_accuracy"].tolist() == [h.final_accuracy for h in whole.histories.values()]
    assert summary["seed"].tolist() == [*SEEDS, *SEEDS]
    rounds = whole.folder / "rounds.csv"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    whole.save(communication=3.0)
    pd.testing.assert_frame_equal(pd.read_csv(rounds), frame)
    last = [history.elapsed(3.0)[-1] for history in whole.histories.values()]
    assert pd.read_csv(whole.folder / "runs.csv")["simulated_time"].tolist() == last
    assert whole.save() == [whole.folder / "runs.csv", rounds]
    pd.testing.assert_frame_equal(pd.read_csv(rounds), whole.to_frame())
    assert pd.read_csv(whole.folder / "runs.csv")["run"].tolist() == list(whole.folders)


def test_a_full_disk_leaves_the_tables_as_they_were(whole, monkeypatch):
    tables = {path: path.read_bytes() for path in whole.save()}

    def full(table, path, **_):
        path.write_bytes(b"a part")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pandas.DataFrame.to_parquet", full)
    with monkeypatch.context() as patched:
        patched.setattr("pandas.DataFrame.to_csv", lambda table, path, **_: path.write_bytes(b"new"))
        with pytest.raises(OSError, match=f"No space left on device: '{whole.folder}'; what was written before"):
            whole.save(communication=9.0)
    assert {path: path.read_bytes() for path in tables} == tables


def test_tables_have_the_cost_and_the_target_of_each_run(tmp_path):
    axes = {"method": ["fedavg"], "communication": [0.0, 7.0]}
    found = grid(tmp_path, axes, options={"target": 0.001, "num_rounds": 2}, batch=1)
    found.save()
    runs = pd.read_csv(tmp_path / "runs.csv").set_index("run")
    rounds = found.to_frame()
    for name, folder in found.folders.items():
        own = json.loads((folder / "summary.json").read_text())
        assert own["time_to_target"] is not None
        assert runs.loc[name, ["simulated_time", "time_to_target"]].tolist() == pytest.approx(
            [own["simulated_time"], own["time_to_target"]]
        )
        assert rounds[rounds["run"] == name]["elapsed"].iloc[-1] == own["simulated_time"]
    free, dear = found.summary(communication=7.0)["simulated_time"]  # what is given goes for all
    assert free == dear
    assert found.summary(target=1.0)["time_to_target"].tolist() == [np.inf, np.inf]


def test_parquet_keeps_every_bit(whole):
    pytest.importorskip("pyarrow")
    _, rounds = whole.save()
    pd.testing.assert_frame_equal(pd.read_parquet(rounds), whole.to_frame())


def test_a_batch_that_is_interrupted_ends_with_the_same_bytes(whole, tmp_path, monkeypatch):
    """First in the middle of the rounds, then between the folders of its runs."""
    save, count = run_folder.save, 0

    def save_one(*args):
        nonlocal count
        count += 1
        if count > 1:
            raise KeyboardInterrupt
        save(*args)

    def stop(progress):
        raise KeyboardInterrupt

    for name, value in (("_progress_callback", lambda tell: stop), ("run_folder.save", save_one)):
        with monkeypatch.context() as patch:
            patch.setattr(f"fedjax_srp.grids.work.{name}", value)
            with pytest.raises(KeyboardInterrupt):
                grid(tmp_path)
    (begun,) = (tmp_path / units.SHARED).glob("*/checkpoint")
    assert {int(step.name) for step in begun.iterdir() if step.name.isdecimal()} == {2}
    assert count == 2
    finished = [path.parent for path in tmp_path.glob("*/summary.json")]
    assert len(finished) == 1
    before = (finished[0] / "history.csv").stat().st_mtime_ns
    found = grid(tmp_path)
    assert tables(found) == tables(whole)
    assert (finished[0] / "history.csv").stat().st_mtime_ns == before
    assert members_of(tmp_path) == [4]


def test_a_grid_grows_and_its_runs_are_made_longer(whole, tmp_path):
    axes = AXES | {"learning_rate": [0.05], "seed": [0, 1]}
    grid(tmp_path, axes, options={"num_rounds": 1})
    longer = grid(tmp_path, axes)
    assert members_of(tmp_path) == [2]
    assert [history.num_rounds for history in longer.histories.values()] == [2, 2]
    first = "fedavg, learning_rate=0.05, seed=0"
    np.testing.assert_allclose(longer.histories[first].accuracy, whole.histories[first].accuracy, atol=1e-5)
    kept = tables(longer)
    more = grid(tmp_path, axes | {"seed": [0, 1, 2, 3]})
    assert sorted(members_of(tmp_path)) == [2, 2]
    assert {name: table for name, table in tables(more).items() if name in kept} == kept


@pytest.mark.long
def test_runs_of_a_batch_that_is_broken_up_are_made_longer_from_the_start(whole, tmp_path):
    shutil.copytree(whole.folder, tmp_path, dirs_exist_ok=True)
    found = points(Spec(OPTIONS | {"num_rounds": 3}, AXES, {}, ()))
    units_of = plan(found, tmp_path, 1, workers=1, sharers=1, devices=1)
    assert "4 to run, 4 of them from round 0, having no checkpoint of their own, 12 rounds" in describe_plan(
        units_of, units_of, tmp_path
    )
    longer = grid(tmp_path, options={"num_rounds": 3}, batch=1)
    assert not longer.failures
    for name, history in longer.histories.items():
        assert history.num_rounds == 3
        np.testing.assert_array_equal(history.compute_time[:2], whole.histories[name].compute_time)
        np.testing.assert_allclose(history.accuracy[:2], whole.histories[name].accuracy, atol=1e-5)
    assert not any(unit.must_restart() for unit in planned(tmp_path, AXES, num_rounds=4))  # they have checkpoints now


@pytest.mark.parametrize("batch", [1, 16])
def test_checkpoints_with_more_rounds_than_requested_are_refused(batch, tmp_path, monkeypatch):
    """Runs of an interrupted batch, and finished single runs."""

    def kill(*_):
        raise KeyboardInterrupt

    axes = AXES | {"learning_rate": [0.05], "seed": [0, 1]}
    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr("fedjax_srp.grids.work.run_folder.save", kill if batch > 1 else run_folder.save)
        grid(tmp_path, axes, batch=batch)
    monkeypatch.setattr(Worker, "run", lambda *_: pytest.fail("it runs"))
    where = r"'.*/.together/\w+', which its batch shares" if batch > 1 else "its folder"
    message = f"seed=0 and 1 more runs: num_rounds=1, but its checkpoint has 2 rounds; .* at least 2, .* {where}$"
    with pytest.raises(ValueError, match=message):
        grid(tmp_path, axes, options={"num_rounds": 1}, batch=batch)


def test_a_batch_without_checkpoint_that_would_lose_rounds_is_refused(tmp_path):
    kept = grid(tmp_path, options={"checkpoint": False})
    with pytest.raises(ValueError, match="3 more runs: is finished with num_rounds=2, not 1,"):
        grid(tmp_path, options={"checkpoint": False, "num_rounds": 1})
    assert len(kept.folders) == 4


def test_summaries_are_written_for_another_cost_and_nothing_is_simulated(whole, tmp_path, monkeypatch, capsys):
    shutil.copytree(whole.folder, tmp_path, dirs_exist_ok=True)
    axes = AXES | {"learning_rate": [0.05, 0.4]}  # two of the batch are not asked for
    grid(tmp_path, axes)
    monkeypatch.setattr("fedjax_srp.grids.work.simulate", lambda **_: pytest.fail("it is simulated"))
    monkeypatch.setattr("fedjax_srp.grids.work.simulate_seeds", lambda **_: pytest.fail("it is simulated"))
    monkeypatch.setattr(DatasetCache, "__call__", lambda *_: pytest.fail("data are loaded"))
    before = {folder.name for folder in tmp_path.glob("fedavg*")}
    grid(tmp_path, axes, options={"communication": 7.0}, dry_run=True)
    found = srp.grid(axes=axes, options=OPTIONS | {"communication": 7.0}, out=tmp_path)
    plan_of_it = "4 runs, 4 finished (4 with another communication cost, whose summaries will be rewritten)"
    assert plan_of_it in capsys.readouterr().err
    assert {folder.name for folder in tmp_path.glob("fedavg*")} == before
    assert not found.failures
    for folder in found.folders.values():
        history = History.load(folder)
        summary = json.loads((folder / "summary.json").read_text())
        assert summary["simulated_time"] == history.elapsed(7.0)[-1] > history.elapsed()[-1]
        assert history.config["arguments"]["communication"] == 7.0
    monkeypatch.setattr(Worker, "run", lambda *_: pytest.fail("it is done"))
    assert len(grid(tmp_path, axes, options={"communication": 7.0}).folders) == 4


def test_a_cost_of_rounds_that_overlap_is_refused_before_anything_runs(tmp_path):
    axes, options = {"method": ["fedbuff"], "seed": [0, 1]}, {"k": 2, "communication": 3.0}
    with pytest.raises(ValueError, match=r"and 1 more runs: communication=3: rounds of 'fedbuff' overlap.*the clock"):
        grid(tmp_path, axes, options=options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": 0.9}, "seed=0 and 3 more runs: is finished with target=None, not 0.9, .*delete its"),
        ({"num_rounds": 1}, "is finished with num_rounds=2, not 1, and has no checkpoint of its own"),
    ],
)
def test_runs_without_checkpoint_that_would_lose_rounds_are_refused(whole, tmp_path, options, message):
    shutil.copytree(whole.folder, tmp_path, dirs_exist_ok=True)
    with pytest.raises(ValueError, match=message):
        grid(tmp_path, options=options, batch=1)
    assert members_of(tmp_path) == [4]  # the batch stays one, with its checkpoint
    assert tables(grid(tmp_path)) == tables(whole)


def test_a_column_of_several_types_is_text(whole, tmp_path):
    pytest.importorskip("pyarrow")
    names = list(whole.folders)[:3]
    values = [
        {"rounds_per_stage": 10, "mu": 1, "initial": 5},
        {"rounds_per_stage": (5, 10, 20), "mu": 2.5, "initial": 6},
        {"mu": None, "initial": 7},
    ]
    found = Grid(tmp_path, {name: whole.folders[name] for name in names}, dict(zip(names, values, strict=True)))
    _, rounds = found.save()
    frame = pd.read_parquet(rounds).drop_duplicates("run")
    assert frame["rounds_per_stage"].tolist()[:2] == ["10", "5+10+20"]
    assert frame["rounds_per_stage"].isna().tolist() == [False, False, True]
    assert frame["mu"].tolist()[:2] == [1.0, 2.5]
    assert frame["initial"].tolist() == [5, 6, 7]


def failing(monkeypatch, error, times):
    """Make the first tries of a unit fail; return the seeds of the units that were tried."""
    run, tried = Worker.run, []

    def fail(self, unit, tell):
        seed = unit.members[0].point.values["seed"]
        tried.append(seed)
        if seed == 0 and tried.count(0) <= times:
            raise error
        run(self, unit, tell)

    monkeypatch.setattr(Worker, "run", fail)
    return tried


def test_a_grid_goes_on_past_a_failure(tmp_path, monkeypatch):
    axes = AXES | {"learning_rate": [0.05], "seed": [0, 1]}
    tried = failing(monkeypatch, RuntimeError("a\nbug"), 2)
    found = grid(tmp_path, axes, batch=1, retries=1)
    assert tried == [0, 1, 0]
    (failure,) = found.failures
    assert failure.name == "fedavg, learning_rate=0.05, seed=0"
    assert failure.error.startswith("RuntimeError: a bug; see ")
    assert "RuntimeError: a\nbug" in Path(failure.error.partition("see ")[2]).read_text()
    assert list(found.folders) == ["fedavg, learning_rate=0.05, seed=1"]
    again = grid(tmp_path, axes, batch=1)
    assert tried == [0, 1, 0, 0]
    assert not again.failures
    assert len(again.folders) == 2


def test_invalid_parts_are_refused_before_anything_runs(tmp_path):
    axes = {"method": ["fedavg", "fedrep"], "learning_rate": [0.1, -1.0], "seed": [0, 1]}
    with refused(r"2 problems: .*learning_rate=-1.*and 3 more runs.*clock"):
        grid(tmp_path, axes, variants={"a": {}, "b": {"clock": "sundial"}}, options={"clock": "fixed"}, exclude=[])
    assert not list(tmp_path.glob("*/"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"evaluations": ["nope"]}, "unknown evaluation of fedavg 'nope'"),
        ({"devices": 99}, "devices=99: a run has 4 here; give no more, or fewer workers"),
        ({"chunk_size": 0}, "chunk_size=0 must be at least 1"),
        ({"eval_every": 0}, "eval_every=0 must be at least 1"),
        ({"time_limit": -1}, "time_limit=-1.0 must be positive"),
    ],
)
def test_errors_found_without_compiling_are_raised_before_anything_runs(options, message, tmp_path, monkeypatch):
    monkeypatch.setattr(Worker, "run", lambda *_: pytest.fail("it runs"))
    with pytest.raises(ValueError, match=f"^grid: fedavg, learning_rate=0.05, seed=0 and 3 more runs: {message}"):
        grid(tmp_path, options=options, batch=1)


def test_devices_are_those_of_a_worker(tmp_path):
    """This process has 4 devices."""
    found = points(Spec(OPTIONS | {"devices": 2}, {"method": ["fedavg"]}, {}, ()))
    with pytest.raises(ValueError, match="devices=2: a run has 1 here"):
        plan(found, tmp_path, None, workers=4, sharers=4, devices=1)
    many = points(Spec(OPTIONS | {"devices": 6}, {"method": ["fedavg"]}, {}, ()))
    for devices in (6, None):
        (unit,) = plan(many, tmp_path, None, workers=1, sharers=1, devices=devices)
        assert unit.members[0].point.run.devices == 6


def planned(out, axes, **options):
    found = points(Spec(OPTIONS | options, axes, {}, ()))
    return units.assign_units([(alike, 2) for alike in units.group_by_program(found)], out)


def test_only_runs_that_differ_in_seed_and_floats_are_batched(tmp_path):
    axes = {"method": ["fedprox"], "mu": [0.1, 1.0, 0.0], "epochs": [1, 2], "seed": [0, 1]}
    found = [[member.point.name for member in unit.members] for unit in planned(tmp_path, axes)]
    for together in found:
        values = [dict(word.split("=") for word in name.split(", ")[1:]) for name in together]
        assert len({value["epochs"] for value in values}) == 1
    assert sorted(map(len, found)) == [2] * 6  # at most 2 at once
    alike = units.group_by_program(points(Spec(OPTIONS, axes, {}, ())))
    assert [len(each) for each in alike] == [6, 6]
    momentum = {"method": ["fedavg"], "seed": [0, 1]}, {"a": {}, "b": {"momentum": 0.5}, "c": {"momentum": 0.0}}
    alike = units.group_by_program(points(Spec(OPTIONS, *momentum, ())))
    assert [[p.values["variant"] for p in each] for each in alike] == [["a", "a"], ["b", "b", "c", "c"]]
    limited = planned(tmp_path, {"method": ["fedavg"], "seed": [0, 1]}, target=0.5)
    assert [len(unit.members) for unit in limited] == [1, 1]
    variants = {"kept": {"seed": 0, "models": True}, "left": {"seed": 1}}
    apart = units.group_by_program(points(Spec(OPTIONS | {"method": "fedavg"}, {}, variants, ())))
    assert [[point.name for point in alike] for alike in apart] == [["kept"], ["left"]]


def test_a_batch_is_made_where_it_pays(tmp_path):
    sizes = {}
    for num_rounds in (100, 300):
        found = points(Spec(OPTIONS | {"num_rounds": num_rounds}, {"method": ["fedavg"], "seed": range(4)}, {}, ()))
        # 2 runs for each worker
        planned = plan(found, tmp_path / str(num_rounds), None, workers=2, sharers=2, devices=1)
        sizes[num_rounds] = [len(unit.members) for unit in planned]
    assert sizes == {100: [1, 1, 1, 1], 300: [2, 2]}


def test_a_batch_keeps_its_points(tmp_path):
    axes = {"method": ["fedavg"], "seed": [0, 1, 2, 3, 4]}
    first = planned(tmp_path, axes)
    assert [len(unit.members) for unit in first] == [2, 2, 1]
    again = planned(tmp_path, axes | {"seed": [4, 3, 2, 1, 0]})
    assert {unit.id for unit in again} == {unit.id for unit in first}
    found = points(Spec(OPTIONS, axes, {}, ()))
    alone = units.assign_units([(found, 1)], tmp_path, at_most=1)
    assert [len(unit.members) for unit in alone] == [1] * 5
    assert [len(unit.members) for unit in planned(tmp_path, axes)] == [1] * 5
    (tmp_path / units.GRID_INDEX).write_text("{}")
    assert [len(unit.members) for unit in planned(tmp_path, axes)] == [2, 2, 1]


def test_a_grid_waits_for_the_lock_of_the_index(tmp_path, monkeypatch):
    axes, other = {"method": ["fedavg"], "seed": [0]}, contextlib.ExitStack()
    other.enter_context(storage.held(tmp_path / units.SHARED, "out"))
    monkeypatch.setattr(units.time, "sleep", lambda seconds: other.close())  # which ends meanwhile
    assert len(planned(tmp_path, axes)) == 1
    monkeypatch.setattr(units, "_LOCK_TIMEOUT", 0.0)
    with storage.held(tmp_path / units.SHARED, "out"), refused(r"^out='.*': process .* is running here"):
        planned(tmp_path, axes)


def test_a_foreign_index_is_refused_and_kept(tmp_path):
    (tmp_path / units.GRID_INDEX).write_text('{"rows": 3}')
    with pytest.raises(ValueError, match=r"^out='.*': its grid.json was not written by fedjax_srp; give another out$"):
        srp.grid(axes={"seed": [0]}, options={**OPTIONS, "method": "fedavg"}, out=tmp_path)
    assert (tmp_path / units.GRID_INDEX).read_text() == '{"rows": 3}'


@pytest.mark.parametrize("limit", [{"target": 0.9}, {"time_limit": 5.0}])
def test_a_batch_is_broken_up_where_its_runs_get_a_limit(tmp_path, limit):
    axes = {"method": ["fedavg"], "seed": [0, 1]}
    (batch,) = planned(tmp_path, axes)
    alone = planned(tmp_path, axes, **limit)
    assert [unit.members[0].point.id for unit in alone] == [member.point.id for member in batch.members]
    assert [len(unit.members) for unit in alone] == [1, 1]
    assert members_of(tmp_path) == [1, 1]


class Scripted(launch.Launcher):
    """Launcher with room for two units, which end as given."""

    def __init__(self, *endings):
        self.endings, self.left, self.seen = list(endings), 2, []

    def start(self, task, unit):
        if not self.left:
            return None
        self.left -= 1
        self.seen.append(unit.id)
        future = Future()
        future.set_result(None)
        return future

    def result(self, unit, future):
        self.left += 1
        ending = self.endings.pop(0)
        return TaskResult(None if ending == "fine" else ending, ending == "elsewhere")


def test_failures_are_retried_last_and_units_of_other_processes_are_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "_POLL_OTHERS", 0.0)
    left = planned(tmp_path, {"method": ["fedavg"], "epochs": [1, 2, 3]})
    a, b, c = (unit.id for unit in left)
    launcher = Scripted("broken", "elsewhere", "fine", "broken", "elsewhere", "fine")
    ended = launch.perform("run", left, launcher, launch.GridBar(left, 3, silent=True), retries=1)
    assert [(unit.id, done.error) for unit, done in ended] == [(c, None), (a, "broken"), (b, None)]
    assert launcher.seen == [a, b, c, a, b, b]


def test_the_bar_counts_rounds_of_all_runs(tmp_path):
    left = planned(tmp_path, {"method": ["fedavg"], "seed": [0, 1, 2]})
    bar = launch.GridBar(left, 5, silent=True)
    counts = []
    bar._bar.update = counts.append
    bar.update(left[0], 2)
    bar.update(left[0], 1)  # it began anew
    bar.finish(left[0], has_failed=False)
    bar.finish(left[1], has_failed=True)
    assert counts == [2, 0, 2]
    assert bar._description() == "4 of 5 runs, 1 failed"


def test_a_unit_that_another_process_runs_is_held_elsewhere(tmp_path):
    (unit, *_) = planned(tmp_path, {"method": ["fedavg"], "seed": [0, 1]})
    with storage.held(unit.shared, "out"):
        done = Worker().perform("run", unit, lambda count: None)
    assert done.is_held_elsewhere
    assert "is running here" in str(done.error)


def test_a_link_in_the_place_of_a_log_or_an_error_is_not_followed(tmp_path, monkeypatch):
    precious, log = tmp_path / "precious", tmp_path / "log"
    precious.write_text("precious")
    log.mkdir()
    (log / "worker_0.log").symlink_to(precious)
    launch.ProcessLauncher(1, log, (), launch.GridBar([], 0, silent=True))
    assert not os.listdir(log)
    (unit, *_) = planned(tmp_path, {"method": ["fedavg"], "seed": [0, 1]})
    monkeypatch.setattr(Worker, "run", lambda *_: {}["nothing"])
    unit.shared.mkdir(exist_ok=True, parents=True)
    (unit.shared / "error.txt").symlink_to(precious)
    assert "see" in str(Worker().perform("run", unit, lambda count: None).error)
    assert "KeyError: 'nothing'" in (unit.shared / "error.txt").read_text()
    assert precious.read_text() == "precious"


def test_the_estimate_is_the_total_among_workers_or_the_longest_unit(tmp_path, monkeypatch):
    """Each program is compiled once: 10 + 20 seconds, for 2 runs of 2 rounds each."""
    compiling = {1: 10.0, 2: 20.0}
    cost = lambda unit: Cost(compiling[unit.members[0].point.values["epochs"]], 1.0)  # noqa: E731
    monkeypatch.setattr(Worker, "measure", lambda self, unit: cost(unit))
    axes = {"method": ["fedavg"], "learning_rate": RATES, "epochs": [1, 2]}
    assert grid(tmp_path, axes, batch=1, dry_run=True).seconds == 30 + 4 * 2
    found = [point for same in units.group_by_program(points(Spec(OPTIONS, axes, {}, ()))) for point in same]
    left = units.assign_units([(found, 1)], tmp_path)
    first = {unit.members[0].point.run.program(*LIMITS): unit for unit in left}
    costs = {unit.id: cost(unit) for unit in left}
    assert execute._estimate(left, first, costs, 1) == 30 + 4 * 2
    assert execute._estimate(left, first, costs, 2) == 19
    assert execute._estimate(left, first, costs, 4) == 12  # no less than a run takes


def test_a_dry_run_measures_and_leaves_nothing(tmp_path):
    found = grid(tmp_path, dry_run=True)
    assert found.seconds > 0
    assert not found.folders
    assert not list(tmp_path.rglob("summary.json"))


def toml(file, options, **axes):
    lines = [f"{name} = {json.dumps(value)}" for name, value in options.items()]
    lines += ["[axes]", *(f"{name} = {json.dumps(value)}" for name, value in axes.items())]
    file.write_text("\n".join(["[options]", *lines]))
    return str(file)


def test_a_failed_short_run_is_reported_in_one_line(tmp_path, monkeypatch, capsys):
    def measure(self, unit):
        if unit.members[0].point.values["epochs"] == 2:
            raise ValueError("too large")
        return Cost(1.0, 1.0)

    monkeypatch.setattr(Worker, "measure", measure)
    file = toml(tmp_path / "grid.toml", OPTIONS | {"method": "fedavg"}, epochs=[1, 2])
    words = ["grid", file, "--out", str(tmp_path / "out"), "--workers", "0", "--dry-run", "--no-progress"]
    assert cli.main(words, set_up_cores=False) == 2
    printed = capsys.readouterr()
    assert printed.out.startswith("failed: epochs=2: ValueError: too large; see ")
    assert printed.out.count("\n") == 1
    assert printed.err.endswith("error: no estimate: 1 of the programs failed in a short run\n")


def test_a_killed_worker_costs_only_its_unit(tmp_path, monkeypatch, capsys):
    """The first of two worker processes is killed as soon as it has a unit."""
    file = toml(tmp_path / "grid.toml", OPTIONS | {"num_rounds": 1}, method=["fedavg"], seed=[0, 1])
    processes, start = [], launch._WorkerSlot.start

    def start_and_kill(self, task, unit):
        future = start(self, task, unit)
        processes.append(self.process)
        if len(processes) == 1:
            self.process.kill()
        return future

    monkeypatch.setattr(launch._WorkerSlot, "start", start_and_kill)
    words = ["grid", file, "--out", str(tmp_path / "out"), "--workers", "2", "--batch", "1", "--no-progress"]
    assert cli.main(words, set_up_cores=False) == 2
    printed = capsys.readouterr()
    assert "failed: fedavg, seed=0: its process ended with signal 9, as when memory is short; see" in printed.out
    assert "error: 1 runs failed; the same command tries them again" in printed.err
    assert cli.main([*words, "--workers", "1"], set_up_cores=False) == 0, capsys.readouterr().err
    assert "2 of 2 runs finished" in capsys.readouterr().out
    assert not any(process.is_alive() for process in processes)  # nobody is left
    assert len(History.load(next((tmp_path / "out").glob("fedavg*"))).accuracy) == 1


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs the affinity of processes")
def test_workers_have_disjoint_cores_and_their_gpu(tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "cores", lambda: [0, 2, 4, 6, 8])
    monkeypatch.setattr(launch, "gpus", lambda: ["3", "5"])
    slots = launch.ProcessLauncher(2, tmp_path / "log", (), launch.GridBar([], 0, silent=True))._slots
    assert [list(slot.cores) for slot in slots] == [[0, 4, 8], [2, 6]]
    assert [slot.gpu for slot in slots] == ["3", "5"]
    assert launch.devices_per_worker(2) == 1
    monkeypatch.setattr(launch, "gpus", list)
    assert [launch.devices_per_worker(number) for number in (1, 2, 9)] == [5, 2, 1]
    monkeypatch.undo()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if name == "jax_cuda12_plugin" else None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,GPU-7")
    for unset in (None, ""):
        monkeypatch.setenv("JAX_PLATFORMS", "") if unset == "" else monkeypatch.delenv("JAX_PLATFORMS", raising=False)
        assert launch.gpus() == ["1", "GPU-7"]
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert launch.gpus() == []


@pytest.mark.long
def test_jobs_of_submitit_end_with_the_same_runs(whole, tmp_path):
    pytest.importorskip("submitit")
    slurm = {"cluster": "local", "timeout_min": 30}
    found = grid(tmp_path, AXES | {"seed": [0]}, launcher="slurm", slurm=slurm)
    assert not found.failures
    for name, history in found.histories.items():
        np.testing.assert_allclose(history.accuracy, whole.histories[name].accuracy, atol=1e-5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"workers": -1}, "workers=-1"),
        ({"batch": 0}, "batch=0"),
        ({"retries": 1.5}, "retries=1.5"),
        ({"launcher": "cloud"}, "launcher='cloud' is unknown"),
        ({"axes": 3}, "axes=3"),
        ({"file": "x.toml"}, "give a file or axes"),
    ],
)
def test_arguments_out_of_range_are_refused(given, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        srp.grid(**{"axes": AXES, "options": OPTIONS, "out": tmp_path, "progress": False} | given)


@pytest.mark.long
@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.toml")), ids=lambda file: file.stem)
def test_every_example_runs_in_a_small_size(file, tmp_path):
    spec, _ = read(file)
    small = {"num_clients": 10, "max_examples": 8, "hidden": [4], "num_rounds": 2, "head_epochs": 1, "devices": 1}
    axes = {name: values[:2] if name == "seed" else values for name, values in spec.axes.items()}
    initial = {"initial": 5} if "initial" in spec.options else {}
    options = {**spec.options, **small, **initial}
    variants = {name: {**given, "initial": place + 2} for place, (name, given) in enumerate(spec.variants.items())}
    found = srp.grid(axes=axes, options=options, variants=variants, exclude=spec.exclude, out=tmp_path, progress=False)
    assert not found.failures
    assert found.folders.keys() == found.values.keys()
    assert {history.num_rounds for history in found.histories.values()} == {2}


def test_tables_have_the_options_of_variants(tmp_path):
    variants = {"plain": {"method": "fedavg", "learning_rate": 0.2}, "own": {"method": "fedavg"}}
    found = grid(tmp_path, {"seed": [0, 1]}, variants=variants)
    rows = found.summary()
    assert list(rows)[:5] == ["run", "variant", "seed", "method", "learning_rate"]
    assert rows["method"].tolist() == ["fedavg"] * 4
    assert rows["learning_rate"].fillna(-1).tolist() == [0.2, 0.2, -1, -1]  # as given
    assert next(iter(found.folders)) == "plain, seed=0"
    assert set(found.to_frame()["method"]) == {"fedavg"}


@pytest.mark.long
def test_a_grid_that_is_killed_ends_with_the_same_bytes(tmp_path):
    found = killed_grid.attack(6, tmp_path, random.Random(1), num_rounds=8)
    assert found["kills"] >= 6
    assert found["differences"] == found["outlived"] == 0, found
    assert not found["failures"]
    assert os.listdir(tmp_path)


@pytest.mark.parametrize("batch", [1, 4])
def test_runs_of_a_grid_log_separately(tmp_path, monkeypatch, batch):
    """Each run has its own TensorBoard folder, and a run of Weights & Biases that ends with it."""
    made, begun = {}, {}

    class Writer:
        def __init__(self, directory):
            self.scalars = made.setdefault(directory, {})

        def add_scalar(self, name, value, step):
            self.scalars[name, step] = value

        def flush(self):
            pass

    def init(**options):
        logged, ended = begun.setdefault(options["id"], (options, [], []))[1:]
        return SimpleNamespace(log=logged.append, define_metric=lambda *_, **__: None, finish=lambda: ended.append(1))

    monkeypatch.setitem(sys.modules, "tensorboardX", SimpleNamespace(SummaryWriter=Writer))
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    options = {"tensorboard": str(tmp_path / "logs"), "wandb": "mine"}
    axes = AXES | {"learning_rate": [0.05]}
    found = grid(tmp_path / f"grid{batch}", axes, options=options, batch=batch)
    assert found.folders.keys() == grid(tmp_path / f"grid{batch}", axes, batch=batch).folders.keys()  # the same runs
    assert len(found.folders) == len(begun) == 2
    for folder in found.folders.values():
        scalars = made[str(tmp_path / "logs" / folder.name)]
        times = History.load(folder).elapsed()
        assert [scalars["elapsed", step] for step in (1, 2)] == times.tolist()
        ((options, logged, ended),) = [of for of in begun.values() if of[0]["name"] == folder.name]
        assert options["project"] == "mine"
        assert [row["elapsed"] for row in logged] == times.tolist()
        assert ended == [1]


def test_the_bar_counts_compiling_units_and_excludes_compiling_from_the_rate(tmp_path, monkeypatch):
    left = plan(points(Spec(OPTIONS, AXES, {}, [])), tmp_path, 2, 1, 1, 1)
    now = [0.0]
    monkeypatch.setattr(launch.time, "monotonic", lambda: now[0])
    bar = launch.GridBar(left, 4, silent=True)
    for unit in left:
        bar.start(unit)
    assert bar._description() == "0 of 4 runs, 2 compiling"
    now[0] = 30.0
    bar.update(left[0], 1)
    assert (bar._description(), bar._bar.waited) == ("0 of 4 runs, 1 compiling", 15.0)  # of two that compile at once
    bar.update(left[0], 2)
    bar.finish(left[0], has_failed=False)
    assert (bar._description(), bar._bar.waited) == ("2 of 4 runs, 1 compiling", 15.0)
