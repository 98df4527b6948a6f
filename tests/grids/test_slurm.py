"""Slurm jobs: their limit, and waiting for jobs of an earlier call. Four short scripts imitate the cluster."""

import json
import os
import pickle
import sys

import pytest
import small_grid
from reference.small import refused

from fedjax_srp.lab.grids import batches as units
from fedjax_srp.lab.grids import launch
from fedjax_srp.lab.grids.result import Grid
from fedjax_srp.lab.grids.work import Worker, unpacked
from fedjax_srp.results import json_files


def grid(out, num_runs=2, **given):
    axes = {"method": ["fedavg"], "seed": range(num_runs)}
    return small_grid.grid(out, axes, batch=1, launcher="slurm", **given)


def test_slurm_needs_submitit_and_its_parameters(tmp_path, monkeypatch):
    pytest.importorskip("submitit")
    with refused(r"launcher='slurm': .*correct \[slurm\]"):
        grid(tmp_path, slurm={"cluster": "local", "partitions": "gpu"})
    monkeypatch.setitem(sys.modules, "submitit", None)
    with refused("submitit is not installed; pip install .*slurm"):
        grid(tmp_path, slurm={"cluster": "local"})


class Cluster:
    """Cluster with a limit of jobs per user; jobs run while the launcher sleeps."""

    def __init__(self, folder, monkeypatch, room):
        self.folder, self.room = folder, room
        folder.mkdir()
        self.script("srun", "exit 0")
        self.script("scancel", f'echo CANCELLED > "{folder}/$1.state"')
        in_queue = "grep -l -e RUNNING -e COMPLETING *.state"
        self.script("squeue", f'cd "{folder}"; {in_queue} | sed s/.state//')
        self.script(
            "sbatch",
            f"""cd "{folder}"
            if [ $(cat *.state 2>/dev/null | grep -c -e RUNNING -e COMPLETING) -ge $(cat room) ]; then
                echo 'sbatch: error: QOSMaxSubmitJobPerUserLimit' >&2; exit 1
            fi
            n=$((101 + $(ls *.state 2>/dev/null | wc -l)))
            echo RUNNING > $n.state; echo "Submitted batch job $n"
            """,
        )
        (folder / "room").write_text(str(room))
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        monkeypatch.setattr("fedjax_srp.lab.grids.slurm.time", self)
        monkeypatch.setattr(
            "fedjax_srp.lab.grids.slurm.use_all_cores", lambda: None
        )  # this process has had them
        self.ran, self.now = [], 1000.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        self.step()

    def script(self, name, text):
        (self.folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (self.folder / name).chmod(0o755)

    def states(self):
        return {
            path.stem: path.read_text().strip()
            for path in sorted(self.folder.glob("*.state"))
        }

    def step(self):
        """End the first running job; Slurm counts it as running until the next step."""
        import submitit

        for name in (
            name for name, state in self.states().items() if state == "COMPLETING"
        ):
            (self.folder / f"{name}.state").write_text("COMPLETED")
        name = next(
            (name for name, state in self.states().items() if state == "RUNNING"), None
        )
        if name is None:
            return
        (written,) = self.jobs.glob(f"*/{name}_submitted.pkl")
        submitted = submitit.SlurmJob(written.parent, name)
        task = submitted.submission()
        (unit,) = unpacked(task.args[1]).values()
        self.ran.append([member.point.run.seed for member in unit.members])
        submitit.core.utils.cloudpickle_dump(
            ("success", task.result()), submitted.paths.result_pickle
        )
        (self.folder / f"{name}.state").write_text("COMPLETING")

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
    pytest.importorskip("submitit")

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
