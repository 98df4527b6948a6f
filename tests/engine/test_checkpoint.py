"""A killed run continues and ends with the bytes of one that was left alone; a folder serves one simulation only."""

import gc
import os
import random
import resource
import shutil
import socket
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any, NamedTuple

import checkpoint_job as job
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attacks import kept_runs
from reference.small import assert_same_bits, changed, federation, model, refused

import fedjax_srp as srp
from fedjax_srp import storage
from fedjax_srp.engine.checkpoint import Checkpoints, snapshots
from fedjax_srp.engine.program import Program
from fedjax_srp.engine.records import COPIES
from fedjax_srp.engine.simulate import simulate_seeds

TESTS = Path(__file__).parent.parent
FIELDS = (
    *("round", "stage", "cohort_size", "compute_time", "communicated", "finite", "client_time", "eval_round"),
    "rounds_taken",
)


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
    assert steps() == [6]
    assert_same_history(continued, job.run(), tmp_path)
    # All rounds are there: asking again computes nothing and answers the same.
    again = job.run(tmp_path / "checkpoints")
    assert np.isnan(again.seconds_per_round)
    assert_same_history(again, continued, tmp_path)


@pytest.fixture(scope="module")
def whole():
    return job.run(keep_clients=True)


def assert_same_states(actual, expected):
    assert_same_bits(actual.server_state, expected.server_state)
    assert_same_bits(actual.client_states, expected.client_states)


@pytest.mark.short("between")
@pytest.mark.parametrize("first", [4, 3, 1], ids=["on_the_grid", "between", "before_the_first_evaluation"])
def test_a_run_is_made_longer_to_the_same_bits(first, whole, tmp_path):
    short = job.run(tmp_path / "checkpoints", num_rounds=first)
    assert short.eval_round[-1] == first
    longer = job.run(tmp_path / "checkpoints", keep_clients=True)
    assert_same_history(longer, whole, tmp_path)
    assert_same_states(longer, whole)


def test_a_run_that_goes_on_lets_go_of_the_states_it_would_have_started_from(tmp_path, monkeypatch):
    job.run(tmp_path / "checkpoints", num_rounds=2)
    start, started, alive = Program.start, [], []

    def watched(self, root, data, **options):
        found = start(self, root, data, **options)
        started.extend(map(weakref.ref, jax.tree.leaves((found.state.server, found.state.clients))))
        return found

    def look(progress):
        gc.collect()
        alive.extend(leaf.shape for ref in started if (leaf := ref()) is not None and not leaf.is_deleted())

    monkeypatch.setattr(Program, "start", watched)
    job.run(tmp_path / "checkpoints", num_rounds=4, callback=look)
    assert started
    assert alive == []


def test_limits_may_change_where_a_run_goes_on(whole, tmp_path):
    limit = float(whole.elapsed()[1])
    short = job.run(tmp_path / "checkpoints", time_limit=limit)
    assert short.num_rounds == 2
    assert_same_history(job.run(tmp_path / "checkpoints"), whole, tmp_path)
    assert job.run(tmp_path / "checkpoints", time_limit=float(whole.elapsed()[5])).num_rounds == 6
    for limits, message in (
        ({"num_rounds": 4}, "num_rounds=4: checkpoint_dir=.* holds 6 rounds of this run; give at least 6, or another"),
        ({"time_limit": limit}, "time_limit=.* holds 6 rounds of this run, it would end after 2; give the limits it"),
        ({"target": 0.01}, "target=0.01: .* it would end after 2; give"),
    ):
        with pytest.raises(ValueError, match=message):
            job.run(tmp_path / "checkpoints", **limits)


def test_seeds_are_continued_too(tmp_path, monkeypatch):
    options = {"participation": job.POLICY, "clock": job.CLOCK, "num_rounds": 3, "eval_every": 1, "progress": False}
    options |= {"devices": 1, "keep_clients": True}
    algorithm = srp.algorithms.FedAvg(model(hidden=()), srp.Training(batch_size=4))

    def run(directory=None, **other):
        keys = jax.random.split(jax.random.key(2), 2)
        return simulate_seeds(algorithm, job.DATA, keys=keys, checkpoint_dir=directory, **options | other)

    save = Checkpoints.save

    def save_once(self, num_rounds, *args):
        if num_rounds > 1:
            raise KeyboardInterrupt
        save(self, num_rounds, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", save_once)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "checkpoints")
    expected = run()
    for folder in ("checkpoints", "shorter"):
        if folder == "shorter":
            run(tmp_path / folder, num_rounds=2)
        for one, other in zip(run(tmp_path / folder), expected, strict=True):
            assert_same_history(one, other, tmp_path)
            assert_same_states(one, other)


def another_start(key, data):
    return jax.tree.map(lambda leaf: leaf + 1, job.ALGORITHM.init(key, data))


def another_server(*args):
    return jax.tree.map(jnp.negative, job.ALGORITHM.server(*args))


def other_labels():
    return federation([c._replace(y=(c.y + 1) % 4) for c in job.CLIENTS])


def other(optimizer=0.2, hidden=(4,)):
    return srp.algorithms.FedPer(model(hidden=hidden), srp.Training(srp.SGD(optimizer), batch_size=4))


ANOTHER_RUN = {
    "key": ({"seed": 12}, "key="),
    "eval_every": ({"eval_every": 3}, "eval_every=2"),
    "chunk": ({"chunk_size": 1}, "chunk_size=2"),
    "devices": ({"devices": 1, "chunk_size": 4}, "num_devices=2"),  # from which a chunk follows that nobody gave
    "clock": ({"clock": srp.clocks.Fixed(srp.clocks.Exponential(1.0))}, "clock='dynamic'"),
    "rate": ({"clock": srp.clocks.Dynamic(srp.clocks.Exponential(0.5))}, "clock_options."),
    "work": ({"clock": srp.clocks.Dynamic(srp.clocks.Exponential(1.0), work=7)}, "clock_options."),
    "policy": ({"policy": srp.participation.Uniform(3)}, "doubling"),
    "clients": ({"data": federation(job.CLIENTS[:6])}, "num_clients=7"),
    "labels": ({"data": other_labels()}, "data"),
    "schedule": ({"policy": srp.participation.Doubling(2, 1, pool=5, redraw="stage")}, "options."),
    "step_size": ({"algorithm": other(0.3)}, "options.learning_rate=0.2"),
    "model": ({"algorithm": other(hidden=(3,))}, "options.hidden"),
}


@pytest.mark.short("key", "rate", "work", "labels", "step_size", "clients", "policy")
@pytest.mark.parametrize(("change", "word"), ANOTHER_RUN.values(), ids=ANOTHER_RUN)
def test_the_folder_of_another_run_is_refused_in_one_line(change, word, one_folder):
    remedies = {
        "chunk_size=2": "give the chunk_size of before",
        "num_devices=2": r"give devices=2, behind srp.use_all_cores\(2\) as the first call",
    }
    with refused(
        rf"^checkpoint_dir=.{{,200}}belongs to a run with.*{word}.*; {remedies.get(word, 'choose another folder')}"
    ):
        job.run(one_folder, num_rounds=2, **change)


@pytest.mark.short("*-program")
@pytest.mark.parametrize(
    ("change", "word"), [({"init": another_start}, "start"), ({"server": another_server}, "program")]
)
def test_a_class_whose_functions_were_edited_is_another_run(change, word, tmp_path):
    """As a cell of a notebook that was run again: it has the name that it had, and the same fields."""
    job.run(tmp_path, num_rounds=2, algorithm=changed(job.ALGORITHM))
    assert job.run(tmp_path, num_rounds=2, algorithm=changed(job.ALGORITHM)).num_rounds == 2
    with pytest.raises(ValueError, match=rf"belongs to a run with {word}=.*; code has changed, of one of its parts"):
        job.run(tmp_path, num_rounds=2, algorithm=changed(job.ALGORITHM, **change))


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


# Damage, without a simulation: a folder with two snapshots of a small state.


class Small(NamedTuple):
    model: dict[str, Any]
    empty: Any
    key: Any


def small_state(value):
    model = {"kernel": jnp.full((30, 7), value, jnp.float32), "bias": jnp.full((7,), value, jnp.bfloat16)}
    return Small(model, jnp.zeros((0, 3)), jax.random.key(value))


@pytest.fixture(scope="module")
def two_snapshots(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    checkpoints = open_small(folder)
    for num_rounds in (2, 4):
        checkpoints.save(num_rounds, small_state(num_rounds), times(num_rounds - 2, num_rounds))
    return folder


def times(first, last):
    """What is recorded in these rounds."""
    return {"time": np.arange(first, last, dtype=np.float64)[None]}


def open_small(folder):
    return Checkpoints(folder, {"key": [0, 1]}, lambda num_rounds: num_rounds % 2 == 0)


@pytest.fixture
def folder(two_snapshots, tmp_path):
    return shutil.copytree(two_snapshots, tmp_path / "copy")


def restored(folder, num_rounds=6):
    """The round that a run goes on from, after a look at every bit."""
    found = open_small(folder).restore(small_state(0), num_rounds)
    actual, expected = (
        state._replace(key=jax.random.key_data(state.key)) for state in (found.state, small_state(found.num_rounds))
    )
    assert_same_bits(actual, expected)
    assert_same_bits(dict(found.records), times(0, found.num_rounds))
    return found.num_rounds


def gone_on(folder, num_rounds):
    """The folder of a run that goes on after so many rounds."""
    checkpoints = open_small(folder)
    assert checkpoints.restore(small_state(0), 6).num_rounds == num_rounds
    return checkpoints


def files_of(snapshot):
    return sorted(path for path in snapshot.rglob("*") if path.is_file())


def flip(path, rng):
    content = bytearray(path.read_bytes())
    content[rng.integers(len(content))] ^= 1 << rng.integers(8)
    path.write_bytes(content)


DAMAGES = {
    "flipped": lambda path: flip(path, np.random.default_rng(0)),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "emptied": lambda path: path.write_bytes(b""),
    "missing": lambda path: path.unlink(),
    "garbage": lambda path: path.write_bytes(b'{"files": [[[' + b"[" * 99999),
    "folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_snapshot_falls_back_to_the_one_before_in_one_line(damage, folder, capsys):
    intact = {path: path.read_bytes() for path in files_of(folder / "4")}
    for path in [path for path in intact if path.stat().st_size]:
        damage(path)
        assert restored(folder) == 2
        line = capsys.readouterr().err
        assert line.count("\n") == 1
        assert f"{folder / '4'} is damaged ({path.relative_to(folder / '4').parts[0]}" in line
        assert line.endswith("going on from round 2\n")
        if path.is_dir():
            path.rmdir()
        path.write_bytes(intact[path])
    assert restored(folder) == 4
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_copy_of_the_log_has_another_beside_it_and_is_mended(damage, folder, capsys):
    damage(folder / COPIES[0])
    assert restored(folder) == 4
    assert capsys.readouterr().err == ""
    if (folder / COPIES[0]).is_dir():
        (folder / COPIES[0]).rmdir()
    gone_on(folder, 4).save(6, small_state(6), times(4, 6))
    one, other = ((folder / name).read_bytes() for name in COPIES)
    assert one == other
    assert restored(folder) == 6
    for copy in COPIES:  # rounds 5 and 6
        path = folder / copy
        path.write_bytes(one[:-1] + bytes([one[-1] ^ 1]))
    assert restored(folder) == 4
    assert "6 is damaged (records.0 and records.1 are not what was written)" in capsys.readouterr().err


def test_the_log_only_grows_and_forgets_what_a_killed_run_appended(folder):
    before = (folder / COPIES[0]).read_bytes()
    (folder / COPIES[0]).write_bytes(before + b"half a frame")
    gone_on(folder, 4).save(6, small_state(6), times(4, 6))
    after = (folder / COPIES[0]).read_bytes()
    assert after.startswith(before)
    assert len(after) == len(before) * 3 // 2  # segments of equal size
    assert restored(folder) == 6


def test_a_snapshot_does_not_grow_with_what_was_recorded(folder):
    checkpoints, wide = gone_on(folder, 4), np.zeros((1, 1, 50_000))
    for num_rounds in (6, 8):
        checkpoints.save(num_rounds, small_state(1), {"scores": wide, **times(num_rounds - 2, num_rounds)})
    assert sum(path.stat().st_size for step in (6, 8) for path in files_of(folder / str(step))) < wide.nbytes / 4


def test_a_run_never_goes_on_from_a_flipped_bit(tmp_path):
    found = kept_runs.flips_of_a_run(5, tmp_path, random.Random(0))
    assert found["silent_differences"] == 0
    assert found["equal"] > 0  # from the snapshot beside it


def test_without_an_intact_snapshot_there_is_one_error_with_the_remedy(folder):
    for name in ("2", "4"):
        flip(max(files_of(folder / name), key=lambda path: path.stat().st_size), np.random.default_rng(2))
    with refused(r"4 is damaged .*2 is damaged .*delete .*copy' to start again"):
        restored(folder)


def test_a_damaged_snapshot_is_replaced_when_its_round_comes_again(folder):
    flip(folder / "4" / storage.SEAL, np.random.default_rng(3))
    gone_on(folder, 2).save(4, small_state(4), times(2, 4))
    assert restored(folder) == 4
    assert sorted(path.name for path in folder.iterdir()) == ["2", "4", *COPIES]


def test_the_newest_of_one_name_is_read(tmp_path):
    for value in range(3):
        arrays = {"a": np.full(500, value), "b": jnp.full(3, float(value))}
        storage.write(tmp_path / "same", arrays, {"value": value})
        for like in ({}, {"b": jnp.zeros(3)}):
            assert_same_bits(storage.read(tmp_path / "same", like), jax.tree.map(np.asarray, arrays))
        assert storage.read_json(tmp_path / "same" / storage.SEAL)["facts"] == {"value": value}
    assert [path.name for path in tmp_path.iterdir()] == ["same"]


def test_numbered_folders_of_something_else_are_refused_and_kept(tmp_path):
    (tmp_path / "2023").mkdir()
    (tmp_path / "2023" / "photo").write_text("precious")
    with refused("2023' was not written by fedjax_srp: rename it, or give another folder"):
        open_small(tmp_path).restore(small_state(0), 3000)
    with refused("2023' was not written by fedjax_srp"):
        storage.write(tmp_path / "2023", {}, {})
    assert [path.name for path in tmp_path.rglob("*")] == ["2023", "photo"]


def test_what_is_kept(folder):
    checkpoints = gone_on(folder, 4)
    for first, num_rounds in ((4, 6), (6, 7)):
        checkpoints.save(num_rounds, small_state(num_rounds), times(first, num_rounds))
    assert snapshots(folder) == [7, 6, 4]  # the last one is not on the grid
    checkpoints.finish()
    assert snapshots(folder) == [7, 6]
    assert [restored(folder, 7), restored(folder, 8)] == [7, 6]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # coroutines that orbax gave up
def test_a_full_disk_is_one_line_and_loses_nothing(folder):
    """The system refuses to write more than so many bytes into a file, as it does on a full disk."""
    before, limits = {path: path.read_bytes() for path in files_of(folder)}, resource.getrlimit(resource.RLIMIT_FSIZE)
    noise, checkpoints = np.random.default_rng(0).normal(size=(1, 100_000)), gone_on(folder, 4)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        with pytest.raises(OSError, match=r"File too large: '.*6'; what was written before is intact") as caught:
            checkpoints.save(6, small_state(6), {"time": noise})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "\n" not in str(caught.value)
    assert {path: path.read_bytes()[: len(content)] for path, content in before.items()} == before
    assert restored(folder) == 4
    checkpoints.save(6, small_state(6), {"time": noise})
    assert snapshots(folder) == [6, 4]
    found = open_small(folder).restore(small_state(0), 6)
    assert_same_bits(found.records["time"], np.concatenate([times(0, 4)["time"], noise], 1))


def test_no_space_is_recognised_in_the_words_of_tensorstore(folder, monkeypatch):
    def full(*args, **options):
        raise ValueError("x: No space left on device [y]")

    monkeypatch.setattr("orbax.checkpoint.Checkpointer.save", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*6'; what was written before is intact; make room"):
        gone_on(folder, 4).save(6, small_state(6), times(4, 6))
    assert restored(folder) == 4


def test_a_folder_in_use_is_refused_with_the_name_of_who_uses_it(tmp_path):
    who = f"process {os.getpid()} on {socket.gethostname()}"
    with storage.held(tmp_path / "new", "checkpoint_dir"):
        with pytest.raises(ValueError, match=f"checkpoint_dir='.*new': {who} is running here; wait for it"):
            job.run(tmp_path / "new", num_rounds=1)
        with storage.held(tmp_path / "other", "out"):
            pass
    assert list((tmp_path / "new").iterdir()) == []
    (tmp_path / "new" / ".lock").write_text("process 1 on a machine that crashed")
    with storage.held(tmp_path / "new", "checkpoint_dir"):
        pass


def test_where_there_are_no_locks_it_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(storage, "fcntl", None)
    with storage.held(tmp_path, "out"), storage.held(tmp_path, "out"):
        pass
    assert f"{tmp_path}: no locks on this system; run one process at a time in it" in capsys.readouterr().err
