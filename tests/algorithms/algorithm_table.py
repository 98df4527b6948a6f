"""Table of algorithms: a small instance of each, and the data it runs on."""

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

COUNTS, TEST_COUNTS = (
    (1, 3, 7, 5, 8, 2, 6, 4, 1, 2, 3, 8, 5, 7, 2),
    (4, 5, 1, 6, 3, 5, 3, 2, 2, 4, 1, 3, 6, 5, 4),
)
NUM_CLIENTS = len(COUNTS)


class Row(NamedTuple):
    make: Callable[
        ..., srp.FederatedAlgorithm
    ]  # its options override those of the small instance
    data: Callable[[], Any]
    rounding: float = 1e-5  # tolerance for states when sums are added in another order


def with_padding(
    data: srp.data.FederatedData, value: float, label: int
) -> srp.data.FederatedData:
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
def classification() -> srp.data.FederatedData:
    return with_padding(federation(clients_of(COUNTS, TEST_COUNTS)), 0.0, 0)


@functools.cache
def linear_task():
    return srp.data.linear_task(
        jax.random.key(3), NUM_CLIENTS, dim=6, rank=2, noise_std=0.1
    )


def small(algorithm, split_model=model, rounding=1e-5, **small_options):
    """Row of an algorithm on examples, with a tiny model and SGD with momentum and decay; options by short names."""

    def make(**options):
        given = {
            "optimizer": srp.SGD(0.2, 0.5, 0.01),
            "batch_size": 3,
            "fine_tune_epochs": 2,
        }
        return built(algorithm, split_model(), **given | small_options | options)

    return Row(make, classification, rounding)


def small_linear(algorithm, **small_options):
    """Row of an algorithm on linear tasks."""
    make = lambda **options: algorithm(
        linear_task(), **{"step_size": 0.2} | small_options | options
    )
    return Row(make, linear_task)


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
TABLE = {
    "afl": small(algorithms.AFL, weight_step_size=0.02),
    "apfl": small(algorithms.APFL, own_share=0.4, adaptive=True),
    "apple": small(
        algorithms.APPLE, relation_step_size=0.05, penalty_rounds=3.0, **SIZED
    ),
    "ditto": small(algorithms.Ditto, penalty=0.3, **SIZED),
    "fed_mtl": small(
        algorithms.FedMTL,
        relation_strength=0.3,
        norm_strength=0.1,
    ),
    "fedala": small(
        algorithms.FedALA,
        start_epochs=2,
        **SIZED,
    ),
    "feddyn": small(algorithms.FedDyn, penalty=0.3),
    "mifa": small(algorithms.MIFA),
    "fedvarp": small(algorithms.FedVARP, server_step_size=0.7),
    "fedcac": small(algorithms.FedCAC, critical_share=0.4, collaboration_rounds=4.0),
    # layer normalization of outputs that are nearly equal divides rounding by little
    "fedcp": small(algorithms.FedCP, alignment_penalty=2.0, **SIZED, rounding=1e-3),
    "gpfl": small(algorithms.GPFL, guidance_penalty=0.1, **SIZED, rounding=3e-3),
    "feddbe": small(algorithms.FedDBE, mean_penalty=2.0, **SIZED),
    "feddwa": small(algorithms.FedDWA, num_neighbours=4),
    "fedfomo": small(algorithms.FedFomo, num_models=3, validation_share=0.3),
    "fedphp": small(algorithms.FedPHP, teaching=0.3, inheritance_rounds=4, **SIZED),
    "fedamp": small(
        algorithms.FedAMP,
        attention_step_size=0.5,
        attention_width=4.0,
    ),
    "fedpac": small(
        algorithms.FedPAC,
        penalty=0.5,
        **SIZED,
        rounding=1e-3,  # weights of mixtures go through a quadratic programme
    ),
    "fedas": small(algorithms.FedAS, alignment_step_size=0.1),
    "fedat": small(algorithms.FedAT, num_tiers=3, **SIZED),
    "asyncsgd": small(algorithms.AsyncSGD, server_step_size=0.7, num_jobs=3, **SIZED),
    "fedcompass": small(algorithms.FedCompass, server_step_size=0.7),
    "fedasync": small(
        algorithms.FedAsync,
        discount="hinge",
        hinge_start=0.0,
        mu=0.3,
        **SIZED,
    ),
    "fedavg": small(algorithms.FedAvg),
    "fedbabu": small(algorithms.FedBABU, **SIZED),
    "fedbn": small(algorithms.FedBN, split_model=with_batch_norm),
    "fedbuff": small(algorithms.FedBuff, server_step_size=0.7, **SIZED),
    "fedgate": small(algorithms.FedGATE, server_step_size=0.7, **SIZED),
    "fednova": small(algorithms.FedNova, **SIZED),
    "fedopt": small(
        algorithms.FedOpt,
        rule="yogi",
        **SIZED,
    ),
    "fedper": small(algorithms.FedPer, **SIZED),
    "fedproto": small(algorithms.FedProto, penalty=0.5, **SIZED),
    "fedprox": small(algorithms.FedProx, mu=0.3),
    "fedrod": small(algorithms.FedRoD, **SIZED),
    "fedrolex": small(algorithms.FedRolex, rates=(0.4, 1.0), **SIZED),
    "fedsgd": small(algorithms.FedSGD),
    "fedrep": small(
        algorithms.FedRep,
        head_epochs=2,
        epochs=2,
        keeps_optimizer=True,
        newcomers_take_mean_head=True,
        **SIZED,
    ),
    "hf_maml": small(
        algorithms.HFMAML,
        support_fraction=0.7,
    ),
    "fjord": small(algorithms.FjORD, rates=(0.4, 1.0)),
    "depthfl": small(algorithms.DepthFL, ramp_rounds=2),
    "sliding_window": small(algorithms.SlidingWindow),
    # singular vectors of near singular values magnify rounding
    "flexlora": small(algorithms.FlexLoRA, rounding=1e-3, ranks=(2, 2)),
    "hetlora": small(algorithms.HetLoRA, ranks=(1, 3)),
    "heterofl": small(algorithms.HeteroFL, rates=(0.4, 1.0)),
    "ifca": small(algorithms.IFCA, num_clusters=3, **SIZED),
    "knn_per": small(algorithms.KNNPer, num_neighbours=3),
    "l2gd": small(
        algorithms.L2GD,
        aggregation_step_size=0.4,
        aggregation_probability=0.5,
    ),
    "lg_fedavg": small(
        algorithms.LGFedAvg, split_model=lambda: model("fc2"), epochs=None, steps=3
    ),
    "local_only": small(algorithms.LocalOnly),
    "moon": small(algorithms.MOON, mu=0.5),
    "per_fedavg": small(
        algorithms.PerFedAvg,
        inner_step_size=0.1,
        difference=0.05,
    ),
    "pfedme": small(
        algorithms.PFedMe,
        penalty=2.0,
        inner_step_size=0.1,
        **SIZED,
    ),
    "q_fedavg": small(algorithms.QFedAvg, q=0.7, **SIZED),
    "template": small(Template, **SIZED),  # the file that authors copy
    "scaffold": small(algorithms.SCAFFOLD, server_step_size=0.7),
    "linear_fedavg": small_linear(
        algorithms.LinearFedAvg,
        fine_tune_steps=3,
    ),
    "linear_fedrep": small_linear(
        algorithms.LinearFedRep,
        samples_per_round=8,
        head=2,
        start="random",
    ),
}


# `make test` runs every test of these; `make test-long` those of all.
CORE = ("fedavg", "fedrep", "fedbuff", "linear_fedrep")
SHORT = (*CORE, "template")
of_core = pytest.mark.short(*(f"{name}*" for name in SHORT))
