"""Parts: leaves and static fields by annotations, equality, pickling, and names."""

import copy
import dataclasses
import pickle
from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from example_parts import Inner, Outer, message_of

import fedjax_srp as srp
from fedjax_srp.parts import part as parts
from fedjax_srp.parts.part import Count, Leaf, Share, Static, StepSize, part

# Leaves and the rest.


def test_annotations_say_what_is_a_leaf():
    found = parts.fields(Outer)
    assert found.leaves == (
        "inner",
        "mu",
        "decay",
        "schedule",
        "times",
        "rates",
        "named",
        "whatever",
    )
    assert found.static == (
        *(
            "share",
            "epochs",
            "steps",
            "widths",
            "levels",
            "flag",
            "label",
            "function",
            "anything",
        ),
    )
    assert list(found.hints) == [field.name for field in dataclasses.fields(Outer)]


LEAVES = [
    *(
        float,
        jax.Array,
        np.ndarray,
        jax.typing.ArrayLike,
        float | None,
        StepSize,
        Annotated[float | None, "text"],
    ),
    *(
        dict[str, float],
        tuple[int, float],
        list[float],
        Sequence[float],
        Inner | None,
        tuple[Inner, ...],
        Leaf[Any],
    ),
]
STATIC = [
    *(
        int,
        bool,
        str,
        Any,
        Count,
        Static[float],
        Static[Share] | None,
        tuple[int, ...],
        Callable[[float], float],
        type,
    ),
]


@pytest.mark.parametrize("hint", [*LEAVES, *STATIC], ids=str)
def test_is_leaf(hint):
    assert parts.is_leaf(hint) == (hint in LEAVES)


def test_leaves_come_in_the_order_of_the_fields_by_dotted_names():
    made = Outer(
        decay=0.125,
        times=np.arange(3.0),
        rates=[1, 2.5],
        named={"b": 2.0, "a": 1.0},
        whatever=[7],
    )
    values = parts.values_of(made)
    assert list(values) == [
        *(
            "inner.rate",
            "mu",
            "decay",
            "schedule",
            "times",
            "rates.0",
            "rates.1",
            "named.a",
            "named.b",
            "whatever.0",
        ),
    ]
    assert [
        values[name] for name in ("inner.rate", "rates.1", "named.a", "whatever.0")
    ] == [0.1, 2.5, 1.0, 7]
    other = parts.with_values(made, {"inner.rate": 0.7, "named.b": 9.0})
    assert (other.inner.rate, other.named, other.mu) == (0.7, {"a": 1.0, "b": 9.0}, 0.5)
    assert made.inner.rate == 0.1


def test_annotations_may_be_strings_with_unknown_names():
    @part
    class Local:
        rate: "float" = 1.0
        inside: "Inner" = Inner()
        of_type_checkers: "Nowhere" = 3  # noqa: F821

    found = parts.fields(Local)
    assert found.leaves == ("rate", "inside")
    assert found.hints["of_type_checkers"] is Any
    assert "rate='x' must be a number" in message_of(lambda: Local(rate="x"))


def test_a_subclass_inherits_fields():
    @part
    class Lower(Inner):
        power: float = 2.0
        rate: Static[float] = 0.5  # said anew

    assert parts.fields(Lower).leaves == ("power",)
    assert [field.name for field in dataclasses.fields(Lower)] == [
        "rate",
        "kind",
        "power",
    ]
    assert Lower().name == "lower"
    assert message_of(lambda: Lower(kind="plane")).startswith(
        "kind='plane' is unknown (did you mean plain?)"
    )


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

    @part
    class Lower(Field):
        pass

    assert (Inner.name, Called.name, Below.name) == ("inner", "other", "below")
    assert (Field.name, Lower.name, Lower().name, Lower("own").name) == (
        "by field",
        "by field",
        "by field",
        "own",
    )


# Values.


def test_equal_fields_make_equal_parts():
    assert Outer() == Outer(Inner(0.1), 0.5)
    assert hash(Outer()) == hash(
        Outer(Inner(0.3))
    )  # leaves may be arrays, which have none
    assert Outer(mu=0.25) != Outer()
    assert Outer(inner=Inner(0.2)) != Outer()
    assert Outer(epochs=2) != Outer()
    assert hash(Outer(epochs=2)) != hash(Outer())
    assert Outer(decay=0.0) != Outer()  # None is no zero
    assert Inner() != Outer()
    assert Inner() != 0.1
    assert len({Outer(), Outer(mu=0.5), Outer(mu=0.75), Outer(flag=True)}) == 3


def test_static_values_that_python_calls_equal_make_other_parts():
    @part
    class Choice:
        kind: Any = None
        share: Static[float] = 0.0

    class Add(NamedTuple):
        by: int
        to: int

        def __call__(self, step):
            return self.to + self.by

    class Scale(Add):
        def __call__(self, step):
            return self.to * self.by

    kinds = (1, True, 1.0, (1, 0), (1, False), Add(1, 0), Scale(1, 0), None)
    made = [*map(Choice, kinds), Choice(share=-0.0)]
    assert len({*made}) == len({jax.tree.structure(each) for each in made}) == len(made)
    assert srp.SGD(Add(1, 0)) != srp.SGD(Scale(1, 0))
    assert srp.SGD(Add(1, 0)) == srp.SGD(Add(1, 0))
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
    times = np.arange(3.0)
    assert Outer(times=times) == Outer(times=jnp.arange(3.0))
    assert Outer(times=times) != Outer(times=np.array([0.0, 1.0, 3.0]))
    assert Outer(times=times) != Outer(times=times[:2])
    assert Outer(times=np.ones(3)) != Outer(times=np.ones(1))  # nothing is broadcast
    assert Outer(times=np.ones(3)) != Outer(
        times=np.ones(3, int)
    )  # programs of integers are others
    assert Outer(times=np.ones(3)) != Outer(times=jnp.ones(3, jnp.bfloat16))
    assert Outer(times=None) != Outer(times=times)
    nan = Outer(times=np.array([np.nan]))
    assert nan == nan
    keyed = [Outer(whatever=jax.random.key(seed)) for seed in (0, 0, 1)]
    assert keyed[0] == keyed[1]
    assert keyed[0] != keyed[2]
    assert keyed[0] != Outer(whatever=jnp.ones(()))


def test_parts_do_not_change():
    made = Outer()
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.mu = 0.1
    assert dataclasses.replace(made, mu=0.1).mu == 0.1
    assert made.mu == 0.5
    assert "mu=7.0 must be below 1" in message_of(
        lambda: dataclasses.replace(made, mu=7.0)
    )


def test_parts_are_copied_and_pickled():
    made = Outer(Inner(0.3, "odd"), times=np.arange(2.0), function=np.abs)
    for other in (copy.deepcopy(made), copy.copy(made), pickle.loads(pickle.dumps(made))):
        assert other == made
        assert hash(other) == hash(made)


def test_a_part_is_shown_as_the_call_that_makes_it():
    assert repr(Outer()) == "Outer()"
    assert (
        repr(Outer(Inner(kind="odd"), epochs=3))
        == "Outer(inner=Inner(kind='odd'), epochs=3)"
    )
    assert eval(
        repr(srp.Training(srp.SGD(0.1, 0.5), epochs=None, steps=3)), vars(srp)
    ) == srp.Training(srp.SGD(0.1, 0.5), epochs=None, steps=3)
    shown = []
    jax.jit(lambda p: (shown.append(repr(p)), p.mu)[1])(Outer(times=np.ones(2)))
    assert "times=" in shown[0]  # tracers are shown, and nobody compares them


# By name, and built again.


def test_rebuilt_runs_the_checks_of_every_part():
    made = Outer(Inner(0.3, "odd"), epochs=4, times=np.ones(2))
    assert parts.rebuilt(made) == made
    assert parts.rebuilt(3) == 3
    for name, value, words in (
        ("mu", 2.0, "mu=2.0 must be below"),
        ("inner.rate", -1.0, "rate=-1.0 must be positive"),
    ):
        wrong = parts.with_values(made, {name: value})
        assert words in message_of(lambda wrong=wrong: parts.rebuilt(wrong))


def test_arrays_in_number_fields_are_found():
    rates = np.array([0.1, 0.2])
    assert (
        list(
            parts.several(Outer(times=np.ones(3), rates=(1.0, 2.0), whatever=np.ones(2)))
        )
        == []
    )
    made = Outer(
        Inner(rates),
        mu=rates,
        decay=rates,
        named={"a": rates, "b": 1.0},
        times=np.ones(3),
    )
    assert [name for name, _ in parts.several(made)] == [
        "inner.rate",
        "mu",
        "decay",
        "named.a",
    ]
    clock = srp.clocks.Fixed(srp.clocks.Exponential(rates))
    assert list(parts.several(clock)) == []


def test_every_class_is_known_by_its_module_and_name():
    assert parts.path_of(Inner) == "example_parts.Inner"
    assert parts.KNOWN[parts.path_of(Inner)] is Inner
    assert parts.KNOWN["fedjax_srp.algorithms.optimizers.SGD"] is srp.SGD
    assert parts.is_part(Inner)
    assert parts.is_part(Inner())
    assert not any(map(parts.is_part, (3, "x", int, None, np.ones(2), srp.Phase)))
