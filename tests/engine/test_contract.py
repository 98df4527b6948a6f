"""What breaks the contract of `base.py` is answered with one line at the door; what keeps to it is let through."""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from reference.small import (
    KEY,
    algorithm_of,
    changed,
    made_clock,
    made_policy,
    model,
    numbers,
    scripted,
    whole_server,
)

import fedjax_srp as srp
from fedjax_srp.base import (
    ClientOutput,
    ClientTimes,
    Cohort,
    Examples,
    Phase,
    Uncharged,
    nothing,
)
from fedjax_srp.engine.contract import check_algorithm
from fedjax_srp.models import cross_entropy

VALUES = np.array([3.0, -1.0, 4.0, 1.5], np.float32)
DATA = numbers(*VALUES)
EACH = jnp.ones(4)


def simulate(algorithm, data=DATA, **options):
    return srp.simulate(algorithm, data, **{"num_rounds": 2, "eval_every": 2, "key": KEY, "progress": False} | options)


def refusal(*args, **options):
    """The one line that a simulation is refused with."""
    with pytest.raises(ValueError, match=r"\w") as caught:
        simulate(*args, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 500
    return message


# Algorithms.


def client_of(**given):
    """A client function that hands over its number, or what it is told."""
    return lambda key, broadcast, state, value, context: ClientOutput(**{"message": value} | given)


KEEP = lambda key, state, mean, context: state  # noqa: E731


def returning(value):
    return lambda key, broadcast, state, example, context: value


def in_round(broadcast=whole_server, client=None, server=lambda key, state, mean, context: state):
    return {"round": Phase(broadcast, client_of() if client is None else client, server)}


def with_state(state):
    """An algorithm whose clients begin with a state of two parts and hand back another."""
    begin = {"a": jnp.zeros(3), "b": jnp.zeros(())}
    return {"init_client": lambda key, server, value: begin, **in_round(client=client_of(state=state))}


class FourArguments:
    def __call__(self, key, broadcast, state, value):
        return ClientOutput(value)


def judged(personalize):
    return {"evaluations": {"mine": personalize}}


PARTS = {"a": jnp.zeros(2), "b": jnp.zeros(3)}
FEW, MANY = (lambda one: one), (lambda one, two, three, four, five, six: one)  # nothing takes one argument, or six
OF_CLIENT = "(key, broadcast, client state, client data, context)"
BROKEN_ALGORITHMS = {
    # What a client returns.
    "bare_message": (in_round(client=returning(jnp.zeros(2))), "round.client returned the array float32[2], it"),
    "client_none": (in_round(client=returning(None)), "round.client returned None, it must return"),
    "client_tuple": (in_round(client=returning((EACH, ()))), "round.client returned (the array float32[4], ()),"),
    "text_alone": (in_round(client=returning("x")), "round.client returned a str, it must return arrays"),
    "text_inside": (in_round(client=client_of(message={"a": "x"})), "round.client returned something with a str in"),
    "array_of_text": (in_round(client=client_of(message=np.array(["x"]))), "something with a ndarray in it"),
    "object_as_state": (in_round(client=client_of(state=object())), "something with an object in it"),
    "shape_as_message": (in_round(client=client_of(message=jax.ShapeDtypeStruct((3,), int))), "a ShapeDtypeStruct"),
    "key_as_message": (
        in_round(client=lambda key, *rest: ClientOutput({"k": key})),
        "round.client returned the message ['k'] = key<fry>[], the engine averages numbers",
    ),
    "state_lacks": (with_state({"a": jnp.zeros(3)}), "the state {a: float32[3]} (without ['b']), it must be like"),
    "state_with_more": (
        with_state({"a": jnp.zeros(3), "b": jnp.zeros(()), "c": jnp.zeros(())}),
        "(with ['c'] besides), it must be like what init_client makes: {a: float32[3], b: float32[]}",
    ),
    "state_of_other_type": (with_state((jnp.zeros(3), jnp.zeros(()))), "the state (float32[3], float32[])"),
    "state_of_other_shape": (
        with_state({"a": jnp.zeros(4), "b": jnp.zeros(())}),
        "round.client returned the state ['a'] = float32[4], it must be like what init_client makes: float32[3]",
    ),
    "state_of_other_dtype": (with_state({"a": jnp.zeros(3), "b": jnp.int32(0)}), "the state ['b'] = int32[], it"),
    "state_where_none_was_made": (in_round(client=client_of(state=jnp.zeros(2))), "the state float32[2], it"),
    "weight_no_prefix": (
        in_round(client=client_of(weight={"a": 1.0})),
        "the weight {a: float32[]}, which is no prefix",
    ),
    "weight_of_other_parts": (
        in_round(client=client_of(message=PARTS, weight={"a": 1.0, "c": 1.0})),
        "which is no prefix of the message {a: float32[2], b: float32[3]}; give a scalar, or one for each part",
    ),
    "weight_none": (in_round(client=client_of(weight=None)), "the weight None, which is no prefix"),
    "weight_vector": (in_round(client=client_of(weight=jnp.ones(3))), "the weight float32[3], it must be a"),
    "weight_by_entry": (
        in_round(client=client_of(message=PARTS, weight={"a": jnp.ones(2), "b": 1.0})),
        "the weight float32[2], it must be a scalar or scalars by part",
    ),
    "weight_key": (in_round(client=lambda key, *rest: ClientOutput(rest[2], weight=key)), "the weight"),
    "info_list": (in_round(client=client_of(info=[1.0])), "round.client returned info: a list, it must be a dict"),
    "info_none": (in_round(client=client_of(info=None)), "returned info: None, it must be a dict of"),
    "info_vector": (in_round(client=client_of(info={"loss": EACH})), "info: 'loss' = float32[4], it must be a"),
    "info_nested": (in_round(client=client_of(info={"l": {"a": 1.0}})), "info: 'l' = {a: float32[]}, it must"),
    "info_key": (in_round(client=lambda key, *rest: ClientOutput(rest[2], info={"k": key})), "info: 'k' ="),
    "info_number_as_name": (in_round(client=client_of(info={1: 1.0})), "a dict with the name 1, names must be"),
    "info_mixed_names": (in_round(client=client_of(info={1: 1.0, "a": 1.0})), "a dict with names of several"),
    "info_as_metric": (
        {**in_round(client=client_of(info={"loss": 1.0})), "metrics": lambda server, data: {"loss": server}},
        "'loss' is recorded twice in a round; rename one, of metrics or of info",
    ),
    "info_twice": (
        {**in_round(client=client_of(info={"a": 1.0})), "finish": Phase(nothing, client_of(info={"a": 1.0}), KEEP)},
        "'a' is recorded twice in a round; rename one, of metrics or of info",
    ),
    "info_complex": (in_round(client=client_of(info={"a": 1j})), "info: 'a' = complex64[], it must be a"),
    "info_column": (
        in_round(client=client_of(info={"elapsed": 1.0})),
        "metrics or info has 'elapsed', which is a colum",
    ),
    "metrics_column": (
        {"metrics": lambda *args: {"round": 1}},
        "metrics or info has 'round', which is a column of his",
    ),
    "metrics_accuracy": (
        {"metrics": lambda *args: {"accuracy_value": 1.0}},
        "which is a column of history.csv",
    ),
    # What the server and the rest return.
    "server_structure": (in_round(server=lambda *args: (args[1],)), "round.server returned (float32[],), it must"),
    "server_none": (in_round(server=lambda *args: None), "round.server returned None, it must be like what init"),
    "server_shape": (
        in_round(server=lambda *args: EACH),
        "round.server returned float32[4], it must be like what init",
    ),
    "server_dtype": (in_round(server=lambda *args: jnp.int32(1)), "round.server returned int32[], it must be"),
    "server_text": (in_round(server=lambda *args: "x"), "round.server returned a str, it must return"),
    "mean_of_integers": (
        {
            "init": lambda key, data: jnp.int32(0),
            **in_round(client=client_of(message=jnp.int32(2)), server=lambda key, state, mean, context: mean),
        },
        "round.server returned float32[], it must be like what init makes: int32[]",
    ),
    "init_text": ({"init": lambda key, data: {"a": "x"}}, "init returned something with a str in it"),
    "init_client_text": ({"init_client": lambda key, server, value: "x"}, "init_client returned a str"),
    "broadcast_text": (in_round(broadcast=lambda server, context: "x"), "round.broadcast returned a str"),
    "finish_state": ({"finish": Phase(nothing, client_of(state=EACH), lambda *a: a[1])}, "finish.client returned"),
    "finish_server": ({"finish": Phase(nothing, client_of(), lambda *a: EACH)}, "finish.server returned"),
    "prepare_server": ({"prepare": Phase(nothing, client_of(), lambda *a: EACH)}, "prepare.server returned"),
    "prepare_client": ({"prepare": Phase(nothing, returning(EACH), lambda *a: a[1])}, "prepare.client returned"),
    "evaluation_array": (judged(lambda key, server, state, value: value), "evaluation 'mine' returned the array"),
    "evaluation_none": (judged(lambda key, server, state, value: None), "returned None, it must return a function,"),
    "predict_of_two": (judged(lambda *args: lambda x, y: x), "evaluation 'mine': predict takes (x, y), it is"),
    "predict_of_none": (judged(lambda *args: lambda: 1), "evaluation 'mine': predict takes (), it is called with"),
    "predict_none": (judged(lambda *args: lambda x: None), "evaluation 'mine': predict returned None, not an"),
    "predict_text": (judged(lambda *args: lambda x: "x"), "evaluation 'mine': predict returned a str, not an"),
    "predict_shape": (judged(lambda *args: lambda x: EACH), "data.score returned (float32[4], float32[]), it"),
    "metrics_vector": (
        {"metrics": lambda server, data: {"w": EACH}},
        "metrics returned 'w' = float32[4], it must be a",
    ),
    "metrics_none_inside": ({"metrics": lambda server, data: {"w": None}}, "metrics returned 'w' = None, it must"),
    "metrics_key": ({"metrics": lambda server, data: {"k": jax.random.key(0)}}, "metrics returned 'k' ="),
    "metrics_list": ({"metrics": lambda server, data: [server]}, "metrics returned a list, it must be a dict of"),
    "metrics_scalar": ({"metrics": lambda server, data: server}, "metrics returned the array float32[], it must be"),
    "communicates_float": (
        {"communicates": lambda server, context: server},
        "communicates returned float32[], it must",
    ),
    "communicates_vector": ({"communicates": lambda server, context: EACH > 0}, "communicates returned bool[4],"),
    "communicates_none": ({"communicates": lambda server, context: None}, "communicates returned None, it must"),
    "sends_number": ({"sends": {"w": 12}}, "sends has an int in it, it must hold jax.ShapeDtypeStruct(shape,"),
    # What functions take.
    "init_few": ({"init": FEW}, "init takes (one), it is called with (key, data)"),
    "init_many": ({"init": MANY}, "init takes (one, two, three, four, five, six), it is called with (key,"),
    "init_keyword": ({"init": lambda key, data, *, rank: EACH}, "init takes (key, data, *, rank), it is called"),
    "init_client_few": ({"init_client": FEW}, "init_client takes (one), it is called with (key, server state,"),
    "init_client_many": ({"init_client": MANY}, "init_client takes (one, two, three, four, five, six), it is"),
    "broadcast_few": (
        in_round(broadcast=FEW),
        "round.broadcast takes (one), it is called with (server state, context)",
    ),
    "broadcast_many": (in_round(broadcast=MANY), "round.broadcast takes (one, two, three, four, five, six), it"),
    "client_few": (in_round(client=FEW), f"round.client takes (one), it is called with {OF_CLIENT}"),
    "client_many": (in_round(client=MANY), "round.client takes (one, two, three, four, five, six), it is called"),
    "client_partial": (
        in_round(client=functools.partial(lambda scale, key, broadcast, state, value: value, 2.0)),
        f"round.client takes (key, broadcast, state, value), it is called with {OF_CLIENT}",
    ),
    "client_object": (in_round(client=FourArguments()), "round.client takes (key, broadcast, state, value), it"),
    "client_class": (in_round(client=FourArguments), "round.client takes (), it is called with"),
    "client_jitted": (in_round(client=jax.jit(FourArguments().__call__)), "round.client takes (key, broadcast,"),
    "client_annotated": (in_round(client=FourArguments().__call__), "(key, broadcast, state, value), it is"),
    "server_few": (in_round(server=FEW), "round.server takes (one), it is called with (key, server state, mean"),
    "server_many": (in_round(server=MANY), "round.server takes (one, two, three, four, five, six), it is called"),
    "finish_few": ({"finish": Phase(nothing, FEW, FEW)}, "finish.client takes (one), it is called with"),
    "prepare_few": ({"prepare": Phase(FEW, FEW, FEW)}, "prepare.broadcast takes (one), it is called with (server"),
    "evaluation_few": (judged(FEW), "evaluation 'mine' takes (one), it is called with (key, server state, client"),
    "evaluation_many": (judged(MANY), "evaluation 'mine' takes (one, two, three, four, five, six), it is called"),
    "metrics_few": ({"metrics": FEW}, "metrics takes (one), it is called with (server state, data)"),
    "metrics_many": ({"metrics": MANY}, "metrics takes (one, two, three, four, five, six), it is called"),
    "communicates_few": ({"communicates": FEW}, "communicates takes (one), it is called with (server state,"),
    "communicates_many": ({"communicates": MANY}, "communicates takes (one, two, three, four, five, six), it"),
    # What is no function, phase or name at all.
    "init_array": (
        {"init": np.zeros((2, 2))},
        "init is array([[0., 0.], [0., 0.]]), it must be a function of (key, da",
    ),
    "init_client_empty": ({"init_client": ()}, "init_client is (), it must be a function of (key, server state,"),
    "broadcast_none": (in_round(broadcast=None), "round.broadcast is None, it must be a function of (server state,"),
    "metrics_dict": ({"metrics": {}}, "metrics is {}, it must be a function of (server state, data)"),
    "communicates_flag": ({"communicates": True}, "communicates is True, it must be a function of (server"),
    "round_function": ({"round": FEW}, "it must be srp.Phase(broadcast, client, server)"),
    "round_tuple": ({"round": (nothing, FEW, FEW)}, "it must be srp.Phase(broadcast, client, server)"),
    "finish_function": ({"finish": FEW}, "it must be srp.Phase(broadcast, client, server)"),
    "prepare_function": ({"prepare": FEW}, "it must be srp.Phase(broadcast, client, server)"),
    "evaluation_number": (judged(3), "evaluation 'mine' is 3, it must be a function of (key, server state, client"),
    "evaluations_function": ({"evaluations": FEW}, "it must be a dict of functions by name"),
    "evaluations_list": ({"evaluations": [FEW]}, "it must be a dict of functions by name"),
    "evaluations_none": ({"evaluations": None}, "evaluations is None, it must be a dict of functions by"),
}


@pytest.mark.parametrize("case", BROKEN_ALGORITHMS)
def test_a_broken_algorithm_is_named_with_the_function_and_what_it_did(case):
    change, words = BROKEN_ALGORITHMS[case]
    message = refusal(algorithm_of(**{"client": client_of()} | change))
    assert message.startswith("algorithm 'few_lines': ")
    assert words in message


@pytest.mark.parametrize("name", [None, 3])
def test_a_name_is_a_string(name):
    assert refusal(algorithm_of(client_of(), name=name)) == f"algorithm.name={name} must be a string"


def test_the_gradient_is_asked_for_and_checked_where_the_policy_wants_it():
    policy = scripted([[0, 1]], needs_global_gradient=True)
    algorithm = algorithm_of(client_of())
    assert "needs the global gradient but algorithm 'few_lines' has no `gradient`" in refusal(
        algorithm, participation=policy
    )
    for gradient, words in ((FEW, "gradient takes (one)"), (returning(EACH), "gradient returned the array float32[4]")):
        wrong = changed(algorithm, gradient=gradient)
        assert f"algorithm 'few_lines': {words}" in refusal(wrong, participation=policy)
        simulate(wrong)  # nobody asks for it


@srp.part
class Scaled(srp.FederatedAlgorithm):
    """A class of one's own, with a float."""

    rate: float = 0.5

    def init(self, key, data):
        return jnp.zeros(())

    def client(self, key, broadcast, state, value, context):
        return ClientOutput(self.rate * value)

    def server(self, key, server, mean, context):
        return mean


@pytest.mark.parametrize("method", ["client", "server", "init", "broadcast", "init_client", "metrics"])
def test_methods_of_a_class_are_looked_at_without_self(method):
    simulate(Scaled())
    wrong = srp.part(type("Wrong", (Scaled,), {method: lambda self, one: one}))
    message = refusal(wrong())
    assert message.startswith("algorithm 'wrong': ")
    assert f"{method} takes (one), it is called with (" in message


def test_an_algorithm_within_another_is_no_evaluation():
    @srp.part
    class Around(Scaled):
        inner: srp.FederatedAlgorithm = srp.algorithms.FedAvg(model())  # which has a field of that name

        @srp.evaluation("kept")
        def keep(self, key, server, state, value):
            return lambda test: test

    assert list(Around().evaluations) == ["kept"]
    assert list(simulate(Around(0.25)).accuracies) == ["kept"]


@pytest.mark.parametrize("method", ["client", "server", "init"])
def test_what_a_class_does_not_define_is_said(method):
    lacks = srp.part(type("Lacks", (Scaled,), {method: getattr(srp.FederatedAlgorithm, method)}))
    with pytest.raises(NotImplementedError, match=rf"Lacks defines no {method}\(self, key"):
        simulate(lacks())


def test_a_class_that_is_no_part_is_told_the_decorator():
    class Undecorated(Scaled):
        pass

    with pytest.raises(ValueError, match=r"^class Undecorated: below Scaled and no part; put @srp\.part above it$"):
        Undecorated()


def test_one_run_takes_one_number_and_arrays_where_an_array_is_wanted():
    with pytest.raises(ValueError, match=r"^rate has shape \(2,\), one run takes one number; simulate_seeds\(values="):
        simulate(Scaled(np.array([0.1, 0.2])))
    training = srp.Training(srp.optimizer(optax.sgd, learning_rate=np.array([0.1, 0.2])))
    with pytest.raises(
        ValueError, match=r"^training\.optimizer\.floats\.learning_rate has shape \(2,\), one run takes"
    ):
        simulate(srp.algorithms.FedAvg(model(), training))
    assert simulate(srp.part(type("Carrying", (Scaled,), {"__annotations__": {"rate": jax.Array}}))(EACH[0])).num_rounds


def test_seeds_are_refused_as_one_run_is():
    with pytest.raises(ValueError, match=r"algorithm='fedavg' is no algorithm; give srp\.methods\.get"):
        srp.simulate_seeds("fedavg", DATA, keys=jax.random.split(KEY, 2), num_rounds=1, values={"rate": [0.1, 0.2]})


@pytest.mark.parametrize("place", [lambda state: state, lambda state: {"of": (state,)}], ids=["state", "inside"])
def test_a_class_that_a_function_defines_is_another_in_every_call(place):
    def made():
        class Own(NamedTuple):
            w: jax.Array

        return place(Own(jnp.zeros(3)))

    algorithm = algorithm_of(client_of(state=made()), init_client=lambda key, server, value: made())
    message = refusal(algorithm)
    assert "which is of another class Own: one that a function defines is another in every call; define" in message


def test_long_structures_are_cut_and_the_difference_is_named():
    layers = {f"layer_{i}": jnp.zeros((100, 100)) for i in range(50)}
    fewer = {name: layer for name, layer in layers.items() if name != "layer_37"}
    message = refusal(algorithm_of(client_of(), init=lambda key, data: layers, **in_round(server=lambda *args: fewer)))
    assert "(without ['layer_37']), it must be like what init makes" in message


def test_what_a_function_raises_by_itself_comes_through_as_it_is():
    class MineError(Exception):
        pass

    def client(key, broadcast, state, value, context):
        raise MineError("two\nlines")

    with pytest.raises(MineError, match=r"^two\nlines"):
        simulate(algorithm_of(client))
    with pytest.raises(TypeError, match=r"dot_general"):
        simulate(algorithm_of(lambda *args: ClientOutput(jnp.zeros((2, 3)) @ jnp.zeros(4))))
    with pytest.raises(KeyError, match="loss"):
        simulate(
            algorithm_of(client_of()), participation=policy_of(update=lambda state, info: state + info.metrics["loss"])
        )


# Policies.

COHORT = Cohort(jnp.arange(2, dtype=jnp.int32), jnp.int32(2), jnp.ones(2, jnp.int32), jnp.int32(0))


def policy_of(**functions):
    given = {
        "name": "mine",
        "init": lambda key, num_clients: jnp.zeros(2),
        "select": lambda key, state, times: (COHORT, state),
        "update": lambda state, info: state,
    }
    return made_policy(**given | functions)


def picking(**change):
    return {"select": lambda key, state, times: (COHORT._replace(**change), state)}


def ids(*shape, dtype=jnp.int32):
    return jnp.zeros(shape, dtype)


BROKEN_POLICIES = {
    "bare_cohort": (
        {"select": lambda key, state, times: COHORT},
        "select returned a Cohort, it must return (Cohort, s",
    ),
    "swapped": ({"select": lambda key, state, times: (state, COHORT)}, "select returned (the array float32[2], a"),
    "list": ({"select": lambda key, state, times: [COHORT, state]}, "select returned a list, it must return"),
    "select_none": ({"select": lambda key, state, times: None}, "select returned None, it must return (Cohort,"),
    "float_ids": (picking(client_ids=jnp.zeros(2)), "select returned client_ids = float32[2], a Cohort has:"),
    "short_ids": (picking(client_ids=ids(2, dtype=jnp.int8)), "client_ids = int8[2], a Cohort has:"),
    "ids_of_two_axes": (picking(client_ids=ids(2, 1)), "client_ids = int32[2, 1], they must be (pool,) ids"),
    "one_id": (picking(client_ids=ids()), "client_ids = int32[], they must be (pool,) ids"),
    "no_ids": (picking(client_ids=ids(0)), "client_ids = int32[0], they must be (pool,) ids"),
    "ids_none": (picking(client_ids=None), "client_ids = None, they must be (pool,) ids"),
    "ids_list": (picking(client_ids=[0, 1]), "client_ids = [int32[], int32[]], they must be (pool,) ids"),
    "pool_too_large": (picking(client_ids=ids(5), work=ids(5)), "int32[5], they must be (pool,) ids, of at most 4"),
    "python_size": (picking(size=2), "select returned size = 2, it must be an array; jnp.asarray makes one"),
    "python_stage": (picking(stage=0), "select returned stage = 0, it must be an array"),
    "size_vector": (picking(size=ids(1)), "select returned size = int32[1], a Cohort has: int32[]"),
    "size_none": (picking(size=None), "(without size), a Cohort has: Cohort("),
    "float_stage": (picking(stage=jnp.zeros(())), "select returned stage = float32[], a Cohort has:"),
    "work_of_other_length": (picking(work=ids(3)), "select returned work = int32[3], a Cohort has:"),
    "text_as_stage": (picking(stage="x"), "select returned something with a str in it, it must return"),
    "durations": (picking(duration=EACH), "select returned duration = float32[4], a Cohort has: float32[]"),
    "integer_duration": (picking(duration=jnp.int32(3)), "select returned duration = int32[], a Cohort has:"),
    "state_shape": ({"select": lambda *args: (COHORT, EACH)}, "select returned the state float32[4], it must be"),
    "state_none": ({"select": lambda *args: (COHORT, None)}, "select returned the state None, it must be like what"),
    "update_dtype": ({"update": lambda state, info: state > 0}, "update returned bool[2], it must be like what init"),
    "update_none": ({"update": lambda state, info: None}, "update returned None, it must be like what init"),
    "init_text": ({"init": lambda key, num_clients: "x"}, "init returned a str, it must return arrays"),
    "init_few": ({"init": FEW}, "init takes (one), it is called with (key, num_clients)"),
    "init_many": ({"init": MANY}, "init takes (one, two, three, four, five, six), it is called with (key,"),
    "init_empty": ({"init": ()}, "init is (), it must be a function of (key, num_clients)"),
    "select_without_key": ({"select": lambda state, times: 0}, "select takes (state, times), it is called with"),
    "select_many": ({"select": MANY}, "select takes (one, two, three, four, five, six), it is called with (key,"),
    "update_few": ({"update": FEW}, "update takes (one), it is called with (state, info)"),
    "update_many": ({"update": MANY}, "update takes (one, two, three, four, five, six), it is called with (state,"),
    "metrics_many": ({"metrics": MANY}, "metrics takes (one, two, three, four, five, six), it is called with (state)"),
    "metrics_vector": ({"metrics": lambda state: {"a": state}}, "metrics returned 'a' = float32[2], it must be a s"),
    "metrics_column": ({"metrics": lambda state: {"stage": state[0]}}, "which is a column of history.csv already"),
    "metrics_twice": ({"metrics": lambda state: {"loss": state[0]}}, "'loss' is recorded twice in a round; rename"),
}


@pytest.mark.parametrize("case", BROKEN_POLICIES)
def test_a_broken_policy_is_named_with_the_function_and_what_it_did(case):
    change, words = BROKEN_POLICIES[case]
    algorithm = algorithm_of(client_of(), metrics=lambda server, data: {"loss": jnp.zeros(())})
    message = refusal(algorithm, participation=policy_of(**change))
    assert message.startswith("policy 'mine': ")
    assert words in message


def test_the_name_of_the_gradients_norm_is_taken_where_it_is_recorded():
    algorithm = algorithm_of(
        client_of(),
        metrics=lambda server, data: {"global_grad_norm": jnp.zeros(())},
        gradient=lambda key, broadcast, state, value, context: ClientOutput(value),
    )
    simulate(algorithm)
    policy = scripted([[0, 1]], needs_global_gradient=True)
    assert "'global_grad_norm' is recorded twice in a round" in refusal(algorithm, participation=policy)


# Clocks.


def clock_of(**functions):
    sample = lambda key, state: (ClientTimes(EACH, EACH), state)  # noqa: E731
    return made_clock(**{"name": "mine", "init": lambda key, num_clients: jnp.zeros(2), "sample": sample} | functions)


def times(expected, realised=EACH):
    return {"sample": lambda key, state: (ClientTimes(expected, realised), state)}


BROKEN_CLOCKS = {
    "only_times": (
        {"sample": lambda key, state: ClientTimes(EACH, EACH)},
        "sample returned a ClientTimes, it must ret",
    ),
    "one_array": ({"sample": lambda key, state: EACH}, "sample returned the array float32[4], it must return"),
    "plain_times": ({"sample": lambda key, state: ((EACH, EACH), state)}, "it must return (ClientTimes,"),
    "swapped": ({"sample": lambda key, state: (state, ClientTimes(EACH, EACH))}, "(the array float32[2], a"),
    "too_many": (times(jnp.ones(5)), "sample returned expected = float32[5], there must be a time for each client:"),
    "too_few": (times(EACH, jnp.ones(3)), "sample returned realised = float32[3], there must be a time for"),
    "one_number": (times(1.0, 1.0), "sample returned expected = float32[], there must be a time for each"),
    "integers": (times(jnp.ones(4, int)), "sample returned expected = int32[4], there must be a time for each"),
    "communication_by_client": (
        {"sample": lambda key, state: (ClientTimes(EACH, EACH, EACH), state)},
        "sample returned communication = float32[4], it must be one number for all clients: float32[]",
    ),
    "unknown": (times(EACH, None), "(without realised), there must be a time for each client"),
    "state_shape": ({"sample": lambda key, state: (ClientTimes(EACH, EACH), EACH)}, "the state float32[4], it must"),
    "state_dtype": ({"sample": lambda key, state: (ClientTimes(EACH, EACH), state > 0)}, "the state bool[2], it"),
    "init_text": ({"init": lambda key, num_clients: "x"}, "init returned a str, it must return arrays"),
    "init_few": ({"init": FEW}, "init takes (one), it is called with (key, num_clients)"),
    "init_many": ({"init": MANY}, "init takes (one, two, three, four, five, six), it is called with (key,"),
    "sample_few": ({"sample": FEW}, "sample takes (one), it is called with (key, state)"),
    "sample_many": ({"sample": MANY}, "sample takes (one, two, three, four, five, six), it is called with (key,"),
}


@pytest.mark.parametrize("case", BROKEN_CLOCKS)
def test_a_broken_clock_is_named_with_the_function_and_what_it_did(case):
    change, words = BROKEN_CLOCKS[case]
    message = refusal(algorithm_of(client_of()), clock=clock_of(**change))
    assert message.startswith("clock 'mine': ")
    assert words in message


# Parts.


class Unregistered:
    num_clients = 4
    train_client = test_client = lambda self, client_id: client_id
    score = lambda self, predict, test: (predict(test), jnp.ones(()))  # noqa: E731


def source(**methods):
    """`Numbers` with other methods."""
    made = dataclasses.make_dataclass("Mine", ["values"], bases=(type(DATA),), namespace=methods, frozen=True)
    return jax.tree_util.register_dataclass(made)(DATA.values)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FourMembers:
    """What `base.FederatedSource` asks for, and nothing else."""

    x: jax.Array
    y: jax.Array
    num_clients = property(lambda self: self.x.shape[0])

    def train_client(self, client_id):
        return Examples(self.x[client_id], self.y[client_id], jnp.int32(self.x.shape[1]))

    test_client = train_client

    def score(self, predict, test):
        return jnp.sum(jnp.argmax(predict(test.x), axis=-1) == test.y).astype(float), test.count.astype(float)


@pytest.mark.parametrize("judged", [lambda data: data, lambda data: srp.data.training_loss(data, cross_entropy)])
def test_data_of_four_members_are_enough_for_a_model(judged):
    data = judged(FourMembers(jax.random.normal(KEY, (3, 5, 6)), jnp.zeros((3, 5), jnp.int32)))
    history = srp.simulate(srp.algorithms.FedAvg(model()), data, num_rounds=1, key=KEY, progress=False)
    assert history.num_clients == 3
    others = srp.algorithms.FedAvg(srp.models.MLP((4, 2), 3, hidden=()))
    name = type(data).__name__
    with pytest.raises(ValueError, match=rf"data set '{name}' have shape \(6,\) but model 'mlp' takes \(4, 2\)"):
        srp.simulate(others, data, num_rounds=1, key=KEY, progress=False)
    with pytest.raises(ValueError, match=r"has no example_shape; .* or that attribute to a class of your own"):
        srp.methods.get("fedavg", dataset=data)


ALGORITHM = algorithm_of(client_of())
X, Y = np.zeros((30, 4)), np.zeros(30, int)
NO_PARTS = {
    "name": (("fedavg", DATA, {}), "algorithm='fedavg' is no algorithm; give srp.methods.get(name,"),
    "factory": ((srp.algorithms.FedAvg, DATA, {}), "is no algorithm; give srp.methods.get(name, dataset=data) or"),
    "model": ((model(), DATA, {}), "algorithm=MLP("),
    "swapped": ((DATA, ALGORITHM, {}), "data='few_lines' is an algorithm; the algorithm comes first, then the"),
    "data_pair": ((ALGORITHM, (X, Y), {}), "is no federation, it has no num_clients; give srp.data.load(name, ...),"),
    "data_name": ((ALGORITHM, "digits", {}), "data='digits' is no federation, it has no num_clients; give"),
    "data_none": ((ALGORITHM, None, {}), "data=None is no federation"),
    "data_array": ((ALGORITHM, X, {}), "data=array([[0., 0., 0., 0.], [0., 0., 0., 0.]"),
    "data_unregistered": ((ALGORITHM, Unregistered(), {}), "is no pytree; register its class,"),
    "data_without_clients": ((ALGORITHM, source(num_clients=0), {}), "data.num_clients=0 must be at least"),
    "data_method": ((ALGORITHM, source(train_client=lambda self: 0), {}), "data: train_client takes (), it is"),
    "data_text": (
        (ALGORITHM, source(test_client=lambda self, i: "x"), {}),
        "data: test_client returned a str, it must",
    ),
    "score": (
        (ALGORITHM, source(score=lambda self, predict, test: predict(test)), {}),
        "data.score returned float32[]",
    ),
    "policy_factory": ((ALGORITHM, DATA, {"participation": srp.participation.Full}), "call one:"),
    "policy_name": ((ALGORITHM, DATA, {"participation": "full"}), "participation='full' is no policy"),
    "policy_clock": (
        (ALGORITHM, DATA, {"participation": clock_of()}),
        "participation='mine' is no participation but made for clock=",
    ),
    "distribution": (
        (ALGORITHM, DATA, {"clock": srp.clocks.Exponential(1.0)}),
        "clock is the distribution 'exponential'; say when it is drawn: srp.clocks.Fixed(...) once",
    ),
    "clock_factory": ((ALGORITHM, DATA, {"clock": srp.clocks.Fixed}), "is no clock; give"),
    "clock_times": ((ALGORITHM, DATA, {"clock": np.ones(4)}), "clock=array([1., 1., 1., 1.]) is no clock"),
    "evaluations": ((ALGORITHM, DATA, {"evaluations": 3}), "evaluations=3 must be a name, several, None"),
    "run_name": ((ALGORITHM, DATA, {"name": 3}), "name=3 must be a string"),
}


@pytest.mark.parametrize("case", NO_PARTS)
def test_what_is_no_part_at_all_is_told_what_it_should_be(case):
    (algorithm, data, options), words = NO_PARTS[case]
    assert words in refusal(algorithm, data, **options)


# What keeps to the contract.


class Odd(NamedTuple):
    """Nothing that training makes: a key, a flag, a short integer, nothing at all."""

    key: jax.Array
    flag: jax.Array
    short: jax.Array
    nothing: tuple[()] = ()


def odd(key):
    return Odd(key, jnp.bool_(True), jnp.int8(-3))


HONEST = {
    "numbers_of_python": {
        "init": lambda key, data: {"w": 0.0, "round": 0, "odd": True},
        **in_round(server=lambda key, server, mean, context: server | {"w": 1.0, "round": 1}),
        "metrics": lambda server, data: {"w": 1.0, "three": 3, "odd": True},
        "evaluations": {"w": lambda key, server, state, value: lambda test: server["w"].astype(test.dtype)},
    },
    "numbers_of_numpy": {
        "init": lambda key, data: np.zeros(3, np.float32),
        **in_round(
            lambda server, context: np.arange(3.0),
            lambda key, table, state, value, context: ClientOutput(table[context.round]),
            lambda key, server, mean, context: np.ones(3, np.float32),
        ),
    },
    "numbers_in_client_states": {
        "init_client": lambda key, server, value: (0, 1.0, False),
        **in_round(client=client_of(state=(1, 2.0, True), weight=1, info={"a": 1, "b": 2.0, "c": True})),
    },
    "broadcast_of_numbers": in_round(
        lambda server, context: (0.5, 2),
        lambda key, half, state, value, context: ClientOutput(half[0].astype(value.dtype) * value),
    ),
    "weak_types": {
        "init": lambda key, data: jnp.asarray(0.0),
        **in_round(server=lambda key, server, mean, context: jnp.where(mean > 0, 1.0, 2.0)),
    },
    "keys_and_flags": {
        "init": lambda key, data: odd(key),
        "init_client": lambda key, server, value: odd(key),
        **in_round(
            lambda server, context: server,
            lambda key, server, state, value, context: ClientOutput(value, state._replace(key=key)),
            lambda key, server, mean, context: server._replace(key=key),
        ),
    },
    "nothing": {
        "init": lambda key, data: (),
        **in_round(nothing, client_of(message=(), state=(), info={})),
        "evaluations": {"own": lambda key, server, state, value: lambda test: test},
    },
    "none": {"init": lambda key, data: None, **in_round(lambda *args: None, client_of(state=None))},
    "any_parameters": {
        "init": lambda *args: jnp.zeros(()),
        **in_round(client=functools.partial(lambda scale, *args, **more: ClientOutput(scale * args[3]), 2.0)),
        "metrics": lambda server, data, scale=2.0: {"w": scale * server},
    },
    "weights_of_parts": in_round(client=client_of(message={"a": PARTS, "b": EACH}, weight={"a": True, "b": 2})),
    "uncharged": in_round(client=client_of(message=(Uncharged(EACH), EACH), weight=(Uncharged(1.0), 1.0))),
    "flag_of_python": {"communicates": lambda server, context: True},
    "complex": {"init": lambda key, data: 1j, **in_round(client=client_of(message=jnp.ones(2, complex)))},
}


@pytest.mark.parametrize("case", HONEST)
def test_what_keeps_to_the_contract_runs(case):
    algorithm = algorithm_of(**{"client": client_of()} | HONEST[case])
    policy = srp.participation.Uniform(3)
    assert simulate(algorithm, participation=policy, devices=2, chunk_size=1).num_rounds == 2


def test_parts_may_be_made_of_numbers_and_numpy():
    def sample(key, state):
        return ClientTimes(np.ones(4, np.float32), np.arange(4.0)), state + 1

    clock = clock_of(init=lambda key, num_clients: 0, sample=sample)
    cohort = Cohort(np.arange(2), np.int32(2), np.ones(2, np.int32), np.int32(1), np.float32(3.0))
    seen = []

    def update(state, info):
        seen.append(info)
        return {"rounds": state["rounds"] + 1, "key": state["key"]}

    policy = policy_of(
        init=lambda key, num_clients: {"rounds": 0, "key": key}, select=lambda key, s, t: (cohort, s), update=update
    )
    history = simulate(algorithm_of(client_of(info={"loss": 1})), clock=clock, participation=policy)
    assert history.compute_time.tolist() == [3.0, 3.0]
    assert history.stage.tolist() == [1, 1]
    assert all(isinstance(leaf, jax.Array) for info in seen for leaf in jax.tree.leaves(info))


def test_a_policy_sees_the_metrics_of_its_algorithm():
    """A stage that ends when a loss is small: as the engine hands metrics over, so the check does."""

    def update(state, info):
        assert set(info.metrics) == {"w", "loss", "steps"}
        assert [info.metrics[name].dtype for name in ("w", "loss", "steps")] == [jnp.float32] * 3
        return jnp.where(info.metrics["loss"] + info.metrics["steps"] < 1, state, state + 1)

    algorithm = algorithm_of(
        client_of(info={"loss": 1.0}),
        finish=Phase(nothing, client_of(info={"steps": jnp.int32(2)}), lambda *args: args[1]),
        metrics=lambda server, data: {"w": server},
    )
    simulate(algorithm, participation=policy_of(update=update))


@pytest.mark.parametrize("dtype", [jnp.int8, jnp.uint8, jnp.bool_, jnp.int32])
def test_integers_and_flags_are_sent_as_they_are_and_averaged_as_floats(dtype):
    """No sum overflows, no weight is cut: the mean of 100 of 200 clients is exact, one byte each."""
    data = numbers(*np.arange(200))

    def client(key, broadcast, state, value, context):
        return ClientOutput(jnp.asarray(value > 99, dtype), weight=jnp.where(value > 99, 0.5, 1.5))

    history = simulate(algorithm_of(client), data, devices=2)
    assert float(history.server_state) == 0.25
    assert history.bytes_up == np.dtype(dtype).itemsize


def test_flags_and_integers_as_weights():
    for dtype in (jnp.bool_, jnp.int8):
        algorithm = algorithm_of(
            lambda key, broadcast, state, value, context, dtype=dtype: ClientOutput(
                value, weight=(value > 2).astype(dtype)
            )
        )
        assert float(simulate(algorithm).server_state) == 3.5


def test_the_check_traces_a_client_once_and_computes_nothing():
    """However many clients there are: it knows neither batches nor devices."""
    calls = []

    def client(key, broadcast, state, value, context):
        calls.append("traced")
        jax.debug.callback(lambda value: calls.append("computed"), value)
        return ClientOutput(value)

    check_algorithm(algorithm_of(client), numbers(*np.arange(50)), ("value",))
    jax.effects_barrier()
    assert calls == ["traced"]
