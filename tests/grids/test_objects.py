"""Grids of Python objects: users' methods, data, models, clocks and policies, here and in worker processes."""

import dataclasses
import importlib
import itertools
import linecache
import sys
import threading
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from reference.small import refused

import fedjax_srp as srp
from fedjax_srp.base import Examples
from fedjax_srp.lab.grids import batches as units
from fedjax_srp.lab.grids.points import Spec, points
from fedjax_srp.lab.grids.work import Worker, packed, unpacked
from fedjax_srp.lab.report import repeats
from fedjax_srp.lab.runs.run import recorded_jax_settings
from fedjax_srp.parts import description
from fedjax_srp.results import json_files

OPTIONS = {"num_rounds": 2, "eval_every": 1, "devices": 1}
SMALL = {"num_clients": 6, "classes_per_client": 3, "max_examples": 8}
DATA = srp.data.load("digits", **SMALL)
OTHER = srp.data.load("digits", **SMALL, seed=1)
MODEL = srp.models.MLP((8, 8), 10, hidden=(4,))
LOCK = threading.Lock()


def fedavg(rate, **options):
    return srp.algorithms.FedAvg(MODEL, srp.Training(srp.SGD(rate)), **options)


def points_of(axes=None, **options):
    return points(Spec(OPTIONS | options, axes or {}, {}, ()))


def names(found):
    return [point.name for point in found]


def test_objects_and_names_mix_on_every_axis():
    axes = {
        "method": ["fedrep", fedavg(0.1)],
        "data": {"one": DATA, "two": OTHER},
        "clock": ["random", srp.clocks.Fixed(srp.clocks.Exponential(2.0))],
        "participation": [srp.participation.Uniform(2)],
        "model": [MODEL],
    }
    found = points_of(axes)
    assert len(found) == len({point.id for point in found}) == 8
    assert (
        names(found)[0] == "fedrep, one, clock=random, participation=uniform, model=mlp"
    )
    assert (
        found[-1].name == "fedavg, two, clock=fixed, participation=uniform"
    )  # it has its model
    assert found[0].run.record["clock"]["part"].endswith("Dynamic")
    assert found[1].run.record["clock"]["distribution"]["rate"] == 2.0
    checksums = [point.run.record["data"]["checksum"] for point in found]
    assert (
        checksums
        == [checksums[0]] * 2
        + [checksums[2]] * 2
        + [checksums[0]] * 2
        + [checksums[2]] * 2
    )


def test_a_grid_of_objects_ends_with_the_runs_of_simulate(tmp_path):
    policy, clock = (
        srp.participation.Uniform(2),
        srp.clocks.Fixed(srp.clocks.Exponential(2.0)),
    )
    methods = {"slow": fedavg(0.05), "whole": srp.Method("mine", fedavg(0.2), policy)}
    options = OPTIONS | {"data": DATA, "clock": clock, "participation": policy}
    found = srp.grid(
        axes={"method": methods, "seed": [0, 1]},
        options=options,
        out=tmp_path,
        batch=4,
        progress=False,
    )
    assert not found.failures
    (batch,) = json_files.read_json(tmp_path / units.GRID_INDEX).values()
    assert len(batch) == 4  # rates are arguments of one program
    for name, seed in itertools.product(methods, (0, 1)):
        given = OPTIONS | {"clock": clock, "key": jax.random.key(seed), "progress": False}
        given |= {"participation": policy} if name == "slow" else {}
        expected = srp.simulate(methods[name], DATA, **given)
        history = found.histories[f"{name}, seed={seed}"]
        np.testing.assert_array_equal(history.compute_time, expected.compute_time)
        np.testing.assert_allclose(history.accuracy, expected.accuracy, atol=1e-5)
    assert found.summary()["method"].tolist() == ["slow"] * 2 + ["whole"] * 2


class Net(nn.Module):
    width: int = 4
    deep: bool = False

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Dense(self.width, name="first")(x.reshape(len(x), -1)))
        x = nn.Dense(3, name="second")(x) if self.deep else x
        return nn.Dense(10, name="out")(x)


PARTS = """
import flax.linen as nn
import fedjax_srp as srp

class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(10, name="out")(SLOPE * nn.Dense(4, name="first")(x.reshape(len(x), -1)))

@srp.part
class Mine(srp.participation.Full):
    def update(self, state, info):
        return (SLOPE, state)[1]
"""


def test_equal_objects_give_the_same_run_and_others_do_not():
    ids = {
        made: points_of({"method": [fedavg(made)]}, data=DATA)[0].id
        for made in (0.1, 0.2)
    }
    assert ids[0.1] != ids[0.2]
    assert ids[0.1] == points_of({"method": {"named": fedavg(0.1)}}, data=DATA)[0].id
    assert (
        ids[0.1]
        == points_of(
            {"seed": [0]}, method=fedavg(0.1), data=srp.data.load("digits", **SMALL)
        )[0].id
    )
    assert ids[0.1] != points_of({"seed": [0]}, method=fedavg(0.1), data=OTHER)[0].id
    assert (
        ids[0.1]
        != points_of({"seed": [0]}, method=fedavg(0.1), data=DATA, validation=0.2)[0].id
    )


def test_a_module_of_another_width_is_another_run():
    modules = {
        width: nn.Sequential([srp.models.Dense(width), nn.relu, nn.Dense(10)])
        for width in (4, 5)
    }
    model = {
        width: srp.models.from_module(module, (8, 8), 10, head="layers_2")
        for width, module in modules.items()
    }
    for axes, options in [
        ({}, {"model": model}),
        ({"model": model}, {}),
    ]:  # bare, and under a name that stays
        ids = [
            points_of({name: {"net": made[width]} for name, made in axes.items()}, method="fedavg", data=DATA,
               **{name: made[width] for name, made in options.items()})[0].id
            for width in (4, 5, 4)
        ]  # fmt: skip
        assert ids[0] == ids[2] != ids[1]


@pytest.mark.usefixtures("no_rounds")
def test_modules_of_one_class_are_named_by_what_differs_in_grid_and_table(tmp_path):
    modules = [Net(), Net(width=5), Net(width=5, deep=True)]
    models = [
        srp.models.from_module(module, (8, 8), 10, head="out") for module in modules
    ]
    options = {"method": "fedavg", "data": DATA, "num_rounds": 1}
    found = srp.grid(
        axes={"model": models}, options=options, out=tmp_path, progress=False
    )
    assert [*found.folders] == [
        "model=Net",
        "model=Net(width=5)",
        "model=Net(width=5, deep=True)",
    ]
    rows = repeats.rows([repeats.read(folder) for folder in found.folders.values()])
    assert {*rows.histories} == {
        "fedavg",
        "FedAvg, width=5",
        "FedAvg, width=5, deep=True",
    }


def test_edited_code_is_another_run_if_it_computes_anything_else(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    ids = []
    for slope in (1.0, 2.0):
        (tmp_path / "own_parts_of_mine.py").write_text(PARTS.replace("SLOPE", str(slope)))
        linecache.clearcache()
        monkeypatch.delitem(sys.modules, "own_parts_of_mine", raising=False)
        importlib.invalidate_caches()
        sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
        mine = importlib.import_module("own_parts_of_mine")
        sys.dont_write_bytecode = before
        model = srp.models.from_module(mine.Net(), (8, 8), 10, head="out")
        given = [{"model": model}, {"participation": mine.Mine()}]
        ids.append(
            [points_of({}, method="fedavg", data=DATA, **each)[0].id for each in given]
        )
    assert ids[0][0] != ids[1][0]
    assert ids[0][1] == ids[1][1]
    assert description.rebuild(description.describe(mine.Mine())) == mine.Mine()


@pytest.mark.usefixtures("no_rounds")
def test_classes_of_equal_names_are_named_with_their_module_in_grid_and_table(
    tmp_path, monkeypatch
):
    monkeypatch.syspath_prepend(tmp_path)
    mine = []
    for file in ("first_parts_of_mine", "second_parts_of_mine"):
        (tmp_path / f"{file}.py").write_text(PARTS.replace("SLOPE", "1.0"))
        mine.append(importlib.import_module(file))
    models = [
        srp.models.from_module(module.Net(), (8, 8), 10, head="out") for module in mine
    ]
    axes = {"model": models, "participation": [module.Mine() for module in mine]}
    options = {"method": "fedavg", "data": DATA, "num_rounds": 1}
    found = srp.grid(axes=axes, options=options, out=tmp_path / "out", progress=False)
    first = "model=Net(module=first_parts_of_mine.Net), participation=mine(first_parts_of_mine.Mine)"
    assert first in found.folders
    rows = repeats.rows([repeats.read(folder) for folder in found.folders.values()])
    of_second = (
        "source.module=second_parts_of_mine.Net, participation=second_parts_of_mine.Mine"
    )
    assert len(rows.histories) == 4
    assert f"FedAvg + mine, {of_second}" in rows.histories


SETTINGS = {
    "jax_enable_x64": True,
    "jax_default_matmul_precision": "highest",
    "jax_default_prng_impl": "rbg",
    "jax_threefry_partitionable": False,
    "jax_random_seed_offset": 7,
}


def test_settings_of_jax_that_change_results_are_of_the_run():
    ids = [points_of(method="fedavg", data=DATA)[0].id]
    for name, value in SETTINGS.items():
        with recorded_jax_settings({"jax": {name: value}}):
            assert getattr(jax.config, name) == value
            (point,) = points_of(method="fedavg", data=DATA)
        assert point.run.record["jax"] == {name: value}
        assert points_of(method="fedavg", data=DATA)[0].run.record["jax"] == {}
        ids.append(point.id)
    assert len({*ids}) == len(ids)


def test_data_that_differ_in_a_number_alone_are_two_runs():
    axis = {"ten": DATA, "twenty": dataclasses.replace(DATA, num_classes=20)}
    assert len({point.id for point in points_of({"data": axis}, method="fedavg")}) == 2


def test_a_worker_runs_with_the_settings_of_the_process_that_planned(monkeypatch):
    with jax.enable_x64(True):
        (point,) = points_of(method="fedavg", data=DATA)
    unit = SimpleNamespace(runs=[point.run])
    monkeypatch.setattr(Worker, "measure", lambda *_: jax.config.jax_enable_x64)
    assert Worker().perform("measure", unit, None).value
    assert not jax.config.jax_enable_x64


def test_unnamed_objects_get_distinct_names_or_need_one():
    clocks = [srp.clocks.Fixed(srp.clocks.Exponential(rate)) for rate in (1.0, 2.0)]
    assert (
        names(points_of({"clock": clocks}, method="fedavg", data=DATA))[1]
        == "clock=fixed(rate=2.0)"
    )
    with pytest.raises(
        ValueError, match=r"several objects called .*; give \{name: object, \.\.\.\}"
    ):
        points_of({"data": [DATA, DATA]}, method="fedavg")
    assert names(points_of({"data": [DATA, OTHER]}, method="fedavg"))[0].startswith(
        "digits("
    )


def test_closures_are_told_apart_by_their_program():
    made = []
    for rate in (0.1, 0.1, 0.2):
        optimizer = srp.optimizer(
            lambda scale, rate=rate: optax.sgd(scale * rate), scale=1.0
        )
        made.append(srp.algorithms.FedAvg(MODEL, srp.Training(optimizer)))
    ids = [points_of(method=each, data=DATA)[0].id for each in made]
    assert ids[0] == ids[1] != ids[2]


@srp.part
class Host(srp.algorithms.FedAvg):
    """Algorithm whose server calls the host."""

    def server(self, key, server, mean, context):
        jax.debug.print("{}", context.round)
        return super().server(key, server, mean, context)


def test_objects_whose_program_calls_the_host_need_a_name():
    with refused("method=.*calls the host; name it"):
        points_of(method=Host(MODEL), data=DATA)
    axis = {"one": Host(MODEL), "other": Host(MODEL)}
    assert len({point.id for point in points_of({"method": axis}, data=DATA)}) == 2


def test_objects_that_cannot_be_pickled_are_refused_in_one_line(tmp_path):
    def locked(scale):
        with LOCK:
            return optax.sgd(scale)

    training = srp.Training(srp.optimizer(locked, scale=1.0))
    method = srp.algorithms.FedAvg(MODEL, training)
    with refused(r"cannot be sent to a process .*give workers=0, or define it in a"):
        srp.grid(
            options=OPTIONS | {"method": method, "data": DATA},
            out=tmp_path,
            workers=1,
            progress=False,
        )


LOADED = """
import threading
import fedjax_srp as srp
lock = threading.Lock()
def locked(k: int = 1):
    with lock:
        return srp.participation.Fastest(k)
srp.methods.register_participation("of_file", locked)
"""


def test_names_of_this_process_are_sent_and_those_of_loaded_files_are_not(tmp_path):
    file = tmp_path / "file_of_policies.py"
    file.write_text(LOADED)

    @srp.part
    class Two(srp.participation.Fastest):
        k: int = 2

    srp.methods.register_participation("of_process", Two)
    srp.methods.register("row", srp.algorithms.FedAvg, participation="of_process")
    srp.methods.register_participation("unused", lambda k=1: LOCK and Two(k))
    axes = {"method": ["row", "fedavg"], "participation": ["of_process", "of_file"]}
    found = points_of(axes, load=[str(file)], data=DATA)
    members = tuple(units.as_members(found, tmp_path))
    sent = packed([units.Unit("all", members, tmp_path)])
    del srp.methods.RECIPES["row"]
    for name in ("of_process", "of_file"):
        del srp.methods.POLICIES[name]
    (unit,) = unpacked(sent).values()
    assert unit.members[0].point.run.choice.route.participation == "of_process"
    assert "of_file" not in srp.methods.POLICIES
    del srp.methods.RECIPES["row"]
    for name in ("of_process", "unused"):
        del srp.methods.POLICIES[name]


def test_the_policy_that_a_row_names_is_sent_with_it(tmp_path):
    @srp.part
    class Two(srp.participation.Fastest):
        k: int = 2

    srp.methods.register_participation("of_row", Two)
    srp.methods.register("row", srp.algorithms.FedAvg, participation="of_row")
    members = tuple(units.as_members(points_of(method="row", data=DATA), tmp_path))
    sent = packed([units.Unit("all", members, tmp_path)])
    del srp.methods.RECIPES["row"], srp.methods.POLICIES["of_row"]
    (unit,) = unpacked(sent).values()
    request = unit.members[0].point.run.simulation()
    assert request["algorithm"].participation.k == 2


class Recalled(srp.data.FederatedData):
    """Data whose scores have another name."""

    score_name: ClassVar[str] = "recall"


def test_data_of_the_same_arrays_are_told_apart_by_how_they_are_scored():
    fields = {field.name: getattr(DATA, field.name) for field in dataclasses.fields(DATA)}
    of_user = {"one": lambda out, y: out[:, 0], "other": lambda out, y: out[:, 1]}
    losses = {name: srp.data.training_loss(DATA, loss) for name, loss in of_user.items()}
    found = points_of(
        {"data": {"plain": DATA, "recall": Recalled(**fields)} | losses}, method="fedavg"
    )
    assert names(found) == ["plain", "recall", "one", "other"]
    assert len({point.id for point in found}) == 4


class Arrays(NamedTuple):
    """Data of the user, equal if its arrays are."""

    x: Any
    y: Any

    name, num_clients, num_classes, example_shape = "arrays", 2, 2, (3,)

    def train_client(self, client_id):
        return Examples(self.x[client_id], self.y[client_id], jnp.int32(4))

    test_client = train_client

    def score(self, predict, test):
        return jnp.sum(
            jnp.argmax(predict(test.x), -1) == test.y, dtype=float
        ), test.count.astype(float)


def test_data_of_the_user_may_be_tuples_of_arrays(tmp_path):
    y = jnp.array([[0, 1, 0, 1]] * 2)
    scales = {
        "one": 1.0,
        "1": 1.0,
        "two": 2.0,
        "2": 2.0,
    }  # equal data under two names are one run
    data = {name: Arrays(jnp.full((2, 4, 3), scale), y) for name, scale in scales.items()}
    found = srp.grid(
        axes={"data": data},
        options=OPTIONS | {"method": "fedavg"},
        out=tmp_path,
        progress=False,
    )
    assert list(found.folders) == found.summary()["data"].tolist() == ["one+1", "two+2"]
