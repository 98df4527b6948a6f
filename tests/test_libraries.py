"""The libraries of a base installation, and the line for a library of an extra that is missing."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from reference.histories import made_history
from reference.small import refused

import fedjax_srp as srp
from fedjax_srp.data import archives
from fedjax_srp.lab.grids import work
from fedjax_srp.parts import libraries

ROOT = Path(__file__).parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
    "optional-dependencies"
]
# scikit-learn brings cloudpickle, and Windows has no array_record
OPTIONAL = ("array_record", "bokeh", "pooch", "submitit", "tensorflow_datasets", "tyro")
BASE = """
import jax
import fedjax_srp as srp

for name in srp.__all__:
    getattr(srp, name)
data = srp.data.load("digits", num_clients=4, classes_per_client=3)
method = srp.methods.get("fedrep", dataset=data, hidden=(4,))
history = srp.simulate(method, data, num_rounds=1, seed=0, progress=False)
history.plot().savefig("accuracy.png")
history.save("run")
assert srp.History.load("run").accuracy.tolist() == history.accuracy.tolist()
found = srp.grid(axes={"seed": [0, 1]}, options={"method": "fedavg", "dataset": "digits",
    "num_clients": 4, "hidden": [4], "num_rounds": 1}, out="grid", progress=False)
assert len(found.histories) == 2 and not found.failures
"""


def without(modules, code, folder):
    """Run code in a process that lacks modules, and return the process."""
    hidden = f"import sys\nsys.modules.update(dict.fromkeys({modules!r}))\n"
    environment = os.environ | {"PYTHONPATH": os.fspath(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", hidden + code],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )


@pytest.mark.long  # .ci/wheel.py runs the README's example in a base installation
def test_the_base_simulates_saves_draws_and_runs_grids_without_the_extras(tmp_path):
    done = without(OPTIONAL, BASE, tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_command_line_without_its_libraries_is_one_line(tmp_path):
    code = "from fedjax_srp.__main__ import main\nsys.exit(main())"
    done = without(("tyro",), code, tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "tyro is not installed" in line
    assert line.endswith(f"pip install {libraries.LAB}")


@pytest.mark.parametrize(
    ("library", "extra", "use"),
    [
        ("cloudpickle", "lab", lambda folder: work.packed([])),
        ("pooch", "data", lambda folder: archives.prepare(("mnist",), folder)),
        (
            "bokeh",
            "lab",
            lambda folder: srp.plots.report_page(
                {"h": made_history([0.5], [1.0], "global", clients=3)}, folder / "p.html"
            ),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_missing_library_is_one_line_with_the_command(
    library, extra, use, tmp_path, monkeypatch
):
    named = [name for name in sys.modules if name.partition(".")[0] == library]
    for name in (library, *named):
        monkeypatch.setitem(sys.modules, name, None)
    from fedjax_srp.lab.report import page

    page._bokeh.cache_clear()
    command = getattr(libraries, extra.upper())
    with refused(f"{library} is not installed; pip install .*{extra}"):
        use(tmp_path)
    assert command == f'"fedjax-srp[{extra}]"'
    assert any(each.startswith(library) for each in EXTRAS[extra])


def test_a_library_that_cannot_be_imported_is_one_line_with_the_reason():
    with (
        refused("the page: cannot load\\.\\.\\. symbol missing; pip install"),
        libraries.needed_by("the page", libraries.LAB),
    ):
        raise ImportError("cannot load...\n symbol missing")
