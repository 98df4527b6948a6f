"""q-FedAvg and AFL: what they optimise, and whom they favour."""

import jax.numpy as jnp
import numpy as np
import pytest
from reference import afl as reference
from reference.small import built, federation, model, prepared, simulate
from setting import EVERYBODY, FULL, SMALL, split_model

import fedjax_srp as srp
from fedjax_srp.algorithms.afl import projected

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("seed", range(4))
def test_the_projection_is_the_nearest_point_of_the_simplex(seed):
    rng = np.random.default_rng(seed)
    raised = rng.normal(size=9) + rng.integers(0, 2, 9)
    takes_part = rng.random(9) < 0.7
    total = rng.uniform(0.1, 3.0)
    threshold = projected(
        jnp.asarray(np.where(takes_part, raised, np.nan)), jnp.asarray(takes_part), total
    )
    found = np.maximum(raised[takes_part] - float(threshold), 0)
    expected = reference.projection(raised[takes_part], total)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    np.testing.assert_allclose(found.sum(), total)


def losses(history, clients):
    """The final training loss of each client, with its model."""
    split = split_model()
    x = jnp.concatenate([client.x for client in clients])
    y = jnp.concatenate([client.y for client in clients])
    of_examples = split.loss(split.logits(history.server_state.params, x), y)
    ends = np.cumsum([len(client.y) for client in clients])
    return np.array([mine.mean() for mine in np.split(of_examples, ends[:-1])])


def final_losses(name, **options):
    clients = SMALL()
    algorithm = built(getattr(srp.algorithms, name), split_model(), **FULL, **options)
    run = {"participation": EVERYBODY, "evaluations": (), "keep_clients": True}
    history = simulate(algorithm, federation(clients), 150, **run)
    return losses(history, clients), history


def test_fair_methods_lower_the_largest_loss_and_the_spread():
    plain, _ = final_losses("FedAvg")
    for name, options in (("QFedAvg", {"q": 3.0}), ("AFL", {"weight_step_size": 0.01})):
        fair, _ = final_losses(name, **options)
        assert fair.max() < plain.max(), name
        assert fair.std() < plain.std(), name


def test_weights_of_afl_stay_on_the_simplex_and_follow_the_losses():
    _, history = final_losses("AFL", weight_step_size=0.01)
    shares = np.asarray(history.client_states.share)
    np.testing.assert_allclose(shares.sum(), len(shares))
    assert (shares >= 0).all()
    assert shares.std() > 0.1


def test_afl_keeps_its_model_where_no_participant_has_weight():
    """A large step of lambda gives one of two participants all; later cohorts have none to share."""
    algorithm = built(srp.algorithms.AFL, split_model(), **FULL, weight_step_size=100.0)
    history = simulate(
        algorithm,
        federation(SMALL()),
        10,
        participation=srp.participation.Uniform(2),
        evaluations=(),
        keep_clients=True,
    )
    assert (np.asarray(history.client_states.share) == 0).sum() > 2
    assert history.finite.all()


def test_afl_charges_models_and_a_loss():
    data = federation(SMALL())
    up, down = prepared(srp.algorithms.FedAvg(split_model()), data).sizes.messages
    assert prepared(srp.algorithms.AFL(split_model()), data).sizes.messages == (
        up + 8,
        down,
    )
    found = prepared(srp.algorithms.QFedAvg(split_model()), data).sizes.messages
    assert found == (up + 8, down)


def test_one_full_batch_step_of_afl_descends_the_mixture():
    """w - eta sum lambda_i g_i: with equal weights the step of gradient descent on the mean loss."""
    data = federation(SMALL())
    one_step = {"batch_size": 99, "optimizer": srp.SGD(0.3), "epochs": 1}
    afl = built(srp.algorithms.AFL, model(dtype=jnp.float64), **one_step)
    sgd = built(
        srp.algorithms.FedSGD,
        model(dtype=jnp.float64),
        optimizer=srp.SGD(0.3),
        weighting="uniform",
    )
    found, expected = (simulate(each, data, 1).server_state.params for each in (afl, sgd))
    for one, other in zip(found, expected, strict=True):
        for layer in one:
            for part in one[layer]:
                np.testing.assert_allclose(
                    one[layer][part], other[layer][part], rtol=1e-9
                )
