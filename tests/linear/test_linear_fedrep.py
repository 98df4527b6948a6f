"""FedRep on linear tasks against NumPy; evaluations, traffic, refusals."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import linear as reference
from reference.small import Run, refused, scripted, simulate

import fedjax_srp as srp
from fedjax_srp import named_key
from fedjax_srp.linear import draw_batch, samplers
from fedjax_srp.rounds.round import stream

ROOT = jax.random.key(11)


@contextlib.contextmanager
def float64():
    """Use double precision, where the engine's integers mix int32 and int64."""
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        yield


def a_task(num_clients=5, dim=9, rank=3, noise_std=0.3, seed=0):
    return srp.data.linear_task(jax.random.key(seed), num_clients, dim, rank, noise_std)


def fedrep(task, samples_per_round=8, *, step_size=0.3, start="random", **options):
    return srp.algorithms.LinearFedRep(
        task, step_size, samples_per_round=samples_per_round, start=start, **options
    )


def run(algorithm, task, rounds=1, chunk_size=2):
    """Return the states before and after some rounds, and the records of the rounds."""
    full = srp.participation.Full()
    made = Run(algorithm, task, full, chunk_size=chunk_size, key=ROOT)
    start = made.host_state()
    segment = made.rounds(rounds)
    return start, made.host_state(), segment.rounds


def batches_of(task, samples, sampling, round_index=0, phase="round"):
    """Return the samples that the clients of a run draw."""
    key_phase = named_key(stream(ROOT, "training", jnp.int32(round_index)), phase)
    out = []
    for i in range(task.num_clients):
        client = task.train_client(jnp.int32(i))
        key = client.key if sampling == "fixed" else jax.random.fold_in(key_phase, i)
        out.append(tuple(np.asarray(part) for part in draw_batch(key, client, samples)))
    return out


def span(b):
    return np.asarray(b) @ np.linalg.pinv(np.asarray(b))


@pytest.mark.short("8-full", "2-fixed")
@pytest.mark.parametrize("sampling", ["full", "fixed"])
@pytest.mark.parametrize("samples", [8, 2])  # 2 < rank: heads of smallest norm
def test_rounds_agree_with_numpy(sampling, samples):
    with float64():
        task = a_task()
        algorithm = fedrep(task, samples, sampling=sampling)
        start, state, rounds = run(algorithm, task, rounds=3)
        b, truth = start.server.representation, np.asarray(task.representation)
        for t, distance in enumerate(rounds.metrics["distance"]):
            b, _ = reference.fedrep_round(b, batches_of(task, samples, sampling, t), 0.3)
            expected = reference.distance(b, truth)
            assert float(distance) == pytest.approx(expected, abs=1e-10)
        assert np.abs(span(state.server.representation) - span(b)).max() < 1e-10


@pytest.mark.short("10")
@pytest.mark.parametrize("steps", [1, 10])
def test_rounds_with_gradient_heads_agree_with_numpy(steps):
    """GD-GD and 10GD-GD: heads continue from their last values, in the server's basis.

    Clients 1 and 2 miss the second round, client 4 does two units of work. Every round of the reference starts from the
    package's Q, since its signs are arbitrary.
    """
    cohorts, sizes = (
        np.array([[0, 1, 2, 3, 4], [3, 0, 4, 2, 1], [2, 4, 1, 0, 3]]),
        (5, 3, 4),
    )
    work = 1 + (cohorts == 4)
    with float64():
        task = a_task()
        algorithm = fedrep(task, 6, head=steps, sampling="full", head_step_size=0.1)
        rounds = Run(
            algorithm, task, scripted(cohorts, sizes, work), chunk_size=2, key=ROOT
        )
        heads = np.zeros((task.num_clients, task.rank))
        for t, size in enumerate(sizes):
            cohort, b = cohorts[t, :size], rounds.host_state().server.representation
            batches = batches_of(task, 6, "full", t)
            number = [steps * units for units in work[t, :size]]
            b, heads[cohort] = reference.fedrep_round(
                b, [batches[i] for i in cohort], 0.3, number, heads[cohort], 0.1
            )
            rounds.rounds()
            state = rounds.host_state()
            assert np.abs(span(state.server.representation) - span(b)).max() < 1e-10
            assert np.abs(np.asarray(state.clients.head) - heads).max() < 1e-10


@pytest.mark.short("fixed")
@pytest.mark.parametrize("sampling", ["full", "fixed"])
def test_method_of_moments_agrees_with_numpy(sampling):
    with float64():
        task = a_task()
        start, _, _ = run(fedrep(task, sampling=sampling, start="moments"), task)
        u = reference.moments(batches_of(task, 8, sampling, 0, "prepare"), task.rank)
        assert np.abs(span(start.server.representation) - span(u)).max() < 1e-10


def test_a_task_of_another_shape_is_refused_and_so_are_moments_that_do_not_fit():
    with refused(r"\(12, 3\), but linear_fedrep was made for \(9, 3\)"):
        simulate(fedrep(a_task()), a_task(dim=12))
    with refused("50000 x 50000 matrix .*; use start='random', or a dim"):
        fedrep(a_task(num_clients=2, dim=50_000), start="moments")


@pytest.mark.short("subspace")
@pytest.mark.parametrize("sampling", ["full", "subspace"])
def test_too_few_samples_stay_finite(sampling):
    """Traffic is that of the paper: the clients' messages, not the shortcut to their mean."""
    algorithm = fedrep(a_task(), 1, step_size=0.1, sampling=sampling)
    history = simulate(algorithm, a_task(), 20, evaluations=())
    assert np.isfinite(history.metrics["distance"]).all()
    assert history.diverged is None
    assert (history.bytes_up, history.bytes_down) == (4 * 27, 4 * 27)  # (d, k) each way


@pytest.mark.short("subspace")
@pytest.mark.parametrize("sampling", ["full", "subspace"])
def test_without_noise_it_converges_to_rounding(sampling):
    task = a_task(num_clients=40, noise_std=0.0)
    algorithm = fedrep(task, 12, step_size=0.2, sampling=sampling, start="moments")
    _, _, rounds = run(algorithm, task, rounds=150, chunk_size=40)
    assert float(rounds.metrics["distance"][-1]) < 3e-6


def test_evaluations_score_the_population_error():
    """At B = B* and without noise the fitted head is the true one; personal heads are scored as they are."""
    task = a_task(noise_std=0.0)
    algorithm = fedrep(task, head=1)
    server = algorithm.init(ROOT, task)._replace(representation=task.representation)
    client = task.train_client(jnp.int32(2))
    state = algorithm.init_client(ROOT, server, client)
    state = state._replace(head=client.head + jnp.array([0.0, 3.0, 4.0]))
    for evaluation, expected in (("fit_head", 0), ("own_head", 25)):
        predict = algorithm.evaluations[evaluation](ROOT, server, state, client)
        error, count = task.score(predict, task.test_client(jnp.int32(2)))
        assert float(error) == pytest.approx(expected, rel=1e-5, abs=1e-9)
        assert float(count) == 1


@pytest.mark.long
def test_error_of_fitted_heads_is_that_of_theory():
    """With B = B*: E ||w - w*||^2 = sigma^2 k / (m - k - 1), the mean of an inverse Wishart matrix."""
    task = a_task(num_clients=2000, noise_std=0.7)
    algorithm = fedrep(task, evaluation_samples=12)
    server = algorithm.init(ROOT, task)._replace(representation=task.representation)

    def judge(client_id):
        predict = algorithm.evaluations["fit_head"](
            jax.random.fold_in(ROOT, client_id), server, (), task.train_client(client_id)
        )
        return task.score(predict, task.test_client(client_id))[0]

    errors = np.asarray(jax.vmap(judge)(jnp.arange(2000)))
    assert abs(errors.mean() - 0.49 * 3 / (12 - 3 - 1)) < 5 * errors.std() / np.sqrt(2000)


def test_both_samplers_have_no_descent_at_the_truth():
    """At B = B*, without noise and with the true heads."""
    task = a_task(noise_std=0.0)
    client, b = task.train_client(jnp.int32(0)), task.representation
    for sampler in (samplers.full(8), samplers.subspace(8)):
        batch = sampler.draw(ROOT, b, sampler.locate(b, b), client)
        message = sampler.descent(ROOT, batch, client.head)
        descent = sampler.mean_descent(ROOT, b, b, message, jnp.int32(1))
        assert np.abs(descent).max() < 1e-5
