"""Private algorithms: references in NumPy, noise by its statistics, what is refused, and epsilon by hand."""

import math
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from algorithm_table import TABLE, with_batch_norm
from reference.small import (
    CLOCK,
    KEY,
    Numbers,
    assert_close,
    assert_same_bits,
    clients_of,
    federation,
    model,
    prepared,
    refused,
    simulate,
    small,
)

import fedjax_srp as srp
from fedjax_srp.messages import Coded, ErrorFeedback, Half, Private, Quantized, TopK

DATA = federation(clients_of((4, 6, 3, 8), (3,) * 4))
FULL = srp.participation.Full()


def private(algorithm, clip=1.0, noise=0.0, size=4, **fields):
    return Private(algorithm, clip, noise, size, **fields)


def first_server(algorithm, data):
    """The server's state before the first round."""
    return jax.device_get(jax.jit(srp.Simulation(algorithm, data).init)(KEY).server)


# Limits.


@pytest.mark.short("algorithm1*", "algorithm2*")
@pytest.mark.parametrize(
    ("algorithm", "policy", "size", "options"),
    [
        (small("FedAvg"), FULL, 4, {"evaluations": "all"}),
        (Coded(small("FedAvg")), srp.participation.Uniform(3), 3, {"devices": 2}),
        (small("SCAFFOLD"), FULL, 4, {"chunk_size": 2}),
        (small("FedOpt"), srp.participation.Fastest(2), 2, {}),
        (small("FedBABU"), FULL, 4, {"chunk_size": 1, "devices": 2}),
    ],
)
def test_without_clip_and_noise_every_bit_is_that_of_the_algorithm(
    algorithm, policy, size, options
):
    options = {
        "participation": policy,
        "clock": CLOCK,
        "keep_clients": True,
        **options,
    }
    alone = simulate(algorithm, DATA, **options)
    run = simulate(private(algorithm, None, size=size), DATA, **options)
    for field in ("server_state", "accuracies", "compute_time", "bytes_up", "name"):
        assert_same_bits(getattr(run, field), getattr(alone, field))


def test_fedrep_keeps_its_first_head_at_the_server_and_is_itself_otherwise():
    fedrep = small("FedRep")
    options = {"evaluations": (), "keep_clients": True}
    alone = simulate(fedrep, DATA, **options)
    first = first_server(fedrep, DATA)
    run = simulate(private(fedrep, None, unsent="initial"), DATA, **options)
    assert_same_bits(run.server_state.representation, alone.server_state.representation)
    assert_same_bits(run.client_states, alone.client_states)
    assert not np.array_equal(
        jax.tree.leaves(alone.server_state.head)[0], jax.tree.leaves(first.head)[0]
    )
    assert_close(run.server_state.head, first.head, 1e-6)  # compiled, and not


# References in NumPy, on quadratics |w - a_i|^2 / 2.


@srp.part
class Quadratic(srp.FederatedAlgorithm):
    """A gradient step; the message is the new model."""

    step_size: float = 0.3

    def init(self, key, data):
        return jnp.ones(3)

    def client(self, key, w, state, a, context):
        return srp.ClientOutput(w - self.step_size * (w - a))

    def server(self, key, w, mean, context):
        return mean


@srp.part
class QuadraticChange(Quadratic):
    """The same; the message is the change."""

    sends_changes = True

    def client(self, key, w, state, a, context):
        return srp.ClientOutput(-self.step_size * (w - a))

    def server(self, key, w, mean, context):
        return w + mean


@srp.part
class Unscaled(QuadraticChange):
    """Every client sends its numbers, in every round."""

    def client(self, key, w, state, a, context):
        return srp.ClientOutput(a)


ENDS = np.array([[3.1, -1.2, 0.5], [-2.0, 4.7, 1.4], [0.6, 0.3, 1.5]], np.float32)
TARGETS = Numbers(jnp.asarray(ENDS))


def clipped(change, clip):
    return change * min(1.0, clip / np.linalg.norm(change))


@pytest.mark.parametrize("quadratic", [Quadratic(), QuadraticChange()])
def test_the_clipped_sum_over_a_fixed_denominator_is_that_of_numpy(quadratic):
    w = np.ones(3)
    for _ in range(3):
        w = w + sum(clipped(-0.3 * (w - a), 0.5) for a in ENDS) / 5
    run = simulate(private(quadratic, 0.5, size=5), TARGETS, 3)
    np.testing.assert_allclose(run.server_state, w, rtol=1e-5)


@srp.part
class Halves(Quadratic):
    """Two arrays of one shape; the server also keeps the cohort size that it sees."""

    def init(self, key, data):
        return (jnp.ones(3), jnp.ones(3)), jnp.zeros(())

    def client(self, key, w, state, a, context):
        return srp.ClientOutput((a, 2 * a))

    def server(self, key, w, mean, context):
        return mean, context.cohort_size.astype(float)


@pytest.mark.parametrize("size", [5, None])
def test_all_arrays_of_a_message_are_one_vector(size):
    denominator = 3 if size is None else size
    changes = [np.concatenate([a - 1, 2 * a - 1]) for a in ENDS]
    w = 1 + sum(clipped(each, 0.5) for each in changes) / denominator
    halves, seen = simulate(private(Halves(), 0.5, size=size), TARGETS, 1).server_state
    np.testing.assert_allclose(np.concatenate(halves), w, rtol=1e-5)
    assert seen == denominator


def test_a_message_that_is_not_finite_changes_nothing():
    ends = np.concatenate([ENDS, [[np.nan, 1, 1], [np.inf, 1, 1], [1e30, 1e30, 1e30]]])
    data = Numbers(jnp.asarray(ends, jnp.float32))
    w = 1 + sum(clipped(-0.3 * (1 - a), 0.5) for a in ENDS) / 6
    run = simulate(private(Quadratic(), 0.5, size=6), data, 1)
    np.testing.assert_allclose(run.server_state, w, rtol=1e-5)


# Noise, by its statistics over keys.


def updates(algorithm, state, mean, size=4, num=4000):
    """The server's updates from a mean over a cohort, under many keys."""
    phase = algorithm.phases[0]
    zero = jnp.int32(0)
    context = srp.RoundContext(zero, zero, jnp.int32(size), size, jnp.int32(1))
    keys = jax.random.split(jax.random.key(3), num)
    update = lambda key: phase.server(key, state, mean, context)
    return jax.vmap(update)(keys)


def assert_std(values, expected):
    """The standard deviation within four standard errors."""
    values = np.asarray(values, float).ravel()
    error = expected / math.sqrt(2 * values.size)
    assert abs(values.std() - expected) < 4 * error


def test_noise_has_its_deviation_and_is_independent_in_every_entry():
    w = (jnp.arange(3.0), jnp.arange(3.0))
    algorithm = private(Halves(), 0.5, 1.3, size=8)
    halves, _ = updates(algorithm, (w, jnp.zeros(())), w, size=4)
    noise = np.concatenate(halves, axis=1) - np.concatenate(w)
    for entry in noise.T:
        assert_std(entry, 1.3 * 0.5 / 8)
    correlations = np.corrcoef(noise.T)[np.triu_indices(6, 1)]
    assert np.abs(correlations).max() < 4 / math.sqrt(len(noise))
    assert np.abs(noise.mean(axis=0)).max() < 4 * 1.3 * 0.5 / 8 / math.sqrt(len(noise))


def test_rounds_have_other_noise():
    still = Quadratic(step_size=0.0)
    ends = [
        np.asarray(simulate(private(still, 0.5, 1.0), TARGETS, num_rounds).server_state)
        for num_rounds in (1, 2)
    ]
    assert np.abs(ends[0] - 1).min() > 0
    assert not np.allclose(ends[1] - ends[0], ends[0] - 1)


@pytest.mark.parametrize(("given", "count_noise"), [(0.6, 0.6), (None, 20 / 20)])
def test_adaptive_clipping_splits_the_noise_such_that_the_pair_has_the_multiplier(
    given, count_noise
):
    algorithm = private(Quadratic(), 0.5, 0.9, size=20, quantile=0.5, count_noise=given)
    state = srp.messages.PrivateState(jnp.arange(3.0), jnp.asarray(0.7))
    within = srp.base.Packet(jnp.asarray(0.5), 1)
    mean = srp.messages.private.Clipped(state.own, within)
    new = updates(algorithm, state, mean, size=20)
    # z_Delta, and in the count 2 sigma_b, since b_i - 1/2 moves by 1/2
    z_sum = (0.9**-2 - (2 * count_noise) ** -2) ** -0.5
    assert_std(np.asarray(new.own) - np.asarray(state.own), z_sum * 0.7 / 20)
    assert_std(jnp.log(new.clip / 0.7), 0.2 * count_noise / 20)


# Published behaviour.


@pytest.mark.parametrize(("quantile", "within"), [(0.5, 0.5), (0.8, 0.8)])
def test_the_clip_reaches_the_quantile_of_the_norms(quantile, within):
    """Andrew et al., 2021: from far below and above, at a geometric rate."""
    norms = np.exp(np.linspace(-1, 1, 41))
    data = Numbers(jnp.asarray(norms[:, None] * [[0.6, 0.8, 0.0]], jnp.float32))
    for start in (0.01, 100.0):
        algorithm = private(Unscaled(), start, size=41, quantile=quantile)
        run = simulate(algorithm, data, 150)
        clip = run.metrics["clip_norm"][-1]
        assert abs(np.mean(norms <= clip) - within) <= 2 / 41
        # alone in its first rounds: exp(-eta (b - gamma))
        share = float(start > 1)
        expected = start * np.exp(-0.2 * (share - quantile))
        np.testing.assert_allclose(run.metrics["clip_norm"][0], expected, rtol=1e-5)


def test_the_noised_clip_stays_near_the_quantile():
    norms = np.exp(np.linspace(-1, 1, 41))
    data = Numbers(jnp.asarray(norms[:, None] * [[0.6, 0.8, 0.0]], jnp.float32))
    algorithm = private(Unscaled(), 0.1, 1.0, size=41, quantile=0.5)
    run = simulate(algorithm, data, 200)
    clips = run.metrics["clip_norm"][100:]
    assert abs(np.mean([np.mean(norms <= clip) for clip in clips]) - 0.5) < 0.1


# Every algorithm of the package.

REFUSED = {
    "afl": "download what others hold",
    "apple": "weight of a client",
    "fedamp": "download what others hold",
    "fedcac": "download what others hold",
    "feddwa": "download what others hold",
    "fedfomo": "download what others hold",
    "feddbe": "passes before the first round",
    "ifca": "weight of a client",
    "fedpac": "download what others hold",
    "fedat": "asynchronous",
    "fedasync": "asynchronous",
    "fedbuff": "asynchronous",
    "asyncsgd": "asynchronous",
    "fedcompass": "asynchronous",
    "fedas": "weight of a client",
    "fedgate": "weight of a client",
    "fednova": "weight of a client",
    "depthfl": "submodels",
    "flexlora": "short cut",
    "heterofl": "submodels",
    "hetlora": "submodels",
    "sliding_window": "submodels",
    "fedrolex": "submodels",
    "fjord": "submodels",
    "l2gd": "rounds in which nothing is sent",
    "local_only": "0 of its passes send",
    "linear_fedrep": "short cut",
    "mifa": "mixes messages with what no real client sends",
}
# Their servers take ratios of what is sent: means of features, steps over curvatures.
RATIOS = ("fedproto", "q_fedavg")
HOLDS = ("fedrep", "fedper", "fedbn", "lg_fedavg", "template")


def uniform(name):
    if name.startswith("linear") or name == "local_only":
        return TABLE[name].make()
    if name == "fedsgd":  # its server's optimizer would decay the weights
        return TABLE[name].make(weighting="uniform", optimizer=srp.SGD(0.2))
    return TABLE[name].make(weighting="uniform")


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.short("fedrep", "mifa", "ifca", "afl")
def test_every_algorithm_is_private_or_refused_in_one_line(name):
    """With a clip of nearly nothing a round changes nothing: the message is clipped as what it is."""
    data = TABLE[name].data()
    if name in REFUSED:
        with refused(REFUSED[name]):
            prepared(private(uniform(name), unsent="initial"), data).traced()
        return
    if name in HOLDS:
        with refused("^unsent='refuse'.*give unsent='initial'"):
            prepared(private(uniform(name)), data).traced()

    def server_after(clip):
        algorithm = private(uniform(name), clip, size=data.num_clients, unsent="initial")
        return simulate(algorithm, data, 1, evaluations=()).server_state

    server = server_after(1e-9)
    expected = first_server(private(uniform(name), unsent="initial"), data)
    if name in RATIOS:
        expected = server_after(1e-6)
    for new, old in zip(jax.tree.leaves(server), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-5, atol=1e-6)


def test_a_clip_keeps_the_ratio_of_what_a_client_sends():
    """q-FedAvg's step is Delta / h: of one client it is the same under any clip, if both are clipped as they are."""
    alone = {"participation": srp.participation.Uniform(1), "num_rounds": 1}
    alone |= {"evaluations": ()}
    algorithm = small("QFedAvg")
    clipped = simulate(private(algorithm, 1e-3, size=1), DATA, **alone)
    assert_close(
        clipped.server_state, simulate(algorithm, DATA, **alone).server_state, 1e-5
    )


def test_weights_by_examples_are_refused():
    training = srp.Training(srp.SGD(0.1), weighting="num_examples")
    sized = srp.algorithms.FedAvg(model(), training)
    with refused("^algorithm=FedAvg.*weight of a client.*weighting='uniform'"):
        prepared(private(sized), DATA)


@srp.part
class Weighed(Quadratic):
    """Clients whose weight is their work, their id, or one in each of three groups."""

    weight: str = "work"

    def client(self, key, w, state, a, context):
        weights = {
            "work": context.work.astype(float),
            "id": context.client_id.astype(float),
            "groups": jnp.ones(3),
        }
        output = super().client(key, w, state, a, context)
        return output._replace(weight=weights[self.weight])


@srp.part
class Rounded(Quadratic):
    """Half precision."""

    def init(self, key, data):
        return jnp.ones(3, jnp.bfloat16)

    def client(self, key, w, state, a, context):
        return srp.ClientOutput(w - a.astype(w.dtype))


def test_clients_that_could_count_more_than_the_clip_are_refused():
    for weight in ("work", "id", "groups"):
        with refused("^algorithm=Weighed.*weight of a client.*give"):
            prepared(private(Weighed(weight=weight)), TARGETS)
    with refused("^algorithm=Rounded.*16 bits.*give"):
        prepared(private(Rounded()), TARGETS)


def test_variances_of_batch_norm_are_refused_where_they_are_sent():
    normalised = with_batch_norm()
    with refused("^algorithm=FedAvg.*BatchNorm.*GroupNorm"):
        prepared(private(srp.algorithms.FedAvg(normalised)), DATA)
    own = srp.algorithms.FedBN(normalised)
    assert prepared(private(own, unsent="initial"), DATA).sizes.messages.sent > 0


def test_new_clients_and_criteria_get_nothing_without_noise():
    policy = srp.participation.StatisticalAccuracy(initial=2)
    with refused("gradient"):
        prepared(private(small("FedAvg")), DATA, participation=policy)
    taking = small("FedRep", newcomers_take_mean_head=True)
    run = simulate(private(taking, unsent="initial"), DATA, 2, evaluations=())
    assert run.finite.all()


# Codes, and the clip on the wire.


def test_codes_go_inside_where_the_clip_bounds_what_the_server_decodes():
    w = np.ones(3)
    inside = private(Coded(Quadratic(), Half()), 0.5, size=3)
    run = simulate(inside, TARGETS, 1)
    sent = [jnp.asarray(-0.3 * (w - a), jnp.bfloat16) for a in ENDS]
    w = w + sum(clipped(np.asarray(each, np.float64), 0.5) for each in sent) / 3
    np.testing.assert_allclose(run.server_state, w, rtol=1e-5)
    coded = Coded(small("FedAvg"), Quantized(8))
    sizes = [prepared(each, DATA).sizes.messages for each in (coded, private(coded))]
    assert sizes[0] == sizes[1]
    adaptive = prepared(private(coded, quantile=0.5), DATA).sizes.messages
    assert adaptive == (sizes[0].sent + 1, sizes[0].received + 4)
    with refused("^algorithm=Private.*longer than the clip.*Private.Coded"):
        Coded(private(small("FedAvg")), Half())
    with refused("^algorithm=Coded.*down=Half.*down=None"):
        private(Coded(small("FedAvg"), down=Half()))


def test_an_adaptive_run_goes_on_from_parameters_and_is_evaluated():
    fedavg = small("FedAvg")
    adaptive = private(fedavg, 0.3, 0.5, quantile=0.5, count_noise=0.3)
    params = jax.tree.map(lambda leaf: leaf + 1, first_server(fedavg, DATA).params)
    run = simulate(adaptive, DATA, 1, start=params, evaluations="global")
    assert set(run.accuracies) == {"global"}
    assert run.server_state.clip == run.metrics["clip_norm"][-1]


# Epsilon.


def by_hand(noise, num_rounds, delta):
    """Renyi divergence of Gaussians at distance 2 C, and Canonne et al. (2020), Proposition 12."""
    epsilons = []
    for order in np.linspace(1.01, 60, 20_000):
        rdp = num_rounds * order * (2 / noise) ** 2 / 2
        tail = math.log1p(-1 / order) - math.log(delta * order) / (order - 1)
        epsilons.append(rdp + tail)
    return min(epsilons)


def test_epsilon_without_sampling_is_that_of_the_closed_form():
    pytest.importorskip("dp_accounting")
    for noise, num_rounds in ((8.0, 10), (20.0, 100)):
        algorithm = private(small("FedAvg"), 0.5, noise, size=50)
        loss = algorithm.epsilon(FULL, 50, num_rounds, 1e-3)
        np.testing.assert_allclose(
            loss.epsilon, by_hand(noise, num_rounds, 1e-3), rtol=5e-3
        )
        assert not loss.is_amplified
        assert loss.epsilon == loss.without_amplification
    assert private(small("FedAvg")).epsilon(FULL, 50, 1, 1e-3).epsilon == math.inf


def test_epsilon_of_uniform_cohorts_is_that_of_the_library():
    library = pytest.importorskip("dp_accounting")
    event = library.SampledWithoutReplacementDpEvent(
        source_dataset_size=50, sample_size=5, event=library.GaussianDpEvent(8.0 / 2)
    )
    accountant = library.rdp.RdpAccountant(
        neighboring_relation=library.NeighboringRelation.REPLACE_ONE
    )
    expected = accountant.compose(event, 100).get_epsilon(1e-3)
    uniform = srp.participation.Uniform(5)
    sampled = private(small("FedAvg"), 0.5, 8.0).epsilon(uniform, 50, 100, 1e-3)
    assert math.isclose(sampled.epsilon, expected, rel_tol=1e-9)
    # with little noise the theorem's bound is no help
    loss = private(small("FedAvg"), 0.5, 0.1).epsilon(uniform, 50, 100, 1e-3)
    assert loss.epsilon == loss.without_amplification
    assert not loss.is_amplified


@srp.part
class Watching(srp.participation.Fastest):
    """A policy with a state from a metric, whose mean has no noise."""

    def init(self, key, num_clients):
        return jnp.zeros(())

    def update(self, state, info):
        return info.metrics["train_accuracy"]


def test_only_uniform_cohorts_amplify():
    pytest.importorskip("dp_accounting")
    policies = srp.participation
    algorithm = private(small("FedAvg"), 0.5, 8.0, size=5)
    uniform = algorithm.epsilon(policies.Uniform(5), 50, 100, 1e-3)
    assert uniform.is_amplified
    assert uniform.epsilon < uniform.without_amplification / 3
    assert "without replacement" in str(uniform)
    assert "Theorem 27" in str(uniform)
    for policy in (
        policies.Fastest(5),
        policies.Doubling(initial=5),
        policies.Oort(5),
        policies.Uniform(50),
        policies.Deadline(limit=2.0, policy=policies.Uniform(5)),
    ):
        loss = algorithm.epsilon(policy, 50, 100, 1e-3)
        assert loss.epsilon == uniform.without_amplification
        assert "WITHOUT amplification" in str(loss)
        is_told = "training_loss" in str(loss) and "cohorts that follow" in str(loss)
        assert is_told == isinstance(policy, policies.Oort)
    watched = str(algorithm.epsilon(Watching(5), 50, 100, 1e-3))
    assert "Not covered: the metric 'train_accuracy', which leave" in watched
    away = srp.clocks.Available(CLOCK, srp.clocks.DayNight(24.0))
    loss = algorithm.epsilon(policies.Uniform(5), 50, 100, 1e-3, clock=away)
    assert not loss.is_amplified
    for stateful in (
        small("FedRep"),
        small("SCAFFOLD"),
        Coded(small("FedAvg"), ErrorFeedback(TopK(0.1))),
    ):
        remembers = private(stateful, 0.5, 8.0, size=5)
        loss = remembers.epsilon(policies.Uniform(5), 50, 100, 1e-3)
        assert loss.epsilon == uniform.without_amplification
    coded = private(Coded(small("FedAvg"), TopK(0.1)), 0.5, 8.0, size=5)
    assert coded.epsilon(policies.Uniform(5), 50, 100, 1e-3) == uniform
    slow = srp.clocks.Devices(1e9, 1e6, 1e6)
    assert algorithm.epsilon(policies.Uniform(5), 50, 100, 1e-3, slow) == uniform


def test_a_missing_library_is_one_line_with_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    algorithm = private(small("FedAvg"), 0.5, 1.0)
    with refused(r"^epsilon: dp_accounting.*pip install .*\[privacy\]"):
        algorithm.epsilon(FULL, 50, 10, 1e-3)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            (srp.participation.Uniform(51), 50, 10, 1e-3),
            "^participation=Uniform.*at most",
        ),
        ((srp.participation.Buffered(2), 50, 10, 1e-3), "^participation=Buffered.*give"),
        ((FULL, 0, 10, 1e-3), "^num_clients=0"),
        ((FULL, 50, 0, 1e-3), "^num_rounds=0"),
        ((FULL, 50, 10, 0.0), "^delta=0.0.*give"),
        ((FULL, 50, 10, 1.5), "^delta=1.5"),
        (("uniform", 50, 10, 1e-3), "^participation='uniform'"),
    ],
)
def test_epsilon_refuses_what_has_none(arguments, says):
    with refused(says):
        private(small("FedAvg"), 0.5, 1.0).epsilon(*arguments)
