"""Custom models, clocks and policies: by name in Python, on the command line, in grids."""

import numpy as np
import pytest
from command_line import RUN, main
from reference.small import KEY, clients_of, federation, model, refused

import fedjax_srp as srp
from fedjax_srp.clocks.by_name import read_clock

MODEL, DATA = model(), federation(clients_of((4, 5, 6), (3, 3, 3)))


def narrow(input_shape, num_classes, width: int = 5, depth=2):
    return srp.models.MLP(input_shape, num_classes, hidden=(width,) * depth)


def two_speeds(slow: float = 5.0, every: int = 2):
    times = 1.0 + (slow - 1.0) * (np.arange(DATA.num_clients) % every == 0)
    return srp.clocks.Fixed(srp.clocks.Constant(times))


def test_a_factory_that_returns_something_else_is_named():
    srp.models.register("mine", lambda shape, classes: 3)
    with refused("<lambda>: returned 3, not a SplitModel"):
        srp.models.get("mine", DATA)
    srp.methods.register_participation("forgetful", lambda: None)
    with refused("<lambda>: returned None, not a ParticipationPolicy"):
        srp.methods.get("fedavg", dataset=DATA, participation="forgetful")
    srp.methods.register("forgetful", lambda model: None)
    with refused("algorithm=None must be a FederatedAlgorithm"):
        srp.methods.get("forgetful", dataset=DATA)
    srp.clocks.register("broken", lambda: None)
    with refused("returned None, not a Clock"):
        read_clock("broken", 3)


@pytest.mark.usefixtures("no_rounds")
def test_custom_models_have_names_and_options():
    srp.models.register("narrow", narrow)
    assert "narrow" in srp.models.names()
    assert srp.models.options("narrow") == {"width": 5, "depth": 2}
    method = srp.methods.get("fedrep", dataset=DATA, model="narrow", width=3)
    recorded = srp.methods.choose("fedrep", "narrow", width=3).model_options()
    expected = {"model": "narrow", "width": 3, "depth": 2}
    assert {option: recorded[option] for option in expected} == expected
    model = srp.models.get("narrow", DATA, width=3)
    assert model == method.algorithm.model  # one program
    heads = [srp.models.get("narrow", DATA, head_layers=n).init(KEY).head for n in (1, 2)]
    assert [len(head) for head in heads] == [1, 2]
    history = srp.simulate(method, DATA, num_rounds=1, key=KEY, progress=False)
    assert history.config["method"]["algorithm"]["model"]["hidden"] == [3, 3]
    srp.models.register("narrow", lambda shape, classes: srp.models.MLP(shape, classes))
    assert srp.models.get("narrow", DATA) != model  # registered again
    assert srp.models.options("narrow") == {}


def test_options_of_custom_models_do_not_collide():
    srp.models.register("narrow", lambda shape, classes, momentum=0.5: MODEL)
    with refused("momentum: read by its algorithm and by its model; rename your field"):
        srp.methods.get("fedrep", dataset=DATA, model="narrow")
    srp.models.register("narrow", narrow)
    with refused("unknown option 'widht' of model 'narrow'.*width"):
        srp.models.get("narrow", DATA, widht=3)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("two_speeds", two_speeds()),
        ("two_speeds(2 + 1)", two_speeds(3)),
        ("two_speeds(every=N, slow=4)", two_speeds(4, 3)),
        ("two_speeds(1, 2, 3)", "too many positional arguments"),
        ("two_speeds(fast=1)", "unexpected keyword argument 'fast'"),
        ("two_speed", "did you mean two_speeds"),
        ("two_speeds('far')", "slow='far'"),
    ],
)
def test_custom_clocks_have_names_and_arguments(text, expected):
    srp.clocks.register("two_speeds", two_speeds)
    if isinstance(expected, str):
        with refused(expected):
            read_clock(text, DATA.num_clients)
    else:
        assert read_clock(text, DATA.num_clients) == expected


def test_custom_clocks_take_texts_and_distributions():
    files = []

    def measured(file: str, other=None):
        files.append(file)
        return srp.clocks.Dynamic(other)

    srp.clocks.register("measured", measured)
    clock = read_clock("measured('times, of all', exponential(uniform(1/N, 1)))", 3)
    expected = srp.clocks.Exponential(srp.clocks.Uniform(1 / 3, 1.0))
    assert clock == srp.clocks.Dynamic(expected)
    assert files[-1] == "times, of all"


MINE = '''
import fedjax_srp as srp

def narrow(input_shape: tuple[int, ...], num_classes: int, width: int = 5):
    """Mine.

    Args:
        width: of its layer.
    """
    return srp.models.MLP(input_shape, num_classes, hidden=(width,))

def same(time: float = 2.0):
    return srp.clocks.Fixed(srp.clocks.Constant(time))

def first(m: int = 2):
    return srp.participation.Fastest(m)

srp.models.register("narrow", narrow)
srp.clocks.register("same", same)
srp.methods.register_participation("first", first)
'''


@pytest.mark.usefixtures("no_rounds")
def test_a_loaded_file_registers_parts_for_runs(tmp_path, capsys):
    file, out = tmp_path / "mine.py", tmp_path / "run"
    file.write_text(MINE)
    words = (*RUN.split(), "--method", "fedavg", "--num-rounds", 1, "--no-progress")
    words += ("--model", "narrow", "--width", 3, "--clock", "same(time=4)")
    words += ("--participation", "first", "--m", 3, "--load", file, "--out", out)
    assert main(*words) == 0, capsys.readouterr().err
    config = srp.History.load(out).config
    given = {"participation": "first", "m": 3, "clock": "same(time=4)"}
    assert {name: config["words"][name] for name in given} == given
    assert (config["model"]["model"], config["model"]["width"]) == ("narrow", 3)
    assert config["method"]["algorithm"]["model"]["hidden"] == [3]
    assert config["method"]["participation"]["k"] == 3
    assert config["clock"]["distribution"]["value"] == 4.0
    assert main(*words) == 0  # is known again
    capsys.readouterr()
    assert main("run", "--load", file, "--help") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "narrow: of its layer; default 5" in shown
    assert "--input-shape" not in shown
