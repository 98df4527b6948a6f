"""Options of methods: of a row, of parts given as objects, of any participation; refusals."""

import functools

from method_helpers import SHAPES, algorithm_of, cohort_sizes, record
from reference.small import refused

import fedjax_srp as srp
from fedjax_srp.methods import options


def test_a_row_may_set_what_any_part_reads():
    row = {"initial": 5, "hidden": (4,), "learning_rate": 0.2, "features": 7}
    row["fine_tune_optimizer"] = srp.SGD(0.3)  # and features are of model "lstm" alone
    srp.methods.register(
        "mine", srp.algorithms.FedAvg, participation="doubling", options=row
    )
    found = record("mine")
    names = ("initial", "hidden", "learning_rate")
    assert [found[name] for name in names] == [5, (4,), 0.2]
    assert found["fine_tune_optimizer.learning_rate"] == 0.3
    method = srp.methods.get("mine", dataset=SHAPES)
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
    assert "max_work" not in record("flanp_fednova", participation="uniform", k=10)


def test_any_algorithm_goes_with_any_participation():
    get = functools.partial(srp.methods.get, dataset=SHAPES, hidden=(4,))
    method = get("fedrep", participation="doubling", initial=7)
    assert (method.name, method.participation.name) == ("fedrep + doubling", "doubling")
    assert srp.methods.label(method.name) == "FedRep + doubling"
    assert cohort_sizes(method.participation, (0, 10)) == [7, 14]
    own = get("srpfl", participation=srp.participation.Fastest(3))
    assert (own.name, own.participation.name) == ("srpfl + fastest", "fastest")
    like = get("srpfl", participation=srp.participation.Doubling(3, 1))
    assert like.name == "srpfl + doubling"  # its options may be others


def test_one_name_is_never_read_by_two_parts():
    """A user's method that would do so is refused, unless the other part is given as an object."""

    def clustered(model, k: int = 3):
        return srp.algorithms.FedAvg(model)

    models = [options.MODEL_OPTIONS, *map(srp.models.options, srp.models.names())]
    of_models = set().union(*models)
    for name in [*srp.methods.names(), *srp.methods.algorithm_names()]:
        for policy in srp.methods.POLICIES:
            route = options.routes(name, policy)
            assert not route.algorithm.keys() & route.policy.keys()
            assert not of_models & (route.algorithm.keys() | route.policy.keys())
    get = functools.partial(srp.methods.get, dataset=SHAPES)
    with refused(r"^k: .* rename"):
        get(clustered, participation="fastest", k=10)
    with refused(r"^hidden: .* rename"):
        get(lambda model, hidden=8: srp.algorithms.FedAvg(model), hidden=4)
    fastest = srp.participation.Fastest(5)
    assert get(clustered, participation=fastest, k=2).participation == fastest


def test_objects_replace_their_options():
    """Shared options, and those of a row, are ignored if a given part replaces them."""
    mine, momentum = srp.Training(srp.SGD(0.3)), "fine_tune_optimizer.momentum"
    shared = {"learning_rate": 0.2, "steps": 3, momentum: 0.5}
    assert algorithm_of("fedavg", training=mine, shared=shared).training == mine
    assert algorithm_of("fedavg", training=mine, momentum=None).training == mine
    chosen = srp.methods.choose("fedavg", training=mine, shared=shared).algorithm
    assert not {"learning_rate", "steps", "epochs"} & chosen.keys()
    algorithm = algorithm_of("fedavg", fine_tune_optimizer=srp.SGD(0.4), shared=shared)
    own = algorithm_of("fedavg", learning_rate=0.3, shared={"learning_rate": 0.2})
    assert own.training.optimizer == srp.SGD(0.3)  # what is given goes before shared
    assert algorithm.fine_tune_optimizer == srp.SGD(0.4)
    assert algorithm.training.optimizer == srp.SGD(0.2)
