"""Command line: options of methods, models, clocks and a user's parts, and their defaults."""

import inspect

import numpy as np
import pytest
from command_line import DATA, TINY, assert_refusal, main

import fedjax_srp as srp
from fedjax_srp import History
from fedjax_srp.driver.settings import Settings
from fedjax_srp.lab.runs import options as run_options


@pytest.mark.usefixtures("no_rounds")
def test_fine_tuning_has_options_of_its_own(tmp_path, capsys):
    words = (*TINY, "--learning-rate", 0.2, "--head-optimizer.learning-rate=0.3")
    words += ("--fine-tune-optimizer.momentum", 0.5, "--out", tmp_path / "run")
    assert main(*words) == 0
    history = History.load(tmp_path / "run")
    algorithm = history.method.algorithm
    assert algorithm.fine_tune_optimizer == srp.SGD(0.2, 0.5)
    assert algorithm.head_optimizer == srp.SGD(0.3)
    assert main(*words, "--fine-tune-optimizer.momentum", 0.9) == 2
    assert_refusal(
        capsys.readouterr().err,
        "fine_tune_optimizer.momentum=0.5 where this one has 0.9",
    )


CLASH = """
from __future__ import annotations
from typing import Annotated
import fedjax_srp as srp


@srp.part
class Mine(srp.algorithms.FedAvg):
    name = "mine"
    alpha: Annotated[float, srp.AtLeast(0)] = 0.5
    checkpoint: bool = False


@srp.part
class Few(srp.participation.Uniform):
    seed: int = 3
    alpha: Annotated[float, srp.AtLeast(0)] = 0.1


def small(input_shape, num_classes, target: int = 4):
    return srp.models.MLP(input_shape, num_classes, hidden=(target,))


srp.methods.register("mine", Mine)
srp.methods.register_participation("few", Few)
srp.models.register("small", small)
"""


@pytest.fixture
def clash(tmp_path):
    """File for --load: parts whose fields have the names of options of the data and of the simulation."""
    (tmp_path / "clash.py").write_text(CLASH)
    words = ("run", "--load", tmp_path / "clash.py", *DATA, "--num-rounds", 1)
    return (*words, "--no-progress", "--devices", 1, "--out", tmp_path / "run")


@pytest.mark.usefixtures("no_rounds")
def test_an_option_whose_name_is_taken_is_written_with_its_part(clash, tmp_path, capsys):
    words = (*clash, "--method", "mine", "--model", "small", "--seed", 4)
    words += ("--method.alpha", 0.25, "--method.checkpoint", "--model.target", 6)
    assert main(*words, "--participation", "few", "--k", 2) == 2
    both = "alpha: read by its algorithm and by participation 'few'"
    assert_refusal(capsys.readouterr().err, both)
    assert main(*words, "--target", 0.99) == 0, capsys.readouterr().err
    config = History.load(tmp_path / "run").config
    algorithm = config["method"]["algorithm"]
    assert (algorithm["alpha"], algorithm["checkpoint"]) == (0.25, True)
    assert algorithm["model"]["hidden"] == [6]
    assert config["model"]["target"] == 6
    assert (config["key"], config["schedule"]["target"]) == ([0, 4], 0.99)
    assert config["data"]["options"]["alpha"] is None
    assert main(*words, "--target", 0.99, "--method.alpha", 0.5) == 2
    assert "method.algorithm.alpha=0.25 where this one has 0.5" in capsys.readouterr().err
    words = (*clash, "--overwrite", "--method", "fedavg", "--participation", "few")
    words += ("--k", 2, "--participation.seed", 5, "--participation.alpha", 0.2)
    assert main(*words) == 0, capsys.readouterr().err
    config = History.load(tmp_path / "run").config
    few = {"part": "clash.Few", "k": 2, "seed": 5, "alpha": 0.2}
    assert config["method"]["participation"] == few
    assert (config["key"], config["data"]["options"]["alpha"]) == ([0, 0], None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "fedavg --participation.seed 1",
            "participation.seed: has no effect on this run",
        ),
        ("mine --method.alpha -1", "alpha=-1.0 must be at least 0"),
        ("mine --method.alhpa 1", "--method.alhpa (did you mean --method.alpha?)"),
    ],
)
def test_errors_of_such_options_are_one_line(words, message, clash, capsys):
    assert main(*clash, "--method", *words.split()) == 2
    assert_refusal(capsys.readouterr().err, message)


SHAPES = {
    "numbers": ((7,), np.float32, 9),
    "pixels": ((16, 16), np.uint8, 256),
    "tokens": ((7,), np.int32, 9),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    (folder / "times.csv").write_text("1,2,3,4,5,6\n6,5,4,3,2,1\n")
    y = np.arange(60) % 3
    for name, (shape, dtype, end) in SHAPES.items():
        x = rng.integers(0, end, (60, *shape)).astype(dtype)
        x_test = np.roll(x, 1, axis=-1)
        np.savez(folder / f"{name}.npz", x_train=x, y_train=y, x_test=x_test, y_test=y)
    return folder


@pytest.mark.parametrize(("name", "model"), [("numbers", "lstm"), ("tokens", "mlp")])
def test_a_model_for_other_inputs_is_a_usage_error(name, model, files, tmp_path, capsys):
    words = ("--dataset", files / f"{name}.npz", "--num-clients", 6, "--model", model)
    assert main("run", "--method", "fedavg", *words, "--out", tmp_path) == 2
    assert_refusal(capsys.readouterr().err, f"model '{model}'")


@pytest.mark.short("lg_srpfl-*")
@pytest.mark.parametrize(
    ("method", "name", "options", "cohorts"),
    [
        (
            "lg_srpfl",
            "numbers",
            "--clock random --pool 5 --redraw stage --model mlp --hidden 4 4 --initial 2 --rounds-per-stage 1",
            [2, 4, 5],
        ),
        (
            "flanp_fedavg_ft",
            "pixels",
            "--clock ordered:fixed --model lenet5 --channels 2 8 --hidden 4 4 --initial 2 --rounds-per-stage 1",
            [2, 4, 6],
        ),
        (
            "hf_maml",
            "tokens",
            "--clock dynamic:exponential(2) --pool 4 --model lstm --features 4 --dense 4",
            [4] * 3,
        ),
        (
            "fedrep",
            "pixels",
            "--clock trace:FOLDER/times.csv --hidden 4 --augment crop_flip --initialization torch",
            [6] * 3,
        ),
    ],
)
def test_methods_clocks_pools_and_models_go_together(
    method, name, options, cohorts, files, tmp_path
):
    words = f"--method {method} --dataset {files}/{name}.npz --num-clients 6 --devices 1 "
    words += "--num-rounds 3 --eval-every 3 --fine-tune-epochs 1 --no-progress "
    words += options.replace("FOLDER", str(files))
    assert main("run", *words.split(), "--out", tmp_path) == 0
    history = History.load(tmp_path)
    assert history.name == method
    assert history.config["method"]["algorithm"]["fine_tune_epochs"] == 1
    assert history.cohort_size.tolist() == cohorts
    assert history.diverged is None
    assert np.isfinite(history.final_accuracy)


def test_defaults_come_from_the_functions():
    groups = run_options.groups().values()
    known = {name: option for group in groups for name, option in group.items()}
    assert len(known) == sum(map(len, groups))  # no name twice
    assert all(option.help for option in known.values())
    others = {"seed", "clock", "num_rounds", "algorithm", "participation"}
    for function in (srp.data.load, srp.simulate):
        for name, parameter in inspect.signature(function).parameters.items():
            if name in known.keys() - others:
                assert known[name].default == parameter.default, name
    assert run_options.SIMULATION.keys() < inspect.signature(Settings).parameters.keys()
    for name, option in srp.methods.routes("srpfl").algorithm.items():
        if not option.is_part:
            assert known[name].default is None  # left to the part
            assert (
                option.default is None or f"default {option.default}" in known[name].help
            )
