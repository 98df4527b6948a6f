"""The memory estimate against the compiler's numbers, and runs that it refuses."""

import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from reference.small import (
    CLOCK,
    KEY,
    algorithm_of,
    clients_of,
    federation,
    model,
    numbers,
    prepared,
    refused,
)

import fedjax_srp as srp
from fedjax_srp.algorithms import local
from fedjax_srp.base import ClientOutput
from fedjax_srp.contract.checks import check_algorithm
from fedjax_srp.contract.messages import num_bytes
from fedjax_srp.contract.peak_memory import peak_bytes
from fedjax_srp.driver import memory
from fedjax_srp.driver.prepare import Request
from fedjax_srp.driver.settings import Settings
from fedjax_srp.driver.simulate import seeds_at_once
from fedjax_srp.rounds import sharding
from fedjax_srp.xla.backend import traced_for

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


@pytest.mark.parametrize(
    ("function", "numbers"),
    [
        (lambda x: jnp.exp(x) + 1, 100),  # in the memory of the first result
        (lambda x: jnp.exp(x) @ jnp.ones((100, 50)), 150),
        (lambda x: jnp.sum(jnp.exp(x)), 100),
        (
            lambda x: jnp.sum(jnp.exp(x)) + jnp.exp(x),
            100,
        ),  # one exponential after the other
        (
            lambda x: jax.grad(lambda y: jnp.sum(jnp.sin(y) ** 2))(x),
            200,
        ),  # sine and cosine
        (
            lambda x: jax.lax.scan(lambda y, _: (jnp.exp(y) + 1, None), x, length=3)[0],
            100,
        ),  # in place
        (
            lambda x: jax.lax.scan(
                lambda y, _: (jnp.exp(y) + jnp.sum(y), None), x, length=3
            )[0],
            101,
        ),
        (
            lambda x: jax.lax.while_loop(
                lambda y: y[0] < 3, lambda y: y @ jnp.ones((100, 100)), x
            ),
            200,
        ),
        (
            lambda x: jax.lax.scan(lambda y, _: (y + 1, y), x, length=3)[1],
            500,
        ),  # and what is stacked
        (lambda x: jax.jit(lambda y: jnp.exp(y))(x), 100),
        (
            lambda x: (jax.debug.callback(lambda _: None, x), jnp.exp(x))[1],
            100,
        ),  # an equation without results
    ],
)
def test_peaks_counted_by_hand(function, numbers):
    assert peak_bytes(jax.make_jaxpr(function)(jnp.ones(100))) == 4 * numbers


@pytest.mark.parametrize(
    ("evaluations", "trains"),
    [((), 0), (("global",), 0), (("fine_tune",), 1), ("all", 2)],
)
def test_an_evaluation_counts_what_it_trains(evaluations, trains):
    """An evaluation trains nothing, the head or the whole model."""
    run = run_of(srp.algorithms.FedAvg(MLP), IMAGES, evaluations=evaluations)
    params = MLP.init(KEY)
    trained = (0, num_bytes(params.head), num_bytes(params))[trains]
    assert run.sizes.client.evaluation >= 2 * trained
    assert 0 < num_bytes(params.head) < num_bytes(params) / 2


def test_sizes_are_those_of_the_devices_of_the_run():
    """JAX's default may be of another kind, and train the first layer in the span of the examples."""
    algorithm = ALGORITHMS["fedavg"]
    with traced_for("gpu"):
        run, of_a_gpu = run_of(algorithm, IMAGES), check_algorithm(algorithm, IMAGES)
    with traced_for("cpu"):
        of_a_cpu = check_algorithm(algorithm, IMAGES)
    assert run.sizes.client.training == of_a_cpu.training_bytes != of_a_gpu.training_bytes


def test_default_chunks_follow_the_memory_of_clients_in_all_seeds(monkeypatch):
    asked = []
    monkeypatch.setattr(
        sharding, "default_chunks", lambda *args: asked.append(args) or (2, 0, 2)
    )
    run = run_of(
        ALGORITHMS["fedrep"],
        IMAGES,
        chunk_size=None,
        num_seeds=3,
        evaluations=("fine_tune",),
    )
    training, evaluation = run.sizes.client.at_once("cpu")
    assert asked == [("cpu", sharding.CPU_CHUNK_BYTES, 3 * training, 3 * evaluation, 4)]
    assert len({training, evaluation, 0}) == 3


def test_chunks_do_not_count_data_that_clients_share():
    """The clients of a linear task share its representation, (dim, rank)."""

    def task_run(dim):
        task = srp.data.linear_task(KEY, 10_000, dim, 2)
        algorithm = srp.algorithms.LinearFedRep(task, 0.1, 10, start="random")
        return run_of(
            algorithm, task, chunk_size=None, devices=1, evaluations=("fit_head",)
        )

    small, large = task_run(10), task_run(10_000)
    of_small, of_large = (run.sizes.client.at_once("cpu") for run in (small, large))
    assert of_small[0] == of_large[0]
    assert small.layout.chunk_size == large.layout.chunk_size == 10_000 // 64
    assert of_large[1] > 4 * 2 * 10_000  # an evaluation makes a vector of dim per client
    sizes = run_of(ALGORITHMS["fedrep"], IMAGES).sizes
    assert sizes.client.examples == num_bytes(
        jax.eval_shape(IMAGES.train_client, np.int32(0))
    )


def test_an_evaluation_counts_the_larger_of_training_and_test_data():
    for counts in ((2, 9), (3, 90)), ((3, 90), (2, 9)):
        data = federation(clients_of(*counts))
        parts = (
            num_bytes(jax.eval_shape(part, np.int32(0)))
            for part in (data.train_client, data.test_client)
        )
        sizes = run_of(srp.algorithms.FedAvg(model()), data).sizes
        assert sizes.client.evaluation_examples == max(parts)


def test_the_start_holds_states_once_where_chunks_do_not_divide_them():
    run = run_of(ALGORITHMS["local_only"], IMAGES, devices=1, chunk_size=3)
    root, data = run.placed(KEY)
    program = run.program()
    states = program.start(root, data).state.clients
    (start,) = [
        compiled
        for function, compiled in program.compiled.items()
        if function.name == "start"
    ]
    assert start.memory_analysis().temp_size_in_bytes < 0.9 * num_bytes(states)
    each = run_of(ALGORITHMS["local_only"], IMAGES, devices=1, chunk_size=1)
    for some, others in zip(
        *map(jax.tree.leaves, (states, each.program().start(root, data).state.clients)),
        strict=True,
    ):
        np.testing.assert_array_equal(some, others)


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


def test_data_on_a_device_are_not_counted_again(free):
    run = run_of(ALGORITHMS["fedavg"], IMAGES, 1, 1)
    needed = memory.estimate(run)
    free(needed.certain - needed.data)
    memory.check(run, say=False)
    with pytest.raises(ValueError, match="GiB are free"):
        memory.check(run._replace(data=jax.tree.map(np.asarray, IMAGES)), say=False)


def test_a_large_run_is_announced_in_one_line(capsys, free):
    run = run_of(ALGORITHMS["fedavg"], IMAGES)
    needed = memory.estimate(run)
    free(100 * memory.GIB)
    memory.check(run, say=True)
    assert capsys.readouterr() == ("", "")  # too small to mention
    free(3 * needed.total)
    memory.check(run, say=False)
    assert capsys.readouterr() == ("", "")
    memory.check(run, say=True)
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "on each of 2 devices, 0.0 GiB free" in err
    assert "data" in err


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


def test_nothing_is_refused_if_free_memory_is_unknown(free):
    free(math.inf)
    memory.check(run_of(ALGORITHMS["fedavg"], IMAGES), say=True)


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
    again = srp.simulate_seeds(DRIFT, FEW, keys=keys, checkpoint_dir=tmp_path, **options)
    assert all(
        np.isnan(history.seconds_per_round) for history in again
    )  # every batch was stored


def test_processes_share_the_free_memory(monkeypatch, free):
    room_for_seeds(monkeypatch)
    free(4)
    request = Request(DRIFT, FEW, settings=Settings(devices=1))
    assert [seeds_at_once(request, 4, sharers) for sharers in (1, 2, 4)] == [4, 2, 1]


@pytest.mark.long
def test_a_run_of_seeds_is_continued_in_the_batches_it_began_with(
    monkeypatch, free, tmp_path
):
    room_for_seeds(monkeypatch)
    options = {
        "keys": jax.random.split(KEY, 2),
        "eval_every": 1,
        "devices": 1,
        "progress": False,
    }

    def run(folder, num_rounds, fitting):
        free(fitting)
        return srp.simulate_seeds(
            DRIFT, FEW, num_rounds=num_rounds, checkpoint_dir=tmp_path / folder, **options
        )

    run("short", 1, 1)
    continued = run("short", 2, 2)
    assert [history.config["machine"]["num_seeds"] for history in continued] == [1, 1]
    assert sorted(path.name for path in (tmp_path / "short").iterdir()) == [
        "seeds_0_to_1",
        "seeds_1_to_2",
    ]
    together = run("ample", 2, 2)
    for one, other in zip(together, continued, strict=True):
        np.testing.assert_allclose(one.metrics["w"], other.metrics["w"], rtol=1e-5)
    with pytest.raises(
        ValueError,
        match=r"ample' holds a run of 2 seeds at a time, and the memory .* room for 1; free",
    ):
        run("ample", 3, 1)


def test_sharded_examples_that_move_are_counted():
    """Each client has 2 training and 500 test images of 28 x 28, a byte a pixel."""
    clients, tests = 24, 500
    x = np.zeros((clients * tests, 28, 28), np.uint8)
    dealt = [np.split(np.arange(clients * of_each), clients) for of_each in (2, tests)]
    data = srp.data.from_arrays(
        *(
            x[: 2 * clients].copy(),
            np.arange(2 * clients) % 10,
            x,
            np.arange(len(x)) % 10,
        ),
        train_indices=dealt[0],
        test_indices=dealt[1],
    )
    sharded, plain = (
        memory.estimate(run_of(ALGORITHMS["fedavg"], data, shard_data=shard)).working
        for shard in (True, False)
    )
    labels = data.y_train.dtype.itemsize
    assert sharded - plain == pytest.approx(4 * 502 * (28 * 28 + labels), rel=1e-3)
