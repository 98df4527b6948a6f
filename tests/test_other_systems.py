"""Names of Python's library that Windows or macOS lack are not needed."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
# The libraries come first: they have their own ways on each system. Then goes what Windows lacks.
CODE = """
import os, select, signal, sys
import flax, jax, matplotlib.figure, optax, orbax.checkpoint, pandas, sklearn.datasets, tqdm.auto, tyro

sys.modules["fcntl"] = None
for name in ("geteuid", "getuid", "register_at_fork", "sched_getaffinity", "sched_setaffinity",
        "set_blocking", "sysconf"):
    delattr(os, name)
del select.poll, signal.pthread_sigmask, signal.SIGKILL

import fedjax_srp as srp
from fedjax_srp.lab.commands import cli, interrupt
from fedjax_srp.results import locks

assert locks.fcntl is None
interrupt.watch("interrupted")
srp.use_all_cores()
srp.cache_programs()
data = srp.data.load("digits", num_clients=4)
method = srp.methods.get("fedavg", dataset=data, hidden=(4,))
run = {"seed": 0, "progress": False, "checkpoint_dir": "checkpoint"}
srp.simulate(method, data, num_rounds=1, **run)
history = srp.simulate(method, data, num_rounds=2, **run)
history.save("run")
assert srp.History.load("run").num_rounds == 2
srp.estimate_memory(method, data)
assert cli.main(["list"], set_up_cores=False) == 0
for workers, code in ((), 0), (("--workers", "2"), 2):
    found = cli.main(["grid", "grid.toml", "--no-progress", *workers], set_up_cores=False)
    assert found == code, (workers, found)
"""
GRID = """
out = "grid"
options = {method = "fedavg", dataset = "digits", num_clients = 4, hidden = [4], num_rounds = 1}
axes = {seed = [0, 1]}
"""


def test_runs_and_grids_need_no_name_that_windows_lacks(tmp_path):
    (tmp_path / "grid.toml").write_text(GRID, "utf-8")
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.fspath(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (refusal,) = [line for line in done.stderr.splitlines() if "error" in line]
    assert "workers=2" in refusal
    assert "workers=0" in refusal
