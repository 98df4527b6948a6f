"""Tables of the manual agree with the registry, and its examples run."""

import contextlib
import functools
import re
import sys
import tempfile
import tomllib
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import f1_score

import fedjax_srp as srp
from fedjax_srp.lab.commands import cli
from fedjax_srp.lab.grids import points as grid_points

pytestmark = pytest.mark.usefixtures("one_device")
ROOT = Path(__file__).parent.parent


sys.path.append(str(ROOT / "docs"))
import tables  # noqa: E402


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("methods.md", "methods"),
        pytest.param("methods.md", "costs", marks=pytest.mark.long),
        ("concepts.md", "evaluations"),
    ],
)
def test_tables_agree_with_the_registry(name, table):
    assert tables.page(name, (table,)) == (ROOT / "docs" / name).read_text(), (
        "run make tables"
    )


def test_every_evaluation_is_described():
    assert all(judges.endswith(".") for _, judges, _ in tables.evaluations()[1:])


def test_every_algorithm_and_method_is_named_in_the_docs():
    text = (ROOT / "docs/methods.md").read_text()
    readme = (ROOT / "README.md").read_text()
    for name in srp.algorithms.__all__:
        assert f"`{getattr(srp.algorithms, name).name}`" in text
    for name in srp.methods.names():
        assert f"`{name}`" in readme


def test_the_manual_names_the_algorithms_that_stages_by_a_criterion_accept():
    shapes = SimpleNamespace(
        name="shapes", example_shape=(5,), num_classes=3, num_clients=20
    )
    build = functools.partial(
        srp.methods.get, dataset=shapes, shared={"hidden": (4, 4), "k": 2}
    )
    able = {
        name
        for name in srp.methods.algorithm_names()
        if build(name).algorithm.gradient is not None
    }
    text = (ROOT / "docs/methods.md").read_text()
    section = text[
        text.index("## Stages that end") : text.index("those that have a `gradient`")
    ]
    rows = "flanp", "flanp_fedavg_criterion", "flanp_fednova"
    of_rows = {srp.methods.name_of(srp.methods.recipe(name).factory) for name in rows}
    assert {
        name for name in srp.methods.algorithm_names() if f"`{name}`" in section
    } | of_rows == able


PUBLIC = {
    "import fedjax_srp as srp",
    "from fedjax_srp.algorithms import local",
    "from fedjax_srp.participation import cohorts",
}
PAGES = ("new_algorithm", "new_policy", "new_clock")


@functools.cache
def page(name, simulates=True):
    """Execute the blocks of a page in turn, with or without its runs, and return what they define."""
    blocks = re.findall(
        r"^```python\n(.*?)^```$",
        (ROOT / f"docs/{name}.md").read_text(),
        re.DOTALL | re.MULTILINE,
    )
    assert blocks
    namespace: dict = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),  # for the files of a page
        pytest.MonkeyPatch.context() as patch,
    ):
        if not simulates:
            patch.setattr(srp, "simulate", lambda *_, **__: None)
        for block in blocks:
            exec(compile(block, f"docs/{name}.md", "exec"), namespace)
    return namespace


@pytest.mark.short("new_algorithm")
@pytest.mark.parametrize("name", PAGES)
def test_pages_for_authors_run_and_import_public_names_only(name):
    page(name)
    text = (ROOT / f"docs/{name}.md").read_text()
    imported = re.findall(r"^(?:import|from) fedjax_srp.*$", text, re.MULTILINE)
    assert set(imported) <= PUBLIC
    assert set(re.findall(r"\bsrp\.(\w+)", text)) <= set(srp.__all__)
    assert not re.search(r"\b(?:srp|local)\.(?:\w+\.)*_", text)


def accuracy(algorithm):
    data = srp.data.load("digits", num_clients=20, classes_per_client=4)
    options = {
        "num_rounds": 3,
        "eval_every": 1,
        "key": jax.random.key(0),
        "progress": False,
        "devices": 1,
    }
    return srp.simulate(algorithm, data, **options).accuracy


@pytest.mark.long
def test_the_example_of_an_algorithm_is_fedavg_without_its_proximal_term():
    fedprox, model = (
        page("new_algorithm")["FedProx"],
        srp.models.MLP((8, 8), 10, hidden=(8,)),
    )
    training = srp.Training(srp.SGD(0.1))
    fedavg = accuracy(srp.algorithms.FedAvg(model, training))
    np.testing.assert_array_equal(accuracy(fedprox(model, training, mu=0.0)), fedavg)
    assert (accuracy(fedprox(model, training, mu=10.0)) != fedavg).any()
    with pytest.raises(ValueError, match=r"mu=-0\.1"):
        fedprox(model, training, mu=-0.1)


def test_the_skeleton_of_an_algorithm_is_fedavg():
    model, training = (
        srp.models.MLP((8, 8), 10, hidden=(8,)),
        srp.Training(srp.SGD(0.1), weighting="num_examples"),
    )
    fedavg = srp.algorithms.FedAvg(model, training)
    np.testing.assert_array_equal(
        accuracy(page("new_algorithm")["Skeleton"](model, training)), accuracy(fedavg)
    )


def test_the_registered_algorithm_has_its_options():
    method = page("new_algorithm")["method"]
    assert (method.name, method.participation.name, method.algorithm.mu) == (
        "my_fedprox",
        "full",
        0.1,
    )
    assert jax.tree.leaves(method.algorithm) == [0.05, 0.1]  # arguments of the program


def test_the_registered_policy_has_its_options():
    defined = page("new_policy", simulates=False)
    method = defined["method"]
    assert (method.name, method.participation) == (
        "fedrep + round_robin",
        defined["RoundRobin"](5),
    )


def test_the_example_of_a_policy_takes_turns():
    policy = page("new_policy", simulates=False)["RoundRobin"](3)
    times = jnp.asarray([4.0, 1.0, 3.0, 2.0, 5.0])
    state, cohorts = policy.init(jax.random.key(0), 5), []
    for _ in range(4):
        cohort, state = policy.select(
            jax.random.key(1), state, srp.ClientTimes(times, times)
        )
        cohorts.append(cohort.client_ids.tolist())
    assert cohorts == [[1, 2, 0], [3, 0, 4], [1, 3, 2], [1, 0, 4]]
    assert page("new_policy", simulates=False)["RoundRobin"](3) == policy
    for wrong in (0, 6):
        with pytest.raises(ValueError, match=f"k={wrong}"):
            page("new_policy", simulates=False)["RoundRobin"](wrong).init(
                jax.random.key(0), 5
            )


def test_the_policy_that_gets_losses_takes_newcomers_then_the_highest():
    policy = page("new_policy", simulates=False)["HighestLoss"](2)
    times, losses, taken = (
        jnp.asarray([4.0, 1.0, 3.0, 2.0]),
        policy.init(jax.random.key(0), 4),
        [],
    )
    for loss in (3.0, 2.0, 1.0):  # of all participants of a round
        cohort, losses = policy.select(
            jax.random.key(1), losses, srp.ClientTimes(times, times)
        )
        taken.append(cohort.client_ids.tolist())
        said = jnp.full(4, jnp.nan).at[cohort.client_ids].set(loss)
        losses = policy.update(
            losses, srp.base.RoundInfo(*[None] * 7, {}, {"training_loss": said})
        )
    assert taken == [[1, 0], [3, 2], [1, 0]]


def test_the_example_of_a_clock_is_a_wave_around_what_it_expects():
    clock = page("new_clock", simulates=False)["RushHour"](
        mean=2.0, slowdown=3.0, period=8.0
    )
    state, waves = clock.init(jax.random.key(0), 6), []
    start = state
    for hour in range(8):
        times, state = clock.sample(jax.random.key(1), state, jnp.asarray(float(hour)))
        waves.append(np.asarray(times.realised / start.times))
        np.testing.assert_allclose(times.expected / start.times, 1 + 3 / np.pi, rtol=1e-6)
    angles = 2 * np.pi * (np.arange(8)[:, None] / 8 + np.asarray(start.phase))
    np.testing.assert_allclose(waves, 1 + 3 * np.maximum(np.sin(angles), 0), rtol=1e-4)
    with pytest.raises(ValueError, match="period"):
        page("new_clock", simulates=False)["RushHour"](period=0.0)


def test_the_readmes_runs_run(tmp_path, capsys):
    """Run every `fedjax-srp run` of the README with fewer rounds, a smaller model and another folder."""
    text = (ROOT / "README.md").read_text().replace("\\\n", " ")
    runs = re.findall(r"fedjax-srp run (--method.*)$", text, re.MULTILINE)
    assert len(runs) == 1
    for number, words in enumerate(runs):
        small = "--num-rounds 1 --hidden 8 --head-epochs 1 --fine-tune-epochs 1 --devices 1 --no-progress".split()  # noqa: SIM905
        out = ["--out", str(tmp_path / str(number))]
        assert cli.main(["run", *words.split(), *small, *out], set_up_cores=False) == 0, (
            capsys.readouterr().err
        )


def test_the_readmes_grid_is_an_example_that_is_reported():
    """`tests/grids` parses every example."""
    text = (ROOT / "README.md").read_text()
    ((file, out),) = re.findall(
        r"fedjax-srp grid (\S+\.toml) .*\n.*fedjax-srp report (\S+)", text
    )
    assert tomllib.loads((ROOT / file).read_text())["out"] == out


@pytest.mark.long
def test_the_page_of_grids_runs(tmp_path, monkeypatch):
    text = (ROOT / "docs/grids.md").read_text()
    (tmp_path / "rates.toml").write_text(
        re.findall(r"^```toml\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)[0]
    )
    monkeypatch.chdir(tmp_path)
    spec, others = grid_points.read("rates.toml")
    assert f"fedjax-srp report {others['out']}" in text
    found = grid_points.points(spec)
    assert len(found) == 2 * 2 * 3 * 2 - 3
    assert {"initial" in point.run.record for point in found} == {True, False}
    namespace: dict = {}
    for block in re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        exec(compile(block, "docs/grids.md", "exec"), namespace)
    assert len(namespace["grid"].to_frame()) == 4 * 4
    assert len(namespace["tuning"].folders) == 2 * 2 * 2 + 2 * 2
    assert [history.num_rounds for history in namespace["final"].histories.values()] == [
        4
    ] * 8


@pytest.mark.filterwarnings("ignore:.*is an upper bound")
@pytest.mark.short("data")
@pytest.mark.parametrize(
    "name", [pytest.param("faq", marks=pytest.mark.long), "data", "kernel", "models"]
)
def test_answers_with_code_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace: dict = {
        "data": srp.data.load("digits", num_clients=20, classes_per_client=3)
    }
    text = (
        (ROOT / f"docs/{name}.md")
        .read_text()
        .replace('"cifar10", num_clients=100, classes_per_client=5', "DIGITS")
    )
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert len(blocks) == {"faq": 8, "data": 7, "kernel": 7, "models": 6}[name]
    for block in blocks:
        if "DIGITS" not in block:  # needs CIFAR-10
            exec(compile(block, f"docs/{name}.md", "exec"), namespace)
    if name == "models":
        outputs, y = np.zeros((2, 10), np.float32), np.array([3, 0])
        np.testing.assert_allclose(
            namespace["model"].loss(outputs, y), np.log(10), rtol=1e-6
        )
        data, options = (
            namespace["data"],
            {"num_rounds": 1, "key": jax.random.key(0), "progress": False},
        )
        nnx = srp.models.from_module(namespace["Net"], (8, 8), 10, head="out")
        for model in (
            "smooth",
            namespace["model"],
            namespace["MyCNN"]((8, 8), num_classes=10),
            nnx,
        ):
            history = srp.simulate(
                srp.methods.get("fedrep", dataset=data, model=model), data, **options
            )
            assert history.diverged is None
    if name == "data":
        history = namespace["history"]
        assert history.config["data"]["name"] == "regression"
        assert history.test_count.tolist() == [25] * 20
        assert (
            0 < history.mean_accuracy[-1] < 0.2 < np.var(np.sin(namespace["x"][..., 0]))
        )
        assert "squared error" in repr(history)
        held_out = srp.data.holdout(namespace["scored"])
        algorithm = srp.algorithms.FedAvg(
            srp.models.MLP((8,), num_classes=4, hidden=(3,)), fine_tune_epochs=1
        )
        history = srp.simulate(
            algorithm, held_out, num_rounds=1, key=jax.random.key(0), progress=False
        )
        assert (history.score_name, history.judged_on) == ("macro F1", "validation")
        for client in range(held_out.num_clients):
            test = held_out.test_client(jnp.int32(client))
            said, y = (test.x @ jnp.eye(8, 4)).argmax(-1), test.y[: test.count]
            truth = f1_score(
                y,
                said[: test.count],
                labels=np.unique(y),
                average="macro",
                zero_division=0,
            )
            score = held_out.score(lambda x: x @ jnp.eye(8, 4), test)
            np.testing.assert_allclose(score, (truth, 1), rtol=1e-6)
    if name == "kernel":
        assert namespace["state"].round == 6
        assert len(namespace["participants"]) == 6
        pairs = zip(namespace["rates"].tolist(), namespace["keys"], strict=True)
        alone = [
            namespace["run"](namespace["federation"](rate), key) for rate, key in pairs
        ]
        np.testing.assert_allclose(
            namespace["accuracies"], [accuracy for accuracy, _ in alone], atol=0.02
        )
        np.testing.assert_allclose(
            namespace["times"], [times for _, times in alone], rtol=1e-6
        )
        assert 0 < namespace["num_rounds"] < 50
        assert namespace["forward"] < 0  # at this rate training is slow
        np.testing.assert_allclose(namespace["forward"], namespace["backward"], rtol=1e-3)
    if name == "faq":
        tuning, data = namespace["tuning"], namespace["data"]
        assert (
            np.asarray(tuning.train_counts) + np.asarray(tuning.test_counts)
            == np.asarray(data.train_counts)
        ).all()
        slow, fast = (
            namespace["histories"][name].compute_time for name in ("fedrep", "fedavg")
        )
        np.testing.assert_allclose(slow, 11 * fast, rtol=1e-6)
        assert len(namespace["grid"].summary()) == 8


def test_lines_of_pages_have_at_most_120_characters():
    pages = [
        ROOT / "README.md",
        *sorted((ROOT / "docs").glob("*.md")),
        *sorted((ROOT / "experiments").rglob("*.md")),
    ]
    assert len(pages) > 15
    for path in pages:
        lines = enumerate(path.read_text().splitlines(), 1)
        assert not [
            place for place, line in lines if len(line) > 120 and not line.startswith("|")
        ], path
