"""Properties that every algorithm inherits from its row in the table below."""

import dataclasses
import doctest
import functools
import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.small import (
    ALGORITHMS,
    KEY,
    NUM_CLASSES,
    NUM_FEATURES,
    Run,
    assert_close,
    assert_same_bits,
    built,
    clients_of,
    federation,
    model,
    script,
    scripted,
    steps,
)

import fedjax_srp as srp
from fedjax_srp import algorithms
from fedjax_srp.base import FederatedAlgorithm, Phase, RoundContext
from fedjax_srp.data import FederatedData
from fedjax_srp.options import argument_help

COUNTS, TEST_COUNTS = (1, 3, 7, 5, 8, 2, 6, 4, 1, 2, 3, 8, 5, 7, 2), (4, 5, 1, 6, 3, 5, 3, 2, 2, 4, 1, 3, 6, 5, 4)
NUM_CLIENTS = len(COUNTS)
HUGE = 3e38  # finite, but the sum of two is not


# The table: a small instance of every algorithm, data it runs on, and arguments that it refuses.


class Row(NamedTuple):
    make: Callable[..., FederatedAlgorithm]  # options override what makes it small
    data: Callable[[], Any]
    refuses: tuple[dict[str, Any], ...]  # options; the message names the last one with its value
    rounding: float = 1e-5  # by which an order of sums may change states


def with_padding(data: FederatedData, value: float, label: int) -> FederatedData:
    """Padding refers to an example of its own, full of `value` and with this label."""

    def spare(x, y, indices, counts):
        x = jnp.concatenate([x, jnp.full((1, *x.shape[1:]), value, x.dtype)])
        y = jnp.concatenate([y, jnp.full(1, label, y.dtype)])
        is_padding = np.arange(indices.shape[1])[None] >= np.asarray(counts)[:, None]
        return x, y, jnp.where(is_padding, jnp.int32(len(x) - 1), indices)

    x_train, y_train, train_indices = spare(data.x_train, data.y_train, data.train_indices, data.train_counts)
    x_test, y_test, test_indices = spare(data.x_test, data.y_test, data.test_indices, data.test_counts)
    new = {"x_train": x_train, "y_train": y_train, "train_indices": train_indices}
    new |= {"x_test": x_test, "y_test": y_test, "test_indices": test_indices}
    return dataclasses.replace(data, **new)


@functools.cache
def classification() -> FederatedData:
    return with_padding(federation(clients_of(COUNTS, TEST_COUNTS)), 0.0, 0)


@functools.cache
def linear_task():
    return srp.data.linear_task(jax.random.key(3), NUM_CLIENTS, dim=6, rank=2, noise_std=0.1)


def small(algorithm, cut="out", **small_options):
    """A class of algorithms on examples, with tiny models and all features of SGD; options by their short names."""

    def make(**options):
        given = {"optimizer": srp.SGD(0.2, 0.5, 0.01), "batch_size": 3, "fine_tune_epochs": 2}
        return built(algorithm, model(cut), **given | small_options | options)

    return make


def small_linear(algorithm, **small_options):
    """A class of algorithms on linear tasks."""
    return lambda **options: algorithm(linear_task(), **{"step_size": 0.2} | small_options | options)


def with_batch_norm(**options):
    """FedBN on a tiny model that has something to keep."""
    dense = [nn.Dense(5, use_bias=False), nn.Dense(NUM_CLASSES)]  # a bias below BatchNorm does nothing
    layers = [srp.models.Layer(f"fc{i}", module) for i, module in enumerate(dense)]
    # two equal examples in a batch, or one, are divided by the root of epsilon: rounding is not to grow by 300
    layers.insert(1, srp.models.Layer("norm", nn.BatchNorm(momentum=0.8, epsilon=0.1), jax.nn.relu))
    split_model = srp.models.Split((NUM_FEATURES,), NUM_CLASSES, layers, name="normalised", cut="fc1")
    given = {"optimizer": srp.SGD(0.2, 0.5, 0.01), "batch_size": 3, "fine_tune_epochs": 2}
    return built(algorithms.FedBN, split_model, **given | options)


REFUSED_BY_ALL_ON_EXAMPLES = (
    {"batch_size": 0},
    {"batch_size": 2.5},
    {"fine_tune_epochs": -1},
    {"weighting": "size"},
)
REFUSED_BY_STEPS = (
    {"steps": None, "epochs": -2},
    {"steps": None, "epochs": 1.5},
    {"epochs": None, "steps": -2},
    {"epochs": 1, "steps": 3},
    {"steps": None, "epochs": None},
)
REFUSED_BY_LOCAL_SGD = (*REFUSED_BY_ALL_ON_EXAMPLES, *REFUSED_BY_STEPS)
REFUSED_WITHOUT_WEIGHTS = (*REFUSED_BY_LOCAL_SGD, {"weighting": "num_examples"})
TABLE = {
    "apfl": Row(
        small(algorithms.APFL, own_share=0.4, adaptive=True),
        classification,
        (*REFUSED_BY_LOCAL_SGD, {"own_share": -0.1}, {"own_share": 1.1}),
    ),
    "ditto": Row(
        small(algorithms.Ditto, penalty=0.3, weighting="num_examples"),
        classification,
        (*REFUSED_BY_LOCAL_SGD, {"penalty": -0.1}),
    ),
    "fed_mtl": Row(
        small(algorithms.FedMTL, relation_strength=0.3, norm_strength=0.1),
        classification,
        (*REFUSED_WITHOUT_WEIGHTS, {"relation_strength": -0.1}, {"norm_strength": -0.1}),
    ),
    "fedala": Row(
        small(algorithms.FedALA, start_epochs=2, weighting="num_examples"),
        classification,
        (*REFUSED_BY_LOCAL_SGD, {"weight_step_size": -0.1}, {"weight_share": 1.5}, {"start_epochs": 0}),
    ),
    "feddyn": Row(
        small(algorithms.FedDyn, penalty=0.3),
        classification,
        (*REFUSED_WITHOUT_WEIGHTS, {"penalty": 0.0}, {"penalty": -0.1}),
    ),
    "fedamp": Row(
        small(algorithms.FedAMP, attention_step_size=0.5, attention_width=4.0),
        classification,
        (*REFUSED_BY_LOCAL_SGD, {"penalty": -0.1}, {"attention_step_size": 0.0}, {"attention_width": 0.0}),
    ),
    "fedpac": Row(
        small(algorithms.FedPAC, penalty=0.5, weighting="num_examples"),
        classification,
        (*REFUSED_BY_LOCAL_SGD, {"penalty": -0.1}, {"head_epochs": 0}),
        rounding=1e-3,  # weights of mixtures go through a quadratic programme
    ),
    "fedas": Row(
        small(algorithms.FedAS, alignment_step_size=0.1),
        classification,
        (*REFUSED_BY_LOCAL_SGD, {"alignment_step_size": 0.0}),
    ),
    "fedat": Row(
        small(algorithms.FedAT, num_tiers=3, weighting="num_examples"),
        classification,
        (*REFUSED_BY_LOCAL_SGD, {"mu": -0.1}, {"num_tiers": 0}),
    ),
    "fedasync": Row(
        small(algorithms.FedAsync, discount="hinge", hinge_start=0.0, mu=0.3, weighting="num_examples"),
        classification,
        (
            *REFUSED_BY_LOCAL_SGD,
            {"server_step_size": 0.0},
            {"server_step_size": 1.5},
            {"discount": "linear"},
            {"hinge_slope": -1.0},
            {"hinge_start": -1.0},
            {"mu": -0.1},
        ),
    ),
    "fedavg": Row(small(algorithms.FedAvg), classification, (*REFUSED_BY_LOCAL_SGD, {"evaluation": "own_head"})),
    "fedbabu": Row(small(algorithms.FedBABU, weighting="num_examples"), classification, REFUSED_BY_LOCAL_SGD),
    "fedbn": Row(with_batch_norm, classification, (*REFUSED_BY_LOCAL_SGD, {"own": "all"})),
    "fedbuff": Row(
        small(algorithms.FedBuff, server_step_size=0.7, weighting="num_examples"),
        classification,
        (*REFUSED_BY_LOCAL_SGD, {"server_step_size": 0.0}, {"server_step_size": -0.5}, {"staleness_exponent": -0.5}),
    ),
    "fedgate": Row(
        small(algorithms.FedGATE, server_step_size=0.7, weighting="num_examples"),
        classification,
        (*REFUSED_BY_LOCAL_SGD, {"server_step_size": 0.0}, {"evaluation": "own"}),
    ),
    "fednova": Row(
        small(algorithms.FedNova, weighting="num_examples"),
        classification,
        (*REFUSED_BY_LOCAL_SGD, {"evaluation": "own"}),
    ),
    "fedopt": Row(
        small(algorithms.FedOpt, rule="yogi", weighting="num_examples"),
        classification,
        (*REFUSED_BY_LOCAL_SGD, {"rule": "sgd"}, {"server_step_size": 0.0}, {"beta1": 1.0}, {"beta2": -0.1}),
    ),
    "fedper": Row(small(algorithms.FedPer, weighting="num_examples"), classification, REFUSED_BY_LOCAL_SGD),
    "fedproto": Row(
        small(algorithms.FedProto, penalty=0.5, weighting="num_examples"),
        classification,
        (*REFUSED_BY_LOCAL_SGD, {"penalty": -0.1}),
    ),
    "fedprox": Row(
        small(algorithms.FedProx, mu=0.3), classification, (*REFUSED_BY_LOCAL_SGD, {"mu": -0.1}, {"evaluation": "own"})
    ),
    "fedrod": Row(small(algorithms.FedRoD, weighting="num_examples"), classification, REFUSED_BY_LOCAL_SGD),
    "fedrolex": Row(
        small(algorithms.FedRolex, rates=(0.4, 1.0), weighting="num_examples"),
        classification,
        (*REFUSED_BY_LOCAL_SGD, {"rates": ()}),
    ),
    "fedsgd": Row(small(algorithms.FedSGD), classification, (*REFUSED_BY_ALL_ON_EXAMPLES, {"evaluation": "own"})),
    "fedrep": Row(
        small(algorithms.FedRep, head_epochs=2, epochs=2, weighting="num_examples"),
        classification,
        (
            *REFUSED_BY_ALL_ON_EXAMPLES,
            {"head_epochs": -1},
            {"representation_epochs": -1},
            {"epochs": 0},
            {"epochs": 1.5},
        ),
    ),
    "hf_maml": Row(
        small(algorithms.HFMAML, support_fraction=0.7),
        classification,
        (
            *REFUSED_BY_LOCAL_SGD,
            {"inner_steps": 0},
            {"support_fraction": 1.0},
            {"inner_step_size": -0.1},
            {"difference": 0.0},
        ),
    ),
    "fjord": Row(small(algorithms.FjORD, rates=(0.4, 1.0)), classification, (*REFUSED_BY_LOCAL_SGD, {"rates": ()})),
    "heterofl": Row(
        small(algorithms.HeteroFL, rates=(0.4, 1.0)), classification, (*REFUSED_BY_LOCAL_SGD, {"rates": ()})
    ),
    "knn_per": Row(
        small(algorithms.KNNPer, num_neighbours=3),
        classification,
        (*REFUSED_BY_LOCAL_SGD, {"num_neighbours": 0}, {"own_share": 1.5}, {"evaluation": "own"}),
    ),
    "l2gd": Row(
        small(algorithms.L2GD, aggregation_step_size=0.4, aggregation_probability=0.5),
        classification,
        (*REFUSED_BY_LOCAL_SGD, {"aggregation_step_size": 1.5}, {"aggregation_probability": -0.1}),
    ),
    "lg_fedavg": Row(small(algorithms.LGFedAvg, cut="fc2", epochs=None, steps=3), classification, REFUSED_BY_LOCAL_SGD),
    "local_only": Row(small(algorithms.LocalOnly), classification, REFUSED_BY_LOCAL_SGD),
    "moon": Row(
        small(algorithms.MOON, mu=0.5), classification, (*REFUSED_BY_LOCAL_SGD, {"mu": -0.1}, {"temperature": 0.0})
    ),
    "per_fedavg": Row(
        small(algorithms.PerFedAvg, inner_step_size=0.1, difference=0.05),
        classification,
        (*REFUSED_BY_LOCAL_SGD, {"support_fraction": 1.0}, {"inner_step_size": -0.1}, {"difference": 0.0}),
    ),
    "pfedme": Row(
        small(algorithms.PFedMe, penalty=2.0, inner_step_size=0.1, weighting="num_examples"),
        classification,
        (
            *REFUSED_BY_LOCAL_SGD,
            {"penalty": -0.1},
            {"inner_steps": 0},
            {"inner_step_size": 0.0},
            {"server_step_size": 0.0},
        ),
    ),
    "scaffold": Row(
        small(algorithms.SCAFFOLD, server_step_size=0.7),
        classification,
        (*REFUSED_WITHOUT_WEIGHTS, {"server_step_size": 0.0}, {"evaluation": "own"}),
    ),
    "linear_fedavg": Row(
        small_linear(algorithms.LinearFedAvg, fine_tune_steps=3),
        linear_task,
        ({"local_steps": 0}, {"fine_tune_samples": 0}, {"fine_tune_steps": 1.5}),
    ),
    "linear_fedrep": Row(
        small_linear(algorithms.LinearFedRep, samples_per_round=8, head=2, start="random"),
        linear_task,
        (
            {"samples_per_round": 0},
            {"evaluation_samples": 0},
            {"head": "best"},
            {"head": -1},
            {"sampling": "some"},
            {"start": "zero"},
        ),
    ),
}


# what make test runs all tests of
CORE = ("fedavg", "fedrep", "fedbuff", "linear_fedrep")
of_core = pytest.mark.short(*(f"{name}*" for name in CORE))


@pytest.fixture(scope="module", params=TABLE)
def name(request):
    """Every algorithm in turn: pytest runs all tests of one before those of the next, so they share its programs."""
    return request.param


# Protocol.


SHARED_FILES = {"examples", "linear", "local", "optimizers", "training"}  # what several algorithms are made of


def test_every_public_algorithm_and_every_file_of_the_folder_has_a_row():
    files = {path.stem for path in Path(algorithms.__file__).parent.glob("*.py") if not path.stem.startswith("_")}
    assert set(TABLE) == set(ALGORITHMS) == files - SHARED_FILES
    assert len(ALGORITHMS) == len(algorithms.__all__)


def test_names_of_file_class_and_algorithm_agree(name):
    cls = ALGORITHMS[name]
    assert cls.__name__.lower() == name.replace("_", "")
    assert cls.__module__.rpartition(".")[2] == name
    assert type(TABLE[name].make()) is cls
    assert TABLE[name].make().name == name


def test_built_again_it_is_equal_and_its_floats_are_its_leaves(name):
    one, other = TABLE[name].make(), TABLE[name].make()
    assert one == other
    assert hash(one) == hash(other)
    assert jax.tree.structure(one) == jax.tree.structure(other)
    leaves = jax.tree.leaves(one)
    assert leaves
    assert all(isinstance(leaf, float) for leaf in leaves)
    assert jax.tree.unflatten(jax.tree.structure(one), leaves) == one


def parts_of(algorithm):
    """Every method of an algorithm with the names its parameters must have where they have a fixed one."""
    client, server = ("key", None, None, None, "context"), ("key", None, None, "context")
    yield algorithm.init, ("key", "data")
    yield algorithm.init_client, ("key", None, None)
    yield algorithm.metrics, (None, "data")
    for phase in (algorithm.round, algorithm.finish, algorithm.prepare):
        if phase is not None:
            assert isinstance(phase, Phase)
            yield from ((phase.broadcast, (None, "context")), (phase.client, client), (phase.server, server))
            if phase.mix is not None:
                yield from ((phase.mix, (None, None, None, "context")), (phase.shown, (None,)))
    if algorithm.gradient is not None:
        yield algorithm.gradient, client
    if algorithm.communicates is not None:
        yield algorithm.communicates, (None, "context")
    for personalize in algorithm.evaluations.values():
        yield personalize, ("key", None, None, None)


def test_protocol(name):
    algorithm = TABLE[name].make()
    assert isinstance(algorithm, FederatedAlgorithm)
    assert algorithm.evaluations
    for function, expected in parts_of(algorithm):
        names = list(inspect.signature(function).parameters)
        assert len(names) == len(expected), function
        for parameter, fixed_name in zip(names, expected, strict=True):
            assert fixed_name in (None, parameter), f"{function}: {parameter} should be called {fixed_name}"
        for captured in inspect.getclosurevars(inspect.unwrap(function)).nonlocals.values():
            arrays = [leaf for leaf in jax.tree.leaves(captured) if isinstance(leaf, jax.Array | np.ndarray)]
            assert not arrays, f"{function} closes over an array: it would become a constant of the program"


def check_documentation(cls):
    """Every field, in the class or the base that it is of, and the sections are there."""
    doc, said = inspect.getdoc(cls), argument_help(cls)
    for parameter in inspect.signature(cls).parameters:
        assert said.get(parameter), parameter
    for section in ("Args:", "Example:"):
        assert f"\n{section}\n" in doc, section


def check_examples(cls):
    """The examples of its file run."""
    results = doctest.testmod(importlib.import_module(cls.__module__))
    assert results.attempted > 0
    assert results.failed == 0


def test_documentation_names_every_field(name):
    check_documentation(ALGORITHMS[name])


@pytest.mark.short("fedavg", "linear_fedrep")
def test_examples_run(name):
    check_examples(ALGORITHMS[name])


@pytest.mark.parametrize(
    ("make", "options"),
    [pytest.param(row.make, bad, id=f"{name}-{bad}") for name, row in TABLE.items() for bad in row.refuses],
)
def test_refusals_name_argument_and_value(make, options):
    with pytest.raises(ValueError, match=r"\w") as caught:
        make(**options)
    argument, value = list(options.items())[-1]
    assert argument in str(caught.value)
    assert str(value) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.short("fedavg", "fedrep")
@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if row.data is classification])
def test_fine_tuning_may_have_an_optimizer_of_its_own(name):
    slow, fast = (0.05, 0.1), (0.2, 0.5)  # step size, momentum
    data = classification()
    examples, context = data.train_client(jnp.int32(2)), RoundContext(*[jnp.int32(1)] * 3, NUM_CLIENTS, jnp.int32(1))

    @jax.jit
    def trained_and_judged(training, tuning):
        optimizer, tuner = srp.SGD(*training), srp.SGD(*tuning)
        algorithm = TABLE[name].make(optimizer=optimizer, fine_tune_optimizer=tuner)
        server = algorithm.init(KEY, data)
        state = algorithm.init_client(KEY, server, examples)
        broadcast = algorithm.round.download(server, state, context)
        output = algorithm.round.client(KEY, broadcast, state, examples, context)
        trained = algorithm.round.server(KEY, server, output.message, context), output.message, output.state
        return trained, algorithm.evaluations["fine_tune"](KEY, server, state, examples)(examples.x)

    options = {"slow": (slow, slow), "fast": (fast, fast), "both": (slow, fast)}
    runs = {key: trained_and_judged(*both) for key, both in options.items()}
    assert_close(runs["both"][0], runs["slow"][0], 1e-6)
    assert_close(runs["both"][1], runs["fast"][1], 1e-6)
    for part, other in ((0, "fast"), (1, "slow")):
        with pytest.raises(AssertionError):
            assert_close(runs["both"][part], runs[other][part], 1e-2)


# Behaviour, on three rounds of 3, 8 and all 15 clients, in three stages, with unequal work.

IDS = np.array([np.random.default_rng(t).permutation(NUM_CLIENTS) for t in range(3)])
SIZES, STAGES = np.array([3, 8, 15]), np.array([0, 1, 2])
WORK = 1 + (IDS * 7 + np.arange(3)[:, None]) % 5 // 3
POLICY = scripted(IDS, SIZES, WORK, STAGES)
LAYOUTS = {"1device_chunk15": (1, 15), "2devices_chunk7": (2, 7), "4devices_chunk1": (4, 1)}
BASE, *OTHERS = LAYOUTS


class Base(NamedTuple):
    """Three rounds on one device and in one chunk, and all that is needed to run them differently."""

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
    """The same on other devices, in other chunks; without evaluations, which `test_reference` has on devices too."""
    if layout_name == OTHERS[-1] and name not in CORE:
        pytest.skip("one layout beside the first will do for a method made of the same parts")
    if layout_name == BASE:
        return base(name).run
    devices, chunk_size = LAYOUTS[layout_name]
    algorithm = base(name).run.program.parts.algorithm
    return Run(algorithm, TABLE[name].data(), POLICY, devices=devices, chunk_size=chunk_size, state=base(name).start)


def rerun(run, name, number=3, data=None, **changed):
    """The first rounds again with something changed; the states after each."""
    run.feed(TABLE[name].data() if data is None else data).place(base(name).start._replace(**changed))
    return steps(run, number)


@of_core
def test_states_keep_their_types_and_nothing_is_traced_twice(name):
    run, start, states, segments = base(name)
    for state in states:
        chex.assert_trees_all_equal_shapes_and_dtypes(state, start)
    assert [int(s.rounds.cohort_size[0]) for s in segments] == SIZES.tolist()
    assert [int(s.rounds.stage[0]) for s in segments] == STAGES.tolist()
    traces = run.program.num_traces
    assert traces == 2  # the start and a segment, through three stages
    options = {"chunk_size": NUM_CLIENTS, "evaluations": "all", "key": jax.random.key(99)}
    again = Run(TABLE[name].make(), TABLE[name].data(), POLICY, **options)
    assert again.program.shared is run.program.shared
    after_another_key = steps(again, 3)[-1]
    assert run.program.num_traces == traces
    with pytest.raises(AssertionError):  # the key does matter
        assert_close(after_another_key.server, states[-1].server, 1e-3)


@of_core
def test_training_does_something_to_server_and_clients(name):
    _, start, states, _ = base(name)
    for part in ("server", "clients"):
        if jax.tree.leaves(getattr(start, part)):
            with pytest.raises(AssertionError):
                assert_close(getattr(states[-1], part), getattr(start, part), 1e-3)


@of_core
def test_the_same_run_has_the_same_bits(name):
    assert_same_bits(rerun(base(name).run, name)[-1], base(name).states[-1])


@pytest.mark.short(*(f"{name}-{OTHERS[0]}" for name in CORE), f"fedavg-{OTHERS[1]}", f"linear_fedrep-{OTHERS[1]}")
@pytest.mark.parametrize("layout_name", OTHERS)
def test_chunks_and_devices_do_not_matter(name, layout_name):
    run = spread(name, layout_name).feed(TABLE[name].data()).place(base(name).start)
    for expected, segment in zip(base(name).states, base(name).segments, strict=True):
        rounds = run.rounds().rounds
        state = run.host_state()
        for field in ("round", "stage", "cohort_size", "compute_time", "communicated", "finite"):
            assert_same_bits(getattr(rounds, field), getattr(segment.rounds, field))
        assert_close(rounds.metrics, segment.rounds.metrics, 1e-5)
        assert_close(state.server, expected.server, TABLE[name].rounding)
        assert_close(state.clients, expected.clients, TABLE[name].rounding)
        assert_same_bits(state.clock, expected.clock)
        assert_same_bits((state.policy, state.round), (expected.policy, expected.round))


@of_core
def test_the_order_of_the_cohort_does_not_matter(name):
    orders = [np.r_[np.roll(np.arange(size)[::-1], 1), np.arange(size, NUM_CLIENTS)] for size in SIZES]
    permuted = [np.take_along_axis(a, np.array(orders), 1) for a in (IDS, WORK)]
    state = rerun(base(name).run, name, policy=script(permuted[0], SIZES, permuted[1], STAGES))[-1]
    assert_close(state.server, base(name).states[-1].server, TABLE[name].rounding)
    assert_close(state.clients, base(name).states[-1].clients, TABLE[name].rounding)


@of_core
def test_padding_of_examples_does_not_matter(name):
    data = TABLE[name].data()
    if not isinstance(data, FederatedData):
        pytest.skip("these data have no padding")
    huge = with_padding(federation(clients_of(COUNTS, TEST_COUNTS)), HUGE, 2**31 - 1)
    chex.assert_trees_all_equal_shapes_and_dtypes(huge, data)
    run = base(name).run.feed(huge).place(base(name).start)
    for expected_state, expected in zip(base(name).states, base(name).segments, strict=True):
        assert_same_bits(run.rounds(), expected)
        assert_same_bits(run.host_state(), expected_state)


def poisoned_data(data, clients):
    """The data of these clients are huge, for training and for testing."""
    if not isinstance(data, FederatedData):
        return dataclasses.replace(data, heads=data.heads.at[np.array(clients)].set(HUGE))
    new = {}
    for part in ("train", "test"):
        rows = np.asarray(getattr(data, f"{part}_indices"))
        mine = np.concatenate([rows[i, : int(getattr(data, f"{part}_counts")[i])] for i in clients])
        new[f"x_{part}"] = getattr(data, f"x_{part}").at[mine].set(HUGE)
        new[f"y_{part}"] = getattr(data, f"y_{part}").at[mine].set(NUM_CLASSES - 1)
    return dataclasses.replace(data, **new)


def poisoned_rows(leaf, clients):
    """The rows of these clients hold -0.0 and a nan with a payload in turn; other types hold their largest number."""
    leaf = leaf.copy()
    flat = leaf[clients].reshape(-1)
    if leaf.dtype == np.float32:
        flat.view(np.uint32)[:] = np.resize(np.array([0x80000000, 0x7FC12345], np.uint32), flat.shape)
    else:
        flat[:] = True if leaf.dtype == np.bool_ else np.iinfo(leaf.dtype).max
    leaf[clients] = flat.reshape(leaf[clients].shape)
    return leaf


@pytest.mark.short(*(f"{name}-{BASE}" for name in CORE), f"fedavg-{OTHERS[1]}", f"linear_fedrep-{OTHERS[1]}")
@pytest.mark.parametrize("layout_name", LAYOUTS)
def test_clients_that_take_no_part_are_neither_read_nor_written(name, layout_name):
    run, start = spread(name, layout_name), base(name).start
    present, absent = IDS[0, : SIZES[0]], IDS[0, SIZES[0] :]
    clean = rerun(run, name, number=1)[0]
    clients = jax.tree.map(lambda leaf: poisoned_rows(leaf, absent), start.clients)
    state = rerun(run, name, number=1, data=poisoned_data(TABLE[name].data(), absent), clients=clients)[0]
    assert_same_bits(state.server, clean.server)
    rows = lambda tree, ids: jax.tree.map(lambda leaf: leaf[ids], tree)  # noqa: E731
    assert_same_bits(rows(state.clients, present), rows(clean.clients, present))
    assert_same_bits(rows(state.clients, absent), rows(clients, absent))
    assert_same_bits(rows(clean.clients, absent), rows(start.clients, absent))
