"""Of the driver: estimates of memory, keys of programs, compiler options, checksums of data, the list of settings."""

import dataclasses
import gc
import inspect
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import optax
import pytest
from reference.small import (
    CLOCK,
    KEY,
    algorithm_of,
    assert_same_bits,
    clients_of,
    federation,
    model,
    numbers,
    prepared,
    refused,
)
from test_shared_programs import counting, get, simulate
from test_simulate import simulate as simulate_doubling
from test_values_of_seeds import Carrying

import fedjax_srp as srp
from fedjax_srp import ClientOutput
from fedjax_srp.algorithms import local
from fedjax_srp.contract.messages import num_bytes
from fedjax_srp.driver import memory, record
from fedjax_srp.driver import programs as program
from fedjax_srp.driver.record import data_checksum
from fedjax_srp.driver.settings import Settings
from fedjax_srp.lab.runs.options import SIMULATION
from fedjax_srp.parts.options import argument_help
from fedjax_srp.parts.part import rebuilt, values_of, with_values
from fedjax_srp.results import sealed_folders
from fedjax_srp.rounds.sharding import lay_out
from fedjax_srp.xla.loops import reversible

FACTOR = 2.0  # most ratio between estimate and measurement, either way
ROWS = 64
RNG = np.random.default_rng(0)
X, Y = (
    RNG.integers(0, 256, (8 * ROWS, 28, 28), dtype=np.uint8),
    RNG.integers(0, 10, 8 * ROWS),
)
DEALT = np.split(np.arange(8 * ROWS), 8)
IMAGES = srp.data.from_arrays(
    X, Y, 255 - X[:8], Y[:8], train_indices=DEALT, test_indices=np.arange(8)[:, None]
)
MLP = srp.models.MLP((28, 28), 10, (128, 64))
ALGORITHMS = {
    "fedavg": srp.algorithms.FedAvg(MLP),
    "fedrep": srp.algorithms.FedRep(
        MLP, srp.Training(srp.SGD(0.1, momentum=0.5)), head_epochs=2
    ),
    "local_only": srp.algorithms.LocalOnly(
        srp.models.MLP((28, 28), 10, (64,))
    ),  # states that move together
}


def run_of(
    algorithm,
    data,
    devices=2,
    chunk_size=2,
    shard_data=False,
    num_seeds=None,
    evaluations=(),
):
    return prepared(
        algorithm,
        data,
        clock=CLOCK,
        evaluations=evaluations,
        num_seeds=num_seeds,
        devices=devices,
        chunk_size=chunk_size,
        shard_data=shard_data,
    )


@pytest.mark.short("fedrep-2-3-False")
@pytest.mark.parametrize(
    ("name", "chunk_size", "num_seeds", "shard_data"),
    [
        ("fedavg", 1, None, False),
        ("fedavg", 4, None, True),
        ("fedrep", 2, None, False),
        ("fedrep", 2, 3, False),
        ("local_only", 1, None, False),
    ],
)
def test_the_estimate_is_close_to_the_compilers_numbers(
    name, chunk_size, num_seeds, shard_data
):
    run = run_of(ALGORITHMS[name], IMAGES, 2, chunk_size, shard_data, num_seeds)
    needed, compiled = memory.estimate(run), run.program()
    root, data = run.placed(
        KEY if num_seeds is None else jax.random.split(KEY, num_seeds)
    )
    state = compiled.start(root, data).state
    on_a_device = sum(
        leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(data)
    )
    assert on_a_device / FACTOR <= needed.data <= on_a_device * FACTOR
    assert needed.server == num_bytes(state.server)
    assert needed.clients == num_bytes(state.clients) // 2
    compiled.segment(1, state, root, data)
    (segment,) = [
        done for each, done in compiled.compiled.items() if each.name == "rounds"
    ]
    temporary = segment.memory_analysis().temp_size_in_bytes
    assert temporary / FACTOR <= needed.working <= temporary * FACTOR
    assert needed.certain < needed.total


@pytest.mark.short("momentum", "evaluation")
@jax.numpy_dtype_promotion("standard")  # of optax.adam
@pytest.mark.parametrize("case", ["plain", "momentum", "adam", "evaluation"])
def test_the_estimate_for_an_accelerator_includes_optimizers_and_evaluations(
    case, monkeypatch
):
    """An accelerator trains a chunk as a batch, here compiled for a CPU in the same way.

    In the case of an evaluation, clients are trained one at a time and evaluated together, after fine-tuning.
    """
    monkeypatch.setattr(local, "SEQUENTIAL_BYTES", float("inf"))
    optimizers = {"plain": srp.SGD(0.1), "adam": optax.adam(0.1)}
    algorithm = srp.algorithms.FedAvg(
        MLP, srp.Training(optimizers.get(case, srp.SGD(0.1, 0.5)))
    )
    judged = case == "evaluation"
    evaluations, chunk = (("fine_tune_all",), 1) if judged else ((), 8)
    run = run_of(algorithm, IMAGES, devices=1, chunk_size=chunk, evaluations=evaluations)
    run = run._replace(layout=run.layout._replace(evaluation_chunk=8)) if judged else run
    on_a_gpu = run._replace(
        layout=run.layout._replace(devices=(SimpleNamespace(platform="gpu"),))
    )
    root, data = run.placed(KEY)
    program = run.program()
    working = program.working_bytes(program.start(root, data).state, root, data)
    assert working / FACTOR <= memory.estimate(on_a_gpu).working <= working * FACTOR


CLIENTS = jax.tree.map(np.asarray, federation(clients_of((4, 5, 6, 7), (3, 3, 3, 3))))
SMALL = srp.algorithms.FedAvg(model())
FEW = numbers(*range(8))
DRIFT = algorithm_of(
    lambda key, w, state, value, context: ClientOutput(
        w + 0.1 * value * jax.random.normal(key)
    ),
    metrics=lambda server, data: {"w": server},
)


@pytest.fixture
def free(monkeypatch):
    """Return a function that sets the apparently free memory, in bytes."""
    return lambda size: monkeypatch.setattr(memory, "_free", lambda device: size)


@pytest.mark.parametrize("largest", memory.REMEDIES)
def test_runs_that_do_not_fit_are_refused_with_a_remedy(monkeypatch, free, largest):
    size = memory.Memory(1, 1, 1, 1, 4)._replace(**{largest: 14})
    monkeypatch.setattr(
        memory,
        "estimate",
        lambda *_: memory.Memory(*(part * memory.GIB for part in size)),
    )
    free(2 * size.certain * memory.GIB - 1)  # two devices of a CPU share the memory
    with refused(
        rf"the simulation needs .* GiB \({largest} 14.00, .* GiB are free; use {memory.REMEDIES[largest]}$"
    ):
        memory.check(run_of(SMALL, CLIENTS), say=False)
    free(2 * size.certain * memory.GIB)
    memory.check(run_of(SMALL, CLIENTS), say=False)


def test_simulate_checks_the_memory(free):
    free(1)
    with pytest.raises(ValueError, match="the simulation needs"):
        srp.simulate(DRIFT, FEW, num_rounds=1, key=KEY)
    with pytest.raises(
        ValueError, match="the simulation needs"
    ):  # not even one seed fits
        srp.simulate_seeds(DRIFT, FEW, num_rounds=1, keys=jax.random.split(KEY, 3))


def test_a_compiled_run_that_does_not_fit_is_refused_before_it_runs(free, monkeypatch):
    """The estimate leaves out a model's intermediate values; the compiler counts them."""
    monkeypatch.setattr(memory, "check", lambda *args, **options: None)
    free(1)
    with refused(r"chunk_size=4: clients at work .* need .* use a smaller chunk_size"):
        srp.simulate(SMALL, CLIENTS, num_rounds=1, key=KEY, progress=False, devices=1)


def room_for_seeds(monkeypatch):
    """Make a seed need one byte, besides data that are on the device already."""
    there = num_bytes(FEW)
    monkeypatch.setattr(
        memory, "estimate", lambda run: memory.Memory(there, run.num_seeds or 1, 0, 0, 0)
    )
    monkeypatch.setattr(memory, "check_working", lambda *args: None)


@pytest.mark.short("4-3-2")
@pytest.mark.parametrize(
    ("num_seeds", "fitting", "at_once"), [(4, 3, 2), (5, 4, 3), (5, 1, 1)]
)
def test_seeds_run_in_batches_that_fit(
    monkeypatch, free, capsys, tmp_path, num_seeds, fitting, at_once
):
    """With room for `fitting` seeds, batches are as equal as possible and histories are the same."""
    keys = jax.random.split(KEY, num_seeds)
    options = {"num_rounds": 3, "eval_every": 2, "devices": 1, "evaluations": ()}
    together = srp.simulate_seeds(DRIFT, FEW, keys=keys, progress=False, **options)
    room_for_seeds(monkeypatch)
    free(fitting)
    found = srp.simulate_seeds(DRIFT, FEW, keys=keys, checkpoint_dir=tmp_path, **options)
    said = [
        line for line in capsys.readouterr().err.splitlines() if "memory is short" in line
    ]
    assert said == [f"memory is short: {at_once} of {num_seeds} seeds at a time"]
    sizes = [min(at_once, num_seeds - i // at_once * at_once) for i in range(num_seeds)]
    assert [history.config["machine"]["num_seeds"] for history in found] == sizes
    for one, other in zip(together, found, strict=True):
        assert one.config["key"] == other.config["key"]
        np.testing.assert_allclose(one.metrics["w"], other.metrics["w"], rtol=1e-5)


def test_values_are_those_of_the_seeds_in_a_batch(monkeypatch, free):
    room_for_seeds(monkeypatch)
    free(1)
    carrying = Carrying(1.0, np.zeros(1))
    options = {"progress": False, "evaluations": (), "num_rounds": 1, "devices": 1}
    runs = srp.simulate_seeds(
        carrying, FEW, keys=jax.random.split(KEY), values={"scale": [2, 4]}, **options
    )
    assert [float(run.server_state[0]) for run in runs] == [2 * 3.5, 4 * 3.5]


def test_options_reach_the_compiler_and_are_part_of_the_key_of_programs(monkeypatch):
    simulate(SMALL, CLIENTS)
    monkeypatch.setattr(
        program, "compiler_options", lambda platform: {"no_such_option": 1}
    )
    with pytest.raises(jax.errors.JaxRuntimeError, match="no_such_option"):
        simulate(SMALL, CLIENTS)


def test_options_for_cpus_change_no_bit(monkeypatch):
    told = simulate(SMALL, CLIENTS)
    monkeypatch.setattr(program, "compiler_options", lambda platform: {})
    assert_same_bits(simulate(SMALL, CLIENTS).server_state, told.server_state)


def test_dropped_functions_are_freed(without_hashes, monkeypatch):
    """On Linux a process that keeps hundreds of them runs out of memory areas."""
    monkeypatch.setattr(record, "_trace", without_hashes)
    areas = Path("/proc/self/maps")
    if not areas.exists():
        pytest.skip("this system does not list the memory areas of a process")

    gc.freeze()  # what is there already need not be searched

    def number():
        gc.collect()
        return areas.read_bytes().count(b"\n")

    program._jitted.cache_clear()
    before = number()
    for _ in range(2):
        simulate(counting(), FEW, num_rounds=1)
    kept = number()
    # of each run two that ran, and three of which the record has hashes
    assert program._jitted.cache_info().currsize == 10
    program._jitted.cache_clear()
    left = number()
    gc.unfreeze()
    assert left - before < 0.2 * (kept - before)


def test_every_float_of_every_method_is_an_argument():
    """Algorithms with half the values share the program."""
    spec_of = lambda made: (
        program.program(
            made, srp.participation.Full(), CLOCK, (), lay_out(1, None, 6)
        ).spec
    )
    for name in srp.methods.algorithm_names():
        algorithm = get(name, momentum=0.2, weight_decay=0.01).algorithm
        values = values_of(algorithm)
        assert values.keys() >= {
            f"training.optimizer.{n}"
            for n in ("learning_rate", "momentum", "weight_decay")
        }
        half = {path: value / 2 for path, value in values.items()}
        halved = rebuilt(with_values(algorithm, half))
        assert spec_of(halved) == spec_of(algorithm), name


def test_platform_and_reverse_mode_are_part_of_every_key(monkeypatch):
    """Both change what is traced: static bounds of loops, and code for a kind of device."""
    algorithm = counting()
    made = prepared(algorithm, FEW, devices=1)
    plain = made.program()
    assert plain.spec.mode == ("cpu", 0)
    with reversible(2):
        other = made.program()
    assert other.spec.mode == ("cpu", 2)
    assert other.spec != plain.spec
    elsewhere = program.Mode("gpu", 0)
    monkeypatch.setattr(program, "Mode", lambda platform, reversible: elsewhere)
    assert made.program().spec != plain.spec


FIELDS = {field.name: field.default for field in dataclasses.fields(Settings)}


FUNCTIONS = {
    srp.simulate: FIELDS.keys(),
    srp.simulate_seeds: FIELDS.keys(),
    srp.evaluate: {"evaluations", "chunk_size", "devices", "shard_data"},
    srp.adapt: {"chunk_size", "devices", "shard_data"},
}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_show_the_settings_with_defaults_and_texts(function):
    parameters = inspect.signature(function).parameters
    assert parameters.keys() & FIELDS.keys() == FUNCTIONS[function]
    assert "settings" not in parameters
    help_texts = argument_help(function)
    for name in FUNCTIONS[function]:
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert help_texts[name] == argument_help(Settings)[name]
        if name != "num_rounds":  # required
            assert parameters[name].default == FIELDS[name]
    assert max(map(len, inspect.getdoc(function).splitlines())) <= 120


def test_the_command_line_has_the_defaults_and_texts_of_the_settings():
    hidden = {
        "checkpoint_dir",
        "keep_clients",
        "states_dir",
        "throw",
        "name",
        "callback",
    }
    assert SIMULATION.keys() == FIELDS.keys() - hidden
    for name, option in SIMULATION.items():
        assert option.default == FIELDS[name]
        assert option.help == argument_help(Settings)[name]


def test_a_longer_run_that_cannot_continue_a_shorter_one_starts_again(
    tmp_path, monkeypatch
):
    """The shorter run was evaluated after round 1, the longer one is not."""
    options = {"eval_every": 2, "eval_last": 2, "checkpoint_dir": tmp_path / "run"}
    np.testing.assert_array_equal(
        simulate_doubling(num_rounds=2, **options).eval_round, [1, 2]
    )

    def killed(*args, **options):
        raise KeyboardInterrupt

    with (
        monkeypatch.context() as patch
    ):  # between its first records and its first snapshot
        patch.setattr(sealed_folders, "write", killed)
        with pytest.raises(KeyboardInterrupt):
            simulate_doubling(num_rounds=4, **options)
    undisturbed = simulate_doubling(num_rounds=4, eval_every=2, eval_last=2)
    for _ in range(2):
        longer = simulate_doubling(num_rounds=4, **options)
        np.testing.assert_array_equal(longer.eval_round, [2, 3, 4])
        np.testing.assert_array_equal(longer.accuracy, undisturbed.accuracy)
    assert np.isnan(longer.seconds_per_round)  # all rounds were stored


@dataclasses.dataclass
class Shifted:
    """Data that call others equal, and that may get other arrays."""

    shift: jax.Array

    def __eq__(self, other):
        return isinstance(other, Shifted)

    def __hash__(self):
        return 0


def test_checksums_are_of_the_arrays_that_data_have_now():
    jax.tree_util.register_dataclass(Shifted, ["shift"], [])
    one = Shifted(jax.numpy.full(3, 1.0))
    other = Shifted(jax.numpy.full(3, 2.0))
    before = data_checksum(one)
    assert before != data_checksum(other)
    one.shift = other.shift
    assert data_checksum(one) == data_checksum(other)


def test_results_of_traces_are_kept_in_several_threads():
    kept = program.Kept(2)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def check(thread):
        return [kept.get(lambda i=i: i, (), thread, i) for i in range(3000)]

    try:
        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(check, range(4)))
    finally:
        sys.setswitchinterval(interval)
    assert found == [[*range(3000)]] * 4
    assert len(kept) == 2
