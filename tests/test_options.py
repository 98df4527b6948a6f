"""Options of parts: fields by short names, parts built from them, and refusals."""

import functools
import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import jax
import numpy as np
import optax
import pytest
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
    sgd = "learning_rate", "momentum", "weight_decay"
    in_training = "optimizer", "batch_size", "epochs", "steps", "weighting"
    in_full = [
        *(
            "model",
            "training",
            "head_epochs",
            "representation_epochs",
            "fine_tune_epochs",
            "keeps_optimizer",
            "newcomers_take_mean_head",
        ),
        *("keeps_optimizer", "newcomers_take_mean_head"),
        *("head_optimizer", "fine_tune_optimizer"),
        *(
            f"{optimizer}.{name}"
            for optimizer in ("head_optimizer", "fine_tune_optimizer")
            for name in sgd
        ),
    ]
    paths = {name: f"training.{name}" for name in in_training} | {
        name: f"training.optimizer.{name}" for name in sgd
    }
    assert {name: option.path for name, option in known.items()} == paths | {
        name: name for name in in_full
    }
    assert [name for name, option in known.items() if option.is_part] == [
        *("training", "optimizer", "fine_tune_optimizer", "head_optimizer"),
    ]
    assert [name for name, option in known.items() if option.is_optional] == [
        n for n in known if "optimizer." in n
    ]


def test_defaults_are_those_of_the_parts():
    known = options_of(FedRep)
    assert [
        known[name].default for name in ("learning_rate", "batch_size", "epochs", "steps")
    ] == [0.01, 10, 1, None]
    assert known["model"].default is REQUIRED
    assert known["fine_tune_optimizer.learning_rate"].default is None  # that of training
    assert options_of(Two)["second.strength"].default == 0.5


def test_ambiguous_names_are_written_in_full():
    assert list(options_of(Two)) == [
        *(
            "size",
            "first",
            "first.strength",
            "first.power",
            "second",
            "second.strength",
            "second.power",
            "third",
        ),
        *(
            "optimizer",
            "optimizer.learning_rate",
            "optimizer.momentum",
            "optimizer.weight_decay",
        ),
    ]


def test_help_comes_from_the_docstrings():
    known = options_of(Two)
    assert [
        known[n].help
        for n in ("size", "first", "first.strength", "second.power", "third")
    ] == [
        *(
            "how many.",
            "the first one.",
            "of the penalty, in two lines.",
            "of the norm.",
            "",
        ),
    ]
    assert argument_help(lambda: 3) == {}
    assert "shuffled" in options_of(FedAvg)["epochs"].help


def test_arguments_fixed_by_partial_are_no_options():
    fixed = functools.partial(FedAvg, evaluation="fine_tune")
    assert options_of(FedAvg).keys() - options_of(fixed).keys() == {"evaluation"}
    whole = options_of(functools.partial(FedAvg, training=srp.Training()))
    assert not whole.keys() & {"training", "epochs", "learning_rate"}


def test_options_of_functions_are_their_arguments():
    def few(
        model,
        k: int = 3,
        *rest,
        share: "Unknown" = 0.5,  # noqa: F821
        pace: "float",
        names: Sequence = (),
        **more,
    ):
        pass

    few.__doc__ = "Few.\n\nArgs:\n    k: how\n        many.\n    pace: in between: 0 to 1.\n\nReturns:\n    None.\n"
    known, defaults = (
        options_of(few),
        {"model": REQUIRED, "k": 3, "share": 0.5, "pace": REQUIRED, "names": ()},
    )
    assert {name: option.default for name, option in known.items()} == defaults
    assert (known["k"].help, known["pace"].help) == ("how many.", "in between: 0 to 1.")
    assert known["k"].hint is int
    assert list(options_of(functools.partial(few, share=1.0, names=()))) == [
        "model",
        "k",
        "pace",
    ]
    assert {name: option.type for name, option in written(few).items()} == {
        "k": int,
        "pace": float,
    }


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
        share: that shapes the program.
        anything: no option.
    """

    optimizer: srp.SGD = srp.SGD(0.3)
    rate: Annotated[float, srp.AtLeast(0), "a remedy"] | None = None
    widths: tuple[Annotated[int, srp.AtLeast(1)], ...] = (4, 2)
    kind: Literal["a", "b"] = "a"
    pace: jax.Array | float | int = 0.5
    step: float | Callable[[int], float] = 0.5
    share: srp.Static[float] = 0.5
    anything: Any = None


def test_options_follow_the_fields_of_a_part():
    found = {
        name: (option.type, option.default, option.help)
        for name, option in written(Kinds).items()
    }
    of_sgd = argument_help(srp.SGD)
    assert found == {
        "learning_rate": (float, 0.3, of_sgd["learning_rate"]),
        "momentum": (float | None, None, of_sgd["momentum"]),
        "weight_decay": (float | None, None, of_sgd["weight_decay"]),
        "rate": (float | None, None, "with bounds."),
        "widths": (tuple[int, ...], (4, 2), "several."),
        "kind": (Literal["a", "b"], "a", "one of two."),
        "pace": (float, 0.5, "or an array."),
        "step": (float, 0.5, "or a schedule."),
        "share": (float, 0.5, "that shapes the program."),
    }


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
    assert build(FedAvg, {"optimizer": srp.SGD(0.3), "epochs": 2}, MODEL) == FedAvg(
        MODEL, training
    )
    assert build(
        FedAvg, {"optimizer": optax.adam(0.1)}, MODEL
    ).training.optimizer.transformation()
    assert build(Two, {"size": 1, "second.power": 4}).second == Penalty(0.5, 4)
    assert build(Two, {"size": 1, "third": Penalty(2.0)}).third == Penalty(2.0)


WRONG = {
    "option of a whole": (
        lambda: build(FedAvg, {"training": srp.Training(), "epochs": 3}, MODEL),
        "epochs: the training that is given has its own; leave one of the two out",
    ),
    "option of a whole within": (
        lambda: build(FedAvg, {"optimizer": srp.SGD(0.1), "momentum": 0.5}, MODEL),
        "momentum: the training.optimizer that is given has its own; leave one of the two out",
    ),
    "option of what is no part": (
        lambda: build(
            FedAvg, {"optimizer": lambda t: srp.SGD(0.1), "momentum": 0.5}, MODEL
        ),
        "has no options; give it as a whole",
    ),
    "option of a part that is none": (
        lambda: build(Two, {"size": 1, "third.power": 4}),
        "third=None has no options; give it as a whole",
    ),
    "no option": (
        lambda: build(FedAvg, {"epoch": 3}, MODEL),
        "unknown option 'epoch' of fedavg (did you mean epochs",
    ),
    "out of range": (
        lambda: build(FedAvg, {"epochs": -3}, MODEL),
        "epochs=-3 must be at least 0",
    ),
    "rate": (
        lambda: build(FedAvg, {"learning_rate": 0.0}, MODEL),
        "learning_rate=0.0 must be positive",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_parts_that_cannot_be_built_are_refused(case):
    call, words = WRONG[case]
    with refused(re.escape(words)):
        call()


# Values.


def test_other_optimizers_have_the_names_of_their_own_arguments():
    adam = srp.optimizer(optax.adam, learning_rate=0.1, nesterov=True)
    made = FedAvg(MODEL, srp.Training(adam))
    assert full_names(made, {"learning_rate": 1}) == {
        "training.optimizer.floats.learning_rate": 1
    }


def test_leaves_have_full_names():
    made = FedRep(MODEL, srp.Training(srp.SGD(0.3, 0.5)), head_optimizer=srp.SGD(0.7))
    rate, head = "training.optimizer.learning_rate", "head_optimizer.learning_rate"
    assert full_names(
        made, {"learning_rate": 1, head: 2, "training.optimizer.momentum": 3}
    ) == {
        rate: 1,
        head: 2,
        "training.optimizer.momentum": 3,
    }
    assert full_names(made, {"optimizer.momentum": 1}) == {
        "training.optimizer.momentum": 1
    }  # the last words of one


NO_LEAF = {
    "static": (
        {"epochs": 1},
        "values has 'epochs', which is no float of 'fedrep' as it is; it has learning_rate, mom",
    ),
    "unknown": (
        {"mu": 1},
        "values has 'mu', which is no float of 'fedrep' as it is; it has learning_rate, momentum",
    ),
    "none": (
        {"weight_decay": 1},
        "values has 'weight_decay', which is no float of 'fedrep' as it is",
    ),
    "twice": (
        {"learning_rate": 1, "training.optimizer.learning_rate": 2},
        "values: 'training.optimizer.learning_rate' is training.optimizer.learning_rate, which is given twice; leave",
    ),
}


@pytest.mark.parametrize("case", NO_LEAF)
def test_an_unknown_or_repeated_leaf_is_refused(case):
    values, words = NO_LEAF[case]
    made = FedRep(MODEL, srp.Training(srp.SGD(0.3, 0.5)))
    with refused(re.escape(words)):
        full_names(made, values)


def test_an_ambiguous_leaf_is_refused():
    with refused(
        "^values: 'strength' stands for first.strength and second.strength; give one of them in full$"
    ):
        full_names(Two(1), {"strength": np.ones(2)})
    with refused("it has first.strength, second.strength"):
        full_names(Two(1), {"x": 1})
