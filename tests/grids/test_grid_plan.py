"""Plans of grids: which runs are batched, the index of the batches, and the estimate of the time."""

import contextlib
import dataclasses

import pytest
from command_line import main
from reference.small import refused
from small_grid import OPTIONS, RATES, grid, members_of, planned, toml

import fedjax_srp as srp
from fedjax_srp.driver import prepare
from fedjax_srp.driver.programs import Kept
from fedjax_srp.lab.commands.grid import estimate
from fedjax_srp.lab.grids import batches as units
from fedjax_srp.lab.grids import execute
from fedjax_srp.lab.grids.execute import plan
from fedjax_srp.lab.grids.points import Spec, describe_axes, points
from fedjax_srp.lab.grids.work import Cost, Worker
from fedjax_srp.results.locks import held


def names_of(axes, variants=None, **options):
    """Return the names of the points that may be one program, program by program."""
    found = points(Spec(OPTIONS | options, axes, variants or {}, ()))
    return [[point.name for point in alike] for alike in units.group_by_program(found)]


def test_only_runs_that_differ_in_seed_and_floats_are_batched(tmp_path):
    axes = {"mu": [0.1, 1.0, 0.0], "epochs": [1, 2], "seed": [0, 1]}
    groups = names_of(axes, method="fedprox")
    assert [len(names) for names in groups] == [6, 6]
    assert all("epochs=1" in name for name in groups[0])
    sizes = [len(u.members) for u in planned(tmp_path, axes, method="fedprox")]
    assert sizes == [2] * 6  # at most 2 at once
    variants = {"a": {}, "b": {"momentum": 0.5}, "c": {"momentum": 0.0}}
    assert names_of({}, variants, method="fedavg") == [["a"], ["b", "c"]]
    variants = {"kept": {"seed": 0, "models": True}, "left": {"seed": 1}}
    assert names_of({}, variants, method="fedavg") == [["kept"], ["left"]]


def test_a_batch_is_made_where_it_pays(tmp_path):
    """2 runs for each worker."""
    axes = {"method": ["fedavg"], "seed": range(4)}
    for num_rounds, sizes in ((100, [1, 1, 1, 1]), (300, [2, 2])):
        found = points(Spec(OPTIONS | {"num_rounds": num_rounds}, axes, {}, ()))
        out = tmp_path / str(num_rounds)
        made = plan(found, out, None, workers=2, sharers=2, devices=1)
        assert [len(unit.members) for unit in made] == sizes


def test_a_plan_shows_the_first_values_of_a_long_axis():
    axes = {"method": ["fedavg"], "seed": [*range(12)]}
    text = describe_axes(points(Spec(OPTIONS, axes, {}, ())))
    assert text.startswith("method: fedavg; seed: 0, 1, 2, ")
    assert text.endswith(" 8, 9, ... (12 values)")


@pytest.fixture
def traced(monkeypatch):
    """Return the algorithms that plans trace, in a list that grows."""
    algorithms, check = [], prepare.check_algorithm

    def noted(algorithm, *given):
        algorithms.append(algorithm)
        return check(algorithm, *given)

    monkeypatch.setattr(prepare, "check_algorithm", noted)
    monkeypatch.setattr(prepare, "_checks", Kept(64))
    return algorithms


def test_a_plan_traces_once_what_differs_in_numbers_of_an_algorithm(tmp_path, traced):
    axes = {"method": ["fedavg", "fedprox"], "epochs": [1, 2], "batch_size": [3, 4]}
    found = points(Spec(OPTIONS, axes, {}, ()))
    made = plan(found, tmp_path, 1, workers=1, sharers=1, devices=1)
    assert len(made) == 8
    assert [algorithm.name for algorithm in traced] == ["fedavg", "fedprox"]


def test_a_plan_traces_each_model_also_under_codes(tmp_path, traced):
    """Its numbers are sizes, and have to fit the data."""
    methods = {}
    for width in (4, 8):
        algorithm = srp.algorithms.FedAvg(srp.models.MLP((8, 8), 10, hidden=(width,)))
        methods[str(width)] = srp.messages.Coded(algorithm, up=srp.messages.Quantized(8))
    options = {name: value for name, value in OPTIONS.items() if name != "hidden"}
    found = points(Spec(options, {"method": methods}, {}, ()))
    plan(found, tmp_path, 1, workers=1, sharers=1, devices=1)
    assert len(traced) == 2


def test_the_memory_of_each_program_of_a_batch_is_estimated(tmp_path, monkeypatch):
    def seeds_at_once(request, num_seeds, sharers):
        is_large = request.algorithm.algorithm.training.batch_size > 4
        return 1 if is_large else num_seeds

    monkeypatch.setattr(execute, "seeds_at_once", seeds_at_once)
    axes = {"method": ["fedavg"], "batch_size": [4, 5], "seed": [0, 1]}
    found = points(Spec(OPTIONS | {"num_rounds": 300}, axes, {}, ()))
    made = plan(found, tmp_path, None, workers=1, sharers=1, devices=1)
    assert [len(unit.members) for unit in made] == [2, 1, 1]


def test_a_batch_keeps_its_points(tmp_path):
    axes = {"method": ["fedavg"], "seed": [0, 1, 2, 3, 4]}
    sizes = lambda found: [len(unit.members) for unit in found]
    first = planned(tmp_path, axes)
    assert sizes(first) == [2, 2, 1]
    again = planned(tmp_path, axes | {"seed": [4, 3, 2, 1, 0]})
    assert {unit.id for unit in again} == {unit.id for unit in first}
    found = points(Spec(OPTIONS, axes, {}, ()))
    assert sizes(units.assign_units([(found, 1)], tmp_path, at_most=1)) == [1] * 5
    other = {"method": ["fedprox"], "seed": [0]}  # another grid in the same folder
    assert sizes(planned(tmp_path, other)) == [1]
    assert sizes(planned(tmp_path, axes)) == [1] * 5
    (tmp_path / units.GRID_INDEX).write_text("{}")
    assert sizes(planned(tmp_path, axes)) == [2, 2, 1]


def test_a_grid_waits_for_the_lock_of_the_index(tmp_path, monkeypatch):
    axes, other = {"method": ["fedavg"], "seed": [0]}, contextlib.ExitStack()
    other.enter_context(held(tmp_path / units.SHARED, "out"))
    monkeypatch.setattr(
        units.time, "sleep", lambda seconds: other.close()
    )  # which ends meanwhile
    assert len(planned(tmp_path, axes)) == 1
    monkeypatch.setattr(units, "_LOCK_TIMEOUT", 0.0)
    with (
        held(tmp_path / units.SHARED, "out"),
        refused(r"^out='.*': process .* is running here"),
    ):
        planned(tmp_path, axes)


def test_a_foreign_index_is_refused_and_kept(tmp_path):
    index = tmp_path / units.GRID_INDEX
    index.write_text('{"rows": 3}')
    with refused("^out='.*': its grid.json was not written by .*; give another out$"):
        grid(tmp_path)
    assert index.read_text() == '{"rows": 3}'


@pytest.mark.parametrize("limit", [{"target": 0.9}, {"time_limit": 5.0}])
def test_a_batch_is_broken_up_where_its_runs_get_a_limit(tmp_path, limit):
    axes = {"method": ["fedavg"], "seed": [0, 1]}
    (batch,) = planned(tmp_path, axes)
    alone = [unit.members for unit in planned(tmp_path, axes, **limit)]
    assert [member.point.id for (member,) in alone] == [m.point.id for m in batch.members]
    assert members_of(tmp_path) == [1, 1]


def test_the_estimate_is_the_total_among_workers(tmp_path, monkeypatch):
    """Each program is compiled once: 10 + 20 seconds, for 2 runs of 2 rounds each."""

    def measure(self, unit):
        return Cost(10.0 * unit.members[0].point.values["epochs"], 1.0)

    monkeypatch.setattr(Worker, "measure", measure)
    axes = {"method": ["fedavg"], "learning_rate": RATES, "epochs": [1, 2]}
    assert grid(tmp_path, axes, batch=1, dry_run=True).seconds == 30 + 4 * 2
    # a round of a batch is one of each of its runs
    found = grid(tmp_path / "batches", axes, batch=2, dry_run=True)
    assert found.seconds == 30 + 2 * 2
    text = estimate(dataclasses.replace(found, seconds=9000.2))
    assert text.startswith("about 2:30:00 (hours:minutes:seconds), by a short run")


def test_a_dry_run_measures_up_to_the_first_evaluation_and_leaves_nothing(
    tmp_path, monkeypatch
):
    measured, simulate = [], Worker._simulate

    def simulated(*given, **more):
        histories = simulate(*given, **more)
        measured.extend(histories)
        return histories

    monkeypatch.setattr(Worker, "_simulate", simulated)
    options = {"num_rounds": 6, "eval_every": 3, "eval_first": 2, "eval_last": 2}
    found = grid(tmp_path, dry_run=True, options=options)
    assert [history.eval_round.tolist() for history in measured] == [[3]] * 4
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
    words = ("--out", tmp_path / "out", "--workers", 0, "--dry-run", "--no-progress")
    assert main("grid", file, *words) == 2
    error = capsys.readouterr().err
    assert error.startswith("failed: epochs=2: ValueError: too large; see ")
    assert error.endswith("no estimate: 1 of the programs failed in a short run\n")
