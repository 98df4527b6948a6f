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
from fedjax_srp.base import ClientOutput
from fedjax_srp.driver import simulate as engine
from fedjax_srp.lab.runs.folder import overwriting
from fedjax_srp.lab.runs.loggers import loggers
from fedjax_srp.lab.runs.run import from_options
from fedjax_srp.results.callbacks import Progress

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
    for (progress, server, so_far), e in zip(heard, range(3), strict=True):
        r = progress.round
        assert isinstance(progress, Progress)
        assert (progress.name, progress.seeds, progress.num_rounds) == (
            "few_lines",
            None,
            5,
        )
        assert progress.elapsed == whole.elapsed()[r - 1]
        assert progress.scores == {"model": whole.mean_accuracy[e]}
        assert progress.metrics == {"w": whole.metrics["w"][r - 1]}
        assert server == np.float32(whole.metrics["w"][r - 1])
        assert so_far.num_rounds == r
        np.testing.assert_array_equal(so_far.mean_accuracy, whole.mean_accuracy[: e + 1])
    rows = [row for progress, _, _ in heard for row in progress.rows]
    frame = whole.to_frame()
    assert [row.pop("name") for row in rows] == ["few_lines"] * 5
    assert len({row.pop("run") for row in rows}) == 1
    assert set(rows[1]) == set(frame.columns)
    for row, expected in zip(rows, frame.to_dict("records"), strict=True):
        known = {
            column: value for column, value in expected.items() if value == value
        }  # not nan
        assert row == known


def test_a_key_in_a_state_is_copied_for_a_callback():
    heard, keys = [], jnp.stack([KEY, jax.random.split(KEY)[0]])
    algorithm = algorithm_of(
        lambda key, server, state, value, context: ClientOutput(value),
        init=lambda key, data: keys,
        server=lambda key, server, mean, context: server[::-1],
    )
    simulate(
        lambda p: heard.extend((p.server_state(), p.history().server_state)),
        2,
        algorithm,
        eval_every=1,
    )
    for found, expected in zip(heard, (keys[::-1], keys[::-1], keys, keys), strict=True):
        assert (found == expected).all()


def test_a_callback_gets_all_seeds_together():
    heard = []
    runs = simulate_seeds(heard.append, num_rounds=2)
    (progress,) = heard
    assert progress.seeds == range(2)
    np.testing.assert_array_equal(progress.elapsed, [run.elapsed()[-1] for run in runs])
    np.testing.assert_array_equal(
        progress.metrics["w"], [run.metrics["w"][-1] for run in runs]
    )
    assert [(row["seed"], row["round"]) for row in progress.rows] == [
        (0, 1),
        (0, 2),
        (1, 1),
        (1, 2),
    ]
    assert len({row["run"] for row in progress.rows}) == 2
    assert [row["elapsed"] for row in progress.rows] == [
        time for run in runs for time in run.elapsed()
    ]


def stopping(progress):
    raise StopIteration


@pytest.mark.parametrize(
    ("callback", "rounds"),
    [
        (lambda p: p.round >= 3, 4),
        (lambda p: np.asarray(p.scores["model"]) > -1e9, 2),  # a flag of NumPy
        (lambda p: jnp.asarray(True), 2),
        (stopping, 2),
        (srp.watch.all_of(lambda p: None, stopping), 2),
        (lambda p: p.round, 5),  # no flag
        (lambda p: [True], 5),
    ],
    ids=["flag", "numpy", "jax", "StopIteration", "all_of", "number", "list"],
)
def test_only_true_or_stop_iteration_ends_a_run(callback, rounds, whole):
    history = simulate(callback)
    assert history.num_rounds == rounds
    np.testing.assert_array_equal(history.metrics["w"], whole.metrics["w"][:rounds])


def test_every_callback_is_called_when_the_first_ends_the_run():
    heard = []
    history = simulate(srp.watch.all_of(stopping, heard.append))
    assert [progress.round for progress in heard] == [history.num_rounds] == [2]


def test_an_array_is_no_flag():
    with pytest.raises(
        ValueError,
        match="truth value of an array with more than one element is ambiguous",
    ):
        simulate_seeds(lambda p: p.elapsed > 0)


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
    assert ["accuracy_model" in row for row in lines(log)] == [
        False,
        True,
        False,
        True,
        True,
    ]
    # A kill between log and checkpoint, in the middle of a line: rounds 3 and 4 are computed and logged again.
    again.write_bytes(written[: written.index(b'"round": 4') + 20])
    simulate(srp.watch.json_lines(again))
    assert again.read_bytes() == written
    simulate(srp.watch.json_lines(again), name="another")
    assert again.read_bytes()[: len(written)] == written
    assert [(row["name"], row["round"]) for row in lines(again)[5:]] == [
        ("another", r) for r in range(1, 6)
    ]


def test_a_log_stays_in_its_folder_after_a_change_of_the_working_directory(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    log = srp.watch.json_lines("run.jsonl")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir("other")
    log(types.SimpleNamespace(rows=[{"name": "a", "round": 1}]))
    assert (tmp_path / "run.jsonl").read_text() == '{"name": "a", "round": 1}\n'


def test_a_log_distinguishes_several_runs(tmp_path):
    """Runs of one name and key with equal rounds; one that is continued and evaluated after other rounds."""
    log = tmp_path / "log"
    for rate in (0.1, 0.2, 0.1):
        simulate(srp.watch.json_lines(log), algorithm=FewLines(rate))
    first, second = (lines(log)[5 * i : 5 * i + 5] for i in range(2))
    assert len(lines(log)) == 10
    assert [row["elapsed"] for row in first] == [row["elapsed"] for row in second]
    assert {row["run"] for row in first}.isdisjoint(row["run"] for row in second)
    simulate(
        srp.watch.json_lines(log), num_rounds=7, eval_every=7, algorithm=FewLines(0.1)
    )
    assert [row["round"] for row in lines(log)[10:]] == [6, 7]
    assert lines(log)[10]["run"] == first[0]["run"]
    more = {"record_loss": False, "eval_every": 1, "algorithm": FewLines(0.2)}
    simulate(srp.watch.json_lines(log), **more)
    assert [row["round"] for row in lines(log)[12:]] == [1, 3]  # which had no accuracy
    of_closures = tmp_path / "closures"
    for weight in (1.0, 2.0):
        own = FewLines(twist=lambda w, weight=weight: weight * w)
        for _ in range(2):
            simulate(srp.watch.json_lines(of_closures), algorithm=own)
    assert len(lines(of_closures)) == 10
    assert len({row["run"] for row in lines(of_closures)}) == 2


def test_a_run_is_identified_by_its_data_and_the_values_of_its_seed(tmp_path):
    """A seed of a sweep is the same run whatever seeds are beside it; equal seeds get rows each."""

    def runs(*weights, data=DATA, **more):
        keys = jax.numpy.stack([KEY] * len(weights))
        heard, log = [], tmp_path / "log"
        callback = srp.watch.all_of(heard.append, srp.watch.json_lines(log))
        options = (
            OPTIONS
            | {
                "num_rounds": 1,
                "callback": callback,
                "values": {"weight": np.array(weights)},
            }
            | more
        )
        srp.simulate_seeds(ALGORITHM, data, keys=keys, **options)
        return [row["run"] for row in heard[0].rows]

    first, second = runs(1.0, 2.0)
    assert first != second
    assert runs(1.0, 2.0, 3.0)[:2] == [first, second]
    slower = srp.clocks.Fixed(srp.clocks.Exponential(0.5))
    for more in {"data": numbers(3.0, -1.0, 5.0)}, {"clock": slower}:
        assert {first, second}.isdisjoint(runs(1.0, 2.0, **more))
    before = len(lines(tmp_path / "log"))
    assert len(set(runs(4.0, 4.0))) == 1
    assert len(lines(tmp_path / "log")) == before + 2


def test_rows_of_batches_have_their_seeds_and_charge_no_communication_without_messages(
    monkeypatch,
):
    monkeypatch.setattr(engine, "seeds_at_once", lambda *args: 1)
    silent = algorithm_of(
        lambda key, broadcast, state, value, context: ClientOutput(()),
        broadcast=lambda server, context: (),
        server=lambda key, server, mean, context: server,
    )
    rows = []
    options = OPTIONS | {
        "num_rounds": 1,
        "callback": lambda progress: rows.extend(progress.rows),
    }
    srp.simulate_seeds(silent, DATA, keys=jax.random.split(KEY, 2), **options)
    assert [(row["seed"], row["communicated"]) for row in rows] == [
        (0, False),
        (1, False),
    ]


def test_a_log_is_strict_json(tmp_path):
    bad = FewLines(twist=lambda w: w / 0.0)
    srp.simulate(
        bad,
        DATA,
        num_rounds=1,
        key=KEY,
        callback=srp.watch.json_lines(tmp_path / "log"),
        **OPTIONS,
    )
    assert json.loads((tmp_path / "log").read_text(), parse_constant=pytest.fail)[
        "w"
    ] in ("inf", "-inf", "nan")


@pytest.mark.parametrize(
    "text", ["notes\n", '{"a": 1}\n', "[1]\n", "{}", '{"name": "a", "round": 1}\nx', "x"]
)
def test_a_file_that_is_no_log_is_refused_and_kept(tmp_path, text):
    (tmp_path / "file").write_text(text)
    with refused(r"log='.*file': .*; give another file"):
        srp.watch.json_lines(tmp_path / "file")
    assert (tmp_path / "file").read_text() == text


def test_an_unwritable_file_is_refused_before_the_run(tmp_path):
    (tmp_path / "file").write_bytes(b"\xff\n")
    for path in ("", "file", "file/log"):
        with refused(r"log='.*': .*; give another file"):
            srp.watch.json_lines(tmp_path / path)


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
    for name in ("tensorboardX", "torch", "torch.utils", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    for name in {installed, *({"torch", "torch.utils"} if "." in installed else ())}:
        module = types.ModuleType(name)
        module.SummaryWriter = lambda directory: (
            made.append(Writer(directory)) or made[-1]
        )  # pyright: ignore
        monkeypatch.setitem(sys.modules, name, module)
    simulate(srp.watch.tensorboard(tmp_path))
    (writer,) = made
    assert writer.directory == str(tmp_path)
    assert writer.flushed == 3
    for r in range(1, 6):
        assert writer.scalars["w", r] == whole.metrics["w"][r - 1]
        assert writer.scalars["elapsed", r] == whole.elapsed()[r - 1]
    assert [step for name, step in writer.scalars if name == "accuracy_model"] == [
        2,
        4,
        5,
    ]
    simulate_seeds(srp.watch.tensorboard("", writer=Writer("")), num_rounds=1)


def test_wandb_gets_the_round_as_its_axis(monkeypatch):
    module, logged, defined = types.ModuleType("wandb"), [], []
    run = types.SimpleNamespace(
        log=logged.append,
        define_metric=lambda *names, **axis: defined.append((names, axis)),
    )
    module.init = lambda **options: run if options == {"project": "mine"} else None  # pyright: ignore
    monkeypatch.setitem(sys.modules, "wandb", module)
    callback = srp.watch.wandb(project="mine")
    simulate_seeds(callback, num_rounds=3)
    assert defined == [(("round",), {}), (("*",), {"step_metric": "round"})]
    assert [scalars["round"] for scalars in logged] == [1, 2, 3]
    assert {"seed_0/w", "seed_1/w", "seed_1/elapsed"} <= logged[0].keys()
    assert "seed_1/accuracy_model" in logged[1]
    simulate(
        callback, num_rounds=1
    )  # a step of wandb's own must not go back, so none is given
    assert (len(defined), logged[3]["round"]) == (2, 1)


def test_a_run_with_other_options_in_the_same_folder_is_another_run_of_wandb(
    monkeypatch, tmp_path
):
    ids, wandb = [], types.ModuleType("wandb")
    wandb.init = lambda **options: (
        ids.append(options["id"]) or types.SimpleNamespace(finish=lambda: None)
    )
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    for changed in ({}, {"num_rounds": 9}, {"learning_rate": 0.3}):
        run = from_options(
            {"method": "fedavg", "dataset": "digits", "wandb": "mine"} | changed
        )
        with loggers(run, tmp_path):
            pass
    assert ids[0] == ids[1] != ids[2]


def test_a_run_that_begins_again_replaces_what_it_logged(monkeypatch, tmp_path):
    given, ending = [], {"finish": lambda: None, "close": lambda: None}
    logger = lambda *_, **options: (
        given.append(options) or types.SimpleNamespace(**ending)
    )
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=logger))
    monkeypatch.setitem(
        sys.modules, "tensorboardX", types.SimpleNamespace(SummaryWriter=logger)
    )
    run = from_options(
        {"method": "fedavg", "dataset": "digits", "wandb": "mine", "tensorboard": "logs"}
    )

    def given_under(**options):
        given.clear()
        with loggers(run, tmp_path, **options):
            pass
        return given[0].get("purge_step"), given[1]["resume"]

    assert given_under() == (None, "allow")
    assert given_under(overwrite=True) == (0, None)
    (tmp_path / "overwriting_12345678/1").mkdir(
        parents=True
    )  # a snapshot of an interrupted call for another run
    assert given_under(overwrite=True) == (0, None)
    (overwriting(tmp_path, run) / "1").mkdir(parents=True)
    assert given_under(overwrite=True) == (None, "allow")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: srp.watch.tensorboard("logs"),
            "tensorboard='logs': no writer of event files is installed",
        ),
        (srp.watch.wandb, "wandb is not installed; pip install wandb"),
    ],
)
def test_missing_packages_are_refused_with_a_remedy(monkeypatch, make, words):
    for name in ("tensorboardX", "torch.utils.tensorboard", "wandb"):
        monkeypatch.setitem(sys.modules, name, None)
    with refused(words):
        make()
