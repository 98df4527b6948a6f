"""Tables of the manual agree with the registry, and its examples run."""

import contextlib
import functools
import re
import sys
import tempfile
import tomllib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from command_line import main
from method_helpers import SHAPES
from sklearn.metrics import f1_score

import fedjax_srp as srp
from fedjax_srp.lab.grids import points as grid_points

pytestmark = pytest.mark.usefixtures("one_device", "without_hashes")
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


def test_every_algorithm_and_method_is_named_in_the_docs():
    assert all(judges.endswith(".") for _, judges, _ in tables.evaluations()[1:])
    text = (ROOT / "docs/methods.md").read_text()
    readme = (ROOT / "README.md").read_text()
    for name in srp.algorithms.__all__:
        assert f"`{getattr(srp.algorithms, name).name}`" in text
    for name in srp.methods.names():
        assert f"| `{name}` |" in text
    ((file, out),) = re.findall(
        r"fedjax-srp grid (\S+\.toml) .*\n.*fedjax-srp report (\S+)", readme
    )
    assert tomllib.loads((ROOT / file).read_text())["out"] == out


def test_the_manual_names_the_algorithms_that_stages_by_a_criterion_accept():
    def algorithm(name):
        shared = {"hidden": (4, 4), "k": 2}
        return srp.methods.get(name, dataset=SHAPES, shared=shared).algorithm

    names = {*srp.methods.algorithm_names()}
    able = {name for name in names if algorithm(name).gradient is not None}
    _, _, section = (ROOT / "docs/methods.md").read_text().partition("## Stages that end")
    section, _, _ = section.partition("those that have a `gradient`")
    rows = "flanp", "flanp_fedavg_criterion", "flanp_fednova"
    named = {name for name in names if f"`{name}`" in section}
    assert named | {algorithm(name).name for name in rows} == able


PUBLIC = {
    "import fedjax_srp as srp",
    "from fedjax_srp.algorithms import local",
    "from fedjax_srp.participation import cohorts",
}
PAGES = ("new_algorithm", "new_policy", "new_clock")


def page_text(name):
    return (ROOT / f"docs/{name}.md").read_text()


def blocks_of(name, language="python"):
    """Return the blocks of code of a page."""
    pattern = rf"^```{language}\n(.*?)^```$"
    blocks = re.findall(pattern, page_text(name), re.DOTALL | re.MULTILINE)
    assert blocks
    return blocks


def execute(blocks, name, namespace):
    for block in blocks:
        exec(compile(block, f"docs/{name}.md", "exec"), namespace)
    return namespace


@functools.cache
def page(name, simulates=True):
    """Execute the blocks of a page in turn, with or without its runs, and return what they define."""
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),  # for the files of a page
        pytest.MonkeyPatch.context() as patch,
    ):
        if not simulates:
            patch.setattr(srp, "simulate", lambda *_, **__: None)
        return execute(blocks_of(name), name, {})


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
    options = {"num_rounds": 3, "eval_every": 1, "progress": False, "devices": 1}
    return srp.simulate(algorithm, data, key=jax.random.key(0), **options).accuracy


MODEL = srp.models.MLP((8, 8), 10, hidden=(8,))


@pytest.mark.long
def test_the_example_of_an_algorithm_is_fedavg_without_its_proximal_term():
    fedprox, training = page("new_algorithm")["FedProx"], srp.Training(srp.SGD(0.1))
    fedavg = accuracy(srp.algorithms.FedAvg(MODEL, training))
    np.testing.assert_array_equal(accuracy(fedprox(MODEL, training, mu=0.0)), fedavg)
    assert (accuracy(fedprox(MODEL, training, mu=10.0)) != fedavg).any()
    with pytest.raises(ValueError, match=r"mu=-0\.1"):
        fedprox(MODEL, training, mu=-0.1)


def test_the_skeleton_of_an_algorithm_is_fedavg():
    training = srp.Training(srp.SGD(0.1), weighting="num_examples")
    skeleton = page("new_algorithm")["Skeleton"](MODEL, training)
    fedavg = srp.algorithms.FedAvg(MODEL, training)
    np.testing.assert_array_equal(accuracy(skeleton), accuracy(fedavg))


def test_the_registered_algorithm_has_its_options():
    method = page("new_algorithm")["method"]
    assert (method.name, method.participation.name) == ("my_fedprox", "full")
    assert jax.tree.leaves(method.algorithm) == [0.05, 0.1]  # arguments of the program


def test_the_example_of_a_policy_takes_turns():
    defined = page("new_policy", simulates=False)
    made = defined["RoundRobin"]
    method = defined["method"]
    assert (method.name, method.participation) == ("fedrep + round_robin", made(5))
    policy, key = made(3), jax.random.key(0)
    times = jnp.asarray([4.0, 1.0, 3.0, 2.0, 5.0])
    state, cohorts = policy.init(key, 5), []
    for _ in range(4):
        cohort, state = policy.select(key, state, srp.ClientTimes(times, times))
        cohorts.append(cohort.client_ids.tolist())
    assert cohorts == [[1, 2, 0], [3, 0, 4], [1, 3, 2], [1, 0, 4]]
    for wrong in (0, 6):
        with pytest.raises(ValueError, match=f"k={wrong}"):
            made(wrong).init(key, 5)


def test_the_example_of_a_clock_is_a_wave_around_what_it_expects():
    made = page("new_clock", simulates=False)["RushHour"]
    clock = made(mean=2.0, slowdown=3.0, period=8.0)
    state, waves = clock.init(jax.random.key(0), 6), []
    for hour in np.arange(0.0, 8.0, 0.05):
        times, state = clock.sample(jax.random.key(1), state, jnp.asarray(hour))
        waves.append(np.asarray(times.realised))
    np.testing.assert_allclose(np.mean(waves, axis=0), times.expected, rtol=1e-2)
    ratios = np.max(waves, axis=0) / np.min(waves, axis=0)
    np.testing.assert_allclose(ratios, 1 + 3, rtol=1e-2)
    with pytest.raises(ValueError, match="period"):
        made(period=0.0)


def test_the_readmes_runs_run(tmp_path, capsys):
    """Run the `fedjax-srp run` of the README with fewer rounds, a smaller model and another folder."""
    text = (ROOT / "README.md").read_text().replace("\\\n", " ")
    (words,) = re.findall(r"fedjax-srp run (--method.*)$", text, re.MULTILINE)
    words += " --num-rounds 1 --hidden 8 --head-epochs 1 --fine-tune-epochs 1 --devices 1 --no-progress"
    assert main("run", *words.split(), "--out", tmp_path) == 0, capsys.readouterr().err


@pytest.mark.long
def test_the_page_of_grids_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("rates.toml").write_text("\n".join(blocks_of("grids", "toml")[:3]))
    spec, others = grid_points.read("rates.toml")
    assert len(grid_points.points(grid_points.read("rates.toml", "smoke")[0])) == 2 * 2
    text = (ROOT / "docs/grids.md").read_text()
    assert f"fedjax-srp report {others['out']}" in text
    assert len(grid_points.points(spec)) == 2 * 2 * 3 * 2 - 3
    found = execute(blocks_of("grids"), "grids", {})
    assert len(found["grid"].to_frame()) == 4 * 4
    assert len(found["tuning"].folders) == 2 * 2 * 2 + 2 * 2
    rounds = [history.num_rounds for history in found["final"].histories.values()]
    assert rounds == [4] * 8


@pytest.fixture
def answers(tmp_path, monkeypatch):
    """Return a function that runs the blocks of a page and returns what they define."""
    monkeypatch.chdir(tmp_path)
    data = srp.data.load("digits", num_clients=20, classes_per_client=3)

    def run(name):
        blocks = [block for block in blocks_of(name) if '"cifar10"' not in block]
        return execute(blocks, name, {"data": data})

    return run


@pytest.mark.long
def test_the_page_of_models_runs(answers):
    found = answers("models")
    outputs, y = np.zeros((2, 10), np.float32), np.array([3, 0])
    np.testing.assert_allclose(found["model"].loss(outputs, y), np.log(10), rtol=1e-6)
    own = found["MyCNN"]((8, 8), num_classes=10)
    for model in ("smooth", found["model"], own):
        method = srp.methods.get("fedrep", dataset=found["data"], model=model)
        run = {"num_rounds": 1, "key": jax.random.key(0), "progress": False}
        assert srp.simulate(method, found["data"], **run).diverged is None


def test_the_page_of_data_runs(answers):
    found = answers("data")
    history, x = found["history"], found["x"]
    assert history.config["data"]["name"] == "regression"
    assert history.test_count.tolist() == [25] * 20
    assert 0 < history.mean_accuracy[-1] < 0.2 < np.var(np.sin(x[..., 0]))
    assert "squared error" in repr(history)
    held_out = srp.data.holdout(found["scored"])
    for client in range(held_out.num_clients):
        test = held_out.test_client(jnp.int32(client))
        said, y = (test.x @ jnp.eye(8, 4)).argmax(-1), test.y[: test.count]
        given = {"labels": np.unique(y), "average": "macro", "zero_division": 0}
        truth = f1_score(y, said[: test.count], **given)
        score = held_out.score(lambda x: x @ jnp.eye(8, 4), test)
        np.testing.assert_allclose(score, (truth, 1), rtol=1e-6)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*is an upper bound")
@pytest.mark.parametrize("name", ["kernel", "faq", "runs"])
def test_pages_of_answers_run(name, answers):
    found = answers(name)
    if name == "kernel":
        assert found["forward"] < 0  # at this rate training is slow
        np.testing.assert_allclose(found["forward"], found["backward"], rtol=1e-3)
    elif name == "runs":
        names = set(re.findall(r"^\| `(\w+\.\w+)` \|", page_text("runs"), re.MULTILINE))
        assert names
        assert names <= {path.name for path in Path("runs/one").iterdir()}
        assert srp.History.load("runs/one").client_states is None
        assert found["again"].num_rounds == 2
    else:
        times = {name: run.compute_time for name, run in found["histories"].items()}
        np.testing.assert_allclose(times["fedrep"], 11 * times["fedavg"], rtol=1e-6)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:best of .* values tried")
@pytest.mark.filterwarnings("ignore:.*is an upper bound")
def test_the_tutorial_ends_with_the_table_of_a_paper(answers, capsys, monkeypatch):
    monkeypatch.setattr(srp, "use_all_cores", lambda: None)  # JAX has run already
    found = answers("tutorial")
    (command,) = blocks_of("tutorial", "console")
    _, *words = command.split()
    assert main(*words) == 0, capsys.readouterr().err
    table = Path("runs/clinics/test/table.tex").read_text()
    chosen = found["rows"].groupby("method")["final_accuracy"]
    assert set(chosen.size()) == {3}  # seeds
    for accuracy in 100 * chosen.mean():
        assert f"{accuracy:.1f}" in table
    for file in ("table.csv", "accuracy.pdf", "report.html"):
        assert Path("runs/clinics/test", file).is_file()
    assert Path("accuracy.png").is_file()
