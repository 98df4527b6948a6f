"""Runs of a grid: each logs on its own, and those of every example finish."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from small_grid import AXES, grid

import fedjax_srp as srp
from fedjax_srp import History
from fedjax_srp.lab.grids.points import read

EXAMPLES = Path(__file__).parents[2] / "experiments" / "grids"


@pytest.mark.long
@pytest.mark.parametrize(
    "file", sorted(EXAMPLES.glob("*.toml")), ids=lambda file: file.stem
)
def test_every_example_runs_in_a_small_size(file, tmp_path):
    spec, _ = read(file)
    options = {"num_clients": 10, "max_examples": 8, "hidden": [4], "num_rounds": 2}
    options = spec.options | options | {"head_epochs": 1, "devices": 1}
    if "initial" in spec.options:
        options["initial"] = 5
    axes = dict(spec.axes)
    if "seed" in axes:
        axes["seed"] = axes["seed"][:2]
    variants = {
        name: {**given, "initial": place + 2}
        for place, (name, given) in enumerate(spec.variants.items())
    }
    given = {"axes": axes, "options": options, "variants": variants}
    found = srp.grid(**given, exclude=spec.exclude, out=tmp_path, progress=False)
    assert not found.failures
    assert found.folders.keys() == found.values.keys()
    assert {history.num_rounds for history in found.histories.values()} == {2}


@pytest.mark.parametrize("batch", [1, 4])
def test_runs_of_a_grid_log_separately(tmp_path, monkeypatch, batch):
    """Each run has its own folder of TensorBoard, which is closed with it."""
    written = {}

    def writer(directory):
        scalars = written.setdefault(directory, {})
        return SimpleNamespace(
            add_scalar=lambda name, value, step: scalars.update({(name, step): value}),
            flush=lambda: None,
            close=lambda: scalars.update(closed=True),
        )

    tensorboard = SimpleNamespace(SummaryWriter=writer)
    monkeypatch.setitem(sys.modules, "tensorboardX", tensorboard)
    options, axes = (
        {"tensorboard": str(tmp_path / "logs")},
        AXES | {"learning_rate": [0.05]},
    )
    found = grid(tmp_path / "grid", axes, options=options, batch=batch)
    assert found.folders.keys() == grid(tmp_path / "grid", axes).folders.keys()
    assert len(written) == 2
    for folder in found.folders.values():
        times = History.load(folder).elapsed().tolist()
        scalars = written[str(tmp_path / "logs" / folder.name)]
        assert [scalars["elapsed", step] for step in (1, 2)] == times
        assert scalars["closed"]
