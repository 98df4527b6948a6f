"""Operations and bytes of a round against counts by hand, and the times that follow."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engine import counted
from engine.counted import UNIT
from reference.small import KEY, model, prepared, simulate

import fedjax_srp as srp
from fedjax_srp import ClientOutput
from fedjax_srp.participation import Buffered, Fastest, Full, PartialWork

COUNTS = np.array([3, 25, 12])
BATCH = 4
STEPS = -(-COUNTS // BATCH)
CASES = {name: (*counted.of_model(name, COUNTS), *of_layers) for name, of_layers in
         (("mlp", counted.mlp(5, 4)), ("lenet", counted.lenet(3, 4, 6, 5)))}  # fmt: skip
DATA = CASES["mlp"][1]


def costs(algorithm, data, **options):
    return prepared(algorithm, data, clock=UNIT, **options).costs


@pytest.mark.parametrize("name", CASES)
def test_fedavg_costs_what_is_counted_by_hand(name):
    net, data, layers, sizes = CASES[name]
    found = costs(
        srp.algorithms.FedAvg(net, srp.Training(batch_size=BATCH, epochs=2)), data
    )
    np.testing.assert_allclose(
        found.operations, 2 * STEPS * BATCH * counted.of_step(layers), rtol=1e-6
    )
    np.testing.assert_allclose(found.once, 0)
    assert found.bytes_down == found.bytes_up == 4 * sum(sizes)


@pytest.mark.parametrize("name", CASES)
def test_fedrep_costs_its_head_epochs_and_sends_no_head(name):
    net, data, layers, sizes = CASES[name]
    training, alternations = srp.Training(batch_size=BATCH, epochs=3), 3
    algorithm = srp.algorithms.FedRep(
        net, training, head_epochs=3, representation_epochs=2
    )
    found = costs(algorithm, data)
    *body, head = layers
    of_head = 3 * STEPS * BATCH * 2 * head  # forwards and to the weights
    of_body = 2 * STEPS * BATCH * (2 * sum(layers) - layers[0] + sum(body))
    np.testing.assert_allclose(
        found.operations, alternations * (of_head + of_body), rtol=1e-6
    )
    features = COUNTS * sum(body)  # of the frozen body, once
    np.testing.assert_allclose(found.once, alternations * features, rtol=1e-6)
    assert found.bytes_down == found.bytes_up == 4 * sum(sizes[:-1])


def test_the_gradient_of_a_criterion_is_charged():
    fedgate = srp.algorithms.FedGATE(model(), srp.Training(batch_size=BATCH))
    plain, alone = (
        costs(fedgate, DATA),
        costs(srp.algorithms.FedAvg(model(), srp.Training(batch_size=BATCH)), DATA),
    )
    np.testing.assert_allclose(plain.operations, alone.operations)
    policy = srp.participation.StatisticalAccuracy(
        2, strong_convexity=0.1, accuracy_constant=1.0, samples_per_client=9
    )
    judged = costs(fedgate, DATA, participation=policy)
    assert (
        np.asarray(judged.once - plain.once) >= 0.999 * COUNTS * sum(CASES["mlp"][2])
    ).all()  # a gradient over all examples
    assert judged.bytes_up > plain.bytes_up


def test_record_loss_is_not_charged():
    algorithm = srp.algorithms.FedAvg(model())
    np.testing.assert_array_equal(
        costs(algorithm, DATA, record_loss=True).operations,
        costs(algorithm, DATA).operations,
    )


@pytest.mark.short("fedavg", "l2gd", "fedala", "hf_maml")
@pytest.mark.parametrize("name", srp.methods.algorithm_names())
def test_every_algorithm_can_be_charged(name):
    # what is left for training of unequal clients may be equally many batches
    options = {"validation_share": 0.0} if name == "fedfomo" else {}
    algorithm = srp.methods.get(name, dataset=DATA, hidden=(4,), **options).algorithm
    if algorithm.charges.communicates is not None:
        with pytest.raises(ValueError, match=rf"clock 'devices' .* '{name}' has silent"):
            costs(algorithm, DATA)
    elif name == "fedala":  # trains its weights for as many epochs as its state says
        with pytest.raises(ValueError, match=r"'fedala': round\.client: a loop's length"):
            costs(algorithm, DATA)
    else:
        found = costs(algorithm, DATA)
        unit = (
            found.operations if found.operations.ndim == 1 else found.operations[:, -1]
        )  # of the widest submodel
        total = np.asarray(unit + found.once)
        assert total[1] > total[2] > total[0] > 0, name  # by number of examples
        assert (np.asarray(found.once) >= -1e-3 * total).all(), name


class Passes(NamedTuple):
    """Passes of a client's examples through the model in a round with one epoch of training."""

    whole: int  # forwards and backwards
    head: int = 0  # of a head, on known features
    forwards: int = 0  # through the representation alone
    body: int = 0  # forwards and backwards through the representation alone


PASSES = {
    "fedopt": Passes(1),
    "fedbabu": Passes(1),
    "moon": Passes(1, forwards=2),  # through the global and the last representation
    "fedrod": Passes(1, head=1),
    "fedproto": Passes(1, forwards=1),  # prototypes
    "knn_per": Passes(1),
    "feddyn": Passes(1),
    "mifa": Passes(1),
    "fedvarp": Passes(1),
    "pfedme": Passes(5),  # five steps on every batch
    "fedamp": Passes(1),
    "fedbn": Passes(1),
    "fedpac": Passes(
        1, head=1, forwards=3
    ),  # features of the head's epoch, statistics before and centroids after
    "fedas": Passes(
        2, forwards=1, body=1
    ),  # training and Fisher information; alignment with known features
}


@pytest.mark.short("*-mlp")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", PASSES)
def test_a_round_costs_its_passes(name, case):
    """The ratio to its matrix products and convolutions is at most 1.3, and not much below 1."""
    net, data, layers, _ = CASES[case]
    method = srp.methods.get(
        name, dataset=data, model=net, shared={"epochs": 1, "batch_size": BATCH}
    )
    *body, head = layers
    whole, of_body, passes = counted.of_step(layers), counted.of_step(body), PASSES[name]
    example = (
        passes.whole * whole
        + passes.head * 2 * head
        + passes.forwards * sum(body)
        + passes.body * of_body
    )
    found = costs(method.algorithm, data)
    ratio = np.asarray(found.operations + found.once) / (STEPS * BATCH * example)
    assert (ratio < 1.3).all()
    assert (ratio > 0.85).all()


@pytest.mark.short("fastest")
@pytest.mark.parametrize(
    "policy",
    [Full(), Fastest(2), PartialWork(4, on_time=0.3)],
    ids=lambda policy: policy.name,
)
def test_the_duration_of_rounds_follows_operations_and_links(policy):
    algorithm = srp.algorithms.FedRep(
        model(), srp.Training(batch_size=BATCH), head_epochs=3
    )
    speeds, down, up = (
        np.array([300.0, 900.0, 1e4]),
        np.array([5.0, 50.0, 7.0]),
        np.array([20.0, 10.0, 9.0]),
    )
    clock = srp.clocks.Devices(speeds, down, up)
    history = simulate(algorithm, DATA, participation=policy, clock=clock)
    found = costs(algorithm, DATA, participation=policy)
    messages = history.bytes_down / down + history.bytes_up / up
    unit, once = found.operations / speeds, found.once / speeds + messages
    np.testing.assert_allclose(history.client_time, unit + once, rtol=1e-6)
    work = np.ones(3)
    if policy.name == "partial_work":
        end = np.sort(once + 4 * unit)[0]
        work = np.clip(np.floor((end - once) / unit + 1e-6), 1, 4)
    each = once + work * unit
    took_part = (
        np.argsort(unit + once)[: policy.k] if policy.name == "fastest" else slice(None)
    )
    np.testing.assert_allclose(history.compute_time, each[took_part].max(), rtol=1e-6)
    if policy.name == "partial_work":
        assert sorted(work) != [1, 1, 4], (
            "the case does not distinguish messages from work"
        )


@pytest.mark.usefixtures("no_rounds")
@pytest.mark.filterwarnings("ignore:.*never stale")
@pytest.mark.parametrize(
    ("policy", "why"),
    [(Full(), "times of 'fedavg' include its messages"), (Buffered(1), "")],
    ids=["full", "buffered"],
)
def test_times_that_include_messages_refuse_a_cost(policy, why, tmp_path):
    history = simulate(
        srp.algorithms.FedAvg(model()), DATA, participation=policy, clock=UNIT
    )
    for one in (history, srp.History.load(history.save(tmp_path / "run"))):
        assert not one.takes_communication
        with pytest.raises(ValueError, match=f"communication=10: {why}"):
            one.elapsed(10)
    np.testing.assert_array_equal(history.elapsed(), np.cumsum(history.compute_time))


DEVICES = srp.clocks.Devices([300.0, 900.0, 1e4], 50.0, 50.0)
AWAY = srp.clocks.Available(
    DEVICES, srp.clocks.Intervals([[5.0], [0.0], [5.0]], [[9e9], [9e9], [9e9]])
)


@pytest.mark.short("failing")
@pytest.mark.parametrize(
    "clock", [AWAY, srp.clocks.Failing(AWAY, rate=0.0)], ids=["available", "failing"]
)
def test_devices_come_and_go_and_fail(clock):
    algorithm = srp.algorithms.FedAvg(model(), srp.Training(batch_size=BATCH))
    history = simulate(algorithm, DATA, clock=clock)
    alone = DEVICES.fit(costs(algorithm, DATA))
    times = np.asarray(alone.sample(KEY, alone.init(KEY, 3), jnp.zeros(()))[0].realised)
    np.testing.assert_allclose(history.client_time, times, rtol=1e-6)
    np.testing.assert_allclose(history.compute_time, [times[1], times.max()], rtol=1e-6)
    assert not history.takes_communication


@srp.part
class DataDependentLoop(srp.FederatedAlgorithm):
    """An algorithm with a loop whose length depends on values."""

    def init(self, key, data):
        return jnp.eye(3)

    def client(self, key, broadcast, state, data, context):
        return ClientOutput(
            jax.lax.while_loop(
                lambda m: m.sum() < 100.0, lambda m: m @ (2 * m), broadcast
            )
        )

    def server(self, key, server, mean, context):
        return mean


def test_a_loop_of_unknown_length_is_refused():
    with pytest.raises(
        ValueError,
        match=r"'datadependentloop': round.client: a loop's length is known only while it runs",
    ):
        costs(DataDependentLoop(), DATA)


def test_jitter_is_a_factor_of_a_rounds_time():
    once, down = np.array([0.5, 0.0]), np.float64(8.0)
    plain = srp.WorkCosts(np.array([2.0, 4.0]), once, down, np.float64(0.0))
    operations = np.array([[2.0, 6.0], [4.0, 5.0]])
    by_width = srp.WorkCosts(operations, once, np.array([8.0, 16.0]), np.zeros(2))
    found = []
    for given in (plain, by_width):
        jitter = srp.clocks.LogNormal(1.0, 0.5)
        clock = srp.clocks.Devices(1.0, 8.0, 1.0, jitter=jitter, costs=given)
        times = clock.sample(jax.random.key(3), clock.init(KEY, 2), jnp.zeros(()))[0]
        found.append(times)
    factor = np.asarray(found[0].realised) / np.array([3.5, 5.0])
    assert abs(factor[0] - factor[1]) > 1e-3
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5)
    close(found[0].communication, factor * np.array([1.5, 1.0]))
    close(found[0].expected, np.exp(0.125) * np.array([3.5, 5.0]))
    close(found[1].by_work, factor[:, None] * np.array([[3.5, 8.5], [5.0, 7.0]]))
