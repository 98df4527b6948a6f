"""Properties of every algorithm that has a row in `algorithm_table`."""

import dataclasses
import doctest
import functools
import importlib
from pathlib import Path
from typing import Any, NamedTuple

import chex
import jax
import numpy as np
import pytest
from algorithm_table import (
    CORE,
    COUNTS,
    NUM_CLIENTS,
    SHORT,
    TABLE,
    TEST_COUNTS,
    of_core,
    with_padding,
)
from reference.small import (
    ALGORITHMS,
    NUM_CLASSES,
    Run,
    assert_close,
    assert_same_bits,
    clients_of,
    executables,
    federation,
    refusal,
    script,
    scripted,
    steps,
    traced,
)

import fedjax_srp as srp
from fedjax_srp import algorithms
from fedjax_srp.algorithms._template import Template

HUGE = 3e38  # finite, but the sum of two is not


@pytest.fixture(scope="module", params=TABLE)
def name(request):
    """Each algorithm in turn: pytest runs all tests of one before those of the next, so they share its programs."""
    return request.param


# Protocol.


SHARED_FILES = {"examples", "linear", "local", "optimizers", "training"}  # no algorithms


def test_every_public_algorithm_and_every_file_of_the_folder_has_a_row():
    files = {
        path.stem
        for path in Path(algorithms.__file__).parent.glob("*.py")
        if not path.stem.startswith("_")
    }
    of_linear_tasks = {name for name in TABLE if name.startswith("linear_")}
    assert set(TABLE) - {"template"} == set(ALGORITHMS)
    assert set(ALGORITHMS) - of_linear_tasks == files - SHARED_FILES
    assert len(ALGORITHMS) == len(algorithms.__all__)


def test_names_of_file_class_and_algorithm_agree(name):
    algorithm = TABLE[name].make()
    cls = type(algorithm)
    assert cls is ALGORITHMS.get(name, Template)
    assert cls.__name__.lower() == name.replace("_", "")
    assert algorithm.evaluations
    _, room, file = cls.__module__.split(".")
    prefix = "linear_" if room == "linear" else ""
    assert prefix + file.removeprefix("_") == algorithm.name == name


@pytest.mark.usefixtures("one_device")
@pytest.mark.short("fedavg", "template")
def test_examples_run(name):
    results = doctest.testmod(
        importlib.import_module(type(TABLE[name].make()).__module__)
    )
    assert results.attempted > 0
    assert results.failed == 0


# Bounds and choices that annotations declare are in tests/test_refusals.py.
REFUSED = [
    *(
        (name, {"weighting": "num_examples"})
        for name in ("afl", "feddyn", "mifa", "scaffold")
    ),
    *((name, {"evaluation": "own"}) for name in ("fedavg", "knn_per")),
    ("fedavg", {"epochs": 1, "steps": 3}),
    ("fedavg", {"epochs": None}),
]


@pytest.mark.parametrize(("of", "options"), REFUSED)
def test_options_that_do_not_fit_together_are_refused(of, options):
    argument, value = list(options.items())[-1]
    message = refusal(TABLE[of].make, **options)
    assert argument in message
    assert str(value) in message


# Behaviour in three rounds of 3, 8 and all 15 clients, in three stages, with unequal work.

IDS = np.array([np.random.default_rng(t).permutation(NUM_CLIENTS) for t in range(3)])
SIZES, STAGES = np.array([3, 8, 15]), np.array([0, 1, 2])
WORK = 1 + (IDS * 7 + np.arange(3)[:, None]) % 5 // 3
POLICY = scripted(IDS, SIZES, WORK, STAGES)
LAYOUTS = {
    "1device_chunk15": (1, 15),
    "2devices_chunk7": (2, 7),
    "4devices_chunk1": (4, 1),
}
BASE, *OTHERS = LAYOUTS


class Base(NamedTuple):
    """Three rounds on one device in one chunk, and what is needed to run them in another way."""

    run: Run
    start: Any  # SimulationState on the host
    states: list[Any]
    segments: list[Any]


@functools.cache
def base(name) -> Base:
    row = TABLE[name]
    run = Run(row.make(), row.data(), POLICY, chunk_size=NUM_CLIENTS, evaluations="all")
    start, states, segments = run.host_state(), [], []
    for _ in SIZES:
        segments.append(run.rounds())
        states.append(run.host_state())
    return Base(run, start, states, segments)


@functools.cache
def spread(name, layout_name) -> Run:
    """Return the same run in another layout, without evaluations, which `test_reference` runs on several devices."""
    if layout_name == OTHERS[-1] and name not in CORE:
        pytest.skip("one other layout suffices for a method made of the same parts")
    if layout_name == BASE:
        return base(name).run
    devices, chunk_size = LAYOUTS[layout_name]
    algorithm = base(name).run.program.parts.algorithm
    return Run(
        algorithm,
        TABLE[name].data(),
        POLICY,
        devices=devices,
        chunk_size=chunk_size,
        state=base(name).start,
    )


def rerun(run, name, number=3, data=None, **changed):
    """Run the first rounds again with something changed, and return the states after each."""
    run.feed(TABLE[name].data() if data is None else data).place(
        base(name).start._replace(**changed)
    )
    return steps(run, number)


@of_core
def test_states_keep_their_types_and_nothing_is_traced_twice(name):
    run, start, states, _ = base(name)
    for state in states:
        chex.assert_trees_all_equal_shapes_and_dtypes(state, start)
    for part in ("server", "clients"):
        if jax.tree.leaves(getattr(start, part)):
            with pytest.raises(AssertionError):  # training does something
                assert_close(getattr(states[-1], part), getattr(start, part), 1e-3)
    # through three stages
    assert executables(run.program) == {"start": 1, "rounds": 1}
    options = {"chunk_size": NUM_CLIENTS, "evaluations": "all", "key": jax.random.key(99)}
    with traced() as names:
        again = Run(TABLE[name].make(), TABLE[name].data(), POLICY, **options)
        steps(again, 3)
    assert not names


@pytest.mark.short(
    *(f"{name}-{OTHERS[0]}" for name in CORE),
    f"fedavg-{OTHERS[1]}",
)
@pytest.mark.parametrize("layout_name", OTHERS)
def test_chunks_and_devices_do_not_matter(name, layout_name):
    run = spread(name, layout_name).feed(TABLE[name].data()).place(base(name).start)
    for expected, segment in zip(base(name).states, base(name).segments, strict=True):
        rounds = run.rounds().rounds
        state = run.host_state()
        for field in (
            "round",
            "stage",
            "cohort_size",
            "compute_time",
            "communicated",
            "finite",
        ):
            assert_same_bits(getattr(rounds, field), getattr(segment.rounds, field))
        assert_close(rounds.metrics, segment.rounds.metrics, 1e-5)
        assert_close(state.server, expected.server, TABLE[name].rounding)
        assert_close(state.clients, expected.clients, TABLE[name].rounding)
        assert_same_bits(state.clock, expected.clock)
        assert_same_bits((state.policy, state.round), (expected.policy, expected.round))


@of_core
def test_the_order_of_the_cohort_does_not_matter(name):
    orders = [
        np.r_[np.roll(np.arange(size)[::-1], 1), np.arange(size, NUM_CLIENTS)]
        for size in SIZES
    ]
    permuted = [np.take_along_axis(a, np.array(orders), 1) for a in (IDS, WORK)]
    state = rerun(
        base(name).run, name, policy=script(permuted[0], SIZES, permuted[1], STAGES)
    )[-1]
    assert_close(state.server, base(name).states[-1].server, TABLE[name].rounding)
    assert_close(state.clients, base(name).states[-1].clients, TABLE[name].rounding)


@of_core
def test_padding_of_examples_does_not_matter(name):
    data = TABLE[name].data()
    if not isinstance(data, srp.data.FederatedData):
        pytest.skip("linear tasks have no padding")
    huge = with_padding(federation(clients_of(COUNTS, TEST_COUNTS)), HUGE, 2**31 - 1)
    chex.assert_trees_all_equal_shapes_and_dtypes(huge, data)
    run = base(name).run.feed(huge).place(base(name).start)
    for expected_state, expected in zip(
        base(name).states, base(name).segments, strict=True
    ):
        assert_same_bits(run.rounds(), expected)
        assert_same_bits(run.host_state(), expected_state)


@of_core
def test_a_client_without_examples_does_no_harm(name):
    if name.startswith("linear"):
        pytest.skip("clients of linear tasks draw samples")
    data = federation(clients_of(COUNTS, TEST_COUNTS))
    alone = int(IDS[0, 0])
    counts = data.train_counts.at[alone].set(0)
    data = with_padding(dataclasses.replace(data, train_counts=counts), HUGE, 0)
    for state in rerun(base(name).run, name, data=data):
        for leaf in jax.tree.leaves((state.server, state.clients)):
            # variances of FedPAC are infinite then
            assert not np.issubdtype(leaf.dtype, np.floating) or not np.isnan(leaf).any()


def poisoned_data(data, clients):
    """Return the data with huge training and test inputs for these clients."""
    if not isinstance(data, srp.data.FederatedData):
        return dataclasses.replace(data, heads=data.heads.at[np.array(clients)].set(HUGE))
    new = {}
    for part in ("train", "test"):
        rows = np.asarray(getattr(data, f"{part}_indices"))
        mine = np.concatenate(
            [rows[i, : int(getattr(data, f"{part}_counts")[i])] for i in clients]
        )
        new[f"x_{part}"] = getattr(data, f"x_{part}").at[mine].set(HUGE)
        new[f"y_{part}"] = getattr(data, f"y_{part}").at[mine].set(NUM_CLASSES - 1)
    return dataclasses.replace(data, **new)


def poisoned_rows(leaf, clients):
    """Fill the rows of these clients with -0.0 and a nan with a payload in turn; other types with their maximum."""
    leaf = leaf.copy()
    flat = leaf[clients].reshape(-1)
    if leaf.dtype == np.float32:
        flat.view(np.uint32)[:] = np.resize(
            np.array([0x80000000, 0x7FC12345], np.uint32), flat.shape
        )
    else:
        flat[:] = True if leaf.dtype == np.bool_ else np.iinfo(leaf.dtype).max
    leaf[clients] = flat.reshape(leaf[clients].shape)
    return leaf


@pytest.mark.short(
    *(f"{name}-{BASE}" for name in SHORT),
    f"fedavg-{OTHERS[1]}",
    f"linear_fedrep-{OTHERS[1]}",
)
@pytest.mark.parametrize("layout_name", LAYOUTS)
def test_clients_that_take_no_part_are_neither_read_nor_written(name, layout_name):
    run, start = spread(name, layout_name), base(name).start
    present, absent = IDS[0, : SIZES[0]], IDS[0, SIZES[0] :]
    clean = rerun(run, name, number=1)[0]
    clients = jax.tree.map(lambda leaf: poisoned_rows(leaf, absent), start.clients)
    state = rerun(
        run,
        name,
        number=1,
        data=poisoned_data(TABLE[name].data(), absent),
        clients=clients,
    )[0]
    assert_same_bits(state.server, clean.server)
    rows = lambda tree, ids: jax.tree.map(lambda leaf: leaf[ids], tree)
    assert_same_bits(rows(state.clients, present), rows(clean.clients, present))
    assert_same_bits(rows(state.clients, absent), rows(clients, absent))
    assert_same_bits(rows(clean.clients, absent), rows(start.clients, absent))
