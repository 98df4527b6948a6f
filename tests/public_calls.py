"""Valid arguments of every public function and part, for the tests that spoil one of them."""

import inspect

import flax.linen as nn
import numpy as np
import optax
import pandas as pd
from reference.small import KEY, clients_of, federation, model

import fedjax_srp as srp
from fedjax_srp import algorithms, clocks, messages, models, participation, theory
from fedjax_srp.data import partition
from fedjax_srp.parts import part as parts

MLP, DATA = model(), federation(clients_of((3, 5, 4), (2, 3, 2)))
TASK = srp.data.linear_task(KEY, num_clients=4, dim=6, rank=2)
Y, X = np.arange(40) % 4, np.ones((40, 3), np.float32)
DIGITS = srp.data.RawArrays(
    np.zeros((40, 8, 8), np.uint8), Y, np.zeros((40, 8, 8), np.uint8), Y
)
EXP = clocks.Exponential(1.0)
BOTH = {"y_train": Y, "y_test": Y, "num_clients": 4, "seed": 0}
IMAGES = srp.data.from_arrays(
    np.ones((4, 8, 8)),
    Y[:4],
    np.ones((4, 8, 8)),
    Y[:4],
    train_indices=[[0]],
    test_indices=[[1]],
)


def defaults(function, **values):
    """Return arguments of a function: these values, and the defaults of the others."""
    parameters = inspect.signature(function).parameters
    return {
        name: values.get(name, p.default)
        for name, p in parameters.items()
        if p.kind is not p.VAR_KEYWORD
    }


OF_THEORY = {
    "n": 5, "dim": 5, "i": 2, "rate": 1.0, "sigma_max": 1.0, "step_size": 0.1, "initial_distance": 0.9,
    "sigma_min": 1.0,     "distance": 0.5, "a": 0.02, "ratio": 2.0, "ratios": np.ones(3),
    "num_clients": 8, "initial": 1, "chat": 1.1,
    "communication": 0.0, "start": 3.0, "end": 2.9, "c": 0.1, "times": np.arange(1.0, 9.0), "kappa": 2.0,
    "samples": 10.0, "noise": 0.1, "initial_gap": 1.0, "mu": 0.5, "smoothness": 2.0, "local_steps": 10.0, "before": 2,
}  # fmt: skip

FRAME = pd.DataFrame({"age": range(8), "who": list("aabb") * 2, "what": list("nyny") * 2})

# function -> valid arguments
CALLS = {
    srp.data.from_arrays: {
        "x_train": X, "y_train": Y, "x_test": X + 1, "y_test": Y, "train_indices": [[0], [1]],
        "test_indices": [[2], [3]], "num_classes": 4, "scale": 1.0, "offset": 0.0, "name": "a",
        "client_names": ["ann", "bob"], "class_names": list("abcd"),
    },
    srp.data.from_frame: defaults(srp.data.from_frame, frame=FRAME, user="who", label="what", features=["age"]),
    srp.data.read_partition: {"path": "parts.csv"},
    srp.data.linear_task: defaults(srp.data.linear_task, key=KEY, num_clients=3, dim=6, rank=2),
    srp.data.linear_regression: defaults(srp.data.linear_regression, key=KEY, num_clients=3, samples=4, dim=2),
    srp.data.training_loss: {"data": DATA, "loss": models.cross_entropy},
    srp.data.load: defaults(srp.data.load, name="digits", num_clients=4, classes_per_client=3),
    srp.data.holdout: {"data": DATA, "fraction": 0.4, "seed": 0},
    srp.data.holdout_clients: {
        "data": DATA, "part": "held_out", "fraction": None, "seed": 0, "number": None, "clients": None,
    },
    srp.data.shift_features: {"data": IMAGES, "rotations": (0, 90), "brightness": (1.0, 0.5)},
    srp.data.from_huggingface: defaults(
        srp.data.from_huggingface, dataset={"train": {"image": X, "label": Y}}, num_clients=2
    ),
    srp.data.next_tokens: defaults(
        srp.data.next_tokens, train=[Y.reshape(8, 5)], test=[Y.reshape(8, 5)], num_classes=4
    ),
    srp.data.next_words: defaults(srp.data.next_words, folder="forum", num_clients=1, vocabulary=3, length=2),
    srp.data.save: {"data": DATA, "path": "saved.npz"},
    clocks.read_devices: {
        "path": "devices.csv", "compute": "speed", "downlink": "down", "uplink": "up", "units": {"compute": "1/s"},
        "client": None,
    },
    clocks.read_times: {"path": "times.csv", "client_names": ["ann", "bob"]},
    clocks.read_availability: {"path": "there.csv", "trace": "t"},
    srp.data.names: {"data_dir": None},
    srp.data.data_folder: {"data_dir": None},
    srp.data.is_ready: {"name": "digits", "data_dir": None},
    srp.data.prepare: {"names": [], "data_dir": None, "say": print},
    partition.by_classes: {**BOTH, "classes_per_client": 2, "reserved_classes": 1, "reserved_fraction": 0.3},
    partition.shards: {**BOTH, "shards_per_client": 2},
    partition.consecutive: {**BOTH, "classes_per_client": 2, "examples_per_class": 3, "test_fraction": 0.1},
    partition.dirichlet: {**BOTH, "alpha": 0.5, "min_examples": 2},
    partition.lognormal_sizes: {**BOTH, "sigma": 0.5},
    partition.lognormal_classes: {
        **BOTH, "classes_per_client": 2, "sigma": 0.5, "mean_examples": None, "min_examples": None,
    },
    partition.iid: BOTH,
    partition.natural: {"users_train": Y, "users_test": Y, "num_clients": 2, "seed": 0},
    partition.cap_examples: {"indices": [np.arange(4), np.arange(4, 9)], "labels": Y, "max_examples": 2, "seed": 0},
    models.augmentation: {"name": "crop_flip", "dataset": IMAGES},
    models.get: {"name": "mlp", "dataset": DATA, "head_layers": 1, "augment": None, "initialization": None},
    models.options: {"name": "mlp"},
    models.lora: defaults(models.lora, model=MLP, rank=2, layers=("fc1",)),
    models.from_module: {
        "module": nn.Sequential([nn.Dense(3)]), "input_shape": (5,), "num_classes": 3, "head": "layers_0", "name": "m",
        "loss": models.cross_entropy, "dtype": np.float32,
    },
    srp.optimizer: {"factory": optax.set_to_zero},
    srp.methods.get: {
        "name": "srpfl", "dataset": DATA, "model": "mlp", "participation": None, "shared": None, "learning_rate": 0.1,
        "momentum": 0.1, "epochs": 1, "initial": 2, "head_layers": 1, "hidden": (3,), "optimizer": None,
    },
    **{getattr(theory, name): defaults(getattr(theory, name), **OF_THEORY) for name in theory.KIND},
}  # fmt: skip

# valid values of the required fields of all public parts, by name
IMAGES_OF = {"input_shape": (16, 16, 3), "num_classes": 4}
LENET = {**IMAGES_OF, "channels": (2, 2), "hidden": (3, 3), "dropout_rate": 0.1}
FIELDS = {
    "model": MLP, "task": TASK, "step_size": 0.1, "samples_per_round": 5, "k": 2, "distribution": EXP, "low": 1.0,
    "high": 2.0, "value": 1.0, "limit": 2.0, "times": [[1.0, 2.0]], "input_shape": (7,), "num_classes": 2,
    "layers": (models.Layer("out", nn.Dense(3)),), "clock": clocks.Fixed(EXP), "availability": clocks.DayNight(24.0),
    "on": 2.0, "off": 1.0, "period": 24.0, "starts": [[0.0, 2.0]], "ends": [[1.0, 3.0]],
    "algorithm": algorithms.FedAvg(MLP), "share": 0.1, "codec": messages.Sign(),
    "clip": 0.5, "noise_multiplier": 0.1, "denominator": 4,
    "values": [1.0, 2.0], "compute": 1e9, "downlink": 1e6, "uplink": 1e6,
}  # fmt: skip
OF_CLASS = {
    models.Dropout: {"rate": 0.1},
    models.LeNet5: LENET,
    models.LeNet5CIFAR100: LENET,
    models.CNN: IMAGES_OF,
}
OF_CLASS |= {
    models.ResNet18: {**IMAGES_OF, "channels": (2, 2, 2, 2)},
    models.GPT: {"input_shape": (5,), "num_classes": 9},
    models.TokenLSTM: {"input_shape": (5,), "num_classes": 9},
    models.LinearRegression: {"num_classes": 1},
}
OF_CLASS |= {clocks.Failing: {"rate": 0.1}, clocks.Redrawn: {"every": 2}}
OF_CLASS |= {
    messages.TopK: {"values": None},
    messages.RandomK: {"values": None},
    messages.LowRank: {"values": None},
}
ABSTRACT = {
    messages.Codec,
    models.SplitModel,
    clocks.Distribution,
    clocks.Availability,
    participation.GrowthRule,
}
ROOMS = (algorithms, participation, clocks, messages, models)
PARTS = [
    vars(room)[name]
    for room in ROOMS
    for name in room.__all__
    if parts.is_part(vars(room)[name])
]
PARTS = [cls for cls in (*PARTS, srp.SGD, srp.Training) if cls not in ABSTRACT]


def fields_of(cls):
    """Return valid arguments of a class of parts."""
    return defaults(cls, **FIELDS | OF_CLASS.get(cls, {}))
