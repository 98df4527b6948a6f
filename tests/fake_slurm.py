"""A cluster in a folder: four short scripts imitate Slurm, and jobs run in the process of the tests."""

import os

import pytest

from fedjax_srp.lab.grids.work import unpacked

# here, and so before any test: its import shuts loggers down, and absl's closes a stream that a test has replaced
pytest.importorskip("submitit")


class Cluster:
    """Cluster with a limit of jobs per user; jobs run while the launcher sleeps.

    Attributes:
        jobs: folder of the launcher's jobs, to be set by the test.
    """

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
