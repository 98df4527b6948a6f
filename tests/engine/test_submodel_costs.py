"""Operations and bytes of submodels against counts by hand, round times against an event loop of devices."""

import heapq

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engine import counted
from engine.counted import UNIT
from reference.small import KEY, NUM_CLASSES, NUM_FEATURES, model, prepared, simulate

import fedjax_srp as srp
from fedjax_srp.base import ClientTimes
from fedjax_srp.models.narrow import narrow_model, unit_masks
from fedjax_srp.participation import Deadline, Fastest, Full, PartialWork

COUNTS = np.array([3, 25, 12, 9, 17])
BATCH, EPOCHS = 4, 2
STEPS = EPOCHS * -(-COUNTS // BATCH)
DATA = counted.of_model("mlp", COUNTS)[1]
CLASSES = {
    cls.name: cls
    for cls in (srp.algorithms.HeteroFL, srp.algorithms.FedRolex, srp.algorithms.FjORD)
}
TRAINING = srp.Training(srp.SGD(0.1), batch_size=BATCH, epochs=EPOCHS)
RATES = (0.3, 0.5, 1.0)
# widths at these rates: ceil(r K) of (5, 4) and of (3, 4, 6, 5)
WIDTHS = {
    "mlp": [(2, 2), (3, 2), (5, 4)],
    "lenet": [(1, 2, 2, 2), (2, 2, 3, 3), (3, 4, 6, 5)],
}


def by_hand(case, name="heterofl"):
    """Return the operations of a step of an example and the numbers of parameters, (3,) each, by rate."""
    layers = [
        {"mlp": counted.mlp, "lenet": counted.lenet}[case](*widths)
        for widths in WIDTHS[case]
    ]
    example, size = (
        np.array(a, float)
        for a in zip(*((counted.of_step(o), sum(n)) for o, n in layers), strict=True)
    )
    return (
        np.cumsum(example) / np.arange(1, 4) if name == "fjord" else example
    ), size  # a rate is drawn in each step


def costs(algorithm, data=DATA, **options):
    return prepared(algorithm, data, clock=UNIT, **options).costs


@pytest.mark.short("heterofl-lenet", "fjord-mlp")
@pytest.mark.parametrize("case", WIDTHS)
@pytest.mark.parametrize("name", CLASSES)
def test_a_submodel_costs_what_is_counted_by_hand(name, case):
    net, data = counted.of_model(case, COUNTS)
    found, (example, size) = (
        costs(CLASSES[name](net, TRAINING, rates=RATES), data),
        by_hand(case, name),
    )
    np.testing.assert_allclose(
        found.operations, np.outer(STEPS * BATCH, example), rtol=1e-6
    )
    np.testing.assert_array_equal(found.once, np.zeros(5))
    np.testing.assert_array_equal(found.bytes_down, 4 * size)
    np.testing.assert_array_equal(found.bytes_up, 4 * size)


def test_layers_without_own_units_follow_those_below():
    layers = [
        srp.models.Layer("fc", nn.Dense(6), jax.nn.relu),
        srp.models.Layer("norm", nn.GroupNorm(3)),
        srp.models.Layer("out", nn.Dense(NUM_CLASSES)),
    ]
    net = srp.models.Split((NUM_FEATURES,), NUM_CLASSES, layers)
    found = costs(
        srp.algorithms.HeteroFL(net, TRAINING, rates=(0.6, 1.0))
    )  # 4 units, which 3 does not divide
    size = [(NUM_FEATURES + 1) * k + 2 * k + (k + 1) * NUM_CLASSES for k in (4, 6)]
    np.testing.assert_array_equal(found.bytes_up, 4 * np.array(size))


class Own(nn.Module):
    """A dense layer with its width in another field."""

    units: int

    @nn.compact
    def __call__(self, x):
        return x @ self.param("kernel", nn.initializers.ones, (x.shape[-1], self.units))


def test_a_layer_of_unknown_width_is_refused_if_it_would_be_charged():
    layers = [
        srp.models.Layer("mine", Own(6)),
        srp.models.Layer("out", nn.Dense(NUM_CLASSES)),
    ]
    algorithm = srp.algorithms.HeteroFL(
        srp.models.Split((NUM_FEATURES,), NUM_CLASSES, layers), TRAINING
    )
    with pytest.raises(
        ValueError,
        match=r"layer 'mine' is a Own without a field features.*give the clock costs",
    ):
        costs(algorithm)
    assert prepared(algorithm, DATA).costs is None  # other clocks charge units
    given = srp.WorkCosts(np.ones((5, 2)), np.zeros(5), np.ones(2), np.ones(2))
    clock = srp.clocks.Devices(1.0, 1.0, 1.0, costs=given)
    assert clock.init(KEY, 5).unit.shape == (5, 2)


# Times.

SPEEDS = np.array([4e3, 9e5, 1e4, 5e4, 2e4])
DOWN, UP = (
    np.array([50.0, 500.0, 70.0, 300.0, 900.0]),
    np.array([200.0, 100.0, 90.0, 250.0, 800.0]),
)
SIZES = np.r_[0, by_hand("mlp")[1][[0, 1, 2, 2, 2]]]  # by units of work
CLOCK = srp.clocks.Devices(SPEEDS, DOWN, UP)


def seconds(max_work=3, name="heterofl"):
    """Return the times of the devices for 1, 2, ... units, (5, max_work): download, steps, upload."""
    (example, size), level = by_hand("mlp", name), np.minimum(np.arange(max_work), 2)
    links = (1 / DOWN + 1 / UP)[:, None] * 4 * size[level]
    return (STEPS * BATCH / SPEEDS)[:, None] * example[level] + links


def partial_round(needed, wanted, leaves=(np.inf,) * 5):
    """Simulate a server that waits for `wanted` whole models; the others then send the widest that fitted.

    Returns the end of the round, and the units of each client, 0 for clients that never report.
    """
    events = [(min(needed[client, -1], leaves[client]), client) for client in range(5)]
    heapq.heapify(events)
    done, clock = set(), 0.0
    while events and len(done) < wanted:
        clock, client = heapq.heappop(events)
        if needed[client, -1] <= leaves[client]:
            done.add(client)
    units, ends = [], []
    for client in range(5):
        chosen = max(
            (w + 1 for w, time in enumerate(needed[client]) if time <= clock), default=1
        )
        reports = needed[client, chosen - 1] <= leaves[client]
        units.append(chosen if reports else 0)
        ends.append(needed[client, chosen - 1] if reports else leaves[client])
    return max(ends), np.array(units)


def run(policy, clock=CLOCK, name="heterofl", **options):
    algorithm = CLASSES[name](model(), TRAINING, rates=RATES)
    return simulate(algorithm, DATA, participation=policy, clock=clock, **options)


@pytest.mark.short("5-0.4-fjord")
@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize(("max_work", "on_time"), [(3, 0.2), (3, 0.6), (5, 0.4)])
def test_partial_work_is_the_widest_model_that_fits(max_work, on_time, name):
    needed = seconds(max_work, name)
    end, units = partial_round(needed, int(np.ceil(on_time * 5)))
    assert len({*units}) > 1
    history = run(PartialWork(max_work, on_time=on_time), name=name)
    np.testing.assert_allclose(history.compute_time, end, rtol=1e-6)
    np.testing.assert_allclose(history.client_time, needed[:, 0], rtol=1e-6)
    np.testing.assert_allclose(
        history.metrics["message_share"], SIZES[units].mean() / SIZES[-1], rtol=1e-6
    )
    assert history.bytes_up == history.bytes_down == 4 * SIZES[-1]
    each_round = 4 * SIZES[units].sum()
    assert (
        history.summary()["total_bytes_up"]
        == history.summary()["total_bytes_down"]
        == 2 * each_round
    )
    assert history.eval_bytes()[0] == pytest.approx(
        2 * each_round * history.eval_round[0]
    )


NARROWEST = np.sort(seconds()[:, 0])
LIMIT = float(NARROWEST[2:4].mean())


@pytest.mark.short("fastest")
@pytest.mark.parametrize(
    ("policy", "lasts", "size"),
    [
        (Full(), NARROWEST[4], 5),
        (Fastest(2), NARROWEST[1], 2),
        (Deadline(LIMIT), LIMIT, 3),
    ],
    ids=["full", "fastest", "deadline"],
)
def test_one_unit_is_the_narrowest_model(policy, lasts, size):
    history = run(policy, evaluations=())
    np.testing.assert_allclose(history.compute_time, lasts, rtol=1e-6)
    assert (history.cohort_size == size).all()


def test_clients_that_leave_send_no_submodel():
    """The fastest leaves before its whole model is done, the slowest before its narrowest one."""
    needed, leaves = seconds(), np.full(5, 9e9)
    fast, slow = np.argmin(needed[:, 2]), np.argmax(needed[:, 0])
    leaves[fast], leaves[slow] = 0.9 * needed[fast, 2], 0.5 * needed[slow, 0]
    end, units = partial_round(needed, 1, leaves)
    clock = srp.clocks.Available(
        CLOCK, srp.clocks.Intervals(np.zeros((5, 1)), leaves[:, None])
    )
    history = run(PartialWork(3, on_time=0.2), clock, num_rounds=1, evaluations=())
    np.testing.assert_allclose(history.compute_time, end, rtol=1e-6)
    assert history.cohort_size[0] == np.sum(units > 0) < 5
    share = SIZES[units[units > 0]].mean() / SIZES[-1]
    np.testing.assert_allclose(history.metrics["message_share"], share, rtol=1e-6)


def test_jitter_is_a_factor_of_every_width():
    given = srp.WorkCosts(
        np.array([[2.0, 6.0], [4.0, 5.0]]),
        np.array([0.5, 0.0]),
        np.ones(2),
        np.array([3.0, 4.0]),
    )
    clock = srp.clocks.Devices(
        1.0, 2.0, [1.0, 2.0], jitter=srp.clocks.LogNormal(1.0, 0.5), costs=given
    )
    state = clock.init(KEY, 2)
    times = clock.sample(jax.random.key(3), state, jnp.zeros(()))[0]
    by_hand = np.array(
        [[2 + 0.5 + 0.5 + 3, 6 + 0.5 + 0.5 + 4], [4 + 0.5 + 1.5, 5 + 0.5 + 2]]
    )
    factor = np.asarray(times.realised / by_hand[:, 0])
    assert abs(factor[0] - factor[1]) > 1e-3
    np.testing.assert_allclose(times.by_work, by_hand * factor[:, None], rtol=1e-6)
    np.testing.assert_allclose(times.expected, by_hand[:, 0] * np.exp(0.125), rtol=1e-6)
    assert times.communication is None


def test_simulation_charges_submodels():
    simulation = srp.Simulation(
        srp.algorithms.HeteroFL(model(), TRAINING, rates=RATES),
        DATA,
        PartialWork(3, on_time=0.2),
        CLOCK,
    )
    first = jax.jit(
        lambda simulation: simulation.step(simulation.init(KEY))[1].compute_time
    )(simulation)
    np.testing.assert_allclose(first, partial_round(seconds(), 1)[0], rtol=1e-6)


def test_times_by_work_are_limited_to_the_last_column():
    times = jnp.array([1.0, 2.0])
    by_work = jnp.array([[1.0, 1.5], [2.0, 7.0]])
    cohort = srp.participation.cohorts.make_cohort(jnp.arange(2, dtype=jnp.int32))
    for work, expected in (
        ([1, 1], [1, 2]),
        ([2, 1], [1.5, 2]),
        ([9, 2], [1.5, 7]),
        ([0, 9], [1, 7]),
    ):
        asked = cohort._replace(work=jnp.array(work, jnp.int32))
        found = srp.participation.cohorts.work_times(
            asked, ClientTimes(times, times, by_work=by_work)
        )
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "rate", [0.05, 0.28, 0.3, 0.5, 0.6, 2 / 3, 1.0]
)  # 0.28 * 25 > 7, and 0.6 * 25 > 15 in float32
def test_a_narrow_model_has_the_parameters_that_the_mask_keeps(rate):
    cnn = srp.models.CNN((8, 8, 3), 4, channels=(3,) * 6, hidden=(10, 7))
    for net in (model(hidden=(9, 4, 25)), counted.LENET, cnn):
        params = jax.tree.map(
            lambda w: np.zeros(w.shape, w.dtype), jax.eval_shape(net.init, KEY)
        )
        masks = unit_masks(net.layer_names, params, jnp.asarray(rate), jnp.int32(0))
        narrow = jax.eval_shape(narrow_model(net, rate).init, KEY)
        assert [int(np.sum(m)) for m in jax.tree.leaves(masks)] == [
            w.size for w in jax.tree.leaves(narrow)
        ]
