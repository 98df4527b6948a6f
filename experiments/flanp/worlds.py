"""Federations, algorithms and policies of FLANP's experiments, with rules for what the paper leaves open.

The rules are the same for every method and were chosen before any ratio was computed:

* linear regression: c = d sigma^2 / 2, logistic regression: c = p / 2, so that c / (n s) is the expected excess loss of
  the minimum over n s samples (d, p: numbers of parameters); mu and L from the data;
* linear regression: eta gamma tau = 1 / (2 L) and tau = 1.5 s sigma_g^2 / c (Theorem 1), with gamma = 1, batches of 10;
* logistic regression: eta = 1 / L, gamma = 1, tau = 10, batches of 32; penalty 0.01 |W|^2 / 2, weight decay of SGD;
* networks: the paper's eta and gamma = 1; tau = 10, batches of 20; stages end by the heuristic, as mu is not known.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np

import fedjax_srp as srp
from fedjax_srp import theory
from fedjax_srp.driver.adapt import params_of

SPEEDS = {
    "uniform": srp.clocks.Uniform(50.0, 500.0),
    "exponential": srp.clocks.Exponential(1.0),
}
BATCH = {"linear": 10, "logistic": 32, "network": 20}
PENALTY = 0.01
ON_TIME = 0.5  # share of FedNova's clients that do all steps; the paper does not say


class World(NamedTuple):
    """Federation of one seed, with the training and the speeds of its clients."""

    data: Any
    local_steps: int  # tau
    speeds: str
    initial: int  # n0
    algorithm: Callable[
        [str, int], srp.FederatedAlgorithm
    ]  # of a name and the local steps of a unit of work
    constants: Mapping[str, float]  # of the criterion; empty: the heuristic
    metric: str | None  # on the y axis of curves; None: the training loss

    def clock(self, local_steps: int) -> srp.Clock:
        """Return the clock for units of work of `local_steps` steps, each of which takes client i the time T_i."""
        return srp.clocks.Fixed(SPEEDS[self.speeds], work=float(local_steps))


class _Progress:
    """Distance and gap to the minimum, recorded in every round of linear regression."""

    def metrics(self, server: Any, data: Any) -> dict[str, jax.Array]:
        weights = server.params.head["out"]["kernel"][:, 0]
        return {"distance": data.distance(weights), "gap": data.gap(weights)}


@srp.part
class _FedAvg(_Progress, srp.algorithms.FedAvg):
    name: ClassVar[str] = "fedavg"


@srp.part
class _FedGATE(_Progress, srp.algorithms.FedGATE):
    name: ClassVar[str] = "fedgate"


@srp.part
class _FedNova(_Progress, srp.algorithms.FedNova):
    name: ClassVar[str] = "fednova"


REGRESSION_ALGORITHMS = {cls.name: cls for cls in (_FedAvg, _FedGATE, _FedNova)}
IMAGE_ALGORITHMS = {
    cls.name: cls
    for cls in (srp.algorithms.FedAvg, srp.algorithms.FedGATE, srp.algorithms.FedNova)
}


@functools.cache
def linear(
    seed: int,
    data_dir: Path | None,
    *,
    num_clients: int,
    samples: int,
    speeds: str = "exponential",
    dim: int = 20,
    noise_std: float = 1.0,
    condition: float = 10.0,
    initial: int = 1,
    full_batch: bool = False,
) -> World:
    """Linear regression with new data for each seed; `full_batch`: exact gradients and tau = 10."""
    del data_dir
    data = srp.data.linear_regression(
        jax.random.key(seed), num_clients, samples, dim, noise_std, condition
    )
    mu, smoothness = data.curvature
    c = dim * noise_std**2 / 2
    batch_size = samples if full_batch else min(BATCH["linear"], samples)
    noise = (
        noise_std**2 * float(np.trace(data.hessian)) / batch_size
    )  # variance of a batch's gradient at the minimum
    tau = 10 if full_batch else math.ceil(theory.flanp_local_steps(samples, noise, c))

    def algorithm(name: str, steps: int) -> srp.FederatedAlgorithm:
        work = {"epochs": steps} if full_batch else {"epochs": None, "steps": steps}
        training = srp.Training(srp.SGD(1 / (2 * smoothness * tau)), batch_size, **work)
        return REGRESSION_ALGORITHMS[name](srp.models.LinearRegression((dim,)), training)

    constants = {
        "strong_convexity": mu,
        "accuracy_constant": c,
        "samples_per_client": float(samples),
    }
    return World(data, tau, speeds, initial, algorithm, constants, "distance")


def logistic_smoothness(data: srp.data.FederatedData) -> float:
    """L of multinomial logistic regression: half the top eigenvalue of the mean of (x, 1)(x, 1)', plus the penalty."""
    rows = np.asarray(data.train_indices)
    x = np.asarray(data.model_input(data.x_train[rows.reshape(-1)])).reshape(
        rows.size, -1
    )
    x = np.concatenate([x, np.ones((len(x), 1), x.dtype)], axis=1)
    return float(np.linalg.eigvalsh(x.T @ x / len(x))[-1]) / 2 + PENALTY


@functools.cache
def _load(
    name: str, num_clients: int, samples: int, seed: int, data_dir: Path | None
) -> srp.data.FederatedData:
    return srp.data.load(
        name,
        num_clients,
        partition="iid",
        max_examples=samples,
        seed=seed,
        data_dir=data_dir,
    )


@functools.cache
def _image_algorithm(
    name: str,
    shape: tuple[int, ...],
    hidden: tuple[int, ...],
    step: float,
    decay: float,
    batch: int,
    local_steps: int,
) -> srp.FederatedAlgorithm:
    model = srp.models.MLP(shape, 10, hidden)
    optimizer = srp.SGD(step, weight_decay=decay)
    return IMAGE_ALGORITHMS[name](
        model, srp.Training(optimizer, batch, epochs=None, steps=local_steps)
    )


@functools.cache
def logistic(
    seed: int,
    data_dir: Path | None,
    *,
    name: str,
    num_clients: int,
    samples: int,
    initial: int = 1,
) -> World:
    """Multinomial logistic regression: a model without hidden layers, its penalty as weight decay of SGD."""
    data = _load(name, num_clients, samples, seed, data_dir)
    step = float(f"{1 / logistic_smoothness(data):.2g}")
    shape = data.example_shape
    num_params = 10 * (math.prod(shape) + 1)
    constants = {
        "strong_convexity": PENALTY, "accuracy_constant": num_params / 2, "samples_per_client": float(samples),
    }  # fmt: skip
    algorithm = lambda name, steps: _image_algorithm(
        name, shape, (), step, PENALTY, BATCH["logistic"], steps
    )
    data_with_loss = srp.data.training_loss(data, srp.models.cross_entropy)
    return World(data_with_loss, 10, "uniform", initial, algorithm, constants, None)


@functools.cache
def network(
    seed: int,
    data_dir: Path | None,
    *,
    name: str,
    num_clients: int,
    samples: int,
    step: float,
    speeds: str = "uniform",
    initial: int = 1,
) -> World:
    """Network with hidden layers of 128 and 64."""
    data = _load(name, num_clients, samples, seed, data_dir)
    shape = data.example_shape
    algorithm = lambda name, steps: _image_algorithm(
        name, shape, (128, 64), step, 0.0, BATCH["network"], steps
    )
    data_with_loss = srp.data.training_loss(data, srp.models.cross_entropy)
    return World(data_with_loss, 10, speeds, initial, algorithm, {}, None)


class Curve(NamedTuple):
    """A method of a figure."""

    label: str
    color: str
    algorithm: str
    policy: Callable[[World], srp.ParticipationPolicy]
    by_step: bool = False  # a unit of work is one local step instead of tau
    style: str = "-"

    def options(
        self, world: World, seed: int, num_rounds: int, eval_every: int
    ) -> dict[str, Any]:
        """Return the options of a run; with the same seed all methods have the same stragglers."""
        steps = 1 if self.by_step else world.local_steps
        found = {
            "method": world.algorithm(self.algorithm, steps),
            "participation": self.policy(world),
            "data": world.data,
            "clock": world.clock(steps),
            "seed": seed,
            "num_rounds": num_rounds,
        }
        if world.metric:  # recorded in every round
            return found | {"eval_every": num_rounds, "evaluations": (), "devices": 1}
        return found | {"eval_every": eval_every, "models": True}


def _stages(world: World, **options: Any) -> srp.ParticipationPolicy:
    """FLANP's stages, which end by the heuristic unless the options are the constants of the criterion.

    The heuristic's first threshold is half of the first norm, unless the options say otherwise.
    """
    return srp.participation.StatisticalAccuracy(
        **{"initial": world.initial, "first_threshold": 0.5} | options
    )


def _all_clients(world: World) -> srp.ParticipationPolicy:
    """All clients in one stage, which ends by the criterion if its constants are known."""
    if world.constants:
        return _stages(world, initial=world.data.num_clients, **world.constants)
    return srp.participation.Full()


@srp.part
class RandomWork(srp.participation.Full):
    """All clients, each with a number of steps drawn in every round, uniform on 1, ..., 2 tau - 1."""

    name: ClassVar[str] = "random_work"

    local_steps: int

    def select(self, key: jax.Array, state: Any, times: Any) -> tuple[Any, Any]:
        cohort, state = super().select(key, state, times)
        drawn = jax.random.randint(
            srp.named_key(key, "steps"), cohort.work.shape, 1, 2 * self.local_steps
        )
        return cohort._replace(work=drawn.astype(cohort.work.dtype)), state


SUBSET_POLICIES = {
    "random": srp.participation.Uniform,
    "fastest": srp.participation.Fastest,
}
SHRINKAGE = 0.5**0.5  # of a threshold proportional to c / (n s); the heuristic's is 0.5
CURVES = {
    "flanp": Curve("FLANP", "#0072B2", "fedgate", lambda world: _stages(world, **world.constants)),
    "heuristic": Curve("FLANP, heuristic", "#56B4E9", "fedgate", _stages),
    "tuned": Curve(
        "FLANP, tuned heuristic", "#009E73", "fedgate", lambda world: _stages(world, first_threshold=0.25)
    ),
    "whole": Curve(
        "FLANP, heuristic from the first norm", "#CC79A7", "fedgate", lambda world: _stages(world, first_threshold=1.0)
    ),
    "gentle": Curve("FLANP by 1/sqrt(2)", "#56B4E9", "fedgate", lambda world: _stages(world, shrinkage=SHRINKAGE)),
    "half": Curve(
        "FLANP, n0 = N / 2", "#56B4E9", "fedgate",
        lambda world: _stages(world, initial=world.data.num_clients // 2, **world.constants),
    ),
    "early": Curve(
        "FLANP from the first norm", "#009E73", "fedgate",
        lambda world: _stages(world, first_threshold=1.0, shrinkage=SHRINKAGE),
    ),
    "fedgate": Curve("FedGATE", "#D55E00", "fedgate", _all_clients, style="--"),
    "fedavg": Curve("FedAvg", "#333333", "fedavg", _all_clients, style=":"),
    "fednova": Curve(
        "FedNova", "#882255", "fednova",
        lambda world: srp.participation.PartialWork(world.local_steps, ON_TIME), by_step=True, style="-.",
    ),
    "fednova_drawn": Curve(
        "FedNova with random steps", "#CC79A7", "fednova", lambda world: RandomWork(world.local_steps), by_step=True,
        style="-.",
    ),
    **{
        f"{kind}{k}": Curve(
            f"FedGATE, {k} {kind}", color, "fedgate",
            lambda world, k=k, kind=kind: SUBSET_POLICIES[kind](k),
            style=style,
        )
        for kind, style in (("random", "--"), ("fastest", "-."))
        for k, color in ((5, "#E69F00"), (10, "#009E73"), (25, "#CC79A7"))
    },
}  # fmt: skip


def test_accuracy(history: srp.History, world: World) -> float:
    """Accuracy of the last model of a run on the test examples of all clients."""
    data = world.data.data
    params = params_of(history.server_state)
    layers = params.representation
    hidden = tuple(layers[name]["bias"].shape[0] for name in sorted(layers))
    model = srp.models.MLP(data.example_shape, 10, hidden)
    x, y = data.model_input(data.x_test), np.asarray(data.y_test)
    return float(np.mean(np.argmax(np.asarray(model.logits(params, x)), axis=1) == y))


WORLDS = {"linear": linear, "logistic": logistic, "network": network}
