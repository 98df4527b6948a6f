"""`import fedjax_srp` loads heavy libraries only when they are needed."""

import json
import subprocess
import sys

import pytest

import fedjax_srp as srp

HEAVY = (
    "flax",
    "optax",
    "orbax",
    "chex",
    "pandas",
    "matplotlib",
    "sklearn",
    "scipy.stats",
    "tensorflow_datasets",
)
HEAVY += (
    "tyro",
    "PIL",
    "requests",
    "pooch",
    "array_record",
    "tensorboardX",
    "torch",
    "wandb",
)
HEAVY += ("fedjax_srp.algorithms", "fedjax_srp.lab.report")
LATER = ("algorithms", "methods", "models", "plots")

CODE = f"""
import json, sys
import fedjax_srp as srp
loaded = [name for name in {HEAVY!r} if name in sys.modules]
listed = [name for name in {LATER!r} if name in dir(srp)]
from fedjax_srp import methods
assert srp.methods is methods is sys.modules["fedjax_srp.methods"]
assert srp.plots.__name__ == "fedjax_srp.lab.report.plots"
json.dump({{"loaded": loaded, "listed": listed, "later": "flax" in sys.modules and "optax" in sys.modules}}, sys.stdout)
"""


def test_heavy_libraries_wait_until_they_are_needed():
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, check=True
    )
    said = json.loads(done.stdout)
    assert said["loaded"] == []
    assert said["later"]  # the names are right: they are loaded in the end
    assert said["listed"] == list(LATER)


RUN = """
import sys
import fedjax_srp as srp
data = srp.data.load("digits", num_clients=4)
method = srp.methods.get("fedavg", dataset=data, hidden=(4,))
srp.simulate(method, data, num_rounds=1, seed=0, progress=False).save(sys.argv[1])
print([name for name in ("pandas", "sklearn", "scipy.stats", "tyro") if name in sys.modules])
"""


def test_a_run_and_its_folder_need_no_pandas_and_no_scikit_learn(tmp_path):
    command = [sys.executable, "-c", RUN, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert (tmp_path / "run" / "clients.csv").exists()


def test_every_public_name_is_there():
    for name in srp.__all__:
        assert getattr(srp, name) is not None
    with pytest.raises(
        AttributeError, match="module 'fedjax_srp' has no attribute 'nothing_like_it'"
    ):
        srp.nothing_like_it  # noqa: B018  # pyright: ignore
