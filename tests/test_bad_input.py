"""Invalid input of the right type: swapped parts, impossible times, labels with gaps."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.histories import made_history
from reference.small import (
    KEY,
    algorithm_of,
    clients_of,
    federation,
    made_clock,
    model,
    numbers,
    refused,
)

import fedjax_srp as srp
from fedjax_srp.base import ClientOutput, ClientTimes

MLP, DATA = model(), federation(clients_of((3, 5, 4), (2, 3, 2)))
FEDAVG = srp.algorithms.FedAvg(MLP)
METHOD = srp.methods.get("fedavg", dataset=DATA, hidden=(3,))
EXP, FIXED = srp.clocks.Exponential(1.0), srp.clocks.Fixed
RUN = {"algorithm": FEDAVG, "data": DATA, "num_rounds": 1, "key": KEY, "progress": False}

MISPLACED = {
    "a method by name": (
        {"algorithm": "fedavg"},
        "algorithm='fedavg' must be a FederatedAlgorithm or a Method; give srp.methods.get(name",
    ),
    "an algorithm not called": (
        {"algorithm": srp.algorithms.FedAvg},
        "FederatedAlgorithm or a Method; call it",
    ),
    "a model": (
        {"algorithm": MLP},
        "must be a FederatedAlgorithm or a Method; give srp.methods.get(name",
    ),
    "swapped": (
        {"algorithm": DATA, "data": FEDAVG},
        "must be a FederatedAlgorithm or a Method; give srp.methods.get(",
    ),
    "a pair of arrays": (
        {"data": (np.ones(3), np.ones(3))},
        "is no federation, it has no num_clients; give",
    ),
    "data by name": (
        {"data": "digits"},
        "data='digits' is no federation, it has no num_clients; give srp.data.",
    ),
    "no data": ({"data": None}, "data=None is no federation"),
    "a policy not called": (
        {"participation": srp.participation.Full},
        "must be a ParticipationPolicy; call it",
    ),
    "a policy by name": (
        {"participation": "full"},
        "participation='full' must be a ParticipationPolicy; give srp.par",
    ),
    "a method as policy": (
        {"participation": METHOD},
        "must be a ParticipationPolicy; give srp.",
    ),
    "a clock as policy": ({"participation": FIXED(EXP)}, "participation=Fixed("),
    "a distribution": (
        {"clock": EXP},
        "must be a Clock; give e.g. srp.clocks.Fixed(srp.clocks.Expo",
    ),
    "a clock not called": (
        {"clock": FIXED},
        "clock=fedjax_srp.clocks.fixed.Fixed must be a Clock; call it",
    ),
    "times": (
        {"clock": np.ones(3)},
        "clock=array([1., 1., 1.]) must be a Clock; give e.g. srp.",
    ),
    "a policy as clock": (
        {"clock": srp.participation.Full()},
        "clock=Full() must be a Clock; give e.g. srp.",
    ),
    "a number as evaluation": ({"evaluations": 3}, "evaluations=3 must be"),
    "a list in a list": (
        {"evaluations": [["global"]]},
        "unknown evaluation ['global'] of fedavg (did you mean",
    ),
    "a number as name": ({"name": 3}, "name=3 must be a"),
    "a seed": ({"key": 0}, "key=0 is not a typed key; use jax.random.key(0)"),
    "a key of old": (
        {"key": jax.random.PRNGKey(0)},
        "is not a typed key; use jax.random.key(seed)",
    ),
    "time as text": ({"time_limit": "3"}, "time_limit='3' must be a number"),
    "no target": ({"target": float("nan")}, "target=nan must be finite"),
    "a flag as text": ({"progress": "no"}, "progress='no' must be"),
}


@pytest.mark.parametrize("case", MISPLACED)
def test_misplaced_arguments_are_refused_with_a_remedy(case):
    wrong, words = MISPLACED[case]
    with refused(re.escape(words)):
        srp.simulate(**RUN | wrong)


def test_a_simulation_inside_a_transformation_of_jax_is_refused():
    time = lambda key: srp.simulate(**RUN | {"key": key}).compute_time
    for call in (
        lambda: jax.jit(time)(KEY),
        lambda: jax.vmap(time)(jax.random.split(KEY)),
    ):
        with refused("outside of jit, vmap and grad"):
            call()
    with jax.disable_jit(), refused("jax_disable_jit is on"):
        time(KEY)


def test_debug_nans_does_not_stop_a_run():
    with jax.debug_nans(True), jax.debug_infs(True):
        assert srp.simulate(**RUN).num_rounds == 1


def own_clock(expected, realised):
    """Return a clock with these times for client 1; `realised` from the second round on."""
    usual = jnp.ones(3)

    def sample(key, round, now):
        later = usual.at[1].set(jnp.where(round > 0, realised, 1.0))
        return ClientTimes(usual.at[1].set(expected), later), round + 1

    return made_clock("mine", lambda key, num_clients: jnp.int32(0), sample)


@pytest.mark.parametrize("time", [np.inf, np.nan, -1.0])
def test_impossible_times_of_a_custom_clock_are_refused(time):
    algorithm = algorithm_of(
        lambda key, broadcast, state, value, context: ClientOutput(value)
    )
    run = {"num_rounds": 3, "eval_every": 2, "key": KEY, "progress": False, "devices": 1}
    run["participation"] = srp.participation.Uniform(3)
    with pytest.raises(
        ValueError,
        match=f"clock 'mine': the time of client 1 is {time}; times must be finite and >=",
    ):
        srp.simulate(algorithm, numbers(1.0, 2.0, 3.0), clock=own_clock(time, 1.0), **run)
    if time > 0 or time != time:  # the slowest of a round
        with pytest.raises(
            ValueError, match=f"clock 'mine': the time of round 2 is {time}"
        ):
            srp.simulate(
                algorithm, numbers(1.0, 2.0, 3.0), clock=own_clock(1.0, time), **run
            )


def arrays(y, **options):
    x = np.ones((len(y), 3), np.float32)
    rows = {"train_indices": [np.arange(len(y))], "test_indices": [np.arange(len(y))]}
    return srp.data.from_arrays(x, y, x + 1, y, **rows, **options)


def test_labels_with_gaps_give_a_warning():
    with pytest.warns(
        UserWarning,
        match=r"labels: 4 of 31 classes have examples \(class 1 has none\), but",
    ):
        assert arrays([0, 10, 20, 30]).num_classes == 31
    with pytest.warns(
        UserWarning, match=r"labels: 2 of 1048576 classes"
    ):  # in no more memory than the labels take
        arrays([0, 2**20 - 1])
    assert (
        arrays([0, 10, 20, 30], num_classes=31).num_classes == 31
    )  # no warning: the number was given
    assert arrays([2, 0, 1]).num_classes == 3


@pytest.mark.parametrize("shape", [(4, 0), (4, 8, 0), (4, 0, 8)])
def test_empty_examples_are_refused(tmp_path, shape):
    y = np.arange(4)
    np.savez(
        tmp_path / "a.npz",
        x_train=np.ones(shape),
        y_train=y,
        x_test=np.ones(shape),
        y_test=y,
    )
    with pytest.raises(
        ValueError,
        match=r"x_train: is float64 of shape \(.*\); give .* at least one number each",
    ):
        srp.data.load(tmp_path / "a.npz", num_clients=2)


def test_a_rate_that_is_zero_as_float32_is_refused():
    with refused("rate=1e-50 must be positive, it is 0.0 as float32;"):
        srp.clocks.Exponential(1e-50)


def test_an_optimizer_class_is_not_taken_for_a_function_of_the_round():
    with pytest.raises(ValueError, match=r"optimizer=.*SGD must be an optimizer; give"):
        srp.algorithms.FedAvg(MLP, srp.Training(srp.SGD))
    follows = lambda round: srp.SGD(0.1 / (1 + round))
    srp.algorithms.FedAvg(MLP, srp.Training(follows), fine_tune_optimizer=srp.SGD(0.1))


def test_a_model_is_cut_by_any_kind_of_integer():
    plain, of_numpy = (
        list(jax.eval_shape(MLP.cut_above(n).init, KEY).head) for n in (2, np.uint16(2))
    )
    assert plain == of_numpy == ["fc2", "out"]


HISTORY = made_history([0.5], [1.0, 2.0], "global", clients=3, name="h", eval_round=[2])


@pytest.mark.parametrize(
    "cost", ["10", None, -5, float("nan"), float("inf"), [1.0], KEY], ids=str
)
def test_an_invalid_cost_is_refused_by_every_method_of_a_history(cost):
    for ask in (HISTORY.elapsed, HISTORY.eval_elapsed, HISTORY.to_frame, HISTORY.plot):
        with pytest.raises(ValueError, match=r"^communication=?.* must"):
            ask(communication=cost)
    with pytest.raises(ValueError, match=r"^communication=?.* must"):
        HISTORY.summary(communication=cost)
    assert HISTORY.elapsed(np.float32(10)).tolist() == [11.0, 23.0]


@pytest.mark.parametrize("name", ["globl", 3, ["global"], np.ones(2), KEY], ids=str)
def test_an_unknown_evaluation_is_refused_by_every_method_of_a_history(name):
    for ask in (
        HISTORY.scores,
        HISTORY.mean_scores,
        HISTORY.worst_scores,
        HISTORY.speed_quartiles,
    ):
        with pytest.raises(
            ValueError,
            match=r"unknown evaluation .* of this run of 'h'.*; choose from global",
        ):
            ask(name)
