"""What scripts compute by themselves, against a second derivation in NumPy or against the simulator."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from reference import linear
from reference.histories import made_history
from reference.small import assert_close, refused, simulate

import fedjax_srp as srp
from fedjax_srp import theory
from fedjax_srp.lab.grids import points as grid_points

RNG = np.random.default_rng(7)


@pytest.fixture
def synthetic(import_from):
    return import_from("fedrep")("synthetic")


def test_fedsgd_is_gradient_descent_on_all_samples(synthetic):
    """One round against jax.grad of the loss that the paper minimises, averaged over clients."""
    train, _ = synthetic.make_tasks(jax.random.key(1), 6, 1, 8, 2, 5)
    algorithm = synthetic.FedSGD(train, step_size=0.5, samples=5)
    x, y = synthetic.fixed_samples(train, 5)

    def loss(model):
        return jnp.mean(jnp.square(x @ (model.representation @ model.head) - y)) / 2

    one, two = (
        simulate(algorithm, train, rounds, evaluations=()).server_state
        for rounds in (1, 2)
    )
    expected = jax.tree.map(lambda p, g: p - 0.5 * g, one, jax.grad(loss)(one))
    assert_close(two, expected, 1e-5)


def test_start_is_projected_gradient_descent(synthetic):
    train, _ = synthetic.make_tasks(jax.random.key(3), 30, 1, 8, 2, 6)
    algorithm = synthetic.FedRepFromDescent(
        train, 0.1, 6, sampling="fixed", start="random"
    )
    start = algorithm.init(jax.random.key(4), train).representation
    x, y = (np.asarray(part, np.float64) for part in synthetic.fixed_samples(train, 6))
    theta = np.zeros((30, 8))
    for _ in range(10):
        errors = np.einsum("nmd,nd->nm", x, theta) - y
        theta -= 0.5 * np.einsum("nmd,nm->nd", x, errors) / 6
        u, s, vt = np.linalg.svd(theta, full_matrices=False)
        theta = u[:, :2] * s[:2] @ vt[:2]
    np.testing.assert_allclose(start @ start.T, vt[:2].T @ vt[:2], atol=1e-4)


def test_d_gd_stays_at_the_truths_of_proposition_1(import_from):
    """The NumPy rounds of both methods, from B0 towards B* and its mirror image."""
    truths = import_from("fedavg_representation")("proposition1").truths
    rng = np.random.default_rng(0)
    b0 = np.linalg.qr(rng.normal(size=(12, 3)))[0] / np.sqrt(0.4)
    heads = rng.normal(size=(20, 3))
    mean = heads.mean(axis=0)
    made = truths(jnp.float32(b0), jnp.float32(mean), 0.5, True, jax.random.key(0))
    pair = [np.asarray(b, np.float64) for b in made]
    np.testing.assert_allclose(pair[0] @ mean, pair[1] @ mean, atol=1e-5)
    assert linear.distance(*pair) > 2 * 0.5 * np.sqrt(1 - 0.5**2) - 1e-3  # equation 69

    def shrinks_to(truth, local_steps):
        b, w = b0, np.zeros(3)
        for _ in range(60):
            b, w = linear.fedavg_round(b, w, truth, heads, 0.4, local_steps)
        return linear.distance(b, truth) / linear.distance(b0, truth)

    for truth in pair:
        assert linear.distance(b0, truth) == pytest.approx(0.5, abs=1e-5)
        assert shrinks_to(truth, 1) == pytest.approx(1, abs=1e-3)
        assert shrinks_to(truth, 2) <= 0.5


def test_unused_samples_of_a_batch_have_no_effect(import_from):
    """Seven samples of which three are used are a batch of three."""
    made = import_from("")("batches").LinearFedRepByBatch
    task = srp.data.linear_task(jax.random.key(0), 4, 9, 2, 0.5)
    algorithm = made(task, step_size=0.1, samples_per_round=7, start="random", batch=3)
    server = algorithm.init(jax.random.key(1), task)
    sampler = algorithm.sampler(7)
    key, place = jax.random.key(2), sampler.locate(*server)
    client = task.train_client(jnp.int32(0))
    batch = sampler.draw(key, server.representation, place, client)
    np.testing.assert_array_equal(batch.y != 0, np.arange(len(batch.y)) < 3)
    first = {name: getattr(batch, name)[:3] for name in ("features", "y", "noise")}
    used = batch._replace(**first)
    head, expected = (srp.linear.least_squares(b.features, b.y) for b in (batch, used))
    np.testing.assert_allclose(head, expected, rtol=1e-4)
    found = sampler.descent(key, batch, expected)
    of_three = srp.linear.samplers.subspace(3).descent(key, used, expected)
    assert_close(found, of_three, 1e-4)


@pytest.mark.long
def test_distances_by_batch_agree_with_numpy(import_from):
    """Mean distances after 1, 6 and 15 rounds against the loop over full samples, by their standard error."""
    batches = import_from("")("batches")
    task = srp.data.linear_task(jax.random.key(0), 30, 20, 2, 1.0)
    trials, sizes, rng = 20, (4, 6, 12), np.random.default_rng(0)
    got = batches.distances([task] * trials, sizes, 0.25, 15)
    truth = np.asarray(task.representation, np.float64)
    thetas = np.asarray(task.heads, np.float64) @ truth.T
    eta = 0.25 / batches.head_values(task)[1] ** 2

    def distances_of_a_run(m):
        other = rng.normal(size=(20, 2))
        other = np.linalg.qr(other - truth @ (truth.T @ other))[0]
        b, found = np.sqrt(0.75) * truth + 0.5 * other, []
        for _ in range(15):
            xs = rng.normal(size=(30, m, 20))
            ys = np.einsum("nmd,nd->nm", xs, thetas) + rng.normal(size=(30, m))
            b, _ = linear.fedrep_round(b, [*zip(xs, ys, strict=True)], eta)
            found.append(linear.distance(b, truth))
        return found

    for place, m in enumerate(sizes):
        found = np.array([distances_of_a_run(m) for _ in range(trials)])
        apart = got[:, place].mean(0) - found.mean(0)
        error = np.sqrt((got[:, place].var(0) + found.var(0)) / trials)
        assert (np.abs(apart) < 4 * error)[[0, 5, 14]].all()


@pytest.mark.short("flanp-1")
@pytest.mark.parametrize(("method", "initial"), [("flanp", 1), ("fedgate", 4)])
def test_exact_rounds_agree_with_the_simulator(method, initial, import_from):
    """Times, distances and the criterion, round by round; stages of 1, 2 and 4 clients, with unequal Hessians."""
    get = import_from("flanp")
    worlds = get("worlds")
    one = worlds.linear(1, None, num_clients=4, samples=30, dim=3, full_batch=True)
    options = worlds.CURVES[method].options(one, 1, 25, 25)
    algorithm = options.pop("method")
    run = srp.simulate(algorithm, options.pop("data"), **options, progress=False)
    found = get("fixed_target").simulate_exact(one, 1, initial, one.local_steps, 25)
    np.testing.assert_allclose(found.elapsed, run.elapsed(), rtol=1e-5)
    np.testing.assert_allclose(
        found.distance, run.metrics["distance"], rtol=1e-3, atol=1e-5
    )
    np.testing.assert_array_equal(
        found.completed, run.metrics["stage_completed"] * (run.cohort_size == 4) > 0
    )
    assert found.completed.any()


def test_smoothness_of_logistic_regression_bounds_its_hessian(import_from):
    """H = mean of (diag p - p p') x (x, 1)(x, 1)', in NumPy; of two classes, p = (1/2, 1/2) reaches the bound."""
    worlds = import_from("flanp")("worlds")
    data = srp.data.load("digits", 1, partition="iid", max_examples=40)
    examples = data.train_client(jnp.int32(0))
    x = np.asarray(examples.x, np.float64).reshape(-1, 64)
    x = np.concatenate([x, np.ones((len(x), 1))], axis=1)
    for scale, is_reached in ((0.0, True), (1.0, False)):
        logits = scale * x[:, :3] @ RNG.normal(size=(3, 2))
        p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        classes = np.einsum("ij,jk->ijk", p, np.eye(2)) - np.einsum("ij,ik->ijk", p, p)
        hessian = np.einsum("ijk,il,im->jlkm", classes, x, x).reshape(130, 130) / len(x)
        largest = np.linalg.eigvalsh(hessian)[-1] + worlds.PENALTY
        ratio = largest / worlds.logistic_smoothness(data)
        assert ratio == pytest.approx(1, rel=1e-4) if is_reached else ratio < 1


@pytest.mark.parametrize(
    ("p", "q"), [(4, 7), (30, 5), (30, 40)]
)  # narrow, one of them wide, both wide
def test_cka_agrees_with_its_definition(import_from, p, q):
    """HSIC of the two linear kernels with the centring matrix, normalised."""
    cka = import_from("fedavg_representation")("similarity").linear_cka
    x, y = RNG.normal(size=(12, p)) + 3, RNG.normal(size=(12, q))
    y[:, 0] += 2 * x[:, 0]
    centre = np.eye(12) - 1 / 12
    k, m = (centre @ outputs @ outputs.T @ centre for outputs in (x, y))
    expected = np.sum(k * m) / np.linalg.norm(k) / np.linalg.norm(m)
    assert cka(x, y) == pytest.approx(expected, rel=1e-10)
    rotation = np.linalg.qr(RNG.normal(size=(p, p)))[0]
    assert cka(x, 5 * x @ rotation - 2) == pytest.approx(1, abs=1e-12)


def test_fine_tuning_takes_gradient_steps_with_weight_decay(import_from):
    """Ten samples in a batch of ten: one epoch is one step on the mean loss with weight decay."""
    neural = import_from("fedavg_representation")("neural")
    scale = neural.SCALES["smoke"]
    new = neural.subsampled(neural.new_clients(scale.new[0], 3, None), (10, 23), 3)
    model, start = neural.initial_model(scale, None, new, 3)
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


def test_the_rule_of_added_rounds_is_exact_where_it_holds(import_from):
    """SRPFL needs 5 rounds more in every federation, so the rule is exact; at equal speeds doubling loses."""
    doubling_map = import_from("stragglers")("doubling_map")
    names = ("clients", "classes", "fedrep")
    rounds = [(16, 2, 4), (16, 5, 9), (64, 2, 6), (64, 5, 8), (32, 3, 7)]
    rows = pd.DataFrame(rounds, columns=names).assign(length=3, seed=0, share=0.95)
    rows["srpfl"] = rows["fedrep"] + 5
    points, fitted = doubling_map.speed_ups(rows, doubling_map.SCALES["cpu"])
    assert fitted["stages"].item() == 5
    np.testing.assert_allclose(points["by_stages"], points["speed_up"])
    assert (points[points["sigma"] == 0]["speed_up"] < 1).all()
    one = points.query("clients == 32 and sigma == 0.5 and cost == 1.0").iloc[0]
    times = doubling_map.order_statistics(32, 0.5)
    stages = 3 * (times[[3, 7, 15]].sum() + 3)  # of 4, 8 and 16, then everybody
    ours = stages + 3 * (times[31] + 1)
    assert one["speed_up"] == pytest.approx(7 * (times[31] + 1) / ours)


@pytest.mark.long
def test_one_training_run_serves_both_clocks(import_from, tmp_path, capsys):
    """FedAvg of figure 5, with the times of figure 6, is a run under the other clock."""
    paper = import_from("srpfl")("paper")
    words = ["--scale", "smoke", "--methods", "fedavg", "--seeds", "1"]
    words += ["--out", str(tmp_path)]
    for figure in (5, 6):
        paper.main(figure, words)
    said = capsys.readouterr().err
    assert "1 runs, 0 finished" in said
    assert "1 runs, 1 finished" in said
    given = paper.layer(paper.FIGURES[6], ["fedavg"])
    given["axes"]["seed"] = [0]
    again = srp.grid(paper.FILE, scale="smoke", out=tmp_path, batch=1, **given)
    ((retimed,),) = (
        runs.values() for runs in paper.curves(again, paper.FIGURES[6], "smoke").values()
    )
    (history,) = again.histories.values()
    (data,) = map(again.data, again.folders)
    real = simulate(
        history.method,
        data,
        4,
        eval_first=2,
        eval_every=2,
        clock="random",
        key=jax.random.key(0),
    )
    np.testing.assert_array_equal(retimed[0].compute_time, real.compute_time)
    np.testing.assert_array_equal(retimed[0].client_time, real.client_time)
    changed = np.abs(retimed[0].accuracy - real.accuracy) * real.test_count
    assert changed.sum(axis=1).max() < 2.5  # sums in another order: two test points


def test_factors_have_the_bounds_of_the_grid(import_from):
    """FedRep reaches .9 in rounds 21 to 30 of 2 time units, SRPFL in rounds 11 to 20 of half a unit."""
    compare = import_from("srpfl")("paper_tables").compare
    runs = {}
    curves = {"fedrep": ([0.5, 0.8, 0.9], 2.0), "srpfl": ([0.8, 0.95, 0.95], 0.5)}
    for name, (scores, seconds) in curves.items():
        kinds = ("fine_tune", "global", "own_head")
        given = {"accuracies": dict.fromkeys(kinds, np.array(scores)[:, None])}
        given |= {"eval_round": [10, 20, 30], "test_count": [10]}
        runs[name] = [made_history([], np.full(30, seconds), name=name, **given)]
    row = compare(runs, 0.9).set_index("method").loc["srpfl"]
    assert (row["time_0"], row["after_0"], row["speed_up_0"]) == (10, 5, 6)
    assert (row["least_speed_up_0"], row["most_speed_up_0"]) == (40 / 10, 60 / 5)
    assert (row["least_speed_up_10"], row["most_speed_up_10"]) == (240 / 210, 360 / 105)
    never = compare(runs, 0.93).set_index("method").loc["srpfl"]
    factors = never[["speed_up_0", "least_speed_up_0", "most_speed_up_0"]]
    assert factors.isna().all()  # FedRep's time is censored


def test_raw_curves_have_what_factors_are_made_of(import_from):
    """Times to a target follow from the stored curve at any cost; the published axis ends after 100 or 120 rounds."""
    tables = import_from("srpfl")("paper_tables")
    scores = np.linspace(0.5, 0.9, 13)
    places = np.arange(10, 131, 10)
    run = made_history(scores, np.full(130, 2.0), eval_round=places)
    slow = made_history(scores, np.full(130, 4.0), eval_round=places)
    frame = tables.raw_curves({"fedrep": [run, slow]})
    first = frame[frame["run"] == 0]
    for cost in (0.0, 10.0):
        times = first["time"].astype(float) + cost * first["round"]
        reached = times[first["accuracy"] >= 0.8].iloc[0]
        assert reached == run.time_to(0.8, communication=cost)
    ends = [tables.published_end(title, {"fedrep": [run, slow]}, 10.0)
            for title in ("MNIST", "CIFAR-10", "CIFAR-10 code")]  # fmt: skip
    assert ends == [100 * 13.0, 120 * 13.0, 120 * 13.0]
    short = made_history(scores[:3], np.full(90, 2.0), eval_round=places[:3])
    assert tables.published_end("MNIST", {"fedrep": [short]}, 0.0) is None


def test_times_of_thousands_of_clients(import_from):
    """A round of all of N clients takes H_N under Exp(1), one of the fastest 1 / N."""
    thousands = import_from("srpfl")("thousands")
    sizes = {"cohort_size": np.array([1, 1, 4, 4])}
    doubling = made_history([0.1, 0.5, 0.7, 0.9], np.ones(4), clients=4, **sizes)
    all_clients = {"cohort_size": np.full(4, 4)}
    everybody = made_history([0.1, 0.5, 0.7, 0.8], np.ones(4), clients=4, **all_clients)
    found = {
        "accuracy": 0.5,
        "runs": {
            "4": {
                "fedrep": [thousands.curve_of(everybody)],
                "srpfl": [thousands.curve_of(doubling)],
            }
        },
    }
    harmonic = 1 + 1 / 2 + 1 / 3 + 1 / 4
    of_fixed = thousands.ratio_of(found, "accuracy", "exponential")
    assert of_fixed == pytest.approx(2 * harmonic / 0.5, rel=1e-3)
    of_share = thousands.ratio_of(found, "share", "exponential")  # 0.792, in round 4
    expected = 4 * harmonic / (0.5 + 2 * harmonic)
    assert of_share == pytest.approx(expected, rel=1e-3)
    assert thousands.ratio_of(found, "accuracy", "phones") == 1
    found["accuracy"] = 0.85
    assert np.isinf(thousands.ratio_of(found, "accuracy", "phones"))


def test_an_accuracy_of_table_1_is_the_mean_over_examples_and_the_last_ten_rounds(
    import_from,
):
    get, rng = import_from("fedrep"), np.random.default_rng(0)
    table, scores = get("rivals_table"), rng.uniform(size=(12, 20))
    count = np.array([0, *rng.integers(1, 9, 19)])  # one client has no test examples
    given = {"accuracies": {"own_head": scores}, "eval_round": [10, *range(20, 31)]}
    run = made_history([], np.ones(30), clients=20, test_count=count, **given)
    found = table.measure(run, table.Row("fedrep", "own_head"), {})
    by_round = 100 * scores[2:] @ count / count.sum()
    expected = {"accuracy": by_round.mean(), "std_of_rounds": by_round.std()}
    expected["worst_tenth"] = 100 * scores[2:, 1:].min(1).mean()  # 1 of 19
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=1e-3)


def test_every_run_of_every_figure_and_scale_can_be_built(import_from):
    """From shapes alone: a mistake in the file is found before it runs on an accelerator."""
    paper = import_from("srpfl")("paper")
    counts = {"full": 4 * 4, "cpu": 4 + 3 * 3 + 2, "gpu": 2 * 4, "code": 8 * 4}
    for scale in paper.SCALES:
        spec, _ = grid_points.read(paper.FILE, scale)
        for figure in paper.FIGURES.values():
            over = grid_points.at_scale(paper.layer(figure), None, "figure")
            found = grid_points.points(grid_points.overlaid(spec, over))
            assert len(found) == 9 * counts.get(scale, 2)
            for point in found:
                assert point.run.record["evaluations"]
                num_clients = point.run.data["num_clients"]
                pool = getattr(point.run.parts.participation, "pool", num_clients)
                pool = getattr(point.run.parts.participation, "k", pool) or num_clients
                assert pool * figure.one_of == num_clients
                random = figure.clock == "random" and paper.needs_clock(point.run.method)
                assert point.run.clock == ("random" if random else "fixed")


def test_a_column_without_its_number_of_clients_has_no_figure_with_a_pool(import_from):
    paper = import_from("srpfl")("paper")
    tables = {"variants": {"mine": {"dataset": "mine.npz"}}}
    with refused("variants.mine: num_clients is missing.* give it"):
        paper.check_pools(tables, ["mine"])
    paper.check_pools(tables | {"options": {"num_clients": 20}}, ["mine"])


def test_every_method_with_an_evaluation_of_own_parts_is_in_their_table(import_from):
    tables = import_from("srpfl")("paper_tables")
    judged = {"fedavg": ["global"], "fedper": ["fine_tune", "own_head"]}
    judged |= {"ditto": ["own_model", "global"]}
    curves = {}
    for method, evaluations in judged.items():
        scores = {name: np.full((1, 1), len(name) / 20) for name in evaluations}
        curves[method] = [made_history([], [1.0], name=method, accuracies=scores)]
    own = tables.with_own_parts(curves)
    assert {name: run.evaluation for name, (run,) in own.items()} == {
        "fedper": "own_head",
        "ditto": "own_model",
    }
    assert own["fedper"][0].final_accuracy == len("own_head") / 20


def test_every_method_is_in_the_table_of_all_or_left_out_with_a_reason(import_from):
    rows = import_from("personalization")("rows")
    assert rows.ROWS.keys() | rows.LEFT_OUT.keys() == set(srp.methods.names())
    assert not rows.ROWS.keys() & rows.LEFT_OUT.keys()


def test_the_table_of_all_has_the_pixels_and_the_network_of_pfllib(import_from, tmp_path):
    """Images in colour: pixels in [-1, 1], caps of examples, and the sizes of PFLlib's FedAvgCNN."""
    x = RNG.integers(0, 256, (1500, 32, 32, 3), dtype=np.uint8)
    y = np.arange(1500) % 10
    images = {"x_train": x[:1000], "y_train": y[:1000]}
    images |= {"x_test": x[1000:], "y_test": y[1000:]}
    np.savez(tmp_path / "cifar10.npz", **images)
    table = import_from("personalization")("table")
    scale = table.Scale(1, 1, 0.05, 5, max_train=20, max_test=6)
    data = table.federation(scale, str(tmp_path))
    assert data.num_clients == 20
    assert np.asarray(data.train_counts).max() == 20
    assert np.asarray(data.test_counts).max() == 6
    own = data.train_client(jnp.int32(3))
    rows = np.asarray(data.train_indices)[3, : own.count]
    expected = x[rows] / 127.5 - 1
    np.testing.assert_allclose(own.x[: own.count], expected, atol=1e-6)

    model = table.network(data)
    parameters = jax.eval_shape(model.init, jax.random.key(0))
    layers = parameters.representation | parameters.head
    kernels = {name: layer["kernel"].shape for name, layer in layers.items()}
    assert kernels == {
        "conv1": (5, 5, 3, 32),
        "conv2": (5, 5, 32, 64),
        "fc1": (64 * 5 * 5, 512),
        "out": (512, 10),
    }


def test_first_cohort_and_stages_of_the_linear_speed_up(import_from):
    """Appendix A's 2 d / (log(N) sigma_max), with the singular value of all heads."""
    speed_up = import_from("srpfl")("linear_speedup")
    task = speed_up.draw_task(256, 0)
    sigma_max = np.linalg.norm(np.asarray(task.heads), 2) / 16
    assert speed_up.first_cohort(task) == np.ceil(200 / (8 * np.log(2) * sigma_max))
    # 34, 68, 136, then all
    assert speed_up.plain_stages(256, 34, "random") == [90, 30, 30]
    assert speed_up.plain_stages(256, 256, "moments") == []


def test_rules_of_linear_regression(import_from):
    """eta gamma tau = 1 / (2 L); tau from the variance of a batch's gradient at the minimum, estimated here."""
    made = import_from("flanp")("worlds").linear(
        1, None, num_clients=5, samples=40, dim=3, noise_std=0.7
    )
    data = made.data
    c = 3 * 0.7**2 / 2
    step = made.algorithm("fedgate", made.local_steps).training.optimizer.learning_rate
    assert step * made.local_steps == pytest.approx(1 / (2 * data.curvature.smoothness))
    x, y = (np.asarray(a, np.float64).reshape(200, -1) for a in (data.x, data.y))
    gradients = (x @ np.asarray(data.minimiser, np.float64) - y[:, 0])[:, None] * x
    sampled = 1.5 * 40 * (gradients**2).sum(1).mean() / 10 / c
    assert (
        abs(made.local_steps - sampled) < 0.35 * sampled + 1
    )  # a fourth moment estimated from 200 samples
    assert made.constants["accuracy_constant"] == pytest.approx(c)


def test_mean_cosines_agree_with_a_loop_over_pairs(import_from):
    cosines = import_from("fedavg_representation")("similarity").mean_cosines
    first, second = RNG.normal(size=(2, 3, 4, 5))
    expected = np.zeros((3, 3))
    for a, b, j in np.ndindex(3, 3, 4):
        f, g = first[a, j], second[b, j]
        expected[a, b] += abs(f @ g) / np.linalg.norm(f) / np.linalg.norm(g) / 4
    np.testing.assert_allclose(cosines(first, second), expected, rtol=1e-12)
    assert not cosines(np.zeros((3, 4, 5)), second).any()


def test_the_map_follows_from_its_rounds(import_from):
    doubling_map = import_from("stragglers")("doubling_map")
    results = Path(doubling_map.__file__).parent / "results"
    needed = doubling_map.rounds_needed(pd.read_csv(results / "map_rounds.csv"))
    points, _ = doubling_map.speed_ups(needed, doubling_map.SCALES["cpu"])
    for made, name in (
        (doubling_map.summarize(points), "map"),
        (doubling_map.rule_errors(points), "map_errors"),
    ):
        stored = pd.read_csv(results / f"{name}.csv")
        pd.testing.assert_frame_equal(
            made, stored, check_dtype=False, rtol=1e-3, atol=1e-3
        )


@pytest.mark.parametrize(("chat", "cost"), [(1.1, 0.0), (1.4, 10.0)])
def test_no_stages_are_shorter_than_the_shortest_of_the_lemmas(import_from, chat, cost):
    """Random numbers of rounds, iterated by (9), beside the search over all."""
    lemmas = import_from("srpfl")("lemmas")
    a, clients = 0.25, lemmas.STAGES_OF
    shortest = lemmas.shortest_time(a, chat, cost, most=60)
    target = theory.target_distance(a, clients, 1, chat)
    sizes = 2 ** np.arange(7)
    random = np.random.default_rng(0)
    times = []
    for _ in range(300):
        rounds = random.integers(0, [1, 1, 1, 6, 14, 24, 60])
        distance = 1.0
        time = 0.0
        for n, count in zip(sizes.tolist(), rounds, strict=True):
            price = theory.order_statistic_mean(n, clients) + cost
            for _ in range(count):
                if distance > target * (1 + 1e-9):
                    distance = theory.contraction(distance, a, n)
                    time += price
        if distance <= target * (1 + 1e-9):
            times.append(time)
    assert len(times) > 30
    assert min(times) >= shortest * (1 - 1e-9)
    plan = theory.schedule(a, clients, 1, chat, cost)
    assert shortest <= plan.time * (1 + 1e-9)


def test_ties_of_doubling_and_everybody(import_from):
    ties = import_from("messages")("ties")
    of_sizes = ties.order_statistics(10, ties.exponential)
    # H_10 - H_(10 - n) over H_10, by 4,000 draws
    means = [theory.order_statistic_mean(n, 10) for n in range(1, 11)]
    np.testing.assert_allclose(of_sizes, np.array(means) / means[-1], rtol=0.06)
    assert of_sizes[-1] == pytest.approx(1)
    linked = ties.order_statistics(10, ties.exponential, (0.5,))
    assert (linked > of_sizes).all()

    run = ties.Run(
        np.array([50.0, 80.0, 90.0]), np.array([2, 2, 10]), np.ones(3), 10, 20, 70.0
    )
    assert run.rounds_to(80.0) == 2
    assert run.rounds_to(95.0) is None
    assert ties.time_to(run, 90.0, of_sizes) == pytest.approx(2 * of_sizes[1] + 1)
    assert ties.time_to(run, 95.0, of_sizes) == np.inf
    # 8 + 4 c = 2 + 7 c
    assert ties.tie_of(np.array([8.0, 2.0]), np.array([4, 7])) == pytest.approx(2)
    assert ties.tie_of(np.array([8.0, 2.0]), np.array([4, 4])) == np.inf
    assert np.isnan(ties.tie_of(np.array([8.0, np.inf]), np.array([4, 0])))


def test_right_choices_between_doubling_and_everybody(import_from):
    ties = import_from("messages")("ties")
    choices = [
        ties.Choice(np.array(times), doubles)
        for times, doubles in (
            ((4.0, 2.0), True),
            ((4.0, 6.0), True),
            ((4.0, 7.0), False),
            ((4.0, np.inf), True),
            ((np.inf, 3.0), True),
        )
    ]
    checked = ties.check(choices)
    assert checked.cases == 5
    assert checked.right == {"rule": 3, "doubling": 2, "everybody": 3}
    assert checked.missed == {"rule": 1, "doubling": 1, "everybody": 1}
    assert checked.factors == [1.5]
