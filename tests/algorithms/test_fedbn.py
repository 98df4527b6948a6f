"""BatchNorm in federated training: FedBN, SiloBN and FedAvg against NumPy in float64, and refusals."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from reference import fedbn
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
    refused,
    steps,
)
from setting import (
    BATCH,
    EPOCHS,
    HEAVY,
    PLAIN,
    SMALL,
    SPREAD,
    UNEQUAL,
    Setting,
    of_client,
    optimizer,
)

import fedjax_srp as srp
from fedjax_srp.algorithms.local import fit_head, local_sgd
from fedjax_srp.algorithms.training import LocalTraining
from fedjax_srp.base import Examples, Participants
from fedjax_srp.contract.checks import check_algorithm
from fedjax_srp.contract.messages import client_bytes
from fedjax_srp.models.normalization import has_statistics, is_batch_norm, is_statistic


def normalised(dtype=jnp.float32, norm=None, cut="out"):
    options = {
        "param_dtype": dtype,
        "force_float32_reductions": dtype == jnp.float32,
    }  # flax promotes then, strictly
    norm = norm or nn.BatchNorm(momentum=fedbn.RATE, epsilon=fedbn.EPSILON, **options)
    layers = [
        srp.models.Layer("fc", nn.Dense(5, use_bias=False, param_dtype=dtype)),
        srp.models.Layer("norm", norm, jax.nn.relu),
        srp.models.Layer("out", nn.Dense(NUM_CLASSES, param_dtype=dtype)),
    ]
    return srp.models.Split(
        (NUM_FEATURES,), NUM_CLASSES, layers, name="normalised", cut=cut, dtype=dtype
    )


def by_layer(*parts):
    """Return parameters in the layout of the reference: statistics beside scale and bias."""
    layers = {name: dict(layer) for part in parts for name, layer in part.items()}
    statistics = layers["norm"].pop("batch_stats")
    return jax.tree.map(np.asarray, layers | {"norm": layers["norm"] | statistics})


@pytest.mark.short("sgd0-run_options0-normalisation")
@pytest.mark.parametrize("personal", fedbn.PERSONAL)
@pytest.mark.parametrize(
    ("sgd", "run_options"), [(HEAVY, {"chunk_size": 3}), (PLAIN, SPREAD)]
)
def test_three_rounds(sgd, run_options, personal):
    """Clients of 1 to 12 examples in batches of 4: partial batches, and one of a single example."""
    weighting = "num_examples" if sgd is HEAVY else "uniform"
    options = {
        "batch_size": BATCH,
        "epochs": EPOCHS,
        "optimizer": optimizer(sgd),
        "weighting": weighting,
    }
    factory = srp.algorithms.FedAvg if personal == "nothing" else srp.algorithms.FedBN
    own = {} if personal == "nothing" else {"own": personal}
    with jax.enable_x64(True):
        split_model = normalised(jnp.float64)
        algorithm = built(factory, split_model, **options, **own)
        setting = Setting(algorithm, UNEQUAL.policy, SMALL(), tuned=False, **run_options)
        params, args = (
            by_layer(*setting.start.params),
            (setting.clients, UNEQUAL.cohorts, setting.epochs()),
        )
        states = list(
            fedbn.run(
                params, *args, sgd=sgd, client_weighting=weighting, personal=personal
            )
        )
        assert len(states) == 3
        for t, state in enumerate(states):
            assert_close(by_layer(*setting.states[t].server.params), state.params, 1e-9)
            judged = setting.accuracies[t][
                "global" if personal == "nothing" else "own_model"
            ]
            for i, client in enumerate(setting.clients):
                assert judged[i] == fedbn.accuracy(
                    state.model_of(i), client.x_test, client.y_test
                )
                if personal != "nothing":
                    kept = of_client(setting.states[t].clients.own, i).representation[
                        "norm"
                    ]
                    found = {
                        name: leaf
                        for name, leaf in kept.items()
                        if leaf is not None and name != "batch_stats"
                    }
                    assert_close(found | kept["batch_stats"], state.own[i], 1e-9)


def test_personal_normalisation_is_not_charged():
    split_model = normalised()
    params = split_model.init(KEY)
    kept = sum(
        leaf.size
        for leaf, own in zip(
            *map(jax.tree.leaves, (params, is_batch_norm(params))), strict=True
        )
        if own
    )
    assert kept == 4 * 5
    data = federation(clients_of((3, 5), (2, 2)))
    whole, own, statistics = (
        client_bytes(
            check_algorithm(built(ALGORITHMS[name], split_model, **options), data)
        )
        for name, options in (
            ("fedavg", {}),
            ("fedbn", {}),
            ("fedbn", {"own": "statistics"}),
        )
    )
    assert whole.sent - own.sent == whole.received - own.received == 4 * kept
    assert (
        whole.sent - statistics.sent
        == whole.received - statistics.received
        == 4 * kept // 2
    )


def examples_of(count, capacity=7, padding=3e38):
    x = np.full((capacity, NUM_FEATURES), padding, np.float32)
    x[:count] = np.random.default_rng(count).normal(2.0, 3.0, (count, NUM_FEATURES))
    return Examples(jnp.asarray(x), jnp.zeros(capacity, jnp.int32), jnp.int32(count))


def one_step(count, sgd=None, **options):
    split_model, examples = normalised(), examples_of(count)
    start = split_model.init(KEY)
    training = LocalTraining(srp.SGD(0.1) if sgd is None else sgd, batch_size=7, epochs=1)

    def loss(params, frozen, x, y, key):
        return split_model.loss(split_model.logits(params, x, key), y)

    trained = jax.jit(
        lambda start: local_sgd(KEY, loss, start, (), examples, training, **options)
    )(start)
    return start, trained.params, np.asarray(examples.x)[:count]


@pytest.mark.short("rmsprop", "another_direction")
@pytest.mark.parametrize(
    "changed",
    [
        {"sgd": srp.optimizer(optax.rmsprop, learning_rate=0.3)},
        {"sgd": srp.SGD(0.5, 0.9, 0.1)},
        {
            "gradient": lambda objective, params, weights: jax.tree.map(
                lambda p: p + 1, params
            )
        },
        {"after_step": lambda params: jax.tree.map(lambda p: 2 * p, params)},
    ],
    ids=["rmsprop", "decay", "another_direction", "projection"],
)
def test_neither_optimizer_nor_method_moves_statistics(changed):
    expected, params = one_step(5)[1], one_step(5, **changed)[1]
    statistics = expected.representation["norm"]["batch_stats"]
    assert_close(params.representation["norm"]["batch_stats"], statistics, 1e-5)
    with pytest.raises(AssertionError):
        assert_close(params.head, expected.head, 1e-3)


def test_statistics_are_no_part_of_a_clipped_gradient():
    def clipped(learning_rate):
        return optax.chain(optax.clip_by_global_norm(1e6), optax.sgd(learning_rate))

    params, expected = (
        one_step(5, srp.optimizer(clipped, learning_rate=0.1))[1],
        one_step(5)[1],
    )
    assert_close(params, expected, 1e-5)
    large = one_step(
        5,
        srp.optimizer(
            lambda rate: optax.chain(optax.clip_by_global_norm(rate), optax.sgd(1.0)),
            rate=0.1,
        ),
    )
    moved = jax.tree.map(jnp.subtract, large[1], large[0])
    flags = jax.tree.leaves(is_statistic(moved))
    squares = [
        jnp.sum(leaf**2)
        for leaf, of in zip(jax.tree.leaves(moved), flags, strict=True)
        if not of
    ]
    assert float(jnp.sqrt(sum(squares))) == pytest.approx(0.1, rel=1e-4)


def test_statistics_have_no_fisher_information():
    split_model, examples = normalised(), examples_of(5)
    training = srp.Training(batch_size=7)
    algorithm = srp.algorithms.FedAS(split_model, training=training)
    start = split_model.init(KEY)

    def loss(params):
        return split_model.loss(
            split_model.logits(params, examples.x[:5], KEY), examples.y[:5]
        ).mean()

    gradient = jax.jit(jax.grad(loss))(start)
    leaves = zip(
        jax.tree.leaves(gradient), jax.tree.leaves(is_statistic(gradient)), strict=True
    )
    found = jax.jit(lambda params: algorithm.fisher_trace(KEY, params, examples))(start)
    np.testing.assert_allclose(
        found, sum(jnp.sum(g**2) for g, own in leaves if not own), rtol=1e-4
    )


def test_statistics_are_no_part_of_the_distance_of_models():
    algorithm, params = srp.algorithms.FedAMP(normalised()), normalised().init(KEY)

    def mixture(distance):
        other = jax.tree.map(
            lambda w, own: w + (distance if own else 0.1), params, is_statistic(params)
        )
        both = Participants(
            jax.tree.map(lambda *w: jnp.stack(w), params, other), jnp.ones(2, jnp.bool_)
        )
        return algorithm.mix((), params, both, None)

    assert_close(mixture(9.0).head, mixture(0.1).head, 1e-6)
    with pytest.raises(AssertionError):
        assert_close(mixture(0.1).head, params.head, 1e-3)


def test_clients_of_fedala_mix_no_statistics():
    data = federation(clients_of((3, 5, 2, 8), (2, 2, 2, 2)))
    algorithm = built(
        srp.algorithms.FedALA,
        normalised(cut="norm"),
        batch_size=3,
        optimizer=srp.SGD(0.2),
    )
    weights = steps(Run(algorithm, data, srp.participation.Uniform(3)), 3)[
        -1
    ].clients.weights
    assert (weights["norm"]["scale"] != 1).any()
    assert all(
        (leaf == 1).all() for leaf in jax.tree.leaves(weights["norm"]["batch_stats"])
    )


def test_without_examples_nothing_moves():
    start, params, _ = one_step(0)
    assert_same_bits(params, start)


def test_a_frozen_representation_uses_its_running_statistics():
    split_model, examples = normalised(), examples_of(5)
    start = jax.tree.map(lambda leaf: leaf + 0.3, split_model.init(KEY))
    training = LocalTraining(srp.SGD(0.1), batch_size=7, epochs=2)
    head = fit_head(
        KEY, split_model, start.representation, start.head, examples, training
    ).params
    features = split_model.represent(start.representation, examples.x[:5])

    def loss(head, frozen, x, y, key):
        return split_model.loss(split_model.classify(head, x), y)

    on_features = examples._replace(x=jnp.pad(features, ((0, 2), (0, 0))))
    expected = local_sgd(
        srp.base.named_key(KEY, "head"), loss, start.head, (), on_features, training
    ).params
    assert_close(head, expected, 1e-5)
    x, key = examples.x[:5], jax.random.key(3)
    noisy = dataclasses.replace(split_model, augment=lambda key, x: x)
    assert_close(
        noisy.rest(start.representation, noisy.stem(start.representation, x), key),
        features,
        1e-6,
    )
    with pytest.raises(AssertionError):
        assert_close(split_model.represent(start.representation, x, key), features, 1e-2)


def test_normalisation_layers_of_a_model_are_found():
    params = jax.eval_shape(
        srp.models.ResNet18((8, 8), 4, channels=(2, 2, 4, 4)).init, KEY
    )
    flags, statistics = is_batch_norm(params), is_statistic(params)
    assert has_statistics(params)
    for (path, own), leaf in zip(
        jax.tree.leaves_with_path(flags), jax.tree.leaves(params), strict=True
    ):
        name = jax.tree_util.keystr(path)
        assert own == ("norm" in name), name
        assert not own or leaf.ndim == 1
    norms = (
        1 + 2 * 8 + 3
    )  # the first, two a block, three shortcuts (one, from 2 to 4 channels, would do: strides)
    assert sum(jax.tree.leaves(flags)) == 4 * norms
    assert sum(jax.tree.leaves(statistics)) == 2 * norms
    grouped = jax.eval_shape(
        srp.models.ResNet18((8, 8), 4, channels=(2, 2, 4, 4), norm="group").init, KEY
    )
    assert not any(jax.tree.leaves(is_batch_norm(grouped)))


REFUSING = [
    name
    for name, cls in ALGORITHMS.items()
    if not getattr(cls, "supports_batch_norm", True)
]


def test_the_methods_that_refuse_statistics():
    expected = {
        "apfl",
        "fedbuff",
        "feddyn",
        "fedgate",
        "fednova",
        "fedopt",
        "fedsgd",
        "hf_maml",
        "per_fedavg",
    }
    assert set(REFUSING) == expected | {
        "heterofl",
        "fedrolex",
        "fjord",
        "mifa",
        "fedvarp",
    }


@pytest.mark.parametrize("name", REFUSING)
def test_methods_whose_models_are_no_means_refuse_batch_norm_and_accept_group_norm(name):
    data = federation(clients_of((3, 5), (2, 2)))
    with refused(
        f"model 'normalised' has BatchNorm, whose variances {name} could make negative; use GroupNorm"
    ):
        built(ALGORITHMS[name], normalised()).init(KEY, data)
    assert built(ALGORITHMS[name], normalised(norm=nn.GroupNorm(5))).init(KEY, data)


TRAINED = [
    name
    for name, cls in ALGORITHMS.items()
    if hasattr(cls, "supports_batch_norm") and name not in REFUSING
]


QUICK = ("fedavg", "fedrep", "ditto", "scaffold", "apfl")
FAR = {
    "server_step_size": 4.0,
    "epochs": 12,
}  # beyond the mean: of weights, not of variances


@pytest.mark.short("fedrep", "pfedme")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.long)
        for name in TRAINED
    ],
)
def test_other_methods_train_it_and_variances_stay_positive(name):
    data = federation(clients_of((3, 5, 2, 8), (2, 2, 2, 2)))
    options = FAR if name in ("scaffold", "pfedme") else {}
    algorithm = built(
        ALGORITHMS[name],
        normalised(),
        batch_size=3,
        optimizer=srp.SGD(0.2, 0.5),
        **options,
    )
    check_algorithm(algorithm, data)
    state = steps(Run(algorithm, data, srp.participation.Uniform(3)), 3)[-1]

    def variances(states):
        names = {
            jax.tree_util.keystr(path): leaf
            for path, leaf in jax.tree.leaves_with_path(states)
        }
        return [
            leaf
            for at, leaf in names.items()
            if "batch_stats" in at and "'var'" in at and "variate" not in at
        ]

    assert all((leaf > 0).all() for leaf in variances((state.server, state.clients)))
    # the servers of these keep a model that nobody has trained, or not yet
    found = variances(
        state.clients if name in ("local_only", "fedproto", "l2gd") else state.server
    )
    assert any((leaf != 1).any() for leaf in found)


def test_a_batch_norm_with_use_running_average_is_refused():
    with pytest.raises(
        ValueError,
        match=r"layer 'norm'.*BatchNorm\(use_running_average=True\): .*; leave it out",
    ):
        normalised(norm=nn.BatchNorm(use_running_average=True)).init(KEY)
