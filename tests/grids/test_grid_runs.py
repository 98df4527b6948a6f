"""Runs of a grid: each logs on its own, and those of every example finish."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from small_grid import AXES, grid

import fedjax_srp as srp
from fedjax_srp.lab.grids.points import read
from fedjax_srp.results.history import History

EXAMPLES = Path(__file__).parents[2] / "experiments" / "grids"


@pytest.mark.long
@pytest.mark.parametrize(
    "file", sorted(EXAMPLES.glob("*.toml")), ids=lambda file: file.stem
)
def test_every_example_runs_in_a_small_size(file, tmp_path):
    spec, _ = read(file)
    small = {
        "num_clients": 10,
        "max_examples": 8,
        "hidden": [4],
        "num_rounds": 2,
        "head_epochs": 1,
        "devices": 1,
    }
    axes = {
        name: values[:2] if name == "seed" else values
        for name, values in spec.axes.items()
    }
    initial = {"initial": 5} if "initial" in spec.options else {}
    options = {**spec.options, **small, **initial}
    variants = {
        name: {**given, "initial": place + 2}
        for place, (name, given) in enumerate(spec.variants.items())
    }
    found = srp.grid(
        axes=axes,
        options=options,
        variants=variants,
        exclude=spec.exclude,
        out=tmp_path,
        progress=False,
    )
    assert not found.failures
    assert found.folders.keys() == found.values.keys()
    assert {history.num_rounds for history in found.histories.values()} == {2}


@pytest.mark.parametrize("batch", [1, 4])
def test_runs_of_a_grid_log_separately(tmp_path, monkeypatch, batch):
    """Each run has its own TensorBoard folder, and a run of Weights & Biases; both end with it."""
    made, begun, closed = {}, {}, []

    class Writer:
        def __init__(self, directory):
            self.scalars = made.setdefault(directory, {})

        def add_scalar(self, name, value, step):
            self.scalars[name, step] = value

        def flush(self):
            pass

        def close(self):
            closed.append(self.scalars)

    def init(**options):
        logged, ended = begun.setdefault(options["id"], (options, [], []))[1:]
        return SimpleNamespace(
            log=logged.append,
            define_metric=lambda *_, **__: None,
            finish=lambda: ended.append(1),
        )

    monkeypatch.setitem(
        sys.modules, "tensorboardX", SimpleNamespace(SummaryWriter=Writer)
    )
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    options = {"tensorboard": str(tmp_path / "logs"), "wandb": "mine"}
    axes = AXES | {"learning_rate": [0.05]}
    found = grid(tmp_path / f"grid{batch}", axes, options=options, batch=batch)
    assert (
        found.folders.keys()
        == grid(tmp_path / f"grid{batch}", axes, batch=batch).folders.keys()
    )  # the same runs
    assert len(found.folders) == len(begun) == 2
    for folder in found.folders.values():
        scalars = made[str(tmp_path / "logs" / folder.name)]
        assert any(scalars is each for each in closed)
        times = History.load(folder).elapsed()
        assert [scalars["elapsed", step] for step in (1, 2)] == times.tolist()
        ((options, logged, ended),) = [
            of for of in begun.values() if of[0]["name"] == folder.name
        ]
        assert options["project"] == "mine"
        assert [row["elapsed"] for row in logged] == times.tolist()
        assert ended == [1]
