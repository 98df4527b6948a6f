"""Scripts of experiments run at smoke scale; parts of the linear ones agree with the papers."""

import json
import runpy
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_srp as srp

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
SHORT = ("fedrep/figure1", "fedavg_representation/figure1")
FLANP = [*(path.stem for path in sorted((EXPERIMENTS / "flanp").glob("*[0-9].py"))), "fixed_target", "theorems"]
LONG = [*(f"fedrep/figure{n}" for n in (3, 4, 5, 6)), "fedavg_representation/figure3", "srpfl/linear_speedup"]
LONG += ["srpfl/asynchronous", "flanp/criterion_for_fedrep", *(f"flanp/{name}" for name in FLANP)]
SCRIPTS = [*SHORT, *(pytest.param(script, marks=pytest.mark.long) for script in LONG)]


def not_json(constant):
    raise AssertionError(f"{constant} is not JSON")


@pytest.mark.short("fedavg_representation/figure1")
@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_run(script, import_from, monkeypatch, tmp_path, capsys):
    path = (EXPERIMENTS / script).with_suffix(".py")
    import_from(path.parent)
    seeded = path.stem not in FLANP or path.parent.name != "flanp"
    command = [str(path), "--scale", "smoke", "--out", str(tmp_path), *(["--seed", "3"] if seeded else [])]
    for _ in range(1 if seeded else 2):  # the second call loads FLANP's runs
        monkeypatch.setattr(sys, "argv", command)
        runpy.run_path(str(path), run_name="__main__")
    (result,) = tmp_path.glob("*.json")
    facts = json.loads(result.read_text(), parse_constant=not_json)
    assert (facts["scale"], facts.get("seed", 3)) == ("smoke", 3)
    assert facts["results"]
    drawn = not script.startswith(("flanp/table", "flanp/fixed", "flanp/theorems"))
    assert result.with_suffix(".png").exists() == drawn
    assert f"wrote {result.with_suffix('')}" in capsys.readouterr().out
    if script == "fedrep/figure1":  # the least-norm fit of m < d samples misses 1 - m/d of a head of length 1
        assert facts["results"]["Local only"]["final by samples"]["mean"][0] == pytest.approx(1 - 5 / 20, abs=0.05)
    if script == "fedavg_representation/figure1":
        assert facts["results"]["D-GD, 1 local update"]["lowest"][-1] > 0.99


@pytest.mark.long
def test_stage_lengths_script_runs(import_from, tmp_path):
    import_from("srpfl")("stage_lengths").main(["--scale", "smoke", "--out", str(tmp_path)])
    rows = np.genfromtxt(tmp_path / "stage_lengths_moments.csv", delimiter=",", names=True)
    assert sorted(set(rows["length"])) == [1, 3]
    assert sorted(set(rows["factor"])) == [1.1, 1.3, 2.0]
    assert (rows["srpfl"] > 0).all()
    assert (rows["srpfl"] < rows["fedrep"]).all()  # rounds with 16 of the 32 clients come first


@pytest.fixture
def synthetic(import_from):
    return import_from("fedrep")("synthetic")


def test_new_clients_share_only_the_representation(synthetic):
    train, new = synthetic.make_tasks(jax.random.key(0), 6, 4, 8, 2, 5)
    assert (train.num_clients, new.num_clients) == (6, 4)
    assert np.array_equal(train.representation, new.representation)
    assert np.allclose(np.linalg.norm(np.concatenate([train.heads, new.heads]), axis=1), 1)
    assert not np.isin(np.asarray(new.heads), np.asarray(train.heads)).any()
    assert not np.isin(
        np.asarray(synthetic.fixed_samples(new, 5)[0]), np.asarray(synthetic.fixed_samples(train, 5)[0])
    ).any()
    x, y = synthetic.fixed_samples(train, 4000)
    noise = y - np.einsum("nmd,nd->nm", x, train.heads @ train.representation.T)
    assert noise.std() / np.sqrt(5) == pytest.approx(1e-3, rel=0.02)  # m = 5: labels of features divided by sqrt(5)


def test_fedsgd_is_gradient_descent_on_all_samples(synthetic):
    """One round against jax.grad of the loss that the paper minimises, averaged over clients."""
    train, _ = synthetic.make_tasks(jax.random.key(1), 6, 1, 8, 2, 5)
    algorithm = synthetic.FedSGD(train, step_size=0.5, samples=5)
    x, y = synthetic.fixed_samples(train, 5)
    options = {"evaluations": (), "eval_every": 1, "progress": False, "devices": 1, "key": jax.random.key(2)}

    def loss(model):
        return jnp.mean(jnp.square(x @ (model.representation @ model.head) - y)) / 2

    one, two = (srp.simulate(algorithm, train, num_rounds=t, **options).server_state for t in (1, 2))
    expected = jax.tree.map(lambda p, g: p - 0.5 * g, one, jax.grad(loss)(one))
    for got, want in zip(two, expected, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-6)


def test_start_is_projected_gradient_descent(synthetic):
    train, _ = synthetic.make_tasks(jax.random.key(3), 30, 1, 8, 2, 6)
    made = synthetic.FedRepFromDescent(train, step_size=0.1, samples_per_round=6, sampling="fixed", start="random")
    start = made.init(jax.random.key(4), train).representation
    x, y = (np.asarray(part, np.float64) for part in synthetic.fixed_samples(train, 6))
    theta = np.zeros((30, 8))
    for _ in range(10):
        for i in range(30):
            theta[i] -= 0.5 * x[i].T @ (x[i] @ theta[i] - y[i]) / 6
        u, s, vt = np.linalg.svd(theta, full_matrices=False)
        theta = u[:, :2] * s[:2] @ vt[:2]
    np.testing.assert_allclose(start @ start.T, vt[:2].T @ vt[:2], atol=1e-4)


def test_censored_times_give_no_ratio(import_from):
    linear_speedup = import_from("srpfl")("linear_speedup")
    result = {"times": {"srpfl": [[2.0, 2.0, "inf", "inf"]], "fedrep": [[4.0, "inf", 4.0, "inf"]]}}
    np.testing.assert_array_equal(linear_speedup.time_ratios(result, 0), [0.5, np.nan, np.nan, np.nan])


def test_the_step_is_too_large_for_nearly_every_set_of_16_heads(import_from):
    """Theorem 4.5 allows 1 / (8 sigma_max^2) for the largest sigma_max of any set, see `linear_speedup.md`."""
    speed_up = import_from("srpfl")("linear_speedup")
    task, _ = speed_up.contest(256, 1, 0, "random")
    heads, rng = np.asarray(task.heads), np.random.default_rng(0)
    largest = lambda rows: srp.theory.max_step_size(np.linalg.norm(rows, 2) / np.sqrt(len(rows)))  # noqa: E731
    assert largest(heads) >= speed_up.STEP
    allowed = [largest(heads[rng.choice(256, 16, replace=False)]) >= speed_up.STEP for _ in range(1000)]
    assert np.mean(allowed) < 0.01


def test_numbers_of_clients_are_measured_once(import_from, monkeypatch, tmp_path):
    linear_speedup = import_from("srpfl")("linear_speedup")
    measured = []

    def measure(num_clients, repeats, seed, init, stages):
        measured.append(num_clients)
        both = {name: [[1.0] * repeats] * 3 for name in ("fedrep", "srpfl")}
        found = {"num_clients": num_clients, "floors": [0.1] * repeats, "times": both}
        return found | {"longest": {"fedrep": 2.0, "srpfl": 2.0}}

    monkeypatch.setattr(linear_speedup, "measure", measure)
    for options in ("--clients 64 32", "--clients 32 128", "--seed 1 --clients 128"):
        command = f"linear_speedup --scale smoke --out {tmp_path} {options}"
        monkeypatch.setattr(sys, "argv", command.split())
        linear_speedup.main()
    facts = json.loads((tmp_path / "linear_speedup_moments.json").read_text())
    assert measured == [64, 32, 128, 128]
    assert [result["num_clients"] for result in facts["results"]] == [128]  # seed 1 only
