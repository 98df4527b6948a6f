"""Every public function, every argument, everything wrong: one line that names the argument, never a traceback."""

import inspect

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.small import KEY, clients_of, federation, model

import fedjax_srp as srp
from fedjax_srp import algorithms, clocks, models, participation, theory
from fedjax_srp.commands.errors import is_ours
from fedjax_srp.data import partition

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # an answer to odd data as well

MLP, DATA = model(), federation(clients_of((3, 5, 4), (2, 3, 2)))
TASK = srp.data.linear_task(KEY, num_clients=4, dim=6, rank=2)
Y, X = np.arange(40) % 4, np.ones((40, 3), np.float32)
DIGITS = srp.data.RawArrays(np.zeros((40, 8, 8), np.uint8), Y, np.zeros((40, 8, 8), np.uint8), Y)
EXP = clocks.exponential(1.0)
BOTH = {"y_train": Y, "y_test": Y, "num_clients": 4, "seed": 0}
IMAGES = srp.data.from_arrays(
    np.ones((4, 8, 8)), Y[:4], np.ones((4, 8, 8)), Y[:4], train_indices=[[0]], test_indices=[[1]]
)
LENET = {"input_shape": (16, 16, 3), "num_classes": 4, "channels": (2, 2), "hidden": (3, 3), "dropout_rate": 0.1}
TIMES = {"work": 1.0, "communication": 0.0}

# No argument is one of these, so all refuse them.
NEVER = {"object": object(), "bytes": b"x", "complex": 1j, "dict": {"a": 1}, "texts": ["a"], "vaster": -(10**400)}
# These are right for some, or mean something: refused in one line, or taken.
SOMETIMES = {
    "text": "zwei",
    "number as text": "0.5",
    "half": 2.5,
    "flag": True,
    "none": None,
    "nan": float("nan"),
    "inf": float("inf"),
    "negative": -1,
    "array": np.ones(2),
    "huge": 2**31,
    "vast": 10**23,
    "1e23": 1e23,
    "list": [],
    "function": len,
    "key": KEY,
    "old key": jax.random.PRNGKey(0),
    "not called": clocks.fixed,
}
NUMPY = {int: (np.int16, np.int64, np.uint16, np.asarray), float: (np.float32, np.float64, np.int64, np.asarray)}


def defaults(function, **values):
    """The arguments of a function: these, and the defaults of the others."""
    parameters = inspect.signature(function).parameters
    return {name: values.get(name, p.default) for name, p in parameters.items() if p.kind is not p.VAR_KEYWORD}


OF_THEORY = {
    "n": 5, "i": 2, "rate": 1.0, "sigma_max": 1.0, "step_size": 0.1, "initial_distance": 0.9, "sigma_min": 1.0,
    "distance": 0.5, "a": 0.02, "ratio": 2.0, "ratios": np.ones(3), "num_clients": 8, "initial": 1, "chat": 1.1,
    "communication": 0.0, "start": 3.0, "end": 2.9, "c": 0.1, "times": np.arange(1.0, 9.0), "kappa": 2.0,
    "samples": 10.0, "noise": 0.1, "initial_gap": 1.0, "mu": 0.5, "smoothness": 2.0, "local_steps": 10.0, "before": 2,
}  # fmt: skip

# function -> arguments that are right
CALLS = {
    srp.data.from_arrays: {
        "x_train": X, "y_train": Y, "x_test": X + 1, "y_test": Y, "train_indices": [[0], [1]],
        "test_indices": [[2], [3]], "num_classes": 4, "scale": 1.0, "offset": 0.0, "name": "a",
    },
    srp.data.linear_task: defaults(srp.data.linear_task, key=KEY, num_clients=3, dim=6, rank=2),
    srp.data.linear_regression: defaults(srp.data.linear_regression, key=KEY, num_clients=3, samples=4, dim=2),
    srp.data.training_loss: {"data": DATA, "loss": models.cross_entropy},
    srp.data.load: defaults(srp.data.load, name="digits", num_clients=4, classes_per_client=3),
    srp.data.holdout: {"data": DATA, "fraction": 0.4, "seed": 0},
    srp.data.save: {"data": DATA, "path": "saved.npz"},
    srp.data.names: {"data_dir": None},
    srp.data.data_folder: {"data_dir": None},
    srp.data.is_ready: {"name": "digits", "data_dir": None},
    srp.data.prepare: {"names": [], "data_dir": None, "say": print},
    partition.by_classes: {**BOTH, "classes_per_client": 2, "reserved_classes": 1, "reserved_fraction": 0.3},
    partition.shards: {**BOTH, "shards_per_client": 2},
    partition.consecutive: {**BOTH, "classes_per_client": 2, "examples_per_class": 3, "test_fraction": 0.1},
    partition.dirichlet: {**BOTH, "alpha": 0.5},
    partition.lognormal_sizes: {**BOTH, "sigma": 0.5},
    partition.iid: BOTH,
    partition.natural: {"users_train": Y, "users_test": Y, "num_clients": 2, "seed": 0},
    partition.cap_examples: {"indices": [np.arange(4), np.arange(4, 9)], "labels": Y, "max_examples": 2, "seed": 0},
    models.augmentation: {"name": "crop_flip", "dataset": IMAGES},
    models.augmented: {"model": MLP, "augment": models.crop_and_flip()},
    models.crop_and_flip: defaults(models.crop_and_flip),
    models.cnn: defaults(models.cnn, input_shape=(8, 8), num_classes=2),
    models.get: {"name": "mlp", "dataset": DATA, "head_layers": 1, "augment": None, "initialization": None},
    models.initialized: {"model": MLP, "initialization": "torch"},
    models.lenet5: {**defaults(models.lenet5), **LENET},
    models.lenet5_cifar100: {**defaults(models.lenet5_cifar100), **LENET},
    models.lstm: defaults(models.lstm, input_shape=(7,), num_classes=2),
    models.linear_regression: defaults(models.linear_regression, dim=3),
    models.mlp: defaults(models.mlp, input_shape=(7,), num_classes=2),
    models.options: {"name": "mlp"},
    models.split: {
        "name": "m", "layers": [models.Layer("out", nn.Dense(3))], "cut": "out", "input_shape": (3,), "num_classes": 3,
        "dtype": jnp.float32, "loss": models.cross_entropy,
    },
    clocks.constant: {"value": 1.0},
    clocks.exponential: {"rate": 1.0},
    clocks.uniform: {"low": 1.0, "high": 2.0},
    clocks.fixed: {"distribution": EXP, "ordered": False, **TIMES},
    clocks.dynamic: {"distribution": EXP, "ordered": False, **TIMES},
    clocks.trace: {"times": [[1.0, 2.0]], **TIMES},
    **{getattr(participation, name): defaults(getattr(participation, name), k=2) for name in participation.__all__},
    algorithms.sgd: {"learning_rate": 0.1, "momentum": 0.1, "weight_decay": 0.1},
    **{
        make: defaults(make, model=MLP, task=TASK, step_size=0.1, samples_per_round=5)
        for make in (getattr(algorithms, name) for name in algorithms.__all__ if name != "sgd")
        if inspect.isroutine(make)
    },
    srp.methods.get: {
        "name": "srpfl", "dataset": DATA, "model": "mlp", "participation": None, "shared": None, "learning_rate": 0.1,
        "momentum": 0.1, "local_epochs": 1, "initial": 2, "head_layers": 1, "hidden": (3,), "optimizer": None,
    },
    **{getattr(theory, name): defaults(getattr(theory, name), **OF_THEORY) for name in theory.KIND},
}  # fmt: skip


def outcome(function, arguments):
    """ "refused" in one line of our own, "accepted", or what else happens."""
    try:
        function(**arguments)
    except ValueError as error:
        return "refused" if "\n" not in str(error) and is_ours(error) else f"says {str(error)[:100]!r}"
    except Exception as error:
        return f"raises {type(error).__name__}: {str(error)[:100]}"
    return "accepted"


def name_of(function):
    return f"{function.__module__.rpartition('.')[2]}.{function.__name__}"


@pytest.mark.parametrize("function", CALLS, ids=name_of)
def test_wrong_types_are_refused_in_one_line(function):
    right, found = CALLS[function], {}
    for argument in right:
        for kind, value in {**NEVER, **SOMETIMES}.items():
            found[argument, kind] = outcome(function, {**right, argument: value})
    assert not {case: what for case, what in found.items() if what not in ("refused", "accepted")}
    assert not [case for case, what in found.items() if what == "accepted" and case[1] in NEVER]


@pytest.mark.parametrize("function", CALLS, ids=name_of)
def test_numbers_of_numpy_are_numbers(function):
    if function is srp.data.prepare:
        pytest.skip("downloads what is named")
    right = CALLS[function]
    found = {"as given": outcome(function, right)}
    for argument, value in right.items():
        of_kind = NUMPY.get(type(value), ())
        for make in (make for make in of_kind if make(value) == value):
            found[argument, make.__name__] = outcome(function, {**right, argument: make(value)})
    assert set(found.values()) == {"accepted"}, found


@pytest.fixture(autouse=True)
def quick_digits(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # where `save` writes
    monkeypatch.setitem(srp.data.SOURCES, "digits", lambda data_dir: DIGITS)


def functions_of(room, names):
    return {vars(room)[name] for name in names if inspect.isroutine(vars(room)[name])}


def test_every_public_function_is_called():
    own = [name for name, value in vars(partition).items() if getattr(value, "__module__", "") == partition.__name__]
    own = [name for name in own if name[0] != "_"]
    public = functions_of(partition, own) | functions_of(theory, theory.KIND)
    public |= set().union(*(functions_of(r, r.__all__) for r in (srp.data, models, clocks, participation, algorithms)))
    without = {
        models.names,
        models.cross_entropy,
        models.half_square,
        partition.check_tested_classes,
        models.register,
        clocks.register,
    }  # nothing to give, inside programs, or changing a table (tests/test_own_parts.py)
    assert not {name_of(function) for function in public - without - CALLS.keys()}
    for function, arguments in CALLS.items():
        parameters = inspect.signature(function).parameters.values()
        assert {p.name for p in parameters if p.kind is not p.VAR_KEYWORD} <= arguments.keys(), function
