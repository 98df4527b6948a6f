"""FedDyn, pFedMe, FedALA, FedAMP, FedPAC, FedAS: their NumPy versions, three rounds in float64, and limits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import fedala, fedamp, fedas, fedavg, feddyn, fedpac, fedprox, mlp, pfedme
from reference.local import Sgd, batches
from reference.small import KEY, NUM_CLASSES, NUM_FEATURES, assert_close, federation
from test_baselines import SHAPED, SPREAD, run_of, setting_of, split_model, steps_of
from test_personal_models import check_own, check_round, given
from test_reference import BATCH, COHORTS, COUNTS, SMALL, by_layer, of_client, work_of

import fedjax_srp as srp
from fedjax_srp.algorithms._mixture import best_mixture
from fedjax_srp.base import named_key
from fedjax_srp.engine.contract import check_algorithm
from fedjax_srp.engine.round import stream
from fedjax_srp.engine.traffic import traffic

pytestmark = pytest.mark.usefixtures("float64")

SGD, LAYOUT = SHAPED["heavy"]


def without_weights(factory, sgd, layout, **options):
    """As `given`, where all clients weigh alike."""
    setting = setting_of(factory, layout, **options)
    return setting, (setting.params, setting.clients, COHORTS), {"steps": steps_of(setting), "sgd": sgd}


@pytest.mark.short("heavy")
@pytest.mark.parametrize(("sgd", "layout"), SHAPED.values(), ids=SHAPED)
def test_feddyn(sgd, layout):
    optimizer = srp.SGD(sgd.step, sgd.momentum or None, sgd.decay or None)
    setting, args, more = without_weights(
        srp.algorithms.FedDyn, sgd, layout, penalty=0.4, optimizer=optimizer, epochs=2
    )
    for t, state in enumerate(feddyn.run(*args, alpha=0.4, **more)):
        check_round(setting, t, state.params, sgd)
        assert_close(by_layer(split_model(), *setting.states[t].server.h), state.h, 1e-9)
        for i, h in enumerate(state.of_clients):
            assert_close(by_layer(split_model(), *of_client(setting.states[t].clients.h, i)), h, 1e-9)
    assert t == 2


@pytest.mark.long
def test_feddyn_whose_alpha_vanishes_is_fedavg_with_all_its_moves_added():
    """w+ = mean + sum of the moves (mean - w) so far, each in the share of the clients that took part in it."""
    options = {"optimizer": srp.SGD(0.1), "epochs": 2}
    setting, args, more = without_weights(srp.algorithms.FedDyn, Sgd(0.1), LAYOUT, penalty=1e-9, **options)
    w, clients, cohorts = args
    moves = feddyn.combine(np.zeros_like, w)
    steps = more["steps"]
    for t, cohort in enumerate(cohorts):
        (mean,) = fedavg.run(w, clients, [cohort], lambda _, i, t=t: steps(t, i), sgd=more["sgd"])
        share = len(cohort) / len(clients)
        moves = feddyn.combine(lambda s, m, w, share=share: s + share * (m - w), moves, mean, w)
        w = feddyn.combine(np.add, mean, moves)
        assert_close(by_layer(split_model(), *setting.states[t].server.params), w, 1e-6)


@pytest.mark.parametrize("penalty", [2.0, 0.0])
def test_pfedme_and_without_its_penalty_the_global_model_stays(penalty):
    numbers = {"penalty": penalty, "inner_steps": 3, "inner_step_size": 0.1, "server_step_size": 0.8}
    setting, args, more = given(srp.algorithms.PFedMe, Sgd(0.15), SPREAD | {"tuned": False}, **numbers)
    of_reference = {"eta": more.pop("sgd").step, "penalty": penalty, "inner_steps": 3, "inner_step": 0.1, "beta": 0.8}
    for t, state in enumerate(pfedme.run(*args, **of_reference, **more)):
        own = check_own(setting, t, state.own, state.own)
        check_round(setting, t, state.params, Sgd(0.15), own_model=own)
        if not penalty:
            assert_close(by_layer(split_model(), *setting.states[t].server.params), setting.params, 1e-12)
    assert t == 2


@pytest.mark.long
def test_momentum_of_pfedme_is_that_of_the_models_that_travel():
    """Two steps on one batch without inner movement of theta but the pull: w falls towards theta with a buffer."""
    runs = {}
    for momentum in (None, 0.5):
        options = {"optimizer": srp.SGD(0.05, momentum), "epochs": 3, "batch_size": 99, "inner_step_size": 0.05}
        algorithm = srp.algorithms.PFedMe(
            split_model(), srp.Training(options["optimizer"], 99, 3), inner_step_size=0.05, penalty=1.0
        )
        runs[momentum] = run_of(algorithm, SMALL(), srp.participation.Full(), 1)[-1].server.params
    with pytest.raises(AssertionError):
        assert_close(runs[0.5], runs[None], 1e-4)


WEIGHTS = {"weight_step_size": 0.7, "weight_share": 0.6, "start_epochs": 3}


def rows_of_weights(setting):
    """The batches that weights are trained on: orders of a segment of the client's examples."""

    def of(t, i):
        count = COUNTS[i]
        num = max(round(0.6 * count), 1)
        key = jax.random.fold_in(named_key(stream(KEY, "training", jnp.int32(t)), "round"), i)
        first = int(jax.random.randint(named_key(key, "segment"), (), 0, jnp.int32(count - num + 1), jnp.int32))

        def epochs(number):
            orders = setting.orders.epochs(t, i, "weights", number)
            return batches([first + order[order < num] for order in orders], BATCH)

        return epochs

    return of


@pytest.mark.short("heavy")
@pytest.mark.parametrize(("sgd", "layout"), SHAPED.values(), ids=SHAPED)
def test_fedala(sgd, layout):
    setting, args, more = given(srp.algorithms.FedALA, sgd, layout, **WEIGHTS)
    steps, rows = more.pop("steps"), rows_of_weights(setting)
    moved = False
    for t, state in enumerate(fedala.run(*args, steps, rows, eta=0.7, start_epochs=3, **more)):
        found = setting.states[t].clients
        assert_close(by_layer(split_model(), *setting.states[t].server.params), state.params, 1e-9)
        np.testing.assert_array_equal(found.is_learnt, state.learnt)
        for i, (head, weights) in enumerate(zip(state.heads, state.weights, strict=True)):
            assert_close(of_client(found.head, i)["out"], head, 1e-9)
            assert_close(of_client(found.weights, i)["out"], weights, 1e-9)
            moved = moved or (weights["kernel"] < 1).any()
    assert t == 2
    assert moved


def test_weights_of_fedala_stay_between_0_and_1_and_judge_what_a_client_starts_from():
    algorithm = srp.algorithms.FedALA(split_model(), srp.Training(srp.SGD(0.3), BATCH, 2), weight_step_size=300.0)
    state = run_of(algorithm, SMALL(), srp.participation.Full(), 3)[-1]
    weights = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(state.clients.weights)])
    assert weights.min() == 0
    assert weights.max() == 1


@pytest.mark.short("heavy")
@pytest.mark.parametrize(("sgd", "layout"), SHAPED.values(), ids=SHAPED)
def test_fedamp(sgd, layout):
    """On one device and on two, where participants' models are exchanged."""
    numbers = {"penalty": 0.6, "attention_step_size": 0.5, "attention_width": 3.0}
    setting, args, more = given(srp.algorithms.FedAMP, sgd, layout, **numbers)
    del more["client_weighting"]
    for t, models in enumerate(fedamp.run(*args, alpha=0.5, sigma=3.0, penalty=0.6, **more)):
        for i, own in enumerate(models):
            assert_close(by_layer(split_model(), *of_client(setting.states[t].clients.params, i)), own, 1e-9)
        expected = [fedavg.global_accuracy(own, c) for own, c in zip(models, setting.clients, strict=True)]
        np.testing.assert_array_equal(setting.accuracies[t]["own_model"], expected)
    assert t == 2


def test_fedamp_without_attention_is_held_to_its_own_models():
    setting, args, more = given(srp.algorithms.FedAMP, SGD, LAYOUT, penalty=0.5, attention_width=1e-9)
    del more["client_weighting"]
    params, clients, cohorts = args
    models = [params for _ in clients]
    for t, cohort in enumerate(cohorts):
        for i in cohort:
            steps = more["steps"]
            (models[i],) = fedprox.run(
                models[i], clients, [[i]], lambda _, i, t=t, steps=steps: steps(t, i), mu=0.5, sgd=SGD
            )
            own = of_client(setting.states[t].clients.params, i)
            assert_close(by_layer(split_model(), *own), models[i], 1e-9)


def test_a_quadratic_programme_over_the_simplex():
    """Against all supports; and in closed form, 1 / V_j where nothing differs, of those who may have weight."""
    solve, rng = jax.jit(best_mixture), np.random.default_rng(0)
    for _ in range(20):
        factor = rng.normal(size=(6, 3))
        costs = factor @ factor.T + np.diag(rng.uniform(0.01, 1.0, 6))
        found = np.asarray(solve(jnp.asarray(costs), jnp.ones(6, bool)))
        assert found.sum() == pytest.approx(1)
        np.testing.assert_allclose(found, fedpac.best_mixture(costs), rtol=0, atol=1e-6)
    variances = np.array([0.5, 0.1, 0.3, 7.0])
    found = solve(jnp.diag(jnp.asarray(variances)), jnp.asarray([True, True, False, True]))
    expected = np.where([1, 1, 0, 1], 1 / variances, 0)
    np.testing.assert_allclose(found, expected / expected.sum(), rtol=0, atol=1e-9)
    assert found[2] == 0


@pytest.mark.short("heavy")
@pytest.mark.parametrize(("sgd", "layout"), SHAPED.values(), ids=SHAPED)
def test_fedpac(sgd, layout):
    setting, args, more = given(srp.algorithms.FedPAC, sgd, layout, penalty=0.7)

    def head_steps(t, i):
        return batches(setting.orders.epochs(t, i, "head", work_of(t, i)), BATCH)

    steps = more.pop("steps")
    for t, state in enumerate(fedpac.run(*args, head_steps, steps, num_classes=NUM_CLASSES, penalty=0.7, **more)):
        found = setting.states[t]
        for c, centroid in state.centroids.items():
            np.testing.assert_allclose(found.server.prototypes.features[c], centroid, rtol=0, atol=1e-6)
        own = []
        for i, head in enumerate(state.heads):
            assert_close(of_client(found.clients.head, i)["out"], head, 1e-6)
            own.append(fedavg.global_accuracy(state.params | {"out": head}, setting.clients[i]))
        assert_close(by_layer(split_model(), *found.server.params), state.params, 1e-6)
        np.testing.assert_array_equal(setting.accuracies[t]["own_head"], own)
    assert t == 2


@pytest.mark.short("heavy")
@pytest.mark.parametrize(("sgd", "layout"), SHAPED.values(), ids=SHAPED)
def test_fedas(sgd, layout):
    setting, args, more = given(srp.algorithms.FedAS, sgd, layout, alignment_step_size=0.3)
    del more["client_weighting"]

    def epoch_of(purpose):
        return lambda t, i: batches(setting.orders.epochs(t, i, purpose, 1), BATCH)

    steps = more.pop("steps")
    for t, state in enumerate(fedas.run(*args, steps, epoch_of("align"), epoch_of("fisher"), align=0.3, **more)):
        assert_close(by_layer(split_model(), *setting.states[t].server.params), state.params, 1e-9)
        for i, own in enumerate(state.models):
            assert_close(by_layer(split_model(), *of_client(setting.states[t].clients.params, i)), own, 1e-9)
    assert t == 2


def test_what_mixtures_cost():
    """A model each way for FedAMP; FedPAC's clients send model, centroids and statistics, and get two heads' worth."""
    data = federation(SMALL())
    params = split_model().init(KEY)
    whole, head = (sum(leaf.nbytes for leaf in jax.tree.leaves(tree)) for tree in (params, params.head))
    found = traffic(check_algorithm(srp.algorithms.FedAMP(split_model()), data))
    assert (found.up, found.down, found.shown) == (whole, whole, whole)
    found = traffic(check_algorithm(srp.algorithms.FedPAC(split_model()), data))
    means = 8 * NUM_CLASSES * params.head["out"]["kernel"].shape[0]
    centroids = means + 8 * NUM_CLASSES
    assert (found.up, found.down) == (whole + centroids + means + 8, whole + centroids)
    assert found.shown == head + means + 8


# With every policy.

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
CLOCKS = (srp.clocks.Fixed(srp.clocks.Exponential(1.0)), srp.clocks.Dynamic(srp.clocks.Exponential(1.0)))
METHODS = tuple(getattr(srp.algorithms, name) for name in ("FedDyn", "PFedMe", "FedALA", "FedAMP", "FedPAC", "FedAS"))


def test_every_policy_is_here():
    assert {type(policy).__name__ for policy in POLICIES} == set(srp.participation.__all__)


def pairs():
    """Every method with every policy: each of both in `make test`, the other pairs in `make test-long`."""
    for i, policy in enumerate(POLICIES, 1):
        for j, cls in enumerate(METHODS):
            marks = () if i % len(METHODS) == j else pytest.mark.long
            yield pytest.param(cls, policy, marks=marks, id=f"{cls.__name__}-{policy.name}")


@pytest.mark.short("FedAS-partial_work")
@pytest.mark.parametrize(("cls", "policy"), [*pairs()])
def test_they_run_with_every_policy(cls, policy):
    algorithm = cls(split_model(), srp.Training(srp.SGD(0.1), batch_size=4), fine_tune_epochs=1)
    if policy.needs_global_gradient and algorithm.gradient is None:
        pytest.skip("a stage that ends on a criterion needs a gradient at one model")
    options = {"num_rounds": 2, "eval_every": 1, "evaluations": "all", "key": KEY, "progress": False, "devices": 1}
    clock = CLOCKS[POLICIES.index(policy) % 2]
    history = srp.simulate(
        algorithm, federation(SMALL()), participation=policy, clock=clock, record_loss=True, **options
    )
    assert history.finite.all()
    assert np.isfinite(history.metrics["training_loss"]).all()
    assert set(history.accuracies) == set(algorithm.evaluations)
    whole = sum(leaf.nbytes for leaf in jax.tree.leaves(split_model().init(KEY)))
    if cls not in (srp.algorithms.FedPAC, srp.algorithms.FedAS):  # which send other parts
        assert history.bytes_down == whole
        assert history.bytes_up == (1 + policy.needs_global_gradient) * whole


@pytest.mark.long
def test_feddyn_finds_the_minimum_of_the_mean_loss_where_fedavg_stalls():
    """What is left of the mean gradient says how far the minimum is; decay of the weights makes it one."""
    softmax = srp.models.MLP((NUM_FEATURES,), NUM_CLASSES, hidden=(), dtype=jnp.float64)
    training = srp.Training(srp.SGD(0.2, weight_decay=0.1), batch_size=max(COUNTS), epochs=10)

    def slope(cls, **options):
        run = {"num_rounds": 300, "eval_every": 300, "devices": 1, "key": KEY, "progress": False}
        params = srp.simulate(cls(softmax, training, **options), federation(SMALL()), **run).server_state.params
        layer = {name: np.asarray(w) for name, w in params.head["out"].items()}
        slopes = [mlp.gradient({"out": layer}, client.x, client.y)["out"] for client in SMALL()]
        decay = {"kernel": 0.1 * layer["kernel"], "bias": 0.0}
        return max(np.abs(np.mean([s[part] for s in slopes], axis=0) + decay[part]).max() for part in decay)

    assert slope(srp.algorithms.FedAvg) > 0.01
    assert slope(srp.algorithms.FedDyn, penalty=0.3) < 1e-6
