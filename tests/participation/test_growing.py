"""Cohorts that grow by a rule: verdicts against NumPy, cohorts against `Doubling`, gradients of a run by hand."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from policy_helpers import info_of, random_times

import fedjax_srp as srp
from fedjax_srp import participation
from fedjax_srp.participation.cohorts import make_cohort

KEY = jax.random.key(0)
CLIENTS = 16


def told(cohort_size, gradients=None, losses=None):
    """Return the record of a round in which the first clients reported these gradients or losses."""
    cohort = make_cohort(jnp.arange(CLIENTS, dtype=jnp.int32), jnp.int32(cohort_size))
    reports, norm = {}, np.nan
    if gradients is not None:
        norms = np.full(CLIENTS, np.nan)
        norms[:cohort_size] = np.linalg.norm(gradients, axis=1)
        reports["grad_norm"] = jnp.asarray(norms)
        norm = np.linalg.norm(gradients.mean(axis=0))
    if losses is not None:
        of_all = np.full(CLIENTS, np.nan)
        of_all[:cohort_size] = losses
        reports["training_loss"] = jnp.asarray(of_all)
    return info_of(0, cohort, reports)._replace(global_grad_norm=jnp.asarray(norm))


def norm_test(gradients, theta):
    mean = gradients.mean(axis=0)
    variance = gradients.var(axis=0, ddof=1).sum()
    measure = variance / len(gradients) / np.sum(mean**2)
    return measure > theta**2, measure


def diversity(gradients, delta):
    number, mean = len(gradients), gradients.mean(axis=0)
    square = np.sum(mean**2) - gradients.var(axis=0, ddof=1).sum() / number
    mean_square = np.sum(gradients**2) / number
    measure = mean_square / square if square > 0 else np.inf
    return 3 * number <= delta * measure + 1, measure


@pytest.mark.parametrize(
    ("rule", "by_hand", "numbers"),
    [
        (participation.NormTest, norm_test, (0.3, 0.8)),
        (participation.GradientDiversity, diversity, (0.2, 1.0)),
    ],
)
def test_gradients_decide_as_in_numpy(rule, by_hand, numbers):
    rng = np.random.default_rng(0)
    verdicts = []
    with jax.enable_x64(True):
        for number in numbers:
            for size in (2, 5, 16):
                for spread in (0.1, 1.0, 4.0):
                    mean = rng.normal(size=7)
                    gradients = mean + spread * rng.normal(size=(size, 7))
                    verdict = rule(number).judge((), told(size, gradients), 3)
                    is_over, measure = by_hand(gradients, number)
                    assert bool(verdict.is_over) == is_over
                    np.testing.assert_allclose(verdict.measure, measure, rtol=1e-9)
                    verdicts.append(is_over)
    assert {*verdicts} == {True, False}


def test_gradients_without_a_spread_end_no_stage():
    equal = np.tile(np.random.default_rng(1).normal(size=7), (4, 1))
    for rule in (participation.NormTest(0.1), participation.GradientDiversity()):
        for gradients in (equal, equal[:1], equal * np.nan):
            verdict = rule.judge((), told(len(gradients), gradients), 2)
            assert not verdict.is_over


def test_opposed_gradients_ask_for_all_clients():
    gradients = np.random.default_rng(2).normal(size=(4, 7))
    verdict = participation.GradientDiversity().judge(
        (), told(4, gradients - gradients.mean(axis=0)), 2
    )
    assert verdict.is_over
    assert np.isinf(verdict.measure)


def plateau(losses, patience, threshold):
    """Rounds after which a stage ends, as PyTorch's scheduler counts them."""
    best, bad = np.inf, 0
    for loss in losses:
        if loss < best * (1 - threshold):
            best, bad = loss, 0
        elif not np.isnan(loss):
            bad += 1
        yield bad > patience
        if bad > patience:
            best, bad = np.inf, 0


@pytest.mark.parametrize("patience", [0, 2])
def test_a_loss_that_does_not_fall_ends_the_stage(patience):
    rng = np.random.default_rng(3)
    losses = np.abs(np.exp(-np.arange(40) / 4) + 0.05 * rng.normal(size=40)) + 0.1
    losses[3::4] = np.nan
    rule = participation.LossPlateau(patience, threshold=0.05)
    state, verdicts = rule.init(), []
    for loss in losses:
        # the mean over the participants, with one that made no step
        verdict = rule.judge(state, told(3, losses=[loss - 0.01, np.nan, loss + 0.01]), 2)
        state = verdict.state
        verdicts.append(bool(verdict.is_over))
    expected = [*plateau(losses, patience, 0.05)]
    assert verdicts == expected
    assert {*expected} == {True, False}


@srp.part
class Every(participation.GrowthRule):
    """Ends each stage after so many rounds."""

    rounds: int = 2
    needs: ClassVar[tuple[str, ...]] = ()

    def judge(self, state, info, growth):
        is_over = (info.round + 1) % self.rounds == 0
        return participation.Verdict(is_over, info.round.astype(float), state)


@pytest.mark.parametrize(
    "options",
    [{}, {"pool": 9, "by": "expected"}, {"pool": 11, "redraw": "stage", "growth": 3}],
    ids=str,
)
def test_a_rule_that_counts_rounds_is_doubling(options):
    times = random_times(CLIENTS)
    policies = (
        participation.Growing(2, Every(2), **options),
        participation.Doubling(2, 2, **options),
    )
    cohorts = []
    for policy in policies:
        state, of_policy = policy.init(KEY, CLIENTS), []
        for round in range(9):
            key = jax.random.fold_in(KEY, round)
            cohort, state = policy.select(key, state, times)
            state = policy.update(state, info_of(round, cohort))
            of_policy.append(cohort)
        cohorts.append(jax.tree.map(lambda *leaves: np.stack(leaves), *of_policy))
    jax.tree.map(np.testing.assert_array_equal, *cohorts)
    assert cohorts[0].size[0] == 2 < cohorts[0].size[-1]


def run_of(policy, **options):
    data = srp.data.linear_regression(KEY, 8, 20, 3, 1.0, 2.0)
    model = srp.models.LinearRegression((3,))
    training = srp.Training(srp.SGD(0.05), batch_size=20, epochs=2)
    algorithm = srp.algorithms.FedAvg(model, training)
    return data, srp.Simulation(algorithm, data, policy, **options)


@pytest.mark.parametrize("chunk_size", [1, 3])
def test_the_gradients_of_a_run_are_those_of_the_new_model(chunk_size):
    policy = participation.Growing(2, participation.NormTest(0.3))
    data, simulation = run_of(policy, chunk_size=chunk_size)
    state = simulation.init(KEY)
    sizes = []
    for _ in range(5):
        _, cohort = simulation.select(state)
        state, info = simulation.step(state)
        ids = np.asarray(cohort.client_ids[: cohort.size])
        [kernel] = [
            np.asarray(leaf).ravel() for leaf in jax.tree.leaves(state.server.params)
        ]
        gradients = []
        for i in ids:
            client = data.train_client(jnp.int32(int(i)))
            x, y = np.asarray(client.x), np.asarray(client.y).ravel()
            gradients.append(x.T @ (x @ kernel - y) / len(y))
        is_over, measure = norm_test(np.stack(gradients), 0.3)
        np.testing.assert_allclose(info.metrics["growth_measure"], measure, rtol=1e-3)
        assert bool(info.metrics["stage_completed"]) == is_over
        sizes.append(len(ids))
    assert sizes[0] == 2 < sizes[-1]


def test_methods_and_texts_know_the_rules():
    text = "Growing(4, GradientDiversity(delta=0.5), growth=3)"
    data = srp.data.load("digits", num_clients=20, classes_per_client=4)
    model = srp.models.MLP((8, 8), 10, hidden=(4,))
    expected = participation.Growing(4, participation.GradientDiversity(0.5), growth=3)
    method = srp.methods.get("fedavg", dataset=data, model=model, participation=text)
    assert method.participation == expected
    method = srp.methods.get(
        "fedavg",
        dataset=data,
        model=model,
        participation="growing",
        initial=4,
        criterion="GradientDiversity(delta=0.5)",
        growth=3,
    )
    assert method.participation == expected
