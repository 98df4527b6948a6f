"""Slurm jobs: their plan, their limit, and waiting for jobs of an earlier call."""

import json
import pickle
import sys

import fake_slurm
import pytest
import small_grid
from command_line import main
from reference.small import refused

import fedjax_srp as srp
from fedjax_srp.lab.grids import batches as units
from fedjax_srp.lab.grids import launch
from fedjax_srp.lab.grids.result import Grid
from fedjax_srp.lab.grids.work import Worker
from fedjax_srp.results import json_files


def grid(out, num_runs=2, **given):
    axes = {"method": ["fedavg"], "seed": range(num_runs)}
    return small_grid.grid(out, axes, batch=1, launcher="slurm", **given)


def test_slurm_needs_submitit_and_its_parameters(tmp_path, monkeypatch):
    with refused(r"launcher='slurm': .*correct \[slurm\]"):
        grid(tmp_path, slurm={"cluster": "local", "partitions": "gpu"})
    monkeypatch.setitem(sys.modules, "submitit", None)
    with refused("submitit is not installed; pip install .*slurm"):
        grid(tmp_path, slurm={"cluster": "local"})


def number(of):
    return {"number": of}


@pytest.mark.parametrize("has_slurm", [True, False])
def test_a_plan_of_jobs_names_them_and_checks_their_parameters(
    has_slurm, tmp_path, monkeypatch, capsys
):
    if has_slurm:
        fake_slurm.Cluster(tmp_path / "cluster", monkeypatch, room=2)
    else:
        monkeypatch.setenv("PATH", "")
    file = tmp_path / "grid.toml"
    small_grid.toml(file, small_grid.OPTIONS, method=["fedavg"], seed=[0, 1, 2])
    grid_alone = file.read_text()
    words = ("grid", file, "--out", tmp_path / "out", "--launcher", "slurm", "--dry-run")
    file.write_text(f"{grid_alone}\n[slurm]\nslurm_partition = 'long'\ntimeout_min = 7\n")
    assert main(*words, "--batch", 1) == 0
    printed = capsys.readouterr()
    assert "method: fedavg; seed: 0, 1, 2\n" in printed.err
    assert "jobs: 3; partition: long; [slurm]: slurm_partition='long'" in printed.err
    assert "timeout_min=7" in printed.err
    assert ("no Slurm was found" in printed.err) is not has_slurm
    assert printed.out == "not estimated: jobs wait in a queue\n"
    file.write_text(f"{grid_alone}\n[slurm]\npartition_ = 'long'\n")
    assert main(*words) == 2
    assert "partition_'. " in capsys.readouterr().err
    with refused(r"launcher='slurm': .*partition_.*; correct \[slurm\]"):
        srp.measure(
            number,
            axes={"of": [1, 2]},
            out=tmp_path,
            launcher="slurm",
            slurm={"partition_": "long"},
            dry_run=True,
        )
    assert not any((tmp_path / "out").rglob("slurm"))


def test_a_machine_without_slurm_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with refused("launcher='slurm': no Slurm was found on this machine.*; call it where"):
        grid(tmp_path)


class Cluster(fake_slurm.Cluster):
    """Cluster that runs small grids."""

    def grid(self, out, num_runs=3, **options):
        self.jobs = out / units.SHARED / "slurm"
        return grid(out, num_runs, options=options)

    def interrupted_grid(self, out, monkeypatch, num_runs=3):
        """Interrupt the command while its first jobs run."""

        def interrupt():
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(self, "step", interrupt)
            patch.setattr(
                "fedjax_srp.lab.grids.slurm.SlurmLauncher.close", lambda self: None
            )
            with pytest.raises(KeyboardInterrupt):
                self.grid(out, num_runs)


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """Cluster with room for two jobs; a run writes a summary without simulating."""

    def run(self, unit, tell):
        for member in unit.members:
            member.folder.mkdir(exist_ok=True)
            run = member.point.run
            config = {"name": "made up", "config": run.record}
            (member.folder / "config.json").write_text(json.dumps(config))
            summary = {"communication": run.communication}
            json_files.write_json(member.folder / "summary.json", summary)

    monkeypatch.setattr(Worker, "run", run)
    monkeypatch.setattr(Grid, "save", lambda self: [])
    return Cluster(tmp_path / "cluster", monkeypatch, room=2)


def test_jobs_beyond_the_limit_are_submitted_later(cluster, tmp_path):
    found = cluster.grid(tmp_path / "out", num_runs=5)
    assert not found.failures
    assert len(found.folders) == 5
    assert cluster.ran == [[seed] for seed in range(5)]
    assert list(cluster.states()) == [str(101 + job) for job in range(5)]


def test_a_refused_first_job_is_an_error_of_one_line(cluster, tmp_path):
    (cluster.folder / "room").write_text("0")
    with pytest.raises(
        ValueError,
        match=r"^launcher='slurm': .*QOSMaxSubmitJobPerUserLimit.*; correct \[slurm\], or",
    ):
        cluster.grid(tmp_path / "out")
    assert not cluster.states()


def test_jobs_of_an_earlier_call_are_waited_for(cluster, tmp_path, monkeypatch):
    cluster.interrupted_grid(tmp_path / "out", monkeypatch)
    assert cluster.states() == {"101": "RUNNING", "102": "RUNNING"}
    (cluster.folder / "101.state").write_text("FAILED")
    (cluster.folder / "room").write_text("1")
    found = cluster.grid(tmp_path / "out")
    assert len(found.folders) == 3
    assert sorted(cluster.ran) == [[0], [1], [2]]
    assert cluster.states() == {
        "101": "FAILED",
        "102": "COMPLETED",
        "103": "COMPLETED",
        "104": "COMPLETING",
    }


def test_an_earlier_job_with_fewer_rounds_is_followed_by_another(
    cluster, tmp_path, monkeypatch
):
    monkeypatch.setattr(launch, "_POLL_OTHERS", 0.0)
    cluster.interrupted_grid(tmp_path / "out", monkeypatch, num_runs=1)
    found = cluster.grid(tmp_path / "out", num_runs=1, num_rounds=3)
    assert len(found.folders) == 1
    assert cluster.ran == [[0], [0]]


def test_a_folder_of_jobs_that_others_can_write_to_is_refused(cluster, tmp_path):
    """Jobs and their results are pickles."""
    jobs = tmp_path / "out" / units.SHARED / "slurm"
    jobs.mkdir(parents=True)
    jobs.chmod(0o775)
    with refused("launcher='slurm': others can write to .*; remove it"):
        cluster.grid(tmp_path / "out")
    jobs.rmdir()
    (tmp_path / "elsewhere").mkdir()
    jobs.symlink_to(tmp_path / "elsewhere")
    with refused("launcher='slurm': others can write to .*; remove it"):
        cluster.grid(tmp_path / "out")
    assert not cluster.states()


class Planted:
    """A pickle that writes a file when it is read."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return open, (self.trace, "w")


def test_planted_results_are_not_read(cluster, tmp_path, monkeypatch):
    """The folder of a stranger, with results of jobs that are still to come."""
    trace = tmp_path / "executed"
    jobs = tmp_path / "out" / units.SHARED / "slurm"
    for folder in (jobs, jobs / "planted"):
        folder.mkdir(mode=0o700, parents=True)
        for job in range(101, 105):
            (folder / f"{job}_0_result.pkl").write_bytes(
                pickle.dumps(Planted(str(trace)))
            )
    (cluster.folder / "room").write_text("4")
    cluster.interrupted_grid(tmp_path / "out", monkeypatch, num_runs=2)
    for path in (tmp_path / "out" / units.SHARED).glob("*/job.json"):
        json_files.write_json(path, {"id": "101", "folder": "planted"})
    found = cluster.grid(tmp_path / "out", num_runs=2)
    assert len(found.folders) == 2
    assert not trace.exists()


@pytest.mark.parametrize(
    "written", [{}, {"id": "../1", "folder": "a"}, {"id": "1", "folder": ".."}, {"id": 7}]
)
def test_a_job_of_an_earlier_call_with_another_name_is_none(
    cluster, tmp_path, monkeypatch, written
):
    cluster.interrupted_grid(tmp_path / "out", monkeypatch, num_runs=1)
    (path,) = (tmp_path / "out" / units.SHARED).glob("*/job.json")
    json_files.write_json(path, written)
    (cluster.folder / "101.state").write_text("FAILED")
    assert len(cluster.grid(tmp_path / "out", num_runs=1).folders) == 1
    assert [*cluster.states()] == ["101", "102"]
