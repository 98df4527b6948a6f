"""Operations and bytes of submodels against counts by hand, round times against an event loop of devices."""

import heapq

import numpy as np
import pytest
from engine import counted
from engine.counted import UNIT
from reference.small import model, prepared, scripted, simulate

import fedjax_srp as srp
from fedjax_srp.participation import PartialWork

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


@pytest.mark.short("fjord-mlp")
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


def of_blocks(case):
    """Return the (operations, parameters) of each layer, and of a classifier after it, from the first layer on."""
    # mlp of (5, 4): blocks end after fc1, fc2; lenet of (3, 4, 6, 5): after conv1, conv2, fc1, fc2
    classes = 4 if case == "lenet" else counted.NUM_CLASSES
    widths = WIDTHS[case][-1]
    layers = {"mlp": counted.mlp, "lenet": counted.lenet}[case](*widths)
    layers = [*zip(*layers, strict=True)]
    exits = [(2 * width * classes, (width + 1) * classes) for width in widths[:-1]]
    return layers[:-1], [*exits, layers[-1]]


@pytest.mark.short("mlp")
@pytest.mark.parametrize("case", WIDTHS)
def test_a_depth_costs_what_is_counted_by_hand(case):
    """Each classifier adds a forward pass, and a backward one to its weights and to its inputs."""
    net, data = counted.of_model(case, COUNTS)
    layers, exits = of_blocks(case)
    found = costs(srp.algorithms.DepthFL(net, TRAINING), data)
    for blocks in range(1, len(layers) + 1):
        runs = layers[:blocks] + exits[:blocks]
        example = counted.of_step([operations for operations, _ in runs])
        size = 4 * sum(number for _, number in runs)
        expected = STEPS * BATCH * example
        np.testing.assert_allclose(found.operations[:, blocks - 1], expected, rtol=1e-6)
        assert (found.bytes_down[blocks - 1], found.bytes_up[blocks - 1]) == (size, size)
    np.testing.assert_array_equal(found.once, np.zeros(5))


@pytest.mark.short("mlp")
@pytest.mark.parametrize("case", WIDTHS)
def test_a_window_costs_what_is_counted_by_hand(case):
    """What is below runs forward; of the lowest layer of a window nothing goes to its inputs."""
    net, data = counted.of_model(case, COUNTS)
    layers, exits = of_blocks(case)
    found = costs(srp.algorithms.SlidingWindow(net, TRAINING), data)
    for blocks in range(1, len(layers) + 1):
        places = []
        for first in range(len(layers) - blocks + 1):
            below = [operations for operations, _ in layers[:first]]
            mine = [*layers[first : first + blocks], exits[first + blocks - 1]]
            places.append(sum(below) + counted.of_step([each for each, _ in mine]))
        expected = STEPS * BATCH * np.mean(places)
        np.testing.assert_allclose(found.operations[:, blocks - 1], expected, rtol=1e-6)
        up = 4 * sum(number for _, number in mine)
        down = up + 4 * sum(number for _, number in layers[:first])
        assert (found.bytes_down[blocks - 1], found.bytes_up[blocks - 1]) == (down, up)


def test_the_share_of_a_window_is_that_of_its_downloads_and_uploads():
    """In round 0 all windows begin with the first block, in round 1 those of one block with the second."""
    layers, exits = of_blocks("mlp")
    sizes = [number for _, number in layers], [number for _, number in exits]
    whole = sum(sizes[0]) + sum(sizes[1])
    share = {
        (0, 1): (sizes[0][0] + sizes[1][0]) / whole,
        (1, 1): (sizes[0][1] + sizes[1][1] + sizes[0][0] / 2) / whole,
        (0, 2): (sum(sizes[0]) + sizes[1][1]) / whole,
    }
    algorithm = srp.algorithms.SlidingWindow(model(), TRAINING)
    units = np.array([[1, 2, 1, 1, 1], [1, 1, 2, 2, 1]], np.int32)
    policy = scripted([[0, 1, 2, 3, 4]] * 2, [5, 5], units)
    history = simulate(algorithm, DATA, num_rounds=2, participation=policy)
    expected = [
        np.mean([share[t if unit == 1 else 0, unit] for unit in units[t]])
        for t in range(2)
    ]
    np.testing.assert_allclose(history.metrics["message_share"], expected, rtol=1e-6)


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


def partial_round(needed, wanted, leaves=np.inf):
    """Simulate a server that waits for `wanted` whole models; the others then send the widest that fitted.

    Returns the end of the round, and the units of each client, 0 for clients that leave before they are done.
    """
    leaves = np.broadcast_to(leaves, 5)
    events = [(needed[client, -1], client) for client in range(5)]
    heapq.heapify(events)
    done = 0
    while done < wanted:
        clock, client = heapq.heappop(events)
        done += clock <= leaves[client]
    units = np.maximum(1, np.sum(needed <= clock, axis=1))
    ends = needed[range(5), units - 1]
    return np.minimum(ends, leaves).max(), np.where(ends <= leaves, units, 0)


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


def test_clients_that_leave_send_no_submodel():
    """The fastest leaves before its whole model is done, the next one after it, the slowest before its narrowest."""
    needed = seconds()
    first, second, *_ = np.argsort(needed[:, 2])
    slow = np.argmax(needed[:, 0])
    leaves = np.full(5, 100.0)
    leaves[first] = 0.9 * needed[first, 2]
    leaves[second] = 1.01 * needed[second, 2]
    leaves[slow] = 0.5 * needed[slow, 0]
    end, units = partial_round(needed, 1, leaves)
    assert units[second] == 3
    presence = srp.clocks.Intervals(np.zeros((5, 1)), leaves[:, None])
    clock = srp.clocks.Available(CLOCK, presence)
    history = run(PartialWork(3, on_time=0.2), clock, num_rounds=1, evaluations=())
    np.testing.assert_allclose(history.compute_time, end, rtol=1e-6)
    assert history.cohort_size[0] == np.sum(units > 0) < 5
    share = SIZES[units[units > 0]].mean() / SIZES[-1]
    np.testing.assert_allclose(history.metrics["message_share"], share, rtol=1e-6)
