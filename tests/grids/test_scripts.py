"""Grids of objects with worker processes, from a script, a module that runs, and stdin."""

import subprocess
import sys

import pytest

SCRIPT = """
import fedjax_srp as srp
data = srp.data.load("digits", num_clients=6, classes_per_client=3, max_examples=8)
model = srp.models.MLP((8, 8), 10, hidden=(4,))
{defined}
def main():
    found = srp.grid(
        axes={{"method": {{"mine": {method}}}, "seed": [0, 1]}},
        options={{"data": data, "num_rounds": 1, "participation": {policy!r}}},
        out={out!r}, workers=2, batch=1, progress=False,
    )
    print([failure.error for failure in found.failures], len(found.folders))
{call}
"""
OWN = """
@srp.part
class Mine(srp.algorithms.FedAvg):
    pass
@srp.part
class Everybody(srp.participation.Full):
    pass
srp.methods.register_participation("everybody", Everybody)
"""


@pytest.mark.short("*Mine*")
@pytest.mark.parametrize(
    ("defined", "method", "policy", "call"),
    [
        ("", "srp.algorithms.FedAvg(model)", "full", "main()"),
        (OWN, "Mine(model)", "everybody", 'if __name__ == "__main__":\n    main()'),
    ],
)
def test_objects_reach_workers_from_a_script(defined, method, policy, call, tmp_path):
    """A script without its own classes needs no guard, since workers do not run it."""
    out = str(tmp_path / "out")
    (tmp_path / "script.py").write_text(
        SCRIPT.format(defined=defined, method=method, policy=policy, call=call, out=out)
    )
    words = [sys.executable, str(tmp_path / "script.py")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout == "[] 2\n", done.stderr


@pytest.mark.short("-m")
@pytest.mark.parametrize("how", ["-m", "-"])
def test_objects_of_a_module_that_runs_reach_workers_and_those_of_stdin_are_refused(
    how, tmp_path
):
    (tmp_path / "own_package").mkdir()
    script, out = tmp_path / "own_package" / "script.py", str(tmp_path / "out")
    guarded = 'if __name__ == "__main__":\n    main()'
    text = SCRIPT.format(
        defined=OWN, method="Mine(model)", policy="everybody", call=guarded, out=out
    )
    script.write_text(f"from . import other\n{text}" if how == "-m" else text)
    (tmp_path / "own_package" / "other.py").touch()
    words = [sys.executable, *(["-m", "own_package.script"] if how == "-m" else ["-"])]
    options = {
        "capture_output": True,
        "text": True,
        "timeout": 300,
        "check": False,
        "cwd": tmp_path,
    }
    done = subprocess.run(words, input=script.read_text(), **options)
    if how == "-m":
        assert done.stdout == "[] 2\n", done.stderr
    else:
        assert (
            "cannot be sent to a process ('it is defined in a notebook, at a prompt or on stdin')"
            in done.stderr
        )
