"""States of clients in a file: the run is that in memory, bit for bit, and its memory holds one cohort."""

import itertools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engine import checkpoint_job as job
from reference.small import (
    algorithm_of,
    assert_same_bits,
    clients_of,
    federation,
    numbers,
    prepared,
    refused,
    simulate,
    small,
)

import fedjax_srp as srp
from fedjax_srp import ClientOutput, participation
from fedjax_srp.driver.memory import estimate
from fedjax_srp.driver.stored import StateFile, StoredProgram

DATA = federation(clients_of((1, 9, 4, 7, 2, 5, 3), (6, 5, 3, 6, 6, 4, 6)))
CLOCK = srp.clocks.Dynamic(srp.clocks.Exponential(1.0))
NUMBERS = numbers(3.0, -1.0, 4.0, 1.5, -5.0)


def client(key, broadcast, state, value, context):
    sums, _ = state["sums"]
    half = (sums + value).astype(jnp.bfloat16)
    return ClientOutput(value, {"sums": (sums + value, half), "key": key})


def first(key, server, value):
    half = value.astype(jnp.bfloat16)
    return {"sums": (server + value, half), "key": key}


# A state of floats, half floats and keys, which begins with a number of the server.
MIXED = algorithm_of(
    client,
    init=lambda key, data: jax.random.normal(key),
    init_client=first,
    evaluations={
        "sum": lambda key, server, state, value: lambda test: server + state["sums"][0]
    },
)


def both(folder, algorithm, data=DATA, num_rounds=3, **options):
    """Run in memory and from a file; return both histories, and the rows of the file."""
    options = {"clock": CLOCK, "eval_every": 2, "chunk_size": 2} | options
    in_memory = simulate(algorithm, data, num_rounds, keep_clients=True, **options)
    stored = simulate(algorithm, data, num_rounds, states_dir=folder, **options)
    return in_memory, stored, np.load(folder / "states.npy")


@pytest.mark.short("fedrep", "mixed", "drift")
@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        (small("FedRep"), {"participation": participation.Uniform(3)}),
        (small("Ditto"), {"participation": participation.Doubling(2, 1)}),
        (small("SCAFFOLD"), {"participation": participation.Doubling(2, 1)}),
        (small("FedAMP"), {"participation": participation.Uniform(3)}),
        (small("FedBuff"), {"participation": participation.Buffered(2)}),
        (MIXED, {"participation": participation.Uniform(2), "data": NUMBERS}),
        (
            job.ALGORITHM,
            {"participation": participation.Doubling(2, 1, pool=6), "devices": 3},
        ),
    ],
    ids=["fedrep", "ditto", "scaffold", "fedamp", "fedbuff", "mixed", "drift"],
)
def test_a_run_from_a_file_is_that_in_memory(tmp_path, algorithm, options):
    in_memory, stored, rows = both(tmp_path, algorithm, **options)
    for name in ("server_state", "accuracies", "metrics", "compute_time", "rounds_taken"):
        assert_same_bits(getattr(stored, name), getattr(in_memory, name))
    assert stored.client_states is None
    took_part = stored.rounds_taken > 0
    assert took_part.any()
    leaves = jax.tree.leaves_with_path(in_memory.client_states)
    assert len(rows.dtype) == len(leaves)
    for place, leaf in leaves:
        values = leaf
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            values = jax.random.key_data(leaf)
        row = rows[jax.tree_util.keystr(place) or "state"]
        assert row[took_part].tobytes() == np.asarray(values)[took_part].tobytes()
        assert not row[~took_part].any()


def test_clients_that_never_took_part_take_no_space(tmp_path):
    state = {"head": jnp.ones((256, 1024)), "round": jnp.int32(0)}
    file = StateFile(tmp_path / "states.npy", 1000, state)
    rows = np.zeros(2, file.row)
    rows["['head']"] = np.arange(2)[:, None, None]
    file.write(np.array([3, 999]), rows)
    assert file.read(np.array([999, 5, 3]))["['head']"][:, 7, 7].tolist() == [1, 0, 0]
    assert file.is_known.nonzero()[0].tolist() == [3, 999]
    size = (tmp_path / "states.npy").stat()
    assert size.st_size > 1000 * 2**20
    assert size.st_blocks * 512 < 5 * 2**20


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is full")
def test_a_full_disk_is_an_error_with_the_folder(tmp_path):
    file = StateFile(tmp_path / "states.npy", 3, {"head": jnp.ones(4)})
    (tmp_path / "states.npy").unlink()
    (tmp_path / "states.npy").symlink_to("/dev/full")
    with pytest.raises(OSError, match=f"^.*No space .*: {str(tmp_path)!r};.*make room"):
        file.write(np.array([1]), np.zeros(1, file.row))
    assert not file.is_known.any()


def started(run):
    """Return the program of a run, its first state, and its other arguments."""
    program = StoredProgram(run)
    root, data = run.placed(jax.random.key(0))
    state, _ = program.start(root, data)
    return program, state, root, data


def test_a_round_with_other_clients_than_were_read_is_an_error(tmp_path):
    options = {"participation": participation.Uniform(2), "states_dir": tmp_path}
    run = prepared(MIXED, NUMBERS, clock=CLOCK, devices=1, **options)
    program, state, root, data = started(run)
    read = program._ids
    program._ids = lambda selected: read(selected)[1:]
    with pytest.raises(RuntimeError, match=r"states_dir.*round 1 had other clients"):
        program.segment(1, state, root, data)


def test_a_round_holds_its_cohort_and_expects_the_next_one(tmp_path):
    options = {"participation": participation.Uniform(2), "states_dir": tmp_path}
    run = prepared(MIXED, NUMBERS, clock=CLOCK, devices=1, **options)
    assert estimate(run).clients == 0
    program, state, root, data = started(run)
    read = []
    plain_read = program.file.read

    def noted(ids):
        read.append(ids.tolist())
        return plain_read(ids)

    program.file.read = noted
    cohorts = []
    for _ in range(4):
        before = np.asarray(state.rounds_taken)
        state, segment = program.segment(1, state, root, data)
        assert state.clients == ()
        cohorts.append(np.flatnonzero(state.rounds_taken - before).tolist())
        assert segment.rounds.round.shape == (1,)
    program._ahead.result()
    # of each pair of reads in a round the second one is ahead; an evaluation reads everybody
    everybody = list(range(5))
    of_rounds = sorted(ids for ids in read if ids != everybody)
    ahead = []
    known = set()
    for cohort, after in itertools.pairwise(cohorts):
        ahead.append([client for client in after if client in known])
        known |= set(cohort)
    for cohort in cohorts:
        of_rounds.remove(cohort)
    for ids in ahead:
        of_rounds.remove(ids)
    assert len(of_rounds) == 1  # ahead of the round after the last


@pytest.mark.parametrize(
    ("algorithm", "options", "words"),
    [
        (small("FedAvg"), {}, "clients keep no state"),
        (MIXED, {"keep_clients": True}, "keep_clients"),
        (MIXED, {"checkpoint_dir": "elsewhere"}, "checkpoint_dir"),
        (MIXED, {"participation": participation.AsynchronousTiers(2, tiers=2)}, "jobs"),
    ],
    ids=["stateless", "keep_clients", "checkpoint_dir", "tiers"],
)
@pytest.mark.filterwarnings("ignore:policy 'asynchronous_tiers'")
def test_what_does_not_go_with_a_file_is_refused(tmp_path, algorithm, options, words):
    data = NUMBERS if algorithm is MIXED else DATA
    if "checkpoint_dir" in options:
        options = {"checkpoint_dir": tmp_path / "checkpoint"}
    with refused(f"^states_dir.*{words}.*leave out"):
        simulate(algorithm, data, states_dir=tmp_path / "states", **options)


def test_a_folder_with_files_is_refused_and_kept(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with refused("^states_dir=.* is not empty; give a new folder"):
        simulate(MIXED, NUMBERS, states_dir=tmp_path)
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_seeds_in_one_program_are_refused(tmp_path):
    with refused("^states_dir=.*several seeds.*leave out"):
        srp.simulate_seeds(
            MIXED,
            NUMBERS,
            seeds=[0, 1],
            num_rounds=1,
            states_dir=tmp_path,
            progress=False,
        )
