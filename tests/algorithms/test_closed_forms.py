"""Limits, bounds, closed forms, messages and refusals of single methods."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import mlp
from reference.small import (
    ALGORITHMS,
    KEY,
    NUM_CLASSES,
    NUM_FEATURES,
    assert_close,
    assert_same_bits,
    built,
    federation,
    prepared,
)
from setting import (
    BATCH,
    CLOCK,
    COUNTS,
    EVERYBODY,
    FULL,
    HEAVY_STEPS,
    IDS,
    NUM_CLIENTS,
    SMALL,
    Rounds,
    flat,
    run_of,
    split_model,
)

import fedjax_srp as srp
from fedjax_srp.participation.by_name import CLASSES

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.short("fedgate", "fedsgd", "fedas")
@pytest.mark.parametrize("name", ["fedgate", "fednova", "scaffold", "fedsgd", "fedas"])
def test_without_units_of_work_nothing_moves(name):
    """Though some divide by the number of steps, and a gradient, or an epoch of alignment, does not grow with units."""
    idle = Rounds(IDS, (NUM_CLIENTS,) * 3, 0 * IDS).policy
    states = run_of(
        built(ALGORITHMS[name], split_model(), **FULL), SMALL(), idle, rounds=1
    )
    assert_close(states[1].server.params, states[0].server.params, 1e-12)
    assert_close(states[1].clients, states[0].clients, 0)


def test_the_default_strengths_of_fed_mtl_are_those_of_its_code():
    """They are 10^-(floor(log10 d) + 2) for d parameters."""
    num_params = sum(leaf.size for leaf in jax.tree.leaves(split_model().init(KEY)))
    strength = 10.0 ** -(len(str(num_params)) + 1)
    moved = {}
    for s in (None, strength):
        options = FULL | {"relation_strength": s, "norm_strength": s}
        algorithm = built(srp.algorithms.FedMTL, split_model(), **options)
        moved[s] = run_of(algorithm, SMALL(), EVERYBODY, rounds=1)[-1].clients
    assert_same_bits(moved[None], moved[strength])


def test_traffic_in_bytes():
    """Models each way, a number more for FedGATE and FedNova, and a gradient where a criterion needs it."""
    params, data = split_model().init(KEY), federation(SMALL())
    whole, below, head = (
        sum(leaf.nbytes for leaf in jax.tree.leaves(tree)) for tree in (params, *params)
    )
    names = "fedsgd", "apfl", "ditto", "fedala", "fedamp", "mifa"
    expected = dict.fromkeys(names, (whole, whole))
    expected |= {
        "scaffold": (2 * whole, 2 * whole),
        "fedper": (below, below),
        "local_only": (0, 0),
    }
    expected |= {"fedgate": (whole + 8, 2 * whole), "fednova": (whole + 8, whole)}
    # FedPAC's clients send model, centroids and statistics, and get two heads' worth
    means = 8 * NUM_CLASSES * params.head["out"]["kernel"].shape[0]
    centroids = means + 8 * NUM_CLASSES
    expected |= {"fedpac": (whole + centroids + means + 8, whole + centroids)}
    for name, (up, down) in expected.items():
        policies = [srp.participation.Full()]
        if name in ("fedgate", "fednova"):
            policies.append(srp.participation.StatisticalAccuracy(5))
        for policy in policies:
            gradient = whole if policy.needs_global_gradient else 0
            algorithm = ALGORITHMS[name](split_model())
            sizes = prepared(algorithm, data, policy, devices=1).sizes
            assert sizes.messages == (up + gradient, down), name
            assert sizes.shown == {"fedamp": whole, "fedpac": head + means + 8}.get(
                name, 0
            ), name


def test_evaluations_train_the_weights_of_fedala():
    algorithm, data = (
        built(srp.algorithms.FedALA, split_model(), **HEAVY_STEPS),
        federation(SMALL()),
    )
    examples = data.train_client(jnp.int32(4))

    @jax.jit
    def judged_and_shared():
        server = algorithm.init(KEY, data)
        state = algorithm.init_client(KEY, server, examples)
        opposite = jax.tree.map(jnp.negative, server.params.head)
        server = server._replace(params=server.params._replace(head=opposite))
        predict = algorithm.aggregated(KEY, server, state, examples)
        return predict(examples.x), algorithm.model.logits(server.params, examples.x)

    judged, shared = judged_and_shared()
    with pytest.raises(AssertionError):
        assert_close(judged, shared, 1e-3)


@pytest.mark.parametrize(
    ("name", "values", "options"),
    [
        (
            "apfl",
            lambda state: state.alpha,
            {"optimizer": srp.SGD(2.0), "own_share": 0.5, "adaptive": True},
        ),
        (
            "fedala",
            lambda state: state.weights,
            {"optimizer": srp.SGD(0.3), "weight_step_size": 300.0},
        ),
    ],
    ids=["apfl", "fedala"],
)
def test_shares_stay_between_0_and_1_and_reach_a_bound(name, values, options):
    states = run_of(
        built(ALGORITHMS[name], split_model(), batch_size=BATCH, epochs=3, **options),
        SMALL(),
        EVERYBODY,
    )
    found = np.concatenate([flat(values(state.clients)) for state in states])
    assert (found >= 0).all()
    assert (found <= 1).all()
    assert {0.0, 1.0} & set(found)
    assert len(set(found)) > 2


def test_the_coin_of_l2gd_has_its_probability():
    algorithm = srp.algorithms.L2GD(split_model(), aggregation_probability=0.9)
    server = algorithm.init(KEY, federation(SMALL()))
    context = srp.RoundContext(*[jnp.int32(1)] * 3, 7, jnp.int32(1))
    keys = jax.random.split(KEY, 4000)
    coins = jax.vmap(
        lambda key: algorithm.toss_again(key, server, (), context).aggregates
    )(keys)
    assert abs(float(coins.mean()) - 0.9) < 4 * np.sqrt(0.9 * 0.1 / 4000)


def distance_to_minimum(cls, epochs, step, participation, num_rounds, **options):
    """Largest entry of the mean gradient at the end; weight decay makes the minimum of the mean loss unique."""
    softmax = srp.models.MLP((NUM_FEATURES,), NUM_CLASSES, hidden=(), dtype=jnp.float64)
    training = srp.Training(
        srp.SGD(step, weight_decay=0.1), batch_size=max(COUNTS), epochs=epochs
    )
    run = {
        "num_rounds": num_rounds,
        "eval_every": num_rounds,
        "devices": 1,
        "key": KEY,
        "progress": False,
    }
    algorithm = cls(softmax, training, **options)
    params = srp.simulate(
        algorithm, federation(SMALL()), participation=participation, **run
    ).server_state.params
    layer = {name: np.asarray(w) for name, w in params.head["out"].items()}
    slopes = [
        mlp.gradient({"out": layer}, client.x, client.y)["out"] for client in SMALL()
    ]
    decay = {"kernel": 0.1 * layer["kernel"], "bias": 0.0}
    return max(
        np.abs(np.mean([s[part] for s in slopes], axis=0) + decay[part]).max()
        for part in decay
    )


@pytest.mark.long
def test_feddyn_finds_the_minimum_of_the_mean_loss_where_fedavg_stalls():
    setting = 10, 0.2, srp.participation.Full(), 300
    assert distance_to_minimum(srp.algorithms.FedAvg, *setting) > 0.01
    assert distance_to_minimum(srp.algorithms.FedDyn, *setting, penalty=0.3) < 1e-6


@pytest.mark.parametrize("cls", [srp.algorithms.MIFA, srp.algorithms.FedVARP])
def test_remembered_updates_remove_the_error_of_sampled_clients(cls):
    """With one full batch they are SAG and SAGA over clients, which converge with a constant step."""
    setting = 1, 0.3, srp.participation.Uniform(2), 800
    assert distance_to_minimum(srp.algorithms.FedAvg, *setting) > 0.01
    assert distance_to_minimum(cls, *setting) < 1e-6


# Methods that mix models of participants or have more than one phase, with every policy.

POLICIES = (
    srp.participation.Full(),
    srp.participation.Uniform(3),
    srp.participation.Fastest(3),
    srp.participation.Doubling(2, 1),
    srp.participation.Growing(2, srp.participation.LossPlateau(0)),
    srp.participation.PartialWork(3, 0.5),
    srp.participation.StatisticalAccuracy(2),
    srp.participation.Buffered(2),
    srp.participation.AsynchronousTiers(2, tiers=2),
    srp.participation.Queued(3),
    srp.participation.Compass(max_work=2),
    srp.participation.Deadline(0.8, policy=srp.participation.Uniform(5)),
    srp.participation.PowerOfChoice(2, candidates=4),
    srp.participation.Tiered(2, tiers=2, by="loss"),
    srp.participation.Oort(3),
)


def test_all_policies_are_listed():
    assert {type(policy) for policy in POLICIES} == {*CLASSES}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*never stale:UserWarning")
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
@pytest.mark.parametrize("name", ["feddyn", "fedala", "fedpac", "fedas"])
def test_they_run_with_every_policy(name, policy):
    training = srp.Training(srp.SGD(0.1), batch_size=4)
    algorithm = ALGORITHMS[name](split_model(), training)
    if policy.needs_global_gradient and algorithm.gradient is None:
        pytest.skip(
            "a stage that ends on a criterion needs the gradient of a shared model"
        )
    history = srp.simulate(
        algorithm,
        federation(SMALL()),
        participation=policy,
        clock=CLOCK,
        num_rounds=2,
        eval_every=2,
        record_loss=True,
        key=KEY,
        progress=False,
        devices=1,
    )
    assert history.finite.all()
    assert np.isfinite(history.metrics["training_loss"]).all()
    assert np.isfinite(history.accuracy).all()
