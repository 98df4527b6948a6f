"""Custom models, clocks and policies: by name in Python, on the command line, in grids."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.small import CLOCK, KEY, clients_of, federation

import fedjax_srp as srp
from fedjax_srp.clocks.by_name import read_clock
from fedjax_srp.lab.commands import cli
from fedjax_srp.participation import cohorts

DATA = federation(clients_of((4, 5, 6), (3, 3, 3)))


def narrow(input_shape, num_classes, width: int = 5, depth=2):
    return srp.models.MLP(input_shape, num_classes, hidden=(width,) * depth)


def two_speeds(slow: float = 5.0, every: int = 2):
    times = 1.0 + (slow - 1.0) * (np.arange(DATA.num_clients) % every == 0)
    return srp.clocks.Fixed(srp.clocks.Constant(times))


# Registration.


def test_a_factory_that_returns_something_else_is_named():
    srp.models.register("mine", lambda shape, classes: 3)
    with pytest.raises(ValueError, match="<lambda>: returned 3, not a SplitModel"):
        srp.models.get("mine", DATA)
    srp.methods.register_participation("forgetful", lambda: None)
    with pytest.raises(
        ValueError, match="<lambda>: returned None, not a ParticipationPolicy"
    ):
        srp.methods.get("fedavg", dataset=DATA, participation="forgetful")


# Models.


@pytest.mark.usefixtures("no_rounds")
def test_custom_models_have_names_and_options():
    srp.models.register("narrow", narrow)
    assert "narrow" in srp.models.names()
    assert srp.models.options("narrow") == {"width": 5, "depth": 2}
    method = srp.methods.get("fedrep", dataset=DATA, model="narrow", width=3)
    recorded = srp.methods.choose("fedrep", "narrow", width=3).model_options()
    assert {o: recorded[o] for o in ("model", "width", "depth")} == {
        "model": "narrow",
        "width": 3,
        "depth": 2,
    }
    model = srp.models.get("narrow", DATA, width=3)
    assert (
        model
        == srp.models.get("narrow", DATA, depth=2, width=3)
        == method.algorithm.model
    )  # one program
    heads = [srp.models.get("narrow", DATA, head_layers=n).init(KEY).head for n in (1, 2)]
    assert [len(head) for head in heads] == [1, 2]
    history = srp.simulate(
        method, DATA, clock=CLOCK, num_rounds=1, key=KEY, progress=False, devices=1
    )
    assert history.config["method"]["algorithm"]["model"]["hidden"] == [3, 3]
    assert [
        layer["kernel"].shape[1] for layer in model.init(KEY).representation.values()
    ] == [3, 3]


def test_a_model_may_be_registered_again():
    srp.models.register("narrow", narrow)
    first = srp.models.get("narrow", DATA)
    srp.models.register(
        "narrow", lambda shape, classes: srp.models.MLP(shape, classes, hidden=(7,))
    )
    assert srp.models.get("narrow", DATA) != first
    assert srp.models.options("narrow") == {}


def test_options_of_custom_models_do_not_collide():
    srp.models.register(
        "narrow", lambda shape, classes, momentum=0.5: srp.models.MLP(shape, classes)
    )
    with pytest.raises(
        ValueError,
        match="momentum: read by its algorithm and by its model; rename your field",
    ):
        srp.methods.get("fedrep", dataset=DATA, model="narrow")
    srp.models.register("narrow", narrow)
    with pytest.raises(
        ValueError, match=r"unknown option 'widht' of model 'narrow'.*width"
    ):
        srp.models.get("narrow", DATA, widht=3)


# Clocks.


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("two_speeds", two_speeds()),
        ("two_speeds()", two_speeds()),
        ("two_speeds(2 + 1)", two_speeds(3)),
        ("two_speeds(every=N, slow=4)", two_speeds(4, 3)),
    ],
)
def test_custom_clocks_have_names_and_arguments(text, expected):
    srp.clocks.register("two_speeds", two_speeds)
    assert read_clock(text, DATA.num_clients) == expected


def test_custom_clocks_take_texts_and_distributions(tmp_path):
    np.savetxt(tmp_path / "times, of all.csv", [[1.0, 2.0, 3.0]])

    def measured(file: str, other=None):
        return (
            srp.clocks.Trace(np.loadtxt(file, ndmin=2))
            if other is None
            else srp.clocks.Dynamic(other)
        )

    srp.clocks.register("measured", measured)
    clock = read_clock(f"measured('{tmp_path}/times, of all.csv')", 3)
    assert clock.name == "trace"
    assert read_clock("measured('', exponential(uniform(1/N, 1)))", 3).name == "dynamic"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "two_speeds(",
            r"clock='two_speeds\(' is not understood: .*; give ",
        ),
        ("two_speeds(1, 2, 3)", "not understood: .*too many positional arguments"),
        ("two_speeds(fast=1)", "not understood: .*unexpected keyword argument 'fast'"),
        ("two_speeds(x)", "not understood: 'x' is unknown"),
        ("two_speeds(__import__('os'))", "not understood: .* is unknown"),
        ("two_speeds(2) + 1", "not understood"),
        (
            "two_speed",
            r"'two_speed' is unknown \(did you mean two_speeds\?\).*; srp.clocks.register",
        ),
        ("two_speeds('far')", "slow='far'"),
        ("broken", "returned None, not a Clock"),
    ],
)
def test_wrong_expressions_for_custom_clocks_are_refused(text, message):
    srp.clocks.register("two_speeds", two_speeds)
    srp.clocks.register("broken", lambda: None)
    with pytest.raises(ValueError, match=message):
        read_clock(text, 3)


def test_an_error_in_a_custom_clock_is_not_changed():
    def buggy():
        raise KeyError("mine")

    srp.clocks.register("buggy", buggy)
    with pytest.raises(KeyError, match="mine"):
        read_clock("buggy", 3)


# All, in runs and grids.


@pytest.mark.long
def test_a_loaded_file_registers_parts_for_runs_and_grids(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(
        "import fedjax_srp as srp\n"
        "def narrow(input_shape: tuple[int, ...], num_classes: int, width: int = 5):\n"
        '    """Mine.\n\n    Args:\n        width: of its layer.\n    """\n'
        "    return srp.models.MLP(input_shape, num_classes, hidden=(width,))\n"
        "def same(time: float = 2.0):\n"
        "    return srp.clocks.Fixed(srp.clocks.Constant(time))\n"
        "def first(m: int = 2):\n"
        '    """Mine.\n\n    Args:\n        m: of them.\n    """\n'
        "    return srp.participation.Fastest(m)\n"
        "srp.models.register('narrow', narrow)\n"
        "srp.clocks.register('same', same)\n"
        "srp.methods.register_participation('first', first)\n"
    )
    words = [
        "--dataset",
        "digits",
        "--num-clients",
        "5",
        "--num-rounds",
        "2",
        "--no-progress",
        "--method",
        "fedavg",
    ]
    words += [
        "--model",
        "narrow",
        "--width",
        "3",
        "--clock",
        "same(time=4)",
        "--load",
        str(tmp_path / "mine.py"),
    ]
    words += ["--participation", "first", "--m", "3"]
    assert (
        cli.main(["run", *words, "--out", str(tmp_path / "run")], set_up_cores=False) == 0
    )
    run = srp.History.load(tmp_path / "run")
    assert (run.config["model"]["model"], run.config["model"]["width"]) == ("narrow", 3)
    assert run.config["method"]["algorithm"]["model"]["hidden"] == [3]
    assert run.compute_time.tolist() == [4.0, 4.0]
    assert run.config["method"]["participation"]["k"] == 3
    assert run.cohort_size.tolist() == [3, 3]
    assert run.config["clock"]["distribution"]["value"] == 4.0
    assert (
        cli.main(["run", *words, "--out", str(tmp_path / "run")], set_up_cores=False) == 0
    )  # is known again

    options = {
        "method": "fedavg",
        "dataset": "digits",
        "num_clients": 5,
        "num_rounds": 1,
        "model": "narrow",
    }
    options |= {"participation": "first"}
    axes = {"clock": ["same", "same(3)"], "width": [2, 4], "m": [1, 4]}
    grid = srp.grid(
        options=options | {"load": [str(tmp_path / "mine.py")]},
        axes=axes,
        out=tmp_path / "grid",
        progress=False,
    )
    found = [
        (
            run.config["method"]["algorithm"]["model"]["hidden"][0],
            float(run.compute_time[0]),
            int(run.cohort_size[0]),
        )
        for run in grid.histories.values()
    ]
    assert sorted(found) == sorted(itertools.product((2, 4), (2.0, 3.0), (1, 4)))

    capsys.readouterr()
    assert (
        cli.main(
            ["run", "--load", str(tmp_path / "mine.py"), "--help"], set_up_cores=False
        )
        == 0
    )
    shown = " ".join(capsys.readouterr().out.split())
    assert "narrow: of its layer; default 5" in shown
    assert "--input-shape" not in shown


# Arrays among the fields.


@srp.part
class Measured(srp.Clock):
    times: jax.Array

    def sample(self, key, state, now):
        return srp.ClientTimes(*2 * [self.times[jnp.arange(DATA.num_clients)]]), state


@srp.part
class Listed(srp.ParticipationPolicy):
    order: jax.Array

    def select(self, key, state, times):
        return cohorts.request(times, self.order[jax.random.permutation(key, 2)]), state


@srp.part
class Weighted(srp.algorithms.FedAvg):
    weights: jax.Array = ()

    def client(self, key, params, state, examples, context):
        return srp.ClientOutput(params, weight=self.weights[context.round])


def test_arrays_of_numpy_among_the_fields_are_traced():
    algorithm = Weighted(narrow(DATA.example_shape, DATA.num_classes), weights=np.ones(3))
    options = {
        "participation": Listed(np.array([2, 0])),
        "clock": Measured(np.arange(1.0, 4.0)),
        "num_rounds": 2,
    }
    history = srp.simulate(algorithm, DATA, **options, key=KEY, progress=False, devices=1)
    assert history.rounds_taken.tolist() == [2, 0, 2]
    assert history.compute_time.tolist() == [3.0, 3.0]
