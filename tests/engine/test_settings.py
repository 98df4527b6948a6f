"""Settings: one list of what a run may be told, for Python, the command line and grids."""

import dataclasses
import inspect
import re

import jax
import pytest
from reference.small import KEY, numbers, refused
from test_simulate import ALGORITHM

import fedjax_srp as srp
from fedjax_srp.driver.settings import Settings
from fedjax_srp.lab.runs.options import SIMULATION
from fedjax_srp.parts.options import argument_help

FIELDS = {field.name: field.default for field in dataclasses.fields(Settings)}
FUNCTIONS = {
    srp.simulate: FIELDS.keys(),
    srp.simulate_seeds: FIELDS.keys(),
    srp.evaluate: {"evaluations", "chunk_size", "devices", "shard_data"},
    srp.adapt: {"chunk_size", "devices", "shard_data"},
}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_show_the_settings_with_defaults_and_texts(function):
    parameters = inspect.signature(function).parameters
    assert parameters.keys() & FIELDS.keys() == FUNCTIONS[function]
    assert "settings" not in parameters
    help_texts = argument_help(function)
    for name in FUNCTIONS[function]:
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert help_texts[name] == argument_help(Settings)[name]
        if name != "num_rounds":  # required
            assert parameters[name].default == FIELDS[name]
    assert max(map(len, inspect.getdoc(function).splitlines())) <= 120


def test_the_command_line_has_the_defaults_and_texts_of_the_settings():
    hidden = {"checkpoint_dir", "keep_clients", "throw", "name", "callback"}
    assert SIMULATION.keys() == FIELDS.keys() - hidden
    for name, option in SIMULATION.items():
        assert option.default == FIELDS[name]
        assert option.help == argument_help(Settings)[name]


@pytest.mark.parametrize(
    ("settings", "remedy"),
    [
        ({"num_rounds": 0}, "must be at least 1"),
        ({"eval_every": 0}, "must be at least 1"),
        ({"eval_first": -1}, "must be at least 0"),
        ({"eval_last": 2.5}, "must be an integer"),
        ({"time_limit": 0.0}, "None for no limit"),
        ({"time_limit": float("nan")}, "None for no limit"),
        ({"target": float("inf")}, "None sets none"),
        ({"chunk_size": 0}, "must be at least 1"),
        ({"progress": 1}, "True or False"),
        ({"devices": "two"}, "how many of them"),
        ({"callback": 3}, "a function"),
        ({"name": 3}, "a string"),
    ],
)
def test_a_bad_setting_is_refused_by_name(settings, remedy):
    (name,) = settings
    with refused(rf"{name}=.*{re.escape(remedy)}"):
        Settings(**settings)
    with refused(rf"{name}=.*{re.escape(remedy)}"):
        srp.simulate(ALGORITHM, numbers(1.0), key=KEY, **{"num_rounds": 1} | settings)


def test_missing_and_unknown_settings_are_named():
    with pytest.raises(TypeError, match=r"simulate\(\).*num_rounds"):
        srp.simulate(ALGORITHM, numbers(1.0), key=KEY)
    with pytest.raises(
        TypeError, match=r"simulate\(\).*eval_evry.*did you mean eval_every"
    ):
        srp.simulate(ALGORITHM, numbers(1.0), key=KEY, num_rounds=1, eval_evry=1)
    with pytest.raises(TypeError, match=r"evaluate\(\).*num_rounds"):
        srp.evaluate(ALGORITHM, numbers(1.0), (), key=jax.random.key(0), num_rounds=1)
