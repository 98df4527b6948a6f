"""Records of data given as objects: those that train differently are different runs."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import fedjax_srp as srp
from fedjax_srp.driver.record import data_checksum
from fedjax_srp.lab.grids.points import Spec, points

DATA = srp.data.load("digits", num_clients=3, max_examples=8)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(eq=False)
class Scaled:
    by: jax.Array
    name: str = dataclasses.field(default="scaled", metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclasses.dataclass(eq=False)
class Shifted(Scaled):
    pass


class Source:
    """Members of data, and an attribute that arrays have too."""

    dtype = "float32"
    name, num_classes, example_shape = "source", DATA.num_classes, DATA.example_shape
    num_clients, train_client, test_client, score = (
        DATA.num_clients,
        DATA.train_client,
        DATA.test_client,
        DATA.score,
    )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(eq=False)
class Changed(Source):
    """Data with a change of the inputs, which may be any pytree."""

    change: Any


@jax.tree_util.register_pytree_node_class
class Flagged(Source):
    """Class of the user with a flag beside its arrays, as data or in a field of data."""

    def __init__(self, by, flag):
        self.by, self.flag = by, flag

    def tree_flatten(self):
        return (self.by,), self.flag

    @classmethod
    def tree_unflatten(cls, flag, inside):
        return cls(*inside, flag)


ONE = jnp.ones(4)
PAIRS = {
    "classes": (Changed(Scaled(ONE)), Changed(Shifted(ONE))),
    "names": (Changed(Scaled(ONE, "one")), Changed(Scaled(ONE, "other"))),
    "in a dict": (Changed({"by": Scaled(ONE)}), Changed({"to": Scaled(ONE)})),
    "shapes": (Changed(ONE), Changed(ONE.reshape(2, 2))),
    "beside arrays": (Flagged(ONE, True), Flagged(ONE, False)),
    "beside arrays inside": (
        Changed([Flagged(ONE, True)]),
        Changed([Flagged(ONE, False)]),
    ),
}


def runs(*data):
    axes = {"data": {str(place): each for place, each in enumerate(data)}}
    return points(Spec({"method": "fedavg", "num_rounds": 1}, axes, {}, ()))


@pytest.mark.short("classes", "beside arrays inside")
@pytest.mark.parametrize("case", PAIRS)
def test_data_of_equal_arrays_that_differ_in_anything_else_are_different_runs(case):
    one, other = PAIRS[case]
    again = jax.tree.map(jnp.copy, one)
    assert len(runs(one, again)) == 1
    assert data_checksum(one) == data_checksum(again)
    assert len(runs(one, other)) == 2
    assert data_checksum(one) != data_checksum(other)


def test_data_are_recorded_by_their_checksum_and_how_they_were_made():
    recorded = runs(DATA)[0].run.record["data"]
    assert recorded["checksum"] == data_checksum(DATA)
    assert (recorded["name"], recorded["num_clients"]) == ("digits", 3)
    assert recorded["options"]["max_examples"] == 8


def test_functions_that_a_class_keeps_beside_its_arrays_are_told_apart_by_the_program():
    unused = Flagged(ONE, lambda x: x)
    assert "rounds" in runs(unused)[0].run.record["program"]
