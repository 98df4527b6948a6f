"""The record of a run has every setting that its results depend on; the hash of its program has neither names nor the
machine.
"""

import dataclasses
import importlib.util

import jax
import numpy as np
import pytest
from reference.small import prepared

import fedjax_srp as srp
from fedjax_srp.driver.record import CALLS_HOST, ROUNDS, UNKNOWN, program_of, records
from fedjax_srp.driver.settings import Settings
from fedjax_srp.results.records import MACHINE, identity

DATA = srp.data.load("digits", num_clients=4, classes_per_client=5, max_examples=8)
MODEL = srp.models.MLP((8, 8), 10, hidden=(4,))
KEY = jax.random.key(0)
# Where a record has each field of `Settings`, and another value than its default: "asked" in what was asked for,
# "machine" in how it was run, "" nowhere, as it changes no number of a result. For a new field see `asked` and
# `records` in `driver/record.py`.
SETTINGS = {
    "num_rounds": ("asked", 3),
    "eval_every": ("asked", 2),
    "eval_first": ("asked", 1),
    "eval_last": ("asked", 1),
    "time_limit": ("asked", 5.0),
    "target": ("asked", 0.5),
    "evaluations": ("asked", "all"),
    "record_loss": ("asked", True),
    "name": ("asked", "mine"),
    "chunk_size": (MACHINE, 1),
    "devices": (MACHINE, 2),
    "shard_data": (MACHINE, True),
    "progress": ("", False),
    "checkpoint_dir": ("", "elsewhere"),
    "keep_clients": ("", True),
    "states_dir": ("", "elsewhere"),
    "callback": (
        "",
        print,
    ),  # it may end a run, of which the history then has fewer rounds
    "throw": ("", True),
}
OWN = """
import jax
import jax.numpy as jnp
import numpy as np
import fedjax_srp as srp

WEIGHTS = np.ones(10)
LARGE = np.arange(5000.0)

@jax.jit
def weighted(loss, y):
    return jnp.asarray(WEIGHTS)[y] * loss + jnp.asarray(LARGE)[y] * 0

@srp.part
class Weighted(srp.models.MLP):
    def loss(self, outputs, y):
        return weighted(super().loss(outputs, y), y)

@srp.part
class Own(srp.algorithms.FedAvg):
    share: float = 0.5

    def server(self, key, server, mean, context):
        new = super().server(key, server, mean, context)
        return jax.tree.map(lambda old, new: self.share * (old + new), server, new)
"""


def module_of(tmp_path, source, **values):
    """Return the module of a file, executed anew."""
    file = tmp_path / "own_weights.py"
    file.write_text(source)
    spec = importlib.util.spec_from_file_location("own_weights", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    vars(module).update(values)
    return module


def program(algorithm, data=DATA, **options):
    return program_of(prepared(algorithm, data, **{"devices": 1} | options))


def of_module(module, **fields):
    model = module.Weighted((8, 8), 10, hidden=(4,))
    return module.Own(model, srp.Training(srp.SGD(0.1)), **fields)


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    return program(of_module(module_of(tmp_path_factory.mktemp("own"), OWN)))


@pytest.mark.parametrize(
    "change",
    [
        {"WEIGHTS": np.array([2.0, *[1.0] * 9])},
        {"LARGE": np.array([*np.arange(4999.0), 0.0])},
    ],
    ids=["weights", "one number of many"],
)
def test_arrays_that_code_reads_from_its_module_are_in_the_hash(own, tmp_path, change):
    other = program(of_module(module_of(tmp_path, OWN, **change)))
    assert other[ROUNDS] != own[ROUNDS]
    assert UNKNOWN not in other


def test_an_edit_of_the_server_is_in_the_hash_of_the_rounds_alone(own, tmp_path):
    edited = OWN.replace("(old + new)", "(old - new)")
    other = program(of_module(module_of(tmp_path, edited)))
    assert other[ROUNDS] != own[ROUNDS]
    assert other["global"] == own["global"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("@jax.jit", "# A comment.\n@jax.jit"),
        ("weighted(", "of_weight("),
        ("share", "part"),
        ("def server(self, key", '"""A docstring."""\n\n    def server(self, key'),
    ],
    ids=["comment", "name of a helper", "name of a field", "docstring"],
)
def test_comments_and_names_are_not_in_the_hash(own, tmp_path, before, after):
    assert program(of_module(module_of(tmp_path, OWN.replace(before, after)))) == own


@pytest.mark.parametrize(
    "options",
    [
        {"chunk_size": 1},
        {"devices": 2, "shard_data": True},
        {"num_seeds": 2, "values": {"learning_rate": np.array([0.1, 0.2])}},
        {"record_loss": True},
    ],
    ids=["chunk", "devices", "seeds", "loss"],
)
def test_the_machine_and_seeds_are_not_in_the_hash(own, tmp_path, options):
    made = of_module(module_of(tmp_path, OWN), share=0.25)
    assert program(made, **options) == own


def test_evaluations_have_hashes_of_their_own():
    made = srp.algorithms.FedAvg(MODEL)
    every = program(made, evaluations="all")
    alone = program(made, evaluations="global")
    assert alone == {name: every[name] for name in (ROUNDS, "global")}
    assert len({*every.values()}) == len(every)


def test_a_program_that_calls_the_host_has_no_hash(tmp_path):
    """Its text has no code of the function that is called."""
    called = OWN.replace(
        "return jnp.asarray(WEIGHTS)[y] * loss + jnp.asarray(LARGE)[y] * 0",
        "return loss + jax.pure_callback(lambda v: v, jax.ShapeDtypeStruct(loss.shape, "
        "loss.dtype), jax.lax.stop_gradient(loss), vmap_method='sequential')",
    )
    assert program(of_module(module_of(tmp_path, called))) == {UNKNOWN: CALLS_HOST}


def record_with(**settings):
    settings = {"devices": 1} | settings  # more would leave a client to each
    (record,) = records(prepared(srp.algorithms.FedAvg(MODEL), DATA, **settings), KEY)
    return record


def test_the_table_above_has_every_setting():
    assert {field.name for field in dataclasses.fields(Settings)} == SETTINGS.keys()


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_is_in_the_record_where_results_depend_on_it(name):
    where, value = SETTINGS[name]
    usual = record_with()
    changed = record_with(**{name: value})
    assert (changed[MACHINE] != usual[MACHINE]) == (where == MACHINE)
    del changed[MACHINE], usual[MACHINE]
    assert (changed != usual) == (where == "asked")


def test_of_the_settings_all_but_limits_and_machine_tell_runs_apart():
    tell_apart = {
        name
        for name, (_, value) in SETTINGS.items()
        if identity(record_with(**{name: value})) != identity(record_with())
    }
    assert tell_apart == {
        *("eval_every", "eval_first", "eval_last"),
        *("evaluations", "record_loss", "name"),
    }
