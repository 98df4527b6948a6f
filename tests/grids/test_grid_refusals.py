"""Grids that are refused before anything runs: invalid parts, and rounds that would be lost."""

import contextlib

import jax
import pytest
from reference.small import refused
from small_grid import AXES, grid

import fedjax_srp as srp
from fedjax_srp.lab.grids.work import Worker
from fedjax_srp.lab.runs import folder as run_folder


@pytest.mark.parametrize("batch", [1, 16])
def test_checkpoints_with_more_rounds_than_requested_are_refused(
    batch, tmp_path, monkeypatch
):
    """Runs of an interrupted batch, and finished single runs."""

    def kill(*_):
        raise KeyboardInterrupt

    axes = AXES | {"learning_rate": [0.05], "seed": [0, 1]}
    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(
            "fedjax_srp.lab.grids.work.save", kill if batch > 1 else run_folder.save
        )
        grid(tmp_path, axes, batch=batch)
    monkeypatch.setattr(Worker, "run", lambda *_: pytest.fail("it runs"))
    where = r"'.*/.together/\w+', which its batch shares" if batch > 1 else "its folder"
    message = f"seed=0 and 1 more runs: num_rounds=1, but its checkpoint has 2 rounds; .* at least 2, .* {where}$"
    with pytest.raises(ValueError, match=message):
        grid(tmp_path, axes, options={"num_rounds": 1}, batch=batch)


def test_invalid_parts_are_refused_before_anything_runs(tmp_path):
    axes = {"method": ["fedavg", "fedrep"], "learning_rate": [0.1, -1.0], "seed": [0, 1]}
    variants = {"a": {}, "b": {"clock": "sundial"}}
    with refused(r"2 problems: .*learning_rate=-1.*and 3 more runs.*clock"):
        grid(tmp_path, axes, variants=variants, options={"clock": "fixed"})
    assert not list(tmp_path.glob("*/"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"evaluations": ["nope"]}, "unknown evaluation 'nope' of fedavg"),
        ({"devices": 99}, "devices=99: a run has 4 here; give no more, or fewer workers"),
        ({"chunk_size": 0}, "chunk_size=0 must be at least 1"),
        ({"method": "fedbuff", "k": 2, "communication": 3.0}, ".* overlap.*the clock"),
        ({"target": 0.5, "evaluations": []}, "target=0.5: nothing is evaluated"),
    ],
)
def test_errors_found_without_compiling_are_raised_before_anything_runs(
    options, message, tmp_path, monkeypatch
):
    monkeypatch.setattr(Worker, "run", lambda *_: pytest.fail("it runs"))
    options = {"method": "fedavg"} | options
    with refused(f"^grid: seed=0 and 1 more runs: .*{message}"):
        grid(tmp_path, {"seed": [0, 1]}, options=options, batch=1)


def test_a_cost_where_rounds_overlap_is_refused_beside_a_free_one(tmp_path, monkeypatch):
    """All runs are one program, and two of them are refused."""
    monkeypatch.setattr(Worker, "run", lambda *_: pytest.fail("it runs"))
    options = {"method": "fedbuff", "k": 2}
    axes = {"seed": [0, 1], "communication": [0.0, 3.0]}
    error = "^grid: seed=0, communication=3 and 1 more runs: communication=3: .* overlap"
    with refused(f"{error}.*the clock"):
        grid(tmp_path, axes, options=options, batch=1)


def test_a_method_for_another_task_is_refused_beside_one_that_fits(tmp_path, monkeypatch):
    """They differ in numbers alone."""
    monkeypatch.setattr(Worker, "run", lambda *_: pytest.fail("it runs"))
    task = lambda rank: srp.data.linear_task(jax.random.key(0), 4, dim=10, rank=rank)
    made_for = lambda rank: srp.algorithms.LinearFedRep(task(rank), 0.1, 5)
    axes = {"method": {"right": made_for(2), "wrong": made_for(3)}}
    options = {"data": task(2), "num_rounds": 1}
    with refused("^grid: wrong: the data has .*made for"):
        srp.grid(axes=axes, options=options, out=tmp_path, progress=False)
