"""Reports of participants to a policy: by client id, independent of chunks and devices."""

from typing import ClassVar

import jax.numpy as jnp
import numpy as np
import pytest
from reference.small import (
    algorithm_of,
    clients_of,
    federation,
    model,
    numbers,
    simulate,
)

import fedjax_srp as srp
from fedjax_srp import ClientOutput
from fedjax_srp.participation import cohorts

COUNTS = (5, 1, 4, 6, 3)
DATA = federation(clients_of(COUNTS, (1,) * 5))
COHORTS = np.array([[0, 2, 3], [1, 4, 0], [4, 2, 1]], np.int32)
NEEDS = ("training_loss", "num_examples")


@srp.part
class Listening(srp.ParticipationPolicy):
    """Takes cohorts from a list; its metrics are the reports of the last round, -1 for clients without one."""

    name: ClassVar[str] = "listening"
    needs: ClassVar[tuple[str, ...]] = NEEDS

    def init(self, key, num_clients):
        return jnp.int32(0), {need: jnp.zeros(num_clients) for need in self.needs}

    def select(self, key, state, times):
        ids = jnp.asarray(COHORTS)[state[0]]
        is_last = (state[0] == 2).astype(jnp.int32)
        cohort = cohorts.make_cohort(
            ids, 3 - is_last
        )  # in the last round the last one does not take part,
        return cohort._replace(work=cohort.work.at[1].add(-is_last)), (
            state[0] + 1,
            state[1],
        )  # one has no work

    def update(self, state, info):
        assert set(info.reports) == set(self.needs)
        return state[0], dict(info.reports)

    def metrics(self, state):
        said = {
            f"{name}_{i}": values[i]
            for name, values in state[1].items()
            for i in range(len(COUNTS))
        }
        return {
            name: jnp.where(jnp.isnan(value), -1.0, value) for name, value in said.items()
        }


@srp.part
class Own(Listening):
    """Needs a report of the algorithm."""

    needs: ClassVar[tuple[str, ...]] = ("value",)


def run(policy, algorithm, data=DATA, **options):
    return simulate(algorithm, data, 3, participation=policy, evaluations=(), **options)


def fedavg():
    return srp.algorithms.FedAvg(
        model(hidden=()), srp.Training(srp.SGD(0.5), batch_size=2, epochs=2)
    )


@pytest.fixture(scope="module")
def alone():
    return run(Listening(), fedavg())


def test_losses_and_examples_are_those_of_the_clients(alone):
    """The mean of the reports is the training loss of the round, which `test_training_loss` checks."""
    for row, (ids, trained) in enumerate(
        [([0, 2, 3],) * 2, ([1, 4, 0],) * 2, ([4, 2], [4])]
    ):
        said = {
            need: np.array([alone.metrics[f"{need}_{i}"][row] for i in range(5)])
            for need in NEEDS
        }
        expected = np.full(5, -1.0)
        expected[ids] = np.array(COUNTS)[ids]
        np.testing.assert_array_equal(said["num_examples"], expected)
        losses = said["training_loss"]
        assert (losses[np.setdiff1d(range(5), trained)] == -1).all()
        np.testing.assert_allclose(
            losses[trained].mean(), alone.metrics["training_loss"][row], rtol=1e-6
        )
        assert len(set(losses[trained])) == len(trained)


@pytest.mark.short("options2")
@pytest.mark.parametrize(
    "options", [{"devices": 3, "chunk_size": 1}, {"chunk_size": 2}, {"devices": 2}]
)
def test_chunks_and_devices_do_not_matter(alone, options):
    other = run(Listening(), fedavg(), **options)
    for name, values in alone.metrics.items():
        np.testing.assert_allclose(other.metrics[name], values, rtol=1e-5, err_msg=name)


@pytest.mark.parametrize("name", ["value", "grad_norm"])
def test_info_of_clients_is_reported(name):
    algorithm = algorithm_of(
        lambda key, broadcast, state, data, context: ClientOutput(
            data, info={name: 10.0 * data}
        )
    )
    policy = srp.part(type("Named", (Own,), {"needs": (name,)}))
    history = run(policy(), algorithm, numbers(1.0, 2.0, 3.0, 4.0, 5.0))
    assert [history.metrics[f"{name}_{i}"].tolist() for i in range(5)] == [
        [10, 10, -1], [-1, 20, -1], [30, -1, 30], [40, -1, -1], [-1, 50, 50],
    ]  # fmt: skip


def test_needs_that_are_one_text_are_refused():
    text = srp.part(type("Text", (Own,), {"needs": "training_loss"}))
    with pytest.raises(
        ValueError,
        match=r"^policy 'text': needs='training_loss' is a text; give \('training_loss',\)$",
    ):
        run(text(), fedavg())


def test_missing_reports_are_refused():
    with pytest.raises(
        ValueError,
        match=r"policy 'own' needs 'value' of every participant and algorithm 'fedavg' has ",
    ):
        run(Own(), fedavg())
    silent = algorithm_of(lambda key, broadcast, state, data, context: ClientOutput(data))
    with pytest.raises(ValueError, match="reports no loss of its local training"):
        run(Listening(), silent, numbers(1.0, 2.0, 3.0, 4.0, 5.0))


def test_the_loss_is_recorded_only_for_a_policy_that_needs_it(alone):
    assert "training_loss" in alone.metrics
    assert "training_loss" not in run(srp.participation.Uniform(3), fedavg()).metrics
