"""Figures 3 to 6 of the SRPFL paper: runs that are never done twice, and times of another clock."""

import importlib.util
import inspect
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import fedjax_srp as srp
from fedjax_srp.engine.checkpoint import Checkpoints

FOLDER = Path(__file__).parents[2] / "experiments" / "srpfl"
spec = importlib.util.spec_from_file_location("srpfl_paper", FOLDER / "paper.py")
assert spec is not None
assert spec.loader is not None
paper = importlib.util.module_from_spec(spec)
sys.modules["srpfl_paper"] = paper  # dataclasses and pickles look their module up
spec.loader.exec_module(paper)

SETTING = paper.SETTINGS["smoke"]["digits"]._replace(num_rounds=2, eval_every=1, seeds=1)


def study(figure, out, setting=SETTING):
    lines = []
    return paper.Study(paper.FIGURES[figure], setting, out, None, lines.append), lines


@pytest.mark.parametrize("figure", [3, 5])
def test_one_training_run_serves_both_clocks(figure, tmp_path):
    fixed, _ = study(figure, tmp_path / "shared")
    fixed.train("fedavg", 1, together=False)
    other, lines = study(figure + 1, tmp_path / "shared")
    other.train("fedavg", 1, together=False)
    assert not lines  # nothing was trained anew
    (retimed,) = other.histories(["fedavg"], 1)["fedavg"]
    real = srp.simulate(
        other.method("fedavg"),
        other.data,
        clock=other.clocks["random"],
        num_rounds=SETTING.num_rounds,
        eval_every=SETTING.eval_every,
        key=jax.random.key(0),
        progress=False,
    )
    np.testing.assert_array_equal(retimed.compute_time, real.compute_time)
    np.testing.assert_array_equal(retimed.client_time, real.client_time)
    np.testing.assert_allclose(retimed.accuracy, real.accuracy, atol=0.1)  # sums in another order
    (before,) = fixed.histories(["fedavg"], 1)["fedavg"]
    assert (before.compute_time != retimed.compute_time).all()


def test_times_of_a_method_that_looks_at_speed_are_its_own(tmp_path):
    one, _ = study(3, tmp_path)
    one.train("flanp_fedavg", 1, together=False)
    assert (tmp_path / "everybody/fixed_clock/flanp_fedavg/seed_0/summary.json").is_file()
    (history,) = one.histories(["flanp_fedavg"], 1)["flanp_fedavg"]
    with pytest.raises(ValueError, match="participation 'doubling' looks at the clients' speed"):
        paper.under_clock(history, one.method("flanp_fedavg"), one.data, one.clocks["random"], 0)


def test_a_run_gives_both_curves_and_is_not_done_twice(tmp_path):
    one, lines = study(3, tmp_path)
    one.train("fedavg", 2, together=True)
    assert len(lines) == 2
    curves = one.histories(["fedavg", "fedavg_ft"], 2)
    assert [h.evaluation for h in curves["fedavg"]] == ["global", "global"]
    assert [h.evaluation for h in curves["fedavg_ft"]] == ["fine_tune", "fine_tune"]
    assert [h.name for h in curves["fedavg_ft"]] == ["fedavg_ft", "fedavg_ft"]
    again, more = study(3, tmp_path)
    again.train("fedavg", 2, together=False)
    assert not more
    changed, _ = study(3, tmp_path, SETTING._replace(num_rounds=3))
    with pytest.raises(ValueError, match="holds a run with other num_rounds; give another --out"):
        changed.train("fedavg", 2, together=False)


@pytest.mark.parametrize("together", [False, True])
def test_an_interrupted_run_goes_on_in_another_figure(together, tmp_path, monkeypatch):
    """Killed after the first round of figure 3, continued by figure 4, whose clock is another."""
    save, saved = Checkpoints.save, []

    def killed_while_running(self, num_rounds, *rest):
        save(self, num_rounds, *rest)
        saved.append(num_rounds)
        if len(saved) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoints, "save", killed_while_running)
    one, _ = study(3, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        one.train("fedavg", 2, together)
    other, lines = study(4, tmp_path)
    other.train("fedavg", 2, together)
    assert len(lines) == 2
    assert saved == ([1, 2] if together else [1, 2, 1, 2])  # no round is done twice
    assert not list(tmp_path.rglob("checkpoint*"))


def test_figure_and_tables(tmp_path):
    one, _ = study(3, tmp_path)
    names = ["flanp_fedavg", "flanp_fedavg_ft"]
    one.train("flanp_fedavg", 1, together=False)
    text = paper.report({SETTING.title: one.histories(names, 1)}, 3, tmp_path / "results")
    assert {p.name for p in (tmp_path / "results").iterdir()} == {"figure3.png", "figure3_digits.csv", "figure3.txt"}
    assert "FLANP-FT" in text
    assert "quarters %, fastest first" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--scale", "smoke", "--datasets", "mnits"], "--datasets mnits: --scale smoke has digits"),
        (["--methods", "fedpro"], "invalid choice: 'fedpro'"),
        (["--seeds", "0"], "--seeds 0: must be at least 1"),
        (["--seeds", "-1"], "--seeds -1: must be at least 1"),
        (["--datasets", "digits", "mnist", "--data-dir", "nowhere"], "name='mnist': "),
    ],
)
def test_wrong_words_are_named(arguments, words, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(paper.srp, "use_all_cores", lambda: None)  # of a process whose devices are set
    with pytest.raises(SystemExit) as error:
        paper.main(3, [*arguments, "--out", str(tmp_path)])
    assert error.value.code == 2
    assert words in capsys.readouterr().err
    assert not list(tmp_path.iterdir())  # found before the first run


def test_a_run_of_another_setting_is_an_error_of_use(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(paper.srp, "use_all_cores", lambda: None)
    place = tmp_path / "digits/everybody/any_clock/fedavg/seed_0"
    place.mkdir(parents=True)
    (place / "summary.json").write_text("{}")
    (place / "config.json").write_text('{"config": {"arguments": {}}}')
    with pytest.raises(SystemExit) as error:
        paper.main(3, ["--scale", "smoke", "--methods", "fedavg", "--out", str(tmp_path)])
    assert error.value.code == 2
    assert "holds a run with other" in capsys.readouterr().err


def test_a_bug_keeps_its_traceback(tmp_path, monkeypatch):
    monkeypatch.setattr(paper.srp, "use_all_cores", lambda: None)
    monkeypatch.setattr(paper.Study, "train", lambda self, *arguments: np.zeros(2).reshape(3))
    with pytest.raises(ValueError, match="reshape"):
        paper.main(3, ["--scale", "smoke", "--out", str(tmp_path)])


def test_every_curve_of_the_paper_is_there_and_every_training_is_a_method():
    assert len(paper.CURVES) == 9
    assert all(curve.training in paper.methods.names() for curve in paper.CURVES.values())
    for scale in ("full", "cpu"):
        assert set(paper.SETTINGS[scale]) >= {"cifar10", "cifar100", "emnist", "femnist"}


SHAPES = {  # of an example, and number of classes
    "digits": ((8, 8), 10),
    "mnist": ((28, 28, 1), 10),
    "emnist": ((28, 28, 1), 10),
    "femnist": ((28, 28, 1), 10),
    "cifar10": ((32, 32, 3), 10),
    "cifar100": ((32, 32, 3), 100),
}


@pytest.mark.parametrize(
    ("setting", "name"), [(setting, name) for scale in paper.SETTINGS.values() for name, setting in scale.items()]
)
def test_every_method_of_every_setting_can_be_built(setting, name):
    """On shapes alone, so that a wrong word in a setting is not found on an accelerator."""
    inspect.signature(srp.data.load).bind(**setting.federation, data_dir=Path("anywhere"))
    shape, num_classes = SHAPES[name]
    num_clients = setting.federation["num_clients"]
    data = SimpleNamespace(name=name, example_shape=shape, num_classes=num_classes, num_clients=num_clients)
    for curve in paper.CURVES.values():
        for figure in paper.FIGURES.values():
            pool = {} if figure.pool_fraction == 1 else {"pool": round(figure.pool_fraction * num_clients)}
            shared = setting.method | pool
            method = srp.methods.get(curve.training, dataset=data, model=shared.pop("model"), shared=shared)
            assert curve.evaluation in method.algorithm.evaluations


def test_the_cpu_scale_is_the_full_one_with_less_work():
    for name, full in paper.SETTINGS["full"].items():
        cpu = paper.SETTINGS["cpu"][name]
        assert cpu.federation.items() > full.federation.items()
        assert "max_examples" in cpu.federation
        assert cpu.method["model"] == full.method["model"]
        assert cpu.num_rounds * cpu.seeds < full.num_rounds * full.seeds
