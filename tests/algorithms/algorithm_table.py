"""Table of algorithms: a small instance of each, the data it runs on, and the arguments that it refuses itself."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.small import (
    NUM_CLASSES,
    NUM_FEATURES,
    built,
    clients_of,
    federation,
    model,
)

import fedjax_srp as srp
from fedjax_srp import algorithms
from fedjax_srp.algorithms._template import Template
from fedjax_srp.base import FederatedAlgorithm
from fedjax_srp.data import FederatedData

COUNTS, TEST_COUNTS = (
    (1, 3, 7, 5, 8, 2, 6, 4, 1, 2, 3, 8, 5, 7, 2),
    (4, 5, 1, 6, 3, 5, 3, 2, 2, 4, 1, 3, 6, 5, 4),
)
NUM_CLIENTS = len(COUNTS)


class Row(NamedTuple):
    make: Callable[
        ..., FederatedAlgorithm
    ]  # its options override those of the small instance
    data: Callable[[], Any]
    refuses: tuple[
        dict[str, Any], ...
    ]  # options; the message names the last one with its value
    rounding: float = 1e-5  # tolerance for states when sums are added in another order


def with_padding(data: FederatedData, value: float, label: int) -> FederatedData:
    """Point all padding at one extra example that is full of `value` and has this label."""

    def spare(x, y, indices, counts):
        x = jnp.concatenate([x, jnp.full((1, *x.shape[1:]), value, x.dtype)])
        y = jnp.concatenate([y, jnp.full(1, label, y.dtype)])
        is_padding = np.arange(indices.shape[1])[None] >= np.asarray(counts)[:, None]
        return x, y, jnp.where(is_padding, jnp.int32(len(x) - 1), indices)

    x_train, y_train, train_indices = spare(
        data.x_train, data.y_train, data.train_indices, data.train_counts
    )
    x_test, y_test, test_indices = spare(
        data.x_test, data.y_test, data.test_indices, data.test_counts
    )
    new = {"x_train": x_train, "y_train": y_train, "train_indices": train_indices}
    new |= {"x_test": x_test, "y_test": y_test, "test_indices": test_indices}
    return dataclasses.replace(data, **new)


@functools.cache
def classification() -> FederatedData:
    return with_padding(federation(clients_of(COUNTS, TEST_COUNTS)), 0.0, 0)


@functools.cache
def linear_task():
    return srp.data.linear_task(
        jax.random.key(3), NUM_CLIENTS, dim=6, rank=2, noise_std=0.1
    )


# Options of `Training` and of `ExampleAlgorithm`, checked there and therefore for one algorithm only.
SHARED_REFUSALS = (
    *(
        {"batch_size": 0},
        {"batch_size": 2.5},
        {"fine_tune_epochs": -1},
        {"weighting": "size"},
    ),
    *(
        {"steps": None, "epochs": -2},
        {"steps": None, "epochs": 1.5},
        {"epochs": None, "steps": -2},
    ),
    *({"epochs": 1, "steps": 3}, {"steps": None, "epochs": None}),
)


def small(algorithm, *refuses, split_model=model, rounding=1e-5, **small_options):
    """Row of an algorithm on examples, with a tiny model and SGD with momentum and decay; options by short names."""

    def make(**options):
        given = {
            "optimizer": srp.SGD(0.2, 0.5, 0.01),
            "batch_size": 3,
            "fine_tune_epochs": 2,
        }
        return built(algorithm, split_model(), **given | small_options | options)

    return Row(make, classification, refuses, rounding)


def small_linear(algorithm, *refuses, **small_options):
    """Row of an algorithm on linear tasks."""
    make = lambda **options: algorithm(
        linear_task(), **{"step_size": 0.2} | small_options | options
    )
    return Row(make, linear_task, refuses)


def with_batch_norm():
    """A tiny model with a BatchNorm layer, which FedBN makes personal."""
    dense = [
        nn.Dense(5, use_bias=False),
        nn.Dense(NUM_CLASSES),
    ]  # a bias below BatchNorm does nothing
    layers = [srp.models.Layer(f"fc{i}", module) for i, module in enumerate(dense)]
    # two equal examples in a batch, or one, are divided by the root of epsilon: rounding is not to grow by 300
    layers.insert(
        1, srp.models.Layer("norm", nn.BatchNorm(momentum=0.8, epsilon=0.1), jax.nn.relu)
    )
    return srp.models.Split(
        (NUM_FEATURES,), NUM_CLASSES, layers, name="normalised", cut="fc1"
    )


SIZED = {"weighting": "num_examples"}
UNWEIGHTED = SIZED  # refused by algorithms that weigh all clients alike
TABLE = {
    "apfl": small(algorithms.APFL, {"own_share": -0.1}, {"own_share": 1.1}, own_share=0.4, adaptive=True),
    "ditto": small(algorithms.Ditto, {"penalty": -0.1}, penalty=0.3, **SIZED),
    "fed_mtl": small(
        algorithms.FedMTL, UNWEIGHTED, {"relation_strength": -0.1}, {"norm_strength": -0.1}, relation_strength=0.3,
        norm_strength=0.1,
    ),
    "fedala": small(
        algorithms.FedALA, {"weight_step_size": -0.1}, {"weight_share": 1.5}, {"start_epochs": 0}, start_epochs=2,
        **SIZED,
    ),
    "feddyn": small(algorithms.FedDyn, UNWEIGHTED, {"penalty": 0.0}, penalty=0.3),
    "mifa": small(algorithms.MIFA, UNWEIGHTED),
    "fedvarp": small(algorithms.FedVARP, UNWEIGHTED, {"server_step_size": 0.0}, server_step_size=0.7),
    "fedamp": small(
        algorithms.FedAMP, {"penalty": -0.1}, {"attention_step_size": 0.0}, {"attention_width": 0.0},
        attention_step_size=0.5, attention_width=4.0,
    ),
    "fedpac": small(
        algorithms.FedPAC, {"penalty": -0.1}, {"head_epochs": 0}, penalty=0.5, **SIZED,
        rounding=1e-3,  # weights of mixtures go through a quadratic programme
    ),
    "fedas": small(algorithms.FedAS, {"alignment_step_size": 0.0}, alignment_step_size=0.1),
    "fedat": small(algorithms.FedAT, {"mu": -0.1}, {"num_tiers": 0}, num_tiers=3, **SIZED),
    "fedasync": small(
        algorithms.FedAsync, {"server_step_size": 0.0}, {"server_step_size": 1.5}, {"discount": "linear"},
        {"hinge_slope": -1.0}, {"hinge_start": -1.0}, {"mu": -0.1}, discount="hinge", hinge_start=0.0, mu=0.3, **SIZED,
    ),
    "fedavg": small(algorithms.FedAvg, {"evaluation": "own_head"}, *SHARED_REFUSALS),
    "fedbabu": small(algorithms.FedBABU, **SIZED),
    "fedbn": small(algorithms.FedBN, {"own": "all"}, split_model=with_batch_norm),
    "fedbuff": small(
        algorithms.FedBuff, {"server_step_size": 0.0}, {"staleness_exponent": -0.5}, server_step_size=0.7, **SIZED
    ),
    "fedgate": small(algorithms.FedGATE, {"server_step_size": 0.0}, server_step_size=0.7, **SIZED),
    "fednova": small(algorithms.FedNova, **SIZED),
    "fedopt": small(
        algorithms.FedOpt, {"rule": "sgd"}, {"server_step_size": 0.0}, {"beta1": 1.0}, {"beta2": -0.1}, rule="yogi",
        **SIZED,
    ),
    "fedper": small(algorithms.FedPer, **SIZED),
    "fedproto": small(algorithms.FedProto, {"penalty": -0.1}, penalty=0.5, **SIZED),
    "fedprox": small(algorithms.FedProx, {"mu": -0.1}, mu=0.3),
    "fedrod": small(algorithms.FedRoD, **SIZED),
    "fedrolex": small(algorithms.FedRolex, rates=(0.4, 1.0), **SIZED),
    "fedsgd": small(algorithms.FedSGD),
    "fedrep": small(
        algorithms.FedRep, {"head_epochs": -1}, {"representation_epochs": -1}, {"epochs": 0}, head_epochs=2, epochs=2,
        keeps_optimizer=True, newcomers_take_mean_head=True, **SIZED,
    ),
    "hf_maml": small(
        algorithms.HFMAML, {"inner_steps": 0}, {"support_fraction": 1.0}, {"inner_step_size": -0.1},
        {"difference": 0.0}, support_fraction=0.7,
    ),
    "fjord": small(algorithms.FjORD, rates=(0.4, 1.0)),
    "heterofl": small(algorithms.HeteroFL, {"rates": ()}, rates=(0.4, 1.0)),
    "knn_per": small(
        algorithms.KNNPer, {"num_neighbours": 0}, {"own_share": 1.5}, {"evaluation": "own"}, num_neighbours=3
    ),
    "l2gd": small(
        algorithms.L2GD, {"aggregation_step_size": 1.5}, {"aggregation_probability": -0.1}, aggregation_step_size=0.4,
        aggregation_probability=0.5,
    ),
    "lg_fedavg": small(algorithms.LGFedAvg, split_model=lambda: model("fc2"), epochs=None, steps=3),
    "local_only": small(algorithms.LocalOnly),
    "moon": small(algorithms.MOON, {"mu": -0.1}, {"temperature": 0.0}, mu=0.5),
    "per_fedavg": small(
        algorithms.PerFedAvg, {"support_fraction": 1.0}, {"inner_step_size": -0.1}, {"difference": 0.0},
        inner_step_size=0.1, difference=0.05,
    ),
    "pfedme": small(
        algorithms.PFedMe, {"penalty": -0.1}, {"inner_steps": 0}, {"inner_step_size": 0.0}, {"server_step_size": 0.0},
        penalty=2.0, inner_step_size=0.1, **SIZED,
    ),
    "template": small(Template, {"penalty": -0.1}, **SIZED),  # the file that authors copy
    "scaffold": small(algorithms.SCAFFOLD, UNWEIGHTED, {"server_step_size": 0.0}, server_step_size=0.7),
    "linear_fedavg": small_linear(
        algorithms.LinearFedAvg, {"local_steps": 0}, {"fine_tune_samples": 0}, {"fine_tune_steps": 1.5},
        fine_tune_steps=3,
    ),
    "linear_fedrep": small_linear(
        algorithms.LinearFedRep, {"samples_per_round": 0}, {"evaluation_samples": 0}, {"head": "best"}, {"head": -1},
        {"sampling": "some"}, {"start": "zero"}, samples_per_round=8, head=2, start="random",
    ),
}  # fmt: skip


# `make test` runs every test of these; `make test-long` those of all.
CORE = ("fedavg", "fedrep", "fedbuff", "linear_fedrep")
SHORT = (*CORE, "template")
of_core = pytest.mark.short(*(f"{name}*" for name in SHORT))
