"""Models of single clients, as arrays: `personalize`."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.small import (
    KEY,
    algorithm_of,
    clients_of,
    federation,
    model,
    refused,
)

import fedjax_srp as srp

NAMES = ("ann", "bob", "cem", "7")
UNNAMED = federation(clients_of((4, 6, 3, 8), (3, 5, 2, 4)))
DATA = dataclasses.replace(UNNAMED, client_names=NAMES)
OPTIONS = {"num_rounds": 2, "devices": 1, "progress": False, "key": KEY}
TRAINING = srp.Training(srp.SGD(0.1), batch_size=3)
MODEL = model(hidden=(3,))
FEDREP = srp.algorithms.FedRep(MODEL, TRAINING, head_epochs=1, fine_tune_epochs=2)
CLASSES = [
    pytest.param(name, marks=() if name in {"FedRep", "KNNPer"} else pytest.mark.long)
    for name in sorted(srp.algorithms.__all__)
    if not name.startswith("Linear")
]


def function_of(algorithm, data, evaluation):
    """The function of an evaluation, of parameters and inputs."""
    train = data.train_client(jnp.int32(0))

    def predictor():
        state = algorithm.init(KEY, data)
        own = algorithm.init_client(KEY, state, train)
        return algorithm.evaluations[evaluation](KEY, state, own, train)

    return jax.eval_shape(predictor).func  # nothing is trained


def score(function, data, params, client):
    """The score of the model with these parameters."""
    test = data.test_client(jnp.int32(client))
    total, count = data.score(lambda x: function(params, x), test)
    return total / count


def assert_scores_agree(algorithm, data, history):
    for evaluation in algorithm.evaluations:
        function = function_of(algorithm, data, evaluation)
        for client in (0, 3):
            params = srp.personalize(algorithm, data, history, client, evaluation)
            assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(params))
            np.testing.assert_allclose(
                score(function, data, params, client),
                history.accuracies[evaluation][-1, client],
                rtol=1e-5,
                err_msg=f"{evaluation} of client {client}",
            )


@pytest.mark.parametrize("name", CLASSES)
def test_a_clients_model_scores_as_in_the_history(name):
    """Also the model that an evaluation trains, for every evaluation of every algorithm."""
    algorithm = getattr(srp.algorithms, name)(MODEL)
    history = srp.simulate(
        algorithm, DATA, evaluations="all", keep_clients=True, **OPTIONS
    )
    assert_scores_agree(algorithm, DATA, history)


@pytest.mark.parametrize("name", ["LinearFedRep", "LinearFedAvg"])
def test_models_of_linear_tasks_too(name):
    task = srp.data.linear_task(KEY, 4, dim=6, rank=2)
    options = {"head": 1, "samples_per_round": 5} if name == "LinearFedRep" else {}
    algorithm = getattr(srp.algorithms, name)(task, step_size=0.1, **options)
    history = srp.simulate(
        algorithm, task, evaluations="all", keep_clients=True, **OPTIONS
    )
    assert_scores_agree(algorithm, task, history)


def test_the_default_evaluation_of_a_saved_run_needs_no_states_of_clients(tmp_path):
    """FedRep's `fine_tune` reads the server's state alone, its `own_head` does not."""
    history = srp.simulate(FEDREP, DATA, **OPTIONS)
    expected = srp.personalize(FEDREP, DATA, history, 1)
    saved = srp.History.load(history.save(tmp_path / "run", models=True))
    again = srp.personalize(saved.method, DATA, saved, 1, "fine_tune")
    jax.tree.map(np.testing.assert_array_equal, again, expected)
    with pytest.raises(ValueError, match="keep_clients=True"):
        srp.personalize(FEDREP, DATA, saved, 1, "own_head")


def test_seeds_have_models_of_their_own_trained_with_the_batches_of_the_evaluation():
    """A loss tells models apart that have the same accuracy."""
    data = srp.data.training_loss(DATA, MODEL.loss)
    options = OPTIONS | {"keys": jax.random.split(KEY, 2)}
    del options["key"]
    histories = srp.simulate_seeds(FEDREP, data, **options)
    function = function_of(FEDREP, data, "fine_tune")
    for history in histories:
        params = srp.personalize(FEDREP, data, history, 3)
        loss = score(function, data, params, 3)
        np.testing.assert_allclose(loss, history.accuracy[-1, 3], rtol=1e-5)


def test_a_client_may_be_given_by_name():
    history = srp.simulate(FEDREP, DATA, **OPTIONS)
    by_id = srp.personalize(FEDREP, DATA, history, 3)
    by_name = srp.personalize(FEDREP, DATA, history, "7")
    jax.tree.map(np.testing.assert_array_equal, by_name, by_id)
    summed = algorithm_of(
        lambda key, w, state, examples, context: srp.ClientOutput(examples.x.sum())
    )
    tried = srp.debug_client(summed, DATA, "bob", evaluations=())
    expected = srp.debug_client(summed, DATA, 1, evaluations=())
    np.testing.assert_array_equal(tried.server, expected.server)
    with refused("unknown client 'bo' of data.client_names.*did you mean bob"):
        srp.personalize(FEDREP, DATA, history, "bo")
    with refused("unknown client 'bob'"):
        srp.personalize(FEDREP, UNNAMED, history, "bob")


def test_other_data_than_those_of_the_run_are_told():
    """A client's id means another client there."""
    history = srp.simulate(FEDREP, DATA, **OPTIONS)
    fewer = federation(clients_of((4, 6, 3), (3, 5, 2)))
    with refused("data=.* has 3 clients, and the run of `history` had 4; give the data"):
        srp.personalize(FEDREP, fewer, history, 1)
    reversed_data = federation(clients_of((8, 3, 6, 4), (4, 2, 5, 3)))
    reversed_data = dataclasses.replace(reversed_data, client_names=NAMES)
    with pytest.warns(
        UserWarning, match="^data: have checksum .*give the data"
    ) as caught:
        srp.personalize(FEDREP, reversed_data, history, 1)
    assert caught[0].filename == __file__


@srp.part
class Closure(srp.algorithms.FedAvg):
    """FedAvg with an evaluation whose parameters are hidden in a function."""

    @srp.evaluation
    def hidden(self, key, server, state, examples):
        """The global model."""
        return lambda x: self.model.logits(server.params, x)


def test_what_has_no_parameters_or_states_is_refused():
    closure = Closure(MODEL)
    history = dataclasses.replace(
        srp.simulate(FEDREP, DATA, **OPTIONS), server_state=closure.init(KEY, DATA)
    )
    cases = {
        "Partial": ("hidden", 0),
        "client=4": ("global", 4),
        "evaluation": ("globl", 0),
    }
    for words, (evaluation, client) in cases.items():
        with pytest.raises(ValueError, match=words) as caught:
            srp.personalize(closure, DATA, history, client, evaluation)
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=r"history\.server_state"):
        srp.personalize(FEDREP, DATA, history, 0, "fine_tune")
