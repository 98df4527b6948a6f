"""Plans of grids: which runs are batched, the index of the batches, and the estimate of the time."""

import contextlib

import pytest
from reference.small import refused
from small_grid import OPTIONS, RATES, grid, members_of, planned, toml

import fedjax_srp as srp
from fedjax_srp.driver.record import LIMITS
from fedjax_srp.lab.commands import cli
from fedjax_srp.lab.commands.grid import _duration
from fedjax_srp.lab.grids import batches as units
from fedjax_srp.lab.grids import execute
from fedjax_srp.lab.grids.execute import plan
from fedjax_srp.lab.grids.points import Spec, points
from fedjax_srp.lab.grids.work import Cost, Worker
from fedjax_srp.results import sealed_folders as storage


def test_devices_are_those_of_a_worker(tmp_path):
    """This process has 4 devices."""
    found = points(Spec(OPTIONS | {"devices": 2}, {"method": ["fedavg"]}, {}, ()))
    with pytest.raises(ValueError, match="devices=2: a run has 1 here"):
        plan(found, tmp_path, None, workers=4, sharers=4, devices=1)
    many = points(Spec(OPTIONS | {"devices": 6}, {"method": ["fedavg"]}, {}, ()))
    for devices in (6, None):
        (unit,) = plan(many, tmp_path, None, workers=1, sharers=1, devices=devices)
        assert unit.members[0].point.run.devices == 6


def test_only_runs_that_differ_in_seed_and_floats_are_batched(tmp_path):
    axes = {
        "method": ["fedprox"],
        "mu": [0.1, 1.0, 0.0],
        "epochs": [1, 2],
        "seed": [0, 1],
    }
    found = [
        [member.point.name for member in unit.members] for unit in planned(tmp_path, axes)
    ]
    for together in found:
        values = [
            dict(word.split("=") for word in name.split(", ")[1:]) for name in together
        ]
        assert len({value["epochs"] for value in values}) == 1
    assert sorted(map(len, found)) == [2] * 6  # at most 2 at once
    alike = units.group_by_program(points(Spec(OPTIONS, axes, {}, ())))
    assert [len(each) for each in alike] == [6, 6]
    momentum = (
        {"method": ["fedavg"], "seed": [0, 1]},
        {"a": {}, "b": {"momentum": 0.5}, "c": {"momentum": 0.0}},
    )
    alike = units.group_by_program(points(Spec(OPTIONS, *momentum, ())))
    assert [[p.values["variant"] for p in each] for each in alike] == [
        ["a", "a"],
        ["b", "b", "c", "c"],
    ]
    limited = planned(tmp_path, {"method": ["fedavg"], "seed": [0, 1]}, target=0.5)
    assert [len(unit.members) for unit in limited] == [1, 1]
    variants = {"kept": {"seed": 0, "models": True}, "left": {"seed": 1}}
    apart = units.group_by_program(
        points(Spec(OPTIONS | {"method": "fedavg"}, {}, variants, ()))
    )
    assert [[point.name for point in alike] for alike in apart] == [["kept"], ["left"]]


def test_a_batch_is_made_where_it_pays(tmp_path):
    sizes = {}
    for num_rounds in (100, 300):
        found = points(
            Spec(
                OPTIONS | {"num_rounds": num_rounds},
                {"method": ["fedavg"], "seed": range(4)},
                {},
                (),
            )
        )
        # 2 runs for each worker
        planned = plan(
            found, tmp_path / str(num_rounds), None, workers=2, sharers=2, devices=1
        )
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
    assert (
        len(planned(tmp_path, {"method": ["fedprox"], "seed": [0]})) == 1
    )  # another grid in the same folder
    assert [len(unit.members) for unit in planned(tmp_path, axes)] == [1] * 5
    (tmp_path / units.GRID_INDEX).write_text("{}")
    assert [len(unit.members) for unit in planned(tmp_path, axes)] == [2, 2, 1]


def test_a_grid_waits_for_the_lock_of_the_index(tmp_path, monkeypatch):
    axes, other = {"method": ["fedavg"], "seed": [0]}, contextlib.ExitStack()
    other.enter_context(storage.held(tmp_path / units.SHARED, "out"))
    monkeypatch.setattr(
        units.time, "sleep", lambda seconds: other.close()
    )  # which ends meanwhile
    assert len(planned(tmp_path, axes)) == 1
    monkeypatch.setattr(units, "_LOCK_TIMEOUT", 0.0)
    with (
        storage.held(tmp_path / units.SHARED, "out"),
        refused(r"^out='.*': process .* is running here"),
    ):
        planned(tmp_path, axes)


def test_a_foreign_index_is_refused_and_kept(tmp_path):
    (tmp_path / units.GRID_INDEX).write_text('{"rows": 3}')
    with pytest.raises(
        ValueError,
        match=r"^out='.*': its grid.json was not written by fedjax_srp; give another out$",
    ):
        srp.grid(
            axes={"seed": [0]}, options={**OPTIONS, "method": "fedavg"}, out=tmp_path
        )
    assert (tmp_path / units.GRID_INDEX).read_text() == '{"rows": 3}'


@pytest.mark.parametrize("limit", [{"target": 0.9}, {"time_limit": 5.0}])
def test_a_batch_is_broken_up_where_its_runs_get_a_limit(tmp_path, limit):
    axes = {"method": ["fedavg"], "seed": [0, 1]}
    (batch,) = planned(tmp_path, axes)
    alone = planned(tmp_path, axes, **limit)
    assert [unit.members[0].point.id for unit in alone] == [
        member.point.id for member in batch.members
    ]
    assert [len(unit.members) for unit in alone] == [1, 1]
    assert members_of(tmp_path) == [1, 1]


def test_the_estimate_is_the_total_among_workers_or_the_longest_unit(
    tmp_path, monkeypatch
):
    """Each program is compiled once: 10 + 20 seconds, for 2 runs of 2 rounds each."""
    compiling = {1: 10.0, 2: 20.0}
    cost = lambda unit: Cost(compiling[unit.members[0].point.values["epochs"]], 1.0)
    monkeypatch.setattr(Worker, "measure", lambda self, unit: cost(unit))
    axes = {"method": ["fedavg"], "learning_rate": RATES, "epochs": [1, 2]}
    assert grid(tmp_path, axes, batch=1, dry_run=True).seconds == 30 + 4 * 2
    found = [
        point
        for same in units.group_by_program(points(Spec(OPTIONS, axes, {}, ())))
        for point in same
    ]
    left = units.assign_units([(found, 1)], tmp_path)
    first = {unit.members[0].point.run.program(*LIMITS): unit for unit in left}
    costs = {unit.id: cost(unit) for unit in left}
    assert execute._estimate(left, first, costs, 1) == 30 + 4 * 2
    assert execute._estimate(left, first, costs, 2) == 19
    assert execute._estimate(left, first, costs, 4) == 12  # no less than a run takes
    batches = units.assign_units([(found, 2)], tmp_path / "batches")
    first = {unit.members[0].point.run.program(*LIMITS): unit for unit in batches}
    costs = {unit.id: cost(unit) for unit in batches}
    assert (
        execute._estimate(batches, first, costs, 1) == 30 + 2 * 2
    )  # a round of a batch is one of each of its runs
    texts = [_duration(seconds).partition(",")[0] for seconds in (20, 110, 3590, 9000)]
    assert texts == ["about 20 s", "about 2 min", "about 1 h 0 min", "about 2 h 30 min"]


def test_a_dry_run_measures_up_to_the_first_evaluation_and_leaves_nothing(
    tmp_path, monkeypatch
):
    measured, simulate = [], Worker._simulate
    monkeypatch.setattr(
        Worker,
        "_simulate",
        lambda *given, **more: measured.append(simulate(*given, **more)) or measured[-1],
    )
    found = grid(
        tmp_path,
        dry_run=True,
        options={"num_rounds": 6, "eval_every": 3, "eval_first": 2, "eval_last": 2},
    )
    assert [
        history.eval_round.tolist() for histories in measured for history in histories
    ] == [[3]] * 4
    assert found.seconds > 0
    assert not found.folders
    assert not list(tmp_path.rglob("summary.json"))


def test_a_failed_short_run_is_reported_in_one_line(tmp_path, monkeypatch, capsys):
    def measure(self, unit):
        if unit.members[0].point.values["epochs"] == 2:
            raise ValueError("too large")
        return Cost(1.0, 1.0)

    monkeypatch.setattr(Worker, "measure", measure)
    file = toml(tmp_path / "grid.toml", OPTIONS | {"method": "fedavg"}, epochs=[1, 2])
    words = [
        "grid",
        file,
        "--out",
        str(tmp_path / "out"),
        "--workers",
        "0",
        "--dry-run",
        "--no-progress",
    ]
    assert cli.main(words, set_up_cores=False) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("failed: epochs=2: ValueError: too large; see ")
    assert not printed.out
    assert printed.err.endswith(
        "error: no estimate: 1 of the programs failed in a short run\n"
    )
