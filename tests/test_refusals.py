"""Whatever is wrong in a public call is refused in one line: a ValueError that names the argument and says a remedy."""

import inspect
import re
import typing
from typing import Any

import jax
import numpy as np
import pytest
from public_calls import CALLS, DIGITS, PARTS, ROOMS, fields_of
from reference.small import KEY
from refusal_rows import SUBJECTS

import fedjax_srp as srp
from fedjax_srp import clocks, messages, models, theory
from fedjax_srp.data import partition
from fedjax_srp.parts import part as parts
from fedjax_srp.parts.checks import is_ours, types_of

pytestmark = pytest.mark.filterwarnings(
    "ignore::UserWarning"
)  # odd data may give a warning

# What an error tells its reader to do.
REMEDY = re.compile(
    r"\b(must|needs?|give|use|choose|call|leave|rename|reserve|put|save|see|set|swap|take|it has|expected)\b"
    r"|\b(did you mean|name an|annotate|adds|reads|remove|make|shows|belongs)\b"
)

# No argument may be one of these.
NEVER = {
    "object": object(),
    "bytes": b"x",
    "complex": 1j,
    "dict": {"a": 1},
    "texts": ["a"],
    "vaster": -(10**400),
}
# Some arguments may be one of these: each is accepted, or refused in one line.
SOMETIMES = {
    "text": "zwei",
    "number as text": "0.5",
    "half": 2.5,
    "flag": True,
    "none": None,
    "nan": float("nan"),
    "inf": float("inf"),
    "negative": -1,
    "array": np.ones(2),
    "huge": 2**31,
    "vast": 10**23,
    "1e23": 1e23,
    "list": [],
    "function": len,
    "key": KEY,
    "old key": jax.random.PRNGKey(0),
    "not called": clocks.Fixed,
}
NUMPY = {
    int: (np.int16, np.int64, np.uint16, np.asarray),
    float: (np.float32, np.float64, np.int64, np.asarray),
}


NAMED_AS = {
    ("head_optimizer", "function"): "fine_tune_optimizer"
}  # depends on the round, which an evaluation lacks


def outcome(function, arguments, named="", remedy=None):
    """Return "refused" (in one line of our own with name and remedy), "accepted", or a description of anything else."""
    try:
        function(**arguments)
    except ValueError as error:
        message = str(error)
        last_name = named.rpartition(".")[2]  # the short one
        stem = last_name.removesuffix("s")
        after = r"[=:\[ ]" if len(stem) == 1 else r"s?\b"
        if named and not re.search(rf"\b{stem}{after}", message):
            return f"does not say {named}: {message[:100]!r}"
        if remedy and not remedy.search(message):
            return f"says no remedy: {message[:150]!r}"
        return (
            "refused"
            if "\n" not in message and is_ours(error)
            else f"says {message[:100]!r}"
        )
    except Exception as error:
        return f"raises {type(error).__name__}: {str(error)[:100]}"
    return "accepted"


def name_of(function):
    return f"{function.__module__.rpartition('.')[2]}.{function.__name__}"


@pytest.mark.parametrize("function", CALLS, ids=name_of)
def test_wrong_types_are_refused_in_one_line(function):
    right, found = CALLS[function], {}
    for argument in right:
        for kind, value in {**NEVER, **SOMETIMES}.items():
            found[argument, kind] = outcome(function, {**right, argument: value})
    assert not {
        case: what for case, what in found.items() if what not in ("refused", "accepted")
    }
    assert not [
        case for case, what in found.items() if what == "accepted" and case[1] in NEVER
    ]


def test_misspelt_and_missing_arguments_are_one_error():
    with pytest.raises(
        TypeError, match=r"^simulate\(\): .* 'num_round' \(did you mean num_rounds\?\)$"
    ) as refused:
        srp.simulate(num_round=1)
    assert refused.value.__suppress_context__
    with pytest.raises(
        TypeError, match=r"^simulate\(\) missing 1 required positional argument: 'data'"
    ):
        srp.simulate(algorithm=4, key=KEY, num_rounds=1)


@pytest.mark.parametrize("function", CALLS, ids=name_of)
def test_numbers_of_numpy_are_numbers(function):
    if function is srp.data.prepare:
        pytest.skip("downloads what is named")
    right = CALLS[function]
    found = {"as given": outcome(function, right)}
    for argument, value in right.items():
        of_kind = NUMPY.get(type(value), ())
        for make in (make for make in of_kind if make(value) == value):
            found[argument, make.__name__] = outcome(
                function, {**right, argument: make(value)}
            )
    assert set(found.values()) == {"accepted"}, found


@pytest.mark.parametrize("cls", PARTS, ids=name_of)
def test_every_field_refuses_wrong_types_in_one_line_that_names_it(cls):
    right, found = fields_of(cls), {}
    assert right.keys() == parts.fields(cls).hints.keys()
    for field in right:
        for kind, value in {**NEVER, **SOMETIMES}.items():
            found[field, kind] = outcome(
                cls, {**right, field: value}, NAMED_AS.get((field, kind), field)
            )
    assert not {
        case: what for case, what in found.items() if what not in ("refused", "accepted")
    }
    assert not [
        case for case, what in found.items() if what == "accepted" and case[1] in NEVER
    ]


def beyond(hint):
    """Yield values just outside of the bounds and choices of an annotation."""
    for kind, metadata in types_of(hint):
        if typing.get_origin(kind) is typing.Literal:
            yield "unheard of"
        for bound in metadata:
            if kind in (int, float) and hasattr(bound, "holds"):
                edge = getattr(bound, "low", getattr(bound, "high", 0))
                yield from (
                    kind(value)
                    for value in (edge - 1, edge, edge + 1)
                    if not bound.holds(value)
                )


@pytest.mark.parametrize("cls", PARTS, ids=name_of)
def test_every_bound_and_choice_of_a_field_is_checked(cls):
    right, found = fields_of(cls), {}
    for field, hint in parts.fields(cls).hints.items():
        for value in beyond(hint):
            found[field, value] = outcome(cls, {**right, field: value}, field, REMEDY)
    assert set(found.values()) <= {"refused"}, found


@pytest.mark.parametrize("name", SUBJECTS)
def test_wrong_arguments_are_refused(name):
    function, right, wrong, named = SUBJECTS[name]
    found = {}
    for change in wrong:
        found[str(change)] = outcome(
            function, {**right, **change}, named or next(iter(change)), REMEDY
        )
    assert not {case: what for case, what in found.items() if what != "refused"}


@pytest.mark.parametrize("cls", PARTS, ids=name_of)
def test_fields_hold_plain_numbers_whatever_they_were_given(cls):
    """Parts made of NumPy's numbers equal those made of plain ones, and compile nothing again."""
    right = fields_of(cls)
    made = cls(**right)
    for field, value in right.items():
        is_any = parts.fields(cls).hints[field] is Any
        for make in (
            make for make in NUMPY.get(type(value), ()) if make(value).item() == value
        ):
            if is_any and type(make(value).item()) is not type(value):
                continue  # 0 and 0.0 are two values there
            again = cls(**{**right, field: make(value)})
            assert again == made, (field, make)
            assert jax.tree.structure(again) == jax.tree.structure(made), (field, make)
            if not is_any:
                assert type(getattr(again, field)) is type(getattr(made, field)), (
                    field,
                    make,
                )


@pytest.fixture(autouse=True)
def quick_digits(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # where `save` writes
    (tmp_path / "times.csv").write_text("bob,ann\n3,4\n")
    (tmp_path / "parts.csv").write_text("client,split,row\na,train,0\na,test,1\n")
    (tmp_path / "devices.csv").write_text("speed,down,up\n3,4,5\n")
    for kind in ("train", "test"):
        (tmp_path / "forum" / kind).mkdir(parents=True)
        (tmp_path / "forum" / kind / "a.json").write_text(
            '{"users": ["u"], "user_data": {"u": {"x": ["a b"]}}}'
        )
    (tmp_path / "there.csv").write_text(
        "device,trace,t_start_s,state\nx,t,0,AVL\nx,t,3,UN_AVL\n"
    )
    monkeypatch.setitem(srp.data.SOURCES, "digits", lambda data_dir: DIGITS)


def functions_of(room, names):
    return {vars(room)[name] for name in names if inspect.isroutine(vars(room)[name])}


def test_every_public_function_is_called():
    own = [
        name
        for name, value in vars(partition).items()
        if getattr(value, "__module__", "") == partition.__name__
    ]
    own = [name for name in own if name[0] != "_"]
    public = functions_of(partition, own) | functions_of(theory, theory.KIND)
    public |= set().union(*(functions_of(r, r.__all__) for r in (srp.data, *ROOMS)))
    without = {
        models.names,
        models.cross_entropy,
        models.half_square,
        partition.check_tested_classes,
        models.register,
        clocks.register,
        messages.register,
    }  # nothing to give, inside programs, or changing a table (tests/test_own_parts.py)
    assert not {name_of(function) for function in public - without - CALLS.keys()}
    for function, arguments in CALLS.items():
        parameters = inspect.signature(function).parameters.values()
        assert {
            p.name for p in parameters if p.kind is not p.VAR_KEYWORD
        } <= arguments.keys(), function
