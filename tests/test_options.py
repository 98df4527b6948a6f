"""Options of parts: fields by short names, parts built from them, and refusals."""

import functools
from collections.abc import Callable
from typing import Annotated, Any, Literal

import jax
from method_helpers import values_of
from reference.small import model, refused

import fedjax_srp as srp
from fedjax_srp.algorithms.optimizers import Optimizer
from fedjax_srp.parts.options import (
    REQUIRED,
    argument_help,
    build,
    full_names,
    options_of,
    written,
)

FedAvg, FedRep = srp.algorithms.FedAvg, srp.algorithms.FedRep
MODEL = model()


@srp.part
class Penalty:
    """A penalty.

    Args:
        strength: of the penalty,
            in two lines.
        power: of the norm.
    """

    strength: float = 0.1
    power: int = 2


@srp.part
class Two:
    """Two parts of a kind, and an optional one.

    Args:
        first: the first one.
        size: how many.
    """

    size: int
    first: Penalty = Penalty()
    second: Penalty = Penalty(0.5, power=3)
    third: Penalty | None = None
    optimizer: Optimizer | None = None


# Names.


def test_fields_of_nested_parts_have_short_names():
    known = options_of(FedRep)
    paths = {
        "epochs": "training.epochs",
        "learning_rate": "training.optimizer.learning_rate",
        "head_epochs": "head_epochs",
        "head_optimizer.momentum": "head_optimizer.momentum",
    }
    assert {name: known[name].path for name in paths} == paths
    assert [name for name, option in known.items() if option.is_part] == [
        *("training", "optimizer", "fine_tune_optimizer", "head_optimizer"),
    ]
    optional = [name for name, option in known.items() if option.is_optional]
    assert optional == [name for name in known if "optimizer." in name]
    defaults = {"learning_rate": 0.01, "batch_size": 10, "steps": None, "model": REQUIRED}
    assert {name: known[name].default for name in defaults} == defaults
    assert known["fine_tune_optimizer.learning_rate"].default is None
    # Names that several fields have are written in full.
    assert [name for name in options_of(Two) if "power" in name or "rate" in name] == [
        *("first.power", "second.power", "optimizer.learning_rate"),
    ]


def test_options_of_functions_are_their_arguments():
    def few(
        model,
        k: int = 3,
        *rest,
        share: "Unknown" = 0.5,  # noqa: F821
        pace: "float",
        **more,
    ):
        pass

    few.__doc__ = "Few.\n\nArgs:\n    k: how\n        many.\n    pace: in between: 0 to 1.\n\nReturns:\n    None.\n"
    known = options_of(few)
    defaults = {"model": REQUIRED, "k": 3, "share": 0.5, "pace": REQUIRED}
    assert {name: option.default for name, option in known.items()} == defaults
    assert (known["k"].help, known["pace"].help) == ("how many.", "in between: 0 to 1.")
    fixed = functools.partial(few, share=1.0)
    assert list(options_of(fixed)) == ["model", "k", "pace"]
    kinds = {name: option.type for name, option in written(few).items()}
    assert kinds == {"k": int, "pace": float}


@srp.part
class Kinds:
    """A part with fields of every kind.

    Args:
        optimizer: a part, no option.
        rate: with bounds.
        widths: several.
        kind: one of two.
        pace: or an array.
        step: or a schedule.
        anything: no option.
    """

    optimizer: srp.SGD = srp.SGD(0.3)
    rate: Annotated[float, srp.AtLeast(0), "a remedy"] | None = None
    widths: tuple[Annotated[int, srp.AtLeast(1)], ...] = (4, 2)
    kind: Literal["a", "b"] = "a"
    pace: jax.Array | float | int = 0.5
    step: float | Callable[[int], float] = 0.5
    anything: Any = None


def test_options_follow_the_fields_of_a_part():
    found = written(Kinds)
    kinds = {
        "learning_rate": float,
        "momentum": float | None,
        "weight_decay": float | None,
        "rate": float | None,
        "widths": tuple[int, ...],
        "kind": Literal["a", "b"],
        "pace": float,
        "step": float,
    }
    assert {name: option.type for name, option in found.items()} == kinds
    assert (found["learning_rate"].default, found["widths"].default) == (0.3, (4, 2))
    assert found["learning_rate"].help == argument_help(srp.SGD)["learning_rate"]
    assert found["kind"].help == "one of two."


# Building.


def test_parts_are_built_from_short_and_full_names():
    options = {
        "learning_rate": 0.3,
        "epochs": 2,
        "training.batch_size": 4,
        "head_epochs": 5,
    }
    made = build(FedRep, options, MODEL)
    assert made == FedRep(
        MODEL, srp.Training(srp.SGD(0.3), batch_size=4, epochs=2), head_epochs=5
    )
    assert build(FedRep, {}, MODEL) == FedRep(MODEL)
    assert build(FedRep, {}, model=MODEL) == FedRep(MODEL)
    assert build(
        functools.partial(FedAvg, evaluation="fine_tune"), {"epochs": 3}, MODEL
    ) == FedAvg(MODEL, srp.Training(epochs=3), evaluation="fine_tune")


def test_an_option_of_an_optimizer_that_is_none_starts_from_that_of_training():
    options = {"learning_rate": 0.3, "weight_decay": 0.1, "head_optimizer.momentum": 0.5}
    made = build(FedRep, options, MODEL)
    assert made.training.optimizer == srp.SGD(0.3, weight_decay=0.1)
    assert made.head_optimizer == srp.SGD(0.3, 0.5, 0.1)
    assert made.fine_tune_optimizer is None
    assert build(Two, {"size": 1, "optimizer.momentum": 0.5}).optimizer == srp.SGD(
        momentum=0.5
    )  # there is no training


def test_parts_may_be_given_as_a_whole():
    training = srp.Training(srp.SGD(0.3), epochs=2)
    assert build(FedAvg, {"training": training}, MODEL) == FedAvg(MODEL, training)
    made = build(FedAvg, {"optimizer": srp.SGD(0.3), "epochs": 2}, MODEL)
    assert made == FedAvg(MODEL, training)
    assert build(Two, {"size": 1, "second.power": 4}).second == Penalty(0.5, 4)
    assert build(Two, {"size": 1, "third": Penalty(2.0)}).third == Penalty(2.0)
    with refused("first.strength and second.strength; give one"):
        full_names(Two(1), {"strength": 1})


# Values.


def test_values_of_every_algorithm_build_it_again():
    for name in srp.algorithms.__all__:
        cls = getattr(srp.algorithms, name)
        if not cls.name.startswith("linear"):
            given = {"learning_rate": 0.125, "fine_tune_optimizer.momentum": 0.25}
            changed = build(cls, given, MODEL)
            values = values_of(changed, ("model",))
            assert values["learning_rate"] == 0.125
            assert build(cls, values, MODEL) == changed
