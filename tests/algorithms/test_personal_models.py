"""Methods with personal models beside or instead of a global one, and PerFedAvg: NumPy versions, and limits."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import apfl, ditto, fedavg, hf_maml, l2gd, mlp
from reference.small import KEY, Run, assert_close, assert_same_bits, built, federation
from test_baselines import (
    CLOCK,
    EPOCHS,
    EVERYBODY,
    HEAVY_STEPS,
    SHAPED,
    TUNING,
    run_of,
    setting_of,
    split_model,
    steps_of,
)
from test_reference import COHORTS, HEAVY, SMALL, by_layer, check_global, of_client, optimizer

import fedjax_srp as srp

pytestmark = pytest.mark.usefixtures("float64")


def given(factory, sgd, run_options, **options):
    """A setting, and what its reference gets; heavy SGD goes with weights by examples."""
    weighting = "num_examples" if sgd is HEAVY else "uniform"
    options |= {"optimizer": optimizer(sgd), "weighting": weighting, "epochs": EPOCHS}
    setting = setting_of(factory, run_options, **options)
    args = setting.params, setting.clients, COHORTS
    return setting, args, {"steps": steps_of(setting), "sgd": sgd, "client_weighting": weighting}


check_round = functools.partial(check_global, tuning=TUNING)


def check_own(setting, t, models, judged):
    """The clients' own models after round t; returns the accuracies of `judged`, the models that are judged."""
    for i, own in enumerate(models):
        assert_close(by_layer(split_model(), *of_client(setting.states[t].clients.own, i)), own, 1e-9)
    return [fedavg.global_accuracy(params, client) for params, client in zip(judged, setting.clients, strict=True)]


def test_ditto():
    sgd, run_options = SHAPED["heavy"]
    setting, args, more = given(srp.algorithms.Ditto, sgd, run_options, penalty=0.7)
    states = list(ditto.run(*args, penalty=0.7, **more))
    assert len(states) == 3
    for t, state in enumerate(states):
        own = check_own(setting, t, state.own, state.own)
        check_round(setting, t, state.params, sgd, own_model=own)


@pytest.mark.short("adaptive")
@pytest.mark.parametrize(("sgd", "run_options"), SHAPED.values(), ids=["adaptive", "fixed"])
def test_apfl(sgd, run_options):
    options = {"own_share": 0.3, "adaptive": sgd is HEAVY}
    setting, args, more = given(srp.algorithms.APFL, sgd, run_options, **options)
    states = list(apfl.run(*args, alpha=0.3, adaptive=options["adaptive"], **more))
    assert len(states) == 3
    for t, state in enumerate(states):
        found, cohort = setting.states[t].clients.alpha, COHORTS[t]
        np.testing.assert_allclose(found, state.alpha, rtol=1e-9)
        assert float(setting.rounds[t].metrics["own_share"]) == pytest.approx(np.mean(found[cohort]), rel=1e-9)
        assert (found[cohort] != 0.3).all() == options["adaptive"]
        mixtures = [apfl.mixture(a, v, state.params) for a, v in zip(state.alpha, state.own, strict=True)]
        check_round(setting, t, state.params, sgd, own_model=check_own(setting, t, state.own, mixtures))


def test_l2gd():
    """A partial cohort aggregates after a local round, and everybody after it: its mean is new to the others."""
    sgd, run_options = SHAPED["heavy"]
    run_options = run_options | {"key": jax.random.key(2)}
    options = {"aggregation_step_size": 0.4, "aggregation_probability": 0.5}
    setting, args, more = given(srp.algorithms.L2GD, sgd, run_options, **options)
    coins = [bool(server.aggregates) for server in (setting.start, *(s.server for s in setting.states[:-1]))]
    assert coins == [False, True, True]
    states = list(l2gd.run(*args, coins, theta=0.4, **more))
    for t, state in enumerate(states):
        check_round(setting, t, state.x_bar, sgd, own_model=check_own(setting, t, state.own, state.own))
        assert bool(setting.rounds[t].communicated) == coins[t]


def targets_of(rows):
    """The samples of a batch for the outer gradient: those after the first 0.8, or all of a batch of one."""
    others = rows[max(round(0.8 * len(rows)), 1) :]
    return others if len(others) else rows


@pytest.mark.short("sgd0-*")
@pytest.mark.parametrize(("sgd", "run_options", "alpha"), [(*SHAPED["heavy"], 0.3), (*SHAPED["plain"], 0.0)])
def test_per_fedavg_and_without_an_inner_step_it_is_fedavg_on_its_target_samples(sgd, run_options, alpha):
    setting, args, more = given(srp.algorithms.PerFedAvg, sgd, run_options, inner_step_size=alpha)
    if alpha:
        rounds = hf_maml.run(*args, alpha=alpha, delta=1e-3, support_fraction=0.8, **more)
    else:
        steps = more.pop("steps")
        rounds = fedavg.run(*args, lambda t, i: [targets_of(rows) for rows in steps(t, i)], **more)
    for t, params in enumerate(rounds):
        adapted = [hf_maml.adapted_accuracy(params, client, alpha) for client in setting.clients]
        check_round(setting, t, params, sgd, one_inner_step=adapted)
    assert t == 2


# Limits.


def run_with(factory, policy, rounds=3, **options):
    return run_of(built(factory, split_model(), **HEAVY_STEPS | options), SMALL(), policy, rounds)


@pytest.mark.long
def test_a_heavy_penalty_of_ditto_holds_models_to_the_one_that_was_handed_out():
    """eta lambda = 1 and one full batch: v_i <- w - eta grad f_i(v_i), wherever v_i was."""
    one_step = {"batch_size": 99, "optimizer": srp.SGD(0.3), "penalty": 1 / 0.3}
    before, after = run_with(srp.algorithms.Ditto, EVERYBODY, 2, **one_step)[1:]
    w = by_layer(split_model(), *before.server.params)
    for i, client in enumerate(SMALL()):
        own = by_layer(split_model(), *of_client(before.clients.own, i))
        expected = jax.tree.map(lambda w, g: w - 0.3 * g, w, mlp.gradient(own, client.x, client.y))
        assert_close(by_layer(split_model(), *of_client(after.clients.own, i)), expected, 1e-9)


def test_the_share_of_apfl_stays_between_0_and_1():
    options = {"own_share": 0.5, "adaptive": True, "optimizer": srp.SGD(2.0), "epochs": 3}
    shares = np.array([state.clients.alpha for state in run_with(srp.algorithms.APFL, EVERYBODY, 4, **options)])
    assert np.isfinite(shares).all()
    assert shares.min() == 0.0 or shares.max() == 1.0
    assert ((shares >= 0) & (shares <= 1)).all()


def spread(clients, mean):
    return jax.tree.map(lambda own, mean: own - mean[None], clients.own, mean)


def test_aggregation_of_l2gd_keeps_the_mean_and_silent_rounds_cost_nothing():
    """Full participation: deviations shrink by 1 - theta, and the mean of one aggregation serves the next."""
    options = {"aggregation_step_size": 0.3, "aggregation_probability": 0.5, "batch_size": 4}
    algorithm = built(srp.algorithms.L2GD, split_model(), optimizer=srp.SGD(0.3), **options)
    run = Run(algorithm, federation(SMALL()), EVERYBODY, CLOCK, chunk_size=3)
    before, kinds = run.host_state(), []
    for t in range(12):
        info, state = run.rounds().rounds, run.host_state()
        aggregates = bool(before.server.aggregates)
        means = [jax.tree.map(lambda leaf: leaf.mean(0), clients.own) for clients in (before.clients, state.clients)]
        if aggregates:
            assert_close(means[1], means[0], 1e-12)
            assert_close(state.server.params, means[0], 1e-12)
            shrunk = jax.tree.map(lambda deviation: 0.7 * deviation, spread(before.clients, means[0]))
            if any(kind == "local" for kind in kinds):
                assert_close(spread(state.clients, means[1]), shrunk, 1e-9)
        else:
            assert_same_bits(state.server.params, before.server.params)
            with pytest.raises(AssertionError):
                assert_close(state.clients, before.clients, 1e-3)
        kinds.append("aggregation" if aggregates else "local")
        is_first = aggregates and t > 0 and kinds[-2] == "local"  # at the start all models are equal, and known
        assert bool(info.communicated[0]) == is_first
        before = state
    assert {("local", "aggregation"), ("aggregation", "aggregation")} <= set(itertools.pairwise(kinds))


def test_the_coin_of_l2gd_is_fair_to_its_probability():
    algorithm = srp.algorithms.L2GD(split_model(), aggregation_probability=0.9)
    server = algorithm.init(KEY, federation(SMALL()))
    context = srp.RoundContext(*[jnp.int32(1)] * 3, 7, jnp.int32(1))
    keys = jax.random.split(KEY, 4000)
    coins = jax.vmap(lambda key: algorithm.finish.server(key, server, (), context).aggregates)(keys)
    assert abs(float(coins.mean()) - 0.9) < 4 * np.sqrt(0.9 * 0.1 / 4000)
