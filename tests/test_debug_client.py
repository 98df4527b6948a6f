"""`srp.debug_client` runs the functions of `simulate` on the arrays of one client, outside of any trace."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.small import (
    KEY,
    algorithm_of,
    assert_close,
    changed,
    clients_of,
    federation,
    model,
    numbers,
    refusal,
    scripted,
    simulate,
)

import fedjax_srp as srp
from fedjax_srp.algorithms import local
from fedjax_srp.base import ClientOutput

DATA = federation(clients_of((3, 8, 5), (4, 3, 2)))
TRAINING = srp.Training(srp.SGD(0.1), batch_size=4, epochs=1)
TASK = srp.data.linear_task(KEY, num_clients=3, dim=6, rank=2)
LARGE = model(hidden=(200, 200))  # trained one client after the other
METHODS = {
    "fedavg": (srp.algorithms.FedAvg(LARGE, TRAINING), DATA),
    "fedgate": (srp.algorithms.FedGATE(model(), TRAINING), DATA),
    "fedamp": (srp.algorithms.FedAMP(model(), TRAINING), DATA),
    "linear_fedrep": (srp.algorithms.LinearFedRep(TASK, 0.1, 5, start="random"), TASK),
}


@pytest.mark.short("fedavg", "fedgate", "fedamp")
@pytest.mark.parametrize("name", METHODS)
def test_it_computes_what_the_round_of_a_run_computes(name):
    algorithm, data = METHODS[name]
    alone = scripted([[2]])
    history = simulate(
        algorithm,
        data,
        1,
        participation=alone,
        eval_every=1,
        keep_clients=True,
    )
    tried = srp.debug_client(algorithm, data, 2, key=KEY)
    assert list(tried.outputs) == [phase.name for phase in algorithm.phases]
    assert_close(jax.tree.map(np.asarray, tried.server), history.server_state, 1e-5)
    of_client = jax.tree.map(lambda leaf: leaf[2], history.client_states)
    assert_close(jax.tree.map(np.asarray, tried.state), of_client, 1e-5)
    for evaluation, score in tried.scores.items():
        scores = history.accuracies[evaluation]
        assert score == pytest.approx(scores[-1, 2], rel=1e-4, abs=1e-6)


def test_functions_get_arrays_and_losses_numbers():
    seen = []

    def loss(params, frozen, x, y, key):
        losses = local.example_loss(LARGE)(params, frozen, x, y, key)
        seen.append(x[0, 0].item())  # a tracer of a compiled round has no item
        return losses

    training = METHODS["fedavg"][0].training

    def client(key, broadcast, state, examples, context):
        assert not isinstance(examples.x, jax.core.Tracer)
        assert int(context.work) == 3
        assert int(context.client_id) == 1
        trained = local.local_sgd(
            key, loss, broadcast, (), examples, training.in_round(context)
        )
        return ClientOutput(trained.params)

    algorithm = changed(METHODS["fedavg"][0], client=client)
    srp.debug_client(algorithm, DATA, client=1, work=3, evaluations=())
    assert len(seen) == 3 * 2  # units of work, batches of 4 of 8 examples


def test_the_start_runs_over_the_client_unless_a_state_is_given():
    algorithm = srp.algorithms.LinearFedRep(TASK, 0.1, 5)
    tried = srp.debug_client(algorithm, TASK, evaluations="all")
    assert list(tried.scores) == list(algorithm.evaluations)
    assert list(tried.outputs) == ["prepare", "round"]
    again = srp.debug_client(algorithm, TASK, start=tried.server)
    assert list(again.outputs) == ["round"]


def test_wrong_results_and_arguments_are_refused():
    shape = algorithm_of(lambda *args: ClientOutput(jnp.zeros(3)))
    assert "few_lines" in refusal(srp.debug_client, shape, numbers(1.0, 2.0))
    none = algorithm_of(lambda *args: jnp.zeros(3))
    assert "ClientOutput" in refusal(srp.debug_client, none, numbers(1.0, 2.0))
    for wrong in (-1, 3, 1.5, "first"):
        assert "client" in refusal(
            srp.debug_client, METHODS["fedavg"][0], DATA, client=wrong
        )
