"""Parts that break the contract of `base.py` are refused in one line; parts that keep it run."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
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
    policy_of,
    returning,
)
from reference import small
from reference.small import (
    KEY,
    algorithm_of,
    changed,
    model,
    numbers,
    scripted,
)

import fedjax_srp as srp
from fedjax_srp import ClientOutput, ClientTimes, Cohort, Examples, nothing


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
    assert f"{method}: " in message
    assert "(test_contract.py, line" in message
    assert "; use jnp.where in place of `if`" in message


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
        match=r"^rate has shape .* simulate_seeds\(values=",
    ):
        simulate(Scaled(np.array([0.1, 0.2])))


@pytest.mark.parametrize(
    "error",
    [ValueError("rate: too large"), type("MineError", (Exception,), {})("two\nlines")],
)
def test_errors_raised_by_a_users_function_are_not_changed(error):
    def client(key, broadcast, state, value, context):
        raise error

    with pytest.raises(type(error), match=rf"^{error}"):
        simulate(algorithm_of(client))


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


def test_data_with_the_required_members_suffice_for_a_model():
    inputs = jax.random.normal(KEY, (3, 5, 6))
    data = FourMembers(inputs, jnp.zeros((3, 5), jnp.int32))
    fedavg = srp.algorithms.FedAvg(model())
    assert small.simulate(fedavg, data, 1).num_clients == 3
    judged = srp.data.training_loss(data, srp.models.cross_entropy)
    assert small.prepared(fedavg, judged, devices=1).layout.num_clients == 3
    others = srp.algorithms.FedAvg(srp.models.MLP((4, 2), 3, hidden=()))
    for algorithm, examples, words in (
        (others, inputs, r"model 'mlp' takes \(4, 2\)"),
        (fedavg, inputs[:, :0], "has no rows in train_client"),
    ):
        few = FourMembers(examples, data.y[:, : examples.shape[1]])
        with pytest.raises(ValueError, match=words):
            small.prepared(algorithm, few, devices=1)


BROKEN_DATA = {
    "unregistered": (
        Unregistered(),
        "jax.tree_util.register_dataclass",
    ),
    "method": (
        source(train_client=lambda self: 0),
        "data: train_client: ",
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


def test_an_algorithm_is_traced_once_for_all_policies_and_clocks():
    traced = []

    def client(key, broadcast, state, value, context):
        traced.append("client")
        return ClientOutput(value)

    algorithm = algorithm_of(client, gradient=client_of())
    dynamic = srp.clocks.Dynamic(srp.clocks.Exponential(1.0))
    parts = [
        (srp.participation.Full(), None),
        (srp.participation.Uniform(3), None),
        (srp.participation.Full(), dynamic),
    ]
    for policy, clock in parts:
        small.prepared(algorithm, DATA, policy, clock, devices=1)
    assert traced == ["client"]
    judging = scripted([[0, 1]], needs_global_gradient=True)  # asks for more functions
    small.prepared(algorithm, DATA, judging, devices=1)
    assert traced == ["client"] * 2


def test_parts_may_return_numbers_of_python_and_numpy():
    def sample(key, state, now):
        return ClientTimes(np.ones(4, np.float32), np.arange(4.0)), state + 1

    clock = clock_of(init=lambda key, num_clients: 0, sample=sample)
    cohort = Cohort(
        np.arange(2), np.int32(2), np.ones(2, np.int32), np.int32(1), np.float32(3.0)
    )

    def update(state, info):
        return {"rounds": state["rounds"] + 1, "key": state["key"]}

    policy = policy_of(
        init=lambda key, num_clients: {"rounds": 0, "key": key},
        select=lambda key, s, t: (cohort, s),
        update=update,
    )
    history = simulate(
        algorithm_of(client_of(info={"loss": 1})), clock=clock, participation=policy
    )
    # a duration alone does not make rounds overlap
    assert history.elapsed(1.0).tolist() == [4.0, 8.0]


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


def test_rounds_are_counted_from_the_first_of_the_run():
    algorithm = algorithm_of(
        lambda key, broadcast, state, value, context: ClientOutput(value)
    )

    @srp.part
    class Backwards(srp.Clock):
        """Its times are negative in the fifth round."""

        def init(self, key, num_clients):
            return jnp.int32(1)

        def sample(self, key, state, now):
            times = jnp.where(state == 5, -1.0, 1.0) * jnp.ones(DATA.num_clients)
            return ClientTimes(jnp.ones_like(times), times), state + 1

    def refused(**options):
        return small.refusal(
            small.simulate,
            algorithm,
            DATA,
            num_rounds=6,
            eval_every=2,
            evaluations=(),
            **options,
        )

    twice = scripted([[0, 1]] * 4 + [[3, 3]] + [[0, 1]])
    assert "the cohort of round 5: client 3 is in it more than once" in refused(
        participation=twice
    )
    assert "the time of round 5 is -1.0; times must be finite" in refused(
        clock=Backwards()
    )
