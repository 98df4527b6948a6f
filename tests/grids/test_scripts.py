"""Grids of objects with worker processes, from a script, a module that runs, and stdin."""

import subprocess
import sys

import pytest

SCRIPT = """
import fedjax_srp as srp
{defined}
data = srp.data.load("digits", num_clients=6, classes_per_client=3, max_examples=8)
model = srp.models.MLP((8, 8), 10, hidden=(4,))
found = srp.grid(
    axes={{"method": {{"mine": {method}}}, "seed": [0, 1]}},
    options={{"data": data, "num_rounds": 1, "participation": {policy!r}}},
    out={out!r}, workers=1, batch=1, progress=False,
)
print([failure.error for failure in found.failures], len(found.folders))
"""
OWN = """
import optax
@srp.part
class Mine(srp.algorithms.FedAvg):
    pass
@srp.part
class Everybody(srp.participation.Full):
    pass
srp.methods.register_participation("everybody", Everybody)
half = srp.optimizer(lambda scale: optax.sgd(scale / 2), scale=1.0)
"""
RELATIVE = "from . import other"
MINE = "Mine(model, srp.Training(half))"


@pytest.mark.short("-m")
@pytest.mark.parametrize("how", ["plain", "own", "-m", "-"])
def test_objects_reach_workers(how, tmp_path):
    """A script needs no guard, since workers do not run it."""
    method = MINE
    policy = "everybody"
    defined = OWN
    script = tmp_path / "own_package" / "script.py"
    words = [str(script)]
    if how == "plain":
        method = "srp.algorithms.FedAvg(model)"
        policy = "full"
        defined = ""
    if how == "-":
        words = ["-"]
    if how == "-m":
        defined += RELATIVE
        words = ["-m", "own_package.script"]
    text = SCRIPT.format(
        defined=defined, method=method, policy=policy, out=str(tmp_path / "out")
    )
    script.parent.mkdir()
    script.write_text(text)
    (script.parent / "other.py").touch()
    done = subprocess.run(
        [sys.executable, *words],
        input=text,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout == "[] 2\n", done.stderr
