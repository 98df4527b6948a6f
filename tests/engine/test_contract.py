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


RUN = {"num_rounds": 2, "eval_every": 2, "key": KEY, "progress": False, "devices": 1}


def simulate(algorithm, data=DATA, **options):
    return srp.simulate(algorithm, data, **RUN | options)


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


def judged(personalize):
    return {"evaluations": {"mine": personalize}}


PARTS = {"a": jnp.zeros(2), "b": jnp.zeros(3)}
FEW, NO_TEXT = (lambda one: one), "returned a value of type <class 'str'>"
TWO, TEXT = {"a": jnp.zeros(3), "b": jnp.zeros(())}, lambda *args: "x"
BROKEN_ALGORITHMS = {
    # What a client returns.
    "bare_message": (in_round(client=returning(jnp.zeros(2))), "round.client returned float32[2], it must return srp."),
    "client_none": (in_round(client=returning(None)), "round.client returned None, it must return"),
    "client_tuple": (in_round(client=returning((EACH, ()))), "round.client returned (float32[4], ()), it must return"),
    "text_inside": (in_round(client=client_of(message={"a": "x"})), f"round.client: {NO_TEXT}"),
    "object_as_state": (in_round(client=client_of(state=object())), "round.client: returned a value of type <class 'o"),
    "key_as_message": (in_round(client=lambda key, *rest: ClientOutput({"k": key})), "message {k: key<fry>[]} with th"),
    "state_lacks": (with_state({"a": jnp.zeros(3)}), "{a: float32[3], b: float32[]} (they differ in ['b'])"),
    "state_with_more": (with_state(TWO | {"c": jnp.zeros(())}), "{a: float32[3], b: float32[]} (they differ in ['c'])"),
    "state_of_other_type": (with_state((jnp.zeros(3), jnp.zeros(()))), "the state (float32[3], float32[]), it must be"),
    "state_of_other_shape": (with_state(TWO | {"a": jnp.zeros(4)}), "the state {a: float32[4], b: float32[]}, it must"),
    "state_of_other_dtype": (with_state(TWO | {"b": jnp.int32(0)}), "the state {a: float32[3], b: int32[]}, it must b"),
    "state_where_none_was_made": (in_round(client=client_of(state=jnp.zeros(2))), "the state float32[2], it must be"),
    "weight_of_other_parts": (
        in_round(client=client_of(message=PARTS, weight={"a": 1.0, "c": 1.0})),
        "the message {a: float32[2], b: float32[3]} with the weight {a: float32[], c: float32[]}: give numbers, with",
    ),
    "weight_none": (in_round(client=client_of(weight=None)), "the message float32[] with the weight None: give"),
    "weight_vector": (in_round(client=client_of(weight=jnp.ones(3))), "with the weight float32[3]: give numbers, with"),
    "weight_by_entry": (
        in_round(client=client_of(message=PARTS, weight={"a": EACH, "b": 1.0})),
        "the weight {a: float32",
    ),
    "weight_key": (in_round(client=lambda key, *rest: ClientOutput(rest[2], weight=key)), "with the weight key<fry>[]"),
    "info_list": (in_round(client=client_of(info=[1.0])), "round.client returned info: [float32[]], it must be a dict"),
    "info_vector": (in_round(client=client_of(info={"loss": EACH})), "info: 'loss' = float32[4], it must be a"),
    "info_nested": (in_round(client=client_of(info={"l": {"a": 1.0}})), "info: 'l' = {a: float32[]}, it must"),
    "info_key": (in_round(client=lambda key, *rest: ClientOutput(rest[2], info={"k": key})), "info: 'k' = key<fry>[]"),
    "info_complex": (in_round(client=client_of(info={"a": 1j})), "info: 'a' = complex64[], it must be a"),
    "info_as_metric": (
        {**in_round(client=client_of(info={"loss": 1.0})), "metrics": lambda server, data: {"loss": server}},
        "'loss' is recorded twice in a round; rename one, of metrics or of info",
    ),
    "info_twice": (
        {**in_round(client=client_of(info={"a": 1.0})), "finish": Phase(nothing, client_of(info={"a": 1.0}), KEEP)},
        "'a' is recorded twice in a round; rename one, of metrics or of info",
    ),
    "info_column": (in_round(client=client_of(info={"elapsed": 1.0})), "has 'elapsed', which is a column of history.c"),
    "metrics_column": ({"metrics": lambda *args: {"round": 1}}, "metrics or info has 'round', which is a column of hi"),
    "metrics_accuracy": ({"metrics": lambda *args: {"accuracy_value": 1.0}}, "which is a column of history.csv"),
    # What the server and the rest return.
    "server_structure": (in_round(server=lambda *args: (args[1],)), "round.server returned (float32[],), it must be l"),
    "server_none": (in_round(server=lambda *args: None), "round.server returned None, it must be like what init"),
    "server_shape": (in_round(server=lambda *args: EACH), "round.server returned float32[4], it must be like what ini"),
    "server_dtype": (in_round(server=lambda *args: jnp.int32(1)), "round.server returned int32[], it must be"),
    "mean_of_integers": (
        {
            "init": lambda key, data: jnp.int32(0),
            **in_round(client=client_of(message=jnp.int32(2)), server=lambda key, state, mean, context: mean),
        },
        "round.server returned float32[], it must be like what init makes: int32[]",
    ),
    "finish_state": ({"finish": Phase(nothing, client_of(state=EACH), lambda *a: a[1])}, "finish.client returned"),
    "finish_server": ({"finish": Phase(nothing, client_of(), lambda *a: EACH)}, "finish.server returned"),
    "prepare_server": ({"prepare": Phase(nothing, client_of(), lambda *a: EACH)}, "prepare.server returned"),
    "prepare_client": ({"prepare": Phase(nothing, returning(EACH), lambda *a: a[1])}, "prepare.client returned"),
    "evaluation_array": (judged(lambda key, server, state, value: value), "evaluation 'mine': 'DynamicJaxprTracer' ob"),
    "predict_of_two": (judged(lambda *args: lambda x, y: x), "evaluation 'mine': "),
    "predict_text": (judged(lambda *args: lambda x: "x"), "evaluation 'mine': "),
    "predict_shape": (judged(lambda *args: lambda x: EACH), "data.score returned (float32[4], float32[]), it must"),
    "metrics_vector": ({"metrics": lambda server, data: {"w": EACH}}, "metrics returned 'w' = float32[4], it must be "),
    "metrics_none_inside": ({"metrics": lambda server, data: {"w": None}}, "metrics returned 'w' = None, it must"),
    "metrics_scalar": ({"metrics": lambda server, data: server}, "metrics returned float32[], it must be a dict of"),
    "communicates_float": ({"communicates": lambda server, context: server}, "communicates returned float32[], it mus"),
    "communicates_vector": ({"communicates": lambda server, context: EACH > 0}, "communicates returned bool[4],"),
    "communicates_none": ({"communicates": lambda server, context: None}, "communicates returned None, it must"),
    # What Python or JAX refuses comes in one line, with the function and the line of code.
    "server_text": (in_round(server=TEXT), f"round.server: {NO_TEXT}, which is not a valid JAX type"),
    "init_text": ({"init": TEXT}, f"init: {NO_TEXT}"),
    "init_client_text": ({"init_client": TEXT}, f"init_client: {NO_TEXT}"),
    "broadcast_text": (in_round(broadcast=TEXT), f"round.broadcast: {NO_TEXT}"),
    "init_few": ({"init": FEW}, "init: <lambda>() takes 1 positional argument but 2 were given"),
    "init_client_few": ({"init_client": FEW}, "init_client: <lambda>() takes 1 positional argument but 3 were given"),
    "broadcast_few": (in_round(broadcast=FEW), "round.broadcast: <lambda>() takes 1 positional argument but 2"),
    "client_few": (in_round(client=FEW), "round.client: <lambda>() takes 1 positional argument but 5 were given"),
    "server_few": (in_round(server=FEW), "round.server: <lambda>() takes 1 positional argument but 4"),
    "finish_few": ({"finish": Phase(nothing, FEW, FEW)}, "finish.client: <lambda>() takes 1 positional argument"),
    "prepare_few": ({"prepare": Phase(FEW, FEW, FEW)}, "prepare.broadcast: <lambda>() takes 1 positional argument"),
    "evaluation_few": (judged(FEW), "evaluation 'mine': <lambda>() takes 1 positional argument but 4 were given"),
    "metrics_few": ({"metrics": FEW}, "metrics: <lambda>() takes 1 positional argument but 2 were given"),
    "communicates_few": ({"communicates": FEW}, "communicates: <lambda>() takes 1 positional argument but 2"),
    "init_array": ({"init": np.zeros((2, 2))}, "init: 'numpy.ndarray' object is not callable"),
    "broadcast_none": (in_round(broadcast=None), "round.broadcast: 'NoneType' object is not callable"),
    "round_function": ({"round": FEW}, "round.broadcast: 'function' object has no attribute 'broadcast'"),
    "finish_tuple": ({"finish": (nothing, FEW, FEW)}, "finish.broadcast: 'tuple' object has no attribute 'broadcast'"),
    "evaluation_number": (judged(3), "evaluation 'mine': 'int' object is not callable"),
    "shapes": (in_round(client=lambda *args: ClientOutput(jnp.zeros((2, 3)) @ EACH)), "round.client: dot_general requ"),
    "if_on_an_array": (
        in_round(client=lambda *args: client_of()(*args) if args[3] > 0 else None),
        "boolean conversion",
    ),
}


@pytest.mark.parametrize("case", BROKEN_ALGORITHMS)
def test_a_broken_algorithm_is_named_with_the_function_and_what_it_did(case):
    change, words = BROKEN_ALGORITHMS[case]
    message = refusal(algorithm_of(**{"client": client_of()} | change))
    assert message.startswith("algorithm 'few_lines': ")
    assert words in message


@pytest.mark.parametrize("name", [None, 3])
def test_a_name_is_a_string(name):
    assert refusal(algorithm_of(client_of(), name=name)) == f"algorithm.name={name} must be a text"


def test_the_gradient_is_asked_for_and_checked_where_the_policy_wants_it():
    policy = scripted([[0, 1]], needs_global_gradient=True)
    algorithm = algorithm_of(client_of())
    assert "needs the global gradient but algorithm 'few_lines' has no `gradient`" in refusal(
        algorithm, participation=policy
    )
    for gradient, words in ((FEW, "gradient: <lambda>() takes 1"), (returning(EACH), "gradient returned float32[4]")):
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


@pytest.mark.parametrize("method", ["client", "server", "init"])
def test_a_python_if_on_a_float_of_the_algorithm_is_refused_with_its_line(method):
    def branches(self, *args):
        return getattr(Scaled, method)(self, *args) if self.rate > 0 else None

    simulate(Scaled())
    message = refusal(srp.part(type("Wrong", (Scaled,), {method: branches}))())
    assert message.startswith("algorithm 'wrong': ")
    assert (
        f"{method}: Attempted boolean conversion of traced array with shape bool[]. (test_contract.py, line" in message
    )


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
    assert "of other classes: define a class at the top of the file, not in a function" in refusal(algorithm)


def test_long_structures_are_cut_and_the_difference_is_named():
    layers = {f"layer_{i}": jnp.zeros((100, 100)) for i in range(50)}
    fewer = {name: layer for name, layer in layers.items() if name != "layer_37"}
    message = refusal(algorithm_of(client_of(), init=lambda key, data: layers, **in_round(server=lambda *args: fewer)))
    assert message.endswith("... (they differ in ['layer_37'])")


def test_what_a_function_raises_by_itself_comes_through_as_it_is():
    class MineError(Exception):
        pass

    def client(key, broadcast, state, value, context):
        raise MineError("two\nlines")

    with pytest.raises(MineError, match=r"^two\nlines"):
        simulate(algorithm_of(client))
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
    "bare_cohort": ({"select": lambda key, state, times: COHORT}, "it must return (Cohort, state)"),
    "swapped": ({"select": lambda key, state, times: (state, COHORT)}, "returned (float32[2], Cohort(client_ids=int32"),
    "select_none": ({"select": lambda key, state, times: None}, "select returned None, it must return (Cohort,"),
    "float_ids": (picking(client_ids=jnp.zeros(2)), "(they differ in .client_ids)"),
    "short_ids": (picking(client_ids=ids(2, dtype=jnp.int8)), "Cohort(client_ids=int8[2], size=int32[], work=int32[2]"),
    "ids_of_two_axes": (picking(client_ids=ids(2, 1)), "client_ids = int32[2, 1], it must be (pool,), at most 4"),
    "one_id": (picking(client_ids=ids()), "client_ids = int32[], it must be (pool,)"),
    "no_ids": (picking(client_ids=ids(0)), "client_ids = int32[0], it must be (pool,)"),
    "ids_none": (picking(client_ids=None), "client_ids = None, it must be (pool,)"),
    "ids_list": (picking(client_ids=[0, 1]), "client_ids = [int32[], int32[]], it must be (pool,)"),
    "pool_too_large": (picking(client_ids=ids(5), work=ids(5)), "int32[5], it must be (pool,), at most 4"),
    "size_vector": (picking(size=ids(1)), "(they differ in .size)"),
    "size_none": (picking(size=None), "(they differ in .size)"),
    "float_stage": (picking(stage=jnp.zeros(())), "a Cohort has: Cohort(client_ids=int32[2], size=int32[], work=int32"),
    "work_of_other_length": (picking(work=ids(3)), "(they differ in .work)"),
    "text_as_stage": (picking(stage="x"), "select: returned a value of type <class 'str'>"),
    "durations": (picking(duration=EACH), "(they differ in .duration)"),
    "state_shape": ({"select": lambda *args: (COHORT, EACH)}, "select returned the state float32[4], it must be"),
    "state_none": ({"select": lambda *args: (COHORT, None)}, "select returned the state None, it must be like what"),
    "update_dtype": ({"update": lambda state, info: state > 0}, "update returned bool[2], it must be like what init"),
    "update_none": ({"update": lambda state, info: None}, "update returned None, it must be like what init"),
    "init_few": ({"init": FEW}, "init: <lambda>() takes 1 positional argument but 2 were given"),
    "select_without_key": ({"select": lambda state, times: 0}, "select: <lambda>() takes 2 positional arguments but 3"),
    "update_few": ({"update": FEW}, "update: <lambda>() takes 1 positional argument but 2 were given"),
    "metrics_vector": ({"metrics": lambda state: {"a": state}}, "metrics returned 'a' = float32[2], it must be a r"),
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
    sample = lambda key, state, now: (ClientTimes(EACH, EACH), state)  # noqa: E731
    return made_clock(**{"name": "mine", "init": lambda key, num_clients: jnp.zeros(2), "sample": sample} | functions)


def times(expected, realised=EACH):
    return {"sample": lambda key, state, now: (ClientTimes(expected, realised), state)}


BROKEN_CLOCKS = {
    "only_times": (
        {"sample": lambda key, state, now: ClientTimes(EACH, EACH)},
        "it must return (ClientTimes, state)",
    ),
    "plain_times": ({"sample": lambda key, state, now: ((EACH, EACH), state)}, "it must return (ClientTimes, state)"),
    "too_many": (times(jnp.ones(5)), "(they differ in .expected)"),
    "too_few": (times(EACH, jnp.ones(3)), "realised=float32[3], communication=None, available=None, stays"),
    "one_number": (times(1.0, 1.0), "sample returned ClientTimes(expected=float32[], realised=float32[], comm"),
    "integers": (times(jnp.ones(4, int)), "(they differ in .expected)"),
    "communication_of_some": (
        {"sample": lambda key, state, now: (ClientTimes(EACH, EACH, jnp.ones(3)), state)},
        "(they differ in .communication)",
    ),
    "by_work_of_some": (
        {"sample": lambda key, state, now: (ClientTimes(EACH, EACH, by_work=jnp.ones((3, 2))), state)},
        "(they differ in .by_work)",
    ),
    "by_work_without_units": (
        {"sample": lambda key, state, now: (ClientTimes(EACH, EACH, by_work=EACH), state)},
        "(they differ in .by_work)",
    ),
    "by_no_work": (
        {"sample": lambda key, state, now: (ClientTimes(EACH, EACH, by_work=jnp.ones((4, 0))), state)},
        "(they differ in .by_work)",
    ),
    "unknown": (times(EACH, None), "(they differ in .realised)"),
    "state_shape": (
        {"sample": lambda key, state, now: (ClientTimes(EACH, EACH), EACH)},
        "the state float32[4], it",
    ),
    "init_few": ({"init": FEW}, "init: <lambda>() takes 1 positional argument but 2 were given"),
    "sample_few": ({"sample": FEW}, "sample: <lambda>() takes 1 positional argument but 3 were given"),
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


@pytest.mark.short("<lambda>0")
@pytest.mark.parametrize("judged", [lambda data: data, lambda data: srp.data.training_loss(data, cross_entropy)])
def test_data_of_four_members_are_enough_for_a_model(judged):
    data = judged(FourMembers(jax.random.normal(KEY, (3, 5, 6)), jnp.zeros((3, 5), jnp.int32)))
    history = srp.simulate(srp.algorithms.FedAvg(model()), data, num_rounds=1, key=KEY, progress=False)
    assert history.num_clients == 3
    others = srp.algorithms.FedAvg(srp.models.MLP((4, 2), 3, hidden=()))
    name = type(data).__name__
    with pytest.raises(
        ValueError, match=rf"model 'mlp' takes \(4, 2\), data set '{name}' has examples of shape \(6,\)"
    ):
        srp.simulate(others, data, num_rounds=1, key=KEY, progress=False)
    with pytest.raises(ValueError, match=r"has no example_shape; .* or that attribute to a class of your own"):
        srp.methods.get("fedavg", dataset=data)


BROKEN_DATA = {
    "unregistered": (Unregistered(), "it is no pytree (jax.tree_util.register_dataclass); give"),
    "without_clients": (source(num_clients=0), "data.num_clients=0 must be at least"),
    "method": (source(train_client=lambda self: 0), "data: train_client: <lambda>() takes 1 positional argument"),
    "text": (source(test_client=lambda self, i: "x"), f"data: test_client: {NO_TEXT}"),
    "score": (source(score=lambda self, predict, test: predict(test)), "data.score returned float32[]"),
}


@pytest.mark.parametrize("case", BROKEN_DATA)
def test_data_of_ones_own_that_break_the_contract_are_refused(case):
    data, words = BROKEN_DATA[case]
    assert words in refusal(algorithm_of(client_of()), data)


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


@pytest.mark.short(
    "numbers_of_python",
    "numbers_in_client_states",
    "keys_and_flags",
    "nothing",
    "any_parameters",
    "weights_of_parts",
    "complex",
)
@pytest.mark.parametrize("case", HONEST)
def test_what_keeps_to_the_contract_runs(case):
    algorithm = algorithm_of(**{"client": client_of()} | HONEST[case])
    devices = 2 if case in ("keys_and_flags", "weights_of_parts", "numbers_in_client_states") else 1
    policy = srp.participation.Uniform(3)
    assert simulate(algorithm, participation=policy, devices=devices, chunk_size=1).num_rounds == 2


def test_parts_may_be_made_of_numbers_and_numpy():
    def sample(key, state, now):
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
    assert history.elapsed(1.0).tolist() == [4.0, 8.0]  # a duration alone does not make rounds overlap
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


@pytest.mark.short("int8", "bool")
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
