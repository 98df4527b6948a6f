"""FLANP's figures and tables: results computed from hand-made runs, and the rules of their settings."""

import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.histories import made_history

import fedjax_srp as srp
from experiments.flanp import (
    criterion_for_fedrep,
    fixed_target,
    panels,
    time_ratios,
    worlds,
)


def history(name, distance, time, stages=None, sizes=None, held=None):
    """A run whose rounds take `time` each."""
    number = len(distance)
    metrics = {"distance": np.array(distance, float)} | (
        {} if held is None else {"stage_completed": np.array(held)}
    )
    more = {} if stages is None else {"stage": stages, "cohort_size": sizes}
    return made_history(
        [0.0] * number,
        np.full(number, float(time)),
        clients=4,
        name=name,
        metrics=metrics,
        **more,
    )


def runs_of(histories, rounds):
    """Two seeds of each method."""
    panel = panels.Panel("by hand", "linear", {}, tuple(histories), rounds, seeds=2)
    return panels.Runs(panel, histories, [world(), world()], {})


def world(seed=0):
    return worlds.linear(seed, None, num_clients=4, samples=30, dim=3)


def test_gap_at_start_is_that_of_the_initial_model():
    """A round with a tiny step size ends where it began."""
    one, key = world(seed=1), jax.random.key(1)
    (run,) = srp.simulate_seeds(
        one.algorithm("fedgate", one.local_steps), one.data, keys=key[None], values={"learning_rate": [1e-9]},
        num_rounds=1, eval_every=1, evaluations=(), clock=one.clock(one.local_steps), progress=False,
    )  # fmt: skip
    assert time_ratios.gap_at_start(one, 1) == pytest.approx(
        run.metrics["gap"][0], rel=1e-4
    )
    assert time_ratios.gap_at_start(one, 1) != pytest.approx(
        time_ratios.gap_at_start(one, 2), rel=1e-2
    )


def test_speed_ups_are_ratios_of_times_to_a_common_value():
    """FLANP's rounds take 1, the rival's 10; both halve the distance in a round, one rival's seed stops at 1."""
    down = [8.0, 4.0, 2.0, 1.0, 0.5, 0.25]
    ours = [history("flanp", down, 1), history("flanp", [2 * d for d in down], 1)]
    theirs = [history("fedgate", down, 10), history("fedgate", [8, 4, 2, 1, 1, 1], 10)]
    runs = runs_of({"flanp": ours, "fedgate": theirs}, 6)
    found = panels.speed_ups(runs, "fedgate")
    assert found["end"] == pytest.approx(1.05)  # the worst seed reaches 1
    np.testing.assert_allclose(found["at_end"], [40 / 4, 40 / 5])
    assert 1.05 <= found["best"] < 8  # the lowest start of all runs
    assert np.mean(found["at_most"]) >= 9


def test_curves_are_resampled_on_a_common_axis():
    runs = runs_of(
        {
            "flanp": [
                history("flanp", [4, 3, 2, 1], 1),
                history("flanp", [40, 30, 20, 10], 2),
            ]
        },
        4,
    )
    times, values = panels.resample(runs, "flanp", "time")
    assert (times[0], times[-1]) == (2.0, 4.0)
    assert values[:, 0].tolist() == [3, 40]  # the last value at or before
    assert values[:, -1].tolist() == [1, 30]


def test_a_run_that_was_killed_while_it_was_stored_runs_again(tmp_path, monkeypatch):
    options = {"num_clients": 4, "samples": 30, "dim": 3}
    panel = panels.Panel("by hand", "linear", options, ("flanp",), 3, seeds=1)
    ran = SimpleNamespace(run=lambda *_: history("flanp", [3, 2, 1], 1))
    monkeypatch.setitem(panels.CURVES, "flanp", ran)

    def killed(file, **arrays):
        Path(file if isinstance(file, Path) else file.name).write_bytes(b"PK")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        for name in ("savez", "savez_compressed"):
            patch.setattr(np, name, killed)
        with pytest.raises(KeyboardInterrupt):
            panels.run(panel, tmp_path, None)
    for _ in range(2):  # the second call loads it
        (found,) = panels.run(panel, tmp_path, None).histories["flanp"]
        assert found.metrics["distance"].tolist() == [3, 2, 1]


def test_completion_is_the_first_round_of_all_clients_that_meets_the_criterion():
    stages, sizes = [0, 0, 1, 1, 1], [2, 2, 4, 4, 4]
    arrives = history("flanp", np.ones(5), 2, stages, sizes, [0, 1, 0, 1, 0])
    assert time_ratios.completion(arrives) == (8.0, 4)
    assert time_ratios.completion(
        history("flanp", np.ones(5), 2, stages, sizes, [0, 1, 0, 0, 0])
    ) == (np.inf, None)
    assert time_ratios.completion(
        history("flanp", np.ones(2), 2, [0, 0], [2, 2], [0, 1])
    ) == (np.inf, None)


def test_rules_of_linear_regression():
    """eta gamma tau = 1 / (2 L); tau from the variance of a batch's gradient at the minimum, estimated here."""
    made = worlds.linear(1, None, num_clients=5, samples=40, dim=3, noise_std=0.7)
    data, c = made.data, 3 * 0.7**2 / 2
    step = made.algorithm("fedgate", made.local_steps).training.optimizer.learning_rate
    assert step * made.local_steps == pytest.approx(1 / (2 * data.curvature.smoothness))
    x, y = (np.asarray(a, np.float64).reshape(200, -1) for a in (data.x, data.y))
    gradients = (x @ np.asarray(data.minimiser, np.float64) - y[:, 0])[:, None] * x
    sampled = 1.5 * 40 * (gradients**2).sum(1).mean() / 10 / c
    assert (
        abs(made.local_steps - sampled) < 0.35 * sampled + 1
    )  # a fourth moment estimated from 200 samples
    assert made.constants["accuracy_constant"] == pytest.approx(c)


@pytest.mark.short("flanp-1")
@pytest.mark.parametrize(("method", "initial"), [("flanp", 1), ("fedgate", 4)])
def test_exact_rounds_agree_with_the_simulator(method, initial):
    """Times, distances and the criterion, round by round; stages of 1, 2 and 4 clients, with unequal Hessians."""
    one = worlds.linear(1, None, num_clients=4, samples=30, dim=3, full_batch=True)
    run = worlds.CURVES[method].run(one, 1, 25, 25)
    found = fixed_target.simulate_exact(one, 1, initial, one.local_steps, 25)
    np.testing.assert_allclose(found.elapsed, run.elapsed(), rtol=1e-5)
    np.testing.assert_allclose(
        found.distance, run.metrics["distance"], rtol=1e-3, atol=1e-5
    )
    np.testing.assert_array_equal(
        found.completed, run.metrics["stage_completed"] * (run.cohort_size == 4) > 0
    )
    assert found.completed.any()


def test_random_steps_are_drawn_anew_for_each_client_and_round():
    policy, ones = (
        worlds.CURVES["fednova_drawn"].policy(world()._replace(local_steps=3)),
        jnp.ones(50),
    )
    times, state = srp.ClientTimes(ones, ones), policy.init(jax.random.key(0), 50)
    first, second = (
        policy.select(jax.random.key(i), state, times)[0].work for i in range(2)
    )
    assert {*first.tolist()} == {*range(1, 6)}  # 1, ..., 2 tau - 1
    assert (first != second).any()


def test_criterion_for_fedrep_begins_with_the_given_seed(monkeypatch):
    loaded = []
    monkeypatch.setattr(
        srp.data, "load", lambda *_, seed, **__: loaded.append(seed) or sys.exit()
    )
    with pytest.raises(SystemExit):
        criterion_for_fedrep.main(["--scale", "smoke", "--seed", "3"])
    assert loaded == [3]


def test_smoothness_of_logistic_regression_bounds_its_hessian():
    """H = mean of (diag p - p p') x (x, 1)(x, 1)', in NumPy, at random weights."""
    data, rng = (
        srp.data.load("digits", 2, partition="iid", max_examples=20),
        np.random.default_rng(0),
    )
    examples = [data.train_client(jnp.int32(i)) for i in range(2)]
    x = np.concatenate(
        [np.asarray(e.x[: e.count], np.float64).reshape(-1, 64) for e in examples]
    )
    x = np.concatenate([x, np.ones((len(x), 1))], axis=1)
    bound, tops = worlds.logistic_smoothness(data), []
    for scale in (0.0, 1.0):
        logits = (
            scale * x[:, :3] @ rng.normal(size=(3, 2))
        )  # two classes: the bound 1/2 is reached at p = (1/2, 1/2)
        p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        classes = np.einsum("ij,jk->ijk", p, np.eye(2)) - np.einsum("ij,ik->ijk", p, p)
        hessian = np.einsum("ijk,il,im->jlkm", classes, x, x).reshape(130, 130) / len(x)
        tops.append(np.linalg.eigvalsh(hessian)[-1] + worlds.PENALTY)
    assert tops[0] == pytest.approx(bound, rel=1e-4)
    assert tops[1] < bound
