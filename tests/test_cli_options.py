"""Command line: options of methods, models, clocks and a user's parts, and their defaults."""

import dataclasses
import inspect
from typing import get_args

import jax
import numpy as np
import pytest
from command_line import CLIENTS, DATA, RUN, TINY, assert_refusal, main, simulated

import fedjax_srp as srp
from fedjax_srp.driver.settings import Settings
from fedjax_srp.lab.runs import options as run_options
from fedjax_srp.lab.runs.run import Run
from fedjax_srp.results.history import History


@pytest.mark.long
def test_fine_tuning_has_options_of_its_own(tmp_path, capsys):
    words = (
        *TINY,
        "--num-rounds",
        2,
        "--no-checkpoint",
        "--learning-rate",
        0.2,
        "--out",
        tmp_path / "run",
    )
    words += ("--fine-tune-optimizer.momentum", 0.5, "--head-optimizer.learning-rate=0.3")
    assert main(*words) == 0
    history = History.load(tmp_path / "run")
    given = {"fine_tune_optimizer.momentum": 0.5, "head_optimizer.learning_rate": 0.3}
    data = srp.data.load("digits", **CLIENTS)
    expected = simulated(
        data, {"learning_rate": 0.2, **given}, num_rounds=2, key=jax.random.key(0)
    )
    assert expected.method.algorithm.fine_tune_optimizer == srp.SGD(0.2, 0.5)
    np.testing.assert_array_equal(history.accuracy, expected.accuracy)
    assert main(*words) == 0
    assert "holds this run already, finished" in capsys.readouterr().out
    assert main(*words, "--fine-tune-optimizer.momentum", 0.9) == 2
    assert (
        "fine_tune_optimizer.momentum=0.5 where this one has 0.9"
        in capsys.readouterr().err
    )
    assert main(*words, "--fine-tune-momentum", 0.9) == 2
    assert "unknown argument --fine-tune-momentum" in capsys.readouterr().err


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
    words = (
        "run",
        "--load",
        tmp_path / "clash.py",
        *DATA,
        "--max-examples",
        8,
        "--num-rounds",
        1,
        "--no-progress",
    )
    return (*words, "--devices", 1)


@pytest.mark.long
def test_an_option_whose_name_is_taken_is_written_with_its_part(clash, tmp_path, capsys):
    out = tmp_path / "run"
    own = (
        "--method.alpha",
        0.25,
        "--method.checkpoint",
        "--k",
        2,
        "--participation.seed",
        5,
        "--model.target",
        6,
    )
    words = (
        *clash,
        "--method",
        "mine",
        "--participation",
        "few",
        "--model",
        "small",
        "--seed",
        4,
        "--out",
        out,
    )
    assert (
        main(*words, *own) == 2
    )  # both parts have an alpha, and one value would go to both
    assert (
        "alpha: read by its algorithm and by participation 'few'"
        in capsys.readouterr().err
    )
    words = (*clash, "--method", "mine", "--model", "small", "--seed", 4, "--out", out)
    own = (
        "--method.alpha",
        0.25,
        "--method.checkpoint",
        "--model.target",
        6,
        "--target",
        0.99,
    )
    assert main(*words, *own) == 0, capsys.readouterr().err
    history = History.load(out)
    config = history.config
    algorithm = config["method"]["algorithm"]
    assert (algorithm["alpha"], algorithm["checkpoint"]) == (0.25, True)
    assert algorithm["model"]["hidden"] == [6]
    assert (config["key"], config["schedule"]["target"]) == ([0, 4], 0.99)
    assert config["data"]["options"]["alpha"] is None
    assert config["model"]["target"] == 6
    capsys.readouterr()
    assert main(*words, *own) == 0
    assert "holds this run already, finished" in capsys.readouterr().out
    assert main(*words, *own, "--method.alpha", 0.5) == 2
    assert (
        "holds another run, with method.algorithm.alpha=0.25 where this one has 0.5"
        in capsys.readouterr().err
    )
    assert main(*clash, "--help") == 0
    assert {"--method.checkpoint,", "--participation.alpha", "--checkpoint,"} <= {
        *capsys.readouterr().out.split()
    }


@pytest.mark.usefixtures("no_rounds")
def test_an_option_of_a_policy_whose_name_is_taken(clash, tmp_path, capsys):
    words = (
        *clash,
        "--method",
        "fedavg",
        "--hidden",
        4,
        "--participation",
        "few",
        "--k",
        2,
        "--out",
        tmp_path / "run",
    )
    assert main(*words, "--participation.seed", 5, "--participation.alpha", 0.2) == 0, (
        capsys.readouterr().err
    )
    config = History.load(tmp_path / "run").config
    assert config["method"]["participation"] == {
        "part": "clash.Few",  # as `import clash` knows it
        "k": 2,
        "seed": 5,
        "alpha": 0.2,
    }
    assert (config["key"], config["data"]["options"]["alpha"]) == ([0, 0], None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("fedavg --method.alpha 1", "method.alpha: has no effect on this run"),
        (
            "fedavg --participation.seed 1",
            "participation.seed: has no effect on this run",
        ),
        ("mine --model.target 1", "model.target: has no effect on this run"),
        ("mine --method.alpha -1", "alpha=-1.0 must be at least 0"),
        ("mine --method.alhpa 1", "--method.alhpa (did you mean --method.alpha or"),
    ],
)
def test_errors_of_such_options_are_one_line(words, message, clash, tmp_path, capsys):
    assert main(*clash, "--method", *words.split(), "--out", tmp_path / "run") == 2
    assert_refusal(capsys.readouterr().err, message)


def write_npz(path, x, num_classes=3):
    y = np.arange(len(x)) % num_classes
    np.savez(path, x_train=x, y_train=y, x_test=np.roll(x, 1, axis=-1), y_test=y)
    return path


SHAPES = {
    "numbers": ((7,), np.float32),
    "pixels": ((16, 16), np.uint8),
    "tokens": ((7,), np.int32),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    arrays = {
        name: rng.integers(0, 9, (60, *shape)).astype(dtype)
        for name, (shape, dtype) in SHAPES.items()
    }
    (folder / "times.csv").write_text("1,2,3,4,5,6\n6,5,4,3,2,1\n")
    return {name: write_npz(folder / f"{name}.npz", x) for name, x in arrays.items()} | {
        "times": folder / "times.csv"
    }


@pytest.mark.parametrize(("name", "model"), [("numbers", "lstm"), ("tokens", "mlp")])
def test_a_model_for_other_inputs_is_a_usage_error(name, model, files, tmp_path, capsys):
    words = (
        "run",
        "--method",
        "fedavg",
        "--dataset",
        files[name],
        "--num-clients",
        6,
        "--model",
        model,
    )
    assert main(*words, "--out", tmp_path, "--no-progress") == 2
    assert_refusal(capsys.readouterr().err, f"model '{model}'")


@pytest.mark.short("lg_srpfl-*")
@pytest.mark.parametrize(
    ("method", "name", "options", "cohorts"),
    [
        (
            "lg_srpfl",
            "numbers",
            "--clock random --pool 5 --redraw stage --model mlp --hidden 4 4",
            [2, 4, 5],
        ),
        (
            "flanp_fedavg_ft",
            "pixels",
            "--clock ordered:fixed --model lenet5 --channels 2 8 --hidden 4 4",
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
            "--clock trace:TIMES --hidden 4 --augment crop_flip --initialization torch",
            [6] * 3,
        ),
    ],
)
def test_methods_clocks_pools_and_models_go_together(
    method, name, options, cohorts, files, tmp_path
):
    words = [
        "run",
        "--method",
        method,
        "--dataset",
        files[name],
        "--num-clients",
        6,
        "--out",
        tmp_path,
    ]
    words += [
        *options.replace("TIMES", str(files["times"])).split(),
        "--num-rounds",
        3,
        "--eval-every",
        3,
    ]
    doubling = ("--initial", 2, "--rounds-per-stage", 1) if cohorts[0] == 2 else ()
    assert (
        main(*words, *doubling, "--fine-tune-epochs", 1, "--no-progress", "--devices", 1)
        == 0
    )
    history = History.load(tmp_path)
    assert history.name == method
    assert history.config["method"]["algorithm"]["fine_tune_epochs"] == 1
    assert history.cohort_size.tolist() == cohorts
    assert history.diverged is None
    assert np.isfinite(history.final_accuracy)


def test_defaults_come_from_the_functions():
    known = {
        name: option
        for group in run_options.groups().values()
        for name, option in group.items()
    }
    of_run = {field.name: field.default for field in dataclasses.fields(Run)}
    for function in (srp.data.load, srp.simulate):
        for name, parameter in inspect.signature(function).parameters.items():
            if name in known and name not in (
                "seed",
                "clock",
                "num_rounds",
                "algorithm",
                "participation",
            ):
                assert known[name].default == parameter.default, name
                assert known[name].help, name
                assert of_run.get(name, parameter.default) == parameter.default, name
    assert run_options.SIMULATION.keys() < inspect.signature(Settings).parameters.keys()
    assert all(option.help for option in known.values())
    for route in map(srp.methods.routes, srp.methods.names()):
        for name, option in {**route.algorithm, **route.policy}.items():
            assert option.is_part or known[name].default is None  # left to the part
            default = (
                " ".join(map(str, option.default))
                if isinstance(option.default, tuple)
                else option.default
            )
            assert (
                default is None
                or option.is_part
                or f"default {default}" in known[name].help
            )
    names = [name for group in run_options.groups().values() for name in group]
    assert len(names) == len(set(names))
    choices = [
        get_args(kind) for option in known.values() for kind in get_args(option.type)
    ]
    assert all(
        len(each) == len(set(each)) for each in choices
    )  # of methods that share some
    assert ("global", "fine_tune", "fine_tune_all", "neighbours") in choices


@pytest.mark.long
def test_a_run_of_devices_that_come_and_go(tmp_path):
    words = f"{RUN} --max-examples 10 --method fedavg --hidden 4 --num-rounds 2 --no-progress".split()
    assert (
        main(
            *words,
            "--clock",
            "available(devices(1e6, 1e4, 1e4), markov(10, 5))",
            "--out",
            tmp_path,
        )
        == 0
    )
