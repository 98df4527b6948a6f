"""What functions of one's own read from outside: edited cells of a notebook make other programs, others do not."""

import functools
import sys
import types

import jax
import numpy as np
import pytest
from reference.small import CLOCK, KEY, clients_of, federation

import fedjax_srp as srp
from fedjax_srp.outside import reads

DATA = federation(clients_of((4, 5, 6), (3, 3, 3)))

CELL = """
import functools
import jax
import jax.numpy as jnp
import numpy as np
import fedjax_srp as srp
import other

MU, NAMES, TABLE, RATES = 1.0, ("a", "b"), {"x": [1]}, np.arange(3.0)
LOG = []
UNREAD = 0

def helper(x):
    return deeper(x) + MU

def deeper(x):
    return 2 * x

@srp.recorded
def factory(size=other.SIZE):
    LOG.append(size)
    inner = lambda x: helper(x) + other.SHIFT + TABLE["x"][0] + RATES[0] + len(NAMES)
    return functools.partial(inner, 3.0)
"""


@pytest.fixture
def cells(monkeypatch):
    """A module as a notebook is: what is run in it, cell by cell."""
    other = types.ModuleType("other")
    other.SIZE, other.SHIFT, other.HIDDEN = 3, 1.0, 0.0
    module = types.ModuleType("cells")
    for made in (other, module):
        monkeypatch.setitem(sys.modules, made.__name__, made)
    exec(CELL, module.__dict__)
    return module


def run(cells, text):
    exec(text, cells.__dict__)


CHANGES = {
    "a number": "MU = 2.0",
    "a type": "MU = 1",
    "a name": "NAMES = ('a', 'c')",
    "an entry": "TABLE['y'] = 1",
    "an array": "RATES = np.arange(1.0, 4.0)",
    "an entry of an array": "RATES[1] = 7",
    "a helper": "def helper(x):\n    return deeper(x) - MU",
    "a helper of a helper": "def deeper(x):\n    return 3 * x",
    "a constant in one": "def deeper(x):\n    return 2.5 * x",
    "one that is compiled": "deeper = jax.jit(lambda x: 5 * x)",
    "a module's number": "other.SHIFT = 4.0",
    "an object": "LOG = []",
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_read_is_seen(cells, change):
    before = reads(cells.factory)
    assert before == reads(cells.factory)
    assert hash(before) == hash(reads(cells.factory))
    run(cells, CHANGES[change])
    assert reads(cells.factory) != before


@pytest.mark.parametrize(
    "same",
    [
        "UNREAD = 5",
        "LOG.append(1)",
        "other.HIDDEN = 9",
        "MU = 1.0",
        "RATES = np.arange(3.0)",
        "def helper(x):\n    return deeper(x) + MU",
        "factory()",
    ],
)
def test_nothing_else_is(cells, same):
    before = reads(cells.factory)
    run(cells, same)
    assert reads(cells.factory) == before


def test_closures_defaults_and_partials_are_read(cells):
    def maker(scale):
        return lambda x, shift=scale + 1: scale * x + shift

    assert reads(maker(1)) == reads(maker(1)) != reads(maker(2))
    assert reads(functools.partial(maker, 1)) != reads(functools.partial(maker, 2))
    run(cells, "def early():\n    return late()\ndef wrap():\n    f = lambda: f\n    return f\nown = wrap()")
    before = reads(cells.early)  # names what is not there yet
    run(cells, "def late():\n    return early()")
    assert reads(cells.early) != before
    assert reads(cells.own) == reads(cells.own)


def test_odd_objects_are_compared_by_identity(cells):
    run(cells, "import unittest.mock\nodd = unittest.mock.MagicMock()\ndef uses():\n    return odd, cells_data, float")
    before = reads(cells.uses)
    assert reads(cells.uses) == before
    for made in ("odd = unittest.mock.MagicMock()", "cells_data = [1]", "cells_data = jnp.ones(2)"):
        run(cells, made)
        assert reads(cells.uses) != before
        before = reads(cells.uses)


def test_functions_of_packages_read_nothing():
    for function in (srp.algorithms.fedavg, jax.nn.relu, np.mean, len, 3, None, srp.participation.full):
        assert reads(function) == ()


METHOD = """
def penalty(params):
    return 0.0

def mine(model, optimizer=None):
    training = srp.algorithms.local.local_training(optimizer, 10, 1)
    loss = srp.algorithms.local.example_loss(model)

    def with_penalty(params, frozen, x, y, key):
        return loss(params, frozen, x, y, key) + penalty(params)

    def client(key, params, state, examples, context):
        key = srp.named_key(key, "local")
        in_round = training.in_round(context)
        return srp.ClientOutput(srp.algorithms.local.local_sgd(key, with_penalty, params, (), examples, in_round))

    return srp.FederatedAlgorithm(
        "mine",
        lambda key, data: model.init(key),
        lambda key, server, examples: (),
        srp.Phase(lambda server, context: server, client, lambda key, server, mean, context: mean),
        {"global": lambda key, server, state, examples: lambda x: model.logits(server, x)},
    )
"""


@pytest.mark.parametrize("how", ["registered", "as it is"])
def test_an_edited_helper_makes_another_program(cells, how):
    """The cell with the penalty is edited and run again; the method's own cell is not."""
    run(cells, METHOD)
    srp.methods.register("mine", cells.mine)
    name = "mine" if how == "registered" else cells.mine

    def history(rate=0.1):
        method = srp.methods.get(name, dataset=DATA, hidden=(4,), learning_rate=rate)
        return srp.simulate(method, DATA, clock=CLOCK, num_rounds=1, key=KEY, progress=False)

    def size(history):
        return float(sum(np.abs(leaf).sum() for leaf in jax.tree.leaves(history.server_state)))

    try:
        first = history()
        assert history(0.2).compile_seconds == 0
        run(cells, "def penalty(params):\n    return 100.0 * sum((leaf**2).sum() for leaf in jax.tree.leaves(params))")
        second = history()
        assert second.compile_seconds > 0
        assert size(second) != size(first)
        run(cells, METHOD.partition("def mine")[0])  # as it was
        assert size(history()) == size(first)
    finally:
        del srp.methods.RECIPES["mine"]


def test_parts_of_ones_own_follow_their_helpers(cells):
    run(
        cells,
        "HOW_MANY, TIME, WIDTH = 2, 3.0, 4\n"
        "def few():\n    return srp.participation.fastest(HOW_MANY)\n"
        "def same():\n    return srp.clocks.fixed(srp.clocks.constant(TIME))\n"
        "def narrow(shape, classes):\n    return srp.models.mlp(shape, classes, hidden=(WIDTH,))\n",
    )
    srp.methods.register_participation("few", cells.few)
    srp.clocks.register("same", cells.same)
    srp.models.register("narrow", cells.narrow)

    def parts():
        model = srp.models.get("narrow", DATA)
        return srp.methods.POLICIES["few"](), srp.clocks.OWN["same"](), model

    try:
        before = parts()
        assert all(a is b for a, b in zip(before, parts(), strict=True))
        run(cells, "HOW_MANY, TIME, WIDTH = 1, 5.0, 6")
        after = parts()
        assert not any(a is b for a, b in zip(before, after, strict=True))
        assert jax.tree.leaves(after[2].init(KEY).head)[1].shape[0] == 6
    finally:
        del srp.methods.POLICIES["few"], srp.clocks.OWN["same"], srp.models.FACTORIES["narrow"]
