"""Figures 3 to 6 of the SRPFL paper: runs are reused, and timed under another clock."""

import inspect
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pandas as pd
import pytest
from reference.histories import made_history
from reference.small import simulate

import fedjax_srp as srp
from experiments.srpfl import cause_tables, causes, paper, paper_tables, sweep
from fedjax_srp.driver.checkpoint import Checkpoints

SETTING = paper.SETTINGS["smoke"]["digits"]._replace(num_rounds=2, eval_every=1, seeds=1)


def make_study(figure, out, setting=SETTING):
    lines = []
    return paper.Study(paper.FIGURES[figure], setting, out, None, lines.append), lines


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Folder with a finished run of figure 3."""
    out = tmp_path_factory.mktemp("figure3")
    one, lines = make_study(3, out)
    one.train("fedavg", range(1), together=False)
    assert len(lines) == 1
    return out


@pytest.mark.long
@pytest.mark.parametrize("figure", [pytest.param(3, marks=pytest.mark.long), 5])
def test_one_training_run_serves_both_clocks(figure, trained):
    fixed, _ = make_study(figure, trained)
    fixed.train("fedavg", range(1), together=False)
    other, lines = make_study(figure + 1, trained)
    other.train("fedavg", range(1), together=False)
    assert not lines  # no run was trained again
    (retimed,) = other.histories(["fedavg"], 1)["fedavg"]
    options = {
        "clock": other.clocks["random"],
        "eval_every": SETTING.eval_every,
        "key": jax.random.key(0),
    }
    real = simulate(other.method("fedavg"), other.data, SETTING.num_rounds, **options)
    np.testing.assert_array_equal(retimed.compute_time, real.compute_time)
    np.testing.assert_array_equal(retimed.client_time, real.client_time)
    changed = np.abs(retimed.accuracy - real.accuracy) * real.test_count
    assert (
        changed.sum(axis=1).max() < 2.5
    )  # sums in another order: at most two test points in all
    (before,) = fixed.histories(["fedavg"], 1)["fedavg"]
    assert (before.compute_time != retimed.compute_time).all()


def test_runs_of_a_method_that_depends_on_speeds_keep_their_times(tmp_path):
    one, _ = make_study(3, tmp_path)
    assert (
        one.run_folder("flanp_fedavg", 0)
        == tmp_path / "everybody/fixed_clock/flanp_fedavg/seed_0"
    )
    hand_made_run([0.5], 2).save(
        one.run_folder("flanp_fedavg", 0)
    )  # a finished run, whose times are kept
    (history,) = one.histories(["flanp_fedavg"], 1)["flanp_fedavg"]
    np.testing.assert_array_equal(history.compute_time, [2.0, 2.0])
    with pytest.raises(ValueError, match="participation 'doubling' depends on speeds"):
        paper.retime(
            history, one.method("flanp_fedavg"), one.data, one.clocks["random"], 0
        )


@pytest.mark.usefixtures("no_rounds")
def test_a_run_gives_both_curves_and_is_not_repeated(tmp_path):
    one, lines = make_study(3, tmp_path)
    one.train("fedavg", range(2), together=True)
    assert len(lines) == 2
    curves = one.histories(["fedavg", "fedavg_ft"], 2)
    assert [h.evaluation for h in curves["fedavg"]] == ["global", "global"]
    assert [h.evaluation for h in curves["fedavg_ft"]] == ["fine_tune", "fine_tune"]
    assert [h.name for h in curves["fedavg_ft"]] == ["fedavg_ft", "fedavg_ft"]
    again, more = make_study(3, tmp_path)
    again.train("fedavg", range(2), together=False)
    assert not more
    changed, _ = make_study(3, tmp_path, SETTING._replace(num_rounds=3))
    with pytest.raises(
        ValueError,
        match="holds a run with other num_rounds; give another folder, or delete it",
    ):
        changed.train("fedavg", range(2), together=False)


@pytest.mark.short("True")
@pytest.mark.parametrize("together", [False, True])
def test_an_interrupted_run_continues_in_another_figure(together, tmp_path, monkeypatch):
    """Killed after the first round of figure 3, continued by figure 4, whose clock is another."""
    save, saved = Checkpoints.save, []

    def killed_while_running(self, num_rounds, *rest):
        save(self, num_rounds, *rest)
        saved.append(num_rounds)
        if len(saved) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoints, "save", killed_while_running)
    one, _ = make_study(3, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        one.train("fedavg", range(2), together)
    other, lines = make_study(4, tmp_path)
    other.train("fedavg", range(2), together)
    assert len(lines) == 2
    assert saved == ([1, 2] if together else [1, 2, 1, 2])  # no round is repeated
    assert not list(tmp_path.rglob("checkpoint*"))


def hand_made_run(accuracies, every, seconds=2.0, own=0.0):
    """A run of one client with rounds of `seconds`, evaluated on a grid; own parts are worse by `own`."""
    scores, times = (
        np.array(accuracies)[:, None],
        np.full(every * len(accuracies), seconds),
    )
    evaluated = every * np.arange(1, len(accuracies) + 1)
    judged = {"fine_tune": scores, "global": scores, "own_head": scores - own}
    return made_history(
        [], times, name="made", eval_round=evaluated, test_count=[10], accuracies=judged
    )


def test_no_call_writes_over_the_files_of_another(tmp_path):
    curves = {"fedrep": [hand_made_run([0.5, 0.8], 10, own=0.1)]}
    setting = paper.SETTINGS["gpu"]["mnist"]
    titles = [setting.title, paper.with_code_options(setting).title, "digits"]
    for columns in ([titles[0]], [titles[1]], [titles[2]], titles):
        paper_tables.report(dict.fromkeys(columns, curves), 3, "all of them", tmp_path)
    names = {path.name for path in tmp_path.iterdir() if path.suffix != ".csv"}
    stems = [
        "figure3",
        *(f"figure3_{name}" for name in ("mnist480", "mnist480_code", "digits")),
    ]
    assert names == {f"{stem}.{kind}" for stem in stems for kind in ("png", "txt")}


def test_figure_and_tables(tmp_path):
    curves = {
        "fedrep": [hand_made_run([0.5, 0.8, 0.9], 10, own=0.1)],
        "srpfl": [hand_made_run([0.8, 0.86, 0.9], 10, 0.5, own=0.2)],
        "flanp_fedavg_ft": [hand_made_run([0.7, 0.8, 0.8], 10, 0.5)],
    }
    text = paper_tables.report({"CIFAR-10": curves}, 4, "all of them", tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {
        f"figure4_cifar10.{kind}" for kind in ("png", "csv", "txt")
    }
    assert "FLANP-FT" in text
    assert (
        text.count("CIFAR-10: the same runs, judged with each client's own part; ") == 2
    )
    rows = pd.read_csv(tmp_path / "figure4_cifar10.csv")
    assert rows["evaluation"].tolist() == [*["fine_tune"] * 3, "own_head", "own_head"] * 2
    assert rows["final_accuracy"].tolist() == pytest.approx([0.9, 0.9, 0.8, 0.8, 0.7] * 2)
    assert rows["target"].tolist() == pytest.approx([0.95 * 0.9] * 5 + [0.99 * 0.9] * 5)
    drawn = paper_tables.draw({"one": curves, "two": curves})
    assert {ax.get_ylim()[0] for ax in drawn.axes} == {0.95 * 0.8}  # zoomed, not from 0
    assert [ax.get_title() for ax in drawn.axes[::2]] == [
        "one, C = 0",
        "one, C = 10",
        "one, C = 100",
    ]
    starts = [10 * (0.5 + cost) for cost in (0, 10, 100)]  # of SRPFL's first evaluation
    np.testing.assert_allclose(
        [ax.get_xlim()[0] for ax in drawn.axes[::2]], 0.9 * np.array(starts)
    )
    caption = drawn.legends[0].get_title().get_text()
    assert caption.endswith("\ngrey: 95 % and 99 % of the final accuracy of FedRep")


def test_first_visible_time_is_where_the_band_rises_above_the_bottom():
    runs = [hand_made_run([0.5, 0.8, 0.9], 10), hand_made_run([0.3, 0.4, 0.5], 10)]
    assert paper_tables.first_visible_time({"fedrep": runs}, 0.65, 0) == pytest.approx(
        30
    )  # halfway from 20 to 40
    assert paper_tables.first_visible_time(
        {"fedrep": runs[1:]}, 0.3, 10
    ) == pytest.approx(120)
    assert paper_tables.first_visible_time({"fedrep": runs}, 0.95, 0) == np.inf


def test_factors_have_the_bounds_of_the_grid():
    """FedRep reaches .9 in rounds 21 to 30 of 2 time units, SRPFL in rounds 11 to 20 of half a unit."""
    slow, fast = (
        hand_made_run([0.5, 0.8, 0.9], 10),
        hand_made_run([0.8, 0.95, 0.95], 10, seconds=0.5),
    )
    curves = {"fedrep": [slow], "srpfl": [fast]}
    row = paper_tables.compare(curves, 0.9).set_index("method").loc["srpfl"]
    assert (row["time_0"], row["after_0"], row["speed_up_0"]) == (10, 5, 6)
    assert (row["least_speed_up_0"], row["most_speed_up_0"]) == (40 / 10, 60 / 5)
    assert (row["least_speed_up_10"], row["most_speed_up_10"]) == (240 / 210, 360 / 105)
    assert paper_tables.time_before(slow, 0.3) == 0  # reached at the first evaluation
    assert (
        paper_tables.compare(curves, 0.7)
        .set_index("method")
        .loc["srpfl"]["most_speed_up_0"]
        == np.inf
    )
    never = (
        paper_tables.compare(curves, 0.93).set_index("method").loc["srpfl"]
    )  # FedRep's time is censored: no factor
    assert np.isfinite(never["time_0"])
    assert np.isnan(
        never[["speed_up_0", "least_speed_up_0", "most_speed_up_0"]].to_numpy(float)
    ).all()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--scale", "smoke", "--datasets", "mnits"],
            "--datasets mnits: --scale smoke has digits",
        ),
        (["--methods", "fedpro"], "invalid choice: 'fedpro'"),
        (["--seeds", "0"], "--seeds 0: must be at least 1"),
        (["--seeds", "-1"], "--seeds -1: must be at least 1"),
        (["--datasets", "digits", "mnist", "--data-dir", "nowhere"], "name='mnist': "),
    ],
)
def test_errors_name_wrong_arguments(arguments, words, tmp_path, capsys):
    with pytest.raises(SystemExit) as error:
        paper.main(3, [*arguments, "--out", str(tmp_path)])
    assert error.value.code == 2
    assert words in capsys.readouterr().err
    assert not list(tmp_path.iterdir())  # found before the first run


def test_a_run_with_other_settings_is_an_error_of_the_command_line(tmp_path, capsys):
    hand_made_run([0.5], 2).save(tmp_path / "digits/everybody/any_clock/fedavg/seed_0")
    with pytest.raises(SystemExit):
        paper.main(3, ["--scale", "smoke", "--methods", "fedavg", "--out", str(tmp_path)])
    assert "seed_0 holds a run with other training, seed, " in capsys.readouterr().err


SHAPES = {
    "digits": (8, 8),
    "cifar10": (32, 32, 3),
    "cifar100": (32, 32, 3),
}  # of an example; others are as MNIST


@pytest.mark.short("setting?-*", "setting13-*")
@pytest.mark.parametrize(
    ("setting", "name"),
    [
        (setting, name)
        for scale in paper.SETTINGS.values()
        for name, setting in scale.items()
    ],
)
def test_every_method_of_every_setting_can_be_built(setting, name):
    """From shapes alone, so that a mistake in a setting is found before it runs on an accelerator."""
    inspect.signature(srp.data.load).bind(**setting.federation, data_dir=Path("anywhere"))
    shape, num_clients = SHAPES.get(name, (28, 28, 1)), setting.federation["num_clients"]
    data = SimpleNamespace(
        name=name, example_shape=shape, num_classes=10, num_clients=num_clients
    )
    for curve in paper.CURVES.values():
        for figure in (
            paper.FIGURES[3],
            paper.FIGURES[5],
        ):  # without a pool, and with one
            pool = (
                {}
                if figure.pool_fraction == 1
                else {"pool": round(figure.pool_fraction * num_clients)}
            )
            shared = setting.method | pool
            method = srp.methods.get(
                curve.training, dataset=data, model=shared.pop("model"), shared=shared
            )
            assert curve.evaluation in method.algorithm.evaluations


def test_options_of_the_authors_code_reach_the_methods():
    for name, training, momentum, fine_tune in (
        ("text", "srpfl", None, None), ("momentum", "srpfl", 0.5, 0.5), ("momentum", "flanp_fedavg", None, 0.5),
        ("code", "srpfl", 0.5, 0.5), ("code", "flanp_fedavg", None, 0.5),
    ):  # fmt: skip
        one = paper.Study(
            paper.FIGURES[3],
            causes.setting(name, smoke=True),
            Path("nowhere"),
            None,
            print,
        )
        algorithm = one.method(training).algorithm
        optimizer, tuned = algorithm.training.optimizer, algorithm.fine_tune_optimizer
        assert optimizer.momentum == momentum
        assert (optimizer if tuned is None else tuned).momentum == fine_tune
        code = name == "code"
        assert algorithm.model.output == ("softmax" if code else "logits")
        assert algorithm.model.initialization == ("torch" if code else None)
        assert optimizer.weight_decay == (1e-4 if code else None)
        if training == "srpfl":
            assert algorithm.keeps_optimizer == algorithm.newcomers_take_mean_head == code


@pytest.mark.parametrize(
    ("name", "keeps_optimizer", "takes_mean_head"),
    [
        ("code without mean heads", True, False),
        ("code without one optimizer", False, True),
    ],
)
def test_each_of_the_codes_options_of_heads_can_be_left_out(
    name, keeps_optimizer, takes_mean_head
):
    one = paper.Study(
        paper.FIGURES[3], causes.setting(name, smoke=True), Path("nowhere"), None, print
    )
    algorithm = one.method("srpfl").algorithm
    assert algorithm.training.optimizer.momentum == 0.5
    assert algorithm.keeps_optimizer == keeps_optimizer
    assert algorithm.newcomers_take_mean_head == takes_mean_head


@pytest.mark.long
def test_causes_and_sweep_write_tables_of_finished_runs(tmp_path):
    given = ["--smoke", "--seeds", "1", "--out", str(tmp_path)]
    causes.main([*given, "--settings", "code", "double softmax, heads of 1 epoch"])
    head, _, code, one = cause_tables.causes(tmp_path).splitlines()
    assert head.startswith(
        "| setting | SRPFL | FLANP-FT | SRPFL, own heads | FLANP (FedAvg) |"
    )
    rows = pd.read_csv(tmp_path / "causes.csv").set_index(
        ["setting", "method", "evaluation", "round"]
    )["accuracy"]
    assert code.split(" | ")[1:3] == [
        f"{rows['code', m, 'fine_tune', 4]:.1f}" for m in ("srpfl", "flanp_fedavg")
    ]
    assert one.split(" | ")[2] == ""  # FLANP has no heads to train
    sweep.main([*given, "--classes", "2", "--images", "10"])
    *_, row = cause_tables.sweep(tmp_path).splitlines()
    images, classes, srpfl, flanp, own, _, less, less_own, *_ = (
        float(cell) for cell in row.strip("| ").split(" | ")
    )
    assert (images, classes) == (10, 2)
    np.testing.assert_allclose([less, less_own], [srpfl - flanp, own - flanp], atol=0.11)


def test_a_sweep_of_fewer_seeds_keeps_the_rows_of_more(tmp_path):
    scores = {"round": 4, "accuracy": 50.0, "worst_tenth": 10.0}
    rows = [
        {
            "classes": 2,
            "images": 10,
            "seed": seed,
            "method": method,
            "evaluation": evaluation,
        }
        | scores
        for seed in range(2)
        for method, evaluation in cause_tables.SCORES.values()
    ]
    pd.DataFrame(rows).to_csv(tmp_path / "sweep.csv", index=False)
    written = (tmp_path / "sweep.csv").read_text()
    sweep.main(
        [
            "--smoke",
            "--seeds",
            "1",
            "--out",
            str(tmp_path),
            "--classes",
            "2",
            "--images",
            "10",
        ]
    )
    assert (tmp_path / "sweep.csv").read_text() == written
