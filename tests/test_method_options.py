"""Options of methods: of a row, of parts given as objects, of any participation; refusals."""

import functools
import itertools

import numpy as np
import pytest
from method_helpers import SHAPES, algorithm_of, cohort_sizes, record, steps_of

import fedjax_srp as srp
from fedjax_srp.methods import options


def test_a_row_may_set_what_any_part_reads():
    row = {
        "initial": 5,
        "hidden": (4,),
        "learning_rate": 0.2,
        "fine_tune_optimizer": srp.SGD(0.3),
    }
    row["features"] = 7  # of model "lstm" alone
    srp.methods.register(
        "mine", srp.algorithms.FedAvg, participation="doubling", options=row
    )
    method, found = srp.methods.get("mine", dataset=SHAPES), record("mine")
    assert [found[name] for name in ("initial", "hidden", "learning_rate")] == [
        5,
        (4,),
        0.2,
    ]
    assert found["fine_tune_optimizer.learning_rate"] == 0.3
    assert (method.participation.initial, method.algorithm.model.hidden) == (5, (4,))
    assert method.algorithm.training.optimizer == srp.SGD(0.2)
    assert method.algorithm.fine_tune_optimizer == srp.SGD(0.3)


def test_rows_may_have_options_of_their_own():
    """FLANP with FedNova: as many steps as fit; by default one for all."""
    get = functools.partial(srp.methods.get, dataset=SHAPES, hidden=(4,))
    asked = {"flanp": (1, 1.0), "flanp_fednova": (10, 0.5), "fednova": (10, 0.5)}
    for name, expected in asked.items():
        policy, found = get(name).participation, record(name)
        assert (found["max_work"], found["on_time"]) == expected
        assert (policy.max_work, policy.on_time) == expected
    chosen = get("flanp_fednova", max_work=4, shared={"on_time": 0.25}).participation
    assert (chosen.max_work, chosen.on_time) == (4, 0.25)
    elsewhere = record(
        "flanp_fednova", participation="uniform", k=10
    )  # a policy that has no such options
    assert "max_work" not in elsewhere


def test_any_algorithm_goes_with_any_participation():
    method = srp.methods.get(
        "fedrep", dataset=SHAPES, hidden=(4,), participation="doubling", initial=7
    )
    assert (method.name, method.participation.name) == ("fedrep + doubling", "doubling")
    assert record("fedrep", participation="doubling", initial=7)["initial"] == 7
    assert srp.methods.label(method.name) == "FedRep + doubling"
    assert cohort_sizes(method.participation, (0, 10)) == [7, 14]
    own = srp.methods.get(
        "srpfl", dataset=SHAPES, hidden=(4,), participation=srp.participation.Fastest(3)
    )
    assert (own.name, own.participation.name) == ("srpfl + fastest", "fastest")
    like = srp.methods.get(
        "srpfl",
        dataset=SHAPES,
        hidden=(4,),
        participation=srp.participation.Doubling(3, 1),
    )
    assert like.name == "srpfl + doubling"  # its options may be others


def test_a_training_object_replaces_its_options():
    """Shared options, and those of a row, are ignored if a given part replaces them."""
    mine = srp.Training(srp.SGD(0.3), batch_size=5)
    shared = {"learning_rate": 0.2, "steps": 3, "batch_size": 2}
    assert algorithm_of("fedavg", training=mine, shared=shared).training == mine
    assert (
        not {"learning_rate", "steps", "epochs"}
        & srp.methods.choose("fedavg", training=mine, shared=shared).algorithm.keys()
    )
    assert (
        algorithm_of("fedavg", training=mine, momentum=None).training == mine
    )  # asks for nothing


def test_a_fine_tuning_optimizer_replaces_its_momentum():
    """It reaches the algorithm despite shared options."""
    mine, momentum = srp.SGD(0.3), "fine_tune_optimizer.momentum"
    assert (
        algorithm_of(
            "fedavg", fine_tune_optimizer=mine, **{momentum: None}
        ).fine_tune_optimizer
        == mine
    )
    shared = {momentum: 0.5, "learning_rate": 0.2}
    algorithm = algorithm_of("fedavg", fine_tune_optimizer=mine, shared=shared)
    np.testing.assert_allclose(
        steps_of(algorithm.fine_tune_optimizer), [-0.3] * 4, rtol=1e-6
    )
    np.testing.assert_allclose(
        steps_of(algorithm.training.optimizer), [-0.2] * 4, rtol=1e-6
    )


def test_one_name_is_never_read_by_two_parts():
    """A user's method that would do so is refused, unless the other part is given as an object."""

    def clustered(model, k: int = 3):
        return srp.algorithms.FedAvg(model)

    def hyper(model, hidden: int = 8):
        return srp.algorithms.FedAvg(model)

    for name in [*srp.methods.names(), *srp.methods.algorithm_names()]:
        for policy in srp.methods.POLICIES:
            route = options.routes(name, policy)
            read = (route.algorithm, route.policy, options.MODEL_OPTIONS)
            of_models = {
                option
                for model in srp.models.names()
                for option in srp.models.options(model)
            }
            assert len({*itertools.chain(*read), *of_models}) == sum(
                map(len, (*read, of_models))
            )
    with pytest.raises(ValueError, match=r"^k: .* rename"):
        srp.methods.get(clustered, dataset=SHAPES, participation="fastest", k=10)
    with pytest.raises(ValueError, match=r"^hidden: .* rename"):
        srp.methods.get(hyper, dataset=SHAPES, hidden=4)
    method = srp.methods.get(
        clustered, dataset=SHAPES, participation=srp.participation.Fastest(5), k=2
    )
    assert method.participation == srp.participation.Fastest(5)
