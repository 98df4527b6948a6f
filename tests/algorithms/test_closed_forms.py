"""Limits, bounds, closed forms, messages and refusals of single methods."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from reference import mlp
from reference.small import (
    ALGORITHMS,
    KEY,
    NUM_CLASSES,
    NUM_FEATURES,
    Run,
    assert_close,
    assert_same_bits,
    built,
    clients_of,
    federation,
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
    layers_of,
    run_of,
    split_model,
    turn_of,
)

import fedjax_srp as srp
from fedjax_srp.algorithms._mixture import best_mixture
from fedjax_srp.algorithms.fedpac import FedPACClientState
from fedjax_srp.base import Examples, Participants
from fedjax_srp.contract.checks import check_algorithm
from fedjax_srp.contract.messages import sizes_of

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


def test_fedsgd_is_gradient_descent_on_all_samples():
    """Under full participation, with a step size of its round."""
    slower = srp.Training(
        lambda round: srp.SGD(0.3 / (1 + round)),
        batch_size=BATCH,
        weighting="num_examples",
    )
    algorithm = srp.algorithms.FedSGD(
        split_model(), slower, fine_tune_optimizer=srp.SGD(0.1)
    )
    states = run_of(algorithm, SMALL(), EVERYBODY)
    params = layers_of(states[0].server.params)
    x, y = (
        np.concatenate([getattr(client, part) for client in SMALL()])
        for part in ("x", "y")
    )
    for t, state in enumerate(states[1:]):
        params = jax.tree.map(
            lambda w, g, t=t: w - 0.3 / (1 + t) * g, params, mlp.gradient(params, x, y)
        )
        assert_close(layers_of(state.server.params), params, 1e-9)


def test_the_default_strengths_of_fed_mtl_are_those_of_its_code():
    """They are 10^-(floor(log10 d) + 2) for d parameters."""
    num_params = sum(leaf.size for leaf in jax.tree.leaves(split_model().init(KEY)))
    strength = 10.0 ** -(len(str(num_params)) + 1)
    moved = {}
    for s in (None, strength, 0.0):
        turn = turn_of(
            srp.algorithms.FedMTL, relation_strength=s, norm_strength=s, **FULL
        )
        moved[s] = turn(jnp.int32(4))[1]
    assert_same_bits(moved[None], moved[strength])
    with pytest.raises(AssertionError):
        assert_same_bits(moved[None], moved[0.0])


def test_traffic_in_bytes():
    """Models each way, a number more for FedGATE and FedNova, and a gradient where a criterion needs it."""
    params, data = split_model().init(KEY), federation(SMALL())
    whole, below, head = (
        sum(leaf.nbytes for leaf in jax.tree.leaves(tree)) for tree in (params, *params)
    )
    expected = dict.fromkeys(
        ("fedsgd", "fedprox", "fed_mtl", "apfl", "ditto", "l2gd", "per_fedavg", "fedbuff", "feddyn", "pfedme", "fedala",
         "fedamp", "mifa", "fedvarp"), (whole, whole)
    )  # fmt: skip
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
        for policy in (None, srp.participation.StatisticalAccuracy(5)):
            if policy and name not in ("fedgate", "fednova"):
                continue
            sizes = sizes_of(
                check_algorithm(ALGORITHMS[name](split_model()), data, policy=policy)
            )
            assert sizes.messages == (up + (policy is not None) * whole, down), name
            assert sizes.shown == {"fedamp": whole, "fedpac": head + means + 8}.get(
                name, 0
            ), name


FALLING = srp.SGD(lambda count: 0.1 / (1 + count.astype(float)))


@pytest.mark.parametrize(
    ("name", "optimizer", "message"),
    [
        ("scaffold", optax.sgd(0.1), "this method divides by the step size"),
        ("fedgate", optax.sgd(0.1), "this method divides by the step size"),
        ("fednova", FALLING, "is a schedule over local steps"),
    ],
)
def test_step_sizes_must_be_known_and_equal_within_a_round(name, optimizer, message):
    """They may depend on the round, and are then checked in the round."""

    def made(optimizer):
        of_round = srp.Training(lambda round: optimizer(round))
        return ALGORITHMS[name](split_model(), of_round, fine_tune_optimizer=srp.SGD(0.1))

    with pytest.raises(ValueError, match=message):
        ALGORITHMS[name](split_model(), srp.Training(optimizer))
    with pytest.raises(ValueError, match=message):
        check_algorithm(made(lambda round: optimizer), federation(SMALL()))
    check_algorithm(made(lambda round: srp.SGD(0.1 / (1 + round))), federation(SMALL()))


def test_the_cosine_of_zero_features_is_finite():
    cosine = jax.value_and_grad(
        lambda z: srp.algorithms.moon.cosine(z, jnp.ones((1, 3)))[0]
    )
    for found in cosine(jnp.zeros((1, 3))):
        assert jnp.isfinite(found).all()
        assert jnp.abs(found).max() <= 1e8


def test_a_client_without_examples_is_judged_by_the_global_model():
    algorithm = srp.algorithms.KNNPer(split_model(), own_share=1.0)
    server = algorithm.init(jax.random.key(0), None)
    x = jnp.asarray(clients_of((3,), (2,), dtype=np.float64)[0].x)
    nobody = Examples(x, jnp.zeros(3, jnp.int32), jnp.int32(0))
    shared = jax.nn.log_softmax(algorithm.model.logits(server.params, x))
    np.testing.assert_allclose(
        algorithm.neighbours(jax.random.key(0), server, (), nobody)(x), shared, atol=1e-9
    )


def test_weights_of_fedas_are_never_all_zero():
    """Without gradients the mean of such a cohort would be 0 / 0; products of a weight with a model are no zeros."""
    training = srp.Training(batch_size=BATCH)
    algorithm = srp.algorithms.FedAS(split_model(), training=training)
    nobody = federation(SMALL()).train_client(jnp.int32(0))._replace(count=jnp.int32(0))
    weight_of = jax.jit(lambda params: algorithm.fisher_trace(KEY, params, nobody))
    weight = weight_of(split_model().init(KEY))
    assert 1e-6 * weight > jnp.finfo(weight.dtype).tiny


def test_a_class_that_no_participant_has_keeps_its_prototype():
    """And a class that nobody has had is never predicted, however far the known ones are."""
    algorithm, data = srp.algorithms.FedProto(split_model()), federation(SMALL())
    server, examples = algorithm.init(KEY, data), data.train_client(jnp.int32(4))
    of_class, ones = jnp.eye(NUM_CLASSES)[:2], jnp.ones_like(server.prototypes.features)
    for has in of_class:
        mean = server.prototypes._replace(features=1e3 * has[:, None] * ones, weight=has)
        server = algorithm.server(KEY, server, mean, None)
    np.testing.assert_array_equal(server.prototypes.weight, of_class.sum(0))
    np.testing.assert_array_equal(server.prototypes.features[:, 0], 1e3 * of_class.sum(0))
    predict = algorithm.nearest_prototype(
        KEY, server, algorithm.init_client(KEY, server, examples), examples
    )
    assert set(np.asarray(predict(examples.x).argmax(1))) <= {0, 1}


def test_work_and_evaluations_train_the_weights_of_fedala():
    algorithm, data = (
        built(srp.algorithms.FedALA, split_model(), **HEAVY_STEPS),
        federation(SMALL()),
    )
    examples = data.train_client(jnp.int32(4))

    @jax.jit
    def aggregated(work):
        server = algorithm.init(KEY, data)
        state = algorithm.init_client(KEY, server, examples)
        server = server._replace(
            params=server.params._replace(
                head=jax.tree.map(jnp.negative, server.params.head)
            )
        )
        found = algorithm.aggregation(KEY, server.params, state, examples, work)
        logits = algorithm.model.logits(
            server.params._replace(head=found.head), examples.x
        )
        return (
            found,
            logits,
            algorithm.aggregated(KEY, server, state, examples)(examples.x),
        )

    idle, shared, judged = aggregated(jnp.int32(0))
    assert not idle.is_learnt
    assert all((w == 1).all() for w in jax.tree.leaves(idle.weights))
    busy, own, _ = aggregated(jnp.int32(1))
    assert busy.is_learnt
    assert_close(judged, own, 1e-12)
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


@pytest.mark.long
def test_momentum_changes_the_models_that_pfedme_sends():
    ends = []
    for momentum in (None, 0.5):
        training = srp.Training(srp.SGD(0.05, momentum), batch_size=99, epochs=3)
        algorithm = srp.algorithms.PFedMe(
            split_model(), training, inner_step_size=0.05, penalty=1.0
        )
        ends.append(run_of(algorithm, SMALL(), EVERYBODY, 1)[-1].server.params)
    with pytest.raises(AssertionError):
        assert_close(*ends, 1e-4)


def test_a_second_aggregation_of_l2gd_in_a_row_costs_nothing():
    """Under full participation the models keep their mean, which all clients have."""
    options = {
        "aggregation_step_size": 0.3,
        "aggregation_probability": 0.5,
        "batch_size": 4,
    }
    algorithm = built(
        srp.algorithms.L2GD, split_model(), optimizer=srp.SGD(0.3), **options
    )
    run = Run(algorithm, federation(SMALL()), EVERYBODY, CLOCK, chunk_size=3)
    kinds = []
    for t in range(12):
        kinds.append(bool(run.host_state().server.aggregates))
        communicated = bool(run.rounds().rounds.communicated[0])
        assert communicated == (kinds[t] and t > 0 and not kinds[t - 1])
    assert {(False, True), (True, True)} <= set(itertools.pairwise(kinds))


def test_the_coin_of_l2gd_has_its_probability():
    algorithm = srp.algorithms.L2GD(split_model(), aggregation_probability=0.9)
    server = algorithm.init(KEY, federation(SMALL()))
    context = srp.RoundContext(*[jnp.int32(1)] * 3, 7, jnp.int32(1))
    keys = jax.random.split(KEY, 4000)
    coins = jax.vmap(
        lambda key: algorithm.toss_again(key, server, (), context).aggregates
    )(keys)
    assert abs(float(coins.mean()) - 0.9) < 4 * np.sqrt(0.9 * 0.1 / 4000)
    # a cohort has another mean than all clients
    known = server._replace(aggregates=jnp.bool_(True), has_mean=jnp.bool_(True))
    assert algorithm.communicates(known, context._replace(cohort_size=jnp.int32(6)))
    assert not algorithm.communicates(known, context._replace(cohort_size=jnp.int32(7)))


def test_the_best_mixture_of_diagonal_costs_is_that_of_inverse_variances():
    """Among those that take part, whatever the costs of others; FedPAC's reference has the other costs."""
    variances, allowed = (
        jnp.array([0.5, 0.1, 3e5, 7.0]),
        jnp.array([True, True, False, True]),
    )
    expected = np.where(allowed, 1 / variances, 0)
    found = jax.jit(best_mixture)(jnp.diag(variances), allowed)
    np.testing.assert_allclose(found, expected / expected.sum(), rtol=0, atol=1e-9)
    assert found[2] == 0


@pytest.mark.parametrize("counts", [(0, 5, 4), (0, 0, 0)])
def test_heads_of_clients_without_examples_join_no_mixture_of_fedpac(counts):
    """Unless nobody has examples."""
    algorithm = srp.algorithms.FedPAC(split_model())
    server = algorithm.init(KEY, None)
    found = [
        algorithm.statistics(
            server.params, Examples(jnp.asarray(c.x), jnp.asarray(c.y), jnp.int32(count))
        )
        for c, count in zip(
            clients_of((5, 5, 5), (1, 1, 1), dtype=np.float64), counts, strict=True
        )
    ]
    heads = jax.tree.map(
        lambda leaf: jnp.stack([leaf, leaf + 1, leaf + 2]), server.params.head
    )
    shown = FedPACClientState(heads, *map(jnp.stack, zip(*found, strict=True)))
    for i in range(3):
        own = jax.tree.map(lambda leaf, i=i: leaf[i], shown)
        mixed = algorithm.mix_heads((), own, Participants(shown, jnp.ones(3, bool)), None)
        share = float(
            jax.tree.leaves(mixed)[0].ravel()[0]
            - jax.tree.leaves(server.params.head)[0].ravel()[0]
        )
        assert 1 <= share <= 2 if any(counts) else abs(share - 1) < 1e-9, i


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
    srp.participation.PartialWork(3, 0.5),
    srp.participation.StatisticalAccuracy(2),
    srp.participation.Buffered(2),
    srp.participation.AsynchronousTiers(2, tiers=2),
    srp.participation.Deadline(0.8, policy=srp.participation.Uniform(5)),
    srp.participation.PowerOfChoice(2, candidates=4),
    srp.participation.Tiered(2, tiers=2, by="loss"),
    srp.participation.Oort(3),
)
METHODS = tuple(
    getattr(srp.algorithms, name) for name in ("FedDyn", "FedALA", "FedPAC", "FedAS")
)


def test_all_policies_are_listed():
    assert {type(policy).__name__ for policy in POLICIES} == set(
        srp.participation.__all__
    )


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*never stale")
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
@pytest.mark.parametrize("cls", METHODS, ids=lambda cls: cls.__name__)
def test_they_run_with_every_policy(cls, policy):
    algorithm = cls(
        split_model(), srp.Training(srp.SGD(0.1), batch_size=4), fine_tune_epochs=1
    )
    if policy.needs_global_gradient and algorithm.gradient is None:
        pytest.skip(
            "a stage that ends on a criterion needs the gradient of a shared model"
        )
    options = {
        "num_rounds": 2,
        "eval_every": 1,
        "evaluations": "all",
        "key": KEY,
        "progress": False,
        "devices": 1,
    }
    clock = (
        CLOCK
        if POLICIES.index(policy) % 2
        else srp.clocks.Fixed(srp.clocks.Exponential(1.0))
    )
    history = srp.simulate(
        algorithm,
        federation(SMALL()),
        participation=policy,
        clock=clock,
        record_loss=True,
        **options,
    )
    assert history.finite.all()
    assert np.isfinite(history.metrics["training_loss"]).all()
    assert set(history.accuracies) == set(algorithm.evaluations)
