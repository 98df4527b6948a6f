"""Callbacks of a run: their arguments, how they end the run, and the files that those of `srp.watch` write."""

import json
import sys
import types
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.small import KEY, algorithm_of, numbers, refused

import fedjax_srp as srp
from fedjax_srp import ClientOutput
from fedjax_srp.lab.runs.folder import overwriting
from fedjax_srp.lab.runs.loggers import loggers
from fedjax_srp.lab.runs.run import from_options

DATA = numbers(3.0, -1.0, 4.0)


@srp.part
class FewLines(srp.FederatedAlgorithm):
    """The server's state is the mean message, one number; the metric is this number after `twist`, times `weight`."""

    name = "few_lines"
    weight: float = 1.0
    twist: Callable[[jax.Array], jax.Array] | None = None

    def init(self, key, data):
        return jnp.zeros(())

    def client(self, key, w, state, value, context):
        return ClientOutput(w + 0.5 * (value - w))

    def server(self, key, server, mean, context):
        return mean

    def metrics(self, server, data):
        return {"w": self.weight * (server if self.twist is None else self.twist(server))}

    @srp.evaluation
    def model(self, key, server, state, value):
        return lambda test: server


ALGORITHM = FewLines()
OPTIONS = {"eval_every": 2, "progress": False, "devices": 1}


def simulate(callback=None, num_rounds=5, algorithm=ALGORITHM, **options):
    return srp.simulate(
        algorithm,
        DATA,
        num_rounds=num_rounds,
        key=KEY,
        callback=callback,
        **OPTIONS | options,
    )


def simulate_seeds(callback, num_rounds=5, **options):
    keys = jax.random.split(KEY, 2)
    return srp.simulate_seeds(
        ALGORITHM,
        DATA,
        num_rounds=num_rounds,
        keys=keys,
        callback=callback,
        **OPTIONS | options,
    )


@pytest.fixture(scope="module")
def whole():
    return simulate()


def test_a_callback_gets_the_records_of_the_history(whole):
    heard = []
    history = simulate(lambda p: heard.append((p, p.server_state(), p.history())))
    assert history.server_state == whole.server_state
    assert [p.round for p, _, _ in heard] == [2, 4, 5]
    for e, (progress, server, so_far) in enumerate(heard):
        r = progress.round
        found = (progress.name, progress.seeds, progress.num_rounds)
        assert found == ("few_lines", None, 5)
        assert progress.elapsed == whole.elapsed()[r - 1]
        assert progress.scores == {"model": whole.mean_accuracy[e]}
        assert progress.metrics == {"w": whole.metrics["w"][r - 1]}
        assert server == np.float32(whole.metrics["w"][r - 1])
        assert so_far.num_rounds == r
        np.testing.assert_array_equal(so_far.mean_accuracy, whole.mean_accuracy[: e + 1])
    rows = [row for progress, _, _ in heard for row in progress.rows]
    assert [row.pop("name") for row in rows] == ["few_lines"] * 5
    assert len({row.pop("run") for row in rows}) == 1
    frame = whole.to_frame()
    assert set(rows[1]) == set(frame.columns)
    for row, expected in zip(rows, frame.to_dict("records"), strict=True):
        assert row == {name: value for name, value in expected.items() if value == value}


def test_a_key_in_a_state_is_copied_for_a_callback():
    heard, keys = [], jnp.stack([KEY, jax.random.split(KEY)[0]])
    algorithm = algorithm_of(
        lambda key, server, state, value, context: ClientOutput(value),
        init=lambda key, data: keys,
        server=lambda key, server, mean, context: server[::-1],
    )

    def listen(progress):
        heard.extend((progress.server_state(), progress.history().server_state))

    simulate(listen, 2, algorithm, eval_every=1)
    for found, expected in zip(heard, (keys[::-1], keys[::-1], keys, keys), strict=True):
        assert (found == expected).all()


def test_a_callback_gets_all_seeds_together():
    heard = []
    runs = simulate_seeds(heard.append, num_rounds=2)
    (progress,) = heard
    assert progress.seeds == range(2)
    rows = progress.rows
    places = [(row["seed"], row["round"]) for row in rows]
    assert places == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert len({row["run"] for row in rows}) == 2
    times = [time for run in runs for time in run.elapsed()]
    assert [row["elapsed"] for row in rows] == times
    for found, name in ((progress.elapsed, "elapsed"), (progress.metrics["w"], "w")):
        np.testing.assert_array_equal(found, [rows[1][name], rows[3][name]])


def stopping(progress):
    raise StopIteration


@pytest.mark.parametrize(
    ("callback", "rounds"),
    [
        (lambda p: p.round >= 3, 4),
        (lambda p: np.asarray(p.scores["model"]) > -1e9, 2),  # a flag of NumPy
        (lambda p: jnp.asarray(True), 2),
        (stopping, 2),
        (lambda p: p.round, 5),  # no flag
        (lambda p: [True], 5),
    ],
    ids=["flag", "numpy", "jax", "StopIteration", "number", "list"],
)
def test_only_true_or_stop_iteration_ends_a_run(callback, rounds, whole):
    heard = []
    history = simulate(srp.watch.all_of(callback, heard.append))
    assert history.num_rounds == rounds
    np.testing.assert_array_equal(history.metrics["w"], whole.metrics["w"][:rounds])
    assert heard[-1].round == rounds  # every callback is called when the first ends it


def test_a_continued_run_calls_back_for_its_new_rounds(tmp_path, whole):
    heard = []

    def failing(progress):
        heard.append(progress.round)
        if progress.round == 4:
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        simulate(failing, checkpoint_dir=tmp_path)
    history = simulate(
        lambda p: heard.append(p.round), checkpoint_dir=tmp_path
    )  # round 4 was saved before
    assert heard == [2, 4, 5]
    np.testing.assert_array_equal(history.metrics["w"], whole.metrics["w"])


# Callbacks that log.


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_log_has_each_round_once_after_a_kill(tmp_path):
    log, again = tmp_path / "logs" / "run.jsonl", tmp_path / "again.jsonl"
    simulate(srp.watch.json_lines(log))
    written = log.read_bytes()
    assert [row["round"] for row in lines(log)] == [1, 2, 3, 4, 5]
    judged = [row["round"] for row in lines(log) if "accuracy_model" in row]
    assert judged == [2, 4, 5]
    # A kill between log and checkpoint, in the middle of a line: rounds 3 and 4 are computed and logged again.
    again.write_bytes(written[: written.index(b'"round": 4') + 20])
    simulate(srp.watch.json_lines(again))
    assert again.read_bytes() == written
    simulate(srp.watch.json_lines(again), name="another")
    assert again.read_bytes()[: len(written)] == written
    more = [(row["name"], row["round"]) for row in lines(again)[5:]]
    assert more == [("another", r) for r in range(1, 6)]


def test_a_log_stays_in_its_folder_after_a_change_of_the_working_directory(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    log = srp.watch.json_lines("run.jsonl")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir("other")
    log(types.SimpleNamespace(rows=[{"name": "a", "round": 1}]))
    assert lines(tmp_path / "run.jsonl") == [{"name": "a", "round": 1}]


def test_a_log_distinguishes_several_runs(tmp_path):
    """Runs of one name and key with equal rounds; one that is continued and evaluated after other rounds."""
    log = tmp_path / "log"

    def logged(**options):
        before = len(lines(log)) if log.exists() else 0
        simulate(srp.watch.json_lines(log), **options)
        return lines(log)[before:]

    first, second, again = (logged(algorithm=FewLines(r)) for r in (0.1, 0.2, 0.1))
    assert (len(first), len(second), again) == (5, 5, [])
    assert {row["run"] for row in first}.isdisjoint(row["run"] for row in second)
    longer = logged(num_rounds=7, eval_every=7, algorithm=FewLines(0.1))
    assert [row["round"] for row in longer] == [6, 7]
    assert longer[0]["run"] == first[0]["run"]
    more = logged(eval_every=1, algorithm=FewLines(0.2))
    assert [row["round"] for row in more] == [1, 3]  # which had no accuracy
    twice, thrice = (FewLines(twist=lambda w, by=by: by * w) for by in (2.0, 3.0))
    assert len(logged(algorithm=twice)) == len(logged(algorithm=thrice)) == 5
    assert not logged(algorithm=twice)


def test_a_run_is_identified_by_its_data_and_the_values_of_its_seed():
    """A seed of a sweep is the same run whatever seeds are beside it."""

    def runs(*weights, data=DATA, **more):
        heard, values = [], {"weight": np.array(weights)}
        options = OPTIONS | {"num_rounds": 1, "callback": heard.append} | more
        keys = jnp.stack([KEY] * len(weights))
        srp.simulate_seeds(ALGORITHM, data, keys=keys, values=values, **options)
        return [row["run"] for row in heard[0].rows]

    first, second = runs(1.0, 2.0)
    assert first != second
    assert runs(1.0, 2.0, 3.0)[:2] == [first, second]
    all_judged, none_judged = (runs(1.0, evaluations=each) for each in ("all", ()))
    assert all_judged == none_judged  # also with code of one's own
    slower = srp.clocks.Fixed(srp.clocks.Exponential(0.5))
    for more in {"data": numbers(3.0, -1.0, 5.0)}, {"clock": slower}:
        assert {first, second}.isdisjoint(runs(1.0, 2.0, **more))


def test_a_log_is_strict_json(tmp_path):
    log = tmp_path / "log"
    bad = FewLines(twist=lambda w: w / 0.0)
    simulate(srp.watch.json_lines(log), 1, bad)
    row = json.loads(log.read_text(), parse_constant=pytest.fail)
    assert row["w"] in ("inf", "-inf", "nan")


@pytest.mark.parametrize(
    "text", ["notes\n", '{"a": 1}\n', "[1]\n", "{}", '{"name": "a", "round": 1}\nx']
)
def test_a_file_that_is_no_log_is_refused_and_kept(tmp_path, text):
    (tmp_path / "file").write_text(text)
    for path in ("", "file", "file/log"):
        with refused(r"log='.*': .*; give another file"):
            srp.watch.json_lines(tmp_path / path)
    assert (tmp_path / "file").read_text() == text


class Writer:
    def __init__(self, directory):
        self.directory, self.scalars, self.flushed = directory, {}, 0

    def add_scalar(self, name, value, step):
        self.scalars[name, step] = value

    def flush(self):
        self.flushed += 1


@pytest.mark.parametrize("installed", ["tensorboardX", "torch.utils.tensorboard"])
def test_tensorboard_gets_scalars(monkeypatch, tmp_path, installed, whole):
    made = []

    def writer(directory):
        made.append(Writer(directory))
        return made[-1]

    for name in ("tensorboardX", "torch", "torch.utils", "torch.utils.tensorboard"):
        is_there = installed.startswith(name)
        module = types.SimpleNamespace(SummaryWriter=writer) if is_there else None
        monkeypatch.setitem(sys.modules, name, module)
    simulate(srp.watch.tensorboard(tmp_path))
    (made,) = made
    assert (made.directory, made.flushed) == (str(tmp_path), 3)
    for r in range(1, 6):
        assert made.scalars["w", r] == whole.metrics["w"][r - 1]
        assert made.scalars["elapsed", r] == whole.elapsed()[r - 1]
    assert [step for name, step in made.scalars if name == "accuracy_model"] == [2, 4, 5]
    simulate_seeds(srp.watch.tensorboard("", writer=Writer("")), num_rounds=1)


def test_wandb_gets_the_round_as_its_axis(monkeypatch):
    logged, defined = [], []
    run = types.SimpleNamespace(
        log=logged.append,
        define_metric=lambda *names, **axis: defined.append((names, axis)),
    )
    module = types.SimpleNamespace(init=lambda *, project: run if project else None)
    monkeypatch.setitem(sys.modules, "wandb", module)
    callback = srp.watch.wandb(project="mine")
    simulate_seeds(callback, num_rounds=3)
    assert defined == [(("round",), {}), (("*",), {"step_metric": "round"})]
    assert [scalars["round"] for scalars in logged] == [1, 2, 3]
    assert {"seed_0/w", "seed_1/w", "seed_1/elapsed"} <= logged[0].keys()
    assert "seed_1/accuracy_model" in logged[1]
    simulate(callback, num_rounds=1)  # a step of wandb's own must not go back
    assert (len(defined), logged[3]["round"]) == (2, 1)


LOGGED = {"method": "fedavg", "dataset": "digits", "wandb": "mine", "tensorboard": "logs"}


@pytest.fixture
def given(monkeypatch):
    """Arguments of the loggers that are opened: TensorBoard's writer, then the run of W&B."""
    found = []

    def opened(*_, **options):
        found.append(options)
        return types.SimpleNamespace(finish=lambda: None, close=lambda: None)

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=opened))
    module = types.SimpleNamespace(SummaryWriter=opened)
    monkeypatch.setitem(sys.modules, "tensorboardX", module)

    def under(folder, changed, **options):
        found.clear()
        with loggers(from_options(LOGGED | changed), folder, **options):
            return found[0] | found[1]

    return under


def test_a_run_with_other_options_in_the_same_folder_is_another_run_of_wandb(
    given, tmp_path
):
    changes = ({}, {"num_rounds": 9}, {"learning_rate": 0.3})
    ids = [given(tmp_path, changed)["id"] for changed in changes]
    assert ids[0] == ids[1] != ids[2]


def test_a_run_that_begins_again_replaces_what_it_logged(given, tmp_path):
    def begins(**options):
        found = given(tmp_path, {}, **options)
        return found.get("purge_step"), found["resume"]

    assert begins() == (None, "allow")
    assert begins(overwrite=True) == (0, None)
    interrupted = tmp_path / "overwriting_12345678/1"  # of a call for another run
    interrupted.mkdir(parents=True)
    assert begins(overwrite=True) == (0, None)
    (overwriting(tmp_path, from_options(LOGGED)) / "1").mkdir(parents=True)
    assert begins(overwrite=True) == (None, "allow")


def test_missing_packages_are_refused_with_a_remedy(monkeypatch):
    for name in ("tensorboardX", "torch.utils.tensorboard", "wandb"):
        monkeypatch.setitem(sys.modules, name, None)
    with refused("tensorboard='logs': no writer .* is installed"):
        srp.watch.tensorboard("logs")
    with refused("wandb is not installed; pip install wandb"):
        srp.watch.wandb()
