"""A killed run continues and ends with the bytes of one that was left alone; a folder serves one simulation only."""

import subprocess
import sys
from pathlib import Path

import checkpoint_job as job
import jax
import numpy as np
import pytest
from reference.small import assert_same_bits, federation, model

import fedjax_srp as srp
from fedjax_srp.engine.checkpoint import Checkpoints
from fedjax_srp.engine.simulate import simulate_seeds

TESTS = Path(__file__).parent.parent
FIELDS = ("round", "stage", "cohort_size", "compute_time", "communicated", "finite", "client_time", "eval_round")


def assert_same_history(actual, expected, folder):
    for field in FIELDS:
        assert_same_bits(getattr(actual, field), getattr(expected, field))
    assert_same_bits(dict(actual.accuracies), dict(expected.accuracies))
    for name, history in (("actual", actual), ("expected", expected)):
        history.save(folder / name)
    for file in ("history.csv", "clients.csv"):
        assert (folder / "actual" / file).read_bytes() == (folder / "expected" / file).read_bytes()


def test_a_killed_process_is_continued_to_the_same_bytes(tmp_path):
    code = f"import sys; sys.path[:0] = {[str(TESTS), str(TESTS / 'engine')]}; import conftest, checkpoint_job; "
    code += f"checkpoint_job.run_and_die_after({str(tmp_path / 'checkpoints')!r}, saves=1)"
    dead = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert dead.returncode == 9, dead.stderr
    steps = lambda: sorted(int(p.name) for p in (tmp_path / "checkpoints").iterdir() if p.name.isdigit())  # noqa: E731
    assert steps() == [2]  # of 4 computed rounds
    continued = job.run(tmp_path / "checkpoints")
    assert steps() == [4, 6]
    assert_same_history(continued, job.run(), tmp_path)
    # All rounds are there: asking again computes nothing and answers the same.
    again = job.run(tmp_path / "checkpoints")
    assert np.isnan(again.seconds_per_round)
    assert_same_history(again, continued, tmp_path)


def test_a_finished_run_can_be_made_longer(tmp_path):
    short = job.run(tmp_path / "checkpoints", num_rounds=4)
    assert short.num_rounds == 4
    assert_same_history(job.run(tmp_path / "checkpoints"), job.run(), tmp_path)
    assert job.run(tmp_path / "checkpoints", num_rounds=2).num_rounds == 6  # what is there is not undone


def test_a_longer_run_keeps_the_grid_of_its_evaluations(tmp_path):
    assert list(job.run(tmp_path / "checkpoints", num_rounds=3).eval_round) == [2, 3]
    longer, whole = job.run(tmp_path / "checkpoints"), job.run()
    assert list(longer.eval_round) == [2, 3, 4, 6]
    assert_same_bits(longer.accuracy[[0, 2, 3]], whole.accuracy)


def test_seeds_are_continued_too(tmp_path, monkeypatch):
    options = {"participation": job.POLICY, "clock": job.CLOCK, "num_rounds": 3, "eval_every": 1, "progress": False}
    algorithm = srp.algorithms.fedavg(model(hidden=()), batch_size=4)

    def run(directory=None):
        keys = jax.random.split(jax.random.key(2), 2)
        return simulate_seeds(algorithm, job.DATA, keys=keys, devices=1, checkpoint_dir=directory, **options)

    save = Checkpoints.save

    def save_once(self, num_rounds, *args):
        if num_rounds > 1:
            raise KeyboardInterrupt
        save(self, num_rounds, *args)

    monkeypatch.setattr(Checkpoints, "save", save_once)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "checkpoints")
    monkeypatch.undo()
    for actual, expected in zip(run(tmp_path / "checkpoints"), run(), strict=True):
        assert_same_history(actual, expected, tmp_path)


def another_start(key, data):
    return jax.tree.map(lambda leaf: leaf + 1, job.ALGORITHM.init(key, data))


def other_labels():
    changed = [c._replace(y=(c.y + 1) % 4) for c in job.CLIENTS]
    return federation(changed)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"seed": 12}, "key="),
        ({"eval_every": 3}, "eval_every=2"),
        ({"chunk_size": 1}, "chunk_size=2"),
        ({"clock": srp.clocks.fixed(srp.clocks.exponential(1.0))}, "clock='dynamic'"),
        ({"clock": srp.clocks.dynamic(srp.clocks.exponential(0.5))}, "values="),
        ({"clock": srp.clocks.dynamic(srp.clocks.exponential(1.0), work=7)}, "values="),
        ({"algorithm": job.ALGORITHM._replace(init=another_start)}, "start"),
        ({"policy": srp.participation.uniform(3)}, "doubling"),
        ({"data": federation(job.CLIENTS[:6])}, "num_clients=7"),
        ({"data": other_labels()}, "data"),
        ({"policy": srp.participation.doubling(2, 1, pool=5, redraw="stage")}, "program"),
        ({"algorithm": srp.algorithms.fedrep(model(hidden=(4,)), srp.algorithms.sgd(0.3), 4, 2)}, "program"),
        ({"algorithm": srp.algorithms.fedrep(model(hidden=(3,)), srp.algorithms.sgd(0.2), 4, 2)}, "start"),
    ],
    ids=[
        *("key", "eval_every", "chunk", "clock", "rate", "work", "start", "policy", "clients", "labels", "schedule"),
        *("step_size", "model"),
    ],
)
def test_the_folder_of_another_run_is_refused_in_one_line(change, word, one_folder):
    with pytest.raises(ValueError, match=r"checkpoint_dir=.*belongs to a run with") as caught:
        job.run(one_folder, num_rounds=2, **change)
    message = str(caught.value)
    assert word in message
    assert "choose another folder" in message
    assert "\n" not in message
    assert len(message) < 500


@pytest.fixture(scope="module")
def one_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    job.run(folder, num_rounds=2)
    return folder


def test_a_refusal_leaves_the_folder_as_it_was(one_folder):
    listing = lambda: {p: p.read_bytes() for p in one_folder.rglob("*") if p.is_file()}  # noqa: E731
    before = listing()
    with pytest.raises(ValueError, match="belongs to"):
        job.run(one_folder, num_rounds=2, seed=12)
    assert listing() == before
    assert job.run(one_folder, num_rounds=2).num_rounds == 2
