"""One voice for refusing: whatever asks for an integer or a choice says so in the same words."""

from functools import partial

import jax
import numpy as np
import pytest
from reference.small import KEY, clients_of, federation, model

import fedjax_srp as srp
from fedjax_srp import algorithms, models, participation, theory
from fedjax_srp._checks import INT32_MAX, check_choice, check_integer
from fedjax_srp.commands import demo
from fedjax_srp.data import partition

MLP = model()
TASK = srp.data.linear_task(KEY, num_clients=4, dim=6, rank=2)
DATA = federation(clients_of((3, 5, 4), (2, 3, 2)))
Y = np.arange(40) % 4
SHAPE, IMAGES = (6,), (16, 16, 3)
RUN = {"num_rounds": 1, "key": KEY, "progress": False}
SPLIT = {"train_indices": [[0], [1]], "test_indices": [[2], [3]]}


def simulate(argument, value):
    return srp.simulate(algorithms.FedAvg(MLP), DATA, **RUN | {argument: value})


def linear_fedavg(**options):
    return algorithms.LinearFedAvg(TASK, **{"step_size": 0.1, "local_steps": 1} | options)


def linear_fedrep(**options):
    return algorithms.LinearFedRep(TASK, **{"step_size": 0.1, "samples_per_round": 5} | options)


# (who asks, what the argument is called in the message) -> (call of the value, the least that is allowed, is None)
INTEGERS = {
    ("simulate", "num_rounds"): (partial(simulate, "num_rounds"), 1, False),
    ("simulate", "eval_every"): (partial(simulate, "eval_every"), 1, False),
    ("simulate", "eval_first"): (partial(simulate, "eval_first"), 0, False),
    ("simulate", "eval_last"): (partial(simulate, "eval_last"), 0, False),
    ("simulate", "chunk_size"): (partial(simulate, "chunk_size"), 1, True),
    ("simulate", "devices"): (partial(simulate, "devices"), 1, True),
    ("fedavg", "batch_size"): (lambda v: algorithms.FedAvg(MLP, srp.Training(batch_size=v)), 1, False),
    ("fedavg", "epochs"): (lambda v: algorithms.FedAvg(MLP, srp.Training(epochs=v)), 0, True),
    ("fedavg", "steps"): (lambda v: algorithms.FedAvg(MLP, srp.Training(epochs=None, steps=v)), 0, True),
    ("fedavg", "fine_tune_epochs"): (lambda v: algorithms.FedAvg(MLP, fine_tune_epochs=v), 0, True),
    ("fedrep", "head_epochs"): (lambda v: algorithms.FedRep(MLP, head_epochs=v), 0, False),
    ("fedrep", "representation_epochs"): (lambda v: algorithms.FedRep(MLP, representation_epochs=v), 0, False),
    ("hf_maml", "inner_steps"): (lambda v: algorithms.HFMAML(MLP, inner_steps=v), 1, False),
    ("linear_fedavg", "local_steps"): (lambda v: linear_fedavg(local_steps=v), 1, False),
    ("linear_fedavg", "fine_tune_steps"): (lambda v: linear_fedavg(fine_tune_steps=v), 1, False),
    ("linear_fedrep", "samples_per_round"): (lambda v: linear_fedrep(samples_per_round=v), 1, False),
    ("linear_fedrep", "evaluation_samples"): (lambda v: linear_fedrep(evaluation_samples=v), 1, True),
    ("linear_fedrep", "head"): (lambda v: linear_fedrep(head=v), 1, False),
    ("doubling", "initial"): (lambda v: participation.Doubling(v, 1), 1, False),
    ("doubling", "pool"): (lambda v: participation.Doubling(1, 1, pool=v), 1, True),
    ("doubling", "rounds_per_stage"): (lambda v: participation.Doubling(1, v), 1, False),
    ("doubling", "rounds_per_stage[1]"): (lambda v: participation.Doubling(1, [1, v]), 0, False),
    ("fastest", "k"): (participation.Fastest, 1, False),
    ("uniform", "k"): (participation.Uniform, 1, False),
    ("mlp", "hidden[1]"): (lambda v: models.MLP(SHAPE, 4, hidden=(3, v)), 1, False),
    ("mlp", "num_classes"): (lambda v: models.MLP(SHAPE, v), 1, False),
    ("mlp", "input_shape[0]"): (lambda v: models.MLP((v,), 4), 1, False),
    ("lenet5", "channels[0]"): (lambda v: models.LeNet5(IMAGES, 4, channels=(v, 2)), 1, False),
    ("lenet5", "num_classes"): (lambda v: models.LeNet5(IMAGES, v), 1, False),
    ("lstm", "features"): (lambda v: models.LSTM((7,), 2, features=v), 1, False),
    ("lstm", "vocabulary"): (lambda v: models.LSTM((7,), 2, vocabulary=v), 2, False),
    ("cut_above", "head_layers"): (MLP.cut_above, 0, False),
    ("crop_and_flip", "padding"): (models.CropAndFlip, 0, False),
    ("partition", "num_clients"): (lambda v: partition.iid(Y, Y, v), 1, False),
    ("partition", "classes_per_client"): (lambda v: partition.by_classes(Y, Y, 4, v), 1, False),
    ("load", "num_clients"): (lambda v: srp.data.load("digits", num_clients=v), 1, False),
    ("load", "max_examples"): (lambda v: srp.data.load("digits", num_clients=2, max_examples=v), 1, True),
    ("from_arrays", "num_classes"): (
        lambda v: srp.data.from_arrays(Y[:, None], Y, Y[:, None] + 1, Y, num_classes=v, **SPLIT),
        1,
        True,
    ),
    ("linear_task", "dim"): (lambda v: srp.data.linear_task(KEY, 4, v, 2), 1, False),
    ("linear_task", "rank"): (lambda v: srp.data.linear_task(KEY, 4, 8, v), 1, False),
    ("linear_task", "num_clients"): (lambda v: srp.data.linear_task(KEY, v, 8, 2), 1, False),
    ("theory", "i"): (lambda v: theory.order_statistic_mean(v, 5), 1, False),
    ("demo", "seeds"): (lambda v: demo.run("out", seeds=v), 1, False),
}
NO_INTEGERS = {"text": "two", "half": 2.5, "flag": True, "none": None, "nan": float("nan"), "array": np.ones(2)}


def refusal(call, value):
    with pytest.raises(ValueError, match=r"\w") as caught:
        call(value)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("case", INTEGERS, ids=lambda case: f"{case[0]}-{case[1]}")
@pytest.mark.parametrize("kind", NO_INTEGERS)
def test_what_is_no_integer_is_refused_in_the_same_words(case, kind):
    (_, argument), (call, minimum, may_be_none), value = case, INTEGERS[case], NO_INTEGERS[kind]
    if value is None and may_be_none:
        pytest.skip("None has a meaning")
    if (kind, argument) in (("array", "rounds_per_stage"), ("array", "devices"), ("text", "devices")):
        pytest.skip("has a meaning, or a remedy of its own")
    if (kind, *case) == ("none", "load", "num_clients"):
        pytest.skip("says which partition needs it")
    assert refusal(call, value).startswith(f"{argument}={value!r} must be an integer, at least {minimum}")


@pytest.mark.parametrize("case", INTEGERS, ids=lambda case: f"{case[0]}-{case[1]}")
def test_integers_out_of_range_are_refused_in_the_same_words(case):
    (_, argument), (call, minimum, _) = case, INTEGERS[case]
    assert refusal(call, minimum - 1) == f"{argument}={minimum - 1} must be at least {minimum}"
    assert refusal(call, -1) == f"{argument}=-1 must be at least {minimum}"
    if argument == "head_layers":
        pytest.skip("has as many as the model has layers")
    assert refusal(call, 2**31) == f"{argument}={2**31} must be at most {2**31 - 1}"
    assert refusal(call, np.int64(2) ** 40) == f"{argument}={2**40} must be at most {2**31 - 1}"


CHOICES = {
    "fedavg": (lambda v: algorithms.FedAvg(MLP, evaluation=v), "evaluation", "fine_tune", "fine_tun"),
    "weighting": (lambda v: algorithms.FedRep(MLP, srp.Training(weighting=v)), "weighting", "uniform", "unifrom"),
    "sampling": (lambda v: linear_fedrep(sampling=v), "sampling", "subspace", "subspce"),
    "start": (lambda v: linear_fedrep(start=v), "start", "random", "rondom"),
    "redraw": (lambda v: participation.Doubling(1, 1, redraw=v), "redraw", "stage", "stages"),
    "doubling": (lambda v: participation.Doubling(1, 1, by=v), "by", "expected", "expcted"),
    "fastest": (lambda v: participation.Fastest(1, by=v), "by", "realised", "realized"),
    "output": (lambda v: models.MLP(SHAPE, 4, output=v), "output", "softmax", "sofmax"),
    "convolution": (lambda v: models.LeNet5(IMAGES, 4, convolution=v), "convolution", "winograd", "winogradd"),
    "heads": (lambda v: srp.data.linear_task(KEY, 4, 8, 2, heads=v), "heads", "gaussian", "gausian"),
    "partition": (
        lambda v: srp.data.load("digits", num_clients=2, partition=v, alpha=0.5),
        "partition",
        "dirichlet",
        "dirichelt",
    ),
}


@pytest.mark.parametrize("case", CHOICES)
def test_unknown_choices_are_refused_in_the_same_words(case):
    call, argument, right, wrong = CHOICES[case]
    call(right)
    message = refusal(call, wrong)
    assert message.startswith(f"{argument}={wrong!r} is unknown (did you mean {right}")
    assert "; choose from " in message
    assert refusal(call, 3).startswith(f"{argument}=3 is unknown; choose from ")
    assert refusal(call, np.ones(2)).startswith(f"{argument}=array([1., 1.]) is unknown; choose from ")


def test_a_layer_is_a_choice_as_well():
    message = refusal(lambda v: models.MLP(SHAPE, 4, hidden=(3,), cut=v), "fc2")
    assert message == "cut='fc2' is no layer of model 'mlp' (did you mean fc1?); choose from fc1, out, or None"


@pytest.mark.parametrize("value", [32, "32"])
def test_one_integer_in_place_of_several_is_told_so(value):
    message = refusal(lambda v: models.MLP(SHAPE, 4, hidden=v), value)
    assert message == f"hidden={value!r} must be several; ({value!r},) is one of them"


def test_an_integer_may_be_any_that_python_takes_for_one():
    assert check_integer("n", np.int8(3), 1) == 3
    assert check_integer("n", np.asarray(3), 1) == 3
    assert type(check_integer("n", jax.numpy.int32(3), 1)) is int
    assert check_integer("n", INT32_MAX, 1) == INT32_MAX
    assert check_integer("n", 2**70, 1, maximum=None) == 2**70
    assert participation.Uniform(INT32_MAX).name == "uniform"


def test_a_tracer_is_no_integer_and_no_choice():
    with pytest.raises(ValueError, match=r"n=.* must be an integer, known before tracing, at least 1"):
        jax.jit(lambda n: check_integer("n", n, 1))(3)
    with pytest.raises(ValueError, match=r"c=.* is unknown; choose from a, b"):
        jax.jit(lambda c: check_choice("c", c, "ab"))(3)
