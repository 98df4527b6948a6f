"""Seeds on several devices: batched decompositions of jaxlib 0.10 could deadlock."""

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent

JOB = """
import conftest, jax, fedjax_srp as srp
task = srp.data.linear_task(jax.random.key(0), num_clients=32, dim=100, rank=5, noise_std=1.0)
algorithm = srp.algorithms.LinearFedRep(task, step_size=0.1, samples_per_round=25, start="moments")
keys = jax.random.split(jax.random.key(1), 4)
for _ in range(3):
    runs = srp.simulate_seeds(algorithm, task, keys=keys, num_rounds=20, eval_every=20, evaluations=(), progress=False)
print(len(runs), jax.device_count())
"""


@pytest.mark.long
def test_vmapped_seeds_on_more_devices_than_cores_finish():
    code = f"import sys; sys.path.insert(0, {str(TESTS)!r})\n{JOB}"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert done.stdout.split() == ["4", "4"]
