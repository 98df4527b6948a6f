"""Damage to a folder with two snapshots is reported, and intact data are kept; locks of folders."""

import hashlib
import os
import shutil
import socket
from typing import Any, NamedTuple

import checkpoint_job as job
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.small import assert_same_bits, refused

from fedjax_srp.driver.checkpoint import Checkpoints, snapshots
from fedjax_srp.driver.round_log import COPIES
from fedjax_srp.results import json_files, locks, sealed_folders
from fedjax_srp.results.locks import LOCK, held
from fedjax_srp.results.sealed_folders import SEAL


class Small(NamedTuple):
    model: dict[str, Any]
    empty: Any
    key: Any


def small_state(value):
    model = {
        "kernel": jnp.full((30, 7), value, jnp.float32),
        "bias": jnp.full((7,), value, jnp.bfloat16),
    }
    return Small(model, jnp.zeros((0, 3)), jax.random.key(value))


@pytest.fixture(scope="module")
def two_snapshots(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    checkpoints = open_small(folder)
    for num_rounds in (2, 4):
        checkpoints.save(
            num_rounds, small_state(num_rounds), times(num_rounds - 2, num_rounds)
        )
    return folder


def times(first, last):
    """Return the records of these rounds."""
    return {"compute_time": np.arange(first, last, dtype=np.float64)[None]}


def open_small(folder):
    return Checkpoints(folder, {"key": [0, 1]}, lambda num_rounds: num_rounds % 2 == 0)


@pytest.fixture
def folder(two_snapshots, tmp_path):
    return shutil.copytree(two_snapshots, tmp_path / "copy")


def restored(folder, num_rounds=6):
    """Return the round that a run continues from, after comparing every bit."""
    found = open_small(folder).restore(
        small_state(0), [*range(2, num_rounds, 2), num_rounds]
    )
    actual, expected = (
        state._replace(key=jax.random.key_data(state.key))
        for state in (found.state, small_state(found.num_rounds))
    )
    assert_same_bits(actual, expected)
    assert_same_bits(dict(found.records), times(0, found.num_rounds))
    return found.num_rounds


def continued(folder, num_rounds):
    """Return the checkpoints of a run that continues after `num_rounds` rounds."""
    checkpoints = open_small(folder)
    assert checkpoints.restore(small_state(0), [2, 4, 6]).num_rounds == num_rounds
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
def test_a_damaged_snapshot_falls_back_to_the_previous_one(damage, folder, capsys):
    intact = {path: path.read_bytes() for path in files_of(folder / "4")}
    for path in [path for path in intact if path.stat().st_size]:
        damage(path)
        assert restored(folder) == 2
        line = capsys.readouterr().err
        assert line.count("\n") == 1
        assert (
            f"{str(folder / '4')!r} is damaged ({path.relative_to(folder / '4').parts[0]}"
            in line
        )
        assert line.endswith("going on from round 2\n")
        if path.is_dir():
            path.rmdir()
        path.write_bytes(intact[path])
    assert restored(folder) == 4
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_copy_of_the_log_is_repaired_from_the_other(damage, folder, capsys):
    damage(folder / COPIES[0])
    assert restored(folder) == 4
    assert capsys.readouterr().err == ""
    if (folder / COPIES[0]).is_dir():
        (folder / COPIES[0]).rmdir()
    continued(folder, 4).save(6, small_state(6), times(4, 6))
    one, other = ((folder / name).read_bytes() for name in COPIES)
    assert one == other
    assert restored(folder) == 6
    for copy in COPIES:  # rounds 5 and 6
        path = folder / copy
        path.write_bytes(one[:-1] + bytes([one[-1] ^ 1]))
    assert restored(folder) == 4
    assert (
        "6' is damaged (records.0 and records.1 are not what was written)"
        in capsys.readouterr().err
    )


def test_the_log_is_appended_to_and_drops_the_tail_of_a_killed_run(folder):
    before = (folder / COPIES[0]).read_bytes()
    (folder / COPIES[0]).write_bytes(before + b"half a frame")
    continued(folder, 4).save(6, small_state(6), times(4, 6))
    after = (folder / COPIES[0]).read_bytes()
    assert after.startswith(before)
    assert len(after) == len(before) * 3 // 2  # segments of equal size
    assert restored(folder) == 6


def test_a_folder_without_an_intact_snapshot_is_refused(folder):
    for name in ("2", "4"):
        flip(
            max(files_of(folder / name), key=lambda path: path.stat().st_size),
            np.random.default_rng(2),
        )
    with refused(r"4' is damaged .*2' is damaged .*delete .*copy' to start again"):
        restored(folder)


FACTS = {
    "a list": [],
    "none": None,
    "no log": {"fingerprint": {}},
    "a fingerprint of text": {"fingerprint": "x", "records": {"bytes": 1, "digest": ""}},
    "a log of text": {"fingerprint": {}, "records": {"bytes": "1", "digest": ""}},
    "a huge log": {"fingerprint": {}, "records": {"bytes": 10**18, "digest": ""}},
    "an empty log": {
        "fingerprint": {},
        "records": {"bytes": 0, "digest": hashlib.sha256().hexdigest()},
    },
}


@pytest.mark.parametrize("facts", FACTS.values(), ids=FACTS)
def test_a_snapshot_with_other_facts_is_damaged(facts, folder, capsys):
    """A checksum is no secret."""
    seal = json_files.read_json(folder / "4" / SEAL)
    if isinstance(facts, dict) and facts["fingerprint"] == {}:
        facts = facts | {"fingerprint": seal["facts"]["fingerprint"]}
    json_files.write_json(folder / "4" / SEAL, seal | {"facts": facts})
    assert restored(folder) == 2
    line = capsys.readouterr().err
    assert "4' is damaged (" in line
    assert line.endswith("going on from round 2\n")


def test_a_damaged_snapshot_is_replaced_when_its_round_is_repeated(folder):
    flip(folder / "4" / SEAL, np.random.default_rng(3))
    continued(folder, 2).save(4, small_state(4), times(2, 4))
    assert restored(folder) == 4
    assert sorted(path.name for path in folder.iterdir()) == ["2", "4", *COPIES]


@pytest.mark.parametrize("name", ["plain", "rate=[0.1]", "[x", "back\\slash", "a*b?"])
def test_the_latest_write_is_read(name, tmp_path):
    tmp_path = tmp_path / name  # orbax takes some names for patterns
    tmp_path.mkdir()
    for value in range(3):
        arrays = {"a": np.full(500, value), "b": jnp.full(3, float(value))}
        sealed_folders.write(tmp_path / "same", arrays, {"value": value})
        for like in ({}, {"b": jnp.zeros(3)}):
            assert_same_bits(
                sealed_folders.read(tmp_path / "same", like),
                jax.tree.map(np.asarray, arrays),
            )
        assert json_files.read_json(tmp_path / "same" / SEAL)["facts"] == {"value": value}
    assert [path.name for path in tmp_path.iterdir()] == ["same"]


def test_numbered_folders_of_another_program_are_refused_and_kept(tmp_path):
    (tmp_path / "2023").mkdir()
    (tmp_path / "2023" / "photo").write_text("precious")
    with refused(
        "2023' was not written by fedjax_srp: rename it, or give another folder"
    ):
        open_small(tmp_path).restore(small_state(0), [3000])
    with refused("2023' was not written by fedjax_srp"):
        sealed_folders.write(tmp_path / "2023", {}, {})
    assert [path.name for path in tmp_path.rglob("*")] == ["2023", "photo"]


def test_the_snapshots_that_are_kept(folder):
    checkpoints = continued(folder, 4)
    for first, num_rounds in ((4, 6), (6, 7)):
        checkpoints.save(num_rounds, small_state(num_rounds), times(first, num_rounds))
    assert snapshots(folder) == [7, 6, 4]  # the last one is not on the grid
    checkpoints.finish()
    assert snapshots(folder) == [7, 6]
    assert [restored(folder, 7), restored(folder, 8)] == [7, 6]


def test_no_space_is_recognised_in_errors_of_tensorstore(folder, monkeypatch):
    def full(*args, **options):
        raise ValueError("x: No space left on device [y]")

    monkeypatch.setattr("orbax.checkpoint.Checkpointer.save", full)
    with pytest.raises(
        OSError,
        match=r"No space left on device: '.*6'; what was written before is intact; make room",
    ):
        continued(folder, 4).save(6, small_state(6), times(4, 6))
    assert restored(folder) == 4


def test_a_folder_in_use_is_refused_with_the_name_of_the_process(tmp_path):
    who = f"process {os.getpid()} on {socket.gethostname()}"
    with held(tmp_path / "new", "checkpoint_dir"):
        with pytest.raises(
            ValueError,
            match=f"checkpoint_dir='.*new': {who} is running here; wait for it",
        ):
            job.run(tmp_path / "new", num_rounds=1)
        with held(tmp_path / "other", "out"):
            pass
    assert list((tmp_path / "new").iterdir()) == []
    (tmp_path / "new" / LOCK).write_text("process 1 on a machine that crashed")
    with held(tmp_path / "new", "checkpoint_dir"):
        pass


def test_a_system_without_locks_gives_a_warning(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(locks, "fcntl", None)
    with held(tmp_path, "out"), held(tmp_path, "out"):
        pass
    assert (
        f"{tmp_path}: no locks on this system; run one process at a time in it"
        in capsys.readouterr().err
    )
