"""A killed run is continued to the bytes of an undisturbed one; a folder belongs to one simulation."""

import dataclasses
import random
import subprocess
import sys
from pathlib import Path

import checkpoint_job as job
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attacks import kept_runs
from reference.small import assert_same_bits, changed, federation, refused

import fedjax_srp as srp

TESTS = Path(__file__).parent.parent
FIELDS = (
    *(
        "round",
        "stage",
        "cohort_size",
        "compute_time",
        "communicated",
        "finite",
        "client_time",
        "eval_round",
    ),
    "rounds_taken",
)


def assert_same_history(actual, expected, folder):
    for field in FIELDS:
        assert_same_bits(getattr(actual, field), getattr(expected, field))
    assert_same_bits(dict(actual.accuracies), dict(expected.accuracies))
    for name, history in (("actual", actual), ("expected", expected)):
        history.save(folder / name, overwrite=True)
    for file in ("history.csv", "clients.csv"):
        assert (folder / "actual" / file).read_bytes() == (
            folder / "expected" / file
        ).read_bytes()


def test_a_killed_process_is_continued_to_the_same_bytes(tmp_path):
    code = f"import sys; sys.path[:0] = {[str(TESTS), str(TESTS / 'engine')]}; import conftest, checkpoint_job; "
    code += (
        f"checkpoint_job.run_and_die_after({str(tmp_path / 'checkpoints')!r}, saves=1)"
    )
    dead = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert dead.returncode == 9, dead.stderr
    steps = lambda: sorted(
        int(p.name) for p in (tmp_path / "checkpoints").iterdir() if p.name.isdigit()
    )
    assert steps() == [2]  # of 4 computed rounds
    continued = job.run(tmp_path / "checkpoints")
    assert steps() == [6]
    assert_same_history(continued, job.run(), tmp_path)
    # All rounds are stored: the same call computes nothing and returns the same history.
    again = job.run(tmp_path / "checkpoints")
    assert np.isnan(again.seconds_per_round)
    assert_same_history(again, continued, tmp_path)


@pytest.fixture(scope="module")
def whole():
    return job.run(keep_clients=True)


def assert_same_states(actual, expected):
    assert_same_bits(actual.server_state, expected.server_state)
    assert_same_bits(actual.client_states, expected.client_states)


@pytest.mark.parametrize(
    "first", [4, 3, 1], ids=["on_the_grid", "between", "before_the_first_evaluation"]
)
def test_a_longer_run_has_the_same_bits(first, whole, tmp_path):
    short = job.run(tmp_path / "checkpoints", num_rounds=first)
    assert short.eval_round[-1] == first
    longer = job.run(tmp_path / "checkpoints", keep_clients=True)
    assert_same_history(longer, whole, tmp_path)
    assert_same_states(longer, whole)


def test_a_run_with_a_metric_of_half_precision_is_continued(tmp_path):
    """Files of NumPy have no bfloat16."""
    halved = lambda server, data: {"half": server.sum().astype(jnp.bfloat16)}
    algorithm = changed(job.ALGORITHM, metrics=halved)
    job.run(tmp_path, num_rounds=2, algorithm=algorithm)
    continued, whole = (
        job.run(tmp_path, num_rounds=4, algorithm=algorithm),
        job.run(num_rounds=4, algorithm=algorithm),
    )
    assert_same_bits(continued.metrics["half"], whole.metrics["half"])


def test_limits_may_change_between_calls(whole, tmp_path):
    limit = float(whole.elapsed()[1])
    short = job.run(tmp_path / "checkpoints", time_limit=limit)
    assert short.num_rounds == 2
    assert_same_history(job.run(tmp_path / "checkpoints"), whole, tmp_path)
    for limits, message in (
        ({"num_rounds": 4}, "num_rounds=4: .* holds 6 rounds of this run; give"),
        ({"time_limit": limit}, "time_limit=.* it would end after 2; give"),
    ):
        with pytest.raises(ValueError, match=message):
            job.run(tmp_path / "checkpoints", **limits)


def test_a_batch_of_seeds_is_continued(tmp_path):
    options = {
        "participation": job.POLICY,
        "clock": job.CLOCK,
        "eval_every": 1,
        "progress": False,
        "devices": 1,
    }
    options |= {"keys": jax.random.split(jax.random.key(2), 2), "keep_clients": True}
    srp.simulate_seeds(
        job.ALGORITHM, job.DATA, num_rounds=2, checkpoint_dir=tmp_path / "run", **options
    )
    continued = srp.simulate_seeds(
        job.ALGORITHM, job.DATA, num_rounds=3, checkpoint_dir=tmp_path / "run", **options
    )
    for one, other in zip(
        continued,
        srp.simulate_seeds(job.ALGORITHM, job.DATA, num_rounds=3, **options),
        strict=True,
    ):
        assert_same_history(one, other, tmp_path)
        assert_same_states(one, other)


def another_start(key, data):
    return jax.tree.map(lambda leaf: leaf + 1, job.ALGORITHM.init(key, data))


def another_server(*args):
    return jax.tree.map(jnp.negative, job.ALGORITHM.server(*args))


def other_labels():
    return federation([c._replace(y=(c.y + 1) % 4) for c in job.CLIENTS])


ANOTHER_RUN = {
    "key": ({"seed": 12}, "key="),
    "eval_every": ({"eval_every": 3}, "eval_every=2"),
    "chunk": ({"chunk_size": 1}, "chunk_size=2"),
    "devices": ({"devices": 1, "chunk_size": 4}, "num_devices=2"),
    "rate": (
        {"clock": srp.clocks.Dynamic(srp.clocks.Exponential(0.5))},
        r"clock\.",
    ),
    "work": (
        {"clock": srp.clocks.Dynamic(srp.clocks.Exponential(1.0), work=7)},
        r"clock\.",
    ),
    "policy": ({"policy": srp.participation.Uniform(3)}, "doubling"),
    "clients": ({"data": federation(job.CLIENTS[:6])}, "num_clients=7"),
    "labels": ({"data": other_labels()}, "data"),
    "number": ({"algorithm": job.Drift(0.3)}, r"method\.algorithm\.rate=0.2"),
}


@pytest.mark.short("key", "rate", "work", "labels", "number", "clients", "policy")
@pytest.mark.parametrize(("change", "word"), ANOTHER_RUN.values(), ids=ANOTHER_RUN)
def test_the_folder_of_another_run_is_refused(change, word, one_folder):
    with refused(rf"^checkpoint_dir=.*belongs to a run with.*{word}.*; (choose|give)"):
        job.run(one_folder, num_rounds=2, **change)


def test_files_of_the_data_may_move_between_calls(tmp_path):
    for place in ("here", "there"):
        data = dataclasses.replace(job.DATA, options={"data_dir": place})
        assert job.run(tmp_path, num_rounds=2, data=data).num_rounds == 2


def test_a_class_with_edited_functions_is_another_run(tmp_path):
    """Running a notebook cell again defines a class of the same name and fields."""
    job.run(tmp_path, num_rounds=2, algorithm=changed(job.ALGORITHM))
    assert (
        job.run(tmp_path, num_rounds=2, algorithm=changed(job.ALGORITHM)).num_rounds == 2
    )
    for change, word in (
        ({"init": another_start}, r"program\.start"),
        ({"server": another_server}, r"program\.rounds"),
    ):
        with pytest.raises(
            ValueError,
            match=rf"belongs to a run with {word}=.*; code of a part or of the package",
        ):
            job.run(tmp_path, num_rounds=2, algorithm=changed(job.ALGORITHM, **change))


@pytest.fixture(scope="module")
def one_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    job.run(folder, num_rounds=2)
    return folder


def test_a_refusal_leaves_the_folder_unchanged(one_folder):
    listing = lambda: {p: p.read_bytes() for p in one_folder.rglob("*") if p.is_file()}
    before = listing()
    with pytest.raises(ValueError, match="belongs to"):
        job.run(one_folder, num_rounds=2, seed=12)
    assert listing() == before
    assert job.run(one_folder, num_rounds=2).num_rounds == 2


def test_a_run_never_continues_from_a_flipped_bit(tmp_path):
    found = kept_runs.flips(5, tmp_path, random.Random(0))
    assert found["silent_differences"] == 0
    assert found["equal"] > 0  # from the snapshot beside it
