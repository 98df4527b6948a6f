"""Parts that break the contract of `base.py` are refused in one line; parts that keep it run."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from engine.contracts import (
    DATA,
    EACH,
    FEW,
    HONEST,
    MAKERS,
    NO_TEXT,
    client_of,
    clock_of,
    in_round,
    policy_of,
    returning,
)
from reference import small
from reference.small import KEY, algorithm_of, changed, model, numbers, scripted

import fedjax_srp as srp
from fedjax_srp.base import ClientOutput, ClientTimes, Cohort, Examples, nothing
from fedjax_srp.contract.checks import check_algorithm
from fedjax_srp.models import cross_entropy


def simulate(algorithm, data=DATA, **options):
    return small.simulate(algorithm, data, eval_every=2, **options)


def refusal(*args, **options):
    """Return the error of a refused simulation."""
    message = small.refusal(simulate, *args, **options)
    assert len(message) < 500
    return message


@pytest.mark.parametrize(
    ("kind", "case"),
    [(kind, case) for kind, (cases, *_) in MAKERS.items() for case in cases],
)
def test_a_broken_part_is_refused_with_its_function_and_return_value(kind, case):
    cases, start, made = MAKERS[kind]
    change, words = cases[case]
    algorithm, options = made(change)
    message = refusal(algorithm_of(**algorithm), **options)
    assert message.startswith(start)
    assert words in message


@pytest.mark.parametrize("name", [None, 3])
def test_a_name_is_a_string(name):
    assert (
        refusal(algorithm_of(client_of(), name=name))
        == f"algorithm.name={name} must be a string"
    )


def test_the_gradient_is_required_and_checked_only_if_the_policy_needs_it():
    policy = scripted([[0, 1]], needs_global_gradient=True)
    algorithm = algorithm_of(client_of())
    assert (
        "needs the global gradient but algorithm 'few_lines' has no `gradient`"
        in refusal(algorithm, participation=policy)
    )
    for gradient, words in (
        (FEW, "gradient: <lambda>() takes 1"),
        (returning(EACH), "gradient returned float32[4]"),
    ):
        wrong = changed(algorithm, gradient=gradient)
        assert f"algorithm 'few_lines': {words}" in refusal(wrong, participation=policy)
        simulate(wrong)  # unused


@srp.part
class Scaled(srp.FederatedAlgorithm):
    """A custom algorithm with a float."""

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
        f"{method}: Attempted boolean conversion of traced array with shape bool[]. (test_contract.py, line"
        in message
    )
    assert "; use jnp.where in place of `if`" in message


@pytest.mark.parametrize("use", [jnp.arange, range, [0].__getitem__])
def test_a_traced_size_or_index_is_refused_with_a_remedy(use):
    def sized(self, key, server, mean, context):
        return use(context.round)

    assert refusal(srp.part(type("Wrong", (Scaled,), {"server": sized}))()).endswith(
        ", and int fields for sizes"
    )


def test_a_class_without_part_and_with_a_constructor_of_its_own_is_refused():
    class Plain(srp.FederatedAlgorithm):
        def __init__(self, rate):
            self.rate = rate

    assert refusal(Plain(1.0)) == (
        "class Plain is no part: put @srp.part above it, and list its fields in place of __init__"
    )


def test_charges_read_no_float_since_runs_of_other_floats_share_them():
    reads = property(
        lambda self: srp.Charges(
            costs_as=lambda: ((Scaled() if self.rate > 0.5 else Scaled(0.1),),)
        )
    )
    part = srp.part(type("Thin", (Scaled,), {"charges": reads}))(0.25)
    message = refusal(part, clock=srp.clocks.Devices(1e9, 1e6, 1e6))
    assert message.startswith(
        "algorithm 'thin': charges: Attempted boolean conversion of traced array"
    )


def test_a_float_of_its_own_type_is_checked_again():
    @srp.part
    class Half(Scaled):
        def init(self, key, data):
            return jnp.zeros((), jnp.bfloat16)

        def client(self, key, broadcast, state, data, context):
            return srp.ClientOutput(broadcast + self.rate)

    simulate(Half(0.5))
    assert refusal(Half(jnp.float32(0.5))).startswith(
        "algorithm 'half': round.client: Input dtypes"
    )


def test_two_evaluations_of_a_class_have_two_names():
    predict = staticmethod(lambda key, server, state, value: lambda test: test)

    @srp.part
    class Twice(Scaled):
        one = srp.evaluation("kept")(lambda self, *args: predict(*args))
        two = srp.evaluation("kept")(lambda self, *args: predict(*args))

    assert refusal(Twice()) == "class Twice has two evaluations 'kept'; rename one"


def test_an_algorithm_within_another_is_no_evaluation():
    @srp.part
    class Around(Scaled):
        inner: srp.FederatedAlgorithm = srp.algorithms.FedAvg(
            model()
        )  # which has a field of that name

        @srp.evaluation("kept")
        def keep(self, key, server, state, value):
            return lambda test: test

    assert list(Around().evaluations) == ["kept"]
    assert list(simulate(Around(0.25)).accuracies) == ["kept"]


@pytest.mark.parametrize("method", ["client", "server", "init"])
def test_undefined_methods_are_named(method):
    lacks = srp.part(
        type("Lacks", (Scaled,), {method: getattr(srp.FederatedAlgorithm, method)})
    )
    with pytest.raises(
        NotImplementedError, match=rf"Lacks defines no {method}\(self, key"
    ):
        simulate(lacks())


def test_a_float_of_one_run_is_one_number():
    with pytest.raises(
        ValueError,
        match=r"^rate has shape \(2,\), one run takes one number; simulate_seeds\(values=",
    ):
        simulate(Scaled(np.array([0.1, 0.2])))
    training = srp.Training(srp.optimizer(optax.sgd, learning_rate=np.array([0.1, 0.2])))
    with pytest.raises(
        ValueError,
        match=r"^training\.optimizer\.floats\.learning_rate has shape \(2,\), one run takes",
    ):
        simulate(srp.algorithms.FedAvg(model(), training))
    assert simulate(
        srp.part(type("Carrying", (Scaled,), {"__annotations__": {"rate": jax.Array}}))(
            EACH[0]
        )
    ).num_rounds


def test_seeds_are_refused_as_one_run_is():
    with pytest.raises(
        ValueError,
        match=r"algorithm='fedavg' must be a FederatedAlgorithm or a Method; give srp\.methods\.get",
    ):
        srp.simulate_seeds(
            "fedavg",
            DATA,
            keys=jax.random.split(KEY, 2),
            num_rounds=1,
            values={"rate": [0.1, 0.2]},
        )


def test_a_state_class_defined_in_a_function_is_refused():
    def made():
        class Own(NamedTuple):
            w: jax.Array

        return {"of": (Own(jnp.zeros(3)),)}

    algorithm = algorithm_of(
        client_of(state=made()), init_client=lambda key, server, value: made()
    )
    assert (
        "of other classes: define a class at the top of the file, not in a function"
        in refusal(algorithm)
    )


def test_long_structures_are_cut_and_the_difference_is_named():
    layers = {f"layer_{i}": jnp.zeros((100, 100)) for i in range(50)}
    fewer = {name: layer for name, layer in layers.items() if name != "layer_37"}
    message = refusal(
        algorithm_of(
            **in_round(server=lambda *args: fewer), init=lambda key, data: layers
        )
    )
    assert message.endswith("... (they differ in ['layer_37'])")


@pytest.mark.parametrize(
    "error",
    [ValueError("rate: too large"), type("MineError", (Exception,), {})("two\nlines")],
)
def test_errors_raised_by_a_users_function_are_not_changed(error):
    def client(key, broadcast, state, value, context):
        raise error

    with pytest.raises(type(error), match=rf"^{error}"):
        simulate(algorithm_of(client))


def test_a_missing_metric_is_an_error_of_the_users_function():
    with pytest.raises(KeyError, match="loss"):
        simulate(
            algorithm_of(client_of()),
            participation=policy_of(
                update=lambda state, info: state + info.metrics["loss"]
            ),
        )


def test_the_metric_global_grad_norm_is_reserved_if_it_is_recorded():
    algorithm = algorithm_of(
        client_of(),
        metrics=lambda server, data: {"global_grad_norm": jnp.zeros(())},
        gradient=lambda key, broadcast, state, value, context: ClientOutput(value),
    )
    simulate(algorithm)
    policy = scripted([[0, 1]], needs_global_gradient=True)
    assert "'global_grad_norm' is recorded twice in a round" in refusal(
        algorithm, participation=policy
    )


# Parts.


class Unregistered:
    num_clients = 4
    train_client = test_client = lambda self, client_id: client_id
    score = lambda self, predict, test: (predict(test), jnp.ones(()))


def source(**methods):
    """`Numbers` with other methods."""
    made = dataclasses.make_dataclass(
        "Mine", ["values"], bases=(type(DATA),), namespace=methods, frozen=True
    )
    return jax.tree_util.register_dataclass(made)(DATA.values)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FourMembers:
    """A data set with the members of `base.FederatedSource` only."""

    x: jax.Array
    y: jax.Array
    num_clients = property(lambda self: self.x.shape[0])

    def train_client(self, client_id):
        return Examples(self.x[client_id], self.y[client_id], jnp.int32(self.x.shape[1]))

    test_client = train_client

    def score(self, predict, test):
        return jnp.sum(jnp.argmax(predict(test.x), axis=-1) == test.y).astype(
            float
        ), test.count.astype(float)


@pytest.mark.short("<lambda>0")
@pytest.mark.parametrize(
    "judged",
    [lambda data: data, lambda data: srp.data.training_loss(data, cross_entropy)],
)
def test_data_with_the_required_members_suffice_for_a_model(judged):
    data = judged(
        FourMembers(jax.random.normal(KEY, (3, 5, 6)), jnp.zeros((3, 5), jnp.int32))
    )
    history = srp.simulate(
        srp.algorithms.FedAvg(model()), data, num_rounds=1, key=KEY, progress=False
    )
    assert history.num_clients == 3
    others = srp.algorithms.FedAvg(srp.models.MLP((4, 2), 3, hidden=()))
    name = type(data).__name__
    with pytest.raises(
        ValueError,
        match=rf"model 'mlp' takes \(4, 2\), data set '{name}' has examples of shape \(6,\)",
    ):
        srp.simulate(others, data, num_rounds=1, key=KEY, progress=False)
    with pytest.raises(
        ValueError, match=r"has no example_shape; .* add the attribute to your own class"
    ):
        srp.methods.get("fedavg", dataset=data)
    without_rows = judged(FourMembers(jnp.zeros((3, 0, 6)), jnp.zeros((3, 0), jnp.int32)))
    with pytest.raises(
        ValueError,
        match=f"trains on examples, data set '{name}' has no rows in train_client",
    ):
        srp.simulate(
            srp.algorithms.FedAvg(model()),
            without_rows,
            num_rounds=1,
            key=KEY,
            progress=False,
        )


BROKEN_DATA = {
    "unregistered": (
        Unregistered(),
        "it is no pytree (jax.tree_util.register_dataclass); give",
    ),
    "without_clients": (source(num_clients=0), "data.num_clients=0 must be at least"),
    "method": (
        source(train_client=lambda self: 0),
        "data: train_client: <lambda>() takes 1 positional argument",
    ),
    "text": (source(test_client=lambda self, i: "x"), f"data: test_client: {NO_TEXT}"),
    "score": (
        source(score=lambda self, predict, test: predict(test)),
        "data.score returned float32[]",
    ),
}


@pytest.mark.parametrize("case", BROKEN_DATA)
def test_custom_data_that_break_the_contract_are_refused(case):
    data, words = BROKEN_DATA[case]
    assert words in refusal(algorithm_of(client_of()), data)


# Parts that keep the contract.


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
def test_algorithms_that_keep_the_contract_run(case):
    algorithm = algorithm_of(**{"client": client_of()} | HONEST[case])
    devices = (
        2
        if case in ("keys_and_flags", "weights_of_parts", "numbers_in_client_states")
        else 1
    )
    policy = srp.participation.Uniform(3)
    assert (
        simulate(
            algorithm, participation=policy, devices=devices, chunk_size=1
        ).num_rounds
        == 2
    )


def test_parts_may_return_numbers_of_python_and_numpy():
    def sample(key, state, now):
        return ClientTimes(np.ones(4, np.float32), np.arange(4.0)), state + 1

    clock = clock_of(init=lambda key, num_clients: 0, sample=sample)
    cohort = Cohort(
        np.arange(2), np.int32(2), np.ones(2, np.int32), np.int32(1), np.float32(3.0)
    )
    seen = []

    def update(state, info):
        seen.append(info)
        return {"rounds": state["rounds"] + 1, "key": state["key"]}

    policy = policy_of(
        init=lambda key, num_clients: {"rounds": 0, "key": key},
        select=lambda key, s, t: (cohort, s),
        update=update,
    )
    history = simulate(
        algorithm_of(client_of(info={"loss": 1})), clock=clock, participation=policy
    )
    assert history.compute_time.tolist() == [3.0, 3.0]
    assert history.elapsed(1.0).tolist() == [
        4.0,
        8.0,
    ]  # a duration alone does not make rounds overlap
    assert history.stage.tolist() == [1, 1]
    assert all(
        isinstance(leaf, jax.Array) for info in seen for leaf in jax.tree.leaves(info)
    )


def test_a_policy_sees_the_metrics_of_its_algorithm():
    """The check passes metrics to a policy as the engine does; here a stage ends when a loss is small."""

    def update(state, info):
        assert set(info.metrics) == {"w", "loss", "steps"}
        assert [info.metrics[name].dtype for name in ("w", "loss", "steps")] == [
            jnp.float32
        ] * 3
        return jnp.where(
            info.metrics["loss"] + info.metrics["steps"] < 1, state, state + 1
        )

    algorithm = algorithm_of(
        client_of(info={"loss": 1.0}),
        finish=(nothing, client_of(info={"steps": jnp.int32(2)}), lambda *args: args[1]),
        metrics=lambda server, data: {"w": server},
    )
    simulate(algorithm, participation=policy_of(update=update))


@pytest.mark.short("int8", "bool")
@pytest.mark.parametrize("dtype", [jnp.int8, jnp.uint8, jnp.bool_, jnp.int32])
def test_integers_and_flags_are_sent_as_they_are_and_averaged_as_floats(dtype):
    """No sum overflows and no weight is truncated: the mean of 100 of 200 clients is exact, with one byte each."""
    data = numbers(*np.arange(200))

    def client(key, broadcast, state, value, context):
        return ClientOutput(
            jnp.asarray(value > 99, dtype), weight=jnp.where(value > 99, 0.5, 1.5)
        )

    history = simulate(algorithm_of(client), data, devices=2)
    assert float(history.server_state) == 0.25
    assert history.bytes_up == np.dtype(dtype).itemsize


def test_the_check_traces_a_client_once_and_computes_nothing():
    """Its cost does not depend on the number of clients, batches or devices."""
    calls = []

    def client(key, broadcast, state, value, context):
        calls.append("traced")
        jax.debug.callback(lambda value: calls.append("computed"), value)
        return ClientOutput(value)

    check_algorithm(algorithm_of(client), numbers(*np.arange(50)), ("value",))
    jax.effects_barrier()
    assert calls == ["traced"]
