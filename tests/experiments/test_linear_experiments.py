"""Scripts of experiments run at smoke scale; parts of the linear ones agree with the papers."""

import argparse
import json
import runpy
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import linear

import fedjax_srp as srp

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
SHORT = ("fedrep/figure1", "fedavg_representation/figure1")
FLANP = [
    *(path.stem for path in sorted((EXPERIMENTS / "flanp").glob("*[0-9].py"))),
    "fixed_target",
    "theorems",
]
LONG = [
    *(f"fedrep/figure{n}" for n in (3, 4, 5, 6)),
    "fedavg_representation/figure3",
    "srpfl/linear_speedup",
]
LONG += [
    "srpfl/asynchronous",
    "flanp/criterion_for_fedrep",
    *(f"flanp/{name}" for name in FLANP),
]
LONG += ["fedrep/figure1_ridge", "fedrep/figure6_controls"]
LONG += [
    "fedrep/samples",
    "srpfl/samples",
    "srpfl/contraction",
    "fedavg_representation/proposition1",
]
SCRIPTS = [*SHORT, *(pytest.param(script, marks=pytest.mark.long) for script in LONG)]


def not_json(constant):
    raise AssertionError(f"{constant} is not JSON")


@pytest.mark.short("fedavg_representation/figure1")
@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_run(script, monkeypatch, tmp_path, capsys):
    path = (EXPERIMENTS / script).with_suffix(".py")
    seeded = path.stem not in FLANP or path.parent.name != "flanp"
    command = [
        str(path),
        "--scale",
        "smoke",
        "--out",
        str(tmp_path),
        *(["--seed", "3"] if seeded else []),
    ]
    for _ in range(1 if seeded else 2):  # the second call loads FLANP's runs
        monkeypatch.setattr(sys, "argv", command)
        runpy.run_path(str(path), run_name="__main__")
    (result,) = tmp_path.glob("*.json")
    facts = json.loads(result.read_text(), parse_constant=not_json)
    assert (facts["scale"], facts.get("seed", 3)) == ("smoke", 3)
    assert facts["results"]
    drawn = not script.startswith(("flanp/table", "flanp/fixed", "flanp/theorems"))
    drawn = drawn and not script.endswith(
        ("samples", "contraction", "proposition1", "ridge", "controls")
    )
    assert result.with_suffix(".png").exists() == drawn
    assert f"wrote {result.with_suffix('')}" in capsys.readouterr().out
    if (
        script == "fedrep/figure1"
    ):  # the least-norm fit of m < d samples misses 1 - m/d of a head of length 1
        assert facts["results"]["Local only"]["final by samples"]["mean"][
            0
        ] == pytest.approx(1 - 5 / 20, abs=0.05)
    if script == "fedavg_representation/figure1":
        assert facts["results"]["D-GD, 1 local update"]["lowest"][-1] > 0.99


@pytest.mark.long
def test_stage_lengths_script_runs(import_from, tmp_path):
    import_from("srpfl")("stage_lengths").main(
        ["--scale", "smoke", "--out", str(tmp_path)]
    )
    rows = np.genfromtxt(
        tmp_path / "stage_lengths_moments.csv", delimiter=",", names=True
    )
    assert sorted(set(rows["length"])) == [1, 3]
    assert sorted(set(rows["factor"])) == [1.1, 1.3, 2.0]
    assert (rows["srpfl"] > 0).all()
    assert (
        rows["srpfl"] < rows["fedrep"]
    ).all()  # rounds with 16 of the 32 clients come first


@pytest.fixture
def synthetic(import_from):
    return import_from("fedrep")("synthetic")


def test_new_clients_share_only_the_representation(synthetic):
    train, new = synthetic.make_tasks(jax.random.key(0), 6, 4, 8, 2, 5)
    assert (train.num_clients, new.num_clients) == (6, 4)
    assert np.array_equal(train.representation, new.representation)
    assert np.allclose(
        np.linalg.norm(np.concatenate([train.heads, new.heads]), axis=1), 1
    )
    assert not np.isin(np.asarray(new.heads), np.asarray(train.heads)).any()
    assert not np.isin(
        np.asarray(synthetic.fixed_samples(new, 5)[0]),
        np.asarray(synthetic.fixed_samples(train, 5)[0]),
    ).any()
    x, y = synthetic.fixed_samples(train, 4000)
    noise = y - np.einsum("nmd,nd->nm", x, train.heads @ train.representation.T)
    assert noise.std() / np.sqrt(5) == pytest.approx(
        1e-3, rel=0.02
    )  # m = 5: labels of features divided by sqrt(5)


def test_fedsgd_is_gradient_descent_on_all_samples(synthetic):
    """One round against jax.grad of the loss that the paper minimises, averaged over clients."""
    train, _ = synthetic.make_tasks(jax.random.key(1), 6, 1, 8, 2, 5)
    algorithm = synthetic.FedSGD(train, step_size=0.5, samples=5)
    x, y = synthetic.fixed_samples(train, 5)
    options = {
        "evaluations": (),
        "eval_every": 1,
        "progress": False,
        "devices": 1,
        "key": jax.random.key(2),
    }

    def loss(model):
        return jnp.mean(jnp.square(x @ (model.representation @ model.head) - y)) / 2

    one, two = (
        srp.simulate(algorithm, train, num_rounds=t, **options).server_state
        for t in (1, 2)
    )
    expected = jax.tree.map(lambda p, g: p - 0.5 * g, one, jax.grad(loss)(one))
    for got, want in zip(two, expected, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-6)


def test_start_is_projected_gradient_descent(synthetic):
    train, _ = synthetic.make_tasks(jax.random.key(3), 30, 1, 8, 2, 6)
    made = synthetic.FedRepFromDescent(
        train, step_size=0.1, samples_per_round=6, sampling="fixed", start="random"
    )
    start = made.init(jax.random.key(4), train).representation
    x, y = (np.asarray(part, np.float64) for part in synthetic.fixed_samples(train, 6))
    theta = np.zeros((30, 8))
    for _ in range(10):
        for i in range(30):
            theta[i] -= 0.5 * x[i].T @ (x[i] @ theta[i] - y[i]) / 6
        u, s, vt = np.linalg.svd(theta, full_matrices=False)
        theta = u[:, :2] * s[:2] @ vt[:2]
    np.testing.assert_allclose(start @ start.T, vt[:2].T @ vt[:2], atol=1e-4)


def test_d_gd_stays_at_the_truths_of_proposition_1(import_from):
    """The NumPy rounds of both methods, from B0 towards B* and its mirror image."""
    truths = import_from("fedavg_representation")("proposition1").truths
    rng = np.random.default_rng(0)
    b0, heads = (
        np.linalg.qr(rng.normal(size=(12, 3)))[0] / np.sqrt(0.4),
        rng.normal(size=(20, 3)),
    )
    mean = heads.mean(axis=0)
    key = jax.random.key(0)
    pair = [
        np.asarray(b, np.float64)
        for b in truths(jnp.float32(b0), jnp.float32(mean), 0.5, True, key)
    ]
    np.testing.assert_allclose(pair[0] @ mean, pair[1] @ mean, atol=1e-5)
    assert linear.distance(*pair) > 2 * 0.5 * np.sqrt(1 - 0.5**2) - 1e-3  # equation 69
    for truth in pair:
        np.testing.assert_allclose(truth.T @ truth, np.eye(3), atol=1e-5)
        for local_steps, lowest, highest in ((1, 0.999, 1.001), (2, 0, 0.5)):
            b, w = b0, np.zeros(3)
            assert linear.distance(b, truth) == pytest.approx(0.5, abs=1e-5)
            for _ in range(60):
                b, w = linear.fedavg_round(b, w, truth, heads, 0.4, local_steps)
            assert lowest <= linear.distance(b, truth) / 0.5 <= highest


def test_unused_samples_of_a_batch_have_no_effect(import_from):
    """Seven samples of which three are used are a batch of three."""
    made = import_from("")("batches").LinearFedRepByBatch
    task = srp.data.linear_task(jax.random.key(0), 4, 9, 2, 0.5)
    algorithm = made(task, step_size=0.1, samples_per_round=7, start="random", batch=3)
    server, client, key = (
        algorithm.init(jax.random.key(1), task),
        task.train_client(jnp.int32(0)),
        jax.random.key(2),
    )
    assert linear.distance(server.representation, task.representation) == pytest.approx(
        0.5, abs=1e-5
    )
    sampler, three = algorithm.sampler(7), srp.linear.samplers.subspace(3)
    batch = sampler.draw(key, server.representation, sampler.locate(*server), client)
    assert np.array_equal(np.abs(batch.y) > 0, np.arange(len(batch.y)) < 3)
    used = batch._replace(
        features=batch.features[:3], y=batch.y[:3], noise=batch.noise[:3]
    )
    heads = [srp.linear.least_squares(part.features, part.y) for part in (batch, used)]
    np.testing.assert_allclose(heads[0], heads[1], rtol=1e-4)
    for got, want in zip(
        sampler.descent(key, batch, heads[1]),
        three.descent(key, used, heads[1]),
        strict=True,
    ):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


@pytest.mark.long
def test_distances_by_batch_agree_with_numpy(import_from):
    """Mean distances after 1, 6 and 15 rounds against the loop over full samples, by their standard error."""
    batches = import_from("")("batches")
    task, trials, rng = (
        srp.data.linear_task(jax.random.key(0), 30, 20, 2, 1.0),
        20,
        np.random.default_rng(0),
    )
    got = batches.distances([task] * trials, (4, 6, 12), 0.25, 15)
    truth, heads = (
        np.asarray(task.representation, np.float64),
        np.asarray(task.heads, np.float64),
    )
    eta = 0.25 / batches.head_values(task)[1] ** 2
    for place, m in enumerate((4, 6, 12)):
        found = np.empty((trials, 15))
        for trial in range(trials):
            other = rng.normal(size=(20, 2))
            b = (
                np.sqrt(0.75) * truth
                + 0.5 * np.linalg.qr(other - truth @ (truth.T @ other))[0]
            )
            for r in range(15):
                drawn = [
                    (x, x @ truth @ w + rng.normal(size=m))
                    for w in heads
                    for x in [rng.normal(size=(m, 20))]
                ]
                b, _ = linear.fedrep_round(b, drawn, eta)
                found[trial, r] = linear.distance(b, truth)
        for r in (0, 5, 14):
            error = np.sqrt((got[:, place, r].var() + found[:, r].var()) / trials)
            assert abs(got[:, place, r].mean() - found[:, r].mean()) < 4 * error


def test_censored_times_give_no_ratio(import_from):
    linear_speedup = import_from("srpfl")("linear_speedup")
    result = {
        "times": {
            "srpfl": [[2.0, 2.0, "inf", "inf"]],
            "fedrep": [[4.0, "inf", 4.0, "inf"]],
        }
    }
    np.testing.assert_array_equal(
        linear_speedup.time_ratios(result, 0), [0.5, np.nan, np.nan, np.nan]
    )


def test_first_cohort_and_stages_of_the_linear_speed_up(import_from):
    """Appendix A's 2 d / (log(N) sigma_max), with the singular value of all heads."""
    speed_up = import_from("srpfl")("linear_speedup")
    task = speed_up.draw_task(256, 0)
    sigma_max = np.linalg.norm(np.asarray(task.heads), 2) / 16
    assert speed_up.first_cohort(task) == np.ceil(200 / (8 * np.log(2) * sigma_max))
    assert speed_up.plain_stages(256, 34, "random") == [
        90,
        30,
        30,
    ]  # 34, 68, 136, then all
    assert speed_up.plain_stages(256, 256, "moments") == []


def test_the_half_of_fedrep_is_kept(import_from, monkeypatch):
    """It does not depend on n0, so a result for another n0 gives the same as a whole measurement."""
    speed_up = import_from("srpfl")("linear_speedup")
    monkeypatch.setattr(speed_up, "FEDREP_ROUNDS", 25)
    monkeypatch.setattr(speed_up, "LAST_STAGE", 2)
    monkeypatch.setattr(speed_up, "STAGE", 3)
    whole = speed_up.measure(64, 2, 0, "moments", "plain")
    assert whole["initial"] == 42
    assert whole["rounds_per_stage"] == [3]
    monkeypatch.setattr(speed_up, "fedrep_half", None)
    known = whole | {"initial": 16, "times": {"fedrep": whole["times"]["fedrep"]}}
    assert speed_up.measure(64, 2, 0, "moments", "plain", known) == whole


def test_the_step_is_too_large_for_nearly_every_first_cohort(import_from):
    """Theorem 4.5 allows 1 / (8 sigma_max^2) for the largest sigma_max of any set, see `linear_speedup.md`."""
    speed_up = import_from("srpfl")("linear_speedup")
    task, _ = speed_up.contest(256, 1, 0, "random")
    heads, rng = np.asarray(task.heads), np.random.default_rng(0)
    initial = speed_up.first_cohort(task)
    largest = lambda rows: srp.theory.max_step_size(
        np.linalg.norm(rows, 2) / np.sqrt(len(rows))
    )
    assert largest(heads) >= speed_up.STEP
    allowed = [
        largest(heads[rng.choice(256, initial, replace=False)]) >= speed_up.STEP
        for _ in range(1000)
    ]
    assert np.mean(allowed) < 0.02


def test_numbers_of_clients_are_measured_once(import_from, monkeypatch, tmp_path):
    linear_speedup = import_from("srpfl")("linear_speedup")
    measured, initial = [], 42

    def measure(num_clients, repeats, seed, init, stages, known):
        measured.append((num_clients, known and known["initial"]))
        both = {name: [[1.0] * repeats] * 3 for name in ("fedrep", "srpfl")}
        found = {
            "num_clients": num_clients,
            "initial": initial,
            "floors": [0.1] * repeats,
            "times": both,
        }
        return found | {"longest": {"fedrep": 2.0, "srpfl": 2.0}}

    monkeypatch.setattr(linear_speedup, "measure", measure)
    monkeypatch.setattr(linear_speedup, "first_cohort", lambda task: initial)

    def call(options):
        command = f"linear_speedup --scale smoke --out {tmp_path} {options}"
        monkeypatch.setattr(sys, "argv", command.split())
        linear_speedup.main()

    call("--clients 128 64")
    call("--clients 64 256")
    initial = 30  # another n0: SRPFL is measured anew
    call("--clients 64")
    call("--seed 1 --clients 256")
    facts = json.loads((tmp_path / "linear_speedup_moments.json").read_text())
    assert measured == [(128, None), (64, None), (256, None), (64, 42), (256, None)]
    assert [result["num_clients"] for result in facts["results"]] == [256]  # seed 1 only


def test_a_script_goes_on_after_a_kill(import_from, tmp_path):
    scripts = import_from("")("scripts")
    args, measured = argparse.Namespace(out=tmp_path / "runs", scale="smoke"), []

    def measure(n, m):
        if len(measured) == 2:
            measured.clear()
            raise KeyboardInterrupt
        measured.append((n, m))
        return {"sum": n + m, "third": 1 / 3}

    for seed in (
        1,
        0,
    ):  # the second call is another one, the third goes on where the second was
        with pytest.raises(KeyboardInterrupt):
            scripts.measure_each(
                args, "sums", ((1, 2), (3, 4), (5, 6)), measure, seed=seed
            )
    found = scripts.measure_each(args, "sums", ((1, 2), (3, 4), (5, 6)), measure, seed=0)
    assert measured == [(5, 6)]
    assert found == [{"sum": value, "third": 1 / 3} for value in (3, 7, 11)]
    assert not list((tmp_path / "runs").iterdir())
