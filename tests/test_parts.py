"""Parts: leaves and static fields by annotations, equality, pickling, and names."""

import copy
import dataclasses
import pickle
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from example_parts import Inner, Outer, message_of

import fedjax_srp as srp
from fedjax_srp import Static, part
from fedjax_srp.parts import part as parts

# Leaves and the rest.


def test_annotations_say_what_is_a_leaf():
    leaves, static = parts.fields(Outer)[:2]
    traced = "inner mu decay schedule times rates named whatever"
    assert leaves == tuple(traced.split())
    rest = "share epochs steps widths levels flag label function anything"
    assert static == tuple(rest.split())


def test_leaves_come_in_the_order_of_the_fields_by_dotted_names():
    times, named = np.arange(3.0), {"b": 2.0, "a": 1.0}
    made = Outer(decay=0.125, times=times, rates=[1, 2.5], named=named, whatever=[7])
    values = parts.values_of(made)
    names = (
        "inner.rate mu decay schedule times rates.0 rates.1 named.a named.b whatever.0"
    )
    assert list(values) == names.split()
    assert [values[name] for name in ("inner.rate", "rates.1", "named.a")] == [
        0.1,
        2.5,
        1.0,
    ]
    other = parts.with_values(made, {"inner.rate": 0.7, "named.b": 9.0})
    assert (other.inner.rate, other.named, other.mu) == (0.7, {"a": 1.0, "b": 9.0}, 0.5)
    assert made.inner.rate == 0.1


def test_annotations_may_be_strings_with_unknown_names():
    @part
    class Local:
        rate: "float" = 1.0
        inside: "Inner" = Inner()
        of_type_checkers: "Nowhere" = 3  # noqa: F821

    assert parts.fields(Local).leaves == ("rate", "inside")
    assert "rate='x' must be a number" in message_of(lambda: Local(rate="x"))


def test_a_subclass_inherits_fields():
    @part
    class Lower(Inner):
        power: float = 2.0
        rate: Static[float] = 0.5  # said anew

    assert parts.fields(Lower).leaves == ("power",)
    names = [field.name for field in dataclasses.fields(Lower)]
    assert names == ["rate", "kind", "power"]
    assert Lower().name == "lower"


def test_names():
    @part
    class Called:
        name: ClassVar[str] = "other"

    @part
    class Below(Called):
        pass

    @part
    class Field:
        name: str = "by field"

    assert (Inner.name, Called.name, Below.name) == ("inner", "other", "below")
    assert (Field.name, Field("own").name) == ("by field", "own")


# Values.


def test_equal_fields_make_equal_parts():
    assert Outer() == Outer(Inner(0.1), 0.5)
    assert hash(Outer()) == hash(Outer(Inner(0.3)))  # leaves may be arrays
    others = [Outer(mu=0.25), Outer(Inner(0.2)), Outer(epochs=2), Outer(decay=0.0)]
    assert Outer() not in others
    assert hash(Outer(epochs=2)) != hash(Outer())
    assert Inner() not in (Outer(), 0.1)
    assert len({Outer(), Outer(mu=0.5), Outer(mu=0.75), Outer(flag=True)}) == 3


def test_static_values_that_python_calls_equal_make_other_parts():
    @part
    class Choice:
        kind: Any = None
        share: Static[float] = 0.0

    class Add(NamedTuple):
        by: int
        to: int

    class Scale(Add):
        pass

    kinds = (1, True, 1.0, (1, 0), (1, False), Add(1, 0), Scale(1, 0), None)
    made = [*map(Choice, kinds), Choice(share=-0.0)]
    assert len({*made}) == len({jax.tree.structure(each) for each in made}) == len(made)
    assert Choice((1, 0)) == jax.tree.map(lambda leaf: leaf, Choice((1, 0)))


def test_a_class_that_is_defined_again_makes_other_parts():
    def define():
        @part
        class Cell:
            rate: float = 1.0

        return Cell

    first, again = define(), define()
    assert first() == first()
    assert first() != again()
    assert jax.tree.structure(first()) != jax.tree.structure(again())


def test_arrays_are_equal_entry_by_entry():
    def of(*values):
        return Outer(times=np.array(values))

    assert of(0.0, 1.0) == Outer(times=jnp.arange(2.0))
    nan = of(np.nan)
    assert nan == nan
    assert of(0.0, 1.0) not in (of(0.0, 3.0), of(0.0), Outer(times=None))
    assert of(1.0, 1.0) != of(1.0)  # nothing is broadcast
    for dtype in (int, jnp.bfloat16):  # programs of integers are others
        assert of(1.0) != Outer(times=np.ones(1, dtype))
    one, same, other = (Outer(whatever=jax.random.key(seed)) for seed in (0, 0, 1))
    assert one == same
    assert one not in (other, Outer(whatever=jnp.ones(())))


def test_parts_do_not_change():
    made = Outer(Inner(0.3, "odd"), times=np.arange(2.0), function=np.abs)
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.mu = 0.1
    assert dataclasses.replace(made, mu=0.1).mu == 0.1
    assert made.mu == 0.5
    assert "mu=7.0" in message_of(lambda: dataclasses.replace(made, mu=7.0))
    for other in (copy.deepcopy(made), copy.copy(made), pickle.loads(pickle.dumps(made))):
        assert other == made
        assert hash(other) == hash(made)


def test_a_part_is_shown_as_the_call_that_makes_it():
    assert repr(Outer()) == "Outer()"
    shown = repr(Outer(Inner(kind="odd"), epochs=3))
    assert shown == "Outer(inner=Inner(kind='odd'), epochs=3)"
    made = srp.Training(srp.SGD(0.1, 0.5), epochs=None, steps=3)
    assert eval(repr(made), vars(srp)) == made
    traced = []
    jax.jit(lambda p: (traced.append(repr(p)), p.mu)[1])(Outer(times=np.ones(2)))
    assert "times=" in traced[0]  # tracers are shown, and nobody compares them


# By name, and built again.


def test_arrays_in_number_fields_are_found():
    rates = np.array([0.1, 0.2])
    alone = Outer(times=np.ones(3), rates=(1.0, 2.0), whatever=np.ones(2))
    clock = srp.clocks.Fixed(srp.clocks.Exponential(rates))
    assert [*parts.several(alone), *parts.several(clock)] == []
    made = Outer(Inner(rates), mu=rates, named={"a": rates, "b": 1.0}, times=np.ones(3))
    assert [name for name, _ in parts.several(made)] == ["inner.rate", "mu", "named.a"]
