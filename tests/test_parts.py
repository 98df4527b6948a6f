"""Parts: leaves and static fields by annotations, checks, equality, pickling, and use in programs."""

import copy
import dataclasses
import doctest
import importlib
import pickle
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_srp as srp
from fedjax_srp import parts
from fedjax_srp.parts import Above, AtLeast, AtMost, Below, Count, Leaf, Share, Static, StepSize, part


@part
class Inner:
    """Inner part."""

    rate: Annotated[float, Above(0), "give a rate, e.g. 0.1"] = 0.1
    kind: Literal["plain", "odd"] = "plain"


@part
class Outer:
    """Part with fields of every kind."""

    inner: Inner = Inner()
    mu: Annotated[float, AtLeast(0), Below(1)] = 0.5
    share: Static[float] = 0.25
    decay: float | None = None
    schedule: float | Callable[[Any], Any] = 1.0
    times: np.ndarray | None = None
    rates: tuple[float, ...] = ()
    named: dict[str, float] | None = None
    whatever: Leaf[Any] = None
    epochs: Annotated[int, AtLeast(0), AtMost(9)] = 1
    steps: int | None = None
    widths: tuple[Count, ...] = (3,)
    levels: Sequence[int] = ()
    flag: bool = False
    label: str = "outer"
    function: Callable[[float], float] | None = None
    anything: Any = None


def message_of(call):
    with pytest.raises(ValueError, match=r"\w") as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("module", ["parts", "options", "description"])
def test_examples(module):
    assert doctest.testmod(importlib.import_module(f"fedjax_srp.{module}")).failed == 0


# Leaves and the rest.


def test_annotations_say_what_is_a_leaf():
    found = parts.fields(Outer)
    assert found.leaves == ("inner", "mu", "decay", "schedule", "times", "rates", "named", "whatever")
    assert found.static == (*("share", "epochs", "steps", "widths", "levels", "flag", "label", "function", "anything"),)
    assert list(found.hints) == [field.name for field in dataclasses.fields(Outer)]


@pytest.mark.parametrize(
    ("hint", "is_leaf"),
    [
        (float, True),
        (jax.Array, True),
        (np.ndarray, True),
        (jax.typing.ArrayLike, True),
        (float | None, True),
        (StepSize, True),
        (Annotated[float | None, "text"], True),
        (dict[str, float], True),
        (tuple[int, float], True),
        (list[float], True),
        (Sequence[float], True),
        (Inner | None, True),
        (tuple[Inner, ...], True),
        (Leaf[Any], True),
        (int, False),
        (bool, False),
        (str, False),
        (Any, False),
        (Count, False),
        (Static[float], False),
        (Static[Share] | None, False),
        (tuple[int, ...], False),
        (Callable[[float], float], False),
        (type, False),
    ],
)
def test_is_leaf(hint, is_leaf):
    assert parts.is_leaf(hint) == is_leaf


def test_leaves_come_in_the_order_of_the_fields_by_dotted_names():
    made = Outer(decay=0.125, times=np.arange(3.0), rates=[1, 2.5], named={"b": 2.0, "a": 1.0}, whatever=[7])
    values = parts.values_of(made)
    assert list(values) == [
        *("inner.rate", "mu", "decay", "schedule", "times", "rates.0", "rates.1", "named.a", "named.b", "whatever.0"),
    ]
    assert [values[name] for name in ("inner.rate", "rates.1", "named.a", "whatever.0")] == [0.1, 2.5, 1.0, 7]
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
    assert [field.name for field in dataclasses.fields(Lower)] == ["rate", "kind", "power"]
    assert Lower().name == "lower"
    assert message_of(lambda: Lower(kind="plane")).startswith("kind='plane' is unknown (did you mean plain?)")


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
    assert (Field.name, Lower.name, Lower().name, Lower("own").name) == ("by field", "by field", "by field", "own")


# Values.


def test_equal_fields_make_equal_parts():
    assert Outer() == Outer(Inner(0.1), 0.5)
    assert hash(Outer()) == hash(Outer(Inner(0.3)))  # leaves may be arrays, which have none
    assert Outer(mu=0.25) != Outer()
    assert Outer(inner=Inner(0.2)) != Outer()
    assert Outer(epochs=2) != Outer()
    assert hash(Outer(epochs=2)) != hash(Outer())
    assert Outer(decay=0.0) != Outer()  # None is no zero
    assert Inner() != Outer()
    assert Inner() != 0.1
    assert len({Outer(), Outer(mu=0.5), Outer(mu=0.75), Outer(flag=True)}) == 3


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
    assert "mu=7.0 must be below 1" in message_of(lambda: dataclasses.replace(made, mu=7.0))


def test_parts_are_copied_and_pickled():
    made = Outer(Inner(0.3, "odd"), times=np.arange(2.0), function=np.abs)
    for other in (copy.deepcopy(made), copy.copy(made), pickle.loads(pickle.dumps(made))):
        assert other == made
        assert hash(other) == hash(made)


def test_a_part_is_shown_as_the_call_that_makes_it():
    assert repr(Outer()) == "Outer()"
    assert repr(Outer(Inner(kind="odd"), epochs=3)) == "Outer(inner=Inner(kind='odd'), epochs=3)"
    assert eval(repr(srp.Training(srp.SGD(0.1, 0.5), epochs=None, steps=3)), vars(srp)) == srp.Training(
        srp.SGD(0.1, 0.5), epochs=None, steps=3
    )
    shown = []
    jax.jit(lambda p: (shown.append(repr(p)), p.mu)[1])(Outer(times=np.ones(2)))
    assert "times=" in shown[0]  # tracers are shown, and nobody compares them


# Checks.


OUT_OF_RANGE = {
    "above": (lambda: Inner(0.0), "rate=0.0 must be positive; give a rate, e.g. 0.1"),
    "at least": (lambda: Outer(mu=-0.5), "mu=-0.5 must be at least 0"),
    "below": (lambda: Outer(mu=1), "mu=1 must be below 1"),
    "integer at least": (lambda: Outer(epochs=-1), "epochs=-1 must be at least 0"),
    "integer at most": (lambda: Outer(epochs=10), "epochs=10 must be at most 9"),
    "integer beyond int32": (lambda: Outer(steps=2**31), "steps=2147483648 must be at most 2147483647"),
    "number as choice": (lambda: Inner(kind=3), "kind=3 is unknown; choose from plain, odd"),
    "choice": (lambda: Inner(kind="od"), "kind='od' is unknown (did you mean odd?); choose from plain, odd"),
    "nan": (lambda: Outer(mu=float("nan")), "mu must be finite"),
    "too large": (lambda: Outer(decay=1e300), "decay must be finite and >= 0, got 1e+300, which is inf as float32"),
    "integer as flag": (lambda: Outer(flag=1), "flag=1 must be a flag, True or False"),
    "number as label": (lambda: Outer(label=3), "label=3 must be a string"),
    "one as several": (lambda: Outer(widths=3), "widths=3 must be a sequence, e.g. (3,)"),
    "text as several": (lambda: Outer(widths="34"), "widths='34' must be a sequence"),
    "one of several": (lambda: Outer(widths=(3, 0)), "widths[1]=0 must be at least 1"),
    "type of several": (lambda: Outer(widths=(3, 4.5)), "widths[1]=4.5 must be an integer"),
    "number as part": (lambda: Outer(inner=0.1), "inner=0.1 must be an Inner"),
    "class as part": (lambda: Outer(inner=Inner), "must be an Inner; call it"),
    "number as function": (lambda: Outer(function=3), "function=3 must be a function"),
    "entries": (lambda: Outer(rates=[1.0, "x"]), "rates[1]='x' must be a number"),
    "array of numbers": (lambda: Outer(mu=np.array([0.1, 2.0])), "must be below 1"),
}
for no_number in ("much", "0.5", True, None, 1j, jax.random.key(0)):
    OUT_OF_RANGE[f"{no_number} as number"] = partial(Outer, mu=no_number), "must be a number"
for no_integer in (1.0, True, float("nan"), np.ones(2)):
    OUT_OF_RANGE[f"{no_integer} as integer"] = partial(Outer, epochs=no_integer), "must be an integer"


@pytest.mark.parametrize("case", OUT_OF_RANGE)
def test_invalid_values_are_refused_in_one_line(case):
    call, words = OUT_OF_RANGE[case]
    assert words in message_of(call)


def test_every_bound_holds_for_numbers_and_for_arrays():
    bounds = [(AtLeast(1), 1, 0), (AtMost(1), 1, 2), (Above(1), 2, 1), (Below(1), 0, 1)]
    for bound, inside, outside in bounds:
        assert bound.holds(inside)
        assert not bound.holds(outside)
        assert bound.holds(np.array([inside, outside])).tolist() == [True, False]
    assert [str(bound) for bound, *_ in bounds] == ["at least 1", "at most 1", "above 1", "below 1"]
    assert str(Above(0)) == "positive"


def test_a_violated_bound_is_reported_rather_than_a_wrong_type():
    @part
    class Either:
        value: Annotated[float, AtLeast(0)] | Callable[[Any], Any] | Inner | None = None

    assert "value=-1.0 must be at least 0" in message_of(lambda: Either(-1.0))
    assert "value='x' must be a number" in message_of(lambda: Either("x"))
    assert Either(np.abs).value is np.abs
    assert Either(Inner(2.0)).value == Inner(2.0)


def test_choices_may_be_numbers_and_tuples_have_a_type_per_entry():
    @part
    class Odd:
        order: Literal[1, 2] = 1
        either: Literal["exact", 3] = "exact"
        pair: tuple[int, str] = (1, "x")
        shares: Annotated[tuple[float, ...], AtMost(1)] = (0.5,)

    assert Odd(2, 3, [4, "y"]) == Odd(2, 3, (4, "y"))
    assert message_of(lambda: Odd(3)) == "order=3 is unknown; choose from 1, 2"
    assert message_of(lambda: Odd(True)) == "order=True is unknown; choose from 1, 2"
    assert message_of(lambda: Odd(either="3")) == "either='3' is unknown; choose from exact, 3"
    assert "pair[1]=2 must be a string" in message_of(lambda: Odd(pair=(1, 2)))
    assert "must be 2 values, not 3" in message_of(lambda: Odd(pair=(1, "x", 2)))
    assert "shares[1]=2.0 must be at most 1" in message_of(lambda: Odd(shares=(0.5, 2.0)))


def test_numbers_of_numpy_and_lists_become_pythons():
    made = Outer(
        mu=np.float32(0.25),
        share=np.float64(0.5),
        decay=np.array(2.0),
        epochs=np.int64(3),
        widths=np.array([4, 5]),
        levels=[np.int32(1), 2],
        flag=np.bool_(True),
        rates=np.array([1.0, 2.0]),
        schedule=3,
    )
    found = made.mu, made.share, made.decay, made.epochs, made.widths, made.levels, made.flag, made.rates, made.schedule
    assert found == (0.25, 0.5, 2.0, 3, (4, 5), (1, 2), True, (1.0, 2.0), 3.0)
    kinds = [float, float, float, int, tuple, tuple, bool, tuple, float]
    assert [type(value) for value in found] == kinds
    assert [type(value) for value in (*made.widths, *made.levels, *made.rates)] == [int] * 4 + [float] * 2
    assert Outer(widths=[4, 5]) == Outer(widths=(4, 5)) == Outer(widths=range(4, 6))
    assert hash(Outer(widths=[4, 5])) == hash(Outer(widths=(4, 5)))


def test_arrays_are_kept_and_lists_are_converted_to_arrays():
    times = jnp.arange(3.0)
    assert Outer(times=times).times is times
    made = Outer(times=[[1.0, 2.0], [3.0, 4.0]])
    assert isinstance(made.times, np.ndarray)
    assert list(parts.values_of(Outer(times=(1, 2, 3)))) == ["inner.rate", "mu", "schedule", "times"]
    assert made == Outer(times=np.array([[1.0, 2.0], [3.0, 4.0]]))


def test_unhashable_static_fields_are_refused():
    for given in ([1], {"a": 1}, np.ones(2), {1, 2}):
        message = message_of(lambda given=given: Outer(anything=given))
        assert message.startswith("anything=")
        assert "unhashable type" in message
        assert message.endswith("; give a tuple, or a part")


ORDER = []


@part
class First:
    rate: Annotated[float, Above(0)] = 1.0
    seen: Any = None

    def __post_init__(self):
        ORDER.append(("first", type(self.rate)))
        object.__setattr__(self, "seen", [1] if self.rate == 9 else "first")


@part
class Second(First):
    more: int = 1

    def __post_init__(self):
        super().__post_init__()
        ORDER.append(("second", self.seen))


@part
class Third(Second):
    """Inherits all fields and checks."""


def test_own_checks_run_after_those_of_the_fields_and_before_the_hash():
    ORDER.clear()
    Third(2)  # an integer
    assert [*ORDER] == [("first", float), ("second", "first")]
    ORDER.clear()
    assert "rate=-1 must be positive" in message_of(lambda: Third(-1))
    assert "more='x' must be an integer" in message_of(lambda: Second(more="x"))
    assert not ORDER  # a field out of range is refused before
    assert "seen=[1]: unhashable type" in message_of(lambda: Third(9.0))  # what a check has put there counts
    assert [*ORDER] == [("first", float), ("second", [1])]


def test_a_subclass_must_be_a_part():
    class Forgotten(Inner):
        pass

    assert message_of(Forgotten) == "class Forgotten inherits from Inner: put @srp.part above it"


# In programs.


def test_unflattening_runs_no_checks():
    made = Outer(decay=2.0, times=np.ones(2))
    leaves, structure = jax.tree.flatten(made)
    for value in (None, object(), -5.0, "text", jnp.ones((2, 3))):
        again = jax.tree.unflatten(structure, [value] * len(leaves))
        assert again.inner.rate is value
        assert again.mu is value
        assert (again.epochs, again.share) == (1, 0.25)
    ORDER.clear()
    jax.tree.map(lambda leaf: leaf, Third())
    jax.jit(lambda p: p.rate)(Third())
    assert [who for who, _ in ORDER].count("second") == 2  # the two that were made above, by no one else
    seen = []
    jax.jit(lambda p: (seen.append(p), p.mu)[1])(made)
    assert isinstance(seen[0].inner.rate, jax.core.Tracer)
    axes = jax.tree.map(lambda _: 0, made)
    assert (axes.mu, axes.inner.rate, axes.epochs) == (0, 0, 1)


def test_a_part_made_of_tracers_is_checked_as_far_as_they_say():
    @jax.jit
    def scaled(rate):
        return Inner(rate).rate + Outer(mu=rate, inner=Inner(2 * rate)).inner.rate

    assert scaled(-1.0) == -3.0  # whose values nobody knows
    with pytest.raises(ValueError, match=r"epochs=.* must be an integer, known before tracing"):
        jax.jit(lambda n: Outer(epochs=n).mu)(3)
    with pytest.raises(ValueError, match=r"kind=.* is unknown; choose from plain, odd"):
        jax.jit(lambda kind: Inner(kind=kind).rate)(3)


def scale(p, x):
    power = 1.0 if p.decay is None else p.decay
    return p.inner.rate * p.epochs * x**power


def test_floats_are_arguments_and_the_rest_is_compiled_in():
    calls = [Outer(Inner(rate), mu=mu) for rate in (0.1, 0.2, 3) for mu in (0.0, np.float64(0.5))]
    compiled = jax.jit(chex.assert_max_traces(scale, n=1))
    assert [float(compiled(p, 2.0)) for p in calls] == pytest.approx([p.inner.rate * 2 for p in calls])
    assert len({jax.tree.structure(p) for p in calls}) == 1
    chex.clear_trace_counter()
    compiled = jax.jit(chex.assert_max_traces(scale, n=5))
    others = [Outer(), Outer(decay=1.0), Outer(epochs=2), Outer(share=0.5), Outer(Inner(kind="odd"))]
    for p in others * 2:
        compiled(p, 2.0)
    with pytest.raises(AssertionError, match="traced"):
        compiled(Outer(label="another"), 2.0)
    assert len({jax.tree.structure(p) for p in others}) == len(others)


def test_a_batch_of_rates_is_a_vmap_and_rates_have_gradients():
    rates = jnp.array([0.1, 0.2, 0.4])
    batch = parts.with_values(Outer(decay=2.0), {"inner.rate": rates})
    axes = parts.with_values(jax.tree.map(lambda _: None, batch), {})
    assert jax.tree.leaves(axes) == []
    axes = jax.tree.unflatten(
        jax.tree.structure(batch), [0 if name == "inner.rate" else None for name in parts.values_of(batch)]
    )
    np.testing.assert_allclose(jax.vmap(scale, in_axes=(axes, None))(batch, 3.0), 9 * rates, rtol=1e-6)
    np.testing.assert_allclose(jax.vmap(lambda r: scale(Outer(Inner(r)), 3.0))(rates), 3 * rates, rtol=1e-6)
    gradient = jax.grad(scale)(Outer(decay=2.0), 3.0)
    assert isinstance(gradient, Outer)
    assert float(gradient.inner.rate) == pytest.approx(9.0)
    assert float(gradient.mu) == 0.0


def test_none_is_no_leaf():
    assert len(jax.tree.leaves(Outer())) == 3
    assert len(jax.tree.leaves(Outer(decay=0.0))) == 4
    assert jax.tree.structure(Outer()) != jax.tree.structure(Outer(decay=0.0))


def test_functions_and_strings_in_leaf_fields_are_static():
    def schedule(step):
        return 0.1 * step

    made = Outer(schedule=schedule, whatever="text")
    assert list(parts.values_of(made)) == ["inner.rate", "mu"]
    assert jax.tree.map(lambda leaf: leaf, made).schedule is schedule
    assert jax.tree.map(lambda leaf: leaf, made).whatever == "text"
    assert made == Outer(schedule=schedule, whatever="text")
    assert made != Outer(schedule=lambda step: 0.1 * step, whatever="text")  # another object
    assert made != Outer(whatever="text")
    compiled = jax.jit(chex.assert_max_traces(lambda p: p.schedule(p.mu), n=1))
    assert [float(compiled(dataclasses.replace(made, mu=mu))) for mu in (0.0, 0.5)] == pytest.approx([0.0, 0.05])


def test_callable_parts_in_leaf_fields_are_flattened():
    @part
    class Called:
        rate: float = 2.0

        def __call__(self, x):
            return self.rate * x

    made = Outer(schedule=Called(3.0))
    assert parts.values_of(made)["schedule.rate"] == 3.0
    assert float(jax.jit(lambda p: p.schedule(2.0))(made)) == 6.0


# By name, and built again.


def test_rebuilt_runs_the_checks_of_every_part():
    made = Outer(Inner(0.3, "odd"), epochs=4, times=np.ones(2))
    assert parts.rebuilt(made) == made
    assert parts.rebuilt(3) == 3
    for name, value, words in (("mu", 2.0, "mu=2.0 must be below"), ("inner.rate", -1.0, "rate=-1.0 must be positive")):
        wrong = parts.with_values(made, {name: value})
        assert words in message_of(lambda wrong=wrong: parts.rebuilt(wrong))


def test_arrays_in_number_fields_are_found():
    rates = np.array([0.1, 0.2])
    assert list(parts.several(Outer(times=np.ones(3), rates=(1.0, 2.0), whatever=np.ones(2)))) == []
    made = Outer(Inner(rates), mu=rates, decay=rates, named={"a": rates, "b": 1.0}, times=np.ones(3))
    assert [name for name, _ in parts.several(made)] == ["inner.rate", "mu", "decay", "named.a"]
    clock = srp.clocks.Fixed(srp.clocks.Exponential(rates))
    assert list(parts.several(clock)) == []


def test_every_class_is_known_by_its_module_and_name():
    assert parts.path_of(Inner) == f"{__name__}.Inner"
    assert parts.KNOWN[parts.path_of(Inner)] is Inner
    assert parts.KNOWN["fedjax_srp.algorithms.optimizers.SGD"] is srp.SGD
    assert parts.is_part(Inner)
    assert parts.is_part(Inner())
    assert not any(map(parts.is_part, (3, "x", int, None, np.ones(2), srp.Phase)))
