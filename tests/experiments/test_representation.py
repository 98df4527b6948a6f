"""Figures of networks of FedAvg as a representation learner: measures, and the scripts at smoke scale."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_srp as srp
from fedjax_srp.driver.adapt import params_of

RNG = np.random.default_rng(7)


@pytest.fixture(scope="module")
def get(import_from):
    """Import a module of the folder by name."""
    return import_from("fedavg_representation")


def hsic_cka(x, y):
    """CKA by definition: HSIC of the two linear kernels with the centring matrix, normalised."""
    centre = np.eye(len(x)) - 1 / len(x)
    k, q = centre @ x @ x.T @ centre, centre @ y @ y.T @ centre
    return np.trace(k @ q) / np.sqrt(np.trace(k @ k) * np.trace(q @ q))


@pytest.mark.parametrize(
    ("p", "q"), [(4, 7), (30, 5), (30, 40)]
)  # narrow, one of them wide, both wide
def test_cka_agrees_with_its_definition(get, p, q):
    cka = get("similarity").linear_cka
    x, y = RNG.normal(size=(12, p)) + 3, RNG.normal(size=(12, q))
    y[:, 0] += 2 * x[:, 0]
    assert cka(x, y) == pytest.approx(hsic_cka(x, y), rel=1e-10)
    assert cka(y, x) == pytest.approx(cka(x, y), rel=1e-10)
    rotation = np.linalg.qr(RNG.normal(size=(p, p)))[0]
    assert cka(x, 5 * x @ rotation - 2) == pytest.approx(1, abs=1e-12)
    assert cka(x @ rotation * 0.1, y) == pytest.approx(cka(x, y), rel=1e-10)
    assert cka(x, y) < 0.99


def test_cka_of_unrelated_and_of_constant_outputs(get):
    cka = get("similarity").linear_cka
    basis = np.linalg.qr(np.column_stack([np.ones(8), RNG.normal(size=(8, 5))]))[0][
        :, 1:
    ]  # orthogonal to constants
    assert cka(basis[:, :2], basis[:, 2:]) == pytest.approx(0, abs=1e-12)
    assert np.isnan(cka(np.ones((8, 3)), basis))


def test_mean_cosines_agree_with_a_loop_over_pairs(get):
    cosines = get("similarity").mean_cosines
    first, second = RNG.normal(size=(2, 3, 4, 5))
    expected = np.zeros((3, 3))
    for a in range(3):
        for b in range(3):
            for j in range(4):
                f, g = first[a, j], second[b, j]
                expected[a, b] += abs(f @ g) / np.linalg.norm(f) / np.linalg.norm(g) / 4
    np.testing.assert_allclose(cosines(first, second), expected, rtol=1e-12)
    np.testing.assert_allclose(cosines(3 * first, -second / 7), expected, rtol=1e-12)
    np.testing.assert_allclose(np.diag(cosines(first, first)), 1)
    axes = np.repeat(np.eye(3)[:, None], 4, 1)
    np.testing.assert_array_equal(cosines(axes, axes), np.eye(3))
    assert not cosines(np.zeros_like(axes), axes).any()


def test_activations_have_the_outputs_of_every_hidden_layer(get):
    model = srp.models.MLP((2, 3), 4, hidden=(5, 3))
    params, x = (
        model.init(jax.random.key(0)),
        RNG.normal(size=(7, 2, 3)).astype(np.float32),
    )
    found = get("similarity").activations(model.recut("fc2"), params, jnp.asarray(x))
    layers = jax.tree.map(np.asarray, params.representation | params.head)
    hidden = np.maximum(
        x.reshape(7, 6) @ layers["fc1"]["kernel"] + layers["fc1"]["bias"], 0
    )
    assert list(found) == ["fc1", "fc2"]
    np.testing.assert_allclose(found["fc1"], hidden, rtol=1e-5, atol=1e-6)
    features = np.maximum(hidden @ layers["fc2"]["kernel"] + layers["fc2"]["bias"], 0)
    np.testing.assert_allclose(found["fc2"], features, rtol=1e-5, atol=1e-6)


@pytest.fixture(scope="module")
def new(get):
    neural = get("neural")
    return neural.subsampled(
        neural.new_clients(neural.SCALES["smoke"].new[0], 3, None), (10, 23), 3
    )


def test_new_clients_have_equally_many_of_each_class(get, new):
    """Two clients with 10 and with 23 samples each: count by count, the same test images, classes equal up to one."""
    assert new.num_clients == 4
    np.testing.assert_array_equal(new.train_counts, [10, 10, 23, 23])
    np.testing.assert_array_equal(new.test_indices[:2], new.test_indices[2:])
    for rows, count in zip(
        np.asarray(new.train_indices), np.asarray(new.train_counts), strict=True
    ):
        assert len(set(rows[:count])) == count
        sizes = np.bincount(np.asarray(new.y_train)[rows[:count]], minlength=5)
        assert sizes.max() - sizes.min() <= 1
    with pytest.raises(
        ValueError,
        match=r"counts=400: a new client of 'digits' has \d+ samples; give fewer",
    ):
        get("neural").subsampled(new, (400,), 3)


def test_fine_tuning_takes_gradient_steps_with_weight_decay(get, new):
    """Ten samples in a batch of ten: one epoch is one step on the mean loss with weight decay."""
    neural = get("neural")
    model, start = neural.initial_model(neural.SCALES["smoke"], None, new, 3)
    tuned = neural.fine_tune(model, start, new, 0, epochs=1)[1]
    client = new.train_client(jnp.int32(1))
    x, y = client.x[:10], client.y[:10]
    slope = jax.jit(
        jax.grad(
            lambda p: -jnp.mean(jax.nn.log_softmax(model.logits(p, x))[jnp.arange(10), y])
        )
    )(start)

    def check(after, before, gradient):
        decay = 1e-4 * before if before.ndim == 2 else 0.0 * before
        np.testing.assert_allclose(
            (before - after) / 0.1, gradient + decay, rtol=1e-5, atol=2e-6
        )

    jax.tree.map(check, tuned, start, slope)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.mark.long
@pytest.mark.parametrize("number", [5, 2, 4])  # figure 2 needs the runs of figure 5
def test_scripts_run(number, get, runs, capsys):
    out = runs / "out"
    given = [
        "--scale",
        "smoke",
        "--out",
        str(out),
        "--runs",
        str(runs),
        "--seed",
        "3",
        "--devices",
        "1",
    ]
    get(f"figure{number}").main(given)
    facts = json.loads((out / f"figure{number}.json").read_text())
    assert (facts["scale"], facts["seed"], facts["steps"]) == ("smoke", 3, 10)
    assert (out / f"figure{number}.png").read_bytes().startswith(b"\x89PNG")
    shown = capsys.readouterr().out
    assert f"wrote {out / f'figure{number}'}" in shown
    results = facts["results"]
    if number == 5:
        (found,) = results["new classes"].values()
        assert list(found) == ["random start", "D-SGD (tau = 1)", "FedAvg, tau = 5"]
        assert found["D-SGD (tau = 1)"]["x"] == [10, 20]
        for tau, rounds in ((1, 10), (5, 2)):  # the same number of local steps in all
            assert (
                len(
                    srp.History.load(
                        runs / f"digits_5_2_each/tau_{tau}/trial_0"
                    ).compute_time
                )
                == rounds
            )
    if number == 2:
        assert "global accuracy" not in shown  # no model was trained again
        assert all(
            0 < value <= 1 for found in results.values() for value in found["mean"]
        )
    if number == 4:
        matrix = np.array(results["random start"]["matrix"])
        assert matrix.shape == (10, 10)
        assert results["random start"]["same class"]["mean"] == pytest.approx(
            np.trace(matrix) / 10, abs=1e-3
        )


@pytest.mark.long
def test_step_search_loads_trained_models(get, runs, monkeypatch, capsys):
    """Models with step 0.1 are those of figure 5."""
    steps, out = get("steps"), runs / "steps"
    monkeypatch.setattr(steps, "STEPS", {1: (0.1,), 5: (0.1, 0.2)})
    given = [
        "--scale",
        "smoke",
        "--out",
        str(out),
        "--runs",
        str(runs),
        "--seed",
        "3",
        "--devices",
        "1",
    ]
    steps.main(given)
    shown = capsys.readouterr().out
    assert shown.count("global accuracy") == 2  # step 0.2, two trials
    head, _, *rows = shown[shown.index("| new clients") :].strip().splitlines()
    assert head.startswith(
        "| new clients | tau | step | 10 | 20 | training loss | global | trials |"
    )
    assert len(rows) == 2 * 3
    assert sum("*" in row for row in rows) == 2 * 2  # one step a tau
    figure = json.loads((runs / "out/figure5.json").read_text())["results"][
        "new classes"
    ]["C=2"]
    shown_cell = rows[0].split(" | ")[3].split(" ± ")[0]
    assert float(shown_cell) == pytest.approx(
        figure["D-SGD (tau = 1)"]["mean"][0], abs=0.06
    )


@pytest.mark.long
def test_new_clients_start_from_the_trained_representation(get, runs, new):
    neural = get("neural")
    scale = neural.SCALES["smoke"]
    history = srp.History.load(runs / "digits_5_2_each/tau_5/trial_0")
    _, start = neural.initial_model(scale, history, new, 3)
    _, random = neural.initial_model(scale, None, new, 3)
    same = lambda a, b: all(map(np.array_equal, *map(jax.tree.leaves, (a, b))))
    assert same(start.head, random.head)
    assert same(start.representation, params_of(history.server_state).representation)
    assert not same(start.representation, random.representation)
