"""Checks of parts: bounds, types and choices of their fields, conversions, and checks of their own."""

import dataclasses
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np
from example_parts import ORDER, Inner, Outer, Third, message_of

from fedjax_srp import Above, AtMost, part
from fedjax_srp.parts import part as parts


def test_choices_may_be_numbers_and_tuples_have_a_type_per_entry():
    @part
    class Odd:
        order: Literal[1, 2] = 1
        pair: tuple[int, str] = (1, "x")
        shares: Annotated[tuple[float, ...], AtMost(1)] = (0.5,)

    assert Odd(2, [4, "y"]) == Odd(2, (4, "y"))
    assert message_of(lambda: Odd(3)) == "order=3 is unknown; choose from 1, 2"
    assert "order=True is unknown" in message_of(lambda: Odd(True))
    assert "pair[1]=2 must be a string" in message_of(lambda: Odd(pair=(1, 2)))
    assert "must be 2 values, not 3" in message_of(lambda: Odd(pair=(1, "x", 2)))
    assert "shares[1]=2.0 must be at most 1" in message_of(lambda: Odd(shares=(0.5, 2.0)))


def test_lists_and_arrays_become_tuples_of_plain_numbers():
    made = Outer(widths=np.array([4, 5]), levels=[np.int32(1), 2], rates=np.ones(2))
    assert (made.widths, made.levels, made.rates) == ((4, 5), (1, 2), (1.0, 1.0))
    assert {type(value) for value in (*made.widths, *made.levels)} == {int}
    assert Outer(widths=[4, 5]) == Outer(widths=(4, 5)) == Outer(widths=range(4, 6))
    assert hash(Outer(widths=[4, 5])) == hash(Outer(widths=(4, 5)))


def test_arrays_are_kept_and_lists_are_converted_to_arrays():
    times = jnp.arange(3.0)
    assert Outer(times=times).times is times
    made = Outer(times=[[1.0, 2.0], [3.0, 4.0]])
    assert isinstance(made.times, np.ndarray)
    assert "times" in parts.values_of(Outer(times=(1, 2, 3)))
    assert made == Outer(times=np.array([[1.0, 2.0], [3.0, 4.0]]))


@part
class Bounded:
    times: Annotated[jax.Array, Above(0), "give seconds"]


def test_bounds_hold_for_every_entry_of_an_array():
    assert Bounded([1, 2]).times.tolist() == [1, 2]
    assert (
        message_of(lambda: Bounded([1.0, 0.0]))
        == "times[1]=0.0 must be positive; give seconds"
    )
    assert "times[0, 1]=nan must be positive" in message_of(
        lambda: Bounded(jnp.array([[1.0, jnp.nan]]))
    )
    assert (
        jax.jit(lambda times: Bounded(times).times)(-1.0) == -1.0
    )  # a tracer, whose values nobody knows


def test_own_checks_run_after_those_of_the_fields_and_before_the_hash():
    ORDER.clear()
    Third(2)  # an integer
    assert [*ORDER] == [("first", float), ("second", "first")]
    ORDER.clear()
    assert "rate=-1 must be positive" in message_of(lambda: Third(-1))
    assert not ORDER  # a field out of range is refused before
    assert "seen=[1]: unhashable type" in message_of(lambda: Third(9.0))
    assert [*ORDER] == [("first", float), ("second", [1])]


def test_a_subclass_must_be_a_part():
    class Forgotten(Inner):
        more: int = 3

    @dataclasses.dataclass(frozen=True)
    class Other(Inner):
        more: int = 3

    for cls in (Forgotten, Other):
        said = f"class {cls.__name__} inherits from Inner: put @srp.part above it"
        assert message_of(cls) == said
