"""FedGATE and FedNova on quadratics, and FLANP's criterion in whole runs, in float64."""

import dataclasses
import functools
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import mlp
from reference.small import (
    ALGORITHMS,
    KEY,
    Run,
    built,
    executables,
    federation,
    scripted,
)
from setting import (
    BATCH,
    COUNTS,
    HEAVY,
    SMALL,
    by_layer,
    flat,
    layers_of,
    of_client,
    optimizer,
    split_model,
)

import fedjax_srp as srp
from fedjax_srp import Examples

pytestmark = pytest.mark.usefixtures("float64")


# The gradient of the criterion.


@pytest.mark.short("fedavg", "scaffold")
@pytest.mark.parametrize(
    "name",
    ["fedavg", "fedprox", "fedsgd", "scaffold", "fedgate", "fednova", "fedbn", "pfedme"],
)
def test_the_global_gradient_is_that_of_the_clients_objective(name):
    """The objective is a client's mean loss over its examples, without padding, and the penalty of weight decay."""
    options = {} if name == "scaffold" else {"weighting": "num_examples"}
    algorithm = built(
        ALGORITHMS[name],
        split_model(),
        optimizer=optimizer(HEAVY),
        batch_size=BATCH,
        **options,
    )
    data, one = federation(SMALL()), jnp.int32(1)

    @jax.jit
    def gradients(ids):
        server, context = (
            algorithm.init(KEY, data),
            srp.RoundContext(one, one, one, len(COUNTS), one),
        )

        def of_client(i):
            examples = data.train_client(i)
            state, broadcast = (
                algorithm.init_client(KEY, server, examples),
                algorithm.broadcast(server, context),
            )
            return algorithm.gradient(KEY, broadcast, state, examples, context)

        return server.params, jax.vmap(of_client)(ids)

    params, output = gradients(jnp.arange(len(COUNTS), dtype=jnp.int32))
    params = layers_of(params)
    np.testing.assert_array_equal(
        output.weight, [1.0] * len(COUNTS) if name == "scaffold" else COUNTS
    )
    for i, client in enumerate(SMALL()):
        expected = mlp.gradient(params, client.x, client.y)
        for layer in params:
            expected[layer]["kernel"] += HEAVY.decay * params[layer]["kernel"]
        np.testing.assert_allclose(
            flat(layers_of(of_client(output.message, i))),
            flat(expected),
            rtol=0,
            atol=1e-12,
        )


def test_the_gradient_of_fedrep_is_that_of_the_representation_under_personal_heads():
    algorithm = srp.algorithms.FedRep(
        split_model(), srp.Training(optimizer(HEAVY), batch_size=BATCH), head_epochs=1
    )
    run = Run(algorithm, federation(SMALL()), flanp(2, first_threshold=0.5))
    norms = run.rounds(2).rounds.metrics["global_grad_norm"]
    state = run.host_state()  # of the second round, whose cohort are the two fastest
    cohort = np.argsort(run.client_time, kind="stable")[:2]
    gradients = []
    for i in cohort:
        params = by_layer(
            split_model(), state.server.representation, of_client(state.clients.head, i)
        )
        gradient = mlp.gradient(params, SMALL()[i].x, SMALL()[i].y)
        for layer in state.server.representation:
            gradient[layer]["kernel"] += HEAVY.decay * params[layer]["kernel"]
        gradients.append(
            flat({layer: gradient[layer] for layer in state.server.representation})
        )
    np.testing.assert_allclose(
        norms[1], np.linalg.norm(np.mean(gradients, axis=0)), rtol=1e-9
    )


# A quadratic whose minimum is known: linear regression with clients of different curvature.

NUM_CLIENTS, NUM_EXAMPLES, DIM, STEP = 6, 9, 4, 0.1


def linear_model():
    layer = srp.models.Layer("out", nn.Dense(1, use_bias=False, param_dtype=jnp.float64))
    half_square = lambda outputs, y: 0.5 * (outputs[:, 0] - y) ** 2
    return srp.models.Split(
        (DIM,), 1, (layer,), name="linear", dtype=jnp.float64, loss=half_square
    )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Regression:
    """Linear regression of every client on its own examples."""

    x: jax.Array  # (num_clients, examples, DIM)
    y: jax.Array  # (num_clients, examples)
    name, num_classes, example_shape = "regression", 1, (DIM,)

    @property
    def num_clients(self):
        return self.x.shape[0]

    def train_client(self, client_id):
        return Examples(self.x[client_id], self.y[client_id], jnp.int32(self.x.shape[1]))

    test_client = train_client

    def score(self, predict, test):
        return jnp.sum((predict(test.x)[:, 0] - test.y) ** 2), jnp.ones(())


class Quadratic(NamedTuple):
    data: Regression
    hessians: np.ndarray  # of each client
    minima: np.ndarray

    def minimum(self, ids):
        """Return the minimum of the mean loss of these clients."""
        slope = np.einsum("ijk,ik->j", self.hessians[ids], self.minima[ids])
        return np.linalg.solve(self.hessians[ids].sum(0), slope)

    def gradient_norm(self, w, ids):
        return np.linalg.norm(
            np.einsum("ijk,ik->ij", self.hessians[ids], w - self.minima[ids]).mean(0)
        )


@functools.cache
def quadratic():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(NUM_CLIENTS, NUM_EXAMPLES, DIM)) * rng.uniform(
        0.4, 1.6, size=(NUM_CLIENTS, 1, DIM)
    )
    y = np.einsum("ijk,ik->ij", x, rng.normal(size=(NUM_CLIENTS, DIM)))
    hessians = np.einsum("ijk,ijl->ikl", x, x) / NUM_EXAMPLES
    minima = np.linalg.solve(
        hessians, np.einsum("ijk,ij->ik", x, y)[..., None] / NUM_EXAMPLES
    )[..., 0]
    with jax.enable_x64(True):
        return Quadratic(Regression(jnp.asarray(x), jnp.asarray(y)), hessians, minima)


@functools.cache
def on_quadratic(name):
    """Return an algorithm with four full-batch steps a unit of work; cached, so that runs share programs."""
    options = {"optimizer": srp.SGD(STEP), "batch_size": NUM_EXAMPLES, "epochs": 4}
    return built(ALGORITHMS[name], linear_model(), **options)


def run_on_quadratic(name, policy, devices=1, chunk_size=None):
    return Run(
        on_quadratic(name),
        quadratic().data,
        policy,
        clock=TIMES,
        devices=devices,
        chunk_size=chunk_size,
    )


TIMES_BY_CLIENT = np.array([5.0, 1.0, 3.0, 2.0, 8.0, 4.0])
TIMES = srp.clocks.Fixed(srp.clocks.Constant(TIMES_BY_CLIENT))
FASTEST = np.array([1, 3, 2, 5, 0, 4])
UNITS = (1, 2, 3, 1, 1, 2)
UNEQUAL = scripted([range(NUM_CLIENTS)], work=[UNITS])


def model_of(run):
    return np.asarray(run.host_state().server.params.head["out"]["kernel"][:, 0])


def test_unequal_steps_do_not_move_the_minimum_of_fedgate():
    """In the printed algorithm they do: Delta leans towards the clients that take more steps."""
    run = run_on_quadratic("fedgate", UNEQUAL)
    run.rounds(400)
    np.testing.assert_allclose(
        model_of(run), quadratic().minimum(np.arange(NUM_CLIENTS)), atol=1e-9
    )


def test_participants_without_work_do_not_affect_the_direction():
    """FedGATE finds the minimum of the others and keeps their tracking at 0."""
    units = np.array([1, 0, 2, 1, 0, 3])
    busy, world = np.flatnonzero(units), quadratic()
    policy = scripted([range(NUM_CLIENTS)], work=[units])
    run = run_on_quadratic("fedgate", policy)
    run.rounds(400)
    np.testing.assert_allclose(model_of(run), world.minimum(busy), atol=1e-9)
    tracking = run.host_state().clients.tracking.head["out"]["kernel"][..., 0]
    np.testing.assert_allclose(np.linalg.norm(tracking, axis=1)[units == 0], 0, atol=0)
    assert np.linalg.norm(tracking, axis=1)[busy].min() > 0.01


# FLANP in whole runs.

CONSTANTS = {
    "strong_convexity": 0.2,
    "accuracy_constant": 1.0,
    "samples_per_client": NUM_EXAMPLES,
}


def flanp(initial=1, **options):
    return srp.participation.StatisticalAccuracy(initial, **options)


@pytest.mark.short("{}", "{'first_threshold'*")
@pytest.mark.parametrize(
    "constants", [CONSTANTS, {}, {"first_threshold": 0.1, "shrinkage": 0.7}], ids=str
)
def test_a_stage_ends_with_the_round_after_which_the_criterion_holds(constants):
    """All rounds run in one call of one program, without the host and without tracing again."""
    run, world = (
        run_on_quadratic("fedgate", flanp(**constants), devices=2, chunk_size=2),
        quadratic(),
    )
    one = run_on_quadratic("fedgate", flanp(**constants))
    info = run.rounds(40).rounds
    assert executables(run.program) == {"start": 1, "rounds": 1}
    stage, sizes, first = 0, [1, 2, 4, 6], None
    for t in range(40):
        n = sizes[stage]
        assert (info.stage[t], info.cohort_size[t]) == (stage, n)
        assert (
            info.compute_time[t] == np.sort(TIMES_BY_CLIENT)[n - 1]
        )  # nested: the slowest is the n-th fastest
        one.rounds()
        norm = world.gradient_norm(model_of(one), FASTEST[:n])
        first = norm if first is None else first
        if constants == CONSTANTS:
            threshold = np.sqrt(2 * 0.2 * 1.0 / (n * NUM_EXAMPLES))
        else:
            threshold = (
                first
                * constants.get("first_threshold", 1.0)
                * constants.get("shrinkage", 0.5) ** stage
            )
        np.testing.assert_allclose(
            info.metrics["global_grad_norm"][t], norm, rtol=1e-9, atol=1e-13
        )
        np.testing.assert_allclose(
            info.metrics["grad_norm_threshold"][t], threshold, rtol=1e-9
        )
        assert info.metrics["stage_completed"][t] == (norm <= threshold)
        stage = min(stage + (norm <= threshold), 3)
    assert set(info.stage) == {0, 1, 2, 3}
