"""The baselines of FedRep's table against their NumPy versions, three rounds in float64, and their limits."""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from reference import fed_mtl, fedper, fedprox, fedrep, fedsgd, local_only, mlp, scaffold
from reference.local import Sgd, batches
from reference.small import ALGORITHMS, KEY, Run, assert_close, assert_same_bits, built, federation, model
from test_reference import (
    BATCH,
    COHORTS,
    COUNTS,
    HEAVY,
    PLAIN,
    SMALL,
    Setting,
    by_layer,
    check_accuracies,
    check_global,
    of_client,
    optimizer,
    unequal_work,
    work_of,
)

import fedjax_srp as srp
from fedjax_srp.algorithms.fed_mtl import FedMTLClientState
from fedjax_srp.engine import program
from fedjax_srp.engine.contract import check_algorithm
from fedjax_srp.engine.traffic import traffic

pytestmark = pytest.mark.usefixtures("float64")

EPOCHS, TUNING, NUM_CLIENTS = 2, 3, len(COUNTS)
SPREAD = {"devices": 2, "chunk_size": 2}
SHAPED = {"heavy": (HEAVY, {"chunk_size": 3, "tuned": False}), "plain": (PLAIN, SPREAD)}


@functools.cache
def split_model():
    return model(dtype=jnp.float64)


def setting_of(factory, run_options, **options):
    algorithm = built(factory, split_model(), batch_size=BATCH, fine_tune_epochs=TUNING, **options)
    return Setting(algorithm, split_model(), unequal_work(), SMALL(), 3, **run_options)


def flat(tree):
    """All numbers of a tree, of which some leaves may be zero but for rounding."""
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def steps_of(setting):
    """Batches of EPOCHS epochs per unit of work."""

    def steps(t, i):
        return batches(setting.orders.epochs(t, i, "local", EPOCHS * work_of(t, i)), BATCH)

    return steps


def check_global_model(setting, expected, sgd):
    """Server models and the three evaluations of a global model; `expected` are models after each round."""
    for t, params in enumerate(expected):
        check_global(setting, t, params, sgd, TUNING)
    assert t == 2


def check_own_models(setting, expected, sgd):
    """The models of all clients and how they are judged; `expected` are lists of models after each round."""
    for t, models in enumerate(expected):
        accuracies = {"own_model": [], "fine_tune": []}
        for i, client in enumerate(setting.clients):
            own = of_client(setting.states[t].clients.params, i)
            assert_close(by_layer(split_model(), *own), models[i], 1e-9)
            accuracies["own_model"].append(local_only.own_accuracy(models, i, client))
            rows = setting.tuning(t + 1, i, "head", TUNING)
            accuracies["fine_tune"].append(local_only.tuned_accuracy(models, ["out"], i, client, rows, sgd))
        check_accuracies(setting, t, accuracies)
    assert t == 2


@pytest.mark.short("heavy")
@pytest.mark.parametrize(("sgd", "run_options"), SHAPED.values(), ids=SHAPED)
def test_fedprox(sgd, run_options):
    weighting = "num_examples" if sgd is HEAVY else "uniform"
    options = {"optimizer": optimizer(sgd), "mu": 0.7, "epochs": EPOCHS, "weighting": weighting}
    setting = setting_of(srp.algorithms.FedProx, run_options, **options)
    options = {"mu": 0.7, "sgd": sgd, "client_weighting": weighting}
    expected = fedprox.run(setting.params, setting.clients, COHORTS, steps_of(setting), **options)
    check_global_model(setting, expected, sgd)


@pytest.mark.short("4")
@pytest.mark.parametrize("at_once", [256, 4])
def test_fedsgd(at_once, monkeypatch):
    """The server's momentum goes on between rounds; blocks of examples and units of work change nothing."""
    monkeypatch.setattr(sys.modules["fedjax_srp.algorithms.fedsgd"], "AT_ONCE", at_once)
    program._shared.cache_clear()  # which does not know blocks
    options = {"optimizer": optimizer(HEAVY), "weighting": "num_examples"}
    setting = setting_of(srp.algorithms.FedSGD, SPREAD | {"tuned": False}, **options)
    expected = fedsgd.run(setting.params, setting.clients, COHORTS, sgd=HEAVY, client_weighting="num_examples")
    check_global_model(setting, expected, HEAVY)


@pytest.mark.short("momentum")
@pytest.mark.parametrize(
    ("sgd", "counts_momentum", "local_steps", "run_options"),
    [
        (HEAVY, True, None, {"chunk_size": 3, "tuned": False}),
        (Sgd(0.1, momentum=0.5), False, None, SPREAD),
        (PLAIN, True, 3, {"chunk_size": 2}),
    ],
    ids=["momentum", "momentum_as_in_the_code_of_fedrep", "plain_steps"],
)
def test_scaffold(sgd, counts_momentum, local_steps, run_options):
    options = {"epochs": None if local_steps else EPOCHS, "steps": local_steps}
    options |= {"server_step_size": 0.8, "counts_momentum": counts_momentum, "optimizer": optimizer(sgd)}
    setting = setting_of(srp.algorithms.SCAFFOLD, run_options, **options)

    def drawn(t, i):
        return setting.orders.steps(t, i, local_steps * work_of(t, i))

    steps = drawn if local_steps else steps_of(setting)
    options = {"sgd": sgd, "server_step": 0.8, "counts_momentum": counts_momentum}
    states = list(scaffold.run(setting.params, setting.clients, COHORTS, steps, **options))
    for t, state in enumerate(states):
        found = setting.states[t]
        variates = [by_layer(split_model(), *of_client(found.clients.variate, i)) for i in range(len(COUNTS))]
        np.testing.assert_allclose(flat(variates), flat(state.variates), rtol=0, atol=1e-10)
        np.testing.assert_allclose(flat(found.server.variate), flat(state.variate), rtol=0, atol=1e-10)
        # the server's variate is the mean of ALL clients' variates, whoever has taken part
        mean = jax.tree.map(lambda leaf: leaf.mean(0), found.clients.variate)
        np.testing.assert_allclose(flat(found.server.variate), flat(mean), rtol=0, atol=1e-12)
    check_global_model(setting, (state.params for state in states), sgd)


def test_local_only():
    options = {"optimizer": optimizer(HEAVY), "epochs": EPOCHS}
    setting = setting_of(srp.algorithms.LocalOnly, SPREAD, **options)
    expected = local_only.run(setting.params, setting.clients, COHORTS, steps_of(setting), sgd=HEAVY)
    check_own_models(setting, expected, HEAVY)
    for t, cohort in enumerate(COHORTS):
        own = [of_client(setting.states[t].clients.params, i) for i in cohort]
        norms = [sum((leaf**2).sum() for leaf in jax.tree.leaves(params)) for params in own]
        assert float(setting.states[t].server.square_norm) == pytest.approx(np.mean(norms), rel=1e-9)


def test_fed_mtl():
    options = {"optimizer": optimizer(HEAVY), "epochs": EPOCHS, "relation_strength": 0.6, "norm_strength": 0.1}
    setting = setting_of(srp.algorithms.FedMTL, SPREAD, **options)
    options = {"relation": 0.6, "norm": 0.1, "sgd": HEAVY}
    expected = fed_mtl.run(setting.params, setting.clients, COHORTS, steps_of(setting), **options)
    check_own_models(setting, expected, HEAVY)
    for state in setting.states:
        assert_close(state.server.params, jax.tree.map(lambda leaf: leaf.mean(0), state.clients.params), 1e-9)


def test_fedper():
    options = {"optimizer": optimizer(HEAVY), "epochs": EPOCHS, "weighting": "num_examples"}
    setting = setting_of(srp.algorithms.FedPer, SPREAD, **options)
    options = {"sgd": HEAVY, "client_weighting": "num_examples"}
    rounds = fedper.run(setting.params, ["out"], setting.clients, COHORTS, steps_of(setting), **options)
    for t, state in enumerate(rounds):
        server, states = setting.states[t].server, setting.states[t].clients
        assert_close(by_layer(split_model(), server.representation), state.representation, 1e-9)
        assert_close(by_layer(split_model(), server.head), state.mean_head, 1e-9)
        accuracies = {"fine_tune": [], "own_head": [], "own_or_mean_head": []}
        for i, client in enumerate(setting.clients):
            assert_close(by_layer(split_model(), of_client(states.head, i)), state.heads[i], 1e-9)
            rows = setting.tuning(t + 1, i, "head", TUNING)
            accuracies["fine_tune"].append(fedrep.fine_tuned_accuracy(state, client, rows, HEAVY))
            accuracies["own_head"].append(fedrep.own_head_accuracy(state, i, client))
            accuracies["own_or_mean_head"].append(fedrep.own_or_mean_accuracy(state, i, client))
        check_accuracies(setting, t, accuracies)


def test_the_reference_of_the_relations_is_a_gradient():
    rng = np.random.default_rng(0)
    columns, step = rng.normal(size=(3, 4)), 1e-6
    value, gradient = fed_mtl.penalty(columns, 0.6, 0.1)
    deviations = columns - columns.mean(axis=1, keepdims=True)
    assert value == pytest.approx(0.6 * np.sum(deviations**2) + 0.1 * np.sum(columns**2), rel=1e-12)
    for place in np.ndindex(columns.shape):
        bump = np.zeros_like(columns)
        bump[place] = step
        ends = [fed_mtl.penalty(columns + sign * bump, 0.6, 0.1)[0] for sign in (1, -1)]
        assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(gradient[place], rel=1e-6)


# Limits: switch the new thing off and get the old one back.

CLOCK = srp.clocks.Dynamic(srp.clocks.Exponential(1.0))
EVERYBODY = srp.participation.Full()
FULL = {"batch_size": 99, "optimizer": srp.SGD(0.3)}  # plain steps on full batches
HEAVY_STEPS = {"batch_size": BATCH, "optimizer": srp.SGD(0.3, 0.5, 0.01)}


def run_of(algorithm, clients, policy, rounds=3):
    """States after each round, on the host; the state of the beginning first."""
    run = Run(algorithm, federation(clients), policy, CLOCK, chunk_size=3)
    states = [run.host_state()]
    for _ in range(rounds):
        run.rounds()
        states.append(run.host_state())
    return states


def turn_of(factory, **options):
    """One client's turn, compiled: `(client id, server state, client state or None for its first) -> ClientOutput`."""
    algorithm, data = built(factory, split_model(), **options), federation(SMALL())

    @functools.partial(jax.jit, static_argnames="num_clients")
    def turn(i, server=None, state=None, num_clients=NUM_CLIENTS):
        examples, one = data.train_client(i), jnp.int32(1)
        server = algorithm.init(KEY, data) if server is None else server
        state = algorithm.init_client(KEY, server, examples) if state is None else state
        context = srp.RoundContext(one, one, jnp.int32(num_clients), num_clients, one)
        broadcast = algorithm.round.broadcast(server, context)
        return server, algorithm.round.client(jax.random.fold_in(KEY, i), broadcast, state, examples, context)

    return turn


def layers_of(params):
    return by_layer(split_model(), *jax.device_get(params))


def test_the_variate_of_scaffold_is_the_gradient_after_one_step_and_stays_without_steps():
    turn = turn_of(srp.algorithms.SCAFFOLD, **FULL)
    for i, client in enumerate(SMALL()):
        server, output = turn(jnp.int32(i))
        gradient = mlp.gradient(layers_of(server.params), client.x, client.y)
        np.testing.assert_allclose(flat(layers_of(output.state.variate)), flat(gradient), rtol=0, atol=1e-10)
    idle = turn_of(srp.algorithms.SCAFFOLD, **FULL, epochs=0)
    _, after = idle(jnp.int32(3), server._replace(variate=output.state.variate), output.state)
    assert_same_bits(after.state, output.state)
    assert not flat(after.message).any()


def test_fedsgd_is_gradient_descent_on_all_samples():
    """Under full participation, with a step size of its round."""
    slower = lambda round: srp.SGD(0.3 / (1 + round))  # noqa: E731
    algorithm = srp.algorithms.FedSGD(
        split_model(),
        srp.Training(slower, batch_size=BATCH, weighting="num_examples"),
        fine_tune_optimizer=srp.SGD(0.1),
    )
    states = run_of(algorithm, SMALL(), EVERYBODY)
    params = layers_of(states[0].server.params)
    x, y = (np.concatenate([getattr(client, part) for client in SMALL()]) for part in ("x", "y"))
    for t, state in enumerate(states[1:]):
        params = jax.tree.map(lambda w, g, t=t: w - 0.3 / (1 + t) * g, params, mlp.gradient(params, x, y))
        assert_close(layers_of(state.server.params), params, 1e-9)


@pytest.mark.long
def test_a_joint_step_of_fedper_is_both_steps_of_fedrep_from_the_same_point():
    """One full batch: the head that FedRep's head step makes, and the representation that its other step makes."""
    outputs = []
    for factory, epochs in (
        (srp.algorithms.FedPer, {}),
        (srp.algorithms.FedRep, {"head_epochs": 1, "representation_epochs": 0}),
        (srp.algorithms.FedRep, {"head_epochs": 0, "representation_epochs": 1}),
    ):
        outputs.append(turn_of(factory, **FULL, **epochs)(jnp.int32(4))[1])
    joint, frozen_below, frozen_above = outputs
    assert_close(joint.state.head, frozen_below.state.head, 1e-9)
    assert_close(joint.message.representation, frozen_above.message.representation, 1e-9)


@pytest.mark.long
def test_one_client_alone_has_no_relations_and_trains_as_in_fedavg():
    _, shared = turn_of(srp.algorithms.FedAvg, **HEAVY_STEPS)(jnp.int32(4))
    _, alone = turn_of(srp.algorithms.LocalOnly, **HEAVY_STEPS)(jnp.int32(4))
    turn = turn_of(srp.algorithms.FedMTL, relation_strength=3.0, norm_strength=0.0, **HEAVY_STEPS)
    assert_close(alone.state.params, shared.message, 1e-12)
    assert_close(turn(jnp.int32(4), num_clients=1)[1].state.params, shared.message, 1e-9)
    with pytest.raises(AssertionError):
        assert_close(turn(jnp.int32(4))[1].state.params, shared.message, 1e-3)


@pytest.mark.long
def test_relations_do_not_move_the_mean_of_the_models():
    """One full-batch step of plain SGD, models that differ: the mean moves along the mean gradient, for any l1."""
    turn = turn_of(srp.algorithms.FedMTL, relation_strength=0.5 / 0.3, norm_strength=0.0, **FULL)
    server, _ = turn(jnp.int32(0))
    keys = jax.random.split(jax.random.key(8), len(COUNTS))
    apart = [srp.algorithms.FedMTL(split_model()).init(key, federation(SMALL())).params for key in keys]
    mean = jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *apart)
    moves, gradients = [], []
    for i, client in enumerate(SMALL()):
        _, output = turn(jnp.int32(i), server._replace(params=mean), FedMTLClientState(apart[i]))
        gradients.append(mlp.gradient(layers_of(apart[i]), client.x, client.y))
        moves.append(layers_of(output.message))
        # eta 2 l1 = 1: where a model was is forgotten, w_i <- w_bar - eta grad f_i(w_i)
        own = jax.tree.map(lambda w, g: w - 0.3 * g, layers_of(mean), gradients[i])
        assert_close(layers_of(output.state.params), own, 1e-9)
    moved, slope = (np.mean([flat(tree) for tree in trees], axis=0) for trees in (moves, gradients))
    np.testing.assert_allclose(moved, -0.3 * slope, rtol=0, atol=1e-12)


def test_the_strengths_of_fed_mtl_are_those_of_the_code():
    """10^-(floor(log10 d) + 2) for d parameters."""
    num_params = sum(leaf.size for leaf in jax.tree.leaves(split_model().init(KEY)))
    strength = 10.0 ** -(len(str(num_params)) + 1)
    moved = {}
    for s in (None, strength, 0.0):
        turn = turn_of(srp.algorithms.FedMTL, relation_strength=s, norm_strength=s, **FULL)
        moved[s] = turn(jnp.int32(4))[1]
    assert_same_bits(moved[None], moved[strength])
    with pytest.raises(AssertionError):
        assert_same_bits(moved[None], moved[0.0])


@pytest.mark.long
def test_nobody_waits_for_the_network_of_local_only():
    """No communication is charged; that clients diverge is seen all the same."""
    options = {"num_rounds": 3, "eval_every": 3, "key": KEY, "progress": False, "devices": 1, "evaluations": ()}
    steep, data = srp.SGD(1e200), federation(SMALL())
    history = srp.simulate(srp.algorithms.LocalOnly(split_model(), srp.Training(steep)), data, clock=CLOCK, **options)
    assert not history.communicated.any()
    np.testing.assert_array_equal(history.elapsed(communication=100), history.elapsed())
    assert not history.finite[-1]


def test_what_travels():
    """In models each way, and a number of FedGATE and FedNova; a gradient more where a criterion asks for it."""
    params = split_model().init(KEY)
    whole, below = (sum(leaf.nbytes for leaf in jax.tree.leaves(tree)) for tree in (params, params.representation))
    expected = dict.fromkeys(
        ("fedsgd", "fedprox", "fed_mtl", "apfl", "ditto", "l2gd", "per_fedavg", "fedbuff"), (whole, whole)
    )
    expected |= {"scaffold": (2 * whole, 2 * whole), "fedper": (below, below), "local_only": (0, 0)}
    expected |= {"fedgate": (whole + 8, 2 * whole), "fednova": (whole + 8, whole)}
    by_criterion, data = srp.participation.StatisticalAccuracy(5), federation(SMALL())
    for name, (up, down) in expected.items():
        for policy in (None, by_criterion) if name in ("fedgate", "fednova") else (None,):
            sent = traffic(check_algorithm(ALGORITHMS[name](split_model()), data, policy=policy))
            assert (sent.up, sent.down) == (up + (policy is not None) * whole, down), name


@pytest.mark.parametrize("name", ["scaffold", "fedgate"])
def test_the_optimizer_has_to_tell_its_step_size(name):
    with pytest.raises(ValueError, match="this method divides by a step size"):
        ALGORITHMS[name](split_model(), srp.Training(optax.sgd(0.1)))
    by_round = srp.Training(lambda round: srp.SGD(0.1 / (1 + round)))
    check_algorithm(ALGORITHMS[name](split_model(), by_round, fine_tune_optimizer=srp.SGD(0.1)), federation(SMALL()))
