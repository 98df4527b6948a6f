"""BatchNorm in federated training: FedBN, SiloBN and FedAvg against NumPy in float64, and refusals."""

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
    prepared,
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
from fedjax_srp import Examples
from fedjax_srp.algorithms.local import LocalTraining, fit_head, local_sgd, plain_gradient
from fedjax_srp.base import Participants


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
    kept = 4 * 5  # scale, bias, mean and variance of five units
    data = federation(clients_of((3, 5), (2, 2)))
    whole, own, statistics = (
        prepared(algorithm, data, devices=1).sizes.messages
        for algorithm in (
            srp.algorithms.FedAvg(split_model),
            srp.algorithms.FedBN(split_model),
            srp.algorithms.FedBN(split_model, own="statistics"),
        )
    )
    assert np.subtract(whole, own).tolist() == [4 * kept] * 2
    assert np.subtract(whole, statistics).tolist() == [4 * kept // 2] * 2


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

    step = lambda start: local_sgd(KEY, loss, start, (), examples, training, **options)
    trained = jax.jit(step)(start)
    return start, trained.params, np.asarray(examples.x)[:count]


def is_statistic(path):
    return "batch_stats" in jax.tree_util.keystr(path)


def test_statistics_are_no_part_of_a_clipped_gradient():
    def clipped(norm):
        return optax.chain(optax.clip_by_global_norm(norm), optax.sgd(1.0))

    start, params, _ = one_step(5, srp.optimizer(clipped, norm=0.1))
    squares = 0.0
    for path, leaf in jax.tree.leaves_with_path(
        jax.tree.map(jnp.subtract, params, start)
    ):
        if not is_statistic(path):
            squares += jnp.sum(leaf**2)
    assert float(jnp.sqrt(squares)) == pytest.approx(0.1, rel=1e-4)


def test_statistics_are_those_of_the_batch_in_whatever_direction_a_step_goes():
    def doubled(objective, params, weights):
        return jax.tree.map(
            lambda leaf: 2 * leaf, plain_gradient(objective, params, weights)
        )

    _, plain, _ = one_step(5)
    _, other, _ = one_step(5, gradient=doubled)
    pairs = zip(jax.tree.leaves_with_path(plain), jax.tree.leaves(other), strict=True)
    for (path, expected), found in pairs:
        if is_statistic(path):
            np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert (other.head["out"]["bias"] != plain.head["out"]["bias"]).any()


def test_statistics_have_no_fisher_information():
    split_model, examples = normalised(), examples_of(5)
    training = srp.Training(batch_size=7)
    algorithm = srp.algorithms.FedAS(split_model, training=training)
    start = split_model.init(KEY)

    def loss(params):
        logits = split_model.logits(params, examples.x[:5], KEY)
        return split_model.loss(logits, examples.y[:5]).mean()

    expected = 0.0
    for path, leaf in jax.tree.leaves_with_path(jax.jit(jax.grad(loss))(start)):
        if not is_statistic(path):
            expected += jnp.sum(leaf**2)
    found = jax.jit(lambda params: algorithm.fisher_trace(KEY, params, examples))(start)
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_statistics_are_no_part_of_the_distance_of_models():
    algorithm, params = srp.algorithms.FedAMP(normalised()), normalised().init(KEY)

    def mixture(distance):
        moved = jax.tree_util.tree_map_with_path(
            lambda path, w: w + (distance if is_statistic(path) else 0.1), params
        )
        shown = jax.tree.map(lambda *w: jnp.stack(w), params, moved)
        both = Participants(shown, jnp.ones(2, bool), jnp.arange(2))
        return algorithm.mix((), params, both, None).head

    assert_close(mixture(9.0), mixture(0.1), 1e-6)


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


REFUSING = [
    name
    for name, cls in ALGORITHMS.items()
    if not getattr(cls, "supports_batch_norm", True)
]


@pytest.mark.short("fedbuff", "apfl")
@pytest.mark.parametrize("name", REFUSING)
def test_methods_whose_models_are_no_means_refuse_batch_norm_and_accept_group_norm(name):
    data = federation(clients_of((3, 5), (2, 2)))
    with refused(f"model 'normalised' has BatchNorm.*{name}.*; use GroupNorm"):
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
    state = steps(Run(algorithm, data, srp.participation.Uniform(3)), 3)[-1]

    trained = False
    for path, leaf in jax.tree.leaves_with_path((state.server, state.clients)):
        at = jax.tree_util.keystr(path)
        if "batch_stats" in at and "'var'" in at and "variate" not in at:
            assert (leaf > 0).all()
            trained |= bool((leaf != 1).any())
    assert trained
