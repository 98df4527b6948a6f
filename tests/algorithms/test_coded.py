"""Coded algorithms: no code is no change, references in NumPy, bytes, every algorithm of the package."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from algorithm_table import TABLE
from reference.small import (
    CLOCK,
    Numbers,
    assert_close,
    assert_same_bits,
    clients_of,
    federation,
    prepared,
    refused,
    simulate,
    small,
)

import fedjax_srp as srp
from fedjax_srp.messages import (
    Coded,
    CodedState,
    ErrorFeedback,
    Half,
    LowRank,
    Quantized,
    RandomK,
    Sign,
    TopK,
)

DATA = federation(clients_of((4, 6, 3, 8), (3,) * 4))
FULL = srp.participation.Full()


@pytest.mark.short("FedRep*", "FedGATE*")
@pytest.mark.parametrize(
    ("name", "policy", "options"),
    [
        ("FedAvg", FULL, {}),
        (
            "FedRep",
            srp.participation.Doubling(1, 1),
            {"chunk_size": 2, "evaluations": "all"},
        ),
        ("FedBuff", srp.participation.Buffered(2), {}),
        ("FedGATE", FULL, {"chunk_size": 1, "devices": 2}),
        ("FedAMP", srp.participation.Uniform(3), {}),
    ],
)
def test_without_codes_every_bit_is_that_of_the_algorithm(name, policy, options):
    algorithm = small(name)
    options = {
        "participation": policy,
        "clock": CLOCK,
        "keep_clients": True,
        **options,
    }
    alone = simulate(algorithm, DATA, **options)
    coded = simulate(Coded(algorithm), DATA, **options)
    assert coded.client_states.residuals == coded.client_states.held == ()
    assert_same_bits(coded.client_states.own, alone.client_states)
    for field in ("server_state", "accuracies", "metrics", "compute_time"):
        assert_same_bits(getattr(coded, field), getattr(alone, field))
    for field in ("name", "bytes_up", "bytes_down"):
        assert getattr(coded, field) == getattr(alone, field)


# References in NumPy, on quadratics |w - a_i|^2 / 2.


@srp.part
class Quadratic(srp.FederatedAlgorithm):
    """A gradient step; the message is the new model, or the change of the old one."""

    sends: str = "model"
    step_size: float = 0.3

    def init(self, key, data):
        return jnp.ones(3)

    def client(self, key, w, state, a, context):
        change = -self.step_size * (w - a)
        message = change if self.sends == "change" else w + change
        return srp.ClientOutput(message)

    def server(self, key, w, mean, context):
        return w + mean if self.sends == "change" else mean


ENDS = np.array([[3.1, -1.2, 0.5], [-2.0, 4.7, 1.4], [0.6, 0.3, 2.5]], np.float32)
TARGETS = Numbers(jnp.asarray(ENDS))


def largest(p):
    return np.where(np.abs(p) == np.abs(p).max(), p, 0)


def nearer(p, reference):
    """The reference that is subtracted before coding."""
    if np.sum((p - reference) ** 2) < np.sum(p**2):
        return reference
    return np.zeros_like(p)


def test_error_feedback_is_that_of_numpy_and_reaches_the_minimum():
    w = np.ones(3)
    errors = np.zeros((3, 3))
    for _ in range(4):
        received = []
        for i, a in enumerate(ENDS):
            message = w - 0.3 * (w - a)
            base = nearer(message, w)
            p = message - base + errors[i]
            errors[i] = p - largest(p)
            received.append(base + largest(p))
        w = np.mean(received, axis=0)
    up = ErrorFeedback(TopK(1 / 3))
    coded = simulate(Coded(Quadratic(), up), TARGETS, 4, keep_clients=True)
    np.testing.assert_allclose(coded.server_state, w, rtol=1e-5)
    np.testing.assert_allclose(coded.client_states.residuals[0], errors, atol=1e-5)
    minimum = ENDS.mean(0)
    for sends in ("model", "change"):
        quadratic = Quadratic(sends, step_size=0.02)
        end = simulate(Coded(quadratic, up), TARGETS, 600).server_state
        assert np.abs(end - minimum).max() < 0.1  # of the order of the step
        end = simulate(Coded(quadratic, TopK(1 / 3)), TARGETS, 600).server_state
        assert np.abs(end - minimum).max() > 0.2


def test_downloads_are_coded_against_what_the_client_holds():
    w = np.ones(3)
    held = np.ones((3, 3))
    for t in range(4):
        messages = []
        for i, a in enumerate(ENDS):
            if t < 2 and i == 2:
                continue  # the fastest two take part first
            base = nearer(w, held[i])
            held[i] = base + largest(w - base)
            messages.append(held[i] - 0.3 * (held[i] - a))
        w = np.mean(messages, axis=0)
    run = Coded(Quadratic(), down=TopK(1 / 3))
    options = {
        "participation": srp.participation.Doubling(2, 2),
        "clock": srp.clocks.Fixed(srp.clocks.Constant([1.0, 2.0, 3.0])),
        "keep_clients": True,
    }
    coded = simulate(run, TARGETS, 4, **options)
    np.testing.assert_allclose(coded.server_state, w, rtol=1e-5)
    np.testing.assert_allclose(coded.client_states.held[0], held, rtol=1e-5)


def test_changes_are_coded_as_they_are_and_models_by_their_changes():
    """With the model's error, one entry of three, the first round would be another one."""
    first = {
        sends: simulate(Coded(Quadratic(sends), TopK(1 / 3)), TARGETS, 1).server_state
        for sends in ("model", "change")
    }
    expected = 1 + np.mean([largest(-0.3 * (1 - a)) for a in ENDS], axis=0)
    for server in first.values():
        np.testing.assert_allclose(server, expected, rtol=1e-5)


# Independence of chunks, devices and cohorts.


def test_codes_do_not_depend_on_chunks_and_devices():
    algorithm = Coded(Quadratic(), ErrorFeedback(TopK(1 / 3)), Quantized(6))
    runs = [
        simulate(algorithm, TARGETS, 3, keep_clients=True, **options)
        for options in ({}, {"chunk_size": 1, "devices": 2})
    ]
    one, other = ((run.server_state, run.client_states) for run in runs)
    assert_close(one, other, 1e-5)


# Bytes.

NUM_VALUES = (
    6 * 3 + 3 + 3 * 4 + 4
)  # 37, of FedAvg's model: 6 features, 3 units, 4 classes


def test_bytes_are_those_of_the_wire():
    assert prepared(small("FedAvg"), DATA).sizes.messages.sent == 4 * NUM_VALUES
    history = simulate(Coded(small("FedAvg"), Quantized(8), Half()), DATA, 1)
    bits = 8 * NUM_VALUES + 4 * 32 + 1  # scales of 4 arrays; model or change
    assert history.bytes_up == -(-bits // 8)
    assert history.bytes_down == -(-(16 * NUM_VALUES + 1) // 8)
    assert history.eval_bytes()[-1] == 4 * (history.bytes_up + history.bytes_down)


@pytest.mark.parametrize(
    ("name", "up", "down"),
    [
        ("FedRep", 8 * 21 + 2 * 32 + 1, 21 * 32),  # heads are not charged
        ("SCAFFOLD", 2 * (8 * 37 + 4 * 32) + 2, 2 * 37 * 32),  # two models, each way
        ("FedBuff", 8 * 37 + 4 * 32, 37 * 32),  # has no download before its upload
    ],
)
def test_uncharged_parts_stay_free_and_each_known_part_costs_a_bit(name, up, down):
    sizes = prepared(Coded(small(name), Quantized(8)), DATA).sizes.messages
    assert sizes == (-(-up // 8), down // 8)


def test_devices_charge_the_codes_and_a_latency_that_no_code_shortens():
    clock = srp.clocks.Devices(1e9, 1e3, 1e2)
    slow = dataclasses.replace(clock, latency=0.25)
    plain = small("FedAvg")
    coded = Coded(plain, Quantized(8), Half())

    def time(algorithm, clock):
        run = prepared(algorithm, DATA, clock=clock)
        fitted = run.fitted_clock
        key = jax.random.key(0)
        times, _ = fitted.sample(key, fitted.init(key, 4), jnp.zeros(()))
        return np.asarray(times.communication), run.sizes.messages

    for algorithm in (plain, coded):
        messages, (up, down) = time(algorithm, clock)
        expected = up / 1e2 + down / 1e3
        np.testing.assert_allclose(messages, expected, rtol=1e-6)
        with_latency, _ = time(algorithm, slow)
        np.testing.assert_allclose(with_latency, messages + 0.25, rtol=1e-6)


def test_submodels_are_charged_the_codes_of_narrow_models():
    coded = Coded(small("HeteroFL", rates=(0.4, 1.0)), Quantized(8))
    clock = srp.clocks.Devices(1e9, 1e6, 1e6)
    costs = prepared(coded, DATA, clock=clock).costs
    narrow = prepared(Coded(small("FedAvg"), Quantized(8)), DATA).sizes.messages
    # the whole model: as FedAvg's, which costs a bit more for its reference
    assert abs(costs.bytes_up[1] - narrow.sent) <= 1
    assert costs.bytes_up[0] < costs.bytes_up[1]


# Every algorithm.

CODED = [name for name in TABLE if name not in ("flexlora", "linear_fedrep")]


def codes_of(name):
    submodels = ("depthfl", "fjord", "fedrolex", "heterofl", "hetlora", "sliding_window")
    by_entry = name in submodels
    up = Quantized(6) if by_entry else ErrorFeedback(TopK(0.5, values=Quantized(6)))
    return up, Half()


@pytest.mark.parametrize("name", CODED)
@pytest.mark.short("fedavg", "fedamp", "scaffold", "fjord")
def test_every_algorithm_can_be_coded_and_saves_bytes(name):
    """Rounds are traced, not compiled."""
    algorithm = TABLE[name].make()
    data = TABLE[name].data()
    run = prepared(Coded(algorithm, *codes_of(name)), data)
    run.traced()
    alone = prepared(algorithm, data).sizes.messages
    for coded, plain in zip(run.sizes.messages, alone, strict=True):
        assert coded < plain or plain <= 8  # nothing, or a number


@pytest.mark.parametrize("name", CODED)
@pytest.mark.short("fedbuff")
def test_every_algorithm_runs_coded(name):
    algorithm = Coded(TABLE[name].make(), *codes_of(name))
    history = simulate(algorithm, TABLE[name].data(), 2)
    assert history.finite.all()
    finite = [np.isfinite(leaf).all() for leaf in jax.tree.leaves(history.server_state)]
    assert all(finite)


# Refusals, and the three ways to give codes.


class Refused(NamedTuple):
    make: object
    says: str


@pytest.mark.parametrize(
    "case",
    [
        Refused(lambda: Coded(small("FedAvg"), "TopQ(0.1)"), "^up='TopQ.*did you mean"),
        Refused(lambda: Coded(small("FedAvg"), down="7"), "^down=7 must be"),
        Refused(
            lambda: Coded(small("FedAvg"), down=ErrorFeedback(Sign())),
            r"^down=Error.*give Sign\(\)",
        ),
        Refused(lambda: Coded(Coded(small("FedAvg"))), "^algorithm=.*at once"),
        *(
            Refused(
                lambda codec=codec: prepared(
                    Coded(small("FedAvg"), ErrorFeedback(codec)), DATA
                ),
                "^up=Error.*the error grows; give",
            )
            for codec in (Quantized(2), LowRank(1, values=Quantized(8)))
        ),
        *(
            Refused(
                lambda codec=codec: ErrorFeedback(codec), "^codec=.*the error grows; give"
            )
            for codec in (
                RandomK(0.1),
                TopK(0.5, RandomK(0.1)),
                Quantized(2, scale="l2"),
            )
        ),
        Refused(
            lambda: prepared(Coded(small("HeteroFL"), TopK(0.1)), DATA),
            "^up=TopK.*heterofl's clients.*Quantized or Half",
        ),
        Refused(
            lambda: prepared(Coded(small("FjORD"), Half(), LowRank(1)), DATA), "^down=Low"
        ),
        Refused(
            lambda: prepared(Coded(small("HeteroFL"), down=TopK(0.1)), DATA), "^down=TopK"
        ),
        *(
            Refused(
                lambda name=name: prepared(Coded(small(name), TopK(0.1)), DATA),
                f"^up=TopK.*{name.lower()}'s clients.*Quantized or Half",
            )
            for name in ("DepthFL", "HetLoRA")
        ),
        Refused(
            lambda: prepared(Coded(small("SlidingWindow"), down=TopK(0.1)), DATA),
            "^down=TopK.*sliding_window's clients.*Quantized or Half",
        ),
        *(
            Refused(
                lambda name=name: prepared(
                    Coded(TABLE[name].make(), Half()), TABLE[name].data()
                ),
                f"^up=Half.*{name}'s message is a short cut.*up=None",
            )
            for name in ("linear_fedrep", "flexlora")
        ),
    ],
)
def test_what_cannot_be_coded_is_refused_in_one_line(case):
    with refused(case.says):
        case.make()


def test_a_policy_with_a_criterion_gets_the_whole_gradient():
    policy = srp.participation.StatisticalAccuracy(initial=2)
    sizes = [
        prepared(each, DATA, participation=policy).sizes.messages
        for each in (small("FedAvg"), Coded(small("FedAvg"), TopK(0.1)))
    ]
    alone = prepared(Coded(small("FedAvg"), TopK(0.1)), DATA).sizes.messages
    assert sizes[1].sent == alone.sent + 4 * NUM_VALUES
    assert sizes[0].sent == 2 * 4 * NUM_VALUES


def test_a_client_is_debugged_and_personalized_with_its_own_state():
    coded = Coded(small("FedRep"), ErrorFeedback(TopK(0.2)), Half())
    tried = srp.debug_client(coded, DATA, client=1, evaluations="own_head")
    assert isinstance(tried.state, CodedState)
    assert set(tried.scores) == {"own_head"}
